//! A profile as one JSON object, and as text.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bytesize::ByteSize;
use comfy_table::Table;
use gpuvm::{PageProfile, Profile, RegionProfile};
use serde::Serialize;

use crate::report::BfsReport;
use crate::table::table;

/// Most groups of neighbouring pages of a region that are written.
const BUCKETS_MAX: u64 = 1024;

/// What is exact and what is not, with every profile.
const SAMPLED: &str = "fetches and evictions are counted; resident, referenced, dirty and stays_* are of samples of the page tables \
    (referenced: used since the clock's hand passed; dirty: written and not written back yet); bytes_in_place are estimated from a sample of the reads";

/// A profile; the field names are the keys of the JSON object.
#[derive(Debug, Serialize)]
pub struct ProfileReport {
    /// The program that was run.
    pub program: String,
    /// Which figures are exact.
    pub sampled: &'static str,
    /// What the program took without the profile: a run before, and one after.
    pub seconds_without: [f64; 2],
    /// What it took with it.
    pub seconds_with: f64,
    /// How much longer that is than the faster one without it, as a share. These are single runs: noise is in it, and it may be below 0.
    pub overhead: f64,
    /// The rest between two samples.
    pub interval_seconds: f64,
    /// Samples.
    pub samples: u32,
    /// From the first sample to the last.
    pub sampled_seconds: f64,
    /// What of that time the sampler was at work.
    pub sampling_seconds: f64,
    /// Fetches that the counters know and the pages do not.
    pub fetches_unseen: u64,
    /// Frames of the GPU.
    pub frames: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// By region.
    pub regions: Vec<RegionReport>,
    /// What would have helped; nothing where there are too few samples to say.
    pub advice: Option<Vec<AdviceReport>>,
    /// The program's own report of the run with the profile.
    pub run: BfsReport,
}

/// One region.
#[derive(Debug, Serialize)]
pub struct RegionReport {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its pages.
    pub pages: u64,
    /// Whether kernels only read it.
    pub read_only: bool,
    /// Whether its pages have frames of their own.
    pub never_evicted: bool,
    /// What a read of a page without a frame does.
    pub placement: &'static str,
    /// Pages that were fetched.
    pub pages_fetched: u64,
    /// Of all its pages.
    pub total: Bucket,
    /// Its pages in groups of neighbours.
    pub buckets: Vec<Bucket>,
    /// Its pages over time.
    pub columns: Vec<Column>,
}

/// Neighbouring pages, their figures added up.
#[derive(Debug, Serialize)]
pub struct Bucket {
    /// The first one.
    pub first_page: u64,
    /// How many.
    pub pages: u64,
    /// Times that they were fetched.
    pub fetches: u64,
    /// Times that they left their frames.
    pub evictions: u64,
    /// Samples in which a page had a frame.
    pub resident: u64,
    /// Samples in which a page with a frame was used.
    pub referenced: u64,
    /// Samples in which a page with a frame was written.
    pub dirty: u64,
    /// Stays of a page in a frame that a sample saw.
    pub stays_seen: u64,
    /// Those of them in which one saw the page used.
    pub stays_used: u64,
    /// Those of them in which one saw the page written.
    pub stays_written: u64,
    /// Bytes that were read in place.
    pub bytes_in_place: u64,
}

/// A stretch of time; the pages are in groups of neighbours.
#[derive(Debug, Serialize)]
pub struct Column {
    /// Its end, since the first sample.
    pub end_seconds: f64,
    /// Samples.
    pub samples: u32,
    /// Fetches by group.
    pub fetches: Vec<u32>,
    /// By group: samples in which a page had a frame, over its pages.
    pub resident: Vec<u64>,
}

/// Advice for a region.
#[derive(Debug, Serialize)]
pub struct AdviceReport {
    /// The region's name.
    pub region: String,
    /// The advice.
    pub advice: &'static str,
    /// What speaks for it.
    pub because: String,
}

impl Bucket {
    fn of(region: &RegionProfile, pages: Range<usize>) -> Self {
        let all = &region.pages[pages.clone()];
        let sum = |field: fn(&PageProfile) -> u64| all.iter().map(field).sum();
        Self {
            first_page: pages.start as u64,
            pages: all.len() as u64,
            fetches: sum(|page| page.fetches.into()),
            evictions: sum(|page| page.evictions.into()),
            resident: sum(|page| page.resident.into()),
            referenced: sum(|page| page.referenced.into()),
            dirty: sum(|page| page.dirty.into()),
            stays_seen: sum(|page| page.stays_seen.into()),
            stays_used: sum(|page| page.stays_used.into()),
            stays_written: sum(|page| page.stays_written.into()),
            bytes_in_place: sum(|page| page.bytes_in_place),
        }
    }

    /// All pages of a region, in up to `most` groups of the same size but for rounding.
    pub fn all(region: &RegionProfile, most: u64) -> Vec<Self> {
        let pages = region.pages.len();
        let groups = pages.min(most as usize);
        // The pages with `page * groups / pages == group`.
        let begin = |group: usize| (group * pages).div_ceil(groups.max(1));
        (0..groups)
            .map(|group| Self::of(region, begin(group)..begin(group + 1)))
            .collect()
    }
}

impl RegionReport {
    fn new(region: &RegionProfile) -> Self {
        let columns = region.columns.iter().map(|column| Column {
            end_seconds: column.end.as_secs_f64(),
            samples: column.samples,
            fetches: column.fetches.clone(),
            resident: column.resident.clone(),
        });
        Self {
            name: region.name.clone(),
            bytes: region.bytes,
            pages: region.pages.len() as u64,
            read_only: region.read_only,
            never_evicted: region.never_evicted,
            placement: region.placement,
            pages_fetched: region.pages_fetched(),
            total: Bucket::of(region, 0..region.pages.len()),
            buckets: Bucket::all(region, BUCKETS_MAX),
            columns: columns.collect(),
        }
    }
}

impl ProfileReport {
    /// Of a profile of `program`, which took these times `without` it.
    pub fn new(program: String, run: BfsReport, without: [Duration; 2], profile: &Profile) -> Self {
        let advice = profile.suggestions().map(|all| {
            let told = all.into_iter().map(|told| AdviceReport {
                region: told.region,
                advice: told.advice,
                because: told.because,
            });
            told.collect()
        });
        let seconds_without = without.map(|time| time.as_secs_f64());
        Self {
            program,
            sampled: SAMPLED,
            seconds_without,
            seconds_with: run.seconds,
            // A run shorter than the clock's step must not divide by zero.
            overhead: run.seconds / seconds_without[0].min(seconds_without[1]).max(1e-9) - 1.0,
            interval_seconds: profile.interval.as_secs_f64(),
            samples: profile.samples,
            sampled_seconds: profile.elapsed.as_secs_f64(),
            sampling_seconds: profile.sampling.as_secs_f64(),
            fetches_unseen: profile.fetches_unseen(),
            frames: profile.frames,
            page_bytes: profile.page_bytes,
            regions: profile.regions.iter().map(RegionReport::new).collect(),
            advice,
            run,
        }
    }

    fn table(&self) -> Table {
        let headings = [
            "region",
            "placement",
            "pages",
            "fetched",
            "fetches",
            "evictions",
            "in frames",
            "in use",
            "written",
            "in place",
        ];
        let percent = |part: u64, of: u64| format!("{:.1} %", part as f64 / of.max(1) as f64 * 100.0);
        let rows = self.regions.iter().map(|region| {
            let (pages, total) = (region.pages, &region.total);
            [
                region.name.clone(),
                region.placement.to_owned(),
                pages.to_string(),
                region.pages_fetched.to_string(),
                total.fetches.to_string(),
                total.evictions.to_string(),
                percent(total.resident, pages * u64::from(self.samples)),
                percent(total.referenced, total.resident),
                percent(total.dirty, total.resident),
                ByteSize::b(total.bytes_in_place).display().iec().to_string(),
            ]
        });
        table(headings, 2..10, rows)
    }
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.run)?;
        writeln!(
            out,
            "profile    {:.3} s with it, {:.3} and {:.3} s before and after without it ({:+.1} % of the faster, single runs); {} samples at \
             rests of {} ms, {:.3} s of work",
            self.seconds_with,
            self.seconds_without[0],
            self.seconds_without[1],
            self.overhead * 100.0,
            self.samples,
            self.interval_seconds * 1e3,
            self.sampling_seconds
        )?;
        writeln!(out, "{}", self.table())?;
        writeln!(
            out,
            "counted: fetches, evictions. sampled: in frames (share of pages and samples), in use and written (of those in frames), in place"
        )?;
        if self.fetches_unseen > 0 {
            writeln!(out, "fetches that belong to no page above: {}", self.fetches_unseen)?;
        }
        match &self.advice {
            None => write!(
                out,
                "advice     none: {} samples are too few; a longer run or a shorter --interval gives more",
                self.samples
            ),
            Some(none) if none.is_empty() => write!(out, "advice     none: no rule applies"),
            Some(all) => {
                let lines = all
                    .iter()
                    .map(|told| format!("advice     {}: {}, since {}", told.region, told.advice, told.because));
                write!(out, "{}", lines.collect::<Vec<_>>().join("\n"))
            }
        }
    }
}
