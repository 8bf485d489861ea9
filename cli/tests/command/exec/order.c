// A program whose threads, streams and host functions use managed memory at the same time, as $1 says. Each prints what
// it finds; none ends by itself where an order is wrong.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address;

static const char* const kernels =
    ".version 8.0 .target sm_75 .address_size 64\n.visible .entry add_one(.param .u64 values, .param .u32 count) { "
    "ret; }"
    "\n.visible .entry add_late(.param .u64 values, .param .u32 count, .param .u64 gate) { ret; }"
    "\n.visible .entry fails(.param .u64 values, .param .u32 count) { ret; }\n";

struct host_node {
    void (*function)(void*);
    void* data;
};
int cuModuleLoadData(void**, const void*), cuModuleGetFunction(void**, void*, const char*),
    cuMemAllocManaged(address*, size_t, unsigned), cuMemFree_v2(address),
    cuMemcpyAsync(address, address, size_t, address), cuCtxSynchronize(void), cuStreamCreate(address*, unsigned),
    cuStreamSynchronize(address), cuStreamBeginCapture_v2(address, int), cuStreamEndCapture(address, void**),
    cuGraphLaunch(void*, address), cuLaunchHostFunc(address, void (*)(void*), void*), cuDevicePrimaryCtxReset_v2(int),
    cuCtxSetCurrent(void*),
    cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, address, void**,
                   void**);
void* cuTestOtherContext(void);

static void check(const char* what, int status) {
    if (status == 0) return;
    printf("%s: %d\n", what, status);
    exit(1);
}

static void *add_one, *add_late, *fails;
static address streams[4];
static int* allocate(size_t bytes) {
    address at;
    check("allocate", cuMemAllocManaged(&at, bytes, 1));
    return (int*)at;
}
static int launch(void* kernel, address stream, int* values, unsigned count, volatile int* gate) {
    void* params[] = {&values, &count, &gate};
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}
static void load(void) {
    void* module;
    check("load", cuModuleLoadData(&module, kernels));
    check("find", cuModuleGetFunction(&add_one, module, "add_one"));
    check("find", cuModuleGetFunction(&add_late, module, "add_late"));
    check("find", cuModuleGetFunction(&fails, module, "fails"));
    for (int i = 0; i < 4; i++) check("stream", cuStreamCreate(&streams[i], 1));
}

static void times_ten(void* values) { *(int*)values *= 10; }
static volatile int has_begun, goes_on;
static void times_ten_and_waits(void* values) {
    times_ten(values);
    has_begun = 1;
    while (!goes_on) usleep(100);
}
static void times_ten_when_told(void* values) {
    while (!goes_on) usleep(100);
    usleep(20000);
    times_ten(values);
}

// A host function waits for nothing of another stream's, and takes nothing back that a kernel writes beside it.
static void beside(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("wait", cuCtxSynchronize());
    volatile int gate = 0;
    // The kernel writes the numbers beside, while the host function has that one.
    check("launch", launch(add_late, streams[1], values + 1, 1023, &gate));
    check("host function", cuLaunchHostFunc(streams[0], times_ten_and_waits, values));
    while (!has_begun) usleep(100);
    gate = 1;
    check("wait", cuStreamSynchronize(streams[1]));
    goes_on = 1;
    check("wait", cuStreamSynchronize(streams[0]));
    printf("beside it %d %d\n", values[0], values[1]);
    // What no launch has had waits for none.
    gate = 0;
    check("launch", launch(add_late, streams[1], values + 8, 1, &gate));
    int* others = allocate((size_t)4 << 20);
    for (int i = 0; i < 1 << 20; i++) others[i] = i;
    gate = 1;
    check("launch", launch(add_one, streams[1], others, 8, NULL));
    check("wait", cuCtxSynchronize());
    printf("meanwhile %d %d %d\n", values[8], others[7], others[(1 << 20) - 1]);
    // Both streams have functions, and launches behind each other's.
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++) {
            check("launch", launch(add_one, streams[i], values + 4096 * i, 1, NULL));
            check("host function", cuLaunchHostFunc(streams[i], times_ten, values + 4096 * i));
            check("host function", cuLaunchHostFunc(streams[i], times_ten, values + 1 + 4096 * i));
        }
        for (int i = 0; i < 2; i++) {
            check("wait", cuStreamSynchronize(streams[i]));
            values[4096 * i] = values[4096 * i] % 7;
            values[4096 * i + 1] %= 1000;
        }
    }
    check("wait", cuCtxSynchronize());
    printf("in turn %d %d %d\n", values[0], values[4096], values[1]);
}

// Threads with a stream each, whose numbers lie side by side.
enum { kThreads = 4, kNumbers = 8 };
static int* shared;
static void* one_thread(void* of) {
    const int own = (int)(size_t)of;
    int* values = shared + own * kNumbers;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < kNumbers; i++) values[i] = round * 100 + i;
        check("launch", launch(add_one, streams[own], values, kNumbers, NULL));
        check("wait", cuStreamSynchronize(streams[own]));
        for (int i = 0; i < kNumbers; i++) {
            if (values[i] == round * 100 + i + 1) continue;
            printf("thread %d, round %d: %d in place of %d\n", own, round, values[i], round * 100 + i + 1);
            exit(1);
        }
    }
    return NULL;
}
static void threads(void) {
    pthread_t all[kThreads];
    shared = allocate(kThreads * kNumbers * sizeof(int));
    for (size_t i = 0; i < kThreads; i++) pthread_create(&all[i], NULL, one_thread, (void*)i);
    for (size_t i = 0; i < kThreads; i++) pthread_join(all[i], NULL);
    printf("threads are right\n");
}

// Memory leaves the GPU while a host function has not ended that needs it.
static void* soon(void* nothing) {
    usleep(50000);
    goes_on = 1;
    return nothing;
}
static void leaves(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("host function", cuLaunchHostFunc(streams[0], times_ten_when_told, values));
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    pthread_t thread;
    pthread_create(&thread, NULL, soon, NULL);
    int* others = allocate((size_t)64 << 20);
    others[0] = 5;
    check("wait", cuCtxSynchronize());
    printf("left %d %d\n", values[0], others[0]);
    pthread_join(thread, NULL);
}

// So does a reset, and a launch in the context of another GPU.
static void resets(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("host function", cuLaunchHostFunc(streams[0], times_ten_when_told, values));
    pthread_t thread;
    pthread_create(&thread, NULL, soon, NULL);
    check("reset", cuDevicePrimaryCtxReset_v2(0));
    pthread_join(thread, NULL);
    load();
    values = allocate((size_t)4 << 20);
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    printf("anew %d\n", values[1023]);
    // With nothing there.
    check("free", cuMemFree_v2((address)values));
    check("reset", cuDevicePrimaryCtxReset_v2(0));
    load();
    values = allocate((size_t)4 << 20);
    values[5] = 7;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    printf("again %d\n", values[5]);
}
static void elsewhere(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("host function", cuLaunchHostFunc(streams[0], times_ten_when_told, values));
    pthread_t thread;
    pthread_create(&thread, NULL, soon, NULL);
    check("context", cuCtxSetCurrent(cuTestOtherContext()));
    check("launch", launch(add_one, 0, values + 2048, 1024, NULL));
    check("wait", cuCtxSynchronize());
    printf("elsewhere %d %d\n", values[0], values[2048]);
    pthread_join(thread, NULL);
}

// The program's own mistake is told as without us, and ends with a reset.
static void fault(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    printf("values %d\n", values[0]);
    check("launch", launch(fails, streams[0], values, 1024, NULL));
    printf("launch %d", launch(add_one, streams[0], values, 1024, NULL));
    printf(", wait %d", cuCtxSynchronize());
    // Whatever it finds.
    values[0] = values[1];
    address at;
    printf(", allocate %d", cuMemAllocManaged(&at, (size_t)4 << 20, 1));
    printf(", copy %d, free %d\n", cuMemcpyAsync((address)values, (address)values + 64, 64, 0),
           cuMemFree_v2((address)values));
    check("reset", cuDevicePrimaryCtxReset_v2(0));
    load();
    values = allocate((size_t)4 << 20);
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    printf("anew %d\n", values[1023]);
}

// While a stream is captured nothing asks what may not be asked then. A graph's host functions are those of a stream.
static void captures(void) {
    int* values = allocate((size_t)4 << 20);
    values[0] = 1;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("capture", cuStreamBeginCapture_v2(streams[2], 0));
    check("launch", launch(add_one, streams[2], values, 1024, NULL));
    check("host function", cuLaunchHostFunc(streams[2], times_ten, values));
    printf("meanwhile %d", values[0]);
    values[0] = 3;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    printf(" %d\n", values[0]);
    void* graph;
    check("capture", cuStreamEndCapture(streams[2], &graph));
    for (int i = 0; i < 2; i++) check("graph", cuGraphLaunch(graph, streams[2]));
    check("wait", cuStreamSynchronize(streams[2]));
    printf("graph %d\n", values[0]);
}

// The system has as many pieces of memory as it allows, but for so few.
static void pieces(int left) {
    const size_t page = 4096, count = 600000;
    int* values = allocate((size_t)32 << 20);
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("wait", cuCtxSynchronize());
    char* all = mmap(NULL, 2 * count * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t last = 0;
    while (last < count && mprotect(all + 2 * last * page, page, PROT_NONE) == 0) last++;
    if (last == count) exit(77);
    for (; left > 0; left -= 2) mprotect(all + 2 * --last * page, page, PROT_READ);
    // Each asks for a piece of its own.
    for (size_t i = 0; i < 512; i += 2) values[i << 14] += 2;
    check("launch", launch(add_one, streams[0], values, 1024, NULL));
    check("wait", cuCtxSynchronize());
    int sum = 0;
    for (size_t i = 0; i < 512; i += 2) sum += values[i << 14];
    printf("sum %d\n", sum);
}

// The host writes from the beginning to the end, and again a part of it.
static void ahead(void) {
    const unsigned count = 16u << 20;
    int* values = allocate(count * sizeof(int));
    for (unsigned i = 0; i < count; i++) values[i] = (int)(i % 7);
    check("wait", cuCtxSynchronize());
    values[4] = 100;
    values[count / 2] = 50;
    check("launch", launch(add_one, streams[0], values, count, NULL));
    long long sum = 0;
    for (unsigned i = 0; i < count; i++) sum += values[i];
    printf("sum %lld, %d %d\n", sum, values[4], values[count / 2]);
}

int main(int count, char** arguments) {
    const char* what = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    load();
    if (strcmp(what, "beside") == 0) beside();
    if (strcmp(what, "threads") == 0) threads();
    if (strcmp(what, "leaves") == 0) leaves();
    if (strcmp(what, "resets") == 0) resets();
    if (strcmp(what, "elsewhere") == 0) elsewhere();
    if (strcmp(what, "fault") == 0) fault();
    if (strcmp(what, "captures") == 0) captures();
    if (strcmp(what, "pieces") == 0) pieces(12);
    if (strcmp(what, "no-pieces") == 0) pieces(0);
    if (strcmp(what, "ahead") == 0) ahead();
    return 0;
}
