// What the programs that use the library wrongly share: a case is a function with a name, which a program runs by
// itself.
#pragma once

#include <gpuvm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char* name;
    void (*run)(void);
} test_case;

#define CASE(name) \
    { #name, name }

static void fail(const char* file, int line, const char* call, gpuvm_code wanted, gpuvm_code found) {
    fprintf(stderr, "%s:%d: %s: %s was expected, and %s returned: %s\n", file, line, call, gpuvm_code_name(wanted),
            gpuvm_code_name(found), gpuvm_last_error());
    exit(1);
}

// A call that goes well.
#define OK(call)                                                                           \
    do {                                                                                   \
        gpuvm_code code_ = (call);                                                         \
        if (code_ != GPUVM_CODE_OK) fail(__FILE__, __LINE__, #call, GPUVM_CODE_OK, code_); \
    } while (0)

// A call that is refused, and tells why: its text contains `part`.
#define REFUSED(wanted, part, call)                                                                                    \
    do {                                                                                                               \
        gpuvm_code code_ = (call);                                                                                     \
        if (code_ != (wanted)) fail(__FILE__, __LINE__, #call, (wanted), code_);                                       \
        if (strstr(gpuvm_last_error(), (part)) == NULL) {                                                              \
            fprintf(stderr, "%s:%d: %s: `%s` is not in: %s\n", __FILE__, __LINE__, #call, (part), gpuvm_last_error()); \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define HOLDS(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static const char* const SOURCE =
    "#include <gpuvm/gpuvm.cuh>\n"
    "__global__ void add(gpuvm::array<unsigned> a, unsigned by) {\n"
    "    auto lanes = gridDim.x * 1ull * blockDim.x;\n"
    "    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size() && !a.failed(); i += lanes) "
    "a[i] += by;\n"
    "}\n"
    "__global__ void store(unsigned* at, unsigned value) { at[threadIdx.x] = value; }\n"
    "__global__ void far(gpuvm::array<unsigned> a, unsigned long long i) { a[i] = 1; }\n"
    "__global__ void wait(gpuvm::array<unsigned> a) {\n"
    "    a[threadIdx.x] = 1 + threadIdx.x;\n"
    "    while (!a.failed()) __nanosleep(1000);\n"
    "}\n";

// A small virtual memory on the simulated GPU with kernels, and a region of more pages than there are frames.
typedef struct {
    gpuvm_vm vm;
    gpuvm_module module;
    gpuvm_kernel add, store, far, wait;
    gpuvm_region region;
} fixture;

enum { COUNT = 64 * 1024 };

// Settings of a small virtual memory on the simulated GPU.
#define SMALL \
    {"frame_memory", .number = 128 * 1024}, { "sim_workers", .number = 1 }

static gpuvm_vm small_vm(void) {
    gpuvm_vm vm;
    OK(gpuvm_vm_new(GPUVM_SETTINGS(SMALL, {"sim_memory", .number = 64 << 20}), &vm));
    return vm;
}

static uint64_t counter(gpuvm_vm vm, const char* name) {
    uint64_t value;
    OK(gpuvm_vm_counters(vm, 0, &name, 1, &value));
    return value;
}

static gpuvm_kernel kernel_of(gpuvm_module module, const char* name) {
    gpuvm_kernel kernel;
    OK(gpuvm_module_kernel(module, name, &kernel));
    return kernel;
}

static fixture setup(void) {
    fixture f;
    f.vm = small_vm();
    const char* names[] = {"add", "store", "far", "wait"};
    OK(gpuvm_module_compile(f.vm, 0, "cases.cu", SOURCE, names, 4, NULL, &f.module));
    f.add = kernel_of(f.module, "add");
    f.store = kernel_of(f.module, "store");
    f.far = kernel_of(f.module, "far");
    f.wait = kernel_of(f.module, "wait");
    gpuvm_region_options options = {.size = sizeof options, .name = "numbers"};
    OK(gpuvm_region_zeroed(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), COUNT, &f.region));
    return f;
}

static gpuvm_code launch_of(gpuvm_kernel kernel, const gpuvm_arg* args, uint64_t count, gpuvm_launch* launch) {
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {4}, .block = {64}};
    return gpuvm_kernel_launch(kernel, &shape, args, count, launch);
}

// Adds `by` to all of a region.
static gpuvm_launch add_to(fixture f, gpuvm_region region, uint32_t by) {
    gpuvm_arg args[] = {GPUVM_ARG(region), GPUVM_ARG(by)};
    gpuvm_launch launch;
    OK(launch_of(f.add, args, 2, &launch));
    return launch;
}

// Whether each of a region's first elements is `value`.
static int all_are(gpuvm_region region, uint32_t value) {
    static uint32_t found[COUNT];
    OK(gpuvm_region_read(region, 0, found, sizeof found));
    for (int i = 0; i < COUNT; ++i) {
        if (found[i] != value) return 0;
    }
    return 1;
}

// Everything works still, and nothing that was there is lost: all numbers are `value`, and one more after a launch.
static void teardown(fixture f, uint32_t value) {
    HOLDS(all_are(f.region, value));
    gpuvm_launch launch = add_to(f, f.region, 1);
    OK(gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    HOLDS(all_are(f.region, value + 1));
    OK(gpuvm_region_free(f.region));
    OK(gpuvm_kernel_free(f.add));
    OK(gpuvm_kernel_free(f.store));
    OK(gpuvm_kernel_free(f.far));
    OK(gpuvm_kernel_free(f.wait));
    OK(gpuvm_module_free(f.module));
    OK(gpuvm_vm_free(f.vm));
}

// Runs the case that the command line names, or lists all.
static int run_cases(const test_case* cases, size_t count, int argc, char** argv) {
    for (size_t i = 0; i < count; ++i) {
        if (argc == 1) {
            puts(cases[i].name);
        } else if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            puts("done");
            return 0;
        }
    }
    return argc == 1 ? 0 : 2;
}
