//! The transports that there are, without their settings.

use std::fmt;

#[cfg(doc)]
use crate::Transport;

/// The transport of a virtual memory that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// The software NIC: [`Transport::Soft`].
    Soft,
    /// Linux SoftRoCE: [`Transport::Rxe`].
    Rxe,
    /// ConnectX NICs: [`Transport::Mlx5`].
    Mlx5,
    /// Copies by the faulting warp: [`Transport::Direct`].
    Direct,
}

impl TransportKind {
    /// The transport's name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Rxe => "rxe",
            Self::Mlx5 => "mlx5",
            Self::Direct => "direct",
        }
    }

    /// What [`Transport::Auto`] becomes on an NVIDIA GPU or on the simulated one.
    pub const fn of_gpu(nvidia: bool) -> Self {
        match nvidia {
            true => Self::Direct,
            false => Self::Soft,
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
