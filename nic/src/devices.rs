//! RDMA devices of this machine, as sysfs shows them: neither a library nor an open device is needed for it.
//!
//! Everything is read below the root of a [`Machine`], so that tests, and users with a copy of another machine's
//! `/sys` and `/proc`, can look at what is not there. Nothing here fails: what cannot be read is `None` or absent.

mod libraries;
mod machine;
mod pci;
mod port;
#[cfg(test)]
mod tests;
pub mod tree;

use std::path::{Path, PathBuf};

pub use libraries::loadable;
pub use machine::Machine;
use pci::PciDistance;
pub use pci::{BadPciAddress, PciAddress};
pub use port::{Gid, GidKind, LinkLayer, PortState, RdmaPort};

/// Bytes that RoCE puts around a packet's payload, rounded up as `rdma_rxe` does.
const RXE_HEADER_BYTES: u32 = 80;
/// Bytes that RoCE puts around a payload as the kernel's core counts them for every other device (`iboe_get_mtu`).
const ROCE_HEADER_BYTES: u32 = 96;

impl Machine {
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
