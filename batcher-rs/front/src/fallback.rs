//! Hands a call that is not hot to the service's Python half.

use crate::deadline::parse_timeout;
use crate::relay::{RelayContext, relay};
use crate::server::{ConnInfo, Shared};
use crate::status::refuse;
use crate::upstream::Upstream;
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use std::sync::Arc;
use std::time::Instant;

/// Relays the call to `upstream` in a task of its own.
pub(crate) fn pass_on(
    upstream: &Arc<Upstream>,
    conn: &ConnInfo,
    shared: &Arc<Shared>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let timeout = match parse_timeout(request.headers()) {
        Ok(timeout) => timeout,
        Err(status) => return refuse(&mut respond, &status),
    };
    let context = RelayContext {
        peer: conn.peer.to_string(),
        deadline: timeout.map(|timeout| Instant::now() + timeout),
        max_message_bytes: shared.config().max_message_bytes,
    };
    let upstream = Arc::clone(upstream);
    tokio::spawn(relay(upstream, request, respond, context));
}
