//! Virtual memories.

use std::{
    borrow::Cow,
    ffi::{CString, c_char, c_void},
    sync::LazyLock,
    time::Duration,
};

use bytemuck::Zeroable;
use gpuvm::{ElasticStats, Error, NamedSetting, Stats, TransportKind, Vm, VmBuilder, VmGpu};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    guard::guard,
    handles::{self, gpuvm_vm},
    raw::{self, Growing, Out, OutStruct},
};

/// What fills the frames.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_transport {
    /// The software NIC.
    Soft = 0,
    /// Linux SoftRoCE.
    Rxe = 1,
    /// ConnectX NICs.
    Mlx5 = 2,
    /// Copies by the faulting warp.
    Direct = 3,
}

/// A GPU of a virtual memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_gpu_info {
    /// `sizeof(gpuvm_gpu_info)`.
    pub size: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// Frames that there are.
    pub frames: u64,
    /// Frames that there may be.
    pub frame_capacity: u64,
    /// Bytes of page tables and of what is kept of each frame.
    pub bookkeeping_bytes: u64,
    /// Bytes that neighbour GPUs lend.
    pub borrowed_bytes: u64,
    /// `gpuvm_transport`.
    pub transport: u32,
    /// Queue pairs, of all homes and NICs together.
    pub queue_pairs: u32,
}

impl Growing for gpuvm_gpu_info {
    const NAME: &'static str = "gpuvm_gpu_info";
}

/// What became of a change of the number of frames.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_resized {
    /// `sizeof(gpuvm_resized)`.
    pub size: u64,
    /// Bytes of frames that there are now.
    pub bytes: u64,
    /// Bytes of frames that were to go and stay. Asking once more goes on.
    pub kept_bytes: u64,
    /// Bytes of frames that were to come and for which there is no memory.
    pub missing_bytes: u64,
    /// Nanoseconds that it took.
    pub took_ns: u64,
}

impl Growing for gpuvm_resized {
    const NAME: &'static str = "gpuvm_resized";
}

/// Calls `act` with a GPU of a virtual memory. The handle may be freed meanwhile.
pub(crate) fn on_gpu<R>(vm: gpuvm_vm, gpu: u32, act: impl FnOnce(&VmGpu) -> Result<R, Error>) -> Result<R> {
    Ok(act(handles::copy(vm)?.gpu(gpu as usize)?)?)
}

/// A setting of a virtual memory: `{"transport", "direct", 0}`, or, in C, `{"frame_memory", .number = 1 << 20}`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_setting {
    /// Its name: `gpuvm_setting_name` lists all.
    pub name: *const c_char,
    /// Its value, such as `64MiB`, `250ms`, `true` or `sim,sim`. NULL: `number`.
    pub text: *const c_char,
    /// Its value where `text` is NULL: bytes, seconds, 0 or 1 for no or yes, or whatever else it counts.
    pub number: i64,
}

impl gpuvm_setting {
    /// Its name, and its value as text.
    fn read(&self) -> Result<(&str, Cow<'_, str>)> {
        let value = match raw::optional_text("text of a setting", self.text)? {
            Some(text) => Cow::from(text),
            None => Cow::from(self.number.to_string()),
        };
        Ok((raw::text("name of a setting", self.name)?, value))
    }
}

/// Makes a virtual memory with `count` settings; every other one has its default. `settings`: NULL where there are none: the first NVIDIA GPU,
/// or the simulated one where there is none, with 64 MiB of frames. In C, `GPUVM_SETTINGS({..}, {..})` is both. The settings need to stay until
/// this returns. Free it by `gpuvm_vm_free`. After an error `*vm` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_new(settings: *const gpuvm_setting, count: u64, vm: *mut gpuvm_vm) -> gpuvm_code {
    calls::make(vm, || {
        let settings = raw::list("settings", settings, count)?;
        let settings = settings.iter().map(gpuvm_setting::read).collect::<Result<Vec<_>>>()?;
        Ok(Vm::builder().named(settings)?.build()?)
    })
}

/// A list of names, each with what it is for.
struct Names(Vec<(CString, CString)>);

impl Names {
    fn new(names: impl Iterator<Item = (String, String)>) -> Self {
        let text = |text| CString::new(text).unwrap_or_default();
        Self(names.map(|(name, what)| (text(name), text(what))).collect())
    }

    /// The name at a place, with what it is for behind `what`; NULL past the last.
    fn at(&'static self, place: u32, what: *mut *const c_char) -> *const c_char {
        let Some((name, told)) = self.0.get(place as usize) else {
            return std::ptr::null();
        };
        if let Ok(Some(what)) = Out::optional("what", what) {
            what.set(told.as_ptr());
        }
        name.as_ptr()
    }
}

static SETTINGS: LazyLock<Names> = LazyLock::new(|| {
    let told = |setting: NamedSetting| (setting.names.0.into(), format!("({}) {}", setting.kind, setting.what));
    Names::new(VmBuilder::named_settings().map(told))
});
static COUNTERS: LazyLock<Names> = LazyLock::new(|| {
    let elastic = ElasticStats::NAMES.map(|(name, what)| (format!("elastic_{name}"), what.trim_start().to_owned()));
    let counts = Stats::names().map(|(name, what)| (name.to_owned(), what));
    Names::new(counts.chain(elastic))
});

/// The name of a setting, by its place from 0 on; NULL past the last. Stores in `*what`, unless that is NULL, what its value is and what it is
/// for. Both stay for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_setting_name(place: u32, what: *mut *const c_char) -> *const c_char {
    SETTINGS.at(place, what)
}

/// The name of a counter, by its place from 0 on; NULL past the last. Stores in `*what`, unless that is NULL, what it counts. Both stay for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_counter_name(place: u32, what: *mut *const c_char) -> *const c_char {
    COUNTERS.at(place, what)
}

/// Stores what a GPU of the virtual memory has counted since that began: in `values[n]` the counter that `names[n]` names, for `count` names of
/// those that `gpuvm_counter_name` lists. All are read at one time; exact when no launch runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_counters(
    vm: gpuvm_vm,
    gpu: u32,
    names: *const *const c_char,
    count: u64,
    values: *mut u64,
) -> gpuvm_code {
    guard(|| {
        let names = raw::texts("names", names, count)?;
        let place = raw::list_mut("values", values, count)?;
        let (stats, elastic) = on_gpu(vm, gpu, |gpu| Ok((gpu.stats()?, gpu.elastic_stats())))?;
        let values: Vec<u64> = stats.all().map(|(_, value)| value).chain(elastic.all()).collect();
        let value_of = |name: &&str| {
            let counters = COUNTERS.0.iter().zip(&values);
            let mut found = counters.filter(|((known, _), _)| known.to_bytes() == name.as_bytes());
            found.next().map(|(_, value)| *value).ok_or_else(|| {
                let all: Vec<_> = COUNTERS.0.iter().map(|(known, _)| known.to_string_lossy()).collect();
                Failure::value("names", format!("`{name}`"), format!("there are {}", all.join(", ")))
            })
        };
        let found = names.iter().map(value_of).collect::<Result<Vec<u64>>>()?;
        place.copy_from_slice(&found);
        Ok(())
    })
}

/// Stores the nanoseconds from miss to publication that the share `quantile` (0 to 1) of the demand fetches did not exceed. 0 when there was
/// no fetch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_fault_ns(vm: gpuvm_vm, gpu: u32, quantile: f64, ns: *mut u64) -> gpuvm_code {
    guard(|| {
        let place = Out::new("ns", ns)?;
        place.set(on_gpu(vm, gpu, |gpu| gpu.stats())?.fault_ns(quantile));
        Ok(())
    })
}

/// Frees the handle. Regions, buffers and all else that was made of the virtual memory go on, each until it is freed itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_free(vm: gpuvm_vm) -> gpuvm_code {
    calls::free(vm)
}

/// Stores how many GPUs the virtual memory has. Each is named by its place, from 0 on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_gpu_count(vm: gpuvm_vm, count: *mut u32) -> gpuvm_code {
    calls::get(vm, "count", count, |vm| Ok(vm.gpus().len() as u32))
}

/// Stores what is known of a GPU of the virtual memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_gpu_info(vm: gpuvm_vm, gpu: u32, info: *mut gpuvm_gpu_info) -> gpuvm_code {
    guard(|| {
        let place = OutStruct::new("info", info)?;
        let info = on_gpu(vm, gpu, |gpu| {
            Ok(gpuvm_gpu_info {
                size: 0,
                page_size: gpu.page_size(),
                frames: gpu.frames(),
                frame_capacity: gpu.frame_capacity(),
                bookkeeping_bytes: gpu.bookkeeping_bytes(),
                borrowed_bytes: gpu.borrowed_bytes(),
                transport: transport_of(gpu) as u32,
                queue_pairs: gpu.queue_pairs(),
            })
        })?;
        place.set(info);
        Ok(())
    })
}

fn transport_of(gpu: &VmGpu) -> gpuvm_transport {
    match gpu.transport() {
        TransportKind::Soft => gpuvm_transport::Soft,
        TransportKind::Rxe => gpuvm_transport::Rxe,
        TransportKind::Mlx5 => gpuvm_transport::Mlx5,
        TransportKind::Direct => gpuvm_transport::Direct,
    }
}

/// Copies a GPU's name, with a zero at its end, to `text`, which has room for `capacity` bytes, as far as it fits. Stores its length without
/// the zero in `*length`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_gpu_name(
    vm: gpuvm_vm,
    gpu: u32,
    text: *mut c_char,
    capacity: u64,
    length: *mut u64,
) -> gpuvm_code {
    guard(|| {
        let name = on_gpu(vm, gpu, |gpu| Ok(gpu.gpu_name()))?;
        raw::put_text("text", &name, text, capacity, length)
    })
}

/// Gives a GPU `bytes` bytes of frames while kernels run: for a virtual memory with `frame_capacity`. Frames that are to go have `within_ns`
/// nanoseconds to empty, a second if that is 0. `resized` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_resize_frames(
    vm: gpuvm_vm,
    gpu: u32,
    bytes: u64,
    within_ns: u64,
    resized: *mut gpuvm_resized,
) -> gpuvm_code {
    guard(|| {
        let place = OutStruct::optional("resized", resized)?;
        let within = raw::time(within_ns).unwrap_or(Duration::from_secs(1));
        let resized = on_gpu(vm, gpu, |gpu| gpu.resize_frames_within(bytes, within))?;
        if let Some(place) = place {
            place.set(gpuvm_resized {
                size: 0,
                bytes: resized.bytes,
                kept_bytes: resized.kept_bytes,
                missing_bytes: resized.missing_bytes,
                took_ns: raw::ns(resized.took),
            });
        }
        Ok(())
    })
}

/// Says when frames of a GPU give up their memory for others: those of low priority do first, among frames and elastic buffers
/// (`gpuvm_elastic_set_priority`). It holds for the next who is short, in a virtual memory with `frame_capacity`; without, frames stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_set_frame_priority(vm: gpuvm_vm, gpu: u32, priority: i32) -> gpuvm_code {
    guard(|| {
        on_gpu(vm, gpu, |gpu| {
            gpu.set_frame_priority(priority);
            Ok(())
        })
    })
}

/// Stores a count of bytes where the program wants it.
fn put_bytes(bytes: *mut u64, count: impl FnOnce() -> Result<u64>) -> gpuvm_code {
    guard(|| {
        let place = Out::optional("bytes", bytes)?;
        let count = count()?;
        if let Some(place) = place {
            place.set(count);
        }
        Ok(())
    })
}

/// Brings the contents of the elastic buffers with the tag, on all GPUs, to host memory, and gives their GPU memory to others. It waits for the
/// launches that name them. Stores how many bytes those are; `bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_pause(vm: gpuvm_vm, tag: *const c_char, bytes: *mut u64) -> gpuvm_code {
    put_bytes(bytes, || Ok(handles::copy(vm)?.pause(raw::text("tag", tag)?)?))
}

/// Brings the contents of paused elastic buffers with the tag back to where they were. `bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_resume(vm: gpuvm_vm, tag: *const c_char, bytes: *mut u64) -> gpuvm_code {
    put_bytes(bytes, || Ok(handles::copy(vm)?.resume(raw::text("tag", tag)?)?))
}

/// Gives up to `most` bytes of GPU memory that elastic buffers do not use back to the driver. Stores how many there were; `bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_trim(vm: gpuvm_vm, gpu: u32, most: u64, bytes: *mut u64) -> gpuvm_code {
    put_bytes(bytes, || on_gpu(vm, gpu, |gpu| Ok(gpu.trim(most))))
}

/// Gives `most` bytes of memory of neighbour GPUs back to them, in whole chunks, while launches run. Stores how many those were; `bytes` may
/// be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_give_back_borrowed(vm: gpuvm_vm, gpu: u32, most: u64, bytes: *mut u64) -> gpuvm_code {
    put_bytes(bytes, || on_gpu(vm, gpu, |gpu| gpu.give_back_borrowed(most)))
}

/// Borrows up to `most` bytes again of what was given back. It waits for the launches that run. `bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_borrow_again(vm: gpuvm_vm, gpu: u32, most: u64, bytes: *mut u64) -> gpuvm_code {
    put_bytes(bytes, || on_gpu(vm, gpu, |gpu| gpu.borrow_again(most)))
}

/// Takes back homes that were lost and are there again, and catches up with them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_catch_up(vm: gpuvm_vm) -> gpuvm_code {
    guard(|| Ok(handles::copy(vm)?.catch_up()?))
}

/// Calls `iteration(context)` once in this thread, and notes which pages of broadcast arrays each GPU reads meanwhile. Then each GPU subscribes
/// to those, and to no others. `iteration` returns 0; any other value is `GPUVM_CODE_CALLBACK`. It must not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_track(
    vm: gpuvm_vm,
    iteration: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    context: *mut c_void,
) -> gpuvm_code {
    guard(|| {
        let Some(iteration) = iteration else {
            let (what, is) = ("iteration", "is NULL");
            return Err(Failure::Pointer { what, is });
        };
        let vm = handles::copy(vm)?;
        let value = vm.track(|| {
            // SAFETY: C's caller passed a function that takes this context and does not throw.
            Ok(unsafe { iteration(context) })
        })?;
        match value {
            0 => Ok(()),
            value => Err(Failure::Callback { value }),
        }
    })
}
