//! Requests whose completion does not come.
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
//! 5. the pair is at rest and is mended as any other.
//!
//! Rings that the NIC's driver made are left to the driver, whose transport has time-outs of its own.

use std::sync::atomic::Ordering;

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_nic::wire::mlx5::{CQE_BYTES, Completion, CompletionDetail, CqeOpcode, Opcode, Syndrome};
use parking_lot::MutexGuard;

use super::{Pair, Queues, mending::phase_of};
use crate::error::{Doing, Result};

/// Value of `QueueState::failed` for a pair whose completions do not come.
const FAILED_OVERDUE: u32 = layout::QUEUE_FAILED | 0x15 << 8 | VENDOR_OVERDUE << 16;
/// Vendor syndrome of such pairs, and of the completions that the host writes for them.
const VENDOR_OVERDUE: u32 = 0xfe;
/// Searches for overdue requests in the time that one may take.
const SEARCHES: u64 = 4;
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

impl Pair {
    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock()
    }

    /// The pair begins anew.
    pub(super) fn forget(&self) {
        *self.watch() = Watch::default();
    }
}

impl Queues {
    /// Declares pairs failed whose oldest request has had no completion for too long.
    pub(super) fn fail_overdue(&self, gpu: &dyn Gpu, states: &[QueueState], now_ns: u64) -> Result<()> {
        // Relaxed: the keeper's own, under `resetting`.
        if now_ns < self.next_search_ns.load(Ordering::Relaxed) {
            return Ok(());
        }
        let pause_ns = (self.patience_ns / SEARCHES).max(1);
        self.next_search_ns
            .store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        for (index, (pair, state)) in (0..).zip(self.pairs.iter().zip(states)) {
            if pair.rings.is_none() || state.failed != 0 || state.posted == 0 {
                continue;
            }
            let Some(oldest) = self.oldest_without_completion(gpu, index, state)? else {
                pair.watch().oldest = None;
                continue;
            };
            let since_ns = {
                let mut watch = pair.watch();
                match watch.oldest {
                    Some((index, since_ns)) if index == oldest => since_ns,
                    _ => {
                        watch.oldest = Some((oldest, now_ns));
                        continue;
                    }
                }
            };
            if now_ns - since_ns < self.patience_ns {
                continue;
            }
            tracing::warn!(
                "request {oldest} of queue pair {:#x} has had no completion for {} us: the pair is mended",
                pair.number,
                (now_ns - since_ns) / 1000
            );
            // A lane may store its own error at this moment: either stands for the pair.
            self.set_failed(gpu, index, FAILED_OVERDUE)?;
        }
        Ok(())
    }

    /// The oldest request that the NIC owes a completion. One whose completion is there waits for somebody to need it, and
    /// may stand before others for as long as nobody does.
    fn oldest_without_completion(&self, gpu: &dyn Gpu, index: u32, state: &QueueState) -> Result<Option<u64>> {
        let records = self.pairs[index as usize].records.read(gpu, 0, self.depth as usize);
        let records = records.doing(|| "reading the requests of a queue pair".to_owned())?;
        let posted = records
            .iter()
            .filter(|record| phase_of(record) == layout::RECORD_POSTED);
        let mut requests: Vec<u64> = posted.map(index_of).filter(|index| *index < state.posted).collect();
        if requests.is_empty() {
            return Ok(None);
        }
        requests.sort_unstable();
        let desc = self.desc(gpu, index)?;
        for request in requests {
            if !has_completion(gpu, &desc, request)? {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// Has the unfinished requests of a closed pair end. `unfinished` are their records.
    pub(super) fn end_waiting(&self, gpu: &dyn Gpu, index: u32, unfinished: &[RequestRecord]) -> Result<()> {
        let pair = &self.pairs[index as usize];
        let waiting: Vec<u64> = unfinished
            .iter()
            .filter(|record| phase_of(record) == layout::RECORD_POSTED)
            .map(index_of)
            .collect();
        // The driver knows best where it made the rings. What else is unfinished, a lane is at work on.
        if pair.rings.is_none() || waiting.is_empty() {
            return Ok(());
        }
        let looks = {
            let mut watch = pair.watch();
            watch.looks = watch.looks.saturating_add(1);
            watch.looks
        };
        match looks {
            // Where the NIC cannot do that, the reset does.
            1 => {
                if let Err(error) = pair.nic.fail(pair.number) {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "queue pair {:#x} is not flushed",
                        pair.number
                    );
                }
                Ok(())
            }
            LOOKS => {
                tracing::warn!(
                    "{} requests of queue pair {:#x} have no completion: they are made again",
                    waiting.len(),
                    pair.number
                );
                self.complete_as_flushed(gpu, index, &waiting)
            }
            _ => Ok(()),
        }
    }

    /// Takes a closed pair through reset, and completes requests of it in the NIC's place.
    fn complete_as_flushed(&self, gpu: &dyn Gpu, index: u32, waiting: &[u64]) -> Result<()> {
        let pair = &self.pairs[index as usize];
        let desc = self.desc(gpu, index)?;
        pair.reset()?;
        let mut requests = waiting.to_vec();
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
                queue_pair: pair.number,
                index: block_of(&desc, request).wrapping_add(blocks - 1),
                solicited: false,
                owner: lap_of(&desc, request),
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
            let (at, tail) = (entry_of(&desc, request), CQE_BYTES - 8);
            let written = gpu.write(at, &entry[..tail]);
            let written = written.and_then(|()| gpu.write(at + tail as u64, &entry[tail..]));
            written.doing(|| "completing a request that was given up".to_owned())?;
        }
        Ok(())
    }

    fn desc(&self, gpu: &dyn Gpu, index: u32) -> Result<QueueDesc> {
        let read = self.table.read(gpu, index.into(), 1);
        Ok(read.doing(|| "reading the description of a queue pair".to_owned())?[0])
    }
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
