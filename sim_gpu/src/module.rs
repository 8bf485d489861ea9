//! Loaded kernel modules.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::Hooks;
use gpuvm_gpu::GpuError;
use gpuvm_gpu::back_end::params;
use gpuvm_gpu::{Kernel, KernelInfo, Module, ParamInfo, PtxKernel};

/// A kernel's entry in its module: calls it with the arguments at these addresses.
pub(crate) type Entry = unsafe extern "C" fn(*const *const c_void);

/// A module in memory; unloaded when the last kernel and launch of it are gone.
pub(crate) struct ModuleInner {
    /// The caller's name of the source.
    pub(crate) name: String,
    pub(crate) seeded: bool,
    /// Exited lanes in a mask are skipped instead of refused.
    pub(crate) skip_exited: bool,
    /// Executable segments: (first address, end).
    pub(crate) text: Vec<(usize, usize)>,
    /// Bytes of the thread-local image before the mark's own thread gets a copy of it.
    image_bytes: usize,
    /// Offset of the mark in the image.
    mark_offset: usize,
    mark: unsafe extern "C" fn() -> *mut u8,
    shared: bool,
    /// Keeps code and tables mapped; dropped last.
    library: Library,
}

/// A kernel of a loaded module.
pub(crate) struct KernelInner {
    pub(crate) info: KernelInfo,
    pub(crate) module: Arc<ModuleInner>,
    pub(crate) entry: Entry,
}

/// A kernel as its user holds it.
pub(crate) struct SimKernel(pub(crate) Arc<KernelInner>);

/// A module as its user holds it.
pub(crate) struct SimModule {
    name: String,
    kernels: Vec<Arc<KernelInner>>,
}

/// What dl_iterate_phdr tells about one module.
struct Segments {
    inside: usize,
    text: Vec<(usize, usize)>,
    tls_bytes: usize,
    tls_data: usize,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _bytes: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info for the duration of the call, and `data` is the caller's Segments.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Segments>()) };
    // SAFETY: the loader's own table of `dlpi_phnum` entries.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let range = |h: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(h.p_vaddr as usize);
        (start, start.wrapping_add(h.p_memsz as usize))
    };
    let covers = |h: &libc::Elf64_Phdr| {
        let (start, end) = range(h);
        h.p_type == libc::PT_LOAD && (start..end).contains(&found.inside)
    };
    if !headers.iter().any(covers) {
        return 0;
    }
    found.text = headers
        .iter()
        .filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0)
        .map(range)
        .collect();
    if let Some(tls) = headers.iter().find(|h| h.p_type == libc::PT_TLS) {
        found.tls_bytes = tls.p_memsz as usize;
        found.tls_data = info.dlpi_tls_data as usize;
    }
    1
}

/// Why an object cannot be loaded, with what to do where its file system lets nothing be executed.
fn advised(path: &Path, cause: String) -> String {
    let folder = path.parent().unwrap_or(path);
    let name = std::ffi::CString::new(folder.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: all zeroes are a value of it.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero, and the structure is the call's to fill.
    let known = unsafe { libc::statvfs(name.as_ptr(), &raw mut about) } == 0;
    match known && about.f_flag & libc::ST_NOEXEC != 0 {
        true => format!(
            "{cause}; the file system of the kernel cache {} is mounted noexec, and compiled kernels are loaded from there: set \
             GPUVM_CACHE_DIR to a folder on another file system",
            folder.display()
        ),
        false => cause,
    }
}

impl ModuleInner {
    /// Loads the shared object at `path` and binds it to `hooks`.
    pub(crate) fn load(path: &Path, name: &str, seeded: bool, hooks: &'static Hooks) -> Result<Self, GpuError> {
        let failed = |cause: String| GpuError::ModuleLoad {
            module: name.to_owned(),
            cause,
        };
        // SAFETY: the object was compiled by this crate from the user's kernel source. Its initialisers are those of the source's own
        // global variables; running user code is what a kernel module is for.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| failed(advised(path, e.to_string())))?;
        // SAFETY: `gpuvm_sim/cuda.h`, which is included in every module, defines both symbols with these signatures.
        let (bind, mark) = unsafe {
            let bind = library.get::<unsafe extern "C" fn(&'static Hooks)>(b"gpuvm_sim_bind\0");
            let mark = library.get::<unsafe extern "C" fn() -> *mut u8>(b"gpuvm_sim_tls\0");
            (
                *bind.map_err(|e| failed(e.to_string()))?,
                *mark.map_err(|e| failed(e.to_string()))?,
            )
        };
        // SAFETY: as above; the hooks live for ever. `mark` allocates this thread's image.
        let mark_address = unsafe {
            bind(hooks);
            mark() as usize
        };
        // Asked for by name, since the loader does not note where storage lies that code finds by TLS descriptors, as on AArch64.
        // SAFETY: only the address is asked for.
        unsafe { library.get::<*const u8>(b"gpuvm_sim_tls_mark\0") }.map_err(|e| failed(e.to_string()))?;
        let mut found = Segments {
            inside: bind as usize,
            text: Vec::new(),
            tls_bytes: 0,
            tls_data: 0,
        };
        // SAFETY: `visit` keeps to the contract of the call, and `found` outlives it.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
        let inside = mark_address
            .checked_sub(found.tls_data)
            .filter(|offset| *offset < found.tls_bytes);
        let Some(mark_offset) = inside else {
            return Err(failed(
                "the loader does not tell where its thread-local storage lies".into(),
            ));
        };
        Ok(Self {
            name: name.to_owned(),
            seeded,
            skip_exited: false,
            text: found.text,
            // The mark itself is one byte: an image of just that holds no shared memory.
            shared: found.tls_bytes > 1,
            image_bytes: found.tls_bytes,
            mark_offset,
            mark,
            library,
        })
    }

    /// Bytes of a block's static shared memory.
    pub(crate) fn shared_bytes(&self) -> usize {
        if self.shared { self.image_bytes } else { 0 }
    }

    /// This thread's thread-local image: the static shared memory of whichever block is in place.
    pub(crate) fn image(&self) -> *mut u8 {
        // SAFETY: the library is loaded; the image starts `mark_offset` before the mark.
        unsafe { (self.mark)().sub(self.mark_offset) }
    }

    /// The table and entry of kernel number `index`, which was compiled as `name`.
    fn kernel(self: &Arc<Self>, index: usize, name: &str) -> Result<KernelInner, GpuError> {
        let failed = |cause: String| GpuError::ModuleLoad {
            module: self.name.clone(),
            cause,
        };
        let (table, entry) = (
            format!("gpuvm_kernel_table_{index}\0"),
            format!("gpuvm_kernel_entry_{index}\0"),
        );
        // SAFETY: the trailer of the module defines both: a table as `gpuvm/kernel_param.cuh` lays it out, and a function of this signature.
        let (table, entry) = unsafe {
            let table = self
                .library
                .get::<*const u32>(table.as_bytes())
                .map_err(|e| failed(e.to_string()))?;
            let entry = self
                .library
                .get::<Entry>(entry.as_bytes())
                .map_err(|e| failed(e.to_string()))?;
            (*table, *entry)
        };
        // SAFETY: the table starts with its row count and the size of a row.
        let header = unsafe { [*table, *table.add(1)] };
        let bytes = params::table_bytes(header).map_err(|e| failed(format!("kernel `{name}`: {e}")))?;
        // SAFETY: the header, which has just been checked, says how long the table is; the module's tables are constants.
        let bytes = unsafe { std::slice::from_raw_parts(table.cast::<u8>(), bytes) };
        let params = params::parse(bytes).map_err(|e| failed(format!("kernel `{name}`: {e}")))?;
        Ok(self.described(name, params, entry))
    }

    fn described(self: &Arc<Self>, name: &str, params: Vec<ParamInfo>, entry: Entry) -> KernelInner {
        let info = KernelInfo {
            name: name.to_owned(),
            static_shared_bytes: self.shared_bytes() as u32,
            params,
            resources: None,
            compiled_with: None,
        };
        KernelInner {
            info,
            module: Arc::clone(self),
            entry,
        }
    }

    /// Kernel number `index` of translated PTX, which says of parameters how large they are.
    fn ptx_kernel(self: &Arc<Self>, index: usize, kernel: &PtxKernel) -> Result<KernelInner, GpuError> {
        // SAFETY: the translation defines a function of this signature for each kernel.
        let entry = unsafe { self.symbol::<Entry>(&format!("gpuvm_kernel_entry_{index}\0"))? };
        Ok(self.described(&kernel.name, kernel.params.clone(), entry))
    }

    /// A symbol of the module, whose name ends with a zero.
    ///
    /// # Safety
    /// It is a `T`.
    unsafe fn symbol<T: Copy>(&self, name: &str) -> Result<T, GpuError> {
        // SAFETY: as the caller promises; the library outlives the copy, which whoever runs its code keeps loaded.
        let found = unsafe { self.library.get::<T>(name.as_bytes()) };
        found.map(|found| *found).map_err(|e| GpuError::ModuleLoad {
            module: self.name.clone(),
            cause: e.to_string(),
        })
    }

    /// Gives variables of translated PTX what they hold at first.
    fn fill(&self, variables: &[(&str, &[u8])]) -> Result<(), GpuError> {
        for (index, (_, value)) in variables.iter().enumerate() {
            // SAFETY: the translation defines such a function for each variable. It is as long as its value, which the translation has
            // checked; no kernel of the module runs yet.
            unsafe {
                let place =
                    self.symbol::<unsafe extern "C" fn() -> *mut u8>(&format!("gpuvm_ptx_variable_{index}\0"))?;
                place().copy_from_nonoverlapping(value.as_ptr(), value.len());
            }
        }
        Ok(())
    }
}

impl SimModule {
    /// The kernels `names` of a loaded module, which were compiled in this order.
    pub(crate) fn new(module: ModuleInner, names: &[&str]) -> Result<Self, GpuError> {
        let name = module.name.clone();
        let module = Arc::new(module);
        let kernels = names.iter().enumerate().map(|(i, n)| module.kernel(i, n).map(Arc::new));
        Ok(Self {
            name,
            kernels: kernels.collect::<Result<_, _>>()?,
        })
    }
}

impl SimModule {
    /// `kernels` of a loaded module, whose translation has numbered them and `variables` in this order.
    pub(crate) fn of_ptx(
        module: ModuleInner,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
    ) -> Result<Self, GpuError> {
        let name = module.name.clone();
        module.fill(variables)?;
        let module = Arc::new(module);
        let kernels = kernels.iter().enumerate();
        let kernels = kernels.map(|(index, kernel)| module.ptx_kernel(index, kernel).map(Arc::new));
        Ok(Self {
            name,
            kernels: kernels.collect::<Result<_, _>>()?,
        })
    }
}

impl Module for SimModule {
    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, GpuError> {
        match self.kernels.iter().find(|k| k.info.name == name) {
            Some(kernel) => Ok(Arc::new(SimKernel(Arc::clone(kernel)))),
            None => Err(GpuError::KernelNotFound {
                name: name.to_owned(),
                module: self.name.clone(),
                known: self.kernels.iter().map(|k| k.info.name.clone()).collect(),
            }),
        }
    }
}

impl Kernel for SimKernel {
    fn info(&self) -> &KernelInfo {
        &self.0.info
    }

    fn blocks_per_multiprocessor(&self, _threads: u32, _dynamic_shared_bytes: u32) -> Result<Option<u32>, GpuError> {
        // A worker holds as many lanes as its GPU was told to.
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
