"""Triton's kernels over arrays larger than GPU memory. No line of a kernel or of its launch is changed:

>>> import gpuvm, gpuvm.triton                                                                       # doctest: +SKIP
>>> add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)    # x, y, out: gpuvm arrays              # doctest: +SKIP

Who imports this module has a launch with a :class:`gpuvm.Array` among its arguments compiled by Triton as ever, and its PTX rewritten and
launched by :meth:`gpuvm.Vm.load_ptx`. All other launches go Triton's way. Triton's caches hold its own kernels alone; rewritten ones are
kept with the Vm. ``@triton.autotune`` and ``@triton.heuristics`` work: their keys tell arrays from tensors.

The launch is on the current stream of the framework, as Triton's own are, so it is in order with what PyTorch does there. Its error, if
any, comes out of the :class:`gpuvm.Launch` that is returned, or of :meth:`gpuvm.Vm.sync`. On the simulated GPU kernels are compiled for
sm_80.
"""

from __future__ import annotations

import threading
from typing import Any, Iterator, List, Optional, Tuple

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ._kernel import Kernel, Launch
from ._memory import Array, Buffer
from ._vm import Vm
from .errors import ArgumentError, UnavailableError

__all__: List[str] = []

#: Types of elements that files name and NumPy does not have.
_STORED = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


class _Pointer:
    """What Triton compiles for: arrays lie at multiples of 4 GiB, buffers at multiples of 256."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 1 << 63


def _typed(value: Any) -> Any:
    """An argument as Triton takes it."""
    if isinstance(value, (Array, Buffer)):
        stored = value.stored if isinstance(value, Array) else None
        return _Pointer(_STORED.get(stored or "", value.dtype.name))
    return value


class _SimulatedDriver:
    """Triton asks its driver what to compile for. A device of its own keeps these kernels apart."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 80, 32)

    def get_current_device(self) -> str:
        return "gpuvm's simulated GPU"

    def get_current_stream(self, device: Any) -> int:
        return 0


_LOCK = threading.RLock()


def _compiled(vm: Vm, kernel: Any, grid: Any, args: Tuple[Any, ...], options: Any) -> Any:
    """What Triton makes of the kernel for such arguments, from its cache or anew."""
    typed = [_typed(value) for value in args]
    named = {name: _typed(value) for name, value in options.items()}
    if not vm.simulated:
        return _plain(kernel, *typed, grid=grid, warmup=True, **named)
    with _LOCK:
        before = driver._active
        driver.set_active(_SimulatedDriver())
        try:
            return _plain(kernel, *typed, grid=grid, warmup=True, **named)
        finally:
            driver._active = before


def _flat(kind: Any, value: Any) -> Iterator[Any]:
    """What the launch hands to the kernel for a parameter: nothing of constants, each element of tuples."""
    if isinstance(kind, (tuple, list)):
        for one, part in zip(kind, value):
            yield from _flat(one, part)
    elif kind != "constexpr":
        if not isinstance(kind, str) or kind.startswith(("tensordesc", "nvTmaDesc")):
            raise UnavailableError(f"a parameter of type {kind} cannot be looked up: tensor descriptors copy many pages by one instruction")
        yield value


def _given(value: Any) -> Any:
    """An argument as :class:`gpuvm.Kernel` takes it: of a tensor, which may have strides and any type, its address."""
    if isinstance(value, (Array, Buffer)) or not hasattr(value, "data_ptr"):
        return value
    if not getattr(value, "is_cuda", True):
        raise ArgumentError(f"a tensor on {value.device} was given beside paged arrays: move it to the GPU")
    return ("u", 1, 1, "bytes"), value.data_ptr(), value


def _launch(vm: Vm, kernel: Any, grid: Any, args: Tuple[Any, ...], options: Any) -> Optional[Launch]:
    compiled = _compiled(vm, kernel, grid, args, options)
    if compiled is None:
        return None
    metadata = compiled.metadata
    loaded = vm._kernels.get(compiled.hash)
    if loaded is None:
        with _LOCK:
            loaded = vm._kernels.setdefault(compiled.hash, _loaded(vm, compiled))
    bound = dict(zip(kernel.arg_names, args))
    for param in kernel.params[len(args) :]:
        bound[param.name] = options[param.name] if param.name in options else param.default
    lengths = grid(bound) if callable(grid) else grid
    signature = compiled.src.signature
    given = [_given(one) for param, value in bound.items() for one in _flat(signature[param], value)]
    # Scratch memory, which it does not use.
    given += [None] * (loaded._parameters - len(given))
    # The current one of the framework that Triton works with.
    stream = None if vm.simulated else driver.active.get_current_stream(driver.active.get_current_device())
    return loaded.launch(lengths, 32 * metadata.num_warps, *given, shared=metadata.shared, stream=stream)


def _loaded(vm: Vm, compiled: Any) -> Kernel:
    metadata = compiled.metadata
    name = metadata.name
    if getattr(metadata, "num_ctas", 1) != 1 or getattr(metadata, "launch_cooperative_grid", False):
        raise UnavailableError(f"kernel `{name}` is launched in clusters or cooperatively, which launches over paged arrays are not")
    if getattr(metadata, "global_scratch_size", 0) or getattr(metadata, "profile_scratch_size", 0):
        raise UnavailableError(f"kernel `{name}` needs scratch memory of Triton's launcher")
    return vm.load_ptx(compiled.asm["ptx"].encode(), name=f"{name}.ptx")[name]


_plain = JITFunction.run


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    arrays = [value for value in (*args, *options.values()) if isinstance(value, Array)]
    if not arrays:
        return _plain(self, *args, grid=grid, warmup=warmup, **options)
    vm = arrays[0].vm
    if any(array.vm is not vm for array in arrays):
        raise ArgumentError(f"kernel `{self.__name__}`: its arrays belong to several Vms")
    if warmup:
        return _compiled(vm, self, grid, args, options)
    return _launch(vm, self, grid, args, options)


JITFunction.run = _run
