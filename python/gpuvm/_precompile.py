"""Compiles the operations' kernels into a folder, when a wheel is made: ``python -m gpuvm._precompile FOLDER [CAPABILITIES]``.

Those of the simulated GPU, by the machine's C++ compiler; and by NVRTC those of NVIDIA GPUs of the compute capabilities that are named, such as ``80,90,100``.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator, List, Tuple

from . import _core, _rows, ops
from ._vm import Vm

#: The simulated GPU's transports that need nothing of the machine.
TRANSPORTS = ("soft", "direct")
#: Where the number of frames may change, modules are others.
CAPACITIES = (None, "1MiB")


def _simulated(folder: str, transport: str, name: str) -> None:
    for capacity in CAPACITIES:
        with Vm("1MiB", gpu="sim", transport=transport, frame_capacity=capacity, precompile_into=folder) as vm:
            ops.module(vm, name)
            if name == next(iter(ops.KERNELS)):
                vm.slot_cache(vm.zeros((1, 4)), slots=1)


def modules() -> Iterator[Tuple[str, List[str]]]:
    """The modules that a ``Vm`` over an NVIDIA GPU makes of the operations' sources: of rows one for each kernel."""
    for name, kernels in ops.KERNELS.items():
        yield from ((name, [kernel]) for kernel in kernels) if kernels is _rows.KERNELS else [(name, list(kernels))]


def _nvidia(folder: str, capability: int, name: str, kernels: List[str]) -> None:
    source, headers, defines = ops._source(name, simulated=False)
    _core.precompile(folder, capability, (f"{name}.cu", source, kernels, list(headers.items()), list(defines.items())))


def main(folder: str, capabilities: str = "") -> None:
    """Compiles them all, and with them the runtime's own."""
    # Compilers of the simulated GPU are programs of their own, and NVRTC has no lock: as many at a time as there are processors.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = [pool.submit(_simulated, folder, *which) for which in itertools.product(TRANSPORTS, ops.KERNELS)]
        for capability in map(int, filter(None, capabilities.split(","))):
            compiled.append(pool.submit(_core.precompile, folder, capability))
            compiled += [pool.submit(_nvidia, folder, capability, *module) for module in modules()]
        for one in compiled:
            one.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
