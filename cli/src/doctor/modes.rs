//! Which modes a machine can run, which one a `Vm` would choose by itself, and what each costs.

use gpuvm::TransportKind;
use gpuvm_nic::devices::RdmaDevice;
use serde::Serialize;

use crate::doctor::rdma;
use crate::doctor::view::View;

/// What there is: whether kernels run on an NVIDIA GPU, and what moves the pages. The simulated GPU's copies by warps are
/// for tests; the rings of `rdma_rxe` are out of an NVIDIA GPU's reach.
const MODES: [(bool, TransportKind); 6] = [
    (true, TransportKind::Mlx5),
    (true, TransportKind::Direct),
    (true, TransportKind::Soft),
    (false, TransportKind::Mlx5),
    (false, TransportKind::Soft),
    (false, TransportKind::Rxe),
];

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
    pub costs: Vec<&'static str>,
}

/// What those modes come to, as an exit status and in words. Status 1 is an error of the command's own, 2 a wrong option.
pub fn verdict(modes: &[Mode]) -> (u8, &'static str) {
    let works = modes.iter().filter(|mode| mode.works);
    match works.map(|mode| mode.hardware).max() {
        Some(true) => (0, "kernels run on hardware here"),
        Some(false) => (3, "kernels run on the simulated GPU only"),
        None => (4, "no kernel runs here"),
    }
}

/// All modes, the chosen one first, then those that work.
pub fn decide(view: &View) -> Vec<Mode> {
    let mut modes = MODES.map(|(nvidia, transport)| mode(view, nvidia, transport));
    modes.sort_by_key(|mode| (!mode.chosen, !mode.works));
    modes.into()
}

fn mode(view: &View, nvidia: bool, transport: TransportKind) -> Mode {
    let devices = devices(view, transport);
    let gpu_option = if nvidia { "cuda:0" } else { "sim" };
    let named: String = devices
        .iter()
        .map(|device| format!(" --rdma-device {}", device.name))
        .collect();
    let missing = missing(view, nvidia, transport, &devices);
    Mode {
        gpu: if nvidia { "nvidia" } else { "simulated" },
        transport: transport.name(),
        options: format!("--gpu {gpu_option} --transport {transport}{named}"),
        works: missing.is_empty(),
        hardware: nvidia,
        // A GPU that opens is taken, whatever else is missing.
        chosen: nvidia == view.usable_gpu().is_some() && transport == TransportKind::of_gpu(nvidia),
        missing,
        costs: costs(view, nvidia, transport),
    }
}

/// The devices that a `Vm` would take: all ConnectX devices that are nearest to the GPU, or one of SoftRoCE. Where no
/// ConnectX is up, one that is there, for what is wrong with it.
fn devices(view: &View, transport: TransportKind) -> Vec<RdmaDevice> {
    match transport {
        TransportKind::Mlx5 => {
            let opened = view.probed.gpus.as_ref().ok().and_then(|gpus| gpus.first()?.pci);
            let gpu = opened.or(view.gpus.first().copied());
            let near = gpu.map(|gpu| view.machine.nearest_connectx(gpu)).unwrap_or_default();
            let up = view.connectx().find(|device| device.active_port().is_some());
            match near.is_empty() {
                true => up.or(view.connectx().next()).cloned().into_iter().collect(),
                false => near,
            }
        }
        TransportKind::Rxe => {
            let mut ready = view.softroce().filter(|device| rdma::is_ready(view, device));
            ready.next().cloned().into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn missing(view: &View, nvidia: bool, transport: TransportKind, devices: &[RdmaDevice]) -> Vec<String> {
    let mut needs: Vec<(bool, &str)> = match nvidia {
        true => vec![
            (view.usable_gpu().is_some(), "an NVIDIA GPU that can be used"),
            (view.probed.nvrtc.is_ok(), "NVRTC, which compiles its kernels"),
        ],
        false => vec![(
            view.probed.compiler.is_ok(),
            "a C++ compiler, which compiles its kernels",
        )],
    };
    let mut closed = Vec::new();
    match transport {
        TransportKind::Mlx5 => {
            needs.push((!devices.is_empty(), "a ConnectX NIC"));
            needs.extend(["libibverbs.so.1", "libmlx5.so.1"].map(|library| (view.has_library(library), library)));
            closed.extend(devices.iter().filter(|device| !rdma::is_ready(view, device)));
        }
        TransportKind::Rxe => needs.push((!devices.is_empty(), "a SoftRoCE device that is up")),
        _ => {}
    }
    let missing = needs
        .into_iter()
        .filter(|(met, _)| !met)
        .map(|(_, what)| what.to_owned());
    let closed = closed.into_iter().map(|device| {
        let name = &device.name;
        format!("{name} with an active port, an address and a uverbs node that this user may open")
    });
    missing.chain(closed).collect()
}

fn costs(view: &View, nvidia: bool, transport: TransportKind) -> Vec<&'static str> {
    let mut costs = match transport {
        TransportKind::Mlx5 => vec![
            "loopback: a page of this host's memory crosses PCIe twice, up to the NIC and down to the GPU; one of a memory \
             node crosses it once",
        ],
        TransportKind::Direct => vec![
            "the faulting warp copies its page over PCIe itself: each byte crosses once, and the warp computes nothing \
             meanwhile",
            "this host's memory, or a neighbour GPU's: no memory nodes",
        ],
        TransportKind::Rxe => {
            vec!["every doorbell is a system call of a proxy thread, and the kernel copies each byte through packets"]
        }
        _ if nvidia => vec![
            "a host thread executes the requests and the GPU's copy engines move the bytes: a processor is on each fault's \
             way; with --nic-engine gpu:4 a kernel does both, on four multiprocessors, which has run on simulated GPUs alone so far",
        ],
        _ => vec!["a host thread copies the pages within this process"],
    };
    if !nvidia {
        costs.push("the simulated GPU runs kernels on the processor: for correctness, not for speed");
    } else if transport == TransportKind::Mlx5 {
        costs.push(match rdma::dma_buf_works(view) {
            Some(true) => "frames in GPU memory, registered as dma-buf",
            _ if view.module_loaded("nvidia_peermem") => "frames in GPU memory, registered by nvidia-peermem",
            _ => {
                "frames in pinned host memory, since neither dma-buf nor nvidia-peermem serves: every access of a kernel \
                 crosses PCIe"
            }
        });
        costs.push(
            "where the driver does not let the GPU ring the NIC's doorbell, a host thread rings, which adds its latency to \
             each fault",
        );
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::machines::Fixture;

    fn find(fixture: &Fixture, gpu: &str, transport: &str) -> Mode {
        let modes = decide(&fixture.view()).into_iter();
        let mut all = modes.filter(|mode| mode.gpu == gpu && mode.transport == transport);
        all.next().expect("it is listed")
    }

    #[test]
    fn one_mode_is_chosen_and_comes_first() {
        for fixture in [Fixture::server(), Fixture::laptop(), Fixture::nothing()] {
            let modes = decide(&fixture.view());
            assert_eq!(modes.iter().filter(|mode| mode.chosen).count(), 1, "{modes:?}");
            assert!(modes[0].chosen);
            let gpu = if fixture.probed.gpus.is_ok() {
                "nvidia"
            } else {
                "simulated"
            };
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
            .build()
            .expect("the simulated GPU starts");
        let chosen = |fixture: Fixture| decide(&fixture.view())[0].transport;
        assert_eq!(chosen(Fixture::laptop()), vm.transport().name());
        assert_eq!(chosen(Fixture::server()), TransportKind::of_gpu(true).name());
    }

    #[test]
    fn a_verdict_needs_a_mode_that_works() {
        let status = |fixture: &Fixture| verdict(&decide(&fixture.view())).0;
        let mut server = Fixture::server();
        assert_eq!(status(&server), 0);
        server.probed.nvrtc = Err("no NVRTC".into());
        assert_eq!(status(&server), 3);
        let chosen = &decide(&server.view())[0];
        assert!(chosen.chosen && !chosen.works, "the GPU is taken, and cannot be used");
        assert_eq!(status(&Fixture::laptop()), 3);
        assert_eq!(status(&Fixture::nothing()), 4);
    }

    #[test]
    fn a_connectx_serves_both_gpus() {
        let mut server = Fixture::server();
        let mlx5 = find(&server, "nvidia", "mlx5");
        assert!(mlx5.works, "{mlx5:?}");
        assert_eq!(mlx5.options, "--gpu cuda:0 --transport mlx5 --rdma-device mlx5_0");
        assert!(
            mlx5.costs.iter().any(|cost| cost.contains("a host thread rings")),
            "{mlx5:?}"
        );
        let simulated = find(&server, "simulated", "mlx5");
        assert!(
            simulated.works && simulated.costs.iter().all(|cost| !cost.contains("frames")),
            "{simulated:?}"
        );
        server.probed.libraries.clear();
        assert_eq!(
            find(&server, "nvidia", "mlx5").missing,
            ["libibverbs.so.1", "libmlx5.so.1"]
        );
        assert_eq!(find(&Fixture::laptop(), "nvidia", "mlx5").missing[2], "a ConnectX NIC");
    }
}
