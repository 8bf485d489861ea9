//! `gpuvm simulate scale`: how large things get with many hosts, and what bounds the rate of pages, as tables or as JSON.

use std::io;

use bytesize::ByteSize;
use clap::Args;
use gpuvm_simulate::scale::{self, Axis, Ceiling, Row, Site, Unit};
use serde::Serialize;

use crate::error::CliError;
use crate::sizes::{parse_bytes, parse_page_bytes};
use crate::stdout;
use crate::table::{grouped, table};

/// How many machines there are.
#[derive(Debug, Clone, Args)]
pub struct ScaleArgs {
    /// Memory nodes. Every client has pages at each of them.
    #[arg(long, value_name = "N", default_value_t = Site::default().nodes, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub nodes: u64,

    /// GPUs, each a client of all nodes.
    #[arg(long, value_name = "N", default_value_t = Site::default().clients, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub clients: u64,

    /// NICs of a host.
    #[arg(long, value_name = "N", default_value_t = Site::default().nics, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub nics: u64,

    /// GPUs of a host.
    #[arg(long, value_name = "N", default_value_t = Site::default().gpus_per_host, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub gpus_per_host: u64,

    /// Bytes of one client's regions.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(Site::default().data_bytes), value_parser = parse_size)]
    pub data: ByteSize,

    /// Regions of one client.
    #[arg(long, value_name = "N", default_value_t = Site::default().regions, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub regions: u64,

    /// Copies of each page.
    #[arg(long, value_name = "N", default_value_t = Site::default().replicas, value_parser = clap::value_parser!(u64).range(1..=2))]
    pub replicas: u64,

    /// Bytes of a page.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(Site::default().page_bytes), value_parser = parse_page)]
    pub page_size: ByteSize,

    /// Bytes of a GPU's memory.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(Site::default().gpu_memory_bytes), value_parser = parse_size)]
    pub gpu_memory: ByteSize,

    /// Bytes of a host's memory.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(Site::default().host_memory_bytes), value_parser = parse_size)]
    pub host_memory: ByteSize,

    /// Of a hundred nodes, how many are lost at once.
    #[arg(long, value_name = "PERCENT", default_value_t = Site::default().lost_percent, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub lost: u64,

    /// Microseconds that a READ takes on an idle network.
    #[arg(long, value_name = "US", default_value_t = Site::default().latency_us, value_parser = parse_latency)]
    pub latency: f64,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    parse_bytes(text).map(ByteSize)
}

fn parse_page(text: &str) -> Result<ByteSize, String> {
    parse_page_bytes(text).map(ByteSize)
}

fn parse_latency(text: &str) -> Result<f64, String> {
    let latency = text.parse().ok().filter(|latency| (0.001..=1e9).contains(latency));
    latency.ok_or_else(|| format!("'{text}' is not a time in microseconds from 0.001 to 1e9"))
}

impl ScaleArgs {
    fn site(&self) -> Site {
        Site {
            nodes: self.nodes,
            clients: self.clients,
            nics: self.nics,
            gpus_per_host: self.gpus_per_host,
            data_bytes: self.data.0,
            regions: self.regions,
            replicas: self.replicas,
            page_bytes: self.page_size.0,
            gpu_memory_bytes: self.gpu_memory.0,
            host_memory_bytes: self.host_memory.0,
            lost_percent: self.lost,
            latency_us: self.latency,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    site: Site,
    structures: Vec<Row>,
    ceilings: Vec<Ceiling>,
}

fn figure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => ByteSize(value as u64).to_string(),
        Unit::Seconds => format!("{value:.1} s"),
        Unit::Count if value < 1000.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        Unit::Count => grouped(value as u64),
    }
}

fn breaks_at(row: &Row) -> String {
    match (row.breaks_at, row.grows_with) {
        (None, _) => "never".to_owned(),
        (Some(at), Axis::Data) => format!("{} a client", ByteSize(at)),
        (Some(at), axis) => format!("{} {axis}", grouped(at)),
    }
}

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &ScaleArgs) -> Result<(), CliError> {
    let site = args.site();
    let (structures, ceilings) = (scale::rows(&site), scale::ceilings(&site));
    if args.json {
        let report = serde_json::to_string(&Report {
            site,
            structures,
            ceilings,
        });
        let report = report.map_err(|error| CliError::Print(io::Error::from(error)))?;
        return stdout::print_line(report).map_err(CliError::Print);
    }
    let headings = ["structure", "size", "limit", "of limit", "too large from", "limited by"];
    let rows = structures.iter().map(|row| {
        [
            row.structure.to_owned(),
            figure(row.size, row.unit),
            figure(row.limit, row.unit),
            format!("{:.2} %", 100.0 * row.share),
            breaks_at(row),
            row.limited_by.to_owned(),
        ]
    });
    let sizes = table(headings, 1..4, rows);
    let text = format!(
        "{sizes}\n\nPages into one GPU, by NICs of its host and bytes of a page:\n{}",
        of_pages(&ceilings)
    );
    stdout::print_line(text).map_err(CliError::Print)
}

/// The table of what binds first.
fn of_pages(ceilings: &[Ceiling]) -> comfy_table::Table {
    let headings = ["NICs", "page", "queue pairs", "pages/s", "GB/s", "binds first", "then"];
    let rows = ceilings.iter().map(|found| {
        let [first, next] = [0, 1].map(|place| found.limits.get(place));
        let rate = first.map_or(0.0, |bound| bound.pages_per_second);
        [
            found.nics.to_string(),
            ByteSize(found.page_bytes).to_string(),
            grouped(found.queue_pairs),
            grouped(rate as u64),
            format!("{:.1}", rate * found.page_bytes as f64 / 1e9),
            first.map_or_else(String::new, |bound| bound.limit.to_owned()),
            next.map_or_else(String::new, |bound| {
                format!("{}, at {:.2} times as many", bound.limit, bound.pages_per_second / rate)
            }),
        ]
    });
    table(headings, 0..5, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        assert_eq!(figure(12.0, Unit::Count), "12");
        assert_eq!(figure(0.5, Unit::Count), "0.5");
    }
}
