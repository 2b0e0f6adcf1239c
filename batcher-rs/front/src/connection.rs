//! One HTTP/2 connection: its settings, its poll, its end.

use crate::io::coalesce;
use crate::keepalive::Keepalive;
use crate::server::{ConnInfo, Service};
use crate::shared::{Phase, Shared};
use bytes::Bytes;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// HTTP/2 settings measured to fit this protocol: windows for large tensors, many streams, room for honest resets.
fn h2_builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_frame_size(16_384)
        .max_concurrent_streams(4096)
        .max_send_buffer_size(1 << 20)
        .max_header_list_size(16 << 10)
        .max_concurrent_reset_streams(4096)
        // A gateway's one connection carries the cancels of all its callers: at most all of its streams in one read.
        .max_pending_accept_reset_streams(4096)
        .max_local_error_reset_streams(Some(4096));
    builder
}

/// Serves one connection until its peer goes, the server drains, or something breaks the protocol.
pub(crate) async fn drive<S: Service, IO: AsyncRead + AsyncWrite + Unpin>(
    stream: IO,
    conn: ConnInfo,
    shared: Arc<Shared>,
    service: Arc<S>,
) {
    let (io, flusher) = coalesce(stream);
    let builder = h2_builder();
    let mut handshake = Box::pin(builder.handshake::<_, Bytes>(io));
    let greeted = poll_fn(|cx| {
        let greeted = handshake.as_mut().poll(cx);
        match flusher.poll_flush(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(Err(h2::Reason::INTERNAL_ERROR.into())),
            _ => greeted,
        }
    });
    let Ok(Ok(mut connection)) =
        tokio::time::timeout(shared.config.handshake_timeout(), greeted).await
    else {
        return;
    };
    drop(handshake);
    let mut keepalive = connection.ping_pong().map(|pings| {
        Keepalive::new(
            pings,
            Duration::from_millis(shared.config.keepalive_interval_ms),
            Duration::from_millis(shared.config.keepalive_timeout_ms),
        )
    });
    let mut phases = shared.phase.subscribe();
    let mut draining = pin!(async {
        phases
            .wait_for(|phase| *phase != Phase::Serving)
            .await
            .is_ok()
    });
    let mut stopped = pin!(shared.stopped());
    let mut told_to_go = false;
    let mut over = false;
    let serving = poll_fn(|cx| {
        if !told_to_go && draining.as_mut().poll(cx).is_ready() {
            told_to_go = true;
            connection.graceful_shutdown();
        }
        if told_to_go && stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while !over {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    service.call(&conn, request, respond, cx);
                }
                Poll::Ready(Some(Err(_)) | None) => over = true,
                Poll::Pending => break,
            }
        }
        service.after_poll();
        if let Some(keepalive) = &mut keepalive {
            over |= keepalive.poll_dead(cx).is_ready();
        }
        let written = flusher.poll_flush(cx);
        if over || matches!(written, Poll::Ready(Err(_))) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    });
    serving.await;
    // The last bytes, a GOAWAY among them, leave before the connection is closed; a peer that does not read them is left.
    let last = poll_fn(|cx| flusher.poll_flush(cx));
    let _ = tokio::time::timeout(Duration::from_secs(1), last).await;
}
