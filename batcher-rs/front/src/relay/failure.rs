//! How a call ends that got no answer from upstream, and which status says so. `UNKNOWN` is not among them.

use std::time::Instant;

use h2::Reason as H2;

use crate::status::{Reason, Status};

/// Why a call ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// There is nobody left to answer.
    CallerGone,
    /// The upstream stream ended without an answer, or in the middle of one.
    Lost(h2::Error),
    /// For a reason of our own.
    Refuse(Status),
}

impl Stop {
    /// What the caller is told. An upstream that gives up because the time is over is not lost.
    pub(crate) fn status(self, deadline: Option<Instant>) -> Option<Status> {
        match self {
            Self::CallerGone => None,
            Self::Refuse(status) => Some(status),
            Self::Lost(_) if deadline.is_some_and(|at| at <= Instant::now()) => {
                Some(deadline_exceeded())
            }
            Self::Lost(error) => Some(status_of(&error)),
        }
    }
}

/// Whether the peer said that it did not, and will not, look at this stream: only then is it safe to send the request to
/// another (RFC 9113 §8.7).
pub(crate) fn certainly_never_ran(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(H2::REFUSED_STREAM))
}

/// The status for an upstream stream that broke.
pub(crate) fn status_of(error: &h2::Error) -> Status {
    if certainly_never_ran(error) {
        return Status::new(Reason::Draining, "the server takes no new requests");
    }
    if error.is_reset() && error.is_remote() {
        return match error.reason() {
            Some(H2::CANCEL) => Status::new(Reason::Cancelled, "the server cancelled the call"),
            Some(H2::ENHANCE_YOUR_CALM) => {
                Status::new(Reason::QueueFull, "the server is overloaded")
            }
            _ => Status::new(Reason::WorkerLost, "the server broke off the call"),
        };
    }
    Status::new(
        Reason::WorkerLost,
        "the connection to the server was lost during the call",
    )
}

pub(crate) fn deadline_exceeded() -> Status {
    Status::new(
        Reason::DeadlineExceeded,
        "the deadline passed before the answer was complete",
    )
}
