//! Launches of kernels that were compiled with the program, by nvcc: the caller enqueues them, and has what their arrays are.

use std::sync::Arc;

use gpuvm_layouts as layout;

use crate::{
    args::{Arg, Placed},
    error::{Error, Result},
    given::{Given, GivenKind},
    gpu::{Job, Named, PagedGpu},
    kernel,
    launch::LaunchConfig,
    launched::{Launch, StreamHandle},
};

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
    pub const GUARDED: u32 = layout::FEATURE_GUARDED;
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
                "it was compiled with headers of layout version {}, and this library has {}: compile it with the headers of this version",
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
            (layout::FEATURE_GUARDED, "FEATURE_GUARDED (replicas and checksums)"),
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

/// Memory that a launch uses, and whether it may write it.
#[derive(Clone)]
pub struct Use<'a> {
    arg: Arg<'a>,
    writes: bool,
}

impl<'a> Use<'a> {
    /// Memory that it only reads: a region that it has as `gpuvm::array<const T>`.
    pub fn reads(memory: impl Into<Arg<'a>>) -> Self {
        Self {
            arg: memory.into(),
            writes: false,
        }
    }

    /// Memory that it may write: a region that it has as `gpuvm::array<T>`.
    pub fn writes(memory: impl Into<Arg<'a>>) -> Self {
        Self {
            arg: memory.into(),
            writes: true,
        }
    }

    /// Refuses what the GPU's kernels cannot have, or not so.
    fn check(&self, given: &Given<'_>, kernel: &str, gpu: &Arc<PagedGpu>, position: usize) -> Result<()> {
        given.is_for(gpu, kernel, position)?;
        match &given.kind {
            GivenKind::Array {
                read_only: true,
                region,
                ..
            } if self.writes => Err(Error::Arguments {
                kernel: kernel.to_owned(),
                reason: format!(
                    "argument {position}: the read-only region `{region}` is to be written: take gpuvm::array<const T>"
                ),
            }),
            _ => Ok(()),
        }
    }
}

/// What a caller enqueues.
pub(crate) struct Precompiled<'a> {
    /// For messages.
    pub name: &'a str,
    pub code: DeviceCode,
    pub config: &'a LaunchConfig,
    pub uses: &'a [Use<'a>],
}

/// Enqueues a launch: `enqueue` has what the launch's memory is, in the order of `uses`, and puts the kernel on the stream.
///
/// # Errors
/// Those of [`crate::VmGpu::launch_by`].
pub(crate) fn launch(
    gpu: &Arc<PagedGpu>,
    stream: Option<&StreamHandle>,
    what: &Precompiled<'_>,
    enqueue: impl FnOnce(Option<u64>, &[Vec<u8>]) -> std::result::Result<(), String>,
) -> Result<Launch> {
    let stream = match stream {
        None => gpu.stream(),
        Some(stream) => stream.on_or(gpu, what.name)?,
    };
    // A timeline has nothing of a kernel that notes nothing.
    what.code.fits(what.name, gpu.features() & layout::FEATURES_ALL)?;
    let given: Vec<Given<'_>> = what.uses.iter().map(|one| one.arg.give()).collect();
    for (position, (one, given)) in (1..).zip(what.uses.iter().zip(&given)) {
        one.check(given, what.name, gpu, position)?;
    }
    let placed = what.uses.iter().map(|one| one.arg.place_on(gpu));
    let placed: Vec<Placed<'_>> = placed.collect::<Result<_>>()?;
    let mut named = Named::default();
    for (given, one) in given.into_iter().zip(what.uses) {
        named.memories.extend(given.memory.map(|memory| (memory, one.writes)));
    }
    let raw = stream.raw();
    let enqueue = |vm: u64| {
        let views: Vec<Vec<u8>> = placed.iter().map(|placed| placed.bytes(vm)).collect();
        enqueue(raw, &views)
    };
    let label = kernel::label(what.name);
    let in_flight = gpu.enqueue(
        stream,
        Job::ByCaller(what.name, Box::new(enqueue)),
        what.config,
        named,
        &label,
    );
    let in_flight = gpu.or_lost(in_flight)?;
    Ok(Launch::new(Arc::clone(gpu), in_flight))
}
