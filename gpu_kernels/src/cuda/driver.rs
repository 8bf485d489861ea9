//! Results of the driver as typed errors.

use std::fmt::Display;

use cudarc::driver::sys::CUresult;

use super::calls::{Missing, cu, has_driver, text};
use crate::error::GpuError;

/// What a call of the driver gave: its result's number, or that there is no such function.
pub(crate) type Called = Result<u32, Missing>;

/// A failure of the driver, before anybody says what was tried.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The result, 0 for a function that is missing.
    pub(crate) code: u32,
    /// CUDA's name of the result.
    pub(crate) name: String,
    /// CUDA's text.
    pub(crate) text: String,
    advice: &'static str,
}

/// Whether `code` is `result`.
pub(crate) fn is(code: u32, result: CUresult) -> bool {
    code == result as u32
}

/// The failure of a call, if it failed.
pub(crate) fn outcome(called: Called) -> Result<(), Failure> {
    match called {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::of(code)),
        Err(Missing(function)) if has_driver() => Err(Failure {
            code: 0,
            name: "missing function".into(),
            text: format!("the driver has no {function}"),
            advice: "; update the NVIDIA driver",
        }),
        Err(Missing(_)) => Err(Failure {
            code: 0,
            name: "no NVIDIA driver".into(),
            text: "libcuda.so.1 cannot be loaded".into(),
            advice: "; install NVIDIA's driver, or let a container see the GPU, or use the simulated GPU",
        }),
    }
}

/// The error of a call that failed; `what` says what was tried, after "cannot".
pub(crate) fn check(what: impl Display, called: Called) -> Result<(), GpuError> {
    outcome(called).map_err(|failure| failure.error(what))
}

impl Failure {
    fn of(code: u32) -> Self {
        let ask = |function: unsafe fn(u32, *mut *const std::ffi::c_char) -> Called| {
            let mut found = std::ptr::null();
            // SAFETY: the driver sets `found` to a constant string, or to null for a code that it does not know.
            unsafe {
                let _ = function(code, &raw mut found);
                text(found)
            }
        };
        Self {
            code,
            name: ask(cu::cuGetErrorName).unwrap_or_else(|| format!("CUDA error {code}")),
            text: ask(cu::cuGetErrorString).unwrap_or_else(|| "the driver has no text for it".into()),
            advice: advice(code),
        }
    }

    /// The error, once it is known what was tried.
    pub(crate) fn error(self, what: impl Display) -> GpuError {
        GpuError::Driver {
            what: what.to_string(),
            name: self.name,
            text: self.text,
            advice: self.advice.to_owned(),
        }
    }

    /// The error with advice that fits the call better.
    pub(crate) fn advised(self, what: impl Display, advice: impl Display) -> GpuError {
        GpuError::Driver {
            what: what.to_string(),
            name: self.name,
            text: self.text,
            advice: format!("; {advice}"),
        }
    }

    /// Whether the context is dead from now on: CUDA answers every later call with the same error.
    pub(crate) fn kills_context(&self) -> bool {
        use CUresult::*;
        [
            CUDA_ERROR_DEINITIALIZED,
            CUDA_ERROR_DEVICE_UNAVAILABLE,
            CUDA_ERROR_ECC_UNCORRECTABLE,
            CUDA_ERROR_NVLINK_UNCORRECTABLE,
            CUDA_ERROR_CONTAINED,
            CUDA_ERROR_ILLEGAL_ADDRESS,
            CUDA_ERROR_LAUNCH_TIMEOUT,
            CUDA_ERROR_CONTEXT_IS_DESTROYED,
            CUDA_ERROR_ASSERT,
            CUDA_ERROR_HARDWARE_STACK_ERROR,
            CUDA_ERROR_ILLEGAL_INSTRUCTION,
            CUDA_ERROR_MISALIGNED_ADDRESS,
            CUDA_ERROR_INVALID_ADDRESS_SPACE,
            CUDA_ERROR_INVALID_PC,
            CUDA_ERROR_LAUNCH_FAILED,
            CUDA_ERROR_MPS_CLIENT_TERMINATED,
            CUDA_ERROR_EXTERNAL_DEVICE,
            CUDA_ERROR_UNKNOWN,
        ]
        .iter()
        .any(|result| is(self.code, *result))
    }
}

/// What to do about a result, starting with a separator.
fn advice(code: u32) -> &'static str {
    use CUresult::*;
    let all = [
        (CUDA_ERROR_NO_DEVICE, "; check nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (CUDA_ERROR_INVALID_DEVICE, "; nvidia-smi -L lists the GPUs"),
        (
            CUDA_ERROR_STUB_LIBRARY,
            "; the loader found CUDA's stub library: put the driver's libcuda.so.1 before it",
        ),
        (
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
            "; restart after the driver was updated",
        ),
        (
            CUDA_ERROR_SYSTEM_NOT_READY,
            "; start nvidia-fabricmanager or nvidia-persistenced",
        ),
        (
            CUDA_ERROR_DEVICE_UNAVAILABLE,
            "; another process holds the GPU exclusively, or it needs a reset",
        ),
        (
            CUDA_ERROR_OUT_OF_MEMORY,
            "; use less, or stop what else runs on the GPU",
        ),
        (
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            "; the driver is older than NVRTC: update it, or use an older NVRTC",
        ),
        (
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            "; the kernel was compiled for another GPU",
        ),
        (CUDA_ERROR_NOT_SUPPORTED, "; this GPU or driver cannot do it"),
        (
            CUDA_ERROR_NOT_PERMITTED,
            "; the system does not permit it: check the container's rights",
        ),
    ];
    all.iter()
        .find_map(|(result, advice)| is(code, *result).then_some(*advice))
        .unwrap_or("")
}
