//! One request in a model's queue, and where its answers go.

use super::inbox::{Delivery, Inbox};
use super::model::ModelQueue;
use super::runtime::Cancels;
use crate::server::InFlight;
use crate::status::Status;
use bytes::Bytes;
use h2::server::SendResponse;
use headrace_queue::Live;
use headrace_tensor::{Admitted, Signature, encode_stream_end};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use tokio::sync::mpsc;

/// Set when the caller of an entry is gone. HTTP/2 sets it as a waker, under a lock of its own: it may do no more than that.
pub(crate) struct CancelFlag {
    gone: AtomicBool,
    model: Arc<ModelQueue>,
    cancels: Arc<Cancels>,
}

impl CancelFlag {
    pub(crate) fn new(model: &Arc<ModelQueue>, cancels: &Arc<Cancels>) -> Arc<Self> {
        Arc::new(Self {
            gone: AtomicBool::new(false),
            model: Arc::clone(model),
            cancels: Arc::clone(cancels),
        })
    }

    pub(crate) fn set(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.model.hint_cancelled();
        self.cancels.hint();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Wake for CancelFlag {
    fn wake(self: Arc<Self>) {
        self.set();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}

/// One item of a streaming call's answer.
pub(crate) enum StreamItem {
    /// A whole gRPC frame holding a `ModelStreamInferResponse`.
    Frame(Bytes),
    /// The request failed; nothing follows.
    Failed(Status),
    /// All answers of this request have been given.
    End,
}

/// Where the answers of an entry go: one for a unary call, any number for a message of a stream.
pub(crate) enum Answer {
    Unary {
        inbox: Arc<Inbox>,
        respond: SendResponse<Bytes>,
        only: Option<Bytes>,
    },
    Stream {
        items: mpsc::Sender<StreamItem>,
        wants_final: bool,
    },
}

/// The payload of a queue entry.
pub(crate) struct Pending {
    pub(crate) message: Bytes,
    pub(crate) admitted: Admitted,
    pub(crate) cancel: Arc<CancelFlag>,
    pub(crate) answer: Answer,
    pub(crate) _in_flight: InFlight,
}

impl Live for Pending {
    fn is_cancelled(&self) -> bool {
        self.cancel.is_set()
    }
}

impl Pending {
    /// Gives the one answer of the request. Unary deliveries are gathered by the caller, to be posted together.
    pub(crate) fn answer(self, frame: Bytes, post: &mut Post) {
        match self.answer {
            Answer::Unary { inbox, respond, .. } => post.add(
                inbox,
                Delivery {
                    respond,
                    outcome: Ok(frame),
                },
            ),
            Answer::Stream { items, .. } => {
                // A stream that is not there any more takes nothing, and nobody is to be told.
                if items.try_send(StreamItem::Frame(frame)).is_ok() {
                    let _ = items.try_send(StreamItem::End);
                }
            }
        }
    }

    /// Gives one of possibly many answers. False when nobody takes it any more, or takes them too slowly.
    pub(crate) fn partial(&mut self, frame: Bytes) -> Result<(), Status> {
        match &mut self.answer {
            Answer::Unary { only, .. } => {
                if only.replace(frame).is_some() {
                    return Err(Status::new(
                        crate::status::Reason::Unsupported,
                        "the model gives more than one answer to this request: call ModelStreamInfer",
                    ));
                }
                Ok(())
            }
            Answer::Stream { items, .. } => match items.try_send(StreamItem::Frame(frame)) {
                Ok(()) => Ok(()),
                Err(mpsc::error::TrySendError::Full(_)) => Err(Status::new(
                    crate::status::Reason::Cancelled,
                    "the answers of this stream are not read fast enough",
                )),
                Err(mpsc::error::TrySendError::Closed(_)) => Err(Status::new(
                    crate::status::Reason::Cancelled,
                    "the caller is gone",
                )),
            },
        }
    }

    /// Ends a request whose answers were given with [`Self::partial`].
    pub(crate) fn complete(self, signature: &Signature, post: &mut Post) {
        match self.answer {
            Answer::Unary {
                inbox,
                respond,
                only: Some(frame),
            } => post.add(
                inbox,
                Delivery {
                    respond,
                    outcome: Ok(frame),
                },
            ),
            Answer::Unary {
                inbox,
                respond,
                only: None,
            } => {
                let status = Status::new(
                    crate::status::Reason::InferenceFailed,
                    "the model gave no answer to this request",
                );
                post.add(
                    inbox,
                    Delivery {
                        respond,
                        outcome: Err(status),
                    },
                );
            }
            Answer::Stream { items, wants_final } => {
                let mut frame = Vec::new();
                if wants_final
                    && encode_stream_end(&mut frame, signature, &self.message, &self.admitted)
                        .is_ok()
                {
                    let _ = items.try_send(StreamItem::Frame(frame.into()));
                }
                let _ = items.try_send(StreamItem::End);
            }
        }
    }

    /// Tells the caller why there is no answer.
    pub(crate) fn fail(self, status: Status, post: &mut Post) {
        match self.answer {
            Answer::Unary { inbox, respond, .. } => post.add(
                inbox,
                Delivery {
                    respond,
                    outcome: Err(status),
                },
            ),
            Answer::Stream { items, .. } => {
                let _ = items.try_send(StreamItem::Failed(status));
            }
        }
    }
}

/// Deliveries gathered by inbox: one lock and one wake a batch and inbox.
#[derive(Default)]
pub(crate) struct Post {
    inbox: Option<Arc<Inbox>>,
    gathered: Vec<Delivery>,
}

impl Post {
    fn add(&mut self, inbox: Arc<Inbox>, delivery: Delivery) {
        if self
            .inbox
            .as_ref()
            .is_some_and(|current| !Arc::ptr_eq(current, &inbox))
        {
            self.send();
        }
        self.inbox = Some(inbox);
        self.gathered.push(delivery);
    }

    pub(crate) fn send(&mut self) {
        if let Some(inbox) = self.inbox.take() {
            inbox.post(&mut self.gathered);
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.send();
    }
}
