//! Machines made of files.

use std::path::PathBuf;

use gpuvm_nic::devices::tree::Tree;
use tempfile::TempDir;

use crate::doctor::view::{GpuFacts, Probed, VERBS_LIBRARIES, View};

pub const GPU_WAY: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
pub const NIC_WAY: &str = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";
pub const GPU: [&str; 3] = ["0x10de", "0x2335", "0x030200"];
pub const NIC: [&str; 3] = ["0x15b3", "0x1021", "0x020000"];
const OPEN: &str =
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n";
pub const PROPRIETARY: &str =
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n";

/// A machine, and what its libraries answer.
pub struct Fixture {
    _folder: TempDir,
    pub tree: Tree,
    pub probed: Probed,
}

impl Fixture {
    /// Neither files nor libraries.
    pub fn nothing() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            tree: Tree::new(folder.path()),
            _folder: folder,
            probed: Probed {
                gpus: Err("no NVIDIA driver".into()),
                peers: Err("no NVIDIA driver".into()),
                cuda: None,
                nvrtc: Err("no NVRTC".into()),
                compiler: Err("no compiler".into()),
                libraries: VERBS_LIBRARIES.map(|name| (name, None)).into(),
                io_uring: Err("Operation not permitted (os error 1)".into()),
                cufile: None,
                nvidia_fs: false,
            },
        }
    }

    /// A kernel, a C++ compiler, and a user without rights.
    pub fn laptop() -> Self {
        let mut fixture = Self::nothing();
        fixture.probed.compiler = Ok("g++ (Debian 12.2.0-14) 12.2.0".into());
        fixture.probed.io_uring = Ok(());
        fixture
            .tree
            .file("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
            .file("proc/self/status", "Name:\tgpuvm\nCapEff:\t0000000000000000\n")
            .file("proc/self/limits", limits("8388608"));
        fixture
    }

    /// An H200 and a ConnectX-7 below one switch, all well.
    pub fn server() -> Self {
        let mut fixture = Self::laptop();
        let tree = &fixture.tree;
        let gpu = tree.pci(GPU_WAY, GPU, Some("nvidia"), 0);
        let (start, end) = (1u64 << 40, (1u64 << 40) + (256 << 30) - 1);
        let windows = format!("0x0 0xffffff 0x1\n0x0 0x0 0x0\n{start:#x} {end:#x} 0x1\n");
        tree.file(&format!("{gpu}/resource"), windows);
        let nic = tree.pci(NIC_WAY, NIC, Some("mlx5_core"), 0);
        tree.rdma(&nic, "mlx5_0", 0, "eth0");
        tree.file("proc/driver/nvidia/version", OPEN)
            .file("sys/module/nvidia/version", "570.86.15\n")
            .file("proc/self/limits", limits("unlimited"));
        for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "infiniband/rdma_cm"] {
            tree.file(&format!("dev/{node}"), "");
        }
        fixture.probed.gpus = Ok(vec![GpuFacts {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            memory_bytes: 141 << 30,
            pci: "0000:18:00.0".parse().ok(),
            dma_buf: true,
        }]);
        fixture.probed.peers = Ok(Vec::new());
        fixture.probed.cuda = Some((12, 8));
        fixture.probed.nvrtc = Ok((12, 8));
        let file = |name: &str| PathBuf::from(format!("/usr/lib/x86_64-linux-gnu/{name}.25.56.0"));
        fixture.probed.libraries = VERBS_LIBRARIES.map(|name| (name, Some(file(name)))).into();
        fixture
    }

    pub fn gpu(&mut self) -> &mut GpuFacts {
        &mut self.probed.gpus.as_mut().expect("it has one")[0]
    }

    pub fn view(&self) -> View {
        View::new(self.tree.machine(), self.probed.clone())
    }
}

pub fn limits(memlock: &str) -> String {
    format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max processes             95939                95939                processes \n\
         Max locked memory         {memlock:<20} {memlock:<20} bytes     \n"
    )
}
