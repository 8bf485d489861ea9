// A stand-in for NVIDIA's driver: a kernel `add_one` that the processor runs, and a note of each call in the file
// $DRIVER_LOG.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(const char* what) {
    FILE* log = fopen(getenv("DRIVER_LOG"), "a");
    if (log == NULL) exit(9);
    fprintf(log, "%s\n", what);
    fclose(log);
}

typedef unsigned long long address;
static int module, function, context;

int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}
int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}
int cuCtxGetCurrent(void** current) {
    *current = &context;
    return 0;
}
int cuCtxSetCurrent(void* current) { return current == &context ? 0 : 201; }
int cuCtxGetDevice(int* device) {
    *device = 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** primary, int device) {
    (void)device;
    *primary = &context;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    (void)device;
    *value = attribute == 75 ? 9 : 0;
    return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = *total = (size_t)1 << 30;
    return 0;
}
int cuStreamIsCapturing(void* stream, int* capturing) {
    (void)stream;
    *capturing = 0;
    return 0;
}
int cuCtxSynchronize(void) {
    note("cuCtxSynchronize");
    return 0;
}
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
    (void)memory, (void)bytes, (void)flags;
    note("cuMemHostRegister_v2");
    return 0;
}
int cuMemHostUnregister(void* memory) {
    (void)memory;
    note("cuMemHostUnregister");
    return 0;
}
int cuMemAllocManaged(address* at, size_t bytes, unsigned flags) {
    (void)flags;
    note("cuMemAllocManaged");
    *at = (address)aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return 0;
}
int cuMemFree_v2(address at) {
    note("cuMemFree_v2");
    free((void*)at);
    return 0;
}
int cuMemcpyDtoH_v2(void* to, address from, size_t bytes) {
    memcpy(to, (void*)from, bytes);
    return 0;
}
int cuMemsetD32_v2(address to, unsigned value, size_t count) {
    for (size_t i = 0; i < count; i++) ((unsigned*)to)[i] = value;
    return 0;
}
int cuModuleLoadData(void** loaded, const void* code) {
    note(strstr(code, "gpuvm_window") ? "cuModuleLoadData of rewritten text" : "cuModuleLoadData");
    *loaded = &module;
    return 0;
}
int cuModuleGetFunction(void** found, void* of, const char* name) {
    if (of != &module || strcmp(name, "add_one") != 0) return 500;
    *found = &function;
    return 0;
}
int cuLaunchKernel(void* what, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void** extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (what != &function) return 400;
    note("cuLaunchKernel");
    int* values = *(int**)params[0];
    for (unsigned i = 0; i < *(unsigned*)params[1]; i++) values[i] += 1;
    return 0;
}
// Nobody serves it but the driver.
int cuTestOther(int value) { return value + 1; }

int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long flags, int* status) {
    static const struct {
        const char* name;
        void* function;
    } all[] = {
        {"cuMemAllocManaged", (void*)cuMemAllocManaged},
        {"cuMemFree", (void*)cuMemFree_v2},
        {"cuMemcpyDtoH", (void*)cuMemcpyDtoH_v2},
        {"cuMemsetD32", (void*)cuMemsetD32_v2},
        {"cuModuleLoadData", (void*)cuModuleLoadData},
        {"cuModuleGetFunction", (void*)cuModuleGetFunction},
        {"cuLaunchKernel", (void*)cuLaunchKernel},
        {"cuCtxSynchronize", (void*)cuCtxSynchronize},
        {"cuTestOther", (void*)cuTestOther},
        {"cuInit", (void*)cuInit},
    };
    (void)version, (void)flags;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, name) == 0) {
            *found = all[i].function;
            if (status != NULL) *status = 0;
            return 0;
        }
    }
    *found = NULL;
    if (status != NULL) *status = 1;
    return 0;
}
