// A program that launches over managed memory again and again, and reads and writes some of it between: `rounds`; one
// whose second allocation is too large for the GPU with the first: `large`; one with host functions on a stream,
// between launches: `host`, where launches wait for them if there is $DRIVER_FULL.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long address;

static const char* const kernel =
    ".version 8.0 .target sm_75 .address_size 64\n.visible .global .u32 seen;\n.visible .entry add_one(.param .u64 "
    "values, .param .u32 count) "
    "{\n.reg .b64 %a; .reg .b32 %v;\n"
    "ld.param.u64 %a, [values]; ld.global.u32 %v, [%a]; add.s32 %v, %v, 1; st.global.u32 [%a], %v; ret; }\n";

int cuModuleLoadData(void**, const void*), cuModuleGetFunction(void**, void*, const char*),
    cuMemAllocManaged(address*, size_t, unsigned), cuMemFree_v2(address), cuMemcpyDtoH_v2(void*, address, size_t),
    cuMemsetD32_v2(address, unsigned, size_t), cuCtxSynchronize(void), cuLaunchHostFunc(void*, void (*)(void*), void*),
    cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);

static void check(const char* what, int status) {
    if (status == 0) return;
    printf("%s: %d\n", what, status);
    exit(1);
}

static void* function;
static int* allocate(size_t bytes) {
    address at;
    check("allocate", cuMemAllocManaged(&at, bytes, 1));
    return (int*)at;
}
static void add_one(int** values, unsigned* count) {
    void* params[] = {values, count};
    check("launch", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
}

// Prints what it finds as it goes.
static void rounds(void) {
    // The parameters are managed memory, too.
    int** values = (int**)allocate(sizeof(int*));
    unsigned* count = (unsigned*)allocate(sizeof(unsigned));
    // Where it is told is managed memory, too.
    check("allocate", cuMemAllocManaged((address*)values, (size_t)32 << 20, 1));
    *count = 8u << 20;
    for (unsigned i = 0; i < 4096; i++) (*values)[i] = (int)i;
    // Both launches want them, and there is one question for the host's.
    for (int launch = 0; launch < 2; launch++) add_one(values, count);
    check("wait", cuCtxSynchronize());
    int* at = *values;
    printf("first %d, last %d\n", at[4095], at[(8 << 20) - 1]);
    at[5 << 20] += 100;
    add_one(values, count);
    printf("written %d, beside it %d\n", at[5 << 20], at[(5 << 20) + 1]);
    int copy[2] = {};
    at[1] = 50;
    check("copy", cuMemcpyDtoH_v2(copy, (address)at, sizeof copy));
    check("set", cuMemsetD32_v2((address)(at + 2), 9u, 4));
    printf("copied %d %d, set %d %d\n", copy[0], copy[1], at[5], at[6]);
    check("free", cuMemFree_v2((address)at));
    // The same addresses, and zeros.
    int* again = allocate((size_t)32 << 20);
    printf("again %d, %d\n", again == at, again[7]);
}

static volatile int goes_on;
static int nowhere;
static void times_ten(void* values) {
    while (!goes_on) {
    }
    if (getenv("DRIVER_FULL") != NULL) usleep(50000);
    *(int*)values *= 10;
    // What the system reads has to be there, too.
    if (write(nowhere, values, 100000) != 100000) *(int*)values = 0;
}

static void host(int full) {
    goes_on = full;
    nowhere = open("/dev/null", O_WRONLY);
    int* values = allocate((size_t)4 << 20);
    unsigned count = 1024;
    values[0] = 1;
    add_one(&values, &count);
    check("host function", cuLaunchHostFunc(NULL, times_ten, values));
    // Behind it, and put there before it has run.
    add_one(&values, &count);
    goes_on = 1;
    check("wait", cuCtxSynchronize());
    printf("behind it %d\n", values[0]);
    goes_on = full;
    add_one(&values, &count);
    check("host function", cuLaunchHostFunc(NULL, times_ten, values));
    goes_on = 1;
    // Nothing has waited for it: the access does.
    printf("waited for %d\n", values[0]);
}

static void large(void) {
    int* small = allocate((size_t)4 << 20);
    unsigned count = 1u << 20;
    for (unsigned i = 0; i < count; i++) small[i] = (int)i;
    add_one(&small, &count);
    // The host has this one's addresses from before.
    small[7] = 70;
    int* rest = allocate((size_t)64 << 20);
    rest[0] = 1;
    add_one(&small, &count);
    add_one(&rest, &count);
    long long sum = 0;
    for (unsigned i = 0; i < count; i++) sum += small[i] + rest[i];
    printf("sum %lld, written %d\n", sum, small[7]);
}

int main(int count_of, char** arguments) {
    void* module;
    check("load", cuModuleLoadData(&module, kernel));
    check("find", cuModuleGetFunction(&function, module, "add_one"));
    if (count_of > 1 && strcmp(arguments[1], "large") == 0)
        large();
    else if (count_of > 1 && strcmp(arguments[1], "host") == 0)
        host(getenv("DRIVER_FULL") != NULL);
    else
        rounds();
    return 0;
}
