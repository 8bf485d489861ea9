"""What can go wrong, typed. Every message names the thing and the cause, and says what to do.

All of these are :class:`Error`; where users would expect one of Python's own exceptions, they are that as well.
"""


class Error(Exception):
    """Anything that gpuvm reports."""


class SettingError(Error, ValueError):
    """A setting that cannot be: of a Vm, of an array, of a launch."""


class UnavailableError(Error):
    """A GPU or a transport that this machine or this build cannot drive."""


class GpuError(Error):
    """The GPU refused, or a kernel failed."""


class CompileError(GpuError):
    """Kernel source that does not compile, with the compiler's log; or no compiler."""


class KernelNotFoundError(GpuError, LookupError):
    """No kernel of this name; the message has those that are there."""


class LaunchError(GpuError, ValueError):
    """A grid, a block, shared memory or an allocation that this GPU cannot have."""


class OutOfMemoryError(GpuError, MemoryError):
    """GPU memory, or host memory for what leaves it, is short. Nothing was changed: the same may work when others hold less."""


class NicError(Error):
    """The NIC refused."""


class NodeError(Error):
    """A memory node refused, or cannot be reached."""


class RegionError(Error, ValueError):
    """A description of an array that cannot be, or an access that the array does not take."""


class OverlapError(RegionError):
    """Two arrays over the same memory or file, not both read-only."""


class LayoutError(RegionError):
    """Memory that an array cannot have in place: not contiguous, read-only, of another byte order."""


class DtypeError(Error, TypeError):
    """Elements of a type that cannot be here."""


class FileError(Error, OSError):
    """A file that cannot be read, mapped or written."""


class OutOfRangeError(Error, IndexError):
    """An index or a slice past the end."""


class ArgumentError(Error, TypeError):
    """Arguments that do not fit the kernel."""


class ArgumentRangeError(ArgumentError, OverflowError):
    """A number that does not fit the kernel's parameter."""


class BeyondMaxError(Error, ValueError):
    """An elastic buffer that would be longer than it was made for."""


class PausedError(Error):
    """An elastic buffer whose contents are in host memory: resume its tag first."""


class SpansError(Error, ValueError):
    """A launch that may hold more pages at once than there are frames."""


class SlotsError(Error):
    """Calls of a slot cache that needed more records than it has room for, or ran beside each other."""


class FaultError(Error):
    """An access of a kernel, or a flush, could not be served."""


class IndexFaultError(FaultError, IndexError):
    """A kernel's index at or past an array's end."""


class StoppedError(Error):
    """A launch that was stopped before its end: what it wrote is incomplete."""


class LostError(Error):
    """The GPU is lost, or the Vm cannot be used any more."""


class ClosedError(Error, ValueError):
    """Something that was closed, or whose Vm was."""


class ForkError(Error):
    """Something that another process made, of which this one is a fork."""


class StreamError(Error, NotImplementedError):
    """Another library's stream that launches cannot go on: the simulated GPU has none, and a GPU takes those of its primary context."""
