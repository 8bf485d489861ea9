//! What a run tells its user: a short text, or one JSON object.

use std::fmt;
use std::io;

use bytesize::ByteSize;
use gpuvm::{ReadCosts, Stats};
use serde::Serialize;

use crate::stdout;
use crate::table::grouped;

/// The report of a breadth-first search; the field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct BfsReport {
    /// The graph as given.
    pub graph: String,
    /// `directed` or `undirected`.
    pub direction: &'static str,
    /// The GPU that ran the search.
    pub gpu: String,
    /// What moved the pages.
    pub transport: String,
    /// Vertices of the graph.
    pub vertices: u64,
    /// Stored neighbours: an undirected edge counts twice.
    pub edges: u64,
    /// The id of the vertex that the search began at.
    pub source: u64,
    /// Bytes of the paged data: row offsets, neighbours and distances, in whole pages.
    pub data_bytes: u64,
    /// Bytes of frames.
    pub memory_bytes: u64,
    /// Whether the share that was asked for is less than that, which is the least that a share gives.
    pub memory_raised: bool,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// From the first launch to the end of the last one.
    pub seconds: f64,
    /// Vertices with a distance.
    pub vertices_reached: u64,
    /// Different distances, the 0 of the source among them.
    pub levels: u32,
    /// Stored neighbours of reached vertices, a second.
    pub edges_per_second: f64,
    /// Demand fetches: each for all lanes of a warp that missed the same page together.
    pub faults: u64,
    /// Demand fetches a second.
    pub faults_per_second: f64,
    /// Lanes that missed and were served by another lane's fetch.
    pub coalesced: u64,
    /// Pages fetched.
    pub pages_fetched: u64,
    /// Pages written back.
    pub pages_written_back: u64,
    /// Bytes fetched.
    pub bytes_fetched: u64,
    /// Bytes read in place, at the pages' homes: chunks of 16 bytes, estimated from a sample of the reads.
    pub bytes_in_place: u64,
    /// Bytes read of the graph's file, with `--file-cache`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes_read: Option<u64>,
    /// Bytes that a perfect cache of the same size would have read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes_perfect: Option<u64>,
    /// What reads of the graph at its home cost, where the GPU weighs it.
    pub read_costs: Option<ReadCostsReport>,
    /// Pages of regions with placement `auto` that a fault fetched while no frame was free.
    pub admissions: u64,
    /// Pages of such regions that left their frame for another page of their region.
    pub displacements: u64,
    /// What memory of neighbour GPUs did, where some is borrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<NeighbourReport>,
    /// Share of the accesses to paged elements that found their page.
    pub hit_rate: f64,
    /// Half of the faults took at most these nanoseconds from the miss to the publication.
    pub fault_ns_p50: u64,
    /// 99 of 100 faults took at most these nanoseconds.
    pub fault_ns_p99: u64,
    /// Doorbells that GPU threads rang.
    pub doorbells: u64,
    /// Doorbell calls that the proxy made for them, where the NIC needs one.
    pub doorbell_calls: u64,
    /// Queue pairs to memory nodes that were taken out of the error state during the run.
    pub queue_pairs_recovered: u64,
    /// Whether the distances equal those of a search on the CPU; nothing where they were not compared.
    pub verified: Option<bool>,
}

impl BfsReport {
    /// Prints the report on the standard output.
    ///
    /// # Errors
    /// Where the output is closed or full.
    pub fn print(&self, json: bool) -> io::Result<()> {
        stdout::print_report(self, json)
    }
}

impl BfsReport {
    /// What came from neighbour GPUs, and what was read of the graph's file.
    fn write_places(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(neighbour) = &self.neighbour {
            writeln!(out, "neighbour  {neighbour}")?;
        }
        let (Some(read), Some(perfect)) = (self.file_bytes_read, self.file_bytes_perfect) else {
            return Ok(());
        };
        let (size, times) = (ByteSize::b(read).display().iec(), read as f64 / perfect.max(1) as f64);
        writeln!(
            out,
            "file       {size} read, {times:.2} times what a perfect cache of that size reads"
        )
    }
}

impl fmt::Display for BfsReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize::b(bytes).display().iec();
        let share = self.memory_bytes as f64 / self.data_bytes as f64 * 100.0;
        writeln!(
            out,
            "graph      {} ({}): {} vertices, {} edges, {} paged",
            self.graph,
            self.direction,
            grouped(self.vertices),
            grouped(self.edges),
            size(self.data_bytes)
        )?;
        writeln!(
            out,
            "memory     {} of frames ({share:.1} %{}), pages of {}, {}, transport {}",
            size(self.memory_bytes),
            if self.memory_raised {
                "; the least that a share gives"
            } else {
                ""
            },
            size(self.page_bytes),
            self.gpu,
            self.transport
        )?;
        writeln!(
            out,
            "search     from vertex {}: {} vertices in {} levels, {:.3} s, {:.1} M edges/s",
            self.source,
            grouped(self.vertices_reached),
            self.levels,
            self.seconds,
            self.edges_per_second / 1e6
        )?;
        writeln!(
            out,
            "faults     {} ({}/s), {} lanes coalesced, p50 {:.1} us, p99 {:.1} us, hit rate {:.3} %",
            grouped(self.faults),
            grouped(self.faults_per_second as u64),
            grouped(self.coalesced),
            self.fault_ns_p50 as f64 / 1e3,
            self.fault_ns_p99 as f64 / 1e3,
            self.hit_rate * 100.0
        )?;
        writeln!(
            out,
            "pages      {} fetched ({}), {} written back, {} read in place; {} doorbells, {} calls for them",
            grouped(self.pages_fetched),
            size(self.bytes_fetched),
            grouped(self.pages_written_back),
            size(self.bytes_in_place),
            grouped(self.doorbells),
            grouped(self.doorbell_calls)
        )?;
        writeln!(
            out,
            "placement  {} pages admitted while no frame was free, {} displaced by pages of their region",
            grouped(self.admissions),
            grouped(self.displacements)
        )?;
        self.write_places(out)?;
        let verified = match self.verified {
            Some(true) => "the distances equal those of a search on the CPU",
            Some(false) => "the distances are WRONG",
            None => "not compared with a search on the CPU",
        };
        write!(out, "verified   {verified}")
    }
}

/// What borrowed memory of neighbour GPUs did in a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NeighbourReport {
    /// Bytes fetched from there.
    pub bytes_fetched: u64,
    /// Bytes fetched from the pages' homes.
    pub bytes_from_homes: u64,
    /// Share of the fetched pages that came from there, from 0 to 1.
    pub hit_rate: f64,
    /// Pages that were copied there.
    pub pages_copied: u64,
    /// Pages that launches look up and that came there, to be read in place.
    pub pages_read_there: u64,
    /// Pages that lost their place there to pages that were fetched more often.
    pub pages_displaced: u64,
    /// Pages that came from their home, since the loan of their copy had ended.
    pub pages_lost: u64,
    /// Bytes that are lent at the end of the run.
    pub bytes_lent: u64,
    /// Bytes whose loan ended in the run.
    pub bytes_given_back: u64,
}

impl NeighbourReport {
    /// Of a run with these counts; nothing where it had borrowed nothing.
    pub fn of(stats: &Stats) -> Option<Self> {
        // The loan may have ended before the run did.
        (stats.bytes_borrowed + stats.bytes_given_back > 0).then(|| Self {
            bytes_fetched: stats.bytes_from_neighbours(),
            bytes_from_homes: stats.bytes_from_homes(),
            hit_rate: stats.victims_hit_rate(),
            pages_copied: stats.victims_copied,
            pages_read_there: stats.pages_to_neighbours,
            pages_displaced: stats.victims_displaced,
            pages_lost: stats.victims_lost,
            bytes_lent: stats.bytes_borrowed,
            bytes_given_back: stats.bytes_given_back,
        })
    }
}

impl fmt::Display for NeighbourReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize::b(bytes).display().iec();
        write!(
            out,
            "{} fetched from there, {} from home, hit rate {:.1} %; {} pages copied there, {} to be read there, {} displaced there, {} missed as the loan had ended; {} lent now, {} \
             given back",
            size(self.bytes_fetched),
            size(self.bytes_from_homes),
            self.hit_rate * 100.0,
            grouped(self.pages_copied),
            grouped(self.pages_read_there),
            grouped(self.pages_displaced),
            grouped(self.pages_lost),
            size(self.bytes_lent),
            size(self.bytes_given_back)
        )
    }
}

/// Costs that placement weighs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ReadCostsReport {
    /// Nanoseconds of a read that shares its line of 128 bytes with no other.
    pub scattered_read_ns: f64,
    /// Nanoseconds of such a read within 64 MiB.
    pub near_read_ns: f64,
    /// Nanoseconds of a line of 128 bytes that lanes read side by side.
    pub neighbouring_line_ns: f64,
    /// Nanoseconds of a page by a fault.
    pub page_ns: f64,
    /// Whether they were measured; else they are assumed.
    pub measured: bool,
}

impl From<ReadCosts> for ReadCostsReport {
    fn from(costs: ReadCosts) -> Self {
        Self {
            scattered_read_ns: costs.scattered_read_ns,
            near_read_ns: costs.near_read_ns,
            neighbouring_line_ns: costs.neighbouring_line_ns,
            page_ns: costs.page_ns,
            measured: costs.measured,
        }
    }
}
