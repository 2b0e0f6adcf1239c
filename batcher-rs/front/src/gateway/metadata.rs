//! Which metadata of a request a replica gets to see.
//!
//! The body is forwarded as it came, so what the gateway decided travels beside it: `headrace-model` and
//! `headrace-version` override the names in the body. The caller's own values for those two are not passed on.

use std::time::Instant;

use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::relay::set_timeout;

const MODEL: HeaderName = HeaderName::from_static("headrace-model");
const VERSION: HeaderName = HeaderName::from_static("headrace-version");

/// The headers of a request to a replica, but for the timeout.
pub(super) fn for_replica(
    caller: &HeaderMap,
    model: &HeaderValue,
    version: &HeaderValue,
) -> HeaderMap {
    let mut headers = bare();
    for (name, value) in caller {
        if is_passed_on(name.as_str()) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.insert(MODEL, model.clone());
    headers.insert(VERSION, version.clone());
    headers
}

/// What every request has.
pub(super) fn bare() -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers
}

/// The headers with what is left of the deadline.
pub(super) fn timed(headers: &HeaderMap, deadline: Instant) -> HeaderMap {
    let mut headers = headers.clone();
    set_timeout(&mut headers, Some(deadline));
    headers
}

/// Trace context (W3C), tenant and switches; nothing that is for us alone.
fn is_passed_on(name: &str) -> bool {
    match name {
        "traceparent" | "tracestate" | "baggage" | "x-request-id" | "triton_grpc_error" => true,
        "headrace-model" | "headrace-version" | "headrace-peer" => false,
        _ => name.starts_with("x-headrace-") || name.starts_with("headrace-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_cannot_name_the_model_behind_the_gateways_back() {
        let mut caller = HeaderMap::new();
        caller.insert("headrace-model", HeaderValue::from_static("secret"));
        caller.insert("headrace-version", HeaderValue::from_static("9"));
        let model = HeaderValue::from_static("m");
        let headers = for_replica(&caller, &model, &HeaderValue::from_static("1"));
        assert_eq!(
            headers.get_all("headrace-model").iter().collect::<Vec<_>>(),
            ["m"]
        );
        assert_eq!(
            headers
                .get_all("headrace-version")
                .iter()
                .collect::<Vec<_>>(),
            ["1"]
        );
    }

    #[test]
    fn trace_context_and_our_own_switches_go_along_and_nothing_else() {
        let mut caller = HeaderMap::new();
        for name in [
            "traceparent",
            "baggage",
            "x-headrace-timing",
            "headrace-tenant",
        ] {
            caller.insert(name, HeaderValue::from_static("v"));
        }
        for name in [
            "authorization",
            "user-agent",
            "grpc-encoding",
            "grpc-timeout",
            "cookie",
        ] {
            caller.insert(name, HeaderValue::from_static("v"));
        }
        let value = HeaderValue::from_static("m");
        let headers = for_replica(&caller, &value, &value);
        assert_eq!(headers.len(), 4 + 4);
        assert_eq!(headers.get("traceparent").unwrap(), "v");
    }
}
