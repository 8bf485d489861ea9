// A program that knows nothing of gpuvm: host functions on a stream that read and write managed memory, with launches
// before and behind them that are not waited for. It checks what comes out.
//   host_functions [ROUNDS]
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                               \
    do {                                                                          \
        cudaError_t status_ = (call);                                             \
        if (status_ != cudaSuccess) {                                             \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_)); \
            std::exit(1);                                                         \
        }                                                                         \
    } while (0)

__global__ void add(int* values, int count, int what) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) values[i] += what;
}

static const int kCount = 1 << 20;

// Of the host: every 1000th.
static void CUDART_CB twice(void* values) {
    for (int i = 0; i < kCount; i += 1000) static_cast<int*>(values)[i] *= 2;
}

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 8;
    int* values;
    CHECK(cudaMallocManaged(&values, kCount * sizeof *values));
    for (int i = 0; i < kCount; i++) values[i] = 1;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    int wanted = 1, others = 1;
    for (int round = 0; round < rounds; round++) {
        add<<<kCount / 256, 256, 0, stream>>>(values, kCount, round);
        CHECK(cudaLaunchHostFunc(stream, twice, values));
        add<<<kCount / 256, 256, 0, stream>>>(values, kCount, 1);
        wanted = 2 * (wanted + round) + 1;
        others += round + 1;
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; i++) {
        if (values[i] == (i % 1000 == 0 ? wanted : others)) continue;
        std::fprintf(stderr, "values[%d] is %d instead of %d\n", i, values[i], i % 1000 == 0 ? wanted : others);
        return 1;
    }
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, values));
    std::printf("%d rounds are right; the memory is managed: %d\n", rounds, attributes.type == cudaMemoryTypeManaged);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(values));
    return 0;
}
