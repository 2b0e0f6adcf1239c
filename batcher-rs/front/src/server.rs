//! The listening half: binds, accepts, drives each HTTP/2 connection, drains.
//!
//! One OS thread is one current-thread runtime with its own [`Service`]; connections are dealt out round robin and
//! stay where they are. A service is called inside its connection's own poll, so a small request costs no task.

use crate::config::FrontConfig;
use crate::connection::drive;
use crate::shared::{OpenConnection, Phase};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

pub use crate::shared::{InFlight, Receiving, Shared};

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
                        let (shared, service) = (Arc::clone(shared), Arc::clone(service));
                        tokio::spawn(async move {
                            drive(stream, ConnInfo { peer }, shared, service).await;
                            drop(guard);
                        });
                    }
                }
                // The acceptor ended: the server drains; stay for the connections that are open.
                None => return shared.stopped().await,
            },
            () = shared.stopped() => return,
        }
    }
}
