use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::pci::{PciMeeting, largest_window};
use super::port::{parse_gid, parse_rate};
use super::tree::Tree;
use super::*;

const NIC: [&str; 3] = ["0x15b3", "0x1021", "0x020000"];
const GPU: [&str; 3] = ["0x10de", "0x2335", "0x030200"];
const BRIDGE: [&str; 3] = ["0x1000", "0xc030", "0x060400"];

fn tree() -> (tempfile::TempDir, Tree) {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = Tree::new(folder.path());
    (folder, tree)
}

fn at(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

/// A GPU and a NIC below one switch, a NIC below the same host bridge, one in the same node, one in another.
fn five() -> (tempfile::TempDir, Tree) {
    let (folder, tree) = tree();
    let switch = "pci0000:15/0000:15:01.0/0000:16:00.0";
    tree.pci("pci0000:15/0000:15:01.0", BRIDGE, Some("pcieport"), 0);
    tree.pci(switch, BRIDGE, Some("pcieport"), 0);
    tree.pci(&format!("{switch}/0000:17:00.0"), BRIDGE, Some("pcieport"), 0);
    tree.pci(&format!("{switch}/0000:17:01.0"), BRIDGE, Some("pcieport"), 0);
    tree.pci(&format!("{switch}/0000:17:00.0/0000:18:00.0"), GPU, Some("nvidia"), 0);
    let places = [
        ("mlx5_3", format!("{switch}/0000:17:01.0/0000:19:00.0"), 0),
        ("mlx5_2", "pci0000:15/0000:15:02.0/0000:20:00.0".to_owned(), 0),
        ("mlx5_1", "pci0000:30/0000:30:01.0/0000:31:00.0".to_owned(), 0),
        ("mlx5_0", "pci0000:80/0000:80:01.0/0000:81:00.0".to_owned(), 1),
    ];
    for (index, (name, way, node)) in (0..).zip(places) {
        let device = tree.pci(&way, NIC, Some("mlx5_core"), node);
        tree.rdma(&device, name, index, &format!("eth{index}"));
    }
    tree.rxe("rxe0", 9, "dummy0");
    (folder, tree)
}

#[test]
fn a_connectx_is_described() {
    let (_folder, tree) = five();
    let device = tree.machine().rdma_device("mlx5_3").expect("it is there");
    assert_eq!(device.kind, DeviceKind::Mlx5);
    assert_eq!(device.firmware.as_deref(), Some("28.43.1014"));
    assert_eq!(device.board.as_deref(), Some("MT_0000000838"));
    assert_eq!(device.model.as_deref(), Some("MT4129"));
    assert_eq!(device.uverbs.as_deref(), Some(Path::new("/dev/infiniband/uverbs0")));
    assert_eq!(device.pci, Some(at("0000:19:00.0")));
    let port = device.active_port().expect("it is up");
    assert_eq!((port.number, port.link_layer), (1, LinkLayer::Ethernet));
    assert_eq!(port.rate_bits_per_s, Some(400_000_000_000));
    assert_eq!(
        (port.interface.as_deref(), port.interface_mtu),
        (Some("eth0"), Some(9000))
    );
    assert_eq!(port.gids.len(), 4, "the zero GID is none");
    let gid = port.roce_v2_gid().expect("an address");
    assert_eq!(
        (gid.index, gid.address()),
        (3, Some(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1))))
    );
    assert_eq!(port.gids[1].address(), None, "of a link alone");
    assert_eq!(device.path_mtu_bytes(port), Some(4096));
}

#[test]
fn softroce_is_told_by_its_parent() {
    let (_folder, tree) = five();
    tree.file("sys/class/net/dummy0/mtu", "1500\n");
    let device = tree.machine().rdma_device("rxe0").expect("it is there");
    assert_eq!((&device.kind, device.pci), (&DeviceKind::Rxe, None));
    assert_eq!(device.interface.as_deref(), Some("dummy0"));
    assert_eq!(device.path_mtu_bytes(&device.ports[0]), Some(1024));
    assert_eq!(device.ports[0].rate_bits_per_s, Some(2_500_000_000));
}

#[test]
fn the_headers_of_a_packet_count() {
    let (_folder, tree) = five();
    // 80 bytes over SoftRoCE, 96 elsewhere.
    for (mtu, rxe, mlx5) in [
        (4176, 4096, 2048),
        (4192, 4096, 4096),
        (1500, 1024, 1024),
        (68, 256, 256),
    ] {
        tree.file("sys/class/net/dummy0/mtu", format!("{mtu}\n"));
        tree.file("sys/class/net/eth0/mtu", format!("{mtu}\n"));
        for (name, expected) in [("rxe0", rxe), ("mlx5_3", mlx5)] {
            let device = tree.machine().rdma_device(name).expect("it is there");
            assert_eq!(device.path_mtu_bytes(&device.ports[0]), Some(expected), "{name} {mtu}");
        }
    }
    tree.remove("sys/class/net/eth0");
    let device = tree.machine().rdma_device("mlx5_3").expect("it is there");
    assert_eq!(device.path_mtu_bytes(&device.ports[0]), None);
}

#[test]
fn the_nearest_nic_comes_first() {
    let (_folder, tree) = five();
    let near = tree.machine().nics_by_distance(at("0000:18:00.0"));
    let names: Vec<_> = near.iter().map(|(device, _)| device.name.as_str()).collect();
    assert_eq!(names, ["mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"]);
    let distances: Vec<_> = near.iter().map(|(_, distance)| distance.expect("known")).collect();
    let meetings: Vec<_> = distances.iter().map(|distance| distance.meeting).collect();
    use PciMeeting::*;
    assert_eq!(meetings, [Bridge, HostBridge, NumaNode, System]);
    assert_eq!(distances[0].steps, 4);
    // A GPU that is not there is near to nothing, and hides nothing.
    let near = tree.machine().nics_by_distance(at("0000:ff:00.0"));
    assert_eq!(near.len(), 4);
    assert!(near.iter().all(|(_, distance)| distance.is_none()));
    let same = tree.machine().pci_distance(at("0000:18:00.0"), at("0000:18:00.0"));
    assert_eq!(same.expect("it is there").steps, 0);
}

#[test]
fn the_nearest_connectx_devices_are_those_at_one_distance() {
    let (_folder, tree) = five();
    let names = |to: &str| {
        let near = tree.machine().nearest_connectx(at(to)).into_iter();
        near.map(|device| device.name).collect::<Vec<_>>()
    };
    assert_eq!(names("0000:18:00.0"), ["mlx5_3"]);
    // A second function of the same card.
    let twin = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.1";
    let device = tree.pci(twin, NIC, Some("mlx5_core"), 0);
    tree.rdma(&device, "mlx5_4", 8, "eth8");
    assert_eq!(names("0000:18:00.0"), ["mlx5_3", "mlx5_4"]);
    tree.file("sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
    assert_eq!(names("0000:18:00.0"), ["mlx5_4"]);
    assert_eq!(names("0000:ff:00.0").len(), 1, "of unknown distance");
    // Other makers' do not count.
    tree.file("sys/class/infiniband/mlx5_4/ports/1/state", "1: DOWN\n");
    let other = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.2";
    let device = tree.pci(other, ["0x14e4", "0x1750", "0x020000"], Some("bnxt_en"), 0);
    tree.rdma(&device, "bnxt_re0", 10, "eth10");
    assert_eq!(names("0000:18:00.0"), ["mlx5_2"]);
}

#[test]
fn pci_functions_are_found_by_vendor_and_class() {
    let (_folder, tree) = five();
    let machine = tree.machine();
    assert_eq!(machine.pci_functions(0x10de, 3), [at("0000:18:00.0")]);
    let nics = ["0000:19:00.0", "0000:20:00.0", "0000:31:00.0", "0000:81:00.0"].map(at);
    assert_eq!(machine.pci_functions(0x15b3, 2), nics);
    assert_eq!(machine.pci_functions(0x15b3, 3), []);
    let windows = "0x0000204000000000 0x0000204001ffffff 0x000000000014220c\n0x0 0x0 0x0\n0x1000 0x1fff 0x40200\n";
    tree.file("sys/devices/pci0000:30/0000:30:01.0/0000:31:00.0/resource", windows);
    assert_eq!(machine.largest_window_bytes(at("0000:31:00.0")), Some(32 << 20));
    assert_eq!(machine.largest_window_bytes(at("0000:99:00.0")), None);
}

#[test]
fn garbage_is_not_believed() {
    let (_folder, tree) = five();
    let device = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
    let folder = format!("{device}/infiniband/mlx5_0");
    for file in ["fw_ver", "ports/1/link_layer", "ports/1/rate", "ports/1/gids/3"] {
        tree.file(&format!("{folder}/{file}"), b"\xff\xfe\x00garbage".as_slice());
    }
    tree.file(&format!("{folder}/ports/1/state"), "9: SLEEPY\n");
    tree.file(&format!("{folder}/ports/one/state"), "4: ACTIVE\n");
    tree.file(&format!("{folder}/ports/1/gids/999"), "1\n");
    tree.file(&format!("{device}/numa_node"), "many");
    tree.file(&format!("{device}/vendor"), "0xffffffffffffffffff");
    tree.file("sys/class/infiniband/a_file", "");
    tree.file("sys/class/net/eth3/mtu", "-7");
    let devices = tree.machine().rdma_devices();
    assert_eq!(devices.len(), 6);
    let device = devices
        .iter()
        .find(|device| device.name == "mlx5_0")
        .expect("it is there");
    assert_eq!(device.firmware, None);
    let [port] = device.ports.as_slice() else {
        panic!("{:?}", device.ports);
    };
    assert_eq!(port.state, PortState::Other("9: SLEEPY".into()));
    assert_eq!(
        (port.link_layer, port.rate_bits_per_s, port.interface_mtu),
        (LinkLayer::Other, None, None)
    );
    assert_eq!(port.gids.len(), 3);
    assert_eq!(
        tree.machine().pci_functions(0x15b3, 2).len(),
        3,
        "one has lost its vendor"
    );
    // No machine at all.
    let nowhere = Machine::at("/proc/no such folder");
    assert_eq!((nowhere.rdma_devices(), nowhere.pci_addresses()), (vec![], vec![]));
}

#[test]
fn gids_are_read_as_sysfs_writes_them() {
    let gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a09:0001").expect("a GID");
    assert_eq!(gid[12..], [10, 9, 0, 1]);
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
fn numbers_of_sysfs() {
    assert_eq!(parse_rate("200 Gb/sec (4X HDR)"), Some(200_000_000_000));
    for bad in ["", "fast", "-1 Gb/sec", "NaN Gb/sec", "inf Gb/sec", "3 apples"] {
        assert_eq!(parse_rate(bad), None, "{bad}");
    }
    assert_eq!(
        largest_window("0x0 0xffffffffffffffff 0x0\n0x5 0x4 0\nwords here\n"),
        Some(u64::MAX)
    );
    assert_eq!(largest_window("0x0 0x0 0x0\n0x5 0x4 0\n\nwords\n0x\n"), None);
}

#[test]
fn addresses_are_read_as_tools_write_them() {
    assert_eq!(at("00000000:3B:1F.7").to_string(), "0000:3b:1f.7");
    assert_eq!(at("10000:e0:06.0").to_string(), "10000:e0:06.0");
    for bad in [
        "",
        "3b:00.0",
        "0000:3b:00",
        "0000:3b:20.0",
        "0000:3b:00.8",
        "0000:100:00.0",
        "+000:3b:00.0",
        "x:y:z.0",
    ] {
        let error = bad.parse::<PciAddress>().expect_err("no address").to_string();
        assert!(error.contains("lspci"), "{error}");
    }
}
