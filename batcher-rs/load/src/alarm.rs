//! One timer that can be set again and again.
//!
//! The runtime's own timer counts whole milliseconds: enough for ends and deadlines, too coarse for an open loop, whose latencies are
//! measured from moments between them. On Linux that one uses a timer of the kernel.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use tokio::time::Sleep;

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};

pub(crate) enum Alarm {
    Coarse(Pin<Box<Sleep>>),
    #[cfg(target_os = "linux")]
    Precise(AsyncFd<OwnedFd>),
}

impl Alarm {
    /// To the millisecond. Needs a runtime around it.
    pub(crate) fn coarse() -> Self {
        Self::Coarse(Box::pin(tokio::time::sleep_until(Instant::now().into())))
    }

    /// To some tens of microseconds where the system can.
    #[cfg(target_os = "linux")]
    pub(crate) fn precise() -> std::io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let fd = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        // SAFETY: the descriptor is owned by the `AsyncFd` from here on, so it stays open and the same for its whole life.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self::Precise(registered?))
    }

    /// To some tens of microseconds where the system can.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn precise() -> std::io::Result<Self> {
        Ok(Self::coarse())
    }

    pub(crate) fn set(&mut self, at: Instant) -> std::io::Result<()> {
        match self {
            Self::Coarse(sleep) => {
                sleep.as_mut().reset(at.into());
                Ok(())
            }
            #[cfg(target_os = "linux")]
            Self::Precise(fd) => {
                use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
                let left = at.saturating_duration_since(Instant::now());
                // A value of zero would disarm the timer instead of firing at once.
                let nanos = left.subsec_nanos().max(u32::from(left.as_secs() == 0));
                let it_value = Timespec {
                    tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                    tv_nsec: nanos.into(),
                };
                let it_interval = Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                timerfd_settime(
                    fd,
                    TimerfdTimerFlags::empty(),
                    &Itimerspec {
                        it_interval,
                        it_value,
                    },
                )?;
                Ok(())
            }
        }
    }

    /// Ready when the time has come; pending means that the waker will be called then.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Coarse(sleep) => sleep.as_mut().poll(cx),
            #[cfg(target_os = "linux")]
            Self::Precise(fd) => loop {
                let Ok(mut guard) = std::task::ready!(fd.poll_read_ready(cx)) else {
                    return Poll::Ready(());
                };
                let mut expirations = [0_u8; 8];
                let read = guard.try_io(|fd| Ok(rustix::io::read(fd, &mut expirations)?));
                if read.is_ok() {
                    return Poll::Ready(());
                }
            },
        }
    }
}
