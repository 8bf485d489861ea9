"""Numba's CUDA kernels over arrays larger than GPU memory. No line of a kernel or of its launch is changed:

>>> import gpuvm, gpuvm.numba                                                                        # doctest: +SKIP
>>> axpy[blocks, 256](x, y, 2.0)              # axpy: @cuda.jit, of numba-cuda; x, y: gpuvm arrays   # doctest: +SKIP

Who imports this module has a launch with a :class:`gpuvm.Array` among its arguments compiled by Numba as ever, with the options of its
``@cuda.jit``, and its PTX rewritten and launched by :meth:`gpuvm.Vm.load_ptx`. In the kernel it is an array of Numba's, contiguous, with its
shape; a read-only one is refused by Numba's compiler where it is stored to. All other launches go Numba's way, whose caches hold its own
kernels alone; rewritten ones are kept with the Vm.

The launch is on the stream that it names. Its error, if any, comes out of the :class:`gpuvm.Launch` that is returned, or of
:meth:`gpuvm.Vm.sync`; exceptions of kernels with ``debug=True`` are not raised. On the simulated GPU kernels are compiled for sm_80, without
a GPU: it takes the packages ``numba-cuda``, ``nvidia-nvvm``, ``nvidia-cuda-nvrtc`` and ``nvidia-cuda-runtime``.
"""

from __future__ import annotations

import inspect
import math
import re
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np
from numba import cuda
from numba.cuda.dispatcher import ForAll, _LaunchConfiguration

from ._kernel import Kernel, Launch
from ._memory import Array, Buffer
from ._vm import Vm
from .errors import ArgumentError, LayoutError, UnavailableError

__all__: List[str] = []

#: Options of ``@cuda.jit`` that the PTX depends on.
_OPTIONS = [name for name in ("debug", "lineinfo", "opt", "fastmath", "launch_bounds") if name in inspect.signature(cuda.compile_ptx).parameters]


class _Stream:
    """A stream of Numba's."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        handle = getattr(stream, "handle", stream)
        self._raw = int(getattr(handle, "value", handle) or 0)

    def __cuda_stream__(self) -> Tuple[int, int]:
        return 0, self._raw


def _typed(dispatcher: Any, place: int, value: Any) -> Any:
    """The type that Numba compiles for."""
    if isinstance(value, (Array, Buffer)):
        alike = np.empty((1,) * value.ndim, value.dtype)
        alike.flags.writeable = not (isinstance(value, Array) and value.read_only)
        return dispatcher.typeof_pyval(alike)
    if isinstance(value, np.ndarray):
        raise ArgumentError(
            f"argument {place + 1} is a NumPy array beside paged ones: make it vm.array(...), vm.buffer(...) or numba.cuda.to_device(...)"
        )
    return dispatcher.typeof_pyval(value)


def _types(dispatcher: Any, args: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Types of the kernel's parameters: of the arguments, or where it was declared with types, of what takes them."""
    given = tuple(_typed(dispatcher, place, value) for place, value in enumerate(args))
    if dispatcher._can_compile and not dispatcher.specialized:
        return given
    fitting = [
        wanted
        for wanted in map(tuple, dispatcher.overloads)
        if len(wanted) == len(given) and all(dispatcher.typingctx.can_convert(*pair) is not None for pair in zip(given, wanted))
    ]
    if not fitting:
        raise ArgumentError(f"kernel `{dispatcher.__name__}` is declared for other types than {given}")
    return max(fitting, key=lambda wanted: sum(one == other for one, other in zip(given, wanted)))


def _flat(kind: Any, value: Any) -> Iterator[Any]:
    """What Numba hands to a kernel for a parameter."""
    if isinstance(value, (Array, Buffer)):
        yield from _array(value.shape, None, value.dtype.itemsize, value)
    elif isinstance(value, tuple):
        for one, part in zip(kind, value):
            yield from _flat(one, part)
    elif hasattr(value, "__cuda_array_interface__"):
        interface = value.__cuda_array_interface__
        # Who made it may write it still, as Numba's own launches take it.
        if interface.get("stream") is not None:
            cuda.external_stream(interface["stream"]).synchronize()
        address = ("u", 1, 1, "bytes"), interface["data"][0] or 0, value
        yield from _array(interface["shape"], interface.get("strides"), np.dtype(interface["typestr"]).itemsize, address)
    else:
        yield from _number(kind, value)


def _array(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], itemsize: int, data: Any) -> Iterator[Any]:
    if strides is None:
        strides = tuple(itemsize * math.prod(shape[place + 1 :]) for place in range(len(shape)))
    # Who owns the memory, which kernels do not look at; its length; the address, which is the only pointer.
    yield from (np.uint64(0), np.uint64(0), np.int64(math.prod(shape)), np.int64(itemsize), data)
    yield from map(np.int64, (*shape, *strides))


def _number(kind: Any, value: Any) -> Iterator[Any]:
    try:
        dtype = np.dtype(str(kind))
    except TypeError:
        raise UnavailableError(f"an argument of Numba's type {kind} is not taken by launches over paged arrays") from None
    number = dtype.type(value)
    if isinstance(number, np.complexfloating):
        yield from (number.real, number.imag)
    else:
        yield number


def _loaded(vm: Vm, dispatcher: Any, types: Tuple[Any, ...]) -> Kernel:
    name, options = dispatcher.__name__, dispatcher.targetoptions
    if options.get("link"):
        raise UnavailableError(f"kernel `{name}` is linked with code that is no PTX of its own, which launches over paged arrays are not")
    if options.get("extensions"):
        raise UnavailableError(f"kernel `{name}` has extensions for its arguments, which launches over paged arrays do not call")
    target = (8, 0) if vm.simulated else cuda.get_current_device().compute_capability
    wanted = {option: options[option] for option in _OPTIONS if options.get(option) is not None}
    ptx, _ = cuda.compile_ptx(dispatcher.py_func, types, cc=tuple(target), **wanted)
    if "cudaCGGetIntrinsicHandle" in ptx:
        raise UnavailableError(f"kernel `{name}` is launched cooperatively, which launches over paged arrays are not")
    (entry,) = re.findall(r"\.entry\s+([\w$]+)", ptx)
    return vm.load_ptx(ptx.encode(), name=f"{name}.ptx")[entry]


def _vm(dispatcher: Any, args: Tuple[Any, ...]) -> Optional[Vm]:
    arrays = [value for value in args if isinstance(value, Array)]
    if not arrays:
        return None
    vm = arrays[0].vm
    if any(array.vm is not vm for array in arrays):
        raise ArgumentError(f"kernel `{dispatcher.__name__}`: its arrays belong to several Vms")
    return vm


def _launch(vm: Vm, dispatcher: Any, config: Any, args: Tuple[Any, ...]) -> Launch:
    types = _types(dispatcher, args)
    key = ("numba", dispatcher, types)
    kernel = vm._kernels.get(key)
    if kernel is None:
        # Two threads may both compile: the first one's stays.
        kernel = vm._kernels.setdefault(key, _loaded(vm, dispatcher, types))
    given = [one for kind, value in zip(types, args) for one in _flat(kind, value)]
    if len(given) != kernel._parameters:
        raise LayoutError(f"kernel `{dispatcher.__name__}` has {kernel._parameters} parameters in PTX, and {len(given)} were made of its arguments")
    stream = None if vm.simulated else _Stream(config.stream)
    return kernel.launch(config.griddim, config.blockdim, *given, shared=config.sharedmem, stream=stream)


_plain, _plain_for_all = _LaunchConfiguration.__call__, ForAll.__call__


def _call(self: Any, *args: Any) -> Any:
    vm = _vm(self.dispatcher, args)
    return _plain(self, *args) if vm is None else _launch(vm, self.dispatcher, self, args)


def _call_for_all(self: Any, *args: Any) -> Any:
    if _vm(self.dispatcher, args) is None or self.ntasks == 0:
        return _plain_for_all(self, *args)
    # Numba asks the driver about its own kernel.
    threads = self.thread_per_block or 256
    return self.dispatcher[-(-self.ntasks // threads), threads, self.stream, self.sharedmem](*args)


_LaunchConfiguration.__call__ = _call
ForAll.__call__ = _call_for_all
