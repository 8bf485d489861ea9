"""Kernels and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import Shape, described, if_given, seconds, whole
from ._elastic import ElasticBuffer
from ._memory import Array, Buffer
from .errors import ArgumentError, LayoutError, StreamError

if TYPE_CHECKING:
    from ._vm import Vm

Dim = Union[int, Sequence[int]]


class Launch:
    """A launch in flight. Losing it does not stop the kernel; its error then comes out of :meth:`Vm.sync` or :meth:`Vm.close`."""

    def __init__(self, core: _core.Launch) -> None:
        self._core = core

    def sync(self) -> None:
        """Waits for the end and raises what went wrong. Ctrl-C stops the kernel."""
        self._core.sync()

    def wait(self, timeout: float) -> bool:
        """Waits at most ``timeout`` seconds: whether it has ended. Raises what went wrong. Ctrl-C stops the kernel."""
        return self._core.wait(seconds(timeout, "timeout"))

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._core.done

    def abort(self) -> None:
        """Asks the kernel to stop: ``failed()`` of its arrays becomes true, and accesses that miss return at once."""
        self._core.abort()


class Stream:
    """Launches of one stream run in order, those of different streams beside each other. Made by :meth:`Vm.stream`."""

    def __init__(self, core: _core.Stream) -> None:
        self._core = core


#: The largest number of 32 bits.
_WORD = (1 << 32) - 1


def _dims(value: Dim, what: str) -> Tuple[int, int, int]:
    lengths = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [value]
    if not 1 <= len(lengths) <= 3:
        raise LayoutError(f"{what} is {value!r}: it has one to three lengths")
    x, y, z = (whole(length, f"a length of {what}", 1, _WORD, LayoutError) for length in [*lengths, 1, 1][:3])
    return x, y, z


def _argument(vm: "Vm", place: int, value: Any) -> Any:
    """A value as the core takes it."""
    if isinstance(value, Array):
        value._notice()
    if isinstance(value, (Array, Buffer, ElasticBuffer)):
        return value._core
    if isinstance(value, np.generic):
        # Typed exactly, as its name says.
        return described(value.dtype, f"argument {place + 1}"), value.tobytes()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, np.ndarray):
        raise ArgumentError(f"argument {place + 1} is a NumPy array: make it vm.array(...), paged, or vm.buffer(...), plain memory")
    interface = cuda_memory(vm, value, f"argument {place + 1}")
    if interface is None:
        return value
    return described(np.dtype(interface["typestr"]), f"argument {place + 1}"), interface["data"][0], value, interface["stream"]


#: What DLPack calls the memory of an NVIDIA GPU.
_CUDA = 2


def cuda_memory(vm: "Vm", value: Any, what: str) -> Optional[Dict[str, Any]]:
    """What another library's memory of the Vm's GPU says of itself by ``__cuda_array_interface__``: ``stream`` is the one that writes it, or 0; none of other
    objects."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    if vm.simulated:
        raise ArgumentError(f"{what}: memory of an NVIDIA GPU, and the Vm's GPU is simulated")
    kind, ordinal = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (_CUDA, None)
    if kind == _CUDA and None not in (ordinal, vm._machine["ordinal"]) and ordinal != vm._machine["ordinal"]:
        raise ArgumentError(f"{what}: memory of cuda:{ordinal}, and the Vm's GPU is cuda:{vm._machine['ordinal']}: copy it there")
    if interface.get("strides") is not None:
        raise LayoutError(f"{what}: memory with strides: make it contiguous")
    stream = interface.get("stream")
    if stream == 0:
        raise StreamError(f"{what}: its stream is 0, of which __cuda_array_interface__ does not say which default stream it is: 1 is the legacy one, 2 the thread's")
    return {**interface, "stream": stream or 0}


class RawStream:
    """A stream of CUDA's by its handle."""

    def __init__(self, raw: int) -> None:
        self._raw = raw

    def __cuda_stream__(self) -> Tuple[int, int]:
        return 0, self._raw


def by_handle(stream: Any) -> Any:
    """A stream as launches take it: a whole number is its handle."""
    if not isinstance(stream, int) or isinstance(stream, bool):
        return stream
    return RawStream(whole(stream, "stream", 0, (1 << 64) - 1, ArgumentError))


class _Configured:
    """A kernel with its shape: ``kernel[grid, block]``."""

    def __init__(self, kernel: "Kernel", grid: Dim, block: Dim, shared: int) -> None:
        self._kernel, self._grid, self._block, self._shared = kernel, grid, block, shared

    def __call__(
        self,
        *args: Any,
        stream: Any = None,
        thread_spans: int = 0,
        warp_spans: int = 0,
        deadline: Optional[float] = None,
    ) -> Launch:
        """Launches it, as :meth:`Kernel.launch` does."""
        return self._kernel.launch(
            self._grid,
            self._block,
            *args,
            shared=self._shared,
            stream=stream,
            thread_spans=thread_spans,
            warp_spans=warp_spans,
            deadline=deadline,
        )


class Kernel:
    """A kernel. ``kernel[grid, block](a, b, 3)`` launches it, and so does :meth:`launch`.

    Arguments: :class:`Array` for ``gpuvm::array<T>``, :class:`Buffer` and :class:`ElasticBuffer` for ``T*``,
    numbers for numbers. A number of Python's own becomes
    what the parameter is, if it fits; a NumPy scalar must have exactly the parameter's type. On an NVIDIA GPU an object with
    ``__cuda_array_interface__`` is a ``T*``, too; the launch runs behind what the stream that it names has.
    """

    def __init__(self, vm: "Vm", name: str, core: _core.Kernel) -> None:
        self._vm, self._name, self._core = vm, name, core
        self._parameters = len(core.parameters)

    @property
    def name(self) -> str:
        """Its name, as it was asked for."""
        return self._name

    @property
    def parameters(self) -> List[str]:
        """Types of its parameters, as the compiler spells them."""
        return self._core.parameters

    @property
    def at_home(self) -> Optional[str]:
        """Of a kernel that came as PTX: why its launches use all pages at their home, at the link's speed, if they do. An instruction of its
        accesses memory and cannot look pages up, such as a bulk copy."""
        return self._core.at_home

    def __getitem__(self, shape: Any) -> _Configured:
        if not isinstance(shape, tuple) or not 2 <= len(shape) <= 3:
            raise LayoutError(f"kernel `{self._name}` is launched as kernel[grid, block](...), or kernel[grid, block, shared_bytes](...)")
        return _Configured(self, shape[0], shape[1], shape[2] if len(shape) == 3 else 0)

    def launch(
        self,
        grid: Dim,
        block: Dim,
        *args: Any,
        shared: int = 0,
        stream: Any = None,
        thread_spans: int = 0,
        warp_spans: int = 0,
        deadline: Optional[float] = None,
    ) -> Launch:
        """Enqueues a launch of ``grid`` blocks of ``block`` threads and returns at once.

        ``shared``: bytes of dynamic shared memory. ``stream``: a :class:`Stream`, or one of
        another library with ``__cuda_stream__``, or its handle, a whole number; none: launches run in order. ``thread_spans``,
        ``warp_spans``: pages that a thread, or a warp together, holds at once, so that the launch is refused where frames are too few.
        ``deadline``: seconds after which the kernel is stopped.
        """
        shape: Shape = {
            "grid": _dims(grid, "grid"),
            "block": _dims(block, "block"),
            "shared": whole(shared, "shared", 0, _WORD),
            "thread_spans": whole(thread_spans, "thread_spans"),
            "warp_spans": whole(warp_spans, "warp_spans"),
            "deadline": if_given(seconds, deadline, "deadline"),
        }
        given = [_argument(self._vm, place, value) for place, value in enumerate(args)]
        on = stream._core if isinstance(stream, Stream) else by_handle(stream)
        return Launch(self._core.launch(shape, given, on))

    def __repr__(self) -> str:
        return f"<gpuvm.Kernel {self._name!r}>"


class Module:
    """A compiled source: ``module["name"]`` is a kernel that was named when it was compiled."""

    def __init__(self, vm: "Vm", core: _core.Module) -> None:
        self._vm, self._core = vm, core

    def __getitem__(self, name: str) -> Kernel:
        return Kernel(self._vm, name, self._core.kernel(name))
