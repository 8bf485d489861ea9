"""Compiles the operations' kernels for the simulated GPU into a folder, when a wheel is made: ``python -m gpuvm._precompile FOLDER``."""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from . import ops
from ._vm import Vm

#: The simulated GPU's transports that need nothing of the machine.
TRANSPORTS = ("soft", "direct")
#: Where the number of frames may change, modules are others.
CAPACITIES = (None, "1MiB")


def main(folder: str) -> None:
    """Compiles them all, and with them the runtime's own."""

    def compile_for(transport: str, name: str) -> None:
        for capacity in CAPACITIES:
            with Vm("1MiB", gpu="sim", transport=transport, frame_capacity=capacity, precompile_into=folder) as vm:
                ops.module(vm, name)
                if name == next(iter(ops.KERNELS)):
                    vm.slot_cache(vm.zeros((1, 4)), slots=1)

    # Compilers are programs of their own: as many at a time as there are processors.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for compiled in [pool.submit(compile_for, *which) for which in itertools.product(TRANSPORTS, ops.KERNELS)]:
            compiled.result()


if __name__ == "__main__":
    main(sys.argv[1])
