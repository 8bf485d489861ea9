"""Compiles the operations' kernels for the simulated GPU into a folder, when a wheel is made: ``python -m gpuvm._precompile FOLDER``."""

import sys

from . import ops
from ._vm import Vm

#: The simulated GPU's transports that need nothing of the machine.
TRANSPORTS = ("soft", "direct")


def main(folder: str) -> None:
    """Compiles them all, and with them the runtime's own."""
    for transport in TRANSPORTS:
        # Where frames may change modules are others.
        for capacity in (None, "1MiB"):
            with Vm("1MiB", gpu="simulated", transport=transport, frame_capacity=capacity, _precompile_into=folder) as vm:
                for name in ops.KERNELS:
                    ops.module(vm, name)


if __name__ == "__main__":
    main(sys.argv[1])
