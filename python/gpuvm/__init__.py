"""Arrays larger than GPU memory, for CUDA kernels: GPU threads serve their own page faults.

>>> import gpuvm, numpy
>>> table = numpy.arange(40_000, dtype=numpy.float32).reshape(10_000, 4)
>>> with gpuvm.Vm(memory="64KiB", gpu="sim") as vm:
...     print(gpuvm.ops.take(vm.array(table, read_only=True), [2, 9_999]).numpy())
[[8.0000e+00 9.0000e+00 1.0000e+01 1.1000e+01]
 [3.9996e+04 3.9997e+04 3.9998e+04 3.9999e+04]]
"""

from . import _nvrtc, errors, ops
from ._core import __version__
from ._elastic import ElasticBuffer, Grown
from ._formats import Columns, Part, Tensors, feather, safetensors
from ._kernel import Kernel, Launch, Module, Stream
from ._memory import Array, Buffer
from ._slots import SlotCache
from ._tiered import Moved, TieredBuffer
from ._vm import Resized, Vm, settings
from .errors import Error

_nvrtc.name_folders()

__all__ = [
    "Array",
    "Buffer",
    "Columns",
    "ElasticBuffer",
    "Error",
    "Grown",
    "Kernel",
    "Launch",
    "Module",
    "Moved",
    "Part",
    "Resized",
    "SlotCache",
    "Stream",
    "Tensors",
    "TieredBuffer",
    "Vm",
    "__version__",
    "errors",
    "feather",
    "ops",
    "safetensors",
    "settings",
]
