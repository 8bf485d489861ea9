// A stand-in for NVIDIA's driver: kernels that the processor runs, and a note of calls in the file $DRIVER_LOG. With
// -DRESIDENT it has memory of a GPU, $DRIVER_MIB of it, which lies at addresses where the host may have other memory.
// Kernels: `add_one`; `add_late`, which waits until a word of the host's is set; `fails`, which spoils the context.
// Streams run what waits for nothing at once, and else in order, each by a thread; host functions one at a time.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
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
static int module, function, plain, late, fails, context, other_context;
static __thread void* current = &context;

// What an access of a kernel's to nowhere leaves: all calls fail until the GPU is reset. How often it was.
static int is_broken, resets;
enum { kIllegalAddress = 700, kContextIsDestroyed = 709, kCaptureUnsupported = 900 };
static int captures;

// What is on a stream that cannot run at once.
enum { kStreams = 16, kItems = 256, kEvents = 1000, kGraph = 16 };
struct item {
    enum { kHost, kAdd, kWait } kind;
    void (*function)(void*);
    void* data;
    int* values;
    unsigned count;
    volatile int* gate;
    unsigned long waits_for;
    struct stream* other;
};
static struct stream {
    address name;
    struct item items[kItems];
    unsigned long put, done;
    int has_thread, is_captured;
    pthread_t thread;
} streams[kStreams];
static struct {
    struct stream* stream;
    unsigned long put;
} events[kEvents];
// The last graph that was captured.
static struct item graph[kGraph];
static int graph_items, event_count, stream_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, one_function = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

// Streams of a context that was reset are gone.
static int state_of(address stream) {
    if (is_broken) return kIllegalAddress;
    return stream >= 0x10000 && stream >> 16 != (address)resets + 1 ? kContextIsDestroyed : 0;
}
static struct stream* find_stream(address name) {
    int i = 0;
    while (i < kStreams && streams[i].put != 0 && streams[i].name != name) i++;
    if (i == kStreams) exit(8);
    if (streams[i].put == 0) streams[i] = (struct stream){.name = name, .put = 1, .done = 1};
    return &streams[i];
}
static void run_item(const struct item* item) {
    if (item->kind == kHost) {
        pthread_mutex_lock(&one_function);
        item->function(item->data);
        pthread_mutex_unlock(&one_function);
    } else if (item->kind == kAdd) {
        while (item->gate != NULL && !*item->gate) sched_yield();
        for (unsigned i = 0; i < item->count; i++) item->values[i] += 1;
    } else {
        pthread_mutex_lock(&lock);
        while (item->other->done < item->waits_for) pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
}
static void* run_stream(void* of) {
    struct stream* stream = of;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->done == stream->put) pthread_cond_wait(&changed, &lock);
        const struct item item = stream->items[stream->done % kItems];
        pthread_mutex_unlock(&lock);
        run_item(&item);
        pthread_mutex_lock(&lock);
        stream->done++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}
static void enqueue(address name, struct item item) {
    pthread_mutex_lock(&lock);
    struct stream* stream = find_stream(name);
    if (stream->is_captured) {
        graph[graph_items++ % kGraph] = item;
        pthread_mutex_unlock(&lock);
        return;
    }
    const int is_done = item.kind == kWait && item.other->done >= item.waits_for;
    const int runs = stream->done == stream->put && (is_done || (item.kind == kAdd && item.gate == NULL));
    if (!runs) {
        if (stream->put - stream->done == kItems) exit(7);
        stream->items[stream->put++ % kItems] = item;
        if (!stream->has_thread) pthread_create(&stream->thread, NULL, run_stream, stream);
        stream->has_thread = 1;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (runs && !is_done) run_item(&item);
}
// Until a stream, or each if there is none, has done what is put there by now.
static void wait_for(struct stream* only, unsigned long put) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < kStreams; i++) {
        if (only != NULL && only != &streams[i]) continue;
        const unsigned long until = only != NULL ? put : streams[i].put;
        while (streams[i].done < until) pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}
// What nothing may ask while something is captured.
static int is_illegal(const char* what) {
    if (captures == 0) return 0;
    note(what);
    return kCaptureUnsupported;
}
int cuStreamCreate(address* stream, unsigned flags) {
    (void)flags;
    *stream = ((address)resets + 1) * 0x10000 + (address)stream_count++;
    return is_broken ? kIllegalAddress : 0;
}
int cuStreamDestroy_v2(address stream) { return state_of(stream); }
int cuLaunchHostFunc(address stream, void (*run)(void*), void* data) {
    enqueue(stream, (struct item){.kind = kHost, .function = run, .data = data});
    return 0;
}
int cuEventCreate(address* event, unsigned flags) {
    (void)flags;
    *event = (address)event_count++ % kEvents;
    return is_broken ? kIllegalAddress : 0;
}
int cuEventDestroy_v2(address event) {
    (void)event;
    return 0;
}
int cuEventRecord(address event, address stream) {
    if (state_of(stream)) return state_of(stream);
    pthread_mutex_lock(&lock);
    events[event].stream = find_stream(stream);
    events[event].put = events[event].stream->put;
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuEventSynchronize(address event) {
    wait_for(events[event].stream, events[event].put);
    return is_broken ? kIllegalAddress : 0;
}
int cuEventQuery(address event) {
    if (is_illegal("illegal cuEventQuery")) return kCaptureUnsupported;
    return events[event].stream->done < events[event].put ? 600 : 0;
}
int cuStreamWaitEvent(address stream, address event, unsigned flags) {
    (void)flags;
    enqueue(stream, (struct item){.kind = kWait, .other = events[event].stream, .waits_for = events[event].put});
    return state_of(stream);
}
int cuStreamIsCapturing(address stream, int* capturing) {
    pthread_mutex_lock(&lock);
    *capturing = find_stream(stream)->is_captured;
    pthread_mutex_unlock(&lock);
    return 0;
}
int cuStreamBeginCapture_v2(address stream, int mode) {
    (void)mode;
    graph_items = 0;
    find_stream(stream)->is_captured = 1;
    captures++;
    return 0;
}
int cuStreamEndCapture(address stream, void** captured) {
    find_stream(stream)->is_captured = 0;
    captures--;
    *captured = graph;
    return 0;
}
int cuGraphLaunch(void* of, address stream) {
    note("cuGraphLaunch");
    for (int i = 0; of == graph && i < graph_items; i++) enqueue(stream, graph[i]);
    return state_of(stream);
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
    static __thread int own;
    const int before = own;
    own = *mode;
    *mode = before;
    return 0;
}
int cuStreamSynchronize(address stream) {
    if (state_of(stream)) return state_of(stream);
    pthread_mutex_lock(&lock);
    struct stream* found = find_stream(stream);
    const unsigned long put = found->put;
    const int is_captured = found->is_captured;
    pthread_mutex_unlock(&lock);
    if (is_captured && is_illegal("illegal cuStreamSynchronize")) return kCaptureUnsupported;
    wait_for(found, put);
    return state_of(stream);
}
int cuCtxSynchronize(void) {
    if (is_illegal("illegal cuCtxSynchronize")) return kCaptureUnsupported;
    note("cuCtxSynchronize");
    wait_for(NULL, 0);
    return is_broken ? kIllegalAddress : 0;
}
int cuDevicePrimaryCtxReset_v2(int device) {
    if (device != 0) return 101;
    note("cuDevicePrimaryCtxReset_v2");
    is_broken = 0;
    resets++;
    return 0;
}

#ifdef RESIDENT
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
    if (is_broken) return kIllegalAddress;
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
static void moved(const char* what, size_t bytes) {
    char line[100];
    snprintf(line, sizeof line, "%s %zu KiB", what, bytes >> 10);
    note(line);
}
int cuMemcpyDtoHAsync_v2(void* to, address from, size_t bytes, address stream) {
    if (state_of(stream)) return state_of(stream);
    moved("to the host", bytes);
    memcpy(to, on_gpu(from), bytes);
    return 0;
}
int cuMemcpyHtoDAsync_v2(address to, const void* from, size_t bytes, address stream) {
    if (state_of(stream)) return state_of(stream);
    moved("to the GPU", bytes);
    memcpy(on_gpu(to), from, bytes);
    return 0;
}
int cuMemcpyAsync(address to, address from, size_t bytes, address stream) {
    if (state_of(stream)) return state_of(stream);
    note("cuMemcpyAsync");
    memmove(on_gpu(to), on_gpu(from), bytes);
    return 0;
}
int cuMemsetD8Async(address to, unsigned char value, size_t bytes, address stream) {
    if (state_of(stream)) return state_of(stream);
    memset(on_gpu(to), value, bytes);
    return 0;
}
int cuFuncGetParamInfo(void* of, size_t n, size_t* offset, size_t* bytes) {
    *offset = 8 * n;
    *bytes = n == 1 ? 4 : 8;
    return n < (of == &late ? 3 : 2) ? 0 : 1;
}
#else
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
int cuCtxGetCurrent(void** found) {
    *found = current;
    return 0;
}
int cuCtxSetCurrent(void* wanted) {
    if (wanted != &context && wanted != &other_context) return 201;
    current = wanted;
    return 0;
}
// That of another GPU.
void* cuTestOtherContext(void) { return &other_context; }
int cuCtxGetDevice(int* device) {
    *device = current == &other_context;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** primary, int device) {
    *primary = device == 0 ? &context : &other_context;
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
    return is_broken ? kIllegalAddress : 0;
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
    if (is_broken) return kIllegalAddress;
    note("cuMemAllocManaged");
    *at = (address)aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return 0;
}
int cuMemFree_v2(address at) {
    if (is_broken) return kIllegalAddress;
    note("cuMemFree_v2");
    free((void*)at);
    return 0;
}
int cuMemcpyDtoH_v2(void* to, address from, size_t bytes) {
    if (is_broken) return kIllegalAddress;
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
    if (of == &module && strstr(name, "add_late") != NULL) *found = &late;
    if (of == &module && strstr(name, "fails") != NULL) *found = &fails;
    return *found == NULL ? 500 : 0;
}
int cuLaunchKernel(void* what, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, address stream, void** params, void** extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    if (what != &function && what != &plain && what != &late && what != &fails) return 400;
    if (state_of(stream)) return state_of(stream);
    // A stream that takes no more.
    if (getenv("DRIVER_FULL") != NULL) wait_for(NULL, 0);
    note(what == &plain ? "cuLaunchKernel as it was written" : "cuLaunchKernel");
    struct item item = {.kind = kAdd, .values = on_gpu(*(address*)params[0]), .count = *(unsigned*)params[1]};
    if (what == &late) item.gate = *(volatile int**)params[2];
    if (what == &fails)
        is_broken = 1;
    else
        enqueue(stream, item);
    return 0;
}
// Nothing serves it but the driver.
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
