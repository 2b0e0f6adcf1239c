//! The crate from outside: messages are built and read by prost, which shares no code with it.
// All of this is test code, helpers included.
#![allow(clippy::unwrap_used)]

mod admission;
mod batches;
mod messages;
mod parsing;
mod peeking;
mod replies;
mod typed;
