//! One reply as it arrives: head, body, trailers, and the gRPC status in the end.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, client::ResponseFuture};
use http::{HeaderMap, StatusCode};

/// A reply that is being read. Dropping it cancels the request.
pub(crate) struct Reply {
    stage: Stage,
    bytes: u64,
    kept: Option<Vec<Bytes>>,
}

enum Stage {
    Head(ResponseFuture),
    Body(RecvStream),
}

/// How a request ended.
pub(crate) struct Outcome {
    pub(crate) failure: Option<Failure>,
    /// Body bytes received.
    pub(crate) bytes: u64,
    /// The body, if it was to be kept: gRPC frames.
    pub(crate) body: Vec<Bytes>,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Name of the gRPC code.
    pub(crate) code: &'static str,
    /// `headrace-reason` of the reply, or one that starts with `CLIENT_` where the server gave none.
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Outcome {
    /// Whether somebody answered, be it with an error.
    pub(crate) fn came_from_the_server(&self) -> bool {
        self.failure
            .as_ref()
            .is_none_or(|failure| failure.reason != CONNECTION_LOST)
    }

    pub(crate) fn failed(failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            bytes: 0,
            body: Vec::new(),
        }
    }
}

impl Reply {
    pub(crate) fn new(head: ResponseFuture, keep_body: bool) -> Self {
        Self {
            stage: Stage::Head(head),
            bytes: 0,
            kept: keep_body.then(Vec::new),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let failure = match ready!(self.poll_status(cx)) {
            Ok(trailers) => trailers,
            Err(error) => Some(Failure::from_h2(&error)),
        };
        Poll::Ready(Outcome {
            failure,
            bytes: self.bytes,
            body: self.kept.take().unwrap_or_default(),
        })
    }

    fn poll_status(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Failure>, h2::Error>> {
        if let Stage::Head(head) = &mut self.stage {
            let (head, body) = ready!(std::pin::Pin::new(head).poll(cx))?.into_parts();
            if head.headers.contains_key("grpc-status") {
                return Poll::Ready(Ok(Failure::from_trailers(&head.headers)));
            }
            if head.status != StatusCode::OK {
                return Poll::Ready(Ok(Some(Failure::from_http(head.status))));
            }
            self.stage = Stage::Body(body);
        }
        let Stage::Body(body) = &mut self.stage else {
            unreachable!("the head was just read")
        };
        while let Some(chunk) = ready!(body.poll_data(cx)) {
            let chunk = chunk?;
            self.bytes += chunk.len() as u64;
            body.flow_control().release_capacity(chunk.len())?;
            if let Some(kept) = &mut self.kept {
                kept.push(chunk);
            }
        }
        let trailers = ready!(body.poll_trailers(cx))?.unwrap_or_default();
        Poll::Ready(Ok(Failure::from_trailers(&trailers)))
    }
}

const CONNECTION_LOST: &str = "CLIENT_CONNECTION_LOST";

/// By number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl Failure {
    fn client(code: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: format!("CLIENT_{reason}"),
            message: message.into(),
        }
    }

    /// The deadline passed before an answer came, and the request was cancelled.
    pub(crate) fn deadline() -> Self {
        Self::client(
            "DEADLINE_EXCEEDED",
            "DEADLINE",
            "no answer before the deadline",
        )
    }

    /// The run ended before an answer came.
    pub(crate) fn unanswered() -> Self {
        Self::client(
            "CANCELLED",
            "UNANSWERED",
            "no answer before the load test ended",
        )
    }

    /// There was no connection to send it on.
    pub(crate) fn not_connected(message: &str) -> Self {
        Self::client("UNAVAILABLE", "NOT_CONNECTED", message)
    }

    /// The connection ended under the request.
    pub(crate) fn connection_lost(message: &str) -> Self {
        Self {
            code: "UNAVAILABLE",
            reason: CONNECTION_LOST.to_owned(),
            message: message.to_owned(),
        }
    }

    /// `None` is OK. A reply that ends without a status is UNKNOWN, as for every gRPC client.
    fn from_trailers(trailers: &HeaderMap) -> Option<Self> {
        let status = trailers.get("grpc-status").map(http::HeaderValue::as_bytes);
        if status == Some(b"0") {
            return None;
        }
        let text = |name: &str| {
            trailers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let Some(status) = status else {
            return Some(Self::client(
                "UNKNOWN",
                "NO_STATUS",
                "the reply ended without a grpc-status",
            ));
        };
        let code = std::str::from_utf8(status)
            .ok()
            .and_then(|number| number.parse::<usize>().ok())
            .and_then(|number| CODES.get(number).copied())
            .unwrap_or("UNKNOWN");
        Some(Self {
            code,
            reason: text("headrace-reason").to_owned(),
            message: text("grpc-message").to_owned(),
        })
    }

    /// Codes as gRPC's "HTTP to gRPC Status Code Mapping" gives them.
    fn from_http(status: StatusCode) -> Self {
        let code = match status.as_u16() {
            400 => "INTERNAL",
            401 => "UNAUTHENTICATED",
            403 => "PERMISSION_DENIED",
            404 => "UNIMPLEMENTED",
            429 | 502 | 503 | 504 => "UNAVAILABLE",
            _ => "UNKNOWN",
        };
        Self::client(
            code,
            &format!("HTTP_{}", status.as_u16()),
            format!("the reply is HTTP {status}, not gRPC"),
        )
    }

    /// A peer that speaks HTTP/1.1 has no gRPC code; its status is the reason.
    pub(crate) fn from_http1(status: u16) -> Self {
        Self::client(
            "UNKNOWN",
            &format!("HTTP_{status}"),
            format!("the reply is HTTP {status}"),
        )
    }

    /// Codes as gRPC maps those of `RST_STREAM`; what concerns the whole connection is UNAVAILABLE.
    pub(crate) fn from_h2(error: &h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => {
                let code = match reason {
                    Reason::REFUSED_STREAM => "UNAVAILABLE",
                    Reason::CANCEL => "CANCELLED",
                    Reason::ENHANCE_YOUR_CALM => "RESOURCE_EXHAUSTED",
                    Reason::INADEQUATE_SECURITY => "PERMISSION_DENIED",
                    _ => "INTERNAL",
                };
                Self::client(
                    code,
                    "RESET",
                    format!("the server reset the request: {}", reason.description()),
                )
            }
            _ => Self::connection_lost(&error.to_string()),
        }
    }
}
