//! Calls of a slot cache: kernels on the stream of the caller.

use std::sync::Arc;

use gpuvm_gpu::{GpuError, Kernel, Put};

use super::{
    SlotCache,
    series::{Calls, Series},
};
use crate::{
    buffer::Buffer,
    error::{Doing, Result},
    gpu::{Job, Named},
    launch::{self, LaunchConfig, Table},
    launched::StreamHandle,
};

/// Most ids, and most slots, of a call that one block plans.
const BLOCK_IDS_MAX: u64 = 4096;
const BLOCK_SLOTS_MAX: u64 = 1 << 16;
/// Threads of that block, and of others. The simulated GPU has none to spare.
const PLAN_THREADS: u32 = 1024;
const SIMULATED_THREADS: u32 = 128;
const THREADS: u32 = 256;
/// Blocks a multiprocessor: of those that copy, with all of whose loads the link is busy, and of others.
const COPYING_BLOCKS: u64 = 2;
/// Ids and slots that a thread looks at at a time: as in `gpuvm/slot_cache.cuh`.
const IDS_AT_ONCE: u64 = 4;
const SLOTS_AT_ONCE: u64 = 8;
const OTHER_BLOCKS: u64 = 8;

/// Ids of records: `i32` or `i64` each, in memory that the GPU's threads reach. -1 stands for none.
#[derive(Debug, Clone, Copy)]
pub struct Ids {
    addr: u64,
    count: u64,
    wide: bool,
}

impl Ids {
    /// `count` ids from an address on, of 64 bits where they are `wide`, else of 32.
    ///
    /// # Safety
    /// Kernels of the cache's GPU read them there until the call that takes them has ended, and of a captured one as long as its graph is
    /// launched.
    pub unsafe fn at(addr: u64, count: u64, wide: bool) -> Self {
        Self { addr, count, wide }
    }
}

impl From<&Buffer<i32>> for Ids {
    fn from(ids: &Buffer<i32>) -> Self {
        Self {
            addr: ids.addr(),
            count: ids.len(),
            wide: false,
        }
    }
}

impl From<&Buffer<i64>> for Ids {
    fn from(ids: &Buffer<i64>) -> Self {
        Self {
            addr: ids.addr(),
            count: ids.len(),
            wide: true,
        }
    }
}

/// What a call enqueues.
#[derive(Clone, Copy)]
enum Step {
    Plan,
    Claim,
    Survey,
    Pick,
    /// Ids of misses find their slots first.
    Fetch {
        gives: bool,
    },
}

/// A call: its ids, where slots go, 0 if nowhere, and whether it is ahead of those that need the records.
#[derive(Clone, Copy)]
struct Call {
    ids: Ids,
    out: u64,
    ahead: bool,
}

impl SlotCache {
    /// Has the records of `ids` in slots, and says in which: `slots[n]` is that of `ids[n]`, and -1 where that is -1. On the default stream
    /// of the GPU.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] where `slots` are fewer than the ids; [`crate::Error::Gpu`]; as a launch that reads the tables. Ids
    /// that name no record, and more different records than slots, are told by [`wait`](Self::wait).
    pub fn ensure<'a, B>(&self, ids: &'a B, slots: &Buffer<i32>) -> Result<()>
    where
        Ids: From<&'a B>,
    {
        let ids = Ids::from(ids);
        crate::error::check_range("slots of a slot cache's call", &(0..ids.count), slots.len())?;
        let call = Call {
            ids,
            out: slots.addr(),
            ahead: false,
        };
        self.call(self.default_stream(), call)
    }

    /// [`ensure`](Self::ensure) on a stream of another library, 0 for its default one, to an address.
    ///
    /// # Errors
    /// As there; [`crate::Error::Gpu`] for a stream that is captured, if the tables have to be made ready.
    ///
    /// # Safety
    /// `stream` is a live stream of the GPU's primary context; on the simulated GPU it does not matter. Kernels write this many `i32` from
    /// `slots` on, until the stream has come past the call, and of a captured one as long as its graph is launched.
    pub unsafe fn ensure_on(&self, stream: u64, ids: Ids, slots: u64) -> Result<()> {
        let call = Call {
            ids,
            out: slots,
            ahead: false,
        };
        self.call(stream, call)
    }

    /// Fetches the records of `ids` that have no slot ahead of calls that need them, into slots that neither the last
    /// [`ensure`](Self::ensure) nor a hold needs, as far as there are some.
    ///
    /// # Errors
    /// As [`ensure`](Self::ensure).
    pub fn prefetch<'a, B>(&self, ids: &'a B) -> Result<()>
    where
        Ids: From<&'a B>,
    {
        // SAFETY: the buffer is the GPU's, whose memory is kept until its launches have ended.
        unsafe { self.prefetch_on(self.default_stream(), Ids::from(ids)) }
    }

    /// [`prefetch`](Self::prefetch) on a stream of another library.
    ///
    /// # Errors
    /// As [`ensure_on`](Self::ensure_on).
    ///
    /// # Safety
    /// `stream` as there.
    pub unsafe fn prefetch_on(&self, stream: u64, ids: Ids) -> Result<()> {
        let call = Call {
            ids,
            out: 0,
            ahead: true,
        };
        self.call(stream, call)
    }

    /// Keeps the records in these slots where they are until [`release`](Self::release), which is to have the same slots. A slot may be held
    /// several times. Slots of -1 are none.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`].
    pub fn hold(&self, slots: &Buffer<i32>) -> Result<()> {
        self.hold_at(self.default_stream(), slots.addr(), slots.len(), false)
    }

    /// Ends a [`hold`](Self::hold).
    ///
    /// # Errors
    /// As there; slots that were not held are told by [`wait`](Self::wait).
    pub fn release(&self, slots: &Buffer<i32>) -> Result<()> {
        self.hold_at(self.default_stream(), slots.addr(), slots.len(), true)
    }

    /// [`hold`](Self::hold), or with `release` its end, of `count` slots from an address on, on a stream of another library.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    ///
    /// # Safety
    /// As [`ensure_on`](Self::ensure_on): kernels read the slots.
    pub unsafe fn hold_on(&self, stream: u64, slots: u64, count: u64, release: bool) -> Result<()> {
        self.hold_at(stream, slots, count, release)
    }

    fn hold_at(&self, stream: u64, slots: u64, count: u64, release: bool) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let args = [slots, count, release.into()];
        let mut calls = self.calls.lock();
        // What was stored to the tables the next call sees: now these records would go that are to stay.
        self.go_on(&mut calls, stream)?;
        self.put(
            &mut calls,
            stream,
            &self.kernels.hold,
            self.shape(count, OTHER_BLOCKS),
            &args,
        )
    }

    /// Others have stored to the tables, past this library: records leave their slots, but for those that are held, which are fetched again.
    ///
    /// # Errors
    /// As [`ensure`](Self::ensure).
    pub fn refresh(&self) -> Result<()> {
        // SAFETY: the stream is the GPU's own.
        unsafe { self.refresh_on(self.default_stream()) }
    }

    /// [`refresh`](Self::refresh) on a stream of another library.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// `stream` as for [`ensure_on`](Self::ensure_on).
    pub unsafe fn refresh_on(&self, stream: u64) -> Result<()> {
        let mut calls = self.calls.lock();
        self.ready(&mut calls, stream)?;
        self.forget(&mut calls, stream)
    }

    /// The stream of calls that name none, for those that name one.
    pub fn default_stream(&self) -> u64 {
        self.gpu.stream.raw().unwrap_or_default()
    }

    /// A stream of the cache's GPU for calls that name one.
    ///
    /// # Errors
    /// [`crate::Error::Arguments`] for one of another GPU.
    pub fn stream_of(&self, stream: &StreamHandle) -> Result<u64> {
        Ok(stream.on_or(&self.gpu, &self.name)?.raw().unwrap_or_default())
    }

    fn forget(&self, calls: &mut Calls, stream: u64) -> Result<()> {
        let shape = self.shape(self.desc.slot_count.into(), OTHER_BLOCKS);
        self.put(calls, stream, &self.kernels.refresh, shape, &[])?;
        let none = Call {
            // SAFETY: there are none.
            ids: unsafe { Ids::at(0, 0, false) },
            out: 0,
            ahead: true,
        };
        self.step(calls, stream, &none, Step::Fetch { gives: false })
    }

    /// Enqueues a call.
    fn call(&self, stream: u64, call: Call) -> Result<()> {
        if call.ids.count == 0 {
            return Ok(());
        }
        let mut calls = self.calls.lock();
        self.ready(&mut calls, stream)?;
        let fits = call.ids.count <= BLOCK_IDS_MAX && u64::from(self.desc.slot_count) <= BLOCK_SLOTS_MAX;
        let steps: &[Step] = match fits && !self.by_blocks {
            true => &[Step::Plan, Step::Fetch { gives: false }],
            false => &[Step::Claim, Step::Survey, Step::Pick, Step::Fetch { gives: true }],
        };
        let enqueued = steps
            .iter()
            .try_for_each(|step| self.step(&mut calls, stream, &call, *step));
        calls.broken |= enqueued.is_err();
        enqueued
    }

    fn step(&self, calls: &mut Calls, stream: u64, call: &Call, step: Step) -> Result<()> {
        let (kernels, ids, slots) = (&self.kernels, call.ids, u64::from(self.desc.slot_count));
        let all = [ids.addr, ids.wide.into(), ids.count, call.out, call.ahead.into()];
        let ahead = &all[4..];
        let over_slots = self.shape(slots.div_ceil(SLOTS_AT_ONCE), OTHER_BLOCKS);
        let (kernel, shape, args) = match step {
            Step::Plan => (&kernels.plan, (1, self.plan_threads()), &all[..]),
            Step::Claim => {
                let shape = self.shape(ids.count.div_ceil(IDS_AT_ONCE), OTHER_BLOCKS);
                (&kernels.claim, shape, &all[..])
            }
            Step::Survey => (&kernels.survey, over_slots, ahead),
            Step::Pick => (&kernels.pick, over_slots, ahead),
            Step::Fetch { gives } => {
                let threads = ids.count.max(1).min(slots).saturating_mul(self.copying_threads());
                let most = if gives { COPYING_BLOCKS } else { 1 };
                let (blocks, threads) = self.shape(threads, most);
                let givers = if gives {
                    self.shape(ids.count, COPYING_BLOCKS).0
                } else {
                    0
                };
                let with = [&all[..], &[givers.into()]].concat();
                return self.put(calls, stream, &kernels.fetch, (blocks + givers, threads), &with);
            }
        };
        self.put(calls, stream, kernel, shape, args)
    }

    fn plan_threads(&self) -> u32 {
        match self.gpu.device.simulation() {
            Some(_) => SIMULATED_THREADS,
            None => PLAN_THREADS,
        }
    }

    /// Threads that copy a record.
    fn copying_threads(&self) -> u64 {
        let tables = &self.desc.tables[..self.desc.table_count as usize];
        tables
            .iter()
            .map(|table| u64::from(table.pieces) << table.lanes_shift)
            .sum()
    }

    /// Blocks and their threads, for this many threads' work, at most this many blocks a multiprocessor.
    fn shape(&self, threads: u64, most: u64) -> (u32, u32) {
        let each = match self.gpu.device.simulation() {
            Some(_) => SIMULATED_THREADS / 2,
            None => THREADS,
        };
        let most = most * u64::from(self.gpu.capabilities().sm_count).max(1);
        (threads.div_ceil(each.into()).clamp(1, most) as u32, each)
    }

    /// Puts a kernel on a stream. The series may have ended meanwhile: then another one goes on with the call, and what that is not told of
    /// the tables the next call is.
    fn put(
        &self,
        calls: &mut Calls,
        stream: u64,
        kernel: &Arc<dyn Kernel>,
        shape: (u32, u32),
        args: &[u64],
    ) -> Result<()> {
        let args: Vec<[u8; 8]> = args.iter().map(|arg| arg.to_ne_bytes()).collect();
        let desc = bytemuck::bytes_of(&self.desc);
        let all: Vec<&[u8]> = std::iter::once(desc)
            .chain(args.iter().map(<[u8; 8]>::as_slice))
            .collect();
        let config = LaunchConfig::new(shape.0, shape.1).untimed();
        loop {
            if let Some(current) = &calls.series {
                if let Some(last) = calls.last.filter(|last| *last != stream) {
                    // SAFETY: the stream is live, as the caller says.
                    let follows = unsafe { current.series.follow(stream, last) };
                    self.gpu
                        .map_device_lost(follows.doing(|| "ordering calls of a slot cache".into()))?;
                }
                // SAFETY: the stream is live, as the caller says, and what the kernels use lives until the series has ended, or is the
                // caller's.
                let put = unsafe { current.series.launch(stream, kernel, &config.shape, &all) };
                let put = put.doing(|| format!("launching kernel `{}`", kernel.info().name));
                match self.gpu.map_device_lost(put)? {
                    Put::Over => {}
                    Put::Enqueued => {
                        calls.last = Some(stream);
                        return Ok(());
                    }
                    Put::Captured => {
                        self.note_captured()?;
                        return Ok(());
                    }
                }
            }
            calls.end()?;
            calls.series = Some(self.begin(stream)?);
        }
    }

    /// Graphs have calls: the tables' homes stay as long as those run.
    fn note_captured(&self) -> Result<()> {
        for table in &self.tables {
            self.gpu
                .map_device_lost(table.region.on(&self.gpu))?
                .view
                .set_captured(false);
        }
        Ok(())
    }

    /// Before a call: there is a series, and what was stored to the tables since records came is seen.
    fn ready(&self, calls: &mut Calls, stream: u64) -> Result<()> {
        let stores: Vec<u64> = self.tables.iter().map(|table| table.region.stores()).collect();
        if stores != calls.stores {
            // Homes are to hold what was stored.
            self.begin_anew(calls, stream)?;
            let forgot = self.forget(calls, stream);
            calls.broken |= forgot.is_err();
            forgot?;
            // What is stored meanwhile is seen by the next call.
            calls.stores = stores;
        }
        self.go_on(calls, stream)?;
        calls.count += 1;
        Ok(())
    }

    /// There is a series.
    fn go_on(&self, calls: &mut Calls, stream: u64) -> Result<()> {
        // SAFETY: the caller says that the stream is live.
        let is_captured = || unsafe { self.gpu.device.is_captured(stream) };
        // A capture waits for nothing.
        match calls.go_on() && (!calls.are_many() || is_captured()) {
            true => Ok(()),
            false => self.begin_anew(calls, stream),
        }
    }

    /// Another series, behind the end of the last one.
    fn begin_anew(&self, calls: &mut Calls, stream: u64) -> Result<()> {
        // Before anything is waited for, which would break a capture. SAFETY: the caller says that the stream is live.
        if unsafe { self.gpu.device.is_captured(stream) } {
            return Err(self.captured(stream));
        }
        calls.end()?;
        if calls.broken {
            self.empty()?;
            calls.broken = false;
        }
        calls.series = Some(self.begin(stream)?);
        Ok(())
    }

    /// Begins a series: homes hold what launches before it wrote.
    fn begin(&self, stream: u64) -> Result<Series> {
        let gpu = &self.gpu;
        // SAFETY: the caller says that the stream is live.
        if unsafe { gpu.device.is_captured(stream) } {
            return Err(self.captured(stream));
        }
        let named = Named {
            memories: self
                .tables
                .iter()
                .map(|table| (Arc::clone(&table.region) as _, false))
                .collect(),
            by: Table::HomeAlone,
            pageless: true,
            ..Named::default()
        };
        let mut begun = None;
        let begin = |_: &_, on_done| {
            let series = gpu.device.series(on_done)?;
            begun = Some(Arc::clone(&series));
            Ok(series.as_launch())
        };
        let label = launch::label(&format!("calls of slot cache {}", self.name));
        let job = Job::Series("slot cache", Box::new(begin));
        let in_flight = gpu.enqueue(&gpu.stream, job, &LaunchConfig::new(1, 1), named, &label);
        let in_flight = gpu.map_device_lost(in_flight)?;
        let closed = self.tables.iter().find(|table| table.region.is_closed());
        let series = begun
            .ok_or(GpuError::ShutDown)
            .doing(|| "beginning calls of a slot cache".into())?;
        let series = Series {
            gpu: Arc::clone(gpu),
            series,
            in_flight,
        };
        match closed {
            None => Ok(series),
            Some(table) => {
                series.end()?;
                Err(crate::Error::Region {
                    region: table.region.name.clone(),
                    reason: "it has ended, and a slot cache reads it".into(),
                })
            }
        }
    }
}

impl Drop for SlotCache {
    fn drop(&mut self) {
        if let Err(error) = self.calls.get_mut().end() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a slot cache was dropped with an error"
            );
        }
    }
}
