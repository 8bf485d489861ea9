//! Modules, kernels and streams.

use std::{
    ffi::{c_char, c_void},
    path::PathBuf,
};

use bytemuck::Zeroable;
use gpuvm::CompileOptions;

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    handles::{self, gpuvm_kernel, gpuvm_module, gpuvm_stream, gpuvm_vm},
    raw::{self, Growing},
    vm::on_gpu,
};

/// How a source is compiled. Every field but `size` may be 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_compile_options {
    /// `sizeof(gpuvm_compile_options)`.
    pub size: u64,
    /// `include_dir_count` folders, searched for `#include` in order.
    pub include_dirs: *const *const c_char,
    /// Folders in `include_dirs`.
    pub include_dir_count: u64,
    /// `define_count` macros, `NAME` or `NAME=VALUE`.
    pub defines: *const *const c_char,
    /// Macros in `defines`.
    pub define_count: u64,
    /// `header_count` paths for `#include`.
    pub header_names: *const *const c_char,
    /// The texts of the headers in `header_names`.
    pub header_texts: *const *const c_char,
    /// Headers.
    pub header_count: u64,
    /// Not 0: for a debugger.
    pub debug: u32,
    /// 0.
    pub reserved: u32,
}

impl Growing for gpuvm_compile_options {
    const NAME: &'static str = "gpuvm_compile_options";
}

impl gpuvm_compile_options {
    fn read(&self) -> Result<CompileOptions> {
        raw::unused("reserved", self.reserved)?;
        let names = raw::texts("header_names", self.header_names, self.header_count)?;
        let texts = raw::texts("header_texts", self.header_texts, self.header_count)?;
        let headers = names.iter().zip(texts);
        let defines = raw::texts("defines", self.defines, self.define_count)?;
        let define = |text: &&str| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => ((*text).to_owned(), None),
        };
        let folders = raw::texts("include_dirs", self.include_dirs, self.include_dir_count)?;
        Ok(CompileOptions {
            include_dirs: folders.into_iter().map(PathBuf::from).collect(),
            headers: headers
                .map(|(name, text)| ((*name).to_owned(), text.to_owned()))
                .collect(),
            defines: defines.iter().map(define).collect(),
            debug: self.debug != 0,
        })
    }
}

/// Compiles CUDA C++ source text, which messages call `name`, for a GPU of the virtual memory, and finds `kernel_count` kernels in it, which
/// `gpuvm_module_kernel` takes. `options`: NULL for the defaults. Free the module by `gpuvm_module_free`. After an error, which has the
/// compiler's log, `*module` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_compile(
    vm: gpuvm_vm,
    gpu: u32,
    name: *const c_char,
    source: *const c_char,
    kernels: *const *const c_char,
    kernel_count: u64,
    options: *const gpuvm_compile_options,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let options = raw::options::<gpuvm_compile_options>("options", options)?.read()?;
        let kernels = raw::texts("kernels", kernels, kernel_count)?;
        let (name, source) = (raw::text("name", name)?, raw::text("source", source)?);
        on_gpu(vm, gpu, |gpu| gpu.compile_with(name, source, &kernels, &options))
    })
}

/// Compiles the CUDA C++ file at `path`. Else as `gpuvm_module_compile`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_compile_file(
    vm: gpuvm_vm,
    gpu: u32,
    path: *const c_char,
    kernels: *const *const c_char,
    kernel_count: u64,
    options: *const gpuvm_compile_options,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let options = raw::options::<gpuvm_compile_options>("options", options)?.read()?;
        let kernels = raw::texts("kernels", kernels, kernel_count)?;
        let path = raw::text("path", path)?;
        on_gpu(vm, gpu, |gpu| gpu.compile_file_with(path, &kernels, &options))
    })
}

/// Loads a cubin, a fat binary or PTX of `bytes` bytes that nvcc made with the device library's headers, which messages call `name`.
/// `GPUVM_EXPORT(kernel)` follows each of its `kernel_count` kernels in the source. Else as `gpuvm_module_compile`; the simulated GPU refuses
/// it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_load(
    vm: gpuvm_vm,
    gpu: u32,
    name: *const c_char,
    image: *const c_void,
    bytes: u64,
    kernels: *const *const c_char,
    kernel_count: u64,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let kernels = raw::texts("kernels", kernels, kernel_count)?;
        let (name, image) = (raw::text("name", name)?, raw::bytes("image", image, bytes)?);
        on_gpu(vm, gpu, |gpu| gpu.load(name, image, &kernels))
    })
}

/// Loads the file at `path`. Else as `gpuvm_module_load`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_load_file(
    vm: gpuvm_vm,
    gpu: u32,
    path: *const c_char,
    kernels: *const *const c_char,
    kernel_count: u64,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let kernels = raw::texts("kernels", kernels, kernel_count)?;
        let path = raw::text("path", path)?;
        on_gpu(vm, gpu, |gpu| gpu.load_file(path, &kernels))
    })
}

/// Loads PTX of `bytes` bytes, of kernels that know nothing of gpuvm, which messages call `name`: as nvcc, NVRTC, Triton or others make it.
/// Each access to global memory is rewritten to look its page up, or to call for it. `gpuvm_module_kernel` takes the names of its kernels.
/// Regions are given for pointers, as buffers and addresses are; of other parameters the size is compared. After an error `*module` is the
/// null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_load_ptx(
    vm: gpuvm_vm,
    gpu: u32,
    name: *const c_char,
    ptx: *const c_char,
    bytes: u64,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let (name, ptx) = (raw::text("name", name)?, raw::bytes("ptx", ptx.cast(), bytes)?);
        on_gpu(vm, gpu, |gpu| gpu.load_ptx(name, ptx))
    })
}

/// Loads the PTX file at `path`, which belongs to the user or to root, and which not everybody may write. Else as `gpuvm_module_load_ptx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_load_ptx_file(
    vm: gpuvm_vm,
    gpu: u32,
    path: *const c_char,
    module: *mut gpuvm_module,
) -> gpuvm_code {
    calls::make(module, || {
        let path = raw::text("path", path)?;
        on_gpu(vm, gpu, |gpu| gpu.load_ptx_file(path))
    })
}

/// Frees the handle. Its kernels stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_free(module: gpuvm_module) -> gpuvm_code {
    calls::free(module)
}

/// Finds a kernel by the name that was given when the module was compiled. Free it by `gpuvm_kernel_free`. After an error `*kernel` is the
/// null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_module_kernel(
    module: gpuvm_module,
    name: *const c_char,
    kernel: *mut gpuvm_kernel,
) -> gpuvm_code {
    calls::make(kernel, || Ok(handles::copy(module)?.kernel(raw::text("name", name)?)?))
}

/// Frees the handle. Launches of the kernel go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_kernel_free(kernel: gpuvm_kernel) -> gpuvm_code {
    calls::free(kernel)
}

/// Stores how many parameters the kernel has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_kernel_param_count(kernel: gpuvm_kernel, count: *mut u32) -> gpuvm_code {
    calls::get(kernel, "count", count, |kernel| Ok(kernel.info().params.len() as u32))
}

/// Copies the C++ type of a parameter, counted from 0, to `text` as `gpuvm_vm_gpu_name` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_kernel_param_type(
    kernel: gpuvm_kernel,
    param: u32,
    text: *mut c_char,
    capacity: u64,
    length: *mut u64,
) -> gpuvm_code {
    calls::on(kernel, |kernel| {
        let params = &kernel.info().params;
        let found = params.get(param as usize);
        let refused = || {
            Failure::value(
                "param",
                param,
                format!("the kernel has {}, counted from 0", params.len()),
            )
        };
        let name = &found.ok_or_else(refused)?.type_name;
        raw::put_text("text", name, text, capacity, length)
    })
}

/// Makes a further stream of a GPU of the virtual memory. Free it by `gpuvm_stream_free`. After an error `*stream` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_stream_new(vm: gpuvm_vm, gpu: u32, stream: *mut gpuvm_stream) -> gpuvm_code {
    calls::make(stream, || on_gpu(vm, gpu, |gpu| gpu.stream()))
}

/// Frees the handle. Launches on the stream go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_stream_free(stream: gpuvm_stream) -> gpuvm_code {
    calls::free(stream)
}
