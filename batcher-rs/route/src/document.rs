//! The route table as the gateway's Python half writes it. Unknown fields are refused: a field that one half doesn't know is
//! a mistake to be seen at once.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) generation: u64,
    pub(crate) replicas: BTreeMap<String, ReplicaDocument>,
    pub(crate) models: BTreeMap<String, ModelDocument>,
    #[serde(default)]
    pub(crate) aliases: BTreeMap<String, AliasDocument>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplicaDocument {
    pub(crate) address: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelDocument {
    /// Version → weight, for requests that name no version.
    pub(crate) default: BTreeMap<String, u32>,
    pub(crate) versions: BTreeMap<String, VersionDocument>,
    /// Request parameter whose value keeps requests together.
    #[serde(default)]
    pub(crate) sticky: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VersionDocument {
    pub(crate) replicas: Vec<String>,
    pub(crate) state: State,
    #[serde(default)]
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AliasDocument {
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) version: String,
}

/// What a version is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// It will serve.
    Loading,
    /// It serves.
    Ready,
    /// It finishes what it has.
    Unloading,
    /// It couldn't be loaded.
    Failed,
}

impl State {
    /// The name in the route table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "LOADING",
            Self::Ready => "READY",
            Self::Unloading => "UNLOADING",
            Self::Failed => "FAILED",
        }
    }
}
