// A program that knows nothing of gpuvm: host functions on a stream that read and write managed memory, with launches
// before and behind them that are not waited for, of one stream, of two at once, and of a graph; kernels write beside
// them. It checks what comes out.
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

static void CUDART_CB once_more(void* value) { *static_cast<int*>(value) += 1; }

// Two streams at once: each adds to every second number, the one's host functions to the first number of all, the
// other's to the second. All lie side by side.
__global__ void add_to_half(int* values, int count, int half) {
    const int i = 2 * int(blockIdx.x * blockDim.x + threadIdx.x) + half;
    if (i >= 2 && i < count) values[i] += 1;
}
static void two_streams(int* values, int rounds) {
    cudaStream_t streams[2];
    for (int half = 0; half < 2; half++) {
        CHECK(cudaStreamCreateWithFlags(&streams[half], cudaStreamNonBlocking));
        values[half] = 0;
    }
    const int before = values[3];
    for (int round = 0; round < rounds; round++)
        for (int half = 0; half < 2; half++) {
            add_to_half<<<kCount / 512, 256, 0, streams[half]>>>(values, kCount, half);
            CHECK(cudaLaunchHostFunc(streams[half], once_more, values + half));
        }
    for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
    const int found[] = {values[0], values[1], values[3] - before};
    for (int one : found) {
        if (one == rounds) continue;
        std::fprintf(stderr, "two streams: %d %d %d in place of %d each\n", found[0], found[1], found[2], rounds);
        std::exit(1);
    }
    for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
}

// A graph with a host function, launched again and again.
static void in_a_graph(int* values, cudaStream_t stream, int rounds) {
    cudaGraph_t graph;
    cudaGraphExec_t made;
    values[0] = 0;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(values, 1, 1);
    CHECK(cudaLaunchHostFunc(stream, once_more, values));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&made, graph, 0));
    for (int round = 0; round < rounds; round++) CHECK(cudaGraphLaunch(made, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (values[0] != 2 * rounds) {
        std::fprintf(stderr, "a graph: %d in place of %d\n", values[0], 2 * rounds);
        std::exit(1);
    }
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
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
    two_streams(values, rounds);
    in_a_graph(values, stream, rounds);
    std::printf("two streams and a graph are right\n");
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(values));
    // Begins anew.
    CHECK(cudaDeviceReset());
    CHECK(cudaMallocManaged(&values, kCount * sizeof *values));
    add<<<kCount / 256, 256>>>(values, kCount, 3);
    CHECK(cudaDeviceSynchronize());
    std::printf("behind a reset: %d\n", values[kCount - 1]);
    return 0;
}
