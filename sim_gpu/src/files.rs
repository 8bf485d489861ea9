//! Files whose bytes come into the memory of a simulated GPU, as a library for GPUDirect Storage brings them: by system calls, at once.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

use gpuvm_gpu::{FileAccess, GpuError, GpuFile};

/// Reads and writes device memory, which is memory of this process.
pub(crate) struct SimFileAccess;

impl FileAccess for SimFileAccess {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn bytes_least(&self) -> u64 {
        4096
    }

    fn open(&self, file: RawFd) -> Result<Box<dyn GpuFile>, GpuError> {
        Ok(Box::new(SimFile(file)))
    }
}

struct SimFile(RawFd);

impl SimFile {
    fn file(&self) -> ManuallyDrop<File> {
        // SAFETY: it stays open until this value is dropped, as `FileAccess::open` asks, and is not closed here.
        ManuallyDrop::new(unsafe { File::from_raw_fd(self.0) })
    }
}

impl GpuFile for SimFile {
    unsafe fn read_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64> {
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(addr as usize);
        // SAFETY: the caller's memory, which nobody else reaches; device memory is memory of this process.
        let out = unsafe { std::slice::from_raw_parts_mut(memory, bytes as usize) };
        Ok(self.file().read_at(out, offset)? as u64)
    }

    unsafe fn write_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64> {
        let memory = std::ptr::with_exposed_provenance::<u8>(addr as usize);
        // SAFETY: the caller's memory. Lanes may write it meanwhile by way of a NIC: what is read here then is written once more.
        let data = unsafe { std::slice::from_raw_parts(memory, bytes as usize) };
        Ok(self.file().write_at(data, offset)? as u64)
    }
}
