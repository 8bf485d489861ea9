//! The workloads' kernels.

use crate::bench::Kernels;

/// The interpreter of random programs; `ELEMENT` names the element type.
pub const PROGRAM: Kernels = Kernels {
    name: "program.cu",
    text: include_str!("../kernels/program.cu"),
};
/// Contended words.
pub const WORDS: Kernels = Kernels {
    name: "words.cu",
    text: include_str!("../kernels/words.cu"),
};
/// Whole regions.
pub const SWEEPS: Kernels = Kernels {
    name: "sweeps.cu",
    text: include_str!("../kernels/sweeps.cu"),
};
/// Held pages.
pub const SPANS: Kernels = Kernels {
    name: "spans.cu",
    text: include_str!("../kernels/spans.cu"),
};
/// Pages that leave their frames for a neighbour's memory, and the neighbour.
pub const VICTIMS: Kernels = Kernels {
    name: "victims.cu",
    text: include_str!("../kernels/victims.cu"),
};
/// Arrays of which each GPU holds a copy.
pub const BROADCAST: Kernels = Kernels {
    name: "broadcast.cu",
    text: include_str!("../kernels/broadcast.cu"),
};
/// Lanes beside calls of a slot cache.
pub const SLOTS: Kernels = Kernels {
    name: "slots.cu",
    text: include_str!("../kernels/slots.cu"),
};
/// Pages that are fetched in some launches and looked up in others.
pub const LOOKED_UP: Kernels = Kernels {
    name: "looked_up.cu",
    text: include_str!("../kernels/looked_up.cu"),
};
