//! What a hop changes in the metadata: its own connection's headers, what is left of the deadline, who called.

use std::time::Instant;

use h2::RecvStream;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::deadline::{GRPC_TIMEOUT, timeout_value};
use crate::status::{Reason, Status, percent_decode, trailers};

const PEER: HeaderName = HeaderName::from_static("headrace-peer");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Headers that concern one connection, and those that each hop writes anew.
pub(crate) fn is_the_hops_own(name: &HeaderName) -> bool {
    *name == TE
        || *name == CONNECTION
        || *name == HOST
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || *name == GRPC_TIMEOUT
}

/// The metadata for the next hop; the caller's address is appended to `headrace-peer`, as proxies do with
/// `x-forwarded-for`: the last entry is the one that we saw ourselves.
pub(crate) fn forwarded(headers: &HeaderMap, peer: Option<&str>) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(headers.len() + 3);
    for (name, value) in headers {
        if !is_the_hops_own(name) && *name != PEER {
            out.append(name.clone(), value.clone());
        }
    }
    out.insert(TE, HeaderValue::from_static("trailers"));
    if let Some(peer) = peer {
        let mut path = Vec::new();
        for before in headers.get_all(PEER) {
            path.extend_from_slice(before.as_bytes());
            path.extend_from_slice(b", ");
        }
        path.extend_from_slice(peer.as_bytes());
        if let Ok(value) = HeaderValue::from_bytes(&path) {
            out.insert(PEER, value);
        }
    }
    out
}

/// Writes what is left of the deadline.
pub(crate) fn set_timeout(headers: &mut HeaderMap, deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut value = timeout_value(left);
        // No two are equal: they stay out of the header compression's table.
        value.set_sensitive(true);
        headers.insert(GRPC_TIMEOUT, value);
    }
}

/// A status for an answer that is not gRPC at all (gRPC's table of HTTP statuses, without its `UNKNOWN`).
pub(crate) fn http_status(response: &Response<RecvStream>) -> Option<Status> {
    let headers = response.headers();
    let grpc = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if headers.contains_key(GRPC_STATUS) || (grpc && response.status() == StatusCode::OK) {
        return None;
    }
    let reason = match response.status().as_u16() {
        404 => Reason::Unsupported,
        413 => Reason::MessageTooLarge,
        429 | 502..=504 => Reason::WorkerLost,
        431 => Reason::InvalidRequest,
        _ => Reason::Internal,
    };
    Some(Status::new(
        reason,
        format!(
            "the server answered with HTTP status {}",
            response.status().as_u16()
        ),
    ))
}

/// The text of a status that came as headers.
pub(crate) fn message_of(headers: &HeaderMap) -> String {
    headers
        .get(GRPC_MESSAGE)
        .map_or_else(String::new, |message| percent_decode(message.as_bytes()))
}

/// `UNKNOWN` is an exception that nobody translated: the caller gets `INTERNAL`, and not its text.
pub(crate) fn soften(headers: &mut HeaderMap) {
    if headers.get(GRPC_STATUS).is_some_and(|status| status == "2") {
        let status = Status::new(Reason::Internal, "internal error");
        for (name, value) in &trailers(Some(&status)) {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// The same for trailers; and an answer that ended without a status gets one.
pub(crate) fn soften_trailers(trailing: Option<HeaderMap>) -> HeaderMap {
    match trailing {
        Some(mut headers) if headers.contains_key(GRPC_STATUS) => {
            soften(&mut headers);
            headers
        }
        _ => trailers(Some(&Status::new(
            Reason::Internal,
            "the server's answer ended without a status",
        ))),
    }
}
