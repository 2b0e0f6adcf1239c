//! Typed contents mean what raw contents mean, for every datatype that has them (V01, V05, V06).

use headrace_tensor::{Datatype, JoinedData, Slab, join};
use proptest::prelude::*;
use prost::Message;

use crate::messages::{Contents, Request, UnpackedContents, floats, framed, identity};

/// The same values in raw and in typed form.
fn forms(datatype: Datatype, values: &[u64]) -> (Vec<u8>, Contents) {
    let mut typed = Contents::default();
    let mut raw = Vec::new();
    for &value in values {
        match datatype {
            Datatype::Bool => {
                typed.bools.push(value & 1 == 1);
                raw.push(value as u8 & 1);
            }
            Datatype::Int8 => {
                typed.ints.push((value as i8).into());
                raw.extend((value as i8).to_le_bytes());
            }
            Datatype::Int16 => {
                typed.ints.push((value as i16).into());
                raw.extend((value as i16).to_le_bytes());
            }
            Datatype::Int32 => {
                typed.ints.push(value as i32);
                raw.extend((value as i32).to_le_bytes());
            }
            Datatype::Int64 => {
                typed.int64s.push(value as i64);
                raw.extend((value as i64).to_le_bytes());
            }
            Datatype::Uint8 => {
                typed.uints.push((value as u8).into());
                raw.extend((value as u8).to_le_bytes());
            }
            Datatype::Uint16 => {
                typed.uints.push((value as u16).into());
                raw.extend((value as u16).to_le_bytes());
            }
            Datatype::Uint32 => {
                typed.uints.push(value as u32);
                raw.extend((value as u32).to_le_bytes());
            }
            Datatype::Uint64 => {
                typed.uint64s.push(value);
                raw.extend(value.to_le_bytes());
            }
            Datatype::Fp32 => {
                typed.fp32s.push(f32::from_bits(value as u32));
                raw.extend((value as u32).to_le_bytes());
            }
            Datatype::Fp64 => {
                typed.fp64s.push(f64::from_bits(value));
                raw.extend(value.to_le_bytes());
            }
            Datatype::Bytes => {
                let text = format!("é{value}\0");
                raw.extend(framed(&[text.as_bytes()]));
                typed.bytes.push(text.into_bytes());
            }
            Datatype::Fp16 | Datatype::Bf16 => unreachable!("they have no typed form"),
        }
    }
    (raw, typed)
}

fn typed_datatypes() -> impl Strategy<Value = Datatype> {
    let all: Vec<Datatype> = Datatype::ALL
        .into_iter()
        .filter(|it| !matches!(it, Datatype::Fp16 | Datatype::Bf16))
        .collect();
    prop::sample::select(all)
}

/// What reaches the model: numbers as bytes, strings one by one.
fn joined(request: &Request, datatype: Datatype, dims: &[i64]) -> Vec<Vec<u8>> {
    let model = identity(datatype, dims);
    let (message, admitted) = request.admit(&model).unwrap();
    let mut slab = Slab::new();
    let joined = join(&model, &[(&message, &admitted)], &mut slab);
    match &joined.inputs[0].data {
        JoinedData::View(bytes) => vec![bytes.to_vec()],
        JoinedData::Slab(view) => vec![view.to_vec()],
        JoinedData::Strings(strings) => strings.iter().map(|it| it.to_vec()).collect(),
    }
}

proptest! {
    #[test]
    fn typed_contents_packed_or_not_or_split_equal_raw_ones(
        datatype in typed_datatypes(),
        values in prop::collection::vec(any::<u64>(), 0..20),
        cut in 0..20_usize,
    ) {
        let shape = [1, values.len() as i64];
        let name = datatype.name();
        let (raw, contents) = forms(datatype, &values);
        let described = Request::new().input("x", name, &shape);
        let expected = joined(&described.clone().raw(raw), datatype, &[-1, -1]);
        let empty = datatype == Datatype::Bytes && values.is_empty();
        prop_assert_eq!(expected.len() <= 1 || datatype == Datatype::Bytes, true);
        prop_assert!(!empty || expected.is_empty());

        let packed = described.clone().typed(contents.clone());
        prop_assert_eq!(&joined(&packed, datatype, &[-1, -1]), &expected);

        // Unpacked, and in two messages that a reader must merge: fields 5 of field 5, twice.
        let (_, first) = forms(datatype, &values[..cut.min(values.len())]);
        let (_, second) = forms(datatype, &values[cut.min(values.len())..]);
        let mut tensor = described.inputs[0].encode_to_vec();
        for (part, unpacked) in [(first, true), (second, false)] {
            let bytes = part.encode_to_vec();
            let bytes = if unpacked {
                UnpackedContents::decode(&bytes[..]).unwrap().encode_to_vec()
            } else {
                bytes
            };
            tensor.push(0x2a);
            prost::encode_length_delimiter(bytes.len(), &mut tensor).unwrap();
            tensor.extend(bytes);
        }
        let mut message = vec![0x2a];
        prost::encode_length_delimiter(tensor.len(), &mut message).unwrap();
        message.extend(tensor);
        let merged = Request::decode(&message[..]).unwrap();
        prop_assert_eq!(&joined(&merged, datatype, &[-1, -1]), &expected);
        let message = bytes::Bytes::from(message);
        let model = identity(datatype, &[-1, -1]);
        let request = headrace_tensor::parse(&message).unwrap();
        let admitted = headrace_tensor::admit(&message, &request, &model).unwrap();
        let mut slab = Slab::new();
        let ours = join(&model, &[(&message, &admitted)], &mut slab);
        let got: Vec<Vec<u8>> = match &ours.inputs[0].data {
            JoinedData::View(bytes) => vec![bytes.to_vec()],
            JoinedData::Slab(view) => vec![view.to_vec()],
            JoinedData::Strings(strings) => strings.iter().map(|it| it.to_vec()).collect(),
        };
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn values_out_of_range_are_named_and_never_wrap() {
    let refusal = |datatype: Datatype, contents: Contents, count: i64| {
        let request = Request::new()
            .input("x", datatype.name(), &[count])
            .typed(contents);
        request.refusal(&identity(datatype, &[-1]))
    };
    let ints = |ints: &[i32]| Contents {
        ints: ints.into(),
        ..Contents::default()
    };
    let uints = |uints: &[u32]| Contents {
        uints: uints.into(),
        ..Contents::default()
    };
    assert_eq!(
        refusal(Datatype::Int8, ints(&[1, -1, 127, 200]), 4),
        "inputs[x].contents: input 'x': element 3 is 200, out of range for INT8"
    );
    assert_eq!(
        refusal(Datatype::Uint8, uints(&[0, 255, 256]), 3),
        "inputs[x].contents: input 'x': element 2 is 256, out of range for UINT8"
    );
    assert!(
        refusal(Datatype::Int16, ints(&[-32768, -32769, 99999]), 3).contains("element 1 is -32769")
    );
    assert!(refusal(Datatype::Uint16, uints(&[65536]), 1).contains("element 0 is 65536"));
}

#[test]
fn values_in_another_field_are_refused_with_both_fields_named() {
    let contents = Contents {
        ints: vec![1, 2],
        ..Contents::default()
    };
    let request = Request::new().input("x", "INT64", &[2]).typed(contents);
    assert_eq!(
        request.refusal(&identity(Datatype::Int64, &[-1])),
        "inputs[x].contents: input 'x': INT64 belongs in int64_contents, got values in int_contents"
    );
    let both = Contents {
        ints: vec![1, 2],
        int64s: vec![1, 2],
        ..Contents::default()
    };
    let request = Request::new().input("x", "INT64", &[2]).typed(both);
    assert!(
        request
            .refusal(&identity(Datatype::Int64, &[-1]))
            .contains("got values in int_contents")
    );
}

#[test]
fn a_wrong_number_of_values_is_refused() {
    for count in [3, 5] {
        let contents = Contents {
            fp32s: vec![0.0; count],
            ..Contents::default()
        };
        let request = Request::new().input("x", "FP32", &[1, 4]).typed(contents);
        assert_eq!(
            request.refusal(&identity(Datatype::Fp32, &[-1, 4])),
            format!(
                "inputs[x].contents: input 'x': expected 4 values for [1,4], got {count} in fp32_contents"
            )
        );
    }
}

#[test]
fn half_precision_travels_raw_only_and_unchanged() {
    for datatype in [Datatype::Fp16, Datatype::Bf16] {
        let model = identity(datatype, &[-1]);
        let contents = Contents {
            fp32s: vec![1.0],
            ..Contents::default()
        };
        let request = Request::new()
            .input("x", datatype.name(), &[1])
            .typed(contents);
        assert!(
            request
                .refusal(&model)
                .contains("has no typed contents; send it in raw_input_contents")
        );
        // NaN with payload, -Inf, -0.0, smallest subnormal, 65504
        let raw: Vec<u8> = [0x7e01_u16, 0xfc00, 0x8000, 0x0001, 0x7bff]
            .iter()
            .flat_map(|it| it.to_le_bytes())
            .collect();
        let request = Request::new()
            .input("x", datatype.name(), &[5])
            .raw(raw.clone());
        assert_eq!(joined(&request, datatype, &[-1]), [raw]);
    }
}

#[test]
fn one_packed_run_of_floats_is_not_copied() {
    let contents = Contents {
        fp32s: vec![0.5; 64 * 1024],
        ..Contents::default()
    };
    let request = Request::new()
        .input("x", "FP32", &[1, 64 * 1024])
        .typed(contents);
    let model = identity(Datatype::Fp32, &[-1, -1]);
    let (message, admitted) = request.admit(&model).unwrap();
    assert_eq!(admitted.bytes, message.len() as u64);
    let joined = join(&model, &[(&message, &admitted)], &mut Slab::new());
    let JoinedData::View(view) = &joined.inputs[0].data else {
        panic!("a large lone input is a view");
    };
    assert_eq!(*view, floats(&vec![0.5; 64 * 1024]));
    assert!(message.as_ptr_range().contains(&view.as_ptr()));
}
