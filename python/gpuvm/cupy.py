"""CuPy's raw kernels over arrays larger than GPU memory, with no line of them changed:

>>> import cupy, gpuvm, gpuvm.cupy                                                                   # doctest: +SKIP
>>> scale = gpuvm.cupy.paged(cupy.RawKernel(source, "scale"))                                        # doctest: +SKIP
>>> scale((blocks,), (256,), (x, numpy.float32(2), n))        # x: a gpuvm array                     # doctest: +SKIP

The source is compiled by CuPy's NVRTC with the options that CuPy gives it, to PTX, which :meth:`gpuvm.Vm.load_ptx` rewrites. Launches
are on CuPy's current stream. Kernels of a ``cupy.RawModule`` are had by its ``get_function``. Elementwise and reduction kernels are not
taken: they have CuPy's own arrays as parameters.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, List, Tuple

import cupy
from cupy.cuda import nvrtc

from ._kernel import Dim, Kernel, Launch
from ._memory import Array
from ._vm import Vm
from .errors import ArgumentError, CompileError, UnavailableError

__all__ = ["PagedKernel", "paged"]

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


class PagedKernel:
    """A raw kernel of CuPy's whose launches take :class:`gpuvm.Array` for pointers. Made by :func:`paged`."""

    def __init__(self, kernel: Any) -> None:
        if not isinstance(kernel, cupy.RawKernel):
            raise ArgumentError(f"kernel is of type {type(kernel).__name__}: expected a cupy.RawKernel")
        # What CuPy pickles: all that a kernel is made of.
        self._made_of = kernel.__getstate__()
        self.name: str = self._made_of["name"]
        if self._made_of.get("enable_cooperative_groups"):
            raise UnavailableError(f"kernel `{self.name}` is launched cooperatively, which launches over paged arrays are not")
        if self._made_of["code"] is not None and self._made_of["backend"] != "nvrtc":
            raise UnavailableError(f"kernel `{self.name}` is compiled by nvcc: compile it with -ptx, and load that by Vm.load_ptx")

    def _options(self) -> List[str]:
        options = list(self._made_of["options"])
        if not any("-std=" in option for option in options):
            options.append("-std=c++17")
        folders = [os.path.join(os.path.dirname(cupy.__file__), "_core", "include")]
        cuda = cupy.cuda.get_cuda_path()
        if cuda:
            folders.append(os.path.join(cuda, "include"))
        options += [f"-I{folder}" for folder in folders]
        return [*options, "-ftz=true", "--device-as-default-execution-space", f"-arch=compute_{cupy.cuda.Device().compute_capability}"]

    def _kernel(self, vm: Vm) -> Kernel:
        made_of, options = self._made_of, self._options()
        what = repr((made_of["code"], made_of["file_path"], options, made_of["name_expressions"])).encode()
        key = "cupy:" + hashlib.sha256(what).hexdigest()
        with _LOCK:
            if key not in vm._modules:
                if made_of["code"] is None:
                    vm._modules[key] = vm.load_ptx(made_of["file_path"])
                else:
                    ptx = _ptx(made_of["code"], options, tuple(made_of["name_expressions"] or ()))
                    vm._modules[key] = vm.load_ptx(ptx, name=f"{self.name}.ptx")
            if (key, self.name) not in vm._kernels:
                vm._kernels[key, self.name] = vm._modules[key][self.name]
            return vm._kernels[key, self.name]

    def __call__(self, grid: Dim, block: Dim, args: Tuple[Any, ...], *, shared_mem: int = 0) -> Launch:
        """Launches it, as ``cupy.RawKernel`` does. One of ``args`` is an array."""
        vms = {id(value.vm): value.vm for value in args if isinstance(value, Array)}
        if len(vms) != 1:
            raise ArgumentError(f"kernel `{self.name}`: its arguments have arrays of {len(vms)} Vms: expected one")
        (vm,) = vms.values()
        return self._kernel(vm).launch(grid, block, *args, shared=shared_mem, stream=cupy.cuda.get_current_stream())


def paged(kernel: Any) -> PagedKernel:
    """The kernel for launches that take arrays larger than GPU memory."""
    return PagedKernel(kernel)
