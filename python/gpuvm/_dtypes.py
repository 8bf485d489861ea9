"""Element types: between NumPy's and the core's, and memory that the core can have."""

from __future__ import annotations

import re
from typing import Any, Callable, Optional, Tuple, Type, TypedDict, TypeVar, Union

import numpy as np

from .errors import DtypeError, Error, LayoutError, SettingError

Given = TypeVar("Given")

#: Kind, bytes, alignment and name of an element type.
Described = Tuple[str, int, int, str]
#: Memory, as the core takes it.
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Wanted(TypedDict):
    """What an array is to be."""

    name: str
    element: Described
    read_only: bool
    never_evicted: bool
    placement: Optional[str]
    priority: int


class Growing(TypedDict):
    """What an elastic buffer is to be."""

    name: str
    element: Described
    most: int
    length: int
    tag: Optional[str]
    priority: int


class Tiered(TypedDict):
    """What a tiered buffer is to be."""

    name: str
    element: Described
    length: int
    budget: Optional[int]
    priority: int


class Shape(TypedDict):
    """What a launch is to be."""

    grid: Tuple[int, int, int]
    block: Tuple[int, int, int]
    shared: int
    thread_spans: int
    warp_spans: int
    deadline: Optional[float]


def whole(value: Any, what: str, low: int = 0, high: int = (1 << 63) - 1, error: Type[Error] = SettingError) -> int:
    """A whole number of some range, as the core takes it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise error(f"{what} is {value!r}: expected a whole number from {low} to {high}")
    return int(value)


def priority_of(value: Any, what: str) -> int:
    """A priority."""
    return whole(value, what, -(1 << 31), (1 << 31) - 1)


def seconds(value: Any, what: str) -> float:
    """A time; which lengths there are the core knows."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise SettingError(f"{what} is {value!r}: expected seconds")
    return float(value)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def bytes_of(value: Union[int, str], what: str, low: int = 1) -> int:
    """A number of bytes, or a size such as ``2GiB``."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(match.group(2).upper()) if match else None
        if match is None or unit is None:
            raise SettingError(f"{what} is {value!r}: expected bytes, or a size such as '64MiB' or '2GiB'")
        value = int(float(match.group(1)) * unit)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value < 1 << 63:
        raise SettingError(f"{what} is {value!r}: expected a number of bytes, {low} at least")
    return int(value)


def text(value: Any, what: str) -> str:
    """A name."""
    if not isinstance(value, str):
        raise SettingError(f"{what} is {value!r}: expected a text")
    return value


def if_given(read: Callable[[Any, str], Given], value: Any, what: str) -> Optional[Given]:
    """What ``read`` makes of a value; none of none."""
    return None if value is None else read(value, what)


def described(dtype: np.dtype[Any], what: str) -> Described:
    """What the core knows of a dtype: kind, bytes, alignment, name."""
    if dtype.hasobject or dtype.kind not in "biufcV" or dtype.subdtype is not None:
        raise DtypeError(f"{what} has dtype {dtype}: elements are numbers, or structures of numbers")
    if not dtype.isnative:
        raise DtypeError(f"{what} has dtype {dtype}, of another byte order: convert it by .astype({dtype.newbyteorder('=').str!r})")
    return dtype.kind, dtype.itemsize, dtype.alignment, dtype.name


def unmasked(source: Any, what: str) -> Any:
    """An object that is no masked array with masked elements: kernels know no masks."""
    mask = np.ma.getmask(source)
    # The mask of a structure has a value for each field.
    if mask is not np.ma.nomask and np.ascontiguousarray(mask).reshape(-1).view(np.bool_).any():
        raise LayoutError(f"{what} is a NumPy masked array, and kernels see what is under the mask: give .filled(value)")
    return source


def in_place(source: Any, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """An object's memory as a NumPy array, without a copy."""
    if not isinstance(source, np.ndarray):
        try:
            view = memoryview(source)
        except TypeError:
            raise DtypeError(
                f"array `{name}`: an object of type {type(source).__name__} has no memory of its own (buffer protocol); "
                "make it a NumPy array first, or say copy=True"
            ) from None
        if not view.c_contiguous:
            raise LayoutError(f"array `{name}`: the memory is not contiguous; say copy=True")
        source = np.asarray(view)
    if not source.flags.c_contiguous:
        raise LayoutError(
            f"array `{name}`: the memory of shape {source.shape} with strides {source.strides} is not contiguous by rows; "
            "say copy=True, or pass numpy.ascontiguousarray(...)"
        )
    found: np.ndarray[Any, np.dtype[Any]] = source
    return found


def as_bytes(array: np.ndarray[Any, np.dtype[Any]]) -> Bytes:
    """The bytes of a contiguous array, as the core takes them."""
    # Subclasses have shapes of their own: a matrix stays one of two dimensions.
    return np.asarray(array).reshape(-1).view(np.uint8)


def rows_of(shape: Tuple[int, ...]) -> int:
    """Elements of a row: of all dimensions but the first."""
    row = 1
    for length in shape[1:]:
        row *= length
    return row
