//! Coalesced writes under h2: one system call a poll of the connection instead of one per DATA frame.
//!
//! h2 writes each DATA frame of 256 bytes or more by itself and flushes after every turn. [`coalesce`] puts a buffer in
//! between: writes append to it, `poll_flush` does nothing, and whoever owns the connection calls [`Flusher::poll_flush`] at the
//! end of each of its polls (also while the handshake runs). Large writes go straight through, in order; a full buffer
//! answers `Pending` until the socket took it, so a slow peer holds back h2 as it would without the buffer.
//!
//! ```ignore
//! let (io, flusher) = coalesce(socket);
//! let mut connection = handshake(io, &flusher).await?;
//! poll_fn(|cx| { let done = connection.poll(cx); ready_or_error!(flusher.poll_flush(cx)); done }).await
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes held back between two flushes; beyond it a write waits for the socket.
const FULL: usize = 128 * 1024;
/// A write of this size gains nothing from another copy and goes straight to the socket.
const STRAIGHT: usize = 32 * 1024;
/// A drained buffer larger than this is given back when the last turn did not need it: idle connections stay small.
const KEEP: usize = 8 * 1024;

/// Wraps `io` for h2; the second half stays with the owner of the connection.
pub fn coalesce<T>(io: T) -> (CoalescingIo<T>, Flusher<T>) {
    let shared = Arc::new(Mutex::new(Buffered {
        io,
        pending: Vec::new(),
        written: 0,
        received: 0,
    }));
    (
        CoalescingIo {
            shared: Arc::clone(&shared),
        },
        Flusher { shared },
    )
}

/// The side that h2 reads from and writes to.
#[derive(Debug)]
pub struct CoalescingIo<T> {
    shared: Arc<Mutex<Buffered<T>>>,
}

/// Sends what h2 has written since the last call.
#[derive(Debug)]
pub struct Flusher<T> {
    shared: Arc<Mutex<Buffered<T>>>,
}

/// The lock is only ever taken by the task that polls the connection; it is there because both halves must be `Send`.
#[derive(Debug)]
struct Buffered<T> {
    io: T,
    pending: Vec<u8>,
    written: usize,
    received: u64,
}

impl<T: AsyncWrite + Unpin> Buffered<T> {
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let sent =
                ready!(Pin::new(&mut self.io).poll_write(cx, &self.pending[self.written..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += sent;
        }
        let used = self.pending.len();
        self.written = 0;
        self.pending.clear();
        if self.pending.capacity() > KEEP && used < self.pending.capacity() / 4 {
            self.pending = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for `incoming` bytes, or waits for the socket to take what is there.
    fn make_room(&mut self, cx: &mut Context<'_>, incoming: usize) -> Poll<io::Result<()>> {
        if incoming >= STRAIGHT || self.pending.len() - self.written + incoming > FULL {
            return self.drain(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Flusher<T> {
    /// Writes everything held back to the socket; `Pending` (and a wake later) while the peer does not take it.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        if shared.pending.is_empty() {
            return Poll::Ready(Ok(()));
        }
        shared.drain(cx)
    }

    /// Counts the reads that brought something: a peer that sends is alive.
    pub fn received(&self) -> u64 {
        self.shared.lock().received
    }

    /// Bytes held back now, for a peer that does not read.
    pub fn held_back(&self) -> usize {
        let shared = self.shared.lock();
        shared.pending.len() - shared.written
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CoalescingIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        let before = buf.filled().len();
        let read = Pin::new(&mut shared.io).poll_read(cx, buf);
        shared.received += u64::from(buf.filled().len() > before);
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CoalescingIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        ready!(shared.make_room(cx, buf.len()))?;
        if buf.len() >= STRAIGHT {
            return Pin::new(&mut shared.io).poll_write(cx, buf);
        }
        shared.pending.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total = bufs.iter().map(|part| part.len()).sum();
        let mut shared = self.shared.lock();
        ready!(shared.make_room(cx, total))?;
        if total >= STRAIGHT {
            return Pin::new(&mut shared.io).poll_write_vectored(cx, bufs);
        }
        for part in bufs {
            shared.pending.extend_from_slice(part);
        }
        Poll::Ready(Ok(total))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing: the owner of the connection flushes once a poll, and `poll_shutdown` before it closes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        ready!(shared.drain(cx))?;
        Pin::new(&mut shared.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn nothing_reaches_the_peer_before_the_owner_flushes() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut io, flusher) = coalesce(near);
        io.write_all(b"head").await.unwrap();
        io.flush().await.unwrap();
        io.write_all(b"er").await.unwrap();
        let mut got = [0; 16];
        assert!(
            poll_fn(|cx| Poll::Ready(
                Pin::new(&mut far)
                    .poll_read(cx, &mut ReadBuf::new(&mut got))
                    .is_pending()
            ))
            .await
        );
        assert_eq!(flusher.held_back(), 6);
        poll_fn(|cx| flusher.poll_flush(cx)).await.unwrap();
        assert_eq!(far.read(&mut got).await.unwrap(), 6);
        assert_eq!(&got[..6], b"header");
    }

    #[tokio::test]
    async fn a_large_write_keeps_its_place_behind_the_small_ones() {
        let (near, mut far) = tokio::io::duplex(FULL * 4);
        let (mut io, flusher) = coalesce(near);
        io.write_all(b"first").await.unwrap();
        io.write_all(&vec![7; STRAIGHT]).await.unwrap();
        assert_eq!(flusher.held_back(), 0);
        let mut got = vec![0; 5 + STRAIGHT];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got[..5], b"first");
        assert!(got[5..].iter().all(|&b| b == 7));
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_stops_the_writer_at_the_bound() {
        let (near, _far) = tokio::io::duplex(16);
        let (mut io, flusher) = coalesce(near);
        let chunk = [1_u8; 16 * 1024];
        let mut taken = 0;
        let stopped = poll_fn(|cx| {
            Poll::Ready(loop {
                match Pin::new(&mut io).poll_write(cx, &chunk) {
                    Poll::Ready(Ok(n)) => taken += n,
                    Poll::Ready(Err(_)) => break false,
                    Poll::Pending => break true,
                }
            })
        })
        .await;
        assert!(stopped);
        assert!(taken <= FULL, "{taken}");
        assert!(flusher.held_back() <= FULL);
    }

    #[tokio::test]
    async fn shutting_down_sends_what_was_held_back() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut io, _flusher) = coalesce(near);
        io.write_all(b"last words").await.unwrap();
        io.shutdown().await.unwrap();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"last words");
    }
}
