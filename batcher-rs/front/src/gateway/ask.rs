//! One small request to a replica, and to a second one if the first certainly did not run it.
//!
//! What may be sent again: a request that never left (no connection), one that the peer says it did not look at
//! (`REFUSED_STREAM`, a GOAWAY below its stream), one refused with `QUEUE_FULL`, `DRAINING` or `MODEL_LOADING` before it
//! was queued. Once, within the deadline, within the retry budget. Anything else may have run and is answered as it is.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response};

use super::metadata::Metadata;
use super::replica::{Outstanding, Replica};
use super::routes::Way;
use super::{Gateway, INFER};
use crate::relay::{Broken, Pump, certainly_never_ran, status_of};
use crate::status::{HEADRACE_REASON, Reason, Status};
use crate::upstream::Opened;

/// A request that can be sent as often as need be.
pub(super) struct Ask {
    pub(super) way: Way,
    /// The whole gRPC frame.
    pub(super) frame: Bytes,
    pub(super) path: PathAndQuery,
    pub(super) metadata: Metadata,
    pub(super) deadline: Instant,
}

/// A replica's answer, of which only the head has come.
pub(super) struct Answer {
    pub(super) response: Response<RecvStream>,
    /// Kept until the answer is over.
    pub(super) outstanding: Outstanding,
}

/// Why an attempt brought no answer that counts.
enum Attempt {
    /// It certainly did not run; the best answer there is if nobody else takes it.
    Never(Result<Answer, Status>),
    /// It may have run.
    Lost(Status),
}

/// Asks. The caller drops this when its own caller is gone or out of time, and that cancels it at the replica.
///
/// # Errors
/// No replica answered.
pub(super) async fn ask(gateway: &Gateway, thread: usize, ask: &Ask) -> Result<Answer, Status> {
    gateway.budget.lock().request(Instant::now());
    let Some(first) = ask.way.first() else {
        return Err(ask.way.no_replica());
    };
    let refused = match attempt(first, thread, ask).await {
        Ok(answer) => return Ok(answer),
        Err(Attempt::Lost(status)) => return Err(status),
        Err(Attempt::Never(refused)) => refused,
    };
    if Instant::now() >= ask.deadline {
        return refused;
    }
    let Some(second) = ask.way.second() else {
        return refused;
    };
    if !gateway.may_retry() {
        return refused;
    }
    // The first replica's stream is closed before the second is asked.
    drop(refused);
    match attempt(second, thread, ask).await {
        Ok(answer) | Err(Attempt::Never(Ok(answer))) => Ok(answer),
        Err(Attempt::Lost(status) | Attempt::Never(Err(status))) => Err(status),
    }
}

async fn attempt(replica: &Arc<Replica>, thread: usize, ask: &Ask) -> Result<Answer, Attempt> {
    let outstanding = replica.begin();
    let (mut response, stream) = open(replica, thread, &ask.path, &ask.metadata, ask.deadline)
        .await
        .map_err(|status| Attempt::Never(Err(status)))?;
    let mut up = Some(Pump::of(ask.frame.clone(), stream));
    let mut early = None;
    let head = poll_fn(|cx| {
        if let Some(pump) = &mut up {
            match pump.poll(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(()) | Err(Broken::To)) => up = None,
                Poll::Ready(Err(Broken::From(_) | Broken::TooLarge(_))) => {
                    unreachable!("bytes that are all here neither break off nor grow")
                }
            }
        }
        if early.is_none() {
            early = Some(ready!(Pin::new(&mut response).poll(cx))?);
        }
        // A stream's head comes before its request has been read: what is left of a large one still has to go. An answer
        // that is over wants no more of it.
        let over = |response: &Response<RecvStream>| response.body().is_end_stream();
        if up.is_some() && !early.as_ref().is_some_and(over) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(early.take().expect("it came")))
    });
    match head.await {
        Ok(response) => {
            replica.answered();
            let refused = refused_before_queueing(&response);
            let answer = Answer {
                response,
                outstanding,
            };
            if refused {
                Err(Attempt::Never(Ok(answer)))
            } else {
                Ok(answer)
            }
        }
        Err(error) if certainly_never_ran(&error) => Err(Attempt::Never(Err(status_of(&error)))),
        Err(error) => {
            replica.failed();
            Err(Attempt::Lost(status_of(&error)))
        }
    }
}

/// Opens a stream to one replica, or to a second one if the first cannot be reached.
///
/// # Errors
/// Neither can be.
pub(super) async fn open_somewhere(
    gateway: &Gateway,
    thread: usize,
    way: &Way,
    metadata: &Metadata,
    deadline: Instant,
) -> Result<(Opened, Outstanding), Status> {
    gateway.budget.lock().request(Instant::now());
    let Some(first) = way.first() else {
        return Err(way.no_replica());
    };
    let outstanding = first.begin();
    let status = match open(first, thread, &INFER, metadata, deadline).await {
        Ok(opened) => return Ok((opened, outstanding)),
        Err(status) => status,
    };
    drop(outstanding);
    let Some(second) = way.second() else {
        return Err(status);
    };
    if !gateway.may_retry() {
        return Err(status);
    }
    let outstanding = second.begin();
    Ok((
        open(second, thread, &INFER, metadata, deadline).await?,
        outstanding,
    ))
}

/// Opens a stream to the replica, dialling if need be.
pub(super) async fn open(
    replica: &Arc<Replica>,
    thread: usize,
    path: &PathAndQuery,
    metadata: &Metadata,
    deadline: Instant,
) -> Result<Opened, Status> {
    let link = replica.link(thread);
    let mut head = || {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = link.uri(path.clone());
        *request.headers_mut() = metadata.headers(deadline);
        request
    };
    let opened = match link.open_now(&mut head, false) {
        Some(opened) => opened,
        None => link.open(&mut head, false).await.map_err(|error| {
            replica.failed();
            Status::from(error)
        })?,
    };
    replica.sent();
    Ok(opened)
}

/// Whether a replica answered with nothing but a refusal that it gives before it queues a request.
fn refused_before_queueing(response: &Response<RecvStream>) -> bool {
    response.body().is_end_stream()
        && response
            .headers()
            .get(&HEADRACE_REASON)
            .is_some_and(|reason| {
                [Reason::QueueFull, Reason::Draining, Reason::ModelLoading]
                    .iter()
                    .any(|retried| reason.as_bytes() == retried.as_str().as_bytes())
            })
}

/// The metadata of a caller's request that goes this way.
pub(super) fn metadata_for(caller: &HeaderMap, way: &Way) -> Metadata {
    Metadata::new(caller, way.model(), way.version())
}
