//! `ModelStreamInfer` in Triton's wire form: messages run side by side, answers leave in the order of the requests.

use super::admission::{Accepted, Override, accept};
use super::entry::{Answer, CancelFlag, StreamItem};
use super::runtime::Runtime;
use super::table::Table;
use crate::body::{Body, BodyError};
use crate::send::{ReaderGone, send_all};
use crate::server::Shared;
use crate::status::{Reason, Status, ok_head, trailers};
use arc_swap::ArcSwap;
use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use headrace_tensor::encode_stream_error;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Requests of one stream that may be unanswered; reading stops beyond, and HTTP/2 holds the caller back.
const OUTSTANDING: usize = 64;
/// Answers of one request that may wait for their reader.
const UNREAD: usize = 256;

/// What a stream needs from its front.
pub(crate) struct StreamCall {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) table: Arc<ArcSwap<Table>>,
    pub(crate) override_: Override,
    /// The caller's own deadline for the whole stream.
    pub(crate) deadline: Option<Instant>,
    /// Whether an error ends the stream with its status (`triton_grpc_error: true`), or is said in band.
    pub(crate) errors_end_stream: bool,
}

/// The place of one request in the order of answers.
enum Slot {
    Waiting {
        items: mpsc::Receiver<StreamItem>,
        cancel: CancelOnDrop,
        id: Bytes,
    },
    Refused {
        status: Status,
        id: Bytes,
    },
    /// The stream ends here, for this reason; in band nothing is said of it.
    Over(Status),
}

struct CancelOnDrop(Option<Arc<CancelFlag>>);

impl CancelOnDrop {
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(flag) = self.0.take() {
            flag.set();
        }
    }
}

impl StreamCall {
    /// Serves the whole stream.
    pub(crate) async fn serve(self, body: Body, mut respond: SendResponse<Bytes>) {
        let Ok(mut stream) = respond.send_response(ok_head(), false) else {
            return;
        };
        let (slots, answers) = mpsc::channel(OUTSTANDING);
        let still = self.shared.config().body_timeout();
        let reading = self.read(body, slots);
        let writing = write(answers, &mut stream, self.errors_end_stream, still);
        // Reading ends when the caller has no more; what was read is still answered. Writing ends the stream.
        let written = {
            let mut writing = pin!(writing);
            tokio::select! {
                written = &mut writing => written,
                () = reading => writing.await,
            }
        };
        finish(stream, written);
    }

    async fn read(&self, mut body: Body, slots: mpsc::Sender<Slot>) {
        let config = self.shared.config();
        let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        let end = self.deadline.unwrap_or(far);
        loop {
            // Room first: a stream whose answers are not read is not read from either.
            let Ok(room) = slots.reserve().await else {
                return;
            };
            let next = tokio::select! {
                next = body.next(config.body_timeout(), end.into()) => next,
                () = self.shared.draining() => {
                    room.send(Slot::Over(Status::new(Reason::Draining, "the server is shutting down: open a new stream")));
                    return;
                }
            };
            let slot = match next {
                Ok(Some(message)) => {
                    self.submit(&message, end.min(Instant::now() + config.max_timeout()))
                }
                Ok(None) | Err(BodyError::Gone) => return,
                Err(BodyError::Refused(status)) => Slot::Over(status),
            };
            let over = matches!(slot, Slot::Over(_))
                || (self.errors_end_stream && matches!(slot, Slot::Refused { .. }));
            room.send(slot);
            if over {
                return;
            }
        }
    }

    fn submit(&self, message: &Bytes, deadline: Instant) -> Slot {
        let accepted = match accept(&self.table.load(), message.clone(), &self.override_) {
            Ok(accepted) => accepted,
            Err(status) => {
                return Slot::Refused {
                    status,
                    id: id_of(message),
                };
            }
        };
        let Accepted { wants_final, .. } = accepted;
        let id = accepted.admitted.id.slice(message);
        let cancel = CancelFlag::new(&accepted.model, &self.runtime.cancels);
        let (sender, items) = mpsc::channel(UNREAD);
        let (model, entry) = accepted.into_entry(
            Answer::Stream {
                items: sender,
                wants_final,
            },
            Arc::clone(&cancel),
            deadline,
            Instant::now(),
            self.shared.begin(),
        );
        self.runtime.submit(model, entry);
        Slot::Waiting {
            items,
            cancel: CancelOnDrop(Some(cancel)),
            id,
        }
    }
}

/// What `future` gives, unless the caller resets the stream first: also while nothing is to be sent.
async fn unless_gone<T>(
    stream: &mut SendStream<Bytes>,
    future: impl Future<Output = T>,
) -> Result<T, ReaderGone> {
    let gone = poll_fn(|cx| stream.poll_reset(cx));
    tokio::select! {
        value = future => Ok(value),
        _ = gone => Err(ReaderGone),
    }
}

/// How writing ended: all answered, ended by an error, or nobody reads.
type Written = Result<Option<Status>, ReaderGone>;

fn finish(mut stream: SendStream<Bytes>, written: Written) {
    if let Ok(status) = written {
        // The caller may be gone by now; there is nobody to tell.
        let _ = stream.send_trailers(trailers(status.as_ref()));
    }
}

async fn write(
    mut answers: mpsc::Receiver<Slot>,
    stream: &mut SendStream<Bytes>,
    errors_end_stream: bool,
    still: Duration,
) -> Written {
    while let Some(slot) = unless_gone(stream, answers.recv()).await? {
        let (failed, id) = match slot {
            Slot::Over(status) => return Ok(Some(status)),
            Slot::Refused { status, id } => (Some(status), id),
            Slot::Waiting { items, cancel, id } => {
                (answer(items, cancel, stream, still).await?, id)
            }
        };
        match failed {
            Some(status) if errors_end_stream => return Ok(Some(status)),
            Some(status) => send_all(stream, error_frame(&id, &status), still).await?,
            None => {}
        }
    }
    Ok(None)
}

/// Relays the answers of one request; its failure, if it failed.
async fn answer(
    mut items: mpsc::Receiver<StreamItem>,
    cancel: CancelOnDrop,
    stream: &mut SendStream<Bytes>,
    still: Duration,
) -> Result<Option<Status>, ReaderGone> {
    let failed = loop {
        match unless_gone(stream, items.recv()).await? {
            Some(StreamItem::Frame(frame)) => send_all(stream, frame, still).await?,
            Some(StreamItem::End) => break None,
            Some(StreamItem::Failed(status)) => break Some(status),
            // The entry was dropped unanswered, as it happens to one whose caller is gone.
            None => {
                break Some(Status::new(
                    Reason::Internal,
                    "the request was dropped without an answer",
                ));
            }
        }
    };
    cancel.answered();
    Ok(failed)
}

/// The id of a message that was refused, if it can be read at all.
fn id_of(message: &Bytes) -> Bytes {
    headrace_tensor::parse(message)
        .map(|request| request.id.slice(message))
        .unwrap_or_default()
}

/// The frame that says an error in band, as Triton does.
fn error_frame(id: &[u8], status: &Status) -> Bytes {
    // In band an empty text would mean that there is no error.
    let text = if status.message.is_empty() {
        status.reason
    } else {
        &status.message
    };
    let mut frame = Vec::new();
    encode_stream_error(&mut frame, id, text)
        .expect("an id within the size limit and a short text fit in a frame");
    frame.into()
}
