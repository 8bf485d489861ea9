#include <gpuvm/gpuvm.cuh>
