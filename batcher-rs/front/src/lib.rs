//! The HTTP/2 half of every service: hot methods, pass-through, deadlines and errors, on `h2` directly.

pub mod deadline;
pub mod io;
pub mod status;
