//! The code that the program has loaded, and what its kernels are called.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use gpuvm_ptx::{TableLayout, WINDOW, Window};
use parking_lot::Mutex;

use crate::driver::{self, SUCCESS, call};
use crate::images::{self, Image, KernelOf};
use crate::settings;

/// What the driver has loaded. Both kinds have kernels and variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handle {
    Module(usize),
    Library(usize),
}

/// Code that is loaded, and its rewritten text.
pub struct Loaded {
    handle: Handle,
    kernels: BTreeMap<String, KernelOf>,
    text: CString,
    /// What was loaded is the text.
    is_rewritten: bool,
    /// The text, where it was loaded beside the code.
    beside: OnceLock<Option<Handle>>,
    /// Its variable says where the window is.
    ready: AtomicBool,
}

/// A kernel that the program has a handle of.
#[derive(Clone)]
pub struct Function {
    pub name: Arc<str>,
    /// What it is in.
    of: Handle,
    /// With a rewritten text; none of code that was left as it is.
    pub loaded: Option<Arc<Loaded>>,
    /// The handle of its form as it was written, where that is another one.
    plain: Option<usize>,
    /// Those of its forms that look pages up.
    forms: Arc<OnceLock<Option<Forms>>>,
    /// What the program has set of it.
    set: Arc<Mutex<Vec<(c_int, c_int)>>>,
    /// Why it uses all pages at home, if it does.
    pub at_home: Option<Arc<str>>,
    /// Bytes of each of its parameters, once they were asked for.
    pub sizes: OnceLock<Arc<[usize]>>,
}

/// Handles of a kernel that looks pages up.
#[derive(Debug, Clone, Copy)]
pub struct Forms {
    pub marking: usize,
    /// Which marks nothing.
    pub quiet: usize,
}

/// All of it.
#[derive(Default)]
pub struct Code {
    /// With the reason where it was left as it is.
    loaded: HashMap<Handle, Result<Arc<Loaded>, Arc<str>>>,
    functions: HashMap<usize, Function>,
}

fn pointer(handle: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(handle)
}

impl Handle {
    /// A kernel of it.
    pub fn kernel(self, name: &CStr) -> Option<usize> {
        let mut found: *mut c_void = std::ptr::null_mut();
        let (out, text) = (&raw mut found, name.as_ptr());
        // SAFETY: an out-value, what the driver has loaded, and a string that ends.
        let status = unsafe {
            match self {
                Self::Module(module) => {
                    call!(cuModuleGetFunction(out => *mut *mut c_void, pointer(module) => *mut c_void, text => *const c_char))
                }
                Self::Library(library) => {
                    call!(cuLibraryGetKernel(out => *mut *mut c_void, pointer(library) => *mut c_void, text => *const c_char))
                }
            }
        };
        (status == SUCCESS).then(|| found.expose_provenance())
    }

    /// Loads a text as its like is.
    fn beside(self, text: &CStr) -> Option<Self> {
        let mut found = 0usize;
        let (out, text) = (&raw mut found, text.as_ptr());
        let (mut option, mut value) = settings::registers_option();
        let count = u32::from(!value.is_null());
        let (options, values, none) = (&raw mut option, &raw mut value, std::ptr::null_mut::<c_void>());
        // SAFETY: out-values, a text that ends and stays, and an option with its value.
        let status = unsafe {
            match self {
                Self::Module(_) => call!(cuModuleLoadDataEx(
                    out => *mut usize, text => *const c_char, count => u32, options => *mut c_int,
                    values => *mut *mut c_void)),
                Self::Library(_) => call!(cuLibraryLoadData(
                    out => *mut usize, text => *const c_char, options => *mut c_int, values => *mut *mut c_void,
                    count => u32, none => *mut c_void, none => *mut c_void, 0 => u32)),
            }
        };
        let of_kind = match self {
            Self::Module(_) => Self::Module(found),
            Self::Library(_) => Self::Library(found),
        };
        (status == SUCCESS).then_some(of_kind)
    }

    /// Unloads what was loaded beside other code.
    pub fn unload(self) {
        // SAFETY: what was loaded above; no kernel of it is launched any more.
        let _ = unsafe {
            match self {
                Self::Module(module) => call!(cuModuleUnload(module => usize)),
                Self::Library(library) => call!(cuLibraryUnload(library => usize)),
            }
        };
    }

    /// Sets something of a kernel of it.
    pub fn set(self, kernel: usize, (attribute, value): (c_int, c_int)) {
        let device = driver::current_gpu().map_or(0, |(gpu, _)| gpu);
        // SAFETY: a kernel that the driver has found there. What it refuses it refuses at the launch.
        let _ = unsafe {
            match self {
                Self::Module(_) => {
                    call!(cuFuncSetAttribute(kernel => usize, attribute => c_int, value => c_int))
                }
                Self::Library(_) => call!(cuKernelSetAttribute(
                    attribute => c_int, value => c_int, kernel => usize, device => c_int)),
            }
        };
    }

    /// The device address of the variable that describes the window.
    fn window(self) -> Option<u64> {
        let name = CString::new(WINDOW).ok()?;
        let (mut addr, mut bytes) = (0u64, 0usize);
        let (at, size, text) = (&raw mut addr, &raw mut bytes, name.as_ptr());
        // SAFETY: as in `kernel`.
        let status = unsafe {
            match self {
                Self::Module(module) => call!(cuModuleGetGlobal_v2(
                    at => *mut u64, size => *mut usize, pointer(module) => *mut c_void, text => *const c_char)),
                Self::Library(library) => call!(cuLibraryGetGlobal(
                    at => *mut u64, size => *mut usize, pointer(library) => *mut c_void, text => *const c_char)),
            }
        };
        (status == SUCCESS && bytes == Window::BYTES).then_some(addr)
    }
}

impl Function {
    /// Its forms that look pages up, which are loaded when they are asked for first. None where the driver refuses them.
    pub fn forms(&self, handle: usize) -> Option<Forms> {
        let loaded = self.loaded.as_ref()?;
        *self.forms.get_or_init(|| {
            let (of, kernel) = (loaded.rewritten()?, loaded.kernels.get(&*self.name)?);
            let marking = match loaded.is_rewritten {
                true => handle,
                false => of.kernel(&CString::new(&*self.name).ok()?)?,
            };
            let quiet = kernel
                .quiet
                .as_deref()
                .and_then(|name| of.kernel(name))
                .unwrap_or(marking);
            for set in self.set.lock().iter() {
                [marking, quiet].into_iter().for_each(|kernel| of.set(kernel, *set));
            }
            Some(Forms { marking, quiet })
        })
    }
}

impl Loaded {
    /// Where its rewritten text is loaded, which it is now if it was not.
    fn rewritten(&self) -> Option<Handle> {
        match self.is_rewritten {
            true => Some(self.handle),
            false => *self.beside.get_or_init(|| self.handle.beside(&self.text)),
        }
    }

    /// Says in its variable where the window is.
    ///
    /// # Errors
    /// It has no such variable, or that cannot be written.
    pub fn describe(&self, window: &[u8; Window::BYTES]) -> Result<(), String> {
        if self.ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.write(window)?;
        self.ready.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, window: &[u8; Window::BYTES]) -> Result<(), String> {
        let addr = self
            .rewritten()
            .and_then(Handle::window)
            .ok_or("the rewritten code has no variable for the window")?;
        let (from, bytes) = (window.as_ptr().cast::<c_void>(), window.len());
        // SAFETY: the variable has so many bytes.
        let status = unsafe { call!(cuMemcpyHtoD_v2(addr => u64, from => *const c_void, bytes => usize)) };
        match status {
            SUCCESS => Ok(()),
            status => Err(format!(
                "the window cannot be described to the rewritten code: CUDA error {status}"
            )),
        }
    }
}

/// How code is rewritten.
pub fn layout() -> Option<TableLayout> {
    let layout = TableLayout::new(settings::page_bytes()).ok()?;
    Some(layout.touches(true).both_forms(true))
}

/// Code to be loaded in place of `code`. The error says why that stays as it is.
///
/// # Safety
/// As [`images::rewritten`].
pub unsafe fn rewritten(code: *const c_void) -> Result<Image, String> {
    let gpu = driver::current_gpu().map_or(0, |(gpu, _)| gpu);
    let architecture = driver::architecture(gpu).ok_or("the GPU's architecture is unknown")?;
    let layout = layout().ok_or("the page size is none")?;
    // SAFETY: handed on.
    unsafe { images::rewritten(code, architecture, &layout) }
}

impl Code {
    /// The driver has loaded it: rewritten, or as it is for that reason.
    pub fn add(&mut self, handle: Handle, image: Result<Image, String>) {
        let loaded = |image: Image| {
            Arc::new(Loaded {
                handle,
                kernels: image.kernels,
                text: image.text,
                is_rewritten: image.has_variables,
                beside: OnceLock::new(),
                ready: AtomicBool::new(false),
            })
        };
        // Of what had the handle before, and ended with its context.
        self.forget(handle);
        self.loaded.insert(handle, image.map(loaded).map_err(Into::into));
    }

    /// It is about to be unloaded. What is to be, too: without the lock, since it may wait.
    pub fn remove(&mut self, handle: Handle) -> Option<Handle> {
        *self.forget(handle)?.beside.get()?
    }

    /// What was loaded with that handle is no more.
    fn forget(&mut self, handle: Handle) -> Option<Arc<Loaded>> {
        let mut gone = vec![handle];
        let code = self.loaded.remove(&handle).and_then(Result::ok);
        if let Some(code) = &code {
            // The modules of a library.
            let same = |other: &Result<Arc<Loaded>, _>| other.as_ref().is_ok_and(|other| Arc::ptr_eq(other, code));
            let also = self.loaded.iter().filter(|(_, other)| same(other));
            gone.extend(also.map(|(handle, _)| *handle));
        }
        self.loaded.retain(|handle, _| !gone.contains(handle));
        // Others may have their handles.
        self.functions.retain(|_, function| !gone.contains(&function.of));
        code
    }

    /// A library is a module in a context.
    pub fn is_also(&mut self, library: Handle, module: Handle) {
        if let Some(loaded) = self.loaded.get(&library).cloned() {
            self.loaded.insert(module, loaded);
        }
    }

    /// What a kernel's form as it was written is called, where it is another one.
    pub fn plain_name(&self, of: Handle, name: &CStr) -> Option<CString> {
        let loaded = self.loaded.get(&of)?.as_ref().ok()?;
        loaded.kernels.get(&*name.to_string_lossy())?.plain.clone()
    }

    /// The program has a handle of a kernel, and this library one of its form as it was written.
    pub fn name(&mut self, function: usize, of: Handle, name: &CStr, plain: Option<usize>) {
        let name = name.to_string_lossy();
        let (loaded, kernel) = match self.loaded.get(&of) {
            Some(Ok(loaded)) => (Some(Arc::clone(loaded)), loaded.kernels.get(&*name).cloned()),
            _ => (None, None),
        };
        let why = match self.loaded.get(&of) {
            Some(Err(why)) => Arc::clone(why),
            Some(Ok(_)) => "it is not in its module's PTX".into(),
            None => "its code was not intercepted".into(),
        };
        let function_of = Function {
            name: (*name).into(),
            of,
            forms: Arc::default(),
            set: Arc::default(),
            plain,
            sizes: OnceLock::new(),
            at_home: match &kernel {
                Some(kernel) => kernel.at_home.as_deref().map(Into::into),
                None => Some(why),
            },
            loaded,
        };
        self.functions.insert(function, function_of);
    }

    /// Another handle of the same kernel.
    pub fn alias(&mut self, function: usize, of: usize) {
        if let Some(known) = self.functions.get(&of).cloned() {
            self.functions.insert(function, known);
        }
    }

    /// A kernel uses all pages at home from now on, and why.
    pub fn keep_at_home(&mut self, function: usize, why: &str) {
        if let Some(function) = self.functions.get_mut(&function) {
            function.at_home = Some(why.into());
        }
    }

    /// The program has set something of a kernel. Its other forms, of which it is to be set, too.
    pub fn set(&self, function: usize, attribute: c_int, value: c_int) -> Vec<(Handle, usize)> {
        let Some(function) = self.functions.get(&function) else {
            return Vec::new();
        };
        function.set.lock().push((attribute, value));
        let plain = function.plain.map(|plain| (function.of, plain));
        let mut others: Vec<(Handle, usize)> = plain.into_iter().collect();
        if let (Some(Some(forms)), Some(of)) = (function.forms.get(), function.loaded.as_ref()) {
            // The first may be the program's own.
            let of = of.rewritten().unwrap_or(function.of);
            others.extend([forms.marking, forms.quiet].map(|kernel| (of, kernel)));
        }
        others
    }

    /// Bytes of each of a kernel's parameters, if they were noted.
    pub fn sizes(&self, function: usize) -> Option<Arc<[usize]>> {
        self.functions.get(&function)?.sizes.get().cloned()
    }

    /// Notes them.
    pub fn note_sizes(&self, function: usize, sizes: &Arc<[usize]>) {
        if let Some(function) = self.functions.get(&function) {
            // Others may have, with the same.
            let _ = function.sizes.set(Arc::clone(sizes));
        }
    }

    /// The handle of a kernel's form as it was written.
    pub fn plain(&self, function: usize) -> usize {
        let known = self.functions.get(&function);
        known.and_then(|known| known.plain).unwrap_or(function)
    }

    /// What a handle is of.
    pub fn function(&self, handle: usize) -> Option<&Function> {
        self.functions.get(&handle)
    }

    /// Has all code find nothing paged from now on.
    pub fn forget_window(&self) {
        let loaded = self.loaded.values().flatten();
        for loaded in loaded.filter(|loaded| loaded.ready.swap(false, Ordering::Relaxed)) {
            // The driver's error has nobody to go to: the GPU is lost.
            let _ = loaded.write(&[0; Window::BYTES]);
        }
    }
}
