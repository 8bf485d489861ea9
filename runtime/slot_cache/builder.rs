//! Makes a slot cache.

use std::sync::Arc;

use bytemuck::Zeroable;
use gpuvm_gpu::HostMemory;
use gpuvm_layouts::{SLOT_CHUNKS_A_LANE, SLOT_TABLES_MAX, SlotCacheDesc, SlotCacheState, SlotTable};
use parking_lot::Mutex;

use super::{SlotCache, SlotPolicy, TOLD_WORDS, Table};
use crate::{
    buffer::Buffer,
    device::DeviceArray,
    element::ElementType,
    error::{Doing, Error, Result},
    gpu::PagedGpu,
    region::{Region, RegionInner},
};

/// Bytes that a thread copies with one instruction: records are multiples of them.
const CHUNK: u64 = 16;
/// The largest record.
const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Counts of uses a slot.
const COUNTS_A_SLOT: u64 = 4;
/// Uses a slot after which all counts are halved.
const USES_A_SLOT: u64 = 8;

/// A [`SlotCache`] to be made.
pub struct SlotCacheBuilder {
    gpu: Arc<PagedGpu>,
    slots: u64,
    policy: SlotPolicy,
    by_blocks: bool,
    tables: Vec<(Arc<RegionInner>, u64)>,
}

impl SlotCacheBuilder {
    pub(crate) fn new(gpu: Arc<PagedGpu>, slots: u64) -> Self {
        Self {
            gpu,
            slots,
            policy: SlotPolicy::default(),
            by_blocks: false,
            tables: Vec::new(),
        }
    }

    /// One more table: a region whose bytes are records of this many each, a multiple of 16 up to 64 MiB. All tables of a cache have as many
    /// records, and one id names a record of each.
    #[must_use]
    pub fn table<E>(mut self, region: &Region<E>, record_bytes: u64) -> Self {
        self.tables.push((Arc::clone(&region.inner), record_bytes));
        self
    }

    /// The rule by which records leave.
    #[must_use]
    pub fn policy(mut self, policy: SlotPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Has several blocks plan each call, however small: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn by_blocks(mut self, by_blocks: bool) -> Self {
        self.by_blocks = by_blocks;
        self
    }

    /// Makes it. Beside the slots themselves it takes 4 bytes of GPU memory for each record of a table, and 40 to 60 for each slot.
    ///
    /// # Errors
    /// [`Error::Setting`] for slots that are none or 2^31 and more, and tables that are none or more than eight; [`Error::Region`] for a
    /// table whose records are none, not 16 bytes aligned, or not as many as the others', or whose home GPU threads do not reach by loads;
    /// [`Error::Gpu`].
    pub fn build(self) -> Result<SlotCache> {
        let gpu = self.gpu;
        let refuse = |setting, value: String, reason: &str| Error::Setting {
            setting,
            value,
            reason: reason.into(),
        };
        let (slots, count) = (self.slots, self.tables.len());
        if slots == 0 || slots > i32::MAX as u64 {
            return Err(refuse(
                "slots of a slot cache",
                slots.to_string(),
                "it must be from 1 to 2147483647",
            ));
        }
        if count == 0 || count > SLOT_TABLES_MAX as usize {
            return Err(refuse(
                "tables of a slot cache",
                count.to_string(),
                "it must be from 1 to 8",
            ));
        }
        let kernels = gpu.slot_kernels()?;
        let mut desc = SlotCacheDesc::zeroed();
        let (mut tables, mut records) = (Vec::new(), None);
        for (at, (region, record_bytes)) in self.tables.into_iter().enumerate() {
            let own = records_of(&gpu, &region, record_bytes, &mut desc.tables[at])?;
            if *records.get_or_insert(own) != own {
                let reason = format!(
                    "it has {own} records, and the first table of the slot cache {}",
                    records.unwrap_or(0)
                );
                return Err(region_error(&region, reason));
            }
            let chunk = ElementType::of::<[u64; 2]>();
            let frames = Buffer::zeroed(Arc::clone(&gpu), chunk, record_bytes / CHUNK * slots)?;
            desc.tables[at].frames = frames.addr();
            desc.pieces += desc.tables[at].pieces;
            desc.bytes += record_bytes;
            tables.push(Table { region, frames });
        }
        let name = tables
            .iter()
            .map(|table| table.region.name.as_str())
            .collect::<Vec<_>>()
            .join("`, `");
        desc.table_count = count as u32;
        desc.record_count = records.unwrap_or(0);
        desc.slot_count = slots as u32;
        let arrays = arrays(&gpu, &mut desc, self.policy)?;
        let (state, told) = counts(&gpu, self.policy)?;
        desc.state = state.addr();
        desc.told = told.device_addr();
        Ok(SlotCache {
            gpu,
            name,
            desc,
            kernels,
            by_blocks: self.by_blocks,
            calls: Mutex::default(),
            tables,
            state,
            told,
            _arrays: arrays,
        })
    }
}

/// What calls count, and the words by which they tell.
fn counts(gpu: &PagedGpu, policy: SlotPolicy) -> Result<(DeviceArray<SlotCacheState>, HostMemory)> {
    let state = SlotCacheState {
        epoch: 2,
        rule: policy as u32,
        ..SlotCacheState::zeroed()
    };
    let doing = || "allocating a slot cache".to_owned();
    let state = gpu.map_device_lost(DeviceArray::from_slice(&*gpu.device, &[state]).doing(doing))?;
    let told = gpu.map_device_lost(gpu.device.allocate_host(8 * TOLD_WORDS as u64).doing(doing))?;
    Ok((state, told))
}

fn region_error(region: &RegionInner, reason: String) -> Error {
    Error::Region {
        region: region.name.clone(),
        reason,
    }
}

/// Records of a table, which is described.
fn records_of(gpu: &Arc<PagedGpu>, region: &Arc<RegionInner>, record_bytes: u64, table: &mut SlotTable) -> Result<u32> {
    let refuse = |reason: &str| Err(region_error(region, reason.into()));
    if record_bytes == 0 || !record_bytes.is_multiple_of(CHUNK) || record_bytes > RECORD_BYTES_MAX {
        return refuse(&format!(
            "records of {record_bytes} bytes: those of a slot cache are multiples of 16 bytes, up to 64 MiB"
        ));
    }
    if region.is_closed() {
        return refuse("it is closed");
    }
    let on = gpu.map_device_lost(region.on(gpu))?;
    let home = region.loads_from(&on);
    if home == 0 {
        return refuse("GPU threads do not reach its home by loads: slot caches need the transport `direct`");
    }
    if !home.is_multiple_of(CHUNK) {
        return refuse("its memory does not begin at a multiple of 16 bytes, as records of a slot cache do: copy it");
    }
    let bytes = region.pages.bytes();
    if bytes == 0 || !bytes.is_multiple_of(record_bytes) {
        return refuse(&format!(
            "{bytes} bytes are not a multiple of the record size of {record_bytes} bytes"
        ));
    }
    let Ok(records @ 1..0x7fff_ffff) = u32::try_from(bytes / record_bytes) else {
        return refuse("it has 2147483647 records or more");
    };
    let chunks = record_bytes / CHUNK;
    let lanes = chunks.next_power_of_two().min(32);
    table.home = home;
    table.record_bytes = record_bytes;
    table.lanes_shift = lanes.trailing_zeros();
    table.pieces = chunks.div_ceil(lanes * u64::from(SLOT_CHUNKS_A_LANE)) as u32;
    Ok(records)
}

/// The index and what is kept of each slot.
fn arrays(gpu: &Arc<PagedGpu>, desc: &mut SlotCacheDesc, policy: SlotPolicy) -> Result<Vec<Buffer<u32>>> {
    let mut all = Vec::new();
    let mut words = |count: u64| -> Result<u64> {
        let array = Buffer::zeroed(Arc::clone(gpu), ElementType::of::<u32>(), count)?;
        all.push(array);
        Ok(all.last().map_or(0, Buffer::addr))
    };
    let slots = u64::from(desc.slot_count);
    desc.index = words(desc.record_count.into())?;
    desc.records = words(slots)?;
    desc.used = words(2 * slots)?;
    desc.came = words(2 * slots)?;
    desc.held = words(slots)?;
    desc.misses = words(4 * slots)?;
    if policy == SlotPolicy::Frequency {
        let counts = (COUNTS_A_SLOT * slots).next_power_of_two().min(1 << 30);
        desc.uses = words(counts)?;
        desc.uses_mask = counts as u32 - 1;
        desc.era_shift = (USES_A_SLOT * slots).ilog2();
    }
    Ok(all)
}
