//! CUDA's run-time compiler, as a program that is made, compiled and read.

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::nvrtcProgram;

use super::calls::{Missing, has_nvrtc, rtc, text};
use crate::error::GpuError;

/// A call that failed: NVRTC's number, 0 for a function that is missing.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) u32, &'static str);

/// `NVRTC_ERROR_COMPILATION`.
pub(crate) const COMPILATION: u32 = 6;

impl Failed {
    /// The error, once it is known what was tried.
    pub(crate) fn error(&self, what: impl std::fmt::Display) -> GpuError {
        let (name, text, advice) = match self {
            _ if !has_nvrtc() => (
                "no NVRTC".to_owned(),
                "libnvrtc.so.13 cannot be loaded".to_owned(),
                "; install it (pip: nvidia-cuda-nvrtc) and put its folder on LD_LIBRARY_PATH or into GPUVM_NVRTC",
            ),
            Self(0, function) => (
                "missing function".to_owned(),
                format!("NVRTC has no {function}"),
                "; install a newer one",
            ),
            Self(code, function) => (format!("{function} gave {code}"), rtc::error_text(*code), ""),
        };
        GpuError::Driver {
            what: what.to_string(),
            name,
            text,
            advice: advice.to_owned(),
        }
    }
}

fn done(function: &'static str, called: Result<u32, Missing>) -> Result<(), Failed> {
    match called {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failed(code, function)),
        Err(Missing(function)) => Err(Failed(0, function)),
    }
}

/// The version of the run-time compiler, major and minor.
///
/// # Errors
/// [`GpuError::Driver`] when NVRTC cannot be loaded.
pub fn version() -> Result<(u32, u32), GpuError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: out-values of the right types.
    done("nvrtcVersion", unsafe {
        rtc::nvrtcVersion(&raw mut major, &raw mut minor)
    })
    .map_err(|failed| failed.error("compile kernels"))?;
    Ok((major.max(0) as u32, minor.max(0) as u32))
}

/// The architectures that NVRTC compiles for: 90 for compute capability 9.0.
pub(crate) fn architectures() -> Result<Vec<u32>, GpuError> {
    let ask = || -> Result<Vec<c_int>, Failed> {
        let mut count = 0;
        // SAFETY: an out-value; then room for as many integers as it said.
        unsafe {
            done(
                "nvrtcGetNumSupportedArchs",
                rtc::nvrtcGetNumSupportedArchs(&raw mut count),
            )?;
            let mut archs = vec![0; count.max(0) as usize];
            done(
                "nvrtcGetSupportedArchs",
                rtc::nvrtcGetSupportedArchs(archs.as_mut_ptr()),
            )?;
            Ok(archs)
        }
    };
    let archs = ask().map_err(|failed| failed.error("ask for NVRTC's architectures"))?;
    Ok(archs.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect())
}

/// A program of NVRTC's.
pub(crate) struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { rtc::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn c_string(bytes: &str) -> CString {
    // A zero byte ends the text for a C compiler anyway.
    let end = bytes.find('\0').unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

impl Program {
    /// `source`, shown as `name` in messages, with headers as (name, text).
    pub(crate) fn new(source: &str, name: &str, headers: &[(String, String)]) -> Result<Self, Failed> {
        let (source, name) = (c_string(source), c_string(name));
        let texts: Vec<CString> = headers.iter().map(|(_, text)| c_string(text)).collect();
        let names: Vec<CString> = headers.iter().map(|(name, _)| c_string(name)).collect();
        let mut program: nvrtcProgram = ptr::null_mut();
        // SAFETY: all strings live through the call, which copies them, and the counts are those of the vectors.
        done("nvrtcCreateProgram", unsafe {
            rtc::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                pointers(&texts).as_ptr(),
                pointers(&names).as_ptr(),
            )
        })?;
        Ok(Self(program))
    }

    /// Asks for the lowered name of a kernel or, after `&`, of a variable, which also keeps it.
    pub(crate) fn keep(&self, name: &str) -> Result<(), Failed> {
        let name = c_string(name);
        // SAFETY: a live program, and a string that lives through the call, which copies it.
        done("nvrtcAddNameExpression", unsafe {
            rtc::nvrtcAddNameExpression(self.0, name.as_ptr())
        })
    }

    /// Compiles.
    pub(crate) fn compile(&self, options: &[String]) -> Result<(), Failed> {
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        // SAFETY: a live program, and strings that live through the call.
        done("nvrtcCompileProgram", unsafe {
            rtc::nvrtcCompileProgram(self.0, options.len() as c_int, pointers(&options).as_ptr())
        })
    }

    /// What the compiler said.
    pub(crate) fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: an out-value, then room for as many bytes as it said.
        let log = unsafe {
            let size = rtc::nvrtcGetProgramLogSize(self.0, &raw mut bytes);
            let mut log = vec![0u8; bytes];
            let got = rtc::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast());
            if size != Ok(0) || got != Ok(0) {
                return String::new();
            }
            log
        };
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        String::from_utf8_lossy(&log[..end]).trim().to_owned()
    }

    /// The name in the binary of what was kept as `name`.
    pub(crate) fn lowered(&self, name: &str) -> Result<String, Failed> {
        let name = c_string(name);
        let mut lowered = ptr::null();
        // SAFETY: a compiled program; the string that it gives lives as long as the program, which is longer than this call.
        unsafe {
            done(
                "nvrtcGetLoweredName",
                rtc::nvrtcGetLoweredName(self.0, name.as_ptr(), &raw mut lowered),
            )?;
            Ok(text(lowered).unwrap_or_default())
        }
    }

    /// The binary, or PTX with its zero byte when `ptx`.
    pub(crate) fn image(&self, ptx: bool) -> Result<Vec<u8>, Failed> {
        let mut bytes = 0;
        // SAFETY: a compiled program; an out-value, then room for as many bytes as it said.
        unsafe {
            match ptx {
                true => done("nvrtcGetPTXSize", rtc::nvrtcGetPTXSize(self.0, &raw mut bytes))?,
                false => done("nvrtcGetCUBINSize", rtc::nvrtcGetCUBINSize(self.0, &raw mut bytes))?,
            }
            let mut image = vec![0u8; bytes];
            match ptx {
                true => done("nvrtcGetPTX", rtc::nvrtcGetPTX(self.0, image.as_mut_ptr().cast()))?,
                false => done("nvrtcGetCUBIN", rtc::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()))?,
            }
            Ok(image)
        }
    }
}
