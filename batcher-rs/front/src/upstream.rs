//! The client side: one HTTP/2 connection to one address, dialled when needed, watched while it is up.
//!
//! An [`Upstream`] belongs to one runtime thread: make one per thread and address. [`Upstream::open`] starts a stream on
//! the connection that is up, or dials first; a failed dial is not repeated before a back-off has passed, so that callers
//! learn at once that nobody is there. A peer that is gone without a word is found by pings, and then all its streams end
//! at once. A peer that says GOAWAY keeps its streams and gets no new ones: the next one dials.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, SendStream};
use http::Request;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::io::{CoalescingIo, Flusher, coalesce};
use crate::status::{Reason, Status};

/// How an upstream is dialled and watched.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamConfig {
    /// Longest for connecting, and for the first pong where pings are used.
    pub dial_timeout: Duration,
    /// Pings that find a dead peer; `None` for a peer in the same process, which dies with us.
    pub pings: Option<Pings>,
    /// Rest after the first failed dial; doubled by each further one.
    pub shortest_back_off: Duration,
    /// Longest rest between two dials.
    pub longest_back_off: Duration,
}

/// When silence is death.
#[derive(Clone, Copy, Debug)]
pub struct Pings {
    /// A peer that was silent this long is pinged.
    pub after: Duration,
    /// A ping that brought nothing for this long ends the connection.
    pub timeout: Duration,
}

impl UpstreamConfig {
    /// For another process, perhaps on another machine. A peer that stops answering is found within twice `after` plus
    /// `timeout`: 1.8 s.
    pub const fn replica() -> Self {
        Self {
            dial_timeout: Duration::from_secs(1),
            pings: Some(Pings {
                after: Duration::from_millis(300),
                timeout: Duration::from_millis(1200),
            }),
            shortest_back_off: Duration::from_millis(50),
            longest_back_off: Duration::from_secs(2),
        }
    }

    /// For the Python half of the same process. grpcio's servers throw out a peer that pings often.
    pub const fn local() -> Self {
        Self {
            dial_timeout: Duration::from_secs(1),
            pings: None,
            shortest_back_off: Duration::from_millis(10),
            longest_back_off: Duration::from_millis(250),
        }
    }
}

/// Why no stream could be opened. The request certainly never ran.
#[derive(Clone, Debug)]
pub struct DialError {
    address: Arc<str>,
    cause: Arc<str>,
}

impl fmt::Display for DialError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} cannot be reached: {}", self.address, self.cause)
    }
}

impl std::error::Error for DialError {}

impl From<DialError> for Status {
    /// The address is ours, not the caller's, to know.
    fn from(_: DialError) -> Self {
        Self::new(
            Reason::NoReplica,
            "the server behind this one cannot be reached",
        )
    }
}

/// A stream that was opened: the answer to come, and where the request's body goes.
pub type Opened = (ResponseFuture, SendStream<Bytes>);

/// One address and the connection to it.
pub struct Upstream {
    address: Arc<str>,
    authority: Authority,
    config: UpstreamConfig,
    state: Mutex<State>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Upstream")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

struct State {
    link: Link,
    /// Counts connections, so that the end of an old one is not taken for the end of its successor.
    generation: u64,
    back_off: Duration,
}

enum Link {
    /// Not connected. After a failed dial: until when nobody tries again, and why.
    Down(Option<(Instant, DialError)>),
    Dialling(VecDeque<oneshot::Sender<Result<(), DialError>>>),
    Up(SendRequest<Bytes>),
}

impl Upstream {
    /// An upstream that is not connected yet. `address` is `HOST:PORT` or `unix:/path`.
    pub fn new(address: &str, config: UpstreamConfig) -> Arc<Self> {
        let authority = if address.starts_with("unix:") {
            "localhost"
        } else {
            address
        };
        Arc::new(Self {
            address: address.into(),
            // An address that is no authority cannot be dialled either, and the dial says so.
            authority: authority
                .parse()
                .unwrap_or_else(|_| Authority::from_static("invalid")),
            config,
            state: Mutex::new(State {
                link: Link::Down(None),
                generation: 0,
                back_off: config.shortest_back_off,
            }),
        })
    }

    /// The address as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether a connection is up.
    pub fn is_connected(&self) -> bool {
        matches!(self.state.lock().link, Link::Up(_))
    }

    /// The URI of a method here.
    #[allow(clippy::missing_panics_doc, reason = "the parts are there")]
    pub fn uri(&self, path: PathAndQuery) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).expect("scheme, authority and path make a URI")
    }

    /// A handle on the connection, if one is up.
    pub fn ready_now(&self) -> Option<SendRequest<Bytes>> {
        match &self.state.lock().link {
            Link::Up(sender) => Some(sender.clone()),
            _ => None,
        }
    }

    /// A handle on the connection, dialled if need be.
    ///
    /// # Errors
    /// Nobody answers there, or nobody did a moment ago.
    pub async fn ready(self: &Arc<Self>) -> Result<SendRequest<Bytes>, DialError> {
        loop {
            let waiting = {
                let mut state = self.state.lock();
                match &mut state.link {
                    Link::Up(sender) => return Ok(sender.clone()),
                    Link::Down(Some((until, error))) if Instant::now() < *until => {
                        return Err(error.clone());
                    }
                    Link::Dialling(waiters) => {
                        let (tell, told) = oneshot::channel();
                        waiters.push_back(tell);
                        told
                    }
                    Link::Down(_) => {
                        let (tell, told) = oneshot::channel();
                        state.link = Link::Dialling(VecDeque::from([tell]));
                        // A task of its own: the dial outlives a caller that gives up.
                        tokio::spawn(Arc::clone(self).dial());
                        told
                    }
                }
            };
            match waiting.await {
                Ok(result) => result?,
                Err(_) => return Err(self.error("the runtime is ending")),
            }
        }
    }

    /// Starts a stream if a connection is up; `None` when one has to be dialled first.
    pub fn open_now(&self, head: &mut dyn FnMut() -> Request<()>, end: bool) -> Option<Opened> {
        let (mut sender, generation) = {
            let state = self.state.lock();
            match &state.link {
                Link::Up(sender) => (sender.clone(), state.generation),
                _ => return None,
            }
        };
        if let Ok(opened) = sender.send_request(head(), end) {
            return Some(opened);
        }
        // The peer said GOAWAY, or the connection is over and its task has not run yet.
        self.retire(generation);
        None
    }

    /// Starts a stream, dialling if need be. `head` is called once per attempt.
    ///
    /// # Errors
    /// No connection to be had; the request never left.
    pub async fn open(
        self: &Arc<Self>,
        head: &mut (dyn FnMut() -> Request<()> + Send),
        end: bool,
    ) -> Result<Opened, DialError> {
        for _ in 0..3 {
            if let Some(opened) = self.open_now(head, end) {
                return Ok(opened);
            }
            self.ready().await?;
        }
        Err(self.error("it takes no new streams"))
    }

    /// Dials and asks for a pong: whether somebody who works is there.
    ///
    /// # Errors
    /// Nobody is.
    pub async fn check(self: &Arc<Self>) -> Result<(), DialError> {
        {
            let mut state = self.state.lock();
            if matches!(state.link, Link::Down(_)) {
                state.link = Link::Down(None);
            }
        }
        self.ready().await.map(drop)
    }

    fn error(&self, cause: &str) -> DialError {
        DialError {
            address: Arc::clone(&self.address),
            cause: cause.into(),
        }
    }

    /// Takes the connection out of use; its streams go on.
    fn retire(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation && matches!(state.link, Link::Up(_)) {
            state.link = Link::Down(None);
        }
    }

    async fn dial(self: Arc<Self>) {
        let dialled = match tokio::time::timeout(self.config.dial_timeout, self.connect()).await {
            Ok(Ok(sender)) => Ok(sender),
            Ok(Err(cause)) => Err(self.error(&cause.to_string())),
            Err(_) => Err(self.error("no answer in time")),
        };
        let mut state = self.state.lock();
        let state = &mut *state;
        let (link, result) = match dialled {
            Ok(sender) => {
                state.back_off = self.config.shortest_back_off;
                (Link::Up(sender), Ok(()))
            }
            Err(error) => {
                let rest = state.back_off;
                state.back_off = (rest * 2).min(self.config.longest_back_off);
                (
                    Link::Down(Some((Instant::now() + rest, error.clone()))),
                    Err(error),
                )
            }
        };
        if let Link::Dialling(waiters) = std::mem::replace(&mut state.link, link) {
            for waiter in waiters {
                // A waiter that gave up is no matter.
                let _ = waiter.send(result.clone());
            }
        }
    }

    async fn connect(self: &Arc<Self>) -> io::Result<SendRequest<Bytes>> {
        if let Some(path) = self.address.strip_prefix("unix:") {
            self.greet(UnixStream::connect(path).await?).await
        } else {
            let socket = TcpStream::connect(&*self.address).await?;
            socket.set_nodelay(true)?;
            self.greet(socket).await
        }
    }

    /// Shakes hands, waits for the first pong and leaves the connection to a task.
    async fn greet<T>(self: &Arc<Self>, socket: T) -> io::Result<SendRequest<Bytes>>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (io, flusher) = coalesce(socket);
        let builder = builder();
        let mut handshake = Box::pin(builder.handshake::<_, Bytes>(io));
        let (sender, mut connection) = poll_fn(|cx| {
            let done = handshake.as_mut().poll(cx).map_err(io::Error::other);
            match flusher.poll_flush(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ => done,
            }
        })
        .await?;
        drop(handshake);
        let pulse = match self.config.pings {
            None => None,
            Some(pings) => {
                let mut pulse = Pulse::new(
                    pings,
                    connection
                        .ping_pong()
                        .expect("nobody took this connection's pings yet"),
                );
                pulse.first(&mut connection, &flusher).await?;
                Some(pulse)
            }
        };
        let generation = {
            let mut state = self.state.lock();
            state.generation += 1;
            state.generation
        };
        tokio::spawn(drive(
            connection,
            flusher,
            pulse,
            Arc::downgrade(self),
            generation,
        ));
        Ok(sender)
    }
}

/// A stream's window fits large tensors; the connection's is no limit, or a few callers who read slowly would hold up all
/// others. Many streams from the start (the protocol's first guess is 100); no push.
///
/// An answer that comes after its request was cancelled is an honest race, and under overload there are thousands a second.
/// h2 remembers cancelled streams for a while, counts later answers as errors for as long as the connection lives, and would
/// end it after 1024 of them, with everybody's requests on it.
fn builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(1 << 20)
        .initial_connection_window_size(256 << 20)
        .max_frame_size(16_384)
        .max_header_list_size(64 << 10)
        .initial_max_send_streams(4096)
        .max_send_buffer_size(1 << 20)
        .max_concurrent_reset_streams(4096)
        .max_local_error_reset_streams(None)
        .enable_push(false);
    builder
}

async fn drive<T>(
    mut connection: Connection<CoalescingIo<T>, Bytes>,
    flusher: Flusher<T>,
    mut pulse: Option<Pulse>,
    upstream: Weak<Upstream>,
    generation: u64,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|cx| {
        // First what has come: after a pause of our own a pong may have been waiting longer than its timeout.
        let over = Pin::new(&mut connection).poll(cx).is_ready();
        let dead = pulse
            .as_mut()
            .is_some_and(|pulse| pulse.poll_dead(cx, flusher.received()).is_ready());
        let broken = matches!(flusher.poll_flush(cx), Poll::Ready(Err(_)));
        if over || dead || broken {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    if let Some(upstream) = upstream.upgrade() {
        upstream.retire(generation);
    }
    // Dropping the connection ends its streams, each of them with an error.
}

/// Watches for silence. Whatever arrives is a sign of life; a ping only asks for one.
struct Pulse {
    pings: PingPong,
    times: Pings,
    timer: Pin<Box<Sleep>>,
    received: u64,
    pinged: bool,
    outstanding: bool,
}

impl Pulse {
    fn new(times: Pings, pings: PingPong) -> Self {
        let rest = Box::pin(tokio::time::sleep(times.after));
        Self {
            pings,
            times,
            timer: rest,
            received: 0,
            pinged: false,
            outstanding: false,
        }
    }

    /// The pong that shows that a process, not only its kernel, took the connection.
    async fn first<T>(
        &mut self,
        connection: &mut Connection<CoalescingIo<T>, Bytes>,
        flusher: &Flusher<T>,
    ) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        self.pings
            .send_ping(Ping::opaque())
            .map_err(io::Error::other)?;
        poll_fn(|cx| {
            let over = Pin::new(&mut *connection).poll(cx);
            let pong = self.pings.poll_pong(cx);
            if let Poll::Ready(Err(error)) = flusher.poll_flush(cx) {
                return Poll::Ready(Err(error));
            }
            match (pong, over) {
                (Poll::Ready(Ok(_)), _) => Poll::Ready(Ok(())),
                (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => {
                    Poll::Ready(Err(io::Error::other(error)))
                }
                (_, Poll::Ready(Ok(()))) => {
                    Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
                }
                (Poll::Pending, Poll::Pending) => Poll::Pending,
            }
        })
        .await
    }

    /// Ready when the peer is dead. `received` counts the reads that brought something.
    fn poll_dead(&mut self, cx: &mut Context<'_>, received: u64) -> Poll<()> {
        // Takes the pong, so that the next ping can be sent.
        if self.outstanding && self.pings.poll_pong(cx).is_ready() {
            self.outstanding = false;
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let rest = if received != self.received {
                self.received = received;
                self.pinged = false;
                self.times.after
            } else if self.pinged {
                return Poll::Ready(());
            } else {
                if !self.outstanding && self.pings.send_ping(Ping::opaque()).is_ok() {
                    self.outstanding = true;
                    let _ = self.pings.poll_pong(cx);
                }
                self.pinged = true;
                self.times.timeout
            };
            self.timer.as_mut().reset(Instant::now() + rest);
        }
        Poll::Pending
    }
}
