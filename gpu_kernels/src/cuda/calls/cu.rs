//! The driver's functions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemcpyAttributes, CUmodule, CUstream, CUstreamCaptureStatus, CUuuid,
};

use super::{Missing, driver_symbol};

functions! { driver_symbol;
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
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
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
