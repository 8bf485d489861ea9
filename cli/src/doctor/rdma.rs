//! RDMA: libraries, NICs, GPU memory for them, SoftRoCE.

use gpuvm_nic::devices::{DeviceKind, Gid, GidKind, LinkLayer, RdmaDevice, RdmaPort};
use serde_json::{Value, json};

use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::view::{Flavour, View};

/// The oldest kernel that registers dma-bufs.
const DMA_BUF_KERNEL: (u32, u32) = (5, 12);
/// The newest kernel whose SoftRoCE needs the module crc32_generic.
const CRC_KERNEL_LAST: (u32, u32) = (6, 12);
/// A page of 4 KiB travels in one packet.
const PATH_MTU: u32 = 4096;

/// What lets a user open the nodes of RDMA devices.
pub const OPEN_NODES: &str = "run as root, or chmod 0666 /dev/infiniband/uverbs* (package rdma-core has a rule for it)";

/// All of them.
pub fn checks(view: &View) -> Vec<Finding> {
    vec![libraries(view), nics(view), dma_buf(view), peermem(view), rxe(view)]
}

/// Whether one of the verbs libraries cannot be loaded.
pub fn lacks_library(view: &View, wanted: &str) -> bool {
    let mut libraries = view.probed.libraries.iter();
    libraries.any(|(name, file)| *name == wanted && file.is_none())
}

fn libraries(view: &View) -> Finding {
    let check = Check {
        id: "verbs_libraries",
        title: "verbs libraries",
        why: "memory nodes (librdmacm) and ConnectX NICs (libmlx5) are set up through them; they are loaded at run time",
    };
    let said: Vec<String> = view
        .probed
        .libraries
        .iter()
        .map(|(name, file)| match file {
            None => format!("{name} cannot be loaded"),
            // The file's name has the version behind that of the library.
            Some(file) => match file.file_name() {
                Some(file) => file.to_string_lossy().into_owned(),
                None => (*name).to_owned(),
            },
        })
        .collect();
    let found = said.join(", ");
    match view.probed.libraries.iter().all(|(_, file)| file.is_some()) {
        true => check.is(FindingState::Ok, found),
        false if view.rdma.is_empty() => check.is(FindingState::Unneeded, format!("{found}; no RDMA device here")),
        false => check
            .is(FindingState::Missing, found)
            .mend("apt-get install libibverbs1 librdmacm1 ibverbs-providers"),
    }
}

/// What is wrong with a NIC, and what mends it.
fn troubles(device: &RdmaDevice) -> Vec<(String, String)> {
    let name = &device.name;
    let mut troubles = Vec::new();
    if device.uverbs.is_none() {
        troubles.push((format!("{name} has no uverbs node"), "modprobe ib_uverbs".to_owned()));
    }
    let Some(port) = device.active_port() else {
        let interface = device.interface.as_deref().unwrap_or("INTERFACE");
        let mend = match device.ports.first().map(|port| port.link_layer) {
            Some(LinkLayer::InfiniBand) => {
                format!("ibstat {name}: plug the cable in, and start a subnet manager (opensm) for state INIT")
            }
            _ => format!("ip link set {interface} up, and look at the cable: ethtool {interface}"),
        };
        troubles.push((format!("{name} has no active port"), mend));
        return troubles;
    };
    if port.link_layer == LinkLayer::Ethernet {
        let interface = port.interface.as_deref().unwrap_or("INTERFACE");
        if port.roce_v2_gid().is_none() {
            let mend = format!("ip address add ADDRESS/BITS dev {interface}");
            troubles.push((format!("{name} has no RoCE v2 GID"), mend));
        }
        match device.path_mtu_bytes(port) {
            Some(mtu) if mtu < PATH_MTU => {
                let trouble = format!(
                    "{name}: path MTU {mtu}, a page of 4 KiB takes {} packets",
                    PATH_MTU / mtu
                );
                troubles.push((
                    trouble,
                    format!("ip link set {interface} mtu 9000, on both ends and the switch"),
                ));
            }
            _ => {}
        }
    }
    troubles
}

fn nics(view: &View) -> Finding {
    let check = Check {
        id: "nics",
        title: "RDMA NICs",
        why: "a ConnectX is what GPU threads post their page requests to (transport mlx5); other NICs serve as memory nodes only",
    };
    let nics: Vec<&RdmaDevice> = view.nics().collect();
    if nics.is_empty() {
        let cards = view.machine.pci_addresses().into_iter().filter(|address| {
            let device = view.machine.pci_device(*address);
            device.is_some_and(|device| {
                device.vendor == Some(0x15b3) && device.class.is_some_and(|class| class >> 16 == 2)
            })
        });
        return match cards.count() {
            0 => check.is(FindingState::Missing, "none"),
            count => check
                .is(
                    FindingState::Missing,
                    format!("{count} NVIDIA (Mellanox) functions on PCIe, and no RDMA device"),
                )
                .mend("modprobe mlx5_ib; in a container: docker run --device /dev/infiniband --network host"),
        };
    }
    let said: Vec<String> = nics.iter().map(|device| describe(device)).collect();
    let troubles: Vec<_> = nics.iter().flat_map(|device| troubles(device)).collect();
    let details = json!(nics.iter().map(|device| device_json(view, device)).collect::<Vec<_>>());
    let found = said.join("; ");
    let finding = match troubles.first() {
        None if view.has_mlx5() => check.is(FindingState::Ok, found),
        None => check.is(FindingState::Limited, format!("{found}; none of them a ConnectX")),
        Some((_, mend)) => {
            let all: Vec<&str> = troubles.iter().map(|(trouble, _)| trouble.as_str()).collect();
            check
                .is(FindingState::Limited, format!("{found}. Troubles: {}", all.join("; ")))
                .mend(mend)
        }
    };
    finding.details(details)
}

fn kind_name(kind: &DeviceKind) -> &str {
    match kind {
        DeviceKind::Mlx5 => "mlx5",
        DeviceKind::Rxe => "rxe",
        DeviceKind::Other(driver) => driver,
    }
}

/// Whether a device can be opened, and has a port that is up with an address to use.
pub fn is_ready(view: &View, device: &RdmaDevice) -> bool {
    device.uverbs.as_ref().is_some_and(|node| view.can_open(node))
        && device
            .active_port()
            .is_some_and(|port| port.link_layer == LinkLayer::InfiniBand || port.roce_v2_gid().is_some())
}

fn describe(device: &RdmaDevice) -> String {
    let mut text = format!("{} ({}", device.name, kind_name(&device.kind));
    for fact in [&device.model, &device.board].into_iter().flatten() {
        text.push_str(&format!(" {fact}"));
    }
    if let Some(firmware) = &device.firmware {
        text.push_str(&format!(", firmware {firmware}"));
    }
    text.push(')');
    for port in &device.ports {
        text.push_str(&format!(" port {}: {}", port.number, describe_port(device, port)));
        if let Some(address) = port.roce_v2_gid().and_then(Gid::address) {
            text.push_str(&format!(" ({address})"));
        }
    }
    text
}

/// Without addresses.
pub fn describe_port(device: &RdmaDevice, port: &RdmaPort) -> String {
    let mut text = format!("{} {}", link_layer(port), port.state);
    if let Some(rate) = port.rate_bits_per_s {
        text.push_str(&format!(" {} Gb/s", rate as f64 / 1e9));
    }
    if let Some(mtu) = port.interface_mtu {
        text.push_str(&format!(" MTU {mtu}"));
    }
    if let Some(mtu) = device.path_mtu_bytes(port) {
        text.push_str(&format!(" (path {mtu})"));
    }
    if let Some(gid) = port.roce_v2_gid() {
        text.push_str(&format!(", RoCE v2 by GID {}", gid.index));
    }
    text
}

fn link_layer(port: &RdmaPort) -> &'static str {
    match port.link_layer {
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Other => "unknown link",
    }
}

fn device_json(view: &View, device: &RdmaDevice) -> Value {
    let ports: Vec<Value> = device
        .ports
        .iter()
        .map(|port| {
            let gids = port.gids.iter().map(|gid| {
                let value = std::net::Ipv6Addr::from(gid.value).to_string();
                json!({
                    "index": gid.index, "value": value, "roce_v2": gid.kind == GidKind::RoceV2,
                    "interface": gid.interface,
                })
            });
            json!({
                "number": port.number, "state": port.state.to_string(), "link_layer": link_layer(port),
                "rate_bits_per_s": port.rate_bits_per_s, "interface": port.interface,
                "interface_mtu": port.interface_mtu, "path_mtu": device.path_mtu_bytes(port),
                "gids": gids.collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "name": device.name, "kind": kind_name(&device.kind), "model": device.model, "board": device.board,
        "firmware": device.firmware, "node_guid": device.node_guid.map(|guid| format!("{guid:016x}")),
        "uverbs": device.uverbs, "pci": device.pci.map(|pci| pci.to_string()), "numa_node": device.numa_node,
        "ready": is_ready(view, device), "ports": ports,
    })
}

/// Whether GPU memory can be registered as a dma-buf; `None` where the driver was not asked.
pub fn dma_buf_works(view: &View) -> Option<bool> {
    let gpu = view.probed.gpus.as_ref().ok()?.first()?;
    Some(gpu.dma_buf? && view.kernel_from(DMA_BUF_KERNEL) != Some(false))
}

fn dma_buf(view: &View) -> Finding {
    let check = Check {
        id: "dma_buf",
        title: "GPU memory as dma-buf",
        why: "the way to register frames in GPU memory with a NIC: needs the open modules, CUDA 11.7, Linux 5.12",
    };
    if !view.has_pair() {
        return check.unneeded("it takes an NVIDIA GPU and a ConnectX");
    }
    let open = view.driver.as_ref().map(|driver| driver.flavour);
    match dma_buf_works(view) {
        Some(true) => check.is(
            FindingState::Ok,
            format!("the driver can, and so can Linux {}", view.release),
        ),
        None => check
            .is(FindingState::Unknown, "the driver could not be asked")
            .mend("mend the GPU's driver first"),
        Some(false) if view.kernel_from(DMA_BUF_KERNEL) == Some(false) => check
            .is(
                FindingState::Missing,
                format!("Linux {} is older than 5.12", view.release),
            )
            .mend("update the kernel, or modprobe nvidia-peermem"),
        Some(false) if open == Some(Flavour::Proprietary) => check
            .is(FindingState::Missing, "the proprietary kernel modules cannot")
            .mend("apt-get install nvidia-open, then reboot; or modprobe nvidia-peermem"),
        Some(false) => check
            .is(FindingState::Missing, "the driver says that this GPU cannot")
            .mend("update NVIDIA's driver; or modprobe nvidia-peermem"),
    }
}

fn peermem(view: &View) -> Finding {
    let check = Check {
        id: "peermem",
        title: "nvidia-peermem",
        why: "the older way to register frames in GPU memory; without this and without dma-buf frames lie in host memory",
    };
    if !view.has_pair() {
        return check.unneeded("it takes an NVIDIA GPU and a ConnectX");
    }
    if view.module_loaded("nvidia_peermem") {
        return check.is(FindingState::Ok, "loaded");
    }
    if dma_buf_works(view) == Some(true) {
        return check.unneeded("not loaded; dma-buf serves");
    }
    match view.module_there("nvidia_peermem") {
        false if !view.modules_visible() => check
            .is(
                FindingState::Unknown,
                "not loaded; the kernel's modules cannot be seen from here",
            )
            .mend("modprobe nvidia-peermem, outside of the container"),
        true => check
            .is(FindingState::Missing, "not loaded")
            .mend("modprobe nvidia-peermem"),
        false => check
            .is(FindingState::Missing, "not built for this kernel")
            .mend("install DOCA-OFED, then NVIDIA's driver again, which builds nvidia-peermem against it"),
    }
}

fn rxe(view: &View) -> Finding {
    let check = Check {
        id: "rxe",
        title: "SoftRoCE (rdma_rxe)",
        why: "paging from other machines over any network interface, with the simulated GPU (transport rxe)",
    };
    let devices: Vec<&RdmaDevice> = view
        .rdma
        .iter()
        .filter(|device| device.kind == DeviceKind::Rxe)
        .collect();
    let make = "rdma link add rxe0 type rxe netdev INTERFACE";
    if devices.iter().any(|device| is_ready(view, device)) {
        let said: Vec<String> = devices.iter().map(|device| describe(device)).collect();
        return check.is(FindingState::Ok, said.join("; ")).details(json!(
            devices
                .iter()
                .map(|device| device_json(view, device))
                .collect::<Vec<_>>()
        ));
    }
    if let Some(device) = devices.first() {
        let trouble = troubles(device).into_iter().next();
        let (trouble, mend) =
            trouble.unwrap_or_else(|| (format!("this user may not open {}", device.name), OPEN_NODES.into()));
        return check.is(FindingState::Limited, trouble).mend(mend);
    }
    let crc_missing = view.kernel.is_some_and(|kernel| kernel <= CRC_KERNEL_LAST)
        && view.module_there("rdma_rxe")
        && !view.module_there("crc32_generic");
    if crc_missing {
        return check
            .is(
                FindingState::Missing,
                format!(
                    "no module crc32_generic, which rdma_rxe needs on Linux {}",
                    view.release
                ),
            )
            .mend("apt-get install linux-modules-extra-$(uname -r), then modprobe crc32_generic rdma_rxe");
    }
    if view.module_loaded("rdma_rxe") {
        check
            .is(FindingState::Limited, "the module is loaded, and there is no device")
            .mend(make)
    } else if view.module_there("rdma_rxe") {
        check
            .is(FindingState::Limited, "the module is there and not loaded")
            .mend(format!("modprobe rdma_rxe && {make}"))
    } else if !view.modules_visible() {
        check
            .is(
                FindingState::Unknown,
                "not loaded; the kernel's modules cannot be seen from here",
            )
            .mend(format!("modprobe rdma_rxe && {make}, outside of the container"))
    } else {
        check
            .is(
                FindingState::Missing,
                format!("no module rdma_rxe for Linux {}", view.release),
            )
            .mend("apt-get install linux-modules-extra-$(uname -r) (Ubuntu), or a kernel with CONFIG_RDMA_RXE")
    }
}
