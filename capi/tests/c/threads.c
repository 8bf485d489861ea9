// Threads, processes and signals.
#define _DEFAULT_SOURCE
#include "cases.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t together;

static void* free_region(void* region) {
    pthread_barrier_wait(&together);
    gpuvm_code code = gpuvm_region_free(*(gpuvm_region*)region);
    return (void*)(intptr_t)code;
}

static void two_threads_free_one_handle(void) {
    fixture f = setup();
    for (int round = 0; round < 50; ++round) {
        gpuvm_region region;
        OK(gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), COUNT, &region));
        gpuvm_launch launch = {0};
        if (round % 10 == 0) launch = add_to(f, region, 1);
        pthread_barrier_init(&together, NULL, 2);
        pthread_t threads[2];
        void* codes[2];
        for (int i = 0; i < 2; ++i) HOLDS(pthread_create(&threads[i], NULL, free_region, &region) == 0);
        for (int i = 0; i < 2; ++i) pthread_join(threads[i], &codes[i]);
        // One of them has freed it.
        HOLDS((intptr_t)codes[0] + (intptr_t)codes[1] == GPUVM_CODE_INVALID_HANDLE);
        HOLDS((intptr_t)codes[0] == GPUVM_CODE_OK || (intptr_t)codes[1] == GPUVM_CODE_OK);
        if (launch.id != 0) {
            OK(gpuvm_launch_sync(launch, NULL));
            OK(gpuvm_launch_free(launch));
        }
        pthread_barrier_destroy(&together);
    }
    teardown(f, 0);
}

static void* read_until_it_is_gone(void* region) {
    static __thread uint32_t found[1024];
    pthread_barrier_wait(&together);
    for (;;) {
        gpuvm_code code = gpuvm_region_read(*(gpuvm_region*)region, 0, found, sizeof found);
        if (code == GPUVM_CODE_INVALID_HANDLE) return NULL;
        OK(code);
        for (int i = 0; i < 1024; ++i) HOLDS(found[i] == 9);
    }
}

static void a_handle_is_freed_while_others_use_it(void) {
    fixture f = setup();
    uint32_t* memory = malloc(COUNT * sizeof *memory);
    for (int i = 0; i < COUNT; ++i) memory[i] = 9;
    gpuvm_region region;
    OK(gpuvm_region_borrowed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), memory, COUNT, &region));
    pthread_barrier_init(&together, NULL, 4);
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) HOLDS(pthread_create(&threads[i], NULL, read_until_it_is_gone, &region) == 0);
    pthread_barrier_wait(&together);
    usleep(20000);
    OK(gpuvm_region_free(region));
    // Nothing reads the memory any more.
    free(memory);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    teardown(f, 0);
}

static void* fails_here(void* ignored) {
    HOLDS(gpuvm_last_error()[0] == 0);
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "a launch is needed", gpuvm_launch_abort((gpuvm_launch){0}));
    return ignored;
}

static void each_thread_has_its_error(void) {
    fixture f = setup();
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "a stream is needed", gpuvm_stream_free((gpuvm_stream){0}));
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, fails_here, NULL) == 0);
    pthread_join(thread, NULL);
    HOLDS(strstr(gpuvm_last_error(), "a stream is needed") != NULL);
    teardown(f, 0);
}

static void a_child_uses_it_after_fork(void) {
    fixture f = setup();
    gpuvm_launch launch = add_to(f, f.region, 4);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        uint32_t value;
        REFUSED(GPUVM_CODE_FORKED, "was forked from process", gpuvm_region_read(f.region, 0, &value, 4));
        REFUSED(GPUVM_CODE_FORKED, "call exec in the child", gpuvm_region_free(f.region));
        gpuvm_vm vm;
        REFUSED(GPUVM_CODE_FORKED, "was forked", gpuvm_vm_new(NULL, 0, &vm));
        _exit(7);
    }
    int status;
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    OK(gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    teardown(f, 4);
}

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal) { interrupted = signal; }

static gpuvm_launch endless(fixture f, gpuvm_region region) {
    gpuvm_arg args[] = {GPUVM_ARG(region)};
    gpuvm_launch launch;
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {1}, .block = {32}};
    OK(gpuvm_kernel_launch(f.wait, &shape, args, 1, &launch));
    return launch;
}

static void an_interrupt_during_a_wait(void) {
    fixture f = setup();
    gpuvm_region region;
    OK(gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), 32, &region));
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    HOLDS(sigaction(SIGINT, &action, NULL) == 0);
    gpuvm_launch launch = endless(f, region);
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        usleep(200000);
        _exit(kill(self, SIGINT));
    }
    int waits = 0;
    gpuvm_code code;
    while ((code = gpuvm_launch_wait(launch, 20000000, NULL)) == GPUVM_CODE_STILL_RUNS) {
        waits += 1;
        if (interrupted) OK(gpuvm_launch_abort(launch));
    }
    HOLDS(interrupted == SIGINT && waits > 0);
    if (code != GPUVM_CODE_STOPPED) fail(__FILE__, __LINE__, "gpuvm_launch_wait", GPUVM_CODE_STOPPED, code);
    HOLDS(waitpid(child, NULL, 0) == child);
    // What the kernel wrote before is there.
    uint32_t found[32];
    OK(gpuvm_region_read(region, 0, found, sizeof found));
    for (uint32_t i = 0; i < 32; ++i) HOLDS(found[i] == 1 + i);
    OK(gpuvm_launch_free(launch));
    OK(gpuvm_region_free(region));
    teardown(f, 0);
}

static void a_launch_that_ends_at_its_deadline(void) {
    fixture f = setup();
    gpuvm_arg args[] = {GPUVM_ARG(f.region)};
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {1}, .block = {1}, .deadline_ns = 50000000};
    gpuvm_launch launch;
    OK(gpuvm_kernel_launch(f.wait, &shape, args, 1, &launch));
    bool done = true;
    OK(gpuvm_launch_is_done(launch, &done));
    HOLDS(!done);
    REFUSED(GPUVM_CODE_STILL_RUNS, "has not ended within 0 ns", gpuvm_launch_wait(launch, 0, NULL));
    gpuvm_code code = gpuvm_launch_sync(launch, NULL);
    HOLDS(code != GPUVM_CODE_OK && code == gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    // Its own element is written, and no other.
    uint32_t zero = 0;
    OK(gpuvm_region_write(f.region, 0, &zero, 4));
    teardown(f, 0);
}

static void a_launch_is_freed_while_it_runs(void) {
    fixture f = setup();
    gpuvm_launch launch = add_to(f, f.region, 2);
    OK(gpuvm_launch_free(launch));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "a launch is needed", gpuvm_launch_sync(launch, NULL));
    teardown(f, 2);
}

static const test_case CASES[] = {
    CASE(two_threads_free_one_handle),     CASE(a_handle_is_freed_while_others_use_it),
    CASE(each_thread_has_its_error),       CASE(a_child_uses_it_after_fork),
    CASE(an_interrupt_during_a_wait),      CASE(a_launch_that_ends_at_its_deadline),
    CASE(a_launch_is_freed_while_it_runs),
};

int main(int argc, char** argv) { return run_cases(CASES, sizeof CASES / sizeof *CASES, argc, argv); }
