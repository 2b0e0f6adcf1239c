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

/// What goes along with a request, however often it is sent.
#[derive(Clone, Default)]
pub(super) struct Metadata {
    passed_on: HeaderMap,
    names: Option<(HeaderValue, HeaderValue)>,
}

impl Metadata {
    /// For a request to this model and version.
    pub(super) fn new(caller: &HeaderMap, model: &HeaderValue, version: &HeaderValue) -> Self {
        let mut passed_on = HeaderMap::new();
        for (name, value) in caller {
            if is_passed_on(name.as_str()) {
                passed_on.append(name.clone(), unindexed(name, value));
            }
        }
        Self {
            passed_on,
            names: Some((model.clone(), version.clone())),
        }
    }

    /// The headers for sending it now.
    pub(super) fn headers(&self, deadline: Instant) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.passed_on.len() + 5);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        for (name, value) in &self.passed_on {
            headers.append(name.clone(), value.clone());
        }
        if let Some((model, version)) = &self.names {
            headers.insert(MODEL, model.clone());
            headers.insert(VERSION, version.clone());
        }
        set_timeout(&mut headers, Some(deadline));
        headers
    }
}

/// A value that no other request has is kept out of the header compression's table, where it would only push out others.
fn unindexed(name: &HeaderName, value: &HeaderValue) -> HeaderValue {
    let mut value = value.clone();
    value.set_sensitive(matches!(name.as_str(), "traceparent" | "x-request-id"));
    value
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
        let version = HeaderValue::from_static("1");
        let headers = Metadata::new(&caller, &model, &version).headers(Instant::now());
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
        let headers = Metadata::new(&caller, &value, &value).headers(Instant::now());
        assert_eq!(headers.len(), 4 + 5);
        assert_eq!(headers.get("traceparent").unwrap(), "v");
    }
}
