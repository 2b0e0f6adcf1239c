//! `grpc-timeout`: a length of time on the wire, a point in time inside.
//!
//! A deadline is read once, kept as an absolute monotonic instant, and sent on as what is left of it: no hop restarts it.
//! The grammar is at most eight ASCII digits and one unit of `H M S m u n` (gRPC over HTTP/2, "Requests").

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::status::{Reason, Status};

/// The header's name.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The largest number that eight digits can say.
const MOST: u128 = 99_999_999;

/// The caller's timeout; `None` when it gave none.
///
/// # Errors
/// `INVALID_REQUEST` when the header does not follow the grammar: guessing a deadline would be worse than refusing.
pub fn parse_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(&GRPC_TIMEOUT) else {
        return Ok(None);
    };
    match parse(value.as_bytes()) {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(Status::new(
            Reason::InvalidRequest,
            format!(
                "grpc-timeout is {:?}; expected at most 8 digits and one unit of H, M, S, m, u, n",
                String::from_utf8_lossy(&value.as_bytes()[..value.len().min(64)])
            ),
        )),
    }
}

fn parse(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let mut number = 0_u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The instant at which a request that arrived at `now` has run out of time: the caller's timeout, at most `longest`.
/// `longest` is also what a caller gets who gave none; without either there is no deadline.
pub fn deadline(
    now: Instant,
    timeout: Option<Duration>,
    longest: Option<Duration>,
) -> Option<Instant> {
    let timeout = match (timeout, longest) {
        (Some(timeout), Some(longest)) => timeout.min(longest),
        (timeout, longest) => timeout.or(longest)?,
    };
    // A timeout of thousands of years is none.
    now.checked_add(timeout)
}

/// `left` as a header, rounded down to what eight digits can say: never longer than `left`.
#[allow(
    clippy::missing_panics_doc,
    reason = "digits and a letter are a header value"
)]
pub fn timeout_value(left: Duration) -> HeaderValue {
    let micros = left.as_micros();
    let (number, unit) = if micros <= MOST {
        (micros, b'u')
    } else if micros / 1000 <= MOST {
        (micros / 1000, b'm')
    } else {
        (u128::from(left.as_secs()).min(MOST), b'S')
    };
    let mut text = [0_u8; 9];
    let mut at = text.len() - 1;
    text[at] = unit;
    let mut number = number as u32;
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    HeaderValue::from_bytes(&text[at..]).expect("digits and a letter are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &'static [u8]) -> Result<Option<Duration>, Status> {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_bytes(value).unwrap());
        parse_timeout(&headers)
    }

    #[test]
    fn malformed_timeouts_are_refused_and_say_what_is_right() {
        for bad in [
            &b""[..],
            b"S",
            b"5",
            b"-1S",
            b"1.5S",
            b"123456789m",
            b"1s",
            b"1 S",
            b"\xff\xffS",
            b"+1S",
        ] {
            let status = parsed(bad).unwrap_err();
            assert_eq!(status.reason, "INVALID_REQUEST", "{bad:?}");
            assert!(status.message.contains("8 digits"), "{}", status.message);
        }
    }

    #[test]
    fn every_unit_is_read() {
        for (text, want) in [
            (&b"2H"[..], Duration::from_secs(7200)),
            (b"3M", Duration::from_secs(180)),
            (b"99999999S", Duration::from_secs(99_999_999)),
            (b"250m", Duration::from_millis(250)),
            (b"00000007u", Duration::from_micros(7)),
            (b"0n", Duration::ZERO),
        ] {
            assert_eq!(parsed(text).unwrap(), Some(want));
        }
        assert_eq!(parse_timeout(&HeaderMap::new()).unwrap(), None);
        assert_eq!(
            parsed(b"99999999H").unwrap(),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
    }

    #[test]
    fn what_is_sent_on_is_never_longer_than_what_is_left_and_fits_eight_digits() {
        let mut left = Duration::from_nanos(1);
        while left < Duration::from_secs(1 << 40) {
            let value = timeout_value(left);
            assert!(value.len() <= 9, "{value:?}");
            let back = parse(value.as_bytes()).unwrap();
            assert!(back <= left, "{value:?} for {left:?}");
            // and not needlessly shorter
            if left >= Duration::from_millis(1) && left < Duration::from_secs(99_999_999) {
                assert!(
                    back.as_secs_f64() > left.as_secs_f64() * 0.99,
                    "{value:?} for {left:?}"
                );
            }
            left = left * 3 + Duration::from_nanos(7);
        }
        assert_eq!(timeout_value(Duration::ZERO), "0u");
    }

    #[test]
    fn the_longest_timeout_caps_the_callers_and_stands_in_for_none() {
        let now = Instant::now();
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(
            deadline(now, Some(minute), Some(second)),
            Some(now + second)
        );
        assert_eq!(
            deadline(now, Some(second), Some(minute)),
            Some(now + second)
        );
        assert_eq!(deadline(now, None, Some(minute)), Some(now + minute));
        assert_eq!(deadline(now, Some(minute), None), Some(now + minute));
        assert_eq!(deadline(now, None, None), None);
        assert_eq!(deadline(now, Some(Duration::MAX), None), None);
    }
}
