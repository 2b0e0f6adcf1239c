//! What replies look like on the wire, and what a model may not return.

use bytes::Bytes;
use headrace_tensor::{
    Admitted, Datatype, OutputData, OutputView, Signature, check_outputs, encode_reply,
    encode_stream_end, encode_stream_error, encode_stream_reply,
};

use crate::messages::{
    Choice, Contents, Request, Response, StreamResponse, floats, framed, identity, signature, some,
    spec, unframe,
};

fn typed_request() -> Request {
    let contents = Contents {
        fp32s: vec![0.0],
        ..Contents::default()
    };
    let mut request = Request::new().input("x", "FP32", &[1, 1]).typed(contents);
    request.id = "seven".into();
    request
}

/// A model from one float to an output of this datatype.
fn model(datatype: Datatype) -> Signature {
    let mut model = identity(Datatype::Fp32, &[-1, 1]);
    model.outputs[0] = spec("y", datatype, &[-1, -1], Some(0));
    model
}

fn reply(model: &Signature, request: &Request, outputs: &[OutputView<'_>], first: u32) -> Response {
    let (message, admitted) = request.admit(model).unwrap();
    let wanted: Vec<usize> = (0..model.outputs.len()).collect();
    let mut out = Vec::new();
    encode_reply(
        &mut out, model, &message, &admitted, first, &wanted, outputs,
    )
    .unwrap();
    unframe(&out)
}

#[test]
fn a_typed_reply_holds_the_same_values_for_every_datatype() {
    let raw = |datatype, raw: &[u8], elements: i64| {
        // Two rows before it, so that the third is the request's.
        let all = [raw, raw, raw].concat();
        let mut all = all;
        let before = all.len() - raw.len();
        all[..before].fill(0);
        let shape = [3, elements];
        let view = OutputView {
            shape: &shape,
            data: OutputData::Raw(&all),
        };
        let reply = reply(&model(datatype), &typed_request(), &[view], 2);
        assert!(reply.raw.is_empty());
        assert_eq!(reply.id, "seven");
        assert_eq!(reply.outputs[0].datatype, datatype.name());
        assert_eq!(reply.outputs[0].shape, [1, elements]);
        reply.outputs[0].contents.clone().unwrap()
    };
    let le = |values: &[i64], size: usize| -> Vec<u8> {
        values
            .iter()
            .flat_map(|it| it.to_le_bytes()[..size].to_vec())
            .collect()
    };
    assert_eq!(
        raw(Datatype::Bool, &[1, 0, 1], 3).bools,
        [true, false, true]
    );
    assert_eq!(
        raw(Datatype::Int8, &le(&[-128, 127], 1), 2).ints,
        [-128, 127]
    );
    assert_eq!(
        raw(Datatype::Int16, &le(&[-32768, 5], 2), 2).ints,
        [-32768, 5]
    );
    assert_eq!(
        raw(Datatype::Int32, &le(&[i32::MIN.into(), 5], 4), 2).ints,
        [i32::MIN, 5]
    );
    assert_eq!(
        raw(Datatype::Int64, &le(&[i64::MIN, 5], 8), 2).int64s,
        [i64::MIN, 5]
    );
    assert_eq!(raw(Datatype::Uint8, &[255, 0], 2).uints, [255, 0]);
    assert_eq!(
        raw(Datatype::Uint16, &le(&[65535, 300], 2), 2).uints,
        [65535, 300]
    );
    assert_eq!(
        raw(Datatype::Uint32, &le(&[u32::MAX.into(), 1], 4), 2).uints,
        [u32::MAX, 1]
    );
    assert_eq!(
        raw(Datatype::Uint64, &le(&[-1, 1], 8), 2).uint64s,
        [u64::MAX, 1]
    );
    assert_eq!(
        raw(Datatype::Fp32, &floats(&[-0.0, 1.5]), 2).fp32s,
        [-0.0, 1.5]
    );
    let doubles: Vec<u8> = [1.5_f64, -2.0]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    assert_eq!(raw(Datatype::Fp64, &doubles, 2).fp64s, [1.5, -2.0]);
    assert_eq!(raw(Datatype::Fp32, &[], 0), Contents::default());
}

#[test]
fn strings_are_answered_typed_or_raw_as_they_were_asked() {
    let model = model(Datatype::Bytes);
    let strings: [&[u8]; 4] = [b"other", b"caller", b"ab\0", b""];
    let view = OutputView {
        shape: &[2, 2],
        data: OutputData::Strings(&strings),
    };
    let typed = reply(&model, &typed_request(), &[view], 1);
    let contents = typed.outputs[0].contents.as_ref().unwrap();
    assert_eq!(contents.bytes, [&b"ab\0"[..], b""]);
    let raw = Request::new().input("x", "FP32", &[1, 1]).raw([0; 4]);
    let raw = reply(&model, &raw, &[view], 1);
    assert_eq!(raw.raw, [framed(&strings[2..])]);
    assert_eq!(raw.outputs[0].contents, None);
}

#[test]
fn a_typed_request_for_half_precision_is_answered_raw_throughout() {
    let mut model = model(Datatype::Fp32);
    model
        .outputs
        .push(spec("h", Datatype::Fp16, &[-1], Some(0)));
    let views = [
        OutputView {
            shape: &[1, 1],
            data: OutputData::Raw(&[0, 0, 0x80, 0x3f]),
        },
        OutputView {
            shape: &[1],
            data: OutputData::Raw(&[1, 0x7e]),
        },
    ];
    let reply = reply(&model, &typed_request(), &views, 0);
    assert_eq!(reply.raw, [vec![0, 0, 0x80, 0x3f], vec![1, 0x7e]]);
    assert!(reply.outputs.iter().all(|it| it.contents.is_none()));
}

#[test]
fn a_scalar_output_has_an_empty_shape() {
    let mut model = model(Datatype::Int64);
    model.outputs[0] = spec("y", Datatype::Int64, &[], None);
    model.batching = false;
    let view = OutputView {
        shape: &[],
        data: OutputData::Raw(&[9, 0, 0, 0, 0, 0, 0, 0]),
    };
    let reply = reply(&model, &typed_request(), &[view], 0);
    assert!(reply.outputs[0].shape.is_empty());
    assert_eq!(reply.outputs[0].contents.as_ref().unwrap().int64s, [9]);
}

#[test]
fn a_model_that_does_not_batch_is_answered_whole() {
    let mut model = model(Datatype::Uint8);
    model.batching = false;
    let view = OutputView {
        shape: &[7],
        data: OutputData::Raw(&[1, 2, 3, 4, 5, 6, 7]),
    };
    assert_eq!(check_outputs(&model, 1, &[0], &[view]), Ok(()));
    let reply = reply(&model, &typed_request(), &[view], 0);
    assert_eq!(reply.outputs[0].shape, [7]);
    assert_eq!(
        reply.outputs[0].contents.as_ref().unwrap().uints,
        [1, 2, 3, 4, 5, 6, 7]
    );
}

fn bad(shape: &[i64], data: OutputData<'_>, datatype: Datatype) -> String {
    let view = OutputView { shape, data };
    let error = check_outputs(&model(datatype), 2, &[0], &[view]).unwrap_err();
    error.message
}

#[test]
fn outputs_that_do_not_add_up_are_told_and_never_cut() {
    let raw = OutputData::Raw(&[0; 8]);
    assert_eq!(
        bad(&[1, 2], raw, Datatype::Fp32),
        "output 'y': expected 2 rows along dimension 0, got shape [1,2]"
    );
    assert!(bad(&[], raw, Datatype::Fp32).contains("expected 2 rows"));
    assert_eq!(
        bad(&[2, 2], raw, Datatype::Fp32),
        "output 'y': expected 16 bytes for FP32 [2,2], got 8"
    );
    assert!(bad(&[2, -1], raw, Datatype::Fp32).contains("shape [2,-1] is not one of a tensor"));
    assert!(bad(&[2, i64::MAX], raw, Datatype::Fp32).contains("not one of a tensor"));
    assert!(bad(&[2, 1], raw, Datatype::Bytes).contains("expected strings, got numbers"));
    let strings = OutputData::Strings(&[b"a"]);
    assert!(bad(&[2, 1], strings, Datatype::Fp32).contains("expected FP32, got strings"));
    assert!(bad(&[2, 1], strings, Datatype::Bytes).contains("expected 2 strings"));
    let model = model(Datatype::Fp32);
    let none = check_outputs(&model, 1, &[0], &[]).unwrap_err();
    assert_eq!(none.to_string(), "expected 1 outputs, got 0");
}

#[test]
fn declared_output_dims_that_are_wrong_do_no_harm() {
    let mut model = model(Datatype::Uint8);
    model.outputs[0].dims = vec![-1, 5];
    let view = OutputView {
        shape: &[1, 2, 2],
        data: OutputData::Raw(&[1, 2, 3, 4]),
    };
    assert_eq!(check_outputs(&model, 1, &[0], &[view]), Ok(()));
    assert_eq!(
        reply(&model, &typed_request(), &[view], 0).outputs[0].shape,
        [1, 2, 2]
    );
}

fn admitted(model: &Signature) -> (Bytes, Admitted) {
    typed_request().admit(model).unwrap()
}

#[test]
fn a_stream_wraps_answers_and_says_which_is_the_last() {
    let model = model(Datatype::Uint8);
    let (message, admitted) = admitted(&model);
    let view = [OutputView {
        shape: &[1, 1],
        data: OutputData::Raw(&[3]),
    }];
    for last in [None, Some(false), Some(true)] {
        let mut out = Vec::new();
        encode_stream_reply(&mut out, &model, &message, &admitted, 0, &[0], &view, last).unwrap();
        let reply: StreamResponse = unframe(&out);
        let response = reply.response.unwrap();
        assert_eq!(response.outputs[0].contents.as_ref().unwrap().uints, [3]);
        let told = response.parameters.get("triton_final_response").cloned();
        assert_eq!(told, last.map(|it| some(Choice::Bool(it))));
    }
    let mut out = Vec::new();
    encode_stream_end(&mut out, &model, &message, &admitted).unwrap();
    let end = unframe::<StreamResponse>(&out).response.unwrap();
    assert!(end.outputs.is_empty());
    assert_eq!(
        end.parameters["triton_final_response"],
        some(Choice::Bool(true))
    );
    assert_eq!((end.model.as_str(), end.id.as_str()), ("m", "seven"));
}

#[test]
fn an_error_in_a_stream_carries_its_requests_id() {
    let mut out = Vec::new();
    encode_stream_error(&mut out, b"seven", "no such model").unwrap();
    let reply: StreamResponse = unframe(&out);
    assert_eq!(reply.error, "no such model");
    assert_eq!(reply.response.unwrap().id, "seven");
}

#[test]
fn replies_follow_one_another_in_one_buffer() {
    let model = signature(
        vec![spec("x", Datatype::Fp32, &[-1, 1], Some(0))],
        vec![spec("y", Datatype::Uint8, &[-1, 1], Some(0))],
    );
    let (message, admitted) = admitted(&model);
    let view = [OutputView {
        shape: &[2, 1],
        data: OutputData::Raw(&[8, 9]),
    }];
    let mut out = Vec::new();
    let mut ends = Vec::new();
    for row in 0..2 {
        encode_reply(&mut out, &model, &message, &admitted, row, &[0], &view).unwrap();
        ends.push(out.len());
    }
    for (row, frame) in [&out[..ends[0]], &out[ends[0]..]].into_iter().enumerate() {
        let reply: Response = unframe(frame);
        assert_eq!(
            reply.outputs[0].contents.as_ref().unwrap().uints,
            [8 + row as u32]
        );
    }
}
