//! Large messages: cut through, bounded, held back by whoever is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use headrace_front::config::FrontConfig;
use headrace_front::status::{ok_head, trailers};

use crate::support::{
    Gateway, INFER, Peer, collect, framed, message, pour, request, routes, soon, until,
};

const LARGE: usize = 8 << 20;

/// Waits until the number stands still.
async fn settled(count: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    let mut still = 0;
    while still < 10 {
        let now = count.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    last
}

#[tokio::test]
async fn a_replica_that_does_not_read_holds_the_caller_back_and_gets_every_byte_later() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let body = framed(&message("m", "", "", LARGE));
    let sent = Arc::new(AtomicUsize::new(0));
    let mut call = caller.open(INFER, &[]);
    let pouring = tokio::spawn({
        let (sent, body) = (Arc::clone(&sent), body.clone());
        async move {
            pour(&mut call.stream, body, true, &sent).await;
            call
        }
    });
    // Only the head is needed to choose: the replica has the stream before the message is whole.
    let mut seen = peer.next().await;
    let stuck = settled(&sent).await;
    assert!(
        stuck < 3 << 20,
        "{stuck} bytes went into the gateway, and nobody had read them"
    );
    assert_eq!(seen.read().await, body);
    seen.answer(framed(b"ok"));
    let call = soon(pouring).await.unwrap();
    assert_eq!(call.reply().await.code(), "0");
}

#[tokio::test]
async fn a_caller_that_does_not_read_holds_the_replica_back_and_others_go_on() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let mut seen = peer.next().await;
    let answer = framed(&vec![9; LARGE]);
    let sent = Arc::new(AtomicUsize::new(0));
    let pouring = tokio::spawn({
        let (sent, answer) = (Arc::clone(&sent), answer.clone());
        async move {
            let mut stream = seen.respond.send_response(ok_head(), false).unwrap();
            pour(&mut stream, answer, false, &sent).await;
            stream.send_trailers(trailers(None)).unwrap();
        }
    });
    let mut body = soon(call.response).await.unwrap().into_body();
    let stuck = settled(&sent).await;
    assert!(
        stuck < 4 << 20,
        "{stuck} bytes left the replica, and nobody had read them"
    );
    // The reader that stands still is in nobody's way, on the same connections.
    let mut neighbour = gateway.caller().await;
    let call = neighbour.send(INFER, &[], request("m"));
    peer.next().await.answer(framed(b"quick"));
    assert_eq!(call.reply().await.code(), "0");
    assert_eq!(soon(collect(&mut body)).await, answer);
    soon(pouring).await.unwrap();
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_at_its_length_and_names_limit_and_setting() {
    let peer = Peer::start().await;
    let config = FrontConfig {
        max_message_bytes: 100_000,
        ..FrontConfig::default()
    };
    let gateway = Gateway::start(config, &routes(&[peer.address]));
    let mut caller = gateway.caller().await;
    let mut call = caller.open(INFER, &[]);
    // Only the prefix and the name are sent: nobody waits for the rest.
    let begun = framed(&message("m", "", "", 200_000)).slice(..100);
    call.stream.send_data(begun, false).unwrap();
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("8", "MESSAGE_TOO_LARGE"));
    assert!(reply.text().contains("100000") && reply.text().contains("max_message_bytes"));

    let call = caller.send(INFER, &[], request("m"));
    peer.next().await.answer(framed(&vec![0; 100_001]));
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("8", "MESSAGE_TOO_LARGE"));
}

#[tokio::test]
async fn a_large_request_whose_name_comes_last_is_routed_all_the_same() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let mut backwards = crate::support::field(7, &vec![1; 3 << 20]);
    backwards.extend(crate::support::field(1, b"m"));
    let body = framed(&backwards);
    let mut call = caller.open(INFER, &[]);
    let pouring = tokio::spawn({
        let body = body.clone();
        async move {
            pour(&mut call.stream, body, true, &AtomicUsize::new(0)).await;
            call
        }
    });
    let mut seen = peer.next().await;
    assert_eq!(seen.read().await, body);
    seen.answer(framed(b"ok"));
    assert_eq!(soon(pouring).await.unwrap().reply().await.code(), "0");
}

#[tokio::test]
async fn a_caller_that_leaves_in_the_middle_of_a_large_request_is_cancelled_at_the_replica() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let mut call = caller.open(INFER, &[]);
    let begun = framed(&message("m", "", "", LARGE)).slice(..20_000);
    call.stream.send_data(begun, false).unwrap();
    let mut seen = peer.next().await;
    drop(call);
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);
    until(|| gateway.statistics()["in_flight"] == 0).await;
    assert_eq!(gateway.statistics()["replicas"]["w0"]["outstanding"], 0);
    assert_eq!(gateway.statistics()["replicas"]["w0"]["failed"], 0);
}

#[tokio::test]
async fn a_large_request_finds_another_replica_if_the_first_cannot_be_reached() {
    let gone = Peer::start().await;
    gone.kill();
    until(|| std::net::TcpStream::connect(gone.address).is_err()).await;
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[gone.address, peer.address]);
    let mut caller = gateway.caller().await;
    for _ in 0..4 {
        let mut call = caller.open(INFER, &[]);
        let pouring = tokio::spawn(async move {
            let body = framed(&message("m", "", "", 1 << 20));
            pour(&mut call.stream, body, true, &AtomicUsize::new(0)).await;
            call
        });
        let mut seen = peer.next().await;
        assert_eq!(
            seen.read().await.len(),
            framed(&message("m", "", "", 1 << 20)).len()
        );
        seen.answer(Bytes::from_static(&[0; 5]));
        assert_eq!(soon(pouring).await.unwrap().reply().await.code(), "0");
    }
}
