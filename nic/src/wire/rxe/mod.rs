//! Linux SoftRoCE's formats: what `rdma_rxe` reads and writes in the rings that it maps to user space.
//!
//! Sources: `<rdma/rdma_user_rxe.h>` (`struct rxe_send_wqe`, `struct rxe_queue_buf`) and `<rdma/ib_user_verbs.h>`
//! (`struct ib_uverbs_wc`), the same from Linux 6.1 to 7.3. All fields are in the machine's byte order, little-endian on
//! the machines that this crate supports.
//!
//! A ring is a header of [`RING_HEADER_BYTES`] and a power of two of slots. Indexes are stored masked; the ring is empty when
//! both are equal and full with one slot left. User space owns a send ring's producer index and a completion ring's
//! consumer index, the driver the other two.

mod completion;
mod request;
mod ring;
#[cfg(test)]
mod tests;

pub use completion::{Completion, CompletionEntry, Status};
pub use request::{Operation, SendEntry, WorkRequest, flags, opcodes};
pub use ring::{CONSUMER_OFFSET, PRODUCER_OFFSET, RING_HEADER_BYTES, RingHeader};
