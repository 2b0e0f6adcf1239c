//! The load generator behind `headrace bench`: it asks a gRPC server the same prepared questions as fast as told, and says what came back.
//!
//! A **closed loop** keeps a number of requests outstanding and finds out how many a second the server answers. An **open loop** sends at
//! a rate whatever the server does, as independent users would, and measures each latency from the moment at which the request was
//! *meant* to be sent, so a stalled server can't hide its stall by delaying the next question (coordinated omission).
//!
//! [`run`] blocks the calling thread. The work happens on threads of its own, each a current-thread runtime over `h2` with one task a
//! connection, so that the generator costs a fraction of the server that it measures.

mod alarm;
mod answer;
mod check;
mod config;
mod dial;
mod driver;
pub mod echo;
mod grpc;
mod http1;
mod hub;
mod record;
mod report;
mod schedule;

pub use config::{Arrival, Config, Payload, Protocol};
pub use driver::run;
pub use report::{Latency, Report};

use std::io;

/// Why no load test could be run; what the server answers is never one of these.
#[derive(Debug)]
pub enum LoadError {
    /// A setting makes no sense, or a payload could not be read.
    Config(String),
    /// The server could not be reached at the start.
    Connect {
        /// The address as it was given.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The machine refused a thread, a timer or a file descriptor.
    System(io::Error),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(what) => f.write_str(what),
            Self::Connect { address, source } => match source.kind() {
                io::ErrorKind::ConnectionRefused => {
                    write!(
                        f,
                        "connection refused by {address}: is the server running there?"
                    )
                }
                io::ErrorKind::TimedOut => write!(f, "no answer from {address}: {source}"),
                _ => write!(f, "cannot connect to {address}: {source}"),
            },
            Self::System(source) => write!(
                f,
                "the load generator ran into a limit of this machine: {source}"
            ),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(_) => None,
            Self::Connect { source, .. } | Self::System(source) => Some(source),
        }
    }
}
