// Doubles 4 MiB of numbers with GPU memory for a quarter of them, by a kernel that nvcc compiles into the program, on a
// stream that is the program's: beside its own work, in its order.
#include <cstdio>
#include <gpuvm/launch.cuh>
#include <numeric>
#include <vector>

__global__ void scale(gpuvm::array<float> a, float by, unsigned* scaled) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size() && !a.failed();
         i += gridDim.x * blockDim.x) {
        a[i] *= by;
        atomicAdd(scaled, 1u);
    }
}

// Of the program's own memory.
__global__ void set(unsigned* count, unsigned to) { *count = to; }

static void run() {
    namespace host = gpuvm::host;
    host::Vm vm{{"frame_memory", "1MiB"}};
    if (vm.gpu_name().find("simulated") != std::string::npos)
        throw std::runtime_error("this program's kernels are for an NVIDIA GPU, and there is none");
    std::vector<float> numbers(1 << 20);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    auto paged = vm.region(numbers);

    cudaStream_t stream;
    unsigned* scaled;
    host::check_cuda("a stream", cudaStreamCreate(&stream));
    host::check_cuda("memory", cudaMalloc(&scaled, sizeof *scaled));
    {
        const auto borrowed = vm.borrow(stream);
        set<<<1, 1, 0, stream>>>(scaled, 0);
        // The kernel's arguments by their types.
        auto first = host::launch(vm, host::config(64, 256).on(borrowed), scale, paged, 2.0f, scaled);
        // The same by the program's own <<<>>>.
        auto second = host::launch_by(
            vm, host::config(64, 256).on(borrowed), "scale",
            [&](cudaStream_t, auto a) {
                scale<<<64, 256, 0, stream>>>(a, 0.5f, scaled);
                scale<<<64, 256, 0, stream>>>(a, 2.0f, scaled);
            },
            host::writes(paged));
        first.sync();
        second.sync();
    }
    unsigned count = 0;
    host::check_cuda("a copy", cudaMemcpyAsync(&count, scaled, sizeof count, cudaMemcpyDefault, stream));
    host::check_cuda("the stream", cudaStreamSynchronize(stream));
    const auto doubled = paged.to_vector();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (doubled[i] != 2 * numbers[i]) throw std::runtime_error("a number is wrong");
    }
    if (count != 3 * numbers.size()) throw std::runtime_error("not each number was scaled three times");
    std::printf("%llu pages came to GPU memory, served by GPU threads\n",
                static_cast<unsigned long long>(vm.stats().at("pages_fetched")));
    cudaFree(scaled);
    cudaStreamDestroy(stream);
}

int main() try { run(); } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
