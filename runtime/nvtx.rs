//! Ranges for NVIDIA's tools, where one watches this process: NVTX.
//!
//! A tool that watches names its library in `NVTX_INJECTION64_PATH`, as NVTX 3 has it: `nsys profile --trace=nvtx` does. The library gets
//! a table and puts its functions there; NVTX's own headers do no more. Without the variable `libnvToolsExt.so.1` is used if it is there,
//! as CUDA 12 and older bring it. Without either each range is one look at an empty cell.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use libloading::Library;

/// Names the library of a tool.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// What older CUDAs bring.
const LIBRARY: &str = "libnvToolsExt.so.1";
/// `NVTX_VERSION`: that of the tables.
const VERSION: u32 = 3;

/// Functions of each module of NVTX 3, by their numbers: `NvtxCallbackModule` counts invalid, core, CUDA, OpenCL, CUDA runtime, core 2 and
/// synchronisation, and each module's own numbers begin with an invalid one, too. Only those of the core are called here.
const MODULE_SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
/// `NvtxCallbackIdCore`.
const RANGE_START: usize = 5;
const RANGE_END: usize = 7;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
const CORE: usize = 1;
/// Places of a module, with a last one that stays empty.
const PLACES: usize = 17;

type Start = unsafe extern "C" fn(*const c_char) -> u64;
type End = unsafe extern "C" fn(u64);
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// What a tool does with ranges.
struct Tool {
    start: Option<Start>,
    end: Option<End>,
    push: Option<Push>,
    pop: Option<Pop>,
}

fn tool() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    TOOL.get_or_init(|| match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => injected(&path),
        None => library(),
    })
    .as_ref()
}

/// Whether anybody is told of ranges.
pub(crate) fn is_watched() -> bool {
    tool().is_some()
}

/// The functions of the older library.
fn library() -> Option<Tool> {
    // SAFETY: NVIDIA's library; its initialisers are its own.
    let library = unsafe { Library::new(LIBRARY) }.ok()?;
    // SAFETY: the types are those of nvToolsExt.h.
    let tool = unsafe {
        Tool {
            start: library.get(b"nvtxRangeStartA\0").ok().map(|found| *found),
            end: library.get(b"nvtxRangeEnd\0").ok().map(|found| *found),
            push: library.get(b"nvtxRangePushA\0").ok().map(|found| *found),
            pop: library.get(b"nvtxRangePop\0").ok().map(|found| *found),
        }
    };
    // Never unloaded: its functions are kept.
    std::mem::forget(library);
    Some(tool)
}

/// Where a tool's library puts its functions.
static FUNCTIONS: [[AtomicPtr<c_void>; PLACES]; MODULE_SIZES.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; PLACES] }; MODULE_SIZES.len()];

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    table_of: unsafe extern "C" fn(c_int, *mut *const *mut c_void, *mut c_uint) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct Versions {
    bytes: usize,
    version: u32,
    reserved: u32,
    set: extern "C" fn(u32),
}

/// Addresses of the functions' places, for each module.
struct Tables([[*const AtomicPtr<c_void>; PLACES]; MODULE_SIZES.len()]);
// SAFETY: they are addresses of statics, whose contents are atomic.
unsafe impl Sync for Tables {}
// SAFETY: as above.
unsafe impl Send for Tables {}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        Tables(std::array::from_fn(|module| {
            std::array::from_fn(|number| match number {
                1.. if number < MODULE_SIZES[module] => &raw const FUNCTIONS[module][number],
                _ => ptr::null(),
            })
        }))
    })
}

/// `GetModuleFunctionTable`: 1 with the table and the number of its entries, or 0.
///
/// # Safety
/// The pointers are null or lead to room for what they name.
unsafe extern "C" fn table_of(module: c_int, table: *mut *const *mut c_void, size: *mut c_uint) -> c_int {
    let module = usize::try_from(module).unwrap_or(0);
    let Some(found) = tables().0.get(module).filter(|_| module != 0) else {
        return 0;
    };
    if !table.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *table = found.as_ptr().cast() };
    }
    if !size.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *size = MODULE_SIZES[module] as c_uint };
    }
    1
}

extern "C" fn set_version(_: u32) {}

/// `nvtxGetExportTable`.
extern "C" fn export_table(number: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks {
        bytes: size_of::<Callbacks>(),
        table_of,
    };
    static VERSIONS: Versions = Versions {
        bytes: size_of::<Versions>(),
        version: VERSION,
        reserved: 0,
        set: set_version,
    };
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSIONS).cast(),
        _ => ptr::null(),
    }
}

/// The functions of a tool that the environment names.
fn injected(path: &std::ffi::OsStr) -> Option<Tool> {
    type Begin = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    // SAFETY: who runs this process asks for the library by name; its initialisers are its own.
    let library = unsafe { Library::new(path) };
    let library = library
        .inspect_err(|error| tracing::warn!(%error, "no NVTX: {VARIABLE} names no library that can be loaded"))
        .ok()?;
    // SAFETY: the type is that of NVTX's headers.
    let begin = unsafe { library.get::<Begin>(b"InitializeInjectionNvtx2\0") }.ok()?;
    // SAFETY: it gets what NVTX's headers give it, which lives as long as the process.
    if unsafe { begin(export_table) } == 0 {
        tracing::warn!("no NVTX: the library that {VARIABLE} names wants to watch nothing");
        return None;
    }
    std::mem::forget(library);
    // Relaxed: the library wrote them on this thread.
    let place = |number: usize| FUNCTIONS[CORE][number].load(Ordering::Relaxed);
    // SAFETY: the library has put functions of these types there, or nothing: an option of a function is null then.
    unsafe {
        Some(Tool {
            start: std::mem::transmute::<*mut c_void, Option<Start>>(place(RANGE_START)),
            end: std::mem::transmute::<*mut c_void, Option<End>>(place(RANGE_END)),
            push: std::mem::transmute::<*mut c_void, Option<Push>>(place(RANGE_PUSH)),
            pop: std::mem::transmute::<*mut c_void, Option<Pop>>(place(RANGE_POP)),
        })
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// A range on this thread, inside those that began before it, until it is dropped.
pub(crate) struct Pushed {
    // A range ends on the thread on which it began.
    _here: std::marker::PhantomData<*const ()>,
}

impl Pushed {
    /// None where nothing watches.
    pub fn new(name: &str) -> Option<Self> {
        let push = tool()?.push?;
        // SAFETY: the string lives through the call, which copies it.
        unsafe { push(c_string(name).as_ptr()) };
        let _here = std::marker::PhantomData;
        Some(Self { _here })
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if let Some(pop) = tool().and_then(|tool| tool.pop) {
            // SAFETY: it takes nothing; a range of this thread is open.
            unsafe { pop() };
        }
    }
}

/// A range of the process, until it is dropped, on whichever thread.
pub(crate) struct Started(u64);

impl Started {
    /// None where nothing watches.
    pub fn new(name: &str) -> Option<Self> {
        let start = tool()?.start?;
        // SAFETY: the string lives through the call, which copies it.
        Some(Self(unsafe { start(c_string(name).as_ptr()) }))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(end) = tool().and_then(|tool| tool.end) {
            // SAFETY: the number is that of a range that has begun and not ended.
            unsafe { end(self.0) };
        }
    }
}
