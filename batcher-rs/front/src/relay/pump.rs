//! Moves one direction of a call: DATA and trailers from one stream to another, never faster than the second takes them.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::soften_trailers;
use crate::compress::too_large;
use crate::status::Status;

/// Why a direction stopped before its end.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The sender ended it.
    From(h2::Error),
    /// The receiver did.
    To,
    /// A message is larger than allowed.
    TooLarge(Status),
}

/// One direction of a call.
pub(crate) struct Pump {
    from: Option<RecvStream>,
    to: SendStream<Bytes>,
    /// What was received and not yet taken by the next hop.
    held: Bytes,
    /// How many of the held bytes the sender's flow control still counts; they are the last ones.
    owed: usize,
    meter: Meter,
    answer: bool,
    /// An answer's first chunk, if it is this small, needs no asking for room: h2 holds it.
    first: bool,
}

/// Largest first chunk that is sent without asking for room.
const SMALL: usize = 16 * 1024;

impl Pump {
    /// All that comes from one stream goes to the other.
    pub(crate) fn new(from: RecvStream, to: SendStream<Bytes>, max_message_bytes: usize) -> Self {
        Self {
            from: Some(from),
            to,
            held: Bytes::new(),
            owed: 0,
            meter: Meter::new(max_message_bytes),
            answer: false,
            first: true,
        }
    }

    /// These bytes go to the stream, and nothing more.
    pub(crate) fn of(held: Bytes, to: SendStream<Bytes>) -> Self {
        let first = false;
        Self {
            from: None,
            to,
            held,
            owed: 0,
            meter: Meter::new(usize::MAX),
            answer: false,
            first,
        }
    }

    /// This direction is an answer: it ends in trailers with a status.
    pub(crate) fn ending_in_trailers(mut self) -> Self {
        self.answer = true;
        self
    }

    /// Starts with bytes that were received before; the last `owed` of them still count against the sender's flow control.
    pub(crate) fn starting_with(mut self, already: Bytes, owed: usize) -> Result<Self, Status> {
        self.meter.feed(&already)?;
        self.held = already;
        self.owed = owed;
        Ok(self)
    }

    /// Where this direction goes.
    pub(crate) fn to(&mut self) -> &mut SendStream<Bytes> {
        &mut self.to
    }

    /// How many bytes wait for the receiver to make room, if any do.
    pub(crate) fn left_standing(&self) -> Option<usize> {
        (!self.held.is_empty()).then_some(self.held.len())
    }

    /// Whether the last byte to be sent ends the stream too.
    fn ends_here(&self) -> bool {
        !self.answer && self.from.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    /// Moves what can be moved; ready at the end of this direction.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            if self.held.has_remaining() {
                if ready!(self.poll_send(cx))? {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            let Some(from) = &mut self.from else {
                return self.finish(None);
            };
            match ready!(from.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.meter.feed(&data).map_err(Broken::TooLarge)?;
                    self.owed = data.len();
                    self.held = data;
                }
                Some(Err(error)) => return Poll::Ready(Err(Broken::From(error))),
                None => {
                    return match ready!(from.poll_trailers(cx)) {
                        Ok(trailing) => self.finish(trailing),
                        Err(error) => Poll::Ready(Err(Broken::From(error))),
                    };
                }
            }
        }
    }

    /// Sends what the next hop has room for, and gives as much back to the hop before. True when that ended the stream.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        let wanted = self.held.len();
        let small = std::mem::take(&mut self.first) && self.answer && wanted <= SMALL;
        let room = if small {
            wanted
        } else {
            ready!(self.poll_room(cx, wanted))?
        };
        let part = self.held.split_to(room.min(wanted));
        let last = self.held.is_empty() && self.ends_here();
        self.to.send_data(part, last).map_err(|_| Broken::To)?;
        let owed = self.owed.min(self.held.len());
        if let Some(from) = &mut self.from {
            // Fails only for a stream that is over, and then nobody waits for room.
            let _ = from.flow_control().release_capacity(self.owed - owed);
        }
        self.owed = owed;
        Poll::Ready(Ok(last))
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<usize, Broken>> {
        self.to.reserve_capacity(wanted);
        loop {
            let room = self.to.capacity();
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            match ready!(self.to.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(Err(Broken::To)),
            }
        }
    }

    fn finish(&mut self, trailing: Option<HeaderMap>) -> Poll<Result<(), Broken>> {
        let sent = match trailing {
            trailing if self.answer => self.to.send_trailers(soften_trailers(trailing)),
            Some(trailing) => self.to.send_trailers(trailing),
            None => self.to.send_data(Bytes::new(), true),
        };
        Poll::Ready(sent.map_err(|_| Broken::To))
    }
}

/// Reads the lengths of gRPC's frames as they pass, wherever the chunks are cut.
#[derive(Debug)]
pub(crate) struct Meter {
    longest: usize,
    prefix: [u8; 5],
    seen: usize,
    left: usize,
}

impl Meter {
    pub(crate) fn new(longest: usize) -> Self {
        Self {
            longest,
            prefix: [0; 5],
            seen: 0,
            left: 0,
        }
    }

    /// Whether the last message is whole and the next has not begun.
    pub(crate) fn between_messages(&self) -> bool {
        self.seen == 0 && self.left == 0
    }

    /// Takes note of the next bytes; an error as soon as a prefix announces too much.
    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            if self.left > 0 {
                let skip = self.left.min(data.len());
                self.left -= skip;
                data = &data[skip..];
                continue;
            }
            let take = (5 - self.seen).min(data.len());
            self.prefix[self.seen..self.seen + take].copy_from_slice(&data[..take]);
            self.seen += take;
            data = &data[take..];
            if self.seen == 5 {
                self.seen = 0;
                self.left = (&self.prefix[1..]).get_u32() as usize;
                if self.left > self.longest {
                    return Err(too_large(self.left, self.longest));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: u32) -> Vec<u8> {
        let mut frame = vec![0];
        frame.extend_from_slice(&length.to_be_bytes());
        frame.resize(5 + length as usize, 7);
        frame
    }

    #[test]
    fn a_length_over_the_limit_is_found_wherever_the_chunks_are_cut() {
        let mut bytes = frame(10);
        bytes.extend(frame(0));
        bytes.extend(frame(11));
        for chunk in 1..bytes.len() {
            let mut meter = Meter::new(10);
            let refused = bytes
                .chunks(chunk)
                .find_map(|part| meter.feed(part).err())
                .unwrap();
            assert_eq!(refused.reason, "MESSAGE_TOO_LARGE");
            assert!(
                refused.message.contains("11") && refused.message.contains("max_message_bytes")
            );
        }
    }

    #[test]
    fn messages_up_to_the_limit_pass() {
        let mut meter = Meter::new(10);
        for part in frame(10).iter().chain(&frame(0)).chain(&frame(10)) {
            meter.feed(std::slice::from_ref(part)).unwrap();
        }
    }
}
