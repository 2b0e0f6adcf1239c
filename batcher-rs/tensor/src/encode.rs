//! Writes replies: each request's own rows of the outputs that it asked for, straight from the model's buffers into one gRPC frame.

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::admit::Admitted;
use crate::contents;
use crate::datatype::{Datatype, Field};
use crate::signature::{Signature, TensorSpec};
use crate::split::Slices;
use crate::wire::{field_len, put_head, put_text, put_varint, text_len, varint_len};

/// One output of a run, of all rows.
#[derive(Clone, Copy, Debug)]
pub struct OutputView<'a> {
    /// Its shape.
    pub shape: &'a [i64],
    /// Its contents, row-major.
    pub data: OutputData<'a>,
}

/// Contents of an output.
#[derive(Clone, Copy, Debug)]
pub enum OutputData<'a> {
    /// Little-endian elements without gaps.
    Raw(&'a [u8]),
    /// Elements of a `BYTES` tensor.
    Strings(&'a [&'a [u8]]),
}

/// The reply is longer than a gRPC frame can say (4 GiB). Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTooLarge {
    /// Length of the message, in bytes.
    pub bytes: u64,
}

impl fmt::Display for ReplyTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the reply has {} bytes", self.bytes)
    }
}

impl std::error::Error for ReplyTooLarge {}

/// Appends one whole gRPC frame (a zero byte, the length, a `ModelInferResponse`) for a request whose rows of the batch begin at
/// `first_row`. `outputs` are those of `wanted`, as [`check_outputs`](crate::check_outputs) has passed them; `message` is the one that was admitted.
///
/// # Errors
/// The reply would not fit in a frame.
///
/// # Panics
/// If `outputs` were not checked, or `wanted` lacks an output that the request asked for.
pub fn encode_reply(
    out: &mut Vec<u8>,
    signature: &Signature,
    message: &Bytes,
    admitted: &Admitted,
    first_row: u32,
    wanted: &[usize],
    outputs: &[OutputView<'_>],
) -> Result<(), ReplyTooLarge> {
    let reply = Reply::new(signature, message, admitted, first_row, wanted, outputs);
    put_frame_head(out, reply.len())?;
    reply.put(out);
    Ok(())
}

/// The five bytes before a message of `len` bytes, with room made for it.
pub(crate) fn put_frame_head(out: &mut Vec<u8>, len: usize) -> Result<(), ReplyTooLarge> {
    let Ok(prefix) = u32::try_from(len) else {
        return Err(ReplyTooLarge { bytes: len as u64 });
    };
    out.reserve(5 + len);
    out.push(0);
    out.extend_from_slice(&prefix.to_be_bytes());
    Ok(())
}

/// A `ModelInferResponse` whose every length is known, not yet written.
pub(crate) struct Reply<'a> {
    model: &'a [u8],
    version: &'a [u8],
    id: &'a [u8],
    /// Ready-made `parameters` field.
    pub(crate) parameters: &'static [u8],
    parts: SmallVec<[Part<'a>; 4]>,
    raw: bool,
    rows: u32,
}

/// One output of a reply.
struct Part<'a> {
    spec: &'a TensorSpec,
    axis: Option<usize>,
    view: OutputView<'a>,
    slices: Slices,
    /// Of the packed shape.
    shape_len: usize,
    /// Of the raw contents, or of the elements within the typed contents.
    payload_len: usize,
    /// Of the whole `InferOutputTensor`.
    tensor_len: usize,
}

impl<'a> Reply<'a> {
    #[inline]
    pub(crate) fn new(
        signature: &'a Signature,
        message: &'a [u8],
        admitted: &Admitted,
        first_row: u32,
        wanted: &[usize],
        outputs: &[OutputView<'a>],
    ) -> Self {
        let mut reply = Self::empty(signature, message, admitted);
        let all = wanted.len() == signature.outputs.len();
        for index in admitted.wanted(signature) {
            let place = if all {
                index
            } else {
                let place = wanted.binary_search(&index);
                place.expect("a batch runs every output that one of its requests wants")
            };
            let spec = &signature.outputs[index];
            let axis = signature.axis(spec);
            let part = Part::new(spec, axis, outputs[place], first_row, admitted);
            reply.parts.push(part);
        }
        reply
    }

    /// Without outputs.
    pub(crate) fn empty(signature: &'a Signature, message: &'a [u8], admitted: &Admitted) -> Self {
        Self {
            model: signature.model.as_bytes(),
            version: signature.version.as_bytes(),
            id: admitted.id.of(message),
            parameters: &[],
            parts: SmallVec::new(),
            raw: admitted.raw_reply,
            rows: admitted.rows,
        }
    }

    /// Length of the message in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        let head = text_len(self.model) + text_len(self.version) + text_len(self.id);
        let parts = self.parts.iter().map(|part| {
            let raw = if self.raw {
                field_len(part.payload_len)
            } else {
                0
            };
            field_len(part.tensor_len) + raw
        });
        head + self.parameters.len() + parts.sum::<usize>()
    }

    /// Appends the message.
    #[inline]
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_text(out, 1, self.model);
        put_text(out, 2, self.version);
        put_text(out, 3, self.id);
        out.extend_from_slice(self.parameters);
        for part in &self.parts {
            put_head(out, 5, part.tensor_len);
            part.put_tensor(out, self.rows, self.raw);
        }
        if self.raw {
            for part in &self.parts {
                put_head(out, 6, part.payload_len);
                part.put_raw(out);
            }
        }
    }
}

impl<'a> Part<'a> {
    #[inline]
    fn new(
        spec: &'a TensorSpec,
        axis: Option<usize>,
        view: OutputView<'a>,
        first_row: u32,
        admitted: &Admitted,
    ) -> Self {
        let unit = spec.datatype.size().unwrap_or(1);
        let (first, rows) = (first_row as usize, admitted.rows as usize);
        let slices = Slices::of(view.shape, axis, first, rows, unit);
        let dims = view.shape.iter().enumerate().map(|(index, &dim)| {
            let dim = if axis == Some(index) {
                rows as u64
            } else {
                dim as u64
            };
            varint_len(dim)
        });
        let shape_len = dims.sum();
        let mut part = Self {
            spec,
            axis,
            view,
            slices,
            shape_len,
            payload_len: 0,
            tensor_len: text_len(spec.name.as_bytes())
                + field_len(spec.datatype.name().len())
                + if shape_len == 0 {
                    0
                } else {
                    field_len(shape_len)
                },
        };
        if admitted.raw_reply {
            part.payload_len = part.raw_len();
        } else {
            part.payload_len = part.typed_len();
            part.tensor_len += field_len(part.contents_len());
        }
        part
    }

    fn raw_len(&self) -> usize {
        match self.view.data {
            OutputData::Raw(_) => self.slices.total(),
            OutputData::Strings(all) => self.strings(all).map(|element| 4 + element.len()).sum(),
        }
    }

    fn typed_len(&self) -> usize {
        match self.view.data {
            OutputData::Raw(raw) => {
                let pieces = self.slices.ranges().map(|range| &raw[range]);
                let lens = pieces.map(|piece| contents::packed_len(self.spec.datatype, piece));
                lens.sum()
            }
            OutputData::Strings(all) => self.strings(all).map(|it| field_len(it.len())).sum(),
        }
    }

    /// Of the `InferTensorContents`: packed numbers have a head of their own, each string has its own already.
    fn contents_len(&self) -> usize {
        if self.spec.datatype == Datatype::Bytes || self.payload_len == 0 {
            self.payload_len
        } else {
            field_len(self.payload_len)
        }
    }

    fn strings(&self, all: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
        let ranges = self.slices.ranges();
        ranges.flat_map(move |range| all[range].iter().copied())
    }

    #[inline]
    fn put_tensor(&self, out: &mut Vec<u8>, rows: u32, raw: bool) {
        put_text(out, 1, self.spec.name.as_bytes());
        put_text(out, 2, self.spec.datatype.name().as_bytes());
        if self.shape_len > 0 {
            put_head(out, 3, self.shape_len);
        }
        for (index, &dim) in self.view.shape.iter().enumerate() {
            let own = self.axis == Some(index);
            put_varint(out, if own { u64::from(rows) } else { dim as u64 });
        }
        if !raw {
            put_head(out, 5, self.contents_len());
            self.put_typed(out);
        }
    }

    fn put_raw(&self, out: &mut Vec<u8>) {
        match self.view.data {
            OutputData::Raw(raw) => {
                for range in self.slices.ranges() {
                    out.extend_from_slice(&raw[range]);
                }
            }
            OutputData::Strings(all) => {
                for element in self.strings(all) {
                    out.extend_from_slice(&(element.len() as u32).to_le_bytes());
                    out.extend_from_slice(element);
                }
            }
        }
    }

    fn put_typed(&self, out: &mut Vec<u8>) {
        match self.view.data {
            OutputData::Raw(raw) => {
                let Some(field) = self.spec.datatype.field().filter(|_| self.payload_len > 0)
                else {
                    return;
                };
                put_head(out, field as u32, self.payload_len);
                for range in self.slices.ranges() {
                    contents::put_packed(out, self.spec.datatype, &raw[range]);
                }
            }
            OutputData::Strings(all) => {
                for element in self.strings(all) {
                    put_head(out, Field::Bytes as u32, element.len());
                    out.extend_from_slice(element);
                }
            }
        }
    }
}
