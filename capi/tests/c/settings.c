// Settings, texts and files that cannot be.
#include "cases.h"

static void sizes_of_pages_and_frames(void) {
    gpuvm_vm vm = {5};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "5000", gpuvm_vm_new(GPUVM_SETTINGS({"page_size", .number = 5000}), &vm));
    HOLDS(vm.id == 0);
    REFUSED(GPUVM_CODE_INVALID_VALUE, "frame memory", gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", .number = 1}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "frame_memory is `-1`: expected a number of bytes above 0",
            gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", .number = -1}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "frame_memory is `lots`: expected",
            gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", "lots", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "queue depth is 3",
            gpuvm_vm_new(GPUVM_SETTINGS({"queue_depth", .number = 3}), &vm));
    gpuvm_code code = gpuvm_vm_new(GPUVM_SETTINGS({"frame_memory", .number = 1ll << 62}), &vm);
    HOLDS(code == GPUVM_CODE_INVALID_VALUE || code == GPUVM_CODE_OUT_OF_MEMORY || code == GPUVM_CODE_GPU);
}

static void names_of_settings_and_counters(void) {
    gpuvm_vm vm = {5};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "no setting is named `colour`: there are gpu, sim_workers",
            gpuvm_vm_new(GPUVM_SETTINGS({"colour", "blue", 0}), &vm));
    HOLDS(vm.id == 0);
    const char* others[][2] = {
        {"nic", "it is `nics`"}, {"capacity", "it is `frame_capacity`"}, {"region", "it is `regions_max`"}};
    for (int i = 0; i < 3; ++i) {
        gpuvm_setting other = {others[i][0], .number = 1};
        REFUSED(GPUVM_CODE_INVALID_VALUE, others[i][1], gpuvm_vm_new(&other, 1, &vm));
    }
    REFUSED(GPUVM_CODE_INVALID_VALUE, "frame_memory is set twice", gpuvm_vm_new(GPUVM_SETTINGS(SMALL, SMALL), &vm));
    // Short names, and dashes.
    REFUSED(GPUVM_CODE_INVALID_VALUE, "frame_memory is set twice",
            gpuvm_vm_new(GPUVM_SETTINGS({"memory", "1MiB", 0}, {"frame-memory", "1MiB", 0}), &vm));
    OK(gpuvm_vm_new(GPUVM_SETTINGS({"memory", "1MiB", 0}, {"sim-workers", .number = 1}, {"gpus", "sim", 0}), &vm));
    OK(gpuvm_vm_free(vm));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`name of a setting` is NULL",
            gpuvm_vm_new(GPUVM_SETTINGS({NULL, "1", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`settings` is NULL", gpuvm_vm_new(NULL, 1, &vm));
    REFUSED(GPUVM_CODE_INVALID_TEXT, "`text of a setting` is not UTF-8",
            gpuvm_vm_new(GPUVM_SETTINGS({"timeline", "caf\xe9", 0}), &vm));
    // All there are, and no more.
    uint32_t settings = 0, counters = 0;
    const char *what = NULL, *names[256];
    while (gpuvm_setting_name(settings, &what) != NULL) HOLDS(what[0] == '(' && ++settings < 256);
    while ((names[counters] = gpuvm_counter_name(counters, &what)) != NULL) HOLDS(what[0] != 0 && ++counters < 256);
    HOLDS(settings > 40 && counters > 40 && gpuvm_counter_name(UINT32_MAX, NULL) == NULL);
    fixture f = setup();
    gpuvm_launch launch = add_to(f, f.region, 1);
    OK(gpuvm_launch_sync(launch, NULL));
    OK(gpuvm_launch_free(launch));
    uint64_t values[256];
    OK(gpuvm_vm_counters(f.vm, 0, names, counters, values));
    for (uint32_t i = 0; i < counters; ++i) HOLDS(values[i] == counter(f.vm, names[i]));
    HOLDS(counter(f.vm, "pages_fetched") >= COUNT / 1024 && counter(f.vm, "page_bytes") == 4096);
    HOLDS(counter(f.vm, "elastic_handle_bytes") == 65536);
    const char* unknown[] = {"faults", "luck"};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`names` is `luck`: there are missed_lanes, faults",
            gpuvm_vm_counters(f.vm, 0, unknown, 2, values));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`values` is NULL", gpuvm_vm_counters(f.vm, 0, unknown, 1, NULL));
    teardown(f, 1);
}

static void sizes_of_structures(void) {
    gpuvm_vm vm = small_vm();
    gpuvm_region region;
    gpuvm_region_options options;
    memset(&options, 0, sizeof options);
    gpuvm_element bytes = gpuvm_number(GPUVM_TYPE_U8);
    REFUSED(GPUVM_CODE_INVALID_VALUE, "set it to sizeof(gpuvm_region_options)",
            gpuvm_region_zeroed(vm, &options, bytes, 4, &region));
    options.size = 1 << 20;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "set it to sizeof(gpuvm_region_options)",
            gpuvm_region_zeroed(vm, &options, bytes, 4, &region));
    // A program of a later version, with a field more: fine where it is zero.
    struct {
        gpuvm_region_options known;
        uint64_t later;
    } longer = {.known = {.size = sizeof longer}, .later = 1};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "a later field is set",
            gpuvm_region_zeroed(vm, &longer.known, bytes, 4, &region));
    longer.later = 0;
    OK(gpuvm_region_zeroed(vm, &longer.known, bytes, 4, &region));
    OK(gpuvm_region_free(region));
    // A program of an earlier version, with fields less.
    gpuvm_gpu_info info;
    memset(&info, 0xff, sizeof info);
    info.size = 3 * sizeof(uint64_t);
    OK(gpuvm_vm_gpu_info(vm, 0, &info));
    HOLDS(info.size == 24 && info.frames == 32 && info.frame_capacity == UINT64_MAX);
    info.size = 0;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "sizeof(gpuvm_gpu_info)", gpuvm_vm_gpu_info(vm, 0, &info));
    OK(gpuvm_vm_free(vm));
}

static void numbers_of_enumerations(void) {
    fixture f = setup();
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`advice` is 99", gpuvm_region_advise(f.region, 99, NULL));
    gpuvm_region region;
    gpuvm_region_options options = {.size = sizeof options, .placement = 77};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`placement` is 77",
            gpuvm_region_zeroed(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), 4, &region));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`element.kind` is 50",
            gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(50), 4, &region));
    gpuvm_arg args[] = {GPUVM_ARG(f.region), gpuvm_arg_of(UINT32_MAX, 0)};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "kind of an argument", launch_of(f.add, args, 2, &launch));
    // Fields for later versions.
    gpuvm_arg later[] = {GPUVM_ARG(f.region), GPUVM_ARG(1u)};
    later[1].reserved = 1;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`reserved of an argument` is 1", launch_of(f.add, later, 2, &launch));
    later[1].reserved = 0;
    gpuvm_launch_options shape = {.size = sizeof shape, .grid = {1}, .block = {64}, .untimed = 1};
    OK(gpuvm_kernel_launch(f.add, &shape, later, 2, &launch));
    gpuvm_launch_report report = {.size = sizeof report, .elapsed_ns = 7};
    OK(gpuvm_launch_sync(launch, &report));
    HOLDS(report.elapsed_ns == 0 && report.blocks == 1);
    OK(gpuvm_launch_free(launch));
    gpuvm_vm vm;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "tenancy is `9`: expected environment or none",
            gpuvm_vm_new(GPUVM_SETTINGS({"tenancy", .number = 9}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "tenancy_priority is `101`: expected a whole number from -100 to 100",
            gpuvm_vm_new(GPUVM_SETTINGS({"tenancy_priority", .number = 101}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "is below the minimum of 2 MiB",
            gpuvm_vm_new(GPUVM_SETTINGS({"tenancy_minimum", "2MiB", 0}, {"tenancy_limit", "1MiB", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "borrow_from is `one`: expected GPU:SIZE",
            gpuvm_vm_new(GPUVM_SETTINGS({"borrow_from", "2:16MiB,one", 0}), &vm));
    gpuvm_module module;
    gpuvm_compile_options compile = {.size = sizeof compile, .reserved = 1};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "`reserved` is 1",
            gpuvm_module_compile(f.vm, 0, "none.cu", "", NULL, 0, &compile, &module));
    HOLDS(strcmp(gpuvm_code_name((gpuvm_code)-1), "GPUVM_CODE_UNKNOWN") == 0);
    teardown(f, 1);
}

static void names_of_gpus_and_transports(void) {
    gpuvm_vm vm;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "gpu is `cuda:x`: expected auto, sim,",
            gpuvm_vm_new(GPUVM_SETTINGS({"gpu", "cuda:x", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "gpu is ``", gpuvm_vm_new(GPUVM_SETTINGS({"gpu", "sim,,sim", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "transport is `tcp`", gpuvm_vm_new(GPUVM_SETTINGS({"transport", "tcp", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE,
            "soft_engines is `2`: transport direct has none; leave it out, or use transport soft",
            gpuvm_vm_new(GPUVM_SETTINGS({"soft_engines", .number = 2}, {"transport", "direct", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE,
            "nics is `mlx5_0`: transport auto has none; leave it out, or use transport rxe or mlx5",
            gpuvm_vm_new(GPUVM_SETTINGS({"nics", "mlx5_0", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "transport rxe drives one device",
            gpuvm_vm_new(GPUVM_SETTINGS({"nics", "rxe0,rxe1", 0}, {"transport", "rxe", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "it requires `memory_nodes`, which is not set",
            gpuvm_vm_new(GPUVM_SETTINGS({"memory_node_secret", "open", 0}), &vm));
    HOLDS(strstr(gpuvm_last_error(), "open") == NULL);
    REFUSED(GPUVM_CODE_INVALID_VALUE,
            "memory_nodes is `a:1,b:2`: transport soft has none; leave it out, or use transport auto, rxe or mlx5",
            gpuvm_vm_new(GPUVM_SETTINGS({"memory_nodes", "a:1,b:2", 0}, {"transport", "soft", 0}), &vm));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "only simulated GPUs have it",
            gpuvm_vm_new(GPUVM_SETTINGS({"gpu", "cuda:0", 0}, {"sim_workers", .number = 1}), &vm));
    vm = small_vm();
    gpuvm_buffer buffer;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "GPU is 7", gpuvm_buffer_new(vm, 7, gpuvm_number(GPUVM_TYPE_U32), 4, &buffer));
    OK(gpuvm_vm_free(vm));
}

static void texts_that_are_none(void) {
    fixture f = setup();
    gpuvm_region region;
    gpuvm_region_options options = {.size = sizeof options, .name = "caf\xe9"};
    REFUSED(GPUVM_CODE_INVALID_TEXT, "`name` is not UTF-8 from byte 3 on",
            gpuvm_region_zeroed(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), 4, &region));
    char name[4];
    uint64_t length;
    OK(gpuvm_vm_gpu_name(f.vm, 0, name, sizeof name, &length));
    HOLDS(strlen(name) == 3 && length > 3);
    OK(gpuvm_vm_gpu_name(f.vm, 0, NULL, 0, &length));
    teardown(f, 0);
}

static void kernels_that_are_missing_or_wrong(void) {
    fixture f = setup();
    gpuvm_kernel kernel = {3};
    REFUSED(GPUVM_CODE_NO_KERNEL, "`subtract`", gpuvm_module_kernel(f.module, "subtract", &kernel));
    HOLDS(kernel.id == 0);
    const char* names[] = {"wrong"};
    gpuvm_module module = {3};
    REFUSED(
        GPUVM_CODE_COMPILE, "wrong.cu",
        gpuvm_module_compile(f.vm, 0, "wrong.cu", "__global__ void wrong() { nothing(); }", names, 1, NULL, &module));
    HOLDS(module.id == 0 && strstr(gpuvm_last_error(), "nothing") != NULL);
    REFUSED(GPUVM_CODE_NO_KERNEL, "`wrong`",
            gpuvm_module_compile(f.vm, 0, "empty.cu", "__global__ void right() {}", names, 1, NULL, &module));
    REFUSED(GPUVM_CODE_FILE, "no/such/file.cu",
            gpuvm_module_compile_file(f.vm, 0, "no/such/file.cu", names, 1, NULL, &module));
    REFUSED(GPUVM_CODE_FILE, "no/such/file.cubin",
            gpuvm_module_load_file(f.vm, 0, "no/such/file.cubin", names, 1, &module));
    REFUSED(GPUVM_CODE_UNAVAILABLE, "compiles their source",
            gpuvm_module_load(f.vm, 0, "right.ptx", ".version 8.0", 12, names, 1, &module));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`image` is NULL",
            gpuvm_module_load(f.vm, 0, "right.ptx", NULL, 12, names, 1, &module));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`ptx` is NULL", gpuvm_module_load_ptx(f.vm, 0, "a.ptx", NULL, 12, &module));
    REFUSED(GPUVM_CODE_FILE, "no/such/file.ptx", gpuvm_module_load_ptx_file(f.vm, 0, "no/such/file.ptx", &module));
    HOLDS(module.id == 0);
    REFUSED(GPUVM_CODE_INVALID_VALUE, "the kernel has 2, counted from 0",
            gpuvm_kernel_param_type(f.add, 2, NULL, 0, NULL));
    teardown(f, 0);
}

static void files_that_are_missing_or_unwritable(void) {
    fixture f = setup();
    gpuvm_region region;
    gpuvm_element bytes = gpuvm_number(GPUVM_TYPE_U8);
    REFUSED(GPUVM_CODE_FILE, "No such file", gpuvm_region_map_file(f.vm, NULL, bytes, "no/such/file", &region));
    REFUSED(GPUVM_CODE_FILE, "is not a regular file", gpuvm_region_from_file(f.vm, NULL, bytes, "/dev/null", &region));
    // Nothing writes a program that runs, not even root.
    REFUSED(GPUVM_CODE_FILE, "/proc/self/exe", gpuvm_region_map_file(f.vm, NULL, bytes, "/proc/self/exe", &region));
    // Read-only it is allowed.
    gpuvm_region_options options = {.size = sizeof options, .read_only = 1};
    OK(gpuvm_region_map_file(f.vm, &options, bytes, "/proc/self/exe", &region));
    char magic[4];
    OK(gpuvm_region_read(region, 0, magic, 4));
    HOLDS(memcmp(magic,
                 "\x7f"
                 "ELF",
                 4) == 0);
    OK(gpuvm_region_free(region));
    // A part of it.
    OK(gpuvm_region_map_file_span(f.vm, &options, bytes, "/proc/self/exe", 1, 3, &region));
    uint64_t length;
    OK(gpuvm_region_length(region, &length));
    OK(gpuvm_region_read(region, 0, magic, 3));
    HOLDS(length == 3 && memcmp(magic, "ELF", 3) == 0);
    // Only memory nodes share.
    REFUSED(GPUVM_CODE_REGION, "it lies on this host", gpuvm_region_share(region, NULL, 0, &length));
    OK(gpuvm_region_free(region));
    REFUSED(GPUVM_CODE_REGION, "exceed it",
            gpuvm_region_map_file_span(f.vm, &options, bytes, "/proc/self/exe", 1, UINT64_MAX / 2, &region));
    REFUSED(GPUVM_CODE_REGION, "not a multiple of 4",
            gpuvm_region_map_file_span(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), "/proc/self/exe", 1, 3, &region));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "gpuvm_region_share made no such name",
            gpuvm_region_attach(f.vm, &options, bytes, magic, sizeof magic, &region));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`name` is NULL", gpuvm_region_attach(f.vm, &options, bytes, NULL, 8, &region));
    teardown(f, 0);
}

static void memory_that_is_not_there(void) {
    fixture f = setup();
    gpuvm_buffer buffer;
    REFUSED(GPUVM_CODE_OUT_OF_MEMORY, "out of GPU memory",
            gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U32), 1ull << 40, &buffer));
    REFUSED(GPUVM_CODE_OUT_OF_MEMORY, "out of GPU memory",
            gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U64), UINT64_MAX, &buffer));
    gpuvm_region region;
    REFUSED(GPUVM_CODE_REGION, "exceed the address space",
            gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U64), UINT64_MAX, &region));
    gpuvm_elastic elastic;
    gpuvm_elastic_options options = {.size = sizeof options, .name = "keys", .tag = "cache"};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "most elements",
            gpuvm_elastic_new(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), UINT64_MAX, &elastic));
    OK(gpuvm_elastic_new(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), 1 << 30, &elastic));
    OK(gpuvm_elastic_grow(elastic, 64, NULL));
    REFUSED(GPUVM_CODE_OUT_OF_MEMORY, "out of GPU memory", gpuvm_elastic_grow(elastic, 1 << 29, NULL));
    REFUSED(GPUVM_CODE_BEYOND_MAX, "`keys` cannot grow", gpuvm_elastic_grow(elastic, 1 << 30, NULL));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "`keys`", gpuvm_elastic_shrink(elastic, 65));
    uint64_t moved;
    OK(gpuvm_vm_pause(f.vm, "cache", &moved));
    HOLDS(moved == 256);
    gpuvm_arg args[] = {GPUVM_ARG(elastic), GPUVM_ARG(1u)};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_PAUSED, "resume tag `cache` first", launch_of(f.store, args, 2, &launch));
    OK(gpuvm_vm_resume(f.vm, "cache", NULL));
    OK(gpuvm_elastic_free(elastic));
    gpuvm_tiered_options tiers = {.size = sizeof tiers, .name = "weights"};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "it must be greater than zero",
            gpuvm_buffer_tiered(f.vm, &tiers, gpuvm_number(GPUVM_TYPE_U32), 0, &buffer));
    OK(gpuvm_buffer_tiered(f.vm, &tiers, gpuvm_number(GPUVM_TYPE_U32), 100, &buffer));
    REFUSED(GPUVM_CODE_OUT_OF_RANGE, "`weights`", gpuvm_buffer_move_to(buffer, 1, 100, GPUVM_TIER_PLACE_HOST, NULL));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "place", gpuvm_buffer_move_to(buffer, 0, 1, 2, NULL));
    OK(gpuvm_buffer_set_budget(buffer, 0, NULL));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "0 chunks", gpuvm_buffer_move_to(buffer, 0, 1, GPUVM_TIER_PLACE_GPU, NULL));
    OK(gpuvm_buffer_free(buffer));
    OK(gpuvm_buffer_new(f.vm, 0, gpuvm_number(GPUVM_TYPE_U32), 1, &buffer));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "not made by gpuvm_buffer_tiered", gpuvm_buffer_resident_bytes(buffer, &moved));
    OK(gpuvm_buffer_free(buffer));
    teardown(f, 0);
}

static void slot_caches_that_cannot_be(void) {
    fixture f = setup();
    gpuvm_region region;
    gpuvm_slot_cache cache = {7};
    gpuvm_buffer buffer;
    OK(gpuvm_region_zeroed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), 1024, &region));
    gpuvm_slot_table table = {region, 64};
    gpuvm_slot_options options = {.size = sizeof options};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "slots", gpuvm_slot_cache_new(f.vm, &options, &table, 1, 0, &cache));
    HOLDS(cache.id == 0);
    REFUSED(GPUVM_CODE_INVALID_VALUE, "tables", gpuvm_slot_cache_new(f.vm, NULL, NULL, 0, 4, &cache));
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`tables` is NULL", gpuvm_slot_cache_new(f.vm, NULL, NULL, 1, 4, &cache));
    options.policy = 3;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "policy", gpuvm_slot_cache_new(f.vm, &options, &table, 1, 4, &cache));
    table.record_bytes = 24;
    REFUSED(GPUVM_CODE_REGION, "16", gpuvm_slot_cache_new(f.vm, NULL, &table, 1, 4, &cache));
    table.record_bytes = 64;
    OK(gpuvm_slot_cache_new(f.vm, NULL, &table, 1, 4, &cache));
    REFUSED(GPUVM_CODE_INVALID_VALUE, "the slot cache has 1",
            gpuvm_slot_cache_frames(cache, 1, gpuvm_number(GPUVM_TYPE_U32), &buffer));
    gpuvm_slot_ids ids = {.size = sizeof ids, .address = 256, .count = 1};
    REFUSED(GPUVM_CODE_INVALID_VALUE, "slots", gpuvm_slot_cache_ensure(cache, &ids, 0));
    ids.wide = 1;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "32 bits", gpuvm_slot_cache_hold(cache, &ids, false));
    ids.stream.id = region.id;
    REFUSED(GPUVM_CODE_WRONG_KIND, "stream", gpuvm_slot_cache_prefetch(cache, &ids));
    OK(gpuvm_slot_cache_free(cache));
    REFUSED(GPUVM_CODE_INVALID_HANDLE, "cache", gpuvm_slot_cache_wait(cache));
    OK(gpuvm_region_free(region));
    teardown(f, 0);
}

static void writes_to_what_is_read_only_and_lent_twice(void) {
    fixture f = setup();
    uint32_t numbers[1024] = {0};
    gpuvm_region one, two;
    gpuvm_region_options options = {.size = sizeof options, .name = "one", .read_only = 1};
    OK(gpuvm_region_borrowed(f.vm, &options, gpuvm_number(GPUVM_TYPE_U32), numbers, 1024, &one));
    REFUSED(GPUVM_CODE_REGION, "it is read-only", gpuvm_region_write(one, 0, numbers, 4));
    gpuvm_arg args[] = {GPUVM_ARG(one), GPUVM_ARG(1u)};
    gpuvm_launch launch;
    REFUSED(GPUVM_CODE_ARGUMENTS, "take gpuvm::array<const T>", launch_of(f.add, args, 2, &launch));
    REFUSED(GPUVM_CODE_OVERLAP, "overlaps region `one`",
            gpuvm_region_borrowed(f.vm, NULL, gpuvm_number(GPUVM_TYPE_U32), numbers + 512, 8, &two));
    OK(gpuvm_region_free(one));
    for (int i = 0; i < 1024; ++i) HOLDS(numbers[i] == 0);
    teardown(f, 0);
}

static int32_t refuses(void* context) {
    *(int*)context += 1;
    return 42;
}

static void callbacks_that_fail(void) {
    fixture f = setup();
    int calls = 0;
    REFUSED(GPUVM_CODE_CALLBACK, "the callback returned 42", gpuvm_vm_track(f.vm, refuses, &calls));
    HOLDS(calls == 1);
    REFUSED(GPUVM_CODE_INVALID_POINTER, "`iteration` is NULL", gpuvm_vm_track(f.vm, NULL, NULL));
    teardown(f, 0);
}

// How often `what` is in a file.
static uint64_t times(const char* path, const char* what) {
    FILE* file = fopen(path, "r");
    HOLDS(file != NULL);
    static char line[1 << 16];
    uint64_t found = 0;
    while (fgets(line, sizeof line, file)) found += strstr(line, what) != NULL;
    fclose(file);
    return found;
}

static void a_timeline(void) {
    gpuvm_vm vm = {5};
    gpuvm_setting settings[] = {
        SMALL,
        {"timeline_one_in", .number = 1},
        {"timeline", "no/such/folder/timeline.json", 0},
        {"timeline_ring_events", .number = 1 << 30},
        {"file_cache_on_gpu", .number = 1},
    };
    REFUSED(GPUVM_CODE_INVALID_VALUE, "it requires `timeline`", gpuvm_vm_new(settings, 3, &vm));
    REFUSED(GPUVM_CODE_FILE, "folder/timeline.json", gpuvm_vm_new(settings, 4, &vm));
    settings[3].text = "timeline.json";
    REFUSED(GPUVM_CODE_INVALID_VALUE, "2^24 events", gpuvm_vm_new(settings, 5, &vm));
    settings[4].number = 1 << 20;
    REFUSED(GPUVM_CODE_INVALID_VALUE, "file_cache_on_gpu is `1`: it requires `file_cache`",
            gpuvm_vm_new(settings, 6, &vm));
    HOLDS(vm.id == 0);
    OK(gpuvm_vm_new(settings, 5, &vm));
    gpuvm_region region;
    OK(gpuvm_region_zeroed(vm, NULL, gpuvm_number(GPUVM_TYPE_U32), COUNT, &region));
    const char* names[] = {"add"};
    gpuvm_module module;
    OK(gpuvm_module_compile(vm, 0, "cases.cu", SOURCE, names, 1, NULL, &module));
    gpuvm_kernel add = kernel_of(module, "add");
    gpuvm_arg args[] = {GPUVM_ARG(region), GPUVM_ARG(2u)};
    gpuvm_launch launch;
    OK(launch_of(add, args, 2, &launch));
    OK(gpuvm_launch_sync(launch, NULL));
    gpuvm_device_code code;
    OK(gpuvm_vm_device_code(vm, 0, &code));
    // Pages that NICs move, and a timeline.
    HOLDS(code.layout_version == GPUVM_LAYOUT_VERSION && code.features == 2 + 32);
    uint64_t faults = counter(vm, "faults");
    OK(gpuvm_launch_free(launch));
    OK(gpuvm_kernel_free(add));
    OK(gpuvm_module_free(module));
    OK(gpuvm_region_free(region));
    OK(gpuvm_vm_free(vm));
    HOLDS(faults > 0 && times("timeline.json", "\"name\":\"fault\"") == faults);
    HOLDS(times("timeline.json", "kernel `add`") > 0);
    remove("timeline.json");
}

static const test_case CASES[] = {
    CASE(sizes_of_pages_and_frames),
    CASE(names_of_settings_and_counters),
    CASE(sizes_of_structures),
    CASE(numbers_of_enumerations),
    CASE(names_of_gpus_and_transports),
    CASE(texts_that_are_none),
    CASE(kernels_that_are_missing_or_wrong),
    CASE(files_that_are_missing_or_unwritable),
    CASE(memory_that_is_not_there),
    CASE(slot_caches_that_cannot_be),
    CASE(writes_to_what_is_read_only_and_lent_twice),
    CASE(callbacks_that_fail),
    CASE(a_timeline),
};

int main(int argc, char** argv) { return run_cases(CASES, sizeof CASES / sizeof *CASES, argc, argv); }
