//! A page cache for files that are larger than host memory.
//!
//! A [`Tier`] has a budget of memory in slots of one size, and brings blocks of files into them: by io_uring and O_DIRECT where those are
//! available, many at a time, neighbours together. Which block leaves when a slot is needed is decided by how often it was asked for
//! (S3-FIFO), so a scan of a file displaces little. A block that is written stays in memory until its slot is wanted or its file is
//! [synced](File::sync).
//!
//! A server of many requests at a time, as a NIC in software does, asks without waiting: [`File::expect`] what will be needed,
//! [`File::acquire`] what is needed now, [`Tier::poll`] between. Others read and write, and wait.
//!
//! ```
//! use gpuvm_files::{Tier, TierOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("numbers");
//! std::fs::write(&path, vec![7u8; 1 << 20])?;
//! // A quarter of the file fits.
//! let tier = Tier::new(256 << 10, TierOptions::default())?;
//! let file = tier.open(&path, true)?;
//! let mut part = [0; 100];
//! file.read(500_000, &mut part)?;
//! assert_eq!(part, [7; 100]);
//! file.write(500_010, &[8])?;
//! file.sync()?;
//! assert_eq!(std::fs::read(&path)?[500_010], 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Slots may also be a device's memory ([`Tier::on_device`]), which blocks reach past the host's where there is a library for that.
//!
//! # What survives a loss of power
//!
//! After [`File::sync`] has returned `Ok`, all that was written before it. Of what was written since, any block may be stored or not,
//! as old or as new contents. While a sync fails, the blocks that could not be written are kept in memory, and what earlier syncs
//! stored is as safe as before, block by block.

mod bare;
mod device;
mod engine;
mod error;
mod file;
mod kinds;
mod memory;
mod opened;
mod order;
mod perfect;
mod rules;
mod shared;
mod slots;
mod storage;
mod streams;
mod tier;

#[cfg(test)]
mod tests;

pub use bare::read_bare;
pub use device::{DeviceFile, DeviceSlots};
pub use engine::{Engine, try_io_uring};
pub use error::FileError;
pub use file::File;
pub use kinds::{KIND_BYTES, open_regular, other_kind};
pub use memory::{MemoryLimit, available_memory};
pub use shared::TierOptions;
pub use slots::{Got, How, Piece, TierStats};
pub use storage::{Look, Storage};
pub use tier::Tier;
