//! The device headers, embedded so that an installed program can compile kernels without its source tree.

include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// Every device header as (path for `#include`, text): the device library under `gpuvm/` and the simulated GPU's
/// language emulation under `gpuvm_sim/`.
pub fn headers() -> &'static [(&'static str, &'static str)] {
    HEADERS
}
