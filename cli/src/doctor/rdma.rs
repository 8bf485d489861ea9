//! RDMA: libraries, NICs, GPU memory for them, SoftRoCE.

use gpuvm_nic::devices::{DeviceKind, GidKind, LinkLayer, RdmaDevice, RdmaPort};
use serde_json::{Value, json};

use crate::doctor::finding::{FindingState, Found, found, limited, missing, ok, unknown, unneeded};
use crate::doctor::view::View;

/// A page of 4 KiB travels in one packet.
const PATH_MTU: u32 = 4096;
/// What lets a user open the nodes of RDMA devices.
pub const OPEN_NODES: &str = "run as root, or chmod 0666 /dev/infiniband/uverbs* (package rdma-core has a rule for it)";
/// Why what serves both is not looked at.
const NO_PAIR: &str = "it takes an NVIDIA GPU and a ConnectX";

/// The verbs libraries.
pub fn libraries(view: &View) -> Found {
    let libraries = &view.probed.libraries;
    let said: Vec<String> = libraries
        .iter()
        .map(|(name, file)| match file.as_ref().and_then(|file| file.file_name()) {
            // The file's name has the version behind that of the library.
            Some(file) => file.to_string_lossy().into_owned(),
            None => format!("{name} cannot be loaded"),
        })
        .collect();
    let said = said.join(", ");
    match libraries.iter().all(|(_, file)| file.is_some()) {
        true => ok(said),
        false if view.rdma.is_empty() => unneeded(format!("{said}; no RDMA device here")),
        false => missing(said).fix("apt-get install libibverbs1 librdmacm1 ibverbs-providers"),
    }
}

/// RDMA devices but SoftRoCE.
pub fn nics(view: &View) -> Found {
    let nics: Vec<&RdmaDevice> = view.nics().collect();
    if nics.is_empty() {
        return match view.machine.pci_functions(0x15b3, 2).len() {
            0 => missing("none"),
            count => missing(format!(
                "{count} NVIDIA (Mellanox) functions on PCIe, and no RDMA device"
            ))
            .fix("modprobe mlx5_ib; in a container: docker run --device /dev/infiniband --network host"),
        };
    }
    let mut said: Vec<String> = nics.iter().map(|device| describe(device)).collect();
    let troubles: Vec<_> = nics.iter().flat_map(|device| troubles(device)).collect();
    said.extend(troubles.iter().map(|(trouble, _)| trouble.clone()));
    if view.connectx().next().is_none() {
        said.push("none of them is a ConnectX".to_owned());
    }
    let state = match troubles.is_empty() && view.connectx().next().is_some() {
        true => FindingState::Ok,
        false => FindingState::Limited,
    };
    Found {
        fix: troubles.into_iter().next().map(|(_, fix)| fix),
        ..found(state, said.join("; "))
    }
    .details(nics.iter().map(|device| device_json(view, device)).collect::<Vec<_>>())
}

/// What is wrong with a device, and what fixes it.
fn troubles(device: &RdmaDevice) -> Vec<(String, String)> {
    let name = &device.name;
    let mut troubles = Vec::new();
    if device.uverbs.is_none() {
        troubles.push((format!("{name} has no uverbs node"), "modprobe ib_uverbs".to_owned()));
    }
    let Some(port) = device.active_port() else {
        let interface = device.interface.as_deref().unwrap_or("INTERFACE");
        let fix = format!("ip link set {interface} up, and look at the cable; InfiniBand needs a subnet manager, too");
        troubles.push((format!("{name} has no active port"), fix));
        return troubles;
    };
    let interface = port.interface.as_deref().unwrap_or("INTERFACE");
    if port.link_layer == LinkLayer::Ethernet && port.roce_v2_gid().is_none() {
        let fix = format!("ip address add ADDRESS/BITS dev {interface}");
        troubles.push((format!("{name} has no RoCE v2 GID"), fix));
    }
    if let Some(mtu) = device.path_mtu_bytes(port).filter(|mtu| *mtu < PATH_MTU) {
        let packets = PATH_MTU / mtu;
        let trouble = format!("{name}: path MTU {mtu}, a page of 4 KiB takes {packets} packets");
        let fix = format!("ip link set {interface} mtu 9000, on both ends and the switch");
        troubles.push((trouble, fix));
    }
    troubles
}

/// Whether a device can be opened, and has a port that is up with an address to use.
pub fn is_ready(view: &View, device: &RdmaDevice) -> bool {
    device.uverbs.as_ref().is_some_and(|node| view.can_open(node))
        && device
            .active_port()
            .is_some_and(|port| port.link_layer == LinkLayer::InfiniBand || port.roce_v2_gid().is_some())
}

/// A device in words, without addresses.
pub fn describe(device: &RdmaDevice) -> String {
    let mut text = device.name.clone();
    for fact in [&device.model, &device.board, &device.firmware].into_iter().flatten() {
        text.push_str(&format!(" {fact}"));
    }
    for port in &device.ports {
        text.push_str(&format!(", port {}: {} {}", port.number, link_layer(port), port.state));
        if let Some(rate) = port.rate_bits_per_s {
            text.push_str(&format!(" {} Gb/s", rate as f64 / 1e9));
        }
        if let (Some(mtu), Some(path)) = (port.interface_mtu, device.path_mtu_bytes(port)) {
            text.push_str(&format!(" MTU {mtu} (path {path})"));
        }
        if let Some(gid) = port.roce_v2_gid() {
            text.push_str(&format!(", RoCE v2 by GID {}", gid.index));
        }
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
    let port = |port: &RdmaPort| {
        let gids = port.gids.iter().map(|gid| {
            let value = std::net::Ipv6Addr::from(gid.value).to_string();
            json!({ "index": gid.index, "value": value, "roce_v2": gid.kind == GidKind::RoceV2 })
        });
        json!({
            "number": port.number, "state": port.state.to_string(), "link_layer": link_layer(port),
            "rate_bits_per_s": port.rate_bits_per_s, "interface": port.interface,
            "interface_mtu": port.interface_mtu, "path_mtu": device.path_mtu_bytes(port),
            "gids": gids.collect::<Vec<_>>(),
        })
    };
    let kind = match &device.kind {
        DeviceKind::Mlx5 => "mlx5",
        DeviceKind::Rxe => "rxe",
        DeviceKind::Other(driver) => driver,
    };
    json!({
        "name": device.name, "kind": kind, "model": device.model, "board": device.board, "firmware": device.firmware,
        "uverbs": device.uverbs, "pci": device.pci.map(|pci| pci.to_string()), "ready": is_ready(view, device),
        "ports": device.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

/// Whether the driver exports GPU memory as a dma-buf; `None` where it was not asked.
pub fn dma_buf_works(view: &View) -> Option<bool> {
    Some(view.probed.gpus.as_ref().ok()?.first()?.dma_buf)
}

/// GPU memory as dma-bufs.
pub fn dma_buf(view: &View) -> Found {
    match dma_buf_works(view) {
        _ if !view.has_pair() => unneeded(NO_PAIR),
        Some(true) => ok("the driver says that this GPU can"),
        None => unknown("the driver could not be asked").fix("fix the GPU's driver first"),
        Some(false) => missing("the driver says that this GPU cannot").fix(
            "the open kernel modules (apt-get install nvidia-open, then reboot) on Linux 5.12 or newer; or modprobe nvidia-peermem",
        ),
    }
}

/// The module nvidia-peermem.
pub fn peermem(view: &View) -> Found {
    match view.module_loaded("nvidia_peermem") {
        _ if !view.has_pair() => unneeded(NO_PAIR),
        true => ok("loaded"),
        false if dma_buf_works(view) == Some(true) => unneeded("not loaded; dma-buf serves"),
        false => missing("not loaded").fix(
            "modprobe nvidia-peermem; where there is none: install DOCA-OFED, then NVIDIA's driver again, which builds it",
        ),
    }
}

/// SoftRoCE.
pub fn rxe(view: &View) -> Found {
    let devices: Vec<&RdmaDevice> = view.softroce().collect();
    let details: Vec<Value> = devices.iter().map(|device| device_json(view, device)).collect();
    let make = "rdma link add rxe0 type rxe netdev INTERFACE";
    match devices.first() {
        Some(_) if devices.iter().any(|device| is_ready(view, device)) => {
            let said: Vec<String> = devices.iter().map(|device| describe(device)).collect();
            ok(said.join("; "))
        }
        Some(device) => {
            let closed = || (format!("this user may not open {}", device.name), OPEN_NODES.to_owned());
            let (trouble, fix) = troubles(device).into_iter().next().unwrap_or_else(closed);
            limited(trouble).fix(fix)
        }
        None if view.module_loaded("rdma_rxe") => limited("the module is loaded, and there is no device").fix(make),
        None => missing("the module rdma_rxe is not loaded").fix(format!(
            "modprobe rdma_rxe && {make}, outside of containers; Ubuntu has it in linux-modules-extra-$(uname -r), and up \
             to Linux 6.12 it needs crc32_generic of the same package",
        )),
    }
    .details(details)
}
