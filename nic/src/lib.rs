//! NICs whose queues a GPU thread can drive.
//!
//! A GPU thread that misses a page writes an mlx5 work request into a queue pair's send queue, stores its index to
//! the doorbell record, rings the doorbell register and polls the completion queue; no CPU thread takes part.
//! This crate holds what lies on the other side:
//!
//! | layer | for whom |
//! |---|---|
//! | [`devices`] | who looks for RDMA devices: what sysfs tells of them, their ports, addresses, and places on PCIe |
//! | [`wire`] | who writes or reads queues: the formats, as checked views and representations, safe code only |
//! | [`Nic`] | who sets queues up: memory keys, queue pairs, doorbell pages |
//! | [`mlx5`] | who has a ConnectX: its rings in memory that the GPU reaches |
//! | [`rxe`] | who has Linux SoftRoCE: its rings mapped, its doorbell rung by a [`DoorbellProxy`] |
//! | [`soft`] | who has no NIC: a software NIC that executes the same requests in this process |
//! | [`NicLimits`] | who asks what a ConnectX carries, or has the software NIC keep to it |
//! | [`poster`], [`devices::tree`] | tests and benches: the GPU's side of the queues in plain Rust; a machine made of files |
//!
//! [`with_causes`] puts an error and its chain of causes into one line, for all crates.
//!
//! Errors are [`NicError`]s for calls; errors of requests are completions with a
//! [`Syndrome`](wire::mlx5::Syndrome). All types may be used from several threads.
#![deny(missing_docs)]

mod attributes;
mod backing;
mod causes;
#[cfg(target_os = "linux")]
pub mod devices;
mod doorbell_proxy;
mod error;
mod keys;
mod limits;
#[cfg(target_os = "linux")]
pub mod mlx5;
mod mover;
mod nic;
mod pages;
pub mod poster;
mod queue;
// For gpuvm's own crates and tests; programs are promised nothing of it.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub mod rdma_sys;
#[cfg(target_os = "linux")]
pub mod rxe;
mod sleeper;
pub mod soft;
pub mod wire;
mod write_combining;

pub use attributes::{AddressAttributes, QueueAttributes};
pub use backing::{Acquired, Backing, Piece};
pub use causes::with_causes;
pub use doorbell_proxy::{DoorbellProxy, ProxySlot, Wake};
pub use error::NicError;
pub use keys::{Access, MemoryKey};
pub use limits::{Limit, NicLimits};
#[cfg(target_os = "linux")]
pub use mlx5::Mlx5Nic;
pub use mover::{Move, Mover, MoverError, MoverLane};
pub use nic::{Nic, NicCapabilities, check_span};
#[cfg(target_os = "linux")]
pub use pages::host_page_bytes;
pub use pages::{PAGE_BYTES, Pages};
pub use queue::{QueueFormat, QueueMemory, QueuePair, QueuePairState, QueueRings, RingSpan};
#[cfg(target_os = "linux")]
pub use rxe::RxeNic;
pub use soft::SoftNic;
