// Who stays and who gives way while GPU memory is short, as the program says.
#define _DEFAULT_SOURCE
#include "cases.h"

#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HANDLE = 64 * 1024 };

static const char* const SUM =
    "#include <gpuvm/gpuvm.cuh>\n"
    "__global__ void sum(gpuvm::array<const unsigned> a, unsigned* total) {\n"
    "    unsigned own = 0;\n"
    "    for (auto i = blockIdx.x * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * blockDim.x) own += a[i];\n"
    "    atomicAdd(total, own);\n"
    "}\n";

static gpuvm_region pages_of(gpuvm_vm vm, uint64_t pages, int32_t priority) {
    gpuvm_region_options options = {.size = sizeof options, .priority = priority};
    gpuvm_region region;
    OK(gpuvm_region_zeroed(vm, &options, gpuvm_number(GPUVM_TYPE_U32), pages * PAGE / 4, &region));
    return region;
}

static uint64_t fetched(gpuvm_vm vm) { return counter(vm, "pages_fetched"); }

// Reads all of a region: how many pages had to come.
static uint64_t read_all(gpuvm_vm vm, gpuvm_kernel sum, gpuvm_region region) {
    uint64_t before = fetched(vm);
    gpuvm_buffer total;
    OK(gpuvm_buffer_new(vm, 0, gpuvm_number(GPUVM_TYPE_U32), 1, &total));
    gpuvm_arg args[] = {GPUVM_ARG(region), GPUVM_ARG(total)};
    gpuvm_launch launch;
    OK(launch_of(sum, args, 2, &launch));
    OK(gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    OK(gpuvm_buffer_free(total));
    return fetched(vm) - before;
}

// Pages of `kept` that have left after two passes over `stream`.
static uint64_t lost(gpuvm_vm vm, gpuvm_kernel sum, gpuvm_region kept, gpuvm_region stream) {
    read_all(vm, sum, kept);
    read_all(vm, sum, stream);
    read_all(vm, sum, stream);
    return read_all(vm, sum, kept);
}

static void pages_of_low_priority_leave_first(void) {
    gpuvm_vm vm;
    OK(gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", .number = 70 * PAGE}, {"sim_memory", .number = 64 << 20}), &vm));
    const char* names[] = {"sum"};
    gpuvm_module module;
    OK(gpuvm_module_compile(vm, 0, "sum.cu", SUM, names, 1, NULL, &module));
    gpuvm_kernel sum = kernel_of(module, "sum");
    gpuvm_region kept = pages_of(vm, 24, 5), stream = pages_of(vm, 500, 0);
    int32_t priority = 0;
    OK(gpuvm_region_priority(kept, &priority));
    HOLDS(priority == 5);
    HOLDS(lost(vm, sum, kept, stream) == 0);
    // It may be said at any time.
    OK(gpuvm_region_set_priority(kept, 0));
    OK(gpuvm_region_priority(kept, &priority));
    HOLDS(priority == 0);
    HOLDS(lost(vm, sum, kept, stream) > 12);
    OK(gpuvm_region_set_priority(stream, INT32_MIN));
    HOLDS(lost(vm, sum, kept, stream) == 0);
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`priority` is NULL", gpuvm_region_priority(kept, NULL));
    OK(gpuvm_region_free(kept));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "it was freed", gpuvm_region_set_priority(kept, 1));
    OK(gpuvm_region_free(stream));
    OK(gpuvm_kernel_free(sum));
    OK(gpuvm_module_free(module));
    OK(gpuvm_vm_free(vm));
}

static uint64_t frame_bytes(gpuvm_vm vm) {
    gpuvm_gpu_info info = {.size = sizeof info};
    OK(gpuvm_vm_gpu_info(vm, 0, &info));
    return info.frames * info.page_size;
}

static gpuvm_elastic bytes_of(gpuvm_vm vm, uint64_t handles, int32_t priority) {
    gpuvm_elastic_options options = {.size = sizeof options, .priority = priority, .length = handles * HANDLE};
    gpuvm_elastic elastic;
    OK(gpuvm_elastic_new(vm, &options, gpuvm_number(GPUVM_TYPE_U8), 1 << 30, &elastic));
    return elastic;
}

// A buffer grows until frames, or what another buffer has beyond its length, give way. Whether those are the frames.
static int frames_go_first(int32_t frames_at_first, int32_t elastic_at_first, int32_t frames, int32_t elastic) {
    gpuvm_vm vm;
    OK(gpuvm_vm_new(GPUVM_SETTINGS({"sim_memory", .number = 64 * HANDLE}, {"sim_workers", .number = 1},
                                   {"frame_memory", .number = 16 * HANDLE}, {"frame_capacity", .number = 16 * HANDLE},
                                   {"frame_minimum", .number = HANDLE}, {"frame_priority", .number = frames_at_first}),
                    &vm));
    gpuvm_elastic idle = bytes_of(vm, 16, elastic_at_first), grows = bytes_of(vm, 0, 0);
    OK(gpuvm_elastic_shrink(idle, 15 * HANDLE));
    if (frames != frames_at_first) OK(gpuvm_vm_set_frame_priority(vm, 0, frames));
    if (elastic != elastic_at_first) OK(gpuvm_elastic_set_priority(idle, elastic));
    uint64_t before, after;
    OK(gpuvm_elastic_capacity(idle, &before));
    HOLDS(before >= 16 * HANDLE);
    do {
        OK(gpuvm_elastic_grow(grows, HANDLE, NULL));
        OK(gpuvm_elastic_capacity(idle, &after));
    } while (after == before && frame_bytes(vm) == 16 * HANDLE);
    int frames_went = frame_bytes(vm) < 16 * HANDLE;
    HOLDS(frames_went != (after < before));
    // All of it is available, and no more.
    gpuvm_code code;
    while ((code = gpuvm_elastic_grow(grows, HANDLE, NULL)) == GPUVM_CODE_OK) {
    }
    HOLDS(code == GPUVM_CODE_OUT_OF_MEMORY && frame_bytes(vm) == HANDLE);
    OK(gpuvm_elastic_free(idle));
    OK(gpuvm_elastic_free(grows));
    OK(gpuvm_vm_free(vm));
    return frames_went;
}

static void frames_and_elastic_buffers_of_low_priority_give_first(void) {
    // As the options say, and as was said later.
    HOLDS(frames_go_first(-1, 0, -1, 0));
    HOLDS(!frames_go_first(1, 0, 1, 0));
    HOLDS(frames_go_first(1, 0, -1, 0));
    HOLDS(!frames_go_first(-1, 0, 1, 0));
    HOLDS(frames_go_first(0, -1, 0, 1));
    HOLDS(!frames_go_first(0, 1, 0, -1));
    gpuvm_vm vm = small_vm();
    // Frames that stay have no use for it, and a GPU that is not there has none.
    OK(gpuvm_vm_set_frame_priority(vm, 0, 9));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "GPU is 3", gpuvm_vm_set_frame_priority(vm, 3, 9));
    OK(gpuvm_vm_free(vm));
}

static void frames_leave_memory_free(void) {
    gpuvm_setting settings[] = {
        {"sim_memory", .number = 64 * HANDLE},     {"sim_workers", .number = 1},
        {"frame_memory", .number = 16 * HANDLE},   {"frames_leave_free", .number = 1},
        {"frame_capacity", .number = 24 * HANDLE}, {"frame_minimum", .number = 2 * HANDLE},
    };
    gpuvm_vm vm;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "set frame_capacity", gpuvm_vm_new(settings, 4, &vm));
    // More than the GPU has: they go down to their minimum.
    settings[3].number = 65 * HANDLE;
    OK(gpuvm_vm_new(settings, 6, &vm));
    time_t limit = time(NULL) + 60;
    while (frame_bytes(vm) > 2 * HANDLE) {
        HOLDS(time(NULL) < limit);
        usleep(1000);
    }
    HOLDS(frame_bytes(vm) == 2 * HANDLE);
    OK(gpuvm_vm_free(vm));
}

static const test_case CASES[] = {
    CASE(pages_of_low_priority_leave_first),
    CASE(frames_and_elastic_buffers_of_low_priority_give_first),
    CASE(frames_leave_memory_free),
};

int main(int argc, char** argv) { return run_cases(CASES, sizeof CASES / sizeof *CASES, argc, argv); }
