//! Figures and ceilings as bars in an SVG file.

use std::io;
use std::path::Path;

use svg::Document;
use svg::node::element::{Line, Rectangle, Text, Title};

use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;
use crate::output::Output;

const WIDTH: f64 = 1100.0;
const LABELS: f64 = 520.0;
const FIGURES: f64 = 110.0;
const ROW: f64 = 22.0;
const TOP: f64 = 34.0;
const BAR: &str = "#3b6ea5";
const CEILING: &str = "#c8452b";

/// A file for one group of bars for each unit; a line across a bar is its ceiling.
#[derive(Debug)]
pub struct Plot<'a> {
    path: &'a Path,
    output: Output,
}

impl<'a> Plot<'a> {
    /// Begins the file; without a report there will be none.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &'a Path) -> Result<Self, CliError> {
        let output = Output::create(path).map_err(|source| unwritten(path, source))?;
        Ok(Self { path, output })
    }

    /// Draws the report.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self, report: &Report) -> Result<(), CliError> {
        self.output
            .finish(|out| svg::write(out, &draw(report)))
            .map_err(|source| unwritten(self.path, source))
    }
}

fn unwritten(path: &Path, source: io::Error) -> CliError {
    CliError::Plot {
        path: path.to_owned(),
        source,
    }
}

fn draw(report: &Report) -> Document {
    let mut document = Document::new().set("font-family", "sans-serif").set("font-size", 12);
    document = document.add(Title::new(format!("gpuvm bench {}", report.bench)));
    let heading = format!(
        "gpuvm bench {} on {} ({})",
        report.bench, report.machine.gpu, report.machine.transport
    );
    document = document.add(text(8.0, 20.0, &heading).set("font-weight", "bold"));
    let mut y = TOP;
    let mut units: Vec<Unit> = Vec::new();
    for row in &report.rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    for unit in units {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.unit == unit).collect();
        let longest = rows
            .iter()
            .map(|row| row.figure.max(row.ceiling.unwrap_or(0.0)))
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        if rows.is_empty() || longest <= 0.0 {
            continue;
        }
        document = document.add(text(8.0, y + 15.0, unit.name()).set("font-weight", "bold"));
        y += ROW;
        let scale = (WIDTH - LABELS - FIGURES) / longest;
        for row in rows {
            document = bar(document, row, y, scale);
            y += ROW;
        }
        y += ROW / 2.0;
    }
    document = document.add(text(8.0, y + 12.0, "line: the ceiling, measured in the same run").set("fill", CEILING));
    y += ROW;
    document
        .set("viewBox", (0, 0, WIDTH, y))
        .set("width", WIDTH)
        .set("height", y)
        .set("style", "background: white")
}

fn bar(document: Document, row: &Row, y: f64, scale: f64) -> Document {
    let label = match row.parameters() {
        parameters if parameters.is_empty() => row.name.clone(),
        parameters => format!("{} ({parameters})", row.name),
    };
    let length = if row.figure.is_finite() {
        row.figure * scale
    } else {
        0.0
    };
    let mut document = document
        .add(text(LABELS - 8.0, y + 15.0, &label).set("text-anchor", "end"))
        .add(
            Rectangle::new()
                .set("x", LABELS)
                .set("y", y + 3.0)
                .set("width", length.max(0.5))
                .set("height", ROW - 7.0)
                .set("fill", BAR),
        );
    let mut end = length;
    if let Some(ceiling) = row.ceiling.filter(|ceiling| ceiling.is_finite()) {
        let x = LABELS + ceiling * scale;
        end = end.max(ceiling * scale);
        document = document.add(
            Line::new()
                .set("x1", x)
                .set("x2", x)
                .set("y1", y + 1.0)
                .set("y2", y + ROW - 2.0)
                .set("stroke", CEILING)
                .set("stroke-width", 2),
        );
    }
    let share = row.ratio.map(|ratio| format!(" ({:.0} %)", ratio * 100.0));
    let figure = format!("{:.4}{}", row.figure, share.unwrap_or_default());
    document.add(text(LABELS + end + 6.0, y + 15.0, &figure))
}

/// Words that begin at a point.
pub fn text(x: f64, y: f64, words: &str) -> Text {
    Text::new(words).set("x", x).set("y", y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::{Facts, Runs};

    #[test]
    fn a_bar_a_row_and_a_line_a_ceiling() {
        let mut report = Report::new("faults", Facts::default());
        let row = |name: &str| Row::new(name, Unit::MegaPages, vec![6.0]);
        report.rows.push(row("a <b> & c").ceiling("raw", &Runs(vec![12.0])));
        report.rows.push(row("d"));
        report.rows.push(Row::new("never", Unit::Microseconds, Vec::new()));
        let drawn = draw(&report).to_string();
        assert_eq!(drawn.matches("<rect").count(), 2, "{drawn}");
        assert_eq!(drawn.matches("<line").count(), 1, "{drawn}");
        assert!(drawn.contains("a &lt;b&gt; &amp; c"), "{drawn}");
    }
}
