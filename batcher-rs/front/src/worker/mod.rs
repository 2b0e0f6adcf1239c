//! The worker's front: `ModelInfer` and `ModelStreamInfer` are answered here, everything else goes to the Python half.
//!
//! message → [`admission`] → [`runtime`] (a tick's entries together) → [`model`] (queue) → [`instance`] (batch) → [`inbox`] → reply

mod admission;
mod counters;
mod entry;
mod expiry;
mod health;
mod inbox;
mod instance;
mod model;
mod runner;
mod runtime;
mod spec;
mod statistics;
mod stream;
mod table;

pub use runner::{BatchInput, Emit, Parameter, RunError, Runner};
pub use spec::{Catalog, CatalogModel, CatalogVersion, ModelSpec, QueueSpec, State};

use crate::body::{Body, BodyError};
use crate::config::FrontConfig;
use crate::connection::drive;
use crate::deadline::parse_timeout;
use crate::fallback::pass_on;
use crate::server::{ConnInfo, Server, Service, Shared};
use crate::status::{Reason, Status, refuse};
use crate::upstream::{Upstream, UpstreamConfig};
use admission::{Override, accept};
use arc_swap::ArcSwap;
use bytes::Bytes;
use entry::{Answer, CancelFlag};
use expiry::Expiry;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request};
use model::ModelQueue;
use parking_lot::Mutex;
use runtime::Runtime;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use stream::StreamCall;
use table::Table;
use tokio::io::{AsyncRead, AsyncWrite};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// A request on its way to a queue that was just replaced still arrives there within this time.
const SWAP: Duration = Duration::from_millis(50);

/// A worker's front: one port, its models' queues and their instances.
pub struct WorkerFront {
    server: Mutex<Server>,
    shared: Arc<Shared>,
    address: SocketAddr,
    table: Arc<ArcSwap<Table>>,
    /// Changes of the table are rare and made one after the other.
    changing: Mutex<Catalog>,
    expiry: Arc<Expiry>,
}

impl WorkerFront {
    /// Binds the port.
    ///
    /// # Errors
    /// What the operating system said of the address.
    pub fn bind(config: FrontConfig) -> std::io::Result<Self> {
        let server = Server::bind(config)?;
        Ok(Self {
            shared: Arc::clone(server.shared()),
            address: server.address(),
            server: Mutex::new(server),
            table: Arc::default(),
            changing: Mutex::default(),
            expiry: Expiry::new(),
        })
    }

    /// The address that callers reach.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves from now on.
    ///
    /// # Errors
    /// A thread could not be made, or this was called before.
    pub fn start(&self) -> std::io::Result<()> {
        let table = Arc::clone(&self.table);
        let expiry = Arc::clone(&self.expiry);
        let timer = AtomicBool::new(false);
        self.server.lock().start(move |shared| {
            if !timer.swap(true, Ordering::Relaxed) {
                tokio::spawn(Arc::clone(&expiry).run(Arc::clone(&table)));
            }
            Arc::new(WorkerService {
                runtime: Runtime::start(Arc::clone(&expiry), shared.config().body_timeout()),
                table: Arc::clone(&table),
                fallback: shared
                    .config()
                    .fallback
                    .as_ref()
                    .map(|address| Upstream::new(address, UpstreamConfig::local())),
                shared: Arc::clone(shared),
            })
        })
    }

    /// Serves one connection that somebody else accepted, in the current runtime and until it ends; needs no `start`.
    pub async fn serve_connection<IO: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: IO,
        peer: SocketAddr,
    ) {
        let service = Arc::new(WorkerService {
            runtime: Runtime::start(
                Arc::clone(&self.expiry),
                self.shared.config().body_timeout(),
            ),
            table: Arc::clone(&self.table),
            fallback: None,
            shared: Arc::clone(&self.shared),
        });
        drive(io, ConnInfo { peer }, Arc::clone(&self.shared), service).await;
    }

    /// Makes a version servable, one instance a runner. What stood in its place finishes its work within `patience`.
    ///
    /// # Errors
    /// A thread could not be made.
    pub fn install(
        &self,
        spec: &ModelSpec,
        runners: Vec<Box<dyn Runner>>,
        patience: Duration,
    ) -> std::io::Result<()> {
        let queue = Arc::new(ModelQueue::new(spec, runners.len()));
        let limit = self.shared.config().max_message_bytes;
        for (index, mut runner) in runners.into_iter().enumerate() {
            let model = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(format!("batch-{index}"))
                .spawn(move || instance::serve(&model, index, runner.as_mut(), limit))?;
        }
        let before = {
            let catalog = self.changing.lock();
            let (table, before) = self.table.load().with_queue(queue);
            self.table.store(Arc::new(table.with_catalog(&catalog)));
            before
        };
        if let Some(before) = before {
            retire(&before, patience);
        }
        Ok(())
    }

    /// Takes a version away; its queued and running requests are finished within `patience`. True when they all were.
    pub fn remove(&self, name: &str, version: &str, patience: Duration) -> bool {
        let before = {
            let catalog = self.changing.lock();
            let (table, before) = self.table.load().without_queue(name, version);
            self.table.store(Arc::new(table.with_catalog(&catalog)));
            before
        };
        before.is_none_or(|before| retire(&before, patience))
    }

    /// Says what exists and in which state.
    pub fn set_catalog(&self, catalog: Catalog) {
        let mut current = self.changing.lock();
        self.table
            .store(Arc::new(self.table.load().with_catalog(&catalog)));
        *current = catalog;
    }

    /// Everything counted, as JSON.
    pub fn statistics(&self) -> String {
        statistics::render(&self.table.load(), &self.shared)
    }

    /// Accepts nothing new and answers what is in flight. True when all of it was answered within `limit`.
    pub fn drain(&self, limit: Duration) -> bool {
        let done = self.server.lock().drain(limit);
        if !done {
            for queue in self.table.load().queues() {
                queue.abandon();
            }
        }
        done
    }

    /// Ends every connection, every instance and every thread.
    pub fn stop(&self) {
        let table = self.table.load_full();
        for queue in table.queues() {
            queue.close();
        }
        let end = Instant::now() + Duration::from_secs(5);
        for queue in table.queues() {
            queue.wait_ended(end);
        }
        self.server.lock().stop();
    }
}

fn retire(queue: &ModelQueue, patience: Duration) -> bool {
    std::thread::sleep(SWAP);
    queue.close();
    let ended = queue.wait_ended(Instant::now() + patience);
    if !ended {
        queue.abandon();
    }
    ended
}

/// One runtime thread's share of the worker's front.
struct WorkerService {
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
    table: Arc<ArcSwap<Table>>,
    fallback: Option<Arc<Upstream>>,
}

impl Service for WorkerService {
    fn call(
        self: &Arc<Self>,
        conn: &ConnInfo,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) {
        match request.uri().path() {
            INFER => self.infer(request, respond, cx),
            STREAM_INFER => self.stream_infer(request, respond),
            path => match &self.fallback {
                Some(upstream) => pass_on(upstream, conn, &self.shared, request, respond),
                None => {
                    let text = format!("this server does not implement {path}");
                    refuse(&mut respond, &Status::new(Reason::Unsupported, text));
                }
            },
        }
    }

    fn after_poll(&self) {
        if self.runtime.cancels.take() {
            for queue in self.table.load().queues() {
                queue.sweep_cancelled();
            }
        }
    }
}

impl WorkerService {
    fn infer(
        self: &Arc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) {
        let now = Instant::now();
        let (parts, recv) = request.into_parts();
        let deadline = match self.deadline(&parts.headers, now) {
            Ok(deadline) => deadline,
            Err(status) => return refuse(&mut respond, &status),
        };
        let mut body = Body::new(recv, &parts.headers, &self.shared);
        let override_ = Override::of(&parts.headers);
        match body.poll_only(cx) {
            Poll::Ready(Ok(framed)) if !framed.compressed => {
                self.take(framed.message, &override_, respond, deadline, now);
            }
            Poll::Ready(Ok(framed)) => {
                let service = Arc::clone(self);
                tokio::spawn(async move {
                    let plain = body.plain(framed).await;
                    service.arrived(plain, &override_, respond, deadline, now);
                });
            }
            Poll::Ready(Err(error)) => self.arrived(Err(error), &override_, respond, deadline, now),
            Poll::Pending => {
                let service = Arc::clone(self);
                tokio::spawn(async move {
                    let still = service.shared.config().body_timeout();
                    let message = body.only(still, deadline.into()).await;
                    service.arrived(message, &override_, respond, deadline, now);
                });
            }
        }
    }

    fn arrived(
        &self,
        message: Result<Bytes, BodyError>,
        override_: &Override,
        mut respond: SendResponse<Bytes>,
        deadline: Instant,
        now: Instant,
    ) {
        match message {
            Ok(message) => self.take(message, override_, respond, deadline, now),
            Err(BodyError::Refused(status)) => refuse(&mut respond, &status),
            Err(BodyError::Gone) => {}
        }
    }

    fn take(
        &self,
        message: Bytes,
        override_: &Override,
        mut respond: SendResponse<Bytes>,
        deadline: Instant,
        now: Instant,
    ) {
        let accepted = match accept(&self.table.load(), message, override_) {
            Ok(accepted) => accepted,
            Err(status) => return refuse(&mut respond, &status),
        };
        let cancel = CancelFlag::new(&accepted.model, &self.runtime.cancels);
        let waker = Waker::from(Arc::clone(&cancel));
        if respond
            .poll_reset(&mut Context::from_waker(&waker))
            .is_ready()
        {
            return;
        }
        let answer = Answer::Unary {
            inbox: Arc::clone(&self.runtime.inbox),
            respond,
            only: None,
        };
        let (model, entry) =
            accepted.into_entry(answer, cancel, deadline, now, self.shared.begin());
        self.runtime.submit(model, entry);
    }

    fn stream_infer(
        self: &Arc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) {
        let (parts, recv) = request.into_parts();
        let timeout = match parse_timeout(&parts.headers) {
            Ok(timeout) => timeout,
            Err(status) => return refuse(&mut respond, &status),
        };
        let call = StreamCall {
            shared: Arc::clone(&self.shared),
            runtime: Arc::clone(&self.runtime),
            table: Arc::clone(&self.table),
            override_: Override::of(&parts.headers),
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            errors_end_stream: says_true(&parts.headers, "triton_grpc_error"),
        };
        let in_flight = self.shared.begin();
        let body = Body::new(recv, &parts.headers, &self.shared);
        tokio::spawn(async move {
            call.serve(body, respond).await;
            drop(in_flight);
        });
    }

    fn deadline(&self, headers: &HeaderMap, now: Instant) -> Result<Instant, Status> {
        let most = self.shared.config().max_timeout();
        Ok(now + parse_timeout(headers)?.map_or(most, |timeout| timeout.min(most)))
    }
}

fn says_true(headers: &HeaderMap, name: &str) -> bool {
    headers
        .get(name)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}
