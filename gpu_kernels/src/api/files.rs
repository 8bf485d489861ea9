//! Files whose bytes come into a GPU's memory by a library of the GPU's maker.

use std::io;
use std::os::fd::RawFd;

use crate::GpuError;

/// The way between files and one allocation of a GPU's memory. Calls may come from any thread, several at a time.
pub trait FileAccess: Send + Sync {
    /// What moves the bytes, for reports.
    fn name(&self) -> &'static str;

    /// Fewest bytes of a read or write: a power of two of 4 KiB at least.
    fn bytes_least(&self) -> u64;

    /// Makes a file known, which was opened with O_DIRECT and stays open until the value is dropped. To be called before kernels that wait
    /// for bytes of it start.
    ///
    /// # Errors
    /// [`GpuError::FileAccess`] where the library does not take the file.
    fn open(&self, file: RawFd) -> Result<Box<dyn GpuFile>, GpuError>;
}

/// A file of which bytes come into the memory. Offsets, addresses and lengths are multiples of 4 KiB.
pub trait GpuFile: Send + Sync {
    /// Reads `bytes` bytes at `offset` to `addr`, and waits for them; how many there were. Fewer than asked for where the file ends.
    ///
    /// # Errors
    /// The system's, or the library's.
    ///
    /// # Safety
    /// The bytes at `addr` lie in the memory that the access was made for; nothing else reaches them until it returns.
    unsafe fn read_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64>;

    /// Writes `bytes` bytes at `addr` to `offset`, and waits for that; how many were written. They are stored by an `fsync` of the file.
    ///
    /// # Errors
    /// The system's, or the library's.
    ///
    /// # Safety
    /// The bytes at `addr` lie in the memory that the access was made for.
    unsafe fn write_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64>;
}
