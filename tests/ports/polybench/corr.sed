# Both matrices are paged. The one that is normalised in place is read-only for the other kernels, so that their reads cost less.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__ void (mean|std|corr)_/ s/DATA_TYPE \*data/gpuvm::array<const DATA_TYPE> data/
/__global__ void reduce_/ s/DATA_TYPE \*data/gpuvm::array<DATA_TYPE> data/
/__global__/ s/DATA_TYPE \*symmat/gpuvm::array<DATA_TYPE> symmat/
/__global__/,/^\}/ s/i ?< _PB_N;/i < _PB_N \&\& !data.failed();/
