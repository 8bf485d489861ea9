# All three fields are paged; the source term stays plain memory.
/#include <cuda.h>/a #include <gpuvm/gpuvm.cuh>
/__global__/ s/DATA_TYPE \*(ex|ey|hz)/gpuvm::array<DATA_TYPE> \1/g
