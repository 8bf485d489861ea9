//! Counts of the device library.

use bytemuck::Zeroable;
use gpuvm::Stats;

use super::{gpuvm_vm, on_gpu};
use crate::{
    code::gpuvm_code,
    guard,
    raw::{Growing, Out, OutStruct},
};

/// Counts of one GPU since the virtual memory began. Exact when no launch runs.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_stats {
    /// `sizeof(gpuvm_stats)`.
    pub size: u64,
    /// Lanes whose access found its page not resident.
    pub missed_lanes: u64,
    /// Demand fetches posted: one for each group of lanes that won a page.
    pub faults: u64,
    /// Lanes that missed and were served by another lane's fetch.
    pub coalesced: u64,
    /// Pages fetched, prefetches included.
    pub pages_fetched: u64,
    /// Pages written home.
    pub pages_written_back: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Bytes written home.
    pub bytes_written_back: u64,
    /// Pages that left their frame.
    pub evictions: u64,
    /// Prefetches posted because a kernel asked.
    pub prefetches: u64,
    /// Fetches posted because the faults of a warp came in strides: see Advice.
    pub read_ahead: u64,
    /// Doorbells rung by GPU threads.
    pub doorbells: u64,
    /// Doorbell calls that a proxy made for GPU threads: the only processor work on a fault's way. 0 where the NIC
    /// sees the doorbells by itself.
    pub doorbell_calls: u64,
    /// Queue pairs to memory nodes that were taken out of the error state while kernels ran.
    pub queue_pairs_mended: u64,
    /// Work requests posted by GPU threads.
    pub requests: u64,
    /// Completions handled by a lane that had not posted the request.
    pub helped: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Times that a lane found the frame pool empty.
    pub pool_dry: u64,
    /// Times that a lane found every ring full.
    pub queue_full: u64,
    /// Pages that were fetched and did not have their checksum.
    pub pages_corrupt: u64,
    /// Copies that became stale, since a home was lost, refused a write-back, or gave bad data.
    pub replicas_missed: u64,
    /// Stale copies that a write-back has mended.
    pub replicas_mended: u64,
    /// Bytes that were read at the pages' homes, in place: chunks of 16 bytes, estimated from a sample of the reads.
    /// Not among them: the first read of a page above 4 KiB, and all but 16 bytes of a wider element.
    pub bytes_in_place: u64,
    /// Bytes that were stored at the pages' homes, in place.
    pub bytes_stored_in_place: u64,
    /// Pages that lanes overwrote whole by `array::overwrite`, so that they came to a frame without a fetch.
    pub pages_overwritten: u64,
    /// Pages of regions with Placement::Auto that a fault fetched while no frame was free: the rule that held let
    /// them in, or a span asked for them. The other pages of such regions came while frames were free.
    pub admissions: u64,
    /// Evictions of pages of such regions for another page of their own region. The other evictions are for pages of
    /// other regions, or for whoever waits for a frame too long.
    pub displacements: u64,
    /// Clean pages that left their frames and were copied to borrowed memory of a neighbour GPU. A page that came
    /// from there and was not written is there still, and leaves uncopied.
    pub victims_copied: u64,
    /// Pages that were fetched from there; `pages_fetched` and `bytes_fetched` have them, too.
    pub victims_fetched: u64,
    /// Pages that lost their place there to a page that was fetched more often, and are at their home alone.
    pub victims_displaced: u64,
    /// Pages that came from their home since the neighbour had its memory back.
    pub victims_lost: u64,
    /// Stores of single lanes to broadcast arrays that went to other GPUs, estimated from every 256th line;
    /// Broadcast::traffic tells them by array and GPU, with bytes.
    pub broadcast_stores: u64,
    /// Lines, or parts of them, in which those left: stores that were merged, of a warp or in a `gpuvm::merge_queue`,
    /// are one.
    pub broadcast_lines: u64,
    /// Bytes that neighbours lend at the time of these counts. Of a difference: at its end.
    pub bytes_borrowed: u64,
    /// Bytes of borrowed memory that the neighbours have back.
    pub bytes_given_back: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Growing for gpuvm_stats {
    const NAME: &'static str = "gpuvm_stats";
}

/// Each count by its name, in one list: one that the runtime gains and that is not here is an error of the compiler.
macro_rules! counts {
    ($($count:ident)*) => {
        impl From<Stats> for gpuvm_stats {
            fn from(stats: Stats) -> Self {
                // What the last two are for gpuvm_vm_fault_ns tells.
                let Stats { $($count,)* latencies: _, tick_ps: _ } = stats;
                Self { size: 0, $($count,)* }
            }
        }
    };
}
counts! {
    missed_lanes
    faults
    coalesced
    pages_fetched
    pages_written_back
    bytes_fetched
    bytes_written_back
    evictions
    prefetches
    read_ahead
    doorbells
    doorbell_calls
    queue_pairs_mended
    requests
    helped
    errors
    pool_dry
    queue_full
    pages_corrupt
    replicas_missed
    replicas_mended
    bytes_in_place
    bytes_stored_in_place
    pages_overwritten
    admissions
    displacements
    victims_copied
    victims_fetched
    victims_displaced
    victims_lost
    broadcast_stores
    broadcast_lines
    bytes_borrowed
    bytes_given_back
    page_bytes
}

/// Stores what the device library counted on a GPU of the virtual memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_stats(vm: gpuvm_vm, gpu: u32, stats: *mut gpuvm_stats) -> gpuvm_code {
    guard(|| {
        let place = OutStruct::new("stats", stats)?;
        place.set(on_gpu(vm, gpu, |gpu| gpu.stats())?.into());
        Ok(())
    })
}

/// Stores the nanoseconds from miss to publication that the share `quantile` (0 to 1) of the demand fetches did not exceed. 0 when there was
/// no fetch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_fault_ns(vm: gpuvm_vm, gpu: u32, quantile: f64, ns: *mut u64) -> gpuvm_code {
    guard(|| {
        let place = Out::new("ns", ns)?;
        place.set(on_gpu(vm, gpu, |gpu| gpu.stats())?.fault_ns(quantile));
        Ok(())
    })
}
