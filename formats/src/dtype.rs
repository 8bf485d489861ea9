//! The types of elements in files, and which types of Rust's and of kernels they are.

use std::{any::TypeId, fmt};

/// The type of elements in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// Booleans of a byte each, 0 or 1.
    Bool,
    /// Bits: element `i` is bit `i % 8` of byte `i / 8`, the lowest first. Arrow's booleans and validity bitmaps.
    Bits,
    /// `u8`.
    U8,
    /// `u16`.
    U16,
    /// `u32`.
    U32,
    /// `u64`.
    U64,
    /// `i8`.
    I8,
    /// `i16`.
    I16,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// Half precision, IEEE 754's binary16: a `u16` on the host, a `__half` in a kernel.
    F16,
    /// The upper half of an `f32`: a `u16` on the host, a `__nv_bfloat16` in a kernel.
    BF16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// Complex numbers, an `f32` each for the real and the imaginary part.
    C64,
    /// Values of this many bytes that are no numbers of Rust's: decimals, intervals, binary of fixed size.
    Bytes(u32),
    /// Floating point numbers of 4, 6 or 8 bits, by their name in safetensors, packed as the file has them.
    Small(&'static str, u32),
}

impl Dtype {
    /// Bits of an element in the file.
    pub fn bits(self) -> u64 {
        match self {
            Self::Bits => 1,
            Self::Bool | Self::U8 | Self::I8 => 8,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 16,
            Self::U32 | Self::I32 | Self::F32 => 32,
            Self::U64 | Self::I64 | Self::F64 | Self::C64 => 64,
            Self::Bytes(bytes) => 8 * u64::from(bytes),
            Self::Small(_, bits) => u64::from(bits),
        }
    }

    /// Whole bytes that `count` elements take; none where that is more than 64 bits say.
    pub(crate) fn bytes_of(self, count: u64) -> Option<u64> {
        count.checked_mul(self.bits()).map(|bits| bits.div_ceil(8))
    }

    /// Whether elements of `T` are these, or bytes, which everything is.
    pub(crate) fn is<T: 'static>(self) -> bool {
        let is = |id| id == TypeId::of::<T>();
        let own = match self {
            Self::Bool | Self::Bits | Self::U8 | Self::Small(..) => is(TypeId::of::<u8>()),
            Self::I8 => is(TypeId::of::<i8>()),
            Self::U16 | Self::F16 | Self::BF16 => is(TypeId::of::<u16>()),
            Self::I16 => is(TypeId::of::<i16>()),
            Self::U32 => is(TypeId::of::<u32>()),
            Self::I32 => is(TypeId::of::<i32>()),
            Self::F32 => is(TypeId::of::<f32>()),
            Self::U64 => is(TypeId::of::<u64>()),
            Self::I64 => is(TypeId::of::<i64>()),
            Self::F64 => is(TypeId::of::<f64>()),
            Self::C64 => is(TypeId::of::<[f32; 2]>()),
            Self::Bytes(bytes) => size_of::<T>() as u64 == u64::from(bytes),
        };
        own || is(TypeId::of::<u8>())
    }

    /// What to ask for, as messages say it.
    pub(crate) fn takes(self) -> String {
        match self {
            Self::Bool | Self::Bits | Self::U8 | Self::Small(..) => "u8".into(),
            Self::F16 | Self::BF16 => "u16, or u8 for its bytes".into(),
            Self::C64 => "[f32; 2], or u8 for its bytes".into(),
            Self::Bytes(bytes) => format!("a type of {bytes} bytes, or u8"),
            other => format!("{}, or u8 for its bytes", other.to_string().to_lowercase()),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "BYTES{bytes}"),
            Self::Small(name, _) => f.write_str(name),
            // As it is spelt here, in capitals: `BOOL`, `F32`.
            other => f.write_str(&format!("{other:?}").to_uppercase()),
        }
    }
}
