//! One `ModelInfer` through the gateway.

use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_front::config::FrontConfig;
use headrace_front::deadline::parse_timeout;

use crate::support::{Gateway, INFER, Peer, framed, message, request, routes};

#[tokio::test]
async fn a_cancel_before_the_head_reaches_the_replica() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let mut seen = peer.next().await;
    drop(call);
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);
}

#[tokio::test]
async fn a_replica_that_does_not_answer_in_time_is_told_to_stop_and_the_caller_is_told_why() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[("grpc-timeout", "300m")], request("m"));
    let mut seen = peer.next().await;
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("4", "DEADLINE_EXCEEDED"));
    assert_eq!(seen.reset().await, h2::Reason::CANCEL);
}

#[tokio::test]
async fn the_replica_gets_the_same_bytes_the_resolved_name_and_less_time_than_the_caller_gave() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let body = request("friend");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("grpc-timeout", "5S"),
        ("traceparent", trace),
        ("headrace-model", "forged"),
        ("cookie", "c"),
    ];
    let call = caller.send(INFER, &headers, body.clone());
    let mut seen = peer.next().await;
    assert_eq!(seen.read().await, body);
    let left = parse_timeout(&seen.head.headers).unwrap().unwrap();
    assert!(
        left < Duration::from_secs(5) && left > Duration::from_secs(3),
        "{left:?}"
    );
    assert_eq!(seen.header("headrace-model"), Some("m"));
    assert_eq!(seen.header("headrace-version"), Some("1"));
    assert_eq!(seen.header("traceparent"), Some(trace));
    assert_eq!(seen.header("cookie"), None);
    seen.answer(framed(b"answer"));
    let reply = call.reply().await;
    assert_eq!((reply.code(), &reply.body[5..]), ("0", &b"answer"[..]));
}

#[tokio::test]
async fn without_a_deadline_the_servers_longest_holds_and_a_longer_one_is_cut_to_it() {
    let peer = Peer::start().await;
    let config = FrontConfig {
        max_timeout_ms: 2000,
        ..FrontConfig::default()
    };
    let gateway = Gateway::start(config, &routes(&[peer.address]));
    let mut caller = gateway.caller().await;
    for headers in [&[][..], &[("grpc-timeout", "1H")][..]] {
        let _call = caller.send(INFER, headers, request("m"));
        let seen = peer.next().await;
        let left = parse_timeout(&seen.head.headers).unwrap().unwrap();
        assert!(
            left <= Duration::from_secs(2) && left > Duration::from_secs(1),
            "{left:?}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_by_name_and_the_connection_lives() {
    let peer = Peer::start().await;
    let mut table: serde_json::Value = serde_json::from_str(&routes(&[peer.address])).unwrap();
    table["models"]["m"]["versions"]["2"] = serde_json::json!({"replicas": [], "state": "LOADING"});
    table["models"]["m"]["versions"]["3"] =
        serde_json::json!({"replicas": [], "state": "FAILED", "reason": "no such operator"});
    table["models"]["m"]["versions"]["4"] = serde_json::json!({"replicas": [], "state": "READY"});
    let gateway = Gateway::start(FrontConfig::default(), &table.to_string());
    let mut caller = gateway.caller().await;
    for (model, version, code, reason, text) in [
        ("nobody", "", "5", "MODEL_NOT_FOUND", "nobody"),
        ("m", "9", "5", "VERSION_NOT_FOUND", "9"),
        ("m", "2", "14", "MODEL_LOADING", "2"),
        ("m", "3", "9", "MODEL_FAILED", "no such operator"),
        ("m", "4", "14", "NO_REPLICA", "4"),
        ("friend", "4", "5", "VERSION_NOT_FOUND", "friend"),
        ("", "", "3", "INVALID_REQUEST", "model_name"),
    ] {
        let reply = caller.infer(framed(&message(model, version, "", 0))).await;
        assert_eq!(
            (reply.code(), reply.reason()),
            (code, reason),
            "{model} {version}"
        );
        assert!(reply.text().contains(text), "{}", reply.text());
    }
    let refused = &gateway.statistics()["refused"];
    assert_eq!(
        (&refused["VERSION_NOT_FOUND"], &refused["NO_REPLICA"]),
        (&2.into(), &1.into())
    );
    assert!(!peer.saw_more());
}

#[tokio::test]
async fn malformed_frames_are_refused_and_the_next_request_is_fine() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let whole = request("m");
    let mut twice = whole.to_vec();
    twice.extend_from_slice(&whole);
    let mut flag = whole.to_vec();
    flag[0] = 7;
    let mut compressed = whole.to_vec();
    compressed[0] = 1;
    for (body, code) in [
        (Bytes::new(), "3"),
        (whole.slice(..3), "3"),
        (whole.slice(..whole.len() - 1), "3"),
        (twice.into(), "3"),
        (flag.into(), "3"),
        (compressed.into(), "3"),
        (framed(&[0xff; 40]), "3"),
        (Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1]), "8"),
    ] {
        let reply = caller.infer(body.clone()).await;
        assert_eq!(reply.code(), code, "{body:?}: {}", reply.text());
        assert!(!reply.reason().is_empty());
    }
    let reply = caller
        .call(INFER, &[("grpc-timeout", "soon")], request("m"))
        .await;
    assert_eq!((reply.code(), reply.reason()), ("3", "INVALID_REQUEST"));
    let call = caller.send(INFER, &[], request("m"));
    peer.next().await.answer(framed(b"fine"));
    assert_eq!(call.reply().await.code(), "0");
}

#[tokio::test]
async fn a_body_in_many_small_pieces_is_put_together() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let body = framed(&message("m", "", "an id", 300));
    let mut call = caller.open(INFER, &[]);
    for piece in body.chunks(7) {
        call.stream
            .send_data(Bytes::copy_from_slice(piece), false)
            .unwrap();
        tokio::task::yield_now().await;
    }
    call.stream.send_data(Bytes::new(), true).unwrap();
    let mut seen = peer.next().await;
    assert_eq!(seen.read().await, body);
    seen.answer(framed(b"whole"));
    assert_eq!(call.reply().await.code(), "0");
}

#[tokio::test]
async fn a_gzip_request_is_routed_by_what_is_in_it() {
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let plain = message("m", "", "", 1000);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&plain).unwrap();
    let mut body = framed(&encoder.finish().unwrap()).to_vec();
    body[0] = 1;
    let call = caller.send(INFER, &[("grpc-encoding", "gzip")], body.into());
    let mut seen = peer.next().await;
    assert_eq!(seen.header("grpc-encoding"), None);
    assert_eq!(seen.read().await, framed(&plain));
    seen.answer(framed(b"ok"));
    assert_eq!(call.reply().await.code(), "0");
}

#[tokio::test]
async fn a_new_table_holds_for_the_next_request_and_keeps_the_connections() {
    let (one, two) = (Peer::start().await, Peer::start().await);
    let gateway = Gateway::over(&[one.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let first = one.next().await;
    gateway
        .front
        .set_routes(&routes(&[one.address, two.address]))
        .unwrap();
    assert!(gateway.front.set_routes("{}").is_err());
    first.answer(framed(b"old way"));
    assert_eq!(call.reply().await.code(), "0");
    let begun = Instant::now();
    let (mut from_one, mut from_two) = (0, 0);
    while from_one == 0 || from_two == 0 {
        let call = caller.send(INFER, &[], request("m"));
        tokio::select! {
            seen = one.next() => {
                assert_eq!(seen.connection, 1);
                from_one += 1;
                seen.answer(framed(b"one"));
            }
            seen = two.next() => {
                from_two += 1;
                seen.answer(framed(b"two"));
            }
        }
        assert_eq!(call.reply().await.code(), "0");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
