//! Events as slices and instants on the tracks of one GPU.

use std::{collections::HashMap, time::Instant};

use gpuvm_layouts as layout;
use layout::TimelineEvent;
use serde_json::json;

use super::sheet::{Event, Sheet};

/// Tracks by their numbers. Each kind has this many rows, side by side where events overlap.
const LAUNCHES: u64 = 1_000;
const HOST: u64 = 2_000;
const EVICTIONS: u64 = 3_000;
const WRITE_BACKS: u64 = 4_000;
const PREFETCHES: u64 = 5_000;
const DOORBELLS: u64 = 6_000;
const FAULTS: u64 = 10_000;
/// Rows of a kind; of the faults of a multiprocessor.
const ROWS: u64 = 1_000;
/// Ends of requests that are awaited at most; the others are drawn as instants.
const AWAITED: usize = 1 << 16;
/// The bits of a page's id that name the page alone.
const PAGE_BITS: u64 = layout::REGION_PAGES_MAX - 1;

/// What was drawn of single events.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Drawn {
    pub faults: u64,
    pub evictions: u64,
    pub write_backs: u64,
    pub prefetches: u64,
    pub doorbells: u64,
}

/// The tracks of one GPU.
pub(super) struct Drawing {
    pub process: u32,
    pub title: String,
    /// What to add to the GPU's timer for the sheet's nanoseconds.
    pub offset_ns: i128,
    pub ticks_per_us: f64,
    pub drawn: Drawn,
    regions: HashMap<u32, String>,
    /// Each track that was named, with the end of its last slice.
    tracks: HashMap<u64, u64>,
    /// When requests were posted, by whether they write, page and frame.
    posted: HashMap<(bool, u64, u32), u64>,
    /// Streams, by the addresses of what stands for them.
    streams: Vec<usize>,
}

/// A slice of a track, in nanoseconds of the sheet.
#[derive(Clone, Copy)]
struct Slice {
    track: u64,
    start: u64,
    end: u64,
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Drawing {
    pub fn new(process: u32, title: String, ticks_per_us: f64) -> Self {
        Self {
            process,
            title,
            offset_ns: 0,
            ticks_per_us,
            drawn: Drawn::default(),
            regions: HashMap::new(),
            tracks: HashMap::new(),
            posted: HashMap::new(),
            streams: Vec::new(),
        }
    }

    pub fn name_region(&mut self, region: u32, name: &str) {
        self.regions.insert(region, name.to_owned());
    }

    /// Whether anything was drawn.
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    fn ns(&self, ticks: u32) -> u64 {
        (f64::from(ticks) * 1e3 / self.ticks_per_us) as u64
    }

    fn at(&self, gpu_ns: u64) -> u64 {
        u64::try_from(i128::from(gpu_ns) + self.offset_ns).unwrap_or(0)
    }

    /// Says what a track is called before its first event.
    fn name(&mut self, sheet: &Sheet, track: u64, name: impl FnOnce() -> String) {
        if self.tracks.contains_key(&track) {
            return;
        }
        let meta = |what: &str, tid: u64, args| {
            sheet.add(&Event {
                name: what,
                ph: "M",
                pid: self.process,
                tid,
                args: Some(args),
                ..Event::default()
            });
        };
        if self.tracks.is_empty() {
            meta("process_name", 0, json!({"name": self.title}));
            meta("process_sort_index", 0, json!({"sort_index": self.process}));
        }
        meta("thread_name", track, json!({"name": name()}));
        meta("thread_sort_index", track, json!({"sort_index": track}));
        self.tracks.insert(track, 0);
    }

    fn slice(&self, sheet: &Sheet, name: &str, at: Slice, args: Option<serde_json::Value>) {
        sheet.add(&Event {
            name,
            ph: "X",
            pid: self.process,
            tid: at.track,
            ts: Some(us(at.start)),
            dur: Some(us(at.end.saturating_sub(at.start))),
            args,
            ..Event::default()
        });
    }

    fn instant(&mut self, sheet: &Sheet, name: &str, (track, title): (u64, &str), at: u64, args: serde_json::Value) {
        self.name(sheet, track, || title.to_owned());
        sheet.add(&Event {
            name,
            ph: "i",
            pid: self.process,
            tid: track,
            ts: Some(us(at)),
            s: Some("t"),
            args: Some(args),
            ..Event::default()
        });
    }

    /// The first row of `tracks` that is free from `start` on, taken until `end`.
    fn row(&mut self, sheet: &Sheet, first: u64, title: &str, start: u64, end: u64) -> Slice {
        let free = |track: &u64| self.tracks.get(track).is_none_or(|ends| *ends <= start);
        let track = (first..first + ROWS).find(free).unwrap_or(first + ROWS - 1);
        self.name(sheet, track, || match track - first {
            0 => title.to_owned(),
            row => format!("{title} ({row})"),
        });
        self.tracks.insert(track, end);
        Slice { track, start, end }
    }

    /// A launch, from when it was enqueued; `took_ns` is what the GPU says that it took.
    pub fn launch(&mut self, sheet: &Sheet, stream: usize, label: &str, enqueued: Instant, took_ns: Option<u64>) {
        let (enqueued, end) = (sheet.ns_at(enqueued), sheet.ns_at(Instant::now()));
        let place = self.streams.iter().position(|known| *known == stream);
        let place = place.unwrap_or_else(|| {
            self.streams.push(stream);
            self.streams.len() - 1
        });
        let track = LAUNCHES + (place as u64).min(ROWS - 1);
        self.name(sheet, track, || format!("launches, stream {place}"));
        // Launches of a stream run one after the other; what the host learns late may look otherwise.
        let earliest = enqueued.max(self.tracks.get(&track).copied().unwrap_or(0)).min(end);
        let start = took_ns.map_or(earliest, |took| end.saturating_sub(took).max(earliest));
        self.tracks.insert(track, end);
        let args = json!({"enqueued_us": us(enqueued), "ended_well": took_ns.is_some()});
        self.slice(sheet, label, Slice { track, start, end }, Some(args));
    }

    /// What a thread of the host did from `began` until now.
    pub fn host(&mut self, sheet: &Sheet, label: &str, thread: (u64, &str), began: Instant) {
        let (start, end) = (sheet.ns_at(began), sheet.ns_at(Instant::now()));
        let track = HOST + thread.0.min(ROWS - 1);
        self.name(sheet, track, || format!("host, {}", thread.1));
        self.slice(sheet, label, Slice { track, start, end }, None);
    }

    /// What lanes noted.
    pub fn events(&mut self, sheet: &Sheet, mut events: Vec<TimelineEvent>) {
        // Rows are taken in the order of the beginnings.
        events.sort_by_key(|event| event.at_ns.saturating_sub(self.ns(event.took)));
        for event in events {
            let at = self.at(event.at_ns);
            match event.kind {
                layout::TIMELINE_FAULT => self.fault(sheet, &event, at),
                layout::TIMELINE_EVICTION => {
                    self.drawn.evictions += 1;
                    let args = self.page_args(&event);
                    self.instant(sheet, "eviction", (EVICTIONS, "evictions"), at, args);
                }
                layout::TIMELINE_DOORBELL => {
                    self.drawn.doorbells += 1;
                    let args = json!({"queue": event.queue, "up_to": event.page});
                    self.instant(sheet, "doorbell", (DOORBELLS, "doorbells"), at, args);
                }
                layout::TIMELINE_WRITE_POSTED | layout::TIMELINE_PREFETCH_POSTED => {
                    if self.posted.len() >= AWAITED {
                        // Of fetches that failed, and of requests whose ends were dropped.
                        self.posted.clear();
                    }
                    let writes = event.kind == layout::TIMELINE_WRITE_POSTED;
                    self.posted.insert((writes, page_of(&event), event.frame), at);
                }
                layout::TIMELINE_WRITTEN => {
                    self.drawn.write_backs += 1;
                    self.request(sheet, &event, at, "write-back", (WRITE_BACKS, "write-backs"));
                }
                layout::TIMELINE_PREFETCHED => {
                    self.drawn.prefetches += 1;
                    self.request(sheet, &event, at, "prefetch", (PREFETCHES, "prefetches"));
                }
                _ => {}
            }
        }
    }

    fn page_args(&self, event: &TimelineEvent) -> serde_json::Value {
        let (region, page) = (region_of(event), event.page & PAGE_BITS);
        let region = self.regions.get(&region).map_or("", String::as_str);
        json!({"region": region, "page": page, "frame": event.frame})
    }

    /// A request that has ended, from when it was posted where that is known.
    fn request(&mut self, sheet: &Sheet, event: &TimelineEvent, end: u64, name: &str, (first, title): (u64, &str)) {
        let key = (first == WRITE_BACKS, page_of(event), event.frame);
        let posted = self.posted.remove(&key).filter(|posted| *posted <= end);
        let by_lane = (event.took > 0).then(|| end.saturating_sub(self.ns(event.took)));
        let start = by_lane.or(posted).unwrap_or(end);
        let args = self.page_args(event);
        let slice = self.row(sheet, first, title, start, end);
        self.slice(sheet, name, slice, Some(args));
    }

    /// A demand fetch, with its parts inside.
    fn fault(&mut self, sheet: &Sheet, event: &TimelineEvent, end: u64) {
        self.drawn.faults += 1;
        let start = end.saturating_sub(self.ns(event.took));
        // Each no earlier than the one before, whatever was rounded.
        let mut last = start;
        let [claimed, posted, arrived] = [event.claimed, event.posted, event.arrived].map(|ticks| {
            last = (start + self.ns(ticks)).clamp(last, end);
            last
        });
        let (multiprocessor, warp) = (u64::from(event.place >> 8), event.place & 0xff);
        let mut args = self.page_args(event);
        args["multiprocessor"] = multiprocessor.into();
        args["warp"] = warp.into();
        args["lanes"] = event.lanes.into();
        args["came"] = (event.well != 0).into();
        args["claimed_us"] = us(claimed - start).into();
        args["posted_us"] = us(posted - start).into();
        args["arrived_us"] = us(arrived - start).into();
        if event.queue != u32::MAX {
            args["queue"] = event.queue.into();
        }
        let title = format!("faults, multiprocessor {multiprocessor}");
        let whole = self.row(sheet, FAULTS + multiprocessor * ROWS, &title, start, end);
        self.slice(sheet, "fault", whole, Some(args));
        for (name, start, end) in [
            ("claim", start, claimed),
            ("post", claimed, posted),
            ("fetch", posted, arrived),
            ("publish", arrived, end),
        ] {
            if end > start {
                self.slice(sheet, name, Slice { start, end, ..whole }, None);
            }
        }
    }

    /// What was drawn and what was lost, in the place where the process's name is read, and as an event.
    pub fn finish(&mut self, sheet: &Sheet, one_in: u32, dropped: u64, uncertain_ns: u64) {
        let Drawn {
            faults,
            evictions,
            write_backs,
            prefetches,
            doorbells,
        } = self.drawn;
        let omitted = sheet.omitted();
        let meta = |name: &str, args| {
            sheet.add(&Event {
                name,
                ph: "M",
                pid: self.process,
                args: Some(args),
                ..Event::default()
            });
        };
        let mut labels = format!("one of {one_in} events");
        if dropped > 0 {
            labels.push_str(&format!(", {dropped} dropped"));
        }
        if omitted > 0 {
            labels.push_str(&format!(", {omitted} beyond the file's limit"));
        }
        meta("process_labels", json!({"labels": labels}));
        meta(
            "gpuvm_timeline_end",
            json!({
                "one_in": one_in, "faults": faults, "evictions": evictions, "write_backs": write_backs, "prefetches": prefetches,
                "doorbells": doorbells, "dropped": dropped, "omitted": omitted, "clock_uncertain_us": us(uncertain_ns),
            }),
        );
    }
}

fn region_of(event: &TimelineEvent) -> u32 {
    (event.page >> layout::PAGE_ID_REGION_SHIFT) as u32 & (layout::REGIONS_MAX - 1)
}

/// The page and its region, whichever of its homes was asked.
fn page_of(event: &TimelineEvent) -> u64 {
    layout::page_id(region_of(event), event.page & PAGE_BITS)
}
