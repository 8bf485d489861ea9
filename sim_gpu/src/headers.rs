//! The CUDA language for the host's C++ compiler, embedded so that an installed program can compile kernels without its
//! source tree.

/// Every header of the language's emulation as (path for `#include`, text).
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("gpuvm_sim/atomics.h", include_str!("../include/gpuvm_sim/atomics.h")),
    ("gpuvm_sim/cuda.h", include_str!("../include/gpuvm_sim/cuda.h")),
    ("gpuvm_sim/math.h", include_str!("../include/gpuvm_sim/math.h")),
    ("gpuvm_sim/memory.h", include_str!("../include/gpuvm_sim/memory.h")),
    ("gpuvm_sim/runtime.h", include_str!("../include/gpuvm_sim/runtime.h")),
    ("gpuvm_sim/ptx.h", include_str!("../include/gpuvm_sim/ptx.h")),
    (
        "gpuvm_sim/ptx_arith.h",
        include_str!("../include/gpuvm_sim/ptx_arith.h"),
    ),
    (
        "gpuvm_sim/ptx_float.h",
        include_str!("../include/gpuvm_sim/ptx_float.h"),
    ),
    (
        "gpuvm_sim/ptx_types.h",
        include_str!("../include/gpuvm_sim/ptx_types.h"),
    ),
    ("gpuvm_sim/ptx_warp.h", include_str!("../include/gpuvm_sim/ptx_warp.h")),
    (
        "gpuvm_sim/tsan_hooks.cpp",
        include_str!("../include/gpuvm_sim/tsan_hooks.cpp"),
    ),
    ("gpuvm_sim/types.h", include_str!("../include/gpuvm_sim/types.h")),
    ("gpuvm_sim/warp.h", include_str!("../include/gpuvm_sim/warp.h")),
];
