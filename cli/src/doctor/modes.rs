//! Which modes a machine can run, which one a `Vm` would choose by itself, and what each costs. Data in, data out.

use gpuvm::TransportKind;
use serde::Serialize;

/// Where frames would be registered with a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// In GPU memory, as a dma-buf.
    DmaBuf,
    /// In GPU memory, by nvidia-peermem.
    Peermem,
    /// In pinned host memory.
    Host,
}

/// A ConnectX and what is known of the way between it and the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectX {
    /// The devices that a `Vm` takes: all that are nearest to the GPU.
    pub devices: Vec<String>,
    /// What keeps it from being used: no link, no libraries.
    pub missing: Vec<String>,
    /// Where frames would lie.
    pub frames: Frames,
    /// Why the GPU may not ring the doorbell by itself.
    pub doorbell_obstacle: Option<String>,
    /// Whether its way to the GPU goes through the processor.
    pub far: bool,
}

/// What the decision needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The NVIDIA GPU that a `Vm` would open.
    pub nvidia: Option<String>,
    /// Whether its kernels can be compiled.
    pub nvrtc: bool,
    /// Whether those of the simulated GPU can.
    pub compiler: bool,
    /// The ConnectX nearest to the GPU.
    pub connectx: Option<ConnectX>,
    /// A SoftRoCE device that is up.
    pub rxe: Option<String>,
}

/// One way to run kernels over paged data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mode {
    /// `nvidia` or `simulated`.
    pub gpu: &'static str,
    /// The transport's name.
    pub transport: &'static str,
    /// What asks for it on the command line.
    pub options: String,
    /// Whether it works here.
    pub works: bool,
    /// Whether kernels run on hardware.
    pub hardware: bool,
    /// Whether a `Vm` takes it when nothing is asked for.
    pub chosen: bool,
    /// What it lacks.
    pub missing: Vec<String>,
    /// What it costs.
    pub costs: Vec<String>,
}

/// What the machine can do, as an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// At least one mode runs kernels on hardware.
    Hardware,
    /// Only the simulated GPU runs them.
    Simulation,
    /// Nothing does.
    Nothing,
}

impl Verdict {
    /// The exit status; 1 is an error of the command's own, 2 a wrong option.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Hardware => 0,
            Self::Simulation => 3,
            Self::Nothing => 4,
        }
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Hardware => "kernels run on hardware here",
            Self::Simulation => "kernels run on the simulated GPU only",
            Self::Nothing => "no kernel runs here",
        }
    }
}

/// What those modes come to.
pub fn verdict(modes: &[Mode]) -> Verdict {
    let works = |mode: &&Mode| mode.works;
    match modes.iter().filter(works).map(|mode| mode.hardware).max() {
        Some(true) => Verdict::Hardware,
        Some(false) => Verdict::Simulation,
        None => Verdict::Nothing,
    }
}

/// All modes, the chosen one first, then those that work.
pub fn decide(facts: &Facts) -> Vec<Mode> {
    let mut modes = Vec::new();
    for nvidia in [true, false] {
        for transport in [
            TransportKind::Mlx5,
            TransportKind::Direct,
            TransportKind::Soft,
            TransportKind::Rxe,
        ] {
            // The simulated GPU's copies by warps are for tests; the driver's rings are out of an NVIDIA GPU's reach.
            let there = match transport {
                TransportKind::Direct => nvidia,
                TransportKind::Rxe => !nvidia,
                _ => true,
            };
            if there {
                modes.push(mode(facts, nvidia, transport));
            }
        }
    }
    modes.sort_by_key(|mode| (!mode.chosen, !mode.works));
    modes
}

fn mode(facts: &Facts, nvidia: bool, transport: TransportKind) -> Mode {
    let mut missing = Vec::new();
    if nvidia {
        if facts.nvidia.is_none() {
            missing.push("an NVIDIA GPU that can be used".to_owned());
        }
        if !facts.nvrtc {
            missing.push("NVRTC, which compiles its kernels".to_owned());
        }
    } else if !facts.compiler {
        missing.push("a C++ compiler, which compiles its kernels".to_owned());
    }
    match (transport, &facts.connectx) {
        (TransportKind::Mlx5, None) => missing.push("a ConnectX NIC".to_owned()),
        (TransportKind::Mlx5, Some(nic)) => missing.extend(nic.missing.iter().cloned()),
        (TransportKind::Rxe, _) if facts.rxe.is_none() => missing.push("a SoftRoCE device that is up".to_owned()),
        _ => {}
    }
    let gpu = if nvidia { "nvidia" } else { "simulated" };
    let device = match (transport, &facts.connectx, &facts.rxe) {
        (TransportKind::Mlx5, Some(nic), _) => nic
            .devices
            .iter()
            .map(|name| format!(" --rdma-device {name}"))
            .collect(),
        (TransportKind::Rxe, _, Some(device)) => format!(" --rdma-device {device}"),
        _ => String::new(),
    };
    let gpu_option = if nvidia { "cuda:0" } else { "sim" };
    Mode {
        gpu,
        transport: transport.name(),
        options: format!("--gpu {gpu_option} --transport {transport}{device}"),
        works: missing.is_empty(),
        hardware: nvidia,
        // A GPU that opens is taken, whatever else is missing.
        chosen: nvidia == facts.nvidia.is_some() && transport == TransportKind::of_gpu(nvidia),
        missing,
        costs: costs(facts, nvidia, transport),
    }
}

fn costs(facts: &Facts, nvidia: bool, transport: TransportKind) -> Vec<String> {
    let mut costs: Vec<String> = Vec::new();
    let mut say = |cost: &str| costs.push(cost.to_owned());
    match transport {
        TransportKind::Mlx5 => {
            say(
                "loopback: a page of this host's memory crosses PCIe twice, up to the NIC and down to the GPU; \
                 one of a memory node crosses it once",
            );
            // The simulated GPU's memory is this process's own.
            if let Some(nic) = facts.connectx.as_ref().filter(|_| nvidia) {
                match nic.frames {
                    Frames::DmaBuf => say("frames in GPU memory, registered as dma-buf"),
                    Frames::Peermem => say("frames in GPU memory, registered by nvidia-peermem"),
                    Frames::Host => say(
                        "frames in pinned host memory, since neither dma-buf nor nvidia-peermem serves: every access \
                         of a kernel crosses PCIe",
                    ),
                }
                if let Some(obstacle) = &nic.doorbell_obstacle {
                    say(&format!(
                        "a doorbell proxy, one host thread, may have to ring, which adds its latency to each fault: {obstacle}"
                    ));
                }
                if nic.far {
                    say("NIC and GPU meet in the processor, not in a switch: lower bandwidth");
                }
            }
        }
        TransportKind::Direct => {
            say(
                "the faulting warp copies its page over PCIe itself: each byte crosses once, and the warp computes nothing meanwhile",
            );
            say("this host's memory, or a neighbour GPU's: no memory nodes");
        }
        TransportKind::Soft if nvidia => {
            say(
                "a host thread executes the requests and the GPU's copy engines move the bytes: a processor is on each fault's way",
            );
        }
        TransportKind::Rxe => {
            say("every doorbell is a system call of a proxy thread, and the kernel copies each byte through packets");
        }
        _ => say("a host thread copies the pages within this process"),
    }
    if !nvidia {
        say("the simulated GPU runs kernels on the processor: for correctness, not for speed");
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_well() -> Facts {
        Facts {
            nvidia: Some("NVIDIA H200".into()),
            nvrtc: true,
            compiler: true,
            connectx: Some(ConnectX {
                devices: vec!["mlx5_0".into(), "mlx5_1".into()],
                missing: vec![],
                frames: Frames::DmaBuf,
                doorbell_obstacle: None,
                far: false,
            }),
            rxe: Some("rxe0".into()),
        }
    }

    fn find<'a>(modes: &'a [Mode], gpu: &str, transport: &str) -> &'a Mode {
        let mut all = modes
            .iter()
            .filter(|mode| mode.gpu == gpu && mode.transport == transport);
        all.next().expect("it is listed")
    }

    #[test]
    fn one_mode_is_chosen_and_comes_first() {
        let facts = [
            all_well(),
            Facts::default(),
            Facts {
                nvidia: None,
                ..all_well()
            },
        ];
        for facts in facts {
            let modes = decide(&facts);
            assert_eq!(modes.iter().filter(|mode| mode.chosen).count(), 1, "{facts:?}");
            assert!(modes[0].chosen);
            let gpu = if facts.nvidia.is_some() { "nvidia" } else { "simulated" };
            assert_eq!(modes[0].gpu, gpu);
            assert!(modes.iter().all(|mode| mode.works == mode.missing.is_empty()));
            assert!(modes.iter().all(|mode| !mode.costs.is_empty()));
        }
    }

    #[test]
    fn the_chosen_mode_is_what_a_builder_takes() {
        // The simulated GPU for real; of an NVIDIA GPU the rule alone.
        let vm = gpuvm::Vm::builder()
            .gpu(gpuvm::SimulatedGpu::new())
            .frame_memory(1 << 20)
            .build();
        let facts = Facts {
            nvidia: None,
            ..all_well()
        };
        let vm = vm.expect("the simulated GPU starts");
        assert_eq!(decide(&facts)[0].transport, vm.transport().name());
        assert_eq!(decide(&all_well())[0].transport, TransportKind::of_gpu(true).name());
    }

    #[test]
    fn a_verdict_needs_a_mode_that_works() {
        assert_eq!(verdict(&decide(&all_well())), Verdict::Hardware);
        let without_gpu = Facts {
            nvidia: None,
            ..all_well()
        };
        assert_eq!(verdict(&decide(&without_gpu)), Verdict::Simulation);
        let without_nvrtc = Facts {
            nvrtc: false,
            ..all_well()
        };
        let modes = decide(&without_nvrtc);
        assert_eq!(verdict(&modes), Verdict::Simulation);
        assert!(
            modes[0].chosen && !modes[0].works,
            "the GPU is taken, and cannot be used"
        );
        assert_eq!(verdict(&decide(&Facts::default())), Verdict::Nothing);
        let statuses = [Verdict::Hardware, Verdict::Simulation, Verdict::Nothing].map(Verdict::exit_status);
        assert_eq!(statuses, [0, 3, 4]);
    }

    #[test]
    fn a_connectx_serves_both_gpus() {
        let modes = decide(&all_well());
        let mlx5 = find(&modes, "nvidia", "mlx5");
        assert!(mlx5.works, "{mlx5:?}");
        assert!(find(&modes, "simulated", "mlx5").works);
        assert_eq!(
            mlx5.options,
            "--gpu cuda:0 --transport mlx5 --rdma-device mlx5_0 --rdma-device mlx5_1"
        );
        assert!(mlx5.costs.iter().any(|cost| cost.contains("twice")), "{mlx5:?}");
        let mut facts = all_well();
        facts.connectx = None;
        assert!(
            find(&decide(&facts), "nvidia", "mlx5")
                .missing
                .contains(&"a ConnectX NIC".to_owned())
        );
    }

    #[test]
    fn costs_follow_from_the_facts() {
        let mut facts = all_well();
        let nic = facts.connectx.as_mut().expect("it has one");
        (nic.frames, nic.far) = (Frames::Host, true);
        nic.doorbell_obstacle = Some("the IOMMU translates".into());
        let modes = decide(&facts);
        let costs = find(&modes, "nvidia", "mlx5").costs.join("\n");
        for word in ["pinned host memory", "proxy", "the IOMMU translates", "not in a switch"] {
            assert!(costs.contains(word), "{word}: {costs}");
        }
        let costs = find(&modes, "simulated", "mlx5").costs.join("\n");
        assert!(!costs.contains("proxy") && !costs.contains("pinned"), "{costs}");
        let costs = find(&modes, "simulated", "rxe").costs.join("\n");
        assert!(
            costs.contains("system call") && costs.contains("correctness"),
            "{costs}"
        );
    }

    #[test]
    fn rxe_needs_a_device() {
        let mut facts = all_well();
        assert!(find(&decide(&facts), "simulated", "rxe").works);
        facts.rxe = None;
        assert!(!find(&decide(&facts), "simulated", "rxe").works);
    }
}
