//! What to ask, how hard and for how long; read from JSON.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::LoadError;

/// A load test. Every field but `url` and `payloads` has a default.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `host:port`, `http://host:port` or `unix:/path/to/socket`.
    pub url: String,
    /// What is spoken to it.
    #[serde(default)]
    pub protocol: Protocol,
    /// The method, as HTTP/2 carries it.
    #[serde(default = "default_path")]
    pub path: String,
    /// The messages to send, in turn; for gRPC without the five-byte prefix.
    pub payloads: Vec<Payload>,
    /// Headers of every request.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Content type, HTTP/1.1 only.
    #[serde(default = "default_content_type")]
    pub content_type: String,
    /// Operating-system threads of the generator; connections are dealt to them in turn.
    #[serde(default = "one")]
    pub threads: usize,
    /// Connections to the server.
    #[serde(default = "one")]
    pub connections: usize,
    /// Closed loop: requests outstanding over all connections. At least one a connection.
    #[serde(default = "default_concurrency")]
    pub concurrency: usize,
    /// Open loop: requests a second over all connections. Absent: closed loop.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Open loop: how the requests are spaced.
    #[serde(default)]
    pub arrival: Arrival,
    /// Open loop: requests outstanding over all connections beyond which new ones are dropped, and counted as such.
    #[serde(default = "default_max_outstanding")]
    pub max_outstanding: usize,
    /// Deadline sent with each request (`grpc-timeout`), in microseconds from the moment at which it was meant to be sent.
    #[serde(default)]
    pub timeout_us: Option<u64>,
    /// Whether a request without an answer at its deadline is cancelled, as gRPC clients do.
    #[serde(default = "yes")]
    pub cancel_at_deadline: bool,
    /// How long the server is warmed before anything counts.
    #[serde(default = "default_warmup_ms")]
    pub warmup_ms: u64,
    /// How long answers are counted.
    #[serde(default = "default_duration_ms")]
    pub duration_ms: u64,
    /// Closed loop: stop after this many requests, whatever the duration.
    #[serde(default)]
    pub requests: Option<u64>,
    /// How long answers that are still missing at the end are waited for.
    #[serde(default = "default_drain_ms")]
    pub drain_ms: u64,
    /// Longest wait for a connection.
    #[serde(default = "default_connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// What the raw output bytes of each payload's answer must be: none, one for all, or one each. gRPC only.
    #[serde(default)]
    pub expect: Vec<Payload>,
    /// Compare the output as FP32 values that may differ by this much, not as bytes.
    #[serde(default)]
    pub tolerance: Option<f32>,
    /// Seed of the random arrivals.
    #[serde(default = "default_seed")]
    pub seed: u64,
}

/// Bytes, given in the configuration or read from a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Payload {
    /// Standard base64 with padding.
    Base64(String),
    /// A file that holds exactly the bytes.
    Path(PathBuf),
}

/// What the server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Unary gRPC over HTTP/2 without TLS.
    #[default]
    Grpc,
    /// POST over HTTP/1.1 with one request a connection at a time; for peers that speak nothing else.
    Http1,
}

/// How an open loop spaces its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Exponential gaps: users who know nothing of each other.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
}

impl Config {
    /// A closed loop with every default: 64 requests outstanding on one connection for five seconds.
    pub fn new(url: impl Into<String>, payloads: Vec<Payload>) -> Self {
        Self {
            url: url.into(),
            protocol: Protocol::Grpc,
            path: default_path(),
            payloads,
            metadata: BTreeMap::new(),
            content_type: default_content_type(),
            threads: 1,
            connections: 1,
            concurrency: default_concurrency(),
            rate: None,
            arrival: Arrival::Poisson,
            max_outstanding: default_max_outstanding(),
            timeout_us: None,
            cancel_at_deadline: true,
            warmup_ms: default_warmup_ms(),
            duration_ms: default_duration_ms(),
            requests: None,
            drain_ms: default_drain_ms(),
            connect_timeout_ms: default_connect_timeout_ms(),
            expect: Vec::new(),
            tolerance: None,
            seed: default_seed(),
        }
    }

    pub(crate) fn warmup(&self) -> Duration {
        Duration::from_millis(self.warmup_ms)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_us.map(Duration::from_micros)
    }

    pub(crate) fn validate(&self) -> Result<(), LoadError> {
        let refuse = |what: &str| Err(LoadError::Config(what.to_owned()));
        if self.payloads.is_empty() {
            return refuse("`payloads` is empty: give at least one message to send");
        }
        if self.threads == 0 || self.connections == 0 {
            return refuse("`threads` and `connections` must be at least 1");
        }
        if self.rate.is_none() && self.concurrency < self.connections {
            return Err(LoadError::Config(format!(
                "`concurrency` {} is less than `connections` {}: some connections would do nothing",
                self.concurrency, self.connections
            )));
        }
        if self
            .rate
            .is_some_and(|rate| !rate.is_finite() || rate <= 0.0)
        {
            return refuse("`rate` must be a positive number of requests a second");
        }
        if self.rate.is_some() && self.requests.is_some() {
            return refuse("`requests` ends a closed loop; an open loop ends by `duration_ms`");
        }
        if self.rate.is_some() && self.max_outstanding < self.connections {
            return refuse("`max_outstanding` must be at least one a connection");
        }
        if self.duration_ms == 0 && self.requests.is_none() {
            return refuse("`duration_ms` must be positive");
        }
        if self.timeout_us == Some(0) {
            return refuse("`timeout_us` must be positive");
        }
        if !self.expect.is_empty()
            && self.expect.len() != 1
            && self.expect.len() != self.payloads.len()
        {
            return refuse("`expect` must hold one output for all payloads, or one for each");
        }
        if self.protocol == Protocol::Http1 {
            if self.rate.is_some() || self.timeout_us.is_some() || !self.expect.is_empty() {
                return refuse(
                    "HTTP/1.1 is a plain closed loop: `rate`, `timeout_us` and `expect` are for gRPC",
                );
            }
            if self.concurrency != self.connections {
                return refuse(
                    "HTTP/1.1 carries one request a connection: `concurrency` must equal `connections`",
                );
            }
        }
        Ok(())
    }
}

impl Payload {
    /// The bytes themselves.
    pub(crate) fn load(&self) -> Result<Bytes, LoadError> {
        match self {
            Self::Base64(text) => match STANDARD.decode(text) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(LoadError::Config(format!(
                    "a payload is not base64: {error}"
                ))),
            },
            Self::Path(path) => match std::fs::read(path) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(LoadError::Config(format!(
                    "cannot read payload {}: {error}",
                    path.display()
                ))),
            },
        }
    }
}

/// One message in gRPC's framing: a flag, a length, the message.
pub(crate) fn grpc_frame(message: &[u8]) -> Result<Bytes, LoadError> {
    let length = u32::try_from(message.len())
        .map_err(|_| LoadError::Config("a gRPC message is shorter than 4 GiB".to_owned()))?;
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(length);
    frame.put_slice(message);
    Ok(frame.freeze())
}

fn default_path() -> String {
    "/inference.GRPCInferenceService/ModelInfer".to_owned()
}
fn default_content_type() -> String {
    "application/octet-stream".to_owned()
}
fn one() -> usize {
    1
}
fn yes() -> bool {
    true
}
fn default_concurrency() -> usize {
    64
}
fn default_max_outstanding() -> usize {
    16_384
}
fn default_warmup_ms() -> u64 {
    500
}
fn default_duration_ms() -> u64 {
    5_000
}
fn default_drain_ms() -> u64 {
    2_000
}
fn default_connect_timeout_ms() -> u64 {
    5_000
}
fn default_seed() -> u64 {
    1
}
