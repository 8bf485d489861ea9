//! Applications, each paged and in the ways that a user would run it instead.

use std::path::Path;
use std::time::{Duration, Instant};

use gpuvm_workloads::apps::{App, AppError, Measured, Way, catalogue, measure};

use crate::apps::{machine, ordinal};
use crate::args::MemorySize;
use crate::bench::args::{AppsBenchArgs, Share};
use crate::bench::machine::{Machine, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::output::Output;

const WARM: &str = "warm ms";
const MOVED: &str = "moved MB";

/// Measures what the report that `args.out` names lacks, and writes it after each row.
pub fn measure_all(args: &AppsBenchArgs) -> Result<Report, CliError> {
    let probed = Machine::probe(&args.machine)?;
    let mut report = Report::new("apps", probed.facts(&args.machine));
    let large = probed.is_cuda();
    drop(probed);
    if let Some(earlier) = args.out.as_deref().filter(|path| path.exists()) {
        report.rows = read(earlier)?.rows;
    }
    let mut bench = Bench {
        args,
        report,
        until: Instant::now() + Duration::from_secs(args.limit),
    };
    let all = || catalogue::ALL.iter().map(|entry| entry.name.to_owned()).collect();
    let apps: Vec<String> = if args.apps.is_empty() { all() } else { args.apps.clone() };
    // All names first: a wrong one is told before anything is measured.
    let asked: Vec<_> = apps.iter().map(|asked| named(asked)).collect::<Result<_, _>>()?;
    for (entry, input) in asked {
        let name = entry.name;
        let input = input.unwrap_or(if large { entry.large } else { entry.small });
        let failed = |source| CliError::App {
            app: name.to_owned(),
            source,
        };
        if !bench.has_time(&format!("{name}:{input}")) {
            continue;
        }
        let app = entry.make(input).map_err(failed)?;
        bench.app(&*app, input)?;
    }
    Ok(bench.report)
}

/// The application that NAME or NAME:INPUT names, and its input.
fn named(asked: &str) -> Result<(&'static catalogue::Entry, Option<&str>), CliError> {
    let (name, input) = match asked.split_once(':') {
        Some((name, input)) => (name, Some(input)),
        None => (asked, None),
    };
    let unknown = || {
        let names: Vec<&str> = catalogue::ALL.iter().map(|entry| entry.name).collect();
        CliError::Options(format!(
            "there is no application `{name}`; there are {}",
            names.join(", ")
        ))
    };
    Ok((catalogue::find(name).ok_or_else(unknown)?, input))
}

struct Bench<'a> {
    args: &'a AppsBenchArgs,
    report: Report,
    /// No row begins later.
    until: Instant,
}

impl Bench<'_> {
    fn has_time(&mut self, what: &str) -> bool {
        let has = Instant::now() < self.until;
        if !has {
            let reason = format!(
                "--limit {} s is over; run it again with --out to go on",
                self.args.limit
            );
            self.report.skip(what, reason);
        }
        has
    }

    fn app(&mut self, app: &dyn App, input: &str) -> Result<(), CliError> {
        for &way in &self.args.peers {
            let row = Row::new(app.name(), Unit::Milliseconds, Vec::new())
                .with("input", input)
                .with("way", way);
            self.row(app, row, way, None)?;
        }
        let args = self.args;
        let kinds = args.page_size.iter().flat_map(|&page| {
            let shares = args.frames_share.iter();
            shares.flat_map(move |&share| args.placement.iter().map(move |&how| (page, share, how)))
        });
        for (page_bytes, share, asked) in kinds {
            let way = asked.where_memory(share.0 >= 1.0);
            let row = Row::new(app.name(), Unit::Milliseconds, Vec::new())
                .with("input", input)
                .with("way", way)
                .with("page", size(page_bytes))
                .with("share", share.0);
            self.row(app, row, way, Some((page_bytes, share)))?;
        }
        Ok(())
    }

    /// Measures a row, unless it is there.
    fn row(&mut self, app: &dyn App, row: Row, way: Way, paged: Option<(u64, Share)>) -> Result<(), CliError> {
        let what = format!("{}, {}", row.name, row.parameters());
        let same = |there: &Row| there.name == row.name && there.parameters == row.parameters;
        if self.report.rows.iter().any(same) || !self.has_time(&what) {
            return Ok(());
        }
        say(&what);
        let mut runs = Vec::new();
        for _ in 0..self.args.output.repeat {
            match self.once(app, way, paged)? {
                Ok(measured) => runs.push(measured),
                Err(AppError::Way { reason, .. }) => {
                    self.report.skip(&what, reason);
                    return Ok(());
                }
                Err(source) => {
                    let app = what;
                    return Err(CliError::App { app, source });
                }
            }
        }
        let row = self.complete(row, &runs, paged);
        self.report.rows.push(row);
        self.save()
    }

    fn once(
        &self,
        app: &dyn App,
        way: Way,
        paged: Option<(u64, Share)>,
    ) -> Result<Result<Measured, AppError>, CliError> {
        // Peers need no frames.
        let (page_bytes, share) = paged.unwrap_or((4096, Share(0.0001)));
        let memory = MemorySize::Percent(share.0 * 100.0);
        match machine(&self.args.machine, app, page_bytes, memory, way) {
            Ok(started) => Ok(measure(app, &started.vm, started.way, &ordinal(&self.args.machine))),
            Err(CliError::App { source, .. }) => Ok(Err(source)),
            Err(other) => Err(other),
        }
    }

    /// The row with its figures, beside the fastest peer that is there.
    fn complete(&self, row: Row, runs: &[Measured], paged: Option<(u64, Share)>) -> Row {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let warm = Runs(runs.iter().map(|run| milliseconds(run.warm)).collect()).median();
        let page_bytes = paged.map_or(0, |(page_bytes, _)| page_bytes);
        let moved = runs.iter().map(|run| run.bytes_moved(page_bytes)).max().unwrap_or(0);
        let verified = runs.iter().map(|run| run.verified).min().unwrap_or(0);
        let cold = runs.iter().map(|run| milliseconds(run.cold)).collect();
        let mut measured = Row::new(&row.name, Unit::Milliseconds, cold).verified(verified, "values");
        measured.parameters = row.parameters;
        measured = measured.and(WARM, warm).and(MOVED, moved as f64 / 1e6);
        let Some((_, share)) = paged else { return measured };
        if let Some(raw) = self.peer(&measured, Way::Raw)
            && share == Share(1.0)
        {
            measured = measured.and("warm, of raw", raw.more[WARM] / warm);
        }
        let peers = self.args.peers.iter().filter(|way| **way != Way::Raw);
        let there = peers.filter_map(|&way| Some((way, self.peer(&measured, way)?)));
        match there.min_by(|(_, one), (_, other)| one.figure.total_cmp(&other.figure)) {
            Some((way, peer)) => measured.ceiling(&way.to_string(), &peer.runs),
            None => measured,
        }
    }

    /// The peer's row for the application and the input of `row`.
    fn peer(&self, row: &Row, way: Way) -> Option<&Row> {
        let way = way.to_string();
        let input = row.parameters.get("input");
        let mut rows = self.report.rows.iter();
        rows.find(|peer| {
            let of = &peer.parameters;
            peer.name == row.name && of.get("input") == input && of.get("way") == Some(&way) && !of.contains_key("page")
        })
    }

    /// Writes the report as it is so far.
    fn save(&self) -> Result<(), CliError> {
        let Some(path) = &self.args.out else { return Ok(()) };
        let failed = |source| CliError::Output {
            path: path.clone(),
            source,
        };
        let output = Output::create(path).map_err(failed)?;
        let written = output.finish(|out| {
            serde_json::to_writer(&mut *out, &self.report)?;
            writeln!(out)
        });
        written.map_err(failed)
    }
}

/// A report that was written before.
fn read(path: &Path) -> Result<Report, CliError> {
    let broken =
        |reason: String| CliError::Options(format!("{} is no report of this benchmark: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    match report.bench.as_str() {
        "apps" => Ok(report),
        other => Err(broken(format!("it is of `{other}`"))),
    }
}

/// Progress; a closed standard error is no reason to stop.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
