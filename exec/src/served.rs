//! The driver's functions that this library serves, by their names there, and how programs find them.
//!
//! A program that is linked to the driver's library finds them since this library is loaded before; one that loads it finds them by `dlsym`, of
//! which this library has its own; the CUDA runtime finds nearly all by `cuGetProcAddress`. What is not served is found where it ever was.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use crate::code::{self, Handle};
use crate::driver::{self, NOT_FOUND, SUCCESS, Status, call};
use crate::host_functions::{self, HostFunction, HostNode, StreamCallback};
use crate::resolve::{self, Served};
use crate::state::{self, INVALID_VALUE, Ready, Work};
use crate::{images, settings, window};

/// A function of the driver's interface that calls the driver's own as `$call`.
macro_rules! one {
    ($symbol:ident $per_thread:literal ($($arg:ident: $ty:ty),*) $call:ident $body:expr) => {
        #[doc = concat!("The driver's `", stringify!($symbol), "`.")]
        ///
        /// # Safety
        /// As of the driver's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and arguments")]
        pub unsafe extern "C" fn $symbol($($arg: $ty),*) -> Status {
            type Function = unsafe extern "C" fn($($ty),*) -> Status;
            static FOUND: std::sync::OnceLock<Option<Function>> = std::sync::OnceLock::new();
            let found = *FOUND.get_or_init(|| {
                let name = CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()).unwrap_or_default();
                let found = driver::find(name);
                // SAFETY: the driver's function of that name has these arguments.
                (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Function>(found) })
            });
            let Some($call) = found else { return NOT_FOUND };
            /// Whether stream 0 is the thread's own.
            const PER_THREAD: bool = $per_thread;
            // Not all have a stream.
            let _ = PER_THREAD;
            $body
        }
    };
}

/// Functions of one form: each with what programs ask for it by, the first version of CUDA with it, and whether its default stream is the thread's.
macro_rules! served {
    ($( [$($symbol:ident $base:literal $version:literal $per_thread:literal),+] $args:tt |$call:ident| $body:expr; )*) => {
        $($( one! { $symbol $per_thread $args $call $body } )+)*

        /// All of them.
        pub static SERVED: &[Served] = &[$($( Served {
            symbol: match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            },
            base: $base,
            version: $version,
            per_thread: $per_thread,
            ours: $symbol as *const (),
        } ),+),*];
    };
}

served! {
    [cuGetProcAddress "cuGetProcAddress" 11030 false]
    (symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64)
    // SAFETY: handed on.
    |call| found_by(symbol, found, (version, flags), unsafe { call(symbol, found, version, flags) });
    [cuGetProcAddress_v2 "cuGetProcAddress" 12000 false]
    (symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int)
    // SAFETY: handed on.
    |call| found_by(symbol, found, (version, flags), unsafe { call(symbol, found, version, flags, status) });

    [cuMemAllocManaged "cuMemAllocManaged" 6000 false]
    (addr: *mut u64, bytes: usize, flags: c_uint)
    // SAFETY: handed on.
    |call| allocated(addr, bytes as u64).unwrap_or_else(|| unsafe { call(addr, bytes, flags) });
    [cuMemFree_v2 "cuMemFree" 3020 false]
    (addr: u64)
    |call| match window::touches(addr, 1) {
        true => state::free(addr),
        // SAFETY: handed on.
        false => unsafe { call(addr) },
    };
    [cuMemPrefetchAsync "cuMemPrefetchAsync" 8000 false, cuMemPrefetchAsync_ptsz "cuMemPrefetchAsync" 8000 true]
    (addr: u64, bytes: usize, device: c_int, stream: *mut c_void)
    // SAFETY: handed on.
    |call| hint(addr, bytes, || unsafe { call(addr, bytes, device, stream) });
    [cuMemPrefetchAsync_v2 "cuMemPrefetchAsync" 12020 false, cuMemPrefetchAsync_v2_ptsz "cuMemPrefetchAsync" 12020 true]
    (addr: u64, bytes: usize, location: u64, flags: c_uint, stream: *mut c_void)
    // SAFETY: handed on: a location is two numbers of 32 bits, which are passed as one of 64.
    |call| hint(addr, bytes, || unsafe { call(addr, bytes, location, flags, stream) });
    [cuMemAdvise "cuMemAdvise" 8000 false]
    (addr: u64, bytes: usize, advice: c_int, device: c_int)
    // SAFETY: handed on.
    |call| hint(addr, bytes, || unsafe { call(addr, bytes, advice, device) });
    [cuMemAdvise_v2 "cuMemAdvise" 12020 false]
    (addr: u64, bytes: usize, advice: c_int, location: u64)
    // SAFETY: handed on.
    |call| hint(addr, bytes, || unsafe { call(addr, bytes, advice, location) });
    [cuPointerGetAttribute "cuPointerGetAttribute" 4000 false]
    (value: *mut c_void, attribute: c_int, addr: u64)
    // SAFETY: handed on; the value is as the attribute has it.
    |call| unsafe { described(addr, &[attribute], &[value], || call(value, attribute, addr)) };
    [cuPointerGetAttributes "cuPointerGetAttributes" 7000 false]
    (count: c_uint, attributes: *const c_int, values: *const *mut c_void, addr: u64)
    // SAFETY: as above; so many of both.
    |call| unsafe {
        let (asked, found) = match count == 0 || attributes.is_null() || values.is_null() {
            true => (&[][..], &[][..]),
            false => (
                std::slice::from_raw_parts(attributes, count as usize),
                std::slice::from_raw_parts(values, count as usize),
            ),
        };
        described(addr, asked, found, || call(count, attributes, values, addr))
    };
    [cuStreamAttachMemAsync "cuStreamAttachMemAsync" 6000 false, cuStreamAttachMemAsync_ptsz "cuStreamAttachMemAsync" 7000 true]
    (stream: *mut c_void, addr: u64, bytes: usize, flags: c_uint)
    // SAFETY: handed on. 0 bytes are all of the allocation.
    |call| hint(addr, bytes.max(1), || unsafe { call(stream, addr, bytes, flags) });

    [cuModuleLoadData "cuModuleLoadData" 2000 false]
    (module: *mut usize, code: *const c_void)
    // SAFETY: handed on: the text is as good as what the program gave.
    |call| unsafe { load(code, || Handle::Module(*module), |code, _| call(module, code)) };
    [cuModuleLoadDataEx "cuModuleLoadDataEx" 2010 false]
    (module: *mut usize, code: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void)
    // SAFETY: as above.
    |call| unsafe { load(code, || Handle::Module(*module), |code, _| call(module, code, count, options, values)) };
    [cuModuleLoadFatBinary "cuModuleLoadFatBinary" 2000 false]
    (module: *mut usize, code: *const c_void)
    // SAFETY: as above. Text is none of a fat binary.
    |call| unsafe {
        load(code, || Handle::Module(*module), |code, is_text| match is_text {
            true => call!(cuModuleLoadData(module => *mut usize, code => *const c_void)),
            false => call(module, code),
        })
    };
    [cuLibraryLoadData "cuLibraryLoadData" 12000 false]
    (library: *mut usize, code: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
     library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint)
    // SAFETY: as above; the option has its value.
    |call| unsafe {
        load(code, || Handle::Library(*library), |code, is_text| {
            let (mut option, mut value) = settings::registers_option();
            let own = is_text && count == 0 && !value.is_null();
            let (options, values, count) = if own { (&raw mut option, &raw mut value, 1) } else { (options, values, count) };
            call(library, code, options, values, count, library_options, library_values, library_count)
        })
    };
    [cuModuleLoad "cuModuleLoad" 2000 false]
    (module: *mut usize, path: *const c_char)
    // SAFETY: as above.
    |call| unsafe {
        load_file(path, || Handle::Module(*module), |code| match code {
            Some(text) => call!(cuModuleLoadData(module => *mut usize, text => *const c_void)),
            None => call(module, path),
        })
    };
    [cuLibraryLoadFromFile "cuLibraryLoadFromFile" 12000 false]
    (library: *mut usize, path: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
     library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint)
    // SAFETY: as above.
    |call| unsafe {
        load_file(path, || Handle::Library(*library), |code| match code {
            Some(text) => call!(cuLibraryLoadData(
                library => *mut usize, text => *const c_void, options => *mut c_int, values => *mut *mut c_void, count => c_uint,
                library_options => *mut c_int, library_values => *mut *mut c_void, library_count => c_uint)),
            None => call(library, path, options, values, count, library_options, library_values, library_count),
        })
    };
    [cuModuleUnload "cuModuleUnload" 2000 false]
    (module: usize)
    |call| {
        unloads(Handle::Module(module));
        // SAFETY: handed on.
        unsafe { call(module) }
    };
    [cuLibraryUnload "cuLibraryUnload" 12000 false]
    (library: usize)
    |call| {
        unloads(Handle::Library(library));
        // SAFETY: handed on.
        unsafe { call(library) }
    };
    [cuLibraryGetModule "cuLibraryGetModule" 12000 false]
    (module: *mut usize, library: usize)
    // SAFETY: handed on; the out-value was set then.
    |call| unsafe {
        noted(call(module, library), module, std::ptr::null(), |module, _| {
            state::lock().code.is_also(Handle::Library(library), Handle::Module(module));
        })
    };
    [cuModuleGetFunction "cuModuleGetFunction" 2000 false]
    (function: *mut usize, module: usize, name: *const c_char)
    // SAFETY: as above; the caller's string.
    |call| unsafe {
        noted(call(function, module, name), function, name, |function, name| named(function, Handle::Module(module), name))
    };
    [cuLibraryGetKernel "cuLibraryGetKernel" 12000 false]
    (kernel: *mut usize, library: usize, name: *const c_char)
    // SAFETY: as above.
    |call| unsafe {
        noted(call(kernel, library, name), kernel, name, |kernel, name| named(kernel, Handle::Library(library), name))
    };
    [cuKernelGetFunction "cuKernelGetFunction" 12000 false]
    (function: *mut usize, kernel: usize)
    // SAFETY: as above.
    |call| unsafe {
        noted(call(function, kernel), function, std::ptr::null(), |function, _| state::lock().code.alias(function, kernel))
    };
    [cuFuncSetAttribute "cuFuncSetAttribute" 9000 false]
    (function: usize, attribute: c_int, value: c_int)
    // SAFETY: handed on.
    |call| set_too(unsafe { call(function, attribute, value) }, function, attribute, value);
    [cuKernelSetAttribute "cuKernelSetAttribute" 12000 false]
    (attribute: c_int, value: c_int, kernel: usize, device: c_int)
    // SAFETY: handed on.
    |call| set_too(unsafe { call(attribute, value, kernel, device) }, kernel, attribute, value);

    [cuLaunchKernel "cuLaunchKernel" 4000 false,
     cuLaunchKernel_ptsz "cuLaunchKernel" 7000 true]
    (function: usize, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: u64,
     params: *mut *mut c_void, extra: *mut *mut c_void)
    // SAFETY: handed on, for the kernel or another form of it.
    |call| launch_with(function, of(stream, PER_THREAD), params, |function, params| unsafe {
        call(function, x, y, z, bx, by, bz, shared, stream, params, extra)
    });
    [cuLaunchCooperativeKernel "cuLaunchCooperativeKernel" 9000 false,
     cuLaunchCooperativeKernel_ptsz "cuLaunchCooperativeKernel" 9000 true]
    (function: usize, x: c_uint, y: c_uint, z: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: u64,
     params: *mut *mut c_void)
    // SAFETY: as above.
    |call| launch_with(function, of(stream, PER_THREAD), params, |function, params| unsafe {
        call(function, x, y, z, bx, by, bz, shared, stream, params)
    });
    [cuLaunchKernelEx "cuLaunchKernelEx" 11060 false,
     cuLaunchKernelEx_ptsz "cuLaunchKernelEx" 11060 true]
    (config: *const LaunchConfig, function: usize, params: *mut *mut c_void, extra: *mut *mut c_void)
    // SAFETY: as above; the caller's configuration.
    |call| {
        // SAFETY: the caller's configuration. No lock is held: reading may fault.
        let config = unsafe { *config };
        // SAFETY: as above.
        let put = |function, params| unsafe { call(&raw const config, function, params, extra) };
        launch_with(function, of(config.stream, PER_THREAD), params, put)
    };
    [cuGraphLaunch "cuGraphLaunch" 10000 false,
     cuGraphLaunch_ptsz "cuGraphLaunch" 10000 true]
    (graph: *mut c_void, stream: u64)
    // SAFETY: handed on.
    |call| state::launch(&Work::Other("a graph"), of(stream, PER_THREAD), |_| unsafe { call(graph, stream) });
    [cuLaunchHostFunc "cuLaunchHostFunc" 10000 false,
     cuLaunchHostFunc_ptsz "cuLaunchHostFunc" 10000 true]
    (stream: u64, function: Option<HostFunction>, data: *mut c_void)
    |call| {
        // SAFETY: handed on, or one that calls it.
        let put = |function, data| unsafe { call(stream, Some(function), data) };
        match function {
            Some(function) => host_functions::launch(function, data, of(stream, PER_THREAD), put),
            None => INVALID_VALUE,
        }
    };
    [cuStreamAddCallback "cuStreamAddCallback" 5000 false,
     cuStreamAddCallback_ptsz "cuStreamAddCallback" 7000 true]
    (stream: u64, function: Option<StreamCallback>, data: *mut c_void, flags: c_uint)
    |call| {
        // SAFETY: as above.
        let put = |function, data| unsafe { call(stream, Some(function), data, flags) };
        match function {
            Some(function) => host_functions::add_callback(function, data, of(stream, PER_THREAD), put),
            None => INVALID_VALUE,
        }
    };
    [cuGraphAddHostNode "cuGraphAddHostNode" 10000 false]
    (node: *mut c_void, graph: *mut c_void, after: *const c_void, count: usize, params: *const HostNode)
    // SAFETY: handed on, or a description of one that calls it.
    |call| unsafe { host_functions::add_node(params, |params| call(node, graph, after, count, params)) };
    [cuGraphHostNodeSetParams "cuGraphHostNodeSetParams" 10000 false]
    (node: *mut c_void, params: *const HostNode)
    // SAFETY: as above.
    |call| unsafe { host_functions::add_node(params, |params| call(node, params)) };
    [cuGraphExecHostNodeSetParams "cuGraphExecHostNodeSetParams" 10020 false]
    (graph: *mut c_void, node: *mut c_void, params: *const HostNode)
    // SAFETY: as above.
    |call| unsafe { host_functions::add_node(params, |params| call(graph, node, params)) };
    [cuStreamDestroy_v2 "cuStreamDestroy" 4000 false]
    (stream: u64)
    |call| {
        let gone = state::lock().forget_stream(stream);
        // It may wait.
        drop(gone);
        // SAFETY: handed on.
        unsafe { call(stream) }
    };
    [cuStreamBeginCapture "cuStreamBeginCapture" 10000 false, cuStreamBeginCapture_ptsz "cuStreamBeginCapture" 10000 true]
    (stream: u64)
    // SAFETY: handed on.
    |call| captured(of(stream, PER_THREAD), || unsafe { call(stream) });
    [cuStreamBeginCapture_v2 "cuStreamBeginCapture" 10010 false, cuStreamBeginCapture_v2_ptsz "cuStreamBeginCapture" 10010 true]
    (stream: u64, mode: c_int)
    // SAFETY: handed on.
    |call| captured(of(stream, PER_THREAD), || unsafe { call(stream, mode) });
    [cuStreamBeginCaptureToGraph "cuStreamBeginCaptureToGraph" 12030 false,
     cuStreamBeginCaptureToGraph_ptsz "cuStreamBeginCaptureToGraph" 12030 true]
    (stream: u64, graph: *mut c_void, after: *const c_void, edges: *const c_void, count: usize, mode: c_int)
    // SAFETY: handed on.
    |call| captured(of(stream, PER_THREAD), || unsafe { call(stream, graph, after, edges, count, mode) });
    [cuStreamEndCapture "cuStreamEndCapture" 10000 false, cuStreamEndCapture_ptsz "cuStreamEndCapture" 10000 true]
    (stream: u64, graph: *mut c_void)
    |call| {
        // SAFETY: handed on.
        let status = unsafe { call(stream, graph) };
        driver::note_capture(false);
        status
    };
    [cuCtxSynchronize "cuCtxSynchronize" 2000 false]
    ()
    // SAFETY: handed on.
    |call| waited(unsafe { call() });
    [cuStreamSynchronize "cuStreamSynchronize" 2000 false, cuStreamSynchronize_ptsz "cuStreamSynchronize" 7000 true,
     cuStreamQuery "cuStreamQuery" 2000 false, cuStreamQuery_ptsz "cuStreamQuery" 7000 true,
     cuEventSynchronize "cuEventSynchronize" 2000 false, cuEventQuery "cuEventQuery" 2000 false]
    (what: *mut c_void)
    // SAFETY: handed on.
    |call| waited(unsafe { call(what) });
    [cuDevicePrimaryCtxReset_v2 "cuDevicePrimaryCtxReset" 11000 false, cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset" 7000 false]
    (device: c_int)
    // SAFETY: handed on.
    |call| state::reset(device, || unsafe { call(device) });

    [cuMemcpy "cuMemcpy" 4000 false, cuMemcpy_ptds "cuMemcpy" 7000 true,
     cuMemcpyDtoD_v2 "cuMemcpyDtoD" 3020 false, cuMemcpyDtoD_v2_ptds "cuMemcpyDtoD" 7000 true,
     cuMemcpyHtoD_v2 "cuMemcpyHtoD" 3020 false, cuMemcpyHtoD_v2_ptds "cuMemcpyHtoD" 7000 true,
     cuMemcpyDtoH_v2 "cuMemcpyDtoH" 3020 false, cuMemcpyDtoH_v2_ptds "cuMemcpyDtoH" 7000 true]
    (to: u64, from: u64, bytes: usize)
    // SAFETY: handed on.
    |call| copy((to, from, bytes), of(0, PER_THREAD), true, || unsafe { call(to, from, bytes) });
    [cuMemcpyAsync "cuMemcpyAsync" 4000 false,
     cuMemcpyDtoDAsync_v2 "cuMemcpyDtoDAsync" 3020 false,
     cuMemcpyHtoDAsync_v2 "cuMemcpyHtoDAsync" 3020 false,
     cuMemcpyDtoHAsync_v2 "cuMemcpyDtoHAsync" 3020 false,
     cuMemcpyAsync_ptsz "cuMemcpyAsync" 7000 true,
     cuMemcpyDtoDAsync_v2_ptsz "cuMemcpyDtoDAsync" 7000 true,
     cuMemcpyHtoDAsync_v2_ptsz "cuMemcpyHtoDAsync" 7000 true,
     cuMemcpyDtoHAsync_v2_ptsz "cuMemcpyDtoHAsync" 7000 true]
    (to: u64, from: u64, bytes: usize, stream: u64)
    // SAFETY: handed on.
    |call| copy((to, from, bytes), of(stream, PER_THREAD), false, || unsafe { call(to, from, bytes, stream) });
    [cuMemsetD8_v2 "cuMemsetD8" 3020 false, cuMemsetD8_v2_ptds "cuMemsetD8" 7000 true]
    (to: u64, value: u8, count: usize)
    // SAFETY: handed on.
    |call| set(to, count, of(0, PER_THREAD), || unsafe { call(to, value, count) });
    [cuMemsetD16_v2 "cuMemsetD16" 3020 false, cuMemsetD16_v2_ptds "cuMemsetD16" 7000 true]
    (to: u64, value: u16, count: usize)
    // SAFETY: handed on.
    |call| set(to, count.saturating_mul(2), of(0, PER_THREAD), || unsafe { call(to, value, count) });
    [cuMemsetD32_v2 "cuMemsetD32" 3020 false, cuMemsetD32_v2_ptds "cuMemsetD32" 7000 true]
    (to: u64, value: c_uint, count: usize)
    // SAFETY: handed on.
    |call| set(to, count.saturating_mul(4), of(0, PER_THREAD), || unsafe { call(to, value, count) });
    [cuMemsetD8Async "cuMemsetD8Async" 3020 false,
     cuMemsetD8Async_ptsz "cuMemsetD8Async" 7000 true]
    (to: u64, value: u8, count: usize, stream: u64)
    // SAFETY: handed on.
    |call| set(to, count, of(stream, PER_THREAD), || unsafe { call(to, value, count, stream) });
    [cuMemsetD16Async "cuMemsetD16Async" 3020 false,
     cuMemsetD16Async_ptsz "cuMemsetD16Async" 7000 true]
    (to: u64, value: u16, count: usize, stream: u64)
    // SAFETY: handed on.
    |call| set(to, count.saturating_mul(2), of(stream, PER_THREAD), || unsafe { call(to, value, count, stream) });
    [cuMemsetD32Async "cuMemsetD32Async" 3020 false,
     cuMemsetD32Async_ptsz "cuMemsetD32Async" 7000 true]
    (to: u64, value: c_uint, count: usize, stream: u64)
    // SAFETY: handed on.
    |call| set(to, count.saturating_mul(4), of(stream, PER_THREAD), || unsafe { call(to, value, count, stream) });
    [cuMemcpy2D_v2 "cuMemcpy2D" 3020 false, cuMemcpy2D_v2_ptds "cuMemcpy2D" 7000 true,
     cuMemcpy2DUnaligned_v2 "cuMemcpy2DUnaligned" 3020 false, cuMemcpy2DUnaligned_v2_ptds "cuMemcpy2DUnaligned" 7000 true]
    (plan: *const u64)
    // SAFETY: handed on, or a copy of it.
    |call| unsafe { planned(plan, &Sides::FLAT, of(0, PER_THREAD), |plan| call(plan)) };
    [cuMemcpy3D_v2 "cuMemcpy3D" 3020 false, cuMemcpy3D_v2_ptds "cuMemcpy3D" 7000 true]
    (plan: *const u64)
    // SAFETY: as above.
    |call| unsafe { planned(plan, &Sides::DEEP, of(0, PER_THREAD), |plan| call(plan)) };
    [cuMemcpy2DAsync_v2 "cuMemcpy2DAsync" 3020 false,
     cuMemcpy2DAsync_v2_ptsz "cuMemcpy2DAsync" 7000 true]
    (plan: *const u64, stream: u64)
    // SAFETY: as above.
    |call| unsafe { planned(plan, &Sides::FLAT, of(stream, PER_THREAD), |plan| call(plan, stream)) };
    [cuMemcpy3DAsync_v2 "cuMemcpy3DAsync" 3020 false,
     cuMemcpy3DAsync_v2_ptsz "cuMemcpy3DAsync" 7000 true]
    (plan: *const u64, stream: u64)
    // SAFETY: as above.
    |call| unsafe { planned(plan, &Sides::DEEP, of(stream, PER_THREAD), |plan| call(plan, stream)) };
    // A value of 8 or 16 bits is handed over as one of 32.
    [cuMemsetD2D8_v2 "cuMemsetD2D8" 3020 false, cuMemsetD2D8_v2_ptds "cuMemsetD2D8" 7000 true,
     cuMemsetD2D16_v2 "cuMemsetD2D16" 3020 false, cuMemsetD2D16_v2_ptds "cuMemsetD2D16" 7000 true,
     cuMemsetD2D32_v2 "cuMemsetD2D32" 3020 false, cuMemsetD2D32_v2_ptds "cuMemsetD2D32" 7000 true]
    (to: u64, pitch: usize, value: c_uint, width: usize, height: usize)
    // SAFETY: handed on.
    |call| touch_any(of(0, PER_THREAD), || unsafe { call(to, pitch, value, width, height) });
    [cuMemsetD2D8Async "cuMemsetD2D8Async" 3020 false, cuMemsetD2D8Async_ptsz "cuMemsetD2D8Async" 7000 true,
     cuMemsetD2D16Async "cuMemsetD2D16Async" 3020 false, cuMemsetD2D16Async_ptsz "cuMemsetD2D16Async" 7000 true,
     cuMemsetD2D32Async "cuMemsetD2D32Async" 3020 false, cuMemsetD2D32Async_ptsz "cuMemsetD2D32Async" 7000 true]
    (to: u64, pitch: usize, value: c_uint, width: usize, height: usize, stream: u64)
    // SAFETY: handed on.
    |call| touch_any(of(stream, PER_THREAD), || unsafe { call(to, pitch, value, width, height, stream) });
    [cuMemcpyPeer "cuMemcpyPeer" 4000 false, cuMemcpyPeer_ptds "cuMemcpyPeer" 7000 true]
    (to: u64, to_context: *mut c_void, from: u64, from_context: *mut c_void, bytes: usize)
    // SAFETY: handed on.
    |call| touch_any(of(0, PER_THREAD), || unsafe { call(to, to_context, from, from_context, bytes) });
    [cuMemcpyPeerAsync "cuMemcpyPeerAsync" 4000 false, cuMemcpyPeerAsync_ptsz "cuMemcpyPeerAsync" 7000 true]
    (to: u64, to_context: *mut c_void, from: u64, from_context: *mut c_void, bytes: usize, stream: u64)
    // SAFETY: handed on.
    |call| touch_any(of(stream, PER_THREAD), || unsafe { call(to, to_context, from, from_context, bytes, stream) });
    [cuMemcpyDtoA_v2 "cuMemcpyDtoA" 3020 false, cuMemcpyDtoA_v2_ptds "cuMemcpyDtoA" 7000 true]
    (to: *mut c_void, offset: usize, from: u64, bytes: usize)
    // SAFETY: handed on.
    |call| touch_any(of(0, PER_THREAD), || unsafe { call(to, offset, from, bytes) });
    [cuMemcpyAtoD_v2 "cuMemcpyAtoD" 3020 false, cuMemcpyAtoD_v2_ptds "cuMemcpyAtoD" 7000 true]
    (to: u64, from: *mut c_void, offset: usize, bytes: usize)
    // SAFETY: handed on.
    |call| touch_any(of(0, PER_THREAD), || unsafe { call(to, from, offset, bytes) });
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    /// Grid, block, bytes of dynamic shared memory.
    shape: [c_uint; 7],
    stream: u64,
    attributes: *mut c_void,
    count: c_uint,
}

/// A stream as the program names it: 0 may be the thread's own.
fn of(stream: u64, per_thread: bool) -> u64 {
    if per_thread && stream == 0 {
        driver::PER_THREAD
    } else {
        stream
    }
}

/// `cuGetProcAddress` has found something.
fn found_by(symbol: *const c_char, found: *mut *mut c_void, asked: (c_int, u64), status: Status) -> Status {
    if status == SUCCESS && !symbol.is_null() && !found.is_null() {
        // SAFETY: the driver has read the one and written the other.
        unsafe {
            if let Some(ours) = resolve::by_version(SERVED, CStr::from_ptr(symbol), asked, *found, driver::find) {
                *found = ours.cast_mut().cast();
            }
        }
    }
    status
}

/// Managed memory of so many bytes; none where the driver is to answer.
fn allocated(addr: *mut u64, bytes: u64) -> Option<Status> {
    if addr.is_null() || bytes == 0 {
        return None;
    }
    match state::allocate(bytes)? {
        Ok(found) => {
            // No lock is held: writing may fault.
            // SAFETY: the caller's out-value.
            unsafe { addr.write(found) };
            Some(SUCCESS)
        }
        Err(status) => Some(status),
    }
}

/// What the driver says of an address. Managed memory is that, whatever the driver has there.
///
/// # Safety
/// Behind the call each value that is not null is one of its attribute.
unsafe fn described(addr: u64, asked: &[c_int], values: &[*mut c_void], call: impl FnOnce() -> Status) -> Status {
    /// `CU_POINTER_ATTRIBUTE_HOST_POINTER` and `_IS_MANAGED`.
    const ATTRIBUTES: [c_int; 2] = [4, 8];
    let status = call();
    if status != SUCCESS || !window::touches(addr, 1) {
        return status;
    }
    for (attribute, value) in asked.iter().zip(values).filter(|(_, value)| !value.is_null()) {
        // SAFETY: the caller's promise.
        unsafe {
            match attribute {
                attribute if *attribute == ATTRIBUTES[0] => value.cast::<u64>().write_unaligned(addr),
                attribute if *attribute == ATTRIBUTES[1] => value.cast::<c_int>().write_unaligned(1),
                _ => {}
            }
        }
    }
    status
}

/// Advice on memory: nothing comes of it where the memory is ours.
fn hint(addr: u64, bytes: usize, call: impl FnOnce() -> Status) -> Status {
    if window::touches(addr, bytes as u64) {
        SUCCESS
    } else {
        call()
    }
}

/// Loads code, rewritten where that can be. `call` is given it, and whether it is rewritten text.
///
/// # Safety
/// As [`code::rewritten`]; what `loaded` reads was set where `call` succeeds.
unsafe fn load(
    code: *const c_void,
    loaded: impl FnOnce() -> Handle,
    call: impl Fn(*const c_void, bool) -> Status,
) -> Status {
    // SAFETY: the caller's promise.
    let (status, image) = match unsafe { code::rewritten(code) } {
        Err(why) => (call(code, false), Err(why)),
        // Nothing is in it that its rewritten text would have to share: that is loaded when pages are looked up.
        Ok(image) if !image.has_variables => (call(code, false), Ok(image)),
        Ok(image) => {
            // The driver may look at it whenever a kernel is first used: it stays.
            match call(image.text.as_ptr().cast(), true) {
                SUCCESS => (SUCCESS, Ok(image)),
                status => (
                    call(code, false),
                    Err(format!("the driver refuses its rewritten text: CUDA error {status}")),
                ),
            }
        }
    };
    if status == SUCCESS {
        // No lock is held: reading may fault.
        let handle = loaded();
        state::lock().code.add(handle, image);
    }
    status
}

/// Loads code that is in a file. `call` is given its rewritten text, or nothing where it is to be loaded as it is.
///
/// # Safety
/// As [`load`]; `path` is null or a string that ends.
unsafe fn load_file(
    path: *const c_char,
    loaded: impl FnOnce() -> Handle,
    call: impl Fn(Option<*const c_void>) -> Status,
) -> Status {
    let read = || {
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(path) };
        let path = std::ffi::OsStr::from_bytes(path.to_bytes());
        std::fs::read(path).ok().and_then(images::ended)
    };
    match (!path.is_null()).then(read).flatten() {
        // The driver says what is wrong with it.
        None => call(None),
        // SAFETY: what a program gives as code, and complete.
        Some(code) => unsafe {
            load(code.as_ptr().cast(), loaded, |code, is_text| {
                call(is_text.then_some(code))
            })
        },
    }
}

/// What the driver has told of a name is noted.
///
/// # Safety
/// Where the driver succeeded `found` was set; `name` is null or a string that ends.
unsafe fn noted(status: Status, found: *const usize, name: *const c_char, note: impl FnOnce(usize, &CStr)) -> Status {
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the caller's promise. No lock is held: reading may fault.
    let (found, name) = unsafe {
        let name = if name.is_null() { c"" } else { CStr::from_ptr(name) };
        (*found, name.to_owned())
    };
    note(found, &name);
    status
}

/// The program has a handle of a kernel. The driver may load code for that, and so is not called with the lock.
fn named(kernel: usize, of: Handle, name: &CStr) {
    let plain = state::lock().code.plain_name(of, name);
    let plain = plain.and_then(|plain| of.kernel(&plain));
    state::lock().code.name(kernel, of, name, plain);
}

/// Code is about to be unloaded.
fn unloads(handle: Handle) {
    let beside = state::lock().code.remove(handle);
    if let Some(beside) = beside {
        beside.unload();
    }
}

/// What the driver has set of a kernel is set of its other forms, too.
fn set_too(status: Status, function: usize, attribute: c_int, value: c_int) -> Status {
    if status == SUCCESS {
        let others = state::lock().code.set(function, attribute, value);
        others
            .into_iter()
            .for_each(|(of, kernel)| of.set(kernel, (attribute, value)));
    }
    status
}

/// Bytes of each of a kernel's parameters; none where the driver does not say.
fn parameters(function: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0usize, 0usize);
        // SAFETY: out-values. A kernel of a library is none of a module, and the other way round.
        let status = unsafe {
            match call!(cuFuncGetParamInfo(function => usize, sizes.len() => usize, &raw mut offset => *mut usize, &raw mut size => *mut usize))
            {
                SUCCESS => SUCCESS,
                _ => {
                    call!(cuKernelGetParamInfo(function => usize, sizes.len() => usize, &raw mut offset => *mut usize, &raw mut size => *mut usize))
                }
            }
        };
        if status != SUCCESS {
            return sizes;
        }
        sizes.push(size);
    }
}

/// A launch of a kernel. Parameters that lie in managed memory are copied first, since the launch closes it.
fn launch_with(
    function: usize,
    stream: u64,
    params: *mut *mut c_void,
    enqueue: impl Fn(usize, *mut *mut c_void) -> Status,
) -> Status {
    if params.is_null() || !window::is_there() {
        return state::launch(&Work::Kernel(function), stream, |function| enqueue(function, params));
    }
    let known = state::lock().code.sizes(function);
    let sizes = known.unwrap_or_else(|| {
        let sizes = parameters(function).into();
        state::lock().code.note_sizes(function, &sizes);
        sizes
    });
    // SAFETY: the caller's, of so many parameters. No lock is held: reading may fault.
    let given = |n: usize| unsafe { *params.add(n) };
    let is_managed = |n: usize| window::touches(given(n) as u64, sizes[n] as u64);
    if !(0..sizes.len()).any(is_managed) {
        // What the driver says nothing of stays the caller's, too.
        return state::launch(&Work::Kernel(function), stream, |function| enqueue(function, params));
    }
    let mut own: Vec<*mut c_void> = (0..sizes.len()).map(given).collect();
    let mut copies: Vec<Vec<u128>> = Vec::new();
    for (n, param) in own.iter_mut().enumerate().filter(|(n, _)| is_managed(*n)) {
        let mut copy = vec![0u128; sizes[n].div_ceil(size_of::<u128>())];
        // SAFETY: the parameter's bytes, and room for them.
        unsafe { std::ptr::copy_nonoverlapping(param.cast_const().cast::<u8>(), copy.as_mut_ptr().cast(), sizes[n]) };
        *param = copy.as_mut_ptr().cast();
        copies.push(copy);
    }
    let given = own.as_mut_ptr();
    let status = state::launch(&Work::Kernel(function), stream, |function| enqueue(function, given));
    drop(copies);
    status
}

/// The program has waited for something, or asked whether that has ended.
fn waited(status: Status) -> Status {
    if status == SUCCESS {
        state::close_early();
    }
    status
}

/// A stream is captured from now on, by `call`.
fn captured(stream: u64, call: impl FnOnce() -> Status) -> Status {
    state::mark_stream(stream);
    driver::note_capture(true);
    let status = call();
    if status != SUCCESS {
        driver::note_capture(false);
    }
    status
}

/// A copy of so many bytes on a stream. `waits`: for it.
fn copy((to, from, bytes): (u64, u64, usize), stream: u64, waits: bool, call: impl FnOnce() -> Status) -> Status {
    let parts = [part(to, bytes), part(from, bytes)];
    if !parts.iter().any(is_managed) {
        return call();
    }
    // Whatever the program takes managed memory for, the driver has it as the GPU's.
    // SAFETY: addresses of the program's, and the stream that it has just named.
    let on_gpu = || unsafe { call!(cuMemcpyAsync(to => u64, from => u64, bytes => usize, stream => u64)) };
    let status = match driver::is_captured(stream) {
        true if state::lock().is_resident() => return on_gpu(),
        true => return call(),
        false => match state::ready(&parts, stream) {
            Ready::OnGpu(putting) => putting.put(on_gpu),
            Ready::Refused(status) => return status,
            Ready::AtHome(state) => {
                return at_home(state, stream, call, |state| {
                    state.open(&parts[0], true);
                    state.open(&parts[1], false);
                });
            }
        },
    };
    match (status, waits) {
        // SAFETY: as above.
        (SUCCESS, true) => waited(unsafe { call!(cuStreamSynchronize(stream => u64)) }),
        (status, _) => status,
    }
}

/// A call that writes those bytes on a stream.
fn set(to: u64, bytes: usize, stream: u64, call: impl FnOnce() -> Status) -> Status {
    let part = part(to, bytes);
    if !is_managed(&part) {
        return call();
    }
    touch(&part, stream, call)
}

/// A call that may read or write any managed memory, on a stream.
fn touch_any(stream: u64, call: impl FnOnce() -> Status) -> Status {
    match window::is_there() {
        true => touch(&window::all(), stream, call),
        false => call(),
    }
}

fn touch(part: &Range<u64>, stream: u64, call: impl FnOnce() -> Status) -> Status {
    if driver::is_captured(stream) {
        return call();
    }
    match state::ready(std::slice::from_ref(part), stream) {
        Ready::OnGpu(putting) => putting.put(call),
        Ready::AtHome(state) => at_home(state, stream, call, |state| state.open(part, true)),
        Ready::Refused(status) => status,
    }
}

/// Where in its description a copy in two or three dimensions says what is copied: numbers of words, of the kind of memory, the host's address,
/// and the GPU's.
struct Sides {
    words: usize,
    sides: [[usize; 3]; 2],
}

impl Sides {
    /// `CUDA_MEMCPY2D`.
    const FLAT: Self = Self {
        words: 16,
        sides: [[2, 3, 4], [9, 10, 11]],
    };
    /// `CUDA_MEMCPY3D`.
    const DEEP: Self = Self {
        words: 25,
        sides: [[4, 5, 6], [15, 16, 17]],
    };
}

/// A copy in two or three dimensions.
///
/// # Safety
/// `plan` is null or describes one.
unsafe fn planned(plan: *const u64, of: &Sides, stream: u64, call: impl FnOnce(*const u64) -> Status) -> Status {
    /// `CU_MEMORYTYPE_HOST` and `_DEVICE`, of 32 bits.
    const TYPES: [u64; 2] = [1, 2];
    if plan.is_null() || !window::is_there() {
        return call(plan);
    }
    // SAFETY: the caller's, of so many words. No lock is held: reading may fault.
    let mut own: Vec<u64> = unsafe { std::slice::from_raw_parts(plan, of.words) }.to_vec();
    if state::lock().is_resident() {
        for [kind, host, gpu] in of.sides {
            if own[kind] & u64::from(u32::MAX) == TYPES[0] && window::touches(own[host], 1) {
                (own[kind], own[gpu]) = (TYPES[1], own[host]);
            }
        }
    }
    touch(&window::all(), stream, || call(own.as_ptr()))
}

fn part(addr: u64, bytes: usize) -> Range<u64> {
    addr..addr.saturating_add(bytes as u64)
}

fn is_managed(part: &Range<u64>) -> bool {
    window::touches(part.start, part.end - part.start)
}

/// A call that reads or writes managed memory at home. It is done when this returns: what the driver writes behind the call would not be seen.
fn at_home(
    mut state: state::Locked,
    stream: u64,
    call: impl FnOnce() -> Status,
    open: impl FnOnce(&mut state::State),
) -> Status {
    if !state.has_memory() {
        drop(state);
        return call();
    }
    state.ready();
    open(&mut state);
    // With the lock: nobody closes the memory meanwhile.
    match call() {
        // SAFETY: the stream that the program has just named. What is on it waits for no host function: see the locks' order.
        SUCCESS => unsafe { call!(cuStreamSynchronize(stream => u64)) },
        status => status,
    }
}

/// What `dlsym` finds for a name of the driver's library that is served; null for all else.
extern "C" fn served_by_name(handle: *mut c_void, name: *const c_char) -> *const () {
    let real = driver::dlsym();
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || name.is_null() {
        return std::ptr::null();
    }
    // SAFETY: the caller's string; the library that the caller names.
    unsafe {
        match resolve::by_name(SERVED, CStr::from_ptr(name)) {
            Some(ours) if !real(handle, name).is_null() => ours,
            _ => std::ptr::null(),
        }
    }
}

/// The C library's `dlsym`, but for what is served. It jumps there, since what is found behind a library depends on who calls.
///
/// # Safety
/// As of the C library's.
#[cfg(all(target_arch = "x86_64", not(test)))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {served}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp qword ptr [rip + {real}]",
        "2: ret",
        served = sym served_by_name,
        real = sym driver::DLSYM,
    )
}

/// The C library's `dlsym`, but for what is served.
///
/// # Safety
/// As of the C library's.
#[cfg(all(not(target_arch = "x86_64"), not(test)))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let ours = served_by_name(handle, name);
    match ours.is_null() {
        // SAFETY: handed on.
        true => unsafe { driver::dlsym()(handle, name) },
        false => ours.cast_mut().cast(),
    }
}

#[cfg(test)]
#[test]
fn all_else_is_found_where_it_is() {
    // SAFETY: the program itself.
    let own = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    assert!(served_by_name(own, c"malloc".as_ptr()).is_null());
    assert!(
        served_by_name(own, c"cuLaunchKernel".as_ptr()).is_null(),
        "where there is no driver"
    );
}
