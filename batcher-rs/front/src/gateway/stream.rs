//! `ModelStreamInfer`: each message of the caller's stream goes its own way, and the answers come back in order.
//!
//! A message becomes an upstream stream of its own with this one message, so two models, versions or replicas can serve one
//! caller's stream. Answers (0..N a message) are passed on in the order of the messages. A message that fails is told of in
//! band, as Triton does, unless the caller asked with `triton_grpc_error: true` that the stream end with the status.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use headrace_tensor::{Peek, encode_stream_error, peek};
use http::{HeaderMap, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::arrival::PREFIX;
use super::ask::{Answer, Ask, ask, metadata_for};
use super::{GatewayService, STREAM, own_deadline};
use crate::body::{Body, BodyError};
use crate::relay::{
    Meter, deadline_exceeded, http_status, message_of, poll_timer, soften, soften_trailers,
    status_of, timer,
};
use crate::send::{ReaderGone, send_all};
use crate::status::{Reason, Status, ok_head, trailers};

/// Messages of one stream that may be unanswered at first, and at most; reading stops beyond, and HTTP/2 holds the caller
/// back. The number grows while answers are small: answers that wait for their turn wait in our windows.
const FEW: usize = 8;
const MANY: usize = 64;
/// Answers up to this size let the number grow.
const LIGHT: usize = 256 << 10;

/// The place of one message in the order of answers.
enum Slot {
    Asked {
        asking: Asking,
        id: Bytes,
        room: OwnedSemaphorePermit,
    },
    Refused {
        status: Status,
        id: Bytes,
    },
    /// The stream ends here.
    Over(Status),
}

/// A request under way; dropped, it is cancelled at its replica.
struct Asking(JoinHandle<Result<Answer, Status>>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How the caller's stream ends: OK, with a status of ours, or with a replica's trailers.
enum End {
    Ok,
    Status(Status),
    Trailers(HeaderMap),
    ReaderGone,
}

impl From<ReaderGone> for End {
    fn from(_: ReaderGone) -> Self {
        Self::ReaderGone
    }
}

struct Call {
    service: Arc<GatewayService>,
    headers: HeaderMap,
    /// The caller's own deadline for the whole stream.
    deadline: Option<Instant>,
    errors_end_stream: bool,
    still: Duration,
}

/// Takes a stream; it lives in a task.
pub(super) fn take(
    service: &Arc<GatewayService>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (parts, recv) = request.into_parts();
    let deadline = match own_deadline(&parts.headers) {
        Ok(deadline) => deadline,
        Err(status) => return service.refuse(&mut respond, &status),
    };
    let body = Body::new(recv, &parts.headers, &service.shared);
    let call = Call {
        service: Arc::clone(service),
        deadline,
        errors_end_stream: parts
            .headers
            .get("triton_grpc_error")
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true")),
        still: service.shared.config().body_timeout(),
        headers: parts.headers,
    };
    let in_flight = service.shared.begin();
    tokio::spawn(async move {
        call.serve(body, respond).await;
        drop(in_flight);
    });
}

impl Call {
    async fn serve(self, body: Body, mut respond: SendResponse<Bytes>) {
        let Ok(mut stream) = respond.send_response(ok_head(), false) else {
            return;
        };
        let room = Arc::new(Semaphore::new(FEW));
        let (slots, asked) = mpsc::unbounded_channel();
        let mut timer = pin!(timer(self.deadline));
        let end = {
            let reading = self.read(body, slots, &room);
            let writing = self.write(asked, &mut stream, &room);
            tokio::select! {
                // Reading ends when the caller has no more; what was read is still answered.
                ((), end) = async { tokio::join!(reading, writing) } => end,
                () = poll_fn(|cx| if poll_timer(timer.as_mut(), cx) { ().into() } else { Poll::Pending }) => {
                    End::Status(deadline_exceeded())
                }
            }
        };
        let trailing = match end {
            End::Ok => trailers(None),
            End::Status(status) => {
                self.service.gateway.refused(&status);
                trailers(Some(&status))
            }
            End::Trailers(trailing) => trailing,
            End::ReaderGone => return,
        };
        // The caller may be gone by now; there is nobody to tell.
        let _ = stream.send_trailers(trailing);
    }

    async fn read(
        &self,
        mut body: Body,
        slots: mpsc::UnboundedSender<Slot>,
        room: &Arc<Semaphore>,
    ) {
        let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        let end = self.deadline.unwrap_or(far);
        loop {
            // Room first: a stream whose answers are not read is not read from either.
            let place = Arc::clone(room)
                .acquire_owned()
                .await
                .expect("nobody closes the semaphore");
            let next = tokio::select! {
                next = body.next(self.still, end.into()) => next,
                () = self.service.shared.draining() => {
                    let text = "the server is shutting down: open a new stream";
                    Err(BodyError::Refused(Status::new(Reason::Draining, text)))
                }
            };
            let slot = match next {
                Ok(Some(message)) => self.submit(&message, end, place),
                Ok(None) | Err(BodyError::Gone) => return,
                Err(BodyError::Refused(status)) => Slot::Over(status),
            };
            let over = matches!(slot, Slot::Over(_));
            // Fails when the writer has ended the stream.
            if slots.send(slot).is_err() || over {
                return;
            }
        }
    }

    fn submit(&self, message: &Bytes, end: Instant, room: OwnedSemaphorePermit) -> Slot {
        let head = match peek(message, true) {
            Ok(Peek::Head(head)) => head,
            Ok(Peek::More) => unreachable!("a complete message needs no more"),
            Err(malformed) => {
                let text = format!("not a ModelInferRequest: {malformed}");
                return Slot::Refused {
                    status: Status::new(Reason::InvalidRequest, text),
                    id: Bytes::new(),
                };
            }
        };
        let id = head.id.slice(message);
        let way = match self.service.resolve(message, &head) {
            Ok(way) => way,
            Err(status) => return Slot::Refused { status, id },
        };
        let deadline = end.min(Instant::now() + self.service.shared.config().max_timeout());
        let metadata = metadata_for(&self.headers, &way);
        let request = Ask {
            way,
            frame: framed(message),
            path: STREAM.clone(),
            metadata,
            deadline,
        };
        let service = Arc::clone(&self.service);
        let asking = Asking(tokio::spawn(async move {
            tokio::time::timeout_at(
                deadline.into(),
                ask(&service.gateway, service.thread, &request),
            )
            .await
            .unwrap_or_else(|_| Err(deadline_exceeded()))
        }));
        Slot::Asked { asking, id, room }
    }

    async fn write(
        &self,
        mut asked: mpsc::UnboundedReceiver<Slot>,
        stream: &mut SendStream<Bytes>,
        room: &Semaphore,
    ) -> End {
        let mut places = FEW;
        loop {
            let slot = match or_gone(stream, pin!(asked.recv())).await {
                Ok(Some(slot)) => slot,
                Ok(None) => return End::Ok,
                Err(ReaderGone) => return End::ReaderGone,
            };
            let told = match slot {
                Slot::Over(status) => return End::Status(status),
                Slot::Refused { status, id } => {
                    self.service.gateway.refused(&status);
                    self.tell(stream, &id, status).await
                }
                Slot::Asked {
                    mut asking,
                    id,
                    room: place,
                } => {
                    let passed = match or_gone(stream, Pin::new(&mut asking.0)).await {
                        Err(ReaderGone) => return End::ReaderGone,
                        Ok(Ok(Ok(answer))) => self.pass(answer, stream).await,
                        Ok(Ok(Err(status))) => Err(Failed::Before(trailers(Some(&status)))),
                        Ok(Err(_)) => Err(Failed::Before(trailers(Some(&Status::new(
                            Reason::Internal,
                            "internal error",
                        ))))),
                    };
                    if matches!(passed, Ok(bytes) if bytes <= LIGHT) {
                        if places < MANY {
                            places += 1;
                            room.add_permits(1);
                        }
                        drop(place);
                    } else if places > FEW {
                        places -= 1;
                        place.forget();
                    } else {
                        drop(place);
                    }
                    match passed {
                        Ok(_) => Ok(()),
                        Err(Failed::Reader) => Err(End::ReaderGone),
                        Err(Failed::Within(status)) => Err(End::Status(status)),
                        Err(Failed::Before(trailing)) if self.errors_end_stream => {
                            Err(End::Trailers(trailing))
                        }
                        Err(Failed::Before(trailing)) => {
                            self.say(stream, &id, &message_of(&trailing)).await
                        }
                    }
                }
            };
            if let Err(end) = told {
                return end;
            }
        }
    }

    /// Passes one message's answers on; how many bytes they were.
    async fn pass(&self, answer: Answer, stream: &mut SendStream<Bytes>) -> Result<usize, Failed> {
        let Answer {
            mut response,
            outstanding,
        } = answer;
        if let Some(status) = http_status(&response) {
            return Err(Failed::Before(trailers(Some(&status))));
        }
        soften(response.headers_mut());
        if response.body().is_end_stream() {
            let (parts, _) = response.into_parts();
            return if is_ok(&parts.headers) {
                Ok(0)
            } else {
                Err(Failed::Before(parts.headers))
            };
        }
        let mut body = response.into_body();
        let mut meter = Meter::new(self.service.shared.config().max_message_bytes);
        let mut bytes = 0;
        let lost = |error: &h2::Error, meter: &Meter| {
            outstanding.replica().failed();
            let status = status_of(error);
            if meter.between_messages() {
                Failed::Before(trailers(Some(&status)))
            } else {
                Failed::Within(status)
            }
        };
        while let Some(data) = or_gone(stream, pin!(poll_fn(|cx| body.poll_data(cx)))).await? {
            let data = data.map_err(|error| lost(&error, &meter))?;
            let came = data.len();
            meter.feed(&data).map_err(Failed::Within)?;
            bytes += came;
            send_all(stream, data, self.still)
                .await
                .map_err(|_| Failed::Reader)?;
            // Fails only for a stream that is over, and then nobody waits for room.
            let _ = body.flow_control().release_capacity(came);
        }
        let trailing = poll_fn(|cx| body.poll_trailers(cx))
            .await
            .map_err(|error| lost(&error, &meter))?;
        let trailing = soften_trailers(trailing);
        if is_ok(&trailing) {
            Ok(bytes)
        } else if meter.between_messages() {
            Err(Failed::Before(trailing))
        } else {
            Err(Failed::Within(Status::new(
                Reason::WorkerLost,
                "the server broke off its answer",
            )))
        }
    }

    /// One message failed, for a reason of ours.
    async fn tell(
        &self,
        stream: &mut SendStream<Bytes>,
        id: &[u8],
        status: Status,
    ) -> Result<(), End> {
        if self.errors_end_stream {
            return Err(End::Status(status));
        }
        self.say(stream, id, &status.message).await
    }

    async fn say(&self, stream: &mut SendStream<Bytes>, id: &[u8], error: &str) -> Result<(), End> {
        let mut frame = Vec::new();
        if encode_stream_error(&mut frame, id, error).is_err() {
            return Err(End::Status(Status::new(
                Reason::InvalidRequest,
                "the request's id is too long",
            )));
        }
        Ok(send_all(stream, frame.into(), self.still).await?)
    }
}

/// Waits for `work` as long as the caller is there.
async fn or_gone<F: Future>(
    stream: &mut SendStream<Bytes>,
    mut work: Pin<&mut F>,
) -> Result<F::Output, ReaderGone> {
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        stream.poll_reset(cx).map(|_| Err(ReaderGone))
    })
    .await
}

/// Why a message's answers are not all there.
enum Failed {
    /// The caller takes nothing more.
    Reader,
    /// Between two answers: this can be told in band.
    Before(HeaderMap),
    /// In the middle of an answer: nothing can follow.
    Within(Status),
}

impl From<ReaderGone> for Failed {
    fn from(_: ReaderGone) -> Self {
        Self::Reader
    }
}

fn is_ok(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status == "0")
}

/// The message as a gRPC frame.
pub(super) fn framed(message: &Bytes) -> Bytes {
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.extend_from_slice(message);
    frame.freeze()
}
