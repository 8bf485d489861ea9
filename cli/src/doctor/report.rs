//! All findings and modes, as text and as JSON.

use serde::Serialize;

use crate::doctor::checks::CHECKS;
use crate::doctor::finding::{Finding, FindingState};
use crate::doctor::modes::{Mode, decide, verdict};
use crate::doctor::view::View;

/// Changes when a field is taken away or means something else; new fields do not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// What `gpuvm doctor --json` prints; docs/DOCTOR.md has the meaning of each field.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The schema's version.
    pub version: u32,
    /// This program's version.
    pub gpuvm: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// The exit status.
    pub exit_status: u8,
    /// What it means.
    pub verdict: &'static str,
    /// The checks, in the order of the text.
    pub findings: Vec<Finding>,
    /// The chosen mode first.
    pub modes: Vec<Mode>,
}

impl Report {
    /// Looks at everything.
    pub fn of(view: &View) -> Self {
        let modes = decide(view);
        let (exit_status, verdict) = verdict(&modes);
        Self {
            version: SCHEMA_VERSION,
            gpuvm: env!("CARGO_PKG_VERSION"),
            kernel: view.release.clone(),
            exit_status,
            verdict,
            findings: CHECKS.iter().map(|check| check.finding(view)).collect(),
            modes,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("gpuvm {} on Linux {}\n\n", self.gpuvm, self.kernel);
        for finding in &self.findings {
            let result = &finding.result;
            let mark = format!("[{}]", result.state.name());
            text.push_str(&format!("{mark:<11}{}: {}\n", finding.title, result.found));
            if matches!(result.state, FindingState::Ok | FindingState::Unneeded) {
                continue;
            }
            text.push_str(&format!("{:11}why: {}\n", "", finding.why));
            if let Some(fix) = &result.fix {
                text.push_str(&format!("{:11}fix: {fix}\n", ""));
            }
        }
        text.push('\n');
        for mode in &self.modes {
            let mark = match (mode.works, mode.chosen) {
                (true, true) => "Vm::builder() chooses",
                (false, true) => "Vm::builder() chooses, and it cannot work:",
                (true, false) => "also possible",
                (false, false) => "not possible",
            };
            text.push_str(&format!("{mark} {}\n", mode.options));
            if !mode.works {
                text.push_str(&format!("    missing: {}\n", mode.missing.join("; ")));
            }
            if mode.works || mode.chosen {
                for cost in &mode.costs {
                    text.push_str(&format!("    {cost}\n"));
                }
            }
        }
        text.push_str(&format!("\n{} (exit status {})", self.verdict, self.exit_status));
        text
    }
}
