//! What the kernel lets a process do: device nodes, locked memory, the IOMMU, files.

use gpuvm_gpu::cuda::cufile::LIBRARY as CUFILE;
use gpuvm_nic::devices::PciAddress;
use serde_json::json;

use crate::bench::size;
use crate::doctor::finding::{Found, limited, missing, ok, unknown, unneeded};
use crate::doctor::rdma::OPEN_NODES;
use crate::doctor::view::View;

/// Less locked memory than this is a trouble even for small data.
const MEMLOCK_LITTLE: u64 = 1 << 30;
/// `CAP_IPC_LOCK`: locks memory beyond the limit.
const IPC_LOCK: u32 = 14;
/// What lets a user open a GPU's nodes.
const OPEN_GPU_NODES: &str = "run as root, or chmod 0666 /dev/nvidia* (for good: `options nvidia NVreg_DeviceFileMode=0666` in \
     /etc/modprobe.d), or join the group that owns them";

/// Whether an IOMMU translates what GPUs and NICs send each other; `None` where that cannot be told.
pub fn iommu_translates(view: &View) -> Option<bool> {
    if view.machine.names("sys/class/iommu").is_empty() {
        return Some(false);
    }
    let nics = view.nics().filter_map(|device| device.pci);
    let file = |address: PciAddress| format!("sys/bus/pci/devices/{address}/iommu_group/type");
    let kinds: Option<Vec<String>> = view
        .gpus
        .iter()
        .copied()
        .chain(nics)
        .map(|at| view.machine.text(file(at)))
        .collect();
    Some(kinds?.iter().any(|kind| kind.starts_with("DMA")))
}

/// The IOMMU.
pub fn iommu(view: &View) -> Found {
    match iommu_translates(view) {
        _ if view.gpus.is_empty() && view.nics().next().is_none() => unneeded("neither a GPU nor a NIC"),
        Some(false) => ok("none, or passing through"),
        Some(true) => limited("translates for a GPU or a NIC")
            .fix("add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub and reboot"),
        None => unknown("in use, and sysfs does not tell how")
            .fix("cat /sys/kernel/iommu_groups/*/type as root: identity passes through"),
    }
}

/// Device nodes of GPUs and RDMA devices.
pub fn device_nodes(view: &View) -> Found {
    let mut wanted = gpu_nodes(view);
    if !view.rdma.is_empty() {
        wanted.push("/dev/infiniband/rdma_cm".to_owned());
    }
    let nodes = view.rdma.iter().filter_map(|device| device.uverbs.as_ref());
    wanted.extend(nodes.map(|node| node.display().to_string()));
    let (there, lacking): (Vec<&str>, Vec<&str>) = wanted
        .iter()
        .map(String::as_str)
        .partition(|node| view.machine.has(node));
    let closed: Vec<&str> = there.into_iter().filter(|node| !view.can_open(node)).collect();
    if wanted.is_empty() {
        unneeded("no device that has one")
    } else if !lacking.is_empty() {
        missing(format!("no {}", lacking.join(", "))).fix(
            "modprobe ib_uverbs rdma_ucm nvidia; nvidia-modprobe -u -c=0 makes the GPU's; \
             in a container: docker run --gpus all --device /dev/infiniband",
        )
    } else if !closed.is_empty() {
        let of_gpu = |node: &&str| node.starts_with("/dev/nvidia");
        let fix = match (closed.iter().any(of_gpu), closed.iter().all(of_gpu)) {
            (_, true) => OPEN_GPU_NODES.to_owned(),
            (false, _) => OPEN_NODES.to_owned(),
            _ => format!("{OPEN_GPU_NODES}; {OPEN_NODES}"),
        };
        limited(format!("this user may not open {}", closed.join(", "))).fix(fix)
    } else {
        ok(wanted.join(", "))
    }
}

/// The nodes that CUDA opens: the driver's own, and one for each GPU that it drives.
fn gpu_nodes(view: &View) -> Vec<String> {
    if view.driver.is_none() || view.gpus.is_empty() {
        return Vec::new();
    }
    // Those that the driver opened; before that worked, all that are on PCIe.
    let opened = view.probed.gpus.as_deref().unwrap_or_default();
    let mut gpus: Vec<PciAddress> = opened.iter().filter_map(|gpu| gpu.pci).collect();
    if gpus.is_empty() {
        gpus.clone_from(&view.gpus);
    }
    let each = gpus
        .into_iter()
        .map(|gpu| format!("/dev/nvidia{}", minor_of(view, gpu)));
    let own = ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(str::to_owned);
    own.into_iter().chain(each).collect()
}

/// The number of a GPU's node: what the driver says, else its place among the GPUs on PCIe, which the driver counts by.
fn minor_of(view: &View, gpu: PciAddress) -> usize {
    let file = format!("proc/driver/nvidia/gpus/{gpu}/information");
    let text = view.machine.text(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
    let told = line.and_then(|number| number.trim().parse().ok());
    told.or(view.gpus.iter().position(|found| *found == gpu)).unwrap_or(0)
}

/// The limit of locked memory.
pub fn memlock(view: &View) -> Found {
    let may_lock = view
        .machine
        .effective_capabilities()
        .is_some_and(|mask| mask >> IPC_LOCK & 1 == 1);
    if may_lock {
        return ok("no limit: this process has CAP_IPC_LOCK");
    }
    let limits = view.machine.text("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let word = line.and_then(|line| line.split_whitespace().next());
    let found = match (word, word.and_then(|word| word.parse::<u64>().ok())) {
        (Some("unlimited"), _) => return ok("unlimited"),
        (_, Some(bytes)) => {
            let little = if bytes < MEMLOCK_LITTLE {
                ", too little for any use over a NIC"
            } else {
                ""
            };
            limited(format!("{}{little}", size(bytes))).details(json!({ "bytes": bytes }))
        }
        (_, None) => unknown("/proc/self/limits does not tell"),
    };
    found.fix(
        "ulimit -l unlimited; for good: `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a \
         unit, --ulimit memlock=-1 for docker run",
    )
}

/// Whether this process may use io_uring.
pub fn io_uring(view: &View) -> Found {
    match &view.probed.io_uring {
        Ok(()) => ok("this process may use it"),
        Err(why) => limited(format!("{why}; threads read and write")).fix(
            "sysctl kernel.io_uring_disabled=0 (Linux 6.6 or newer); in a container, a seccomp profile that allows io_uring_setup",
        ),
    }
}

/// cuFile and its module.
pub fn gpudirect_storage(view: &View) -> Found {
    let Some(file) = &view.probed.cufile else {
        return unneeded(format!(
            "{CUFILE} is not installed; it comes with the CUDA toolkit (package libcufile)"
        ));
    };
    let file = file.display();
    match view.probed.nvidia_fs {
        true => ok(format!("{file} is there, and so is nvidia-fs")),
        false => limited(format!(
            "{file} is there, and the kernel module nvidia-fs is not loaded: cuFile copies through host memory, where file_cache is faster"
        ))
        .fix("load the module nvidia-fs (package nvidia-fs, NVIDIA's open kernel modules), for files on NVMe disks with ext4 or XFS"),
    }
}
