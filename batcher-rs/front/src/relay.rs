//! Pass-through: one call of any method and shape, both ways, unchanged but for its hop's own headers.
//!
//! Bytes move when the next hop has room for them and are only then given back to the flow control of the hop before, so
//! a slow reader holds back the writer behind it and nothing piles up here. The relay owns both halves of the upstream
//! stream: whichever way the call ends, dropping them is what cancels it there. Every wait on the upstream also watches the
//! caller, or a cancel before the response head would be lost.

mod failure;
mod headers;
mod pump;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::time::Sleep;

pub(crate) use failure::{Stop, certainly_never_ran, deadline_exceeded, status_of};
use headers::forwarded;
pub(crate) use headers::{http_status, message_of, set_timeout, soften, soften_trailers};
pub(crate) use pump::{Broken, Meter, Pump};

use crate::status::{Reason, Status, refuse, trailers};
use crate::upstream::Upstream;

/// What the hop knows about the call besides its bytes.
#[derive(Clone, Debug)]
pub struct RelayContext {
    /// The caller's address, added to the `headrace-peer` metadata.
    pub peer: String,
    /// When the caller's time is over; a call without one may idle for ever.
    pub deadline: Option<Instant>,
    /// Largest message either way, in bytes.
    pub max_message_bytes: usize,
    /// How long the reader of the answer may stand still.
    pub still: Duration,
}

/// Relays one call to its end. Whatever goes wrong, the caller gets a status of our table.
pub async fn relay(
    upstream: Arc<Upstream>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    context: RelayContext,
) {
    let (parts, body) = request.into_parts();
    let Some(path) = parts.uri.path_and_query().cloned() else {
        return refuse(
            &mut respond,
            &Status::new(Reason::InvalidRequest, "the request has no path"),
        );
    };
    let headers = forwarded(&parts.headers, Some(&context.peer));
    let end = body.is_end_stream();
    let mut first = || {
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = upstream.uri(path.clone());
        *request.headers_mut() = headers.clone();
        set_timeout(request.headers_mut(), context.deadline);
        request
    };
    let mut timer = pin!(timer(context.deadline));
    let opened = if let Some(opened) = upstream.open_now(&mut first, end) {
        Ok(Ok(opened))
    } else {
        let opening = pin!(upstream.open(&mut first, end));
        unless(opening, &mut respond, timer.as_mut()).await
    };
    let (mut response, stream) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return refuse(&mut respond, &error.into()),
        Err(stop) => return answer(&mut respond, stop, context.deadline),
    };
    let longest = context.max_message_bytes;
    let mut up = (!end).then(|| Pump::new(body, stream, longest));
    match head(&mut up, &mut response, &mut respond, timer.as_mut()).await {
        Ok(response) => {
            let bounds = Bounds {
                deadline: context.deadline,
                max_message_bytes: longest,
                still: context.still,
            };
            down(up, response, respond, timer.as_mut(), bounds).await;
        }
        Err(stop) => answer(&mut respond, stop, context.deadline),
    }
}

/// Sleeps until the deadline; for ever without one.
pub(crate) fn timer(deadline: Option<Instant>) -> Option<Sleep> {
    deadline.map(|deadline| tokio::time::sleep_until(deadline.into()))
}

/// Whether the deadline has passed; wakes when it does.
pub(crate) fn poll_timer(timer: Pin<&mut Option<Sleep>>, cx: &mut Context<'_>) -> bool {
    timer
        .as_pin_mut()
        .is_some_and(|timer| timer.poll(cx).is_ready())
}

/// Waits for `work` unless the caller goes away or its time runs out.
pub(crate) async fn unless<F: Future>(
    mut work: Pin<&mut F>,
    respond: &mut SendResponse<Bytes>,
    mut timer: Pin<&mut Option<Sleep>>,
) -> Result<F::Output, Stop> {
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(Stop::CallerGone));
        }
        if poll_timer(timer.as_mut(), cx) {
            return Poll::Ready(Err(Stop::Refuse(deadline_exceeded())));
        }
        Poll::Pending
    })
    .await
}

/// Tells the caller why there will be no answer, before any of it was sent.
pub(crate) fn answer(respond: &mut SendResponse<Bytes>, stop: Stop, deadline: Option<Instant>) {
    if let Some(status) = stop.status(deadline) {
        refuse(respond, &status);
    }
}

/// Moves the request up. An error ends the call; a broken upstream does not: its answer says more.
fn poll_up(up: &mut Option<Pump>, cx: &mut Context<'_>) -> Result<(), Stop> {
    let Some(pump) = up else { return Ok(()) };
    match pump.poll(cx) {
        Poll::Pending => Ok(()),
        Poll::Ready(Ok(()) | Err(Broken::To)) => {
            *up = None;
            Ok(())
        }
        Poll::Ready(Err(Broken::From(_))) => Err(Stop::CallerGone),
        Poll::Ready(Err(Broken::TooLarge(status))) => Err(Stop::Refuse(status)),
    }
}

/// Waits for the head of the answer, while the request moves up.
pub(crate) async fn head(
    up: &mut Option<Pump>,
    response: &mut ResponseFuture,
    respond: &mut SendResponse<Bytes>,
    mut timer: Pin<&mut Option<Sleep>>,
) -> Result<Response<RecvStream>, Stop> {
    poll_fn(|cx| {
        if let Err(stop) = poll_up(up, cx) {
            return Poll::Ready(Err(stop));
        }
        if let Poll::Ready(head) = Pin::new(&mut *response).poll(cx) {
            return Poll::Ready(head.map_err(Stop::Lost));
        }
        if respond.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(Stop::CallerGone));
        }
        if poll_timer(timer.as_mut(), cx) {
            return Poll::Ready(Err(Stop::Refuse(deadline_exceeded())));
        }
        Poll::Pending
    })
    .await
}

/// How an answer ended on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With the upstream's own trailers.
    Whole,
    /// The upstream was lost in the middle of it.
    Lost,
    /// The caller left, its time ran out, or we refused to go on.
    Stopped,
}

/// What an answer on its way down may not exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// When the caller's time is over.
    pub(crate) deadline: Option<Instant>,
    /// Largest message.
    pub(crate) max_message_bytes: usize,
    /// How long the caller may take nothing of what is there for it.
    pub(crate) still: Duration,
}

/// Sends the answer down to its end, while the rest of the request still moves up.
pub(crate) async fn down(
    mut up: Option<Pump>,
    response: Response<RecvStream>,
    mut respond: SendResponse<Bytes>,
    mut timer: Pin<&mut Option<Sleep>>,
    bounds: Bounds,
) -> Ending {
    if let Some(status) = http_status(&response) {
        refuse(&mut respond, &status);
        return Ending::Lost;
    }
    let (mut parts, body) = response.into_parts();
    soften(&mut parts.headers);
    let end = body.is_end_stream();
    let Ok(stream) = respond.send_response(Response::from_parts(parts, ()), end) else {
        return Ending::Stopped;
    };
    if end {
        return Ending::Whole;
    }
    let mut down = Pump::new(body, stream, bounds.max_message_bytes).ending_in_trailers();
    let mut patience = Patience::new(bounds.still);
    let over = poll_fn(|cx| {
        if let Err(stop) = poll_up(&mut up, cx) {
            return Poll::Ready(Err(stop));
        }
        match down.poll(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
            Poll::Ready(Err(Broken::To)) => return Poll::Ready(Err(Stop::CallerGone)),
            Poll::Ready(Err(Broken::From(error))) => return Poll::Ready(Err(Stop::Lost(error))),
            Poll::Ready(Err(Broken::TooLarge(status))) => {
                return Poll::Ready(Err(Stop::Refuse(status)));
            }
            Poll::Pending => {}
        }
        if down.to().poll_reset(cx).is_ready() {
            return Poll::Ready(Err(Stop::CallerGone));
        }
        if patience.poll_over(down.left_standing(), cx) {
            down.to().send_reset(h2::Reason::CANCEL);
            return Poll::Ready(Err(Stop::CallerGone));
        }
        if poll_timer(timer.as_mut(), cx) {
            return Poll::Ready(Err(Stop::Refuse(deadline_exceeded())));
        }
        Poll::Pending
    })
    .await;
    match over {
        Ok(()) => Ending::Whole,
        Err(stop) => {
            let ending = match &stop {
                // It gave up on a reader that stood still, which is not its fault.
                Stop::Lost(error) if error.reason() == Some(h2::Reason::CANCEL) => Ending::Stopped,
                Stop::Lost(_) => Ending::Lost,
                _ => Ending::Stopped,
            };
            end_with(down.to(), stop, bounds.deadline);
            ending
        }
    }
}

/// Notices that a caller takes nothing of what is there for it.
struct Patience {
    still: Duration,
    since: Option<(usize, Pin<Box<Sleep>>)>,
}

impl Patience {
    fn new(still: Duration) -> Self {
        Self { still, since: None }
    }

    /// Whether the same number of bytes has been left standing for too long; `None`: nothing waits for the caller.
    fn poll_over(&mut self, left: Option<usize>, cx: &mut Context<'_>) -> bool {
        let Some(left) = left else {
            self.since = None;
            return false;
        };
        if self
            .since
            .as_ref()
            .is_none_or(|(before, _)| *before != left)
        {
            self.since = Some((left, Box::pin(tokio::time::sleep(self.still))));
        }
        self.since
            .as_mut()
            .is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready())
    }
}

/// Ends an answer that has begun with a status.
pub(crate) fn end_with(stream: &mut SendStream<Bytes>, stop: Stop, deadline: Option<Instant>) {
    if let Some(status) = stop.status(deadline) {
        // A caller that is gone by now is none of our concern.
        let _ = stream.send_trailers(trailers(Some(&status)));
    }
}
