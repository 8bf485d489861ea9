//! Registered memory: keys, bounds, access rights.
//!
//! Engines look keys up on every request, without a lock. A slot is filled before its key is published (release,
//! paired with the acquire load of a lookup) and is given to a new key only after every engine has been seen at rest
//! since its old key was cleared, so a lookup never mixes two registrations.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::{Access, Backing, MemoryKey, NicError};

/// Most registrations at one time: a virtual memory has up to 65,536 regions, with two homes and frames of their own.
pub const REGIONS_MAX: u32 = 1 << 18;
/// Slots that are allocated at a time.
const CHUNK: u32 = 1 << 12;
/// So many slots are used once before any is used again, so that stale keys stay dead long.
const FRESH_FIRST: u32 = 1 << 14;
/// Index of the first key; 1 would make `MLX5_INVALID_LKEY` (0x100) a key.
pub const KEY_INDEX_FIRST: u32 = 0x21;
/// Low bit of a key: set in rkeys. Giving an lkey where an rkey is asked for fails, as it would on some NICs.
pub const KEY_REMOTE_BIT: u32 = 1;

/// Which side of a request names a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Local,
    Remote,
}

#[derive(Default)]
struct Slot {
    /// The lkey; 0 while the slot is free.
    lkey: AtomicU32,
    access: AtomicU32,
    addr: AtomicU64,
    bytes: AtomicU64,
}

struct Free {
    /// Slots that were in use; the oldest is reused first.
    used: VecDeque<u32>,
    /// Slots from here on were never used.
    fresh: u32,
}

/// What serves addresses that are no memory.
#[derive(Default)]
struct Backings {
    by_slot: HashMap<u32, Arc<dyn Backing>>,
    /// The slots of those that [poll](Backing::poll) the same.
    polled: HashMap<usize, BTreeSet<u32>>,
}

impl Backings {
    fn insert(&mut self, slot: u32, backing: Arc<dyn Backing>) {
        self.polled.entry(backing.polled()).or_default().insert(slot);
        self.by_slot.insert(slot, backing);
    }

    /// Whether there was one.
    fn remove(&mut self, slot: u32) -> bool {
        let Some(backing) = self.by_slot.remove(&slot) else {
            return false;
        };
        let polled = backing.polled();
        if let Some(slots) = self.polled.get_mut(&polled) {
            slots.remove(&slot);
            if slots.is_empty() {
                self.polled.remove(&polled);
            }
        }
        true
    }

    /// Whether anything came of a poll of all.
    fn poll(&self) -> bool {
        let firsts = self
            .polled
            .values()
            .filter_map(|slots| self.by_slot.get(slots.first()?));
        firsts.fold(false, |any, backing| backing.poll() | any)
    }
}

pub(super) struct MemoryTable {
    /// Each as soon as one of its slots is used.
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
    backings: RwLock<Backings>,
    /// How many there are.
    backed: AtomicU32,
    dead_keys: AtomicU64,
}

impl MemoryTable {
    pub fn new() -> Self {
        MemoryTable {
            chunks: (0..REGIONS_MAX / CHUNK).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free {
                used: VecDeque::new(),
                fresh: 0,
            }),
            backings: RwLock::default(),
            backed: AtomicU32::new(0),
            dead_keys: AtomicU64::new(0),
        }
    }

    /// A slot that was used.
    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        let chunk = self.chunks.get((index / CHUNK) as usize)?.get()?;
        chunk.get((index % CHUNK) as usize)
    }

    /// A slot that no key has.
    fn take(&self) -> Result<u32, NicError> {
        let mut free = self.free.lock();
        let used = match free.fresh < FRESH_FIRST {
            true => None,
            false => free.used.pop_front(),
        };
        if let Some(index) = used {
            return Ok(index);
        }
        if free.fresh == REGIONS_MAX {
            return Err(NicError::Exhausted {
                what: "memory registrations",
                limit: u64::from(REGIONS_MAX),
            });
        }
        free.fresh += 1;
        Ok(free.fresh - 1)
    }

    /// Publishes a span under a new key; of addresses that are no memory, with what serves them.
    pub fn insert(
        &self,
        addr: u64,
        bytes: u64,
        access: Access,
        backing: Option<Arc<dyn Backing>>,
    ) -> Result<MemoryKey, NicError> {
        check(addr, bytes, access)?;
        let index = self.take()?;
        if let Some(backing) = backing {
            self.backings.write().insert(index, backing);
            // Relaxed: whoever sees the key below sees it.
            self.backed.fetch_add(1, Ordering::Relaxed);
        }
        let new = || (0..CHUNK).map(|_| Slot::default()).collect();
        let chunk = self.chunks[(index / CHUNK) as usize].get_or_init(new);
        let slot = &chunk[(index % CHUNK) as usize];
        // Relaxed: the slot is ours until its key is published below. The old generation is left in `access`.
        let generation = (slot.access.load(Ordering::Relaxed) >> 24).wrapping_add(1) & 0x7f;
        slot.access.store(generation << 24 | access.bits(), Ordering::Relaxed);
        slot.addr.store(addr, Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Relaxed);
        let lkey = (index + KEY_INDEX_FIRST) << 8 | generation << 1;
        // Release: pairs with the acquire in `find`; who sees the key sees the fields.
        slot.lkey.store(lkey, Ordering::Release);
        Ok(MemoryKey {
            lkey,
            rkey: lkey | KEY_REMOTE_BIT,
        })
    }

    /// Makes the key dead; the slot is reusable after [`release`](Self::release).
    pub fn clear(&self, key: MemoryKey) -> Result<u32, NicError> {
        let unknown = NicError::UnknownKey { key };
        let index = (key.lkey >> 8).wrapping_sub(KEY_INDEX_FIRST);
        let Some(slot) = self.slot(index) else {
            return Err(unknown);
        };
        if key.lkey == 0 || key.rkey != key.lkey | KEY_REMOTE_BIT {
            return Err(unknown);
        }
        // Relaxed: the engines' locks, as below. Before the key is dead, so that who looks at it afterwards sees the count.
        self.dead_keys.fetch_add(1, Ordering::Relaxed);
        // Acquire/relaxed: only one of two racing calls finds the key; the engines' locks, which the caller takes
        // next, order the clearing before the memory's release.
        match slot
            .lkey
            .compare_exchange(key.lkey, 0, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(index),
            Err(_) => Err(unknown),
        }
    }

    /// Gives the slot back. Every engine must have been seen at rest since [`clear`](Self::clear).
    pub fn release(&self, index: u32) {
        if self.backings.write().remove(index) {
            // Relaxed: a hint, at its next use at the latest.
            self.backed.fetch_sub(1, Ordering::Relaxed);
        }
        self.free.lock().used.push_back(index);
    }

    /// Whether any address is served by a [`Backing`].
    #[inline]
    pub fn is_backed(&self) -> bool {
        // Relaxed: see `insert`.
        self.backed.load(Ordering::Relaxed) > 0
    }

    /// How many keys were taken back.
    pub fn dead_keys(&self) -> u64 {
        // Relaxed: see `clear`.
        self.dead_keys.load(Ordering::Relaxed)
    }

    /// Lets what serves addresses that are no memory go on. Whether anything came of it.
    pub fn poll_backings(&self) -> bool {
        self.is_backed() && self.backings.read().poll()
    }

    /// What serves the addresses of a remote key that [`allows`](Self::allows) an access, if they are no memory.
    pub fn backing(&self, rkey: u32) -> Option<Arc<dyn Backing>> {
        let index = (rkey >> 8).wrapping_sub(KEY_INDEX_FIRST);
        self.backings.read().by_slot.get(&index).map(Arc::clone)
    }

    /// Whether `key`, named by `side`, allows `access` to the `bytes` bytes at `addr`. To be asked, and the answer
    /// used, under one hold of an engine's lock.
    #[inline]
    pub fn allows(&self, side: Side, key: u32, addr: u64, bytes: u64, access: Access) -> bool {
        let remote = key & KEY_REMOTE_BIT != 0;
        let index = (key >> 8).wrapping_sub(KEY_INDEX_FIRST);
        let Some(slot) = self.slot(index) else {
            return false;
        };
        // Acquire: pairs with the release in `insert`.
        let lkey = slot.lkey.load(Ordering::Acquire);
        if lkey == 0 || key & !KEY_REMOTE_BIT != lkey || remote != (side == Side::Remote) {
            return false;
        }
        // Relaxed: unchanged while the key is alive.
        let base = slot.addr.load(Ordering::Relaxed);
        let length = slot.bytes.load(Ordering::Relaxed);
        let offset = addr.wrapping_sub(base);
        offset <= length
            && bytes <= length - offset
            && Access::from_bits_truncate(slot.access.load(Ordering::Relaxed)).contains(access)
    }
}

fn check(addr: u64, bytes: u64, access: Access) -> Result<(), NicError> {
    let bad = |what, value, expected| Err(NicError::BadArgument { what, value, expected });
    if addr == 0 {
        return bad("address to register", addr, "a mapped address");
    }
    if bytes == 0 || addr.checked_add(bytes).is_none() || isize::try_from(bytes).is_err() {
        return bad("length to register", bytes, "1 byte up to the end of the address space");
    }
    let writes = access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
    if writes && !access.contains(Access::LOCAL_WRITE) {
        return bad(
            "access",
            u64::from(access.bits()),
            "LOCAL_WRITE beside REMOTE_WRITE or REMOTE_ATOMIC",
        );
    }
    Ok(())
}
