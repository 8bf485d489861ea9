//! The arguments of a launch.

use std::ffi::c_void;

use crate::api::KernelInfo;
use crate::error::GpuError;

/// Argument bytes of a launch, each parameter aligned, and a pointer to each.
pub struct Arguments {
    /// The bytes; only reached through `pointers`.
    _bytes: Vec<u128>,
    pointers: Vec<*const c_void>,
}

// SAFETY: the pointers point into `_bytes`, which is never written after construction.
unsafe impl Send for Arguments {}
// SAFETY: as for Send; kernels copy their parameters out of it.
unsafe impl Sync for Arguments {}

impl Arguments {
    /// Lays out `args` for parameters of the given sizes and alignments.
    pub fn new(kernel: &KernelInfo, args: &[&[u8]]) -> Result<Self, GpuError> {
        let bad = |cause| GpuError::BadArguments {
            kernel: kernel.name.clone(),
            cause,
        };
        let params = &kernel.params;
        if args.len() != params.len() {
            return Err(bad(format!(
                "it takes {} arguments, {} were given",
                params.len(),
                args.len()
            )));
        }
        let mut offsets = Vec::with_capacity(args.len());
        let mut end = 0usize;
        for (number, (arg, param)) in args.iter().zip(params).enumerate() {
            if arg.len() != param.bytes as usize {
                return Err(bad(format!(
                    "argument {number} is {} bytes, but parameter {number} is a `{}` of {} bytes",
                    arg.len(),
                    param.type_name,
                    param.bytes
                )));
            }
            end = end.next_multiple_of(param.align.max(1) as usize);
            offsets.push(end);
            end += arg.len();
        }
        let align = params.iter().map(|p| p.align).max().unwrap_or(1).max(16) as usize;
        let mut bytes = vec![0u128; (end + align).div_ceil(16)];
        let base = bytes.as_mut_ptr().cast::<u8>();
        let skip = base.align_offset(align);
        let pointers = offsets.into_iter().zip(args).map(|(offset, arg)| {
            // SAFETY: skip < align and offset + len <= end, so the copy stays inside `bytes`; source and target are distinct.
            let place = unsafe {
                let place = base.add(skip + offset);
                std::ptr::copy_nonoverlapping(arg.as_ptr(), place, arg.len());
                place
            };
            place.cast_const().cast()
        });
        Ok(Self {
            pointers: pointers.collect(),
            _bytes: bytes,
        })
    }

    /// What the kernel's entry takes.
    pub fn pointers(&self) -> *const *const c_void {
        self.pointers.as_ptr()
    }
}
