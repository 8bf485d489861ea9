//! SoftRoCE devices of this machine, ready to be opened.

use std::path::PathBuf;

use crate::NicError;
use crate::devices::{DeviceKind, Machine, PortState, RdmaDevice};

/// The path MTU where the interface's is not known: Ethernet's 1500 bytes hold it.
const MTU_BYTES: u32 = 1024;

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

/// Names of the SoftRoCE devices of a machine.
pub(super) fn rxe_devices(machine: &Machine) -> Vec<String> {
    let devices = machine.rdma_devices().into_iter();
    devices
        .filter(|device| device.kind == DeviceKind::Rxe)
        .map(|device| device.name)
        .collect()
}

impl DeviceInfo {
    /// The device `name`, or the first SoftRoCE device there is.
    pub fn find(machine: &Machine, name: Option<&str>) -> Result<Self, NicError> {
        let no_device = |reason: String| NicError::NoDevice { reason };
        let device = choose(machine, name).map_err(no_device)?;
        let name = &device.name;
        let interface = device.interface.clone().unwrap_or_default();
        let port = device.ports.first();
        let port = port.ok_or_else(|| no_device(format!("{name} has no port")))?;
        if port.state != PortState::Active {
            return Err(no_device(format!(
                "the port of {name} is not active (state `{}`): bring its interface up, `ip link set {interface} up`",
                port.state
            )));
        }
        let gid = port.roce_v2_gid().ok_or_else(|| {
            no_device(format!(
                "{name} has no RoCE v2 address: give its interface one, `ip addr add ADDRESS/BITS dev {interface}`"
            ))
        })?;
        let node = device.uverbs.clone();
        let mtu_bytes = device.path_mtu_bytes(port).unwrap_or(MTU_BYTES);
        Ok(Self {
            node: node.ok_or_else(|| {
                no_device(format!(
                    "{name} has no uverbs node: load the module, `modprobe ib_uverbs`"
                ))
            })?,
            gid_index: gid.index,
            gid: gid.value,
            mtu: mtu_code(mtu_bytes),
            name: device.name,
        })
    }
}

/// The device, or what is wrong and what to do.
fn choose(machine: &Machine, name: Option<&str>) -> Result<RdmaDevice, String> {
    let found = rxe_devices(machine);
    let make = "make one as root: `modprobe rdma_rxe`, then `rdma link add rxe0 type rxe netdev INTERFACE`";
    let wanted = name.or(found.first().map(String::as_str));
    let Some(wanted) = wanted else {
        return Err(format!("this machine has no SoftRoCE device; {make}"));
    };
    match machine.rdma_device(wanted) {
        Some(device) if device.kind == DeviceKind::Rxe => Ok(device),
        Some(_) => Err(format!(
            "RDMA device {wanted} is not a SoftRoCE device; the SoftRoCE devices here are: {}",
            listed(&found)
        )),
        None => Err(format!(
            "there is no RDMA device {wanted}; the SoftRoCE devices here are: {}; {make}",
            listed(&found)
        )),
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

/// 1 for 256 bytes to 5 for 4096.
fn mtu_code(bytes: u32) -> u8 {
    (1..=5).rev().find(|code| 128u32 << code <= bytes).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tree::Tree;

    #[test]
    fn mtus_have_codes() {
        for (bytes, code) in [(256, 1), (1024, 3), (4096, 5), (0, 1), (u32::MAX, 5)] {
            assert_eq!(mtu_code(bytes), code, "{bytes}");
        }
    }

    #[test]
    fn a_device_is_looked_at_before_it_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(folder.path());
        let find = |name| DeviceInfo::find(&tree.machine(), name);
        let refusal = |name| find(name).expect_err("it cannot be opened").to_string();
        assert!(refusal(None).contains("this machine has no SoftRoCE device"));
        let pci = tree.pci(
            "pci0000:00/0000:00:01.0",
            ["0x15b3", "0x1021", "0x020000"],
            Some("mlx5_core"),
            0,
        );
        tree.rdma(&pci, "mlx5_0", 0, "eth0");
        assert!(refusal(None).contains("this machine has no SoftRoCE device"));
        let port = format!("{}/ports/1", tree.rxe("rxe1", 1, "dummy0"));
        assert!(refusal(Some("mlx5_0")).contains("not a SoftRoCE device; the SoftRoCE devices here are: rxe1"));

        let found = find(None).expect("it is ready");
        assert_eq!((found.name.as_str(), found.gid_index, found.mtu), ("rxe1", 3, 5));
        assert_eq!(found.gid[12..], [10, 9, 0, 1]);
        assert_eq!(found.node.to_str(), Some("/dev/infiniband/uverbs1"));
        tree.remove("sys/class/net/dummy0");
        assert_eq!(find(None).expect("it is ready").mtu, 3, "that of Ethernet");

        tree.remove("sys/class/infiniband_verbs/uverbs1");
        assert!(refusal(None).contains("modprobe ib_uverbs"));
        tree.remove(&format!("{port}/gids"));
        assert!(refusal(None).contains("ip addr add ADDRESS/BITS dev dummy0"));
        tree.file(&format!("{port}/state"), "1: DOWN\n");
        assert!(refusal(None).contains("(state `down`): bring its interface up, `ip link set dummy0 up`"));
        tree.remove(&port);
        assert!(refusal(Some("rxe1")).contains("rxe1 has no port"));
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = DeviceInfo::find(&Machine::default(), Some("no-such-rxe"))
            .expect_err("it is not there")
            .to_string();
        assert!(
            error.contains("no-such-rxe") && error.contains("rdma link add"),
            "{error}"
        );
    }
}
