// What the classes of gpuvm/host.hpp do: each case by itself.
#include <gpuvm/host.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

namespace gh = gpuvm::host;

#define HOLDS(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (0)

namespace {

constexpr std::uint64_t COUNT = 64 * 1024;

struct point {
    float x, y;
};

const char* const SOURCE = R"(
#include <gpuvm/gpuvm.cuh>
typedef unsigned long long u64;
struct point { float x, y; };
__device__ inline u64 first() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }
__global__ void add(gpuvm::array<unsigned> a, unsigned by) {
    for (u64 i = first(); i < a.size() && !a.failed(); i += lanes()) a[i] += by;
}
__global__ void sum(gpuvm::array<const unsigned> a, u64* total) {
    u64 own = 0;
    for (u64 i = first(); i < a.size() && !a.failed(); i += lanes()) own += a[i];
    atomicAdd(total, own);
}
__global__ void move(gpuvm::array<point> a, point by, double scale) {
    for (u64 i = first(); i < a.size() && !a.failed(); i += lanes()) {
        point at = a[i];
        at.x = at.x * float(scale) + by.x;
        at.y = at.y * float(scale) + by.y;
        a[i] = at;
    }
}
__global__ void fill(unsigned* at, u64 n, unsigned value) {
    for (u64 i = first(); i < n; i += lanes()) at[i] = value + i;
}
__global__ void share(gpuvm::broadcast<const unsigned> from, gpuvm::broadcast<unsigned> to, unsigned begin, unsigned end) {
    for (u64 i = begin + first(); i < end; i += lanes()) to[i] = from[from.size() - 1 - i];
}
)";

std::vector<gh::setting> small(const std::vector<gh::setting>& more = {}, int sim_memory = 64 << 20) {
    std::vector<gh::setting> all{{"frame_memory", 128 * 1024}, {"sim_workers", 1}, {"sim_memory", sim_memory}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

std::uint64_t sum_of(const gh::Module& module, const gh::Vm& vm, const gh::Region<unsigned>& region) {
    auto total = vm.buffer<unsigned long long>(1);
    module.kernel("sum").launch({4, 64}, region, total).sync();
    return total.to_vector()[0];
}

void regions_of_all_kinds() {
    const gh::Vm vm(small());
    const auto module = vm.compile("all.cu", SOURCE, {"add", "sum", "move"});
    const auto add = module.kernel("add");
    HOLDS(add.parameters() == 2 && add.parameter(1) == "unsigned int" && add.parameter(0).size() > 5);
    HOLDS(vm.gpu_name().size() > 3 && std::strlen(vm.gpu_name().c_str()) == vm.gpu_name().size());
    // A copy, zeros, and the program's own memory.
    std::vector<unsigned> numbers(COUNT);
    std::iota(numbers.begin(), numbers.end(), 0u);
    auto copied = vm.region(numbers);
    auto zeroed = vm.region<unsigned>(COUNT);
    auto lent = vm.borrow(numbers.data(), COUNT);
    for (const auto* region : {&copied, &zeroed, &lent}) {
        const auto launch = add.launch({4, 64}, *region, 2u);
        const auto end = launch.sync();
        HOLDS(launch.done() && end.blocks == 4 && end.elapsed_ns > 0);
    }
    HOLDS(sum_of(module, vm, copied) == COUNT * (COUNT - 1) / 2 + 2 * COUNT);
    HOLDS(zeroed.to_vector() == std::vector<unsigned>(COUNT, 2));
    lent.close();
    HOLDS(!lent && numbers[0] == 2 && numbers[COUNT - 1] == COUNT + 1);
    // Parts, and what a home holds.
    zeroed.write(10, {7, 8});
    unsigned pair[2];
    zeroed.read(10, pair, 2);
    HOLDS(pair[0] == 7 && pair[1] == 8);
    zeroed.read_home(11, pair, 1);
    HOLDS(pair[0] == 8);
    HOLDS(zeroed.advise(GPUVM_ADVICE_SEQUENTIAL) && !zeroed.advise(GPUVM_ADVICE_WRITE_ONCE));
    zeroed.flush();
    zeroed.flush_beside();
    zeroed.evict();
    zeroed.discard(0, COUNT);
    HOLDS(zeroed.effective() == GPUVM_PLACEMENT_FETCH);
    HOLDS(zeroed.health().lost_homes == 0 && zeroed.size() == COUNT);
    // Structures, by value too.
    auto points = vm.region(std::vector<point>(1000, point{1, 2}));
    module.kernel("move").launch({1, 64}, points, point{5, 6}, 2.0).sync();
    const auto moved = points.to_vector();
    HOLDS(moved[999].x == 7 && moved[999].y == 10);
    HOLDS(vm.device_code().features == 2 && vm.device_code().layout_version == GPUVM_LAYOUT_VERSION);
    HOLDS(vm.stats().at("pages_fetched") > 0 && vm.info().frames == 32 && vm.fault_ns(0.5) > 0);
    HOLDS(zeroed.pages() == COUNT * sizeof(unsigned) / 4096 && zeroed.resident_address() == 0);
}

void files_in_place() {
    const gh::Vm vm(small());
    const auto module = vm.compile("all.cu", SOURCE, {"add", "sum"});
    const char* const path = "numbers.bin";
    std::vector<unsigned> numbers(COUNT, 3);
    const auto bytes = static_cast<std::streamsize>(COUNT * sizeof(unsigned));
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(numbers.data()), bytes);
    auto mapped = vm.map_file<unsigned>(path);
    module.kernel("add").launch({4, 64}, mapped, 1u).sync();
    mapped.close();
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(numbers.data()), bytes);
    HOLDS(numbers == std::vector<unsigned>(COUNT, 4));
    {
        const auto middle = vm.map_file_span<unsigned>(path, 40, 10);
        module.kernel("add").launch({1, 64}, middle, 5u).sync();
    }
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(numbers.data()), bytes);
    HOLDS(numbers[9] == 4 && numbers[10] == 9 && numbers[19] == 9 && numbers[20] == 4);
    {
        const auto middle = vm.map_file_span<unsigned>(path, 40, 10);
        std::vector<unsigned> back(10, 4);
        middle.write(0, back);
    }
    auto options = gh::sized<gpuvm_region_options>();
    options.read_only = 1;
    options.never_evicted = 1;
    options.name = "file";
    {
        const auto resident = vm.map_file<unsigned>(path, options);
        HOLDS(resident.resident_address() == 0);
        HOLDS(sum_of(module, vm, resident) == 4 * COUNT && resident.resident_address() != 0);
    }
    HOLDS(sum_of(module, vm, vm.region_of_file<unsigned>(path, options)) == 4 * COUNT);
    std::remove(path);
}

void homes_at_a_neighbour_and_places_that_the_gpu_chooses() {
    const gh::Vm vm(small({{"transport", "direct"}, {"sim_neighbours", 1}, {"borrow_from", "1:16MiB"}}, 256 << 20));
    HOLDS(vm.info().transport == GPUVM_TRANSPORT_DIRECT && vm.info().borrowed_bytes == 16 << 20);
    const auto module = vm.compile("all.cu", SOURCE, {"add", "sum"});
    auto options = gh::sized<gpuvm_region_options>();
    options.home_on_gpu = 1;
    options.home_gpu = 1;
    auto away = vm.region<unsigned>(COUNT, options);
    module.kernel("add").launch({4, 64}, away, 9u).sync();
    HOLDS(away.to_vector() == std::vector<unsigned>(COUNT, 9));
    options = gh::sized<gpuvm_region_options>();
    options.read_only = 1;
    options.placement = GPUVM_PLACEMENT_IN_PLACE;
    HOLDS(sum_of(module, vm, vm.region(std::vector<unsigned>(COUNT, 5), options)) == 5 * COUNT);
    HOLDS(vm.stats().at("bytes_in_place") > 0);
    HOLDS(vm.give_back_borrowed(16 << 20) == 16 << 20 && vm.info().borrowed_bytes == 0);
    HOLDS(vm.borrow_again(16 << 20) == 16 << 20);
    vm.catch_up();
}

void elastic_buffers_grow_shrink_and_pause() {
    const gh::Vm vm(small());
    const auto fill = vm.kernel("all.cu", SOURCE, "fill");
    auto options = gh::sized<gpuvm_elastic_options>();
    options.name = "keys";
    options.tag = "cache";
    auto keys = vm.elastic<unsigned>(1 << 28, options);
    const auto grown = keys.grow(1000);
    HOLDS(grown.first == 0 && keys.size() == 1000 && keys.capacity() >= 1000);
    const auto pointer = keys.pointer();
    fill.launch({2, 64}, keys, 1000ull, 5u).sync();
    keys.ensure(100000);
    keys.ensure(10);
    HOLDS(keys.size() == 100000 && keys.pointer() == pointer);
    HOLDS(vm.pause("cache") == 400000 && vm.stats().at("elastic_paused") == 1);
    try {
        (void)keys.to_vector();
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_PAUSED);
    }
    HOLDS(vm.resume("cache") == 400000);
    keys.shrink(99000);
    const auto found = keys.to_vector();
    for (unsigned i = 0; i < 1000; ++i) HOLDS(found[i] == 5 + i);
    // As an address that gpuvm does not know.
    fill.launch({1, 32}, gh::address<unsigned>{pointer}, 10ull, 77u).sync();
    unsigned first = 0;
    keys.read(0, &first, 1);
    HOLDS(first == 77);
    keys.close();
    HOLDS(vm.trim(1 << 30) > 0);
}

void two_gpus_share_arrays() {
    const gh::Vm vm(small({{"gpu", "sim,sim"}, {"transport", "direct"}}));
    HOLDS(vm.gpus() == 2);
    std::vector<unsigned> numbers(COUNT);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const auto from = vm.broadcast(numbers);
    auto to = vm.broadcast<unsigned>(COUNT);
    auto region = vm.region<unsigned>(COUNT);
    for (std::uint32_t gpu = 0; gpu < 2; ++gpu) {
        const auto module = vm.compile("all.cu", SOURCE, {"share", "add"}, gpu);
        const unsigned begin = gpu * COUNT / 2, end = (gpu + 1) * COUNT / 2;
        vm.track([&] { module.kernel("share").launch({4, 64}, from, to, begin, end).sync(); });
        module.kernel("add").launch({4, 64}, region, gpu + 1).sync();
    }
    const auto shared = to.to_vector();
    for (unsigned i = 0; i < COUNT; ++i) HOLDS(shared[i] == COUNT - 1 - i);
    HOLDS(region.to_vector() == std::vector<unsigned>(COUNT, 3));
    to.flush();
    unsigned last = 1;
    to.read_home(COUNT - 1, &last, 1);
    HOLDS(last == 0 && to.owner(0) < 2);
    to.subscribe(1, 0, COUNT);
    HOLDS((to.subscribers(0) & 2) != 0);
    // What the program throws while GPUs are tracked comes out.
    try {
        vm.track([] { throw std::logic_error("mine"); });
        HOLDS(false);
    } catch (const std::logic_error& error) {
        HOLDS(std::strcmp(error.what(), "mine") == 0);
    }
}

void streams_and_waits() {
    const gh::Vm vm(small());
    const auto add = vm.kernel("all.cu", SOURCE, "add");
    const auto stream = vm.stream();
    auto region = vm.region<unsigned>(COUNT);
    const auto launch = add.launch(gh::config(4, 64).on(stream), region, 1u);
    while (!launch.wait(10'000'000)) {
    }
    std::thread([&] { add.launch({4, 64}, region, 1u).sync(); }).join();
    HOLDS(region.to_vector() == std::vector<unsigned>(COUNT, 2));
    // 16 lanes with a span each need 17 frames, and 32 need one more than there are.
    add.launch(gh::config(1, 16).spans(1), region, 0u).sync();
    try {
        (void)add.launch(gh::config(1, 32).spans(1), region, 0u);
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_SPANS);
    }
}

void frames_come_and_go() {
    const gh::Vm vm(small({{"frame_capacity", "1MiB"}}));
    HOLDS(vm.info().frame_capacity == 256);
    const auto resized = vm.resize_frames(1 << 20);
    HOLDS(resized.bytes == 1 << 20 && resized.missing_bytes == 0 && vm.info().frames == 256);
    HOLDS(vm.resize_frames(64 * 1024).bytes >= 64 * 1024);
    // What is refused when memory is short may work later.
    vm.set_frame_priority(-1);
    auto keys = vm.elastic<unsigned char>(1 << 30);
    keys.set_priority(3);
    try {
        (void)keys.grow(1 << 29);
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.is_out_of_memory());
    }
    HOLDS(keys.size() == 0);
    try {
        vm.set_frame_priority(1, 7);
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(!error.is_out_of_memory() && error.code() == GPUVM_CODE_INVALID_VALUE);
    }
}

void kernels_that_were_compiled_before_need_no_compiler() {
    const auto total = [](const std::vector<gh::setting>& options) {
        const gh::Vm vm(options);
        const auto module = vm.compile("all.cu", SOURCE, {"sum"});
        return sum_of(module, vm, vm.region(std::vector<unsigned>(COUNT, 2)));
    };
    HOLDS(total(small({{"precompile_into", "compiled"}})) == 2 * COUNT);
    setenv("GPUVM_CXX", "no-such-compiler-here", 1);
    try {
        (void)total(small());
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_UNAVAILABLE);
    }
    try {
        (void)total(small({{"precompiled", "compiled"}, {"precompile_into", "compiled"}}));
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_INVALID_VALUE && std::strstr(error.what(), "leave one") != nullptr);
    }
    HOLDS(total(small({{"precompiled", "compiled"}})) == 2 * COUNT);
}

void regions_have_priorities() {
    const gh::Vm vm(small());
    auto options = gh::sized<gpuvm_region_options>();
    options.priority = -4;
    auto region = vm.region<unsigned>(COUNT, options);
    HOLDS(region.priority() == -4);
    region.set_priority(8);
    HOLDS(region.priority() == 8);
}

// Memory that a region borrows lives longer than the region, although the scope ends by an exception while a launch
// runs.
void an_exception_in_the_middle_of_a_scope() {
    const gh::Vm vm(small());
    const auto add = vm.kernel("all.cu", SOURCE, "add");
    std::vector<unsigned> numbers(COUNT, 1);
    try {
        auto lent = vm.borrow(numbers.data(), COUNT);
        auto launch = add.launch({4, 64}, lent, 6u);
        auto buffer = vm.buffer<float>(100);
        (void)add.launch({4, 64}, lent, 6.0f);
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_ARGUMENTS && std::strstr(error.what(), "argument 2") != nullptr);
    }
    HOLDS(numbers == std::vector<unsigned>(COUNT, 7));
}

void what_was_moved_from_is_empty() {
    gh::Vm vm(small());
    auto one = vm.region<unsigned>(16);
    auto two = std::move(one);
    HOLDS(!one && two && two.size() == 16);
    try {
        one.flush();  // NOLINT: that is what is tried
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.code() == GPUVM_CODE_INVALID_HANDLE);
    }
    one = vm.region<unsigned>(32);
    two = std::move(one);
    HOLDS(two.size() == 32);
    auto& self = two;
    two = std::move(self);
    HOLDS(two.size() == 32);
    const gpuvm_region raw = two.release();
    gh::check(gpuvm_region_free(raw));
    vm.close();
    HOLDS(!vm);
}

void tiered_buffers_lie_on_the_gpu_or_in_host_memory() {
    const gh::Vm vm(small());
    const auto fill = vm.kernel("all.cu", SOURCE, "fill");
    auto options = gh::sized<gpuvm_tiered_options>();
    options.name = "weights";
    options.budget = 2 << 16;
    const unsigned long long words = 3 << 14;
    const auto weights = vm.tiered<unsigned>(words, options);
    HOLDS(weights.resident_bytes() == options.budget && weights.place(words - 1) == GPUVM_TIER_PLACE_HOST);
    const auto moved = weights.move_to(GPUVM_TIER_PLACE_GPU, words - 1, 1);
    HOLDS(moved.came == 1 && moved.left == 1 && weights.place(words - 1) == GPUVM_TIER_PLACE_GPU);
    // By the buffer and by its address.
    fill.launch({2, 64}, weights, words, 5u).sync();
    HOLDS(weights.set_budget(0).left == 2 && weights.resident_bytes() == 0);
    weights.set_priority(-1);
    auto found = weights.to_vector();
    for (unsigned i = 0; i < words; ++i) HOLDS(found[i] == 5 + i);
    fill.launch({1, 32}, gh::address<unsigned>{weights.pointer()}, 10ull, 77u).sync();
    HOLDS(weights.to_vector()[9] == 77 + 9);
}

void slot_caches_hold_records_that_calls_need() {
    const gh::Vm vm(small());
    std::vector<unsigned> numbers(COUNT);
    std::iota(numbers.begin(), numbers.end(), 0u);
    const auto table = vm.region(numbers);
    // Records of 64 bytes, and room for 8 of 4,096.
    auto cache = vm.slot_cache(table, 16, 8);
    const auto stream = vm.stream();
    const auto ids = vm.buffer<std::int64_t>(4);
    const auto slots = vm.buffer<std::int32_t>(4);
    auto* const to = reinterpret_cast<std::int32_t*>(static_cast<std::uintptr_t>(slots.pointer()));
    ids.write(0, {4095, 7, 4095, -1});
    cache.ensure(gh::slot_ids(ids).on(stream), to);
    cache.wait();
    const auto found = slots.to_vector();
    const auto frames = cache.frames<unsigned>();
    HOLDS(found[0] == found[2] && found[0] != found[1] && found[3] == -1 && frames.size() == 8 * 16);
    unsigned record[16];
    frames.read(16 * found[0], record, 16);
    for (unsigned i = 0; i < 16; ++i) HOLDS(record[i] == 16 * 4095 + i);
    cache.hold(slots);
    const auto others = vm.buffer<std::int64_t>(7);
    others.write(0, {1, 2, 3, 4, 5, 6, 8});
    cache.prefetch(others);
    cache.release(slots);
    cache.refresh();
    cache.wait();
    const auto stats = cache.stats();
    HOLDS(stats.misses == 2 && stats.prefetched >= 6 && stats.bytes == 64 * (stats.misses + stats.prefetched));
    // Of what a call met its end tells, too.
    ids.write(0, {4096, 0, 0, 0});
    cache.ensure(ids, to);
    try {
        cache.close();
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(std::strstr(error.what(), "4096") != nullptr);
    }
    HOLDS(!cache);
}

struct test_case {
    const char* name;
    void (*run)();
};

const test_case CASES[] = {
    {"regions_of_all_kinds", regions_of_all_kinds},
    {"files_in_place", files_in_place},
    {"homes_at_a_neighbour", homes_at_a_neighbour_and_places_that_the_gpu_chooses},
    {"elastic_buffers", elastic_buffers_grow_shrink_and_pause},
    {"tiered_buffers", tiered_buffers_lie_on_the_gpu_or_in_host_memory},
    {"slot_caches", slot_caches_hold_records_that_calls_need},
    {"two_gpus", two_gpus_share_arrays},
    {"streams_and_waits", streams_and_waits},
    {"frames_come_and_go", frames_come_and_go},
    {"compiled_before", kernels_that_were_compiled_before_need_no_compiler},
    {"priorities", regions_have_priorities},
    {"an_exception", an_exception_in_the_middle_of_a_scope},
    {"moves", what_was_moved_from_is_empty},
};

}  // namespace

int main(int argc, char** argv) try {
    for (const auto& one : CASES) {
        if (argc == 1) {
            std::puts(one.name);
        } else if (std::strcmp(argv[1], one.name) == 0) {
            one.run();
            std::puts("done");
            return 0;
        }
    }
    return argc == 1 ? 0 : 2;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
