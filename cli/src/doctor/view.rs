//! The machine as the checks see it: its files, and what libraries and drivers answered.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use gpuvm::sim;
use gpuvm_gpu::cuda::{self, PeerInfo};
use gpuvm_nic::devices::{DeviceKind, Machine, PciAddress, RdmaDevice, loadable};
use gpuvm_nic::with_causes;

/// The verbs libraries.
pub const VERBS_LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1"];

/// `CAP_NET_ADMIN`, `CAP_IPC_LOCK`, `CAP_SYS_RAWIO`, `CAP_SYS_ADMIN`.
pub const NET_ADMIN: u32 = 12;
/// See [`NET_ADMIN`].
pub const IPC_LOCK: u32 = 14;
/// See [`NET_ADMIN`].
pub const SYS_RAWIO: u32 = 17;
/// See [`NET_ADMIN`].
pub const SYS_ADMIN: u32 = 21;

/// A GPU as its driver tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuFacts {
    /// CUDA's number.
    pub ordinal: u32,
    /// The product.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// Its memory.
    pub memory_bytes: u64,
    /// Its place on PCIe.
    pub pci: Option<PciAddress>,
    /// Whether a NIC can reach its memory.
    pub rdma: Option<bool>,
    /// Whether its memory can be a dma-buf.
    pub dma_buf: Option<bool>,
    /// For whom a NIC's writes are ordered without a flush: 0 for nobody, 100 for this GPU, 200 for all.
    pub writes_ordered_for: Option<u32>,
}

/// What is not in files.
#[derive(Clone, Debug)]
pub struct Probed {
    /// The GPUs, or why there are none.
    pub gpus: Result<Vec<GpuFacts>, String>,
    /// Pairs of GPUs in both directions, or why they are not known.
    pub peers: Result<Vec<PeerInfo>, String>,
    /// CUDA's version that `libcuda` has; `None` without the library.
    pub cuda: Option<(u32, u32)>,
    /// NVRTC's version, or what is wrong.
    pub nvrtc: Result<(u32, u32), String>,
    /// The first line of the C++ compiler's version, or what is wrong.
    pub compiler: Result<String, String>,
    /// [`VERBS_LIBRARIES`] and where they are.
    pub libraries: Vec<(&'static str, Option<PathBuf>)>,
    /// Why this process cannot use io_uring, if it cannot.
    pub io_uring: Result<(), String>,
    /// [cuFile](cuda::cufile::LIBRARY), where it is.
    pub cufile: Option<PathBuf>,
    /// The kernel's module for it is loaded.
    pub nvidia_fs: bool,
}

impl Probed {
    /// Asks this machine.
    pub fn here() -> Self {
        let gpus = cuda::devices().map(|devices| devices.into_iter().map(gpu_facts).collect());
        Self {
            gpus: gpus.map_err(|error| with_causes(&error)),
            peers: cuda::peers().map_err(|error| with_causes(&error)),
            cuda: cuda::driver_version().ok(),
            nvrtc: cuda::nvrtc_version().map_err(|error| with_causes(&error)),
            compiler: sim::compiler_version().map_err(|error| with_causes(&error)),
            libraries: VERBS_LIBRARIES.map(|name| (name, loadable(name))).into(),
            io_uring: gpuvm_files::try_io_uring().map_err(|error| error.to_string()),
            cufile: loadable(cuda::cufile::LIBRARY).or_else(cuda::cufile::library_file),
            nvidia_fs: Path::new(cuda::cufile::MODULE).exists(),
        }
    }
}

fn gpu_facts(device: cuda::DeviceInfo) -> GpuFacts {
    let ability = device.for_nics;
    GpuFacts {
        ordinal: device.ordinal,
        name: device.name,
        compute_capability: device.compute_capability,
        memory_bytes: device.memory_bytes,
        pci: ability.pci_address.parse().ok(),
        rdma: Some(ability.rdma),
        dma_buf: Some(ability.dma_buf),
        writes_ordered_for: Some(ability.writes_ordered_for),
    }
}

/// Which of NVIDIA's kernel modules runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// The open ones.
    Open,
    /// The closed ones.
    Proprietary,
    /// It cannot be told.
    Unknown,
}

/// NVIDIA's kernel driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as 570.86.15.
    pub version: Option<String>,
    /// Which one it is.
    pub flavour: Flavour,
}

/// All that the checks look at.
#[derive(Debug)]
pub struct View {
    /// The files.
    pub machine: Machine,
    /// What is not in files.
    pub probed: Probed,
    /// The kernel's release as it calls itself.
    pub release: String,
    /// Its first two numbers.
    pub kernel: Option<(u32, u32)>,
    /// NVIDIA's kernel driver.
    pub driver: Option<Driver>,
    /// NVIDIA GPUs on PCIe, with a driver or without.
    pub gpus: Vec<PciAddress>,
    /// RDMA devices, SoftRoCE among them.
    pub rdma: Vec<RdmaDevice>,
    /// Effective capabilities.
    pub capabilities: Option<u64>,
}

impl View {
    /// Looks.
    pub fn new(machine: Machine, probed: Probed) -> Self {
        let release = machine.line("proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: two_numbers(&release),
            driver: driver(&machine),
            gpus: nvidia_gpus(&machine),
            rdma: machine.rdma_devices(),
            capabilities: machine.effective_capabilities(),
            release,
            machine,
            probed,
        }
    }

    /// RDMA devices that are hardware.
    pub fn nics(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|device| device.kind != DeviceKind::Rxe)
    }

    /// Whether there is a NIC that GPU threads could drive.
    pub fn has_mlx5(&self) -> bool {
        self.rdma.iter().any(|device| device.kind == DeviceKind::Mlx5)
    }

    /// The PCI addresses of the hardware RDMA devices.
    pub fn nic_addresses(&self) -> Vec<PciAddress> {
        self.nics().filter_map(|device| device.pci).collect()
    }

    /// Whether a GPU and a ConnectX are there, so that what stands between them matters.
    pub fn has_pair(&self) -> bool {
        !self.gpus.is_empty() && self.has_mlx5()
    }

    /// The PCI address of the GPU that a `Vm` opens; without a driver, of the first.
    pub fn first_gpu(&self) -> Option<PciAddress> {
        let first = self.probed.gpus.as_ref().ok().and_then(|gpus| gpus.first()?.pci);
        first.or(self.gpus.first().copied())
    }

    /// Whether this user may open a device node to read and write.
    pub fn can_open(&self, node: &Path) -> bool {
        let path = self.machine.path(node);
        OpenOptions::new().read(true).write(true).open(path).is_ok()
    }

    /// Whether the folder of the kernel's modules can be seen: a container has none.
    pub fn modules_visible(&self) -> bool {
        self.machine.has(format!("lib/modules/{}/modules.dep", self.release))
    }

    /// Whether the process has a capability; `None` where that cannot be told.
    pub fn may(&self, capability: u32) -> Option<bool> {
        self.capabilities.map(|mask| mask >> capability & 1 == 1)
    }

    /// The kernel is that one or newer; `None` where its version is unknown.
    pub fn kernel_from(&self, version: (u32, u32)) -> Option<bool> {
        self.kernel.map(|kernel| kernel >= version)
    }

    /// Whether the running kernel has a module, loaded or built in.
    pub fn module_loaded(&self, name: &str) -> bool {
        self.machine.has(format!("sys/module/{name}")) || self.module_listed("modules.builtin", name)
    }

    /// Whether the kernel's folder has a module.
    pub fn module_there(&self, name: &str) -> bool {
        self.module_loaded(name) || self.module_listed("modules.dep", name)
    }

    fn module_listed(&self, list: &str, name: &str) -> bool {
        let text = self.machine.text(format!("lib/modules/{}/{list}", self.release));
        // Files have either of both signs between words.
        let names = [name.to_owned(), name.replace('_', "-")];
        let is_it = |line: &str| {
            let file = line.split(':').next().unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or_default();
            names.iter().any(|name| {
                file.strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.starts_with(".ko"))
            })
        };
        text.is_some_and(|text| text.lines().any(is_it))
    }

    /// What kind of container this is in, as far as one can see.
    pub fn container(&self) -> Option<String> {
        if let Some(kind) = self.machine.line("run/systemd/container") {
            return Some(kind);
        }
        for (file, kind) in [(".dockerenv", "docker"), ("run/.containerenv", "podman")] {
            if self.machine.has(file) {
                return Some(kind.to_owned());
            }
        }
        let groups = self.machine.text("proc/1/cgroup").unwrap_or_default();
        let kinds = ["docker", "kubepods", "containerd", "libpod", "lxc"];
        kinds
            .iter()
            .find(|kind| groups.contains(**kind))
            .map(|kind| (*kind).to_owned())
    }
}

/// The first two numbers of `6.8.0-45-generic`.
fn two_numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn nvidia_gpus(machine: &Machine) -> Vec<PciAddress> {
    let functions = machine.pci_addresses().into_iter();
    functions
        .filter(|address| {
            let device = machine.pci_device(*address);
            // Display controllers; the same card's sound device is none.
            device.is_some_and(|device| {
                device.vendor == Some(0x10de) && device.class.is_some_and(|class| class >> 16 == 3)
            })
        })
        .collect()
}

fn driver(machine: &Machine) -> Option<Driver> {
    let text = machine.text("proc/driver/nvidia/version");
    // `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...`
    let line = text.as_deref().and_then(|text| text.lines().next()).unwrap_or_default();
    let word = line.split_whitespace().find(|word| is_version(word));
    let module = machine.line("sys/module/nvidia/version");
    if text.is_none() && module.is_none() {
        return None;
    }
    // P: its licence is not one that the kernel takes for free.
    let taint = machine.text("sys/module/nvidia/taint");
    let flavour = match (line.contains("NVRM"), taint) {
        (true, _) if line.contains("Open Kernel Module") => Flavour::Open,
        (true, _) => Flavour::Proprietary,
        (false, Some(taint)) if taint.contains('P') => Flavour::Proprietary,
        (false, Some(_)) => Flavour::Open,
        (false, None) => Flavour::Unknown,
    };
    let version = word.map(str::to_owned).or(module).filter(|version| is_version(version));
    Some(Driver { version, flavour })
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.bytes().all(|sign| sign.is_ascii_digit() || sign == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_two_numbers() {
        for (text, numbers) in [
            ("6.8.0-45-generic", Some((6, 8))),
            ("5.12", Some((5, 12))),
            ("6.12-rc1", Some((6, 12))),
            ("", None),
            ("linux", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(two_numbers(text), numbers, "{text}");
        }
    }
}
