//! Typed contents (`InferTensorContents`): scanned once while parsing, turned into raw bytes at admission, written in replies.
//!
//! The typed form widens narrow integers, so a value may be out of its datatype's range: it is refused by index, never cut (V05).

use crate::datatype::{Datatype, Field};
use crate::parse::{Typed, unknown};
use crate::span::Span;
use crate::wire::{
    Malformed, Reader, fixed32_key, fixed64_key, length_key, put_varint, varint_key, varint_len,
};

const PACKED_FP32: u32 = length_key(6);
const PACKED_FP64: u32 = length_key(7);
const SINGLE_FP32: u32 = fixed32_key(6);
const SINGLE_FP64: u32 = fixed64_key(7);

/// What the contents hold, piece by piece, in the order of the wire.
trait Visitor {
    /// One bool or integer, sign-extended to 64 bits as the wire has it.
    fn integer(&mut self, field: Field, value: u64);
    /// `count` floats of the field's width, little-endian.
    fn floats(&mut self, field: Field, raw: Span, count: usize);
    /// One element of `bytes_contents`.
    fn element(&mut self, element: Span);
}

fn walk(mut reader: Reader<'_>, visitor: &mut impl Visitor) -> Result<(), Malformed> {
    while !reader.done() {
        let key = reader.key()?;
        let field = match key >> 3 {
            1 => Field::Bool,
            2 => Field::Int,
            3 => Field::Int64,
            4 => Field::Uint,
            5 => Field::Uint64,
            6 => Field::Fp32,
            7 => Field::Fp64,
            8 => Field::Bytes,
            _ => {
                unknown(&mut reader, key, 8)?;
                continue;
            }
        };
        match field {
            Field::Bytes if key == length_key(8) => visitor.element(reader.span()?),
            Field::Fp32 | Field::Fp64 => {
                let width = if field == Field::Fp32 { 4 } else { 8 };
                let raw = match key {
                    PACKED_FP32 | PACKED_FP64 => reader.span()?,
                    SINGLE_FP32 | SINGLE_FP64 => reader.take(width)?,
                    _ => return unknown(&mut reader, key, 8),
                };
                if !(raw.len as usize).is_multiple_of(width) {
                    return Err(reader.malformed("packed floats end in the middle of one"));
                }
                visitor.floats(field, raw, raw.len as usize / width);
            }
            _ if key == length_key(key >> 3) && field != Field::Bytes => {
                let mut packed = reader.nested()?;
                while !packed.done() {
                    visitor.integer(field, packed.varint()?);
                }
            }
            _ if key == varint_key(key >> 3) && field != Field::Bytes => {
                visitor.integer(field, reader.varint()?);
            }
            _ => return unknown(&mut reader, key, 8),
        }
    }
    Ok(())
}

/// Checks that the contents are well formed and counts the elements of each field.
pub(crate) fn scan(reader: Reader<'_>, span: Span, typed: &mut Typed) -> Result<(), Malformed> {
    let mut count = Count { typed, pieces: 0 };
    walk(reader, &mut count)?;
    if count.pieces != 1 || !typed.spans.is_empty() {
        typed.run = None;
    }
    typed.spans.push(span);
    Ok(())
}

struct Count<'a> {
    typed: &'a mut Typed,
    pieces: usize,
}

impl Count<'_> {
    // An element takes at least one byte and a message has fewer than 2³¹ of them.
    fn add(&mut self, field: Field, count: usize) {
        self.typed.counts[field.index()] += count as u32;
        self.pieces += 1;
    }
}

impl Visitor for Count<'_> {
    fn integer(&mut self, field: Field, _: u64) {
        self.add(field, 1);
    }
    fn floats(&mut self, field: Field, raw: Span, count: usize) {
        self.add(field, count);
        self.typed.run = Some(raw);
    }
    fn element(&mut self, _: Span) {
        self.add(Field::Bytes, 1);
    }
}

/// A value that its datatype cannot hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfRange {
    pub(crate) index: usize,
    pub(crate) value: i64,
}

/// The raw form of numeric contents that hold `datatype` and nothing else.
pub(crate) fn to_raw(
    message: &[u8],
    typed: &Typed,
    datatype: Datatype,
) -> Result<Vec<u8>, OutOfRange> {
    let count = datatype.field().map_or(0, |it| typed.counts[it.index()]);
    let mut raw = Raw {
        message,
        datatype,
        out: Vec::with_capacity(count as usize * datatype.size().unwrap_or(0)),
        index: 0,
        refused: None,
    };
    visit(message, typed, &mut raw);
    match raw.refused {
        Some(refused) => Err(refused),
        None => Ok(raw.out),
    }
}

/// The elements of `bytes_contents`.
pub(crate) fn elements(message: &[u8], typed: &Typed) -> Vec<Span> {
    struct Elements(Vec<Span>);
    impl Visitor for Elements {
        fn integer(&mut self, _: Field, _: u64) {}
        fn floats(&mut self, _: Field, _: Span, _: usize) {}
        fn element(&mut self, element: Span) {
            self.0.push(element);
        }
    }
    let count = typed.counts[Field::Bytes.index()] as usize;
    let mut elements = Elements(Vec::with_capacity(count));
    visit(message, typed, &mut elements);
    elements.0
}

fn visit(message: &[u8], typed: &Typed, visitor: &mut impl Visitor) {
    for &span in &typed.spans {
        // The scan passed over the same bytes, so this cannot fail; should it ever, the count of elements tells.
        let _ = walk(Reader::within(message, span), visitor);
    }
}

struct Raw<'a> {
    message: &'a [u8],
    datatype: Datatype,
    out: Vec<u8>,
    index: usize,
    refused: Option<OutOfRange>,
}

impl Raw<'_> {
    fn put<const N: usize, T>(
        &mut self,
        value: i64,
        narrow: Result<T, impl Sized>,
        bytes: fn(T) -> [u8; N],
    ) {
        match narrow {
            Ok(narrow) => self.out.extend_from_slice(&bytes(narrow)),
            Err(_) if self.refused.is_none() => {
                self.refused = Some(OutOfRange {
                    index: self.index,
                    value,
                });
            }
            Err(_) => {}
        }
    }
}

impl Visitor for Raw<'_> {
    fn integer(&mut self, field: Field, value: u64) {
        // int32 and uint32 fields keep the low 32 bits of a longer varint, as in every protobuf reader.
        let int = i64::from(value as i32);
        let uint = i64::from(value as u32);
        match (field, self.datatype) {
            (Field::Bool, _) => self.out.push(u8::from(value != 0)),
            (Field::Int, Datatype::Int8) => self.put(int, i8::try_from(int), i8::to_le_bytes),
            (Field::Int, Datatype::Int16) => self.put(int, i16::try_from(int), i16::to_le_bytes),
            (Field::Int, _) => self.put(int, i32::try_from(int), i32::to_le_bytes),
            (Field::Uint, Datatype::Uint8) => self.put(uint, u8::try_from(uint), u8::to_le_bytes),
            (Field::Uint, Datatype::Uint16) => {
                self.put(uint, u16::try_from(uint), u16::to_le_bytes);
            }
            (Field::Uint, _) => self.put(uint, u32::try_from(uint), u32::to_le_bytes),
            _ => self.out.extend_from_slice(&value.to_le_bytes()),
        }
        self.index += 1;
    }
    fn floats(&mut self, _: Field, raw: Span, count: usize) {
        self.out.extend_from_slice(raw.of(self.message));
        self.index += count;
    }
    fn element(&mut self, _: Span) {}
}

/// Bytes that raw elements take as packed typed contents, without the field's key and length.
pub(crate) fn packed_len(datatype: Datatype, raw: &[u8]) -> usize {
    match datatype {
        Datatype::Fp32 | Datatype::Fp64 | Datatype::Bool | Datatype::Bytes => raw.len(),
        _ => {
            let mut len = 0;
            each_varint(datatype, raw, |value| len += varint_len(value));
            len
        }
    }
}

/// Appends raw elements as packed typed contents, without the field's key and length.
pub(crate) fn put_packed(out: &mut Vec<u8>, datatype: Datatype, raw: &[u8]) {
    match datatype {
        Datatype::Fp32 | Datatype::Fp64 | Datatype::Bytes => out.extend_from_slice(raw),
        Datatype::Bool => out.extend(raw.iter().map(|&byte| u8::from(byte != 0))),
        _ => each_varint(datatype, raw, |value| put_varint(out, value)),
    }
}

/// Each integer as the wire has it: sign-extended to 64 bits.
fn each_varint(datatype: Datatype, raw: &[u8], mut each: impl FnMut(u64)) {
    fn run<const N: usize>(raw: &[u8], of: fn([u8; N]) -> u64, each: &mut impl FnMut(u64)) {
        raw.as_chunks::<N>().0.iter().for_each(|it| each(of(*it)));
    }
    let each = &mut each;
    match datatype {
        Datatype::Int8 => run(raw, |it| i64::from(i8::from_le_bytes(it)) as u64, each),
        Datatype::Int16 => run(raw, |it| i64::from(i16::from_le_bytes(it)) as u64, each),
        Datatype::Int32 => run(raw, |it| i64::from(i32::from_le_bytes(it)) as u64, each),
        Datatype::Uint8 => run(raw, |it| u64::from(u8::from_le_bytes(it)), each),
        Datatype::Uint16 => run(raw, |it| u64::from(u16::from_le_bytes(it)), each),
        Datatype::Uint32 => run(raw, |it| u64::from(u32::from_le_bytes(it)), each),
        _ => run(raw, u64::from_le_bytes, each),
    }
}
