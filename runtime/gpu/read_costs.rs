//! What reads of a region's home cost, which its placement weighs against fetches.

use std::time::Duration;

use gpuvm_layouts as layout;

use super::{PagedGpu, launcher::arg};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    launch::LaunchConfig,
};

/// What reads at a region's home cost the GPU while all of it reads, by [`Region::read_costs`](crate::Region::read_costs).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadCosts {
    /// Nanoseconds of a read that shares its line of 128 bytes with no other.
    pub scattered_read_ns: f64,
    /// Nanoseconds of such a read within 64 MiB.
    pub near_read_ns: f64,
    /// Nanoseconds of a line of 128 bytes that lanes read side by side.
    pub neighbouring_line_ns: f64,
    /// Nanoseconds of a page by a fault: its lines side by side, since faults reach the rate of such reads (docs/PERFORMANCE.md).
    pub page_ns: f64,
    /// Whether they were measured when the region was made. Else they are those of an H200 over PCIe 5 and 16 GiB of host memory.
    pub measured: bool,
}

/// Smallest home whose costs are measured: what is smaller is in the caches of address translation.
const BYTES_MIN: u64 = 64 << 20;
/// Reads of one measurement. Scattered ones take an H200 some 6 ms, and the others one.
const SCATTERED_READS: u64 = 1 << 18;
const NEIGHBOURING_READS: u64 = 1 << 22;
const CHUNKS_OF_A_LINE: f64 = 8.0;
const THREADS: u32 = 256;

impl ReadCosts {
    fn new([scattered_read_ns, near_read_ns, neighbouring_line_ns]: [f64; 3], page_bytes: u64, measured: bool) -> Self {
        Self {
            scattered_read_ns,
            near_read_ns,
            neighbouring_line_ns,
            page_ns: neighbouring_line_ns * page_bytes as f64 / 128.0,
            measured,
        }
    }

    /// Of an H200.
    fn assumed(page_bytes: u64) -> Self {
        Self::new([24.0, 1.5, 2.5], page_bytes, false)
    }

    /// What a scattered read near recent ones and one far from them cost at a home of this many bytes, in `COST_UNIT`s: sixteenths of a
    /// chunk that is read side by side.
    pub(crate) fn weights(&self, bytes: u64) -> [u32; 2] {
        // Of the reads that were measured all over the home this many were near.
        let reach = u64::from(layout::GRANULES) << layout::GRANULE_SHIFT;
        let near = (reach as f64 / bytes as f64).min(1.0);
        let far_ns = match near < 0.9 {
            true => (self.scattered_read_ns - near * self.near_read_ns) / (1.0 - near),
            false => self.scattered_read_ns,
        };
        let chunk_ns = self.neighbouring_line_ns / CHUNKS_OF_A_LINE;
        // Less than a page's worth of chunks: a fetch is worth no less than one read.
        let most = (layout::PAGE_BYTES_MIN / 16) as u32;
        [self.near_read_ns, far_ns].map(|ns| ((ns / chunk_ns).round() as u32).clamp(1, most) * layout::COST_UNIT)
    }
}

/// Measures what reads of a home of `bytes` bytes at the device address `home` cost, 0 if lanes do not reach it. Assumed where that
/// says nothing: of small homes, on a simulated GPU, beside kernels that run.
pub(crate) fn measure_reads(gpu: &PagedGpu, home: u64, bytes: u64) -> Result<ReadCosts> {
    let page_bytes = 1 << gpu.page_shift();
    if home == 0 || bytes < BYTES_MIN || gpu.device.simulation().is_some() || !gpu.lock().in_flight.is_empty() {
        return Ok(ReadCosts::assumed(page_bytes));
    }
    let sink = DeviceArray::<u32>::zeroed(&*gpu.device, 1).doing(|| "measuring reads in place".into())?;
    let read = |reads: u64, bytes: u64, scattered: bool| -> Result<Duration> {
        let lanes = u64::from(gpu.capabilities().max_resident_lanes).max(u64::from(THREADS));
        let args = |_| {
            vec![
                arg(home),
                arg(bytes / 16),
                arg(reads),
                arg(u32::from(scattered)),
                arg(sink.addr()),
            ]
        };
        let config = LaunchConfig::new((lanes / u64::from(THREADS)) as u32, THREADS);
        let (support, label) = (&gpu.support, "measuring reads in place");
        let report = gpu.run_reporting(&support.stream, &support.read_home, config, args, None, label)?;
        Ok(report.elapsed())
    };
    // The first launch of a kernel takes longer.
    read(u64::from(THREADS), BYTES_MIN, true)?;
    let of_one = |took: Duration, reads: u64| took.as_nanos() as f64 / reads as f64;
    let scattered = of_one(read(SCATTERED_READS, bytes, true)?, SCATTERED_READS);
    let near = of_one(read(SCATTERED_READS, BYTES_MIN, true)?, SCATTERED_READS);
    let neighbouring = of_one(read(NEIGHBOURING_READS, bytes, false)?, NEIGHBOURING_READS) * CHUNKS_OF_A_LINE;
    Ok(ReadCosts::new([scattered, near, neighbouring], page_bytes, true))
}
