#include <gpuvm/gpuvm.cuh>

// y = A x for a matrix in CSR form, one lane for each row. T is the number type.
template <class T>
__global__ void spmv(gpuvm::array<const unsigned long long> offsets, gpuvm::array<const unsigned> columns,
                     gpuvm::array<const T> values, gpuvm::array<const T> x, gpuvm::array<T> y) {
    unsigned long long row = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    if (row >= y.size()) return;
    auto column = columns.reader();
    auto value = values.reader();
    T sum = 0;
    unsigned long long end = offsets[row + 1];
    for (unsigned long long k = offsets[row]; k < end && !offsets.failed(); ++k) sum += value[k] * x[column[k]];
    y[row] = sum;
}
