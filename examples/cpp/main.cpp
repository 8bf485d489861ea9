// Doubles 4 MiB of numbers with GPU memory for a quarter of them.
#include <gpuvm/host.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

static const char* SOURCE = R"(
#include <gpuvm/gpuvm.cuh>
__global__ void scale(gpuvm::array<float> a, float by) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * blockDim.x) a[i] *= by;
})";

int main() try {
    gpuvm::host::Vm vm{{"frame_memory", "1MiB"}};
    std::vector<float> numbers(1 << 20);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    auto paged = vm.region(numbers);
    auto scale = vm.kernel("scale.cu", SOURCE, "scale");
    scale.launch({64, 256}, paged, 2.0f).sync();
    const auto doubled = paged.to_vector();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (doubled[i] != 2 * numbers[i]) throw std::runtime_error("a number is wrong");
    }
    std::printf("%llu pages came to GPU memory, served by GPU threads\n",
                static_cast<unsigned long long>(vm.stats().at("pages_fetched")));
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
