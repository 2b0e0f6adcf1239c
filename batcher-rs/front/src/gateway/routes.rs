//! One route table with the replicas that it names, and the way of one request through it.

use std::sync::Arc;

use headrace_route::{BadTable, Choice, NoRoute, ReplicaIndex, Route, State, Table, sticky_draw};
use headrace_tensor::{Head, SequenceId};
use http::HeaderValue;

use super::replica::Replica;
use crate::status::{Reason, Status};

/// One generation of routes.
pub(super) struct Routes {
    table: Table,
    /// In the table's order.
    replicas: Vec<Arc<Replica>>,
}

/// The way of one request: its version is decided, and who shall serve it first.
pub(super) struct Way {
    routes: Arc<Routes>,
    model: HeaderValue,
    version: HeaderValue,
    key: Option<SequenceKey>,
    first: Option<ReplicaIndex>,
    draw: u64,
}

/// What keeps a request with others of its kind.
type SequenceKey = smallvec::SmallVec<[u8; 16]>;

impl Routes {
    /// Nothing is known yet.
    pub(super) fn none() -> Self {
        let table = Table::from_json(r#"{"generation":0,"replicas":{},"models":{}}"#);
        Self {
            table: table.expect("an empty table is a table"),
            replicas: Vec::new(),
        }
    }

    /// Reads a table. Replicas that were in `before` at the same address are the same replicas.
    pub(super) fn read(json: &str, before: &Self, threads: usize) -> Result<Self, BadTable> {
        let table = Table::from_json(json)?;
        let replicas = table
            .replicas()
            .iter()
            .map(|described| {
                let known = before
                    .replicas
                    .iter()
                    .find(|known| known.id == described.id && known.address == described.address);
                known.map_or_else(
                    || Replica::new(&described.id, &described.address, threads),
                    Arc::clone,
                )
            })
            .collect();
        Ok(Self { table, replicas })
    }

    pub(super) fn generation(&self) -> u64 {
        self.table.generation()
    }

    pub(super) fn replicas(&self) -> &[Arc<Replica>] {
        &self.replicas
    }

    /// The way of a request whose head was read from `message`; `draw` decides what is left to chance.
    pub(super) fn resolve(
        self: &Arc<Self>,
        message: &[u8],
        head: &Head,
        draw: u64,
    ) -> Result<Way, Status> {
        let (name, version) = (head.model.text(message), head.version.text(message));
        if name.is_empty() {
            let status = Status::new(Reason::InvalidRequest, "model_name is empty");
            return Err(status.with_violation("model_name", "must name a model"));
        }
        let sequence = head
            .sequence_id
            .and_then(|sequence| self.sticks(name).then(|| key(sequence, message)));
        let split = sequence.as_deref().map_or(draw, sticky_draw);
        let route = self
            .table
            .resolve(name, version, split)
            .map_err(|why| refusal(why, name, version))?;
        Ok(Way {
            routes: Arc::clone(self),
            model: value(route.model)?,
            version: value(route.version)?,
            first: self.pick(&route, sequence.as_deref(), draw, None),
            key: sequence,
            draw,
        })
    }

    fn sticks(&self, name: &str) -> bool {
        self.table
            .model(name)
            .is_some_and(|model| model.sticky() == Some("sequence_id"))
    }

    fn pick(
        &self,
        route: &Route<'_>,
        key: Option<&[u8]>,
        draw: u64,
        excluded: Option<ReplicaIndex>,
    ) -> Option<ReplicaIndex> {
        let at = |replica: ReplicaIndex| &self.replicas[replica as usize];
        let choice = Choice {
            excluded,
            is_ejected: |replica| at(replica).is_ejected(),
            load: |replica| at(replica).load(),
        };
        match key {
            Some(key) => route.pick_sticky(key, &choice),
            // The version took the draw's upper bits too; the pick must not depend on them.
            None => route.pick(draw.rotate_left(32), &choice),
        }
    }
}

impl Way {
    /// `headrace-model`.
    pub(super) fn model(&self) -> &HeaderValue {
        &self.model
    }

    /// `headrace-version`.
    pub(super) fn version(&self) -> &HeaderValue {
        &self.version
    }

    /// Who shall serve the request; `None` when nobody can.
    pub(super) fn first(&self) -> Option<&Arc<Replica>> {
        self.first
            .map(|replica| &self.routes.replicas[replica as usize])
    }

    /// Who shall serve it if the first did not.
    pub(super) fn second(&self) -> Option<&Arc<Replica>> {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let (model, version) = (text(&self.model), text(&self.version));
        let route = self.routes.table.resolve(&model, &version, 0).ok()?;
        let replica = self
            .routes
            .pick(&route, self.key.as_deref(), self.draw, self.first)?;
        Some(&self.routes.replicas[replica as usize])
    }

    /// The refusal when nobody can serve it.
    #[allow(clippy::unused_self, reason = "a way is what lacks the replica")]
    pub(super) fn no_replica(&self) -> Status {
        Status::new(
            Reason::NoReplica,
            "no replica of this version can be reached",
        )
    }
}

fn key(sequence: SequenceId, message: &[u8]) -> SequenceKey {
    match sequence {
        SequenceId::Number(number) => SequenceKey::from_slice(&number.to_le_bytes()),
        SequenceId::Text(text) => SequenceKey::from_slice(text.of(message)),
    }
}

fn value(name: &str) -> Result<HeaderValue, Status> {
    HeaderValue::from_bytes(name.as_bytes()).map_err(|_| {
        Status::new(
            Reason::Internal,
            format!("the name {name:?} cannot travel as metadata"),
        )
    })
}

fn refusal(why: NoRoute<'_>, name: &str, asked: &str) -> Status {
    match why {
        NoRoute::ModelNotFound => Status::new(
            Reason::ModelNotFound,
            format!("model '{name}' is not known here"),
        ),
        NoRoute::VersionNotFound { model } if asked.is_empty() => Status::new(
            Reason::VersionNotFound,
            format!("model '{model}' has no default version: name one"),
        ),
        NoRoute::VersionNotFound { model } => Status::new(
            Reason::VersionNotFound,
            format!("'{name}' has no version '{asked}' (model '{model}')"),
        ),
        NoRoute::NoReplica { model, version } => Status::new(
            Reason::NoReplica,
            format!("no replica serves model '{model}' version '{version}'"),
        ),
        NoRoute::NotReady {
            model,
            version,
            state,
            reason,
        } => {
            let (kind, what) = match state {
                State::Loading => (Reason::ModelLoading, "is being loaded"),
                State::Unloading => (Reason::VersionNotFound, "is being unloaded"),
                State::Ready | State::Failed => (Reason::ModelFailed, "could not be loaded"),
            };
            let colon = if reason.is_empty() { "" } else { ": " };
            Status::new(
                kind,
                format!("model '{model}' version '{version}' {what}{colon}{reason}"),
            )
        }
    }
}
