//! What can go wrong, and what to do about it.

use crate::cache::Form;

/// Why the example ended.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The runtime says what.
    #[error(transparent)]
    Gpuvm(#[from] gpuvm::Error),

    /// The driver, asked for managed memory, says what.
    #[error("managed memory cannot be had, or not moved")]
    Managed(#[from] gpuvm::GpuError),

    /// Only NVIDIA's driver has managed memory.
    #[error("managed memory needs an NVIDIA GPU: leave `managed` out of --form, or give --gpu cuda:N")]
    NeedsNvidia,

    /// Tokens are numbered by 32 bits, and bytes have addresses.
    #[error(
        "there is no room for keys and values of so many tokens: give fewer --sequences, --heads, tokens of --prompt or --steps"
    )]
    TooLarge,

    /// The blocks that were made are not enough.
    #[error("the pool has no block left for step {step}: it was made for fewer steps")]
    PoolEmpty {
        /// The step.
        step: u32,
    },

    /// Results that have to be the same are not.
    #[error(
        "{found}: {wrong} of {of} results differ from those of {expected}; the first is number {first}. This is a bug: please report it"
    )]
    Differs {
        /// What differs.
        found: String,
        /// From what.
        expected: Form,
        /// How many results.
        wrong: usize,
        /// Of how many.
        of: usize,
        /// The first one.
        first: usize,
    },

    /// A result is not what the CPU has.
    #[error(
        "sequence {sequence}, head {head}, number {number} is {found} on the GPU and {expected} on the CPU, more than {tolerance} apart. \
         This is a bug: please report it"
    )]
    Wrong {
        /// The sequence.
        sequence: u32,
        /// The head.
        head: u32,
        /// The number of the head.
        number: u32,
        /// The GPU's.
        found: f32,
        /// The CPU's.
        expected: f64,
        /// How far apart they may be.
        tolerance: f64,
    },

    /// The output is closed or full.
    #[error("writing the output")]
    Output(#[from] std::io::Error),
}
