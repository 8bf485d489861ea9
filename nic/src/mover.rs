//! How a NIC's bytes are moved where the processor does not move them itself: by a GPU's copy engines, say.

/// One copy: `bytes` bytes from address `from` to address `to`, each an address that the mover understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// First byte written.
    pub to: u64,
    /// First byte read.
    pub from: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
}

/// What a mover says went wrong.
pub type MoverError = Box<dyn std::error::Error + Send + Sync>;

/// Makes lanes: independent lines of copies.
pub trait Mover: Send + Sync {
    /// A lane with `staging_bytes` bytes of memory to copy completions from.
    ///
    /// # Errors
    /// What the mover lacks.
    fn lane(&self, staging_bytes: u64) -> Result<Box<dyn MoverLane>, MoverError>;
}

/// Copies in order. Dropping it waits for those in flight.
pub trait MoverLane: Send {
    /// Address of the staging memory in this process, aligned to 64. The NIC alone touches it, while the lane lives.
    fn staging(&self) -> u64;

    /// Starts copies and does not wait for them. Those of `data` have no order among themselves, nor have those of `then`,
    /// which begin when all of `data` and of earlier calls have arrived.
    ///
    /// # Errors
    /// The copies could not all be started. None of this call moves a byte any more, and it does not count as completed.
    ///
    /// # Safety
    /// All memory named stays valid until [`completed`](Self::completed) has counted the call or returned an error, or the
    /// lane is dropped.
    unsafe fn submit(&mut self, data: &[Move], then: &[Move]) -> Result<(), MoverError>;

    /// How many calls of `submit` have arrived, of those that returned `Ok`. Does not wait.
    ///
    /// # Errors
    /// The mover is broken: nothing moves any more.
    fn completed(&mut self) -> Result<u64, MoverError>;
}
