//! The types of elements and values.

use std::ffi::c_char;

use bytemuck::Zeroable;
use gpuvm::ElementType;

use crate::{
    code::{Failure, Result},
    raw,
};

/// The type of an element or a value.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_type {
    /// A structure of the program's, with its size and alignment.
    Structure = 0,
    /// `uint8_t`, `unsigned char` of a kernel.
    U8 = 1,
    /// `uint16_t`.
    U16 = 2,
    /// `uint32_t`, `unsigned` of a kernel.
    U32 = 3,
    /// `uint64_t`, `unsigned long long` of a kernel.
    U64 = 4,
    /// `int8_t`.
    I8 = 5,
    /// `int16_t`.
    I16 = 6,
    /// `int32_t`, `int` of a kernel.
    I32 = 7,
    /// `int64_t`, `long long` of a kernel.
    I64 = 8,
    /// `float`.
    F32 = 9,
    /// `double`.
    F64 = 10,
}

/// The type of a region's or a buffer's elements, or of a value. `gpuvm_number(GPUVM_TYPE_F32)` and `gpuvm_structure("point", 16, 8)` make
/// one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_element {
    /// `gpuvm_type`.
    pub kind: u32,
    /// Of a structure: bytes that its address is a multiple of, a power of two. Else not looked at.
    pub align: u32,
    /// Of a structure: its bytes. Else not looked at.
    pub bytes: u64,
    /// Of a structure: what messages call it, or NULL. Else not looked at.
    pub name: *const c_char,
}

/// Largest structure, in bytes: the largest page.
const STRUCTURE_BYTES_MAX: u64 = 2 << 20;

impl gpuvm_element {
    /// The type that it names.
    ///
    /// # Errors
    /// [`Failure::Value`], [`Failure::Text`].
    pub(crate) fn read(&self) -> Result<ElementType> {
        const NUMBERS: [ElementType; 10] = [
            ElementType::U8,
            ElementType::U16,
            ElementType::U32,
            ElementType::U64,
            ElementType::I8,
            ElementType::I16,
            ElementType::I32,
            ElementType::I64,
            ElementType::F32,
            ElementType::F64,
        ];
        if let Some(number) = self.kind.checked_sub(1) {
            let number = NUMBERS.get(number as usize).cloned();
            return number.ok_or_else(|| Failure::value("element.kind", self.kind, "it must be between 0 and 10"));
        }
        if !(1..=STRUCTURE_BYTES_MAX).contains(&self.bytes) {
            let reason = "a structure has 1 byte to 2 MiB; say gpuvm_structure(name, bytes, align)";
            return Err(Failure::value("element.bytes", self.bytes, reason));
        }
        if !self.align.is_power_of_two() || !self.bytes.is_multiple_of(self.align.into()) {
            let reason = format!("it is a power of two that divides {} bytes", self.bytes);
            return Err(Failure::value("element.align", self.align, reason));
        }
        let name = raw::optional_text("element.name", self.name)?.unwrap_or("structure");
        Ok(ElementType::structure(name, self.bytes as usize, self.align as usize))
    }
}
