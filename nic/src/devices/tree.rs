//! Machines made of files, for tests of what looks at machines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::machine::Machine;

/// A folder that looks like the root of a machine. Its methods panic where the file system refuses: they are for tests.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The machine in that folder, empty at first.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// As the readers see it.
    pub fn machine(&self) -> Machine {
        Machine::at(&self.root)
    }

    /// A file with that content; folders on the way are made.
    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        fs::write(path, content).expect("a file");
        self
    }

    /// Takes a file or a folder away.
    pub fn remove(&self, path: &str) -> &Self {
        let path = self.root.join(path);
        let removed = match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        };
        removed.expect("it was there");
        self
    }

    /// A relative link, as sysfs has them, to a path below the root.
    pub fn link(&self, path: &str, target: &str) -> &Self {
        let up = "../".repeat(Path::new(path).components().count() - 1);
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        symlink(format!("{up}{target}"), path).expect("a link");
        self
    }

    /// A PCI function at `way` below `sys/devices`, such as `pci0000:00/0000:00:01.0/0000:01:00.0`, with `vendor`,
    /// `device` and `class` as sysfs writes them, and its driver. Returns its folder.
    pub fn pci(&self, way: &str, ids: [&str; 3], driver: Option<&str>, numa_node: i32) -> String {
        let folder = format!("sys/devices/{way}");
        for (file, text) in ["vendor", "device", "class"].into_iter().zip(ids) {
            self.file(&format!("{folder}/{file}"), format!("{text}\n"));
        }
        self.file(&format!("{folder}/numa_node"), format!("{numa_node}\n"));
        let name = way.rsplit('/').next().unwrap_or(way);
        self.link(&format!("sys/bus/pci/devices/{name}"), &folder);
        if let Some(driver) = driver {
            self.link(&format!("{folder}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
        }
        folder
    }

    /// An RDMA device `name` whose folders lie in `device` (a PCI function, or `sys/devices/virtual` for SoftRoCE), as
    /// number `index` of the uverbs devices, with one port for RoCE over `interface`.
    pub fn rdma(&self, device: &str, name: &str, index: u32, interface: &str) -> String {
        let folder = format!("{device}/infiniband/{name}");
        let port = format!("{folder}/ports/1");
        self.file(&format!("{folder}/fw_ver"), "28.43.1014\n")
            .file(&format!("{folder}/hca_type"), "MT4129\n")
            .file(&format!("{folder}/board_id"), "MT_0000000838\n")
            .file(&format!("{port}/state"), "4: ACTIVE\n")
            .file(&format!("{port}/link_layer"), "Ethernet\n")
            .file(&format!("{port}/rate"), "400 Gb/sec (4X NDR)\n");
        let gids = [
            ("fe80:0000:0000:0000:a288:c2ff:fe12:3456", "IB/RoCE v1"),
            ("fe80:0000:0000:0000:a288:c2ff:fe12:3456", "RoCE v2"),
            ("0000:0000:0000:0000:0000:ffff:0a09:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2"),
            ("0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ];
        for (at, (gid, kind)) in gids.into_iter().enumerate() {
            self.file(&format!("{port}/gids/{at}"), format!("{gid}\n"));
            if !kind.is_empty() {
                self.file(&format!("{port}/gid_attrs/types/{at}"), format!("{kind}\n"))
                    .file(&format!("{port}/gid_attrs/ndevs/{at}"), format!("{interface}\n"));
            }
        }
        self.link(&format!("sys/class/infiniband/{name}"), &folder);
        if !self.machine().has(format!("sys/class/net/{interface}")) {
            let net = format!("{device}/net/{interface}");
            self.file(&format!("{net}/mtu"), "9000\n")
                .link(&format!("sys/class/net/{interface}"), &net);
        }
        let node = format!("sys/class/infiniband_verbs/uverbs{index}");
        self.file(&format!("{node}/ibdev"), format!("{name}\n"))
            .file(&format!("dev/infiniband/uverbs{index}"), "");
        if !device.ends_with("virtual") {
            self.link(&format!("{folder}/device"), device);
        }
        folder
    }

    /// A SoftRoCE device over `interface`.
    pub fn rxe(&self, name: &str, index: u32, interface: &str) -> String {
        let folder = self.rdma("sys/devices/virtual", name, index, interface);
        for file in ["fw_ver", "hca_type", "board_id"] {
            self.file(&format!("{folder}/{file}"), "\n");
        }
        self.file(&format!("{folder}/parent"), format!("{interface}\n"))
            .file(&format!("{folder}/ports/1/rate"), "2.5 Gb/sec (1X SDR)\n");
        folder
    }
}
