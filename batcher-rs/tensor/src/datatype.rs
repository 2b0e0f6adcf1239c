//! The datatypes of the Open Inference Protocol, and which typed field carries each.

use serde::Deserialize;

/// Datatype of a tensor, named as on the wire (`FP32`, `BYTES`, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    Bytes,
}

impl Datatype {
    /// Every datatype, in the order of declaration.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// The datatype of that wire name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Bytes per element; `None` for `BYTES`, whose elements vary.
    pub const fn size(self) -> Option<usize> {
        Some(match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Uint32 | Self::Int32 | Self::Fp32 => 4,
            Self::Uint64 | Self::Int64 | Self::Fp64 => 8,
            Self::Bytes => return None,
        })
    }

    /// The field of `InferTensorContents` for this datatype. The protocol has none for 16-bit floats: they travel raw (V06).
    pub(crate) const fn field(self) -> Option<Field> {
        Some(match self {
            Self::Bool => Field::Bool,
            Self::Int8 | Self::Int16 | Self::Int32 => Field::Int,
            Self::Int64 => Field::Int64,
            Self::Uint8 | Self::Uint16 | Self::Uint32 => Field::Uint,
            Self::Uint64 => Field::Uint64,
            Self::Fp32 => Field::Fp32,
            Self::Fp64 => Field::Fp64,
            Self::Bytes => Field::Bytes,
            Self::Fp16 | Self::Bf16 => return None,
        })
    }
}

/// The repeated fields of `InferTensorContents`, by their field number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Bool = 1,
    Int = 2,
    Int64 = 3,
    Uint = 4,
    Uint64 = 5,
    Fp32 = 6,
    Fp64 = 7,
    Bytes = 8,
}

impl Field {
    pub(crate) const ALL: [Self; 8] = [
        Self::Bool,
        Self::Int,
        Self::Int64,
        Self::Uint,
        Self::Uint64,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool_contents",
            Self::Int => "int_contents",
            Self::Int64 => "int64_contents",
            Self::Uint => "uint_contents",
            Self::Uint64 => "uint64_contents",
            Self::Fp32 => "fp32_contents",
            Self::Fp64 => "fp64_contents",
            Self::Bytes => "bytes_contents",
        }
    }

    /// Where this field stands in an array of all eight.
    pub(crate) const fn index(self) -> usize {
        self as usize - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_unknown() {
        for datatype in Datatype::ALL {
            assert_eq!(Datatype::from_name(datatype.name()), Some(datatype));
            let quoted = format!("\"{}\"", datatype.name());
            assert_eq!(serde_json::from_str::<Datatype>(&quoted).unwrap(), datatype);
        }
        for wrong in ["", "fp32", "FP8", "TYPE_FP32", "STRING"] {
            assert_eq!(Datatype::from_name(wrong), None);
        }
    }
}
