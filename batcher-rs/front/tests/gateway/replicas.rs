//! Replicas that refuse, vanish, freeze, leave and come back.

use std::time::{Duration, Instant};

use crate::support::{Gateway, INFER, Peer, Seen, framed, request, soon, until};

/// Whichever of the two gets the request, and the other one.
async fn whoever<'a>(one: &'a Peer, two: &'a Peer) -> (Seen, &'a Peer) {
    tokio::select! {
        seen = one.next() => (seen, two),
        seen = two.next() => (seen, one),
    }
}

#[tokio::test]
async fn a_request_refused_before_it_was_queued_goes_to_another_replica_once() {
    for reason in ["QUEUE_FULL", "DRAINING", "MODEL_LOADING"] {
        let (one, two) = (Peer::start().await, Peer::start().await);
        let gateway = Gateway::over(&[one.address, two.address]);
        let mut caller = gateway.caller().await;
        let call = caller.send(INFER, &[], request("m"));
        let (seen, other) = whoever(&one, &two).await;
        seen.refuse("8", reason);
        let mut again = other.next().await;
        assert_eq!(again.read().await, request("m"));
        again.answer(framed(b"second"));
        let reply = call.reply().await;
        assert_eq!((reply.code(), &reply.body[5..]), ("0", &b"second"[..]));
        assert_eq!(gateway.statistics()["retries"], 1);
    }
}

#[tokio::test]
async fn when_both_are_full_the_caller_hears_so_and_nobody_is_asked_a_third_time() {
    let (one, two) = (Peer::start().await, Peer::start().await);
    let gateway = Gateway::over(&[one.address, two.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let (seen, other) = whoever(&one, &two).await;
    seen.refuse("8", "QUEUE_FULL");
    other.next().await.refuse("8", "QUEUE_FULL");
    let reply = call.reply().await;
    assert_eq!(
        (reply.code(), reply.reason(), reply.text()),
        ("8", "QUEUE_FULL", "no%21")
    );
    assert!(!one.saw_more() && !two.saw_more());
}

#[tokio::test]
async fn a_refused_stream_certainly_never_ran_and_is_tried_elsewhere() {
    let (one, two) = (Peer::start().await, Peer::start().await);
    let gateway = Gateway::over(&[one.address, two.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let (mut seen, other) = whoever(&one, &two).await;
    seen.respond.send_reset(h2::Reason::REFUSED_STREAM);
    other.next().await.answer(framed(b"second"));
    assert_eq!(call.reply().await.code(), "0");
}

#[tokio::test]
async fn nothing_that_may_have_run_is_sent_twice() {
    for reason in [h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL] {
        let (one, two) = (Peer::start().await, Peer::start().await);
        let gateway = Gateway::over(&[one.address, two.address]);
        let mut caller = gateway.caller().await;
        let call = caller.send(INFER, &[], request("m"));
        let (mut seen, other) = whoever(&one, &two).await;
        seen.respond.send_reset(reason);
        let reply = call.reply().await;
        assert_ne!(reply.code(), "2");
        assert!(!reply.reason().is_empty());
        assert!(!other.saw_more());
    }
    for refusal in ["EXPIRED_IN_QUEUE", "INFERENCE_FAILED", ""] {
        let (one, two) = (Peer::start().await, Peer::start().await);
        let gateway = Gateway::over(&[one.address, two.address]);
        let mut caller = gateway.caller().await;
        let call = caller.send(INFER, &[], request("m"));
        let (seen, other) = whoever(&one, &two).await;
        seen.refuse("13", refusal);
        assert_eq!(call.reply().await.code(), "13");
        assert!(!other.saw_more());
    }
}

#[tokio::test]
async fn a_replica_killed_in_the_middle_costs_only_what_it_had_begun() {
    let (one, two) = (Peer::start().await, Peer::start().await);
    let gateway = Gateway::over(&[one.address, two.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let (_seen, other) = whoever(&one, &two).await;
    let killed = if other.address == one.address {
        &two
    } else {
        &one
    };
    killed.kill();
    let begun = Instant::now();
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("14", "WORKER_LOST"));
    assert!(begun.elapsed() < Duration::from_secs(1));
    for _ in 0..8 {
        let call = caller.send(INFER, &[], request("m"));
        other.next().await.answer(framed(b"still here"));
        assert_eq!(call.reply().await.code(), "0");
    }
}

#[tokio::test]
async fn with_no_replica_left_the_caller_hears_so_at_once_and_one_that_is_back_is_used_again() {
    let gone = Peer::start().await;
    let address = gone.address;
    gone.kill();
    until(|| std::net::TcpStream::connect(address).is_err()).await;
    let gateway = Gateway::over(&[address]);
    let mut caller = gateway.caller().await;
    until(|| gateway.statistics()["replicas"]["w0"]["ejected"] == true).await;
    let begun = Instant::now();
    let reply = caller.infer(request("m")).await;
    assert_eq!((reply.code(), reply.reason()), ("14", "NO_REPLICA"));
    assert!(begun.elapsed() < Duration::from_millis(500));

    let back = Peer::at(address).await;
    until(|| gateway.statistics()["replicas"]["w0"]["ejected"] == false).await;
    let call = caller.send(INFER, &[], request("m"));
    back.next().await.answer(framed(b"back"));
    assert_eq!(call.reply().await.code(), "0");
    assert_eq!(gateway.statistics()["replicas"]["w0"]["ejected_for_ms"], 0);
}

#[tokio::test]
async fn a_frozen_replica_is_found_within_two_seconds() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(INFER, &[], request("m"));
    let _seen = peer.next().await;
    peer.freeze();
    let begun = Instant::now();
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("14", "WORKER_LOST"));
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    // A connection that a frozen process "accepts" is none.
    let reply = caller.infer(request("m")).await;
    assert_eq!((reply.code(), reply.reason()), ("14", "NO_REPLICA"));
}

#[tokio::test]
async fn a_leaving_replica_finishes_what_it_has_and_gets_nothing_new_on_that_connection() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let old = caller.send(INFER, &[], request("m"));
    let begun = peer.next().await;
    assert_eq!(begun.connection, 1);
    peer.send_goaway();
    // Requests that cross with the GOAWAY are sent again or find the new connection; none fails.
    let fresh = loop {
        let call = caller.send(INFER, &[], request("m"));
        let seen = peer.next().await;
        let connection = seen.connection;
        seen.answer(framed(b"new"));
        assert_eq!(call.reply().await.code(), "0");
        if connection > 1 {
            break connection;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(fresh, 2);
    begun.answer(framed(b"old"));
    let reply = soon(old.reply()).await;
    assert_eq!((reply.code(), &reply.body[5..]), ("0", &b"old"[..]));
}

#[tokio::test]
async fn requests_of_one_sequence_stay_with_one_replica() {
    use crate::support::{field, routes};
    use headrace_front::config::FrontConfig;

    let (one, two) = (Peer::start().await, Peer::start().await);
    let mut table: serde_json::Value =
        serde_json::from_str(&routes(&[one.address, two.address])).unwrap();
    table["models"]["m"]["sticky"] = "sequence_id".into();
    let gateway = Gateway::start(FrontConfig::default(), &table.to_string());
    let mut caller = gateway.caller().await;
    let mut used = std::collections::HashSet::new();
    for sequence in 1..=16_u8 {
        // parameters { "sequence_id": int64_param }
        let mut entry = field(1, b"sequence_id");
        entry.extend(field(2, &[2 << 3, sequence]));
        let mut message = field(1, b"m");
        message.extend(field(4, &entry));
        let mut homes = std::collections::HashSet::new();
        for _ in 0..4 {
            let call = caller.send(INFER, &[], framed(&message));
            let (seen, other) = whoever(&one, &two).await;
            homes.insert(other.address);
            seen.answer(framed(b""));
            assert_eq!(call.reply().await.code(), "0");
        }
        assert_eq!(homes.len(), 1, "sequence {sequence}");
        used.extend(homes);
    }
    assert_eq!(used.len(), 2);
}
