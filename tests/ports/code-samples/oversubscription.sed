# The access patterns: streaming, a part a block, random pages a warp. Their loops have ends that no element decides, and a barrier
# that every thread has to come to: they stay as they are.
/#include <cuda_runtime_api.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/data_type \*ptr/gpuvm::array<data_type> ptr/
