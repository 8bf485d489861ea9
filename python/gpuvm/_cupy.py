"""What CuPy's elementwise and reduction kernels get around them, in place of what CuPy itself puts there."""

from __future__ import annotations

import math
from string import Template
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from cupy._core._scalar import get_typename

from ._memory import Array, Buffer
from .errors import ArgumentError, DtypeError, LayoutError, UnavailableError

if TYPE_CHECKING:
    from ._vm import Vm

_HEAD = r"""
#include <cupy/complex.cuh>
#include <cupy/carray.cuh>
#include <cupy/atomics.cuh>
#include <cupy/math_constants.h>
${more_headers}
template <int dimensions>
struct gpuvm_layout {
  long long shape[dimensions], strides[dimensions];
};
${typedefs}
${preamble}
"""

#: CuPy 14 has the type in a file of its own, CuPy 13 with the others.
_HALF = ["#if __has_include(<cupy/float16.cuh>)", "#include <cupy/float16.cuh>", "#endif"]

ELEMENTWISE = Template(
    _HEAD
    + r"""
extern "C" __global__ void ${name}(${parameters}) {
  ${arrays}
  CIndexer<${dimensions}> _ind(_layout.shape);
  ${loop_prep};
  #pragma unroll 1
  CUPY_FOR(i, _ind.size()) {
    _ind.set(i);
    ${elements}
    ${operation};
  }
  ${after_loop};
}
"""
)

#: A block, or several that leave a part each, for a result. The launch for the last step takes the parts for elements.
REDUCTION = Template(
    _HEAD
    + r"""
typedef ${reduce_type} _type_reduce;
static_assert(sizeof(_type_reduce) <= ${part}, "the type of a reduction is larger than gpuvm has room for");
#define REDUCE(a, b) (${reduce_expr})
#define POST_MAP(a) ${post_map_expr}
extern "C" __global__ void ${name}(${parameters}, long long _results, long long _count, int _shared_by, bool _last, char* _parts) {
  ${arrays}
  CIndexer<${dimensions}> _in_ind(_layout.shape);
  __shared__ __align__(16) char _space[${block} * sizeof(_type_reduce)];
  _type_reduce* _all = reinterpret_cast<_type_reduce*>(_space);
  unsigned int _tid = threadIdx.x;
  for (ptrdiff_t _i = blockIdx.x; _i < _results; _i += gridDim.x) {
    _type_reduce _s = _type_reduce(${identity});
    if (_last) {
      for (int _k = _tid; _k < _shared_by; _k += ${block}) {
        _type_reduce _a = *reinterpret_cast<_type_reduce*>(_parts + (_i * _shared_by + _k) * ${part});
        _s = REDUCE(_s, _a);
      }
    } else {
      ptrdiff_t _each = (_count + _shared_by - 1) / _shared_by, _first = blockIdx.y * _each;
      ptrdiff_t _end = _first + _each < _count ? _first + _each : _count;
      for (ptrdiff_t _J = _first + _tid; _J < _end; _J += ${block}) {
        ptrdiff_t _j = _i * _count + _J;
        _in_ind.set(_j);
        ${elements}
        _type_reduce _a = static_cast<_type_reduce>(${map_expr});
        _s = REDUCE(_s, _a);
      }
    }
    __syncthreads();
    _all[_tid] = _s;
    for (unsigned int _half = ${block} / 2; _half; _half /= 2) {
      __syncthreads();
      if (_tid < _half) {
        _type_reduce _a = _all[_tid], _b = _all[_tid + _half];
        _all[_tid] = REDUCE(_a, _b);
      }
    }
    if (_tid) continue;
    _s = _all[0];
    if (!_last && _shared_by > 1) {
      *reinterpret_cast<_type_reduce*>(_parts + (_i * _shared_by + blockIdx.y) * ${part}) = _s;
      continue;
    }
    ${results}
    POST_MAP(_s);
  }
}
"""
)


class Operand:
    """An argument of such a kernel: an array with its shape and strides in bytes, or a number."""

    def __init__(self, param: Any, output: bool, value: Any, place: int) -> None:
        self.name: str = param.name
        self.raw: bool = param.raw
        self.output = output
        self.value = value
        self.dtype: Optional[np.dtype[Any]] = None
        self.is_array = True
        if output and isinstance(value, Array) and value.read_only:
            raise ArgumentError(f"argument {place + 1}, `{self.name}`, is written, and the array is read-only")
        if isinstance(value, (Array, Buffer)):
            self.dtype, self.shape = value.dtype, value.shape
            self.strides = self._by_rows()
            self.given: Any = value
        elif hasattr(value, "__cuda_array_interface__"):
            interface = value.__cuda_array_interface__
            self.dtype, self.shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
            self.strides = tuple(interface.get("strides") or self._by_rows())
            self.given = ("u", 1, 1, "bytes"), interface["data"][0] or 0, value
        elif isinstance(value, (bool, int, float, complex, np.generic)) and not output:
            self.is_array, self.shape, self.strides = False, (), ()
        else:
            expected = "an array" if output else "an array or a number"
            raise ArgumentError(f"argument {place + 1}, `{self.name}`, is an object of type {type(value).__name__}: expected {expected}")

    def _by_rows(self) -> Tuple[int, ...]:
        size = self.dtype.itemsize if self.dtype else 1
        return tuple(size * math.prod(self.shape[place + 1 :]) for place in range(len(self.shape)))

    @property
    def by_rows(self) -> bool:
        """Whether its elements lie one behind the other."""
        return self.strides == self._by_rows()

    @property
    def in_loop(self) -> bool:
        """Whether the loop goes over its elements."""
        return self.is_array and not self.raw

    def make_flat(self) -> None:
        """One dimension, of elements one behind the other."""
        self.shape = (math.prod(self.shape),)
        self.strides = self._by_rows()

    def broadcast(self, shape: Tuple[int, ...]) -> None:
        """Strides of 0 where it has one element for many."""
        ahead = len(shape) - len(self.shape)
        strides = [0 if own != wanted else stride for own, wanted, stride in zip(self.shape, shape[ahead:], self.strides)]
        self.shape, self.strides = shape, (*[0] * ahead, *strides)


def _layout(shape: Sequence[int], strides: Sequence[int]) -> Any:
    """`gpuvm_layout`, by value."""
    words = np.array([*shape, *strides], np.int64)
    return words.view([("words", np.int64, len(words))])[0]


class Frame:
    """The arguments of a launch, and the text around the kernel for such arguments."""

    def __init__(self, vm: "Vm", name: str, inputs: Sequence[Any], outputs: Sequence[Any], args: Sequence[Any]) -> None:
        if len(args) not in (len(inputs), len(inputs) + len(outputs)):
            raise ArgumentError(f"kernel `{name}`: {len(args)} arguments were given, it takes {len(inputs)}, or {len(inputs) + len(outputs)}")
        self._vm, self._name = vm, name
        self._params = [*inputs, *outputs]
        ins = len(inputs)
        self._operands = [Operand(param, at >= ins, value, at) for at, (param, value) in enumerate(zip(self._params, args))]
        self._made = [] if len(args) > ins else list(outputs)
        self._letters: Dict[str, np.dtype[Any]] = {}
        self._decide()
        self.shape: Tuple[int, ...] = ()

    def _decide(self) -> None:
        """Types of the parameters: arrays have exactly theirs, and numbers become them."""
        of_arrays = [(param, one) for param, one in zip(self._params, self._operands) if one.is_array]
        of_numbers = [(param, one) for param, one in zip(self._params, self._operands) if not one.is_array]
        for param, one in of_arrays:
            wanted = param.dtype or self._letters.setdefault(param.ctype, np.dtype(one.dtype))
            if np.dtype(wanted) != one.dtype:
                raise DtypeError(f"kernel `{self._name}`: `{one.name}` is {np.dtype(wanted)}, and an array of {one.dtype} was given")
        for param, one in of_numbers:
            wanted = param.dtype or self._letters.setdefault(param.ctype, np.asarray(one.value).dtype)
            one.dtype = np.dtype(wanted)
            one.given = one.dtype.type(one.value)

    def _type(self, param: Any) -> np.dtype[Any]:
        found = param.dtype or self._letters.get(param.ctype)
        if found is None:
            raise DtypeError(f"kernel `{self._name}`: no argument says what `{param.ctype}` of `{param.name}` is")
        return np.dtype(found)

    def loop_over(self, size: Optional[int], outputs: bool) -> None:
        """Decides what the loop goes over, with the outputs that were given or without, and broadcasts to it."""
        looped = [one for one in self._operands if one.in_loop and (outputs or not one.output)]
        shapes = [one.shape for one in looped]
        if size is not None:
            if shapes:
                raise ArgumentError(f"kernel `{self._name}`: a size is given where all arrays are raw")
            shapes = [(size,)]
        elif not shapes:
            raise ArgumentError(f"kernel `{self._name}`: its arrays are raw: say size=")
        try:
            self.shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise LayoutError(f"kernel `{self._name}`: shapes {shapes} cannot be broadcast together") from None
        for one in looped:
            if one.output:
                self._check(one, self.shape)
            else:
                one.broadcast(self.shape)

    def _check(self, one: Operand, shape: Tuple[int, ...]) -> None:
        if one.shape != shape:
            raise LayoutError(f"kernel `{self._name}`: output `{one.name}` has shape {one.shape}, and {shape} is needed")

    def make_outputs(self, shape: Tuple[int, ...]) -> None:
        """Makes arrays for outputs that were not given."""
        for param in self._made:
            if param.raw:
                raise ArgumentError(f"kernel `{self._name}`: output `{param.name}` is raw: give an array for it")
            made = self._vm.zeros(shape, self._type(param))
            self._operands.append(Operand(param, True, made, len(self._operands)))
        self._made = []

    def reduce(self, axis: Union[None, int, Tuple[int, ...]], keepdims: bool) -> Tuple[int, int]:
        """Puts the axes to reduce last. Returns how many elements a result has, and how many results there are."""
        rank = len(self.shape)
        given = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if any(not -rank <= one < rank for one in given) or len({one % rank for one in given}) != len(given):
            raise ArgumentError(f"kernel `{self._name}`: axis {axis} is wrong for shape {self.shape}")
        reduced = sorted(one % rank for one in given)
        kept = [one for one in range(rank) if one not in reduced]
        lengths = [1 if one in reduced else length for one, length in enumerate(self.shape) if keepdims or one in kept]
        for one in self._operands:
            if one.in_loop and one.output:
                self._check(one, tuple(lengths))
        self.make_outputs(tuple(lengths))
        count, results = (math.prod(self.shape[one] for one in axes) for axes in (reduced, kept))
        for one in self._operands:
            if one.in_loop and not one.output:
                one.shape = tuple(one.shape[at] for at in (*kept, *reduced))
                one.strides = tuple(one.strides[at] for at in (*kept, *reduced))
        self.shape = tuple(self.shape[at] for at in (*kept, *reduced))
        return count, results

    def flatten(self) -> None:
        """Makes one dimension of what lies one behind the other in the loop's order."""
        looped = [one for one in self._operands if one.in_loop and one.shape == self.shape]
        if all(one.by_rows for one in looped):
            for one in looped:
                one.make_flat()
            self.shape = (math.prod(self.shape),)

    @property
    def count(self) -> int:
        """How often the loop goes round."""
        return math.prod(self.shape)

    def source(self, template: Template, **texts: str) -> str:
        """The whole text. It depends on types, and on how many dimensions there are."""
        parameters: List[str] = []
        arrays: List[str] = []
        elements: List[str] = []
        results: List[str] = []
        for at, (param, one) in enumerate(zip(self._params, self._operands)):
            kind, const = param.ctype, "" if one.output else "const "
            if not one.is_array:
                parameters.append(f"const {kind} {one.name}")
                continue
            rank, name = max(len(one.shape), 1), one.name if one.raw else f"_raw_{one.name}"
            parameters += [f"{kind}* _pointer{at}", f"const gpuvm_layout<{rank}> _layout{at}"]
            contiguous = "true" if one.by_rows else "false"
            arrays.append(f"{const}CArray<{kind}, {rank}, {contiguous}, false> {name}(_pointer{at}, _layout{at}.shape, _layout{at}.strides);")
            if not one.raw:
                place = "_i" if one.output else "_in_ind.get()"
                place = "_ind.get()" if template is ELEMENTWISE else place
                (results if one.output else elements).append(f"{const}{kind} &{one.name} = {name}[{place}];")
        if template is ELEMENTWISE:
            elements += results
        rank = max(len(self.shape), 1)
        return template.substitute(
            texts,
            name=self._name,
            typedefs="\n".join(f"typedef {_typename(self._name, dtype)} {letter};" for letter, dtype in sorted(self._letters.items())),
            parameters=", ".join([*parameters, f"const gpuvm_layout<{rank}> _layout"]),
            dimensions=str(rank),
            more_headers="\n".join(_HALF if any(one.dtype == np.float16 for one in self._operands) else []),
            arrays="\n  ".join(arrays),
            elements="\n    ".join(elements),
            results="\n    ".join(results),
        )

    def given(self) -> List[Any]:
        """Arguments of the launch."""
        found = []
        for one in self._operands:
            if one.is_array and one.dtype:
                # No memory where there is no element; one dimension where there is none.
                layout = _layout(one.shape or (1,), one.strides or (one.dtype.itemsize,))
                found += [one.given if math.prod(one.shape) else None, layout]
            else:
                found.append(one.given)
        shape = self.shape or (1,)
        return [*found, _layout(shape, [0] * len(shape))]

    def outputs(self) -> Tuple[Any, ...]:
        """The arrays that were written."""
        return tuple(one.value for one in self._operands if one.output)


def _typename(name: str, dtype: np.dtype[Any]) -> str:
    try:
        found: str = get_typename(dtype)
    except (KeyError, ValueError, TypeError):
        raise UnavailableError(f"kernel `{name}`: CuPy has no type for elements of {dtype}") from None
    return found
