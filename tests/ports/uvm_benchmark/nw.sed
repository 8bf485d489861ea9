# Blocks copy tiles to shared memory, neighbours by neighbouring lanes: as good for pages as for plain memory.
/#include <stdio.h>/a #include <gpuvm/gpuvm.cuh>
s/int\* referrence/gpuvm::array<const int> referrence/
s/int\* matrix_cuda/gpuvm::array<int> matrix_cuda/
