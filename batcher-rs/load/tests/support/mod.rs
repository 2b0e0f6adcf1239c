//! A small HTTP/2 server that behaves as badly as a test asks.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use headrace_load::{Config, Payload};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpListener;

/// What the server does with a request.
#[derive(Clone, Copy)]
pub(crate) enum Does {
    /// Answers at once with a `ModelInferResponse` whose only raw output is `[1, 2, 3, 4]`.
    Answers,
    /// Answers after a while.
    AnswersAfter(Duration),
    /// Refuses with `QUEUE_FULL`.
    Refuses,
    /// Never answers.
    Nothing,
    /// Says goodbye on a connection after so many requests, and answers those.
    SaysGoodbyeAfter(usize),
    /// Drops a connection at so many requests, without a word.
    DropsAt(usize),
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) timeouts: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<AtomicUsize>,
}

/// The length of each reply's body in [`Does::Answers`].
pub(crate) const REPLY_BYTES: u64 = 11;

/// Serves on a thread of its own until the test process ends.
pub(crate) fn serve(does: Does, max_streams: u32) -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = Server {
        address: listener.local_addr().unwrap(),
        timeouts: Arc::default(),
        connections: Arc::default(),
    };
    let (timeouts, connections) = (
        Arc::clone(&server.timeouts),
        Arc::clone(&server.connections),
    );
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(connection(socket, does, max_streams, Arc::clone(&timeouts)));
            }
        });
    });
    server
}

async fn connection(
    socket: tokio::net::TcpStream,
    does: Does,
    max_streams: u32,
    timeouts: Arc<Mutex<Vec<String>>>,
) {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(max_streams);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(socket).await else {
        return;
    };
    let mut seen = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        seen += 1;
        if let Some(timeout) = request.headers().get("grpc-timeout") {
            timeouts
                .lock()
                .unwrap()
                .push(timeout.to_str().unwrap().to_owned());
        }
        match does {
            Does::DropsAt(count) if seen == count => return,
            Does::SaysGoodbyeAfter(count) if seen == count => connection.graceful_shutdown(),
            _ => {}
        }
        tokio::spawn(answer(request, respond, does));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, does: Does) {
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        let Ok(chunk) = chunk else { return };
        let _ = body.flow_control().release_capacity(chunk.len());
    }
    match does {
        Does::Nothing => std::future::pending().await,
        Does::AnswersAfter(delay) => tokio::time::sleep(delay).await,
        _ => {}
    }
    let mut head = Response::new(());
    head.headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    if matches!(does, Does::Refuses) {
        for (name, value) in [
            ("grpc-status", "8"),
            ("grpc-message", "4096 rows are queued"),
            ("headrace-reason", "QUEUE_FULL"),
        ] {
            head.headers_mut().insert(name, value.parse().unwrap());
        }
        let _ = respond.send_response(head, true);
        return;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let _ = respond.send_response(head, false).and_then(|mut stream| {
        stream.send_data(
            Bytes::from_static(&[0, 0, 0, 0, 6, 0x32, 4, 1, 2, 3, 4]),
            false,
        )?;
        stream.send_trailers(trailers)
    });
}

/// A load test without warm-up, to be changed as the test needs.
pub(crate) fn config(address: SocketAddr) -> Config {
    let mut config = Config::new(
        address.to_string(),
        vec![Payload::Base64("aGVsbG8=".to_owned())],
    );
    config.warmup_ms = 0;
    config.concurrency = 8;
    config
}
