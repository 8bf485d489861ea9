"""Rows of a table that is larger than GPU memory, gathered by a kernel that is ready, and by one of our own."""

import numpy as np

import gpuvm

SOURCE = r"""
#include <gpuvm/gpuvm.cuh>
// A thread a row: how many of its elements are above a limit.
__global__ void count_above(gpuvm::array<const float> table, unsigned* counts, unsigned columns, float limit) {
    unsigned long long row = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    if (row * columns >= table.size()) return;
    auto element = table.reader();
    unsigned found = 0;
    for (unsigned k = 0; k < columns && !table.failed(); ++k) found += element[row * columns + k] > limit;
    counts[row] = found;
}"""


def main() -> None:
    rows, columns = 20_000, 128
    table = np.random.default_rng(1).random((rows, columns), dtype=np.float32)
    with gpuvm.Vm(memory=table.nbytes // 4) as vm:
        array = vm.array(table, read_only=True)
        ids = np.arange(0, rows, 100)
        taken = gpuvm.ops.take(array, ids).numpy()
        assert (taken == table[ids]).all()

        counts = vm.buffer((rows,), np.uint32)
        count_above = vm.kernel(SOURCE, "count_above")
        count_above[-(-rows // 128), 128](array, counts, columns, 0.5).sync()
        assert (counts.numpy() == (table > 0.5).sum(axis=1)).all()
        print(f"{len(ids)} rows of {table.nbytes >> 20} MiB on {vm.gpu}, {vm.stats()['pages_fetched']} pages fetched")


if __name__ == "__main__":
    main()
