//! Ports of RDMA devices and their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::machine::Machine;

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It carries data.
    Active,
    /// No link.
    Down,
    /// A link, and no subnet manager has set the port up.
    Init,
    /// Set up, and not told to carry data.
    Armed,
    /// As sysfs spells it.
    Other(String),
}

impl PortState {
    /// `4: ACTIVE`.
    fn parse(text: &str) -> Self {
        match text.split_once(':').map_or(text, |(_, name)| name).trim() {
            "ACTIVE" => Self::Active,
            "DOWN" => Self::Down,
            "INIT" => Self::Init,
            "ARMED" => Self::Armed,
            _ => Self::Other(text.to_owned()),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Other(text) => text,
        })
    }
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Something else, or unknown.
    Other,
}

/// What packets a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE without IP.
    IbOrRoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// Something else, or unknown.
    Other,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u8,
    /// The address.
    pub value: [u8; 16],
    /// Its kind.
    pub kind: GidKind,
    /// The network interface that has it.
    pub interface: Option<String>,
}

impl Gid {
    /// Whether it is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.value[..10] == [0; 10] && self.value[10..12] == [0xff; 2]
    }

    /// The IP address; `None` for one of a link alone.
    pub fn address(&self) -> Option<IpAddr> {
        let address = Ipv6Addr::from(self.value);
        (!address.is_unicast_link_local()).then(|| IpAddr::V6(address).to_canonical())
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// Data rate of the link, bits a second.
    pub rate_bits_per_s: Option<u64>,
    /// Its network interface.
    pub interface: Option<String>,
    /// That interface's MTU in bytes.
    pub interface_mtu: Option<u32>,
    /// The addresses that are in use, by index.
    pub gids: Vec<Gid>,
}

impl RdmaPort {
    /// The address for RoCE v2: an IPv4 one where there is one, else the first.
    pub fn roce_v2_gid(&self) -> Option<&Gid> {
        let v2 = self.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
        v2.min_by_key(|gid| (!gid.is_ipv4(), gid.index))
    }
}

impl Machine {
    pub(super) fn read_ports(&self, device: &Path, interface: Option<&str>) -> Vec<RdmaPort> {
        let names = self.names(device.join("ports"));
        let mut ports: Vec<_> = names
            .iter()
            .filter_map(|name| self.read_port(&device.join("ports").join(name), name.parse().ok()?, interface))
            .collect();
        ports.sort_by_key(|port| port.number);
        ports
    }

    fn read_port(&self, folder: &Path, number: u8, interface: Option<&str>) -> Option<RdmaPort> {
        let gids = self.read_gids(folder);
        let of_gids = gids.iter().find_map(|gid| gid.interface.clone());
        let interface = of_gids.or_else(|| interface.map(str::to_owned));
        let mtu = interface
            .as_ref()
            .and_then(|name| self.number(Path::new("sys/class/net").join(name).join("mtu")));
        Some(RdmaPort {
            number,
            state: PortState::parse(&self.line(folder.join("state")).unwrap_or_default()),
            link_layer: match self.text(folder.join("link_layer")).as_deref() {
                Some("Ethernet") => LinkLayer::Ethernet,
                Some("InfiniBand") => LinkLayer::InfiniBand,
                _ => LinkLayer::Other,
            },
            rate_bits_per_s: self.text(folder.join("rate")).and_then(|text| parse_rate(&text)),
            interface_mtu: mtu.and_then(|bytes| u32::try_from(bytes).ok()),
            interface,
            gids,
        })
    }

    fn read_gids(&self, port: &Path) -> Vec<Gid> {
        let attributes = port.join("gid_attrs");
        let names = self.names(port.join("gids"));
        let mut gids: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let value = parse_gid(&self.text(port.join("gids").join(name))?)?;
                let kind = self.text(attributes.join("types").join(name)).unwrap_or_default();
                Some(Gid {
                    index: name.parse().ok()?,
                    value,
                    kind: match kind.as_str() {
                        kind if kind.contains("v2") => GidKind::RoceV2,
                        kind if kind.contains("IB") || kind.contains("v1") => GidKind::IbOrRoceV1,
                        _ => GidKind::Other,
                    },
                    interface: self.line(attributes.join("ndevs").join(name)),
                })
            })
            .collect();
        gids.sort_by_key(|gid| gid.index);
        gids
    }
}

/// `400 Gb/sec (4X NDR)` in bits a second.
pub(super) fn parse_rate(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once(' ')?;
    let rate: f64 = number.parse().ok()?;
    // Faster than all light in all fibres: no rate.
    (rest.starts_with("Gb/sec") && (0.0..1e6).contains(&rate)).then(|| (rate * 1e9).round() as u64)
}

/// `fe80:0000:...`, eight groups of four digits; none for the zero GID.
pub(super) fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut groups = text.split(':');
    for pair in gid.chunks_exact_mut(2) {
        let group = u16::from_str_radix(groups.next()?, 16).ok()?;
        pair.copy_from_slice(&group.to_be_bytes());
    }
    (groups.next().is_none() && gid != [0; 16]).then_some(gid)
}
