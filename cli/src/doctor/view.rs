//! The machine as the checks see it: its files, and what libraries and drivers answered.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use gpuvm::sim;
use gpuvm_gpu::cuda::{self, CAPABILITY_MIN, PeerInfo};
use gpuvm_nic::devices::{DeviceKind, Machine, PciAddress, RdmaDevice, loadable};
use gpuvm_nic::with_causes;

/// The verbs libraries.
pub const VERBS_LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1"];

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
    /// Whether its memory can be a dma-buf.
    pub dma_buf: bool,
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
    /// The library of GPUDirect Storage, where it is.
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
    GpuFacts {
        ordinal: device.ordinal,
        name: device.name,
        compute_capability: device.compute_capability,
        memory_bytes: device.memory_bytes,
        pci: device.for_nics.pci_address.parse().ok(),
        dma_buf: device.for_nics.dma_buf,
    }
}

/// NVIDIA's kernel driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its version, such as 570.86.15.
    pub version: Option<String>,
    /// Whether its kernel modules are the open ones; `None` where that cannot be told.
    pub open: Option<bool>,
}

impl Driver {
    /// Which kernel modules run: `open`, `proprietary`, or `unknown`.
    pub fn flavour(&self) -> &'static str {
        match self.open {
            Some(true) => "open",
            Some(false) => "proprietary",
            None => "unknown",
        }
    }
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
    /// NVIDIA's kernel driver.
    pub driver: Option<Driver>,
    /// NVIDIA GPUs on PCIe, with a driver or without.
    pub gpus: Vec<PciAddress>,
    /// RDMA devices, SoftRoCE among them.
    pub rdma: Vec<RdmaDevice>,
}

impl View {
    /// Looks.
    pub fn new(machine: Machine, probed: Probed) -> Self {
        Self {
            release: machine.line("proc/sys/kernel/osrelease").unwrap_or_default(),
            driver: driver(&machine),
            // Display controllers; the same card's sound device is none.
            gpus: machine.pci_functions(0x10de, 3),
            rdma: machine.rdma_devices(),
            machine,
            probed,
        }
    }

    /// The GPU that a `Vm` opens, if it is new enough.
    pub fn usable_gpu(&self) -> Option<&GpuFacts> {
        let first = self.probed.gpus.as_ref().ok()?.first()?;
        (first.compute_capability >= CAPABILITY_MIN).then_some(first)
    }

    /// RDMA devices that are hardware.
    pub fn nics(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|device| device.kind != DeviceKind::Rxe)
    }

    /// NICs that GPU threads could drive.
    pub fn connectx(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|device| device.kind == DeviceKind::Mlx5)
    }

    /// SoftRoCE devices.
    pub fn softroce(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|device| device.kind == DeviceKind::Rxe)
    }

    /// Whether a GPU and a ConnectX are there, so that what stands between them matters.
    pub fn has_pair(&self) -> bool {
        !self.gpus.is_empty() && self.connectx().next().is_some()
    }

    /// Whether this user may open a device node to read and write.
    pub fn can_open(&self, node: impl AsRef<Path>) -> bool {
        let path = self.machine.path(node);
        OpenOptions::new().read(true).write(true).open(path).is_ok()
    }

    /// Whether one of the verbs libraries can be loaded.
    pub fn has_library(&self, wanted: &str) -> bool {
        let mut libraries = self.probed.libraries.iter();
        libraries.any(|(name, file)| *name == wanted && file.is_some())
    }

    /// Whether the running kernel has a module loaded.
    pub fn module_loaded(&self, name: &str) -> bool {
        self.machine.has(format!("sys/module/{name}"))
    }
}

fn driver(machine: &Machine) -> Option<Driver> {
    let text = machine.line("proc/driver/nvidia/version");
    let module = machine.line("sys/module/nvidia/version");
    if text.is_none() && module.is_none() {
        return None;
    }
    // `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...`
    let line = text.filter(|line| line.contains("NVRM"));
    let word = line
        .iter()
        .flat_map(|line| line.split_whitespace())
        .find(|word| is_version(word));
    // P: its licence is not one that the kernel takes for free.
    let taint = machine.text("sys/module/nvidia/taint");
    Some(Driver {
        version: word.map(str::to_owned).or(module).filter(|version| is_version(version)),
        open: match &line {
            Some(line) => Some(line.contains("Open Kernel Module")),
            None => taint.map(|taint| !taint.contains('P')),
        },
    })
}

fn is_version(word: &str) -> bool {
    word.contains('.') && word.bytes().all(|sign| sign.is_ascii_digit() || sign == b'.')
}
