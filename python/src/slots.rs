//! Caches of records, for kernels on the streams of other libraries.

use std::sync::Arc;

use gpuvm::{Ids, SlotPolicy};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    array::Region,
    buffer::Buffer,
    dlpack::{self, Device, Tensor},
    errors::{self, Raised},
    family::{Child, Family},
    memory::{Described, described},
    slot::Slot,
};

/// What ends with its virtual memory.
pub struct Held(Slot<gpuvm::SlotCache>);

impl Child for Held {
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let Some(cache) = self.0.take()? else { return Ok(()) };
        py.detach(|| {
            let ended = cache.wait();
            drop(cache);
            ended
        })
        .raised()
    }

    fn wait_idle(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(cache) = self.0.get() else { return Ok(()) };
        py.detach(|| cache.wait()).raised()
    }
}

/// A cache.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct SlotCache {
    held: Arc<Held>,
    family: Arc<Family>,
    device: Device,
}

/// Ids as Python says them: their address, how many, and whether they have 64 bits.
type GivenIds = (u64, u64, bool);

/// What a cache is to be, as Python says it: tables and bytes of their records, slots, the rule.
pub fn make(
    py: Python<'_>,
    vm: &gpuvm::Vm,
    tables: Vec<(Bound<'_, Region>, u64)>,
    slots: u64,
    policy: &str,
    (family, device): (Arc<Family>, Device),
) -> PyResult<SlotCache> {
    let policy: SlotPolicy = policy.parse().map_err(errors::setting)?;
    let mut builder = vm.slot_cache(slots).policy(policy);
    for (table, record_bytes) in tables {
        builder = builder.table(&*table.get().held.slot.get()?, record_bytes);
    }
    let cache = py.detach(|| builder.build()).raised()?;
    let held = Arc::new(Held(Slot::new("a slot cache", cache)));
    family.add(&held);
    Ok(SlotCache { held, family, device })
}

fn ids_of((addr, count, wide): GivenIds) -> Ids {
    // SAFETY: Python's caller keeps the ids until its stream has come past the call, as it does for every kernel.
    unsafe { Ids::at(addr, count, wide) }
}

#[pymethods]
impl SlotCache {
    /// Has the records of ids in slots, whose numbers go to an address, on another library's stream, or on the Vm's own.
    fn ensure(&self, py: Python<'_>, stream: Option<u64>, ids: GivenIds, slots: u64) -> PyResult<()> {
        let cache = self.held.0.get()?;
        let stream = stream.unwrap_or_else(|| cache.default_stream());
        // SAFETY: the stream is one of another library that is live; `slots` as the ids.
        py.detach(|| unsafe { cache.ensure_on(stream, ids_of(ids), slots) })
            .raised()
    }

    /// Fetches records ahead.
    fn prefetch(&self, py: Python<'_>, stream: Option<u64>, ids: GivenIds) -> PyResult<()> {
        let cache = self.held.0.get()?;
        let stream = stream.unwrap_or_else(|| cache.default_stream());
        // SAFETY: as in `ensure`.
        py.detach(|| unsafe { cache.prefetch_on(stream, ids_of(ids)) }).raised()
    }

    /// Keeps slots' records where they are, or with `release` no longer.
    fn hold(&self, py: Python<'_>, stream: Option<u64>, slots: u64, count: u64, release: bool) -> PyResult<()> {
        let cache = self.held.0.get()?;
        let stream = stream.unwrap_or_else(|| cache.default_stream());
        // SAFETY: as in `ensure`.
        py.detach(|| unsafe { cache.hold_on(stream, slots, count, release) })
            .raised()
    }

    /// Others have stored to the tables.
    fn refresh(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<()> {
        let cache = self.held.0.get()?;
        let stream = stream.unwrap_or_else(|| cache.default_stream());
        // SAFETY: as in `ensure`.
        py.detach(|| unsafe { cache.refresh_on(stream) }).raised()
    }

    /// Waits for the calls, and raises what they told.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.held.0.get()?;
        py.detach(|| cache.wait()).raised()
    }

    /// Hits, misses, prefetched records, evictions and bytes.
    fn stats(&self, py: Python<'_>) -> PyResult<[u64; 5]> {
        let cache = self.held.0.get()?;
        let stats = py.detach(|| cache.wait().and_then(|()| cache.stats())).raised()?;
        Ok([stats.hits, stats.misses, stats.prefetched, stats.evictions, stats.bytes])
    }

    /// A DLPack capsule of the same numbers where they are counted, behind the number of the next call.
    fn stats_dlpack<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let cache = self.held.0.get()?;
        self.capsule(py, cache.stats_addr(), ("i".to_owned(), 8), vec![6])
    }

    /// A DLPack capsule of a table's slots: this many bytes.
    fn frames_dlpack<'py>(&self, py: Python<'py>, table: usize) -> PyResult<Bound<'py, PyCapsule>> {
        let cache = self.held.0.get()?;
        let frames = cache.frames(table);
        let bytes = frames.len() * frames.element().bytes() as u64;
        self.capsule(py, frames.addr(), ("u".to_owned(), 1), vec![bytes as i64])
    }

    /// A table's slots as a buffer of such elements.
    fn frames(&self, table: usize, element: Described) -> PyResult<Buffer> {
        let cache = self.held.0.get()?;
        let frames = cache.frames(table).of_elements(described(&element)?);
        let slot = Arc::new(Slot::new("the slots of a slot cache", frames));
        self.family.add(&slot);
        Ok(Buffer::new(slot, Arc::clone(&self.family.flights), self.device))
    }

    /// Ends it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.held.end(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.held.0.is_closed()
    }
}

impl SlotCache {
    fn capsule<'py>(
        &self,
        py: Python<'py>,
        addr: u64,
        element: (String, usize),
        shape: Vec<i64>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let tensor = Tensor {
            addr,
            device: self.device,
            element,
            shape,
            read_only: false,
        };
        dlpack::capsule(py, tensor, Box::new(self.held.0.get()?), false)
    }
}
