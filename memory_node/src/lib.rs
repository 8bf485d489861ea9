//! Memory of another machine for gpuvm.
//!
//! A memory node ([`MemoryNode`], the command `gpuvm serve`) exports a pool of memory over RDMA. A client
//! ([`NodeClient`]) joins it by the RDMA connection manager, asks for grants ([`Grant`]: zeroed memory with a memory
//! region and a key of its own) and lets its queue pairs join ([`NodeClient::connect_queue`]); from then on GPU threads
//! read and write the grant by one-sided READ and WRITE, and no processor of the node is on that way.
//!
//! | type | for whom |
//! |---|---|
//! | [`MemoryNode`], [`ServeOptions`] | who has memory to give |
//! | [`NodeClient`], [`Grant`] | who wants it: one session with one node |
//! | [`JoinQueue`] | who makes queue pairs by other means than libibverbs, a GPU's for one |
//! | [`HostQueue`] | who wants an ordinary queue pair: tests, copies by the host |
//! | [`protocol`] | who wants to know the bytes on the wire |
//! | [`limits`] | who plans how many nodes and clients there may be |
//!
//! libibverbs and librdmacm are loaded at run time. Without them everything compiles and starts, and
//! [`NodeError::LibraryMissing`] says what to install.
//!
//! Clients share memory for reading: one fills and seals a grant and tells the others its [`ShareKey`] ([`Grant::share`]), by which
//! they get it too, each with a key for RDMA of its own ([`NodeClient::attach`]).
//!
//! **What the node protects from.** Each session has a protection domain of its own, so a key for RDMA of one client is refused to
//! all others. A secret is proved, never sent: the node answers the first connection request by a rejection with a
//! random challenge, and takes a second one that carries a keyed digest (HMAC-SHA256) over the challenge and both ends'
//! addresses; a challenge is good for one request, so a recorded one is worth nothing, and the node proves in its answer
//! that it has the secret too. Nothing is encrypted or signed after that: who reads or forges packets between client and
//! node can read and write the granted memory. Use it on a network that is trusted, or inside a tunnel.
//!
//! All types may be used from several threads. Every wait is bounded.
#![deny(missing_docs)]

mod access;
mod client;
mod dial;
mod error;
pub mod limits;
mod link;
mod mailbox;
mod memory;
mod metrics;
mod pool;
pub mod protocol;
mod rejects;
mod server;
mod verbs;

pub use access::Network;
pub use client::{ClientOptions, Grant, NodeClient, ShareKey};
pub use error::{NodeError, Refusal};
pub use link::QueueLink;
pub use memory::Backing;
pub use metrics::{Metrics, NodeEvent};
pub use protocol::GrantAccess;
pub use server::{EventSink, MemoryNode, ServeOptions};
pub use verbs::{Completion, CompletionStatus, HostQueue, JoinQueue, Request};
