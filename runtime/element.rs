//! The types of elements and values, at run time: what the untyped core knows of a Rust type.

use std::{any::TypeId, borrow::Cow};

use gpuvm_gpu::ParamKind;

use crate::error::{Error, Result};

/// Bytes of the addresses of one buffer.
const BYTES_MAX: u64 = 1 << 44;
/// The largest alignment of elements that lie at such addresses.
const ALIGN_MAX: u64 = 512;

/// The type of a region's or a buffer's elements, or of a value: what a C or a Python face names in place of a Rust type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementType {
    class: ParamKind,
    bytes: usize,
    align: usize,
    name: Cow<'static, str>,
}

/// The element type of regions and buffers that have it at run time: [`RawRegion`](crate::RawRegion),
/// [`RawBuffer`](crate::RawBuffer).
#[derive(Debug, Clone, Copy)]
pub enum Untyped {}

macro_rules! numbers {
    ($($constant:ident, $number:ty, $class:ident;)*) => {
        impl ElementType {
            $(
                #[doc = concat!("`", stringify!($number), "`.")]
                pub const $constant: Self = Self {
                    class: ParamKind::$class,
                    bytes: size_of::<$number>(),
                    align: align_of::<$number>(),
                    name: Cow::Borrowed(stringify!($number)),
                };
            )*

            /// That of `T`: a number's, or that of a structure of this many bytes.
            pub fn of<T: 'static>() -> Self {
                $(
                    if TypeId::of::<T>() == TypeId::of::<$number>() {
                        return Self::$constant;
                    }
                )*
                Self {
                    class: ParamKind::Other,
                    bytes: size_of::<T>(),
                    align: align_of::<T>(),
                    name: Cow::Borrowed(std::any::type_name::<T>()),
                }
            }
        }
    };
}
numbers! {
    U8, u8, Unsigned;
    U16, u16, Unsigned;
    U32, u32, Unsigned;
    U64, u64, Unsigned;
    USIZE, usize, Unsigned;
    I8, i8, Signed;
    I16, i16, Signed;
    I32, i32, Signed;
    I64, i64, Signed;
    ISIZE, isize, Signed;
    F32, f32, Float;
    F64, f64, Float;
}

impl ElementType {
    /// Bytes of this many of it, which a GPU can have at one address; `setting`: what their number is; `empty`: why none are refused.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub(crate) fn bytes_of(&self, setting: &'static str, empty: &str, count: u64) -> Result<u64> {
        let refuse = |value: String, reason: &str| {
            Err(Error::Setting {
                setting,
                value,
                reason: reason.into(),
            })
        };
        if count == 0 {
            return refuse("0".into(), empty);
        }
        let (size, align) = (self.bytes as u64, self.align as u64);
        if size == 0 || align > ALIGN_MAX {
            let value = format!("{count} of type {}", self.name);
            return refuse(
                value,
                "an element needs a size above zero and an alignment of at most 512 bytes",
            );
        }
        match count.checked_mul(size).filter(|bytes| *bytes < BYTES_MAX) {
            Some(bytes) => Ok(bytes),
            None => refuse(count.to_string(), "the address space holds at most 16 TiB"),
        }
    }

    /// A structure of `bytes` bytes, aligned to `align`, which messages call `name`.
    pub fn structure(name: impl Into<String>, bytes: usize, align: usize) -> Self {
        Self {
            class: ParamKind::Other,
            bytes,
            align,
            name: Cow::Owned(name.into()),
        }
    }

    /// As the compiler tells it of parameters.
    pub(crate) fn class(&self) -> ParamKind {
        self.class
    }

    /// Bytes of one.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that its address is a multiple of.
    pub fn align(&self) -> usize {
        self.align
    }

    /// How many of them this many bytes of `owner` are.
    pub(crate) fn count(&self, owner: &str, bytes: usize) -> Result<u64> {
        if bytes.is_multiple_of(self.bytes.max(1)) {
            return Ok((bytes / self.bytes.max(1)) as u64);
        }
        Err(Error::PartOfAnElement {
            name: owner.to_owned(),
            bytes,
            element: self.name.to_string(),
            element_bytes: self.bytes,
        })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
    }
}
