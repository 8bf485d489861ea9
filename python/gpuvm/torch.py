"""PyTorch over arrays larger than GPU memory.

>>> import gpuvm, gpuvm.torch, numpy, torch                                                         # doctest: +SKIP
>>> with gpuvm.Vm("1GiB", gpu="cuda:0") as vm:                                                       # doctest: +SKIP
...     table = gpuvm.torch.from_numpy(numpy.load("table.npy", mmap_mode="r+"), vm)
...     ids = torch.randint(len(table), (65536,), device=table.device)
...     rows = gpuvm.torch.take(table, ids)              # pages that are used often come to GPU memory
...     same = table.index_select(0, ids)                # any operation of PyTorch reads them where they are

A table is an ordinary tensor on the GPU whose memory is the array's home, in the host's memory. The operations of this module find the array by it,
and use its pages in frames of GPU memory where they have some. They are ``torch.ops.gpuvm.*``, with gradients, and ``torch.compile`` takes them. Numbers
of rows (int32, int64) stay on the GPU, launches are on PyTorch's current stream, nothing waits, and CUDA graphs capture them once they have run. Tensors
that are no array's go to PyTorch's own operations.

**Order.** What an operation of this module reads or writes is in stream order with everything else on the stream. What it wrote (:func:`index_add_`) is
in frames at first: :meth:`gpuvm.Array.tensor`, or ``flush``, has the home hold it before PyTorch's own operations read the table, or write to it: if they
write before that, the next use of the array raises ``RegionError``. What PyTorch's own operations write to the table, or to views of it, the next use
of the array notices by the tensor's version, and waits for. Writers that count in no such version are NumPy, other libraries, Triton's kernels, and PyTorch through
``.data``, ``from_dlpack`` and storages: after those say :meth:`gpuvm.Array.wrote`.

**Numbers out of range** give rows of zeros. The next call that waits for the array (``numpy``, ``flush``, ``Vm.sync``) raises ``IndexError``;
``check=True`` waits and raises at once, and on the simulated GPU, where every operation ends before it returns, so does each.
"""

from __future__ import annotations

import bisect
import math
import os
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _rows, _torch_ready
from ._memory import Array
from ._rows import Bags, Numbers, Rows, at
from ._vm import Vm
from .errors import ArgumentError, DtypeError, LayoutError, OutOfRangeError, RegionError, StreamError, UnavailableError

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "SlotCache",
    "array_of",
    "embedding",
    "embedding_bag",
    "empty",
    "from_file",
    "from_numpy",
    "index_add_",
    "knn",
    "spmv",
    "take",
    "tensor_of",
    "zeros",
]

#: Types of elements that NumPy does not have, by the names of files.
_STORED = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_NAMES = {kind: name for name, kind in _STORED.items()}
#: NumPy's types of the same size that such arrays have.
_BITS = {1: np.uint8, 2: np.uint16}

#: Of arrays' tensors.
_FIRST_VERSION = 1 << 31

#: Arrays by the address of their home, or of what stands for it; the addresses in order.
_HOMES: Dict[int, "weakref.ref[Array]"] = {}
_STARTS: List[int] = []


def _dtype_of(array: Array) -> torch.dtype:
    if array.stored in _STORED:
        return _STORED[array.stored]
    found = getattr(torch, "bool" if array.dtype == np.bool_ else array.dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise DtypeError(f"array `{array.name}` has {array.dtype}, for which PyTorch has no type")
    return found


def _device_of(vm: Vm, array: Array) -> torch.device:
    if vm.simulated:
        return torch.device("cpu")
    return torch.device("cuda", array._core.dlpack_device()[1])


def _enter(address: int, array: Array) -> None:
    def forget(gone: "weakref.ref[Array]") -> None:
        if _HOMES.get(address) is gone:
            del _HOMES[address]
            _STARTS.remove(address)

    if address not in _HOMES:
        bisect.insort(_STARTS, address)
    _HOMES[address] = weakref.ref(array, forget)


class _Writes:
    """What PyTorch's operations write to an array. All tensors over its home share the version of ``counter``, which has none of its memory; frames agree with
    the home up to the version ``seen``."""

    __slots__ = ("counter", "seen")

    def __init__(self, device: torch.device) -> None:
        self.counter = torch.empty(0, dtype=torch.uint8, device=device)
        # Tensors that have versions of their own begin at 0.
        _set_version(self.counter, _FIRST_VERSION)
        self.agree()

    def over(self, bytes: torch.Tensor) -> torch.Tensor:
        """A tensor over the same memory that shares the version."""
        tensor = self.counter.detach()
        # What it shares with the counter stays.
        tensor.data = bytes
        return tensor

    def agree(self) -> None:
        """What was written up to now is no news."""
        self.seen: int = self.counter._version

    def add(self) -> None:
        """An operation of this module has written, which is no news to frames."""
        torch.autograd.graph.increment_version(self.counter)
        self.agree()

    @property
    def are_new(self) -> bool:
        """Whether anything was written that is news."""
        return bool(self.counter._version != self.seen)

    def expect_no_capture(self, name: str) -> None:
        """Raises where a wait for all work of the GPU would end a capture."""
        _expect_no_capture(self.counter.device, f"PyTorch has written to the tensor of array `{name}`")

    def own(self, table: torch.Tensor) -> bool:
        """Whether a tensor over the array shares the version, or was never written to: of others nothing is known."""
        return not table.is_inference() and table._version in (0, self.counter._version)


def _is_capturing(device: torch.device) -> bool:
    """Whether the current stream of a GPU is being captured into a CUDA graph."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def _expect_no_capture(device: torch.device, why: str) -> None:
    if _is_capturing(device):
        raise StreamError(
            f"the current stream is being captured into a CUDA graph, and {why}, for which gpuvm would wait: run the same operations once before the "
            "capture, and have it without check=True, tensor() and PyTorch's writes to the table"
        )


def _set_version(tensor: torch.Tensor, version: int) -> None:
    """PyTorch before 2.6 takes one tensor, later ones take tuples."""
    set_version = torch._C._autograd._unsafe_set_version_counter
    try:
        set_version((tensor,), (version,))
    except TypeError:
        set_version(tensor, version)


def tensor_of(array: Array) -> torch.Tensor:
    """What :meth:`gpuvm.Array.tensor` gives."""
    tensor = _tensor(array)
    _bring_home(array)
    return tensor


def _bring_home(array: Array) -> None:
    """Has the home hold what launches wrote, before PyTorch's own operations use it."""
    array._has_news()
    if not array._core.is_home_current:
        _expect_no_capture(_device_of(array.vm, array), f"kernels have written what the tensor of array `{array.name}` lacks")
        array.flush()


# Tensors of inference have no versions.
@torch.inference_mode(False)
def _new_tensor(array: Array) -> torch.Tensor:
    home = array._core.home()
    if home is None:
        raise UnavailableError(
            f"array `{array.name}` has no memory that PyTorch's operations reach: its pages live in a file or at memory nodes, or GPU threads do not "
            "reach its home by loads; gpuvm.torch.take and embedding take the array itself"
        )
    address, nbytes = home
    dtype, device = _dtype_of(array), _device_of(array.vm, array)
    if nbytes == 0:
        return torch.empty(array.shape, dtype=dtype, device=device)
    if device.type == "cuda":
        torch.cuda.init()
    if array._writes is None:
        array._writes = _Writes(device)
    # The bytes: not all libraries have names for all types of elements.
    capsule = array._core.home_dlpack(("u", 1), [nbytes], array)
    bytes: torch.Tensor = torch.utils.dlpack.from_dlpack(capsule)
    tensor = array._writes.over(bytes).view(dtype).view(array.shape)
    _enter(address, array)
    array._tensor = weakref.ref(tensor)
    return tensor


def _tensor(array: Array) -> torch.Tensor:
    """The same, whose memory may lack what is in frames."""
    known = array._tensor() if array._tensor is not None else None
    return known if known is not None else _new_tensor(array)


@torch.inference_mode(False)
def _stand_in(array: Array) -> torch.Tensor:
    """A tensor by which operations of this module find an array that has no memory for others. It has the array's shape, and no elements."""
    if array._stand_in is None:
        element = torch.zeros((1,), dtype=_dtype_of(array), device=_device_of(array.vm, array))
        _enter(element.data_ptr(), array)
        array._stand_in = element.expand(array.shape)
    return array._stand_in  # type: ignore[no-any-return]


def _table_of(table: Union[torch.Tensor, Array]) -> torch.Tensor:
    if not isinstance(table, Array):
        return table
    return _stand_in(table) if table.size == 0 or table._core.home() is None else _tensor(table)


def array_of(tensor: torch.Tensor) -> Optional[Array]:
    """The array whose memory a tensor's is, or a part of it; none of other tensors."""
    return _find(tensor.data_ptr())[0]


def _find(address: int) -> Tuple[Optional[Array], int]:
    """The array that has its home there, and where that begins."""
    found = _HOMES.get(address)
    start = address
    if found is None:
        place = bisect.bisect_right(_STARTS, address)
        if place == 0:
            return None, 0
        start = _STARTS[place - 1]
        found = _HOMES.get(start)
    array = found() if found is not None else None
    if array is None or array.closed or address >= start + max(array.nbytes, 1):
        return None, 0
    return array, start


def _count_fused(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Fused optimizers count no versions."""
    for group in optimizer.param_groups:
        for param in group["params"] if group.get("fused") else ():
            if array_of(param) is not None:
                torch.autograd.graph.increment_version(param)


register_optimizer_step_post_hook(_count_fused)


def _rows_of(table: torch.Tensor) -> Optional[Rows]:
    """The rows that a tensor is; none where PyTorch's own operations have to do."""
    address = table.data_ptr()
    array, start = _find(address)
    if array is None:
        return None
    row_bytes = math.prod(table.shape[1:]) * table.element_size()
    if array._stand_in is not None and array._stand_in.data_ptr() == address:
        return Rows(array, table.shape[0], row_bytes, str(table.dtype)[6:])
    if not table.is_contiguous() or table.dim() == 0:
        _bring_home(array)
        return None
    array._notice()
    if not array._writes.own(table):
        array.wrote()
    return Rows(array, table.shape[0], row_bytes, str(table.dtype)[6:], address - start)


class _Plan:
    """What operations over the same rows have in common."""

    __slots__ = ("__weakref__", "add", "dtype", "row", "shape", "take", "writes")

    def __init__(self, of: Rows, table: torch.Tensor) -> None:
        self.writes: _Writes = of.array._writes
        self.shape, self.dtype, self.row = table.shape, table.dtype, tuple(table.shape[1:])
        none = Numbers(at(0), 1, 0)
        self.take = _rows.Planned(of, _rows.taking(of, none, at(0)))
        #: Once something was added.
        self.add: Optional[_rows.Planned] = None

    def plan_add(self, of: Rows) -> None:
        """The same for :func:`index_add_`."""
        self.add = _rows.Planned(of, _rows.adding(of, Numbers(at(0), 1, 0), at(0)))


#: By where rows begin. They have what keeps an array's memory, so that none but the array keeps them.
_PLANS: "weakref.WeakValueDictionary[int, _Plan]" = weakref.WeakValueDictionary()
#: Of an array.
_PLANS_MOST = 1024


def _plan(table: torch.Tensor, address: int) -> Optional[_Plan]:
    """That of a tensor which operations have met before, and of which frames hold nothing old."""
    plan = _PLANS.get(address)
    if plan is None or plan.dtype is not table.dtype or plan.shape != table.shape or not table.is_contiguous():
        return None
    return None if plan.writes.are_new or not plan.writes.own(table) else plan


def _keep_plan(of: Rows, table: torch.Tensor, address: int) -> Optional[_Plan]:
    found = None
    if of.row_bytes and of.rows and of.array._stand_in is None:
        plans = of.array._plans
        if len(plans) >= _PLANS_MOST:
            plans.clear()
        found = _PLANS[address] = plans[address] = _Plan(of, table)
    return found


def _expect_tensor(ids: Any, what: str = "ids") -> None:
    if not isinstance(ids, torch.Tensor):
        raise DtypeError(f"{what} are of type {type(ids).__name__}: expected a tensor of integers, as torch.as_tensor makes one")


def _numbers(ids: torch.Tensor, device: torch.device, what: str = "ids") -> torch.Tensor:
    """Numbers of rows as kernels take them."""
    _expect_tensor(ids, what)
    if ids.dtype not in (torch.int64, torch.int32):
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise DtypeError(f"{what} have {ids.dtype}: expected integers")
        ids = ids.long()
    if ids.device != device:
        ids = ids.to(device)
    return ids.contiguous()


def _checked(of: Rows, launch: Any, check: bool) -> None:
    if launch is not None:
        # Its pages are faults: it may wait for the host.
        if of.array.vm.simulated or check:
            launch.sync()
    if check or of.array.vm.simulated:
        of.array._core.wait_idle()


def _stream(device: torch.device) -> int:
    """The raw current stream; of the simulated GPU there is none."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _expect_use(of: Rows, count: int, device: torch.device, check: bool) -> None:
    """Raises what is known before a launch."""
    if check:
        _expect_no_capture(device, "check=True asks for numbers out of range")
    if of.rows == 0 and count:
        raise OutOfRangeError(f"ids are out of range: array `{of.array.name}` has no row")


_LIBRARY = torch.library.Library("gpuvm", "DEF")
_LIBRARY.define("take(Tensor table, Tensor ids, bool check=False) -> Tensor")
_LIBRARY.define("index_add_(Tensor(a!) table, Tensor ids, Tensor values, bool check=False) -> ()")
_LIBRARY.define(
    "embedding_bag(Tensor table, Tensor ids, Tensor offsets, Tensor? weights, bool mean=False, bool check=False) -> Tensor"
)


def _take(table: torch.Tensor, ids: torch.Tensor, check: bool = False, is_list: bool = False) -> torch.Tensor:
    """``is_list``: ids of int64, behind the last of which is ``_rows.NONE``, for rows that are to be stored again: that they are there is sure, then."""
    device, address, kind = table.device, table.data_ptr(), ids.dtype
    plan = None if check else _plan(table, address)
    if plan is not None and (kind is torch.int64 or kind is torch.int32) and ids.device == device and ids.is_contiguous():
        count = ids.numel()
        out = torch.empty((*ids.shape, *plan.row), dtype=plan.dtype, device=device)
        if count == 0:
            return out
        if plan.take.launch(ids.data_ptr(), _rows.LIST if is_list else kind is torch.int64, count, out.data_ptr(), _stream(device)):
            if device.type == "cpu":
                plan.take.wait_idle()
            return out
    ids = _numbers(ids, device)
    of = _rows_of(table)
    if of is None:
        return table.index_select(0, ids.reshape(-1)).reshape(ids.shape + table.shape[1:])
    count = ids.numel()
    _expect_use(of, count, device, check)
    out = torch.empty(ids.shape + table.shape[1:], dtype=table.dtype, device=device)
    numbers = Numbers(at(ids.data_ptr(), ids), _rows.LIST if is_list else int(ids.dtype == torch.int64), count)
    launch = _rows.take(of, numbers, at(out.data_ptr(), out), _stream(device))
    if is_list and launch is not None:
        launch.sync()
    _checked(of, launch, check)
    if launch is None:
        _keep_plan(of, table, address)
    return out


def _index_add(table: torch.Tensor, ids: torch.Tensor, values: torch.Tensor, check: bool = False) -> None:
    device, address = table.device, table.data_ptr()
    ids = _numbers(ids, device)
    plan = None if check else _plan(table, address)
    if plan is not None and plan.add is not None and values.dtype is plan.dtype and values.device == device and values.is_contiguous():
        count = ids.numel()
        if count and values.shape == (*ids.shape, *plan.row):
            if plan.add.launch(ids.data_ptr(), ids.dtype is torch.int64, count, values.data_ptr(), _stream(device)):
                plan.writes.add()
                if device.type == "cpu":
                    plan.add.wait_idle()
                return
    of = _rows_of(table)
    if values.dtype != table.dtype or values.shape != ids.shape + table.shape[1:]:
        expected = tuple(ids.shape + table.shape[1:])
        raise LayoutError(f"values have shape {tuple(values.shape)} of {values.dtype}: expected {expected} of {table.dtype}")
    if of is None:
        table.index_add_(0, ids.reshape(-1), values.reshape(-1, *table.shape[1:]))
        return
    if of.array.read_only:
        raise RegionError(f"array `{of.array.name}` is read-only: nothing can be added to it")
    count = ids.numel()
    _expect_use(of, count, device, check)
    values = values.contiguous()
    numbers = Numbers(at(ids.data_ptr(), ids), int(ids.dtype == torch.int64), count)
    launch = _rows.index_add(of, numbers, at(values.data_ptr(), values), _stream(device))
    if of.array._writes is not None:
        of.array._writes.add()
    _checked(of, launch, check)
    plan = (plan or _keep_plan(of, table, address)) if launch is None else None
    if plan is not None and count and plan.add is None:
        plan.plan_add(of)


def _put(table: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """``table.index_copy_(0, ids, values)`` of an array's tensor: int64 numbers, different ones, or ``_rows.NONE``, at whose place nothing is stored."""
    of = _rows_of(table)
    assert of is not None, "optimizers have looked at the table"
    values = values.to(table.dtype).contiguous()
    launch = _rows.put(of, Numbers(at(ids.data_ptr(), ids), _rows.LIST, ids.numel()), at(values.data_ptr(), values), _stream(table.device))
    if of.array._writes is not None:
        of.array._writes.add()
    _checked(of, launch, False)


def _index_add_home(table: torch.Tensor, ids: torch.Tensor, values: torch.Tensor, check: bool = False) -> None:
    """The same by PyTorch's dispatcher. Programs that were compiled count a version after it, as after their own writes: the home has all by then."""
    _index_add(table, ids, values, check)
    array = array_of(table)
    if array is not None and not _is_capturing(table.device):
        array.flush()


def _bag(
    table: torch.Tensor,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    weights: Optional[torch.Tensor],
    mean: bool = False,
    check: bool = False,
) -> torch.Tensor:
    device = table.device
    ids, offsets = _numbers(ids, device), _numbers(offsets, device, "offsets")
    of = _rows_of(table)
    if of is None:
        mode = "mean" if mean else "sum"
        found: torch.Tensor = torch.nn.functional.embedding_bag(ids, table, offsets, mode=mode, per_sample_weights=weights)
        return found
    count = ids.numel()
    _expect_use(of, count, device, check)
    if weights is not None:
        weights = weights.to(device).contiguous()
    out = torch.empty((offsets.numel(), table.shape[1]), dtype=table.dtype, device=device)
    numbers = Numbers(at(ids.data_ptr(), ids), int(ids.dtype == torch.int64), count)
    kept = None if weights is None else at(weights.data_ptr(), weights)
    bags = Bags(at(offsets.data_ptr(), offsets), offsets.dtype == torch.int64, offsets.numel(), kept, mean)
    launch = _rows.embedding_bag(of, numbers, bags, at(out.data_ptr(), out), _stream(device))
    _checked(of, launch, check)
    return out


for _device in ("CPU", "CUDA"):
    _LIBRARY.impl("take", _take, _device)
    _LIBRARY.impl("index_add_", _index_add_home, _device)
    _LIBRARY.impl("embedding_bag", _bag, _device)


@torch.library.register_fake("gpuvm::take", lib=_LIBRARY)
def _fake_take(table: torch.Tensor, ids: torch.Tensor, check: bool = False) -> torch.Tensor:
    return table.new_empty(ids.shape + table.shape[1:])


@torch.library.register_fake("gpuvm::index_add_", lib=_LIBRARY)
def _fake_index_add(table: torch.Tensor, ids: torch.Tensor, values: torch.Tensor, check: bool = False) -> None:
    return None


@torch.library.register_fake("gpuvm::embedding_bag", lib=_LIBRARY)
def _fake_bag(
    table: torch.Tensor,
    ids: torch.Tensor,
    offsets: torch.Tensor,
    weights: Optional[torch.Tensor],
    mean: bool = False,
    check: bool = False,
) -> torch.Tensor:
    return table.new_empty((offsets.shape[0], table.shape[1]))


def _sparse(ids: torch.Tensor, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A gradient of a table that is as large as the rows that were used. Numbers out of range, whose rows were zeros, have none: optimizers would write
    there. Nothing waits for the GPU to tell which those are; where all are, row 0 has a gradient of zeros."""
    ids = ids.reshape(-1).long()
    if ids.numel():
        wrong = (ids < 0) | (ids >= shape[0])
        # Nothing is added to a row that has a gradient, if one has.
        ids = torch.where(wrong, ids.masked_fill(wrong, 0).max(), ids)
        rows = rows.masked_fill(wrong.reshape(-1, *[1] * (rows.dim() - 1)), 0)
    found: torch.Tensor = torch.ops.aten._sparse_coo_tensor_unsafe(ids.unsqueeze(0), rows, list(shape))
    return found


def _keep_take(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    table, ids, _ = inputs
    ctx.save_for_backward(ids)
    ctx.shape = table.shape


def _take_backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], None, None]:
    (ids,) = ctx.saved_tensors
    if not ctx.needs_input_grad[0]:
        return None, None, None
    return _sparse(ids.to(gradient.device), gradient.reshape(ids.numel(), *ctx.shape[1:]), ctx.shape), None, None


def _keep_bag(ctx: Any, inputs: Tuple[Any, ...], output: torch.Tensor) -> None:
    table, ids, offsets, weights, mean, _ = inputs
    ctx.mean, ctx.shape, ctx.weighted = mean, table.shape, weights is not None
    ctx.save_for_backward(ids, offsets, *([] if weights is None else [weights, table]))


def _bag_backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
    ids, offsets, *weighted = ctx.saved_tensors
    ids, offsets = ids.to(gradient.device).reshape(-1), offsets.to(gradient.device)
    if offsets.numel() == 0:
        return (None,) * 6
    places = torch.arange(ids.numel(), device=ids.device)
    # Offsets that are wrong, of which the table's next use tells, may not begin with 0.
    bags = (torch.searchsorted(offsets.long(), places, right=True) - 1).clamp_(min=0)
    rows = gradient.index_select(0, bags)
    of_table = of_weights = None
    if ctx.needs_input_grad[0]:
        scaled = rows
        if ctx.weighted:
            scaled = rows * weighted[0].unsqueeze(-1).to(rows.dtype)
        if ctx.mean:
            ends = torch.nn.functional.pad(offsets[1:].long(), (0, 1), value=ids.numel())
            scaled = rows / (ends - offsets).index_select(0, bags).unsqueeze(-1).to(rows.dtype)
        of_table = _sparse(ids, scaled, ctx.shape)
    if ctx.weighted and ctx.needs_input_grad[3]:
        of_weights = (torch.ops.gpuvm.take(weighted[1].detach(), ids) * rows).sum(-1)
    return of_table, None, None, of_weights, None, None


torch.library.register_autograd("gpuvm::take", _take_backward, setup_context=_keep_take, lib=_LIBRARY)
torch.library.register_autograd("gpuvm::embedding_bag", _bag_backward, setup_context=_keep_bag, lib=_LIBRARY)


def _is_plain(*tensors: Optional[torch.Tensor]) -> bool:
    """Whether an operation may go past PyTorch's dispatcher, which takes several microseconds: nothing compiles it or asks for gradients."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors))


def take(table: Union[torch.Tensor, Array], ids: torch.Tensor, *, check: bool = False) -> torch.Tensor:
    """Rows of a table by their numbers: ``table.index_select(0, ids)``, for ``ids`` of any shape. ``table``: a tensor of :meth:`gpuvm.Array.tensor`, or of
    this module's; a slice of one by rows; an array. Elements of any type. The gradient of the table is sparse."""
    _expect_tensor(ids)
    weight = _table_of(table)
    if _is_plain(weight):
        return _take(weight, ids, check)
    found: torch.Tensor = torch.ops.gpuvm.take(weight, ids, check)
    return found


def embedding(ids: torch.Tensor, table: Union[torch.Tensor, Array], *, check: bool = False) -> torch.Tensor:
    """``torch.nn.functional.embedding``: :func:`take`, with its arguments in that order."""
    return take(table, ids, check=check)


def embedding_bag(
    ids: torch.Tensor,
    table: Union[torch.Tensor, Array],
    offsets: Optional[torch.Tensor] = None,
    *,
    mode: str = "sum",
    per_sample_weights: Optional[torch.Tensor] = None,
    check: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.embedding_bag`` of modes ``"sum"``, with weights or without, and ``"mean"``: float64, 32, 16 and bfloat16, summed in float32
    at least. ``ids`` of two dimensions are bags of one length each, without ``offsets``."""
    if mode not in ("sum", "mean"):
        raise ArgumentError(f"mode is {mode!r}: expected 'sum' or 'mean'")
    _expect_tensor(ids)
    weight = _table_of(table)
    if weight.dim() != 2:
        raise LayoutError(f"table has shape {tuple(weight.shape)}: expected rows and columns")
    if per_sample_weights is not None:
        if mode != "sum":
            raise ArgumentError("per_sample_weights are for mode 'sum'")
        if per_sample_weights.shape != ids.shape or per_sample_weights.dtype != weight.dtype:
            given = f"{tuple(per_sample_weights.shape)} of {per_sample_weights.dtype}"
            raise LayoutError(f"per_sample_weights have shape {given}: expected {tuple(ids.shape)} of {weight.dtype}")
        per_sample_weights = per_sample_weights.reshape(-1)
    if ids.dim() == 2 and offsets is None:
        offsets = torch.arange(0, ids.numel(), max(ids.shape[1], 1), device=ids.device)
        offsets = offsets if ids.shape[1] else torch.zeros(ids.shape[0], dtype=torch.int64, device=ids.device)
        ids = ids.reshape(-1)
    if ids.dim() != 1 or offsets is None or offsets.dim() != 1:
        raise LayoutError(f"ids have shape {tuple(ids.shape)}: expected one dimension and offsets, or two dimensions and none")
    mean = mode == "mean"
    if _is_plain(weight, per_sample_weights):
        return _bag(weight, ids, offsets, per_sample_weights, mean, check)
    found: torch.Tensor = torch.ops.gpuvm.embedding_bag(weight, ids, offsets, per_sample_weights, mean, check)
    return found


def index_add_(
    table: Union[torch.Tensor, Array], ids: torch.Tensor, values: torch.Tensor, *, alpha: float = 1, check: bool = False
) -> Union[torch.Tensor, Array]:
    """``table.index_add_(0, ids, values, alpha=alpha)``: float64, 32, 16, bfloat16, int32 and int64. Rows that are named several times get all of their
    values, in no order that is known. What it writes the home holds after :meth:`gpuvm.Array.tensor`."""
    _expect_tensor(ids)
    weight = _table_of(table)
    if torch.is_grad_enabled() and (values.requires_grad or (weight.requires_grad and weight.is_leaf)):
        raise ArgumentError("index_add_ has no gradient: use torch.no_grad(), and values.detach()")
    with torch.no_grad():
        values = values if alpha == 1 else values * alpha
        if torch.compiler.is_compiling():
            torch.ops.gpuvm.index_add_(weight, ids, values, check)
        else:
            _index_add(weight, ids, values, check)
    return table


def _without_gradient(what: str, *tensors: torch.Tensor) -> None:
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        raise ArgumentError(f"{what} has no gradient: use torch.no_grad(), or detach()")


def _array_or(table: Union[torch.Tensor, Array], what: str) -> Array:
    """The array that is all of a tensor."""
    array = table if isinstance(table, Array) else array_of(table)
    if array is None or (isinstance(table, torch.Tensor) and (table.numel() != array.size or not table.is_contiguous())):
        raise ArgumentError(f"{what}: expected an array, or the whole tensor of one; of other tensors PyTorch's own operations do")
    return array


def spmv(indptr: torch.Tensor, indices: Union[torch.Tensor, Array], data: Union[torch.Tensor, Array], x: torch.Tensor) -> torch.Tensor:
    """A matrix of compressed sparse rows times a vector, ``torch.sparse_csr_tensor(indptr, indices, data) @ x``: ``indices`` (int32, int64) and ``data`` (float32,
    64, int32, int64) are arrays or tensors of them, ``indptr`` and ``x`` on the GPU. It waits for a look whether ``indptr`` and columns are in range, at columns
    once where they are read-only, and not for the product; no graph captures it, and it has no gradient. Raises ``IndexError``."""
    columns, values = _array_or(indices, "indices"), _array_or(data, "data")
    device = _device_of(values.vm, values)
    if columns.vm is not values.vm or x.device != device:
        raise ArgumentError(f"indices, data and x, which is on {x.device}, are not all of one Vm, whose GPU is {device}")
    if x.dtype != _dtype_of(values) or x.dim() != 1 or indptr.dim() != 1 or indptr.is_floating_point():
        raise LayoutError(f"x has shape {tuple(x.shape)} of {x.dtype}, indptr {tuple(indptr.shape)} of {indptr.dtype}: expected vectors, x of {_dtype_of(values)}")
    _without_gradient("spmv", x, *(one for one in (data,) if isinstance(one, torch.Tensor)))
    _expect_no_capture(device, "what is out of range is looked for")
    with torch.no_grad():
        return _torch_ready.spmv(indptr, columns, values, x, _stream(device))


def knn(vectors: Union[torch.Tensor, Array], queries: torch.Tensor, k: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` nearest of ``vectors`` for each of ``queries``, both of rows of float32 or 64, by a look at every vector: squared Euclidean distances, ascending,
    and the vectors' numbers, each of shape ``(queries, k)``, as :func:`gpuvm.ops.knn`. Nothing waits; no graph captures it, and it has no gradient."""
    table = _table_of(vectors)
    of = _rows_of(table)
    if of is None or table.dim() != 2 or (of.row_bytes and of.first % of.row_bytes):
        raise ArgumentError("vectors: expected an array of two dimensions, a tensor of one, or rows of that; of other tensors PyTorch's own operations do")
    if queries.dim() != 2 or queries.shape[1] != table.shape[1] or queries.dtype != table.dtype or queries.device != table.device:
        given = f"{tuple(queries.shape)} of {queries.dtype} on {queries.device}"
        raise LayoutError(f"queries have shape {given}: expected rows of {table.shape[1]}, of {table.dtype} on {table.device}")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= of.rows:
        raise OutOfRangeError(f"k is {k!r}: expected 1 to {of.rows}, the number of vectors")
    if of.row_bytes == 0:
        raise LayoutError("vectors have no elements")
    _without_gradient("knn", table, queries)
    _expect_no_capture(table.device, "its launches are told apart")
    with torch.no_grad():
        return _torch_ready.knn(of, queries, k, _stream(table.device))


def _named(dtype: Optional[torch.dtype]) -> Tuple[np.dtype[Any], Optional[str]]:
    """NumPy's type for the array, and what the elements are if NumPy has no such type."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    stored = _NAMES.get(kind)
    if stored is not None:
        return np.dtype(_BITS[kind.itemsize]), stored
    return torch.empty((), dtype=kind).numpy().dtype, None


def _of(array: Array, stored: Optional[str]) -> torch.Tensor:
    if stored is not None:
        array.stored = stored
    return tensor_of(array)


def zeros(shape: Union[int, Sequence[int]], vm: Vm, *, dtype: Optional[torch.dtype] = None, name: Optional[str] = None) -> torch.Tensor:
    """A tensor of zeros whose memory is an array's home: the host's memory, which the GPU reads and writes in place, as many bytes as it says."""
    kind, stored = _named(dtype)
    return _of(vm.zeros(shape, kind, name=name), stored)


def empty(shape: Union[int, Sequence[int]], vm: Vm, *, dtype: Optional[torch.dtype] = None, name: Optional[str] = None) -> torch.Tensor:
    """As :func:`zeros`: host memory is zero when it is taken."""
    return zeros(shape, vm, dtype=dtype, name=name)


def from_numpy(source: Any, vm: Vm, *, read_only: bool = False, copy: bool = False, name: Optional[str] = None) -> torch.Tensor:
    """A tensor on the GPU over the memory of a NumPy array or a ``numpy.memmap``, in place, or of a copy: as :meth:`gpuvm.Vm.array`. A copy is of the kind of
    memory that the GPU reads fastest at random. Nothing is to write to the tensor of what is ``read_only``."""
    return tensor_of(vm.array(source, read_only=read_only, copy=copy, name=name))


def from_file(
    path: Union[str, bytes, "os.PathLike[Any]"],
    vm: Vm,
    *,
    dtype: Optional[torch.dtype] = None,
    shape: Union[int, Sequence[int], None] = None,
    read_only: bool = True,
    offset: Optional[int] = None,
) -> torch.Tensor:
    """A tensor on the GPU over a file's pages, as :meth:`gpuvm.Vm.map_file`."""
    kind, stored = _named(dtype)
    return _of(vm.map_file(path, kind, shape, read_only=read_only, offset=offset), stored)


def _whole(array: Array) -> torch.Tensor:
    """All of an array as states of modules and optimizers have it: its tensor, or a copy where it has none."""
    if array._core.home() is not None:
        return tensor_of(array)
    return torch.from_numpy(array.numpy().reshape(-1).view(np.uint8)).view(_dtype_of(array)).view(array.shape)


#: Bytes of a part of what is stored to an array.
_PART = 64 << 20


def _restore(array: Array, values: torch.Tensor) -> None:
    """The reverse of :func:`_whole`, from any device, by parts."""
    if array.read_only:
        raise RegionError(f"array `{array.name}` is read-only: no state can be loaded into it")
    own = array_of(values)
    if own is array:
        return
    if own is not None:
        _bring_home(own)
    rows = max(1, _PART * array.shape[0] // max(array.nbytes, 1))
    for first in range(0, array.shape[0] if array.size else 0, rows):
        part = values[first : first + rows].detach().to("cpu", _dtype_of(array)).contiguous()
        array[first : first + rows] = part.view(torch.uint8).numpy().view(array.dtype).reshape(part.shape)


class _OverTable(torch.nn.Module):
    """What modules over a paged array share."""

    weight: torch.Tensor

    def __init__(self, table: Union[Array, torch.Tensor], vm: Optional[Vm] = None) -> None:
        super().__init__()
        if not isinstance(table, (Array, torch.Tensor)):
            raise ArgumentError(f"table is of type {type(table).__name__}: expected a gpuvm.Array, as vm.array(...) makes it, or the tensor of one")
        if isinstance(table, torch.Tensor) and array_of(table) is None:
            raise ArgumentError(
                "table is a tensor of no array: make one by gpuvm.torch.zeros(shape, vm), and store what it is to hold by copy_() or load_state_dict()"
            )
        table = _array_or(table, "table")
        if vm is not None and table.vm is not vm:
            raise ArgumentError("table belongs to another Vm")
        if table.ndim != 2:
            raise LayoutError(f"table has shape {table.shape}: expected rows and columns")
        if not _dtype_of(table).is_floating_point:
            raise DtypeError(f"table has {table.dtype}: expected floating-point numbers")
        self.table = table
        self.num_embeddings, self.embedding_dim = table.shape
        with torch.inference_mode(False):
            # A tensor of its own, so that the array's asks for no gradient.
            self.weight = _table_of(table).detach().requires_grad_(not table.read_only)
        self.device = self.weight.device

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The gradient of the table, summed over what was propagated back since :meth:`zero_grad`: a coalesced sparse COO tensor."""
        gradient = self.weight.grad
        return None if gradient is None else gradient.coalesce()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what was propagated back."""
        super().zero_grad(set_to_none)
        self.weight.grad = None

    def sgd_step(self, lr: float) -> None:
        """Adds ``-lr`` times the gradient to the table, row by row, and forgets it. Rows without a gradient are not touched."""
        if self.table.read_only:
            raise RegionError(f"array `{self.table.name}` is read-only: it cannot be trained")
        gradient = self.grad
        if gradient is None:
            return
        with torch.no_grad():
            index_add_(self.weight.detach(), gradient.indices().reshape(-1), gradient.values(), alpha=-lr)
        self.weight.grad = None

    def _save_to_state_dict(self, destination: Dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = _whole(self.table)

    def _load_from_state_dict(
        self, state_dict: Dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: List[str], unexpected: List[str], errors: List[str]
    ) -> None:
        key = prefix + "weight"
        others = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(others, prefix, metadata, strict, missing, unexpected, errors)
        given = state_dict.get(key)
        if given is None:
            missing.append(key)
        elif given.shape != self.weight.shape:
            errors.append(f"{key} has shape {tuple(given.shape)}: the table has {tuple(self.weight.shape)}")
        else:
            _restore(self.table, given)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, paged"


class Embedding(_OverTable):
    """``torch.nn.Embedding`` whose weight is a paged array: ``table`` of rows and columns, of float64, 32, 16 or bfloat16, or the tensor of one.

    The weight is a tensor of this module's kind and no parameter: ``parameters()`` does not have it, ``state_dict()`` does, in place, and
    ``load_state_dict()`` stores to the table. Its gradient is sparse; of a read-only table there is none. :attr:`grad` has it, :meth:`sgd_step` applies it,
    :meth:`zero_grad` forgets it. The optimizers of :mod:`gpuvm.optim` take ``[embedding.weight]`` and keep what they need beside the table. Those of PyTorch
    that take sparse gradients (``SGD`` without weight decay, ``Adagrad``, ``SparseAdam``; not ``Adam`` or ``AdamW``) do, too, and work on the table where
    it is: ``Adagrad`` has one, ``SparseAdam`` two tensors as large as the table, in GPU memory.
    """

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows by their numbers: a tensor of shape ``ids.shape + (embedding_dim,)``."""
        return take(self.weight, ids)


class EmbeddingBag(_OverTable):
    """``torch.nn.EmbeddingBag`` of modes ``"sum"`` and ``"mean"`` over a paged array; otherwise as :class:`Embedding`."""

    def __init__(self, table: Union[Array, torch.Tensor], vm: Optional[Vm] = None, *, mode: str = "mean") -> None:
        super().__init__(table, vm)
        if mode not in ("sum", "mean"):
            raise ArgumentError(f"mode is {mode!r}: expected 'sum' or 'mean'")
        self.mode = mode

    def forward(
        self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None, per_sample_weights: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """A row for each bag, as :func:`embedding_bag`."""
        return embedding_bag(ids, self.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


from ._torch_slots import SlotCache  # noqa: E402
