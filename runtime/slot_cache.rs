//! Caches of records: slots in GPU memory for records of tables in home memory, which calls on any stream fill without the host. What
//! they do on the GPU is `gpuvm/slot_cache.cuh`; the rules are in docs/PROTOCOL.md, "Slot caches".

mod builder;
mod calls;
mod series;

use std::sync::{Arc, atomic::Ordering};

use bytemuck::Zeroable;
use gpuvm_gpu::{GpuError, HostMemory};
use gpuvm_layouts::{SlotCacheDesc, SlotCacheState};
use parking_lot::Mutex;

pub use builder::SlotCacheBuilder;
pub use calls::Ids;

use self::series::Calls;
use crate::{
    buffer::{Buffer, RawBuffer},
    device::DeviceArray,
    error::{Doing, Error, Result},
    gpu::{PagedGpu, SlotKernels},
    region::RegionInner,
    slot_fault::SlotFault,
};

/// By which rule a [`SlotCache`] chooses the slots whose records must leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SlotPolicy {
    /// Those that were not used for longest, within an eighth of that time.
    #[default]
    LeastRecent,
    /// Those that are used least often, of late.
    Frequency,
    /// Those that came last: for scans in the same order again and again, of which as many records stay as there are slots.
    FirstCome,
}

impl SlotPolicy {
    const NAMES: [(&'static str, Self); 3] = [
        ("lru", Self::LeastRecent),
        ("frequency", Self::Frequency),
        ("first-come", Self::FirstCome),
    ];
}

impl std::str::FromStr for SlotPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, policy)| *policy).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| format!("`{name}`")).join(", ");
            format!("policy is `{text}`: it is one of {names}")
        })
    }
}

/// What calls of a [`SlotCache`] have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// Ids whose record had a slot.
    pub hits: u64,
    /// Records that were fetched because a call needed them.
    pub misses: u64,
    /// Records that were fetched ahead, or again after [`SlotCache::refresh`].
    pub prefetched: u64,
    /// Records that lost their slot to others.
    pub evictions: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
}

/// Words by which kernels tell: as in [`SlotCacheDesc::told`].
const TOLD_WORDS: usize = 4;

/// A table of a cache.
struct Table {
    region: Arc<RegionInner>,
    frames: RawBuffer,
}

/// Slots in GPU memory for records of tables in home memory: [`VmGpu::slot_cache`](crate::VmGpu::slot_cache) makes one.
///
/// A call, such as [`ensure`](Self::ensure), is enqueued on a stream and returns at once: kernels find which records have slots, choose
/// which slots leave, fetch the others and say which slot each record has. Nothing of it waits for the host, and streams that a CUDA graph
/// captures take calls as others do. Calls of one cache run one behind the other; calls of several caches may run beside each other. A
/// record that a call needs, or that is [held](Self::hold), stays in its slot until the next call ends.
///
/// What is stored to a table after a record came is seen by the next call that is not captured, if it was stored by launches of this
/// `Vm`, or by its regions' methods; else [`refresh`](Self::refresh) tells it. What is stored to slots is no one's: it is not written back.
///
/// A table ends (`Region::close`) when no call runs; calls after that are refused. Graphs with calls must not be launched any more when
/// the cache or a table has ended.
///
/// ```
/// use gpuvm::Vm;
///
/// let vm = Vm::builder().build()?;
/// let rows = vm.region::<u64>().name("rows").from_iter(0..4096)?;
/// // Records of 64 bytes: 512 of them, and room for 100.
/// let cache = vm.slot_cache(100).table(&rows, 64).build()?;
/// let (ids, slots) = (vm.buffer::<i64>(3)?, vm.buffer::<i32>(3)?);
/// ids.write(&[511, 7, 511])?;
/// cache.ensure(&ids, &slots)?;
/// cache.wait()?;
/// let slots = slots.to_vec()?;
/// assert_eq!(slots[0], slots[2]);
/// let mut record = [0u8; 64];
/// cache.frames(0).read_bytes_from(64 * slots[0] as u64, &mut record)?;
/// assert_eq!(record[..8], (511 * 8_u64).to_ne_bytes());
/// # Ok::<(), gpuvm::Error>(())
/// ```
pub struct SlotCache {
    gpu: Arc<PagedGpu>,
    name: String,
    desc: SlotCacheDesc,
    kernels: Arc<SlotKernels>,
    /// Several blocks plan each call.
    by_blocks: bool,
    /// Held while a call is enqueued: its kernels are on their stream one behind the other. Dropped first, as what its launches use must
    /// outlive them.
    calls: Mutex<Calls>,
    tables: Vec<Table>,
    state: DeviceArray<SlotCacheState>,
    told: HostMemory,
    /// What the description names.
    _arrays: Vec<Buffer<u32>>,
}

impl SlotCache {
    /// Records of its tables.
    pub fn records(&self) -> u32 {
        self.desc.record_count
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.desc.slot_count
    }

    /// Tables.
    pub fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The slots of a table, in the order in which the tables were given: a record each, the bytes of slot `n` from `n` times the record's
    /// on.
    ///
    /// # Panics
    /// There is no such table.
    pub fn frames(&self, table: usize) -> &RawBuffer {
        &self.tables[table].frames
    }

    /// Waits for the calls that were enqueued, and tells what they met.
    ///
    /// # Errors
    /// [`Error::Slots`], once; [`Error::GpuLost`].
    pub fn wait(&self) -> Result<()> {
        // To the end: no call of another thread is to run when the cache is emptied.
        let mut calls = self.calls.lock();
        calls.end()?;
        if self.gpu.device.simulation().is_none() {
            // Graphs may have calls of which the library is not told.
            let drained = self
                .gpu
                .device
                .drain()
                .doing(|| "waiting for calls of a slot cache".into());
            self.gpu.map_device_lost(drained)?;
        }
        self.raise_told()
    }

    /// What calls have done that have ended.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn stats(&self) -> Result<SlotStats> {
        let read = self.state.read(&*self.gpu.device, 0, 1);
        let state = self
            .gpu
            .map_device_lost(read.doing(|| "reading a slot cache's counts".into()))?[0];
        Ok(SlotStats {
            hits: state.hits,
            misses: state.misses,
            prefetched: state.prefetched,
            evictions: state.evictions,
            bytes: state.bytes,
        })
    }

    /// Address of the counts in GPU memory, for kernels: 64 bits each of the next call's number, hits, misses, prefetched records, evictions
    /// and bytes.
    pub fn stats_addr(&self) -> u64 {
        self.state.addr()
    }

    /// The description that kernels are given, for tests and for kernels of others that read the index.
    #[doc(hidden)]
    pub fn description(&self) -> SlotCacheDesc {
        self.desc
    }

    /// Has the next call be of this number: for tests of numbers that are large. No call runs.
    #[doc(hidden)]
    pub fn begin_at(&self, epoch: u64) -> Result<()> {
        self.change_state(|state| state.epoch = epoch)
    }

    fn change_state(&self, change: impl FnOnce(&mut SlotCacheState)) -> Result<()> {
        let device = &*self.gpu.device;
        let changed = self.state.read(device, 0, 1).and_then(|mut state| {
            change(&mut state[0]);
            self.state.write(device, 0, &state)
        });
        self.gpu
            .map_device_lost(changed.doing(|| "changing a slot cache".into()))
    }

    /// No call runs: raises what they told, once.
    fn raise_told(&self) -> Result<()> {
        let take = |n: usize| {
            // Relaxed: the calls have ended, for which the host has waited.
            let half = |at| self.told.word(at).map_or(0, |word| word.swap(0, Ordering::Relaxed));
            u64::from(half(2 * n + 1)) << 32 | u64::from(half(2 * n))
        };
        let told: [u64; TOLD_WORDS] = std::array::from_fn(take);
        let [id, missing, beside, not_held] = told;
        let fault = if beside != 0 {
            self.empty()?;
            SlotFault::CallsBeside
        } else if id != 0 {
            SlotFault::NoSuchRecord {
                id: id as i64,
                records: self.desc.record_count,
            }
        } else if missing != 0 {
            SlotFault::TooManyRecords {
                missing,
                slots: self.desc.slot_count,
            }
        } else if not_held != 0 {
            SlotFault::NotHeld { slot: not_held - 1 }
        } else {
            return Ok(());
        };
        Err(Error::Slots {
            cache: self.name.clone(),
            fault,
        })
    }

    /// Forgets all records, whatever state they are in. Slots that are held stay so, without a record. No call runs.
    fn empty(&self) -> Result<()> {
        let (device, slots) = (&*self.gpu.device, u64::from(self.desc.slot_count));
        let zeroed = device
            .zero(self.desc.index, 4 * u64::from(self.desc.record_count))
            .and_then(|()| device.zero(self.desc.records, 4 * slots))
            .and_then(|()| device.zero(self.desc.used, 8 * slots));
        self.gpu
            .map_device_lost(zeroed.doing(|| "emptying a slot cache".into()))?;
        self.change_state(|state| {
            *state = SlotCacheState {
                epoch: state.epoch + 1,
                rule: state.rule,
                hits: state.hits,
                misses: state.misses,
                prefetched: state.prefetched,
                evictions: state.evictions,
                bytes: state.bytes,
                ..SlotCacheState::zeroed()
            };
        })
    }

    /// A stream that is captured can have no call now.
    fn captured(&self, stream: u64) -> Error {
        Error::Gpu {
            doing: format!("enqueuing a call of slot cache `{}`", self.name),
            source: GpuError::BadStream {
                stream,
                cause: "it is being captured, and the cache's tables have to be made ready first: make the same call once before the capture"
                    .into(),
            },
        }
    }
}

impl std::fmt::Debug for SlotCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (slots, records) = (self.desc.slot_count, self.desc.record_count);
        write!(f, "SlotCache(`{}`, {slots} slots for {records} records)", self.name)
    }
}
