//! Events for people: the last ones before a failure, and a timeline that the Perfetto viewer opens.

use std::collections::{BTreeMap, HashMap};

use gpuvm_layouts as layout;
use serde_json::{Value, json};

use crate::watch::{Event, Finding, What, Who, is_same_page, page_name, region_number};
use crate::words::{self, Transition};

/// Lines of a failure's trace.
const LINES: usize = 60;

/// Somebody in words.
pub fn name(who: Who) -> String {
    match who {
        Who::Lane { launch, block, thread } => {
            format!(
                "launch {launch} block {block} warp {} lane {}",
                thread / 32,
                thread % 32
            )
        }
        Who::Nic(number) => format!("NIC engine {number}"),
        Who::Host => "host".to_owned(),
    }
}

fn request_name(kind: u32) -> &'static str {
    match kind {
        layout::REQUEST_FETCH => "READ",
        layout::REQUEST_CLEAN => "WRITE (clean)",
        layout::REQUEST_FLUSH => "WRITE (flush)",
        _ => "NOP",
    }
}

fn in_words(what: &What) -> String {
    const PHASES: [&str; 4] = ["slot free", "written", "completion claimed", "done"];
    match *what {
        What::Word { page_id, old, new, .. } => {
            format!(
                "{}: {} -> {}",
                page_name(page_id),
                words::describe(old),
                words::describe(new)
            )
        }
        What::Given { frame } => format!("frame {frame}: given to the pool"),
        What::Taken { frame } => format!("frame {frame}: taken from the pool"),
        What::SlotGiven { slot } => format!("slot {slot} at a neighbour: free"),
        What::SlotTaken { slot } => format!("slot {slot} at a neighbour: taken"),
        What::TakenBack { chunk, turn } => {
            const TURNS: [&str; 4] = ["lent", "the loan ends", "the lender uses it", "written for too long"];
            format!("chunk {chunk} at a neighbour: {}", TURNS[turn as usize & 3])
        }
        What::Request {
            queue,
            index,
            phase,
            kind,
            page_id,
            frame,
        } => format!(
            "queue pair {queue}: request {index}, {} of {}, frame {frame}: {}",
            request_name(kind),
            page_name(page_id),
            PHASES[phase as usize & 3]
        ),
        What::Reserved { queue, index } => format!("queue pair {queue}: reserved up to {index}"),
        What::Written { queue, index } => format!("queue pair {queue}: handed over up to {index}"),
        What::Posted { queue, index } => format!("queue pair {queue}: doorbell up to {index}"),
        What::Failed { queue, code } => format!("queue pair {queue}: failed is {code:#x}"),
    }
}

/// Whether the event is about what the finding names.
fn concerns(finding: &Finding, what: &What) -> bool {
    let page = |page_id: u64| finding.page_id.is_some_and(|found| is_same_page(found, page_id));
    let in_frame = |frame: u32| finding.frame == Some(frame);
    match *what {
        What::Word { page_id, old, new, .. } => {
            let held = [old, new]
                .into_iter()
                .any(|word| words::is_resident(word) && in_frame(words::frame(word)));
            page(page_id) || held
        }
        What::Given { frame } | What::Taken { frame } => in_frame(frame),
        What::Request {
            queue, page_id, frame, ..
        } => page(page_id) || in_frame(frame) || finding.queue == Some(queue),
        What::Reserved { queue, .. } | What::Written { queue, .. } | What::Posted { queue, .. } => {
            finding.queue == Some(queue)
        }
        What::SlotGiven { .. } | What::SlotTaken { .. } => finding.page_id.is_some(),
        What::Failed { .. } | What::TakenBack { .. } => true,
    }
}

/// The last events of the page, frame and queue pair that a finding names, one a line; without a finding the last of all.
pub fn last_events(finding: Option<&Finding>, events: &[Event]) -> Vec<String> {
    let line = |event: &Event| format!("{:>10} ns  {}: {}", event.at_ns, name(event.who), in_words(&event.what));
    let told = events
        .iter()
        .filter(|event| finding.is_none_or(|f| event.at_ns <= f.at_ns && concerns(f, &event.what)));
    let mut lines: Vec<String> = told.rev().take(LINES).map(line).collect();
    lines.reverse();
    if let Some(finding) = finding {
        lines.push(format!(
            "{:>10} ns  {}: {}",
            finding.at_ns,
            name(finding.who),
            finding.what
        ));
    }
    lines
}

/// Where a timeline's tracks are: one process a launch, with a track a warp; one for pages, one for queue pairs.
const PAGES: u64 = 1;
const QUEUES: u64 = 2;
const LAUNCHES: u64 = 10;

/// Events in the JSON format of Chrome's tracing, which the Perfetto viewer opens. Faults of pages, write-backs and requests are
/// slices; evictions, doorbells and failures are marks.
pub fn timeline(title: &str, events: &[Event], failure: Option<&str>) -> Value {
    let mut out = Timeline::default();
    for event in events {
        out.add(event);
    }
    let end = events.last().map_or(0, |event| event.at_ns);
    out.finish(end);
    if let Some(failure) = failure {
        out.mark(PAGES, 0, end, failure, "g");
    }
    json!({
        "displayTimeUnit": "ns",
        "otherData": { "title": title, "clock": "virtual nanoseconds of the simulated GPU" },
        "traceEvents": out.all,
    })
}

#[derive(Default)]
struct Timeline {
    all: Vec<Value>,
    /// Pages that are being fetched, written back, resident: begin and name, by track and state.
    open: BTreeMap<(u64, u64, &'static str), (u64, String)>,
    tracks: HashMap<(u64, u64), ()>,
}

impl Timeline {
    fn track(&mut self, process: u64, thread: u64, names: impl FnOnce() -> (String, String)) {
        if self.tracks.insert((process, thread), ()).is_some() {
            return;
        }
        let (of_process, of_thread) = names();
        for (what, name) in [("process_name", of_process), ("thread_name", of_thread)] {
            self.all.push(json!({
                "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name },
            }));
        }
    }

    /// The track of its actor.
    fn track_of(&mut self, who: Who) -> (u64, u64) {
        let (process, thread) = match who {
            Who::Lane { launch, block, thread } => (
                LAUNCHES + u64::from(launch),
                1 + u64::from(block) * 64 + u64::from(thread / 32),
            ),
            Who::Nic(number) => (QUEUES, 10_000 + u64::from(number)),
            Who::Host => (LAUNCHES - 1, 1),
        };
        self.track(process, thread, || match who {
            Who::Lane { launch, block, thread } => (
                format!("launch {launch}"),
                format!("block {block} warp {}", thread / 32),
            ),
            Who::Nic(number) => ("NIC and queue pairs".into(), format!("NIC engine {number}")),
            Who::Host => ("host".into(), "host".into()),
        });
        (process, thread)
    }

    fn mark(&mut self, process: u64, thread: u64, at_ns: u64, name: &str, scope: &str) {
        self.all.push(json!({
            "ph": "i", "name": name, "pid": process, "tid": thread, "ts": at_ns as f64 / 1000.0, "s": scope,
        }));
    }

    fn begin(&mut self, track: (u64, u64), kind: &'static str, at_ns: u64, name: String) {
        self.open.insert((track.0, track.1, kind), (at_ns, name));
    }

    fn end(&mut self, track: (u64, u64), kind: &'static str, at_ns: u64) {
        if let Some((begin, name)) = self.open.remove(&(track.0, track.1, kind)) {
            let micros = |ns: u64| ns as f64 / 1000.0;
            self.all.push(json!({
                "ph": "X", "name": name, "cat": kind, "pid": track.0, "tid": track.1,
                "ts": micros(begin), "dur": micros(at_ns - begin),
            }));
        }
    }

    fn finish(&mut self, end: u64) {
        for (process, thread, kind) in self.open.keys().copied().collect::<Vec<_>>() {
            self.end((process, thread), kind, end);
        }
    }

    fn page_track(&mut self, page_id: u64, kind: u64) -> (u64, u64) {
        let region = u64::from(region_number(page_id));
        let page = page_id & (layout::REGION_PAGES_MAX - 1);
        let track = (PAGES, 1 + (region * 10_000 + page) * 2 + kind);
        let what = if kind == 0 { "" } else { " write-back" };
        self.track(track.0, track.1, || {
            ("pages".into(), format!("{}{what}", page_name(page_id)))
        });
        track
    }

    fn add(&mut self, event: &Event) {
        let at = event.at_ns;
        match event.what {
            What::Word {
                page_id,
                new,
                transition,
                ..
            } => self.word(at, event.who, page_id, new, transition),
            What::Request {
                queue,
                index,
                phase,
                kind,
                page_id,
                frame,
            } => {
                let slot = index % 4096;
                let track = (QUEUES, 1 + u64::from(queue) * 5000 + slot);
                self.track(track.0, track.1, || {
                    (
                        "NIC and queue pairs".into(),
                        format!("queue pair {queue} request {slot}"),
                    )
                });
                match phase {
                    layout::RECORD_POSTED => {
                        let name = format!("{} {} frame {frame}", request_name(kind), page_name(page_id));
                        self.begin(track, "request", at, name);
                    }
                    layout::RECORD_CLAIMED => self.end(track, "request", at),
                    _ => {}
                }
            }
            What::Posted { queue, index } => {
                let (process, thread) = self.track_of(event.who);
                self.mark(
                    process,
                    thread,
                    at,
                    &format!("doorbell of queue pair {queue} up to {index}"),
                    "t",
                );
            }
            What::Failed { queue, code } => {
                let (process, thread) = self.track_of(event.who);
                let name = format!("fault: queue pair {queue} failed, {code:#x}");
                self.mark(process, thread, at, &name, "g");
            }
            What::Given { .. }
            | What::Taken { .. }
            | What::SlotGiven { .. }
            | What::SlotTaken { .. }
            | What::TakenBack { .. }
            | What::Reserved { .. }
            | What::Written { .. } => {
                let (process, thread) = self.track_of(event.who);
                self.mark(process, thread, at, &in_words(&event.what), "t");
            }
        }
    }

    fn word(&mut self, at: u64, who: Who, page_id: u64, new: u64, transition: Transition) {
        let (page, back) = (self.page_track(page_id, 0), self.page_track(page_id, 1));
        match transition {
            Transition::Claimed => {
                self.begin(page, "fault", at, format!("fault of {}", page_name(page_id)));
                let (process, thread) = self.track_of(who);
                self.begin(
                    (process, thread),
                    "fault",
                    at,
                    format!("fault of {}", page_name(page_id)),
                );
            }
            Transition::Published => {
                self.end_everywhere(page_id, at);
                self.begin(page, "resident", at, format!("in frame {}", words::frame(new)));
            }
            Transition::Failed | Transition::Reverted => self.end_everywhere(page_id, at),
            Transition::Evicted => {
                self.end(page, "resident", at);
                let (process, thread) = self.track_of(who);
                self.mark(process, thread, at, &format!("eviction of {}", page_name(page_id)), "t");
            }
            Transition::CleanBegun | Transition::SnapshotBegun => {
                self.begin(back, "write-back", at, "write-back".into())
            }
            Transition::WriteBackEnded => self.end(back, "write-back", at),
            Transition::Dirtied => self.mark(page.0, page.1, at, "dirty", "t"),
            Transition::Nothing | Transition::VictimDropped | Transition::VictimDisplaced => {}
        }
    }

    /// Ends the slices of a page's fault, on its own track and on its claimer's.
    fn end_everywhere(&mut self, page_id: u64, at: u64) {
        let name = format!("fault of {}", page_name(page_id));
        let open = self
            .open
            .iter()
            .filter(|(key, (_, open))| key.2 == "fault" && *open == name);
        for (process, thread, kind) in open.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end((process, thread), kind, at);
        }
    }
}
