# What has an element for each point is paged; what has one for each cluster stays plain memory.
/#include <stdlib.h>/a #include <gpuvm/gpuvm.cuh>
/^__global__/,/^\}/ {
    s/float \*(x|y),/gpuvm::array<const float> \1,/g
    /regroup/ s/float \*dst/gpuvm::array<const float> dst/
    s/float \*dst/gpuvm::array<float> dst/
    /regroup/ s/int \*group/gpuvm::array<int> group/
    s/int \*group/gpuvm::array<const int> group/
    s/i < n;/i < n \&\& !group.failed();/
}
