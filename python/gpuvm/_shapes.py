"""Shapes of launches over arrays whose pages may be faults: as large as their frames allow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Tuple

from ._kernel import Kernel, Launch
from .errors import SpansError

if TYPE_CHECKING:
    from ._vm import Vm

#: Threads of a block.
BLOCK = 128
WARPS = BLOCK // 32
#: Blocks for each multiprocessor: as many as the kernels' launch bounds let run, twice, so that none is without work.
BLOCKS = 8


def launch(vm: "Vm", kernel: Kernel, warps: int, spans: int, *args: Any, stream: Any = None) -> Launch:
    """As many warps as have work, can run, and find frames for the pages that they hold: of those at most ``warps``."""
    shape = shape_of(vm, warps, spans)
    while True:
        try:
            return kernel.launch(*shape, *args, warp_spans=spans, stream=stream)
        except SpansError:
            # Frames have left since they were counted, or other launches have theirs.
            fewer = shape_of(vm, warps, spans)
            if math.prod(fewer) >= math.prod(shape):
                raise
            shape = fewer


def shape_of(vm: "Vm", warps: int, spans: int) -> Tuple[int, int]:
    """Blocks, and threads of each."""
    most = min(warps, vm.multiprocessors * BLOCKS * WARPS)
    if spans:
        most = min(most, (vm.frames - 1) // spans)
    if most < WARPS:
        return max(most, 1), 32
    return -(-most // WARPS) if not spans else most // WARPS, BLOCK
