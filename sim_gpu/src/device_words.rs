//! The bytes of device memory as the memory model and the hooks reach them.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::weak_memory::{Access, Bytes, Operation};

/// Device memory: one mapping, valid as a whole.
#[derive(Clone, Copy)]
pub(crate) struct DeviceWords {
    base: u64,
    capacity: u64,
}

impl DeviceWords {
    /// The mapping of `capacity` bytes at `base`.
    ///
    /// # Safety
    /// It stays mapped for as long as the value lives.
    pub(crate) unsafe fn new(base: u64, capacity: u64) -> Self {
        Self { base, capacity }
    }
}

impl Bytes for DeviceWords {
    fn covers(&self, at: u64, bytes: u64) -> bool {
        let offset = at.wrapping_sub(self.base);
        offset < self.capacity && bytes <= self.capacity - offset
    }

    fn get(&self, at: u64, bytes: usize) -> u64 {
        let from = at as *const u8;
        let mut word = [0; 8];
        // SAFETY: the model asks for what `covers` allowed; the mapping is alive, see `new`. Other threads (the host's) may store
        // meanwhile, as on a device; then the bytes are a mixture.
        unsafe {
            match bytes {
                8 => return ptr::read_unaligned(from.cast::<u64>()),
                4 => return ptr::read_unaligned(from.cast::<u32>()).into(),
                _ => ptr::copy_nonoverlapping(from, word.as_mut_ptr(), bytes.min(8)),
            }
        }
        u64::from_le_bytes(word)
    }

    fn set(&mut self, at: u64, bytes: usize, value: u64) {
        let to = at as *mut u8;
        // SAFETY: as in `get`.
        unsafe {
            match bytes {
                8 => ptr::write_unaligned(to.cast::<u64>(), value),
                4 => ptr::write_unaligned(to.cast::<u32>(), value as u32),
                _ => ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to, bytes.min(8)),
            }
        }
    }
}

macro_rules! at_once {
    ($atomic:ty, $word:ty, $access:ident, $value:ident, $expected:ident) => {{
        let cell = <$atomic>::from_ptr($access.at as *mut $word);
        // Sequentially consistent: outside of device memory there is no weaker model.
        let next = |old: $word| {
            let new = $access.operation.apply(old.into(), $value, $expected);
            new.map(|new| new as $word)
        };
        match $access.operation {
            Operation::Load => cell.load(Ordering::SeqCst).into(),
            Operation::Store => {
                cell.store($value as $word, Ordering::SeqCst);
                0
            }
            _ => match cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
                Ok(old) | Err(old) => old.into(),
            },
        }
    }};
}

/// An access to memory that no model is in charge of: shared memory, the host's.
///
/// # Safety
/// The address is a lane's: it may be wild, and then the fault is the lane's. Nothing may be held that needs dropping.
pub(crate) unsafe fn access_directly(access: Access, value: u64, expected: u64) -> u64 {
    // SAFETY: as the caller promises; words that are not aligned are reached byte by byte.
    unsafe {
        let aligned = access.at.is_multiple_of(access.bytes as u64);
        match access.bytes {
            8 if aligned => at_once!(AtomicU64, u64, access, value, expected),
            4 if aligned => at_once!(AtomicU32, u32, access, value, expected),
            2 if aligned => at_once!(AtomicU16, u16, access, value, expected),
            1 => at_once!(AtomicU8, u8, access, value, expected),
            bytes => {
                let mut word = [0; 8];
                ptr::copy_nonoverlapping(access.at as *const u8, word.as_mut_ptr(), bytes.min(8));
                let old = u64::from_le_bytes(word);
                if let Some(new) = access.operation.apply(old, value, expected) {
                    ptr::copy_nonoverlapping(new.to_le_bytes().as_ptr(), access.at as *mut u8, bytes.min(8));
                }
                old
            }
        }
    }
}
