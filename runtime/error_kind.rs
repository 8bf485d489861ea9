//! Which kind of error each is, for faces in other languages: the one table from which C has its codes and Python its classes.

use gpuvm_gpu::GpuError;

use crate::{error::Error, fault::FaultKind, slot_fault::SlotFault};

/// Hands the table to a macro: of each kind what it is, its name, C's `gpuvm_code` without its prefix, and the class of Python's
/// `gpuvm.errors`.
#[doc(hidden)]
#[macro_export]
macro_rules! error_kinds {
    ($rows:ident) => {
        $rows! {
            "GPU or host memory is short.", OutOfMemory, OutOfMemory, "OutOfMemoryError";
            "A setting that cannot be.", Setting, InvalidValue, "SettingError";
            "A setting that there is not.", NoSetting, InvalidValue, "SettingError";
            "A GPU, a transport or a feature that is not here.", Unavailable, Unavailable, "UnavailableError";
            "A thread that the system does not start.", Thread, OutOfMemory, "UnavailableError";
            "The GPU refused.", Gpu, Gpu, "GpuError";
            "No compiler, or none that can be used.", Compiler, Unavailable, "CompileError";
            "Kernel source that does not compile.", Compile, Compile, "CompileError";
            "No such kernel.", NoKernel, NoKernel, "KernelNotFoundError";
            "A launch or an allocation that the GPU cannot have.", Launch, Gpu, "LaunchError";
            "A launch that its caller's function did not make.", NotEnqueued, Callback, "GpuError";
            "A stream that launches cannot go on.", Stream, InvalidValue, "GpuError";
            "The NIC refused.", Nic, Nic, "NicError";
            "A memory node refused, or cannot be reached.", Node, Node, "NodeError";
            "A region that cannot be, or does not take what was asked of it.", Region, Region, "RegionError";
            "Bytes that are not a multiple of the element size.", PartOfAnElement, PartOfAnElement, "RegionError";
            "A file that cannot be read or written.", File, File, "FileError";
            "Two regions over the same memory or file.", Overlap, Overlap, "OverlapError";
            "Elements past the end.", OutOfRange, OutOfRange, "OutOfRangeError";
            "Arguments that do not fit the kernel.", Arguments, Arguments, "ArgumentError";
            "Memory of another GPU.", OtherGpu, OtherGpu, "ArgumentError";
            "More spans than the frames can carry.", Spans, Spans, "SpansError";
            "An access of a kernel, or a flush, could not be served.", Fault, Fault, "FaultError";
            "A kernel's index past an array's end.", IndexFault, Fault, "IndexFaultError";
            "A launch that was stopped before its end.", Stopped, Stopped, "StoppedError";
            "The GPU is lost, or the `Vm` cannot be used any more.", Lost, Lost, "LostError";
            "Writes of kernels may be lost with a GPU.", WritesLost, WritesLost, "LostError";
            "A page without a good copy.", Damaged, Damaged, "Error";
            "Memory that was lent or borrowed is still used.", StillUsed, StillUsed, "Error";
            "A page that a GPU alone subscribes to.", LastSubscriber, InvalidValue, "Error";
            "An elastic buffer would be longer than it may be.", BeyondMax, BeyondMax, "BeyondMaxError";
            "Records that a slot cache has no room for, or calls of it beside each other.", Slots, InvalidValue, "SlotsError";
            "An elastic buffer whose contents are in host memory.", Paused, Paused, "PausedError";
        }
    };
}

macro_rules! kinds {
    ($($what:literal, $kind:ident, $code:ident, $class:literal;)*) => {
        /// What kind of error an [`Error`] is: programs that tell few cases apart match this.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $(#[doc = $what] $kind,)*
        }

        impl ErrorKind {
            /// The class of Python's `gpuvm.errors`.
            #[doc(hidden)]
            pub fn python_class(self) -> &'static str {
                match self { $(Self::$kind => $class,)* }
            }
        }
    };
}

error_kinds!(kinds);

impl Error {
    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            error if error.is_out_of_memory() => ErrorKind::OutOfMemory,
            Self::Setting { .. } | Self::Terms { .. } => ErrorKind::Setting,
            Self::NoSetting { .. } => ErrorKind::NoSetting,
            Self::Unavailable { .. } | Self::DeviceCode { .. } => ErrorKind::Unavailable,
            Self::Thread { .. } => ErrorKind::Thread,
            Self::Gpu { source, .. } => of_gpu(source),
            Self::NotMoved { source, .. } => source.kind(),
            Self::Nic { .. } => ErrorKind::Nic,
            Self::Node { .. } => ErrorKind::Node,
            Self::Region { .. } => ErrorKind::Region,
            Self::PartOfAnElement { .. } => ErrorKind::PartOfAnElement,
            Self::Data { .. }
            | Self::File { .. }
            | Self::FileHome { .. }
            | Self::Sync { .. }
            | Self::Timeline { .. } => ErrorKind::File,
            Self::Overlap { .. } => ErrorKind::Overlap,
            Self::OutOfRange { .. }
            | Self::Slots {
                fault: SlotFault::NoSuchRecord { .. },
                ..
            } => ErrorKind::OutOfRange,
            Self::Slots { .. } => ErrorKind::Slots,
            Self::Arguments { .. } => ErrorKind::Arguments,
            Self::OtherGpu { .. } => ErrorKind::OtherGpu,
            Self::Spans { .. } => ErrorKind::Spans,
            Self::Fault { fault, .. } => match fault.kind {
                FaultKind::OutOfRange { .. } | FaultKind::SpanOutOfRange { .. } => ErrorKind::IndexFault,
                _ => ErrorKind::Fault,
            },
            Self::Stopped { .. } => ErrorKind::Stopped,
            Self::Poisoned { .. } | Self::GpuLost { .. } => ErrorKind::Lost,
            Self::WritesLost { .. } => ErrorKind::WritesLost,
            Self::NoReplica { .. } | Self::Damaged { .. } => ErrorKind::Damaged,
            Self::StillWritten { .. } | Self::StillReached { .. } => ErrorKind::StillUsed,
            Self::LastSubscriber { .. } => ErrorKind::LastSubscriber,
            Self::BeyondMax { .. } => ErrorKind::BeyondMax,
            Self::Paused { .. } => ErrorKind::Paused,
            Self::OutOfHandles { .. } | Self::Tenants { .. } | Self::FileCache { .. } | Self::HostMemory { .. } => {
                ErrorKind::OutOfMemory
            }
        }
    }
}

fn of_gpu(error: &GpuError) -> ErrorKind {
    match error {
        GpuError::OutOfMemory { .. } | GpuError::OutOfHostMemory { .. } => ErrorKind::OutOfMemory,
        GpuError::Compile { .. } => ErrorKind::Compile,
        GpuError::CompilerMissing { .. } | GpuError::CompilerUnusable { .. } => ErrorKind::Compiler,
        GpuError::KernelNotFound { .. } => ErrorKind::NoKernel,
        GpuError::Unsupported { .. } | GpuError::FileAccess { .. } => ErrorKind::Unavailable,
        GpuError::BadArguments { .. } => ErrorKind::Arguments,
        GpuError::NotEnqueued { .. } => ErrorKind::NotEnqueued,
        GpuError::BadStream { .. } => ErrorKind::Stream,
        GpuError::LaunchConfig { .. } | GpuError::BadAllocation { .. } => ErrorKind::Launch,
        _ => ErrorKind::Gpu,
    }
}
