"""Tensors of ``.safetensors`` files and columns of Arrow IPC files as arrays, in place."""

import os
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._memory import Array
from ._vm import Vm

_Path = Union[str, bytes, "os.PathLike[Any]"]
_Place = Tuple[str, int, int, int]

_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "U16": "u2",
    "U32": "u4",
    "U64": "u8",
    "I8": "i1",
    "I16": "i2",
    "I32": "i4",
    "I64": "i8",
    "F16": "f2",
    "F32": "f4",
    "F64": "f8",
    "C64": "c8",
    # NumPy has none: the bits.
    "BF16": "u2",
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), "u1"),
}


def _array(vm: Vm, path: str, name: str, place: _Place, shape: Optional[Sequence[int]], options: Mapping[str, Any]) -> Array:
    """An array over a place of a file; of ``shape``, if elements are whole bytes that NumPy knows."""
    dtype, length, offset, size = place
    values = re.fullmatch("BYTES([0-9]+)", dtype)
    if dtype in _DTYPES:
        kind, lengths = np.dtype(_DTYPES[dtype]), tuple(shape if shape is not None else (length,))
    elif values and shape is None:
        kind, lengths = np.dtype("u1"), (length, int(values[1]))
    elif dtype == "F4" and shape and shape[-1] % 2 == 0:
        # Two numbers in a byte.
        kind, lengths = np.dtype("u1"), (*shape[:-1], shape[-1] // 2)
    else:
        # Bits, numbers of fewer bits than a byte has, and values that are no numbers: bytes.
        kind, lengths = np.dtype("u1"), (size,)
    array = vm.map_file(path, kind, lengths, offset=offset, name=name, **options)
    array.stored = dtype
    return array


class Tensors(Mapping[str, Array]):
    """The tensors of a ``.safetensors`` file by their names. An array is made when it is asked for first.

    Types that NumPy lacks are the same bits: ``bfloat16`` is ``uint16``, for which a kernel takes ``gpuvm::array<const __nv_bfloat16>``, the
    kinds of ``float8`` are ``uint8``. ``float4`` is two in a ``uint8``, so its last dimension is half as long, and ``float6`` packed bytes in one
    dimension. ``dtypes`` and ``shapes``, and ``stored`` of each array, have what the file says.
    """

    def __init__(self, vm: Vm, path: _Path, **options: Any) -> None:
        self._vm, self._path, self._options = vm, os.fsdecode(path), options
        tensors, notes = _core.tensors_of(self._path)
        self._tensors = {name: (shape, place) for name, shape, place in tensors}
        self._arrays: Dict[str, Array] = {}
        #: The type of each tensor's elements, as the file has it, such as ``F8_E4M3``.
        self.dtypes: Dict[str, str] = {name: place[0] for name, _, place in tensors}
        #: The shape of each tensor, as the file has it.
        self.shapes: Dict[str, Tuple[int, ...]] = {name: tuple(shape) for name, shape, _ in tensors}
        #: What the file says of itself.
        self.notes: Dict[str, str] = dict(notes)

    def __getitem__(self, name: str) -> Array:
        shape, place = self._tensors[name]
        found = self._arrays.get(name)
        if found is None or found.closed:
            found = _array(self._vm, self._path, name, place, shape, self._options)
            self._arrays[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {self._path}>"


class Part:
    """A column's rows in one record batch, or what is nested in them."""

    def __init__(
        self,
        rows: int,
        nulls: int,
        values: Array,
        validity: Optional[Array],
        offsets: Optional[Array],
        list_size: Optional[int] = None,
        items: Optional["Part"] = None,
        dictionary: Sequence["Part"] = (),
        within: Sequence[Array] = (),
        buffers: Sequence[Array] = (),
    ) -> None:
        #: How many rows it has.
        self.rows: int = rows
        #: How many of them are null.
        self.nulls: int = nulls
        #: The values, one for each row; of booleans 8 in a byte, the lowest bit first; of strings the bytes of all of them; of lists the
        #: values of all items, of numbers in lists that are all as long as ``(rows, list_size)``.
        self.values: Array = values
        #: A bit for each row, 0 for a null; none where the file keeps none.
        self.validity: Optional[Array] = validity
        #: Of strings and binary: value ``i`` is the bytes from ``offsets[i]`` up to ``offsets[i + 1]``; of lists the items.
        self.offsets: Optional[Array] = offsets
        #: Of lists that are all as long: their length.
        self.list_size: Optional[int] = list_size
        #: Of lists: the items of all rows one after another, with their own nulls and offsets.
        self.items: Optional["Part"] = items
        #: Of a column that a dictionary encodes: what the values are places in, in parts one after another.
        self.dictionary: List["Part"] = list(dictionary)
        #: Of a field of structures: which of those around it are there, the outermost first, as in ``validity``. A row is null where any of
        #: these or its own bit is 0.
        self.within: List[Array] = list(within)
        #: Of views of strings: what the values, 16 bytes each, are views of.
        self.buffers: List[Array] = list(buffers)

    def __repr__(self) -> str:
        return f"<{self.rows} rows, {self.nulls} of them null, of {self.values!r}>"


class Columns(Mapping[str, List[Part]]):
    """The columns of an Arrow IPC file by their names, each as one part for each record batch. A field of structures is a column: ``x`` of
    ``point`` is ``point.x``. Arrays are made when they are asked for first. What is no array of elements in the file is a
    :class:`gpuvm.errors.FileError` that says what to do: columns that are compressed, unions or encoded by their runs; and so is a name that
    several columns have, which :meth:`at` tells apart.
    """

    def __init__(self, vm: Vm, path: _Path, **options: Any) -> None:
        self._vm, self._path, self._options = vm, os.fsdecode(path), options
        self._core = _core.Columns(self._path)
        self._names = list(dict.fromkeys(self._core.names()))
        self._parts: Dict[str, List[Part]] = {}
        # All batches have the same ones.
        self._dictionaries: Dict[Tuple[str, _Place], Part] = {}

    def __getitem__(self, name: str) -> List[Part]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._parts:
            self._parts[name] = [self._part(name, part) for part in self._core.parts(name)]
        return self._parts[name]

    def at(self, number: int) -> List[Part]:
        """Column ``number`` of the file, from 0, where several have one name. A field of structures is a column."""
        return [self._part(str(number), part) for part in self._core.parts_at(number)]

    def _part(self, name: str, part: _core.Part) -> Part:
        def arrays(what: str, places: Sequence[_Place]) -> List[Array]:
            return [_array(self._vm, self._path, f"{name}.{what}", place, None, self._options) for place in places]

        def array(what: str, place: Optional[_Place]) -> Optional[Array]:
            return None if place is None else arrays(what, [place])[0]

        items = None if part.items is None else self._part(f"{name}.items", part.items)
        # A list's values are those of its items: one array, but that lists of one length may be seen as rows.
        size, (dtype, length, _, _) = part.list_size, part.values
        if items is None:
            values = _array(self._vm, self._path, name, part.values, None, self._options)
        elif size is not None and dtype in _DTYPES and length == part.rows * size:
            values = _array(self._vm, self._path, name, part.values, (part.rows, size), self._options)
        else:
            values = items.values
        dictionary = [self._dictionary(f"{name}.dictionary", of) for of in part.dictionary]
        within, buffers = arrays("within", part.within), arrays("buffers", part.buffers)
        validity, offsets = array("validity", part.validity), array("offsets", part.offsets)
        return Part(part.rows, part.nulls, values, validity, offsets, part.list_size, items, dictionary, within, buffers)

    def _dictionary(self, name: str, part: _core.Part) -> Part:
        found = self._dictionaries.get((name, part.values))
        if found is None:
            found = self._dictionaries[name, part.values] = self._part(name, part)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<{len(self)} columns of {self._path}>"


def safetensors(vm: Vm, path: _Path, *, placement: Optional[str] = None, never_evicted: bool = False, priority: int = 0) -> Tensors:
    """The tensors of a ``.safetensors`` file as arrays of ``vm``, read-only, in place: nothing is read before a kernel touches it. Nothing
    may write the file, or make it shorter, while they live. The options are those of :meth:`Vm.map_file`.
    """
    return Tensors(vm, path, placement=placement, never_evicted=never_evicted, priority=priority)


def feather(vm: Vm, path: _Path, *, placement: Optional[str] = None, never_evicted: bool = False, priority: int = 0) -> Columns:
    """The columns of an Arrow IPC file, which is Feather's version 2, as arrays of ``vm``: see :func:`safetensors`. Write it without
    compression: ``pyarrow.feather.write_feather(table, path, compression="uncompressed")``.
    """
    return Columns(vm, path, placement=placement, never_evicted=never_evicted, priority=priority)
