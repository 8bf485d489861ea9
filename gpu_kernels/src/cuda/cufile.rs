//! GPUDirect Storage: the library cuFile, loaded when it is first asked for. Names and layouts are those of its header, cufile.h.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::core::{Core, Raw};
use super::folders;
use crate::api::{FileAccess, GpuFile};
use crate::error::GpuError;
use crate::memory::DeviceMemory;

/// The library's file.
pub const LIBRARY: &str = "libcufile.so.0";
/// Is there while the kernel's module is loaded that lets disks write GPU memory.
pub const MODULE: &str = "/proc/driver/nvidia-fs/version";

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: c_int = 1;
/// `CU_FILE_DRIVER_ALREADY_OPEN`.
const ALREADY_OPEN: c_int = 5026;
/// Fewest bytes of a read beside kernels. Of 4 KiB, 128 at a time, reads did not end beside kernels that waited for them (cuFile 1.15.1
/// without nvidia-fs, on an H100); from 16 KiB on they did.
const READ_LEAST: u64 = 16 << 10;
/// Bytes that are read before kernels run, so that the library has made what it needs.
const FIRST_READ: u64 = 4096;

/// `CUfileError_t`.
#[repr(C)]
struct Status {
    error: c_int,
    driver: c_int,
}

/// `CUfileDescr_t`, of a file descriptor.
#[repr(C)]
struct Descriptor {
    kind: c_int,
    file: u64,
    operations: *const c_void,
}

type Handle = *mut c_void;
type MoveBytes = unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize;

/// Its functions. The library is never unloaded.
struct Library {
    register_file: unsafe extern "C" fn(*mut Handle, *const Descriptor) -> Status,
    forget_file: unsafe extern "C" fn(Handle),
    register_memory: unsafe extern "C" fn(*const c_void, usize, c_int) -> Status,
    forget_memory: unsafe extern "C" fn(*const c_void) -> Status,
    read: MoveBytes,
    write: MoveBytes,
}

/// Where the library is, if it is: the loader's own name for it, or a file of CUDA's folders.
pub fn library_file() -> Option<PathBuf> {
    let mut files = folders::cuda_libraries().into_iter().map(|folder| folder.join(LIBRARY));
    files.find(|file| file.is_file())
}

impl Library {
    fn load() -> Result<Self, String> {
        let names = std::iter::once(PathBuf::from(LIBRARY)).chain(library_file());
        let mut why = String::new();
        for name in names {
            // SAFETY: NVIDIA's library; its initialisers are its own.
            match unsafe { libloading::Library::new(&name) } {
                // SAFETY: it is that library.
                Ok(library) => return unsafe { Self::of(library) },
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }

    /// # Safety
    /// The library is cuFile.
    unsafe fn of(library: libloading::Library) -> Result<Self, String> {
        /// # Safety
        /// `F` is the type of the function `name`.
        unsafe fn function<F: Copy>(library: &libloading::Library, name: &str) -> Result<F, String> {
            // SAFETY: the caller's promise.
            let symbol = unsafe { library.get::<F>(name.as_bytes()) };
            symbol.map(|symbol| *symbol).map_err(|error| error.to_string())
        }
        // SAFETY: the signatures are those of cufile.h.
        let (open, found) = unsafe {
            let open: unsafe extern "C" fn() -> Status = function(&library, "cuFileDriverOpen")?;
            let found = Self {
                register_file: function(&library, "cuFileHandleRegister")?,
                forget_file: function(&library, "cuFileHandleDeregister")?,
                register_memory: function(&library, "cuFileBufRegister")?,
                forget_memory: function(&library, "cuFileBufDeregister")?,
                read: function(&library, "cuFileRead")?,
                write: function(&library, "cuFileWrite")?,
            };
            (open, found)
        };
        std::mem::forget(library);
        // SAFETY: it takes no arguments, and a context is current.
        match unsafe { open() } {
            Status {
                error: 0 | ALREADY_OPEN,
                ..
            } => Ok(found),
            status => Err(format!("cuFileDriverOpen failed: {}", status.text())),
        }
    }

    /// The library, once a context was current.
    fn get() -> Result<&'static Self, GpuError> {
        static FOUND: OnceLock<Result<Library, String>> = OnceLock::new();
        let found = FOUND.get_or_init(Self::load).as_ref();
        found.map_err(|why| failed("use GPUDirect Storage", why.clone()))
    }
}

impl Status {
    fn text(&self) -> String {
        let meaning = match self.error {
            5008 | 5018 => ": not for files of this kind",
            5019 | 5020 => ": it was not opened with O_DIRECT",
            5025 => ": no permission",
            5027 => {
                ": it does not know the disk (a container without /run/udev, or a file without a name); cufile.log says more"
            }
            _ => "",
        };
        match self.driver {
            0 => format!("error {} of cuFile{meaning}", self.error),
            driver => format!("error {} of cuFile{meaning}, CUDA error {driver}", self.error),
        }
    }

    fn check(&self, what: &str) -> Result<(), GpuError> {
        match self.error {
            0 => Ok(()),
            _ => Err(failed(what, self.text())),
        }
    }
}

fn failed(what: &str, why: String) -> GpuError {
    GpuError::FileAccess { what: what.into(), why }
}

/// cuFile, for one allocation.
pub(crate) struct CuFile {
    library: &'static Library,
    core: Arc<Core>,
    base: u64,
    /// The library knows the memory.
    registered: bool,
    /// For the first read of a file.
    scratch: Arc<DeviceMemory>,
}

impl CuFile {
    /// For `memory`, which outlives it.
    pub(crate) fn new(core: &Arc<Core>, memory: &DeviceMemory, scratch: DeviceMemory) -> Result<Self, GpuError> {
        core.enter()?;
        let library = Library::get()?;
        let base = memory.addr();
        // SAFETY: memory of this GPU, which the caller keeps until `drop` has taken it back.
        let status = unsafe { (library.register_memory)(pointer(base), memory.bytes() as usize, 0) };
        // Where it does not take the memory, it copies by way of memory of its own.
        Ok(Self {
            library,
            core: Arc::clone(core),
            base,
            registered: status.error == 0,
            scratch: Arc::new(scratch),
        })
    }
}

/// Bytes of memory that files are read into for the first time.
pub(crate) const SCRATCH_BYTES: u64 = FIRST_READ;

fn pointer(addr: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(addr as usize)
}

impl Drop for CuFile {
    fn drop(&mut self) {
        if self.registered && self.core.enter().is_ok() {
            // SAFETY: it was registered, and files that use it are gone.
            unsafe { (self.library.forget_memory)(pointer(self.base)) };
        }
    }
}

impl FileAccess for CuFile {
    fn name(&self) -> &'static str {
        match std::path::Path::new(MODULE).exists() {
            true => "cuFile",
            false => "cuFile without nvidia-fs",
        }
    }

    fn bytes_least(&self) -> u64 {
        READ_LEAST
    }

    fn open(&self, file: RawFd) -> Result<Box<dyn GpuFile>, GpuError> {
        self.core.enter()?;
        let descriptor = Descriptor {
            kind: OPAQUE_FD,
            file: file as u64,
            operations: std::ptr::null(),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: an out-value, and a description that the call copies.
        let status = unsafe { (self.library.register_file)(&raw mut handle, &raw const descriptor) };
        status.check("have cuFile take the file")?;
        let file = OpenFile {
            library: self.library,
            core: Arc::clone(&self.core),
            handle: Raw(handle),
            base: self.base,
        };
        // What the library makes at its first read could wait for kernels, which may wait for the read.
        let scratch = Arc::clone(&self.scratch);
        // SAFETY: nothing looks at the scratch memory.
        let read = unsafe { file.moves(self.library.read, scratch.addr(), 0, 0, FIRST_READ) };
        read.map_err(|error| failed("read the file's first block by cuFile", error.to_string()))?;
        Ok(Box::new(file))
    }
}

struct OpenFile {
    library: &'static Library,
    core: Arc<Core>,
    handle: Raw<c_void>,
    base: u64,
}

impl OpenFile {
    /// # Safety
    /// As for the calls of [`GpuFile`], of memory at `base` and `at` behind that.
    unsafe fn moves(&self, act: MoveBytes, base: u64, at: u64, offset: u64, bytes: u64) -> io::Result<u64> {
        self.core.enter().map_err(io::Error::other)?;
        // SAFETY: the handle is the file's until `drop`; the rest is the caller's promise.
        let moved = unsafe { act(self.handle.0, pointer(base), bytes as usize, offset as i64, at as i64) };
        match moved {
            // The system's reason is in errno.
            -1 => Err(io::Error::last_os_error()),
            error if error < 0 => Err(io::Error::other(format!("error {} of cuFile", -error))),
            moved => Ok(moved as u64),
        }
    }
}

impl GpuFile for OpenFile {
    unsafe fn read_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64> {
        // SAFETY: passed on from the caller.
        unsafe { self.moves(self.library.read, self.base, addr - self.base, offset, bytes) }
    }

    unsafe fn write_at(&self, offset: u64, addr: u64, bytes: u64) -> io::Result<u64> {
        // SAFETY: passed on from the caller.
        unsafe { self.moves(self.library.write, self.base, addr - self.base, offset, bytes) }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.core.enter().is_ok() {
            // SAFETY: nothing reads or writes by it any more.
            unsafe { (self.library.forget_file)(self.handle.0) };
        }
    }
}
