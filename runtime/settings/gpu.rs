//! Which GPU runs the kernels.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

use gpuvm_gpu::{Gpu as Device, cuda};

use crate::{
    error::{Doing, Error, Result},
    settings::{SimulatedGpu, refuse},
};

/// Which GPU runs the kernels, and what only that kind of GPU has.
#[derive(Clone, Default)]
pub enum Gpu {
    /// The first NVIDIA GPU that can be used with the transport; else the simulated GPU, as over SoftRoCE and for memory nodes that no ConnectX
    /// leads to. `Vm::device` says which it is.
    #[default]
    Auto,
    /// The simulated GPU, in this process.
    Simulated(SimulatedGpu),
    /// An NVIDIA GPU.
    Cuda(CudaGpu),
    /// A GPU that is there: of your own making, or one that several virtual memories share.
    Device(Arc<dyn Device>),
}

/// An NVIDIA GPU, by what names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaGpu(Name);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Ordinal(u32),
    Uuid([u8; 16]),
}

impl CudaGpu {
    /// By its place in the driver's list, from 0 on.
    pub const fn ordinal(ordinal: u32) -> Self {
        Self(Name::Ordinal(ordinal))
    }

    /// By its UUID, the bytes in the order in which it is written.
    pub const fn uuid(uuid: [u8; 16]) -> Self {
        Self(Name::Uuid(uuid))
    }

    /// Opens it, with kernels that were compiled before.
    fn open(self, precompiled: Option<&Path>) -> Result<Arc<dyn Device>> {
        let mut gpu = cuda::CudaGpu::builder(self.to_string());
        if let Some(dir) = precompiled {
            gpu = gpu.precompiled(dir);
        }
        Ok(Arc::new(gpu.build().doing(|| format!("opening GPU cuda:{self}"))?))
    }

    /// The 16 bytes of `GPU-8ab3...-...`: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
    fn uuid_of(text: &str) -> Option<[u8; 16]> {
        let groups: Vec<&str> = text.strip_prefix("GPU-")?.split('-').collect();
        let lengths = groups.iter().map(|group| group.len());
        let digits = groups.concat();
        if !lengths.eq([8, 4, 4, 4, 12]) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
    }
}

impl fmt::Display for CudaGpu {
    /// The ordinal, or `GPU-` and the rest of the UUID: as the driver's tools name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uuid = match self.0 {
            Name::Ordinal(ordinal) => return write!(f, "{ordinal}"),
            Name::Uuid(uuid) => uuid,
        };
        f.write_str("GPU")?;
        let hex = format!("{:032x}", u128::from_be_bytes(uuid));
        let ends = [8, 12, 16, 20, 32];
        ends.iter().try_fold(0, |start, &end| {
            write!(f, "-{}", &hex[start..end])?;
            Ok(end)
        })?;
        Ok(())
    }
}

impl Gpu {
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Simulated(simulated) => simulated.check(),
            _ => Ok(()),
        }
    }

    /// The seed that it follows, if it does.
    pub(super) fn seed(&self) -> Option<String> {
        match self {
            Self::Simulated(simulated) => simulated.seed_asked().map(|seed| seed.to_string()),
            Self::Device(gpu) if gpu.capabilities().deterministic => Some("the GPU's own".into()),
            _ => None,
        }
    }

    /// The simulated GPU that is started where this one is to be simulated.
    pub(super) fn simulated(&self) -> SimulatedGpu {
        match self {
            Self::Simulated(simulated) => simulated.clone(),
            _ => SimulatedGpu::default(),
        }
    }

    /// The GPU to drive; none for a simulated one that is to be started. `simulated`: what else was asked for leaves `Auto`
    /// no other.
    pub(super) fn open(&self, simulated: bool, precompiled: Option<&Path>) -> Result<Option<Arc<dyn Device>>> {
        let because = |why: &str| {
            tracing::info!("the simulated GPU runs the kernels: {why}");
            Ok(None)
        };
        match self {
            Self::Device(gpu) => Ok(Some(Arc::clone(gpu))),
            Self::Simulated(_) => Ok(None),
            Self::Cuda(which) => which.open(precompiled).map(Some),
            Self::Auto if simulated => because("an NVIDIA GPU cannot reach the SoftRoCE driver's rings"),
            Self::Auto => match CudaGpu::ordinal(0).open(precompiled) {
                Ok(gpu) => {
                    tracing::info!("{} runs the kernels", gpu.capabilities().name);
                    Ok(Some(gpu))
                }
                Err(Error::Gpu { source, .. }) => because(&source.to_string()),
                Err(error) => because(&error.to_string()),
            },
        }
    }
}

impl From<SimulatedGpu> for Gpu {
    fn from(gpu: SimulatedGpu) -> Self {
        Self::Simulated(gpu)
    }
}

impl From<CudaGpu> for Gpu {
    fn from(gpu: CudaGpu) -> Self {
        Self::Cuda(gpu)
    }
}

impl From<Arc<dyn Device>> for Gpu {
    fn from(gpu: Arc<dyn Device>) -> Self {
        Self::Device(gpu)
    }
}

impl<G: Device + 'static> From<Arc<G>> for Gpu {
    fn from(gpu: Arc<G>) -> Self {
        Self::Device(gpu)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulated(simulated) => simulated.fmt(f),
            other => write!(f, "{other}"),
        }
    }
}

impl fmt::Display for Gpu {
    /// As `FromStr` reads it; a GPU that is there by its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Simulated(_) => f.write_str("sim"),
            Self::Cuda(which) => write!(f, "cuda:{which}"),
            Self::Device(gpu) => f.write_str(&gpu.capabilities().name),
        }
    }
}

impl FromStr for Gpu {
    type Err = Error;

    /// `auto`, `sim` (or `simulated`), `cuda:N` or `cuda:GPU-` and the rest of a UUID as `nvidia-smi -L` prints it.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "sim" | "simulated" => return Ok(Self::Simulated(SimulatedGpu::default())),
            _ => {}
        }
        if let Some(which) = text.strip_prefix("cuda:") {
            if let Ok(ordinal) = which.parse() {
                return Ok(Self::Cuda(CudaGpu::ordinal(ordinal)));
            }
            if let Some(uuid) = CudaGpu::uuid_of(which) {
                return Ok(Self::Cuda(CudaGpu::uuid(uuid)));
            }
        }
        let reason = "expected auto, sim, cuda:N or cuda:GPU-UUID";
        refuse("gpu", format!("`{text}`"), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_as_it_is_read() {
        for text in [
            "auto",
            "sim",
            "cuda:0",
            "cuda:15",
            "cuda:GPU-01234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(text.parse::<Gpu>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "cuda",
            "cuda:",
            "cuda:-1",
            "cuda:x",
            "cuda:4294967296",
            "cuda:GPU-",
            "cuda:GPU-01234567",
            "cuda:GPU-01234567-89ab-cdef-0123-456789abcdeg",
            "cuda:GPU-0123456789abcdef0123456789abcdef",
            "cuda:GPU-+1234567-89ab-cdef-0123-456789abcdef",
        ] {
            let refused = text.parse::<Gpu>().unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("gpu is `{text}`: expected auto")),
                "{refused}"
            );
        }
    }
}
