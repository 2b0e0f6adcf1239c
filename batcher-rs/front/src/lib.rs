//! The HTTP/2 half of every service: hot methods, pass-through, deadlines and errors, on `h2` directly.

pub mod body;
pub mod compress;
pub mod config;
mod connection;
pub mod deadline;
mod fallback;
pub mod gateway;
pub mod io;
mod keepalive;
pub mod relay;
mod send;
pub mod server;
mod shared;
pub mod status;
pub mod upstream;
pub mod worker;
