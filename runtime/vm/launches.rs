//! Streams that others made, and launches that others enqueue.

use super::VmGpu;
use crate::{
    device_code::DeviceCode,
    error::Result,
    launch::LaunchConfig,
    launched::{Launch, StreamHandle},
    precompiled::{self, Precompiled, Use},
};

impl VmGpu {
    /// A stream that others made and use: launches on it run in its order. `stream` is a `CUstream` or `cudaStream_t` of this GPU's primary
    /// context, as CUDA's runtime, cudarc, CuPy and PyTorch make them; 0, 1 and 2 are CUDA's default streams.
    ///
    /// A launch runs behind what the stream had before, and who waits for the launch waits for that too: its deadline counts from its start.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] for a stream of another context, and on the simulated GPU.
    ///
    /// # Safety
    /// It is live, and stays so until launches on it have ended and the handle was dropped.
    pub unsafe fn borrow_stream(&self, stream: u64) -> Result<StreamHandle> {
        // SAFETY: passed on from the caller.
        unsafe { StreamHandle::borrowed(self.paged(), stream) }
    }

    /// What kernels of this GPU use of the device library, no more and no less. A program that compiles kernels itself while it runs
    /// defines `GPUVM_FEATURES` as its `features`, beside the headers of [`write_headers`](crate::write_headers).
    pub fn device_code(&self) -> DeviceCode {
        DeviceCode::with(self.paged().features())
    }

    /// A launch of a kernel that this library did not compile, such as one that nvcc compiled into the program: `enqueue` puts it on the
    /// stream, before this returns. It has the stream as CUDA knows it, if CUDA does, and for each of `uses` the bytes of what the kernel
    /// takes: a `gpuvm::array` ([`ArrayDesc`](crate::ArrayDesc)), a `gpuvm::broadcast` ([`BroadcastDesc`](crate::BroadcastDesc)), or a pointer, all of this launch alone. `name` is for messages, `code` says what the
    /// kernel was compiled with, and `config` what shape it has; its dynamic shared memory does not matter. `stream`: none for the GPU's
    /// default one.
    ///
    /// # Errors
    /// As [`crate::Kernel::launch`]; [`crate::Error::DeviceCode`] for a kernel that does not fit; [`crate::Error::Gpu`] with what `enqueue` says. Nothing runs any
    /// more after an error.
    ///
    /// # Safety
    /// `enqueue` enqueues nothing but kernels on that stream, which use memory as `uses` and `config` say, and were compiled with what
    /// `code` says. It calls nothing of this library, which would wait for itself.
    pub unsafe fn launch_by(
        &self,
        stream: Option<&StreamHandle>,
        (name, code): (&str, DeviceCode),
        config: &LaunchConfig,
        uses: &[Use<'_>],
        enqueue: impl FnOnce(Option<u64>, &[Vec<u8>]) -> std::result::Result<(), String>,
    ) -> Result<Launch> {
        let what = Precompiled {
            name,
            code,
            config,
            uses,
        };
        precompiled::launch(self.paged(), stream, &what, enqueue)
    }
}
