//! A server that does nothing: the floor under every measurement of this suite.
//!
//! It speaks HTTP/2 as our fronts do (the same settings, the same coalesced writes), reads each request whole and answers it with one
//! prepared frame. What a real server costs above it is the server's own doing.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use headrace_front::io::coalesce;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};

/// Answers every request on every connection with `frame`, a gRPC frame. Returns only if accepting fails for good.
pub async fn serve(listener: TcpListener, frame: Bytes) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(connection(socket, frame.clone()));
    }
}

/// A gRPC frame of `bytes` in all, at least its prefix of five.
pub fn frame(bytes: usize) -> Bytes {
    let message = bytes.saturating_sub(5);
    let mut frame = vec![7; 5 + message];
    frame[0] = 0;
    frame[1..5].copy_from_slice(&u32::try_from(message).unwrap_or(u32::MAX).to_be_bytes());
    frame.into()
}

async fn connection(socket: TcpStream, frame: Bytes) {
    let (io, flusher) = coalesce(socket);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(1 << 20)
        .initial_connection_window_size(8 << 20)
        .max_concurrent_streams(4096)
        .max_send_buffer_size(1 << 20)
        .max_header_list_size(16 << 10)
        .max_concurrent_reset_streams(1024)
        .max_pending_accept_reset_streams(1024);
    let mut handshake = pin!(builder.handshake::<_, Bytes>(io));
    let shaken = poll_fn(|cx| {
        let done = handshake.as_mut().poll(cx);
        // An error of the socket comes back with the handshake's next poll.
        let _ = flusher.poll_flush(cx);
        done
    })
    .await;
    let Ok(mut connection) = shaken else { return };
    poll_fn(|cx| {
        let ended = loop {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => answer(request, respond, &frame, cx),
                Poll::Ready(_) => break true,
                Poll::Pending => break false,
            }
        };
        match flusher.poll_flush(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ if ended => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
}

/// At once if the whole request is there, as small ones are; else when it is.
fn answer(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    frame: &Bytes,
    cx: &mut Context<'_>,
) {
    let mut body = request.into_body();
    match poll_body(&mut body, cx) {
        Poll::Ready(Ok(())) => reply(respond, frame),
        Poll::Ready(Err(_)) => {}
        Poll::Pending => {
            let frame = frame.clone();
            tokio::spawn(async move {
                if poll_fn(|cx| poll_body(&mut body, cx)).await.is_ok() {
                    reply(respond, &frame);
                }
            });
        }
    }
}

fn poll_body(body: &mut RecvStream, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
    while let Some(chunk) = ready!(body.poll_data(cx)) {
        body.flow_control().release_capacity(chunk?.len())?;
    }
    Poll::Ready(Ok(()))
}

fn reply(mut respond: SendResponse<Bytes>, frame: &Bytes) {
    let mut head = Response::new(());
    head.headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    // Whoever went away meanwhile needs no answer.
    let _ = respond.send_response(head, false).and_then(|mut stream| {
        stream.send_data(frame.clone(), false)?;
        stream.send_trailers(trailers)
    });
}
