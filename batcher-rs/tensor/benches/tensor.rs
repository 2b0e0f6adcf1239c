//! What a request costs on its way through this crate: a model of 64 floats in and 10 out, one row a request, raw contents.
//!
//! `cargo bench -p headrace-tensor`. `join` and `encode` are of 64 requests at once: divide by 64.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use headrace_tensor::{
    Admitted, Datatype, OutputData, OutputView, Signature, Slab, TensorSpec, admit, check_outputs,
    encode_reply, join, parse, peek,
};

fn spec(name: &str, dims: &[i64]) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        datatype: Datatype::Fp32,
        dims: dims.into(),
        batch_axis: Some(0),
        optional: false,
    }
}

fn tiny() -> Signature {
    Signature {
        model: "tiny".into(),
        version: "1".into(),
        inputs: vec![spec("input", &[-1, 64])],
        outputs: vec![spec("output", &[-1, 10])],
        max_rows: 64,
        batching: true,
        parameters: Vec::new(),
    }
}

/// The message as a client writes it, by hand: the crate does not write requests.
fn request() -> Bytes {
    let mut message = b"\x0a\x04tiny\x1a\x0942-123456".to_vec();
    let tensor = b"\x0a\x05input\x12\x04FP32\x1a\x02\x01\x40";
    message.extend([0x2a, tensor.len() as u8]);
    message.extend(tensor);
    message.extend([0x3a, 0x80, 0x02]);
    message.extend((0..64_u8).flat_map(|it| f32::from(it).to_le_bytes()));
    message.into()
}

fn steps(criterion: &mut Criterion) {
    let model = tiny();
    let message = request();
    let parsed = parse(&message).expect("a valid message");
    let admitted = admit(&message, &parsed, &model).expect("a valid request");
    assert_eq!(admitted.id.of(&message), b"42-123456");

    criterion.bench_function("parse", |bench| bench.iter(|| parse(black_box(&message))));
    criterion.bench_function("peek", |bench| {
        bench.iter(|| peek(black_box(&message), true));
    });
    criterion.bench_function("admit", |bench| {
        bench.iter(|| admit(black_box(&message), black_box(&parsed), &model));
    });
    criterion.bench_function("parse and admit", |bench| {
        bench.iter(|| {
            let parsed = parse(black_box(&message)).expect("a valid message");
            admit(&message, &parsed, &model)
        });
    });

    let messages: Vec<Bytes> = (0..64).map(|_| Bytes::from(message.to_vec())).collect();
    let entries: Vec<(&Bytes, &Admitted)> = messages.iter().map(|it| (it, &admitted)).collect();
    let mut slab = Slab::new();
    criterion.bench_function("join 64", |bench| {
        bench.iter(|| join(&model, black_box(&entries), &mut slab));
    });

    let raw: Vec<u8> = vec![1; 64 * 40];
    let outputs = [OutputView {
        shape: &[64, 10],
        data: OutputData::Raw(&raw),
    }];
    let mut out = Vec::with_capacity(1 << 16);
    criterion.bench_function("encode 64", |bench| {
        bench.iter(|| {
            out.clear();
            check_outputs(&model, 64, &[0], &outputs).expect("outputs that add up");
            for (row, (message, admitted)) in entries.iter().enumerate() {
                let row = row as u32;
                encode_reply(&mut out, &model, message, admitted, row, &[0], &outputs)
                    .expect("a small reply");
            }
            black_box(out.len())
        });
    });
}

criterion_group!(benches, steps);
criterion_main!(benches);
