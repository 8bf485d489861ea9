//! All findings and modes, as text and as JSON.

use serde::Serialize;

use crate::doctor::finding::{Finding, FindingState};
use crate::doctor::modes::{ConnectX, Facts, Frames, Mode, Verdict, decide, verdict};
use crate::doctor::view::View;
use crate::doctor::{files, gpu, peers, platform, rdma};
use gpuvm_gpu::cuda::CAPABILITY_MIN;
use gpuvm_nic::devices::{DeviceKind, PciMeeting, RdmaDevice};

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
        let mut findings = gpu::checks(view);
        findings.push(peers::check(view));
        findings.extend(rdma::checks(view));
        findings.extend(platform::checks(view));
        findings.extend(files::checks(view));
        let modes = decide(&facts(view));
        let verdict: Verdict = verdict(&modes);
        Self {
            version: SCHEMA_VERSION,
            gpuvm: env!("CARGO_PKG_VERSION"),
            kernel: view.release.clone(),
            exit_status: verdict.exit_status(),
            verdict: verdict.text(),
            findings,
            modes,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("gpuvm {} on Linux {}\n\n", self.gpuvm, self.kernel);
        for finding in &self.findings {
            let mark = format!("[{}]", finding.state.name());
            text.push_str(&format!("{mark:<11}{}: {}\n", finding.title, finding.found));
            if matches!(finding.state, FindingState::Ok | FindingState::Unneeded) {
                continue;
            }
            text.push_str(&format!("{:11}why: {}\n", "", finding.why));
            if let Some(mend) = &finding.mend {
                text.push_str(&format!("{:11}mend: {mend}\n", ""));
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
                text.push_str(&format!("    lacks: {}\n", mode.missing.join("; ")));
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

/// The ConnectX devices that a `Vm` would take; else one that is there, for what is wrong with it.
fn connectx_devices(view: &View) -> Vec<RdmaDevice> {
    let near = view.first_gpu().map(|gpu| view.machine.nearest_connectx(gpu));
    let mut devices = near.unwrap_or_default();
    if devices.is_empty() {
        let mut all = view.rdma.iter().filter(|device| device.kind == DeviceKind::Mlx5);
        let up = all.clone().find(|device| device.active_port().is_some());
        devices.extend(up.or(all.next()).cloned());
    }
    devices
}

/// What the decision needs, out of what was seen.
fn facts(view: &View) -> Facts {
    let first = view.probed.gpus.as_ref().ok().and_then(|gpus| gpus.first());
    let devices = connectx_devices(view);
    let connectx = devices.first().map(|nearest| {
        let closed = devices.iter().filter(|nic| !rdma::is_ready(view, nic));
        let mut missing: Vec<String> = closed
            .map(|nic| {
                let name = &nic.name;
                format!("{name} with an active port, an address and a uverbs node that this user may open")
            })
            .collect();
        for library in ["libibverbs.so.1", "libmlx5.so.1"] {
            if rdma::lacks_library(view, library) {
                missing.push(library.to_owned());
            }
        }
        let distance = view
            .first_gpu()
            .and_then(|gpu| view.machine.pci_distance(gpu, nearest.pci?));
        ConnectX {
            frames: match rdma::dma_buf_works(view) {
                Some(true) => Frames::DmaBuf,
                _ if view.module_loaded("nvidia_peermem") => Frames::Peermem,
                _ => Frames::Host,
            },
            doorbell_obstacle: platform::doorbell_obstacle(view),
            far: distance.is_none_or(|distance| distance.meeting > PciMeeting::Bridge),
            devices: devices.iter().map(|nic| nic.name.clone()).collect(),
            missing,
        }
    });
    let mut softroce = view.rdma.iter().filter(|device| device.kind == DeviceKind::Rxe);
    Facts {
        nvidia: first
            .filter(|gpu| gpu.compute_capability >= CAPABILITY_MIN)
            .map(|gpu| gpu.name.clone()),
        nvrtc: view.probed.nvrtc.is_ok(),
        compiler: view.probed.compiler.is_ok(),
        connectx,
        rxe: softroce
            .find(|device| rdma::is_ready(view, device))
            .map(|device| device.name.clone()),
    }
}
