//! Device memory for other libraries, by DLPack: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::{
    any::Any,
    ffi::{CStr, c_void},
};

use gpuvm::OthersContext;
use pyo3::{exceptions::PyBufferError, ffi, prelude::*, types::PyCapsule};

/// What DLPack calls a GPU.
#[derive(Clone, Copy)]
pub enum Device {
    /// A simulated GPU: its memory is this process's.
    Host,
    /// An NVIDIA GPU, by its place in the driver's list.
    Cuda(i32),
    /// An NVIDIA GPU that was not named by its place.
    Unnamed,
}

/// `kDLCPU` and `kDLCUDA`.
const CPU: i32 = 1;
const CUDA: i32 = 2;

impl Device {
    /// Kind and number.
    ///
    /// # Errors
    /// `BufferError` where the number is not known.
    pub fn numbers(self) -> PyResult<(i32, i32)> {
        match self {
            Self::Host => Ok((CPU, 0)),
            Self::Cuda(ordinal) => Ok((CUDA, ordinal)),
            Self::Unnamed => Err(PyBufferError::new_err(
                "DLPack names a GPU by its place in the driver's list: make the Vm with gpu=\"cuda:0\", or whichever it is",
            )),
        }
    }
}

/// What another library is given.
pub struct Tensor {
    /// Address of element 0.
    pub addr: u64,
    pub device: Device,
    /// NumPy's letter of the element's kind, and its bytes.
    pub element: (String, usize),
    /// Of contiguous rows.
    pub shape: Vec<i64>,
    pub read_only: bool,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

const READ_ONLY: u64 = 1;
const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// What a capsule's structure points to, and what keeps the memory.
struct Kept {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Box<dyn Any + Send>,
}

impl Kept {
    fn tensor(&mut self, of: &Tensor) -> PyResult<DlTensor> {
        let (device_type, device_id) = of.device.numbers()?;
        let code = match of.element.0.as_str() {
            "i" => 0,
            "u" => 1,
            "f" => 2,
            "c" => 5,
            "b" => 6,
            other => {
                let message = format!("DLPack has no name for elements of NumPy's kind `{other}`");
                return Err(PyBufferError::new_err(message));
            }
        };
        Ok(DlTensor {
            data: std::ptr::with_exposed_provenance_mut(of.addr as usize),
            device_type,
            device_id,
            dimensions: self.shape.len() as i32,
            code,
            bits: (of.element.1 * 8) as u8,
            lanes: 1,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        })
    }
}

/// Lets go of what a structure keeps: Python's objects now, and not when the interpreter is entered next.
///
/// # Safety
/// It was made by `capsule`, and nothing else has it.
unsafe fn let_go(context: *mut c_void) {
    // SAFETY: the caller's promise.
    let kept = unsafe { Box::from_raw(context.cast::<Kept>()) };
    Python::try_attach(|_| {
        // PyO3 takes a thread for attached that has called it. A thread that lets go may have detached it since: PyTorch does while it frees a tensor, which
        // Python's collector has it do within any call.
        // SAFETY: there is an interpreter, and this is released below, on the same thread.
        let state = unsafe { ffi::PyGILState_Ensure() };
        let others = OthersContext::keep();
        drop(kept);
        drop(others);
        // SAFETY: as above.
        unsafe { ffi::PyGILState_Release(state) };
    });
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: both boxes were made by `capsule`, and the thread that has the structure calls this once.
    unsafe { let_go(Box::from_raw(managed).context) }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    unsafe { let_go(Box::from_raw(managed).context) }
}

/// Of a capsule that nothing took: one that was taken has another name.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls it with a capsule of `capsule`, while the interpreter is attached. Under its first name the structure is the
    // capsule's own still.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule for `tensor`, whose memory `memory` keeps. `versioned`: that of DLPack 1.0, whose memory may be read-only.
///
/// # Errors
/// `BufferError` for elements that DLPack has no name for, and where the consumer's DLPack knows no read-only memory.
pub fn capsule<'py>(
    py: Python<'py>,
    tensor: Tensor,
    memory: Box<dyn Any + Send>,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    if tensor.read_only && !versioned {
        return Err(PyBufferError::new_err(
            "the memory is for reading alone, which DLPack before 1.0 cannot say: ask with max_version=(1, 0)",
        ));
    }
    let mut strides = vec![1; tensor.shape.len()];
    for at in (1..strides.len()).rev() {
        strides[at - 1] = strides[at] * tensor.shape[at];
    }
    let mut kept = Box::new(Kept {
        shape: tensor.shape.clone(),
        strides,
        _memory: memory,
    });
    let described = kept.tensor(&tensor)?;
    let context = Box::into_raw(kept).cast();
    let (structure, name): (*mut c_void, _) = match versioned {
        true => {
            let managed = ManagedVersioned {
                major: 1,
                minor: 0,
                context,
                deleter: Some(delete_versioned),
                flags: if tensor.read_only { READ_ONLY } else { 0 },
                tensor: described,
            };
            (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
        }
        false => {
            let managed = Managed {
                tensor: described,
                context,
                deleter: Some(delete),
            };
            (Box::into_raw(Box::new(managed)).cast(), NAME)
        }
    };
    // SAFETY: the structure and the name outlive the capsule, whose destructor frees the former unless it was taken.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(structure, name.as_ptr(), Some(forget))) }?;
    Ok(made.cast_into::<PyCapsule>()?)
}
