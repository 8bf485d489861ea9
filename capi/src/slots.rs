//! Slot caches: slots in GPU memory for records of regions.

use bytemuck::Zeroable;
use gpuvm::{Ids, SlotCache, SlotPolicy};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    element::gpuvm_element,
    guard::guard,
    handles::{self, gpuvm_buffer, gpuvm_region, gpuvm_slot_cache, gpuvm_stream, gpuvm_vm},
    raw::{self, Growing, OutStruct},
};

/// Which records leave their slots for others.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_slot_policy {
    /// Those that were not used for longest.
    LeastRecent = 0,
    /// Those that are used least often.
    Frequency = 1,
    /// Those that came last: for scans in the same order again and again.
    FirstCome = 2,
}

const POLICIES: [SlotPolicy; 3] = [SlotPolicy::LeastRecent, SlotPolicy::Frequency, SlotPolicy::FirstCome];

/// What a slot cache is to be. Every field but `size` may be 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_slot_options {
    /// `sizeof(gpuvm_slot_options)`.
    pub size: u64,
    /// `gpuvm_slot_policy`.
    pub policy: u32,
    /// The GPU of the Vm, by its place.
    pub gpu: u32,
}

impl Growing for gpuvm_slot_options {
    const NAME: &'static str = "gpuvm_slot_options";
}

/// A table of a slot cache: a region whose bytes are records of this many each, a multiple of 16.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_slot_table {
    /// The region. It is to live until the cache is freed.
    pub region: gpuvm_region,
    /// Bytes of a record.
    pub record_bytes: u64,
}

/// Ids of records where the GPU's threads reach them, and the stream that a call is enqueued on. -1 stands for no record.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_slot_ids {
    /// `sizeof(gpuvm_slot_ids)`.
    pub size: u64,
    /// Address of the first one.
    pub address: u64,
    /// How many there are.
    pub count: u64,
    /// Not 0: they have 64 bits each. Else 32.
    pub wide: u32,
    /// 0.
    pub reserved: u32,
    /// The stream. Null: the GPU's default one.
    pub stream: gpuvm_stream,
}

impl Growing for gpuvm_slot_ids {
    const NAME: &'static str = "gpuvm_slot_ids";
}

/// What calls of a slot cache have done.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_slot_stats {
    /// `sizeof(gpuvm_slot_stats)`.
    pub size: u64,
    /// Ids whose record had a slot.
    pub hits: u64,
    /// Records that were fetched because a call needed them.
    pub misses: u64,
    /// Records that were fetched ahead, or again.
    pub prefetched: u64,
    /// Records that lost their slot to others.
    pub evictions: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
}

impl Growing for gpuvm_slot_stats {
    const NAME: &'static str = "gpuvm_slot_stats";
}

/// Makes a slot cache: `slots` slots in GPU memory for the records of `table_count` tables, of which one id names a record each. `options`:
/// NULL for the defaults. Free it by `gpuvm_slot_cache_free`. After an error `*cache` is the null handle.
///
/// Its calls return at once. What they met, ids that no record has or more records than slots, is told by `gpuvm_slot_cache_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_new(
    vm: gpuvm_vm,
    options: *const gpuvm_slot_options,
    tables: *const gpuvm_slot_table,
    table_count: u64,
    slots: u64,
    cache: *mut gpuvm_slot_cache,
) -> gpuvm_code {
    calls::make(cache, || {
        let options = raw::options("options", options)?;
        let vm = handles::copy(vm)?;
        let policy = raw::one_of("policy", options.policy, &POLICIES)?;
        let mut builder = vm.gpu(options.gpu as usize)?.slot_cache(slots).policy(policy);
        for table in raw::list("tables", tables, table_count)? {
            builder = handles::with(table.region, |region| Ok(builder.table(region, table.record_bytes)))?;
        }
        Ok(builder.build()?)
    })
}

/// Waits for the calls that were enqueued, frees the handle, and tells what they met. The memory of slots goes with the last buffer of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_free(cache: gpuvm_slot_cache) -> gpuvm_code {
    guard(|| Ok(handles::take(cache)?.wait()?))
}

/// Makes a buffer of the slots of a table, of elements of `element`: a record each, the bytes of slot `n` from `n` times the record's on.
/// Free it by `gpuvm_buffer_free`. Nothing is to store there. After an error `*buffer` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_frames(
    cache: gpuvm_slot_cache,
    table: u64,
    element: gpuvm_element,
    buffer: *mut gpuvm_buffer,
) -> gpuvm_code {
    calls::make(buffer, || {
        let element = element.read()?;
        handles::with(cache, |cache| {
            if table >= cache.tables() as u64 {
                return Err(Failure::value(
                    "table",
                    table,
                    format!("the slot cache has {}", cache.tables()),
                ));
            }
            Ok(cache.frames(table as usize).of_elements(element))
        })
    })
}

/// Ids, and the stream of the call.
fn given(cache: &SlotCache, what: &'static str, ids: *const gpuvm_slot_ids) -> Result<(gpuvm_slot_ids, u64)> {
    let ids = raw::options(what, ids)?;
    raw::unused("reserved", ids.reserved)?;
    let stream = match ids.stream.id {
        0 => cache.default_stream(),
        _ => handles::with(ids.stream, |stream| Ok(cache.stream_of(stream)?))?,
    };
    Ok((ids, stream))
}

impl gpuvm_slot_ids {
    fn ids(&self) -> Ids {
        // SAFETY: the program says that its ids are there until the call has ended.
        unsafe { Ids::at(self.address, self.count, self.wide != 0) }
    }
}

/// Has the records of ids in slots, and stores in which: a 32-bit number for each id from the device address `slots` on, -1 for no record. Ids
/// and numbers are used until the stream has come past the call, and those of a captured one as long as its graph is launched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_ensure(
    cache: gpuvm_slot_cache,
    ids: *const gpuvm_slot_ids,
    slots: u64,
) -> gpuvm_code {
    calls::on(cache, |cache| {
        let (ids, stream) = given(cache, "ids", ids)?;
        if slots == 0 && ids.count != 0 {
            return Err(Failure::value("slots", slots, "it is where numbers are stored"));
        }
        // SAFETY: the program says that the stream and the memory are there.
        Ok(unsafe { cache.ensure_on(stream, ids.ids(), slots) }?)
    })
}

/// Fetches records ahead of calls that need them, into slots that neither the last call nor a hold needs, as far as there are some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_prefetch(cache: gpuvm_slot_cache, ids: *const gpuvm_slot_ids) -> gpuvm_code {
    calls::on(cache, |cache| {
        let (ids, stream) = given(cache, "ids", ids)?;
        // SAFETY: as in `gpuvm_slot_cache_ensure`.
        Ok(unsafe { cache.prefetch_on(stream, ids.ids()) }?)
    })
}

/// Keeps the records in slots where they are until the same is called with `release`. `slots`: their numbers, as
/// `gpuvm_slot_cache_ensure` stored them, 32 bits each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_hold(
    cache: gpuvm_slot_cache,
    slots: *const gpuvm_slot_ids,
    release: bool,
) -> gpuvm_code {
    calls::on(cache, |cache| {
        let (slots, stream) = given(cache, "slots", slots)?;
        if slots.wide != 0 {
            return Err(Failure::value("wide", slots.wide, "numbers of slots have 32 bits"));
        }
        // SAFETY: as in `gpuvm_slot_cache_ensure`.
        Ok(unsafe { cache.hold_on(stream, slots.address, slots.count, release) }?)
    })
}

/// Others have stored to the tables, past this library: records leave their slots, but for those that are held, which are fetched again. It is
/// enqueued on the GPU's default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_refresh(cache: gpuvm_slot_cache) -> gpuvm_code {
    calls::on(cache, |cache| Ok(cache.refresh()?))
}

/// Waits for the calls that were enqueued, and tells what they met, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_wait(cache: gpuvm_slot_cache) -> gpuvm_code {
    calls::on(cache, |cache| Ok(cache.wait()?))
}

/// Stores what calls have done that have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_slot_cache_get_stats(
    cache: gpuvm_slot_cache,
    stats: *mut gpuvm_slot_stats,
) -> gpuvm_code {
    calls::on(cache, |cache| {
        let place = OutStruct::new("stats", stats)?;
        let found = cache.stats()?;
        place.set(gpuvm_slot_stats {
            size: 0,
            hits: found.hits,
            misses: found.misses,
            prefetched: found.prefetched,
            evictions: found.evictions,
            bytes: found.bytes,
        });
        Ok(())
    })
}
