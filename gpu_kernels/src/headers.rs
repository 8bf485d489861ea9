//! The device headers, embedded so that an installed program can compile kernels without its source tree.

include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// Every header of the device library as (path for `#include`, text).
pub fn headers() -> &'static [(&'static str, &'static str)] {
    HEADERS
}
