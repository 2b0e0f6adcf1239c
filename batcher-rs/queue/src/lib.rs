//! Which requests run together, and when.
//!
//! [`BatchQueue`] holds the requests of one model version that wait for an instance. It is a value: it owns no clock, thread,
//! lock or socket, and every decision is a function of what was pushed, what finished and the `now` that is passed in.
//! A driver pushes entries, and each idle instance polls:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use headrace_queue::{BatchQueue, Entry, Flow, Live, Next, Policy};
//!
//! struct Call(&'static str);
//! impl Live for Call {
//!     fn is_cancelled(&self) -> bool { false }
//! }
//!
//! let now = Instant::now();
//! let mut queue = BatchQueue::new(Policy::default());
//! let flow = Flow { id: 0, weight: 1 };
//! let entry = Entry {
//!     id: 1, payload: Call("a cup"), key: (), rows: 1, bytes: 600, priority: 1, flow, arrived: now, deadline: None,
//! };
//! queue.push(entry, now).map_err(|refused| refused.why).expect("an empty queue admits");
//! let Next::Run(batch) = queue.poll(now) else { panic!("an idle instance never waits") };
//! assert_eq!(batch.entries[0].payload.0, "a cup");
//! // ... the model runs ...
//! queue.finished(batch.ticket, now + Duration::from_millis(3), true);
//! ```
//!
//! The rules, each in its own file: who is next (`fair`, `room`), what may come in (`admit`), how large a batch grows and
//! which entries are past saving (`fill`), what a run costs (`curve`, `cost`), what has run out of time (`deadlines`).
#![forbid(unsafe_code)]

mod admit;
mod cost;
mod curve;
mod deadlines;
mod entry;
mod fair;
mod fill;
mod next;
mod policy;
mod queue;
mod room;
mod running;

pub use entry::{Entry, Flow, Live, Refusal, Refused};
pub use next::{Batch, Depth, Next, Ticket, Why};
pub use policy::Policy;
pub use queue::BatchQueue;
