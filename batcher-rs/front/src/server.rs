//! The listening half: binds, accepts, drives each HTTP/2 connection, drains.
//!
//! One OS thread is one current-thread runtime with its own [`Service`]; connections are dealt out round robin and
//! stay where they are. A service is called inside its connection's own poll, so a small request costs no task.

use crate::config::FrontConfig;
use crate::io::coalesce;
use crate::keepalive::Keepalive;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use parking_lot::{Condvar, Mutex};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// What a connection tells the service about its other end.
#[derive(Clone, Copy, Debug)]
pub struct ConnInfo {
    /// The caller's address.
    pub peer: SocketAddr,
}

/// Answers requests; one lives on each runtime thread.
pub trait Service: Send + Sync + Sized + 'static {
    /// Takes one request. Runs inside the connection's poll: it must not block, and spawns what has to wait.
    fn call(
        self: &Arc<Self>,
        conn: &ConnInfo,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    );

    /// Called after each poll of a connection, when the locks of HTTP/2 are free again.
    fn after_poll(&self) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Stopped,
}

/// Shared by all threads of one server.
pub struct Shared {
    config: FrontConfig,
    phase: watch::Sender<Phase>,
    connections: AtomicUsize,
    refused_connections: AtomicUsize,
    in_flight: AtomicUsize,
    receiving: AtomicUsize,
    quiet: Mutex<()>,
    changed: Condvar,
}

impl Shared {
    fn new(config: FrontConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            phase: watch::Sender::new(Phase::Serving),
            connections: AtomicUsize::new(0),
            refused_connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            receiving: AtomicUsize::new(0),
            quiet: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// The settings this server was started with.
    pub fn config(&self) -> &FrontConfig {
        &self.config
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections closed at once because there were too many.
    pub fn refused_connections(&self) -> usize {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Requests taken and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the server accepts nothing new.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// Counts a request as in flight until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Room for a body of `bytes` that is still being received, or `None` when others take it all.
    pub fn reserve_receiving(self: &Arc<Self>, bytes: usize) -> Option<Receiving> {
        let before = self.receiving.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Receiving {
            shared: Arc::clone(self),
            bytes,
        };
        // The guard gives the bytes back when it is dropped here.
        (before + bytes <= self.config.max_receiving_bytes).then_some(reserved)
    }

    /// Resolves when the server takes nothing new any more.
    pub async fn draining(&self) {
        let mut phase = self.phase.subscribe();
        // An error means the server itself is gone, which is a drain too.
        let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Resolves when the server stops for good, draining over or cut short.
    pub async fn stopped(&self) {
        let mut phase = self.phase.subscribe();
        // An error means the server itself is gone, which is a stop too.
        let _ = phase.wait_for(|phase| *phase == Phase::Stopped).await;
    }

    fn tell_waiters(&self) {
        if self.is_draining() {
            let _lock = self.quiet.lock();
            self.changed.notify_all();
        }
    }

    fn wait_until(&self, end: Instant, done: impl Fn(&Self) -> bool) -> bool {
        let mut lock = self.quiet.lock();
        while !done(self) {
            if self.changed.wait_until(&mut lock, end).timed_out() {
                return done(self);
            }
        }
        true
    }
}

/// One request in flight.
pub struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.tell_waiters();
        }
    }
}

/// Room reserved for a body that is still being received.
pub struct Receiving {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.shared
            .receiving
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct OpenConnection(Arc<Shared>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.tell_waiters();
    }
}

/// A bound, possibly running server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Option<std::net::TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Binds at once, so that a taken port is known before anybody is told that this server is ready.
    ///
    /// # Errors
    /// What the operating system said of the address.
    pub fn bind(config: FrontConfig) -> std::io::Result<Self> {
        let address = resolve(&config.listen)?;
        let domain = socket2::Domain::for_address(address);
        let socket =
            socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        // Lets a restart take the port while old connections linger; SO_REUSEPORT stays off, so two servers never share it.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        let listener: std::net::TcpListener = socket.into();
        let address = listener.local_addr()?;
        Ok(Self {
            shared: Shared::new(config),
            address,
            listener: Some(listener),
            threads: Vec::new(),
        })
    }

    /// The address that callers reach.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What all threads of this server share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts the runtime threads; `make` builds each thread's service inside that thread's runtime.
    ///
    /// # Errors
    /// A thread or a runtime could not be made.
    pub fn start<S: Service>(
        &mut self,
        make: impl Fn(&Arc<Shared>) -> Arc<S> + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let Some(listener) = self.listener.take() else {
            return Err(std::io::Error::other("the server was started already"));
        };
        let make = Arc::new(make);
        let count = self.shared.config.threads.max(1);
        let mut hands = Vec::with_capacity(count);
        let mut inlets = Vec::with_capacity(count);
        for _ in 0..count {
            let (hand, inlet) = mpsc::unbounded_channel();
            hands.push(hand);
            inlets.push(inlet);
        }
        let mut acceptor = Some((listener, hands));
        for (index, inlet) in inlets.into_iter().enumerate() {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let shared = Arc::clone(&self.shared);
            let make = Arc::clone(&make);
            let acceptor = acceptor.take();
            let thread = std::thread::Builder::new()
                .name(format!("front-{index}"))
                .spawn(move || {
                    runtime.block_on(async move {
                        let service = make(&shared);
                        if let Some((listener, hands)) = acceptor {
                            tokio::spawn(accept(listener, hands, Arc::clone(&shared)));
                        }
                        take_connections(inlet, &shared, &service).await;
                    });
                    // Tasks that wait for the outside end with the runtime.
                    runtime.shutdown_timeout(Duration::from_millis(100));
                })?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Accepts nothing new, tells every connection to go away, and waits until all requests in flight are answered.
    /// True when they all were; false when `limit` passed first.
    pub fn drain(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        self.shared.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            if serving {
                *phase = Phase::Draining;
            }
            serving
        });
        // A connection counts until its last stream is closed; a peer that never reads its GOAWAY must not hold us up.
        let idle = self
            .shared
            .wait_until(end, |shared| shared.in_flight() == 0);
        let beat = end.min(Instant::now() + Duration::from_secs(1));
        self.shared
            .wait_until(beat, |shared| shared.connections() == 0);
        idle && self.shared.in_flight() == 0
    }

    /// Ends every connection and waits for the threads.
    pub fn stop(&mut self) {
        self.shared.phase.send_replace(Phase::Stopped);
        for thread in self.threads.drain(..) {
            // A panic there was reported by the thread itself; nothing is left to be done about it here.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn resolve(listen: &str) -> std::io::Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    listen.to_socket_addrs()?.next().ok_or_else(|| {
        std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            format!("'{listen}' is no address"),
        )
    })
}

type Handed = (std::net::TcpStream, SocketAddr, OpenConnection);

async fn accept(
    listener: std::net::TcpListener,
    hands: Vec<mpsc::UnboundedSender<Handed>>,
    shared: Arc<Shared>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else {
        return;
    };
    let mut phase = shared.phase.subscribe();
    let mut next = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let open = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
                let guard = OpenConnection(Arc::clone(&shared));
                if open > shared.config.max_connections {
                    shared.refused_connections.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let _ = stream.set_nodelay(true);
                if let Ok(stream) = stream.into_std() {
                    // Fails only while the runtime of that thread ends.
                    let _ = hands[next].send((stream, peer, guard));
                    next = (next + 1) % hands.len();
                }
            }
            // Out of file descriptors, or a connection that was gone again: give others time to end.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn take_connections<S: Service>(
    mut inlet: mpsc::UnboundedReceiver<Handed>,
    shared: &Arc<Shared>,
    service: &Arc<S>,
) {
    loop {
        tokio::select! {
            handed = inlet.recv() => match handed {
                Some((stream, peer, guard)) => {
                    if let Ok(stream) = TcpStream::from_std(stream) {
                        tokio::spawn(drive(stream, ConnInfo { peer }, guard, Arc::clone(shared), Arc::clone(service)));
                    }
                }
                // The acceptor ended: the server drains; stay for the connections that are open.
                None => return shared.stopped().await,
            },
            () = shared.stopped() => return,
        }
    }
}

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
        .max_concurrent_reset_streams(1024)
        .max_pending_accept_reset_streams(1024)
        .max_local_error_reset_streams(Some(4096));
    builder
}

async fn drive<S: Service>(
    stream: TcpStream,
    conn: ConnInfo,
    _open: OpenConnection,
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
