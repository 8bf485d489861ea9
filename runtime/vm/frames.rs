//! The frames of a GPU, as its handle tells of them and changes them.

use std::time::Duration;

use super::VmGpu;
use crate::{error::Result, frames::FrameAccess, gpu::Resized};

impl VmGpu {
    /// Number of frames of this GPU.
    pub fn frames(&self) -> u64 {
        u64::from(self.paged().frame_count())
    }

    /// Gives this GPU `bytes` bytes of frames, rounded down to whole units, while kernels run: see
    /// [`resize_frames_within`](Self::resize_frames_within). Frames that are to go have a second to leave.
    ///
    /// ```
    /// # use gpuvm::Vm;
    /// # fn main() -> Result<(), gpuvm::Error> {
    /// # let vm = Vm::builder().gpu(gpuvm::SimulatedGpu::new().workers(1)).frame_memory(1 << 20).frame_capacity(4 << 20).build()?;
    /// // Other libraries need memory for a while.
    /// vm.resize_frames(1 << 19)?;
    /// vm.trim(1 << 19);
    /// let resized = vm.resize_frames(4 << 20)?;
    /// println!("{} bytes of frames after {:?}", resized.bytes, resized.took);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`resize_frames_within`](Self::resize_frames_within).
    pub fn resize_frames(&self, bytes: u64) -> Result<Resized> {
        self.resize_frames_within(bytes, Duration::from_secs(1))
    }

    /// As [`resize_frames`](Self::resize_frames), with the time that frames have to empty. No kernel is stopped or waits. Pages in frames
    /// that go leave as others do that are evicted; pages that lanes hold stay, and so do frames for all spans of launches in flight:
    /// [`Resized::kept_bytes`]. The memory goes to whoever needs some next on this GPU ([`trim`](Self::trim) gives it to the
    /// driver). A unit is a handle of memory, 2 MiB on NVIDIA GPUs and 64 KiB on simulated ones, or one page if that is larger.
    ///
    /// A kernel of the runtime empties frames, and lanes that look for a frame help it. Kernels that look for none and leave the runtime's
    /// no place on the GPU for that time keep the frames. Frames that come are given to the pool in the same way; those that are not there
    /// in time come later, and until then the next change is refused.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) without [`VmBuilder::frame_capacity`](crate::VmBuilder::frame_capacity), and while frames of an
    /// earlier change come back; [`Error::Setting`](crate::Error::Setting) for less than a unit or more than the capacity; [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost).
    pub fn resize_frames_within(&self, bytes: u64, within: Duration) -> Result<Resized> {
        self.paged().resize_frames(bytes, within)
    }

    /// When memory is short those of low priority give it first: frames, and elastic buffers
    /// ([`ElasticBuffer::set_priority`](crate::ElasticBuffer::set_priority)). It holds for the next who is short.
    pub fn set_frame_priority(&self, priority: i32) {
        self.paged().set_frame_priority(priority);
    }

    /// Most frames that this GPU may have: those that it has, unless their number can change.
    pub fn frame_capacity(&self) -> u64 {
        u64::from(self.paged().frame_capacity())
    }

    /// Where the frames lie, and how the NICs reach them.
    pub fn frame_access(&self) -> FrameAccess {
        self.paged().frames().access()
    }
}
