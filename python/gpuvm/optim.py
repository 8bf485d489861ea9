"""Optimizers of embeddings whose tables are larger than GPU memory, and so is what they keep: ``torch.optim``'s, over the rows that a step used.

>>> embedding = gpuvm.torch.Embedding(gpuvm.torch.zeros((100_000_000, 64), vm))                     # doctest: +SKIP
>>> optimizer = gpuvm.optim.Adagrad([embedding.weight], lr=0.1)                                      # doctest: +SKIP
>>> embedding(ids).square().sum().backward()                                                         # doctest: +SKIP
>>> optimizer.step()                                                                                 # doctest: +SKIP

They take weights of :class:`gpuvm.torch.Embedding` and :class:`gpuvm.torch.EmbeddingBag`. What they keep lies in home memory beside the table, as paged
arrays of the same Vm. A step sums the gradients of each row, reads the rows that were used, and what is kept of them, computes, and stores them, all on the
current stream: numbers of rows stay on the GPU, and nothing waits but for pages that come (:mod:`gpuvm.torch`). Rows without a gradient are not touched.
Steps are counted on the host: no CUDA graph is to capture one.

Sums and what is kept are float32 at least: of float16 and bfloat16 tables a step rounds each element once. On a GPU the gradients of one row are added
in no order that is known, unless ``torch.use_deterministic_algorithms(True)`` says so. ``state_dict()`` has tensors over home memory, by the names of
``torch.optim``, whose optimizers take them and whose own these take.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from . import _rows
from ._memory import Array
from .errors import ArgumentError, ClosedError, LayoutError, RegionError
from .torch import _expect_no_capture, _put, _restore, _table_of, _take, _whole, array_of

__all__ = ["SGD", "Adagrad", "RowwiseAdagrad", "SparseAdam"]


def _array(weight: torch.Tensor) -> Array:
    array = array_of(weight)
    if array is None or weight.shape != array.shape:
        raise ArgumentError("a weight is not the whole table of a paged array, as gpuvm.torch.Embedding has it: torch.optim is for other parameters")
    return array


def _summed(gradient: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """The rows of a sparse gradient, each once, and the sums of what they have. There are as many as the gradient has numbers, so that nothing asks the GPU
    how many are different: ``_rows.NONE`` and zeros are behind the last one."""
    ids, values = gradient._indices()[0], gradient._values()
    ordered, order = ids.sort()
    places = torch.zeros_like(ids)
    places[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    rows = torch.full_like(ids, _rows.NONE).scatter_(0, places, ordered)
    kind = torch.promote_types(values.dtype, torch.float32)
    sums = torch.zeros(values.shape, dtype=kind, device=values.device)
    # In the order in which ``coalesce`` adds them.
    sums.index_add_(0, places, values.index_select(0, order).to(kind))
    return rows, sums


#: What ``torch.optim`` has besides, and needs to find in what it loads.
_NONE_HERE: Dict[str, Any] = {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}


class _Optimizer(torch.optim.Optimizer):
    """What they share. A class says what it keeps of each element, and of each row, by the names of ``torch.optim``."""

    _of_elements: Tuple[str, ...] = ()
    _of_rows: Tuple[str, ...] = ()

    def __init__(self, params: Any, defaults: Dict[str, Any]) -> None:
        #: A weight's table, and what is kept beside it, as operations take them.
        self._tables: Dict[torch.Tensor, List[torch.Tensor]] = {}
        self._arrays: Dict[torch.Tensor, Array] = {}
        super().__init__(params, {**defaults, **_NONE_HERE})

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As ``torch.optim.Optimizer.add_param_group``; the parameters are weights of this package's embeddings."""
        super().add_param_group(param_group)
        try:
            others = [_array(weight) for group in self.param_groups[:-1] for weight in group["params"]]
            for weight in self.param_groups[-1]["params"]:
                array = _array(weight)
                if array.read_only:
                    raise RegionError(f"array `{array.name}` is read-only: it cannot be trained")
                if any(array is other for other in others):
                    raise ArgumentError(f"array `{array.name}` is trained by two weights: each would have a state of its own; use one module for it")
                others.append(array)
                self._arrays[weight] = array
        except Exception:
            self.param_groups.pop()
            raise

    def _update(self, group: Dict[str, Any], step: int, gradient: torch.Tensor, rows: torch.Tensor, *kept: torch.Tensor) -> None:
        """Changes rows, and what is kept of them, in place."""
        raise NotImplementedError

    def _state_of(self, group: Dict[str, Any], weight: torch.Tensor) -> Dict[str, Any]:
        if not self.state[weight]:
            table, kept = _array(weight), {}
            kind = "float64" if weight.dtype is torch.float64 else "float32"
            for name in (*self._of_elements, *self._of_rows):
                shape = table.shape if name in self._of_elements else table.shape[:1]
                kept[name] = table.vm.zeros(shape, kind, name=f"{name} of {table.name}")
                value = group.get("initial_accumulator_value", 0)
                if value:
                    _restore(kept[name], torch.tensor(value, dtype=torch.float64).expand(shape))
            self._tables[weight] = [weight.detach(), *map(_table_of, kept.values())]
            self.state[weight].update(step=0, **kept)
        state: Dict[str, Any] = self.state[weight]
        return state

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Applies the gradients to the tables. ``closure``: computes the loss anew, as of ``torch.optim``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _expect_no_capture(weight.device, "steps are counted by the host")
                    self._train(group, weight)
        return loss

    def _train(self, group: Dict[str, Any], weight: torch.Tensor) -> None:
        if not weight.grad.is_sparse:
            raise LayoutError("a weight has a dense gradient: expected a sparse one, as gpuvm.torch.Embedding, take and embedding_bag have it")
        array = self._arrays[weight]
        if array.closed:
            raise ClosedError(f"array `{array.name}` was closed, or its Vm was: it cannot be trained")
        state = self._state_of(group, weight)
        step: int = state["step"] + 1
        if weight.grad._values().numel():
            ids, gradient = _summed(weight.grad)
            tables = self._tables[weight]
            # Raises before anything is stored.
            rows = [_take(table, ids, is_list=True).to(gradient.dtype) for table in tables]
            self._update(group, step, gradient, *rows)
            for table, new in zip(tables, rows):
                _put(table, ids, new)
        state["step"] = step

    def state_dict(self) -> Dict[str, Any]:
        """As of ``torch.optim``: what is kept are tensors over home memory, in place, or copies where PyTorch does not reach that."""
        packed: Dict[str, Any] = super().state_dict()
        states = packed["state"].items()
        packed["state"] = {at: {name: _whole(one) if isinstance(one, Array) else one for name, one in state.items()} for at, state in states}
        return packed

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Stores what was kept to home memory, from tensors of any device, such as those of ``torch.load(..., map_location="cpu", mmap=True)``."""
        given, before = state_dict["state"], self.state
        self._expect(state_dict)
        super().load_state_dict({**state_dict, "state": {}})
        numbers: List[int] = list(chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
        pairs = [(group, weight) for group in self.param_groups for weight in group["params"]]
        loaded = [(number, *pair) for number, pair in zip(numbers, pairs) if number in given]
        for _, _, weight in loaded:
            # What is kept is lost by no error further on.
            self.state[weight] = before[weight] if weight in before else {}
        for number, group, weight in loaded:
            state = self._state_of(group, weight)
            state["step"] = int(given[number].get("step", 0))
            for name in (*self._of_elements, *self._of_rows):
                _restore(state[name], given[number][name])

    def _expect(self, state_dict: Dict[str, Any]) -> None:
        """Raises before anything is stored."""
        for group in state_dict["param_groups"]:
            for name in _NONE_HERE:
                if group.get(name):
                    raise ArgumentError(f"the state is of an optimizer with `{name}` of {group[name]}, which these have not: expected 0")
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        weights = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, weight in zip(numbers, weights):
            given = state_dict["state"].get(number)
            for name in (*self._of_elements, *self._of_rows) if given is not None else ():
                expected = tuple(weight.shape if name in self._of_elements else weight.shape[:1])
                if name not in given or tuple(given[name].shape) != expected:
                    found = f"`{name}` of shape {tuple(given[name].shape)}" if name in given else f"no `{name}`"
                    raise ArgumentError(f"the state of weight {number} has {found}: expected {expected}, of the same optimizer and table")


class SGD(_Optimizer):
    """``torch.optim.SGD`` without momentum, which would touch all rows. It keeps nothing."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": _positive(lr, "lr")})

    def _update(self, group: Dict[str, Any], step: int, gradient: torch.Tensor, rows: torch.Tensor, *kept: torch.Tensor) -> None:
        rows.add_(gradient, alpha=-group["lr"])


class Adagrad(_Optimizer):
    """``torch.optim.Adagrad``. It keeps a number of each element."""

    _of_elements = ("sum",)

    def __init__(self, params: Any, lr: float = 1e-2, lr_decay: float = 0, initial_accumulator_value: float = 0, eps: float = 1e-10) -> None:
        more = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, {"lr": _positive(lr, "lr"), **{name: _positive(value, name) for name, value in more.items()}})

    def _update(self, group: Dict[str, Any], step: int, gradient: torch.Tensor, rows: torch.Tensor, *kept: torch.Tensor) -> None:
        kept[0].add_(gradient.pow(2))
        rate = group["lr"] / (1 + (step - 1) * group["lr_decay"])
        rows.add_(gradient / kept[0].sqrt().add_(group["eps"]), alpha=-rate)


class RowwiseAdagrad(_Optimizer):
    """Adagrad with one number a row, the sum of the means of its gradient's squares: of a table of 64 columns 1/64 of what :class:`Adagrad` keeps."""

    _of_rows = ("sum",)

    def __init__(self, params: Any, lr: float = 1e-2, initial_accumulator_value: float = 0, eps: float = 1e-10) -> None:
        more = {"initial_accumulator_value": initial_accumulator_value, "eps": eps}
        super().__init__(params, {"lr": _positive(lr, "lr"), **{name: _positive(value, name) for name, value in more.items()}})

    def _update(self, group: Dict[str, Any], step: int, gradient: torch.Tensor, rows: torch.Tensor, *kept: torch.Tensor) -> None:
        kept[0].add_(gradient.pow(2).flatten(1).mean(1))
        root = kept[0].sqrt().add_(group["eps"])
        rows.add_(gradient / root.view(-1, *[1] * (gradient.dim() - 1)), alpha=-group["lr"])


class SparseAdam(_Optimizer):
    """``torch.optim.SparseAdam``: moments of rows without a gradient stay as they are. It keeps two numbers of each element."""

    _of_elements = ("exp_avg", "exp_avg_sq")

    def __init__(self, params: Any, lr: float = 1e-3, betas: Tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ArgumentError(f"betas are {betas!r}: expected two numbers from 0 to below 1")
        super().__init__(params, {"lr": _positive(lr, "lr"), "betas": tuple(betas), "eps": _positive(eps, "eps")})

    def _update(self, group: Dict[str, Any], step: int, gradient: torch.Tensor, rows: torch.Tensor, *kept: torch.Tensor) -> None:
        mean, square = kept
        first, second = group["betas"]
        # In torch.optim's order, so that each number is rounded as there.
        by = gradient.sub(mean).mul_(1 - first)
        by_square = gradient.pow(2).sub_(square).mul_(1 - second)
        mean.add_(by)
        square.add_(by_square)
        rate = group["lr"] * math.sqrt(1 - second**step) / (1 - first**step)
        rows.add_(-rate * (mean / square.sqrt().add_(group["eps"])))


def _positive(value: float, what: str) -> float:
    if not value >= 0:
        raise ArgumentError(f"{what} is {value!r}: expected a number of at least 0")
    return value
