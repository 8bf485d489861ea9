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
pub enum PciMeeting {
    /// In a PCIe switch or another bridge: their traffic does not reach the processor (`PIX`, `PXB` of `nvidia-smi topo`).
    Bridge,
    /// In one host bridge (`PHB`).
    HostBridge,
    /// In one NUMA node, between host bridges (`NODE`).
    NumaNode,
    /// Between NUMA nodes (`SYS`), or nobody knows where.
    System,
}

/// How far two PCI devices are from each other; less is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciDistance {
    /// Where their ways meet.
    pub meeting: PciMeeting,
    /// Links from the one up to there and down to the other.
    pub steps: u32,
}

/// What a PCIe link does and could do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkSpeed {
    /// Billions of transfers a second on each lane now.
    pub gt_per_s: Option<f64>,
    /// The most that the device can.
    pub gt_per_s_max: Option<f64>,
    /// Lanes now.
    pub width: Option<u32>,
    /// The most that the device has.
    pub width_max: Option<u32>,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq)]
pub struct PciDevice {
    /// Its address.
    pub address: PciAddress,
    /// Vendor: 0x10de is NVIDIA, 0x15b3 Mellanox.
    pub vendor: Option<u16>,
    /// Device.
    pub device: Option<u16>,
    /// Class, subclass and programming interface: 0x0302xx is a 3D controller.
    pub class: Option<u32>,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Its NUMA node, where the firmware tells.
    pub numa_node: Option<u32>,
    /// Its link.
    pub link: LinkSpeed,
    /// The sizes of its base address registers 0 to 5 in bytes, 0 for one that it does not have. NVIDIA's BAR1 is the
    /// second memory window: register 1, or 2 after one of 64 bits.
    pub bar_bytes: [u64; 6],
}

impl Machine {
    /// The addresses of all PCI functions, sorted.
    pub fn pci_addresses(&self) -> Vec<PciAddress> {
        let names = self.names("sys/bus/pci/devices");
        let mut addresses: Vec<_> = names.iter().filter_map(|name| name.parse().ok()).collect();
        addresses.sort();
        addresses
    }

    /// One PCI function.
    pub fn pci_device(&self, address: PciAddress) -> Option<PciDevice> {
        let folder = folder(address);
        if !self.has(&folder) {
            return None;
        }
        let number = |file: &str| {
            self.number(folder.join(file))
                .and_then(|value| u32::try_from(value).ok())
        };
        let speed = |file: &str| self.text(folder.join(file)).and_then(|text| parse_speed(&text));
        let short = |file: &str| number(file).and_then(|value| u16::try_from(value).ok());
        Some(PciDevice {
            address,
            vendor: short("vendor"),
            device: short("device"),
            class: number("class"),
            driver: self.link_name(folder.join("driver")),
            numa_node: self.numa_node(address),
            link: LinkSpeed {
                gt_per_s: speed("current_link_speed"),
                gt_per_s_max: speed("max_link_speed"),
                // 63 lanes is how an unknown width reads.
                width: number("current_link_width").filter(|lanes| (1..=32).contains(lanes)),
                width_max: number("max_link_width").filter(|lanes| (1..=32).contains(lanes)),
            },
            bar_bytes: parse_bars(&self.text(folder.join("resource")).unwrap_or_default()),
        })
    }

    /// The bridges above a PCI function, from the host bridge's port down; without the function itself.
    pub fn pci_bridges(&self, address: PciAddress) -> Vec<PciAddress> {
        let mut way = self.way(address).unwrap_or_default();
        way.pop();
        way.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// How far two PCI functions are from each other; `None` where one of them is not there.
    pub fn pci_distance(&self, a: PciAddress, b: PciAddress) -> Option<PciDistance> {
        let (way_a, way_b) = (self.way(a)?, self.way(b)?);
        let common = way_a.iter().zip(&way_b).take_while(|(a, b)| a == b).count();
        let meeting = match common {
            0 if self.numa_node(a) == self.numa_node(b) => PciMeeting::NumaNode,
            0 => PciMeeting::System,
            1 => PciMeeting::HostBridge,
            _ => PciMeeting::Bridge,
        };
        let steps = way_a.len() + way_b.len() - 2 * common;
        Some(PciDistance {
            meeting,
            steps: steps as u32,
        })
    }

    pub(super) fn numa_node(&self, address: PciAddress) -> Option<u32> {
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

/// `32.0 GT/s PCIe`.
pub(super) fn parse_speed(text: &str) -> Option<f64> {
    let (number, rest) = text.split_once(' ')?;
    let speed: f64 = number.parse().ok()?;
    (rest.starts_with("GT/s") && speed > 0.0 && speed < 1e4).then_some(speed)
}

/// The first six lines `start end flags` of a `resource` file.
pub(super) fn parse_bars(text: &str) -> [u64; 6] {
    let mut bars = [0; 6];
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    for (bar, line) in bars.iter_mut().zip(text.lines()) {
        let mut numbers = line.split_ascii_whitespace().map(hex);
        if let (Some(Some(start)), Some(Some(end))) = (numbers.next(), numbers.next())
            && end > start
        {
            *bar = (end - start).saturating_add(1);
        }
    }
    bars
}
