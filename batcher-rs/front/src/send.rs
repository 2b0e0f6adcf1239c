//! Large replies: sent as fast as the caller reads, dropped when the caller is gone or stands still.

use crate::status::{ok_head, trailers};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// Nobody takes the rest: the stream was reset, the connection is gone, or its reader stood still.
#[derive(Debug)]
pub(crate) struct ReaderGone;

/// Sends `bytes` with back-pressure, so that HTTP/2 never buffers more than its window.
///
/// # Errors
/// [`ReaderGone`] also after `still` without progress.
pub(crate) async fn send_all(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    still: Duration,
) -> Result<(), ReaderGone> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let capacity = poll_fn(|cx| {
            if stream.capacity() > 0 {
                return Poll::Ready(Some(stream.capacity()));
            }
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(0))) | Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(capacity))) => Poll::Ready(Some(capacity)),
                Poll::Ready(Some(Err(_)) | None) => Poll::Ready(None),
            }
        });
        let Ok(capacity) = tokio::time::timeout(still, capacity).await else {
            stream.send_reset(Reason::CANCEL);
            return Err(ReaderGone);
        };
        let Some(capacity) = capacity else {
            return Err(ReaderGone);
        };
        let piece = bytes.split_to(capacity.min(bytes.len()));
        stream.send_data(piece, false).map_err(|_| ReaderGone)?;
    }
    Ok(())
}

/// Answers with one large frame and OK.
pub(crate) async fn send_frame(mut respond: SendResponse<Bytes>, frame: Bytes, still: Duration) {
    let Ok(mut stream) = respond.send_response(ok_head(), false) else {
        return;
    };
    if send_all(&mut stream, frame, still).await.is_ok() {
        // The caller may have gone between the last byte and here; there is nobody to tell.
        let _ = stream.send_trailers(trailers(None));
    }
}
