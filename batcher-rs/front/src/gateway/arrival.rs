//! The beginning of a request: enough of it to decide where it goes.
//!
//! A small message is taken whole, so that it can be sent a second time if the first replica certainly did not run it. A
//! large one is only read until its head is known; the rest cuts through. Until then nothing is given back to the caller's
//! flow control, so what a caller can make us hold is bounded by its window.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use headrace_tensor::{Head, Peek, peek};

use crate::body::BodyError;
use crate::compress::too_large;
use crate::server::{Receiving, Shared};
use crate::status::{Reason, Status};

/// Bytes before a message: one flag, four of length.
pub(super) const PREFIX: usize = 5;
/// Largest frame that is taken whole.
pub(super) const SMALL: usize = 64 << 10;
/// A head that is not within these first bytes is looked for with the caller's window opened again.
const CLOSE: usize = 512 << 10;

/// What is known once the head is.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The request's frame, or its beginning, with its prefix.
    pub(super) begun: Bytes,
    /// How many of those bytes the caller's flow control still counts; the last ones.
    pub(super) owed: usize,
    /// Whether that is all.
    pub(super) whole: bool,
    /// Where it wants to go. Spans are of the message, after the prefix.
    pub(super) head: Head,
}

/// Reads the beginning of one unary request.
pub(super) struct Arrival {
    recv: RecvStream,
    shared: Arc<Shared>,
    one: Bytes,
    many: BytesMut,
    owed: usize,
    receiving: Option<Receiving>,
}

impl Arrival {
    pub(super) fn new(recv: RecvStream, shared: &Arc<Shared>) -> Self {
        Self {
            recv,
            shared: Arc::clone(shared),
            one: Bytes::new(),
            many: BytesMut::new(),
            owed: 0,
            receiving: None,
        }
    }

    /// The rest of the body.
    pub(super) fn into_rest(self) -> RecvStream {
        self.recv
    }

    /// Reads on until the head is known.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arrived, BodyError>> {
        loop {
            let ended = self.recv.is_end_stream();
            if let Some(arrived) = self.look(ended)? {
                return Poll::Ready(Ok(arrived));
            }
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.take(data);
                    self.give_back()?;
                }
                Some(Err(_)) => return Poll::Ready(Err(BodyError::Gone)),
                None => {
                    return Poll::Ready(match self.look(true)? {
                        Some(arrived) => Ok(arrived),
                        None => Err(invalid("the call carries no message").into()),
                    });
                }
            }
        }
    }

    /// Like [`poll`](Self::poll), for as long as something comes within `still`.
    pub(super) async fn wait(&mut self, still: Duration) -> Result<Arrived, BodyError> {
        loop {
            let before = self.bytes().len();
            let arriving = std::future::poll_fn(|cx| self.poll(cx));
            match tokio::time::timeout(still, arriving).await {
                Ok(arrived) => return arrived,
                Err(_) if self.bytes().len() == before => {
                    let text = format!(
                        "the body stood still for {} s, {before} bytes in",
                        still.as_secs()
                    );
                    return Err(invalid(text).into());
                }
                Err(_) => {}
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.many.is_empty() {
            &self.one
        } else {
            &self.many
        }
    }

    fn take(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.owed += data.len();
        if self.one.is_empty() && self.many.is_empty() {
            self.one = data;
            return;
        }
        if self.many.is_empty() {
            self.many.extend_from_slice(&std::mem::take(&mut self.one));
        }
        self.many.extend_from_slice(&data);
    }

    /// Small messages and far heads need the caller to go on sending.
    fn give_back(&mut self) -> Result<(), BodyError> {
        let Some(announced) = announced(self.bytes()) else {
            return Ok(());
        };
        if announced + PREFIX > SMALL && self.owed <= CLOSE {
            return Ok(());
        }
        if announced > SMALL && self.receiving.is_none() {
            let Some(receiving) = self.shared.reserve_receiving(announced) else {
                let text = "too many large requests are being received at once (setting max_receiving_bytes)";
                return Err(Status::new(Reason::QueueFull, text).into());
            };
            self.receiving = Some(receiving);
        }
        let owed = std::mem::take(&mut self.owed);
        self.recv
            .flow_control()
            .release_capacity(owed)
            .map_err(|_| BodyError::Gone)
    }

    fn look(&mut self, ended: bool) -> Result<Option<Arrived>, BodyError> {
        let bytes = self.bytes();
        let Some(announced) = announced(bytes) else {
            if ended && !bytes.is_empty() {
                return Err(invalid("the body ends within a message's prefix").into());
            }
            return Ok(None);
        };
        match bytes[0] {
            0 => {}
            1 => {
                return Err(invalid(
                    "the message is marked as compressed and grpc-encoding does not say how",
                )
                .into());
            }
            flag => {
                return Err(
                    invalid(format!("byte 0 of a gRPC message is 0 or 1, not {flag}")).into(),
                );
            }
        }
        let limit = self.shared.config().max_message_bytes;
        if announced > limit {
            return Err(too_large(announced, limit).into());
        }
        let here = bytes.len() - PREFIX;
        if here > announced {
            return Err(invalid("more bytes follow the one message of a unary call").into());
        }
        let complete = here == announced;
        if ended && !complete {
            return Err(invalid(format!(
                "the body ends in the middle of a message, {here} of {announced} bytes in"
            ))
            .into());
        }
        let whole = complete && ended;
        if !whole && announced + PREFIX <= SMALL {
            return Ok(None);
        }
        match peek(&bytes[PREFIX..], complete) {
            Ok(Peek::More) => Ok(None),
            Ok(Peek::Head(head)) => {
                let begun = if self.many.is_empty() {
                    std::mem::take(&mut self.one)
                } else {
                    self.many.split().freeze()
                };
                Ok(Some(Arrived {
                    begun,
                    owed: self.owed,
                    whole,
                    head,
                }))
            }
            Err(malformed) => Err(invalid(format!("not a ModelInferRequest: {malformed}")).into()),
        }
    }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Status {
    Status::new(Reason::InvalidRequest, text)
}

/// The announced length of the message that starts here.
fn announced(frame: &[u8]) -> Option<usize> {
    let bytes = frame.get(1..PREFIX)?;
    Some(u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
}
