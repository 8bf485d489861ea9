"""CuPy's kernels over arrays larger than GPU memory, with no line of them changed:

>>> import cupy, gpuvm, gpuvm.cupy                                                                   # doctest: +SKIP
>>> scale = gpuvm.cupy.paged(cupy.RawKernel(source, "scale"))                                        # doctest: +SKIP
>>> scale((blocks,), (256,), (x, numpy.float32(2), n))        # x: a gpuvm array                     # doctest: +SKIP
>>> scaled = gpuvm.cupy.paged(cupy.ElementwiseKernel("T x, T by", "T y", "y = x * by", "scaled"))    # doctest: +SKIP
>>> scaled(x, 2)                                              # a new array                          # doctest: +SKIP

The source is compiled by CuPy's NVRTC with the options that CuPy gives it, to PTX, which :meth:`gpuvm.Vm.load_ptx` rewrites. Launches
are on CuPy's current stream. Kernels of a ``cupy.RawModule`` are had by its ``get_function``.

CuPy's own launches hand an ``ElementwiseKernel`` or a ``ReductionKernel`` its arrays by value. So their text gets a frame that takes
pointers and makes of them what CuPy's has: broadcasting, strides of CuPy's arrays, ``raw`` arrays, ``i`` and ``_ind`` mean the same. What is
not given is made by :meth:`gpuvm.Vm.zeros`. Arrays have exactly the parameter's type. Sums are in another order than CuPy's.

On the simulated GPU kernels are compiled for compute_80, without a GPU.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, List, Sequence, Tuple, Union

import cupy
from cupy.cuda import nvrtc

from ._cupy import ELEMENTWISE, REDUCTION, Frame
from ._kernel import Dim, Kernel, Launch
from ._memory import Array
from ._vm import Vm
from .errors import ArgumentError, CompileError, UnavailableError

__all__ = ["PagedElementwise", "PagedKernel", "PagedReduction", "paged"]

_LOCK = threading.Lock()


def _ptx(source: str, options: List[str], expressions: Tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(program, tuple(options))
        except nvrtc.NVRTCError as error:
            raise CompileError(f"NVRTC: {nvrtc.getProgramLog(program)}") from error
        ptx = nvrtc.getPTX(program)
        return ptx.encode() if isinstance(ptx, str) else bytes(ptx)
    finally:
        nvrtc.destroyProgram(program)


def _options(vm: Vm, given: Sequence[str]) -> List[str]:
    """What CuPy gives NVRTC."""
    options = list(given)
    if not any("-std=" in option for option in options):
        options.append("-std=c++17")
    own = os.path.join(os.path.dirname(cupy.__file__), "_core", "include")
    bundled = [os.path.join(own, "cupy", "_cccl", name) for name in ("cub", "thrust", "libcudacxx")]
    folders = [own, *filter(os.path.isdir, [*bundled, os.path.join(bundled[-1], "include")])]
    cuda = cupy.cuda.get_cuda_path()
    if cuda:
        folders.append(os.path.join(cuda, "include"))
    options += [f"-I{folder}" for folder in folders]
    generation = "80" if vm.simulated else cupy.cuda.Device().compute_capability
    return [*options, "-ftz=true", "--device-as-default-execution-space", f"-arch=compute_{generation}"]


def _compiled(vm: Vm, source: str, name: str, given: Sequence[str], expressions: Tuple[str, ...] = ()) -> Kernel:
    """A kernel of a source, compiled once for a Vm."""
    options = _options(vm, given)
    key = "cupy:" + hashlib.sha256(repr((source, options, expressions)).encode()).hexdigest()
    with _LOCK:
        if key not in vm._modules:
            vm._modules[key] = vm.load_ptx(_ptx(source, options, expressions), name=f"{name}.ptx")
        if (key, name) not in vm._kernels:
            vm._kernels[key, name] = vm._modules[key][name]
        return vm._kernels[key, name]


def _vm(name: str, args: Sequence[Any]) -> Vm:
    vms = {id(value.vm): value.vm for value in args if isinstance(value, Array)}
    if len(vms) != 1:
        raise ArgumentError(f"kernel `{name}`: its arguments have arrays of {len(vms)} Vms: expected one")
    (vm,) = vms.values()
    return vm


def _stream(vm: Vm) -> Any:
    return None if vm.simulated else cupy.cuda.get_current_stream()


class PagedKernel:
    """A raw kernel of CuPy's whose launches take :class:`gpuvm.Array` for pointers. Made by :func:`paged`."""

    def __init__(self, kernel: Any) -> None:
        if not isinstance(kernel, cupy.RawKernel):
            raise ArgumentError(f"kernel is of type {type(kernel).__name__}: expected a cupy.RawKernel, an ElementwiseKernel or a ReductionKernel")
        # What CuPy pickles: all that a kernel is made of.
        self._made_of = kernel.__getstate__()
        self.name: str = self._made_of["name"]
        if self._made_of.get("enable_cooperative_groups"):
            raise UnavailableError(f"kernel `{self.name}` is launched cooperatively, which launches over paged arrays are not")
        if self._made_of["code"] is not None and self._made_of["backend"] != "nvrtc":
            raise UnavailableError(f"kernel `{self.name}` is compiled by nvcc: compile it with -ptx, and load that by Vm.load_ptx")

    def _kernel(self, vm: Vm) -> Kernel:
        made_of = self._made_of
        if made_of["code"] is not None:
            return _compiled(vm, made_of["code"], self.name, made_of["options"], tuple(made_of["name_expressions"] or ()))
        with _LOCK:
            path = made_of["file_path"]
            if path not in vm._modules:
                vm._modules[path] = vm.load_ptx(path)
            return vm._modules[path][self.name]

    def __call__(self, grid: Dim, block: Dim, args: Tuple[Any, ...], *, shared_mem: int = 0) -> Launch:
        """Launches it, as ``cupy.RawKernel`` does. One of ``args`` is an array."""
        vm = _vm(self.name, args)
        return self._kernel(vm).launch(grid, block, *args, shared=shared_mem, stream=_stream(vm))


class PagedElementwise:
    """An elementwise kernel of CuPy's whose launches take :class:`gpuvm.Array`. Made by :func:`paged`."""

    def __init__(self, kernel: Any) -> None:
        self.name: str = kernel.name
        self._cupys = kernel

    def __call__(self, *args: Any, size: Any = None, block_size: int = 128) -> Any:
        """Launches it, as ``cupy.ElementwiseKernel`` does, and returns its outputs. ``size``: of the loop, where all arrays are raw."""
        cupys, vm = self._cupys, _vm(self.name, args)
        frame = Frame(vm, self.name, cupys.in_params, cupys.out_params, args)
        frame.loop_over(size, outputs=True)
        frame.make_outputs(frame.shape)
        if cupys.reduce_dims:
            frame.flatten()
        count = frame.count
        if count:
            parts = {"loop_prep": cupys.kwargs.get("loop_prep", ""), "after_loop": cupys.kwargs.get("after_loop", "")}
            source = frame.source(ELEMENTWISE, operation=cupys.operation, preamble=cupys.preamble, **parts)
            kernel = _compiled(vm, source, self.name, cupys.kwargs.get("options", ()))
            kernel.launch(min(-(-count // block_size), (1 << 31) - 1), block_size, *frame.given(), stream=_stream(vm))
        if cupys.no_return:
            return None
        outputs = frame.outputs()
        return outputs if cupys.return_tuple or len(outputs) != 1 else outputs[0]


class PagedReduction:
    """A reduction kernel of CuPy's whose launches take :class:`gpuvm.Array`. Made by :func:`paged`."""

    #: Threads of a block, and elements that are worth a block.
    _BLOCK, _PIECE = 256, 1 << 14
    #: Blocks that share one result, and bytes of what each of them hands on.
    _MOST, _PART = 1024, 64

    def __init__(self, kernel: Any) -> None:
        self.name: str = kernel.name
        self._cupys = kernel

    def __call__(self, *args: Any, out: Any = None, axis: Union[None, int, Tuple[int, ...]] = None, keepdims: bool = False) -> Any:
        """Launches it, as ``cupy.ReductionKernel`` does, and returns its outputs."""
        cupys = self._cupys
        args = (*args, *(out if isinstance(out, tuple) else () if out is None else (out,)))
        vm = _vm(self.name, args)
        frame = Frame(vm, self.name, cupys.in_params, cupys.out_params, args)
        frame.loop_over(None, outputs=False)
        count, results = frame.reduce(axis, keepdims)
        if results and count == 0 and cupys.identity in (None, ""):
            raise ArgumentError(f"kernel `{self.name}` has no identity, and there is no element to reduce")
        frame.flatten()
        if results:
            blocks = min(results, 1 << 16)
            shared_by = max(1, min(count // self._PIECE, self._MOST // blocks))
            parts = vm.buffer(results * shared_by * self._PART, "uint8") if shared_by > 1 else None
            source = frame.source(
                REDUCTION,
                reduce_type=cupys.reduce_type,
                reduce_expr=cupys.reduce_expr,
                map_expr=cupys.map_expr,
                post_map_expr=cupys.post_map_expr,
                identity=cupys.identity or "",
                preamble=cupys.preamble,
                block=str(self._BLOCK),
                part=str(self._PART),
            )
            kernel = _compiled(vm, source, self.name, cupys.options)
            for last in [False, True] if parts else [False]:
                counts = (results, count, shared_by, last)
                grid = (blocks, 1 if last else shared_by)
                kernel.launch(grid, self._BLOCK, *frame.given(), *counts, parts, stream=_stream(vm))
        outputs = frame.outputs()
        return outputs if len(outputs) != 1 else outputs[0]


def paged(kernel: Any) -> Any:
    """The kernel for launches that take arrays larger than GPU memory: of a ``cupy.RawKernel``, a ``cupy.ElementwiseKernel`` or a
    ``cupy.ReductionKernel``."""
    if isinstance(kernel, cupy.ElementwiseKernel):
        return PagedElementwise(kernel)
    if isinstance(kernel, cupy.ReductionKernel):
        return PagedReduction(kernel)
    return PagedKernel(kernel)
