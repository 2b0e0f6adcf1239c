//! The gateway's front on real sockets: callers on one side, replicas made of a bare HTTP/2 server on the other.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps an error has failed"
)]

mod infer;
mod large;
mod relay;
mod replicas;
mod stream;
mod support;
