//! Which GPU and which transport a virtual memory is to use, as settings name them.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// Which GPU runs the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuKind {
    /// The first NVIDIA GPU that can be used, unless a setting asks for what only the simulated GPU has: a seed, a software
    /// NIC, SoftRoCE, memory nodes that no ConnectX leads to. Else the simulated GPU.
    #[default]
    Auto,
    /// The simulated GPU, in this process.
    Simulated,
    /// An NVIDIA GPU by its ordinal.
    Cuda(u32),
    /// An NVIDIA GPU by its UUID, in the order in which it is written.
    CudaUuid([u8; 16]),
}

impl GpuKind {
    /// The 16 bytes of `GPU-8ab3...-...`: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
    fn uuid(text: &str) -> Option<[u8; 16]> {
        let groups: Vec<&str> = text.strip_prefix("GPU-")?.split('-').collect();
        let lengths = groups.iter().map(|group| group.len());
        let digits = groups.concat();
        if !lengths.eq([8, 4, 4, 4, 12]) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
    }
}

impl fmt::Display for GpuKind {
    /// As `FromStr` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Simulated => f.write_str("sim"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::CudaUuid(uuid) => {
                f.write_str("cuda:GPU")?;
                let hex = format!("{:032x}", u128::from_be_bytes(*uuid));
                let ends = [8, 12, 16, 20, 32];
                ends.iter().try_fold(0, |start, &end| {
                    write!(f, "-{}", &hex[start..end])?;
                    Ok(end)
                })?;
                Ok(())
            }
        }
    }
}

impl FromStr for GpuKind {
    type Err = Error;

    /// `auto`, `sim`, `cuda:N` or `cuda:GPU-` and the rest of a UUID as `nvidia-smi -L` prints it.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "sim" => return Ok(Self::Simulated),
            _ => {}
        }
        if let Some(which) = text.strip_prefix("cuda:") {
            if let Ok(ordinal) = which.parse() {
                return Ok(Self::Cuda(ordinal));
            }
            if let Some(uuid) = Self::uuid(which) {
                return Ok(Self::CudaUuid(uuid));
            }
        }
        Err(Error::Setting {
            setting: "gpu",
            value: format!("`{text}`"),
            reason: "expected auto, sim, cuda:N or cuda:GPU-UUID".into(),
        })
    }
}

/// How pages travel between frames and their home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The best one for the GPU: `Direct` on an NVIDIA GPU, `Soft` on the simulated GPU; with memory nodes `Mlx5` where ConnectX
    /// devices lead there, else `Rxe`.
    #[default]
    Auto,
    /// The software NIC: mlx5 work requests executed in this process. On an NVIDIA GPU that was named (`GpuKind::Auto` takes
    /// the simulated one for it) its bytes are moved by the GPU's copy engines, and the multiprocessors stay free.
    Soft,
    /// Linux SoftRoCE: GPU threads write into the kernel driver's rings, a doorbell proxy makes the system call.
    Rxe,
    /// ConnectX NICs (mlx5), whose queues GPU threads drive. Not tested on a ConnectX: see docs/CONNECTX.md.
    Mlx5,
    /// The faulting warp copies its pages itself, from host memory or from a neighbour GPU's.
    Direct,
}

impl Transport {
    /// The transport's name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Soft => "soft",
            Self::Rxe => "rxe",
            Self::Mlx5 => "mlx5",
            Self::Direct => "direct",
        }
    }

    /// The transport that a [`VmBuilder`](crate::VmBuilder) takes: `Auto` becomes the best one for an NVIDIA GPU or the simulated one, with or
    /// without memory nodes, to which ConnectX devices lead or others.
    pub const fn resolve(self, nvidia: bool, memory_nodes: bool, over_mlx5: bool) -> Self {
        match self {
            // An NVIDIA GPU cannot reach the SoftRoCE driver's rings.
            Self::Auto if memory_nodes && (over_mlx5 || nvidia) => Self::Mlx5,
            Self::Auto if memory_nodes => Self::Rxe,
            Self::Auto if nvidia => Self::Direct,
            Self::Auto => Self::Soft,
            asked => asked,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = Error;

    /// `auto`, `soft`, `rxe`, `mlx5` or `direct`.
    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Soft, Self::Rxe, Self::Mlx5, Self::Direct]
            .into_iter()
            .find(|t| t.name() == text)
            .ok_or_else(|| Error::Setting {
                setting: "transport",
                value: format!("`{text}`"),
                reason: "expected auto, soft, rxe, mlx5 or direct".into(),
            })
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
            assert_eq!(text.parse::<GpuKind>().unwrap().to_string(), text);
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
            let refused = text.parse::<GpuKind>().unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("gpu is `{text}`: expected auto")),
                "{refused}"
            );
        }
    }
}
