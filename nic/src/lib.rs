//! NICs whose queues a GPU thread can drive.
//!
//! A GPU thread that misses a page writes an mlx5 work request into a queue pair's send queue, stores its index to
//! the doorbell record, rings the doorbell register and polls the completion queue; no CPU thread is on that way.
//! This crate holds what lies on the other side:
//!
//! | layer | for whom |
//! |---|---|
//! | [`wire`] | who writes or reads queues: the formats, as checked views and representations, safe code only |
//! | [`Nic`] | who sets queues up: memory keys, queue pairs, doorbell pages |
//! | [`soft`] | who has no NIC: a software NIC that executes the same requests in this process |
//! | `poster` (feature `test-utils`) | tests and benches: the GPU's side of the queues in plain Rust |
//!
//! Errors are [`NicError`]s for calls; errors of requests are completions with a
//! [`Syndrome`](wire::mlx5::Syndrome). All types may be used from several threads.
#![deny(missing_docs)]

mod nic;
#[cfg(any(test, feature = "test-utils"))]
pub mod poster;
pub mod soft;
pub mod wire;

pub use nic::{Access, MemoryKey, Nic, NicCapabilities, NicError, QueueMemory, QueuePair, QueuePairState};
pub use soft::SoftNic;
