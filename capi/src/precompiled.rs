//! Kernels that were compiled with the program, and streams that are the program's.

use std::ffi::{c_char, c_void};

use gpuvm::{DeviceCode, LaunchConfig, Use};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    guard::{enqueuing, guard},
    handles::{self, gpuvm_launch, gpuvm_stream, gpuvm_vm},
    launch::{Kept, Used, gpuvm_arg, gpuvm_launch_options},
    raw::{self, Out},
    vm::on_gpu,
};

/// What a kernel's program was compiled with. `gpuvm::host::device_code()` of gpuvm/launch.cuh is that of the file that calls it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_device_code {
    /// `gpuvm::layout::LAYOUT_VERSION`.
    pub layout_version: u32,
    /// `GPUVM_FEATURES` as the program defined it, else `gpuvm::layout::FEATURES_ALL`.
    pub features: u32,
}

/// Memory that a launch uses: a region, a buffer, an elastic buffer or a broadcast array.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_use {
    /// The memory.
    pub arg: gpuvm_arg,
    /// Not 0: the launch may write it. 0: a region is for a `gpuvm::array<const T>`, a broadcast array for a `gpuvm::broadcast<const T>`.
    pub writes: u32,
    /// 0.
    pub reserved: u32,
}

/// Stores what kernels of a GPU of the virtual memory use of the device library, no more and no less: a program that compiles kernels while it
/// runs defines `GPUVM_FEATURES` as its `features`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_device_code(vm: gpuvm_vm, gpu: u32, code: *mut gpuvm_device_code) -> gpuvm_code {
    guard(|| {
        let place = Out::new("code", code)?;
        let DeviceCode {
            layout_version,
            features,
        } = on_gpu(vm, gpu, |gpu| Ok(gpu.device_code()))?;
        place.set(gpuvm_device_code {
            layout_version,
            features,
        });
        Ok(())
    })
}

/// A launch of a kernel that gpuvm did not compile, such as one that nvcc compiled into the program. `enqueue` puts it on the stream, is called
/// once, before this returns, and returns 0, or a number, such as a cudaError_t, when it could not. It gets `context`, the stream as a
/// cudaStream_t, and for each of the `use_count` in `uses` the address of what the kernel takes by value: a `gpuvm::array`, a
/// `gpuvm::broadcast`, or a pointer. These are of this launch alone and lie there until the callback returns. It calls nothing of gpuvm, and
/// throws nothing. `name` is for messages. `options` say what shape the kernel has; its dynamic shared memory does not matter. gpuvm/launch.cuh
/// has all this for C++. Else as `gpuvm_kernel_launch`. When the callback failed, this waits for whatever it had enqueued.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_launch_by(
    vm: gpuvm_vm,
    gpu: u32,
    name: *const c_char,
    code: *const gpuvm_device_code,
    options: *const gpuvm_launch_options,
    uses: *const gpuvm_use,
    use_count: u64,
    enqueue: Option<
        unsafe extern "C" fn(context: *mut c_void, stream: *mut c_void, views: *const *const c_void) -> i32,
    >,
    context: *mut c_void,
    launch: *mut gpuvm_launch,
) -> gpuvm_code {
    calls::make(launch, || {
        let enqueue = enqueue.ok_or(Failure::Pointer {
            what: "enqueue",
            is: "is NULL",
        })?;
        let options: gpuvm_launch_options = raw::options("options", options)?;
        let [code] = raw::list("code", code, 1)? else {
            unreachable!("a list of one")
        };
        let code = DeviceCode {
            layout_version: code.layout_version,
            features: code.features,
        };
        let (name, config) = (raw::text("name", name)?, options.config()?);
        let uses = raw::list("uses", uses, use_count)?;
        uses.iter()
            .try_for_each(|one| raw::unused("reserved of a use", one.reserved))?;
        let kept = uses.iter().map(|one| one.arg.keep()).collect::<Result<Vec<_>>>()?;
        let used = kept.iter().map(Kept::used).collect::<Result<Vec<_>>>()?;
        let used: Vec<Use<'_>> = used.iter().zip(uses).map(|(used, one)| used.of_launch(one)).collect();
        let stream = match options.stream.id {
            0 => None,
            _ => Some(handles::copy(options.stream)?),
        };
        let call = |stream: Option<u64>, views: &[Vec<u8>]| {
            // As aligned as a kernel's parameters.
            let views: Vec<Vec<u128>> = views.iter().map(|bytes| aligned(bytes)).collect();
            let views: Vec<*const c_void> = views.iter().map(|words| words.as_ptr().cast()).collect();
            let stream = std::ptr::with_exposed_provenance_mut(stream.unwrap_or_default() as usize);
            // SAFETY: the program says that the callback is such a function, and what it does with these.
            let value = enqueuing(|| unsafe { enqueue(context, stream, views.as_ptr()) });
            match value {
                0 => Ok(()),
                value => Err(format!("the callback returned {value}, not 0")),
            }
        };
        on_gpu(vm, gpu, |gpu| {
            let config: &LaunchConfig = &config;
            // SAFETY: the program says what its callback enqueues, and it cannot call this library.
            unsafe { gpu.launch_by(stream.as_ref(), (name, code), config, &used, call) }
        })
    })
}

fn aligned(bytes: &[u8]) -> Vec<u128> {
    let words = bytes.chunks(16).map(|chunk| {
        let mut word = [0; 16];
        word[..chunk.len()].copy_from_slice(chunk);
        u128::from_ne_bytes(word)
    });
    words.collect()
}

impl Used<'_> {
    fn of_launch(&self, one: &gpuvm_use) -> Use<'_> {
        match one.writes {
            0 => Use::reads(self.arg()),
            _ => Use::writes(self.arg()),
        }
    }
}

/// Makes a handle of a stream that the program made and uses, for launches in its order: a `cudaStream_t` or `CUstream` of the GPU's primary
/// context, which is CUDA's runtime's. NULL is the default stream. It is live until the handle was freed and launches on it have ended. Free the
/// handle by `gpuvm_stream_free`, which leaves the stream. Not on the simulated GPU. After an error `*stream` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_stream_borrow(
    vm: gpuvm_vm,
    gpu: u32,
    cuda_stream: *mut c_void,
    stream: *mut gpuvm_stream,
) -> gpuvm_code {
    calls::make(stream, || {
        let raw = cuda_stream.expose_provenance() as u64;
        // SAFETY: the program says that it is a live stream.
        on_gpu(vm, gpu, |gpu| unsafe { gpu.borrow_stream(raw) })
    })
}

/// Stores the `cudaStream_t` of a stream, for other work in its order; NULL on the simulated GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_stream_raw(stream: gpuvm_stream, cuda_stream: *mut *mut c_void) -> gpuvm_code {
    calls::on(stream, |stream| {
        let place = Out::new("cuda_stream", cuda_stream)?;
        let raw = stream.as_raw().unwrap_or_default();
        place.set(std::ptr::with_exposed_provenance_mut(raw as usize));
        Ok(())
    })
}
