//! What stands between a GPU and a NIC: PCIe, the IOMMU, the kernel, rights and limits.

use std::path::Path;

use gpuvm_nic::devices::{LinkSpeed, PciAddress, PciMeeting};
use serde_json::{Value, json};

use crate::bench::size;
use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::gpu::addresses;
use crate::doctor::rdma::OPEN_NODES;
use crate::doctor::view::{IPC_LOCK, NET_ADMIN, SYS_ADMIN, SYS_RAWIO, View};

/// From here on a driver may fail to map a NIC's registers.
const FOLLOW_PFN_GONE: (u32, u32) = (6, 10);
/// Less locked memory than this is a trouble even for small data.
const MEMLOCK_LITTLE: u64 = 1 << 30;
/// Request redirect, completion redirect, egress control: what sends traffic between devices up to the root.
const ACS_REDIRECTS: u16 = 0x04 | 0x08 | 0x20;

/// What lets a user open a GPU's nodes.
const OPEN_GPU_NODES: &str = "run as root, or chmod 0666 /dev/nvidia* (for good: `options nvidia NVreg_DeviceFileMode=0666` in \
     /etc/modprobe.d), or join the group that owns them";

/// All of them.
pub fn checks(view: &View) -> Vec<Finding> {
    vec![
        placement(view),
        iommu(view),
        acs(view),
        peer_mapping(view),
        kernel(view),
        capabilities(view),
        device_nodes(view),
        memlock(view),
        huge_pages(view),
    ]
}

/// GPUs and NICs.
fn endpoints(view: &View) -> Vec<PciAddress> {
    let mut all = view.gpus.clone();
    all.extend(view.nic_addresses());
    all
}

fn meeting_name(meeting: PciMeeting) -> &'static str {
    match meeting {
        PciMeeting::Bridge => "in a PCIe switch",
        PciMeeting::HostBridge => "in a host bridge",
        PciMeeting::NumaNode => "in a NUMA node",
        PciMeeting::System => "between NUMA nodes",
    }
}

fn link_text(link: LinkSpeed) -> Option<String> {
    let width = link.width?;
    Some(format!("{} GT/s x{width}", link.gt_per_s?))
}

fn placement(view: &View) -> Finding {
    let check = Check {
        id: "placement",
        title: "NUMA and PCIe places",
        why: "pages between NIC and GPU are fastest through one switch; across NUMA nodes they share the processors' link",
    };
    if view.gpus.is_empty() || view.nics().next().is_none() {
        return check.unneeded("it takes a GPU and a NIC");
    }
    let (mut said, mut slow, mut far, mut details) = (Vec::new(), Vec::new(), false, Vec::new());
    for gpu in &view.gpus {
        let near = view.machine.nics_by_distance(*gpu);
        for (nth, (nic, distance)) in near.iter().enumerate() {
            let link = |address: PciAddress| view.machine.pci_device(address).map(|device| device.link);
            let meeting = distance.map(|distance| distance.meeting);
            details.push(json!({
                "gpu": gpu.to_string(), "nic": nic.name, "meet": meeting.map(meeting_name),
                "steps": distance.map(|distance| distance.steps),
                "gpu_numa_node": view.machine.pci_device(*gpu).and_then(|device| device.numa_node),
                "nic_numa_node": nic.numa_node,
                "gpu_link": link(*gpu).and_then(link_text),
                "nic_link": nic.pci.and_then(link).and_then(link_text),
            }));
            if nth > 0 {
                continue;
            }
            far |= meeting.is_none_or(|meeting| meeting > PciMeeting::HostBridge);
            let place = meeting.map_or("nobody knows where", meeting_name);
            said.push(format!("GPU {gpu} and its nearest NIC {} meet {place}", nic.name));
            if let Some(link) = nic.pci.and_then(link)
                && (link.width < link.width_max || link.gt_per_s < link.gt_per_s_max)
            {
                slow.push(format!("{} runs at {}", nic.name, link_text(link).unwrap_or_default()));
            }
            // An idle GPU slows its link down, but does not narrow it.
            if let Some(link) = link(*gpu).filter(|link| link.width < link.width_max) {
                slow.push(format!("the GPU runs at {}", link_text(link).unwrap_or_default()));
            }
        }
    }
    said.extend(slow.iter().map(|slow| format!("{slow}, less than it could")));
    let found = said.join("; ");
    let finding = match (slow.is_empty(), far) {
        (true, false) => check.is(FindingState::Ok, found),
        (true, true) => check
            .is(FindingState::Limited, found)
            .mend("choose a nearer pair: nvidia-smi topo -m, then --gpu cuda:N and --rdma-device NAME"),
        (false, _) => check
            .is(FindingState::Limited, found)
            .mend("put the card into a slot with more lanes, or bifurcate right: lspci -vv shows LnkCap and LnkSta"),
    };
    finding.details(Value::Array(details))
}

/// Whether an IOMMU translates what GPU and NIC send each other; `None` where that cannot be told.
pub fn iommu_translates(view: &View) -> Option<bool> {
    if view.machine.names("sys/class/iommu").is_empty() {
        return Some(false);
    }
    let kinds: Vec<String> = endpoints(view)
        .iter()
        .filter_map(|address| {
            view.machine
                .text(format!("sys/bus/pci/devices/{address}/iommu_group/type"))
        })
        .collect();
    if kinds.iter().any(|kind| kind.starts_with("DMA")) {
        return Some(true);
    }
    let line = view.machine.text("proc/cmdline").unwrap_or_default();
    let passes = line
        .split_whitespace()
        .any(|word| ["iommu=pt", "iommu.passthrough=1"].contains(&word));
    let identity = !kinds.is_empty() && kinds.iter().all(|kind| kind == "identity");
    (passes || identity).then_some(false)
}

fn iommu(view: &View) -> Finding {
    let check = Check {
        id: "iommu",
        title: "IOMMU",
        why: "a GPU's store to a NIC's doorbell faults, and traffic between devices takes the long way, where it translates",
    };
    if endpoints(view).is_empty() {
        return check.unneeded("neither a GPU nor a NIC");
    }
    let units = view.machine.names("sys/class/iommu").len();
    match iommu_translates(view) {
        Some(false) if units == 0 => check.is(FindingState::Ok, "none in use"),
        Some(false) => check.is(FindingState::Ok, format!("{units} in use, passing through")),
        Some(true) => check
            .is(
                FindingState::Limited,
                format!("{units} in use, translating for a GPU or a NIC"),
            )
            .mend("add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub and reboot"),
        None => check
            .is(
                FindingState::Unknown,
                format!("{units} in use, and sysfs does not tell how"),
            )
            .mend("cat /sys/kernel/iommu_groups/*/type as root: identity passes through"),
    }
}

/// The control word of the access control services in a function's configuration space: `Err` where less than all of it
/// can be read, `Ok(None)` where it has none.
fn acs_control(config: &[u8]) -> Result<Option<u16>, ()> {
    if config.len() < 256 {
        return Err(());
    }
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = 0x100;
    // The list has room for so many capabilities; a broken one may go in a circle.
    for _ in 0..(4096 - 256) / 8 {
        let Some(header) = word(at).filter(|header| *header != 0 && *header != u32::MAX) else {
            return Ok(None);
        };
        if header & 0xffff == 0x000d {
            return Ok(word(at + 4).map(|words| (words >> 16) as u16));
        }
        at = (header >> 20) as usize & !3;
        if at < 0x100 {
            return Ok(None);
        }
    }
    Ok(None)
}

/// The bridges above those functions, with what [`acs_control`] says of each.
fn access_control(view: &View, functions: &[PciAddress]) -> Vec<(PciAddress, Result<Option<u16>, ()>)> {
    let above = functions.iter().flat_map(|address| view.machine.pci_bridges(*address));
    let mut bridges: Vec<_> = above.collect();
    bridges.sort();
    bridges.dedup();
    let config = |bridge: &PciAddress| {
        let file = format!("sys/bus/pci/devices/{bridge}/config");
        acs_control(&view.machine.bytes(file).unwrap_or_default())
    };
    bridges.iter().map(|bridge| (*bridge, config(bridge))).collect()
}

fn redirecting(read: &[(PciAddress, Result<Option<u16>, ()>)]) -> Vec<PciAddress> {
    read.iter()
        .filter(|(_, control)| matches!(control, Ok(Some(control)) if control & ACS_REDIRECTS != 0))
        .map(|(bridge, _)| *bridge)
        .collect()
}

/// The bridges above GPUs that are known to redirect traffic between devices.
pub fn redirecting_above_gpus(view: &View) -> Vec<PciAddress> {
    redirecting(&access_control(view, &view.gpus))
}

fn acs(view: &View) -> Finding {
    let check = Check {
        id: "acs",
        title: "PCIe access control (ACS)",
        why: "a bridge that redirects sends traffic between NIC and GPU up to the processor and back",
    };
    if view.gpus.is_empty() || view.nics().next().is_none() {
        return check.unneeded("it takes a GPU and a NIC");
    }
    let read = access_control(view, &endpoints(view));
    let redirecting = redirecting(&read);
    match redirecting.first() {
        Some(first) => check
            .is(
                FindingState::Limited,
                format!("redirecting: {}", addresses(&redirecting)),
            )
            .mend(format!(
                "switch ACS off in the firmware's setup, or for each bridge: setpci -s {first} ECAP_ACS+0x6.w=0000"
            )),
        None if read.iter().any(|(_, control)| control.is_err()) => check
            .is(
                FindingState::Unknown,
                format!("the configuration of {} bridges needs root to be read", read.len()),
            )
            .mend("run gpuvm doctor as root, outside of containers"),
        None => check.is(FindingState::Ok, format!("none of {} bridges redirects", read.len())),
    }
}

/// Whether NVIDIA's driver lets everyone map a NIC's registers.
fn has_peer_mapping(view: &View) -> bool {
    let parameters = view.machine.text("proc/driver/nvidia/params").unwrap_or_default();
    let dwords = parameters.lines().find(|line| line.starts_with("RegistryDwords:"));
    dwords.is_some_and(|line| {
        let words = line.split(['"', ';', ' ']);
        words.map(str::trim).any(|word| word == "PeerMappingOverride=1")
    })
}

/// Why the GPU cannot ring a NIC's doorbell by itself here; `None` where nothing is known against it.
pub fn doorbell_obstacle(view: &View) -> Option<String> {
    if view.may(SYS_ADMIN) != Some(true) && !has_peer_mapping(view) {
        return Some("this process may not map the doorbell: neither CAP_SYS_ADMIN nor PeerMappingOverride".to_owned());
    }
    if iommu_translates(view) == Some(true) {
        return Some("the IOMMU translates".to_owned());
    }
    (view.kernel_from(FOLLOW_PFN_GONE) == Some(true))
        .then(|| format!("on Linux {} the driver may refuse to map it", view.release))
}

fn peer_mapping(view: &View) -> Finding {
    let check = Check {
        id: "peer_mapping",
        title: "PeerMappingOverride",
        why: "lets a process without CAP_SYS_ADMIN map a NIC's doorbell into the GPU; else a doorbell proxy rings",
    };
    if !view.has_pair() {
        return check.unneeded("it takes an NVIDIA GPU and a ConnectX");
    }
    if has_peer_mapping(view) {
        return check.is(FindingState::Ok, "set");
    }
    match view.may(SYS_ADMIN) {
        Some(true) => check.unneeded("not set; this process has CAP_SYS_ADMIN, which does as well"),
        _ => check.is(FindingState::Missing, "not set").mend(
            "echo 'options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > /etc/modprobe.d/gpuvm.conf, then \
             update-initramfs -u and reboot (driver 510.40.3 or newer); or run as root",
        ),
    }
}

fn kernel(view: &View) -> Finding {
    let check = Check {
        id: "kernel",
        title: "kernel and doorbell mapping",
        why: "Linux 6.10 took away what NVIDIA's driver mapped device registers by; a driver that has no other way \
              refuses, and a doorbell proxy rings",
    };
    if !view.has_pair() {
        return check.unneeded("it takes an NVIDIA GPU and a ConnectX");
    }
    let found = format!("Linux {}", view.release);
    match view.kernel_from(FOLLOW_PFN_GONE) {
        Some(false) => check.is(FindingState::Ok, found),
        Some(true) => check
            .is(
                FindingState::Limited,
                format!("{found}: whether this driver can is seen at start-up only"),
            )
            .mend("gpuvm doctor --selftest --transport mlx5 says who rings; update NVIDIA's driver if it is the proxy"),
        None => check.is(FindingState::Unknown, "its version cannot be read"),
    }
}

fn capabilities(view: &View) -> Finding {
    let check = Check {
        id: "capabilities",
        title: "rights of this process",
        why: "SYS_ADMIN maps doorbells, IPC_LOCK registers memory beyond the limit, SYS_RAWIO opens DEVX queues, \
              NET_ADMIN makes SoftRoCE devices",
    };
    let container = view.container();
    let place = match &container {
        Some(kind) => format!("in a container ({kind}), "),
        None => String::new(),
    };
    let Some(mask) = view.capabilities else {
        return check.is(FindingState::Unknown, format!("{place}/proc/self/status does not tell"));
    };
    let wanted = [
        ("SYS_ADMIN", SYS_ADMIN),
        ("IPC_LOCK", IPC_LOCK),
        ("SYS_RAWIO", SYS_RAWIO),
        ("NET_ADMIN", NET_ADMIN),
    ];
    let lacking: Vec<&str> = wanted
        .iter()
        .filter(|(_, bit)| mask >> bit & 1 == 0)
        .map(|(name, _)| *name)
        .collect();
    let details = json!({ "effective": format!("{mask:016x}"), "lacking": lacking, "container": container });
    let finding = match lacking.is_empty() {
        true => check.is(FindingState::Ok, format!("{place}has all of them")),
        false => check
            .is(FindingState::Limited, format!("{place}lacks {}", lacking.join(", ")))
            .mend(match &container {
                Some(_) => lacking
                    .iter()
                    .fold("docker run".to_owned(), |text, name| format!("{text} --cap-add {name}")),
                None => {
                    let names: Vec<String> = lacking
                        .iter()
                        .map(|name| format!("cap_{}", name.to_lowercase()))
                        .collect();
                    format!(
                        "run as root, or: sudo setcap {}+ep \"$(command -v gpuvm)\"",
                        names.join(",")
                    )
                }
            }),
    };
    finding.details(details)
}

fn device_nodes(view: &View) -> Finding {
    let check = Check {
        id: "device_nodes",
        title: "device nodes",
        why: "the driver and the NIC are opened through them; containers do not have them by themselves",
    };
    let mut wanted = gpu_nodes(view);
    if !view.rdma.is_empty() {
        wanted.push("/dev/infiniband/rdma_cm".to_owned());
    }
    let nodes = view.rdma.iter().filter_map(|device| device.uverbs.as_ref());
    wanted.extend(nodes.map(|node| node.display().to_string()));
    if wanted.is_empty() {
        return check.unneeded("no device that has one");
    }
    let nodes = || wanted.iter().map(String::as_str);
    let lacking: Vec<&str> = nodes().filter(|node| !view.machine.has(node)).collect();
    if !lacking.is_empty() {
        let finding = check.is(FindingState::Missing, format!("no {}", lacking.join(", ")));
        return match view.container() {
            Some(_) => finding.mend("docker run --gpus all --device /dev/infiniband"),
            None if lacking == ["/dev/infiniband/rdma_cm"] => finding.mend("modprobe rdma_ucm"),
            None => finding.mend("modprobe ib_uverbs rdma_ucm nvidia; nvidia-modprobe -u -c=0 makes the GPU's"),
        };
    }
    let closed: Vec<&str> = nodes().filter(|node| !view.can_open(Path::new(node))).collect();
    if closed.is_empty() {
        return check.is(FindingState::Ok, wanted.join(", "));
    }
    let of_gpu = |node: &&str| node.starts_with("/dev/nvidia");
    let mends = [
        (closed.iter().any(of_gpu), OPEN_GPU_NODES),
        (!closed.iter().all(of_gpu), OPEN_NODES),
    ];
    let mends: Vec<&str> = mends
        .into_iter()
        .filter_map(|(needed, mend)| needed.then_some(mend))
        .collect();
    check
        .is(
            FindingState::Limited,
            format!("this user may not open {}", closed.join(", ")),
        )
        .mend(mends.join("; "))
}

/// The nodes that CUDA opens: the driver's own, and one for each GPU that it drives.
fn gpu_nodes(view: &View) -> Vec<String> {
    if view.driver.is_none() || view.gpus.is_empty() {
        return Vec::new();
    }
    // Those that the driver opened; before that worked, all that are on PCIe.
    let opened = view.probed.gpus.as_ref().ok();
    let opened: Option<Vec<PciAddress>> = opened.map(|gpus| gpus.iter().filter_map(|gpu| gpu.pci).collect());
    let gpus = opened
        .filter(|gpus| !gpus.is_empty())
        .unwrap_or_else(|| view.gpus.clone());
    let each = gpus
        .into_iter()
        .map(|gpu| format!("/dev/nvidia{}", minor_of(view, gpu)));
    ["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()]
        .into_iter()
        .chain(each)
        .collect()
}

/// The number of a GPU's node: what the driver says, else its place among the GPUs on PCIe, which the driver counts by.
fn minor_of(view: &View, gpu: PciAddress) -> usize {
    let file = format!("proc/driver/nvidia/gpus/{gpu}/information");
    let text = view.machine.text(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    let told = line.and_then(|number| number.trim().parse().ok());
    told.or(view.gpus.iter().position(|found| *found == gpu)).unwrap_or(0)
}

fn memlock(view: &View) -> Finding {
    let check = Check {
        id: "memlock",
        title: "limit of locked memory",
        why: "memory that a NIC reads and writes is locked; registering more than the limit fails",
    };
    if view.may(IPC_LOCK) == Some(true) {
        return check.is(FindingState::Ok, "no limit: this process has CAP_IPC_LOCK");
    }
    let limits = view.machine.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let word = line.and_then(|line| line.split_whitespace().next());
    let mend = "ulimit -l unlimited; for good: `* - memlock unlimited` in /etc/security/limits.conf, \
                LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1 for docker run";
    match word {
        Some("unlimited") => check.is(FindingState::Ok, "unlimited"),
        Some(word) => match word.parse::<u64>() {
            Ok(bytes) => {
                let much = if bytes < MEMLOCK_LITTLE {
                    ", too little for any use over a NIC"
                } else {
                    ""
                };
                check
                    .is(FindingState::Limited, format!("{}{much}", size(bytes)))
                    .mend(mend)
                    .details(json!({ "bytes": bytes }))
            }
            Err(_) => check
                .is(FindingState::Unknown, "/proc/self/limits cannot be understood")
                .mend(mend),
        },
        None => check
            .is(FindingState::Unknown, "/proc/self/limits does not tell")
            .mend(mend),
    }
}

fn huge_pages(view: &View) -> Finding {
    let check = Check {
        id: "huge_pages",
        title: "huge pages",
        why: "gpuvm serve --huge-pages takes a node's memory from them: fewer translations in the NIC",
    };
    let memory = view.machine.text("proc/meminfo").unwrap_or_default();
    let value = |key: &str| {
        let line = memory
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
    };
    let (Some(total), Some(free), Some(kib)) =
        (value("HugePages_Total"), value("HugePages_Free"), value("Hugepagesize"))
    else {
        return check.is(FindingState::Unknown, "/proc/meminfo does not tell");
    };
    let page = size(kib.saturating_mul(1024));
    let details = json!({ "total": total, "free": free, "bytes": kib.saturating_mul(1024) });
    match total {
        0 => check.unneeded("none reserved, and only a memory node would use them: sysctl vm.nr_hugepages=N reserves"),
        _ => check.is(FindingState::Ok, format!("{free} of {total} of {page} free")),
    }
    .details(details)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with capabilities at those places, as (place, id, next place, ACS control).
    fn space(capabilities: &[(usize, u32, u32, u16)]) -> Vec<u8> {
        let mut space = vec![0; 4096];
        for &(at, id, next, control) in capabilities {
            space[at..at + 4].copy_from_slice(&(id | 1 << 16 | next << 20).to_le_bytes());
            space[at + 6..at + 8].copy_from_slice(&control.to_le_bytes());
        }
        space
    }

    #[test]
    fn the_control_word_is_found_behind_others() {
        let found = acs_control(&space(&[(0x100, 1, 0x148, 0), (0x148, 0xd, 0x200, 0x1d)]));
        assert_eq!(found, Ok(Some(0x1d)));
        assert_eq!(acs_control(&space(&[(0x100, 1, 0, 0)])), Ok(None));
        assert_eq!(acs_control(&[0; 64]), Err(()), "what a user may read");
        assert_eq!(acs_control(&[0; 256]), Ok(None), "conventional PCI");
    }

    #[test]
    fn broken_lists_end() {
        assert_eq!(acs_control(&space(&[(0x100, 1, 0x100, 0)])), Ok(None), "a circle");
        assert_eq!(
            acs_control(&space(&[(0x100, 1, 0xffc, 0), (0xff8, 0xd, 0, 0)])),
            Ok(None)
        );
        assert_eq!(acs_control(&[0xff; 4096]), Ok(None));
        let mut cut = space(&[(0x100, 0xd, 0, 0)]);
        cut.truncate(0x106);
        assert_eq!(acs_control(&cut), Ok(None));
    }
}
