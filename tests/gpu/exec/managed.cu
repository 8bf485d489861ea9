// A program that knows nothing of gpuvm: managed memory, kernels, and a host that reads and writes between launches. It
// checks what comes out.
//   managed MIB [ROUNDS]
// Prints, in milliseconds: the first pass of a sum, an update of two arrays and a stencil (cold), the best of ROUNDS
// further ones (warm), and rounds in which the host writes one element and reads one result.
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#define CHECK(call)                                                               \
    do {                                                                          \
        cudaError_t status_ = (call);                                             \
        if (status_ != cudaSuccess) {                                             \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status_)); \
            std::exit(1);                                                         \
        }                                                                         \
    } while (0)

// Reached by its address: launches do not name the arrays.
struct Arrays {
    float* x;
    float* y;
    float* out;
    size_t count;
};

__device__ unsigned launches;

__global__ void axpy(const Arrays* arrays, float a) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&launches, 1u);
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < arrays->count; i += step)
        arrays->y[i] += a * arrays->x[i];
}

__global__ void stencil(const Arrays* arrays) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < arrays->count; i += step) {
        const float left = i == 0 ? 0.0f : arrays->x[i - 1];
        const float right = i + 1 == arrays->count ? 0.0f : arrays->x[i + 1];
        arrays->out[i] = left + right - 2 * arrays->x[i];
    }
}

__global__ void sum(const float* values, size_t count, double* result) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    double own = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) own += values[i];
    for (int lane = 16; lane > 0; lane /= 2) own += __shfl_down_sync(0xffffffffu, own, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(result, own);
}

static double milliseconds() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

static void expect(const char* what, double got, double wanted) {
    if (std::fabs(got - wanted) <= 1e-6 * std::fabs(wanted)) return;
    std::fprintf(stderr, "%s: %.17g instead of %.17g\n", what, got, wanted);
    std::exit(1);
}

static const unsigned kBlocks = 1056, kThreads = 256;

// x[i] = i % 7, y[i] = 1 + 2 x[i] so often as the update ran.
static double sum_of_x(size_t count) {
    const size_t rest = count % 7;
    return 21.0 * double(count / 7) + double(rest * (rest - (rest > 0))) / 2;
}

struct Program {
    Arrays* arrays;
    double* result;
    size_t count;
    int rounds;
    // Of the sum of y, what the host has added.
    double added;

    double expected() const { return double(count) + 2 * (rounds + 1) * sum_of_x(count) + added; }
};

static Program begin(size_t bytes, int rounds) {
    Program program = {};
    program.count = bytes / sizeof(float) / 3;
    program.rounds = rounds;
    CHECK(cudaMallocManaged(&program.arrays, sizeof *program.arrays));
    CHECK(cudaMallocManaged(&program.result, sizeof *program.result));
    Arrays* arrays = program.arrays;
    for (float** array : {&arrays->x, &arrays->y, &arrays->out}) {
        CHECK(cudaMallocManaged(array, program.count * sizeof(float)));
    }
    arrays->count = program.count;
    for (size_t i = 0; i < program.count; i++) {
        arrays->x[i] = float(i % 7);
        arrays->y[i] = 1;
    }
    return program;
}

static void launch_in_rounds(Program& program) {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    double best = 1e30;
    for (int round = 0; round <= program.rounds; round++) {
        *program.result = 0;
        const double begin = milliseconds();
        axpy<<<kBlocks, kThreads, 0, stream>>>(program.arrays, 2.0f);
        stencil<<<kBlocks, kThreads, 0, stream>>>(program.arrays);
        sum<<<kBlocks, kThreads, 0, stream>>>(program.arrays->y, program.count, program.result);
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(stream));
        const double took = milliseconds() - begin;
        expect("sum of y", *program.result, double(program.count) + 2 * (round + 1) * sum_of_x(program.count));
        if (round == 0)
            std::printf("cold %.1f ms\n", took);
        else
            best = std::fmin(best, took);
    }
    std::printf("warm %.1f ms\n", best);
    CHECK(cudaStreamDestroy(stream));
}

// The host writes between launches, far apart.
static void write_on_the_host(Program& program) {
    const double begin = milliseconds();
    for (int round = 0; round < program.rounds; round++) {
        program.arrays->y[program.count / 2 + size_t(round) * 1000] += 100;
        program.added += 100;
        *program.result = 0;
        sum<<<kBlocks, kThreads>>>(program.arrays->y, program.count, program.result);
        CHECK(cudaDeviceSynchronize());
        expect("sum of y with what the host wrote", *program.result, program.expected());
    }
    std::printf("host writes %.1f ms a round\n", (milliseconds() - begin) / program.rounds);
}

// All of it, by the host, by the driver's copies and by a system call.
static void look_at_all(Program& program) {
    Arrays* arrays = program.arrays;
    const size_t count = program.count;
    for (size_t i = 1; i + 1 < count; i++) {
        const float wanted = arrays->x[i - 1] + arrays->x[i + 1] - 2 * arrays->x[i];
        if (arrays->out[i] != wanted) expect("the stencil", arrays->out[i], wanted);
    }
    float* copy;
    CHECK(cudaMalloc(&copy, count * sizeof(float)));
    CHECK(cudaMemcpy(copy, arrays->y, count * sizeof(float), cudaMemcpyDefault));
    CHECK(cudaMemset(arrays->y, 0, count * sizeof(float)));
    *program.result = 0;
    sum<<<kBlocks, kThreads>>>(arrays->y, count, program.result);
    sum<<<kBlocks, kThreads>>>(copy, count, program.result);
    CHECK(cudaDeviceSynchronize());
    expect("sums of zeros and of the copy", *program.result, program.expected());
    CHECK(cudaFree(copy));
    unsigned counted;
    CHECK(cudaMemcpyFromSymbol(&counted, launches, sizeof counted));
    expect("launches", counted, program.rounds + 1);
    FILE* file = std::tmpfile();
    if (file == nullptr || std::fwrite(arrays->out, sizeof(float), count, file) != count) {
        std::fprintf(stderr, "a file cannot be written from managed memory\n");
        std::exit(1);
    }
    std::fclose(file);
}

int main(int argc, char** argv) {
    const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64) << 20;
    Program program = begin(bytes, argc > 2 ? std::atoi(argv[2]) : 5);
    launch_in_rounds(program);
    write_on_the_host(program);
    look_at_all(program);
    Arrays* arrays = program.arrays;
    for (float* array : {arrays->x, arrays->y, arrays->out}) CHECK(cudaFree(array));
    CHECK(cudaFree(program.result));
    CHECK(cudaFree(arrays));
    std::printf("all results are right\n");
    return 0;
}
