//! From a name and a version to the replicas that serve it.

use std::collections::HashMap;
use std::fmt;

use foldhash::fast::RandomState;

use crate::document::{Document, ModelDocument, State};
use crate::hash::{below, stable};

/// A replica's place in [`Table::replicas`]. Only means something together with its table.
pub type ReplicaIndex = u32;

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name.
    pub id: String,
    /// Where it listens.
    pub address: String,
}

/// A replica of one version, with what rendezvous hashing needs of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) replica: ReplicaIndex,
    pub(crate) hash: u64,
}

#[derive(Debug)]
struct Version {
    name: Box<str>,
    state: State,
    reason: Box<str>,
    members: Vec<Member>,
}

/// A model and how its requests are spread.
#[derive(Debug)]
pub struct Model {
    name: Box<str>,
    versions: Vec<Version>,
    /// Running sums of the weights of the versions that can serve, with their places.
    split: Vec<(u64, u32)>,
    /// The version whose state tells why none can: the one with the largest weight.
    foremost: Option<u32>,
    sticky: Option<Box<str>>,
}

#[derive(Clone, Debug)]
struct Target {
    model: u32,
    /// Set by an alias that pins one; empty otherwise.
    version: Box<str>,
}

/// An immutable picture of who serves what.
#[derive(Debug)]
pub struct Table {
    generation: u64,
    replicas: Vec<Replica>,
    models: Vec<Model>,
    names: HashMap<Box<str>, Target, RandomState>,
}

/// Why a document isn't a route table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTable(String);

impl fmt::Display for BadTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a route table: {}", self.0)
    }
}

impl std::error::Error for BadTable {}

/// Why a request has nowhere to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoute<'a> {
    /// No model or alias has this name.
    ModelNotFound,
    /// The model has no such version, or no default one was asked for and there is none.
    VersionNotFound {
        /// The model, by its own name.
        model: &'a str,
    },
    /// The version is known but doesn't serve.
    NotReady {
        /// The model, by its own name.
        model: &'a str,
        /// The version.
        version: &'a str,
        /// What it does instead.
        state: State,
        /// Why, as the worker told. May be empty.
        reason: &'a str,
    },
    /// The version is ready but nobody serves it.
    NoReplica {
        /// The model, by its own name.
        model: &'a str,
        /// The version.
        version: &'a str,
    },
}

/// Where a request may go.
#[derive(Clone, Copy, Debug)]
pub struct Route<'a> {
    /// The model, by its own name.
    pub model: &'a str,
    /// The version.
    pub version: &'a str,
    /// Request parameter whose value keeps requests together, if the model wants that.
    pub sticky: Option<&'a str>,
    pub(crate) members: &'a [Member],
}

impl Table {
    /// Reads a table from its JSON document.
    pub fn from_json(json: &str) -> Result<Self, BadTable> {
        let document: Document =
            serde_json::from_str(json).map_err(|error| BadTable(error.to_string()))?;
        Self::build(document)
    }

    fn build(document: Document) -> Result<Self, BadTable> {
        let mut places = HashMap::<String, Member, RandomState>::default();
        let mut replicas = Vec::with_capacity(document.replicas.len());
        for (id, replica) in document.replicas {
            let member = Member {
                replica: replicas.len() as u32,
                hash: stable(id.as_bytes()),
            };
            places.insert(id.clone(), member);
            replicas.push(Replica {
                id,
                address: replica.address,
            });
        }
        let mut models = Vec::with_capacity(document.models.len());
        let mut names = HashMap::<Box<str>, Target, RandomState>::default();
        for (name, model) in document.models {
            names.insert(
                name.clone().into(),
                Target {
                    model: models.len() as u32,
                    version: Box::default(),
                },
            );
            models.push(Model::build(&name, model, &places)?);
        }
        let aliases = document.aliases.into_iter().map(|(name, alias)| {
            match names.get(alias.model.as_str()) {
                Some(target) => Ok((
                    name,
                    Target {
                        model: target.model,
                        version: alias.version.into(),
                    },
                )),
                None => Err(BadTable(format!(
                    "alias {name:?} points at {:?}, which is no model",
                    alias.model
                ))),
            }
        });
        for (name, target) in aliases.collect::<Result<Vec<_>, _>>()? {
            // A model whose name somebody took as an alias keeps it.
            names.entry(name.into()).or_insert(target);
        }
        Ok(Self {
            generation: document.generation,
            replicas,
            models,
            names,
        })
    }

    /// The document's number; larger ones are newer.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Every replica, also those that serve nothing.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// The replica at a place that this table gave out.
    pub fn replica(&self, index: ReplicaIndex) -> &Replica {
        &self.replicas[index as usize]
    }

    /// Every model.
    pub fn models(&self) -> impl ExactSizeIterator<Item = &Model> {
        self.models.iter()
    }

    /// The model of this name or alias.
    pub fn model(&self, name: &str) -> Option<&Model> {
        self.names
            .get(name)
            .map(|target| &self.models[target.model as usize])
    }

    /// Where a request for this name goes. Without a version (`""`) one is drawn by weight among those that can serve:
    /// `draw` is a random number, or [`sticky_draw`](crate::sticky_draw) of the key. With one it goes there whatever its weight, so a
    /// withdrawn version can still be asked for by name as long as it is loaded.
    pub fn resolve(&self, name: &str, version: &str, draw: u64) -> Result<Route<'_>, NoRoute<'_>> {
        let target = self.names.get(name).ok_or(NoRoute::ModelNotFound)?;
        let model = &self.models[target.model as usize];
        match (&*target.version, version) {
            ("", "") => model.draw(draw),
            ("", version) | (version, "") => model.pinned(version),
            (pinned, version) if pinned == version => model.pinned(version),
            _ => Err(NoRoute::VersionNotFound { model: &model.name }),
        }
    }
}

impl Model {
    fn build(
        name: &str,
        document: ModelDocument,
        places: &HashMap<String, Member, RandomState>,
    ) -> Result<Self, BadTable> {
        let mut versions = Vec::with_capacity(document.versions.len());
        for (version, served) in document.versions {
            let members = served.replicas.iter().map(|id| {
                let unknown = || {
                    BadTable(format!(
                        "model {name:?} version {version:?} names the unknown replica {id:?}"
                    ))
                };
                places.get(id).copied().ok_or_else(unknown)
            });
            let members = members.collect::<Result<Vec<_>, _>>()?;
            let (state, reason) = (served.state, served.reason.into());
            versions.push(Version {
                name: version.into(),
                state,
                reason,
                members,
            });
        }
        let mut split = Vec::new();
        let mut foremost: Option<(u32, u32)> = None;
        let mut sum = 0;
        for (version, weight) in document.default {
            let Some(at) = versions.iter().position(|one| *one.name == *version) else {
                return Err(BadTable(format!(
                    "model {name:?} has a weight for the unknown version {version:?}"
                )));
            };
            if weight == 0 {
                continue;
            }
            if foremost.is_none_or(|(most, _)| weight > most) {
                foremost = Some((weight, at as u32));
            }
            if versions[at].state == State::Ready && !versions[at].members.is_empty() {
                sum += u64::from(weight);
                split.push((sum, at as u32));
            }
        }
        let foremost = foremost.map(|(_, at)| at);
        Ok(Self {
            name: name.into(),
            versions,
            split,
            foremost,
            sticky: document.sticky.map(Into::into),
        })
    }

    /// Its own name, never an alias.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Request parameter whose value keeps requests together.
    pub fn sticky(&self) -> Option<&str> {
        self.sticky.as_deref()
    }

    /// Its versions with their states.
    pub fn versions(&self) -> impl ExactSizeIterator<Item = (&str, State)> {
        self.versions
            .iter()
            .map(|version| (&*version.name, version.state))
    }

    fn draw(&self, draw: u64) -> Result<Route<'_>, NoRoute<'_>> {
        let Some(&(total, _)) = self.split.last() else {
            let foremost = self
                .foremost
                .ok_or(NoRoute::VersionNotFound { model: &self.name })?;
            return self.route(&self.versions[foremost as usize]);
        };
        let point = below(draw, total);
        let at = self.split.partition_point(|&(sum, _)| sum <= point);
        self.route(&self.versions[self.split[at].1 as usize])
    }

    fn pinned(&self, version: &str) -> Result<Route<'_>, NoRoute<'_>> {
        match self.versions.iter().find(|one| *one.name == *version) {
            Some(version) => self.route(version),
            None => Err(NoRoute::VersionNotFound { model: &self.name }),
        }
    }

    fn route<'a>(&'a self, version: &'a Version) -> Result<Route<'a>, NoRoute<'a>> {
        let (model, name) = (&*self.name, &*version.name);
        if version.state != State::Ready {
            return Err(NoRoute::NotReady {
                model,
                version: name,
                state: version.state,
                reason: &version.reason,
            });
        }
        if version.members.is_empty() {
            return Err(NoRoute::NoReplica {
                model,
                version: name,
            });
        }
        Ok(Route {
            model,
            version: name,
            sticky: self.sticky(),
            members: &version.members,
        })
    }
}
