//! The driver's and NVRTC's functions, found by name when they are first called.
//!
//! `cudarc` gives the types, the constants and the loaded libraries. Its own functions are not called: they panic where a library lacks
//! one, and they return enumerations, which a newer driver's codes would not fit. Here a missing function is an answer, and a
//! result is a number.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemcpyAttributes, CUmodule, CUstream, CUuuid,
};
use cudarc::nvrtc::sys::nvrtcProgram;

/// A function that the loaded library lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) &'static str);

macro_rules! functions {
    ($symbol:path; $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// As the function's own documentation asks.
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> Result<u32, Missing> {
            type Function = unsafe extern "C" fn($($ty),*) -> u32;
            static FOUND: OnceLock<Option<Function>> = OnceLock::new();
            // SAFETY: the signature is the one of the library's header.
            match FOUND.get_or_init(|| unsafe { $symbol(stringify!($name)) }) {
                // SAFETY: handed on to the caller.
                Some(function) => Ok(unsafe { function($($arg),*) }),
                None => Err(Missing(stringify!($name))),
            }
        }
    )*};
}

/// The driver's library, once, if it is there.
fn driver() -> Option<&'static libloading::Library> {
    static THERE: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading libcuda runs its initialisers only.
    let there = *THERE.get_or_init(|| unsafe { cudarc::driver::sys::is_culib_present() });
    // SAFETY: as above; it was loaded a moment ago, so this finds it and does not panic.
    there.then(|| unsafe { cudarc::driver::sys::culib() })
}

/// The run-time compiler's library, once, if it is there.
fn nvrtc() -> Option<&'static libloading::Library> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| {
        super::nvrtc::preload();
        // SAFETY: as for the driver's library.
        unsafe { cudarc::nvrtc::sys::is_culib_present() }
    });
    // SAFETY: as for the driver's library.
    there.then(|| unsafe { cudarc::nvrtc::sys::culib() })
}

/// Whether the driver's library can be loaded.
pub(crate) fn has_driver() -> bool {
    driver().is_some()
}

/// Whether the run-time compiler's library can be loaded.
pub(crate) fn has_nvrtc() -> bool {
    nvrtc().is_some()
}

/// # Safety
/// `F` is the function pointer type of `name`.
unsafe fn driver_symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the caller's promise. The library is never unloaded, so the pointer stays good.
    unsafe { driver()?.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// # Safety
/// `F` is the function pointer type of `name`.
unsafe fn nvrtc_symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: as in `driver_symbol`.
    unsafe { nvrtc()?.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

#[allow(non_snake_case, reason = "the driver's own names")]
pub(crate) mod cu {
    use super::*;

    functions! { super::driver_symbol;
        cuInit(flags: c_uint);
        cuDriverGetVersion(version: *mut c_int);
        cuGetErrorName(error: c_uint, text: *mut *const c_char);
        cuGetErrorString(error: c_uint, text: *mut *const c_char);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGetName(name: *mut c_char, room: c_int, device: CUdevice);
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
        cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice, peer: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuCtxSetCurrent(context: CUcontext);
        cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
        cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamSynchronize(stream: CUstream);
        cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventQuery(event: CUevent);
        cuEventSynchronize(event: CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        cuModuleUnload(module: CUmodule);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleGetGlobal_v2(address: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction);
        cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
        cuFuncLoad(function: CUfunction);
        cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule);
        cuModuleEnumerateFunctions(functions: *mut CUfunction, room: c_uint, module: CUmodule);
        cuFuncGetName(name: *mut *const c_char, function: CUfunction);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut c_int, function: CUfunction, threads: c_int, dynamic_shared: usize,
        );
        cuLaunchKernel(
            function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, dynamic_shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemGetAllocationGranularity(bytes: *mut usize, prop: *const CUmemAllocationProp, option: c_uint);
        cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: u64,
        );
        cuMemRelease(handle: CUmemGenericAllocationHandle);
        cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64);
        cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        cuMemMap(
            address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
        );
        cuMemUnmap(address: CUdeviceptr, bytes: usize);
        cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
        /// From CUDA 11.7. `kind` is an enumeration, `handle` points to a descriptor.
        cuMemGetHandleForAddressRange(
            handle: *mut c_void, address: CUdeviceptr, bytes: usize, kind: c_uint, flags: u64,
        );
        cuMemHostAlloc(host: *mut *mut c_void, bytes: usize, flags: c_uint);
        cuMemFreeHost(host: *mut c_void);
        cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: c_uint);
        cuMemHostUnregister(host: *mut c_void);
        cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
        cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream);
        cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint);
        cuMemFree_v2(address: CUdeviceptr);
        /// The form of CUDA 12 and older; the place is an ordinal, -1 for the host.
        cuMemAdvise(address: CUdeviceptr, bytes: usize, advice: c_uint, device: CUdevice);
        /// From CUDA 12.2.
        cuMemAdvise_v2(address: CUdeviceptr, bytes: usize, advice: c_uint, place: CUmemLocation);
        /// The form of CUDA 12 and older.
        cuMemPrefetchAsync(address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream);
        /// From CUDA 12.2.
        cuMemPrefetchAsync_v2(
            address: CUdeviceptr, bytes: usize, place: CUmemLocation, flags: c_uint, stream: CUstream,
        );
        /// From CUDA 12.8; with the index of the copy that failed.
        cuMemcpyBatchAsync(
            to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
            attributes: *mut CUmemcpyAttributes, attribute_starts: *mut usize, attribute_count: usize,
            failed: *mut usize, stream: CUstream,
        );
        /// From CUDA 13.0.
        cuMemcpyBatchAsync_v2(
            to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
            attributes: *mut CUmemcpyAttributes, attribute_starts: *mut usize, attribute_count: usize,
            stream: CUstream,
        );
    }
}

#[allow(non_snake_case, reason = "the driver's own names")]
pub(crate) mod rtc {
    use super::*;

    functions! { super::nvrtc_symbol;
        nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        nvrtcGetNumSupportedArchs(count: *mut c_int);
        nvrtcGetSupportedArchs(archs: *mut c_int);
        nvrtcCreateProgram(
            program: *mut nvrtcProgram, source: *const c_char, name: *const c_char, count: c_int,
            headers: *const *const c_char, names: *const *const c_char,
        );
        nvrtcDestroyProgram(program: *mut nvrtcProgram);
        nvrtcAddNameExpression(program: nvrtcProgram, name: *const c_char);
        nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char);
        nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize);
        nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char);
        nvrtcGetLoweredName(program: nvrtcProgram, name: *const c_char, lowered: *mut *const c_char);
        nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize);
        nvrtcGetCUBIN(program: nvrtcProgram, image: *mut c_char);
        nvrtcGetPTXSize(program: nvrtcProgram, bytes: *mut usize);
        nvrtcGetPTX(program: nvrtcProgram, image: *mut c_char);
    }

    /// NVRTC's text for a result.
    pub(crate) fn error_text(result: u32) -> String {
        type Function = unsafe extern "C" fn(u32) -> *const c_char;
        // SAFETY: the signature is the one of nvrtc.h; its enumeration is an unsigned word.
        let Some(function) = (unsafe { super::nvrtc_symbol::<Function>("nvrtcGetErrorString") }) else {
            return format!("NVRTC_ERROR {result}");
        };
        // SAFETY: it takes any number and returns a constant string or null.
        unsafe { super::text(function(result)) }.unwrap_or_else(|| format!("NVRTC_ERROR {result}"))
    }
}

/// A library's string.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero byte.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
