//! Parsing agrees with prost, on what is a message and on what it says.

use std::collections::HashMap;

use headrace_tensor::{Parameter, Value, parse};
use proptest::prelude::*;
use prost::Message;

use crate::messages::{Choice, Contents, InferParameter, Request, Requested, Tensor};

fn parameters() -> impl Strategy<Value = HashMap<String, InferParameter>> {
    let choice = prop_oneof![
        any::<bool>().prop_map(Choice::Bool),
        any::<i64>().prop_map(Choice::Int),
        ".{0,8}".prop_map(Choice::Text),
        (-1e9..1e9_f64).prop_map(Choice::Double),
        any::<u64>().prop_map(Choice::Uint),
    ];
    let parameter = prop::option::of(choice).prop_map(|choice| InferParameter { choice });
    prop::collection::hash_map(".{0,6}", parameter, 0..3)
}

fn contents() -> impl Strategy<Value = Contents> {
    use prop::collection::vec;
    (
        vec(any::<bool>(), 0..4),
        vec(any::<i32>(), 0..4),
        vec(any::<i64>(), 0..4),
        vec(any::<u32>(), 0..4),
        vec(any::<u64>(), 0..4),
        vec(-1e9..1e9_f32, 0..4),
        vec(-1e9..1e9_f64, 0..4),
        vec(vec(any::<u8>(), 0..6), 0..4),
    )
        .prop_map(
            |(bools, ints, int64s, uints, uint64s, fp32s, fp64s, bytes)| Contents {
                bools,
                ints,
                int64s,
                uints,
                uint64s,
                fp32s,
                fp64s,
                bytes,
            },
        )
}

fn tensor() -> impl Strategy<Value = Tensor> {
    (
        ".{0,6}",
        ".{0,6}",
        prop::collection::vec(any::<i64>(), 0..5),
        parameters(),
        prop::option::of(contents()),
    )
        .prop_map(|(name, datatype, shape, parameters, contents)| Tensor {
            name,
            datatype,
            shape,
            parameters,
            contents,
        })
}

fn request() -> impl Strategy<Value = Request> {
    let requested =
        (".{0,6}", parameters()).prop_map(|(name, parameters)| Requested { name, parameters });
    let raw = prop::collection::vec(any::<u8>(), 0..20);
    (
        (".{0,6}", ".{0,3}", ".{0,9}"),
        parameters(),
        prop::collection::vec(tensor(), 0..4),
        prop::collection::vec(requested, 0..4),
        prop::collection::vec(raw, 0..4),
    )
        .prop_map(
            |((model, version, id), parameters, inputs, outputs, raw)| Request {
                model,
                version,
                id,
                parameters,
                inputs,
                outputs,
                raw,
            },
        )
}

fn map(parameters: &[Parameter], message: &[u8]) -> HashMap<String, InferParameter> {
    let choice = |value| {
        Some(match value {
            Value::None => return None,
            Value::Bool(value) => Choice::Bool(value),
            Value::Int(value) => Choice::Int(value),
            Value::String(text) => Choice::Text(text.text(message).into()),
            Value::Double(value) => Choice::Double(value),
            Value::Uint(value) => Choice::Uint(value),
        })
    };
    let entry = |it: &Parameter| {
        let value = InferParameter {
            choice: choice(it.value),
        };
        (it.key.text(message).to_owned(), value)
    };
    parameters.iter().map(entry).collect()
}

/// Our view in prost's terms; of the typed contents only whether they are there.
fn view(message: &[u8]) -> Result<Request, headrace_tensor::Malformed> {
    let parsed = parse(message)?;
    let text =
        |span: headrace_tensor::Span| std::str::from_utf8(span.of(message)).unwrap().to_owned();
    Ok(Request {
        model: text(parsed.model),
        version: text(parsed.version),
        id: text(parsed.id),
        parameters: map(&parsed.parameters, message),
        inputs: parsed
            .inputs
            .iter()
            .map(|input| Tensor {
                name: text(input.name),
                datatype: text(input.datatype),
                shape: input.shape.to_vec(),
                parameters: map(&input.parameters, message),
                contents: input.typed.as_ref().map(|_| Contents::default()),
            })
            .collect(),
        outputs: parsed
            .outputs
            .iter()
            .map(|output| Requested {
                name: text(output.name),
                parameters: map(&output.parameters, message),
            })
            .collect(),
        raw: parsed
            .raw
            .iter()
            .map(|it| it.of(message).to_vec())
            .collect(),
    })
}

fn without_contents(mut request: Request) -> Request {
    for input in &mut request.inputs {
        input.contents = input.contents.take().map(|_| Contents::default());
    }
    request
}

fn agrees(message: &[u8]) {
    match (view(message), Request::decode(message)) {
        // Compared by their text, in which a NaN equals itself.
        (Ok(ours), Ok(theirs)) => {
            let theirs = without_contents(theirs);
            if ours != theirs {
                let nan = format!("{theirs:?}").contains("NaN");
                assert!(nan, "{ours:?}\n{theirs:?}\n{message:x?}");
            }
        }
        (Err(_), Err(_)) => {}
        (ours, theirs) => panic!("{message:x?}\nours: {ours:?}\nprost: {theirs:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_message_means_what_prost_says(request in request()) {
        let message = request.encode_to_vec();
        prop_assert_eq!(view(&message).unwrap(), without_contents(request));
    }

    #[test]
    fn messages_one_after_another_merge_as_prost_merges_them(a in request(), b in request()) {
        let mut message = a.encode_to_vec();
        message.extend(b.encode_to_vec());
        agrees(&message);
    }

    #[test]
    fn damaged_messages_are_accepted_exactly_when_prost_accepts_them(
        request in request(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut message = request.encode_to_vec();
        if !message.is_empty() {
            agrees(&message[..cut.index(message.len())]);
            for (at, byte) in damage {
                let at = at.index(message.len());
                message[at] = byte;
            }
        }
        agrees(&message);
    }

    #[test]
    fn random_bytes_never_panic(message in prop::collection::vec(any::<u8>(), 0..200)) {
        agrees(&message);
    }

    #[test]
    fn random_small_bytes_reach_deeper_and_never_panic(
        message in prop::collection::vec(prop_oneof![0..8_u8, Just(0x0a), Just(0x2a), Just(0x3b), Just(0x3c), Just(0x22)], 0..60),
    ) {
        agrees(&message);
    }
}

#[test]
fn unknown_fields_of_every_wire_type_are_passed_over() {
    let mut message = vec![0x0a, 0x01, b'm'];
    // numbers 100 and more: varint, 8 bytes, length, group, 4 bytes
    message.extend([0xa0, 0x06, 0x96, 0x01]);
    message.extend([0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8]);
    message.extend([0xa2, 0x06, 0x02, 0xff, 0xff]);
    message.extend([0xa3, 0x06, 0xa0, 0x06, 0x01, 0xa4, 0x06]);
    message.extend([0xa5, 0x06, 1, 2, 3, 4]);
    agrees(&message);
    assert_eq!(view(&message).unwrap(), Request::new());
}

#[test]
fn a_known_field_of_another_wire_type_is_an_error_with_its_place() {
    let error = parse(&[0x0a, 0x01, b'm', 0x28, 0x01]).unwrap_err();
    assert_eq!(error.what, "a known field has the wrong wire type");
    assert_eq!(error.offset, 4);
}

#[test]
fn a_name_that_is_not_utf8_is_an_error_with_its_place() {
    let error = parse(&[0x0a, 0x02, b'm', 0xff]).unwrap_err();
    assert_eq!((error.what, error.offset), ("a string is not UTF-8", 3));
}

#[test]
fn floods_of_tiny_fields_are_refused_before_they_take_memory() {
    for flood in [
        &[0x2a, 0x00][..],
        &[0x32, 0x00],
        &[0x3a, 0x00],
        &[0x22, 0x00],
    ] {
        let error = parse(&flood.repeat(100_000)).unwrap_err();
        assert!(error.what.contains("more than 16384"), "{error}");
    }
    let shape = [&[0x2a, 0x43, 0x1a, 0x41][..], &[1; 65]].concat();
    assert_eq!(
        parse(&shape).unwrap_err().what,
        "a shape has more than 64 dimensions"
    );
}

#[test]
fn a_group_ends_under_its_own_number_only() {
    agrees(&[0x4b, 0x08, 0x01, 0x4c]);
    assert!(parse(&[0x4b, 0x08, 0x01, 0x4c]).is_ok());
    for message in [&[0x4b, 0x44][..], &[0x4b, 0x54], &[0x4b, 0x08], &[0x4c]] {
        agrees(message);
        assert!(parse(message).is_err());
    }
}
