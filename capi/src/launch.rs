//! Launches.

use std::{ffi::c_void, sync::Arc, time::Duration};

use bytemuck::Zeroable;
use gpuvm::{Arg, ElementType, LaunchConfig, LaunchReport, RawBroadcast, RawBuffer, RawElasticBuffer, RawRegion};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    element::gpuvm_element,
    handles::{self, Guard, Held, gpuvm_kernel, gpuvm_launch, gpuvm_stream},
    raw::{self, Growing, OutStruct},
};

/// What an argument is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_arg_kind {
    /// A value, which the kernel takes by value.
    Value = 0,
    /// A region.
    Region = 1,
    /// A buffer.
    Buffer = 2,
    /// An elastic buffer.
    Elastic = 3,
    /// A broadcast array.
    Broadcast = 4,
    /// A device address of memory that gpuvm does not know.
    Address = 5,
}

/// An argument of a kernel. `gpuvm_arg_u32(5)`, `gpuvm_arg_region(region)` and their like make one; in C11 `GPUVM_ARG(x)` does.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_arg {
    /// `gpuvm_arg_kind`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// The type of a value, or of what lies at an address.
    pub element: gpuvm_element,
    /// The `id` of a handle; an address; or the bytes of a number, from the first on, where `data` is NULL.
    pub value: u64,
    /// The bytes of a value, which stay until the launch function returns.
    pub data: *const c_void,
}

/// The shape of a launch. Every field but `size`, `grid[0]` and `block[0]` may be 0 or null.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_launch_options {
    /// `sizeof(gpuvm_launch_options)`.
    pub size: u64,
    /// Blocks in x, y, z. y and z may be 0, which is 1.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z. y and z may be 0, which is 1.
    pub block: [u32; 3],
    /// Longest that it may run in nanoseconds. 0: the Vm's `launch_deadline`.
    pub deadline_ns: u64,
    /// Spans that one thread holds at once.
    pub thread_spans: u64,
    /// Spans that one warp holds at once.
    pub warp_spans: u64,
    /// The stream. Null: the GPU's default one.
    pub stream: gpuvm_stream,
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u32,
    /// Not 0: its report does not say how long it took, which spares the caller about 2 us on an NVIDIA GPU.
    pub untimed: u32,
}

impl Growing for gpuvm_launch_options {
    const NAME: &'static str = "gpuvm_launch_options";
}

/// What is known of a launch that has ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_launch_report {
    /// `sizeof(gpuvm_launch_report)`.
    pub size: u64,
    /// Blocks that ran to their end.
    pub blocks: u64,
    /// Nanoseconds from its start to its last block's end; 0 of an untimed launch.
    pub elapsed_ns: u64,
}

impl Growing for gpuvm_launch_report {
    const NAME: &'static str = "gpuvm_launch_report";
}

impl gpuvm_launch_options {
    pub(crate) fn config(&self) -> Result<LaunchConfig> {
        let or_one = |[x, y, z]: [u32; 3]| [x, y.max(1), z.max(1)];
        let config = LaunchConfig::grid(or_one(self.grid), or_one(self.block))
            .dynamic_shared(self.dynamic_shared_bytes)
            .thread_spans(self.thread_spans)
            .warp_spans(self.warp_spans);
        let config = match self.untimed {
            0 => config,
            _ => config.untimed(),
        };
        Ok(match raw::time(self.deadline_ns) {
            Some(limit) => config.deadline(limit),
            None => config,
        })
    }
}

/// What an argument names, kept for the time of a call.
pub(crate) enum Kept {
    Value(ElementType, Vec<u8>),
    Address(ElementType, u64),
    Region(Arc<Held<RawRegion>>, u64),
    Buffer(Arc<Held<RawBuffer>>, u64),
    Elastic(Arc<Held<RawElasticBuffer>>, u64),
    Broadcast(Arc<Held<RawBroadcast>>, u64),
}

/// What an argument names, so that nothing frees it.
pub(crate) enum Used<'a> {
    Value(&'a ElementType, &'a [u8]),
    Address(&'a ElementType, u64),
    Region(Guard<'a, RawRegion>),
    Buffer(Guard<'a, RawBuffer>),
    Elastic(Guard<'a, RawElasticBuffer>),
    Broadcast(Guard<'a, RawBroadcast>),
}

/// What messages call what a handle of an argument names.
const ARGUMENT: &str = "argument";

impl gpuvm_arg {
    pub(crate) fn keep(&self) -> Result<Kept> {
        const KINDS: [gpuvm_arg_kind; 6] = [
            gpuvm_arg_kind::Value,
            gpuvm_arg_kind::Region,
            gpuvm_arg_kind::Buffer,
            gpuvm_arg_kind::Elastic,
            gpuvm_arg_kind::Broadcast,
            gpuvm_arg_kind::Address,
        ];
        raw::unused("reserved of an argument", self.reserved)?;
        let handle = self.value;
        Ok(match raw::one_of("kind of an argument", self.kind, &KINDS)? {
            gpuvm_arg_kind::Value => self.value()?,
            gpuvm_arg_kind::Address => Kept::Address(self.element.read()?, self.value),
            gpuvm_arg_kind::Region => Kept::Region(handles::share(ARGUMENT, handle)?, handle),
            gpuvm_arg_kind::Buffer => Kept::Buffer(handles::share(ARGUMENT, handle)?, handle),
            gpuvm_arg_kind::Elastic => Kept::Elastic(handles::share(ARGUMENT, handle)?, handle),
            gpuvm_arg_kind::Broadcast => Kept::Broadcast(handles::share(ARGUMENT, handle)?, handle),
        })
    }

    fn value(&self) -> Result<Kept> {
        let element = self.element.read()?;
        let bytes = element.bytes();
        let number = self.value.to_ne_bytes();
        let given = match number.get(..bytes).filter(|_| self.data.is_null()) {
            Some(number) => number,
            None => raw::bytes("data of an argument", self.data, bytes as u64)?,
        };
        let given = given.to_vec();
        Ok(Kept::Value(element, given))
    }
}

impl Kept {
    pub(crate) fn used(&self) -> Result<Used<'_>> {
        Ok(match self {
            Self::Value(element, bytes) => Used::Value(element, bytes),
            Self::Address(element, address) => Used::Address(element, *address),
            Self::Region(held, handle) => Used::Region(held.get(ARGUMENT, *handle)?),
            Self::Buffer(held, handle) => Used::Buffer(held.get(ARGUMENT, *handle)?),
            Self::Elastic(held, handle) => Used::Elastic(held.get(ARGUMENT, *handle)?),
            Self::Broadcast(held, handle) => Used::Broadcast(held.get(ARGUMENT, *handle)?),
        })
    }
}

impl Used<'_> {
    pub(crate) fn arg(&self) -> Arg<'_> {
        match self {
            Self::Value(element, bytes) => Arg::value((*element).clone(), bytes),
            // SAFETY: C's caller says that kernels of this GPU reach what lies there until the launch has ended.
            Self::Address(element, address) => unsafe { Arg::address((*element).clone(), *address) },
            Self::Region(region) => Arg::from(&**region),
            Self::Buffer(buffer) => Arg::from(&**buffer),
            Self::Elastic(elastic) => Arg::from(&**elastic),
            Self::Broadcast(array) => Arg::from(&**array),
        }
    }
}

/// Enqueues a launch and returns at once, unless a launch on another GPU has to end before. The arguments are checked against the kernel's
/// parameters. What they name stays until the launch has ended, whatever is freed meanwhile. Its errors come out of `gpuvm_launch_sync`. Free
/// the launch by `gpuvm_launch_free`. After an error nothing runs, and `*launch` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_kernel_launch(
    kernel: gpuvm_kernel,
    options: *const gpuvm_launch_options,
    args: *const gpuvm_arg,
    arg_count: u64,
    launch: *mut gpuvm_launch,
) -> gpuvm_code {
    calls::make(launch, || {
        let options: gpuvm_launch_options = raw::options("options", options)?;
        let kernel = handles::copy(kernel)?;
        let args = raw::list("args", args, arg_count)?;
        let kept = args.iter().map(gpuvm_arg::keep).collect::<Result<Vec<_>>>()?;
        let used = kept.iter().map(Kept::used).collect::<Result<Vec<_>>>()?;
        let args: Vec<Arg<'_>> = used.iter().map(Used::arg).collect();
        Ok(match options.stream.id {
            0 => kernel.launch_raw(options.config()?, &args)?,
            _ => kernel.launch_raw_on(&handles::copy(options.stream)?, options.config()?, &args)?,
        })
    })
}

fn report(place: Option<OutStruct<gpuvm_launch_report>>, report: &LaunchReport) {
    if let Some(place) = place {
        place.set(gpuvm_launch_report {
            size: 0,
            blocks: report.blocks,
            elapsed_ns: raw::ns(report.elapsed()),
        });
    }
}

/// Waits for the end of a launch. Returns its error, if it had one, as often as it is asked. `end` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_sync(launch: gpuvm_launch, end: *mut gpuvm_launch_report) -> gpuvm_code {
    calls::on(launch, |launch| {
        let place = OutStruct::optional("end", end)?;
        report(place, &launch.sync()?);
        Ok(())
    })
}

/// As `gpuvm_launch_sync`, for `timeout_ns` nanoseconds at most: then it returns `GPUVM_CODE_STILL_RUNS`. 0 looks and does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_wait(
    launch: gpuvm_launch,
    timeout_ns: u64,
    end: *mut gpuvm_launch_report,
) -> gpuvm_code {
    calls::on(launch, |launch| {
        let place = OutStruct::optional("end", end)?;
        match launch.wait(Some(Duration::from_nanos(timeout_ns))) {
            Some(outcome) => report(place, &outcome?),
            None => return Err(Failure::StillRuns { waited_ns: timeout_ns }),
        }
        Ok(())
    })
}

/// Stores whether a launch has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_is_done(launch: gpuvm_launch, done: *mut bool) -> gpuvm_code {
    calls::get(launch, "done", done, |launch| Ok(launch.is_done()))
}

/// Asks the kernel to stop: `failed()` of its arrays becomes true, and accesses that miss return at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_abort(launch: gpuvm_launch) -> gpuvm_code {
    calls::on(launch, |launch| {
        launch.abort();
        Ok(())
    })
}

/// Stops the kernel where it stands, and with it the other launches in flight on its GPU. No dirty page is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_kill(launch: gpuvm_launch) -> gpuvm_code {
    calls::on(launch, |launch| {
        launch.kill();
        Ok(())
    })
}

/// Frees the handle. The kernel goes on; an error of its that was not asked for is lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_free(launch: gpuvm_launch) -> gpuvm_code {
    calls::free(launch)
}
