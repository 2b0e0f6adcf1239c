//! `ModelStreamInfer` through the gateway.

use std::future::poll_fn;

use bytes::Bytes;
use headrace_front::status::{ok_head, trailers};

use crate::support::{Gateway, Peer, STREAM, Seen, field, framed, message, soon, until};

/// A `ModelStreamInferResponse` whose response has this id.
fn answer(id: &str) -> Vec<u8> {
    field(2, &field(3, id.as_bytes()))
}

/// The id that a request's bytes carry.
fn id_of(body: &Bytes) -> String {
    // prefix, model_name "m", then the id's key and length
    let at = 5 + 3;
    assert_eq!(body[at], 3 << 3 | 2);
    let len = usize::from(body[at + 1]);
    String::from_utf8(body[at + 2..at + 2 + len].to_vec()).unwrap()
}

fn frames(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !body.is_empty() {
        let len = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
        all.push(body[5..5 + len].to_vec());
        body = &body[5 + len..];
    }
    all
}

fn ask(ids: &[&str]) -> Bytes {
    let mut body = Vec::new();
    for id in ids {
        body.extend_from_slice(&framed(&message("m", "", id, 8)));
    }
    body.into()
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests_however_they_are_ready() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(STREAM, &[], ask(&["a", "b", "c"]));
    let mut seen: Vec<(Seen, String)> = Vec::new();
    for _ in 0..3 {
        let mut one = peer.next().await;
        let body = one.read().await;
        seen.push((one, id_of(&body)));
    }
    assert_eq!(
        seen.iter().map(|(_, id)| id.as_str()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
    // Backwards, and the second gives two answers, the third none.
    for (mut one, id) in seen.into_iter().rev() {
        let mut stream = one.respond.send_response(ok_head(), false).unwrap();
        for _ in 0..match id.as_str() {
            "a" => 1,
            "b" => 2,
            _ => 0,
        } {
            stream.send_data(framed(&answer(&id)), false).unwrap();
        }
        stream.send_trailers(trailers(None)).unwrap();
    }
    let reply = call.reply().await;
    assert_eq!(reply.code(), "0");
    assert_eq!(frames(&reply.body), [answer("a"), answer("b"), answer("b")]);
}

#[tokio::test]
async fn a_failed_message_is_told_of_in_band_and_the_others_go_on() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let mut body = ask(&["a", "b"]).to_vec();
    body.extend_from_slice(&framed(&message("nobody", "", "c", 0)));
    body.extend_from_slice(&ask(&["d"]));
    let call = caller.send(STREAM, &[], body.into());
    for _ in 0..3 {
        let mut one = peer.next().await;
        let id = id_of(&one.read().await);
        if id == "b" {
            one.refuse("13", "INFERENCE_FAILED");
        } else {
            one.answer(framed(&answer(&id)));
        }
    }
    let reply = call.reply().await;
    assert_eq!(reply.code(), "0");
    let frames = frames(&reply.body);
    assert_eq!(frames.len(), 4);
    assert_eq!((&frames[0], &frames[3]), (&answer("a"), &answer("d")));
    let mut told = field(1, b"no!");
    told.extend(answer("b"));
    assert_eq!(frames[1], told);
    assert!(frames[2].windows(6).any(|part| part == b"nobody"));
    assert!(frames[2].ends_with(&answer("c")));
}

#[tokio::test]
async fn a_caller_that_wants_grpc_errors_gets_the_status_of_the_first_failure_in_order() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(
        STREAM,
        &[("triton_grpc_error", "true")],
        ask(&["a", "b", "c"]),
    );
    for _ in 0..3 {
        let mut one = peer.next().await;
        assert_eq!(one.header("triton_grpc_error"), Some("true"));
        let id = id_of(&one.read().await);
        if id == "b" {
            one.refuse("13", "INFERENCE_FAILED");
        } else {
            one.answer(framed(&answer(&id)));
        }
    }
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("13", "INFERENCE_FAILED"));
    assert_eq!(frames(&reply.body), [answer("a")]);
}

#[tokio::test]
async fn a_stream_whose_answers_do_not_come_is_not_read_from_without_end() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let ids: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let call = caller.send(STREAM, &[], ask(&ids));
    let outstanding = || {
        gateway.statistics()["replicas"]["w0"]["outstanding"]
            .as_u64()
            .unwrap()
    };
    until(|| outstanding() == 8).await;
    let mut most = 0;
    let serving = async {
        for id in &ids {
            let mut one = peer.next().await;
            assert_eq!(id_of(&one.read().await), *id);
            most = most.max(outstanding());
            one.answer(framed(&answer(id)));
        }
    };
    let (reply, ()) = tokio::join!(call.reply(), serving);
    assert_eq!(reply.code(), "0");
    assert_eq!(
        frames(&reply.body),
        ids.iter().map(|id| answer(id)).collect::<Vec<_>>()
    );
    assert!(most <= 64, "{most}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_the_stream_and_says_why() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(STREAM, &[], ask(&["a", "b"]));
    let mut one = peer.next().await;
    let mut stream = one.respond.send_response(ok_head(), false).unwrap();
    stream
        .send_data(framed(&answer("a")).slice(..6), false)
        .unwrap();
    let mut body = soon(call.response).await.unwrap().into_body();
    let begun = soon(poll_fn(|cx| body.poll_data(cx)))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(begun.len(), 6);
    stream.send_reset(h2::Reason::INTERNAL_ERROR);
    let ending = soon(async {
        while poll_fn(|cx| body.poll_data(cx)).await.is_some() {}
        poll_fn(|cx| body.poll_trailers(cx)).await
    });
    let ending = ending.await.unwrap().unwrap();
    assert_eq!(ending.get("grpc-status").unwrap(), "14");
    assert_eq!(ending.get("headrace-reason").unwrap(), "WORKER_LOST");
}

#[tokio::test]
async fn a_caller_that_leaves_cancels_every_message_that_is_under_way() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let call = caller.send(STREAM, &[], ask(&["a", "b", "c"]));
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(peer.next().await);
    }
    drop(call);
    for mut one in seen {
        assert_eq!(one.reset().await, h2::Reason::CANCEL);
    }
    until(|| gateway.statistics()["in_flight"] == 0).await;
}

#[tokio::test]
async fn the_callers_deadline_ends_the_stream() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let mut call = caller.open(STREAM, &[("grpc-timeout", "300m")]);
    call.stream.send_data(ask(&["a"]), false).unwrap();
    let mut one = soon(peer.next()).await;
    let reply = call.reply().await;
    assert_eq!((reply.code(), reply.reason()), ("4", "DEADLINE_EXCEEDED"));
    assert_eq!(one.reset().await, h2::Reason::CANCEL);
}

#[tokio::test]
async fn a_large_message_arrives_whole_though_the_replica_begins_its_answer_first() {
    let peer = Peer::start().await;
    let gateway = Gateway::over(&[peer.address]);
    let mut caller = gateway.caller().await;
    let sent = framed(&message("m", "", "a", 8 << 20));
    let call = caller.send(STREAM, &[], sent.clone());
    let replica = async {
        let mut one = peer.next().await;
        // As a worker does: a stream's head goes out before the first message is whole.
        let mut stream = one.respond.send_response(ok_head(), false).unwrap();
        let body = one.read().await;
        stream.send_data(framed(&answer("a")), false).unwrap();
        stream.send_trailers(trailers(None)).unwrap();
        body
    };
    let (reply, came) = soon(async { tokio::join!(call.reply(), replica) }).await;
    assert!(came == sent, "{} of {} bytes came", came.len(), sent.len());
    assert_eq!(frames(&reply.body), [answer("a")]);
}
