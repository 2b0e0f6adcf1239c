//! From a received message to an entry of a queue: resolve, parse, validate. Nothing that is wrong gets past here.

use super::entry::{Answer, CancelFlag, Pending};
use super::model::{ModelQueue, QueueEntry};
use super::table::Table;
use crate::server::InFlight;
use crate::status::{Reason, Status};
use bytes::Bytes;
use headrace_queue::{Entry, Flow};
use headrace_tensor::{Admitted, Invalid, Malformed, Request, Value, admit, parse};
use http::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Which model a gateway decided on. These override what the message says, since a gateway forwards messages as they came.
#[derive(Default)]
pub(crate) struct Override {
    model: Option<String>,
    version: Option<String>,
}

impl Override {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        Self {
            model: text("headrace-model"),
            version: text("headrace-version"),
        }
    }
}

/// A request that may be queued.
pub(crate) struct Accepted {
    pub(crate) model: Arc<ModelQueue>,
    pub(crate) admitted: Admitted,
    pub(crate) message: Bytes,
    /// Whether a streaming caller wants to be told which answer is the last.
    pub(crate) wants_final: bool,
}

/// Checks one message.
pub(crate) fn accept(
    table: &Table,
    message: Bytes,
    override_: &Override,
) -> Result<Accepted, Status> {
    let request = parse(&message).map_err(|malformed| status_of_malformed(&malformed))?;
    let model = override_
        .model
        .as_deref()
        .unwrap_or_else(|| request.model.text(&message));
    let version = override_
        .version
        .as_deref()
        .unwrap_or_else(|| request.version.text(&message));
    let model = Arc::clone(table.resolve(model, version)?);
    let admitted = admit(&message, &request, model.signature()).map_err(|invalid| {
        let status = status_of_invalid(invalid);
        model.counters.lock().refuse(status.reason);
        status
    })?;
    let levels = model.settings().priority_levels.max(1);
    if admitted.priority > levels {
        let text = format!(
            "priority {} is out of range: 1 (most urgent) to {levels}, 0 for the default",
            admitted.priority
        );
        return Err(Status::new(Reason::InvalidParameter, text.clone())
            .with_violation("parameters[priority]", text));
    }
    let wants_final = wants_final(&request, &message);
    Ok(Accepted {
        model,
        admitted,
        message,
        wants_final,
    })
}

impl Accepted {
    /// The entry for the queue. Waits no longer than `deadline`, nor than the request's own queueing timeout.
    pub(crate) fn into_entry(
        self,
        answer: Answer,
        cancel: Arc<CancelFlag>,
        deadline: Instant,
        now: Instant,
        in_flight: InFlight,
    ) -> (Arc<ModelQueue>, QueueEntry) {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let Self {
            model,
            admitted,
            message,
            wants_final: _,
        } = self;
        let settings = model.settings();
        let priority = match admitted.priority {
            0 => settings.default_priority,
            asked => asked,
        };
        let default_timeout = Some(settings.default_timeout_us)
            .filter(|micros| *micros > 0)
            .map(Duration::from_micros);
        let deadline = match admitted.timeout.or(default_timeout) {
            Some(timeout) => now
                .checked_add(timeout)
                .map_or(deadline, |end| end.min(deadline)),
            None => deadline,
        };
        let entry = Entry {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            key: admitted.key.clone(),
            rows: admitted.rows,
            bytes: admitted.bytes,
            priority,
            flow: Flow { id: 0, weight: 1 },
            arrived: now,
            deadline: Some(deadline),
            payload: Pending {
                message,
                admitted,
                cancel,
                answer,
                _in_flight: in_flight,
            },
        };
        (model, entry)
    }
}

fn wants_final(request: &Request, message: &Bytes) -> bool {
    request.parameters.iter().any(|parameter| {
        parameter.key.text(message) == "triton_enable_empty_final_response"
            && parameter.value == Value::Bool(true)
    })
}

/// A message that is no `ModelInferRequest`.
pub(crate) fn status_of_malformed(malformed: &Malformed) -> Status {
    Status::new(
        Reason::InvalidRequest,
        format!("the message is no ModelInferRequest: {malformed}"),
    )
}

fn status_of_invalid(invalid: Invalid) -> Status {
    let reason = Reason::parse(invalid.reason).unwrap_or(Reason::InvalidRequest);
    let mut status = Status::new(reason, invalid.message);
    for violation in invalid.violations {
        status = status.with_violation(violation.field, violation.description);
    }
    status
}
