// The same in C: doubles 4 MiB of numbers with GPU memory for a quarter of them.
#include <gpuvm.h>

#include <stdio.h>
#include <stdlib.h>

static const char* SOURCE =
    "#include <gpuvm/gpuvm.cuh>\n"
    "__global__ void scale(gpuvm::array<float> a, float by) {\n"
    "    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * blockDim.x) a[i] "
    "*= by;\n"
    "}\n";

// Ends the program where a call fails.
static void check(gpuvm_code code) {
    if (code == GPUVM_CODE_OK) return;
    fprintf(stderr, "error: %s: %s\n", gpuvm_code_name(code), gpuvm_last_error());
    exit(1);
}

enum { COUNT = 1 << 20 };
static float numbers[COUNT];

int main(void) {
    for (int i = 0; i < COUNT; ++i) numbers[i] = (float)i;
    gpuvm_vm vm;
    check(gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", "1MiB", 0}), &vm));

    // In place: the program's own memory.
    gpuvm_region_options named = {.size = sizeof named, .name = "numbers"};
    gpuvm_region paged;
    check(gpuvm_region_borrowed(vm, &named, gpuvm_number(GPUVM_TYPE_F32), numbers, COUNT, &paged));

    const char* kernels[] = {"scale"};
    gpuvm_module module;
    gpuvm_kernel scale;
    check(gpuvm_module_compile(vm, 0, "scale.cu", SOURCE, kernels, 1, NULL, &module));
    check(gpuvm_module_kernel(module, "scale", &scale));

    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {64}, .block = {256}};
    gpuvm_arg args[] = {GPUVM_ARG(paged), GPUVM_ARG(2.0f)};
    gpuvm_launch launch;
    check(gpuvm_kernel_launch(scale, &shape, args, 2, &launch));
    check(gpuvm_launch_sync(launch, NULL));

    // From here on the memory is the program's again.
    check(gpuvm_region_free(paged));
    for (int i = 0; i < COUNT; ++i) {
        if (numbers[i] != 2 * (float)i) return 1;
    }
    const char* counter = "pages_fetched";
    uint64_t pages;
    check(gpuvm_vm_counters(vm, 0, &counter, 1, &pages));
    printf("%llu pages came to GPU memory, served by GPU threads\n", (unsigned long long)pages);
    check(gpuvm_launch_free(launch));
    check(gpuvm_kernel_free(scale));
    check(gpuvm_module_free(module));
    check(gpuvm_vm_free(vm));
    return 0;
}
