// The library used wrongly: each case is refused with its cause, and what was there before is there still.
#include "cases.h"

static void freed_handle(void) {
    fixture f = setup();
    gpuvm_region region;
    OK(gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), 16, &region));
    OK(gpuvm_region_free(region));
    uint32_t value = 7;
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "it was freed", gpuvm_region_read(region, 0, &value, 4));
    HOLDS(value == 7);
    gpuvm_arg args[] = {GPUVM_ARG(region), GPUVM_ARG(1u)};
    gpuvm_launch launch = {99};
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "`argument`", launch_of(f.add, args, 2, &launch));
    HOLDS(launch.id == 0);
    // Its place is used again, under another number.
    gpuvm_region next;
    OK(gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), 16, &next));
    HOLDS(next.id != region.id);
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "is not a valid handle", gpuvm_region_flush(region));
    OK(gpuvm_region_free(next));
    teardown(f, 0);
}

static void double_free(void) {
    fixture f = setup();
    gpuvm_buffer buffer;
    OK(gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U32), 64, &buffer));
    OK(gpuvm_buffer_free(buffer));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "it was freed", gpuvm_buffer_free(buffer));
    teardown(f, 0);
}

static void null_handle_and_numbers_that_nobody_made(void) {
    fixture f = setup();
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "null handle", gpuvm_region_free((gpuvm_region){0}));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "null handle", gpuvm_launch_sync((gpuvm_launch){0}, NULL));
    for (uint64_t shift = 0; shift < 64; ++shift) {
        gpuvm_region near = {f.region.id ^ 1ull << shift};
        gpuvm_code code = gpuvm_region_flush(near);
        HOLDS(code == GPUVM_CODE_INVALID_HANDLE || code == GPUVM_CODE_WRONG_KIND);
    }
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "is not a valid handle", gpuvm_vm_free((gpuvm_vm){UINT64_MAX}));
    teardown(f, 0);
}

static void null_and_crooked_pointers(void) {
    fixture f = setup();
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`vm` is NULL", gpuvm_vm_new(NULL, 0, NULL));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`data` is NULL", gpuvm_region_read(f.region, 0, NULL, 4));
    OK(gpuvm_region_read(f.region, 0, NULL, 0));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`name` is NULL", gpuvm_module_kernel(f.module, NULL, &f.add));
    f.add = kernel_of(f.module, "add");
    _Alignas(8) char room[16];
    uint64_t* crooked = (uint64_t*)(void*)(room + 1);
    REFUSED(GPUVM_CODE_INVALID_POINTER, "is not aligned", gpuvm_region_length(f.region, crooked));
    gpuvm_region lent;
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`memory` is NULL",
            gpuvm_region_borrowed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), NULL, 4, &lent));
    uint32_t number = 0;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`length` is",
            gpuvm_region_borrowed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), &number, UINT64_MAX / 2, &lent));
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`args` is NULL", launch_of(f.add, NULL, 2, &launch));
    teardown(f, 0);
}

static void memory_of_another_vm(void) {
    fixture f = setup();
    gpuvm_vm other = small_vm();
    gpuvm_buffer buffer;
    OK(gpuvm_buffer_new(other, 0, gpuvm_number(GPUVM_TYPE_U32), 64, &buffer));
    gpuvm_arg args[] = {GPUVM_ARG(buffer), GPUVM_ARG(1u)};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_ARGUMENTS, "argument 1 belongs to another Vm", launch_of(f.store, args, 2, &launch));
    gpuvm_stream stream;
    OK(gpuvm_stream_new(other, 0, &stream));
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {1}, .block = {1}, .stream = stream};
    gpuvm_arg own[] = {GPUVM_ARG(f.region), GPUVM_ARG(1u)};
    REFUSED(GPUVM_CODE_ARGUMENTS, "the stream belongs to another GPU",
            gpuvm_kernel_launch(f.add, &shape, own, 2, &launch));
    OK(gpuvm_stream_free(stream));
    OK(gpuvm_buffer_free(buffer));
    OK(gpuvm_vm_free(other));
    teardown(f, 0);
}

static void wrong_kind(void) {
    fixture f = setup();
    REFUSED(GPUVM_CODE_WRONG_KIND, "is the handle of a Vm; a region is needed",
            gpuvm_region_flush((gpuvm_region){f.vm.id}));
    REFUSED(GPUVM_CODE_WRONG_KIND, "is the handle of a region; a buffer is needed",
            gpuvm_buffer_free((gpuvm_buffer){f.region.id}));
    gpuvm_arg args[] = {gpuvm_arg_of(GPUVM_ARG_KIND_BUFFER, f.region.id), GPUVM_ARG(1u)};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_WRONG_KIND, "a buffer is needed", launch_of(f.add, args, 2, &launch));
    teardown(f, 0);
}

static void wrong_types_of_elements(void) {
    fixture f = setup();
    gpuvm_region doubles;
    gpuvm_region_options options = {.size = sizeof options, .name = "doubles"};
    OK(gpuvm_region_zeroed(f.vm, &options, gpuvm_number(GPUVM_TYPE_F64), 64, &doubles));
    gpuvm_launch launch;
    gpuvm_arg args[] = {GPUVM_ARG(doubles), GPUVM_ARG(1u)};
    REFUSED(GPUVM_CODE_ARGUMENTS, "argument 1: the region `doubles` of f64 was given",
            launch_of(f.add, args, 2, &launch));
    gpuvm_arg wide[] = {GPUVM_ARG(f.region), gpuvm_arg_u64(1)};
    REFUSED(GPUVM_CODE_ARGUMENTS, "argument 2: a value of type u64 was given", launch_of(f.add, wide, 2, &launch));
    gpuvm_region odd;
    REFUSED(GPUVM_CODE_REGION, "element size of 12 bytes",
            gpuvm_region_zeroed(f.vm, NULL, gpuvm_structure("triple", 12, 4), 3, &odd));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`element.align` is 3",
            gpuvm_region_zeroed(f.vm, NULL, gpuvm_structure("triple", 12, 3), 3, &odd));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`element.bytes` is 0",
            gpuvm_region_zeroed(f.vm, NULL, gpuvm_structure("none", 0, 1), 3, &odd));
    HOLDS(odd.id == 0);
    OK(gpuvm_region_free(doubles));
    teardown(f, 0);
}

static void parts_of_elements(void) {
    fixture f = setup();
    char bytes[8] = {0};
    REFUSED(GPUVM_CODE_PART_OF_AN_ELEMENT, "7 bytes", gpuvm_region_read(f.region, 0, bytes, 7));
    REFUSED(GPUVM_CODE_PART_OF_AN_ELEMENT, "7 bytes", gpuvm_region_write(f.region, 0, bytes, 7));
    gpuvm_region region;
    REFUSED(GPUVM_CODE_REGION, "7 bytes",
            gpuvm_region_copied(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), bytes, 7, &region));
    teardown(f, 0);
}

static void wrong_numbers_of_arguments(void) {
    fixture f = setup();
    gpuvm_arg args[40];
    for (int i = 0; i < 40; ++i) args[i] = GPUVM_ARG(1u);
    args[0] = GPUVM_ARG(f.region);
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_ARGUMENTS, "40 arguments were given, it takes 2", launch_of(f.add, args, 40, &launch));
    REFUSED(GPUVM_CODE_ARGUMENTS, "1 arguments were given, it takes 2", launch_of(f.add, args, 1, &launch));
    REFUSED(GPUVM_CODE_ARGUMENTS, "0 arguments were given", launch_of(f.add, NULL, 0, &launch));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "address space", launch_of(f.add, args, UINT64_MAX, &launch));
    gpuvm_launch_options nothing = {.size = sizeof nothing};
    REFUSED(GPUVM_CODE_GPU, "", gpuvm_kernel_launch(f.add, &nothing, args, 2, &launch));
    teardown(f, 0);
}

static void region_freed_while_a_launch_runs(void) {
    fixture f = setup();
    uint32_t* memory = calloc(COUNT, sizeof *memory);
    gpuvm_region lent;
    OK(gpuvm_region_borrowed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), memory, COUNT, &lent));
    gpuvm_launch launch = add_to(f, lent, 5);
    // It waits for the launch, and what that wrote is in the memory.
    OK(gpuvm_region_free(lent));
    for (int i = 0; i < COUNT; ++i) HOLDS(memory[i] == 5);
    free(memory);
    OK(gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    teardown(f, 0);
}

static void vm_freed_first(void) {
    fixture f = setup();
    OK(gpuvm_vm_free(f.vm));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "a Vm is needed", gpuvm_vm_free(f.vm));
    gpuvm_buffer buffer;
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "a Vm is needed",
            gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U32), 4, &buffer));
    // What was made of it goes on.
    gpuvm_launch launch = add_to(f, f.region, 3);
    OK(gpuvm_launch_sync(launch, NULL));
    HOLDS(all_are(f.region, 3));
    OK(gpuvm_module_free(f.module));
    OK(gpuvm_kernel_free(f.add));
    OK(gpuvm_launch_free(launch));
    OK(gpuvm_region_free(f.region));
}

static void out_of_range(void) {
    fixture f = setup();
    uint32_t values[2] = {8, 8};
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "of `numbers` are out of range: it has 65536",
            gpuvm_region_read(f.region, COUNT - 1, values, 8));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "of `numbers`", gpuvm_region_write(f.region, COUNT, values, 4));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "of `numbers`", gpuvm_region_write(f.region, UINT64_MAX, values, 4));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "of `numbers`", gpuvm_region_discard(f.region, 1, UINT64_MAX));
    gpuvm_buffer buffer;
    OK(gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U32), 1, &buffer));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "", gpuvm_buffer_write(buffer, 0, values, 8));
    HOLDS(values[0] == 8 && values[1] == 8);
    OK(gpuvm_buffer_free(buffer));
    // A kernel's own mistake is its launch's error.
    gpuvm_arg args[] = {GPUVM_ARG(f.region), gpuvm_arg_u64(COUNT)};
    gpuvm_launch launch;
    gpuvm_launch_options one = {.size = sizeof one, .grid = {1}, .block = {1}};
    OK(gpuvm_kernel_launch(f.far, &one, args, 2, &launch));
    REFUSED(GPUVM_CODE_FAULT, "index 65536 of region `numbers` is out of range", gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    teardown(f, 0);
}

static const test_case CASES[] = {
    CASE(freed_handle),
    CASE(double_free),
    CASE(null_handle_and_numbers_that_nobody_made),
    CASE(null_and_crooked_pointers),
    CASE(memory_of_another_vm),
    CASE(wrong_kind),
    CASE(wrong_types_of_elements),
    CASE(parts_of_elements),
    CASE(wrong_numbers_of_arguments),
    CASE(region_freed_while_a_launch_runs),
    CASE(vm_freed_first),
    CASE(out_of_range),
};

int main(int argc, char** argv) { return run_cases(CASES, sizeof CASES / sizeof *CASES, argc, argv); }
