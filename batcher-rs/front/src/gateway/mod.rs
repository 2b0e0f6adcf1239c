//! The gateway: finds the replica that shall serve a request and passes the bytes on, both ways, as they come.
//!
//! [`GatewayFront`] is the whole of it: bind, start, give it route tables as they change, drain, stop. Inside, one [`Gateway`] is
//! shared by all threads and makes each thread's [`GatewayService`].
//!
//! `ModelInfer` and `ModelStreamInfer` are served here; everything else goes to the Python half. What the gateway decided
//! travels as metadata (`headrace-model`, `headrace-version`), for the body is never written anew.

mod arrival;
mod ask;
mod front;
mod infer;
mod metadata;
mod probe;
mod replica;
mod routes;
mod statistics;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use headrace_route::Budget;
use headrace_tensor::Head;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request};

pub use front::GatewayFront;
pub use headrace_route::BadTable;

use parking_lot::Mutex;

use crate::config::FrontConfig;
use crate::deadline::parse_timeout;
use crate::fallback::pass_on;
use crate::server::{ConnInfo, Service, Shared};
use crate::status::{Reason, Status, refuse};
use crate::upstream::{Upstream, UpstreamConfig};
use routes::{Routes, Way};
use statistics::Refusals;

/// The hot methods' paths.
const INFER_PATH: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM_PATH: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// What all threads of one gateway share.
pub struct Gateway {
    threads: usize,
    next_thread: AtomicUsize,
    routes: ArcSwap<Routes>,
    budget: Mutex<Budget>,
    retries: AtomicU64,
    refusals: Refusals,
    dice: AtomicU64,
}

impl Gateway {
    /// A gateway without routes: it refuses every model until it gets some.
    pub fn new(config: &FrontConfig) -> Arc<Self> {
        Arc::new(Self {
            threads: config.threads.max(1),
            next_thread: AtomicUsize::new(0),
            routes: ArcSwap::from_pointee(Routes::none()),
            budget: Mutex::new(Budget::default()),
            retries: AtomicU64::new(0),
            refusals: Refusals::new(),
            dice: AtomicU64::new(0x9E37_79B9_7F4A_7C15),
        })
    }

    /// Replaces the route table; see [`GatewayFront::set_routes`].
    ///
    /// # Errors
    /// What is wrong with the table; the old one stays.
    pub fn set_routes(&self, table: &str) -> Result<(), BadTable> {
        let next = Routes::read(table, &self.routes.load(), self.threads)?;
        self.routes.store(Arc::new(next));
        Ok(())
    }

    /// See [`GatewayFront::report_queue`].
    pub fn report_queue(&self, replica: &str, rows: u64) {
        if let Some(known) = self
            .routes
            .load()
            .replicas()
            .iter()
            .find(|known| known.id == replica)
        {
            known.report(rows);
        }
    }

    /// This gateway's counters as JSON.
    pub fn statistics(&self, shared: &Shared) -> String {
        statistics::snapshot(self, shared).to_string()
    }

    /// One thread's service. To be called inside that thread's runtime, at most once per thread of the configuration.
    ///
    /// # Panics
    /// When called more often than there are threads.
    pub fn service(self: &Arc<Self>, shared: &Arc<Shared>) -> Arc<GatewayService> {
        let thread = self.next_thread.fetch_add(1, Ordering::Relaxed);
        assert!(thread < self.threads, "one service per thread");
        let fallback = shared.config().fallback.as_deref();
        let service = Arc::new(GatewayService {
            gateway: Arc::clone(self),
            shared: Arc::clone(shared),
            fallback: fallback.map(|address| Upstream::new(address, UpstreamConfig::local())),
            thread,
        });
        tokio::spawn(probe::keep(Arc::clone(self), Arc::clone(shared), thread));
        service
    }

    /// Counts a refusal of ours.
    fn refused(&self, status: &Status) {
        self.refusals.count(status.reason);
    }

    /// Whether one request may be sent a second time.
    fn may_retry(&self) -> bool {
        let granted = self.budget.lock().try_retry(Instant::now());
        self.retries
            .fetch_add(u64::from(granted), Ordering::Relaxed);
        granted
    }

    /// A number to decide by; random enough to spread load (splitmix64).
    fn draw(&self) -> u64 {
        let mut z = self
            .dice
            .fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// One thread's half of the gateway.
pub struct GatewayService {
    gateway: Arc<Gateway>,
    shared: Arc<Shared>,
    fallback: Option<Arc<Upstream>>,
    thread: usize,
}

impl Service for GatewayService {
    fn call(
        self: &Arc<Self>,
        conn: &ConnInfo,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        cx: &mut Context<'_>,
    ) {
        match (request.uri().path(), &self.fallback) {
            (INFER_PATH, _) => infer::take(self, request, respond, cx),
            (STREAM_PATH, _) => stream::take(self, request, respond),
            (_, Some(fallback)) => pass_on(fallback, conn, &self.shared, request, respond),
            (path, None) => {
                let text = format!("there is no method {path:.200} here");
                self.refuse(&mut respond, &Status::new(Reason::Unsupported, text));
            }
        }
    }
}

impl GatewayService {
    /// Refuses, and counts it.
    fn refuse(&self, respond: &mut SendResponse<Bytes>, status: &Status) {
        self.gateway.refused(status);
        refuse(respond, status);
    }

    /// Where a request goes. Spans of `head` are of `message`.
    fn resolve(&self, message: &[u8], head: &Head) -> Result<Way, Status> {
        self.gateway
            .routes
            .load_full()
            .resolve(message, head, self.gateway.draw())
    }

    /// When a unary call's time is over: the caller's timeout, at most the longest of the settings.
    fn deadline(&self, headers: &HeaderMap) -> Result<Instant, Status> {
        let longest = self.shared.config().max_timeout();
        let timeout = parse_timeout(headers)?.map_or(longest, |timeout| timeout.min(longest));
        Ok(Instant::now() + timeout)
    }
}

/// When the caller says its time is over.
fn own_deadline(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let timeout = parse_timeout(headers)?;
    Ok(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// The paths as they go upstream; cloning one is a matter of a count.
static INFER: std::sync::LazyLock<PathAndQuery> =
    std::sync::LazyLock::new(|| PathAndQuery::from_static(INFER_PATH));
static STREAM: std::sync::LazyLock<PathAndQuery> =
    std::sync::LazyLock::new(|| PathAndQuery::from_static(STREAM_PATH));
static READY: std::sync::LazyLock<PathAndQuery> = std::sync::LazyLock::new(|| {
    PathAndQuery::from_static("/inference.GRPCInferenceService/ServerReady")
});

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
