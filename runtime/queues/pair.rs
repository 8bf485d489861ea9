//! One queue pair, and its requests whose completion does not come.
//!
//! A NIC completes every request, sooner or later, with success or an error; but a completion can be lost where the NIC, its
//! driver or the path to memory fails, and its lane would wait for its whole limit and then lose the page. So the keeper looks
//! now and then for the oldest request of each pair, and when one has had no completion for a share of that limit, it declares
//! the pair failed, as an error completion would have:
//!
//! 1. it sets `failed`; lanes that look at the pair close it to reservations;
//! 2. when all that was reserved was posted and rung for, it takes the pair to the error state, in which the NIC flushes what
//!    it holds;
//! 3. requests that have no completion some looks later will not get one: it takes the pair through reset, after which the NIC
//!    touches neither ring nor data any more, and writes their completions itself, as flushed;
//! 4. lanes finish them like any flushed request: pages are absent or dirty again, slots come free in their order, none is
//!    posted to while it is live;
//! 5. the pair is at rest and is recovered as any other.
//!
//! Rings that the NIC's driver made are left to the driver, whose transport has time-outs of its own.

use std::sync::Arc;

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_memory_node::JoinQueue;
use gpuvm_nic::{
    Nic, QueueAttributes,
    wire::mlx5::{CQE_BYTES, Completion, CompletionDetail, CqeOpcode, Opcode, Syndrome},
};
use parking_lot::Mutex;

use super::rings::GivenRings;
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
};

/// Value of `QueueState::failed` for a pair whose completions do not come.
pub(super) const FAILED_OVERDUE: u32 = layout::QUEUE_FAILED | 0x15 << 8 | VENDOR_OVERDUE << 16;
/// Vendor syndrome of such pairs, and of the completions that the host writes for them.
const VENDOR_OVERDUE: u32 = 0xfe;
/// Looks at a closed pair before requests without completion are given up.
const LOOKS: u32 = 4;

/// What the keeper remembers of a pair.
#[derive(Default)]
pub(super) struct Watch {
    /// The oldest request without a completion, and since when it has been that.
    oldest: Option<(u64, u64)>,
    /// Looks at the closed pair that found unfinished requests.
    looks: u32,
}

/// One queue pair's memory and number.
pub(super) struct Pair {
    pub nic: Arc<dyn Nic>,
    pub number: u32,
    /// Kept while the queue pair lives.
    pub rings: Option<GivenRings>,
    /// Requests in flight, at most.
    pub depth: u32,
    pub records: DeviceArray<RequestRecord>,
    pub watch: Mutex<Watch>,
}

impl Pair {
    pub fn reset(&self) -> Result<()> {
        let reset = self.nic.reset(self.number);
        reset.doing(|| format!("resetting queue pair {:#x}", self.number))
    }

    /// The pair begins anew.
    pub fn forget(&self) {
        *self.watch.lock() = Watch::default();
    }

    pub fn read_records(&self, gpu: &dyn Gpu) -> Result<Vec<RequestRecord>> {
        let records = self.records.read(gpu, 0, self.depth as usize);
        records.doing(|| "reading the requests of a queue pair".to_owned())
    }

    /// The oldest request without a completion, and since when it has been that. `desc` reads the pair's description.
    pub fn waits_for(
        &self,
        gpu: &dyn Gpu,
        state: &QueueState,
        now_ns: u64,
        desc: impl FnOnce() -> Result<QueueDesc>,
    ) -> Result<Option<(u64, u64)>> {
        if self.rings.is_none() || state.failed != 0 || state.posted == 0 {
            return Ok(None);
        }
        let oldest = self.oldest_without_completion(gpu, state, desc)?;
        let mut watch = self.watch.lock();
        let known = watch.oldest.filter(|(index, _)| Some(*index) == oldest);
        watch.oldest = known.or(oldest.map(|oldest| (oldest, now_ns)));
        Ok(watch.oldest)
    }

    /// The oldest request that the NIC owes a completion. One whose completion is there waits for somebody to need it, and
    /// may stand before others for as long as nothing does.
    fn oldest_without_completion(
        &self,
        gpu: &dyn Gpu,
        state: &QueueState,
        desc: impl FnOnce() -> Result<QueueDesc>,
    ) -> Result<Option<u64>> {
        let records = self.read_records(gpu)?;
        let posted = records
            .iter()
            .filter(|record| phase_of(record) == layout::RECORD_POSTED);
        let mut requests: Vec<u64> = posted.map(index_of).filter(|index| *index < state.posted).collect();
        if requests.is_empty() {
            return Ok(None);
        }
        requests.sort_unstable();
        let desc = desc()?;
        for request in requests {
            if !has_completion(gpu, &desc, request)? {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// Has the unfinished requests of a closed pair end. `unfinished` are their records.
    pub fn end_waiting(
        &self,
        gpu: &dyn Gpu,
        unfinished: &[RequestRecord],
        desc: impl FnOnce() -> Result<QueueDesc>,
    ) -> Result<()> {
        let waiting: Vec<u64> = unfinished
            .iter()
            .filter(|record| phase_of(record) == layout::RECORD_POSTED)
            .map(index_of)
            .collect();
        // The driver knows best where it made the rings. What else is unfinished, a lane is at work on.
        if self.rings.is_none() || waiting.is_empty() {
            return Ok(());
        }
        let looks = {
            let mut watch = self.watch.lock();
            watch.looks = watch.looks.saturating_add(1);
            watch.looks
        };
        match looks {
            // Where the NIC cannot do that, the reset does.
            1 => {
                if let Err(error) = self.nic.fail(self.number) {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "queue pair {:#x} is not flushed",
                        self.number
                    );
                }
                Ok(())
            }
            LOOKS => {
                tracing::warn!(
                    "{} requests of queue pair {:#x} have no completion: they are repeated",
                    waiting.len(),
                    self.number
                );
                self.complete_as_flushed(gpu, &desc()?, waiting)
            }
            _ => Ok(()),
        }
    }

    /// Takes a closed pair through reset, and completes requests of it in the NIC's place.
    fn complete_as_flushed(&self, gpu: &dyn Gpu, desc: &QueueDesc, mut requests: Vec<u64>) -> Result<()> {
        self.reset()?;
        if desc.flags & layout::QUEUE_COLLAPSED != 0 {
            // One entry stands for all up to the newest.
            requests.sort_unstable();
            requests.drain(..requests.len() - 1);
        }
        for request in requests {
            let blocks = 1 + u16::from(desc.flags & layout::QUEUE_FLUSHES_READS != 0);
            let completion = Completion {
                kind: CqeOpcode::RequestError,
                opcode: Opcode::Nop,
                queue_pair: self.number,
                index: block_of(desc, request).wrapping_add(blocks - 1),
                solicited: false,
                owner: lap_of(desc, request),
                detail: CompletionDetail::Error {
                    syndrome: Syndrome::Flushed,
                    vendor: VENDOR_OVERDUE as u8,
                },
            };
            let mut entry = [0; CQE_BYTES];
            // 64 bytes are what an entry takes.
            let emitted = completion.emit(&mut entry);
            debug_assert!(emitted.is_ok());
            // What lanes look at first is stored last.
            let (at, tail) = (entry_of(desc, request), CQE_BYTES - 8);
            let written = gpu.write(at, &entry[..tail]);
            let written = written.and_then(|()| gpu.write(at + tail as u64, &entry[tail..]));
            written.doing(|| "completing a request that was given up".to_owned())?;
        }
        Ok(())
    }
}

/// A queue pair of a NIC, for the connection manager.
pub(super) struct Joining<'a> {
    nic: &'a dyn Nic,
    number: u32,
}

impl<'a> Joining<'a> {
    pub fn of(pair: &'a Pair) -> Self {
        Self {
            nic: &*pair.nic,
            number: pair.number,
        }
    }
}

impl JoinQueue for Joining<'_> {
    fn number(&self) -> u32 {
        self.number
    }

    fn modify(&self, attributes: &QueueAttributes) -> std::io::Result<()> {
        self.nic.modify(self.number, attributes).map_err(std::io::Error::other)
    }

    fn max_outstanding_reads(&self) -> u8 {
        u8::try_from(self.nic.capabilities().max_rd_atomic).unwrap_or(u8::MAX)
    }
}

/// The phase of a request's record.
pub(super) fn phase_of(record: &RequestRecord) -> u64 {
    record.state & ((1 << layout::RECORD_INDEX_SHIFT) - 1)
}

/// Whether the completion of a request that is posted has come.
fn has_completion(gpu: &dyn Gpu, desc: &QueueDesc, request: u64) -> Result<bool> {
    let mut entry = [0; CQE_BYTES];
    let read = gpu.read(entry_of(desc, request), &mut entry);
    read.doing(|| "reading a completion".to_owned())?;
    let (opcode, owner) = (entry[CQE_BYTES - 1] >> 4, entry[CQE_BYTES - 1] & 1 != 0);
    if desc.flags & layout::QUEUE_COLLAPSED != 0 {
        // As the device library has it.
        let counter = u16::from_be_bytes([entry[60], entry[61]]);
        let ahead = counter.wrapping_sub(block_of(desc, request));
        return Ok(opcode != 15 && ahead < 0x8000);
    }
    Ok(opcode != 15 && owner == lap_of(desc, request))
}

fn index_of(record: &RequestRecord) -> u64 {
    record.state >> layout::RECORD_INDEX_SHIFT
}

/// Position of a request's completion in its ring, and above it the laps.
fn position_of(desc: &QueueDesc, request: u64) -> u32 {
    desc.completion_start.wrapping_add(request as u32)
}

fn entry_of(desc: &QueueDesc, request: u64) -> u64 {
    let slot = match desc.flags & layout::QUEUE_COLLAPSED {
        0 => position_of(desc, request) & desc.completion_mask,
        _ => 0,
    };
    desc.completion_ring + (u64::from(slot) << desc.completion_shift)
}

fn lap_of(desc: &QueueDesc, request: u64) -> bool {
    position_of(desc, request) & (desc.completion_mask + 1) != 0
}

/// Number of a request's first block, as the NIC counts.
fn block_of(desc: &QueueDesc, request: u64) -> u16 {
    let doubled = u32::from(desc.flags & layout::QUEUE_FLUSHES_READS != 0);
    (desc.send_start.wrapping_add(request as u32) << doubled) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::zero;

    #[test]
    fn places_in_rings_follow_requests_through_every_wrap() {
        let near = |end: u64| end.saturating_sub(3)..end + 3;
        for (doubled, mask) in [(0, 0), (0, 3), (1, 15), (0, 0xffff), (1, 0xf_ffff)] {
            for start in [0, 1, 15, 0xfffe, 0xffff, 0x7fff_ffff, u32::MAX - 1, u32::MAX] {
                for request in [0, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 33]
                    .into_iter()
                    .flat_map(near)
                {
                    let desc = QueueDesc {
                        completion_ring: 1 << 40,
                        completion_shift: 6,
                        completion_mask: mask,
                        completion_start: start,
                        send_start: start,
                        flags: doubled * layout::QUEUE_FLUSHES_READS,
                        ..zero()
                    };
                    let (at, entries) = (u64::from(start) + request, u64::from(mask) + 1);
                    let named = format!("request {request} from {start} on, {entries} entries");
                    let entry = (1 << 40) + (at % entries) * CQE_BYTES as u64;
                    assert_eq!(entry_of(&desc, request), entry, "{named}");
                    assert_eq!(lap_of(&desc, request), at / entries % 2 == 1, "{named}");
                    let block = (at << doubled) % (1 << 16);
                    assert_eq!(u64::from(block_of(&desc, request)), block, "{named}");
                }
            }
        }
    }
}
