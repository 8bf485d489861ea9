//! Where devices are on PCIe, and how far from each other.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::machine::Machine;

/// The address of a PCI function: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain (segment).
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, 0 to 31.
    pub device: u8,
    /// The function of the device, 0 to 7.
    pub function: u8,
}

/// Not the address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the address of a PCI function; it looks like 0000:3b:00.0, see `lspci -D`")]
pub struct BadPciAddress(pub String);

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// `0000:3b:00.0`; NVIDIA's tools write eight digits for the domain and capital letters.
    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        let parse = || {
            let (bus_address, function) = text.trim().rsplit_once('.')?;
            let (bus_address, device) = bus_address.rsplit_once(':')?;
            let (domain, bus) = bus_address.rsplit_once(':')?;
            let digits = |text: &str, most: usize| {
                let right = (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_hexdigit());
                right.then(|| u32::from_str_radix(text, 16).ok()).flatten()
            };
            let small =
                |text: &str, limit: u32| digits(text, 2).filter(|value| *value < limit).map(|value| value as u8);
            Some(Self {
                domain: digits(domain, 8)?,
                bus: small(bus, 256)?,
                device: small(device, 32)?,
                function: small(function, 8)?,
            })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

impl fmt::Display for PciAddress {
    /// As in sysfs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Where the ways from two PCI devices to the processor meet, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PciMeeting {
    /// In a PCIe switch or another bridge: their traffic does not reach the processor (`PIX`, `PXB` of `nvidia-smi topo`).
    Bridge,
    /// In one host bridge (`PHB`).
    HostBridge,
    /// In one NUMA node, between host bridges (`NODE`).
    NumaNode,
    /// Between NUMA nodes (`SYS`), or nothing knows where.
    System,
}

/// How far two PCI devices are from each other; less is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PciDistance {
    /// Where their ways meet.
    pub(super) meeting: PciMeeting,
    /// Links from the one up to there and down to the other.
    pub(super) steps: usize,
}

impl Machine {
    /// The addresses of all PCI functions, sorted.
    pub fn pci_addresses(&self) -> Vec<PciAddress> {
        let names = self.names("sys/bus/pci/devices");
        let mut addresses: Vec<_> = names.iter().filter_map(|name| name.parse().ok()).collect();
        addresses.sort();
        addresses
    }

    /// The PCI functions of a vendor (0x10de is NVIDIA, 0x15b3 Mellanox) and of a class (2 network, 3 display), sorted.
    pub fn pci_functions(&self, vendor: u64, class: u64) -> Vec<PciAddress> {
        let mut addresses = self.pci_addresses();
        addresses.retain(|address| {
            let number = |file: &str| self.number(folder(*address).join(file));
            // Behind the class stand the subclass and the programming interface.
            number("vendor") == Some(vendor) && number("class").is_some_and(|code| code >> 16 == class)
        });
        addresses
    }

    /// The size of the largest memory window (base address register) of a PCI function in bytes, which is NVIDIA's BAR1;
    /// `None` where it has none, or sysfs does not tell.
    pub fn largest_window_bytes(&self, address: PciAddress) -> Option<u64> {
        largest_window(&self.text(folder(address).join("resource"))?)
    }

    /// How far two PCI functions are from each other; `None` where one of them is not there.
    pub(super) fn pci_distance(&self, a: PciAddress, b: PciAddress) -> Option<PciDistance> {
        let (way_a, way_b) = (self.way(a)?, self.way(b)?);
        let common = way_a.iter().zip(&way_b).take_while(|(a, b)| a == b).count();
        let meeting = match common {
            0 if self.numa_node(a) == self.numa_node(b) => PciMeeting::NumaNode,
            0 => PciMeeting::System,
            1 => PciMeeting::HostBridge,
            _ => PciMeeting::Bridge,
        };
        let steps = way_a.len() + way_b.len() - 2 * common;
        Some(PciDistance { meeting, steps })
    }

    fn numa_node(&self, address: PciAddress) -> Option<u32> {
        // -1 where the firmware does not tell.
        self.text(folder(address).join("numa_node"))?.parse().ok()
    }

    /// `pci0000:00`, the bridges' names, the function's name.
    fn way(&self, address: PciAddress) -> Option<Vec<String>> {
        let path = self.path(folder(address)).canonicalize().ok()?;
        let names = path.iter().filter_map(|name| name.to_str().map(str::to_owned));
        // The host bridge's folder may lie in others, as on machines described by a device tree.
        let way: Vec<_> = names.skip_while(|name| !is_host_bridge(name)).collect();
        (way.len() > 1).then_some(way)
    }
}

fn folder(address: PciAddress) -> PathBuf {
    Path::new("sys/bus/pci/devices").join(address.to_string())
}

/// `pci0000:00`.
fn is_host_bridge(name: &str) -> bool {
    name.strip_prefix("pci")
        .and_then(|name| name.split_once(':'))
        .is_some_and(|(domain, bus)| {
            [domain, bus]
                .into_iter()
                .all(|part| u32::from_str_radix(part, 16).is_ok())
        })
}

/// The last PCI function on a path: that of a device that is part of one, too.
pub(super) fn last_address(path: &Path) -> Option<PciAddress> {
    let names = path.iter().filter_map(|name| name.to_str());
    names.filter_map(|name| name.parse().ok()).next_back()
}

/// The largest of the first six lines `start end flags` of a `resource` file.
pub(super) fn largest_window(text: &str) -> Option<u64> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let sizes = text.lines().take(6).filter_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        let (start, end) = (hex(start)?, hex(rest.split(' ').next()?)?);
        (end > start).then(|| (end - start).saturating_add(1))
    });
    sizes.max()
}
