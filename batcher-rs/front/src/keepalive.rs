//! Finds peers that are gone without a word: pings an HTTP/2 connection now and then and expects an answer in time.

use h2::{Ping, PingPong};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Pings one connection.
pub(crate) struct Keepalive {
    pings: PingPong,
    interval: Duration,
    timeout: Duration,
    waiting: bool,
    timer: Pin<Box<Sleep>>,
}

impl Keepalive {
    /// Pings each `interval`; a ping may take `timeout`.
    pub(crate) fn new(pings: PingPong, interval: Duration, timeout: Duration) -> Self {
        Self {
            pings,
            interval,
            timeout,
            waiting: false,
            timer: Box::pin(tokio::time::sleep(interval)),
        }
    }

    /// Ready when the peer is gone. To be polled with the connection.
    pub(crate) fn poll_dead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.waiting {
                match self.pings.poll_pong(cx) {
                    Poll::Ready(Ok(_)) => self.rest(),
                    // The connection itself is over; its own poll says how.
                    Poll::Ready(Err(_)) => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.waiting {
                return Poll::Ready(());
            }
            if self.pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Pending;
            }
            self.waiting = true;
            self.timer.as_mut().reset(Instant::now() + self.timeout);
        }
    }

    fn rest(&mut self) {
        self.waiting = false;
        self.timer.as_mut().reset(Instant::now() + self.interval);
    }
}
