//! Kernels of virtual memories with a timeline: each step of a fault notes its time.

use super::{File, capped, paged, plain};

/// Some files, in the form with a timeline.
pub const TIMELINE: &[File] = &[
    File {
        path: "runtime/gpu/support.cu",
        defines: &[("TIMELINE", "1")],
        kernels: &[
            plain("gpuvm_clock", 8),
            // Up to 16 more than without.
            paged("gpuvm_flush", 64, 120),
            paged("gpuvm_release", 80, 136),
            paged("gpuvm_reap", 64, 72),
            paged("gpuvm_catch_up", 8, 8),
            paged("gpuvm_change_frames", 80, 128),
        ],
    },
    File {
        path: "workloads/src/apps/vector_add.cu",
        defines: &[("TIMELINE", "1")],
        kernels: &[capped("vector_add", 128, 128, 440, 1280)],
    },
    File {
        path: "cli/src/bench/faults.cu",
        defines: &[("TIMELINE", "1")],
        kernels: &[
            paged("touch_warps<false>", 192, 184),
            paged("touch_warps<true>", 192, 184),
            paged("touch_lanes", 208, 192),
        ],
    },
];
