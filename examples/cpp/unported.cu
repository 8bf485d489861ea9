// Adds 8 MiB of numbers with GPU memory for an eighth of them, by a kernel that knows nothing of gpuvm: plain pointers,
// compiled by nvcc as ever. Its PTX is in the program, from where the first launch loads it.
#include <cstdio>
#include <gpuvm/launch.cuh>
#include <numeric>
#include <stdexcept>
#include <vector>

static __global__ void saxpy(const float* x, float* y, float a, unsigned long long n) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}

static void run() {
    namespace host = gpuvm::host;
    host::Vm vm{{"frame_memory", "1MiB"}, {"transport", "direct"}};
    std::vector<float> x(1 << 20), y(x.size(), 1.0f);
    std::iota(x.begin(), x.end(), 0.0f);
    auto of_x = vm.region(x), of_y = vm.region(y);

    for (int times = 0; times < 3; ++times) host::launch(vm, {64, 256}, saxpy, of_x, of_y, 2.0f, x.size()).sync();

    const auto sums = of_y.to_vector();
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (sums[i] != 1 + 6 * x[i]) throw std::runtime_error("a number is wrong");
    }
    std::printf("%s: %llu pages came to GPU memory\n", vm.gpu_name().c_str(),
                static_cast<unsigned long long>(vm.stats().at("pages_fetched")));
}

int main() try { run(); } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
