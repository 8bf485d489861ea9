//! Files that are compiled once.

/// Files whose kernels run on the simulated GPU alone: it shows that they are CUDA.
pub const SIMULATED_ALONE: &[&str] = &[
    "simulate/kernels/broadcast.cu",
    "simulate/kernels/mirror.cu",
    "simulate/kernels/spans.cu",
    "simulate/kernels/sweeps.cu",
    "simulate/kernels/victims.cu",
    "simulate/kernels/words.cu",
    "tests/file_disks/src/versions.cu",
];

/// Files of tests that are compiled for one architecture.
pub(super) const TESTS_ALONE: &[&str] = &[
    "tests/kernels/broadcast.cu",
    "tests/kernels/elastic.cu",
    "tests/kernels/faulty.cu",
    "tests/kernels/holding.cu",
];

/// Files of `gpuvm bench`, and the one of most tests, that are compiled for one architecture: they read elements and fault as others do.
pub(super) const OTHERS_ALONE: &[&str] = &[
    "cli/src/bench/files.cu",
    "cli/src/bench/latency.cu",
    "cli/src/bench/placement.cu",
    "cli/src/bench/tenants.cu",
    "tests/kernels/basic.cu",
];
