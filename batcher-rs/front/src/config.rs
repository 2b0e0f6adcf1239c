//! What a front is told when it starts. Written by Python as JSON; read once.

use serde::Deserialize;
use std::time::Duration;

/// Settings of one front. Every time is in milliseconds, every size in bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrontConfig {
    /// `HOST:PORT` to listen on; port 0 takes any free one.
    pub listen: String,
    /// Where every method that is not handled here is relayed to (`unix:/path` or `HOST:PORT`).
    pub fallback: Option<String>,
    /// Runtime threads. One is best up to two cores; connections are dealt out round robin.
    pub threads: usize,
    /// Largest message, either way.
    pub max_message_bytes: usize,
    /// Connections beyond this are closed at once.
    pub max_connections: usize,
    /// Memory that bodies still being received may take together; more are refused.
    pub max_receiving_bytes: usize,
    /// The longest a request may take, also when its caller set no deadline.
    pub max_timeout_ms: u64,
    /// Time for the HTTP/2 handshake of a new connection.
    pub handshake_timeout_ms: u64,
    /// A request body, or a reader of a reply, may stand still this long.
    pub body_timeout_ms: u64,
    /// A connection idle this long is pinged.
    pub keepalive_interval_ms: u64,
    /// A ping unanswered this long ends the connection.
    pub keepalive_timeout_ms: u64,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".into(),
            fallback: None,
            threads: 1,
            max_message_bytes: 64 << 20,
            max_connections: 16_384,
            max_receiving_bytes: 1 << 30,
            max_timeout_ms: 600_000,
            handshake_timeout_ms: 10_000,
            body_timeout_ms: 30_000,
            keepalive_interval_ms: 30_000,
            keepalive_timeout_ms: 10_000,
        }
    }
}

impl FrontConfig {
    /// The longest a request may take.
    pub fn max_timeout(&self) -> Duration {
        Duration::from_millis(self.max_timeout_ms)
    }

    /// Time for the HTTP/2 handshake of a new connection.
    pub fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.handshake_timeout_ms)
    }

    /// How long a body or a reader may stand still.
    pub fn body_timeout(&self) -> Duration {
        Duration::from_millis(self.body_timeout_ms)
    }
}
