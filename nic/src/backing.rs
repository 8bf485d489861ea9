//! What is behind registered addresses that are not memory: a file, say, of which a part is in memory at a time.

/// Memory that holds a part of what a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address in this process.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// For the backing: what it is to let go of.
    pub token: u64,
}

/// Whether a backing has what a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// It is in memory and stays there until it is released.
    Ready,
    /// Not yet.
    Wait,
    /// It is not available, and the backing knows why.
    Failed,
}

/// Serves addresses that are registered by [`Nic::register_backed`](crate::Nic::register_backed). No call waits: engines of a NIC serve other queue
/// pairs meanwhile.
///
/// What was acquired for writing counts as written from then on, not from its release: a poster may hear of a WRITE's completion before
/// the NIC lets go of the memory.
pub trait Backing: Send + Sync {
    /// The bytes will be asked for. False where there is no room for them now.
    fn expect(&self, address: u64, bytes: u64) -> bool;

    /// Appends the memory that holds the bytes to `pieces`, in order; nothing unless it is ready. `writes`: they will be written, all of them.
    fn acquire(&self, address: u64, bytes: u64, writes: bool, pieces: &mut Vec<Piece>) -> Acquired;

    /// Lets go of what was acquired.
    fn release(&self, pieces: &[Piece], writes: bool);

    /// Goes on with what was begun. Whether anything came of it.
    fn poll(&self) -> bool;

    /// What it [polls](Self::poll), as a number: of several backings with the same, one is polled.
    fn polled(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// A count that changes whenever what had to [wait](Acquired::Wait) may be there: until then nothing asks again.
    fn progress(&self) -> u64;
}
