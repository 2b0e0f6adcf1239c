//! `grpc-status-details-bin`: `google.rpc.Status` written by hand, for these few messages need no code generator.
//!
//! Field numbers are those of googleapis' `status.proto` and `error_details.proto`. All are below 16 and of wire type 0 or 2.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::HeaderValue;

use super::{Reason, Status};

/// Bytes of field violations that an error carries at most: with the message they stay below the 8 KiB of metadata that
/// clients accept by default.
const MOST_VIOLATIONS: usize = 2048;

/// The header's value; `message` is the part of the message that the reply carries.
pub(super) fn header(status: &Status, message: &str) -> HeaderValue {
    let mut out = Vec::with_capacity(256);
    integer(&mut out, 1, status.code as u64);
    bytes(&mut out, 2, message.as_bytes());
    let mut info = Vec::with_capacity(64);
    bytes(&mut info, 1, status.reason.as_bytes());
    bytes(&mut info, 2, b"headrace");
    any(&mut out, "ErrorInfo", &info);
    if !status.violations.is_empty() {
        let quota = status.reason == Reason::OverQuota.as_str();
        any(
            &mut out,
            if quota { "QuotaFailure" } else { "BadRequest" },
            &violations(&status.violations),
        );
    }
    if let Some(wait) = status.retry_after {
        any(&mut out, "RetryInfo", &retry_info(wait));
    }
    HeaderValue::from_maybe_shared(Bytes::from(STANDARD_NO_PAD.encode(out)))
        .expect("base64 is a header value")
}

/// `BadRequest.field_violations` and `QuotaFailure.violations` look alike: field 1 of field 1 is the place, field 2 the text.
fn violations(all: &[(String, String)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (place, text) in all {
        let mut one = Vec::new();
        bytes(&mut one, 1, cut(place, 256).as_bytes());
        bytes(&mut one, 2, cut(text, 512).as_bytes());
        if out.len() + one.len() > MOST_VIOLATIONS {
            break;
        }
        bytes(&mut out, 1, &one);
    }
    out
}

fn cut(text: &str, longest: usize) -> &str {
    let mut end = text.len().min(longest);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn retry_info(wait: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    integer(&mut delay, 1, wait.as_secs());
    integer(&mut delay, 2, u64::from(wait.subsec_nanos()));
    let mut out = Vec::new();
    bytes(&mut out, 1, &delay);
    out
}

/// `Status.details`: a `google.protobuf.Any` of a `google.rpc` message.
fn any(out: &mut Vec<u8>, message: &str, value: &[u8]) {
    let mut any = Vec::with_capacity(value.len() + 64);
    bytes(
        &mut any,
        1,
        format!("type.googleapis.com/google.rpc.{message}").as_bytes(),
    );
    bytes(&mut any, 2, value);
    bytes(out, 3, &any);
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn integer(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3);
        varint(out, value);
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
