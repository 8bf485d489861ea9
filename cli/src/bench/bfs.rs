//! Breadth-first search, cold: paged, over managed memory, and over the host's memory in place.

use std::sync::Arc;

use clap::Args;
use gpuvm::Placement;
use gpuvm_workloads::apps::{AppError, Bfs, BfsParameters, Measured, Way, measure};
use gpuvm_workloads::graph::{GraphSpec, LoadOptions};

use crate::apps::{machine, ordinal};
use crate::bench::args::Share;
use crate::bench::driver::{Benchmark, Run, each};
use crate::bench::machine::{Machine, size};
use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;
use crate::sizes::{MemorySize, parse_page_bytes};

/// A whole search.
#[derive(Debug, Args)]
pub struct BfsArgs {
    /// A file or a generator: Matrix Market or a SNAP edge list (either may be gzip), GAP's .sg or .wsg, .gcsr (see `gpuvm convert`), or
    /// kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE].
    #[arg(long, value_name = "GRAPH", default_value = "kron:16")]
    pub graph: GraphSpec,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// What reads of the graph do with a page that has no frame, with commas between: auto, fetch, in-place, while-free, look-up.
    #[arg(long, value_name = "HOW,..", default_value = "fetch", value_delimiter = ',')]
    pub placement: Vec<Placement>,

    /// Frames, as shares of the pages of the graph and the distances, with commas between.
    #[arg(long, value_name = "SHARE,..", default_value = "1,1/4", value_delimiter = ',')]
    pub frames_share: Vec<Share>,
}

const MANAGED: &str = "managed memory";
/// Peers need no frames.
const NO_FRAMES: Share = Share(0.0001);

impl Benchmark for BfsArgs {
    const NAME: &'static str = "bfs";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let graph = run.graph.load(&LoadOptions::default(), &mut |_| {});
        let graph = Arc::new(graph.map_err(|source| CliError::Graph {
            graph: run.graph.to_string(),
            source,
        })?);
        let app = Bfs::new(&graph, &BfsParameters::default()).map_err(failed)?;
        // What CUDA's users have without further work.
        let mut ceiling = None;
        for (name, way) in [(MANAGED, Way::Managed), ("the host's memory in place", Way::InPlace)] {
            match row(run, &app, name, (4096, NO_FRAMES, way)) {
                Ok((row, _)) if name == MANAGED => {
                    ceiling = Some(row.runs.clone());
                    report.rows.push(row);
                }
                Ok((row, _)) => report.rows.push(row),
                Err(CliError::App {
                    source: AppError::Way { reason, .. },
                    ..
                }) => report.skip(name, reason),
                Err(error) => return Err(error),
            }
        }
        for (page_bytes, placement) in each(&run.page_size, &run.placement) {
            let mut whole = None;
            for &share in &run.frames_share {
                let (row, last) = row(run, &app, "paged", (page_bytes, share, Way::Paged(placement)))?;
                let mut row = row
                    .with("page", size(page_bytes))
                    .with("placement", placement)
                    .with("share", share.0)
                    .and("fetched MB", last.stats.bytes_fetched as f64 / 1e6)
                    .and("in place MB", last.stats.bytes_in_place as f64 / 1e6);
                if share == Share(1.0) {
                    whole = Some(row.figure);
                } else if let Some(whole) = whole {
                    let times = row.figure / whole;
                    row = row.and("times that of memory for all", times);
                }
                report.rows.push(match &ceiling {
                    Some(runs) => row.ceiling(MANAGED, runs),
                    None => row,
                });
            }
        }
        Ok(())
    }
}

fn failed(source: AppError) -> CliError {
    CliError::App {
        app: BfsArgs::NAME.to_owned(),
        source,
    }
}

/// Cold searches, each with a virtual memory of its own; and what the last one counted.
fn row(
    run: &Run<'_, BfsArgs>,
    app: &Bfs,
    name: &str,
    (page_bytes, share, way): (u64, Share, Way),
) -> Result<(Row, Measured), CliError> {
    let memory = MemorySize::Percent(share.0 * 100.0);
    let once = || -> Result<_, CliError> {
        let started = machine(&run.machine, app, page_bytes, memory, way)?;
        let measured = measure(app, &started.vm, started.way, &ordinal(&run.machine)).map_err(failed)?;
        Ok((measured, started.memory_bytes))
    };
    let (mut last, mut frames) = once()?;
    let mut times = vec![last.cold.as_secs_f64() * 1e3];
    for _ in 1..run.repeat {
        (last, frames) = once()?;
        times.push(last.cold.as_secs_f64() * 1e3);
    }
    let row = Row::new(name, Unit::Milliseconds, times)
        .with("graph", &run.graph)
        .verified(last.verified, "distances");
    let row = if matches!(way, Way::Paged(_)) {
        row.with("frames", size(frames))
    } else {
        row
    };
    Ok((row, last))
}
