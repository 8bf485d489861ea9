//! Completion queue entries (`struct ib_uverbs_wc`).

use crate::wire::mlx5::Syndrome;
use crate::wire::{WireError, codes, view};

view! { le
    /// View of a completion queue entry.
    CompletionEntry, 48;
    /// The request's number.
    id, set_id: u64 => 0;
    /// [`Status`].
    status, set_status: u32 => 8;
    /// What completed (`enum ib_uverbs_wc_opcode`); means nothing after an error.
    opcode, set_opcode: u32 => 12;
    /// The vendor's detail of an error.
    vendor_error, set_vendor_error: u32 => 16;
    /// Bytes moved.
    byte_count, set_byte_count: u32 => 20;
    /// The queue pair.
    queue_pair, set_queue_pair: u32 => 28;
}

codes! {
    /// How a request ended (`enum ib_wc_status`).
    Status {
        /// It did what it should.
        Success = 0, "success";
        /// Local data does not fit the request.
        LocalLength = 1, "local length error";
        /// A request that the queue pair does not execute.
        LocalOperation = 2, "local queue pair operation error";
        /// An end-to-end context's error.
        LocalContext = 3, "local end-to-end context error";
        /// Local memory without key or rights.
        LocalProtection = 4, "local protection error";
        /// Posted to a queue pair in error.
        Flushed = 5, "flushed: the queue pair is in error";
        /// A memory window's error.
        MemoryWindow = 6, "memory window bind error";
        /// An answer that does not fit.
        BadResponse = 7, "bad response";
        /// Local access without the right.
        LocalAccess = 8, "local access error";
        /// The responder does not take such requests.
        RemoteInvalidRequest = 9, "remote invalid request error";
        /// Remote memory without key or rights.
        RemoteAccess = 10, "remote access error";
        /// The responder failed.
        RemoteOperation = 11, "remote operation error";
        /// The responder did not answer.
        RetriesExceeded = 12, "transport retries exceeded";
        /// The responder was never ready.
        ReceiverNotReady = 13, "receiver-not-ready retries exceeded";
    }
}

impl Status {
    /// The status in mlx5's numbers, which the device library uses for every NIC; `None` for success.
    pub fn syndrome(self) -> Option<Syndrome> {
        match u8::from(self) {
            0 => None,
            code if code < 7 => Some(Syndrome::from(code)),
            code => Some(Syndrome::from(code.wrapping_add(9))),
        }
    }
}

/// The meaning of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// Bytes moved, after a success.
    pub bytes: u32,
    /// The queue pair.
    pub queue_pair: u32,
}

impl Completion {
    /// Reads an entry that the driver has written.
    ///
    /// # Errors
    /// A buffer shorter than 48 bytes; a status that does not fit a byte.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let entry = CompletionEntry::new_checked(bytes)?;
        let status = u8::try_from(entry.status()).map_err(|_| WireError {
            field: "ib_uverbs_wc.status",
            value: u64::from(entry.status()),
            offset: 8,
            expected: "a status below 256",
        })?;
        Ok(Completion {
            id: entry.id(),
            status: status.into(),
            bytes: entry.byte_count(),
            queue_pair: entry.queue_pair(),
        })
    }
}
