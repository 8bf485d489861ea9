# Neighbouring lanes are on neighbouring elements already.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE \*A, DATA_TYPE \*B/gpuvm::array<const DATA_TYPE> A, gpuvm::array<DATA_TYPE> B/
