//! The worker's front over real sockets: what callers get when all goes well, and when it does not.
#![allow(
    clippy::unwrap_used,
    reason = "clippy's exception for tests does not reach helper functions"
)]
#![allow(clippy::float_cmp, reason = "doubling is exact")]
#![allow(unreachable_pub, reason = "nothing is public of a test binary")]

mod models;
mod wire;

use bytes::{Bytes, BytesMut};
use flate2::{Compression, write::GzEncoder};
use headrace_front::config::FrontConfig;
use headrace_front::worker::State;
use models::{BAD_ROW, Doubler, PANIC_ROW, SHORT_ROW, catalog, worker, worker_with};
use prost::Message;
use std::io::Write;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use wire::{
    Choice, Client, INFER, InferParameter, InferRequest, STREAM, frame, read, request, values,
};

const DEFAULTS: &str = "{}";

/// A condition that comes true within ten seconds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "{what} within 10 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn statistic(front: &headrace_front::worker::WorkerFront, path: &str) -> u64 {
    let document: serde_json::Value = serde_json::from_str(&front.statistics()).unwrap();
    document
        .pointer(path)
        .unwrap_or_else(|| panic!("{path} in {document}"))
        .as_u64()
        .unwrap()
}

const WAITING: &str = "/models/0/queue_depth/requests";

#[tokio::test]
async fn every_caller_gets_its_own_rows_and_id() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 2, DEFAULTS);
    let client = Client::connect(front.address()).await;
    let mut calls = JoinSet::new();
    for unique in 0_u16..400 {
        let client = client.clone();
        calls.spawn(async move {
            let rows: Vec<f32> = (0..=unique % 4)
                .map(|row| f32::from(unique) + f32::from(row) * 1000.0)
                .collect();
            let mut asked = request("double", &rows);
            asked.id = unique.to_string();
            let answer = client.infer(&asked).await.answer();
            assert_eq!(answer.id, asked.id);
            assert_eq!(
                values(&answer),
                rows.iter().map(|row| row * 2.0).collect::<Vec<_>>()
            );
            assert_eq!(answer.outputs[0].shape, [rows.len() as i64, 1]);
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert!(
        doubler.executed().iter().all(|rows| rows.len() <= 8),
        "no batch is larger than the limit in rows"
    );
}

#[tokio::test]
async fn requests_that_wait_for_one_instance_run_as_one_batch() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    doubler.close();
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.infer(&request("double", &[1.0])).await }
    });
    doubler.until_waiting(1).await;
    let mut calls = JoinSet::new();
    for value in [2.0, 3.0, 4.0] {
        let client = client.clone();
        calls.spawn(
            async move { values(&client.infer(&request("double", &[value])).await.answer()) },
        );
    }
    eventually("three requests wait", || statistic(&front, WAITING) == 3).await;
    doubler.open();
    assert_eq!(values(&first.await.unwrap().answer()), [2.0]);
    while calls.join_next().await.is_some() {}
    assert_eq!(doubler.executed().len(), 2);
    assert_eq!(doubler.executed()[1].len(), 3);
}

#[tokio::test]
async fn a_bad_row_fails_alone() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    for (bad, code, reason) in [
        (BAD_ROW, 3, "INVALID_TENSOR"),
        (SHORT_ROW, 13, "INFERENCE_FAILED"),
    ] {
        doubler.close();
        let blocker = tokio::spawn({
            let client = client.clone();
            async move { client.infer(&request("double", &[0.0])).await }
        });
        doubler.until_waiting(1).await;
        let mut calls = JoinSet::new();
        for value in [5.0, bad, 7.0] {
            let client = client.clone();
            calls.spawn(async move { (value, client.infer(&request("double", &[value])).await) });
        }
        eventually("three requests wait", || statistic(&front, WAITING) == 3).await;
        doubler.open();
        blocker.await.unwrap().answer();
        while let Some(call) = calls.join_next().await {
            let (value, reply) = call.unwrap();
            if value == bad {
                assert_eq!((reply.code, reply.reason.as_str()), (code, reason));
            } else {
                assert_eq!(values(&reply.answer()), [value * 2.0]);
            }
        }
    }
}

#[tokio::test]
async fn a_panic_fails_its_batch_and_the_loop_lives() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    for _ in 0..3 {
        let reply = client.infer(&request("double", &[PANIC_ROW])).await;
        assert_eq!((reply.code, reply.reason.as_str()), (13, "INTERNAL"));
        assert_eq!(
            values(&client.infer(&request("double", &[4.0])).await.answer()),
            [8.0]
        );
    }
}

#[tokio::test]
async fn a_deadline_is_answered_when_it_passes_not_when_the_running_batch_ends() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    doubler.close();
    let blocker = tokio::spawn({
        let client = client.clone();
        async move { client.infer(&request("double", &[1.0])).await }
    });
    doubler.until_waiting(1).await;
    let begun = Instant::now();
    let reply = client
        .infer_with(&request("double", &[2.0]), &[("grpc-timeout", "200m")])
        .await;
    let took = begun.elapsed();
    assert_eq!((reply.code, reply.reason.as_str()), (4, "EXPIRED_IN_QUEUE"));
    assert!(
        took >= Duration::from_millis(199) && took < Duration::from_millis(800),
        "{took:?}"
    );
    doubler.open();
    blocker.await.unwrap().answer();
    assert_eq!(doubler.executed(), [[1.0]], "what expired never ran");
}

#[tokio::test]
async fn cancelled_requests_leave_the_queue_and_never_run() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    doubler.close();
    let blocker = tokio::spawn({
        let client = client.clone();
        async move { client.infer(&request("double", &[1.0])).await }
    });
    doubler.until_waiting(1).await;
    let mut calls = Vec::new();
    for value in 10_u8..30 {
        let body = frame(&request("double", &[f32::from(value)]).encode_to_vec());
        calls.push(client.begin(INFER, &[], body, true).await);
    }
    eventually("twenty requests wait", || statistic(&front, WAITING) == 20).await;
    for (_, stream) in &mut calls[..10] {
        stream.send_reset(h2::Reason::CANCEL);
    }
    eventually("the cancelled ones leave", || {
        statistic(&front, WAITING) == 10
    })
    .await;
    doubler.open();
    blocker.await.unwrap().answer();
    for (index, (response, _)) in calls.into_iter().enumerate().skip(10) {
        assert_eq!(
            values(&read(response).await.answer()),
            [20.0 + 2.0 * index as f32]
        );
    }
    let ran: Vec<f32> = doubler.executed().concat();
    assert!(
        ran.iter().all(|value| *value == 1.0 || *value >= 20.0),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_client_that_vanishes_takes_its_requests_with_it() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let stays = Client::connect(front.address()).await;
    doubler.close();
    let blocker = tokio::spawn({
        let stays = stays.clone();
        async move { stays.infer(&request("double", &[1.0])).await }
    });
    doubler.until_waiting(1).await;
    // Its own runtime, so that dropping it closes the socket without a word.
    let address = front.address();
    let (told, tell) = tokio::sync::oneshot::channel();
    let vanishing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let client = Client::connect(address).await;
            let mut calls = Vec::new();
            for _ in 0..256 {
                let body = frame(&request("double", &[2.0]).encode_to_vec());
                calls.push(client.begin(INFER, &[], body, true).await);
            }
            tell.await.unwrap();
        });
    });
    eventually("256 requests wait", || statistic(&front, WAITING) == 256).await;
    told.send(()).unwrap();
    vanishing.join().unwrap();
    eventually("all of them leave", || statistic(&front, WAITING) == 0).await;
    doubler.open();
    blocker.await.unwrap().answer();
    assert_eq!(
        values(&stays.infer(&request("double", &[3.0])).await.answer()),
        [6.0]
    );
    assert_eq!(doubler.executed().concat(), [1.0, 3.0]);
}

#[tokio::test]
async fn the_queue_limit_is_exact_in_every_wave() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, r#"{"max_queue_requests":10}"#);
    let client = Client::connect(front.address()).await;
    for _wave in 0..4 {
        doubler.close();
        let blocker = tokio::spawn({
            let client = client.clone();
            async move { client.infer(&request("double", &[1.0])).await }
        });
        doubler.until_waiting(1).await;
        let mut calls = JoinSet::new();
        for _ in 0..50 {
            let client = client.clone();
            calls.spawn(async move { client.infer(&request("double", &[2.0])).await });
        }
        let mut refused = 0;
        while refused < 40 {
            let reply = calls.join_next().await.unwrap().unwrap();
            assert_eq!(
                (reply.code, reply.reason.as_str()),
                (8, "QUEUE_FULL"),
                "{}",
                reply.message
            );
            refused += 1;
        }
        assert_eq!(statistic(&front, WAITING), 10);
        doubler.open();
        blocker.await.unwrap().answer();
        while let Some(reply) = calls.join_next().await {
            reply.unwrap().answer();
        }
        assert_eq!(statistic(&front, WAITING), 0);
    }
}

#[tokio::test]
async fn states_of_a_model_have_their_own_codes() {
    let front = worker(&Doubler::default(), 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    let ask = |model: &str, version: &str| InferRequest {
        model_version: version.into(),
        ..request(model, &[1.0])
    };
    for (asked, code, reason) in [
        (ask("nope", ""), 5, "MODEL_NOT_FOUND"),
        (ask("double", "2"), 5, "VERSION_NOT_FOUND"),
        (ask("", ""), 3, "INVALID_REQUEST"),
    ] {
        let reply = client.infer(&asked).await;
        assert_eq!((reply.code, reply.reason.as_str()), (code, reason));
    }
    for (state, code, reason) in [
        (State::Loading, 14, "MODEL_LOADING"),
        (State::Failed, 9, "MODEL_FAILED"),
    ] {
        front.set_catalog(catalog(state, "no such file"));
        let reply = client.infer(&ask("double", "")).await;
        assert_eq!((reply.code, reply.reason.as_str()), (code, reason));
    }
    front.set_catalog(catalog(State::Ready, ""));
    client.infer(&ask("double", "1")).await.answer();
}

#[tokio::test]
async fn broken_framing_is_refused_and_the_connection_lives() {
    let front = worker(&Doubler::default(), 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    let whole = frame(&request("double", &[1.0]).encode_to_vec());
    let mut trailing = BytesMut::from(&whole[..]);
    trailing.extend_from_slice(b"more");
    let mut flagged = BytesMut::from(&whole[..]);
    flagged[0] = 7;
    for body in [
        Bytes::new(),
        whole.slice(..3),
        whole.slice(..whole.len() - 1),
        trailing.freeze(),
        flagged.freeze(),
        frame(&[0xff; 40]),
    ] {
        let reply = client.call(INFER, &[], body).await;
        assert_eq!(
            (reply.code, reply.reason.as_str()),
            (3, "INVALID_REQUEST"),
            "{}",
            reply.message
        );
    }
    let reply = client
        .call(INFER, &[("grpc-timeout", "soon")], whole.clone())
        .await;
    assert_eq!(reply.reason, "INVALID_REQUEST");
    client.call(INFER, &[], whole).await.answer();
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_before_it_is_received() {
    let config = FrontConfig {
        max_message_bytes: 1 << 20,
        ..FrontConfig::default()
    };
    let front = worker_with(&Doubler::default(), 1, DEFAULTS, config);
    let client = Client::connect(front.address()).await;
    let mut head = BytesMut::from(&[0_u8][..]);
    head.extend_from_slice(&200_000_000_u32.to_be_bytes());
    let (response, _stream) = client.begin(INFER, &[], head.freeze(), false).await;
    let reply = tokio::time::timeout(Duration::from_secs(2), read(response))
        .await
        .unwrap();
    assert_eq!(
        (reply.code, reply.reason.as_str()),
        (8, "MESSAGE_TOO_LARGE")
    );
    assert!(
        reply.message.contains("max_message_bytes"),
        "{}",
        reply.message
    );
    client.infer(&request("double", &[1.0])).await.answer();
}

#[tokio::test]
async fn gzip_is_understood_and_bombs_are_not() {
    let config = FrontConfig {
        max_message_bytes: 1 << 20,
        ..FrontConfig::default()
    };
    let front = worker_with(&Doubler::default(), 1, DEFAULTS, config);
    let client = Client::connect(front.address()).await;
    let gzip = |message: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(message).unwrap();
        let mut framed = BytesMut::from(&frame(&encoder.finish().unwrap())[..]);
        framed[0] = 1;
        framed.freeze()
    };
    let good = gzip(&request("double", &[21.0]).encode_to_vec());
    let answer = client
        .call(INFER, &[("grpc-encoding", "gzip")], good.clone())
        .await
        .answer();
    assert_eq!(values(&answer), [42.0]);
    let bomb = client
        .call(
            INFER,
            &[("grpc-encoding", "gzip")],
            gzip(&vec![0; 32 << 20]),
        )
        .await;
    assert_eq!(bomb.reason, "MESSAGE_TOO_LARGE");
    let unknown = client
        .call(INFER, &[("grpc-encoding", "zstd")], good.clone())
        .await;
    assert_eq!((unknown.code, unknown.reason.as_str()), (12, "UNSUPPORTED"));
    assert_eq!(
        client.call(INFER, &[], good).await.reason,
        "INVALID_REQUEST"
    );
}

#[tokio::test]
async fn a_stream_answers_in_the_order_of_its_requests_with_errors_in_band() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 2, DEFAULTS);
    let client = Client::connect(front.address()).await;
    let mut body = BytesMut::new();
    for value in [1.0, BAD_ROW, 3.0] {
        let asked = InferRequest {
            id: value.to_string(),
            ..request("double", &[value])
        };
        body.extend_from_slice(&frame(&asked.encode_to_vec()));
    }
    body.extend_from_slice(&frame(&request("nope", &[4.0]).encode_to_vec()));
    body.extend_from_slice(&frame(&request("double", &[5.0]).encode_to_vec()));
    let reply = client.call(STREAM, &[], body.freeze()).await;
    assert_eq!(reply.code, 0);
    let answers = reply.answers();
    assert_eq!(answers.len(), 5);
    assert_eq!(values(answers[0].infer_response.as_ref().unwrap()), [2.0]);
    assert_eq!(answers[1].error_message, "index out of range");
    assert_eq!(answers[1].infer_response.as_ref().unwrap().id, "-1");
    assert_eq!(values(answers[2].infer_response.as_ref().unwrap()), [6.0]);
    assert!(answers[3].error_message.contains("nope"));
    assert_eq!(values(answers[4].infer_response.as_ref().unwrap()), [10.0]);
}

#[tokio::test]
async fn a_stream_ends_with_a_status_when_its_caller_asks_for_that() {
    let front = worker(&Doubler::default(), 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    let mut body = BytesMut::new();
    for value in [1.0, BAD_ROW, 3.0] {
        body.extend_from_slice(&frame(&request("double", &[value]).encode_to_vec()));
    }
    let reply = client
        .call(STREAM, &[("triton_grpc_error", "true")], body.freeze())
        .await;
    assert_eq!((reply.code, reply.reason.as_str()), (3, "INVALID_TENSOR"));
    assert_eq!(reply.answers().len(), 1);
}

#[tokio::test]
async fn a_model_may_answer_many_times_on_a_stream_and_once_on_a_unary_call() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    doubler.streams(3);
    let mut asked = request("double", &[1.0]);
    let on = InferParameter {
        choice: Some(Choice::Bool(true)),
    };
    asked
        .parameters
        .insert("triton_enable_empty_final_response".into(), on.clone());
    let reply = client
        .call(STREAM, &[], frame(&asked.encode_to_vec()))
        .await;
    let answers = reply.answers();
    assert_eq!(answers.len(), 4, "three answers and the empty last one");
    let last = answers[3].infer_response.as_ref().unwrap();
    assert_eq!(last.parameters["triton_final_response"], on);
    assert!(last.outputs.is_empty());
    let unary = client.infer(&asked).await;
    assert_eq!((unary.code, unary.reason.as_str()), (12, "UNSUPPORTED"));
    assert!(unary.message.contains("ModelStreamInfer"));
    doubler.streams(1);
    assert_eq!(values(&client.infer(&asked).await.answer()), [2.0]);
}

#[tokio::test]
async fn a_stream_whose_caller_goes_frees_its_place() {
    let doubler = Doubler::default();
    let front = worker(&doubler, 1, DEFAULTS);
    let client = Client::connect(front.address()).await;
    doubler.close();
    let first = frame(&request("double", &[1.0]).encode_to_vec());
    let (_response, mut stream) = client.begin(STREAM, &[], first, false).await;
    doubler.until_waiting(1).await;
    stream
        .send_data(frame(&request("double", &[2.0]).encode_to_vec()), false)
        .unwrap();
    eventually("the second waits", || statistic(&front, WAITING) == 1).await;
    stream.send_reset(h2::Reason::CANCEL);
    eventually("it is gone", || statistic(&front, WAITING) == 0).await;
    doubler.open();
    eventually("nothing is in flight", || {
        statistic(&front, "/in_flight") == 0
    })
    .await;
    assert_eq!(doubler.executed(), [[1.0]]);
}

#[tokio::test]
async fn draining_answers_what_is_in_flight_and_takes_nothing_new() {
    let doubler = Doubler::default();
    let front = std::sync::Arc::new(worker(&doubler, 1, DEFAULTS));
    let client = Client::connect(front.address()).await;
    doubler.close();
    let mut calls = JoinSet::new();
    for value in [1.0, 2.0] {
        let client = client.clone();
        calls.spawn(
            async move { values(&client.infer(&request("double", &[value])).await.answer()) },
        );
        if value == 1.0 {
            doubler.until_waiting(1).await;
        }
    }
    eventually("one waits", || statistic(&front, WAITING) == 1).await;
    let draining = tokio::task::spawn_blocking({
        let front = std::sync::Arc::clone(&front);
        move || front.drain(Duration::from_secs(10))
    });
    eventually("the port is closed", || {
        std::net::TcpStream::connect(front.address()).is_err()
    })
    .await;
    doubler.open();
    assert!(draining.await.unwrap(), "everything was answered");
    let mut answers = Vec::new();
    while let Some(call) = calls.join_next().await {
        answers.extend(call.unwrap());
    }
    answers.sort_by(f32::total_cmp);
    assert_eq!(answers, [2.0, 4.0]);
}

#[tokio::test]
async fn a_second_server_on_the_same_port_fails_at_once() {
    let front = worker(&Doubler::default(), 1, DEFAULTS);
    let config = FrontConfig {
        listen: front.address().to_string(),
        ..FrontConfig::default()
    };
    let error = headrace_front::worker::WorkerFront::bind(config)
        .err()
        .expect("the address is in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn a_replaced_version_finishes_what_it_has() {
    let doubler = Doubler::default();
    let front = std::sync::Arc::new(worker(&doubler, 1, DEFAULTS));
    let client = Client::connect(front.address()).await;
    doubler.close();
    let old = tokio::spawn({
        let client = client.clone();
        async move { values(&client.infer(&request("double", &[1.0])).await.answer()) }
    });
    doubler.until_waiting(1).await;
    let removing = tokio::task::spawn_blocking({
        let front = std::sync::Arc::clone(&front);
        move || front.remove("double", "1", Duration::from_secs(10))
    });
    eventually("new requests are refused", || {
        statistic(&front, "/in_flight") == 1 && front.statistics().contains("\"models\":[]")
    })
    .await;
    assert_ne!(client.infer(&request("double", &[2.0])).await.code, 0);
    doubler.open();
    assert!(removing.await.unwrap());
    assert_eq!(old.await.unwrap(), [2.0]);
}
