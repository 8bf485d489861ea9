//! Launches of kernels that were compiled with the program, by nvcc: the caller enqueues them, and has what their arrays are.

use std::sync::Arc;

use gpuvm_layouts as layout;

use crate::{
    args::{Arg, Placed},
    device_code::DeviceCode,
    error::{Error, Result},
    given::{ArgKind, Given},
    gpu::{Job, Named, PagedGpu},
    launch::{self, LaunchConfig, Table},
    launched::{Launch, StreamHandle},
    region::RawRegion,
};

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
            ArgKind::Array {
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
        None => &gpu.stream,
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
    let label = launch::label(what.name);
    let in_flight = gpu.enqueue(
        stream,
        Job::External(what.name, Box::new(enqueue)),
        what.config,
        named,
        &label,
    );
    let in_flight = gpu.map_device_lost(in_flight)?;
    Ok(Launch::new(Arc::clone(gpu), in_flight))
}

/// See [`VmGpu::launch_over`](crate::VmGpu::launch_over).
pub(crate) fn launch_over(
    gpu: &Arc<PagedGpu>,
    stream: &StreamHandle,
    (name, at_home): (&str, bool),
    regions: &[&RawRegion],
    enqueue: impl FnOnce(bool) -> std::result::Result<(), String>,
) -> Result<Launch> {
    let stream = stream.on_or(gpu, name)?;
    let there = regions.iter().map(|region| gpu.map_device_lost(region.inner.on(gpu)));
    let there: Vec<_> = there.collect::<Result<_>>()?;
    let named = Named {
        memories: regions
            .iter()
            .map(|region| (Arc::clone(&region.inner) as _, true))
            .collect(),
        looks_up: !regions.is_empty(),
        by: if at_home { Table::Home } else { Table::Entries },
        pageless: regions.is_empty(),
        ..Named::default()
    };
    // Asked while the regions' launches are locked.
    let enqueue = |_vm: u64| enqueue(there.iter().all(|on| on.view.is_complete()));
    let job = Job::External(name, Box::new(enqueue));
    let config = LaunchConfig::new(1, 1).untimed();
    let in_flight = gpu.enqueue(stream, job, &config, named, &launch::label(name));
    let in_flight = gpu.map_device_lost(in_flight)?;
    Ok(Launch::new(Arc::clone(gpu), in_flight))
}
