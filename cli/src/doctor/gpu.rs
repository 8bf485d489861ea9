//! The GPU, its driver, and what compiles kernels.

use gpuvm_gpu::cuda::CAPABILITY_MIN;
use gpuvm_nic::devices::PciAddress;
use serde_json::json;

use crate::bench::size;
use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::view::{Flavour, GpuFacts, View};

/// All of them.
pub fn checks(view: &View) -> Vec<Finding> {
    vec![
        gpu(view),
        driver(view),
        cuda(view),
        nvrtc(view),
        compiler(view),
        bar1(view),
    ]
}

fn gpu(view: &View) -> Finding {
    let check = Check {
        id: "gpu",
        title: "NVIDIA GPU",
        why: "kernels run on it; without one they run on the simulated GPU, which is for correctness, not for speed",
    };
    let gpus = match &view.probed.gpus {
        Ok(gpus) => gpus,
        Err(reason) if view.gpus.is_empty() => {
            return check.is(
                FindingState::Missing,
                format!("none on PCIe, and the driver says: {reason}"),
            );
        }
        Err(reason) => {
            let found = format!("{} on PCIe, and the driver says: {reason}", addresses(&view.gpus));
            return check.is(FindingState::Missing, found).mend(match view.container() {
                Some(_) => "let the container see it: docker run --gpus all (package nvidia-container-toolkit)",
                None => "install NVIDIA's driver (apt-get install nvidia-open), then look at nvidia-smi",
            });
        }
    };
    let details = json!(gpus.iter().map(gpu_json).collect::<Vec<_>>());
    let usable = gpus.first().is_some_and(|gpu| gpu.compute_capability >= CAPABILITY_MIN);
    let names: Vec<String> = gpus
        .iter()
        .map(|gpu| {
            let (major, minor) = gpu.compute_capability;
            let memory = gpu.memory_bytes >> 30;
            format!("{} ({memory} GiB, compute capability {major}.{minor})", gpu.name)
        })
        .collect();
    match gpus.len() {
        0 => check
            .is(FindingState::Missing, "the driver runs and has no GPU")
            .mend("look at nvidia-smi -L and CUDA_VISIBLE_DEVICES"),
        _ if usable => check.is(FindingState::Ok, names.join(", ")),
        _ => {
            let (major, minor) = CAPABILITY_MIN;
            let found = format!("{}: {major}.{minor} or newer is needed", names.join(", "));
            check
                .is(FindingState::Limited, found)
                .mend("put a newer GPU first with CUDA_VISIBLE_DEVICES")
        }
    }
    .details(details)
}

fn gpu_json(gpu: &GpuFacts) -> serde_json::Value {
    let (major, minor) = gpu.compute_capability;
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "compute_capability": format!("{major}.{minor}"),
        "memory_bytes": gpu.memory_bytes,
        "pci": gpu.pci.map(|pci| pci.to_string()),
        "rdma": gpu.rdma,
        "dma_buf": gpu.dma_buf,
        "writes_ordered_for": gpu.writes_ordered_for,
    })
}

/// Addresses with commas between.
pub fn addresses(all: &[PciAddress]) -> String {
    all.iter().map(PciAddress::to_string).collect::<Vec<_>>().join(", ")
}

fn driver(view: &View) -> Finding {
    let check = Check {
        id: "driver",
        title: "NVIDIA kernel driver",
        why: "the open kernel modules hand GPU memory to a NIC as a dma-buf; the proprietary ones need nvidia-peermem",
    };
    let Some(driver) = &view.driver else {
        return match view.gpus.as_slice() {
            [] => check.unneeded("no NVIDIA GPU on PCIe"),
            _ => check
                .is(FindingState::Missing, "the module nvidia is not loaded")
                .mend("modprobe nvidia, after apt-get install nvidia-open"),
        };
    };
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let (state, flavour) = match driver.flavour {
        Flavour::Open => (FindingState::Ok, "open"),
        Flavour::Proprietary => (FindingState::Limited, "proprietary"),
        Flavour::Unknown => (FindingState::Unknown, "unknown"),
    };
    let found = format!("{version}, {flavour} kernel modules");
    let finding = check
        .is(state, found)
        .details(json!({ "version": driver.version, "flavour": flavour }));
    match driver.flavour {
        Flavour::Proprietary => finding.mend("apt-get install nvidia-open (GPUs from Turing on), then reboot"),
        Flavour::Unknown => finding.mend("modinfo -F license nvidia says Dual MIT/GPL for the open ones"),
        Flavour::Open => finding,
    }
}

fn cuda(view: &View) -> Finding {
    let check = Check {
        id: "cuda",
        title: "CUDA driver library (libcuda.so.1)",
        why: "every call to the GPU goes through it; it is loaded at run time and comes with the driver",
    };
    match view.probed.cuda {
        Some((major, minor)) => check
            .is(FindingState::Ok, format!("CUDA {major}.{minor}"))
            .details(json!({ "version": format!("{major}.{minor}") })),
        None if view.gpus.is_empty() => check.unneeded("not there, and no NVIDIA GPU on PCIe"),
        None => check
            .is(FindingState::Missing, "cannot be loaded")
            .mend("apt-get install libcuda1, or in a container: docker run --gpus all"),
    }
}

fn nvrtc(view: &View) -> Finding {
    let check = Check {
        id: "nvrtc",
        title: "CUDA run-time compiler (NVRTC)",
        why: "it compiles kernels for an NVIDIA GPU; it is loaded at run time and no part of the driver",
    };
    match &view.probed.nvrtc {
        Ok((major, minor)) => check
            .is(FindingState::Ok, format!("NVRTC {major}.{minor}"))
            .details(json!({ "version": format!("{major}.{minor}") })),
        Err(_) if view.gpus.is_empty() => check.unneeded("not there, and no NVIDIA GPU on PCIe"),
        Err(reason) => check
            .is(FindingState::Missing, reason)
            .mend("pip install nvidia-cuda-nvrtc, then GPUVM_NVRTC=the folder with libnvrtc.so.13"),
    }
}

fn compiler(view: &View) -> Finding {
    let check = Check {
        id: "compiler",
        title: "C++ compiler",
        why: "it compiles kernels for the simulated GPU; an NVIDIA GPU needs none",
    };
    match &view.probed.compiler {
        Ok(version) => check.is(FindingState::Ok, version.as_str()),
        Err(reason) => check
            .is(FindingState::Missing, reason.as_str())
            .mend("apt-get install g++, or GPUVM_CXX=the compiler"),
    }
}

/// The largest memory window of a GPU: its BAR1.
fn bar1(view: &View) -> Finding {
    let check = Check {
        id: "bar1",
        title: "BAR1 of the GPU",
        why: "the window through which a NIC reaches GPU memory: frames beyond it cannot be registered",
    };
    let windows: Vec<_> = view
        .gpus
        .iter()
        .filter_map(|address| {
            let bytes = view.machine.pci_device(*address)?.bar_bytes.into_iter().max()?;
            Some((*address, bytes))
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    if view.gpus.is_empty() {
        return check.unneeded("no NVIDIA GPU on PCIe");
    }
    if windows.is_empty() {
        return check
            .is(
                FindingState::Unknown,
                "sysfs does not tell: the GPU is disabled, or virtual",
            )
            .mend("nvidia-smi -q -d MEMORY shows it");
    }
    let memory_of = |address: PciAddress| {
        let mut gpus = view.probed.gpus.iter().flatten();
        gpus.find(|gpu| gpu.pci == Some(address)).map(|gpu| gpu.memory_bytes)
    };
    let found: Vec<String> = windows
        .iter()
        .map(|(address, bytes)| match memory_of(*address) {
            Some(memory) => format!("{address}: {} for {} GiB of memory", size(*bytes), memory >> 30),
            None => format!("{address}: {}", size(*bytes)),
        })
        .collect();
    let enough = |(address, bytes): &(PciAddress, u64)| memory_of(*address).map(|memory| *bytes >= memory);
    let details = windows.iter().map(
        |(address, bytes)| json!({ "pci": address.to_string(), "bytes": bytes, "memory_bytes": memory_of(*address) }),
    );
    let details = json!(details.collect::<Vec<_>>());
    let found = found.join("; ");
    let finding = match windows.iter().map(enough).collect::<Vec<_>>() {
        all if all.contains(&Some(false)) => check.is(FindingState::Limited, found).mend(
            "switch on `Above 4G decoding` and `Resizable BAR` in the firmware's setup; data centre GPUs without them: \
             NVIDIA's displaymodeselector --gpumode compute",
        ),
        all if all.contains(&None) => check.is(FindingState::Unknown, found),
        _ => check.is(FindingState::Ok, found),
    };
    finding.details(details)
}
