//! Keeps a thread's connections to the replicas up, and finds out whether an ejected replica is back.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::ask::open;
use super::metadata::Metadata;
use super::replica::Replica;
use super::{Gateway, PROBE_TIMEOUT, READY};
use crate::server::Shared;

/// How often a thread looks after its connections.
const BEAT: Duration = Duration::from_millis(250);

/// Runs until the server stops. The first thread does the probing for all.
pub(super) async fn keep(gateway: Arc<Gateway>, shared: Arc<Shared>, thread: usize) {
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = shared.stopped() => return,
        }
        for replica in gateway.routes.load().replicas() {
            if replica.is_ejected() {
                if thread == 0 && replica.probe_is_due() {
                    tokio::spawn(probe(Arc::clone(replica), thread));
                }
            } else if !replica.link(thread).is_connected() {
                tokio::spawn(connect(Arc::clone(replica), thread));
            }
        }
    }
}

/// A replica that nobody asks anything is found dead here.
async fn connect(replica: Arc<Replica>, thread: usize) {
    if replica.link(thread).ready().await.is_err() {
        replica.failed();
    }
}

/// Asks `ServerReady`: whoever answers is back. Whether a model is ready there is the route table's business.
async fn probe(replica: Arc<Replica>, thread: usize) {
    let answered = tokio::time::timeout(PROBE_TIMEOUT, async {
        replica.link(thread).check().await.ok()?;
        let metadata = Metadata::default();
        let deadline = Instant::now() + PROBE_TIMEOUT;
        let (response, mut stream) = open(&replica, thread, &READY, &metadata, deadline)
            .await
            .ok()?;
        stream.send_data(Bytes::from_static(&[0; 5]), true).ok()?;
        let mut body = response.await.ok()?.into_body();
        while let Some(data) = poll_fn(|cx| body.poll_data(cx)).await {
            data.ok()?;
        }
        Some(())
    })
    .await;
    match answered {
        Ok(Some(())) => replica.answered(),
        Ok(None) | Err(_) => replica.failed(),
    }
}
