//! Rows joined and split along any axis reach exactly their own caller (V11), and nothing is copied that need not be.

use bytes::Bytes;
use headrace_tensor::{
    Admitted, Datatype, JoinedData, OutputData, OutputView, Signature, Slab, check_outputs,
    encode_reply, join, wanted,
};
use proptest::prelude::*;

use crate::messages::{Request, Response, framed, identity, signature, spec, unframe};

/// A tensor of one request whose every element is unlike any other of the batch.
#[derive(Clone, Debug)]
struct Case {
    datatype: Datatype,
    /// Without the batch axis.
    dims: Vec<i64>,
    axis: usize,
    rows: Vec<i64>,
}

fn case() -> impl Strategy<Value = Case> {
    let datatype = prop::sample::select(vec![
        Datatype::Uint16,
        Datatype::Fp32,
        Datatype::Int64,
        Datatype::Bytes,
    ]);
    let dims = prop::collection::vec(0..4_i64, 0..4);
    let rows = prop::collection::vec(1..5_i64, 1..7);
    (datatype, dims, any::<prop::sample::Index>(), rows).prop_map(|(datatype, dims, axis, rows)| {
        Case {
            axis: axis.index(dims.len() + 1),
            datatype,
            dims,
            rows,
        }
    })
}

impl Case {
    fn shape(&self, rows: i64) -> Vec<i64> {
        let mut shape = self.dims.clone();
        shape.insert(self.axis, rows);
        shape
    }

    fn model(&self) -> Signature {
        let declared = self.shape(-1);
        let mut model = signature(
            vec![spec("x", self.datatype, &declared, Some(self.axis))],
            vec![spec("y", self.datatype, &declared, Some(self.axis))],
        );
        model.max_rows = 64;
        model
    }

    /// Raw contents of the request that comes as number `index`.
    fn raw(&self, index: usize) -> Vec<u8> {
        let count: i64 = self.shape(self.rows[index]).iter().product();
        let values = (0..count as u64).map(|element| index as u64 * 1000 + element);
        match self.datatype {
            Datatype::Uint16 => values.flat_map(|it| (it as u16).to_le_bytes()).collect(),
            Datatype::Fp32 => values.flat_map(|it| (it as f32).to_le_bytes()).collect(),
            Datatype::Bytes => values
                .flat_map(|it| framed(&[format!("row {it}").as_bytes()]))
                .collect(),
            _ => values.flat_map(u64::to_le_bytes).collect(),
        }
    }
}

/// Joins, gives the inputs back as outputs, and reads each request's reply.
fn echo(model: &Signature, requests: &[Request]) -> Vec<Response> {
    let admitted: Vec<(Bytes, Admitted)> =
        requests.iter().map(|it| it.admit(model).unwrap()).collect();
    let entries: Vec<(&Bytes, &Admitted)> = admitted.iter().map(|(a, b)| (a, b)).collect();
    let mut slab = Slab::new();
    let joined = join(model, &entries, &mut slab);
    let wanted = wanted(&entries, model);
    let strings: Vec<Vec<&[u8]>> = joined
        .inputs
        .iter()
        .map(|input| match &input.data {
            JoinedData::Strings(strings) => strings.iter().map(|it| &it[..]).collect(),
            _ => Vec::new(),
        })
        .collect();
    let outputs: Vec<OutputView<'_>> = wanted
        .iter()
        .map(|&index| OutputView {
            shape: &joined.inputs[index].shape,
            data: match &joined.inputs[index].data {
                JoinedData::View(bytes) => OutputData::Raw(bytes),
                JoinedData::Slab(view) => OutputData::Raw(view),
                JoinedData::Strings(_) => OutputData::Strings(&strings[index]),
            },
        })
        .collect();
    check_outputs(model, joined.rows, &wanted, &outputs).unwrap();
    let mut first = 0;
    let mut replies = Vec::new();
    for (message, admitted) in entries {
        let mut out = b"before".to_vec();
        encode_reply(&mut out, model, message, admitted, first, &wanted, &outputs).unwrap();
        replies.push(unframe(&out[6..]));
        first += admitted.rows;
    }
    assert_eq!(first, joined.rows);
    replies
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_request_gets_exactly_its_own_rows_back_along_any_axis(case in case()) {
        let model = case.model();
        let requests: Vec<Request> = (0..case.rows.len())
            .map(|index| {
                let mut request = Request::new()
                    .input("x", case.datatype.name(), &case.shape(case.rows[index]))
                    .raw(case.raw(index));
                request.id = format!("request {index}");
                request
            })
            .collect();
        for (index, reply) in echo(&model, &requests).into_iter().enumerate() {
            prop_assert_eq!(&reply.id, &requests[index].id);
            prop_assert_eq!(&reply.outputs[0].shape, &case.shape(case.rows[index]));
            prop_assert_eq!(&reply.raw, &[case.raw(index)]);
        }
    }
}

/// Silero's inputs: samples with rows first, state with rows second, one rate for all.
fn silero() -> Signature {
    signature(
        vec![
            spec("input", Datatype::Fp32, &[-1, -1], Some(0)),
            spec("state", Datatype::Uint8, &[2, -1, 3], Some(1)),
            spec("sr", Datatype::Int64, &[], None),
        ],
        vec![
            spec("output", Datatype::Fp32, &[-1, -1], Some(0)),
            spec("stateN", Datatype::Uint8, &[2, -1, 3], Some(1)),
            spec("sr", Datatype::Int64, &[], None),
        ],
    )
}

fn speech(value: u8, rows: i64) -> Request {
    let state: Vec<u8> = (0..2)
        .flat_map(|half| vec![half * 100 + value; rows as usize * 3])
        .collect();
    Request::new()
        .input("input", "FP32", &[rows, 2])
        .raw(vec![value; rows as usize * 8])
        .input("state", "UINT8", &[2, rows, 3])
        .raw(state)
        .input("sr", "INT64", &[])
        .raw(16000_i64.to_le_bytes())
}

#[test]
fn each_tensor_is_joined_and_split_along_its_own_axis() {
    let requests = [speech(1, 1), speech(2, 2), speech(3, 1)];
    let replies = echo(&silero(), &requests);
    for (reply, request) in replies.iter().zip(&requests) {
        assert_eq!(reply.raw, request.raw);
        for (output, input) in reply.outputs.iter().zip(&request.inputs) {
            assert_eq!(output.shape, input.shape);
        }
    }
}

#[test]
fn an_input_that_rows_share_is_passed_once() {
    let model = silero();
    let admitted = [speech(1, 1), speech(2, 2)].map(|it| it.admit(&model).unwrap());
    let entries = [0, 1].map(|index| (&admitted[index].0, &admitted[index].1));
    let joined = join(&model, &entries, &mut Slab::new());
    assert_eq!(joined.rows, 3);
    assert_eq!(joined.inputs[1].shape, [2, 3, 3]);
    let JoinedData::Slab(state) = &joined.inputs[1].data else {
        panic!("joined rows lie in the slab");
    };
    assert_eq!(
        **state,
        [
            1, 1, 1, 2, 2, 2, 2, 2, 2, 101, 101, 101, 102, 102, 102, 102, 102, 102
        ]
    );
    assert!(joined.inputs[2].shape.is_empty());
    let rate = match &joined.inputs[2].data {
        JoinedData::View(bytes) => bytes.to_vec(),
        JoinedData::Slab(view) => view.to_vec(),
        JoinedData::Strings(_) => panic!("numbers"),
    };
    assert_eq!(rate, 16000_i64.to_le_bytes());
}

#[test]
fn callers_get_only_the_outputs_that_they_asked_for_in_their_order() {
    let model = silero();
    let requests = [
        speech(1, 1).output("stateN"),
        speech(2, 1).output("output"),
        speech(3, 1),
        speech(4, 2).output("sr").output("output"),
    ];
    let names: Vec<Vec<String>> = echo(&model, &requests)
        .into_iter()
        .map(|reply| reply.outputs.into_iter().map(|it| it.name).collect())
        .collect();
    assert_eq!(names[0], ["stateN"]);
    assert_eq!(names[1], ["output"]);
    assert_eq!(names[2], ["output", "stateN", "sr"]);
    assert_eq!(names[3], ["sr", "output"]);
    // And where nobody wants an output, the batch does not compute it.
    let some = [&requests[0], &requests[3]].map(|it| it.admit(&model).unwrap());
    let entries = [0, 1].map(|index| (&some[index].0, &some[index].1));
    assert_eq!(wanted(&entries, &model), [0, 1, 2]);
    assert_eq!(wanted(&entries[..1], &model), [1]);
    assert_eq!(
        echo(&model, &requests[..1])[0].raw,
        [requests[0].raw[1].clone()]
    );
}

#[test]
fn a_large_lone_input_is_a_view_of_the_message_and_a_small_one_is_aligned() {
    let model = identity(Datatype::Fp64, &[-1, -1]);
    for (elements, view) in [(8192, true), (3, false)] {
        for padding in 0..8 {
            let mut request =
                Request::new()
                    .input("x", "FP64", &[1, elements])
                    .raw(vec![7; elements as usize * 8]);
            request.id = "i".repeat(padding);
            let (message, admitted) = request.admit(&model).unwrap();
            let joined = join(&model, &[(&message, &admitted)], &mut Slab::new());
            match &joined.inputs[0].data {
                JoinedData::View(bytes) => {
                    assert!(message.as_ptr_range().contains(&bytes.as_ptr()));
                    assert!(view || bytes.as_ptr().addr().is_multiple_of(8));
                }
                JoinedData::Slab(slab) => {
                    assert!(!view);
                    assert!(slab.as_ptr().addr().is_multiple_of(64));
                    assert_eq!(**slab, [7; 24]);
                }
                JoinedData::Strings(_) => panic!("numbers"),
            }
        }
    }
}

#[test]
fn a_batch_that_is_still_read_keeps_its_rows_while_the_next_is_joined() {
    let model = identity(Datatype::Uint8, &[-1]);
    let requests = [1, 2].map(|value| Request::new().input("x", "UINT8", &[2]).raw([value; 2]));
    let admitted = requests.map(|it| it.admit(&model).unwrap());
    let entries = [0, 1].map(|index| (&admitted[index].0, &admitted[index].1));
    let swapped = [entries[1], entries[0]];
    let mut slab = Slab::new();
    let first = join(&model, &entries, &mut slab);
    let second = join(&model, &swapped, &mut slab);
    let bytes = |joined: &headrace_tensor::Joined| match &joined.inputs[0].data {
        JoinedData::Slab(view) => view.to_vec(),
        _ => panic!("joined rows lie in the slab"),
    };
    assert_eq!(bytes(&first), [1, 1, 2, 2]);
    assert_eq!(bytes(&second), [2, 2, 1, 1]);
}

#[test]
fn strings_of_many_requests_keep_their_bytes_and_order() {
    let model = identity(Datatype::Bytes, &[-1, 2]);
    let elements: [&[u8]; 6] = [b"ab\0c\0", b"", "🙂".as_bytes(), b"\0", b"x", b"yz"];
    let one = Request::new()
        .input("x", "BYTES", &[2, 2])
        .raw(framed(&elements[..4]));
    let two = Request::new()
        .input("x", "BYTES", &[1, 2])
        .raw(framed(&elements[4..]));
    let replies = echo(&model, &[one.clone(), two.clone()]);
    assert_eq!(replies[0].raw, one.raw);
    assert_eq!(replies[1].raw, two.raw);
}

#[test]
fn callers_that_list_their_inputs_in_another_order_share_a_batch_without_mixing() {
    let model = silero();
    let listed = speech(1, 1);
    let mut reversed = speech(2, 2);
    reversed.inputs.reverse();
    reversed.raw.reverse();
    let replies = echo(&model, &[listed.clone(), reversed.clone()]);
    assert_eq!(replies[0].raw, listed.raw);
    reversed.raw.reverse();
    assert_eq!(replies[1].raw, reversed.raw);
}
