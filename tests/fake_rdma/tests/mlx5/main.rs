//! The ConnectX back end over the fake of its libraries.

mod common;
#[path = "../../../common/mock_gpu.rs"]
mod mock_gpu;

mod mlx5_bring_up;
mod mlx5_devx;
mod mlx5_refusals;
mod runtime;
