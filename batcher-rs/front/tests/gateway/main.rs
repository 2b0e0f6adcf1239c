//! The gateway's front on real sockets: callers on one side, replicas made of a bare HTTP/2 server on the other.

mod infer;
mod large;
mod relay;
mod replicas;
mod stream;
mod support;
