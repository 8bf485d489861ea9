"""The virtual memory."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._dtypes import Wanted, as_bytes, bytes_of, described, if_given, in_place, priority_of, seconds, text, unmasked, whole
from ._elastic import ElasticBuffer
from ._kernel import Kernel, Module, Stream
from ._memory import Array, Buffer
from ._slots import SlotCache
from ._tiered import TieredBuffer
from .errors import DtypeError, FileError, RegionError, SettingError

Lengths = Union[int, Sequence[int]]

#: What a setting may be given as.
Value = Union[str, bytes, int, float, "os.PathLike[Any]", None]

_SETTINGS = {name: (kind, what) for name, kind, what in _core.settings()}


def settings() -> Dict[str, str]:
    """The settings of a :class:`Vm`, which Rust, C and C++ have by the same names: what the value of each is, and what it is for."""
    return {name: f"({kind}) {what}" for name, (kind, what) in _SETTINGS.items()}


def _written(name: str, value: Any) -> str:
    """A setting's value, as the core reads it."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value)
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    # Short names are not in the table: the core knows what they are.
    kind, _ = _SETTINGS.get(name.replace("-", "_"), ("a value", ""))
    if kind == "text" or not isinstance(value, (int, float, np.integer, np.floating)):
        raise SettingError(f"{name} is {value!r}: expected {'a text' if kind == 'text' else kind}")
    return str(value)


def _shape(value: Lengths, what: str) -> Tuple[int, ...]:
    lengths = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 0:
            raise RegionError(f"{what} has shape {value!r}: lengths are whole numbers from 0 on")
    shape = tuple(int(length) for length in lengths)
    if math.prod(shape) >= 1 << 63:
        raise RegionError(f"{what} has shape {shape}: those are more elements than an address space holds")
    return shape


class Resized(NamedTuple):
    """What became of a change of the number of frames."""

    #: Bytes of frames that there are now.
    bytes: int
    #: Bytes of frames that were to go and stay, as their pages were held or written back too slowly: asking once more goes on.
    kept_bytes: int
    #: Bytes of frames that were to come, for which there is no memory, or whose addresses kernels may still use.
    missing_bytes: int
    #: Seconds.
    took: float


class Vm:
    """Data larger than GPU memory, for kernels.

    ``memory``: GPU memory for pages, in bytes or as ``"2GiB"``. ``page_size``: a power of two from 4 KiB to 2 MiB. ``gpu``: ``"cuda:0"``,
    ``"sim"``, or none for an NVIDIA GPU if there is one, else the simulated GPU. ``transport``: what moves pages, ``"direct"``, ``"soft"``,
    ``"rxe"`` or ``"mlx5"``; none for what fits the GPU. ``launch_deadline``: seconds that a launch may run. ``workers``, ``gpu_memory``:
    threads and memory of the simulated GPU.

    ``frame_capacity``: lets that memory change, up to this many bytes: by :meth:`resize_frames`; when a buffer finds none, down to
    ``frame_minimum`` (none: an eighth of ``memory``); and where ``frames_leave_free`` bytes of the GPU's memory are to be kept free whatever uses
    it. ``frame_priority``: when memory is short those of low priority give it first, frames and elastic buffers.

    ``file_cache``: bytes of host memory that cache blocks of files. Files are read and written through it as kernels need them, and may be
    larger than host memory. None: files are mapped. ``file_cache_on_gpu``: the cache is in GPU memory, which GPUDirect Storage reaches
    without host memory.

    ``timeline``: a file that gets a timeline of launches, what the host does, and one of ``timeline_one_in`` faults (none: of 64), which
    Perfetto opens; ``%p`` in its name becomes the number of the process. None: that of ``GPUVM_TRACE`` in the environment, if it is set.

    All others, such as ``borrow_from``, ``memory_nodes`` and ``wait_limit``: :func:`gpuvm.settings`. One that is None has its default.

    A context manager: its end is :meth:`close`. It may be used from several threads, and not in a fork of its process.
    """

    def __init__(self, memory: Value = None, **settings: Value) -> None:
        given = {name: _written(name, value) for name, value in {"memory": memory, **settings}.items() if value is not None}
        here = os.path.join(os.path.dirname(__file__), "precompiled")
        if not given.keys() & {"precompiled", "precompile_into"} and os.path.isdir(here):
            given["precompiled"] = here
        self._core = _core.Vm(list(given.items()))
        self._machine = self._core.machine()
        self._modules: Dict[str, Module] = {}
        #: Kernels of other libraries, by what those call them.
        self._kernels: Dict[Any, Kernel] = {}
        self._arrays = 0

    @property
    def simulated(self) -> bool:
        """Whether its GPU is the simulated one."""
        return bool(self._machine["simulated"])

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return str(self._machine["gpu"])

    @property
    def transport(self) -> str:
        """What moves pages."""
        return str(self._machine["transport"])

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return int(self._machine["page_size"])

    @property
    def frames(self) -> int:
        """Pages that GPU memory has room for now."""
        return self._core.frames()[0]

    @property
    def frame_capacity(self) -> int:
        """The most pages that GPU memory may have room for: :attr:`frames`, unless their number may change."""
        return self._core.frames()[1]

    def resize_frames(self, memory: Union[int, str], *, within: float = 1.0) -> Resized:
        """Gives pages ``memory`` bytes of GPU memory, at most ``frame_capacity``, rounded down to whole handles of the GPU's memory (2 MiB; 64 KiB
        on a simulated GPU), while kernels run. Frames that are to go have ``within`` seconds to leave. The memory is then for what needs
        some next on this GPU; :meth:`trim` gives it to the driver.
        """
        return Resized(*self._core.resize_frames(bytes_of(memory, "memory"), seconds(within, "within")))

    def set_frame_priority(self, priority: int) -> None:
        """When memory is short those of low priority give it first: frames, and elastic buffers (:meth:`ElasticBuffer.set_priority`)."""
        self._core.set_frame_priority(priority_of(priority, "priority of frames"))

    def pause(self, tag: str) -> int:
        """Brings the contents of elastic buffers with the tag to host memory, so that others may have their GPU memory: how many bytes. Waits
        for the launches that were given them; Ctrl-C stops those."""
        return self._core.pause(text(tag, "tag"))

    def resume(self, tag: str) -> int:
        """Brings the contents of paused buffers back to where they were: how many bytes. After an error they are paused still."""
        return self._core.resume(text(tag, "tag"))

    def trim(self, most: Union[int, str]) -> int:
        """Gives the driver up to ``most`` bytes of GPU memory that elastic buffers and frames gave back: how many bytes there were."""
        return self._core.trim(bytes_of(most, "most"))

    def elastic_stats(self) -> Dict[str, int]:
        """What elastic buffers have, in bytes and handles, and how many growths there were."""
        return self._core.elastic_stats()

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the GPU; of the simulated one its threads."""
        return int(self._machine["multiprocessors"])

    def stats(self) -> Dict[str, int]:
        """What the device library counted since the Vm began: faults, pages and bytes that were fetched and written back, and more."""
        return self._core.stats()

    def _wanted(
        self,
        name: Optional[str],
        dtype: np.dtype[Any],
        priority: int,
        *,
        read_only: bool = False,
        never_evicted: bool = False,
        placement: Optional[str] = None,
    ) -> Wanted:
        if name is None:
            self._arrays += 1
            name = f"array {self._arrays}"
        return {
            "name": name,
            "element": described(dtype, f"array `{name}`"),
            "read_only": read_only,
            "never_evicted": never_evicted,
            "placement": placement,
            "priority": priority_of(priority, f"priority of array `{name}`"),
        }

    def array(
        self,
        source: Any,
        *,
        read_only: bool = False,
        copy: bool = False,
        name: Optional[str] = None,
        never_evicted: bool = False,
        placement: Optional[str] = None,
        priority: int = 0,
    ) -> Array:
        """An array over the memory of a NumPy array, a ``numpy.memmap``, or whatever has the buffer protocol: in place, or of a copy.

        In place the memory is lent: the source stays alive, and what exports its memory is not resized, until the array is closed.
        What kernels write is there after :meth:`Array.flush` or :meth:`Array.numpy`. What Python writes there meanwhile a kernel may see
        or not; store by ``array[...] = values`` instead. ``read_only``: kernels only read it, and the memory may be read-only.
        ``never_evicted``: it has GPU memory for all of its pages. ``placement``: what accesses do with pages that have no frame, ``"look_up"``
        (read and written where they are, and they come between launches: the default where the GPU reaches the memory), ``"fetch"`` (the default
        elsewhere), ``"in_place"``, ``"while_free"`` or ``"auto"``. ``priority``: while frames are short, pages of arrays of lower priority leave first.
        """
        label = name if name is not None else f"array {self._arrays + 1}"
        unmasked(source, f"array `{label}`")
        values = np.ascontiguousarray(source) if copy else in_place(source, label)
        if copy and np.ndim(source) == 0:
            values = values.reshape(())
        wanted = self._wanted(
            name, values.dtype, priority, read_only=read_only, never_evicted=never_evicted, placement=placement
        )
        if copy:
            core = self._core.copied(wanted, as_bytes(values))
        else:
            core = self._core.lent(wanted, as_bytes(values), values)
        return Array(self, wanted["name"], values.shape, values.dtype, core, never_evicted)

    def zeros(
        self,
        shape: Lengths,
        dtype: Any = np.float32,
        *,
        name: Optional[str] = None,
        never_evicted: bool = False,
        priority: int = 0,
    ) -> Array:
        """An array of zeros, of host memory that pages take when they are touched."""
        kind = np.dtype(dtype)
        wanted = self._wanted(name, kind, priority, never_evicted=never_evicted)
        lengths = _shape(shape, f"array `{wanted['name']}`")
        return Array(self, wanted["name"], lengths, kind, self._core.zeros(wanted, math.prod(lengths)), never_evicted)

    def map_file(
        self,
        path: Union[str, bytes, "os.PathLike[Any]"],
        dtype: Any = np.uint8,
        shape: Optional[Lengths] = None,
        *,
        read_only: bool = True,
        name: Optional[str] = None,
        never_evicted: bool = False,
        placement: Optional[str] = None,
        priority: int = 0,
        offset: Optional[int] = None,
    ) -> Array:
        """An array over all bytes of a file, in place: nothing is read before a kernel touches it. Where it may be written, a flush has the
        system store the file. Nothing may make the file shorter meanwhile. ``shape``: none for one dimension. ``offset``: the array begins
        at this byte, a multiple of the element's alignment, and ends where its shape does, or where the file does.
        """
        kind, path = np.dtype(dtype), os.fsdecode(path)
        # A region has a text for its name, and a file any bytes.
        shown = os.fsencode(path).decode(errors="replace")
        wanted = self._wanted(
            name or shown, kind, priority, read_only=read_only, never_evicted=never_evicted, placement=placement
        )
        lengths = None if shape is None else _shape(shape, f"array `{wanted['name']}`")
        try:
            size = os.stat(path).st_size
        except OSError:
            # The core says so, by its own error.
            size = 0
        if offset is not None:
            if offset < 0:
                raise RegionError(f"array `{wanted['name']}`: offset {offset} is before the file's beginning")
            if offset % kind.alignment:
                raise RegionError(
                    f"array `{wanted['name']}`: byte offset {offset} of {shown} is not a multiple of {kind.alignment}, the alignment of {kind}: give "
                    f"numpy.fromfile(path, {str(kind)!r}, count, offset={offset}) to Vm.array, or write the file again with an aligned header"
                )
            if lengths is None:
                lengths = (max(size - offset, 0) // kind.itemsize,)
            core = self._core.file(wanted, path, (offset, math.prod(lengths)))
            return Array(self, wanted["name"], lengths, kind, core, never_evicted)
        if lengths is not None and size and math.prod(lengths) * kind.itemsize != size:
            raise RegionError(
                f"{shown} has {size} bytes, and shape {lengths} of {kind} has {math.prod(lengths) * kind.itemsize}"
            )
        core = self._core.file(wanted, path, None)
        return Array(self, wanted["name"], (size // kind.itemsize,) if lengths is None else lengths, kind, core, never_evicted)

    def buffer(self, source: Any, dtype: Any = None) -> Buffer:
        """Plain device memory: zeros of a shape, ``vm.buffer((3, 4), numpy.float32)``, or a copy of an array, ``vm.buffer(array)``."""
        if isinstance(source, np.ndarray):
            if dtype is not None and np.dtype(dtype) != source.dtype:
                raise DtypeError(f"a buffer of {np.dtype(dtype)} was given {source.dtype}: convert it by .astype")
            buffer = self.buffer(source.shape, source.dtype)
            if source.size:
                buffer.write(source)
            return buffer
        kind, shape = np.dtype(np.float32 if dtype is None else dtype), _shape(source, "a buffer")
        return Buffer(self, shape, kind, self._core.buffer(described(kind, "a buffer"), math.prod(shape)))

    def tiered_buffer(
        self,
        shape: Lengths,
        dtype: Any = np.float32,
        *,
        name: Optional[str] = None,
        budget: Union[int, str, None] = None,
        priority: int = 0,
    ) -> TieredBuffer:
        """Zeros of a shape that lie on the GPU as far as there is room, and in host memory beyond, at one address: for kernels and libraries that
        take plain pointers. ``budget``: bytes, or a size such as ``"2GiB"``, that may lie on the GPU; all without it. ``priority``: whose chunks
        leave first when GPU memory is short.
        """
        kind, lengths = np.dtype(dtype), _shape(shape, "a tiered buffer")
        what = name or f"{kind} of {lengths}"
        core = self._core.tiered(
            {
                "name": what,
                "element": described(kind, f"tiered buffer `{what}`"),
                "length": math.prod(lengths),
                "budget": None if budget is None else bytes_of(budget, f"budget of tiered buffer `{what}`", low=0),
                "priority": priority_of(priority, f"priority of tiered buffer `{what}`"),
            }
        )
        return TieredBuffer(self, what, lengths, kind, core)

    def slot_cache(self, arrays: Union[Array, Sequence[Array]], slots: int, *, policy: str = "lru") -> SlotCache:
        """``slots`` slots in GPU memory for rows of an array, or of several that have as many: rows of any multiple of 16 bytes up to 64 MiB.

        ``policy``: whose rows leave. ``"lru"``: those used longest ago; ``"frequency"``: those used least often of late; ``"first-come"``: those that
        came last, for scans that come again in the same order. It takes 4 bytes of GPU memory for each row of an array.
        """
        return SlotCache(self, [arrays] if isinstance(arrays, Array) else list(arrays), slots, policy)

    def elastic_buffer(
        self,
        max_length: int,
        dtype: Any = np.float32,
        *,
        length: int = 0,
        name: Optional[str] = None,
        tag: Optional[str] = None,
        priority: int = 0,
    ) -> ElasticBuffer:
        """Device memory for up to ``max_length`` elements that grows and shrinks at one address. It takes memory for ``length`` elements at
        first, which hold anything. ``tag``: the group that :meth:`pause` and :meth:`resume` take. ``priority``: as for
        :meth:`ElasticBuffer.set_priority`.
        """
        kind = np.dtype(dtype)
        what = name or f"{kind} to {max_length}"
        most = whole(max_length, f"most elements of elastic buffer `{what}`", error=RegionError)
        core = self._core.elastic(
            {
                "name": what,
                "element": described(kind, f"elastic buffer `{what}`"),
                "most": most,
                "length": whole(length, f"length of elastic buffer `{what}`", error=RegionError),
                "tag": if_given(text, tag, f"tag of elastic buffer `{what}`"),
                "priority": priority_of(priority, f"priority of elastic buffer `{what}`"),
            }
        )
        return ElasticBuffer(self, what, most, kind, core)

    def module(
        self,
        source: str,
        kernels: Sequence[str],
        *,
        name: str = "kernels.cu",
        headers: Optional[Mapping[str, str]] = None,
        defines: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Module:
        """Compiles CUDA C++ and finds ``kernels`` in it, template-ids such as ``scale<float>`` among them.

        ``name``: what errors call the source. ``headers``: texts for ``#include``, by name. ``defines``: macros.
        """
        if isinstance(kernels, str):
            raise SettingError(f"kernels is the text {kernels!r}: expected a list of names")
        return Module(
            self, self._core.module(name, source, list(kernels), list((headers or {}).items()), list((defines or {}).items()))
        )

    def load(self, image: Union[str, os.PathLike[str], bytes], kernels: Sequence[str], *, name: Optional[str] = None) -> Module:
        """Loads kernels that nvcc compiled: the path of a cubin, a fat binary or PTX, or its bytes. ``GPUVM_EXPORT(kernel)`` follows each of
        ``kernels`` in the source. ``name``: what errors call it. A file belongs to the user or to root, and not everybody may write to it.

        The simulated GPU has none: it compiles sources.
        """
        if isinstance(kernels, str):
            raise SettingError(f"kernels is the text {kernels!r}: expected a list of names")
        if not isinstance(image, bytes):
            name = os.fsdecode(image) if name is None else name
            if os.path.exists(image) and not os.path.isfile(image):
                raise FileError(f"{name}: it is not a regular file")
            try:
                open(image, "rb").close()
            except OSError as error:
                raise FileError(f"{name}: {error.strerror}") from error
            return Module(self, self._core.load_file(name, os.fsencode(image), list(kernels)))
        return Module(self, self._core.load(name or "kernels", image, list(kernels)))

    def load_ptx(self, ptx: Union[str, os.PathLike[str], bytes], *, name: Optional[str] = None) -> Module:
        """Loads kernels that know nothing of gpuvm: PTX as nvcc, NVRTC, Triton or others make it, or the path of a file of it, which may be a
        program that nvcc has built. Their accesses are rewritten to look pages up; no line of theirs is changed. ``module["name"]`` is any kernel of the text.

        Arrays are given for pointers; where GPU threads do not reach an array's home by loads, accesses call for their pages, which is slower. So are buffers, memory of other libraries, 0 and None. A number of Python's own becomes what the
        parameter's type in the text is, if it fits. ``name``: what errors call the text.
        """
        if isinstance(ptx, str) and "\n" in ptx:
            ptx = ptx.encode()
        if isinstance(ptx, bytes):
            return Module(self, self._core.load_ptx(name or "kernels.ptx", ptx))
        return Module(self, self._core.load_ptx_file(os.fspath(ptx)))

    def kernel(self, source: str, name: str) -> Kernel:
        """Compiles CUDA C++ for its kernel ``name``."""
        return self.module(source, [name])[name]

    def stream(self) -> Stream:
        """A further stream."""
        return Stream(self._core.stream())

    def sync(self) -> None:
        """Waits for all launches, and raises the first error of one that nothing waited for. Ctrl-C stops them."""
        self._core.sync()

    def close(self) -> None:
        """Waits for all launches, closes all arrays, whose dirty pages are written back, and gives all memory back. Once is enough.

        Raises the first error of a page that could not be written back, or of a launch that nothing waited for; the rest ends all the same.
        """
        self._core.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._core.closed

    def __enter__(self) -> "Vm":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<gpuvm.Vm on {self.gpu}: closed>"
        return f"<gpuvm.Vm on {self.gpu}: {self.frames} frames of {self.page_size} bytes, {self.transport}>"
