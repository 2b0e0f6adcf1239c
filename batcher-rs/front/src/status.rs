//! The one table of errors on the Rust side: a reason, its gRPC code, and how both reach the caller.
//!
//! Every error reply carries `grpc-status`, a percent-encoded `grpc-message`, `headrace-reason`, and a
//! `grpc-status-details-bin` with `google.rpc.Status` holding `ErrorInfo` (domain `headrace`) and, where they help,
//! `BadRequest`, `RetryInfo` or `QuotaFailure`. The Python table in `headrace_core.errors` is compared with this one by a test.

mod details;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

/// Longest `grpc-message`, in bytes as sent. Headers share one limit with all others; a longer text helps nobody.
pub const LONGEST_MESSAGE: usize = 1024;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// The stable reason, as a trailer of its own: readable in `grpcurl -v` and cheap for the hop before.
pub const HEADRACE_REASON: HeaderName = HeaderName::from_static("headrace-reason");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The gRPC status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are those of the gRPC specification")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The code's name in the specification.
    pub const fn as_str(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// The number as it stands in `grpc-status`.
    pub(crate) const fn digits(self) -> &'static str {
        NAMES[self as usize].1
    }
}

const NAMES: [(&str, &str); 17] = [
    ("OK", "0"),
    ("CANCELLED", "1"),
    ("UNKNOWN", "2"),
    ("INVALID_ARGUMENT", "3"),
    ("DEADLINE_EXCEEDED", "4"),
    ("NOT_FOUND", "5"),
    ("ALREADY_EXISTS", "6"),
    ("PERMISSION_DENIED", "7"),
    ("RESOURCE_EXHAUSTED", "8"),
    ("FAILED_PRECONDITION", "9"),
    ("ABORTED", "10"),
    ("OUT_OF_RANGE", "11"),
    ("UNIMPLEMENTED", "12"),
    ("INTERNAL", "13"),
    ("UNAVAILABLE", "14"),
    ("DATA_LOSS", "15"),
    ("UNAUTHENTICATED", "16"),
];

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident $text:literal $code:ident,)+) => {
        /// Why a request was not answered with a result: stable words that clients may branch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The gRPC code that goes with it, always.
            pub const fn code(self) -> Code {
                match self { $(Self::$variant => Code::$code,)+ }
            }
        }
    };
}

reasons! {
    /// Not a well-formed request: framing, protobuf, headers.
    InvalidRequest "INVALID_REQUEST" InvalidArgument,
    /// A tensor does not fit the model's signature.
    InvalidTensor "INVALID_TENSOR" InvalidArgument,
    /// The model has no such input, or no such output.
    UnknownTensor "UNKNOWN_TENSOR" InvalidArgument,
    /// A request parameter has a wrong type or value.
    InvalidParameter "INVALID_PARAMETER" InvalidArgument,
    /// No model or alias of this name.
    ModelNotFound "MODEL_NOT_FOUND" NotFound,
    /// The model has no such version.
    VersionNotFound "VERSION_NOT_FOUND" NotFound,
    /// Known, and not ready yet.
    ModelLoading "MODEL_LOADING" Unavailable,
    /// No replica can take the request now.
    NoReplica "NO_REPLICA" Unavailable,
    /// This server takes nothing new and finishes what it has.
    Draining "DRAINING" Unavailable,
    /// The replica was lost after the request had been handed to it.
    WorkerLost "WORKER_LOST" Unavailable,
    /// Too many connections.
    OverloadedConnections "OVERLOADED_CONNECTIONS" Unavailable,
    /// The model could not be loaded.
    ModelFailed "MODEL_FAILED" FailedPrecondition,
    /// The request contradicts the state of what it names.
    StateConflict "STATE_CONFLICT" FailedPrecondition,
    /// The queue is full.
    QueueFull "QUEUE_FULL" ResourceExhausted,
    /// The tenant used its share.
    OverQuota "OVER_QUOTA" ResourceExhausted,
    /// A message is over the size limit.
    MessageTooLarge "MESSAGE_TOO_LARGE" ResourceExhausted,
    /// Time ran out while the request was queued.
    ExpiredInQueue "EXPIRED_IN_QUEUE" DeadlineExceeded,
    /// The estimated wait is longer than the time that is left.
    CannotMeetDeadline "CANNOT_MEET_DEADLINE" DeadlineExceeded,
    /// Time ran out.
    DeadlineExceeded "DEADLINE_EXCEEDED" DeadlineExceeded,
    /// The caller is gone.
    Cancelled "CANCELLED" Cancelled,
    /// The model raised, or the device failed.
    InferenceFailed "INFERENCE_FAILED" Internal,
    /// A fault of ours.
    Internal "INTERNAL" Internal,
    /// Not implemented here.
    Unsupported "UNSUPPORTED" Unimplemented,
}

/// The whole table.
pub const TABLE: &[Reason] = Reason::ALL;

impl Reason {
    /// The reason of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == text)
    }

    /// How long a caller does well to wait before it tries again; `None` where trying again does not help.
    const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::QueueFull | Self::Draining | Self::WorkerLost => Some(Duration::from_millis(100)),
            Self::NoReplica => Some(Duration::from_millis(500)),
            Self::ModelLoading | Self::OverloadedConnections => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// An error on its way to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The gRPC code; that of the reason.
    pub code: Code,
    /// A word of the table.
    pub reason: &'static str,
    /// For people: names the thing, what was expected and what came.
    pub message: Cow<'static, str>,
    /// `google.rpc.BadRequest` (for `OVER_QUOTA`: `QuotaFailure`): field or subject, and what is wrong with it.
    pub violations: Vec<(String, String)>,
    /// `google.rpc.RetryInfo`.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// An error with the code, and the advice on retrying, that belong to `reason`.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code: reason.code(),
            reason: reason.as_str(),
            message: message.into(),
            violations: Vec::new(),
            retry_after: reason.retry_after(),
        }
    }

    /// Adds one field violation, e.g. `inputs[x].shape`.
    #[must_use]
    pub fn with_violation(
        mut self,
        field: impl Into<String>,
        description: impl Into<String>,
    ) -> Self {
        self.violations.push((field.into(), description.into()));
        self
    }

    /// Says when to try again instead of the reason's usual advice.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Writes the status into a header map: that of a trailers-only reply, or the trailers.
    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from_static(self.code.digits()));
        let (message, encoded) = percent_encode(&self.message);
        headers.insert(GRPC_MESSAGE, encoded);
        headers.insert(HEADRACE_REASON, HeaderValue::from_static(self.reason));
        headers.insert(GRPC_DETAILS, details::header(self, message));
    }
}

/// Answers with an error and nothing else (a trailers-only reply). A caller that is gone already is none of our concern.
pub fn refuse(respond: &mut SendResponse<Bytes>, status: &Status) {
    let mut response = head_with_room_for(5);
    status.write(response.headers_mut());
    let _ = respond.send_response(response, true);
}

/// Answers with one small frame and OK. Frames above some 100 KiB must be sent with `reserve_capacity` instead: h2 buffers
/// without bound what it is given.
pub fn reply(respond: &mut SendResponse<Bytes>, frame: Bytes) {
    if let Ok(mut stream) = respond.send_response(ok_head(), false) {
        let _ = stream
            .send_data(frame, false)
            .and_then(|()| stream.send_trailers(trailers(None)));
    }
}

/// The head of an answer: 200 and the content type.
pub fn ok_head() -> Response<()> {
    head_with_room_for(1)
}

fn head_with_room_for(headers: usize) -> Response<()> {
    let mut response = Response::new(());
    *response.headers_mut() = HeaderMap::with_capacity(headers);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The trailers that end an answer; `None` is OK.
pub fn trailers(status: Option<&Status>) -> HeaderMap {
    match status {
        None => {
            let mut headers = HeaderMap::with_capacity(1);
            headers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
            headers
        }
        Some(status) => {
            let mut headers = HeaderMap::with_capacity(4);
            status.write(&mut headers);
            headers
        }
    }
}

/// The part of `message` that fits [`LONGEST_MESSAGE`] when encoded, and its encoding (gRPC over HTTP/2, "Responses":
/// bytes 0x20–0x7E stand for themselves except `%`). The cut is at a character.
fn percent_encode(message: &str) -> (&str, HeaderValue) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(message.len().min(LONGEST_MESSAGE));
    let mut kept = message.len();
    for (at, character) in message.char_indices() {
        let plain = matches!(character, ' '..='~') && character != '%';
        let width = if plain { 1 } else { 3 * character.len_utf8() };
        if encoded.len() + width > LONGEST_MESSAGE {
            kept = at;
            break;
        }
        if plain {
            encoded.push(character as u8);
        } else {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                encoded.extend([
                    b'%',
                    HEX[usize::from(byte >> 4)],
                    HEX[usize::from(byte & 15)],
                ]);
            }
        }
    }
    let value = HeaderValue::from_maybe_shared(Bytes::from(encoded))
        .expect("printable ASCII is a header value");
    (&message[..kept], value)
}

/// The text that [`percent_encode`] encoded; bytes that follow no rule stand for themselves.
pub(crate) fn percent_decode(value: &[u8]) -> String {
    let digit = |at: usize| value.get(at).and_then(|&byte| (byte as char).to_digit(16));
    let mut bytes = Vec::with_capacity(value.len());
    let mut at = 0;
    while at < value.len() {
        match (value[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    use prost::Message as _;

    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    struct AnyMessage {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct RpcStatus {
        #[prost(int32, tag = "1")]
        code: i32,
        #[prost(string, tag = "2")]
        message: String,
        #[prost(message, repeated, tag = "3")]
        details: Vec<AnyMessage>,
    }

    /// `ErrorInfo`; also two strings is what a field violation and a quota violation are.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Pair {
        #[prost(string, tag = "1")]
        first: String,
        #[prost(string, tag = "2")]
        second: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Pairs {
        #[prost(message, repeated, tag = "1")]
        violations: Vec<Pair>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        delay: Option<Delay>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Delay {
        #[prost(int64, tag = "1")]
        seconds: i64,
        #[prost(int32, tag = "2")]
        nanos: i32,
    }

    fn decoded(status: &Status) -> RpcStatus {
        let headers = trailers(Some(status));
        let value = headers.get("grpc-status-details-bin").unwrap();
        RpcStatus::decode(&STANDARD_NO_PAD.decode(value.as_bytes()).unwrap()[..]).unwrap()
    }

    #[test]
    fn a_bad_tensor_names_its_field_in_the_details() {
        let status = Status::new(Reason::InvalidTensor, "input x: expected 2 dims, got 3")
            .with_violation("inputs[x].shape", "expected [-1, 64], got [1, 1, 64]");
        let rpc = decoded(&status);
        assert_eq!(
            (rpc.code, rpc.message.as_str()),
            (3, "input x: expected 2 dims, got 3")
        );
        assert_eq!(
            rpc.details[0].type_url,
            "type.googleapis.com/google.rpc.ErrorInfo"
        );
        let info = Pair::decode(&rpc.details[0].value[..]).unwrap();
        assert_eq!(
            (info.first.as_str(), info.second.as_str()),
            ("INVALID_TENSOR", "headrace")
        );
        assert_eq!(
            rpc.details[1].type_url,
            "type.googleapis.com/google.rpc.BadRequest"
        );
        let bad = Pairs::decode(&rpc.details[1].value[..]).unwrap();
        assert_eq!(bad.violations[0].first, "inputs[x].shape");
        assert_eq!(
            bad.violations[0].second,
            "expected [-1, 64], got [1, 1, 64]"
        );
        assert_eq!(rpc.details.len(), 2);
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let status =
            Status::new(Reason::QueueFull, "full").with_retry_after(Duration::from_millis(2250));
        let rpc = decoded(&status);
        assert_eq!(
            rpc.details[1].type_url,
            "type.googleapis.com/google.rpc.RetryInfo"
        );
        let retry = RetryInfo::decode(&rpc.details[1].value[..]).unwrap();
        assert_eq!(
            retry.delay,
            Some(Delay {
                seconds: 2,
                nanos: 250_000_000
            })
        );
    }

    #[test]
    fn a_quota_names_its_subject() {
        let status = Status::new(Reason::OverQuota, "over")
            .with_violation("tenant:a", "100 requests a second");
        let rpc = decoded(&status);
        assert_eq!(
            rpc.details[1].type_url,
            "type.googleapis.com/google.rpc.QuotaFailure"
        );
        let quota = Pairs::decode(&rpc.details[1].value[..]).unwrap();
        assert_eq!(quota.violations[0].first, "tenant:a");
    }

    #[test]
    fn a_message_is_percent_encoded_and_cut_at_a_character_within_a_kilobyte() {
        let (kept, value) = percent_encode("100% größer\n");
        assert_eq!(kept, "100% größer\n");
        assert_eq!(value, "100%25 gr%C3%B6%C3%9Fer%0A");
        assert_eq!(percent_decode(value.as_bytes()), "100% größer\n");
        assert_eq!(percent_decode(b"100%"), "100%");
        let long = format!("a{}", "ö".repeat(5000));
        let (kept, value) = percent_encode(&long);
        assert!(value.len() <= LONGEST_MESSAGE);
        assert!(kept.chars().skip(1).all(|c| c == 'ö'));
        assert_eq!(value.len(), 1 + (kept.len() - 1) * 3);
        assert!(LONGEST_MESSAGE - value.len() < 6);
    }

    #[test]
    fn all_headers_of_the_worst_error_stay_below_a_clients_default_limit() {
        let mut status = Status::new(Reason::InvalidTensor, "ü".repeat(4000));
        for n in 0..1000 {
            status = status.with_violation(format!("inputs[{n}].shape"), "ä".repeat(3000));
        }
        let headers = trailers(Some(&status));
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(bytes < 8 * 1024, "{bytes}");
        assert!(
            !Pairs::decode(&decoded(&status).details[1].value[..])
                .unwrap()
                .violations
                .is_empty()
        );
    }

    #[test]
    fn the_table_has_each_word_once_and_never_says_unknown_or_ok() {
        let words: HashSet<_> = TABLE.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), TABLE.len());
        for reason in TABLE {
            assert!(!matches!(reason.code(), Code::Unknown | Code::Ok));
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("NO_SUCH_REASON"), None);
    }

    #[test]
    fn the_ok_trailers_hold_nothing_else() {
        let headers = trailers(None);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers.get("grpc-status").unwrap(), "0");
    }
}
