//! Virtual memories: how they are made is `options`, what is known of their GPUs is `stats`.

pub mod options;
pub mod stats;

use std::{
    ffi::{c_char, c_void},
    time::Duration,
};

use bytemuck::Zeroable;
use gpuvm::{Error, TransportKind, VmGpu};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    guard, handles,
    raw::{self, Growing, Out, OutStruct},
};
use options::gpuvm_vm_options;

/// A virtual memory, with one GPU or several. Its GPUs, and what they hold, end when its handle and those of all regions, buffers, modules,
/// kernels and launches of it are freed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_vm {
    /// 0: the null handle.
    pub id: u64,
}

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

/// Makes a virtual memory. `options`: NULL for the defaults, which are the first NVIDIA GPU, or the simulated one where there is none, with 64
/// MiB of frames. Free it by `gpuvm_vm_free`. After an error `*vm` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_new(options: *const gpuvm_vm_options, vm: *mut gpuvm_vm) -> gpuvm_code {
    calls::make(vm, || {
        let options: gpuvm_vm_options = raw::options("options", options)?;
        Ok(options.builder()?.build()?)
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
