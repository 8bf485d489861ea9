//! The codecs against the public headers, and the software NIC.

mod common;
#[path = "../reference/mod.rs"]
mod reference;

mod mlx5_cases;
mod mlx5_header;
mod mlx5_prm;
#[cfg(target_os = "linux")]
mod mlx5dv_layouts;
#[cfg(target_os = "linux")]
mod rdma_sys;
#[cfg(target_os = "linux")]
mod rxe;
mod rxe_header;
mod soft_backed;
mod soft_engines;
mod soft_errors;
mod soft_fault_mix;
mod soft_idle;
mod soft_like_hardware;
mod soft_mover;
mod soft_order;
mod soft_requests;
mod soft_rings;
mod soft_time;
