//! Lays the rows of a batch's requests side by side, along each input's own batch axis.

use bytes::Bytes;

use crate::admit::{Admitted, Data, Given};
use crate::shape::product;
use crate::signature::Signature;
use crate::slab::{ALIGNMENT, Slab, SlabView};

/// Contents this long are passed on as they lie even where they are not aligned: copying costs more than unaligned reads.
const WORTH_NO_COPY: usize = 64 * 1024;

/// The inputs of one run of the model.
#[derive(Debug)]
pub struct Joined {
    /// Rows of all requests together.
    pub rows: u32,
    /// The inputs that were given, in the signature's order.
    pub inputs: Vec<JoinedInput>,
}

/// One input of a run.
#[derive(Debug)]
pub struct JoinedInput {
    /// Its place in the signature.
    pub spec: usize,
    /// Its shape, all rows included.
    pub shape: Vec<i64>,
    /// Its contents, row-major.
    pub data: JoinedData,
}

/// Where an input's contents lie.
#[derive(Debug)]
pub enum JoinedData {
    /// In the received message; of a request that runs alone, or of an input that all rows share.
    View(Bytes),
    /// In the slab, at a multiple of 64 bytes.
    Slab(SlabView),
    /// Elements of a `BYTES` tensor, each UTF-8.
    Strings(Vec<Bytes>),
}

/// Joins admitted requests, with the messages that they came in, in this order.
///
/// All must be of one model and have equal batch keys; a model that does not batch takes one at a time.
///
/// # Panics
/// If the requests do not have the same inputs, which their equal keys rule out.
pub fn join(signature: &Signature, entries: &[(&Bytes, &Admitted)], slab: &mut Slab) -> Joined {
    debug_assert!(
        entries
            .windows(2)
            .all(|pair| pair[0].1.key == pair[1].1.key)
    );
    debug_assert!(signature.batching || entries.len() <= 1);
    let Some((_, first)) = entries.first() else {
        return Joined {
            rows: 0,
            inputs: Vec::new(),
        };
    };
    let mut size = 0;
    let plans: Vec<Plan> = (0..first.inputs.len())
        .map(|index| plan(signature, entries, index, &mut size))
        .collect();
    let buffer = slab.writable(size);
    for (index, plan) in plans.iter().enumerate() {
        if let Source::Copy { start, len } = plan.source {
            let target = &mut buffer[start..start + len];
            copy(plan, entries, index, target);
        }
    }
    let inputs = plans.into_iter().zip(&first.inputs);
    Joined {
        rows: entries.iter().map(|(_, entry)| entry.rows).sum(),
        inputs: inputs
            .map(|(plan, given)| JoinedInput {
                spec: given.spec,
                shape: plan.shape,
                data: match plan.source {
                    Source::View(bytes) => JoinedData::View(bytes),
                    Source::Strings(elements) => JoinedData::Strings(elements),
                    Source::Copy { start, len } => JoinedData::Slab(slab.view(start, len)),
                },
            })
            .collect(),
    }
}

struct Plan {
    shape: Vec<i64>,
    axis: Option<usize>,
    source: Source,
}

enum Source {
    View(Bytes),
    Copy { start: usize, len: usize },
    Strings(Vec<Bytes>),
}

/// Decides how input `index` is passed; `size` grows by the slab space that it takes.
fn plan(
    signature: &Signature,
    entries: &[(&Bytes, &Admitted)],
    index: usize,
    size: &mut usize,
) -> Plan {
    let (message, given) = at(entries, 0, index);
    let spec = &signature.inputs[given.spec];
    let axis = signature.axis(spec);
    let mut shape = given.shape.to_vec();
    if let Some(axis) = axis {
        let rows = (0..entries.len()).map(|entry| at(entries, entry, index).1.shape[axis]);
        shape[axis] = rows.sum();
    }
    let shared = entries.len() == 1 || axis.is_none();
    let source = match &given.data {
        Data::Elements(_) => Source::Strings(strings(entries, index, axis)),
        Data::Owned(bytes) if shared => Source::View(bytes.clone()),
        Data::Span(span) if shared && lies_well(span.of(message), spec.datatype.size()) => {
            Source::View(span.slice(message))
        }
        _ => {
            let lens = (0..if shared { 1 } else { entries.len() }).map(|entry| {
                let (message, given) = at(entries, entry, index);
                given.data.raw(message).len()
            });
            let start = *size;
            let len: usize = lens.sum();
            *size = (start + len).next_multiple_of(ALIGNMENT);
            Source::Copy { start, len }
        }
    };
    Plan {
        shape,
        axis,
        source,
    }
}

/// Input `index` of one entry, and the message that it lies in.
#[inline]
fn at<'a>(
    entries: &[(&'a Bytes, &'a Admitted)],
    entry: usize,
    index: usize,
) -> (&'a Bytes, &'a Given) {
    let (message, admitted) = entries[entry];
    (message, &admitted.inputs[index])
}

fn lies_well(raw: &[u8], size: Option<usize>) -> bool {
    raw.len() >= WORTH_NO_COPY || raw.as_ptr().addr().is_multiple_of(size.unwrap_or(1))
}

/// Copies the rows of all entries; of an input that they share, the first one's contents.
fn copy(plan: &Plan, entries: &[(&Bytes, &Admitted)], index: usize, target: &mut [u8]) {
    let Some(axis) = plan.axis else {
        let (message, given) = at(entries, 0, index);
        return target.copy_from_slice(given.data.raw(message));
    };
    let pieces = product(&plan.shape[..axis]);
    if target.is_empty() {
        return;
    }
    let stride = target.len() / pieces;
    let mut start = 0;
    for entry in 0..entries.len() {
        let (message, given) = at(entries, entry, index);
        let raw = given.data.raw(message);
        let len = raw.len() / pieces;
        for piece in 0..pieces {
            let to = piece * stride + start;
            target[to..to + len].copy_from_slice(&raw[piece * len..(piece + 1) * len]);
        }
        start += len;
    }
}

/// The same for `BYTES`, whose elements stay where they are.
fn strings(entries: &[(&Bytes, &Admitted)], index: usize, axis: Option<usize>) -> Vec<Bytes> {
    let (_, first) = at(entries, 0, index);
    let pieces = axis.map_or(1, |axis| product(&first.shape[..axis]));
    let sharing = if axis.is_none() { 1 } else { entries.len() };
    let each = || {
        (0..sharing).filter_map(|entry| {
            let (message, given) = at(entries, entry, index);
            match &given.data {
                Data::Elements(elements) => Some((message, &elements[..])),
                _ => None,
            }
        })
    };
    let total = each().map(|(_, elements)| elements.len()).sum();
    let mut joined = Vec::with_capacity(total);
    for piece in 0..pieces {
        for (message, elements) in each() {
            let len = elements.len() / pieces;
            let own = &elements[piece * len..(piece + 1) * len];
            joined.extend(own.iter().map(|element| element.slice(message)));
        }
    }
    joined
}
