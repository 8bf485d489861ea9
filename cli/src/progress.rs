//! Progress bars, where a person can see them.

use std::io::IsTerminal;
use std::time::Duration;

use gpuvm_workloads::graph::{Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Redraws a second.
const REDRAWS: u8 = 10;

/// One bar or spinner at a time on the standard error, or nothing.
pub struct Bars {
    shown: bool,
    bar: ProgressBar,
    stage: Option<Stage>,
}

impl Bars {
    /// Bars where `wanted` and the standard error is a terminal.
    pub fn new(wanted: bool) -> Bars {
        Bars {
            shown: wanted && std::io::stderr().is_terminal(),
            bar: ProgressBar::hidden(),
            stage: None,
        }
    }

    /// Shows how far a graph has come that is loaded or written.
    pub fn loading(&mut self, progress: Progress) {
        if !self.shown {
            return;
        }
        if self.stage != Some(progress.stage) {
            let (text, unit) = match progress.stage {
                Stage::Read => ("reading", "{binary_bytes}/{binary_total_bytes}"),
                Stage::Generate => ("generating", "{human_pos}/{human_len} edges"),
                Stage::Build => ("sorting", "{human_pos}/{human_len} edges"),
                Stage::Check => ("checking", "{human_pos}/{human_len} edges"),
                Stage::Write => ("writing", "{binary_bytes}/{binary_total_bytes}"),
            };
            let template = match progress.total {
                0 => format!("{text:>10} {{spinner}} {{binary_bytes}}"),
                _ => format!("{text:>10} [{{bar:40}}] {unit} {{eta}}"),
            };
            self.show(progress.total, &template);
            self.stage = Some(progress.stage);
        }
        self.bar.set_position(progress.done);
    }

    /// Shows that something is under way whose end is not known.
    pub fn working(&mut self, text: &'static str) {
        if self.shown {
            self.show(0, "{msg:>10} {spinner} {elapsed}");
            self.bar.set_message(text);
            self.bar.enable_steady_tick(Duration::from_millis(100));
        }
    }

    /// Shows how many of `total` vertices a running search has reached.
    pub fn searching(&mut self, level: u32, reached: u64, total: u64) {
        if !self.shown {
            return;
        }
        if level == 0 {
            self.show(total, "{msg:>10} [{bar:40}] {human_pos}/{human_len} vertices {elapsed}");
        }
        self.bar.set_message(format!("level {level}"));
        self.bar.set_position(reached);
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        self.bar.finish_and_clear();
        self.stage = None;
    }

    fn show(&mut self, total: u64, template: &str) {
        self.bar.finish_and_clear();
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(REDRAWS));
        self.bar.set_style(style);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}
