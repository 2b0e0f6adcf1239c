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
        still: shared.config().body_timeout(),
    };
    let upstream = Arc::clone(upstream);
    // A drain waits for whoever is being answered, not for those who watch until they are told to go.
    let in_flight = (!is_endless(request.uri().path())).then(|| shared.begin());
    tokio::spawn(async move {
        relay(upstream, request, respond, context).await;
        drop(in_flight);
    });
}

/// Streams that stay open for as long as their caller likes: health and worker watches, and reflection.
fn is_endless(path: &str) -> bool {
    path.ends_with("/Watch") || path.ends_with("/ServerReflectionInfo")
}
