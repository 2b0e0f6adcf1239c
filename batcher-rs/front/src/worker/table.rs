//! Which queue a request goes to: an immutable picture of the worker's models, swapped whole.

use super::model::ModelQueue;
use super::spec::{Catalog, State};
use crate::status::{Reason, Status};
use std::collections::HashMap;
use std::sync::Arc;

/// One version as requests see it.
#[derive(Clone, Default)]
struct Version {
    state: State,
    reason: String,
    queue: Option<Arc<ModelQueue>>,
}

#[derive(Clone, Default)]
struct Model {
    default: Option<String>,
    versions: HashMap<String, Version>,
}

/// All models of this worker.
#[derive(Clone, Default)]
pub(crate) struct Table {
    models: HashMap<String, Model>,
    queues: HashMap<(String, String), Arc<ModelQueue>>,
}

impl Table {
    /// The queue for a model and version (empty: the default one).
    pub(crate) fn resolve(&self, model: &str, version: &str) -> Result<&Arc<ModelQueue>, Status> {
        if model.is_empty() {
            let text = "the request names no model (model_name is empty)";
            return Err(Status::new(Reason::InvalidRequest, text)
                .with_violation("model_name", "must not be empty"));
        }
        let Some(known) = self.models.get(model) else {
            return Err(Status::new(
                Reason::ModelNotFound,
                format!("no model '{}' is here", shown(model)),
            ));
        };
        let name = match (version, &known.default) {
            ("", Some(default)) => default.as_str(),
            ("", None) => return Err(no_default(model, known)),
            (named, _) => named,
        };
        let Some(version) = known.versions.get(name) else {
            return Err(Status::new(
                Reason::VersionNotFound,
                format!("model '{model}' has no version '{}'", shown(name)),
            ));
        };
        match (version.state, &version.queue) {
            (State::Ready | State::Unloading, Some(queue)) => Ok(queue),
            (state, _) => Err(not_ready(model, name, state, &version.reason)),
        }
    }

    /// Every queue that exists, also of versions that take nothing new.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Arc<ModelQueue>> {
        self.queues.values()
    }

    /// The same with another catalog.
    pub(crate) fn with_catalog(&self, catalog: &Catalog) -> Self {
        let models = catalog
            .models
            .iter()
            .map(|(name, model)| {
                let versions = model
                    .versions
                    .iter()
                    .map(|(version, entry)| {
                        let queue = self.queues.get(&(name.clone(), version.clone())).cloned();
                        (
                            version.clone(),
                            Version {
                                state: entry.state,
                                reason: entry.reason.clone(),
                                queue,
                            },
                        )
                    })
                    .collect();
                (
                    name.clone(),
                    Model {
                        default: model.default.clone(),
                        versions,
                    },
                )
            })
            .collect();
        Self {
            models,
            queues: self.queues.clone(),
        }
    }

    /// The same with this queue, and the one that stood in its place.
    pub(crate) fn with_queue(&self, queue: Arc<ModelQueue>) -> (Self, Option<Arc<ModelQueue>>) {
        let mut table = self.clone();
        let signature = queue.signature();
        let (name, version) = (signature.model.clone(), signature.version.clone());
        if let Some(entry) = table
            .models
            .get_mut(&name)
            .and_then(|model| model.versions.get_mut(&version))
        {
            entry.queue = Some(Arc::clone(&queue));
        }
        let before = table.queues.insert((name, version), queue);
        (table, before)
    }

    /// The same without a queue, and that queue.
    pub(crate) fn without_queue(
        &self,
        name: &str,
        version: &str,
    ) -> (Self, Option<Arc<ModelQueue>>) {
        let mut table = self.clone();
        if let Some(entry) = table
            .models
            .get_mut(name)
            .and_then(|model| model.versions.get_mut(version))
        {
            entry.queue = None;
        }
        let before = table.queues.remove(&(name.to_owned(), version.to_owned()));
        (table, before)
    }
}

fn no_default(name: &str, model: &Model) -> Status {
    let loading = model
        .versions
        .values()
        .any(|version| version.state == State::Loading);
    if loading {
        return Status::new(Reason::ModelLoading, format!("model '{name}' is loading"));
    }
    match model
        .versions
        .iter()
        .find(|(_, version)| version.state == State::Failed)
    {
        Some((version, entry)) => not_ready(name, version, entry.state, &entry.reason),
        None => Status::new(
            Reason::ModelNotFound,
            format!("model '{name}' has no version that is loaded"),
        ),
    }
}

fn not_ready(model: &str, version: &str, state: State, reason: &str) -> Status {
    match state {
        State::Failed => Status::new(
            Reason::ModelFailed,
            format!("model '{model}' version {version} could not be loaded: {reason}"),
        ),
        State::Unloading => Status::new(
            Reason::VersionNotFound,
            format!("model '{model}' version {version} was unloaded"),
        ),
        State::Loading | State::Ready => Status::new(
            Reason::ModelLoading,
            format!("model '{model}' version {version} is loading"),
        ),
    }
}

/// Names come from anybody: only the first part of a long one is said back.
fn shown(name: &str) -> &str {
    match name.char_indices().nth(100) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}
