//! What the device library counted.

use gpuvm_layouts::{Counters, LATENCY_BUCKETS, LATENCY_SUB_BITS};

use crate::{
    error::Result,
    gpu::{PagedGpu, Victims},
};

/// Counts of all shards together.
fn sum(shards: &[Counters], field: fn(&Counters) -> u64) -> u64 {
    shards.iter().map(field).sum()
}

/// Where a count comes from: the device's of the same name, unless something else is said.
macro_rules! count {
    ($name:ident) => {
        |_, shards| sum(shards, |shard| shard.$name)
    };
    ($name:ident = $from:expr) => {
        $from
    };
}

/// The counts, each once: what they are called, what they say, and where they come from.
macro_rules! counts {
    ($($(#[doc = $text:literal])+ $name:ident $(= $from:expr)?,)+) => {
        /// Counts of one GPU since the virtual memory began. `difference` gives those of a span of time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $text])+ pub $name: u64,)+
            /// Bytes that neighbours lend at the time of these counts. Of a [`difference`](Self::difference): at its end.
            pub bytes_borrowed: u64,
            /// Bytes of a page.
            pub page_bytes: u64,
            /// Demand fetches by latency in the device's ticks: see [`Stats::fault_ns`].
            pub latencies: [u64; LATENCY_BUCKETS],
            /// Length of a tick in picoseconds.
            pub tick_ps: u64,
        }

        impl Stats {
            /// The names of [`all`](Self::all), in its order, each with what it says.
            pub fn names() -> impl Iterator<Item = (&'static str, String)> {
                let counts = [$((stringify!($name), concat!($($text),+))),+];
                let gauges = [("bytes_borrowed", "Bytes that neighbours lend now."), ("page_bytes", "Bytes of a page.")];
                counts.into_iter().chain(gauges).map(|(name, text)| (name, plain(text)))
            }

            /// All counts that only grow: the name of each, and how much it is.
            pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }

            /// Counts between `earlier` and this.
            #[must_use]
            pub fn difference(&self, earlier: &Self) -> Self {
                Self {
                    $($name: self.$name.saturating_sub(earlier.$name),)+
                    latencies: std::array::from_fn(|n| self.latencies[n].saturating_sub(earlier.latencies[n])),
                    ..*self
                }
            }

            pub(crate) fn read(gpu: &PagedGpu) -> Result<Self> {
                let shards = gpu.meters.shards(&*gpu.device)?;
                let histogram = gpu.meters.latencies(&*gpu.device)?;
                let read = |from: fn(&PagedGpu, &[Counters]) -> u64| from(gpu, &shards);
                Ok(Self {
                    $($name: read(count!($name $(= $from)?)),)+
                    bytes_borrowed: gpu.victims().map_or(0, Victims::lent_bytes),
                    page_bytes: 1 << gpu.page_shift(),
                    latencies: histogram.buckets,
                    tick_ps: (1e6 / gpu.capabilities().ticks_per_us).round() as u64,
                })
            }
        }
    };
}

counts! {
    /// Lanes whose access found its page not resident.
    missed_lanes,
    /// Demand fetches posted: one for each group of lanes that won a page.
    faults,
    /// Lanes that missed and were served by another lane's fetch.
    coalesced,
    /// Pages fetched, prefetches included.
    pages_fetched,
    /// Pages written back.
    pages_written_back,
    /// Bytes fetched.
    bytes_fetched,
    /// Bytes written back.
    bytes_written_back,
    /// Pages that left their frame.
    evictions,
    /// Prefetches posted because a kernel asked.
    prefetches,
    /// Fetches posted because the faults of a warp came in strides: see [`Advice`](crate::Advice).
    read_ahead,
    /// Doorbells rung by GPU threads.
    doorbells,
    /// Doorbell calls that a proxy made for GPU threads: the only processor work on a fault's way. 0 where the NIC sees
    /// the doorbells by itself.
    doorbell_calls = |gpu, _| gpu.nics.iter().map(|nic| nic.doorbell_calls()).sum(),
    /// Queue pairs to memory nodes that were taken out of the error state while kernels ran.
    queue_pairs_recovered = |gpu, _| gpu.queues().map_or(0, |queues| queues.recovered()),
    /// Work requests posted by GPU threads.
    requests,
    /// Completions handled by a lane that had not posted the request.
    helped,
    /// Completions with an error.
    errors,
    /// Times that a lane found the frame pool empty.
    pool_dry,
    /// Times that a lane found every ring full.
    queue_full,
    /// Pages that were fetched and did not have their checksum.
    pages_corrupt,
    /// Copies that became stale, since a home was lost, refused a write-back, or gave bad data.
    replicas_missed,
    /// Stale copies that a write-back has repaired.
    replicas_repaired,
    /// Bytes that were read at the pages' homes, in place: chunks of 16 bytes, estimated from a sample of the reads. Not among them:
    /// the first read of a page above 4 KiB, and all but 16 bytes of a wider element.
    bytes_in_place = |_, shards| sum(shards, |shard| shard.chunks_in_place) * 16,
    /// Bytes that were stored at the pages' homes, in place ([`Advice::WriteOnce`](crate::Advice::WriteOnce)).
    bytes_stored_in_place,
    /// Pages that lanes overwrote whole by `array::overwrite`, so that they came to a frame without a fetch.
    pages_overwritten,
    /// Pages of regions with [`Placement::Auto`](crate::Placement::Auto) that a fault fetched while no frame was free: the rule that held
    /// let them in, or a span asked for them. The other pages of such regions came while frames were free.
    admissions,
    /// Evictions of pages of such regions for another page of their own region. The other evictions are for pages of other regions, or
    /// for the thread that waits for a frame too long.
    displacements,
    /// Clean pages that left their frames and were copied to borrowed memory of a neighbour GPU
    /// ([`VmBuilder::borrow_from`](crate::VmBuilder::borrow_from)). A page that came from there and was not written is there still, and leaves
    /// uncopied.
    victims_copied,
    /// Pages that were fetched from there; `pages_fetched` and `bytes_fetched` have them, too.
    victims_fetched,
    /// Pages that lost their place there to a page that was fetched more often, and are at their home alone.
    victims_displaced,
    /// Pages that came from their home since the neighbour had its memory back.
    victims_lost,
    /// Stores of single lanes to [broadcast arrays](crate::Broadcast) that went to other GPUs, estimated from every 256th line;
    /// [`Broadcast::traffic`](crate::Broadcast::traffic) tells them by array and GPU, with bytes.
    broadcast_stores,
    /// Lines, or parts of them, in which those left: stores that were merged, of a warp or in a `gpuvm::merge_queue`, are one.
    broadcast_lines,
    /// Pages that launches look up and that came to borrowed memory of a neighbour GPU, where launches read them from then on. What they read there is not counted.
    pages_to_neighbours = |gpu, _| gpu.victims().map_or(0, Victims::filled),
    /// Nanoseconds for which borrowed memory that was given back was not free for its owner, all times together: launches read there, or were to end first.
    loans_awaited_ns = |gpu, _| gpu.victims().map_or(0, Victims::waited_ns),
    /// Bytes of borrowed memory that the neighbours have back ([`VmGpu::give_back_borrowed`](crate::VmGpu::give_back_borrowed)).
    bytes_given_back = |gpu, _| gpu.victims().map_or(0, Victims::given_back_bytes),
}

impl Stats {
    /// All counts, and what there is at their time: bytes that neighbours lend, and bytes of a page.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let gauges = [("bytes_borrowed", self.bytes_borrowed), ("page_bytes", self.page_bytes)];
        self.counts().chain(gauges)
    }

    /// The time from miss to publication that the share `quantile` (0 to 1) of the demand fetches did not exceed, in
    /// nanoseconds: the upper end of its bucket, at most an eighth too much. 0 when there was no fetch.
    pub fn fault_ns(&self, quantile: f64) -> u64 {
        let total: u64 = self.latencies.iter().sum();
        let wanted = ((total as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.latencies.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return nanoseconds(bucket_end(bucket as u64), self.tick_ps);
            }
        }
        0
    }

    /// Bytes fetched from borrowed memory of neighbour GPUs. Of it and the homes the one with fewer pages is counted in whole pages, and the
    /// other has the rest of the bytes: so it is exact but for short last pages of regions on the one that is used less.
    pub fn bytes_from_neighbours(&self) -> u64 {
        let whole = |pages: u64| pages.saturating_mul(self.page_bytes).min(self.bytes_fetched);
        let from_homes = self.pages_fetched.saturating_sub(self.victims_fetched);
        match self.victims_fetched <= from_homes {
            true => whole(self.victims_fetched),
            false => self.bytes_fetched - whole(from_homes),
        }
    }

    /// Bytes fetched from the pages' homes: host memory, a memory node, or a neighbour that is the home. Reads in place are not among them:
    /// see [`bytes_in_place`](Self::bytes_in_place).
    pub fn bytes_from_homes(&self) -> u64 {
        self.bytes_fetched.saturating_sub(self.bytes_from_neighbours())
    }

    /// Hit rate of borrowed memory: of all fetched pages, prefetches included, the share that came from there, from 0 to 1. 0 when none
    /// was fetched. Pages that came for the first time, and could not be there, count as misses.
    pub fn victims_hit_rate(&self) -> f64 {
        self.victims_fetched as f64 / self.pages_fetched.max(1) as f64
    }
}

/// A text without the targets of its links.
fn plain(text: &str) -> String {
    let mut parts = text.trim_start().split("](");
    let first = parts.next().unwrap_or_default().replace('[', "");
    let rest = parts.map(|part| part.split_once(')').map_or(part, |(_, text)| text).replace('[', ""));
    std::iter::once(first).chain(rest).collect()
}

/// This many ticks, rounded up.
fn nanoseconds(ticks: u64, tick_ps: u64) -> u64 {
    let ns = (u128::from(ticks) * u128::from(tick_ps)).div_ceil(1000);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Upper end in ticks of a bucket of the latency histogram.
fn bucket_end(bucket: u64) -> u64 {
    let sub = 1 << LATENCY_SUB_BITS;
    if bucket < 2 * sub {
        return bucket;
    }
    let octave_shift = (bucket >> LATENCY_SUB_BITS) - 1;
    ((sub + (bucket & (sub - 1)) + 1) << octave_shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device's rule, as report.cuh has it.
    fn bucket(ns: u64) -> u64 {
        if ns < 2 << LATENCY_SUB_BITS {
            return ns;
        }
        let octave = 63 - u64::from(ns.leading_zeros());
        let sub = ns >> (octave - u64::from(LATENCY_SUB_BITS)) & ((1 << LATENCY_SUB_BITS) - 1);
        ((octave - u64::from(LATENCY_SUB_BITS) + 1) << LATENCY_SUB_BITS) + sub
    }

    #[test]
    fn ticks_become_nanoseconds() {
        assert_eq!(nanoseconds(1000, 1000), 1000);
        // 1.98 GHz: 2 us.
        assert_eq!(nanoseconds(3960, 505), 2000);
        assert_eq!(nanoseconds(u64::MAX, 1_000_000), u64::MAX);
    }

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for ns in (0..10_000).chain([1 << 20, (1 << 20) + 12345, 10_000_000_000 - 1]) {
            let b = bucket(ns);
            assert!(bucket_end(b) >= ns, "{ns}");
            assert_eq!(bucket(bucket_end(b)), b, "{ns}");
            assert_eq!(bucket(bucket_end(b) + 1), b + 1, "{ns}");
            assert!(bucket_end(b) as f64 <= (ns as f64) * 1.125 + 1.0, "{ns}");
        }
    }
}
