//! Where batch threads leave replies for a runtime: one lock and one wake a batch. The runtime's own thread sends them,
//! since HTTP/2 streams used from elsewhere fight over the connection's lock.

use crate::send::send_frame;
use crate::status::{Status, refuse, reply};
use atomic_waker::AtomicWaker;
use bytes::Bytes;
use h2::server::SendResponse;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Frames above this go out piece by piece, as fast as the caller reads.
pub(crate) const SMALL: usize = 64 << 10;

/// A reply on its way.
pub(crate) struct Delivery {
    pub(crate) respond: SendResponse<Bytes>,
    pub(crate) outcome: Result<Bytes, Status>,
}

/// The replies of one runtime.
#[derive(Default)]
pub(crate) struct Inbox {
    waiting: Mutex<Vec<Delivery>>,
    waker: AtomicWaker,
}

impl Inbox {
    /// Leaves replies and empties `deliveries`.
    pub(crate) fn post(&self, deliveries: &mut Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        self.waiting.lock().append(deliveries);
        self.waker.wake();
    }

    /// Sends what is left here, for as long as the runtime lives. A reader may stand still for `still`.
    pub(crate) async fn deliver(self: Arc<Self>, still: Duration) {
        let mut taken = Vec::new();
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            std::mem::swap(&mut *self.waiting.lock(), &mut taken);
            for delivery in taken.drain(..) {
                send(delivery, still);
            }
            Poll::<()>::Pending
        })
        .await;
    }
}

/// Sends one reply from the runtime's own thread.
pub(crate) fn send(mut delivery: Delivery, still: Duration) {
    match delivery.outcome {
        Ok(frame) if frame.len() <= SMALL => reply(&mut delivery.respond, frame),
        Ok(frame) => {
            tokio::spawn(send_frame(delivery.respond, frame, still));
        }
        Err(status) => refuse(&mut delivery.respond, &status),
    }
}
