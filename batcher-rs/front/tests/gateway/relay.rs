//! Everything else, passed through to the Python half.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use headrace_front::deadline::parse_timeout;
use headrace_front::status::{ok_head, trailers};
use http::HeaderMap;

use crate::support::{Gateway, Peer, framed, is_pending, soon, until};

const METHOD: &str = "/grpc.health.v1.Health/Check";
const LIMIT: usize = 64 << 20;

#[tokio::test]
async fn a_cancel_before_the_head_goes_through() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[], framed(b"q"));
    let mut seen = peer.next().await;
    drop(call);
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);
}

#[tokio::test]
async fn a_cancel_after_the_head_goes_through() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.open(METHOD, &[]);
    let mut seen = peer.next().await;
    let mut stream = seen.respond.send_response(ok_head(), false).unwrap();
    stream.send_data(framed(b"first"), false).unwrap();
    let response = soon(call.response).await.unwrap();
    drop((response, call.stream));
    let reason = soon(poll_fn(|cx| stream.poll_reset(cx))).await.unwrap();
    assert_eq!(reason, h2::Reason::CANCEL);
}

#[tokio::test]
async fn a_call_passes_with_its_metadata_both_ways_and_says_who_called() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let headers = [
        ("grpc-timeout", "5S"),
        ("blob-bin", "AAEC/w"),
        ("authorization", "Bearer x"),
        ("headrace-peer", "10.0.0.9:1"),
    ];
    let call = caller.send(METHOD, &headers, framed(b"question"));
    let mut seen = peer.next().await;
    assert_eq!(seen.head.uri.path(), METHOD);
    assert_eq!(seen.read().await, framed(b"question"));
    assert_eq!(seen.header("blob-bin"), Some("AAEC/w"));
    assert_eq!(seen.header("authorization"), Some("Bearer x"));
    assert_eq!(seen.header("te"), Some("trailers"));
    let path = seen.header("headrace-peer").unwrap();
    assert!(path.starts_with("10.0.0.9:1, 127.0.0.1:"), "{path}");
    let left = parse_timeout(&seen.head.headers).unwrap().unwrap();
    assert!(left < Duration::from_secs(5), "{left:?}");
    let mut head = ok_head();
    head.headers_mut()
        .insert("early-bin", "AA".parse().unwrap());
    let mut stream = seen.respond.send_response(head, false).unwrap();
    stream.send_data(framed(b"answer"), false).unwrap();
    let mut ending = trailers(None);
    ending.insert("late-bin", "/w".parse().unwrap());
    stream.send_trailers(ending).unwrap();
    let reply = call.reply().await;
    assert_eq!((reply.code(), &reply.body), ("0", &framed(b"answer")));
    assert_eq!(reply.head.get("early-bin").unwrap(), "AA");
    assert_eq!(reply.trailers.get("late-bin").unwrap(), "/w");
}

#[tokio::test]
async fn both_directions_of_a_stream_stay_open_and_idle_ones_are_left_alone() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let mut call = caller.open(METHOD, &[]);
    let mut seen = peer.next().await;
    let mut down = seen.respond.send_response(ok_head(), false).unwrap();
    let mut body = soon(&mut call.response).await.unwrap().into_body();
    for round in 0..3_u8 {
        call.stream.send_data(framed(&[round]), false).unwrap();
        let data = soon(poll_fn(|cx| seen.body.poll_data(cx)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(data, framed(&[round]));
        down.send_data(framed(&[round, round]), false).unwrap();
        let data = soon(poll_fn(|cx| body.poll_data(cx)))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(data, framed(&[round, round]));
        let mut more = Box::pin(poll_fn(|cx| body.poll_data(cx)));
        assert!(is_pending(&mut more).await);
    }
    call.stream.send_data(Bytes::new(), true).unwrap();
    assert!(
        soon(poll_fn(|cx| seen.body.poll_data(cx)))
            .await
            .is_none_or(|data| data.unwrap().is_empty())
    );
    down.send_trailers(trailers(None)).unwrap();
    let ending = soon(async {
        while poll_fn(|cx| body.poll_data(cx)).await.is_some() {}
        poll_fn(|cx| body.poll_trailers(cx)).await
    })
    .await;
    assert_eq!(ending.unwrap().unwrap().get("grpc-status").unwrap(), "0");
}

#[tokio::test]
async fn an_error_passes_as_it_is_but_for_unknown() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[], framed(b""));
    peer.next().await.refuse("5", "MODEL_NOT_FOUND");
    let reply = call.reply().await;
    assert_eq!(
        (reply.code(), reply.reason(), reply.text()),
        ("5", "MODEL_NOT_FOUND", "no%21")
    );

    let call = caller.send(METHOD, &[], framed(b""));
    peer.next().await.refuse("2", "");
    let reply = call.reply().await;
    assert_eq!(
        (reply.code(), reply.reason(), reply.text()),
        ("13", "INTERNAL", "internal error")
    );

    let call = caller.send(METHOD, &[], framed(b""));
    let mut seen = peer.next().await;
    let mut stream = seen.respond.send_response(ok_head(), false).unwrap();
    let mut ending = HeaderMap::new();
    ending.insert("grpc-status", "2".parse().unwrap());
    ending.insert("grpc-message", "secret".parse().unwrap());
    stream.send_trailers(ending).unwrap();
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.text()), ("13", "internal error"));
}

#[tokio::test]
async fn an_answer_without_a_status_gets_one() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[], framed(b""));
    let mut seen = peer.next().await;
    let mut stream = seen.respond.send_response(ok_head(), false).unwrap();
    stream.send_data(framed(b"half"), true).unwrap();
    assert_eq!(call.reply().await.code(), "13");

    for (status, code) in [(404, "12"), (503, "14"), (431, "3"), (500, "13")] {
        let call = caller.send(METHOD, &[], framed(b""));
        let mut seen = peer.next().await;
        let response = http::Response::builder().status(status).body(()).unwrap();
        seen.respond.send_response(response, true).unwrap();
        assert_eq!(call.reply().await.code(), code, "HTTP {status}");
    }
}

#[tokio::test]
async fn a_half_that_is_gone_is_unavailable_before_and_during_a_call() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[], framed(b""));
    let _seen = peer.next().await;
    peer.kill();
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("14", "WORKER_LOST"));
    until(|| std::net::TcpStream::connect(peer.address).is_err()).await;
    let reply = caller.call(METHOD, &[], framed(b"")).await;
    assert_eq!((reply.code(), reply.reason()), ("14", "NO_REPLICA"));
}

#[tokio::test]
async fn the_callers_deadline_is_kept_though_nobody_answers() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, LIMIT);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[("grpc-timeout", "200m")], framed(b""));
    let mut seen = peer.next().await;
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("4", "DEADLINE_EXCEEDED"));
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);
}

#[tokio::test]
async fn a_message_over_the_limit_is_stopped_either_way() {
    let peer = Peer::start().await;
    let gateway = Gateway::before(peer.address, 1000);
    let mut caller = gateway.caller().await;
    let call = caller.send(METHOD, &[], framed(&[0; 1001]));
    let mut seen = peer.next().await;
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("8", "MESSAGE_TOO_LARGE"));
    assert!(reply.text().contains("1000") && reply.text().contains("max_message_bytes"));
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);

    let call = caller.send(METHOD, &[], framed(&[0; 1000]));
    peer.next().await.answer(framed(&[0; 1001]));
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("8", "MESSAGE_TOO_LARGE"));
}

#[tokio::test]
async fn without_a_python_half_other_methods_are_unimplemented() {
    let gateway = Gateway::over(&[]);
    let mut caller = gateway.caller().await;
    let reply = caller.call(METHOD, &[], framed(b"")).await;
    assert_eq!((reply.code(), reply.reason()), ("12", "UNSUPPORTED"));
}
