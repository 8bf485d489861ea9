// Kernels that nvcc compiles into a program beside the same text by NVRTC, and what a launch takes beside a bare one.
// nvcc -x cu -std=c++17 -arch=sm_90 -DGPUVM_FEATURES=1 -IPREFIX/include -o nvcc nvcc.cpp -LPREFIX/lib -lgpuvm &&
// LD_LIBRARY_PATH=PREFIX/lib ./nvcc
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <gpuvm/launch.cuh>
#include <string>
#include <vector>

// The same text as code and as a string.
#define KERNELS(...) __VA_ARGS__ static const char* const SOURCE = "#include <gpuvm/gpuvm.cuh>\n" #__VA_ARGS__;

// clang-format off
KERNELS(
// A warp reads a word of each of its pages, page by page in an order by chance: `apart` is odd and `pages` a power of two.
__global__ void touch(gpuvm::array<const unsigned long long> a, unsigned long long pages, unsigned long long apart,
                      unsigned long long* sum) {
    unsigned long long warps = gridDim.x * (blockDim.x / 32ull);
    unsigned long long total = 0;
    for (unsigned long long n = (blockIdx.x * 1ull * blockDim.x + threadIdx.x) / 32; n < pages && !a.failed(); n += warps)
        total += a[(n * apart & (pages - 1)) * 512 + threadIdx.x % 32 * 16];
    atomicAdd(sum, total);
}
__global__ void read_all(gpuvm::array<const unsigned long long> a, unsigned times, unsigned long long* sum) {
    unsigned long long total = 0;
    for (unsigned turn = 0; turn < times; ++turn)
        for (unsigned long long i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * blockDim.x)
            total += a[i];
    atomicAdd(sum, total);
}
__global__ void nothing(gpuvm::array<const unsigned long long> a, unsigned long long* sum) {
    if (a.size() == 0) *sum = 1;
}
)
// clang-format on

namespace host = gpuvm::host;
using u64 = unsigned long long;
using clock_type = std::chrono::steady_clock;

static double median(std::vector<double> of) {
    std::sort(of.begin(), of.end());
    return of[of.size() / 2];
}

static u64 word(u64 i) { return i * 0x9e3779b97f4a7c15ull; }

static host::Vm vm_of(u64 frames) { return host::Vm{{"frame_memory", frames}, {"transport", "direct"}}; }

static host::Region<u64> region_of(const host::Vm& vm, const std::vector<u64>& words) {
    auto options = host::sized<gpuvm_region_options>();
    options.read_only = 1;
    options.placement = GPUVM_PLACEMENT_FETCH;
    return vm.region(words, options);
}

// Seven runs of each, in turns; milliseconds.
static void compare(const char* what, double units, const host::Buffer<u64>& sum, u64 wanted,
                    const std::function<host::Launch()>& by_nvrtc, const std::function<host::Launch()>& by_nvcc) {
    std::vector<double> times[2];
    for (int turn = -1; turn < 7; ++turn) {
        for (int which = 0; which < 2; ++which) {
            sum.write(0, std::vector<u64>{0});
            const auto report = (which ? by_nvcc() : by_nvrtc()).sync();
            if (sum.to_vector()[0] != wanted) throw std::runtime_error(std::string(what) + ": the sum is wrong");
            if (turn >= 0) times[which].push_back(report.elapsed_ns / 1e6);
        }
    }
    const double nvrtc = median(times[0]), nvcc = median(times[1]);
    std::printf("%-24s NVRTC %9.3f ms (%8.2f M/s)   nvcc %9.3f ms (%8.2f M/s)   nvcc of NVRTC %.3f\n", what, nvrtc,
                units / nvrtc / 1e3, nvcc, units / nvcc / 1e3, nvrtc / nvcc);
}

static void launches(const host::Vm& vm, const host::Region<u64>& region, const host::Kernel& kernel,
                     const host::Buffer<u64>& sum) {
    constexpr int kEach = 200;
    cudaStream_t stream;
    host::check_cuda("a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const auto mine = vm.borrow(stream);
    u64* plain = nullptr;
    host::check_cuda("memory", cudaMalloc(&plain, sizeof *plain));
    const gpuvm::array<const u64> none{};
    std::vector<double> enqueue[5], whole[5];
    for (int turn = -2; turn < 15; ++turn) {
        for (int which = 0; which < 5; ++which) {
            std::vector<host::Launch> kept;
            kept.reserve(kEach);
            const auto begun = clock_type::now();
            for (int n = 0; n < kEach; ++n) {
                if (which == 0) {
                    nothing<<<1, 32, 0, stream>>>(none, plain);
                } else {
                    host::config shape(1, 32);
                    if (which > 2) shape.without_time();
                    kept.push_back(which % 2 ? kernel.launch(shape, region, sum)
                                             : host::launch(vm, shape.on(mine), nothing, region, sum));
                }
            }
            const auto enqueued = clock_type::now();
            if (which == 0) host::check_cuda("the stream", cudaStreamSynchronize(stream));
            for (auto& launch : kept) launch.sync();
            const auto ended = clock_type::now();
            const auto us = [&](auto from, auto to) {
                return std::chrono::duration<double, std::micro>(to - from).count() / kEach;
            };
            if (turn < 0) continue;
            enqueue[which].push_back(us(begun, enqueued));
            whole[which].push_back(us(begun, ended));
        }
    }
    const char* names[] = {"bare <<<>>>", "NVRTC, gpuvm's stream", "nvcc, the program's", "NVRTC, without time",
                           "nvcc, without time"};
    for (int which = 0; which < 5; ++which) {
        std::printf("launch, %-24s enqueued in %6.2f us, with its end %6.2f us; over a bare one %6.2f and %6.2f\n",
                    names[which], median(enqueue[which]), median(whole[which]),
                    median(enqueue[which]) - median(enqueue[0]), median(whole[which]) - median(whole[0]));
    }
    cudaFree(plain);
    cudaStreamDestroy(stream);
}

template <class... Params>
static void registers(const char* name, void (*kernel)(Params...)) {
    cudaFuncAttributes facts{};
    host::check_cuda(name, cudaFuncGetAttributes(&facts, reinterpret_cast<const void*>(kernel)));
    std::printf("%-24s %d registers, %zu bytes of local memory under nvcc\n", name, facts.numRegs,
                facts.localSizeBytes);
}

int main() try {
    registers("touch", touch);
    registers("read_all", read_all);
    const u64 pages = 1 << 19;
    std::vector<u64> words(pages * 512);
    u64 touched = 0, all = 0;
    for (u64 i = 0; i < words.size(); ++i) words[i] = word(i);
    for (u64 page = 0; page < pages; ++page)
        for (u64 lane = 0; lane < 32; ++lane) touched += word(page * 512 + lane * 16);
    {
        const auto vm = vm_of(512 << 20);
        const auto region = region_of(vm, words);
        const auto sum = vm.buffer<u64>(1);
        const auto kernel = vm.kernel("nvcc.cpp", SOURCE, "touch");
        const host::config shape(528, 256);
        compare(
            "faults, frames for 1/4", static_cast<double>(pages), sum, touched,
            [&] { return kernel.launch(shape, region, pages, u64{2654435761}, sum); },
            [&] { return host::launch(vm, shape, touch, region, pages, u64{2654435761}, sum); });
    }
    words.resize(32 << 20);
    for (u64 i = 0; i < words.size(); ++i) all += 8 * word(i);
    const auto vm = vm_of(512 << 20);
    const auto region = region_of(vm, words);
    const auto sum = vm.buffer<u64>(1);
    const auto kernel = vm.kernel("nvcc.cpp", SOURCE, "read_all");
    const host::config shape(528, 256);
    compare(
        "hits, eight passes", 8.0 * words.size(), sum, all, [&] { return kernel.launch(shape, region, 8u, sum); },
        [&] { return host::launch(vm, shape, read_all, region, 8u, sum); });
    launches(vm, region, vm.kernel("nvcc.cpp", SOURCE, "nothing"), sum);
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
