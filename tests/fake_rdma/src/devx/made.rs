//! What commands make: numbers, queues, registered memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use gpuvm_nic::{Pages, SoftNic};

use crate::control::breach;
use crate::mapping::Mapping;

/// A number that was not given out before.
pub fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x100);
    // Relaxed: a number.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A completion queue that waits for its queue pair.
pub struct CompletionQueue {
    pub number: u32,
    pub ring: u64,
    pub entries: u32,
    pub record: u64,
}

/// A queue pair.
pub struct QueuePair {
    pub number: u32,
    pub state: u32,
    pub destination: u32,
    pub nic: Arc<SoftNic>,
    pub register: u64,
    pub stop: Arc<AtomicBool>,
    pub carrier: Option<JoinHandle<()>>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Relaxed: the join orders the rest.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.take()
            && carrier.join().is_err()
        {
            breach("a carrier of doorbells panicked".to_owned());
        }
    }
}

/// Registered memory.
pub struct Umem {
    pub number: u32,
    pub base: u64,
    pub bytes: u64,
    /// Of a dma-buf.
    #[expect(dead_code, reason = "it goes with the memory")]
    pub mapping: Option<Mapping>,
}

/// A page of registers.
pub struct Registers {
    pub number: u32,
    pub page: Pages,
}
