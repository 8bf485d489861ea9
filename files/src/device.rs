//! Slots in memory that this process does not reach, such as a GPU's, into which a library brings blocks of files past the host's memory.

use std::{io, os::fd::RawFd, sync::Arc};

use crate::storage::{ALIGNMENT, Storage};

/// A device's memory as slots, and how blocks of files come there. Calls may come from any thread, several at a time, and wait.
pub trait DeviceSlots: Send + Sync {
    /// What moves blocks, for reports.
    fn name(&self) -> &'static str;

    /// Makes a file known, which was opened with O_DIRECT and stays open until the value is dropped.
    ///
    /// # Errors
    /// Why blocks of this file cannot come that way.
    fn open(&self, file: RawFd) -> io::Result<Box<dyn DeviceFile>>;

    /// Copies memory of slots out.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()>;

    /// Copies bytes into slots.
    ///
    /// # Errors
    /// The device's.
    fn write(&self, address: u64, data: &[u8]) -> io::Result<()>;
}

/// A file of which blocks come into a device's memory. Offsets, addresses and lengths are multiples of 4 KiB.
pub trait DeviceFile: Send + Sync {
    /// Reads into slots; how many bytes were there. Fewer than asked for where the file ends.
    ///
    /// # Errors
    /// The system's, or the library's.
    ///
    /// # Safety
    /// The bytes at `address` lie in slots, and nothing else reaches them until it returns.
    unsafe fn read_at(&self, offset: u64, address: u64, bytes: u64) -> io::Result<u64>;

    /// Writes slots to the file; how many bytes of them.
    ///
    /// # Errors
    /// The system's, or the library's.
    ///
    /// # Safety
    /// The bytes at `address` lie in slots, and stay there until it returns.
    unsafe fn write_at(&self, offset: u64, address: u64, bytes: u64) -> io::Result<u64>;
}

/// Memory of one block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub address: u64,
    pub bytes: u64,
}

/// An open file's way between its storage and slots of a device.
pub(crate) struct OnDevice {
    slots: Arc<dyn DeviceSlots>,
    /// None for storage that has no descriptor: its bytes go by way of the host.
    file: Option<Box<dyn DeviceFile>>,
}

impl OnDevice {
    pub fn open(slots: &Arc<dyn DeviceSlots>, storage: &dyn Storage) -> io::Result<Self> {
        let descriptor = storage.descriptor(0, ALIGNMENT);
        Ok(Self {
            slots: Arc::clone(slots),
            file: descriptor.map(|file| slots.open(file)).transpose()?,
        })
    }

    /// The file, for spans that may go past the host: whole blocks.
    fn past_host(&self, storage: &dyn Storage, offset: u64, bytes: u64) -> Option<&dyn DeviceFile> {
        let file = self.file.as_deref()?;
        storage.descriptor(offset, bytes).map(|_| file)
    }

    /// Reads a block into its slot, which is being loaded: nothing else reaches it.
    pub fn load(&self, storage: &dyn Storage, offset: u64, Span { address, bytes }: Span) -> io::Result<u64> {
        if let Some(file) = self.past_host(storage, offset, bytes) {
            // SAFETY: the caller's slot, which the operation keeps.
            return unsafe { file.read_at(offset, address, bytes) };
        }
        let mut block = vec![0; bytes as usize];
        let got = storage.read_at(offset, &mut block)?;
        self.slots.write(address, &block[..got])?;
        Ok(got as u64)
    }

    /// Writes a slot to its block.
    pub fn store(&self, storage: &dyn Storage, offset: u64, Span { address, bytes }: Span) -> io::Result<()> {
        let Some(file) = self.past_host(storage, offset, bytes) else {
            let mut block = vec![0; bytes as usize];
            self.slots.read(address, &mut block)?;
            return storage.write_at(offset, &block);
        };
        let mut done = 0;
        while done < bytes {
            // SAFETY: inside the caller's slot, which the operation keeps.
            match unsafe { file.write_at(offset + done, address + done, bytes - done)? } {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                moved => done += moved,
            }
        }
        Ok(())
    }

    pub fn copy_out(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        self.slots.read(address, out)
    }

    pub fn copy_in(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.slots.write(address, data)
    }
}
