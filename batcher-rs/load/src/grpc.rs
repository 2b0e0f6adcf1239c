//! One HTTP/2 connection and all requests on it, driven by one task.
//!
//! Each turn: read what came, finish the requests that it answers, give up the overdue ones, start new ones, write. Nothing here
//! allocates a task or a channel for a request.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use headrace_front::deadline::timeout_value;
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use parking_lot::Mutex;

use crate::{
    alarm::Alarm,
    answer::{Failure, Outcome, Reply},
    check::Check,
    dial::{Link, Target},
    hub::{Bell, Hub},
    record::{Finished, Record},
    schedule::Pacer,
};

/// Turns before the task lets others run.
const TURNS: usize = 16;
/// Pause before another attempt on a server that just failed one.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Sending later than this shortens the deadline that is sent.
const LATE: Duration = Duration::from_millis(1);

/// What every connection of a run shares.
pub(crate) struct Job {
    pub(crate) target: Target,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) frames: Vec<Bytes>,
    pub(crate) check: Check,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cancel_at_deadline: bool,
    pub(crate) drain: Duration,
    pub(crate) connect_timeout: Duration,
    /// Requests left to start, where their number ends the run.
    pub(crate) budget: Option<AtomicU64>,
    pub(crate) stop: AtomicBool,
}

/// What makes this connection send.
pub(crate) enum Source {
    /// As soon as fewer than this many are outstanding.
    Closed { concurrency: usize },
    /// When it is time, unless this many are outstanding.
    Open {
        pacer: Pacer,
        max_outstanding: usize,
    },
}

pub(crate) struct Driver {
    job: Arc<Job>,
    record: Arc<Mutex<Record>>,
    hub: Arc<Hub>,
    link: State,
    link_bell: Arc<Bell>,
    link_waker: Waker,
    alarm: Alarm,
    alarm_at: Option<Instant>,
    alarm_bell: Arc<Bell>,
    alarm_waker: Waker,
    source: Source,
    /// Requests meant to be sent from here on count against the budget.
    count_from: Instant,
    /// Nothing is sent from here on.
    end: Instant,
    slots: Vec<Slot>,
    free: Vec<usize>,
    rung: Vec<usize>,
    in_flight: usize,
    serial: u64,
    /// Deadlines in the order of sending, which is the order of time; those of finished requests are skipped.
    deadlines: VecDeque<(Instant, usize, u64)>,
}

enum State {
    Up {
        link: Box<Link>,
        answered: bool,
        closing: bool,
    },
    Dialling(Pin<Box<dyn Future<Output = io::Result<Link>> + Send>>),
    Down {
        retry_at: Instant,
        why: String,
    },
}

struct Slot {
    call: Option<Call>,
    bell: Arc<Bell>,
    waker: Waker,
}

struct Call {
    reply: Reply,
    meant: Instant,
    serial: u64,
    payload: usize,
}

impl Driver {
    /// `alarm` is precise for an open loop. `count_from` and `end` bound the time that is measured.
    pub(crate) fn new(
        job: Arc<Job>,
        record: Arc<Mutex<Record>>,
        link: Box<Link>,
        source: Source,
        alarm: Alarm,
        count_from: Instant,
        end: Instant,
    ) -> Self {
        let hub = Arc::new(Hub::default());
        let link_bell = Bell::new(&hub, None);
        let alarm_bell = Bell::new(&hub, None);
        link_bell.ring();
        let mut driver = Self {
            job,
            record,
            link: State::up(link),
            link_waker: Arc::clone(&link_bell).into(),
            link_bell,
            alarm,
            alarm_at: None,
            alarm_waker: Arc::clone(&alarm_bell).into(),
            alarm_bell,
            count_from,
            end,
            slots: Vec::new(),
            free: Vec::new(),
            rung: Vec::new(),
            in_flight: 0,
            serial: 0,
            deadlines: VecDeque::new(),
            hub,
            source,
        };
        if let Source::Closed { concurrency } = driver.source {
            for _ in 0..concurrency {
                let slot = driver.add_slot();
                driver.free.push(slot);
            }
        }
        driver
    }

    /// Wakes this connection's task, for instance to look at [`Job::stop`].
    pub(crate) fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }

    fn add_slot(&mut self) -> usize {
        let slot = self.slots.len();
        let bell = Bell::new(&self.hub, Some(slot));
        self.slots.push(Slot {
            call: None,
            waker: Arc::clone(&bell).into(),
            bell,
        });
        slot
    }

    /// One turn; true when the run is over and everything is accounted for.
    fn turn(&mut self) -> bool {
        if self.alarm_bell.take() {
            self.alarm_at = None;
        }
        if self.link_bell.take() {
            self.drive_link();
        }
        let now = Instant::now();
        let mut rung = std::mem::take(&mut self.rung);
        self.hub.take_slots(&mut rung);
        for &slot in &rung {
            self.slots[slot].bell.take();
            self.poll_slot(slot, now);
        }
        self.rung = rung;
        self.expire(now);
        if let State::Down { retry_at, .. } = self.link
            && retry_at <= now
            && now < self.end
        {
            self.dial();
        }
        if self.job.stop.load(Ordering::Relaxed) {
            self.end = self.end.min(now);
        }
        self.start(now);
        self.is_over(now)
    }

    fn drive_link(&mut self) {
        let mut cx = Context::from_waker(&self.link_waker);
        match &mut self.link {
            State::Up { link, .. } => {
                let ended = Pin::new(&mut link.connection).poll(&mut cx);
                let flushed = link.flusher.poll_flush(&mut cx);
                let why = match (ended, flushed) {
                    (Poll::Ready(Err(error)), _) => error.to_string(),
                    (Poll::Ready(Ok(())), _) => "the server closed the connection".to_owned(),
                    (_, Poll::Ready(Err(error))) => error.to_string(),
                    _ => return,
                };
                self.lose_link(&why);
            }
            State::Dialling(dialling) => match dialling.as_mut().poll(&mut cx) {
                Poll::Ready(Ok(link)) => {
                    self.link = State::up(Box::new(link));
                    self.link_bell.ring();
                }
                Poll::Ready(Err(error)) => {
                    let now = Instant::now();
                    let why = format!("cannot connect to {}: {error}", self.job.target.authority());
                    if matches!(self.source, Source::Closed { .. }) {
                        // Nobody is asking while there is no connection, so the attempt itself is the failed request.
                        self.fail_unsent(now, now, &why);
                    }
                    self.link = State::Down {
                        retry_at: now + RETRY_PAUSE,
                        why,
                    };
                }
                Poll::Pending => {}
            },
            State::Down { .. } => {}
        }
    }

    /// The connection is gone: what it still owed is lost, and another is made.
    fn lose_link(&mut self, why: &str) {
        let now = Instant::now();
        for slot in 0..self.slots.len() {
            self.poll_slot(slot, now);
            if self.slots[slot].call.is_some() {
                self.finish(slot, now, &Outcome::failed(Failure::connection_lost(why)));
            }
        }
        self.record.lock().reconnects += 1;
        match &self.link {
            State::Up { answered: true, .. } => self.dial(),
            _ => {
                self.link = State::Down {
                    retry_at: now + RETRY_PAUSE,
                    why: why.to_owned(),
                }
            }
        }
    }

    fn dial(&mut self) {
        let job = Arc::clone(&self.job);
        self.link = State::Dialling(Box::pin(async move {
            job.target.link(job.connect_timeout).await
        }));
        self.link_bell.ring();
    }

    fn poll_slot(&mut self, slot: usize, now: Instant) {
        let Slot {
            call: Some(call),
            waker,
            ..
        } = &mut self.slots[slot]
        else {
            return;
        };
        if let Poll::Ready(outcome) = call.reply.poll(&mut Context::from_waker(waker)) {
            if let State::Up { answered, .. } = &mut self.link {
                *answered |= outcome.came_from_the_server();
            }
            self.finish(slot, now, &outcome);
        }
    }

    /// Dropping the call's streams cancels it, if it was not answered.
    fn finish(&mut self, slot: usize, now: Instant, outcome: &Outcome) {
        let call = self.slots[slot]
            .call
            .take()
            .expect("only calls in flight are finished");
        self.free.push(slot);
        self.in_flight -= 1;
        let check = &self.job.check;
        let mismatch = check.is_on()
            && outcome.failure.is_none()
            && !check.matches(call.payload, &outcome.body);
        self.record.lock().finished(&Finished {
            meant: call.meant,
            at: now,
            failure: outcome.failure.as_ref(),
            bytes_in: outcome.bytes,
            bytes_out: self.job.frames[call.payload].len() as u64,
            mismatch,
        });
    }

    /// Gives up the requests whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        while let Some(&(deadline, slot, serial)) = self.deadlines.front() {
            let waiting = self.slots[slot]
                .call
                .as_ref()
                .is_some_and(|call| call.serial == serial);
            if waiting && deadline > now {
                return;
            }
            self.deadlines.pop_front();
            if waiting {
                self.finish(slot, now, &Outcome::failed(Failure::deadline()));
            }
        }
    }

    fn start(&mut self, now: Instant) {
        match &self.source {
            Source::Closed { .. } => {
                while self.end > now && !self.free.is_empty() && self.can_send() {
                    let meant = Instant::now();
                    if meant >= self.count_from && !self.job.take_budget() {
                        self.end = now;
                        return;
                    }
                    self.send(meant, meant);
                }
            }
            Source::Open { .. } => self.start_due(now),
        }
    }

    fn start_due(&mut self, now: Instant) {
        loop {
            let Source::Open {
                pacer,
                max_outstanding,
            } = &mut self.source
            else {
                return;
            };
            let meant = pacer.next();
            if meant > now || meant >= self.end {
                return;
            }
            if let State::Down { why, .. } = &self.link {
                let why = why.clone();
                pacer.advance();
                self.fail_unsent(meant, now, &why);
            } else if self.in_flight >= *max_outstanding {
                pacer.advance();
                self.record.lock().dropped(meant);
            } else if self.can_send() {
                let Source::Open { pacer, .. } = &mut self.source else {
                    return;
                };
                pacer.advance();
                let sent = Instant::now();
                self.record.lock().lagged(meant, sent);
                self.send(meant, sent);
            } else {
                // It stays due: its latency runs from when it was meant to be sent.
                return;
            }
        }
    }

    /// Whether the connection takes another stream now; if not, its bell rings when it does.
    fn can_send(&mut self) -> bool {
        let in_flight = self.in_flight;
        let State::Up { link, closing, .. } = &mut self.link else {
            return false;
        };
        match link
            .send
            .poll_ready(&mut Context::from_waker(&self.link_waker))
        {
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
            Poll::Ready(Err(_)) => {
                // The server said goodbye. What it accepted it still answers.
                *closing = true;
                if in_flight == 0 {
                    self.lose_link("the server is closing its connections");
                }
                false
            }
        }
    }

    fn send(&mut self, meant: Instant, now: Instant) {
        let payload = self.serial as usize % self.job.frames.len();
        self.serial += 1;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.job.uri.clone();
        *request.headers_mut() = self.job.headers.clone();
        let slot = self.free.pop().unwrap_or_else(|| self.add_slot());
        let deadline = self.job.timeout.map(|timeout| meant + timeout);
        if let Some(deadline) = deadline
            && now > meant + LATE
        {
            let value: HeaderValue = timeout_value(deadline.saturating_duration_since(now));
            request.headers_mut().insert("grpc-timeout", value);
        }
        let State::Up { link, .. } = &mut self.link else {
            unreachable!("`can_send` said so")
        };
        let sent = link
            .send
            .send_request(request, false)
            .and_then(|(head, mut body)| {
                body.send_data(self.job.frames[payload].clone(), true)?;
                Ok(head)
            });
        match sent {
            Ok(head) => {
                let reply = Reply::new(head, self.job.check.is_on());
                self.slots[slot].call = Some(Call {
                    reply,
                    meant,
                    serial: self.serial,
                    payload,
                });
                self.in_flight += 1;
                if let Some(deadline) = deadline
                    && self.job.cancel_at_deadline
                {
                    self.deadlines.push_back((deadline, slot, self.serial));
                }
                self.poll_slot(slot, now);
            }
            Err(error) => {
                self.free.push(slot);
                self.fail_unsent(meant, now, &error.to_string());
                self.lose_link(&error.to_string());
            }
        }
    }

    fn fail_unsent(&mut self, meant: Instant, now: Instant, why: &str) {
        self.record.lock().finished(&Finished {
            meant,
            at: now,
            failure: Some(&Failure::not_connected(why)),
            bytes_in: 0,
            bytes_out: 0,
            mismatch: false,
        });
    }

    fn is_over(&mut self, now: Instant) -> bool {
        if now < self.end {
            return false;
        }
        if self.in_flight > 0 && now < self.end + self.job.drain {
            return false;
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].call.is_some() {
                self.finish(slot, now, &Outcome::failed(Failure::unanswered()));
            }
        }
        while let Source::Open { pacer, .. } = &mut self.source
            && pacer.next() < self.end
        {
            let meant = pacer.next();
            pacer.advance();
            self.fail_unsent(
                meant,
                now,
                "the server took no more requests before the load test ended",
            );
        }
        true
    }

    /// When something is due that no reply announces.
    fn next_event(&self, now: Instant) -> Instant {
        let mut next = if now < self.end {
            self.end
        } else {
            self.end + self.job.drain
        };
        let mut consider = |at: Instant| next = next.min(at);
        if let Source::Open { pacer, .. } = &self.source {
            let due = pacer.next();
            // What is due already waits for the connection, not for time.
            if due < self.end && due > now {
                consider(due);
            }
        }
        if let Some(&(deadline, ..)) = self.deadlines.front() {
            consider(deadline);
        }
        if let State::Down { retry_at, .. } = self.link
            && now < self.end
        {
            consider(retry_at);
        }
        next
    }

    fn set_alarm(&mut self) {
        let next = self.next_event(Instant::now());
        if self.alarm_at == Some(next) {
            return;
        }
        let set = self.alarm.set(next);
        self.alarm_at = Some(next);
        if set.is_err()
            || self
                .alarm
                .poll(&mut Context::from_waker(&self.alarm_waker))
                .is_ready()
        {
            self.alarm_bell.ring();
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let driver = self.get_mut();
        driver.hub.enter(cx.waker());
        driver.hub.take();
        for _ in 0..TURNS {
            if driver.turn() {
                return Poll::Ready(());
            }
            if !driver.hub.take() {
                break;
            }
        }
        driver.set_alarm();
        driver.hub.leave();
        Poll::Pending
    }
}

impl State {
    fn up(link: Box<Link>) -> Self {
        Self::Up {
            link,
            answered: false,
            closing: false,
        }
    }
}

impl Job {
    /// One request of the budget; false when it is spent.
    pub(crate) fn take_budget(&self) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        budget
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            })
            .is_ok()
    }
}
