//! Many seeds on all cores, in processes of their own: a seed that crashes or hangs is that seed's failure.
//!
//! A campaign starts workers, each a process that answers `WORKLOAD SEED` lines on its standard input with one line of JSON a
//! run. Workers live over many seeds, so kernels are compiled once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

use crate::run::{self, Failure, Options, Passed};
use crate::watch::{Looks, Watcher};
use crate::workload::Workload;

/// Lines of a worker's standard error that are kept for a crash.
const STDERR_LINES: usize = 12;
/// Seeds of a workload from which on what they never showed is a finding.
const SEEDS_TELLING: u64 = 40;

/// Between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a run that broke a rule may go on.
const BROKEN_MAX: Duration = Duration::from_secs(2);
/// Longest that a worker may compile.
const PREPARE_LIMIT: Duration = Duration::from_secs(900);
/// Begins a line that asks a worker to compile what a workload needs.
const PREPARE: &str = "prepare ";
/// Its answer.
const READY: &str = "ready";

/// What a campaign runs.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The program to start for a worker: it must call [`serve`].
    pub program: PathBuf,
    /// What it is called, its first argument.
    pub name: String,
    /// Arguments of the worker.
    pub arguments: Vec<String>,
    /// Seeds.
    pub seeds: Range<u64>,
    /// Workloads, each with every seed.
    pub workloads: Vec<Workload>,
    /// Workers at one time.
    pub jobs: usize,
    /// Longest real time of one run.
    pub limit: Duration,
    /// Go on after a failure.
    pub keep_going: bool,
    /// Set by somebody else to end it before its end: runs under way are broken off.
    pub stop: Arc<AtomicBool>,
}

/// A campaign that could not be run.
#[derive(Debug, Error)]
pub enum CampaignError {
    /// A worker process did not start.
    #[error("cannot start a worker process ({program})")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// More runs than can be counted.
    #[error("{seeds} seeds of {workloads} workloads are more runs than can be counted; give fewer --seeds")]
    TooMany {
        /// Seeds.
        seeds: u64,
        /// Workloads, each with every seed.
        workloads: u64,
    },
}

/// One run's end, as a worker tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ran {
    /// The workload.
    pub workload: Workload,
    /// The seed.
    pub seed: u64,
    /// How it went.
    pub outcome: Result<Passed, Failure>,
}

/// What a workload came to over its seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Total {
    /// The workload.
    pub workload: Workload,
    /// Seeds that passed.
    pub passed: u64,
    /// Seeds that failed.
    pub failed: u64,
    /// How often each check looked.
    pub looks: Looks,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// Pages fetched.
    pub fetched: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Pages written home.
    pub written_back: u64,
    /// Histories of words found linearisable.
    pub linear: u64,
    /// Histories with too many states to tell.
    pub undecided: u64,
    /// Faults that bit, by name.
    pub faults: BTreeMap<String, u64>,
    /// Homes that were taken away on purpose.
    pub losses: u64,
    /// Of them while a kernel ran.
    pub within: u64,
    /// Homes that returned.
    pub returns: u64,
    /// Stale copies that were written again.
    pub mended: u64,
    /// Bits that were flipped on purpose.
    pub flips: u64,
    /// Pages that did not have their checksum.
    pub corrupt: u64,
    /// Runs that faults ended with an error.
    pub errors: u64,
    /// Real time of its runs on one core, seconds.
    pub seconds: f64,
}

/// What a campaign came to.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Seeds that were asked for.
    pub seeds: Range<u64>,
    /// Seeds from the first on that every workload has run with.
    pub whole: u64,
    /// Runs that were asked for.
    pub asked: u64,
    /// Runs that ended.
    pub ran: u64,
    /// It was ended before its end.
    pub stopped: bool,
    /// Why it ended before its end by itself; what had run until then counts.
    #[serde(serialize_with = "in_words")]
    pub error: Option<CampaignError>,
    /// Real time, seconds.
    pub seconds: f64,
    /// Runs a second and worker.
    pub rate: f64,
    /// Workers.
    pub jobs: usize,
    /// By workload.
    pub workloads: Vec<Total>,
    /// What never happened over so many seeds that it should have: checks that saw nothing, requests that never ran beside each other.
    pub unseen: Vec<String>,
    /// The failures, first seed first.
    pub failures: Vec<Ran>,
}

/// An error as its sentence.
fn in_words<S: Serializer>(error: &Option<CampaignError>, to: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(to)
}

/// How far a campaign is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Runs that were asked for.
    pub asked: u64,
    /// Runs that ended.
    pub ran: u64,
    /// Of them failed.
    pub failed: u64,
    /// Since the begin.
    pub elapsed: Duration,
}

/// Answers runs on standard input until it ends: the loop of a worker.
///
/// # Errors
/// Its standard input or output are gone.
pub fn serve(options: &Options) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        if let Some(name) = line.strip_prefix(PREPARE) {
            let ready = match name.parse::<Workload>() {
                Ok(workload) => run::prepare(workload, options)
                    .err()
                    .unwrap_or_else(|| READY.to_owned()),
                Err(unknown) => unknown.to_string(),
            };
            // One line, whatever a compiler says.
            answer(&ready.replace('\n', " | "))?;
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let asked = words
            .next()
            .and_then(|name| name.parse::<Workload>().ok())
            .zip(words.next().and_then(|seed| seed.parse::<u64>().ok()));
        let Some((workload, seed)) = asked else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a worker was asked for `{line}`"),
            ));
        };
        let (outcome, ended) = run_or_break_off(workload, seed, options)?;
        let ran = Ran {
            workload,
            seed,
            outcome,
        };
        answer(&serde_json::to_string(&ran)?)?;
        if !ended {
            // The run goes on in its thread, on a memory that is broken: the process ends with it.
            std::process::exit(0);
        }
    }
    Ok(())
}

/// Runs a seed; when a rule was broken and the run does not end, it is left behind. Whether it has ended.
fn run_or_break_off(workload: Workload, seed: u64, options: &Options) -> io::Result<(Result<Passed, Failure>, bool)> {
    let watcher = Arc::new(Watcher::new(options.all_events));
    let (tell, end) = channel();
    let (watched, options) = (Arc::clone(&watcher), options.clone());
    let running = std::thread::Builder::new().name("run".to_owned()).spawn(move || {
        // Nobody listens any more when the run was left behind.
        let _ = tell.send(run::run_watched(workload, seed, &options, watched).outcome);
    })?;
    let mut broken_since = None;
    loop {
        match end.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => {
                // It has sent its last word: it cannot panic any more.
                let _ = running.join();
                return Ok((outcome, true));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the run panicked; its message is above"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(failure) = run::broken_so_far(&watcher) else {
            continue;
        };
        if broken_since.get_or_insert_with(Instant::now).elapsed() > BROKEN_MAX {
            return Ok((Err(failure), false));
        }
    }
}

fn answer(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Why a worker gave no answer.
enum Lost {
    /// It was given up.
    Stopped,
    /// The run's failure.
    Failed(String),
}

/// A worker process.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    /// Workloads whose kernels it has compiled.
    prepared: Vec<Workload>,
}

impl Worker {
    fn start(campaign: &Campaign) -> Result<Self, CampaignError> {
        let refused = |source| CampaignError::Start {
            program: campaign.program.display().to_string(),
            source,
        };
        let mut child = Command::new(&campaign.program)
            .arg0(&campaign.name)
            .args(&campaign.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(refused)?;
        let (tell, lines) = channel();
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(std::thread::spawn(move || {
                let mut lines = BufReader::new(out).lines();
                while let Some(Ok(line)) = lines.next() {
                    if tell.send(line).is_err() {
                        break;
                    }
                }
            }));
        }
        if let Some(out) = child.stderr.take() {
            let kept = Arc::clone(&errors);
            readers.push(std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let mut kept = lock(&kept);
                    if kept.len() == STDERR_LINES {
                        kept.pop_front();
                    }
                    kept.push_back(line);
                }
            }));
        }
        Ok(Self {
            input: child.stdin.take(),
            child,
            lines,
            errors,
            readers,
            prepared: Vec::new(),
        })
    }

    /// Runs one seed. What it ends with when the worker is lost.
    fn run(&mut self, workload: Workload, seed: u64, campaign: &Campaign) -> Result<Ran, Lost> {
        if !self.prepared.contains(&workload) {
            let ready = self.ask(&format!("{PREPARE}{workload}"), PREPARE_LIMIT, &campaign.stop)?;
            if ready != READY {
                return Err(Lost::Failed(ready));
            }
            self.prepared.push(workload);
        }
        let line = self.ask(&format!("{workload} {seed}"), campaign.limit, &campaign.stop)?;
        serde_json::from_str(&line).map_err(|error| Lost::Failed(format!("its worker said `{line}`: {error}")))
    }

    /// Sends a line and waits for the answer, unless `stop` is set meanwhile.
    fn ask(&mut self, line: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Lost> {
        let asked = self
            .input
            .as_mut()
            .is_some_and(|input| writeln!(input, "{line}").and_then(|()| input.flush()).is_ok());
        if !asked {
            return Err(Lost::Failed(self.crashed()));
        }
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(LOOK_EVERY.min(limit)) {
                Ok(line) => return Ok(line),
                // Relaxed: a flag, with which nothing else is told.
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Lost::Stopped),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Lost::Failed(format!("it did not end within {} s", limit.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Lost::Failed(self.crashed())),
            }
        }
    }

    fn crashed(&mut self) -> String {
        self.input = None;
        let status = self
            .child
            .wait()
            .map_or_else(|error| error.to_string(), |status: ExitStatus| status.to_string());
        for reader in self.readers.drain(..) {
            // A reader that panicked has nothing more to say.
            let _ = reader.join();
        }
        let said: Vec<String> = lock(&self.errors).iter().cloned().collect();
        format!("its process ended: {status}; it said: {}", said.join(" | "))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when its input does, unless it hangs in a run.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its readers end with the last who holds the pipes, which may be a compiler of its that ends later.
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    next: u64,
    ran: u64,
    /// Runs that have not ended, by number; those from `next` on are not begun.
    under_way: BTreeSet<u64>,
    stop: bool,
    totals: Vec<Total>,
    failures: Vec<Ran>,
    error: Option<CampaignError>,
}

/// Runs the campaign; `watch` is told from time to time how far it is. Ends at the first failing seed unless told otherwise,
/// and where a worker does not start, which [`Summary::error`] says.
///
/// # Errors
/// [`CampaignError::TooMany`].
pub fn run(campaign: &Campaign, every: Duration, mut watch: impl FnMut(Progress)) -> Result<Summary, CampaignError> {
    let begun = Instant::now();
    let kinds = campaign.workloads.len() as u64;
    let seeds = campaign.seeds.end.saturating_sub(campaign.seeds.start);
    let asked = seeds.checked_mul(kinds).ok_or(CampaignError::TooMany {
        seeds,
        workloads: kinds,
    })?;
    let shared = Mutex::new(Shared {
        next: 0,
        ran: 0,
        under_way: BTreeSet::new(),
        stop: false,
        totals: campaign
            .workloads
            .iter()
            .map(|&workload| Total::new(workload))
            .collect(),
        failures: Vec::new(),
        error: None,
    });
    let jobs = campaign
        .jobs
        .clamp(1, usize::try_from(asked.max(1)).unwrap_or(usize::MAX));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|_| scope.spawn(|| work(campaign, asked, &shared)))
            .collect();
        let mut told = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() >= every {
                told = Instant::now();
                let now = lock(&shared);
                let progress = Progress {
                    asked,
                    ran: now.ran,
                    failed: now.failures.len() as u64,
                    elapsed: begun.elapsed(),
                };
                drop(now);
                watch(progress);
            }
        }
    });
    let mut done = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.failures.sort_by_key(|ran| (ran.seed, ran.workload.name()));
    let seconds = begun.elapsed().as_secs_f64();
    let first_left = done.under_way.first().copied().unwrap_or(done.next);
    Ok(Summary {
        seeds: campaign.seeds.clone(),
        whole: first_left / kinds.max(1),
        asked,
        ran: done.ran,
        // Relaxed: as in `ask`.
        stopped: done.ran < asked && campaign.stop.load(Ordering::Relaxed),
        error: done.error,
        seconds,
        rate: done.ran as f64 / seconds.max(1e-9) / jobs as f64,
        jobs,
        unseen: done.totals.iter().filter_map(Total::unseen).collect(),
        workloads: done.totals,
        failures: done.failures,
    })
}

fn work(campaign: &Campaign, asked: u64, shared: &Mutex<Shared>) {
    let kinds = campaign.workloads.len() as u64;
    let mut worker = None;
    loop {
        let number = {
            let mut shared = lock(shared);
            // Relaxed: as in `ask`.
            if shared.stop || shared.next >= asked || campaign.stop.load(Ordering::Relaxed) {
                return;
            }
            let number = shared.next;
            shared.next += 1;
            shared.under_way.insert(number);
            number
        };
        let (seed, place) = (campaign.seeds.start + number / kinds, (number % kinds) as usize);
        let workload = campaign.workloads[place];
        let held = match worker.take().map_or_else(|| Worker::start(campaign), Ok) {
            Ok(started) => worker.insert(started),
            Err(error) => {
                let mut shared = lock(shared);
                shared.error.get_or_insert(error);
                shared.stop = true;
                return;
            }
        };
        let begun = Instant::now();
        let ran = match held.run(workload, seed, campaign) {
            Ok(ran) => ran,
            Err(Lost::Stopped) => return,
            // What ended this process's work has ended the worker's compiler too, or the worker. Relaxed: as in `ask`.
            Err(Lost::Failed(_)) if campaign.stop.load(Ordering::Relaxed) => return,
            Err(Lost::Failed(what)) => {
                worker = None;
                Ran {
                    workload,
                    seed,
                    outcome: Err(Failure {
                        what,
                        further: Vec::new(),
                        trace: Vec::new(),
                    }),
                }
            }
        };
        let mut shared = lock(shared);
        shared.ran += 1;
        shared.under_way.remove(&number);
        shared.totals[place].add(&ran, begun.elapsed());
        if ran.outcome.is_err() {
            // Whatever went wrong there must not meet the next seed.
            worker = None;
            shared.failures.push(ran);
            shared.stop |= !campaign.keep_going;
        }
    }
}

impl Total {
    fn new(workload: Workload) -> Self {
        Self {
            workload,
            passed: 0,
            failed: 0,
            looks: Looks::default(),
            virtual_ns: 0,
            fetched: 0,
            evicted: 0,
            written_back: 0,
            linear: 0,
            undecided: 0,
            faults: BTreeMap::new(),
            losses: 0,
            within: 0,
            returns: 0,
            mended: 0,
            flips: 0,
            corrupt: 0,
            errors: 0,
            seconds: 0.0,
        }
    }

    /// What these seeds should have shown and did not.
    fn unseen(&self) -> Option<String> {
        if self.passed < SEEDS_TELLING {
            return None;
        }
        let queued = !self.workload.is_direct();
        let checked = self.workload == Workload::Checksums;
        let writes = self.workload != Workload::Prefetch;
        let (looks, loses) = (&self.looks, self.workload.loses_homes());
        let never = [
            (true, looks.words, "no page's word ever changed"),
            (
                true,
                looks.published,
                "no frame was ever compared with its home when it was published",
            ),
            (
                true,
                looks.evicted,
                "no frame was ever compared with its home when its page was evicted",
            ),
            (
                writes,
                looks.cleaned,
                "no frame was ever compared with its home after a write-back",
            ),
            (true, looks.frames, "no frame ever went through the pool"),
            (queued, looks.requests, "no request was ever written"),
            (queued, looks.indexes, "no ring's index ever moved"),
            (
                queued,
                looks.in_flight_max / 2,
                "no queue pair ever had two READs under way",
            ),
            (
                self.workload == Workload::LargePages,
                looks.filled,
                "no page was ever filled by chunks",
            ),
            (loses || checked, looks.copies, "no second copy was ever compared"),
            (
                loses || checked,
                looks.agreed,
                "no page's copies were ever compared with each other at the end",
            ),
            (loses, self.within, "no home was taken away while a kernel ran"),
            (loses, self.returns, "no home returned"),
            (loses, self.mended, "no stale copy was ever written again"),
            (checked, looks.checksums, "no frame was ever compared with its checksum"),
            (checked, self.flips, "no bit was flipped"),
            (checked, self.corrupt, "no flipped bit was found"),
            (checked, looks.damaged, "no copy differed by a flipped bit"),
            (
                self.workload == Workload::Linear,
                self.linear,
                "no word's history was looked at",
            ),
        ];
        let (_, _, what) = never.into_iter().find(|(due, count, _)| *due && *count == 0)?;
        Some(format!("{}: in {} seeds {what}", self.workload, self.passed))
    }

    fn add(&mut self, ran: &Ran, took: Duration) {
        self.seconds += took.as_secs_f64();
        let Ok(passed) = &ran.outcome else {
            self.failed += 1;
            return;
        };
        self.passed += 1;
        self.looks.add(&passed.looks);
        self.virtual_ns += passed.virtual_ns;
        self.fetched += passed.fetched;
        self.evicted += passed.evicted;
        self.written_back += passed.written_back;
        self.linear += passed.linear.0;
        self.undecided += passed.linear.1;
        for (name, bitten) in &passed.faults {
            *self.faults.entry(name.clone()).or_insert(0) += bitten;
        }
        self.losses += passed.happened.losses;
        self.within += passed.happened.within;
        self.returns += passed.happened.returns;
        self.mended += passed.mended;
        self.flips += passed.happened.flips;
        self.corrupt += passed.corrupt;
        self.errors += u64::from(passed.error.is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(seeds: Range<u64>) -> Campaign {
        Campaign {
            program: "/dev/null/no-such-program".into(),
            name: "worker".to_owned(),
            arguments: Vec::new(),
            seeds,
            workloads: vec![Workload::Counters, Workload::Linear],
            jobs: 2,
            limit: Duration::from_secs(1),
            keep_going: false,
            stop: Arc::default(),
        }
    }

    #[test]
    fn a_worker_that_does_not_start_leaves_the_summary() {
        let summary = run(&campaign(0..3), Duration::from_secs(1), |_| {}).expect("a summary");
        assert_eq!((summary.asked, summary.ran, summary.stopped), (6, 0, false));
        assert!(matches!(summary.error, Some(CampaignError::Start { .. })));
        let told = serde_json::to_value(&summary).expect("JSON");
        let error = told["error"].as_str().expect("a sentence");
        assert!(error.starts_with("cannot start a worker"), "{error}");
    }

    #[test]
    fn runs_that_cannot_be_counted_are_refused() {
        let ended = run(&campaign(0..1 << 63), Duration::from_secs(1), |_| {});
        assert!(matches!(ended, Err(CampaignError::TooMany { workloads: 2, .. })));
    }
}
