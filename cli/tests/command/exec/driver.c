// A stand-in for NVIDIA's driver: a kernel `add_one` that the processor runs, and a note of each call in the file
// $DRIVER_LOG. With -DRESIDENT it has memory of a GPU, $DRIVER_MIB of it, which lies at addresses where the host may
// have other memory.
#define _GNU_SOURCE
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
static int module, function, plain, context;

#ifdef RESIDENT
#include <pthread.h>
#include <sys/mman.h>

// Memory of the GPU, and where it is mapped.
enum { kPieces = 64 };
static struct {
    char* memory;
    size_t bytes;
    address at;
} pieces[kPieces];

// Where the processor finds what the GPU has at an address.
static void* on_gpu(address at) {
    for (int i = 0; i < kPieces; i++)
        if (pieces[i].at != 0 && at >= pieces[i].at && at - pieces[i].at < pieces[i].bytes)
            return pieces[i].memory + (at - pieces[i].at);
    return (void*)at;
}
static size_t in_use(void) {
    size_t all = 0;
    for (int i = 0; i < kPieces; i++) all += pieces[i].memory == NULL ? 0 : pieces[i].bytes;
    return all;
}
static size_t capacity(void) {
    const char* most = getenv("DRIVER_MIB");
    return (size_t)(most == NULL ? 1024 : atoi(most)) << 20;
}

int cuMemAddressReserve(address* at, size_t bytes, size_t alignment, address wanted, unsigned long long flags) {
    (void)wanted, (void)flags;
    char* found = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return 2;
    *at = ((address)found + alignment - 1) / alignment * alignment;
    return 0;
}
int cuMemAddressFree(address at, size_t bytes) {
    note("cuMemAddressFree");
    return munmap((void*)at, bytes);
}
int cuMemCreate(address* memory, size_t bytes, const int* kind, unsigned long long flags) {
    (void)flags;
    if (kind[0] != 1 || kind[2] != 1 || kind[3] != 0) return 1;
    if (in_use() + bytes > capacity()) return 2;
    for (int i = 0; i < kPieces; i++) {
        if (pieces[i].memory != NULL) continue;
        pieces[i].memory = malloc(bytes);
        pieces[i].bytes = bytes;
        *memory = (address)i + 1;
        return 0;
    }
    return 2;
}
int cuMemMap(address at, size_t bytes, size_t offset, address memory, unsigned long long flags) {
    (void)flags;
    if (offset != 0 || pieces[memory - 1].bytes != bytes) return 1;
    pieces[memory - 1].at = at;
    return 0;
}
int cuMemSetAccess(address at, size_t bytes, const int* rights, size_t count) {
    return count != 1 || rights[2] != 3 || on_gpu(at) == (void*)at || on_gpu(at + bytes - 1) == (void*)at;
}
int cuMemUnmap(address at, size_t bytes) {
    for (int i = 0; i < kPieces; i++) {
        if (pieces[i].at != at || pieces[i].bytes != bytes) continue;
        pieces[i].at = 0;
        return 0;
    }
    return 1;
}
int cuMemRelease(address memory) {
    free(pieces[memory - 1].memory);
    pieces[memory - 1].memory = NULL;
    return 0;
}
int cuStreamCreate(address* stream, unsigned flags) {
    *stream = 77;
    return flags != 1;
}
// A host function that a thread runs, and the launch behind it. Only what is told to waits for them.
static struct {
    pthread_t thread;
    void (*function)(void*);
    void* data;
    int is_there;
    pthread_mutex_t lock;
    int has_ended, *values;
    unsigned count;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add(int* values, unsigned count) {
    for (unsigned i = 0; i < count; i++) values[i] += 1;
}
static void* run_host(void* nothing) {
    host.function(host.data);
    pthread_mutex_lock(&host.lock);
    host.has_ended = 1;
    add(host.values, host.count);
    pthread_mutex_unlock(&host.lock);
    return nothing;
}
static void wait_for_host(void) {
    if (host.is_there) pthread_join(host.thread, NULL);
    host.is_there = 0;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
    (void)stream;
    wait_for_host();
    host.function = function;
    host.data = data;
    host.has_ended = 0;
    host.count = 0;
    host.is_there = 1;
    return pthread_create(&host.thread, NULL, run_host, NULL);
}
static int is_behind_host(int* values, unsigned count) {
    pthread_mutex_lock(&host.lock);
    const int is_behind = host.is_there && !host.has_ended;
    if (is_behind) {
        host.values = values;
        host.count = count;
    }
    pthread_mutex_unlock(&host.lock);
    return is_behind;
}
// An event is behind the host function that was there when it was recorded.
static int events[1000], event_count;
int cuEventCreate(address* event, unsigned flags) {
    (void)flags;
    *event = (address)event_count++ % 1000;
    return 0;
}
int cuEventDestroy_v2(address event) {
    (void)event;
    return 0;
}
int cuEventRecord(address event, void* stream) {
    (void)stream;
    events[event] = host.is_there;
    return 0;
}
int cuEventSynchronize(address event) {
    note("cuEventSynchronize");
    if (events[event]) wait_for_host();
    return 0;
}
int cuEventQuery(void* event) {
    (void)event;
    return 600;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return 0;
}
static void moved(const char* what, size_t bytes) {
    char line[100];
    snprintf(line, sizeof line, "%s %zu KiB", what, bytes >> 10);
    note(line);
}
int cuMemcpyDtoHAsync_v2(void* to, address from, size_t bytes, void* stream) {
    (void)stream;
    moved("to the host", bytes);
    memcpy(to, on_gpu(from), bytes);
    return 0;
}
int cuMemcpyHtoDAsync_v2(address to, const void* from, size_t bytes, void* stream) {
    (void)stream;
    moved("to the GPU", bytes);
    memcpy(on_gpu(to), from, bytes);
    return 0;
}
int cuMemcpyAsync(address to, address from, size_t bytes, void* stream) {
    (void)stream;
    note("cuMemcpyAsync");
    memmove(on_gpu(to), on_gpu(from), bytes);
    return 0;
}
int cuMemsetD8Async(address to, unsigned char value, size_t bytes, void* stream) {
    (void)stream;
    memset(on_gpu(to), value, bytes);
    return 0;
}
int cuFuncGetParamInfo(void* of, size_t n, size_t* offset, size_t* bytes) {
    (void)of;
    *offset = 8 * n;
    *bytes = n == 0 ? 8 : 4;
    return n < 2 ? 0 : 1;
}
#else
static void wait_for_host(void) {}
static void add(int* values, unsigned count) {
    for (unsigned i = 0; i < count; i++) values[i] += 1;
}
static int is_behind_host(int* values, unsigned count) { return values == NULL && count == 0; }
static void* on_gpu(address at) { return (void*)at; }
static size_t in_use(void) { return 0; }
static size_t capacity(void) { return (size_t)1 << 30; }
#endif

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
    *total = capacity();
    *free = *total - in_use();
    return 0;
}
int cuStreamIsCapturing(void* stream, int* capturing) {
    (void)stream;
    *capturing = 0;
    return 0;
}
int cuStreamSynchronize(void* stream) {
    (void)stream;
    return 0;
}
int cuCtxSynchronize(void) {
    note("cuCtxSynchronize");
    wait_for_host();
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
    memcpy(to, on_gpu(from), bytes);
    return 0;
}
int cuMemsetD32_v2(address to, unsigned value, size_t count) {
    for (size_t i = 0; i < count; i++) ((unsigned*)on_gpu(to))[i] = value;
    return 0;
}
int cuModuleLoadData(void** loaded, const void* code) {
    note(strstr(code, "gpuvm_window") ? "cuModuleLoadData of rewritten text" : "cuModuleLoadData");
    *loaded = &module;
    return 0;
}
int cuModuleGetFunction(void** found, void* of, const char* name) {
    *found = NULL;
    if (of == &module && strcmp(name, "add_one") == 0) *found = &function;
    if (of == &module && strcmp(name, "gpuvm_plain_add_one") == 0) *found = &plain;
    return *found == NULL ? 500 : 0;
}
int cuLaunchKernel(void* what, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** params, void** extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (what != &function && what != &plain) return 400;
    // A stream that takes no more.
    if (getenv("DRIVER_FULL") != NULL) wait_for_host();
    note(what == &plain ? "cuLaunchKernel as it was written" : "cuLaunchKernel");
    int* values = on_gpu(*(address*)params[0]);
    const unsigned count = *(unsigned*)params[1];
    if (!is_behind_host(values, count)) add(values, count);
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
