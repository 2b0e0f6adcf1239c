//! The request side of a call: gRPC frames out of HTTP/2 DATA, bounded before anything is reserved for them.

use crate::compress::{Encoding, inflate, too_large};
use crate::server::{Receiving, Shared};
use crate::status::{Reason, Status};
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a frame's prefix: one flag, four of length.
const PREFIX: usize = 5;
/// Bodies up to this size are not worth counting against the memory of all that is being received.
const COUNTED: usize = 64 << 10;
/// At most this much is reserved on the word of a length alone.
const TRUSTED: usize = 8 << 20;

/// Why no message came.
#[derive(Debug)]
pub enum BodyError {
    /// The caller is gone; there is nobody to answer.
    Gone,
    /// The caller is to be told this.
    Refused(Status),
}

impl From<Status> for BodyError {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// One message as it came.
#[derive(Debug)]
pub struct Framed {
    /// The message without its prefix.
    pub message: Bytes,
    /// Whether it is compressed with the call's encoding.
    pub compressed: bool,
}

/// Reads the messages of one call.
pub struct Body {
    recv: RecvStream,
    encoding: Encoding,
    shared: Arc<Shared>,
    buffer: BytesMut,
    // The usual small message is one DATA frame and is never copied.
    whole: Bytes,
    receiving: Option<Receiving>,
}

impl Body {
    /// The body of a call with these headers.
    pub fn new(recv: RecvStream, headers: &HeaderMap, shared: &Arc<Shared>) -> Self {
        Self {
            recv,
            encoding: Encoding::of(headers),
            shared: Arc::clone(shared),
            buffer: BytesMut::new(),
            whole: Bytes::new(),
            receiving: None,
        }
    }

    /// The next message, `None` when the caller has no more.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Framed>, BodyError>> {
        loop {
            if let Some(framed) = self.cut()? {
                self.receiving = None;
                return Poll::Ready(Ok(Some(framed)));
            }
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(data)) => {
                    let came = data.len();
                    self.take(data);
                    if self.recv.flow_control().release_capacity(came).is_err() {
                        return Poll::Ready(Err(BodyError::Gone));
                    }
                }
                Some(Err(_)) => return Poll::Ready(Err(BodyError::Gone)),
                None if self.buffered() == 0 => return Poll::Ready(Ok(None)),
                None => {
                    let text = format!(
                        "the body ends in the middle of a message, {} bytes in",
                        self.buffered()
                    );
                    return Poll::Ready(Err(Status::new(Reason::InvalidRequest, text).into()));
                }
            }
        }
    }

    /// The one message of a unary call, still compressed if it came so.
    pub fn poll_only(&mut self, cx: &mut Context<'_>) -> Poll<Result<Framed, BodyError>> {
        match ready!(self.poll_next(cx))? {
            Some(framed) if self.buffered() == 0 => Poll::Ready(Ok(framed)),
            Some(_) => {
                let text = "more bytes follow the one message of a unary call";
                Poll::Ready(Err(Status::new(Reason::InvalidRequest, text).into()))
            }
            None => Poll::Ready(Err(Status::new(
                Reason::InvalidRequest,
                "the call carries no message",
            )
            .into())),
        }
    }

    /// The one message of a unary call, inflated. Gives up when the body stands still for `still`, or at `end`.
    pub async fn only(&mut self, still: Duration, end: Instant) -> Result<Bytes, BodyError> {
        let framed = self.within(still, still, end, Self::poll_only).await?;
        self.plain(framed).await
    }

    /// The next message of a streaming call, inflated. A caller may be silent between messages, until `end`.
    pub async fn next(
        &mut self,
        still: Duration,
        end: Instant,
    ) -> Result<Option<Bytes>, BodyError> {
        let silent = end.saturating_duration_since(Instant::now());
        match self.within(silent, still, end, Self::poll_next).await? {
            Some(framed) => self.plain(framed).await.map(Some),
            None => Ok(None),
        }
    }

    /// The message without its compression.
    pub async fn plain(&self, framed: Framed) -> Result<Bytes, BodyError> {
        if framed.compressed {
            return Ok(inflate(framed.message, self.shared.config().max_message_bytes).await?);
        }
        Ok(framed.message)
    }

    /// `silent` is how long nothing of a message may have come.
    async fn within<T>(
        &mut self,
        silent: Duration,
        still: Duration,
        end: Instant,
        poll: impl Fn(&mut Self, &mut Context<'_>) -> Poll<Result<T, BodyError>>,
    ) -> Result<T, BodyError> {
        loop {
            let before = self.buffered();
            let patience = if before == 0 { silent } else { still };
            let pause = end.min(Instant::now() + patience);
            let polled = tokio::time::timeout_at(pause, poll_fn(|cx| poll(self, cx))).await;
            match polled {
                Ok(done) => return done,
                Err(_) if Instant::now() >= end => {
                    return Err(Status::new(
                        Reason::DeadlineExceeded,
                        "the deadline passed before the request was whole",
                    )
                    .into());
                }
                Err(_) if self.buffered() == before => {
                    let text = format!(
                        "the body stood still for {} s with {before} bytes of a message",
                        patience.as_secs()
                    );
                    return Err(Status::new(Reason::InvalidRequest, text).into());
                }
                Err(_) => {}
            }
        }
    }

    fn buffered(&self) -> usize {
        self.whole.len() + self.buffer.len()
    }

    fn take(&mut self, data: Bytes) {
        if self.buffered() == 0 {
            self.whole = data;
            return;
        }
        if self.buffer.is_empty() {
            let first = std::mem::take(&mut self.whole);
            let announced = length(&first).unwrap_or(0).saturating_add(PREFIX);
            self.buffer
                .reserve(announced.min(TRUSTED).max(first.len() + data.len()));
            self.buffer.extend_from_slice(&first);
        }
        if self.buffer.len() + data.len() > self.buffer.capacity() {
            // The caller has shown that it means the length it announced.
            let announced = length(&self.buffer).unwrap_or(0).saturating_add(PREFIX);
            self.buffer
                .reserve(announced.saturating_sub(self.buffer.len()).max(data.len()));
        }
        self.buffer.extend_from_slice(&data);
    }

    fn cut(&mut self) -> Result<Option<Framed>, BodyError> {
        let head: &[u8] = if self.buffer.is_empty() {
            &self.whole
        } else {
            &self.buffer
        };
        let Some(announced) = length(head) else {
            return Ok(None);
        };
        let compressed = self.compressed(head[0])?;
        let limit = self.shared.config().max_message_bytes;
        if announced > limit {
            return Err(too_large(announced, limit).into());
        }
        if head.len() < PREFIX + announced {
            if announced > COUNTED && self.receiving.is_none() {
                let Some(receiving) = self.shared.reserve_receiving(announced) else {
                    let text = "too many large requests are being received at once (setting max_receiving_bytes)";
                    return Err(Status::new(Reason::QueueFull, text)
                        .with_retry_after(Duration::from_millis(100))
                        .into());
                };
                self.receiving = Some(receiving);
            }
            return Ok(None);
        }
        let message = if self.buffer.is_empty() {
            let mut frame = self.whole.split_to(PREFIX + announced);
            frame.advance(PREFIX);
            frame
        } else {
            let mut frame = self.buffer.split_to(PREFIX + announced).freeze();
            frame.advance(PREFIX);
            // What follows belongs to the next message; go on without copies.
            self.whole = self.buffer.split().freeze();
            self.buffer = BytesMut::new();
            frame
        };
        Ok(Some(Framed {
            message,
            compressed,
        }))
    }

    fn compressed(&self, flag: u8) -> Result<bool, BodyError> {
        let text = match (flag, self.encoding) {
            (0, _) => return Ok(false),
            (1, Encoding::Gzip) => return Ok(true),
            (1, Encoding::Unknown) => {
                let text = "this server inflates gzip only (grpc-accept-encoding: identity,gzip)";
                return Err(Status::new(Reason::Unsupported, text).into());
            }
            (1, Encoding::Identity) => {
                "the message is marked as compressed and grpc-encoding does not say how".to_owned()
            }
            (flag, _) => format!("byte 0 of a gRPC message is 0 or 1, not {flag}"),
        };
        Err(Status::new(Reason::InvalidRequest, text).into())
    }
}

/// The announced length of the message that starts here.
fn length(frame: &[u8]) -> Option<usize> {
    let bytes = frame.get(1..PREFIX)?;
    Some(u32::from_be_bytes(bytes.try_into().expect("four bytes")) as usize)
}
