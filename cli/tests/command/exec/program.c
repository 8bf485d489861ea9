// A program that uses managed memory, and finds the driver's functions as $1 says: `dlsym`, `address`
// (cuGetProcAddress), or with -DLINKED by the loader.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned long long address;

static const char* const kernel =
    ".version 8.0 .target sm_75 .address_size 64\n.visible .entry add_one(.param .u64 values, .param .u32 count) "
    "{\n.reg .b64 %a; .reg .b32 %v;\n"
    "ld.param.u64 %a, [values]; ld.global.u32 %v, [%a]; add.s32 %v, %v, 1; st.global.u32 [%a], %v; ret; }\n";

#ifdef LINKED
int cuInit(unsigned), cuModuleLoadData(void**, const void*), cuModuleGetFunction(void**, void*, const char*),
    cuMemAllocManaged(address*, size_t, unsigned), cuMemFree_v2(address), cuMemcpyDtoH_v2(void*, address, size_t),
    cuMemsetD32_v2(address, unsigned, size_t), cuCtxSynchronize(void), cuTestOther(int),
    cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
#define FIND(name) name
#define FIND_V2(name) name##_v2
#else
static void* library;
static int (*by_name)(const char*, void**, int, unsigned long long, int*);
static void* find(const char* base, const char* symbol) {
    void* found = NULL;
    if (by_name == NULL) return dlsym(library, symbol);
    return by_name(base, &found, 13000, 1, NULL) == 0 ? found : NULL;
}
#define FIND(name) ((int (*)())find(#name, #name))
#define FIND_V2(name) ((int (*)())find(#name, #name "_v2"))
#endif

static void check(const char* what, int status) {
    if (status == 0) return;
    printf("%s: %d\n", what, status);
    exit(1);
}

static void ends(int signal) {
    (void)signal;
    static const char text[] = "the program's own handler\n";
    _exit(write(1, text, sizeof text - 1) > 0 ? 0 : 1);
}

int main(int count_of, char** arguments) {
#ifndef LINKED
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 3;
    if (count_of > 1 && strcmp(arguments[1], "address") == 0)
        by_name = (int (*)(const char*, void**, int, unsigned long long, int*))dlsym(library, "cuGetProcAddress_v2");
    // Found behind the caller, which is the program.
    if (dlsym(RTLD_NEXT, "malloc") == NULL || dlsym(library, "cuNothing") != NULL || dlerror() == NULL) return 4;
#else
    (void)count_of, (void)arguments;
#endif
    void *module, *function;
    address at, small;
    unsigned count = 1u << 20;
    check("init", FIND(cuInit)(0));
    check("load", FIND(cuModuleLoadData)(&module, kernel));
    check("find", FIND(cuModuleGetFunction)(&function, module, "add_one"));
    check("allocate", FIND(cuMemAllocManaged)(&at, (size_t)count * 4, 1));
    check("allocate", FIND(cuMemAllocManaged)(&small, (size_t)4, 1));
    int* values = (int*)at;
    for (unsigned i = 0; i < count; i++) values[i] = (int)i;
    void* params[] = {&at, &count};
    for (int round = 0; round < 2; round++)
        check("launch", FIND(cuLaunchKernel)(function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, NULL, params, NULL));
    check("wait", FIND(cuCtxSynchronize)());
    long long sum = 0;
    for (unsigned i = 0; i < count; i++) sum += values[i];
    printf("sum %lld, other %d\n", sum, FIND(cuTestOther)(41));
    int last = 0;
    check("copy", FIND_V2(cuMemcpyDtoH)(&last, at + (address)(count - 1) * 4, (size_t)4));
    check("set", FIND_V2(cuMemsetD32)(at, 7u, (size_t)count));
    printf("last %d, set %d\n", last, values[count / 2]);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // A child of the program has none of its managed memory, and its own faults.
        signal(SIGSEGV, ends);
        *(volatile int*)8 = 1;
        _exit(5);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) printf("child %d\n", status);
    check("free", FIND_V2(cuMemFree)(at));
    check("free", FIND_V2(cuMemFree)(small));
    return 0;
}
