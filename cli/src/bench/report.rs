//! What a benchmark found: rows, as a table, as JSON.

use std::collections::BTreeMap;
use std::io;

use comfy_table::Table;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stdout;
use crate::table::table;

/// Runs of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runs(pub Vec<f64>);

impl Runs {
    /// The middle one; between the two in the middle.
    pub fn median(&self) -> f64 {
        let mut runs = self.0.clone();
        runs.sort_by(f64::total_cmp);
        match (runs.len(), runs.len() / 2) {
            (0, _) => f64::NAN,
            (count, middle) if count % 2 == 0 => f64::midpoint(runs[middle - 1], runs[middle]),
            (_, middle) => runs[middle],
        }
    }

    /// Each of them this many times.
    pub fn times(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|run| run * factor).collect())
    }

    /// The best one of figures of that unit.
    pub fn best(&self, unit: Unit) -> f64 {
        let pick = if unit.less_is_better() { f64::min } else { f64::max };
        self.0.iter().copied().reduce(pick).unwrap_or(f64::NAN)
    }
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Millions of pages a second.
    #[serde(rename = "M pages/s")]
    MegaPages,
    /// Billions of bytes a second.
    #[serde(rename = "GB/s")]
    GigaBytes,
    /// Billions of accesses a second.
    #[serde(rename = "G accesses/s")]
    GigaAccesses,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
}

impl Unit {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::MegaPages => "M pages/s",
            Self::GigaBytes => "GB/s",
            Self::GigaAccesses => "G accesses/s",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
        }
    }

    /// Times are better when they are short.
    pub fn less_is_better(self) -> bool {
        matches!(self, Self::Microseconds | Self::Milliseconds)
    }
}

/// One figure beside its ceiling.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// With what.
    pub parameters: BTreeMap<String, String>,
    /// Median of the runs.
    pub figure: f64,
    /// Best of the runs.
    pub best: f64,
    /// Every run.
    pub runs: Runs,
    /// Of figure and ceiling.
    pub unit: Unit,
    /// Median of what was measured in the same run as the most that is possible.
    pub ceiling: Option<f64>,
    /// The best run of the ceiling.
    pub ceiling_best: Option<f64>,
    /// What the ceiling is.
    pub ceiling_name: Option<String>,
    /// Share of the ceiling that was reached: 1 is all of it, also for times.
    pub ratio: Option<f64>,
    /// How much of `verified_unit` was compared with what it had to be.
    pub verified: u64,
    /// Words, pages or sums.
    pub verified_unit: String,
    /// Further figures.
    pub more: BTreeMap<String, f64>,
}

impl Row {
    /// A row without a ceiling.
    pub fn new(name: &str, unit: Unit, runs: Vec<f64>) -> Self {
        let runs = Runs(runs);
        Self {
            name: name.to_owned(),
            parameters: BTreeMap::new(),
            figure: runs.median(),
            best: runs.best(unit),
            runs,
            unit,
            ceiling: None,
            ceiling_best: None,
            ceiling_name: None,
            ratio: None,
            verified: 0,
            verified_unit: String::new(),
            more: BTreeMap::new(),
        }
    }

    /// With that parameter.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.parameters.insert(name.to_owned(), value.to_string());
        self
    }

    /// With a further figure.
    pub fn and(mut self, name: &str, value: f64) -> Self {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// With what was compared.
    pub fn verified(mut self, count: u64, unit: &str) -> Self {
        self.verified = count;
        unit.clone_into(&mut self.verified_unit);
        self
    }

    /// With its ceiling, in the same unit.
    pub fn ceiling(mut self, name: &str, runs: &Runs) -> Self {
        let ceiling = runs.median();
        self.ceiling = Some(ceiling);
        self.ceiling_best = Some(runs.best(self.unit));
        self.ceiling_name = Some(name.to_owned());
        self.ratio = Some(if self.unit.less_is_better() {
            ceiling / self.figure
        } else {
            self.figure / ceiling
        });
        self
    }

    /// The parameters in words.
    pub fn parameters(&self) -> String {
        let words: Vec<String> = self
            .parameters
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        words.join(", ")
    }
}

/// Times of single things in several runs: the medians of the runs, and how all of them spread.
#[derive(Default)]
pub struct Times {
    medians: Vec<f64>,
    all: Vec<f64>,
}

impl Times {
    /// With those of one more run, in microseconds.
    pub fn add(&mut self, mut times: Vec<f64>) {
        times.sort_by(f64::total_cmp);
        self.medians.push(quantile(&times, 0.5));
        self.all.extend(times);
    }

    /// The medians.
    pub fn medians(&self) -> Runs {
        Runs(self.medians.clone())
    }

    /// A row with the least of all and those that a few exceed.
    pub fn row(mut self, name: &str) -> Row {
        self.all.sort_by(f64::total_cmp);
        let shares = [("min", 0.0), ("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
        let row = Row::new(name, Unit::Microseconds, self.medians);
        shares
            .into_iter()
            .fold(row, |row, (name, share)| row.and(name, quantile(&self.all, share)))
    }
}

/// The value that the share `quantile` of ascending `times` does not exceed.
fn quantile(times: &[f64], quantile: f64) -> f64 {
    match times.len() {
        0 => f64::NAN,
        count => times[((count - 1) as f64 * quantile).round() as usize],
    }
}

/// A row that this machine could not give.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// What was not measured.
    pub name: String,
    /// Why not.
    pub reason: String,
}

/// The machine that was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The GPU's name.
    pub gpu: String,
    /// What moved the pages.
    pub transport: String,
    /// As `9.0`; nothing on the simulated GPU.
    pub compute_capability: Option<String>,
    /// CUDA's version that the driver has, as `13.0`.
    pub cuda_version: Option<String>,
    /// Version of the kernel's NVIDIA driver.
    pub driver: Option<String>,
    /// Multiprocessors; worker threads on the simulated GPU.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// This program's version.
    pub gpuvm: String,
}

/// All of a benchmark; the field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Which benchmark.
    pub bench: String,
    /// The machine.
    pub machine: Facts,
    /// The command line.
    pub command: String,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What could not be measured here.
    pub skipped: Vec<Skipped>,
    /// Figures of the first row under names of their own, for scripts.
    #[serde(flatten)]
    pub first: Map<String, Value>,
}

impl Report {
    /// Without rows.
    pub fn new(bench: &str, machine: Facts) -> Self {
        // The program's own path says nothing and differs between machines.
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Self {
            bench: bench.to_owned(),
            machine,
            command: format!("gpuvm {}", arguments.join(" ")),
            rows: Vec::new(),
            skipped: Vec::new(),
            first: Map::new(),
        }
    }

    /// Says that a row is missing, and why.
    pub fn skip(&mut self, name: &str, reason: impl ToString) {
        self.skipped.push(Skipped {
            name: name.to_owned(),
            reason: reason.to_string(),
        });
    }

    /// Prints it, as one JSON object or as a table.
    ///
    /// # Errors
    /// A closed output.
    pub fn print(&self, json: bool) -> io::Result<()> {
        match json {
            true => stdout::print_line(serde_json::to_string(self)?),
            false => stdout::print_line(self.text()),
        }
    }

    /// The aligned table below a line of facts.
    pub fn text(&self) -> String {
        let facts = &self.machine;
        let known = |name: &str, value: &Option<String>| match value {
            Some(value) => format!(", {name} {value}"),
            None => String::new(),
        };
        let mut text = format!(
            "{}: {}, transport {}{}{}{}\n",
            self.bench,
            facts.gpu,
            facts.transport,
            known("compute capability", &facts.compute_capability),
            known("CUDA", &facts.cuda_version),
            known("driver", &facts.driver)
        );
        text.push_str(&format!("{}\n", of_rows(&self.rows)));
        for skipped in &self.skipped {
            text.push_str(&format!("not measured: {}: {}\n", skipped.name, skipped.reason));
        }
        text.truncate(text.trim_end().len());
        text
    }
}

fn of_rows(rows: &[Row]) -> Table {
    let headings = [
        "what",
        "parameters",
        "median",
        "best",
        "unit",
        "ceiling",
        "reached",
        "of",
        "besides",
        "verified",
    ];
    let rows = rows.iter().map(|row| {
        let more = row.more.iter();
        let besides: Vec<String> = more.map(|(name, value)| format!("{name} {}", digits(*value))).collect();
        [
            row.name.clone(),
            row.parameters(),
            digits(row.figure),
            digits(row.best),
            row.unit.name().to_owned(),
            row.ceiling.map(digits).unwrap_or_default(),
            row.ratio
                .map(|ratio| format!("{:.1} %", ratio * 100.0))
                .unwrap_or_default(),
            row.ceiling_name.clone().unwrap_or_default(),
            besides.join(", "),
            format!("{} {}", row.verified, row.verified_unit),
        ]
    });
    table(headings, [2, 3, 5, 6], rows)
}

/// Four digits that count; whole numbers whole.
fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let whole = value.abs().max(1e-9).log10().floor() as i32;
    let after = (3 - whole).clamp(0, 6) as usize;
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.after$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_best() {
        let runs = Runs(vec![3.0, 1.0, 2.0]);
        assert_eq!(runs.median(), 2.0);
        assert_eq!(Runs(vec![4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(runs.best(Unit::GigaBytes), 3.0);
        assert_eq!(runs.best(Unit::Microseconds), 1.0);
        assert!(Runs(Vec::new()).median().is_nan());
    }

    #[test]
    fn a_ratio_is_the_share_of_the_ceiling_also_for_times() {
        let fast = Row::new("a", Unit::GigaBytes, vec![40.0]).ceiling("b", &Runs(vec![50.0]));
        assert_eq!(fast.ratio, Some(0.8));
        let long = Row::new("a", Unit::Microseconds, vec![4.0]).ceiling("b", &Runs(vec![3.0]));
        assert_eq!(long.ratio, Some(0.75));
    }

    #[test]
    fn digits_that_count() {
        for (value, text) in [
            (12.0, "12"),
            (12.5501, "12.55"),
            (0.00123456, "0.001235"),
            (51_432.4, "51432"),
        ] {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn a_report_survives_json() {
        let mut report = Report::new("limits", Facts::default());
        report
            .rows
            .push(Row::new("copy", Unit::GigaBytes, vec![1.0, 2.0]).with("page", "4 KiB"));
        report.first.insert("pages_per_second".to_owned(), 5.into());
        let text = serde_json::to_string(&report).unwrap();
        let again: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(again.rows[0].figure, 1.5);
        assert_eq!(again.first["pages_per_second"], 5);
        assert!(report.text().contains("| copy"), "{}", report.text());
    }
}
