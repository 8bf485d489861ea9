//! Every structure that the host, the GPU and the NIC's driver code share, defined once.
//!
//! The C++ header `gpuvm/layouts.h` of the device library is made of this crate, by [`header`]. Size and offset of every field are asserted
//! on both sides: here by constant evaluation, there by `static_assert`.
//!
//! Fields that hold an address are `u64`: they are addresses in the GPU's address space, and this crate
//! never follows one. Fields that several lanes change at once are plain integers here and are accessed
//! through the device library's atomics only.

#![forbid(unsafe_code)]

mod beside;
mod broadcast;
mod facts;
mod header;
mod launch;
mod nic_engine;
mod page_word;
mod pool;
mod queue;
mod slots;
mod timeline;
mod vm;

pub use beside::*;
pub use broadcast::*;
pub use facts::{FieldFact, LayoutFact};
pub use header::header;
pub use launch::*;
pub use nic_engine::*;
pub use page_word::*;
pub use pool::*;
pub use queue::*;
pub use slots::*;
pub use timeline::*;
pub use vm::*;

/// Version of all layouts in this crate. The device library is compiled with its own copy and the
/// runtime compares the two before the first launch; raise it with every change of a field or a meaning.
pub const LAYOUT_VERSION: u32 = 23;

/// All shared structures, in the order of their modules.
pub fn layout_facts() -> impl Iterator<Item = &'static LayoutFact> {
    [
        queue::FACTS,
        vm::FACTS,
        pool::FACTS,
        launch::FACTS,
        broadcast::FACTS,
        slots::FACTS,
        beside::FACTS,
        timeline::FACTS,
        nic_engine::FACTS,
    ]
    .into_iter()
    .flatten()
}
