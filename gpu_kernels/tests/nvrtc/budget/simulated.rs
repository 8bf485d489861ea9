//! Files without budgets.

/// Files whose kernels run on the simulated GPU alone: compiled once, which shows that they are CUDA.
pub const SIMULATED_ALONE: &[&str] = &[
    "simulate/kernels/broadcast.cu",
    "simulate/kernels/mirror.cu",
    "simulate/kernels/spans.cu",
    "simulate/kernels/sweeps.cu",
    "simulate/kernels/victims.cu",
    "simulate/kernels/words.cu",
];
