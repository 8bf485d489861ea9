//! What kernels that were compiled elsewhere use of the device library.

use gpuvm_layouts as layout;

use crate::error::{Error, Result};

/// What a kernel's program was compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCode {
    /// `gpuvm::layout::LAYOUT_VERSION` of the device library's headers.
    pub layout_version: u32,
    /// `GPUVM_FEATURES` as the program defined it, else `gpuvm::layout::FEATURES_ALL`.
    pub features: u32,
}

impl DeviceCode {
    /// With the headers of this version of gpuvm, and all features.
    pub const ALL: Self = Self {
        layout_version: layout::LAYOUT_VERSION,
        features: layout::FEATURES_ALL,
    };
    /// A feature: pages that lanes copy themselves.
    pub const DIRECT: u32 = layout::FEATURE_DIRECT;
    /// A feature: pages that NICs move.
    pub const QUEUED: u32 = layout::FEATURE_QUEUED;
    /// A feature: replicas and checksums.
    pub const RELIABLE: u32 = layout::FEATURE_RELIABLE;
    /// A feature: memory borrowed of neighbours.
    pub const VICTIMS: u32 = layout::FEATURE_VICTIMS;
    /// A feature: frames whose number changes.
    pub const RESIZABLE: u32 = layout::FEATURE_RESIZABLE;
    /// A feature: single faults in a [timeline](crate::Timeline). No launch needs it: without it a timeline has none of the kernel's.
    pub const TIMELINE: u32 = layout::FEATURE_TIMELINE;

    /// With the headers of this version of gpuvm, and these features: a sum of the constants here, as `GPUVM_FEATURES` is.
    pub const fn with(features: u32) -> Self {
        Self {
            layout_version: layout::LAYOUT_VERSION,
            features,
        }
    }

    /// Refuses to run it where it does not fit.
    pub(crate) fn fits(self, kernel: &str, needed: u32) -> Result<()> {
        let refuse = |reason: String| {
            Err(Error::DeviceCode {
                kernel: kernel.to_owned(),
                reason,
            })
        };
        if self.layout_version != layout::LAYOUT_VERSION {
            return refuse(format!(
                "it was compiled with headers of layout version {}, and this library has {}: recompile it with this library's headers",
                self.layout_version,
                layout::LAYOUT_VERSION
            ));
        }
        let names = [
            (
                layout::FEATURE_DIRECT,
                "FEATURE_DIRECT (pages that lanes copy themselves)",
            ),
            (layout::FEATURE_QUEUED, "FEATURE_QUEUED (pages that NICs move)"),
            (layout::FEATURE_RELIABLE, "FEATURE_RELIABLE (replicas and checksums)"),
            (
                layout::FEATURE_VICTIMS,
                "FEATURE_VICTIMS (memory borrowed of neighbours)",
            ),
            (
                layout::FEATURE_RESIZABLE,
                "FEATURE_RESIZABLE (frames whose number changes)",
            ),
        ];
        let missing = names
            .iter()
            .filter(|(feature, _)| needed & !self.features & feature != 0);
        let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => refuse(format!(
                "this Vm needs {}, which GPUVM_FEATURES left out when it was compiled",
                missing.join(" and ")
            )),
        }
    }
}
