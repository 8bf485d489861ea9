"""Kernels of Triton's tutorials. `python triton_kernels.py` makes triton_*.ptx of them, without a GPU. Tests of Python launch them."""
import os
import pathlib

# The sections of debug information name folders of this machine.
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < n
    tl.store(out + at, tl.load(x + at, mask=there) + tl.load(y + at, mask=there), mask=there)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    there = column < columns
    value = tl.load(x + row * columns + column, mask=there, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + column, value / tl.sum(value, 0), mask=there)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    there = column < columns
    value = tl.load(x + row * columns + column, mask=there, other=0.0)
    value = tl.where(there, value - tl.sum(value, 0) / columns, 0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / columns + epsilon)
    result = value * scale * tl.load(weight + column, mask=there) + tl.load(bias + column, mask=there)
    tl.store(out + row * columns + column, result, mask=there)


@triton.jit
def matmul(a, b, c, K, a_row, b_row, c_row, M: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr):
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, TILE)
    a += m[:, None] * a_row + k[None, :]
    b += k[:, None] * b_row + n[None, :]
    sum = tl.zeros((M, N), tl.float32)
    for _ in range(0, K, TILE):
        sum += tl.dot(tl.load(a), tl.load(b))
        a += TILE
        b += TILE * b_row
    tl.store(c + m[:, None] * c_row + n[None, :], sum)


@triton.jit
def attention(q, k, v, out, scale, length, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """One head's rows of softmax(q k^T scale) v, without the whole of the softmax: the forward pass of Flash Attention."""
    head, row = tl.program_id(1) * length * WIDTH, tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at, column = tl.arange(0, WIDTH), tl.arange(0, COLUMNS)
    rows = head + row[:, None] * WIDTH + at[None, :]
    query = tl.load(q + rows)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sum = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, length, COLUMNS):
        keys = tl.load(k + head + (start + column)[None, :] * WIDTH + at[:, None])
        score = tl.dot(query, keys) * (scale * 1.44269504)
        above = tl.maximum(most, tl.max(score, 1))
        weight = tl.math.exp2(score - above[:, None])
        shrunk = tl.math.exp2(most - above)
        values = tl.load(v + head + (start + column)[:, None] * WIDTH + at[None, :])
        sum = tl.dot(weight.to(tl.float16), values, sum * shrunk[:, None])
        total = total * shrunk + tl.sum(weight, 1)
        most = above
    tl.store(out + rows, (sum / total[:, None]).to(tl.float16))


FLOATS, HALVES = "*fp32", "*fp16"
KERNELS = {
    add: (dict(x=FLOATS, y=FLOATS, out=FLOATS, n="i32"), dict(BLOCK=1024)),
    softmax: (dict(x=FLOATS, out=FLOATS, columns="i32"), dict(BLOCK=1024)),
    layer_norm: (dict(x=FLOATS, weight=FLOATS, bias=FLOATS, out=FLOATS, columns="i32", epsilon="fp32"), dict(BLOCK=1024)),
    matmul: (
        dict(a=HALVES, b=HALVES, c=FLOATS, K="i32", a_row="i32", b_row="i32", c_row="i32"),
        dict(M=64, N=64, TILE=32),
    ),
    attention: (
        dict(q=HALVES, k=HALVES, v=HALVES, out=HALVES, scale="fp32", length="i32"),
        dict(ROWS=64, COLUMNS=32, WIDTH=64),
    ),
}


def write() -> None:
    for kernel, (types, constants) in KERNELS.items():
        signature = types | {name: "constexpr" for name in constants}
        # Pointers, and the numbers of a matrix's columns, are multiples of 16.
        aligned = [i for i, (name, kind) in enumerate(types.items()) if kind.startswith("*") or kernel is matmul or name == "length"]
        source = ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in aligned})
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4, "num_stages": 3})
        name = kernel.fn.__name__
        pathlib.Path(f"triton_{name}.ptx").write_text(compiled.asm["ptx"])


if __name__ == "__main__":
    write()
