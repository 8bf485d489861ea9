"""Kernels of Numba. `python numba_kernels.py` makes numba_*.ptx of them, without a GPU."""
import pathlib

from numba import cuda, types


def axpy(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += factor * x[i]


def five_points(x, out):
    i, j = cuda.grid(2)
    if 0 < i < x.shape[0] - 1 and 0 < j < x.shape[1] - 1:
        out[i, j] = x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


FLOATS, ROWS = types.float32[::1], types.float32[:, ::1]


def write() -> None:
    for kernel, parameters in [(axpy, (FLOATS, FLOATS, types.float32)), (five_points, (ROWS, ROWS))]:
        ptx, _ = cuda.compile_ptx(kernel, parameters, cc=(8, 0))
        pathlib.Path(f"numba_{kernel.__name__}.ptx").write_text(ptx)


if __name__ == "__main__":
    write()
