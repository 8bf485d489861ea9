// Launches that the program enqueues itself, wrongly: the simulated GPU has no kernels of the program, but all of the
// way to them.
#include "cases.h"

// What a callback saw, and what it is to do.
typedef struct {
    int calls;
    int returns;
    uint64_t length;
    gpuvm_vm vm;
    gpuvm_code inside;
} seen;

// The third field of an array is its length; a buffer is its address.
static int enqueue(void* context, void* stream, const void* const* views) {
    seen* s = context;
    s->calls += 1;
    memcpy(&s->length, (const char*)views[0] + 16, sizeof s->length);
    HOLDS(stream == NULL);
    HOLDS(((uintptr_t)views[0] & 15) == 0);
    uint32_t count;
    s->inside = gpuvm_vm_gpu_count(s->vm, &count);
    return s->returns;
}

static const gpuvm_device_code ALL = {GPUVM_LAYOUT_VERSION, 31};

static gpuvm_code launch_by(fixture f, const gpuvm_device_code* code, const gpuvm_use* uses, uint64_t count, seen* s) {
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {4}, .block = {64}};
    s->vm = f.vm;
    gpuvm_launch launch;
    gpuvm_code outcome = gpuvm_launch_by(f.vm, 0, "mine", code, &shape, uses, count, enqueue, s, &launch);
    HOLDS(launch.id == 0);
    return outcome;
}

static void a_callback_that_fails(void) {
    fixture f = setup();
    gpuvm_use uses[] = {gpuvm_writes(gpuvm_arg_region(f.region))};
    seen s = {.returns = 98};
    REFUSED(GPUVM_CODE_CALLBACK, "the callback returned 98", launch_by(f, &ALL, uses, 1, &s));
    HOLDS(s.calls == 1 && s.length == COUNT);
    // It went well, and nothing was enqueued.
    s.returns = 0;
    REFUSED(GPUVM_CODE_CALLBACK, "it launched nothing", launch_by(f, &ALL, uses, 1, &s));
    gpuvm_launch launch = add_to(f, f.region, 3);
    OK(gpuvm_launch_sync(launch, NULL));
    HOLDS(all_are(f.region, 3));
    OK(gpuvm_launch_free(launch));
    teardown(f, 3);
}

static void a_callback_that_calls_the_library(void) {
    fixture f = setup();
    gpuvm_use uses[] = {gpuvm_reads(gpuvm_arg_region(f.region))};
    seen s = {.returns = 1};
    REFUSED(GPUVM_CODE_CALLBACK, "the callback returned 1", launch_by(f, &ALL, uses, 1, &s));
    HOLDS(s.inside == GPUVM_CODE_CALLBACK);
    uint32_t count;
    OK(gpuvm_vm_gpu_count(f.vm, &count));
    teardown(f, 0);
}

static void another_version(void) {
    fixture f = setup();
    gpuvm_use uses[] = {gpuvm_reads(gpuvm_arg_region(f.region))};
    seen s = {.returns = 1};
    gpuvm_device_code older = {GPUVM_LAYOUT_VERSION - 1, 31};
    REFUSED(GPUVM_CODE_UNAVAILABLE, "recompile it with this library's headers", launch_by(f, &older, uses, 1, &s));
    gpuvm_device_code direct = {GPUVM_LAYOUT_VERSION, 1};
    REFUSED(GPUVM_CODE_UNAVAILABLE, "FEATURE_QUEUED", launch_by(f, &direct, uses, 1, &s));
    HOLDS(s.calls == 0);
    teardown(f, 0);
}

static void wrong_uses(void) {
    fixture f = setup();
    seen s = {.returns = 1};
    gpuvm_region fixed;
    gpuvm_region_options options = {.size = sizeof options, .name = "fixed", .read_only = 1};
    OK(gpuvm_region_zeroed(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), 64, &fixed));
    gpuvm_use uses[] = {gpuvm_writes(gpuvm_arg_region(fixed))};
    REFUSED(GPUVM_CODE_ARGUMENTS, "the read-only region `fixed` is to be written", launch_by(f, &ALL, uses, 1, &s));
    uses[0].reserved = 7;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`reserved of a use` is 7", launch_by(f, &ALL, uses, 1, &s));
    OK(gpuvm_region_free(fixed));
    uses[0] = gpuvm_reads(gpuvm_arg_region(fixed));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "", launch_by(f, &ALL, uses, 1, &s));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`uses` is NULL", launch_by(f, &ALL, NULL, 1, &s));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`code` is NULL", launch_by(f, NULL, uses, 1, &s));
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {4}, .block = {64}};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`enqueue` is NULL",
            gpuvm_launch_by(f.vm, 0, "mine", &ALL, &shape, NULL, 0, NULL, NULL, &launch));
    HOLDS(s.calls == 0);
    teardown(f, 0);
}

static void streams_that_are_none(void) {
    fixture f = setup();
    gpuvm_stream stream;
    REFUSED(GPUVM_CODE_UNAVAILABLE, "it is simulated", gpuvm_stream_borrow(f.vm, 0, NULL, &stream));
    HOLDS(stream.id == 0);
    void* raw = &stream;
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "", gpuvm_stream_raw(stream, &raw));
    OK(gpuvm_stream_new(f.vm, 0, &stream));
    OK(gpuvm_stream_raw(stream, &raw));
    HOLDS(raw == NULL);
    OK(gpuvm_stream_free(stream));
    teardown(f, 0);
}

static const test_case CASES[] = {
    CASE(a_callback_that_fails), CASE(a_callback_that_calls_the_library), CASE(another_version), CASE(wrong_uses),
    CASE(streams_that_are_none),
};

int main(int count, char** words) { return run_cases(CASES, sizeof CASES / sizeof *CASES, count, words); }
