//! The NVIDIA GPUs of this machine.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute, CUuuid};

use super::calls::{cu, text};
use super::driver::check;
use crate::api::ForNics;
use crate::error::GpuError;

/// Oldest compute capability with independent thread scheduling, which the device library needs.
pub const CAPABILITY_MIN: (u32, u32) = (7, 0);

/// An NVIDIA GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// CUDA's number of it in this process; CUDA_VISIBLE_DEVICES changes it.
    pub ordinal: u32,
    /// The product's name.
    pub name: String,
    /// What names it everywhere, `GPU-...`.
    pub uuid: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most threads that one multiprocessor holds.
    pub threads_per_multiprocessor: u32,
    /// Most threads of a block.
    pub threads_per_block: u32,
    /// Most shared memory of a block in bytes, for a kernel that asks for it.
    pub shared_bytes_per_block: u32,
    /// Highest clock of the multiprocessors, kHz.
    pub clock_khz: u32,
    /// Whether host memory can be pinned for reading only.
    pub read_only_registration: bool,
    /// Whether host and kernels may use managed memory at the same time.
    pub concurrent_managed_access: bool,
    /// What NICs of the machine may do with its memory.
    pub for_nics: ForNics,
    /// Whether memory of `cuMemCreate` can be made for NICs.
    pub(crate) memory_for_nics: bool,
}

/// Which GPU to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceId {
    /// By CUDA's number.
    Ordinal(u32),
    /// By its UUID, `GPU-...`, or the start of it.
    Uuid(String),
}

impl From<u32> for DeviceId {
    fn from(ordinal: u32) -> Self {
        Self::Ordinal(ordinal)
    }
}

impl From<&str> for DeviceId {
    /// A number is an ordinal, all else a UUID.
    fn from(text: &str) -> Self {
        match text.trim().parse() {
            Ok(ordinal) => Self::Ordinal(ordinal),
            Err(_) => Self::Uuid(text.trim().to_owned()),
        }
    }
}

impl From<String> for DeviceId {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// Starts the driver, once.
pub(crate) fn start() -> Result<(), GpuError> {
    static STARTED: OnceLock<Result<(), GpuError>> = OnceLock::new();
    let start = || {
        // Modules that are loaded lazily load beside running kernels, which can deadlock with a kernel that waits for
        // the host. More hardware queues keep streams from waiting for each other.
        for (name, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
            if std::env::var_os(name).is_none() {
                // SAFETY: once in a process, before the driver starts. std's own accesses are locked; C code that reads the environment
                // at this very moment would race, as with every program that sets a variable: hence at the first GPU, and not later.
                unsafe { std::env::set_var(name, value) };
            }
        }
        // SAFETY: it has no precondition.
        check("start the NVIDIA driver", unsafe { cu::cuInit(0) })
    };
    STARTED.get_or_init(start).clone()
}

/// The newest CUDA version of the driver's library, major and minor.
///
/// # Errors
/// [`GpuError::Driver`] when there is no driver.
pub fn driver_version() -> Result<(u32, u32), GpuError> {
    let mut version = 0;
    // SAFETY: it fills one integer.
    check("ask for the driver's version", unsafe {
        cu::cuDriverGetVersion(&raw mut version)
    })?;
    let version = version.max(0) as u32;
    Ok((version / 1000, version % 1000 / 10))
}

/// Whether a driver that knows the one version of CUDA refuses what NVRTC of the other compiles: it loads machine code of its own major
/// version and of older ones.
pub fn driver_refuses_nvrtc((driver, _): (u32, u32), (nvrtc, _): (u32, u32)) -> bool {
    driver < nvrtc
}

/// What to do about kernels that are not loaded, where this driver refuses what this NVRTC compiles.
pub(crate) fn older_than_nvrtc() -> Option<String> {
    let (driver, nvrtc) = (driver_version().ok()?, super::nvrtc_version().ok()?);
    driver_refuses_nvrtc(driver, nvrtc).then(|| {
        let ((major, minor), (newer, _)) = (driver, nvrtc);
        format!(
            "the driver knows CUDA {major}.{minor}, and NVRTC is of CUDA {newer}: update the driver, or name an NVRTC of CUDA {major} by \
             GPUVM_NVRTC"
        )
    })
}

/// One attribute of a device.
pub(crate) fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32, GpuError> {
    let mut value: c_int = 0;
    // SAFETY: it fills one integer.
    check(format_args!("ask for {attribute:?}"), unsafe {
        cu::cuDeviceGetAttribute(&raw mut value, attribute as u32, device)
    })?;
    Ok(value.max(0) as u32)
}

/// How many GPUs there are.
pub(crate) fn count() -> Result<u32, GpuError> {
    start()?;
    let mut count: c_int = 0;
    // SAFETY: it fills one integer.
    check("count the GPUs", unsafe { cu::cuDeviceGetCount(&raw mut count) })?;
    Ok(count.max(0) as u32)
}

/// The driver's handle of GPU number `ordinal`.
pub(crate) fn handle(ordinal: u32) -> Result<CUdevice, GpuError> {
    let mut device = 0;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: it fills one handle, or answers that there is no such device.
    check(format_args!("open GPU {ordinal}"), unsafe {
        cu::cuDeviceGet(&raw mut device, number)
    })?;
    Ok(device)
}

/// What decides how a NIC and a GPU of this machine can work together. A question that an old driver does not know is answered by no.
fn for_nics(gpu: CUdevice) -> Result<ForNics, GpuError> {
    let ask = |which| attribute(gpu, which);
    let (domain, bus, slot) = (
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    );
    let able = |which| ask(which).unwrap_or(0);
    Ok(ForNics {
        pci_address: format!("{domain:04x}:{bus:02x}:{slot:02x}.0"),
        rdma: able(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
        dma_buf: able(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        writes_ordered_for: able(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    })
}

/// What the driver tells about GPU number `ordinal`.
pub(crate) fn describe(ordinal: u32) -> Result<DeviceInfo, GpuError> {
    let device = handle(ordinal)?;
    let mut name = [0 as c_char; 256];
    let mut uuid = CUuuid { bytes: [0; 16] };
    let mut memory = 0usize;
    // SAFETY: the driver writes at most the given length and ends it with a zero; the others are out-values of the right type.
    let name = unsafe {
        check(
            "ask for a GPU's name",
            cu::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device),
        )?;
        check("ask for a GPU's UUID", cu::cuDeviceGetUuid_v2(&raw mut uuid, device))?;
        check(
            "ask for a GPU's memory",
            cu::cuDeviceTotalMem_v2(&raw mut memory, device),
        )?;
        text(name.as_ptr()).unwrap_or_default()
    };
    let ask = |which| attribute(device, which);
    // Older drivers do not know them.
    let may = |which| attribute(device, which).unwrap_or(0);
    Ok(DeviceInfo {
        ordinal,
        name,
        uuid: spell(&uuid.bytes.map(|byte| byte as u8)),
        compute_capability: (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: memory as u64,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        threads_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        threads_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        shared_bytes_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        clock_khz: ask(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        read_only_registration: ask(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)? != 0,
        concurrent_managed_access: may(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0,
        for_nics: for_nics(device)?,
        memory_for_nics: may(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
    })
}

fn spell(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// The GPUs of this machine.
///
/// # Errors
/// [`GpuError::Driver`] when there is no driver or it does not start.
pub fn devices() -> Result<Vec<DeviceInfo>, GpuError> {
    (0..count()?).map(describe).collect()
}

/// The GPU that `id` names.
pub(crate) fn find(id: &DeviceId) -> Result<DeviceInfo, GpuError> {
    start()?;
    let found = match id {
        DeviceId::Ordinal(ordinal) => describe(*ordinal)?,
        DeviceId::Uuid(uuid) => one_of(devices()?, uuid)?,
    };
    if found.compute_capability < CAPABILITY_MIN {
        let (major, minor) = found.compute_capability;
        return Err(GpuError::Driver {
            what: format!("use GPU {}, {}", found.ordinal, found.name),
            name: "too old".into(),
            text: format!(
                "its compute capability is {major}.{minor}, and {}.{} or newer is needed",
                CAPABILITY_MIN.0, CAPABILITY_MIN.1
            ),
            advice: "; use a newer GPU or the simulated one".into(),
        });
    }
    Ok(found)
}

fn one_of(all: Vec<DeviceInfo>, uuid: &str) -> Result<DeviceInfo, GpuError> {
    let wanted = uuid.to_ascii_lowercase();
    let known: Vec<String> = all.iter().map(|d| d.uuid.clone()).collect();
    let mut matching = all.into_iter().filter(|device| {
        let own = device.uuid.to_ascii_lowercase();
        !wanted.is_empty() && (own.starts_with(&wanted) || own["GPU-".len()..].starts_with(&wanted))
    });
    let refuse = |text: &str| {
        Err(GpuError::Driver {
            what: format!("open the GPU with UUID {uuid:?}"),
            name: "bad UUID".into(),
            text: format!("{text}; GPUs here: {}", known.join(", ")),
            advice: "; nvidia-smi -L lists them".into(),
        })
    };
    match (matching.next(), matching.next()) {
        (Some(device), None) => Ok(device),
        (None, _) => refuse("no GPU has this UUID"),
        (Some(_), Some(_)) => refuse("several GPUs have this UUID"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ordinal: u32, byte: u8) -> DeviceInfo {
        DeviceInfo {
            ordinal,
            name: "test".into(),
            uuid: spell(&[byte; 16]),
            compute_capability: (9, 0),
            memory_bytes: 1,
            multiprocessors: 1,
            threads_per_multiprocessor: 2048,
            threads_per_block: 1024,
            shared_bytes_per_block: 227 << 10,
            clock_khz: 1,
            read_only_registration: false,
            concurrent_managed_access: false,
            for_nics: ForNics {
                pci_address: "0000:17:00.0".into(),
                rdma: false,
                dma_buf: false,
                writes_ordered_for: 0,
            },
            memory_for_nics: false,
        }
    }

    #[test]
    fn a_uuid_or_its_start_names_one_gpu() {
        let all = || vec![device(0, 0xab), device(1, 0xac)];
        assert_eq!(all()[0].uuid, "GPU-abababab-abab-abab-abab-abababababab");
        for name in ["GPU-ac", "gpu-acacacac-acac", "acac"] {
            assert_eq!(one_of(all(), name).expect("one").ordinal, 1, "{name}");
        }
        for name in ["GPU-a", "", "GPU-00"] {
            let error = one_of(all(), name).expect_err(name).to_string();
            assert!(error.contains("GPU-abababab"), "{error}");
        }
    }

    #[test]
    fn a_driver_loads_what_is_of_its_major_version_or_older() {
        assert!(driver_refuses_nvrtc((12, 4), (13, 0)));
        for (driver, nvrtc) in [((12, 4), (12, 8)), ((13, 0), (12, 4)), ((13, 0), (13, 1))] {
            assert!(!driver_refuses_nvrtc(driver, nvrtc), "{driver:?} {nvrtc:?}");
        }
    }

    #[test]
    fn a_number_is_an_ordinal() {
        assert_eq!(DeviceId::from("3"), DeviceId::Ordinal(3));
        assert_eq!(DeviceId::from("GPU-3"), DeviceId::Uuid("GPU-3".into()));
    }
}
