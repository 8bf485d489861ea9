//! RDMA devices of this machine, as sysfs shows them: neither a library nor an open device is needed for it.
//!
//! Everything is read below the root of a [`Machine`], so that tests, and whoever has a copy of another machine's
//! `/sys` and `/proc`, can look at what is not there. Nothing here fails: what cannot be read is `None` or absent.

mod libraries;
mod pci;
mod port;
#[cfg(test)]
mod tests;
pub mod tree;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use libraries::loadable;
use pci::PciDistance;
pub use pci::{BadPciAddress, PciAddress};
pub use port::{Gid, GidKind, LinkLayer, PortState, RdmaPort};

/// Most of a file that is looked at: all that is of interest fits, the list of a kernel's modules too.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// Bytes that RoCE puts around a packet's payload, rounded up as `rdma_rxe` does.
const RXE_HEADER_BYTES: u32 = 80;
/// Bytes that RoCE puts around a payload as the kernel's core counts them for every other device (`iboe_get_mtu`).
const ROCE_HEADER_BYTES: u32 = 96;

/// Where a machine's `/sys`, `/proc`, `/dev` and `/lib` lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    root: PathBuf,
}

impl Default for Machine {
    /// This machine.
    fn default() -> Self {
        Self::at("/")
    }
}

impl Machine {
    /// The machine whose files lie below `root`, `/` for this one.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The place of an absolute path below the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is something at that path.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The first 4 MiB of a regular file's text, without white space around it.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = self.path(path);
        // A pipe would hold the reader for ever.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        let file = File::open(path).ok()?;
        file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8(bytes).ok()?.trim().to_owned())
    }

    /// The first line of a file, which is all of it where the kernel writes one word; `None` for an empty one.
    pub fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        Some(text.lines().next()?.trim_end().to_owned())
    }

    /// A file's number, decimal or hexadecimal after `0x`.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, sorted.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = self.path(folder).read_dir().into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The last name in a link's target.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = self.path(path).read_link().ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The effective capabilities of this process, one bit each (`capabilities(7)`).
    pub fn effective_capabilities(&self) -> Option<u64> {
        let status = self.text("proc/self/status")?;
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    }

    /// The names of the RDMA devices, sorted.
    pub fn rdma_names(&self) -> Vec<String> {
        self.names("sys/class/infiniband")
    }

    /// The RDMA devices, by name.
    pub fn rdma_devices(&self) -> Vec<RdmaDevice> {
        self.rdma_names()
            .into_iter()
            .map(|name| self.read_device(name))
            .collect()
    }

    /// One RDMA device.
    pub fn rdma_device(&self, name: &str) -> Option<RdmaDevice> {
        let name = self.rdma_names().into_iter().find(|found| found == name)?;
        Some(self.read_device(name))
    }

    /// The RDMA devices behind PCIe, the nearest to the PCI device `from` first; those of unknown distance last.
    fn nics_by_distance(&self, from: PciAddress) -> Vec<(RdmaDevice, Option<PciDistance>)> {
        let devices = self.rdma_devices().into_iter();
        let mut near: Vec<_> = devices
            .filter_map(|device| Some((device.pci?, device)))
            .map(|(pci, device)| (device, self.pci_distance(from, pci)))
            .collect();
        near.sort_by_key(|(_, distance)| (distance.is_none(), *distance));
        near
    }

    /// The ConnectX devices with an active port that are nearest to the PCI device `to`, all at one distance.
    pub fn nearest_connectx(&self, to: PciAddress) -> Vec<RdmaDevice> {
        let near = self.nics_by_distance(to).into_iter();
        let mut near = near.filter(|(nic, _)| nic.kind == DeviceKind::Mlx5 && nic.active_port().is_some());
        let Some((first, distance)) = near.next() else {
            return Vec::new();
        };
        let others = near.take_while(|(_, other)| distance.is_some() && *other == distance);
        std::iter::once(first).chain(others.map(|(nic, _)| nic)).collect()
    }

    fn read_device(&self, name: String) -> RdmaDevice {
        let folder = Path::new("sys/class/infiniband").join(&name);
        let parent = self.line(folder.join("parent"));
        let driver = self.link_name(folder.join("device/driver"));
        let kind = match (&driver, &parent) {
            (Some(driver), _) if driver.starts_with("mlx5_core") => DeviceKind::Mlx5,
            (Some(driver), _) => DeviceKind::Other(driver.clone()),
            (None, Some(_)) => DeviceKind::Rxe,
            (None, None) => DeviceKind::Other("unknown".to_owned()),
        };
        let beside = || self.names(folder.join("device/net")).into_iter().next();
        let interface = parent.or_else(beside);
        let pci = self
            .path(folder.join("device"))
            .canonicalize()
            .ok()
            .and_then(|path| pci::last_address(&path));
        let words = |file: &str| self.line(folder.join(file));
        RdmaDevice {
            firmware: words("fw_ver"),
            board: words("board_id"),
            model: words("hca_type"),
            ports: self.read_ports(&folder, interface.as_deref()),
            uverbs: self.uverbs_of(&name),
            pci,
            interface,
            kind,
            name,
        }
    }

    fn uverbs_of(&self, name: &str) -> Option<PathBuf> {
        let folder = Path::new("sys/class/infiniband_verbs");
        let nodes = self.names(folder).into_iter();
        nodes
            .filter(|node| self.text(folder.join(node).join("ibdev")).as_deref() == Some(name))
            .map(|node| Path::new("/dev/infiniband").join(node))
            .next()
    }
}

/// What drives an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A ConnectX or BlueField, by `mlx5_core`.
    Mlx5,
    /// Linux SoftRoCE, by `rdma_rxe`.
    Rxe,
    /// Anything else: the driver's name.
    Other(String),
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// What drives it.
    pub kind: DeviceKind,
    /// The firmware's version.
    pub firmware: Option<String>,
    /// The board's type (PSID).
    pub board: Option<String>,
    /// The chip, such as `MT4129`.
    pub model: Option<String>,
    /// Its ports, by number.
    pub ports: Vec<RdmaPort>,
    /// `/dev/infiniband/uverbsN`; `None` where `ib_uverbs` is not loaded.
    pub uverbs: Option<PathBuf>,
    /// Where it is on PCIe; `None` for SoftRoCE.
    pub pci: Option<PciAddress>,
    /// The network interface that it belongs to, or lies over.
    pub interface: Option<String>,
}

impl RdmaDevice {
    /// The first port that is active.
    pub fn active_port(&self) -> Option<&RdmaPort> {
        self.ports.iter().find(|port| port.state == PortState::Active)
    }

    /// The largest path MTU in bytes that fits the port's network interface: 256 to 4096. `None` for InfiniBand, whose
    /// MTU sysfs does not tell, and for an interface without an MTU.
    pub fn path_mtu_bytes(&self, port: &RdmaPort) -> Option<u32> {
        if port.link_layer != LinkLayer::Ethernet {
            return None;
        }
        let header_bytes = match self.kind {
            DeviceKind::Rxe => RXE_HEADER_BYTES,
            DeviceKind::Mlx5 | DeviceKind::Other(_) => ROCE_HEADER_BYTES,
        };
        let room = port.interface_mtu?.saturating_sub(header_bytes);
        Some(
            [4096, 2048, 1024, 512]
                .into_iter()
                .find(|mtu| *mtu <= room)
                .unwrap_or(256),
        )
    }
}
