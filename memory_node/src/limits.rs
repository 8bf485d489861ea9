//! What a node and its clients take for each other, and how many there may be: for those who plan machines.

use crate::client;
use crate::mailbox::RECEIVES;

/// Most clients of a node at once.
pub const CLIENTS_MAX: u32 = 65_536;

/// Entries of a completion queue that every device can make: those of `rdma_rxe`.
pub const COMPLETION_ENTRIES_MAX: u32 = 32_767;

/// Entries of a node's completion queue that a client may fill.
pub const COMPLETIONS_PER_CLIENT: u32 = RECEIVES + SESSION_SENDS;

/// Clients whose completions go into one queue of the node. There is room besides for the last completions of clients that end in one turn of
/// the node's thread.
pub const CLIENTS_PER_COMPLETION_QUEUE: u32 = COMPLETION_ENTRIES_MAX / COMPLETIONS_PER_CLIENT - 2 * EVENTS_MAX;

/// Pinned memory of the node for the messages of a client, in bytes.
pub const NODE_BYTES_PER_CLIENT: u64 = crate::pool::PAGE_BYTES;

/// Pinned memory of a client for a node, in bytes: messages, and copies that the host makes.
pub const CLIENT_BYTES_PER_NODE: u64 = crate::pool::PAGE_BYTES + client::STAGING_BYTES as u64;

/// Descriptors that a client has open for a node: of the connection manager, two of the device, of completions, and to wake its thread.
pub const CLIENT_FILES_PER_NODE: u64 = 5;

/// Threads that a client has for a node.
pub const CLIENT_THREADS_PER_NODE: u64 = 1;

/// Events of the connection manager that the node handles in one turn.
pub(crate) const EVENTS_MAX: u32 = 64;

/// Answers and probes of the node that a client's device has not acknowledged yet, at most.
pub(crate) const SESSION_SENDS: u32 = 16;
