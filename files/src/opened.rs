//! The files of a tier that are open.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
};

use crate::{
    FileError,
    device::{DeviceSlots, OnDevice},
    storage::{Look, Storage},
};

/// An open file.
pub(crate) struct Opened {
    /// Distinguishes it in the tier.
    pub id: u32,
    pub path: PathBuf,
    /// Where slots are a device's memory. Before the storage, whose descriptor it uses until it is dropped.
    pub device: Option<OnDevice>,
    pub storage: Arc<dyn Storage>,
    pub writable: bool,
    /// Bytes when it was opened.
    pub length: u64,
    pub identity: (u64, u64),
}

impl Opened {
    /// Copies bytes out of slots that were acquired.
    pub fn copy_out(&self, address: u64, out: &mut [u8]) -> Result<(), FileError> {
        match &self.device {
            Some(device) => device.copy_out(address, out).map_err(|source| self.unreached(source)),
            None => {
                let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
                // SAFETY: the piece is acquired, so its memory is a slot's and stays; who writes the same bytes meanwhile by way of a NIC
                // leaves either content, as for memory that devices share.
                unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
                Ok(())
            }
        }
    }

    /// Copies bytes into slots that were acquired for writing.
    pub fn copy_in(&self, address: u64, data: &[u8]) -> Result<(), FileError> {
        match &self.device {
            Some(device) => device.copy_in(address, data).map_err(|source| self.unreached(source)),
            None => {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                // SAFETY: the piece is acquired for writing, so its memory is a slot's and stays; as in `copy_out`.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
                Ok(())
            }
        }
    }

    fn unreached(&self, source: std::io::Error) -> FileError {
        FileError::Device {
            path: self.path.clone(),
            source: Arc::new(source),
        }
    }

    /// Whether it is as long as it was, and has its name.
    pub fn check(&self) -> Result<(), FileError> {
        let look = self.storage.look().map_err(|source| FileError::Sync {
            path: self.path.clone(),
            source: Arc::new(source),
        })?;
        if look.length < self.length {
            return Err(FileError::Shrank {
                path: self.path.clone(),
                before: self.length,
                now: look.length,
            });
        }
        match look.deleted {
            true => Err(FileError::Deleted {
                path: self.path.clone(),
            }),
            false => Ok(()),
        }
    }
}

/// What files have in common that are one: device and number, whether they may be written, their bytes.
type Same = ((u64, u64), bool, u64);

/// The files of a tier that are open.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: HashMap<Same, Weak<Opened>>,
    /// This many of them are looked through for those that are closed.
    full: usize,
    next: u32,
}

impl OpenFiles {
    /// The file that is open already under this identity in the same way, else the new one.
    pub fn enter(
        &mut self,
        storage: Arc<dyn Storage>,
        path: PathBuf,
        writable: bool,
        look: Look,
        device: Option<&Arc<dyn DeviceSlots>>,
    ) -> std::io::Result<Arc<Opened>> {
        let same = (look.identity, writable, look.length);
        if let Some(file) = self.files.get(&same).and_then(Weak::upgrade) {
            return Ok(file);
        }
        if self.files.len() >= self.full {
            self.files.retain(|_, file| file.strong_count() > 0);
            self.full = 2 * self.files.len() + 16;
        }
        let device = device.map(|slots| OnDevice::open(slots, &*storage)).transpose()?;
        let file = Arc::new(Opened {
            id: self.next,
            path,
            storage,
            device,
            writable,
            length: look.length,
            identity: look.identity,
        });
        self.next += 1;
        self.files.insert(same, Arc::downgrade(&file));
        Ok(file)
    }
}
