//! What a NIC refuses.

use std::borrow::Cow;

use crate::{MemoryKey, QueuePairState};

/// What a NIC refused, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// An argument that cannot be.
    #[error("{what} is {value:#x}, expected {expected}")]
    BadArgument {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it has to be.
        expected: &'static str,
    },
    /// No queue pair of this number.
    #[error("no queue pair {queue_pair:#x} on this NIC; it was never created or is destroyed")]
    UnknownQueuePair {
        /// The number asked for.
        queue_pair: u32,
    },
    /// No registered memory of this key.
    #[error("no memory registered under lkey {:#x} and rkey {:#x}; it was never registered or is deregistered", key.lkey, key.rkey)]
    UnknownKey {
        /// The key given.
        key: MemoryKey,
    },
    /// The queue pair is not in the state that the call needs.
    #[error("queue pair {queue_pair:#x} is in state {state}, {operation} needs {needed}; reset it first")]
    WrongState {
        /// The queue pair.
        queue_pair: u32,
        /// Its state.
        state: QueuePairState,
        /// The call.
        operation: &'static str,
        /// The state it needs.
        needed: QueuePairState,
    },
    /// The NIC has no more of something.
    #[error("all {limit} {what} of the NIC are in use; release some first")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// An engine that is a kernel found no multiprocessors in time.
    #[error(
        "the NIC's engine waited {waited_ms} ms for multiprocessors, all of which other kernels have; let those end, launch fewer blocks of them, \
         or use the engine cpu"
    )]
    NoRoom {
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// The NIC did not come to rest in time. What was to be released is still in use: its memory must stay valid.
    #[error(
        "{what} waited {waited_ms} ms for engine {engine} to finish the request it executes; keep the memory alive and try again"
    )]
    TimedOut {
        /// The call.
        what: &'static str,
        /// The engine waited for.
        engine: usize,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// The system refused a call.
    #[error("{doing} on {device}{}", if hint.is_empty() { String::new() } else { format!(" ({hint})") })]
    System {
        /// The RDMA device.
        device: String,
        /// What was being done.
        doing: String,
        /// What to do about it, if that is known; empty otherwise.
        hint: Cow<'static, str>,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// No device to open.
    #[error("{reason}")]
    NoDevice {
        /// What was looked for, what is there, and what to do.
        reason: String,
    },
    /// The NIC cannot do this at all.
    #[error("the {nic} NIC cannot {what}")]
    Unsupported {
        /// The NIC.
        nic: &'static str,
        /// The call.
        what: &'static str,
    },
    /// What moves the NIC's bytes failed.
    #[error("{what}: the NIC's mover failed")]
    Mover {
        /// What needed it.
        what: &'static str,
        /// The mover's reason.
        #[source]
        source: crate::MoverError,
    },
    /// A thread of the NIC could not be started.
    #[error("cannot start thread {name} of the NIC; lower the number of engines or raise the process limit")]
    Thread {
        /// The thread.
        name: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}
