//! A caller, a replica that does what a test tells it, and the bytes between them.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use headrace_front::config::FrontConfig;
use headrace_front::gateway::GatewayFront;
use headrace_front::status::{ok_head, trailers};
use http::{HeaderMap, Request};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};

pub(crate) const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub(crate) const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// Longer than anything here takes; a test that waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("this should have happened by now")
}

/// Waits until `check` holds.
pub(crate) async fn until(mut check: impl FnMut() -> bool) {
    soon(async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

// ---- messages ----

pub(crate) fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = value.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(value);
    out
}

/// A `ModelInferRequest` with raw contents of this size.
pub(crate) fn message(model: &str, version: &str, id: &str, raw: usize) -> Vec<u8> {
    let mut out = field(1, model.as_bytes());
    for (number, text) in [(2, version), (3, id)] {
        if !text.is_empty() {
            out.extend(field(number, text.as_bytes()));
        }
    }
    out.extend(field(7, &vec![7; raw]));
    out
}

pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut out = vec![0];
    out.extend_from_slice(&(message.len() as u32).to_be_bytes());
    out.extend_from_slice(message);
    out.into()
}

pub(crate) fn request(model: &str) -> Bytes {
    framed(&message(model, "", "", 16))
}

// ---- the gateway ----

pub(crate) struct Gateway {
    pub(crate) front: Arc<GatewayFront>,
}

impl Gateway {
    pub(crate) fn start(config: FrontConfig, routes: &str) -> Self {
        let front = GatewayFront::bind(config).unwrap();
        front.set_routes(routes).unwrap();
        front.start().unwrap();
        Self {
            front: Arc::new(front),
        }
    }

    /// A gateway for model `m`, served by these.
    pub(crate) fn over(replicas: &[SocketAddr]) -> Self {
        Self::start(FrontConfig::default(), &routes(replicas))
    }

    /// A gateway whose Python half is this.
    pub(crate) fn before(fallback: SocketAddr, max_message_bytes: usize) -> Self {
        let fallback = Some(fallback.to_string());
        let config = FrontConfig {
            fallback,
            max_message_bytes,
            ..FrontConfig::default()
        };
        Self::start(config, &routes(&[]))
    }

    pub(crate) async fn caller(&self) -> Caller {
        Caller::connect(self.front.address()).await
    }

    pub(crate) fn statistics(&self) -> serde_json::Value {
        serde_json::from_str(&self.front.statistics()).unwrap()
    }
}

pub(crate) fn routes(replicas: &[SocketAddr]) -> String {
    let ids: Vec<String> = (0..replicas.len()).map(|n| format!("w{n}")).collect();
    let listed: HashMap<&str, _> = ids
        .iter()
        .zip(replicas)
        .map(|(id, address)| {
            (
                id.as_str(),
                serde_json::json!({ "address": address.to_string() }),
            )
        })
        .collect();
    serde_json::json!({
        "generation": 1,
        "replicas": listed,
        "models": {"m": {
            "default": {"1": 1},
            "versions": {"1": {"replicas": ids, "state": "READY"}},
        }},
        "aliases": {"friend": {"model": "m", "version": "1"}},
    })
    .to_string()
}

// ---- a caller ----

pub(crate) struct Caller {
    pub(crate) sender: SendRequest<Bytes>,
}

/// What a caller got.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Reply {
    fn get(&self, name: &str) -> &str {
        let value = self.trailers.get(name).or_else(|| self.head.get(name));
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn code(&self) -> &str {
        self.get("grpc-status")
    }

    pub(crate) fn reason(&self) -> &str {
        self.get("headrace-reason")
    }

    pub(crate) fn text(&self) -> &str {
        self.get("grpc-message")
    }
}

pub(crate) struct Call {
    pub(crate) response: ResponseFuture,
    pub(crate) stream: SendStream<Bytes>,
}

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = h2::client::handshake(socket).await.unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub(crate) fn open(&mut self, path: &str, headers: &[(&'static str, &str)]) -> Call {
        let mut request = Request::post(format!("http://gateway{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (response, stream) = self
            .sender
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        Call { response, stream }
    }

    pub(crate) fn send(
        &mut self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Call {
        let mut call = self.open(path, headers);
        call.stream.send_data(body, true).unwrap();
        call
    }

    pub(crate) async fn call(
        &mut self,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Bytes,
    ) -> Reply {
        self.send(path, headers, body).reply().await
    }

    pub(crate) async fn infer(&mut self, body: Bytes) -> Reply {
        self.call(INFER, &[], body).await
    }
}

impl Call {
    pub(crate) async fn reply(self) -> Reply {
        soon(async {
            let (head, mut body) = self.response.await.unwrap().into_parts();
            let bytes = collect(&mut body).await;
            let trailers = poll_fn(|cx| body.poll_trailers(cx))
                .await
                .unwrap()
                .unwrap_or_default();
            Reply {
                head: head.headers,
                body: bytes,
                trailers,
            }
        })
        .await
    }
}

pub(crate) async fn collect(body: &mut RecvStream) -> Bytes {
    let mut bytes = BytesMut::new();
    while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
        let data = data.expect("the body is not broken off");
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    bytes.freeze()
}

/// Sends as fast as the other side takes it; `sent` counts.
pub(crate) async fn pour(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    end: bool,
    sent: &AtomicUsize,
) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = poll_fn(|cx| match stream.capacity() {
            0 => stream.poll_capacity(cx).map(|room| room.unwrap().unwrap()),
            room => Poll::Ready(room),
        })
        .await;
        let piece = bytes.split_to(room.min(bytes.len()));
        sent.fetch_add(piece.len(), Ordering::Relaxed);
        stream.send_data(piece, end && bytes.is_empty()).unwrap();
    }
}

// ---- a replica ----

/// What a replica got; nothing was answered yet.
pub(crate) struct Seen {
    pub(crate) head: http::request::Parts,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse<Bytes>,
    /// Which connection it came on, counted from 1.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap())
    }

    /// Reads the whole request.
    pub(crate) async fn read(&mut self) -> Bytes {
        soon(collect(&mut self.body)).await
    }

    /// Answers OK with this body.
    pub(crate) fn answer(mut self, body: Bytes) {
        let mut stream = self.respond.send_response(ok_head(), false).unwrap();
        stream.send_data(body, false).unwrap();
        stream.send_trailers(trailers(None)).unwrap();
    }

    /// Answers with trailers only.
    pub(crate) fn refuse(mut self, code: &str, reason: &str) {
        let mut head = ok_head();
        head.headers_mut()
            .insert("grpc-status", code.parse().unwrap());
        head.headers_mut()
            .insert("grpc-message", "no%21".parse().unwrap());
        if !reason.is_empty() {
            head.headers_mut()
                .insert("headrace-reason", reason.parse().unwrap());
        }
        self.respond.send_response(head, true).unwrap();
    }

    /// How the caller of this replica ended the stream.
    pub(crate) async fn reset(&mut self) -> h2::Reason {
        soon(poll_fn(|cx| self.respond.poll_reset(cx)))
            .await
            .unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serving,
    /// Nothing is read or written any more, as after SIGSTOP.
    Frozen,
    /// Takes what has begun to its end and nothing more.
    Leaving,
    Dead,
}

pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    seen: Mutex<mpsc::UnboundedReceiver<Seen>>,
    mode: watch::Sender<Mode>,
}

impl Peer {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, seen) = mpsc::unbounded_channel();
        let (mode, watched) = watch::channel(Mode::Serving);
        tokio::spawn(accept(listener, tell, watched));
        Self {
            address,
            seen: Mutex::new(seen),
            mode,
        }
    }

    /// The next request, probes aside.
    pub(crate) async fn next(&self) -> Seen {
        soon(async { self.seen.lock().await.recv().await.unwrap() }).await
    }

    /// Whether a request is there that nobody took.
    pub(crate) fn saw_more(&self) -> bool {
        self.seen.try_lock().unwrap().try_recv().is_ok()
    }

    pub(crate) fn freeze(&self) {
        self.mode.send_replace(Mode::Frozen);
    }

    /// GOAWAY on the connections there are; new ones are served.
    pub(crate) fn send_goaway(&self) {
        self.mode.send_replace(Mode::Leaving);
    }

    /// Closes the port and every connection.
    pub(crate) fn kill(&self) {
        self.mode.send_replace(Mode::Dead);
    }
}

async fn accept(
    listener: TcpListener,
    tell: mpsc::UnboundedSender<Seen>,
    mode: watch::Receiver<Mode>,
) {
    let mut watched = mode.clone();
    let mut count = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                count += 1;
                let (socket, _) = accepted.unwrap();
                tokio::spawn(serve(socket, tell.clone(), mode.clone(), count));
            }
            dead = watched.wait_for(|mode| *mode == Mode::Dead) => {
                let _ = dead;
                return;
            }
        }
    }
}

async fn serve(
    socket: TcpStream,
    tell: mpsc::UnboundedSender<Seen>,
    mut mode: watch::Receiver<Mode>,
    connection: usize,
) {
    let Ok(mut server) = h2::server::handshake(socket).await else {
        return;
    };
    // A connection made after the GOAWAY of others is served.
    let born = *mode.borrow();
    let mut left = born == Mode::Leaving;
    loop {
        let now = *mode.borrow_and_update();
        if now == Mode::Dead {
            return;
        }
        if now == Mode::Frozen {
            let _ = mode.wait_for(|mode| *mode != Mode::Frozen).await;
            continue;
        }
        if now == Mode::Leaving && !left {
            left = true;
            server.graceful_shutdown();
        }
        tokio::select! {
            accepted = server.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    let (head, body) = request.into_parts();
                    let seen = Seen { head, body, respond, connection };
                    if seen.head.uri.path().ends_with("/ServerReady") {
                        seen.answer(framed(&[8, 1]));
                    } else {
                        let _ = tell.send(seen);
                    }
                }
                _ => return,
            },
            changed = mode.changed() => if changed.is_err() { return },
        }
    }
}

/// Polls once.
pub(crate) async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}
