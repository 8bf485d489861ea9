//! What each kernel may take.
//!
//! Registers are given to threads by eights, so budgets are multiples of eight; each is the most over the compute
//! capabilities that are compiled for, with the chain of functions of the fault path, which costs most of them: a hit
//! does not need them, but a thread that may fault has them. Kernels that want the multiprocessor full say so with
//! `__launch_bounds__(threads, blocks)`; then the fault path keeps what does not fit in local memory, and the bytes
//! that it may spill are bounded here. Without such a cap no kernel spills.

/// A file, compiled once a form and compute capability.
pub struct File {
    /// From the root of the repository.
    pub path: &'static str,
    /// Macros and their values.
    pub defines: &'static [(&'static str, &'static str)],
    /// Its kernels, with arguments where they are templates.
    pub kernels: &'static [Kernel],
}

/// A kernel and what it may take in each form of the device library.
pub struct Kernel {
    pub name: &'static str,
    pub direct: Limit,
    pub queued: Limit,
}

/// The most that a kernel may take.
#[derive(Clone, Copy)]
pub struct Limit {
    pub registers: u32,
    /// Stores and loads together.
    pub spilled_bytes: u32,
}

/// A kernel without paged data: it is the same in both forms.
const fn plain(name: &'static str, registers: u32) -> Kernel {
    paged(name, registers, registers)
}

/// A kernel that may take these registers where it copies pages itself, and where it asks a NIC.
const fn paged(name: &'static str, direct: u32, queued: u32) -> Kernel {
    capped(name, direct, queued, 0, 0)
}

/// The same for a kernel whose registers are capped: bytes that the fault path may spill, in each form.
const fn capped(name: &'static str, direct: u32, queued: u32, direct_spilled: u32, queued_spilled: u32) -> Kernel {
    Kernel {
        name,
        direct: Limit {
            registers: direct,
            spilled_bytes: direct_spilled,
        },
        queued: Limit {
            registers: queued,
            spilled_bytes: queued_spilled,
        },
    }
}

pub const FILES: &[File] = &[
    File {
        path: "runtime/support.cu",
        defines: &[],
        kernels: &[
            paged("gpuvm_version", 248, 248),
            paged("gpuvm_flush", 248, 248),
            paged("gpuvm_release", 248, 248),
        ],
    },
    File {
        path: "examples/vector_add.cu",
        defines: &[],
        kernels: &[paged("add", 248, 248)],
    },
    File {
        path: "examples/spmv.cu",
        defines: &[],
        kernels: &[paged("spmv<double>", 248, 248), paged("spmv<float>", 248, 248)],
    },
    File {
        path: "bench/paging.cu",
        defines: &[],
        kernels: &[
            paged("gather_raw", 248, 248),
            paged("gather_array", 248, 248),
            paged("walk_raw", 248, 248),
            paged("walk_array", 248, 248),
            paged("walk_reader", 248, 248),
            paged("walk_span", 248, 248),
            paged("fault_warps", 248, 248),
            paged("fault_lanes", 248, 248),
        ],
    },
    File {
        path: "workloads/src/bfs.cu",
        defines: &[],
        kernels: &[paged("bfs_level", 248, 248)],
    },
    File {
        path: "cli/src/bench/raw.cu",
        defines: &[],
        kernels: &[
            paged("fill_pattern", 248, 248),
            paged("clear_words", 248, 248),
            paged("copy_pages", 248, 248),
            paged("copy_both", 248, 248),
            paged("check_pages", 248, 248),
            paged("time_pages", 248, 248),
            paged("time_crowd", 248, 248),
            paged("time_loads", 248, 248),
            paged("time_round_trips", 248, 248),
            paged("check_words", 248, 248),
        ],
    },
    File {
        path: "cli/src/bench/uvm.cu",
        defines: &[],
        kernels: &[
            paged("fill_managed", 248, 248),
            paged("touch_managed", 248, 248),
            paged("time_managed", 248, 248),
        ],
    },
    File {
        path: "cli/src/bench/latency.cu",
        defines: &[],
        kernels: &[paged("time_faults", 248, 248), paged("time_crowd_fault", 248, 248)],
    },
    File {
        path: "cli/src/bench/faults.cu",
        defines: &[],
        kernels: &[
            paged("touch_warps<false>", 248, 248),
            paged("touch_warps<true>", 248, 248),
            paged("touch_spans<false>", 248, 248),
            paged("touch_spans<true>", 248, 248),
            paged("touch_lanes", 248, 248),
        ],
    },
    File {
        path: "cli/src/bench/hits.cu",
        defines: &[],
        kernels: &[
            paged("fill_values", 248, 248),
            paged("warm_pages", 248, 248),
            paged("gather_raw", 248, 248),
            paged("gather_paged", 248, 248),
            paged("rows_raw", 248, 248),
            paged("rows_paged", 248, 248),
            paged("rows_span", 248, 248),
            paged("rows_reader", 248, 248),
            paged("stream_raw", 248, 248),
            paged("stream_paged<true>", 248, 248),
            paged("stream_paged<false>", 248, 248),
        ],
    },
    File {
        path: "tests/kernels/basic.cu",
        defines: &[],
        kernels: &[
            paged("sum", 248, 248),
            paged("touch", 248, 248),
            paged("fill", 248, 248),
            paged("copy", 248, 248),
            paged("write_by", 248, 248),
            paged("read_then_write", 248, 248),
            paged("check", 248, 248),
            paged("gather", 248, 248),
            paged("fetch", 248, 248),
            paged("store", 248, 248),
            paged("owners", 248, 248),
            paged("until_stopped", 248, 248),
            paged("count_up", 248, 248),
            paged("count_up_held", 248, 248),
        ],
    },
    File {
        path: "tests/kernels/faulty.cu",
        defines: &[],
        kernels: &[
            paged("wild_store", 248, 248),
            paged("null_load", 248, 248),
            paged("divide", 248, 248),
            paged("asserts", 248, 248),
            paged("traps", 248, 248),
            paged("read_at", 248, 248),
            paged("write_at", 248, 248),
            paged("read_negative", 248, 248),
            paged("numbers", 248, 248),
            paged("takes_arrays", 248, 248),
            paged("takes_struct", 248, 248),
            paged("nothing", 248, 248),
            paged("count_blocks", 248, 248),
        ],
    },
    File {
        path: "tests/kernels/holding.cu",
        defines: &[],
        kernels: &[
            paged("sum", 248, 248),
            paged("read_while_dirty", 248, 248),
            paged("write_while_clean", 248, 248),
            paged("walk_beside_a_pin", 248, 248),
            paged("walk_beside_a_fetch", 248, 248),
            paged("hold_many", 248, 248),
            paged("leak_pins", 248, 248),
            paged("pin_and_touch", 248, 248),
            paged("two_pages", 248, 248),
            paged("two_spans", 248, 248),
            paged("prefetch_only", 248, 248),
            paged("prefetch_each", 248, 248),
            paged("spin_on_element", 248, 248),
            paged("spin_on_word", 248, 248),
            paged("wait_for_ever", 248, 248),
            paged("half_a_barrier", 248, 248),
            paged("meet", 248, 248),
        ],
    },
    File {
        path: "tests/kernels/program.cu",
        defines: &[],
        kernels: &[paged("program", 248, 248)],
    },
    File {
        path: "tests/kernels/program.cu",
        defines: &[("ELEMENT", "wide16")],
        kernels: &[paged("program", 248, 248)],
    },
];
