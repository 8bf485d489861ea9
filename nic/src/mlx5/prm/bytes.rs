//! The bytes of commands and answers.

use super::layout::{Field, create_cq_in};

/// A command that is being built or read.
pub(super) struct Bytes<B>(pub B);

impl Bytes<Vec<u8>> {
    pub fn new(bytes: usize, opcode: u64) -> Self {
        let mut made = Self(vec![0; bytes]);
        // Every command begins with its code.
        made.set(create_cq_in::opcode, opcode);
        made
    }

    pub fn set(&mut self, field: Field, value: impl Into<u64>) {
        let value = value.into();
        debug_assert!(value <= field.most(), "{value:#x} in {field:?}");
        field.set(&mut self.0, value);
    }

    /// Sets a run of whole bytes.
    pub fn copy(&mut self, field: Field, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            Field::new(field.offset + at * 8, 8).set(&mut self.0, u64::from(*byte));
        }
    }
}

impl Bytes<&[u8]> {
    pub fn get(&self, field: Field) -> u64 {
        // Lengths are checked before.
        field.get(self.0).unwrap_or(0)
    }

    pub fn small(&self, field: Field) -> u8 {
        self.get(field) as u8
    }

    pub fn word(&self, field: Field) -> u32 {
        self.get(field) as u32
    }

    pub fn flag(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    pub fn copied<const N: usize>(&self, field: Field) -> [u8; N] {
        std::array::from_fn(|at| self.small(Field::new(field.offset + at * 8, 8)))
    }
}
