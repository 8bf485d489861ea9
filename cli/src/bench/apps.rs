//! Applications, each paged and against the usual alternatives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gpuvm_workloads::apps::{App, AppError, Measured, Way, catalogue, measure};

use crate::apps::{machine, ordinal};
use crate::bench::args::Share;
use crate::bench::driver::{Benchmark, Run, each, name_and_input, unknown_app};
use crate::bench::machine::{Machine, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::output::{Output, say};
use crate::sizes::{MemorySize, parse_page_bytes};

/// Applications beside their peers.
#[derive(Debug, Args)]
pub struct AppsArgs {
    /// Applications as NAME or NAME:INPUT, with commas between; `gpuvm run --help` lists them. Without it: all of them, with inputs of
    /// about 1 GiB, and small ones on the simulated GPU.
    #[arg(long, value_name = "APP,..", value_delimiter = ',')]
    pub apps: Vec<String>,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// Frames, as shares of the arrays' pages, with commas between.
    #[arg(
        long,
        value_name = "SHARE,..",
        default_value = "1,1/2,1/4,1/8",
        value_delimiter = ','
    )]
    pub frames_share: Vec<Share>,

    /// What reads do with a page that has no frame, with commas between: auto, fetch, in-place, while-free, look-up, resident (memory for all:
    /// arrays have frames of their own, which auto then gives them, too).
    #[arg(long, value_name = "HOW,..", default_value = "auto", value_delimiter = ',', value_parser = parse_paged)]
    pub placement: Vec<Way>,

    /// What to compare with, with commas between. Managed memory and device memory are not limited to the frames' share: all of the
    /// card is theirs.
    #[arg(
        long,
        value_name = "WAY,..",
        default_value = "raw,host,managed,advised,prefetched,chunked",
        value_delimiter = ','
    )]
    pub peers: Vec<Way>,

    /// Keep the report in this file, after each row. Rows that are there already are not measured again.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Seconds after which no row begins; --out lets another run go on.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
}

/// A way to page.
fn parse_paged(text: &str) -> Result<Way, String> {
    match text.parse()? {
        way @ (Way::Paged(_) | Way::Resident) => Ok(way),
        peer => Err(format!("`{peer}` is not a form of paging; name it among --peers")),
    }
}

const SECOND: &str = "second ms";
const WARM: &str = "warm ms";
const MOVED: &str = "moved MB";

impl Benchmark for AppsArgs {
    const NAME: &'static str = "apps";

    /// Measures only what is missing in the report that `--out` names, and writes it after each row.
    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        if let Some(earlier) = run.out.as_deref().filter(|path| path.exists()) {
            report.rows = read(earlier)?.rows;
        }
        let mut bench = Bench { run, report };
        let all = || catalogue::ALL.iter().map(|entry| entry.name.to_owned()).collect();
        let apps: Vec<String> = if run.apps.is_empty() { all() } else { run.apps.clone() };
        // All names first: a wrong one is told before anything is measured.
        let asked: Vec<_> = apps.iter().map(|asked| named(asked)).collect::<Result<_, _>>()?;
        for (entry, input) in asked {
            let name = entry.name;
            let input = input.unwrap_or(run.usual(entry.large, entry.small));
            if !bench.has_time(&format!("{name}:{input}")) {
                continue;
            }
            let app = entry.make(input).map_err(|source| CliError::App {
                app: name.to_owned(),
                source,
            })?;
            bench.app(&*app, input)?;
        }
        Ok(())
    }
}

/// The application that NAME or NAME:INPUT names, and its input.
fn named(asked: &str) -> Result<(&'static catalogue::Entry, Option<&str>), CliError> {
    let (name, input) = name_and_input(asked);
    let names = catalogue::ALL.iter().map(|entry| entry.name);
    let entry = catalogue::find(name).ok_or_else(|| unknown_app(name, names))?;
    Ok((entry, input))
}

struct Bench<'a> {
    run: &'a Run<'a, AppsArgs>,
    report: &'a mut Report,
}

impl Bench<'_> {
    fn has_time(&mut self, what: &str) -> bool {
        self.run.has_time(self.run.limit, what, self.report)
    }

    fn app(&mut self, app: &dyn App, input: &str) -> Result<(), CliError> {
        for &way in &self.run.peers {
            let row = Row::new(app.name(), Unit::Milliseconds, Vec::new())
                .with("input", input)
                .with("way", way);
            self.row(app, row, way, None)?;
        }
        let run = self.run;
        let kinds: Vec<_> = each(&run.frames_share, &run.placement).collect();
        for (page_bytes, (share, asked)) in each(&run.page_size, &kinds) {
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
        for _ in 0..self.run.repeat {
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
        match machine(&self.run.machine, app, page_bytes, memory, way) {
            Ok(started) => Ok(measure(app, &started.vm, started.way, &ordinal(&self.run.machine))),
            Err(CliError::App { source, .. }) => Ok(Err(source)),
            Err(other) => Err(other),
        }
    }

    /// The row with its figures, beside the fastest peer that is there.
    fn complete(&self, row: Row, runs: &[Measured], paged: Option<(u64, Share)>) -> Row {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let median =
            |of: fn(&Measured) -> Duration| Runs(runs.iter().map(|run| milliseconds(of(run))).collect()).median();
        let (second, warm) = (median(|run| run.second), median(|run| run.warm));
        let page_bytes = paged.map_or(0, |(page_bytes, _)| page_bytes);
        let moved = runs.iter().map(|run| run.bytes_moved(page_bytes)).max().unwrap_or(0);
        let verified = runs.iter().map(|run| run.verified).min().unwrap_or(0);
        let cold = runs.iter().map(|run| milliseconds(run.cold)).collect();
        let mut measured = Row::new(&row.name, Unit::Milliseconds, cold).verified(verified, "values");
        measured.parameters = row.parameters;
        measured = measured
            .and(SECOND, second)
            .and(WARM, warm)
            .and(MOVED, moved as f64 / 1e6);
        let Some((_, share)) = paged else { return measured };
        if let Some(raw) = self.peer(&measured, Way::Raw)
            && share == Share(1.0)
        {
            measured = measured.and("warm, of raw", raw.more[WARM] / warm);
        }
        let peers = self.run.peers.iter().filter(|way| **way != Way::Raw);
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
        let Some(path) = &self.run.out else { return Ok(()) };
        let failed = |source| CliError::Output {
            path: path.clone(),
            source,
        };
        let output = Output::create(path).map_err(failed)?;
        let written = output.finish(|out| {
            serde_json::to_writer(&mut *out, &*self.report)?;
            writeln!(out)
        });
        written.map_err(failed)
    }
}

/// A report that was written before.
fn read(path: &Path) -> Result<Report, CliError> {
    let broken = |reason: String| {
        CliError::Options(format!(
            "{} is not a report of this benchmark: {reason}",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    match report.bench.as_str() {
        "apps" => Ok(report),
        other => Err(broken(format!("it is of `{other}`"))),
    }
}
