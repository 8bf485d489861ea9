//! Memory keys: which are in use, and how the engine finds what each stands for.

use std::collections::{HashMap, VecDeque};

use gpuvm_gpu::{Gpu, GpuError, HostRegistration};
use gpuvm_layouts::{self as layout, NicKey};
use gpuvm_nic::{Access, MemoryKey, soft};

use crate::device::{DeviceArray, zero};

const _: () = assert!(
    Access::LOCAL_WRITE.bits() == layout::NIC_LOCAL_WRITE
        && Access::REMOTE_WRITE.bits() == layout::NIC_REMOTE_WRITE
        && Access::REMOTE_READ.bits() == layout::NIC_REMOTE_READ
        && soft::KEY_INDEX_FIRST == layout::NIC_KEY_FIRST
        && soft::KEY_REMOTE_BIT == layout::NIC_KEY_REMOTE
);

/// Most keys at one time: those of the engine that threads of the processor run.
pub(super) const KEYS: u32 = soft::REGIONS_MAX;

/// A key in use, or one that is dead while a warp may be at work by it still.
struct Key {
    lkey: u32,
    /// How often its place was used, with this time.
    uses: u32,
    dead: bool,
    /// Of memory that is not the GPU's: given back with the key.
    _registration: Option<HostRegistration>,
}

/// The keys.
pub(super) struct Keys {
    table: DeviceArray<NicKey>,
    by_place: HashMap<u32, Key>,
    /// Places that had a key, with how many; the oldest is used first.
    free: VecDeque<(u32, u32)>,
    fresh: u32,
}

fn place_of(key: MemoryKey) -> u32 {
    (key.lkey >> 8).wrapping_sub(layout::NIC_KEY_FIRST)
}

impl Keys {
    pub fn new(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        Ok(Self {
            table: DeviceArray::zeroed(gpu, KEYS.into())?,
            by_place: HashMap::new(),
            free: VecDeque::new(),
            fresh: 0,
        })
    }

    pub fn table_addr(&self) -> u64 {
        self.table.addr()
    }

    /// Makes a key; none where all are in use.
    pub fn insert(
        &mut self,
        gpu: &dyn Gpu,
        (address, bytes): (u64, u64),
        access: Access,
        registration: Option<HostRegistration>,
    ) -> Result<Option<MemoryKey>, GpuError> {
        let (place, uses) = match (self.fresh < KEYS, self.free.front().copied()) {
            (true, _) => (self.fresh, 0),
            (false, Some(free)) => free,
            (false, None) => return Ok(None),
        };
        let lkey = (place + layout::NIC_KEY_FIRST) << 8 | (uses & 0x7f) << 1;
        let there = registration.as_ref().map_or(address, HostRegistration::device_addr);
        let mut entry = NicKey {
            lkey: 0,
            access: access.bits(),
            address,
            bytes,
            shift: there.wrapping_sub(address),
        };
        self.table.write(gpu, place.into(), &[entry])?;
        // Last: whoever finds the key finds the rest.
        entry.lkey = lkey;
        self.table.write(gpu, place.into(), &[entry])?;
        match self.fresh < KEYS {
            true => self.fresh += 1,
            false => _ = self.free.pop_front(),
        }
        let key = Key {
            lkey,
            uses: uses + 1,
            dead: false,
            _registration: registration,
        };
        self.by_place.insert(place, key);
        let rkey = lkey | layout::NIC_KEY_REMOTE;
        Ok(Some(MemoryKey { lkey, rkey }))
    }

    /// Makes a key dead, or finds it dead already; false where there is none.
    pub fn kill(&mut self, gpu: &dyn Gpu, key: MemoryKey) -> Result<bool, GpuError> {
        let place = place_of(key);
        let known = self.by_place.get_mut(&place);
        let Some(known) = known.filter(|known| known.lkey == key.lkey && key.rkey == key.lkey | layout::NIC_KEY_REMOTE)
        else {
            return Ok(false);
        };
        if !known.dead {
            self.table.write(gpu, place.into(), &[zero()])?;
            known.dead = true;
        }
        Ok(true)
    }

    /// Forgets a dead key: no warp is at work by it any more.
    pub fn forget(&mut self, key: MemoryKey) {
        let place = place_of(key);
        if let Some(key) = self.by_place.remove(&place) {
            self.free.push_back((place, key.uses));
        }
    }
}
