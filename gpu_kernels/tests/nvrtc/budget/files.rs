//! The files of kernels, each with what its kernels may take.

use super::{File, Kernel, capped, guarded, paged, plain};

/// All files.
pub const FILES: &[File] = &[
    File {
        path: "runtime/gpu/support.cu",
        defines: &[],
        kernels: &[
            plain("gpuvm_version", 8),
            // Queued, both write requests by stores of 16 bytes, each from four neighbouring registers.
            paged("gpuvm_flush", 56, 104),
            // It goes on behind a page that fails, and so keeps where it is and when it began.
            paged("gpuvm_release", 80, 128),
            // Here without what regions with replicas need, as in every program that did not ask for it.
            paged("gpuvm_reap", 56, 56),
            paged("gpuvm_age", 32, 32),
            paged("gpuvm_catch_up", 8, 8),
            paged("gpuvm_forget", 32, 32),
            plain("gpuvm_read_home", 24),
            plain("gpuvm_pass_on", 40),
            plain("gpuvm_bring_copy", 24),
            // The clock's own way of emptying a frame.
            paged("gpuvm_change_frames", 80, 128),
        ],
    },
    File {
        path: "examples/vector_add.cu",
        defines: &[],
        kernels: &[paged("add", 168, 168)],
    },
    File {
        path: "examples/cudarc.cu",
        defines: &[],
        kernels: &[paged("count", 168, 168)],
    },
    File {
        path: "examples/spmv.cu",
        defines: &[],
        kernels: &[paged("spmv<double>", 192, 200), paged("spmv<float>", 192, 200)],
    },
    // Bounds of 4 blocks of 128 threads. A warp loads eight tokens at once: over arrays each of the loads has a look at its page.
    File {
        path: "examples/kv_cache/kv_cache.cu",
        defines: &[],
        kernels: &[
            plain("append<preallocated>", 40),
            plain("append<elastic>", 40),
            plain("append<blocks>", 40),
            capped("append<paged>", 128, 128, 128, 320),
            plain("attend<preallocated>", 80),
            // 8 less for all but sm_75.
            plain("attend<elastic>", 88),
            plain("attend<blocks>", 72),
            capped("attend<paged>", 128, 128, 2500, 3200),
        ],
    },
    File {
        path: "bench/paging.cu",
        defines: &[],
        kernels: &[
            plain("gather_raw", 40),
            paged("gather_array", 168, 176),
            plain("walk_raw", 32),
            paged("walk_array", 184, 176),
            paged("walk_reader", 184, 184),
            paged("walk_span", 184, 184),
            paged("fault_warps", 184, 184),
            paged("fault_lanes", 184, 184),
        ],
    },
    File {
        path: "workloads/src/bfs.cu",
        defines: SEARCH,
        // A bound of 8 blocks of 64 threads.
        kernels: &[
            capped("bfs_start", 128, 128, 1700, 2400),
            capped("bfs_level", 128, 128, 1700, 2400),
            capped("bfs_pieces", 128, 128, 1400, 2200),
        ],
    },
    // Applications: bounds of 4 blocks of 128 threads. Each body is there twice, over arrays and over plain pointers. Queries keep eight
    // cells of up to four columns.
    File {
        path: "workloads/src/apps/vector_add.cu",
        defines: &[],
        kernels: &[capped("vector_add", 128, 128, 400, 970)],
    },
    // Frames that come and go: who looks for one may help with their change.
    File {
        path: "workloads/src/apps/vector_add.cu",
        defines: &[("RESIZABLE", "1")],
        kernels: &[capped("vector_add", 128, 128, 400, 1060)],
    },
    File {
        path: "cli/src/bench/tenants.cu",
        defines: &[("RESIZABLE", "1")],
        kernels: &[
            paged("read_by_chance", 160, 184),
            plain("store_words", 40),
            plain("compare_words", 40),
        ],
    },
    File {
        path: "workloads/src/apps/matrix_vector.cu",
        defines: &[],
        kernels: &[
            capped("row_products", 128, 128, 128, 320),
            capped("column_products", 128, 128, 3800, 4400),
        ],
    },
    File {
        path: "workloads/src/apps/gesummv.cu",
        defines: &[],
        kernels: &[capped("gesummv", 128, 128, 160, 530)],
    },
    File {
        path: "workloads/src/apps/stencil.cu",
        defines: &[],
        kernels: &[capped("stencil", 128, 128, 1400, 1920)],
    },
    // The Python package's, each for one type of elements: the others differ in few instructions. Bounds of 4 blocks of 128 threads; what
    // is spilled is the fault path's.
    File {
        path: "workloads/src/take.cu",
        defines: &[],
        kernels: &[
            capped("take<float>", 128, 128, 130, 400),
            capped("scatter_add<long long>", 128, 128, 50, 400),
        ],
    },
    File {
        path: "python/ops/reduce.cu",
        defines: &[],
        kernels: &[
            capped("sum<float, double>", 128, 128, 220, 640),
            capped("bounds<unsigned long long>", 128, 128, 150, 700),
        ],
    },
    File {
        path: "python/ops/spmv.cu",
        defines: &[],
        kernels: &[capped("spmv<double, long long>", 128, 128, 100, 700)],
    },
    File {
        path: "python/ops/embedding_bag.cu",
        defines: &[],
        kernels: &[capped("embedding_bag<double>", 128, 128, 750, 1150)],
    },
    File {
        path: "python/ops/knn.cu",
        defines: &[],
        kernels: &[
            capped("distances<double>", 128, 128, 340, 700),
            plain("select<double>", 40),
        ],
    },
    File {
        path: "workloads/src/apps/knn.cu",
        defines: &[],
        kernels: &[capped("search", 128, 128, 1500, 1650)],
    },
    File {
        path: "workloads/src/apps/queries.cu",
        defines: &[],
        kernels: &[
            capped("sum_taken", 128, 128, 2400, 3100),
            capped("sum_taken_twice", 128, 128, 3400, 4400),
            capped("sum_groups", 128, 128, 2500, 4700),
        ],
    },
    File {
        path: "workloads/src/apps/embedding.cu",
        defines: &[],
        kernels: &[capped("sum_bags", 128, 128, 150, 400)],
    },
    File {
        path: "workloads/src/apps/sort.cu",
        defines: &[],
        kernels: &[
            capped("exchange", 128, 128, 390, 760),
            plain("count_digits", 24),
            plain("add_counts", 64),
            plain("place_keys", 32),
        ],
    },
    File {
        path: "workloads/src/apps/components.cu",
        defines: ROWS,
        kernels: &[
            plain("components_start", 16),
            capped("components_join", 128, 128, 1700, 2400),
            plain("components_flatten", 24),
        ],
    },
    File {
        path: "workloads/src/apps/pagerank.cu",
        defines: ROWS,
        kernels: &[
            capped("pagerank_start", 128, 128, 1700, 2400),
            capped("pagerank_pull", 128, 128, 1700, 2400),
            capped("pagerank_rank", 128, 128, 1700, 2400),
        ],
    },
    File {
        path: "workloads/src/apps/sssp.cu",
        defines: ROWS,
        kernels: &[
            plain("sssp_start", 16),
            capped("sssp_round", 128, 128, 1700, 2400),
            capped("sssp_pieces", 128, 128, 1700, 2400),
        ],
    },
    File {
        path: "workloads/src/apps/several.cu",
        defines: &[],
        kernels: &[paged("expand", 154, 168), paged("pull", 152, 168)],
    },
    File {
        path: "workloads/src/apps/triangles.cu",
        defines: ROWS,
        kernels: &[
            plain("triangles_start", 16),
            capped("triangles_count", 128, 128, 1700, 2400),
        ],
    },
    File {
        path: "workloads/src/gps/grids.cu",
        defines: &[],
        kernels: &[
            plain("jacobi<pointers>", 40),
            plain("jacobi<broadcasts>", 64),
            plain("diffusion<pointers>", 48),
            // One value of each, kept over the calls that send to other GPUs.
            Kernel {
                is_plain: true,
                ..capped("diffusion<broadcasts>", 64, 64, 16, 16)
            },
            plain("wave_electric<pointers>", 64),
            plain("wave_electric<broadcasts>", 64),
            plain("wave_magnetic<pointers>", 48),
            plain("wave_magnetic<broadcasts>", 64),
        ],
    },
    File {
        path: "workloads/src/gps/graphs.cu",
        defines: &[],
        kernels: &[
            plain("pagerank<pointers>", 24),
            plain("pagerank<broadcasts>", 32),
            plain("shortest<pointers>", 32),
            plain("shortest<broadcasts>", 32),
        ],
    },
    File {
        path: "workloads/src/gps/als.cu",
        defines: &[],
        kernels: &[plain("als<pointers>", 72), plain("als<broadcasts>", 72)],
    },
    File {
        path: "cli/src/bench/bfs.cu",
        defines: SEARCH,
        kernels: &[plain("bfs_level_plain", 64), plain("bfs_pieces_plain", 64)],
    },
    File {
        path: "cli/src/bench/raw.cu",
        defines: &[],
        kernels: &[
            plain("fill_pattern", 16),
            plain("clear_words", 16),
            plain("copy_pages", 72),
            plain("copy_parts", 72),
            plain("copy_both", 72),
            plain("check_pages", 48),
            plain("time_pages", 72),
            plain("time_crowd", 64),
            plain("time_loads", 32),
            plain("time_round_trips", 16),
            plain("check_words", 24),
        ],
    },
    File {
        path: "cli/src/bench/uvm.cu",
        defines: &[],
        kernels: &[
            plain("fill_managed", 16),
            plain("touch_managed", 32),
            plain("time_managed", 32),
        ],
    },
    File {
        path: "cli/src/bench/latency.cu",
        defines: &[],
        kernels: &[
            paged("time_faults", 184, 184),
            paged("time_crowd_fault", 168, 168),
            paged("walk_pages", 184, 176),
        ],
    },
    File {
        path: "cli/src/bench/faults.cu",
        defines: &[],
        kernels: &[
            paged("touch_warps<false>", 192, 184),
            paged("touch_warps<true>", 192, 184),
            paged("touch_spans<false>", 184, 184),
            paged("touch_spans<true>", 184, 192),
            paged("touch_lanes", 208, 192),
        ],
    },
    File {
        path: "cli/src/bench/files.cu",
        defines: &[],
        kernels: &[paged("read_next", 208, 192)],
    },
    // Bounded to 2 blocks of 256 threads. Never over queue pairs: only lanes reach a neighbour GPU.
    File {
        path: "cli/src/bench/faults.cu",
        defines: &[("BENCH_NEIGHBOUR", "1")],
        kernels: &[
            capped("touch_warps<false>", 128, 0, 400, 0),
            capped("touch_warps<true>", 128, 0, 1000, 0),
            capped("touch_spans<false>", 128, 0, 1000, 0),
            capped("touch_spans<true>", 128, 0, 450, 0),
            capped("touch_lanes", 128, 0, 1000, 0),
            capped("touch_homes<false>", 128, 0, 400, 0),
            capped("touch_homes<true>", 128, 0, 1000, 0),
        ],
    },
    File {
        path: "cli/src/bench/tier.cu",
        defines: &[],
        kernels: &[paged("read_pages", 152, 168), plain("stream_copy", 48)],
    },
    // As faults.cu for a neighbour.
    File {
        path: "cli/src/bench/tier.cu",
        defines: &[("BENCH_NEIGHBOUR", "1")],
        kernels: &[capped("read_pages", 128, 0, 1000, 0)],
    },
    File {
        path: "cli/src/bench/hits.cu",
        defines: &[],
        kernels: &[
            plain("fill_values", 16),
            paged("warm_pages", 184, 184),
            plain("gather_raw", 40),
            // A bound of 4 blocks of 256 threads.
            capped("gather_paged", 64, 64, 1840, 4100),
            paged("gather_resident", 40, 40),
            plain("rows_raw", 24),
            // A bound of 2 blocks of 256 threads, here and below.
            capped("rows_paged", 128, 128, 300, 1100),
            capped("rows_span", 128, 128, 64, 160),
            capped("rows_reader", 128, 128, 450, 1050),
            capped("rows_cursor", 128, 128, 280, 1050),
            plain("stream_raw", 64),
            capped("stream_paged", 128, 128, 112, 350),
        ],
    },
    File {
        path: "cli/src/bench/placement.cu",
        defines: &[],
        kernels: &[
            paged("read_in_order<false>", 192, 184),
            plain("read_in_order<true>", 64),
            paged("read_drawn<false>", 192, 176),
            plain("read_drawn<true>", 24),
            paged("read_window<false>", 192, 176),
            plain("read_window<true>", 32),
            paged("read_once<false>", 192, 168),
            plain("read_once<true>", 24),
            plain("draw_pages", 24),
            paged("store_once<false,false>", 168, 168),
            paged("store_once<false,true>", 168, 168),
            plain("store_once<true,false>", 24),
            plain("store_once<true,true>", 24),
        ],
    },
    File {
        path: "tests/kernels/basic.cu",
        defines: &[],
        kernels: &[
            // Queued, two more for what a failed fetch is reported by, which the page's word may not have any more.
            paged("sum", 192, 192),
            paged("touch", 184, 176),
            paged("fill", 168, 176),
            paged("copy", 168, 168),
            paged("write_by", 168, 176),
            paged("read_then_write", 168, 168),
            paged("check", 200, 192),
            paged("gather", 160, 168),
            paged("fetch", 184, 176),
            paged("store", 168, 176),
            plain("owners", 24),
            paged("until_stopped", 184, 176),
            paged("count_up", 168, 176),
            paged("count_up_held", 168, 168),
        ],
    },
    File {
        path: "tests/kernels/faulty.cu",
        defines: &[],
        kernels: &[
            plain("wild_store", 8),
            plain("null_load", 8),
            plain("divide", 16),
            paged("asserts", 152, 168),
            paged("traps", 160, 168),
            paged("read_at", 160, 160),
            paged("write_at", 160, 168),
            paged("read_negative", 160, 160),
            plain("numbers", 16),
            paged("takes_arrays", 160, 168),
            paged("takes_struct", 152, 168),
            plain("nothing", 8),
            plain("count_blocks", 8),
        ],
    },
    File {
        path: "cli/src/bench/gps/streams.cu",
        defines: &[],
        kernels: &[
            // The loads and the queue for sm_75, which unrolls more: sm_90 takes 8 less.
            plain("load_bare", 40),
            plain("load_broadcast", 40),
            plain("store_bare", 16),
            plain("store_broadcast", 32),
            plain("near_plain", 48),
            plain("near_merged", 48),
        ],
    },
    File {
        path: "tests/kernels/broadcast.cu",
        defines: &[],
        kernels: &[
            plain("add", 32),
            plain("increment", 32),
            plain("increment_merged", 40),
            plain("copy_out", 16),
            plain("store_late", 32),
            plain("add_anywhere", 32),
            plain("at_owner", 24),
            plain("sum", 16),
        ],
    },
    File {
        path: "tests/kernels/elastic.cu",
        defines: &[],
        kernels: &[plain("fill", 16), plain("count_wrong", 16), plain("churn", 24)],
    },
    File {
        path: "tests/kernels/holding.cu",
        defines: &[],
        kernels: &[
            paged("sum", 184, 176),
            paged("read_while_dirty", 160, 168),
            paged("write_while_clean", 160, 168),
            paged("walk_beside_a_pin", 184, 176),
            paged("walk_beside_a_fetch", 184, 176),
            paged("hold_many", 256, 256),
            paged("leak_pins", 168, 176),
            paged("pin_and_touch", 184, 176),
            paged("two_pages", 184, 176),
            paged("two_spans", 168, 184),
            paged("prefetch_only", 104, 112),
            paged("prefetch_each", 104, 112),
            paged("spin_on_element", 168, 176),
            paged("spin_on_word", 160, 168),
            paged("churn", 184, 184),
            paged("churn_on", 184, 184),
            paged("hold_pages", 168, 176),
            plain("wait_for_ever", 8),
            plain("half_a_barrier", 8),
            plain("meet", 16),
        ],
    },
    File {
        path: "simulate/kernels/program.cu",
        defines: &[],
        kernels: &[paged("program", 208, 208)],
    },
    File {
        path: "simulate/kernels/program.cu",
        defines: &[("ELEMENT", "wide16")],
        kernels: &[paged("program", 208, 208)],
    },
    File {
        path: "simulate/kernels/broadcast.cu",
        defines: &[],
        kernels: &[plain("play_words", 56), plain("play_longs", 56)],
    },
    File {
        path: "simulate/kernels/mirror.cu",
        defines: &[],
        kernels: &[paged("read_pages", 224, 240), plain("bring", 64)],
    },
    File {
        path: "simulate/kernels/spans.cu",
        defines: &[],
        kernels: &[
            paged("warp_spans", 224, 240),
            paged("read_spans", 224, 240),
            paged("lane_spans", 224, 240),
            paged("read_cursors", 224, 240),
            paged("write_cursors", 224, 240),
            paged("overwrite_stretches", 224, 240),
        ],
    },
    File {
        path: "simulate/kernels/sweeps.cu",
        defines: &[],
        kernels: &[
            paged("transpose", 224, 240),
            paged("stream", 224, 240),
            paged("prefetch_only", 224, 240),
            paged("prefetch_and_sum", 224, 240),
            paged("bfs_level", 240, 252),
            paged("sum_by_cursors", 224, 240),
        ],
    },
    File {
        path: "simulate/kernels/victims.cu",
        defines: &[],
        kernels: &[paged("use_pages", 224, 240), plain("take_back", 64)],
    },
    File {
        path: "tests/file_disks/src/versions.cu",
        defines: &[],
        kernels: &[paged("stamp", 224, 240), paged("verify", 224, 240)],
    },
    File {
        path: "simulate/kernels/words.cu",
        defines: &[],
        kernels: &[
            paged("linear", 224, 240),
            paged("counters", 224, 240),
            paged("count_and_read", 224, 240),
            paged("writers", 224, 240),
            paged("rising", 168, 184),
            plain("delay", 32),
        ],
    },
];

/// As `workloads::bfs` defines them for a GPU.
const SEARCH: &[(&str, &str)] = &[
    ("SEARCH_WORD_A_LANE", "0"),
    ("ROW_PIECE_EDGES", "512"),
    ("ROW_LIST_HEAD", "2"),
];

/// As `workloads::apps` defines them.
const ROWS: &[(&str, &str)] = &[("ROW_PIECE_EDGES", "512"), ("ROW_LIST_HEAD", "2")];

/// Kernels in the form for regions with replicas and checksums: what the code for both adds to a thread that may fault.
pub const GUARDED: &[File] = &[File {
    path: "tests/kernels/basic.cu",
    defines: &[],
    kernels: &[guarded("sum", 232), guarded("copy", 232)],
}];

/// Kernels in the form for a virtual memory that borrows of neighbours: what slots add to a thread that may fault.
pub const BORROWING: &[File] = &[
    File {
        path: "tests/kernels/basic.cu",
        defines: &[],
        kernels: &[
            // 186 for sm_80 since pages count how often they were fetched: as many warps as with 184.
            paged("sum", 192, 192),
            paged("copy", 168, 168),
            paged("read_then_write", 176, 168),
        ],
    },
    File {
        path: "cli/src/bench/faults.cu",
        defines: &[("BENCH_NEIGHBOUR", "1")],
        kernels: &[
            capped("touch_warps<false>", 128, 0, 420, 0),
            capped("touch_spans<true>", 128, 0, 450, 0),
        ],
    },
];

/// Kernels for any virtual memory, as nvcc compiles them in a program that does not choose its features.
pub const ALL: &[File] = &[File {
    path: "tests/kernels/basic.cu",
    defines: &[],
    kernels: &[guarded("sum", 248), guarded("copy", 248)],
}];
