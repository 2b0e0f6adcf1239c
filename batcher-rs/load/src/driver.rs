//! A load test from beginning to end: connect, start everything at one moment, wait, add up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::oneshot,
    task::{JoinError, JoinSet},
};

use crate::{
    LoadError, Report,
    alarm::Alarm,
    check::Check,
    config::{Config, Protocol, grpc_frame},
    dial::{Link, Socket, Target},
    grpc::{Driver, Job, Source},
    http1,
    record::Record,
    report::ClientCost,
    schedule::{CountBy, Pacer, Window},
};

/// From "all connected" to the first request; every thread is awake by then.
const LEAD: Duration = Duration::from_millis(5);
/// How soon a stop is noticed.
const STOP_CHECK: Duration = Duration::from_millis(20);
/// The end of a run that ends by its number of requests.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// Connections that one thread makes at the same time.
const DIAL_AT_ONCE: usize = 64;

/// Runs a load test and blocks until it is over. Setting `stop` ends it early, with the report of what was measured until then.
///
/// # Errors
/// [`LoadError::Config`] before anything is sent; [`LoadError::Connect`] if the server cannot be reached at the start. A server that
/// fails later shows in the report.
///
/// # Panics
/// If the generator itself is broken; never for what a server does.
pub fn run(config: &Config, stop: &AtomicBool) -> Result<Report, LoadError> {
    config.validate()?;
    let job = Arc::new(prepare(config)?);
    allow_files(config.connections * 2 + 64);
    let (ready, all_ready) = mpsc::channel();
    let (outcome, counted) = thread::scope(|scope| {
        let mut starters = Vec::new();
        let mut threads = Vec::new();
        for index in 0..config.threads.min(config.connections) {
            let (starter, start) = oneshot::channel();
            starters.push(starter);
            let (job, ready) = (Arc::clone(&job), ready.clone());
            let spawned = thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn_scoped(scope, move || {
                    run_thread(config, index, &job, &ready, start, stop)
                })
                .map_err(LoadError::System)?;
            threads.push(spawned);
        }
        drop(ready);
        for _ in &threads {
            all_ready.recv().expect("each thread reports once")?;
        }
        let window = window(config, Instant::now() + LEAD);
        for starter in starters {
            // A thread that is gone shows when it is joined.
            let _ = starter.send(window);
        }
        let mut total: Option<Record> = None;
        let mut cost = ClientCost::default();
        for thread in threads {
            let (record, cpu) = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            cost.total += cpu;
            cost.busiest = cost.busiest.max(cpu);
            match &mut total {
                Some(total) => total.merge(record),
                None => total = Some(record),
            }
        }
        cost.wall = window.from.elapsed() + config.warmup();
        let total = total.expect("there is at least one thread");
        let end = if config.requests.is_some() {
            total.last_finish.unwrap_or(window.from)
        } else {
            window.to
        };
        let counted = end
            .min(Instant::now())
            .saturating_duration_since(window.from);
        Ok::<_, LoadError>(((total, cost), counted))
    })?;
    let (record, mut cost) = outcome;
    cost.requests = record.all;
    Ok(Report::new(&record, counted, cost))
}

fn window(config: &Config, begin: Instant) -> Window {
    let from = begin + config.warmup();
    let to = from
        + if config.requests.is_some() {
            NEVER
        } else {
            config.duration()
        };
    let by_start = config.rate.is_some() || config.requests.is_some();
    Window {
        from,
        to,
        count_by: if by_start {
            CountBy::Start
        } else {
            CountBy::Finish
        },
    }
}

/// When the first request is sent.
fn begin(config: &Config, window: Window) -> Instant {
    window
        .from
        .checked_sub(config.warmup())
        .unwrap_or(window.from)
}

fn prepare(config: &Config) -> Result<Job, LoadError> {
    let target = Target::parse(&config.url)?;
    let bodies = config
        .payloads
        .iter()
        .map(crate::Payload::load)
        .collect::<Result<Vec<_>, _>>()?;
    let expected = config
        .expect
        .iter()
        .map(crate::Payload::load)
        .collect::<Result<Vec<_>, _>>()?;
    let uri = format!("http://{}{}", target.authority(), config.path);
    let uri = uri
        .parse()
        .map_err(|error| LoadError::Config(format!("`path` {:?}: {error}", config.path)))?;
    let frames = match config.protocol {
        Protocol::Grpc => bodies
            .iter()
            .map(|body| grpc_frame(body))
            .collect::<Result<Vec<_>, _>>()?,
        Protocol::Http1 => http1_frames(config, &target, &bodies),
    };
    Ok(Job {
        uri,
        headers: grpc_headers(config)?,
        frames,
        check: Check::new(expected, config.tolerance),
        timeout: config.timeout(),
        cancel_at_deadline: config.cancel_at_deadline,
        drain: config.drain(),
        connect_timeout: config.connect_timeout(),
        budget: config.requests.map(AtomicU64::new),
        stop: AtomicBool::new(false),
        target,
    })
}

fn grpc_headers(config: &Config) -> Result<HeaderMap, LoadError> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("te", HeaderValue::from_static("trailers"));
    if let Some(timeout) = config.timeout() {
        headers.insert(
            "grpc-timeout",
            headrace_front::deadline::timeout_value(timeout),
        );
    }
    for (name, value) in &config.metadata {
        let refused = |what: &str| LoadError::Config(format!("`metadata` {name:?}: {what}"));
        let name = name
            .parse::<HeaderName>()
            .map_err(|_| refused("not a header name"))?;
        let value = value
            .parse::<HeaderValue>()
            .map_err(|_| refused("not a header value"))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn http1_frames(config: &Config, target: &Target, bodies: &[Bytes]) -> Vec<Bytes> {
    let mut extra = String::new();
    for (name, value) in &config.metadata {
        for part in [
            name, ": ", value, "
",
        ] {
            extra.push_str(part);
        }
    }
    bodies
        .iter()
        .map(|body| {
            http1::request(
                &config.path,
                target.authority(),
                &config.content_type,
                &extra,
                body,
            )
            .into()
        })
        .collect()
}

/// One thread of the generator: its share of the connections on a runtime of its own.
fn run_thread(
    config: &Config,
    index: usize,
    job: &Arc<Job>,
    ready: &mpsc::Sender<Result<(), LoadError>>,
    start: oneshot::Receiver<Window>,
    stop: &AtomicBool,
) -> Result<(Record, Duration), LoadError> {
    let numbers: Vec<usize> = (index..config.connections)
        .step_by(config.threads)
        .collect();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(LoadError::System(error)));
            return Err(LoadError::System(std::io::Error::other("no runtime")));
        }
    };
    runtime.block_on(async {
        let sockets = match connect(config, job, numbers.len()).await {
            Ok(sockets) => sockets,
            Err(error) => {
                // The caller reports this one; the thread has nothing to count.
                let _ = ready.send(Err(error));
                return Err(LoadError::System(std::io::Error::other("not connected")));
            }
        };
        let _ = ready.send(Ok(()));
        let Ok(window) = start.await else {
            return Err(LoadError::System(std::io::Error::other(
                "another thread could not start",
            )));
        };
        if config.rate.is_none() {
            // A closed loop sends at once; before the first moment that counts it would go unnoticed.
            tokio::time::sleep_until(begin(config, window).into()).await;
        }
        let cpu = thread_cpu();
        let record = Arc::new(Mutex::new(Record::new(window, job.timeout)));
        drive(config, job, &record, sockets, &numbers, window, stop).await?;
        let record = Arc::into_inner(record)
            .expect("every connection is done")
            .into_inner();
        Ok((record, thread_cpu().saturating_sub(cpu)))
    })
}

enum Connected {
    Grpc(Box<Link>),
    Http1(Socket),
}

async fn connect(
    config: &Config,
    job: &Arc<Job>,
    count: usize,
) -> Result<Vec<Connected>, LoadError> {
    let mut connected = Vec::with_capacity(count);
    while connected.len() < count {
        let mut dialling = JoinSet::new();
        for _ in 0..DIAL_AT_ONCE.min(count - connected.len()) {
            let (job, protocol) = (Arc::clone(job), config.protocol);
            dialling.spawn(async move {
                match protocol {
                    Protocol::Grpc => job
                        .target
                        .link(job.connect_timeout)
                        .await
                        .map(|link| Connected::Grpc(Box::new(link))),
                    Protocol::Http1 => job
                        .target
                        .open(job.connect_timeout)
                        .await
                        .map(Connected::Http1),
                }
            });
        }
        while let Some(dialled) = dialling.join_next().await {
            let dialled = unwind(dialled).expect("nobody aborts a dial");
            connected.push(dialled.map_err(|source| LoadError::Connect {
                address: config.url.clone(),
                source,
            })?);
        }
    }
    Ok(connected)
}

async fn drive(
    config: &Config,
    job: &Arc<Job>,
    record: &Arc<Mutex<Record>>,
    sockets: Vec<Connected>,
    numbers: &[usize],
    window: Window,
    stop: &AtomicBool,
) -> Result<(), LoadError> {
    let mut tasks = JoinSet::new();
    let mut hubs = Vec::new();
    for (socket, &number) in sockets.into_iter().zip(numbers) {
        let (job, record) = (Arc::clone(job), Arc::clone(record));
        match socket {
            Connected::Grpc(link) => {
                let (source, alarm) = source(config, number, window).map_err(LoadError::System)?;
                let driver = Driver::new(job, record, link, source, alarm, window.from, window.to);
                hubs.push(driver.hub());
                tasks.spawn(driver);
            }
            Connected::Http1(socket) => {
                tasks.spawn(http1::drive(job, record, socket, window.from, window.to));
            }
        }
    }
    let mut ticks = tokio::time::interval(STOP_CHECK);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => { unwind(ended); }
                None => return Ok(()),
            },
            _ = ticks.tick() => if stop.load(Ordering::Relaxed) && !job.stop.swap(true, Ordering::Relaxed) {
                for hub in &hubs {
                    hub.wake();
                }
                if hubs.is_empty() {
                    tasks.abort_all();
                }
            },
        }
    }
}

/// What makes connection `number` send: its share of the concurrency, or of the rate.
fn source(config: &Config, number: usize, window: Window) -> std::io::Result<(Source, Alarm)> {
    let share = |of: usize| of / config.connections + usize::from(number < of % config.connections);
    let Some(rate) = config.rate else {
        return Ok((
            Source::Closed {
                concurrency: share(config.concurrency),
            },
            Alarm::coarse(),
        ));
    };
    let begin = begin(config, window);
    let phase = number as f64 / config.connections as f64;
    let seed = config
        .seed
        .wrapping_add(number as u64)
        .wrapping_mul(0xd134_2543_de82_ef95);
    let pacer = Pacer::new(
        begin,
        rate / config.connections as f64,
        config.arrival,
        phase,
        seed,
    );
    Ok((
        Source::Open {
            pacer,
            max_outstanding: share(config.max_outstanding),
        },
        Alarm::precise()?,
    ))
}

/// A task's panic is the caller's; an abort is no result.
fn unwind<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended {
        Ok(value) => Some(value),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => None,
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Raises the soft limit of open files to what the connections need, as far as the hard one allows.
fn allow_files(needed: usize) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let needed = needed as u64;
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // If it is refused, connecting fails with the system's own words.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
