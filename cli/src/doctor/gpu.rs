//! The GPU, its driver, and what compiles kernels.

use gpuvm_gpu::cuda::{CAPABILITY_MIN, driver_refuses_nvrtc};
use gpuvm_nic::devices::PciAddress;
use serde_json::{Value, json};

use crate::bench::size;
use crate::doctor::finding::{Found, limited, missing, ok, unknown, unneeded};
use crate::doctor::view::{GpuFacts, View};

/// The GPUs that the driver opens.
pub fn gpu(view: &View) -> Found {
    let gpus = match &view.probed.gpus {
        Ok(gpus) => gpus,
        Err(reason) if view.gpus.is_empty() => {
            return missing(format!("none on PCIe, and the driver says: {reason}"));
        }
        Err(reason) => {
            let places: Vec<_> = view.gpus.iter().map(PciAddress::to_string).collect();
            return missing(format!("{} on PCIe, and the driver says: {reason}", places.join(", "))).fix(
                "install NVIDIA's driver (apt-get install nvidia-open), then look at nvidia-smi; in a container: \
                 docker run --gpus all (package nvidia-container-toolkit)",
            );
        }
    };
    let names: Vec<String> = gpus
        .iter()
        .map(|gpu| {
            let (major, minor) = gpu.compute_capability;
            let memory = gpu.memory_bytes >> 30;
            format!("{} ({memory} GiB, compute capability {major}.{minor})", gpu.name)
        })
        .collect();
    let names = names.join(", ");
    let (major, minor) = CAPABILITY_MIN;
    let found = match view.usable_gpu() {
        Some(_) => ok(names),
        None if gpus.is_empty() => {
            missing("the driver runs and has no GPU").fix("look at nvidia-smi -L and CUDA_VISIBLE_DEVICES")
        }
        None => limited(format!("{names}: {major}.{minor} or newer is needed"))
            .fix("put a newer GPU first with CUDA_VISIBLE_DEVICES"),
    };
    found.details(gpus.iter().map(gpu_json).collect::<Vec<_>>())
}

fn gpu_json(gpu: &GpuFacts) -> Value {
    let (major, minor) = gpu.compute_capability;
    json!({
        "ordinal": gpu.ordinal,
        "name": gpu.name,
        "compute_capability": format!("{major}.{minor}"),
        "memory_bytes": gpu.memory_bytes,
        "pci": gpu.pci.map(|pci| pci.to_string()),
        "dma_buf": gpu.dma_buf,
    })
}

/// NVIDIA's kernel modules.
pub fn driver(view: &View) -> Found {
    let Some(driver) = &view.driver else {
        return match view.gpus.is_empty() {
            true => unneeded("no NVIDIA GPU on PCIe"),
            false => {
                missing("the module nvidia is not loaded").fix("modprobe nvidia, after apt-get install nvidia-open")
            }
        };
    };
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let text = format!("{version}, {} kernel modules", driver.flavour());
    let found = match driver.open {
        Some(true) => ok(text),
        Some(false) => limited(text).fix("apt-get install nvidia-open (GPUs from Turing on), then reboot"),
        None => unknown(text).fix("modinfo -F license nvidia says Dual MIT/GPL for the open ones"),
    };
    found.details(json!({ "version": driver.version, "flavour": driver.flavour() }))
}

fn version((major, minor): (u32, u32)) -> Value {
    json!({ "version": format!("{major}.{minor}") })
}

/// `libcuda`.
pub fn cuda(view: &View) -> Found {
    match view.probed.cuda {
        Some((major, minor)) => ok(format!("CUDA {major}.{minor}")).details(version((major, minor))),
        None if view.gpus.is_empty() => unneeded("not there, and no NVIDIA GPU on PCIe"),
        None => missing("cannot be loaded").fix("apt-get install libcuda1, or in a container: docker run --gpus all"),
    }
}

/// NVRTC.
pub fn nvrtc(view: &View) -> Found {
    match &view.probed.nvrtc {
        Ok(nvrtc) => {
            let text = format!("NVRTC {}.{}", nvrtc.0, nvrtc.1);
            let found = match view.probed.cuda.filter(|driver| driver_refuses_nvrtc(*driver, *nvrtc)) {
                Some((major, minor)) => limited(format!("{text}, and the driver knows CUDA {major}.{minor}")).fix(
                    format!("update the driver, or GPUVM_NVRTC=the folder with an NVRTC of CUDA {major}"),
                ),
                None => ok(text),
            };
            found.details(version(*nvrtc))
        }
        Err(_) if view.gpus.is_empty() => unneeded("not there, and no NVIDIA GPU on PCIe"),
        Err(reason) => {
            missing(reason).fix("pip install nvidia-cuda-nvrtc, then GPUVM_NVRTC=the folder with libnvrtc.so.13")
        }
    }
}

/// What compiles for the simulated GPU.
pub fn compiler(view: &View) -> Found {
    match &view.probed.compiler {
        Ok(version) => ok(version),
        Err(reason) => missing(reason).fix("apt-get install g++, or GPUVM_CXX=the compiler"),
    }
}

/// The largest memory window of each GPU: its BAR1.
pub fn bar1(view: &View) -> Found {
    let gpus = view.probed.gpus.as_deref().unwrap_or_default();
    if gpus.is_empty() {
        return unneeded("no NVIDIA GPU that the driver opens");
    }
    let window = |gpu: &GpuFacts| view.machine.largest_window_bytes(gpu.pci?);
    let Some(windows) = gpus.iter().map(window).collect::<Option<Vec<u64>>>() else {
        return unknown("sysfs does not tell: the GPU is virtual").fix("nvidia-smi -q -d MEMORY shows it");
    };
    let pairs = || gpus.iter().zip(&windows);
    let said: Vec<String> = pairs()
        .map(|(gpu, window)| format!("{} for {} GiB of memory", size(*window), gpu.memory_bytes >> 30))
        .collect();
    match pairs().all(|(gpu, window)| *window >= gpu.memory_bytes) {
        true => ok(said.join("; ")),
        false => limited(said.join("; ")).fix(
            "switch on `Above 4G decoding` and `Resizable BAR` in the firmware's setup; data centre GPUs without them: \
             NVIDIA's displaymodeselector --gpumode compute",
        ),
    }
}
