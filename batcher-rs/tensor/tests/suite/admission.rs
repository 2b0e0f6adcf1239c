//! Every rule that a request must keep, and what is said when it does not.

use std::time::Duration;

use headrace_tensor::{Datatype, ParameterValue, SequenceId, Signature, parse};

use crate::messages::{Choice, Contents, Request, framed, identity, signature, some, spec};

fn fp32(rows: i64) -> Request {
    Request::new()
        .input("x", "FP32", &[rows, 4])
        .raw(vec![0; rows.max(0) as usize * 16])
}

fn two_inputs() -> Signature {
    signature(
        vec![
            spec("ids", Datatype::Int64, &[-1, -1], Some(0)),
            spec("mask", Datatype::Int64, &[-1, -1], Some(0)),
        ],
        vec![
            spec("probs", Datatype::Fp32, &[-1, 2], Some(0)),
            spec("label", Datatype::Int64, &[-1], Some(0)),
        ],
    )
}

#[test]
fn raw_and_typed_contents_together_are_refused_whichever_input_has_which() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let contents = Contents {
        fp32s: vec![1.0, 2.0, 3.0, 4.0],
        ..Contents::default()
    };
    assert_eq!(
        fp32(1).typed(contents).refusal(&model),
        "inputs[x].contents: input 'x': has fp32_contents although the request has raw_input_contents; a request is all raw or all typed"
    );
    let contents = Contents {
        int64s: vec![1],
        ..Contents::default()
    };
    let request = Request::new()
        .input("ids", "INT64", &[1, 1])
        .typed(contents)
        .input("mask", "INT64", &[1, 1])
        .raw([0; 8]);
    assert!(
        request
            .refusal(&two_inputs())
            .starts_with("inputs[ids].contents:")
    );
}

#[test]
fn an_empty_contents_message_beside_raw_contents_is_no_mix() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let (_, admitted) = fp32(1).typed(Contents::default()).admit(&model).unwrap();
    assert!(admitted.raw_reply);
}

#[test]
fn the_number_of_raw_contents_must_be_that_of_the_inputs() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    assert_eq!(
        fp32(1).raw([0; 16]).refusal(&model),
        "raw_input_contents: expected one raw_input_contents for each of 1 inputs, got 2"
    );
}

#[test]
fn negative_dimensions_are_refused_one_by_one_whatever_their_product() {
    let model = identity(Datatype::Int8, &[-1, -1]);
    for (shape, bytes, dimension) in [([-1, 8], 32, 0), ([2, -4], 8, 1), ([-1, -8], 8, 0)] {
        let request = Request::new()
            .input("x", "INT8", &shape)
            .raw(vec![0; bytes]);
        let refusal = request.refusal(&model);
        let expected = format!(
            "inputs[x].shape: input 'x': dimension {dimension} is {} in [{},{}]; only a model's metadata may hold -1",
            shape[dimension], shape[0], shape[1]
        );
        assert!(refusal.starts_with(&expected), "{refusal}");
    }
}

#[test]
fn element_counts_that_overflow_are_refused() {
    let model = identity(Datatype::Fp64, &[-1, -1, -1]);
    for shape in [[1, i64::MAX, 2], [1, 1 << 32, 1 << 32], [1, 0, i64::MAX]] {
        let refusal = Request::new()
            .input("x", "FP64", &shape)
            .raw([])
            .refusal(&model);
        assert!(refusal.contains("overflows"), "{refusal}");
    }
}

#[test]
fn an_empty_tensor_is_served_but_zero_rows_are_not() {
    let model = identity(Datatype::Fp32, &[-1, -1]);
    let empty = Request::new().input("x", "FP32", &[1, 0]);
    assert_eq!(empty.clone().raw([]).admit(&model).unwrap().1.rows, 1);
    assert_eq!(empty.admit(&model).unwrap().1.rows, 1);
    assert_eq!(
        Request::new()
            .input("x", "FP32", &[0, 4])
            .raw([])
            .refusal(&model),
        "inputs[x].shape: input 'x': batch must be ≥ 1, dimension 0 of [0,4] is 0"
    );
}

#[test]
fn a_request_above_the_row_limit_is_told_the_limit() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    assert_eq!(fp32(8).admit(&model).unwrap().1.rows, 8);
    assert_eq!(
        fp32(9).refusal(&model),
        "inputs[x].shape: input 'x': dimension 0 of [9,4] is 9 rows; model 'm' takes at most 8 a request"
    );
    assert!(
        Request::new()
            .input("x", "FP32", &[1 << 40, 4])
            .refusal(&model)
            .contains("at most 8")
    );
}

#[test]
fn inputs_that_disagree_on_the_rows_are_refused_with_both_names() {
    let request = Request::new()
        .input("ids", "INT64", &[2, 8])
        .raw([0; 128])
        .input("mask", "INT64", &[3, 8])
        .raw([0; 192]);
    assert_eq!(
        request.refusal(&two_inputs()),
        "inputs[mask].shape: input 'mask': dimension 0 of [3,8] is 3 rows, but input 'ids' has 2; all inputs of a request must agree"
    );
    let scalar = Request::new()
        .input("ids", "INT64", &[1, 8])
        .raw([0; 64])
        .input("mask", "INT64", &[])
        .raw([0; 8]);
    assert!(
        scalar
            .refusal(&two_inputs())
            .contains("expected 2 dimensions [-1,-1], got 0 []")
    );
}

#[test]
fn a_model_that_does_not_batch_takes_exactly_its_own_shape() {
    let mut model = identity(Datatype::Fp32, &[1, 4]);
    model.batching = false;
    assert_eq!(fp32(1).admit(&model).unwrap().1.rows, 1);
    assert_eq!(
        fp32(2).refusal(&model),
        "inputs[x].shape: input 'x': expected shape [1,4], got [2,4]: dimension 0 must be 1"
    );
    model.inputs[0].dims = vec![-1, 4];
    assert_eq!(fp32(100).admit(&model).unwrap().1.rows, 1);
    assert_eq!(fp32(0).admit(&model).unwrap().1.rows, 1);
}

#[test]
fn a_scalar_input_is_served_as_one_element() {
    let scalar = signature(vec![spec("k", Datatype::Int64, &[], None)], vec![]);
    let request = Request::new()
        .input("k", "INT64", &[])
        .raw([7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(request.admit(&scalar).unwrap().1.rows, 1);
}

#[test]
fn a_wrong_rank_is_told_with_the_likely_reason() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    assert_eq!(
        Request::new()
            .input("x", "FP32", &[4])
            .raw([0; 16])
            .refusal(&model),
        "inputs[x].shape: input 'x': expected 2 dimensions [-1,4], got 1 [4]; dimension 0 counts rows, also when there is only one"
    );
    let fixed = Request::new().input("x", "FP32", &[1, 5]).raw([0; 20]);
    assert!(
        fixed
            .refusal(&model)
            .ends_with("got [1,5]: dimension 1 must be 4")
    );
}

#[test]
fn a_wrong_datatype_is_refused_even_where_the_bytes_would_fit() {
    let model = identity(Datatype::Int64, &[-1]);
    assert_eq!(
        Request::new()
            .input("x", "UINT8", &[8])
            .raw([0; 8])
            .refusal(&model),
        "inputs[x].datatype: input 'x': expected datatype INT64, got UINT8"
    );
    assert!(
        Request::new()
            .input("x", "", &[1])
            .raw([0; 8])
            .refusal(&model)
            .ends_with("got none")
    );
}

#[test]
fn raw_contents_must_have_exactly_the_bytes_of_their_shape() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    for bytes in [0, 15, 17, 32] {
        let request = Request::new()
            .input("x", "FP32", &[1, 4])
            .raw(vec![0; bytes]);
        assert_eq!(
            request.refusal(&model),
            format!("inputs[x].contents: input 'x': expected 16 bytes for FP32 [1,4], got {bytes}")
        );
    }
}

#[test]
fn missing_contents_are_told_as_such() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    assert_eq!(
        Request::new().input("x", "FP32", &[1, 4]).refusal(&model),
        "inputs[x].contents: input 'x': expected 4 values for [1,4], got neither fp32_contents nor raw_input_contents"
    );
}

#[test]
fn a_bool_is_zero_or_one() {
    let model = identity(Datatype::Bool, &[-1]);
    let request = |raw: [u8; 3]| Request::new().input("x", "BOOL", &[3]).raw(raw);
    assert!(request([0, 1, 1]).admit(&model).is_ok());
    assert_eq!(
        request([0, 1, 2]).refusal(&model),
        "inputs[x].contents: input 'x': element 2 is 2, a BOOL is 0 or 1"
    );
}

#[test]
fn unknown_missing_and_repeated_inputs_are_named() {
    let model = two_inputs();
    let ids = Request::new().input("ids", "INT64", &[1, 1]).raw([0; 8]);
    assert_eq!(
        ids.clone()
            .input("nope", "INT64", &[1, 1])
            .raw([0; 8])
            .refusal(&model),
        "UNKNOWN_TENSOR inputs[nope]: input 'nope': unknown; model 'm' expects 'ids' or 'mask'"
    );
    assert_eq!(
        ids.clone()
            .input("ids", "INT64", &[1, 1])
            .raw([0; 8])
            .refusal(&model),
        "inputs[ids]: input 'ids': given more than once"
    );
    assert_eq!(
        ids.refusal(&model),
        "inputs[mask]: input 'mask': missing; model 'm' needs it"
    );
    assert_eq!(
        Request::new().refusal(&model),
        "inputs[ids] inputs[mask]: inputs 'ids', 'mask' are missing; model 'm' needs them"
    );
}

#[test]
fn an_optional_input_may_be_left_out_and_then_makes_another_batch() {
    let mut model = two_inputs();
    model.inputs[1].optional = true;
    let ids = Request::new().input("ids", "INT64", &[1, 1]).raw([0; 8]);
    let (_, without) = ids.clone().admit(&model).unwrap();
    let (_, with) = ids
        .input("mask", "INT64", &[1, 1])
        .raw([0; 8])
        .admit(&model)
        .unwrap();
    assert_ne!(without.key, with.key);
}

#[test]
fn requested_outputs_are_checked_and_keep_the_callers_order() {
    let model = two_inputs();
    let request = || {
        Request::new()
            .input("mask", "INT64", &[1, 1])
            .raw([0; 8])
            .input("ids", "INT64", &[1, 1])
            .raw([0; 8])
    };
    let order = |request: Request| -> Vec<usize> {
        request.admit(&model).unwrap().1.wanted(&model).collect()
    };
    assert_eq!(order(request()), [0, 1]);
    assert_eq!(order(request().output("label").output("probs")), [1, 0]);
    assert_eq!(order(request().output("label")), [1]);
    assert_eq!(
        request().output("probs").output("nope").refusal(&model),
        "UNKNOWN_TENSOR outputs[nope]: output 'nope': unknown; model 'm' gives 'probs' or 'label'"
    );
    assert_eq!(
        request().output("probs").output("probs").refusal(&model),
        "outputs[probs]: output 'probs': requested more than once"
    );
}

#[test]
fn strings_must_be_framed_and_utf8_with_the_element_named() {
    let model = identity(Datatype::Bytes, &[-1]);
    let request = |elements: &[&[u8]]| {
        Request::new()
            .input("x", "BYTES", &[3])
            .raw(framed(elements))
    };
    assert!(
        request(&[b"ab\0cd\0", b"", "🙂".as_bytes()])
            .admit(&model)
            .is_ok()
    );
    assert_eq!(
        request(&[b"a", b"\xff\xfe\x80", b"b"]).refusal(&model),
        "inputs[x].contents: input 'x': BYTES element 1 is not UTF-8"
    );
    assert!(
        request(&[b"a", b"b"])
            .refusal(&model)
            .contains("BYTES element 2 ends past the 10 bytes sent; expected 3 elements for [3]")
    );
    assert!(
        request(&[b"a", b"a", b"a", b"a"])
            .refusal(&model)
            .ends_with("got 5 more bytes after them")
    );
    let typed = Contents {
        bytes: vec![b"a".to_vec(), b"b".to_vec(), vec![0xff]],
        ..Contents::default()
    };
    let typed = Request::new().input("x", "BYTES", &[3]).typed(typed);
    assert!(
        typed
            .refusal(&model)
            .ends_with("BYTES element 2 is not UTF-8")
    );
}

#[test]
fn names_from_callers_are_cut_in_what_is_said() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let name = "n\n".repeat(500_000);
    let invalid = Request::new()
        .input(&name, "FP32", &[1, 4])
        .raw([0; 16])
        .admit(&model)
        .unwrap_err();
    assert!(invalid.message.len() < 300 && !invalid.message.contains('\n'));
    assert!(invalid.violations[0].field.len() < 300);
}

#[test]
fn shared_memory_and_classification_are_refused_as_unsupported() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let mut request = Request::new().input("x", "FP32", &[1, 4]);
    let region = some(Choice::Text("r".into()));
    request.inputs[0]
        .parameters
        .insert("shared_memory_region".into(), region);
    assert!(
        request
            .refusal(&model)
            .starts_with("UNSUPPORTED inputs[x]: input 'x': parameter 'shared_memory_region'")
    );
    let mut request = fp32(1).output("y");
    request.outputs[0]
        .parameters
        .insert("classification".into(), some(Choice::Int(3)));
    assert!(
        request
            .refusal(&model)
            .starts_with("UNSUPPORTED outputs[y]: output 'y': parameter 'classification'")
    );
}

#[test]
fn reserved_parameters_are_read_and_unknown_ones_ignored() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let (message, admitted) = fp32(1)
        .parameter("priority", Choice::Uint(2))
        .parameter("timeout", Choice::Int(1500))
        .parameter("sequence_id", Choice::Text("s-1".into()))
        .parameter("sequence_start", Choice::Bool(true))
        .parameter("sequence_end", Choice::Bool(true))
        .parameter("triton_enable_empty_final_response", Choice::Bool(true))
        .parameter("mine", Choice::Double(1.0))
        .admit(&model)
        .unwrap();
    assert_eq!(admitted.priority, 2);
    assert_eq!(admitted.timeout, Some(Duration::from_micros(1500)));
    let Some(SequenceId::Text(id)) = admitted.sequence_id else {
        panic!("a sequence with a text for its id");
    };
    assert_eq!(id.text(&message), "s-1");
    assert!(admitted.sequence_start && admitted.sequence_end);
    assert_eq!(admitted.parameters(&message, &model).count(), 0);
    assert_eq!(admitted.key.as_bytes(), b"");
}

#[test]
fn zero_means_no_timeout_and_no_sequence() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let request = fp32(1)
        .parameter("timeout", Choice::Uint(0))
        .parameter("sequence_id", Choice::Uint(0));
    let (_, admitted) = request.admit(&model).unwrap();
    assert_eq!((admitted.timeout, admitted.sequence_id), (None, None));
}

#[test]
fn reserved_parameters_of_a_wrong_kind_are_refused() {
    let model = identity(Datatype::Fp32, &[-1, 4]);
    let refusal = |key: &str, choice: Choice| fp32(1).parameter(key, choice).refusal(&model);
    assert_eq!(
        refusal("priority", Choice::Int(-1)),
        "INVALID_PARAMETER parameters[priority]: parameter 'priority': must not be negative, got -1"
    );
    assert_eq!(
        refusal("timeout", Choice::Text("5".into())),
        "INVALID_PARAMETER parameters[timeout]: parameter 'timeout': expected an integer, got string_param"
    );
    assert!(refusal("priority", Choice::Uint(u64::MAX)).contains("larger"));
    assert!(
        refusal("sequence_start", Choice::Int(1))
            .contains("expected true or false, got int64_param")
    );
    assert!(refusal("sequence_id", Choice::Bool(true)).contains("expected an integer or a string"));
}

#[test]
fn parameters_that_reach_the_model_are_given_to_it_and_part_batches() {
    let mut model = identity(Datatype::Fp32, &[-1, 4]);
    model.parameters = vec!["temperature".into(), "adapter".into()];
    let hot = fp32(1).parameter("temperature", Choice::Double(0.7));
    let (message, admitted) = hot
        .clone()
        .parameter("adapter", Choice::Text("a".into()))
        .parameter("other", Choice::Bool(true))
        .admit(&model)
        .unwrap();
    let given: Vec<_> = admitted.parameters(&message, &model).collect();
    assert_eq!(
        given,
        [
            ("temperature", ParameterValue::Double(0.7)),
            ("adapter", ParameterValue::Text("a"))
        ]
    );
    let key = |request: &Request| request.admit(&model).unwrap().1.key;
    assert_eq!(key(&hot), key(&hot.clone()));
    assert_ne!(key(&hot), admitted.key);
    assert_ne!(key(&hot), key(&fp32(1)));
    assert_ne!(
        key(&hot),
        key(&fp32(1).parameter("temperature", Choice::Double(0.8)))
    );
    let mut unset = fp32(1);
    unset
        .parameters
        .insert("adapter".into(), crate::messages::InferParameter::default());
    assert!(
        unset
            .refusal(&model)
            .contains("parameter 'adapter': has no value")
    );
}

#[test]
fn only_rows_of_equal_shape_share_a_key() {
    let model = two_inputs();
    let key = |rows: i64, length: i64| {
        let raw = vec![0; (rows * length * 8) as usize];
        let request = Request::new()
            .input("ids", "INT64", &[rows, length])
            .raw(raw.clone())
            .input("mask", "INT64", &[rows, length])
            .raw(raw);
        request.admit(&model).unwrap().1.key
    };
    assert_eq!(key(1, 17), key(3, 17));
    assert_ne!(key(1, 17), key(1, 18));
    assert_ne!(key(1, 0), key(1, 5));
    let fixed = identity(Datatype::Fp32, &[-1, 4]);
    assert_eq!(fp32(1).admit(&fixed).unwrap().1.key.as_bytes(), b"");
}

#[test]
fn the_contents_of_an_input_without_batch_axis_are_part_of_the_key() {
    let model = signature(
        vec![
            spec("x", Datatype::Fp32, &[-1, 1], Some(0)),
            spec("rate", Datatype::Int64, &[], None),
        ],
        vec![],
    );
    let key = |rate: i64, typed: bool| {
        let request = Request::new().input("x", "FP32", &[1, 1]);
        let request = if typed {
            let contents = Contents {
                fp32s: vec![0.0],
                ..Contents::default()
            };
            let rate = Contents {
                int64s: vec![rate],
                ..Contents::default()
            };
            request
                .typed(contents)
                .input("rate", "INT64", &[])
                .typed(rate)
        } else {
            request
                .raw([0; 4])
                .input("rate", "INT64", &[])
                .raw(rate.to_le_bytes())
        };
        request.admit(&model).unwrap().1.key
    };
    assert_eq!(key(16000, false), key(16000, true));
    assert_ne!(key(16000, false), key(8000, false));
}

#[test]
fn the_reply_mirrors_the_request_but_half_precision_is_always_raw() {
    let typed = || {
        let contents = Contents {
            fp32s: vec![0.0; 4],
            ..Contents::default()
        };
        Request::new().input("x", "FP32", &[1, 4]).typed(contents)
    };
    let mut model = identity(Datatype::Fp32, &[-1, 4]);
    assert!(fp32(1).admit(&model).unwrap().1.raw_reply);
    assert!(!typed().admit(&model).unwrap().1.raw_reply);
    model
        .outputs
        .push(spec("h", Datatype::Bf16, &[-1, 4], Some(0)));
    assert!(typed().admit(&model).unwrap().1.raw_reply);
    assert!(!typed().output("y").admit(&model).unwrap().1.raw_reply);
}

#[test]
fn memory_that_a_request_holds_is_counted_with_what_typed_contents_became() {
    let model = identity(Datatype::Int64, &[-1, 4]);
    let contents = Contents {
        int64s: vec![1; 4],
        ..Contents::default()
    };
    let (message, admitted) = Request::new()
        .input("x", "INT64", &[1, 4])
        .typed(contents)
        .admit(&model)
        .unwrap();
    assert_eq!(admitted.bytes, message.len() as u64 + 32);
}

#[test]
fn a_malformed_message_is_an_invalid_request() {
    let error = parse(b"\x0a\x05ab").unwrap_err();
    let invalid = headrace_tensor::Invalid::from(error);
    assert_eq!(invalid.reason, "INVALID_REQUEST");
    assert_eq!(
        invalid.message,
        "the message is not a ModelInferRequest: a field ends past the end of its message at byte 2"
    );
}

#[test]
fn a_signature_is_read_from_json() {
    let json = r#"{"model":"m","version":"1","max_rows":8,"batching":true,
        "inputs":[{"name":"x","datatype":"FP32","dims":[-1,4],"batch_axis":0}],
        "outputs":[{"name":"y","datatype":"FP32","dims":[-1,4],"batch_axis":0}]}"#;
    let read: Signature = serde_json::from_str(json).unwrap();
    assert_eq!(read, identity(Datatype::Fp32, &[-1, 4]));
}
