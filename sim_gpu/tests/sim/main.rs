//! The simulated GPU: compilation, kernels by lanes and by seeds, what a kernel does wrong, the device library's wire format.

mod common;
#[path = "../../../nic/tests/reference/mod.rs"]
mod reference;

mod collectives;
mod compile;
mod fast;
mod faults;
mod mlx5_cases;
mod pieces;
mod ptx;
mod seeded;
