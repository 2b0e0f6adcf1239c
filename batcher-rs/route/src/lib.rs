//! Which replica gets a request.
//!
//! Pure: no clock, thread or socket. A [`Table`] is built from the JSON document that the gateway's Python half makes and is
//! never changed; a new picture is a new table. A request is resolved by name and version and then given to one of the replicas:
//!
//! ```
//! use headrace_route::{Choice, Table};
//!
//! let table = Table::from_json(r#"{
//!     "generation": 7,
//!     "replicas": {"w1": {"address": "127.0.0.1:9001"}, "w2": {"address": "127.0.0.1:9002"}},
//!     "models": {"minilm": {
//!         "default": {"1": 100},
//!         "versions": {"1": {"replicas": ["w1", "w2"], "state": "READY", "reason": ""}},
//!         "sticky": null
//!     }},
//!     "aliases": {"embedder": {"model": "minilm", "version": ""}}
//! }"#)?;
//! let random = 0x9e37_79b9_7f4a_7c15; // two 64-bit random numbers in earnest
//! let route = table.resolve("embedder", "", random).expect("it is ready");
//! assert_eq!((route.model, route.version), ("minilm", "1"));
//! let choice = Choice { excluded: None, is_ejected: |_| false, load: |replica| if replica == 0 { 9 } else { 2 } };
//! let replica = route.pick(random, &choice).expect("two are there");
//! assert_eq!(table.replica(replica).address, "127.0.0.1:9002");
//! # Ok::<(), headrace_route::BadTable>(())
//! ```
#![forbid(unsafe_code)]

mod budget;
mod document;
mod hash;
mod health;
mod pick;
mod table;

pub use budget::Budget;
pub use document::State;
pub use hash::sticky_draw;
pub use health::{Ejection, Health, Outcome};
pub use pick::Choice;
pub use table::{BadTable, Model, NoRoute, Replica, ReplicaIndex, Route, Table};
