//! NVIDIA GPUs. This version only looks whether their libraries are there, so that an error can say what is missing;
//! the device library compiles for them already, but no back end launches it yet.

/// What of CUDA this machine has. Looking loads the libraries, by `cudarc`, and needs none of them at build time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// The driver's library, `libcuda`.
    pub driver: bool,
    /// The run-time compiler's library, `libnvrtc`.
    pub nvrtc: bool,
}

/// Looks for CUDA's libraries.
pub fn presence() -> Presence {
    Presence {
        driver: driver_is_present(),
        nvrtc: nvrtc_is_present(),
    }
}

fn driver_is_present() -> bool {
    // SAFETY: it opens the library and closes nothing; loading libcuda runs its initialisers only.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

fn nvrtc_is_present() -> bool {
    // SAFETY: as for the driver's library.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}
