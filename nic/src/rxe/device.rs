//! SoftRoCE devices of this machine, as sysfs shows them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::NicError;

const DEVICES: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
/// Bytes that RoCE v2 over IPv6 puts around a packet's payload, rounded as the driver does.
const HEADER_BYTES: u32 = 80;

/// One device, found and looked at.
#[derive(Debug, Clone)]
pub(super) struct DeviceInfo {
    pub name: String,
    /// `/dev/infiniband/uverbsN`.
    pub node: PathBuf,
    /// Index in the GID table, and the GID, of an address of RoCE v2.
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// Path MTU code (`enum ib_mtu`): 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The network interface below a SoftRoCE device; `None` for other devices.
fn parent(name: &str) -> Option<String> {
    text(Path::new(DEVICES).join(name).join("parent"))
}

/// Names of the SoftRoCE devices of this machine.
pub(super) fn rxe_devices() -> Vec<String> {
    names().into_iter().filter(|name| parent(name).is_some()).collect()
}

impl DeviceInfo {
    /// The device `name`, or the first SoftRoCE device there is.
    pub fn find(name: Option<&str>) -> Result<Self, NicError> {
        let no_device = |reason: String| NicError::NoDevice { reason };
        let found = rxe_devices();
        let make = "make one as root: `modprobe rdma_rxe`, then `rdma link add rxe0 type rxe netdev INTERFACE`";
        let name = match name {
            Some(name) if found.iter().any(|found| found == name) => name.to_owned(),
            Some(name) if names().iter().any(|found| found == name) => {
                return Err(no_device(format!(
                    "RDMA device {name} is not a SoftRoCE device; the SoftRoCE devices here are: {}",
                    listed(&found)
                )));
            }
            Some(name) => {
                return Err(no_device(format!(
                    "there is no RDMA device {name}; the SoftRoCE devices here are: {}; {make}",
                    listed(&found)
                )));
            }
            None => match found.first() {
                Some(name) => name.clone(),
                None => return Err(no_device(format!("this machine has no SoftRoCE device; {make}"))),
            },
        };
        let root = Path::new(DEVICES).join(&name);
        let port = root.join("ports/1");
        let state = text(port.join("state")).unwrap_or_default();
        let interface = parent(&name).unwrap_or_default();
        if !state.contains("ACTIVE") {
            return Err(no_device(format!(
                "the port of {name} is not active (state `{state}`): bring its interface up, `ip link set {interface} up`"
            )));
        }
        let (gid_index, gid) = roce_v2_gid(&port).ok_or_else(|| {
            no_device(format!(
                "{name} has no RoCE v2 address: give its interface one, `ip addr add ADDRESS/BITS dev {interface}`"
            ))
        })?;
        Ok(Self {
            node: uverbs_node(&name)?,
            gid_index,
            gid,
            mtu: path_mtu(&interface),
            name,
        })
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

fn uverbs_node(name: &str) -> Result<PathBuf, NicError> {
    let entries = fs::read_dir(VERBS).into_iter().flatten().flatten();
    let node = entries
        .filter(|entry| text(entry.path().join("ibdev")).as_deref() == Some(name))
        .map(|entry| Path::new("/dev/infiniband").join(entry.file_name()))
        .next();
    node.ok_or_else(|| NicError::NoDevice {
        reason: format!("{name} has no uverbs node: load the module, `modprobe ib_uverbs`"),
    })
}

/// An IPv4 address' GID where there is one, else the first.
fn roce_v2_gid(port: &Path) -> Option<(u8, [u8; 16])> {
    let gids = (0..=u8::MAX).map_while(|index| Some((index, text(port.join(format!("gids/{index}")))?)));
    let mut valid = gids
        .filter(|(index, _)| {
            text(port.join(format!("gid_attrs/types/{index}"))).is_some_and(|kind| kind.contains("v2"))
        })
        .filter_map(|(index, gid)| Some((index, parse_gid(&gid)?)))
        .collect::<Vec<_>>();
    valid.sort_by_key(|(index, gid)| (!is_ipv4(gid), *index));
    valid.first().copied()
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// `fe80:0000:…`, eight groups of four digits; none for the zero GID.
fn parse_gid(text: &str) -> Option<[u8; 16]> {
    let mut gid = [0; 16];
    let mut groups = text.split(':');
    for pair in gid.chunks_exact_mut(2) {
        let group = u16::from_str_radix(groups.next()?, 16).ok()?;
        pair.copy_from_slice(&group.to_be_bytes());
    }
    (groups.next().is_none() && gid != [0; 16]).then_some(gid)
}

/// The largest path MTU that fits the interface.
fn path_mtu(interface: &str) -> u8 {
    let bytes = text(Path::new("/sys/class/net").join(interface).join("mtu"))
        .and_then(|text| text.parse::<u32>().ok())
        .unwrap_or(1500);
    let room = bytes.saturating_sub(HEADER_BYTES);
    (1..=5).rev().find(|code| 128u32 << code <= room).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_read_as_sysfs_writes_them() {
        let gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a09:0001").expect("a GID");
        assert_eq!(gid[12..], [10, 9, 0, 1]);
        assert!(is_ipv4(&gid));
        assert!(!is_ipv4(
            &parse_gid("fe80:0000:0000:0000:0000:ffff:0a09:0001").expect("a GID")
        ));
        for bad in [
            "",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "1:2",
            "0:0:0:0:0:0:0:0:1",
            "x:0:0:0:0:0:0:0",
        ] {
            assert_eq!(parse_gid(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_unknown_interface_has_the_mtu_of_ethernet() {
        assert_eq!(path_mtu("no-such-interface"), 3, "1024 bytes");
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = DeviceInfo::find(Some("no-such-rxe"))
            .expect_err("it is not there")
            .to_string();
        assert!(
            error.contains("no-such-rxe") && error.contains("rdma link add"),
            "{error}"
        );
    }
}
