//! Any bytes as a `ModelInferRequest`: peeked at, parsed, held against signatures, joined, and echoed. Nothing may panic, and what was
//! admitted must come back as it went in.
#![no_main]

use std::sync::LazyLock;

use bytes::Bytes;
use headrace_tensor::{
    Admitted, Datatype, JoinedData, OutputData, OutputView, Peek, Signature, Slab, TensorSpec,
    admit, check_outputs, encode_reply, join, parse, peek, wanted,
};
use libfuzzer_sys::fuzz_target;

/// One model for each datatype and place of the batch axis, with inputs `x` and (optional, shared by all rows) `k`.
static MODELS: LazyLock<Vec<Signature>> = LazyLock::new(|| {
    let spec = |name: &str, datatype, dims: &[i64], batch_axis| TensorSpec {
        name: name.into(),
        datatype,
        dims: dims.into(),
        batch_axis,
        optional: name == "k",
    };
    let mut models = Vec::new();
    for datatype in Datatype::ALL {
        for axis in [Some(0), Some(1), None] {
            let x = spec("x", datatype, &[-1, -1], axis);
            let k = spec("k", Datatype::Int64, &[], None);
            models.push(Signature {
                model: "m".into(),
                version: "1".into(),
                inputs: vec![x.clone(), k],
                outputs: vec![x],
                max_rows: 1 << 20,
                batching: axis.is_some(),
                parameters: vec!["p".into()],
            });
        }
    }
    models
});

fuzz_target!(|data: &[u8]| {
    let message = Bytes::copy_from_slice(data);
    let parsed = parse(&message);
    peeks(&message, parsed.is_ok());
    let Ok(request) = parsed else {
        return;
    };
    for model in MODELS.iter() {
        match admit(&message, &request, model) {
            Ok(admitted) => echo(model, &message, &admitted),
            Err(invalid) => assert!(!invalid.message.is_empty() && invalid.message.len() < 4096),
        }
    }
});

/// A head found in a prefix is the whole message's head; of a sound message no prefix is refused.
fn peeks(message: &Bytes, sound: bool) {
    let whole = peek(message, true);
    assert!(!sound || matches!(whole, Ok(Peek::Head(_))));
    for len in 0..message.len().min(64) {
        let early = peek(&message[..len], false);
        assert!(!sound || early.is_ok());
    }
}

/// Two of the same request as one batch, the input given back as the output: both must get it whole.
fn echo(model: &Signature, message: &Bytes, admitted: &Admitted) {
    let both = [(message, admitted), (message, admitted)];
    let entries = if model.batching {
        &both[..]
    } else {
        &both[..1]
    };
    let mut slab = Slab::new();
    let joined = join(model, entries, &mut slab);
    let Some(input) = joined.inputs.iter().find(|input| input.spec == 0) else {
        return;
    };
    let strings: Vec<&[u8]> = match &input.data {
        JoinedData::Strings(strings) => strings.iter().map(|it| &it[..]).collect(),
        _ => Vec::new(),
    };
    let outputs = [OutputView {
        shape: &input.shape,
        data: match &input.data {
            JoinedData::View(bytes) => OutputData::Raw(bytes),
            JoinedData::Slab(view) => OutputData::Raw(view),
            JoinedData::Strings(_) => OutputData::Strings(&strings),
        },
    }];
    let wanted = wanted(entries, model);
    check_outputs(model, joined.rows, &wanted, &outputs).expect("an echo adds up");
    let mut replies = Vec::new();
    let mut first = 0;
    for (message, admitted) in entries {
        let mut out = Vec::new();
        encode_reply(&mut out, model, message, admitted, first, &wanted, &outputs)
            .expect("a reply as small as its request");
        let length = u32::from_be_bytes([out[1], out[2], out[3], out[4]]);
        assert_eq!(length as usize + 5, out.len());
        first += admitted.rows;
        replies.push(out);
    }
    assert!(replies.windows(2).all(|pair| pair[0] == pair[1]));
}
