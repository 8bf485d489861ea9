// The C++ classes used wrongly: each case throws what it names, and what was there before is there still.
#include <gpuvm/host.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace gh = gpuvm::host;

#define HOLDS(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (0)

// A call that throws an error with this code, whose text contains `part`.
#define THROWS(wanted, part, ...)                                                                 \
    do {                                                                                          \
        try {                                                                                     \
            (void)(__VA_ARGS__);                                                                  \
            std::fprintf(stderr, "%s:%d: %s throws nothing\n", __FILE__, __LINE__, #__VA_ARGS__); \
            std::exit(1);                                                                         \
        } catch (const gh::error& error) {                                                        \
            if (error.code() == (wanted) && std::strstr(error.what(), part) != nullptr) break;    \
            std::fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #__VA_ARGS__,         \
                         gpuvm_code_name(error.code()), error.what());                            \
            std::exit(1);                                                                         \
        }                                                                                         \
    } while (0)

namespace {

constexpr std::uint64_t COUNT = 64 * 1024;

const char* const SOURCE = R"(
#include <gpuvm/gpuvm.cuh>
__global__ void add(gpuvm::array<unsigned> a, unsigned by) {
    auto lanes = gridDim.x * 1ull * blockDim.x;
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size() && !a.failed(); i += lanes) a[i] += by;
}
__global__ void store(unsigned* at, unsigned value) { at[threadIdx.x] = value; }
__global__ void far(gpuvm::array<unsigned> a, unsigned long long i) { a[i] = 1; }
__global__ void wait(gpuvm::array<unsigned> a) {
    a[threadIdx.x] = 1 + threadIdx.x;
    while (!a.failed()) __nanosleep(1000);
}
)";

std::vector<gh::setting> small() {
    return {{"frame_memory", 128 * 1024}, {"sim_workers", 1}, {"sim_memory", 64 << 20}};
}

gpuvm_region_options called(const char* name, bool read_only = false) {
    auto options = gh::sized<gpuvm_region_options>();
    options.name = name;
    options.read_only = read_only;
    return options;
}

// A virtual memory with kernels, and a region of more pages than there are frames.
struct world {
    gh::Vm vm{small()};
    gh::Module module = vm.compile("cases.cu", SOURCE, {"add", "store", "far", "wait"});
    gh::Kernel add = module.kernel("add"), store = module.kernel("store"), far = module.kernel("far"),
               wait = module.kernel("wait");
    gh::Region<unsigned> region = vm.region<unsigned>(COUNT, called("numbers"));

    // Everything works still, and nothing that was there is lost.
    void is_well(unsigned value = 0) {
        HOLDS(region.to_vector() == std::vector<unsigned>(COUNT, value));
        add.launch({4, 64}, region, 1u).sync();
        HOLDS(region.to_vector() == std::vector<unsigned>(COUNT, value + 1));
    }
};

void closed_array() {
    world w;
    auto region = w.vm.region<unsigned>(16);
    region.close();
    HOLDS(!region);
    THROWS(GPUVM_CODE_INVALID_HANDLE, "null handle", region.to_vector());
    THROWS(GPUVM_CODE_INVALID_HANDLE, "`argument`", w.add.launch({4, 64}, region, 1u));
    w.is_well();
}

void closed_twice() {
    world w;
    auto buffer = w.vm.buffer<unsigned>(16);
    buffer.close();
    THROWS(GPUVM_CODE_INVALID_HANDLE, "null handle", buffer.close());
    auto launch = w.add.launch({4, 64}, w.region, 2u);
    launch.close();
    THROWS(GPUVM_CODE_INVALID_HANDLE, "a launch is needed", launch.sync());
    w.is_well(2);
}

void freed_behind_the_object() {
    world w;
    auto region = w.vm.region<unsigned>(16);
    gh::check(gpuvm_region_free(region.raw()));
    THROWS(GPUVM_CODE_INVALID_HANDLE, "it was freed", region.flush());
    // Its destructor frees nothing that is another's.
    auto next = w.vm.region<unsigned>(16);
    region = gh::Region<unsigned>();
    HOLDS(next.size() == 16);
    w.is_well();
}

void moved_from() {
    world w;
    auto one = w.vm.region<unsigned>(16);
    auto two = std::move(one);
    THROWS(GPUVM_CODE_INVALID_HANDLE, "null handle", one.size());  // NOLINT: that is what is tried
    const gh::Vm vm = std::move(w.vm);
    THROWS(GPUVM_CODE_INVALID_HANDLE, "a Vm is needed", w.vm.gpus());
    HOLDS(two.size() == 16 && vm.gpus() == 1);
    w.is_well();
}

void never_made() {
    world w;
    THROWS(GPUVM_CODE_INVALID_HANDLE, "a kernel is needed", gh::Kernel().launch({1, 1}));
    THROWS(GPUVM_CODE_INVALID_HANDLE, "is not a valid handle", gh::Buffer<unsigned>(gpuvm_buffer{UINT64_MAX}).size());
    w.is_well();
}

void another_kind() {
    world w;
    gh::Buffer<unsigned> buffer(gpuvm_buffer{w.region.raw().id});
    THROWS(GPUVM_CODE_WRONG_KIND, "is the handle of a region; a buffer is needed", buffer.to_vector());
    THROWS(GPUVM_CODE_WRONG_KIND, "a buffer is needed", w.store.launch({1, 32}, buffer, 1u));
    (void)buffer.release();
    w.is_well();
}

void another_type_of_elements() {
    world w;
    auto doubles = w.vm.region<double>(64, called("doubles"));
    THROWS(GPUVM_CODE_ARGUMENTS, "argument 1: the region `doubles` of f64 was given",
           w.add.launch({1, 32}, doubles, 1u));
    THROWS(GPUVM_CODE_ARGUMENTS, "argument 2: a value of type i32 was given", w.add.launch({1, 32}, w.region, 1));
    THROWS(GPUVM_CODE_ARGUMENTS, "argument 1", w.store.launch({1, 32}, gh::address<float>{64}, 1u));
    w.is_well();
}

void another_number_of_arguments() {
    world w;
    THROWS(GPUVM_CODE_ARGUMENTS, "1 arguments were given, it takes 2", w.add.launch({1, 32}, w.region));
    THROWS(GPUVM_CODE_ARGUMENTS, "3 arguments were given, it takes 2", w.add.launch({1, 32}, w.region, 1u, 1u));
    w.is_well();
}

void memory_of_another_vm() {
    world w;
    const gh::Vm other(small());
    auto buffer = other.buffer<unsigned>(64);
    THROWS(GPUVM_CODE_ARGUMENTS, "argument 1 belongs to another Vm", w.store.launch({1, 32}, buffer, 1u));
    const auto stream = other.stream();
    THROWS(GPUVM_CODE_ARGUMENTS, "the stream belongs to another GPU",
           w.add.launch(gh::config(1, 32).on(stream), w.region, 1u));
    w.is_well();
}

void memory_that_is_none() {
    world w;
    THROWS(GPUVM_CODE_INVALID_POINTER, "`memory` is NULL", w.vm.borrow<unsigned>(nullptr, 4));
    unsigned one = 0;
    THROWS(GPUVM_CODE_REGION, "address space", w.vm.borrow(&one, UINT64_MAX / 4));
    w.is_well();
}

void memory_that_is_lent_twice() {
    world w;
    std::vector<unsigned> numbers(1024, 7);
    auto lent = w.vm.borrow(numbers.data(), 1024, called("one"));
    THROWS(GPUVM_CODE_OVERLAP, "overlaps region `one`", w.vm.borrow(numbers.data() + 512, 8));
    lent.close();
    HOLDS(numbers == std::vector<unsigned>(1024, 7));
    w.is_well();
}

void stores_to_what_is_read_only() {
    world w;
    auto facts = w.vm.region(std::vector<unsigned>(64, 3), called("facts", true));
    THROWS(GPUVM_CODE_REGION, "it is read-only", facts.write(0, {1}));
    THROWS(GPUVM_CODE_ARGUMENTS, "take gpuvm::array<const T>", w.add.launch({1, 32}, facts, 1u));
    HOLDS(facts.to_vector() == std::vector<unsigned>(64, 3));
    w.is_well();
}

void out_of_range() {
    world w;
    unsigned two[2] = {8, 8};
    THROWS(GPUVM_CODE_OUT_OF_RANGE, "of `numbers` are out of range", w.region.read(COUNT - 1, two, 2));
    THROWS(GPUVM_CODE_OUT_OF_RANGE, "of `numbers`", w.region.write(COUNT, {1}));
    HOLDS(two[0] == 8 && two[1] == 8);
    const auto launch = w.far.launch({1, 1}, w.region, static_cast<unsigned long long>(COUNT));
    THROWS(GPUVM_CODE_FAULT, "index 65536 of region `numbers` is out of range", launch.sync());
    // As often as it is asked.
    THROWS(GPUVM_CODE_FAULT, "index 65536", launch.sync());
    w.is_well();
}

void shapes_that_cannot_be() {
    world w;
    THROWS(GPUVM_CODE_GPU, "kernel `add`", w.add.launch({0, 32}, w.region, 1u));
    THROWS(GPUVM_CODE_GPU, "kernel `add`", w.add.launch({1, 4096}, w.region, 1u));
    THROWS(GPUVM_CODE_SPANS, "frames", w.add.launch(gh::config(1, 32).spans(1), w.region, 1u));
    w.is_well();
}

void settings_that_cannot_be() {
    THROWS(GPUVM_CODE_INVALID_VALUE, "5000", (gh::Vm{{"page_size", 5000}}));
    THROWS(GPUVM_CODE_INVALID_VALUE, "transport is `pigeon`", (gh::Vm{{"transport", "pigeon"}}));
    THROWS(GPUVM_CODE_INVALID_VALUE, "it is `frame_capacity`", (gh::Vm{{"capacity", 1 << 20}, {"sim_workers", 1}}));
    THROWS(GPUVM_CODE_INVALID_VALUE, "launch_deadline is `-2.500000`", (gh::Vm{{"launch_deadline", -2.5}}));
    world w;
    auto options = gh::sized<gpuvm_region_options>();
    options.size = 0;
    THROWS(GPUVM_CODE_INVALID_VALUE, "sizeof(gpuvm_region_options)", w.vm.region<unsigned>(4, options));
    THROWS(GPUVM_CODE_INVALID_VALUE, "GPU is 7", w.vm.buffer<unsigned>(4, 7));
    w.is_well();
}

void source_that_does_not_compile() {
    world w;
    THROWS(GPUVM_CODE_COMPILE, "wrong.cu", w.vm.kernel("wrong.cu", "__global__ void wrong() { nothing(); }", "wrong"));
    THROWS(GPUVM_CODE_NO_KERNEL, "`subtract`", w.module.kernel("subtract"));
    THROWS(GPUVM_CODE_FILE, "no/such/file.cu", w.vm.compile_file("no/such/file.cu", {"f"}));
    THROWS(GPUVM_CODE_FILE, "no/such.cubin", w.vm.load_file("no/such.cubin", {"f"}));
    THROWS(GPUVM_CODE_UNAVAILABLE, "compiles their source", w.vm.load("f.ptx", "text", 4, {"f"}));
    w.is_well();
}

void files_that_are_not_what_was_said() {
    world w;
    THROWS(GPUVM_CODE_FILE, "no/such/file", w.vm.map_file<unsigned>("no/such/file"));
    THROWS(GPUVM_CODE_FILE, "is not a regular file", w.vm.region_of_file<unsigned>("/dev/null"));
    std::ofstream("seven.bin", std::ios::binary) << "seven b";
    THROWS(GPUVM_CODE_REGION, "7 bytes", w.vm.map_file<unsigned>("seven.bin"));
    THROWS(GPUVM_CODE_REGION, "exceed it", w.vm.map_file_span<unsigned>("seven.bin", 4, 1));
    THROWS(GPUVM_CODE_REGION, "processes share read-only regions",
           w.vm.map_file_span<unsigned char>("seven.bin", 1, 5).share());
    std::remove("seven.bin");
    THROWS(GPUVM_CODE_INVALID_VALUE, "no such name", w.vm.attach<unsigned>({1, 2, 3}));
    w.is_well();
}

void memory_that_is_not_there() {
    world w;
    try {
        (void)w.vm.buffer<unsigned>(1ull << 40);
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(error.is_out_of_memory());
    }
    auto keys = w.vm.elastic<unsigned>(1 << 20);
    THROWS(GPUVM_CODE_BEYOND_MAX, "elements", keys.grow((1 << 20) + 1));
    THROWS(GPUVM_CODE_OUT_OF_RANGE, "", keys.shrink(1));
    w.is_well();
}

void vm_closed_first() {
    world w;
    w.vm.close();
    THROWS(GPUVM_CODE_INVALID_HANDLE, "a Vm is needed", w.vm.buffer<unsigned>(4));
    // What was made of it goes on.
    w.is_well();
}

void array_closed_while_a_launch_runs() {
    world w;
    std::vector<unsigned> numbers(COUNT, 1);
    auto lent = w.vm.borrow(numbers.data(), COUNT);
    const auto launch = w.add.launch({4, 64}, lent, 5u);
    lent.close();
    HOLDS(numbers == std::vector<unsigned>(COUNT, 6));
    launch.sync();
    w.is_well();
}

void exception_in_the_middle() {
    world w;
    std::vector<unsigned> numbers(COUNT, 1);
    try {
        const auto lent = w.vm.borrow(numbers.data(), COUNT);
        const auto first = w.add.launch({4, 64}, lent, 6u);
        const auto buffer = w.vm.buffer<float>(100);
        throw std::logic_error("mine");
    } catch (const std::logic_error& error) {
        HOLDS(std::strcmp(error.what(), "mine") == 0);
    }
    HOLDS(numbers == std::vector<unsigned>(COUNT, 7));
    w.is_well();
}

void exception_in_a_callback() {
    world w;
    try {
        w.vm.track([] { throw std::logic_error("mine"); });
        HOLDS(false);
    } catch (const std::logic_error& error) {
        HOLDS(std::strcmp(error.what(), "mine") == 0);
    }
    THROWS(GPUVM_CODE_OUT_OF_RANGE, "", w.vm.track([&] { w.region.write(COUNT, {1}); }));
    w.is_well();
}

void threads_that_close_what_others_use() {
    world w;
    std::vector<unsigned> numbers(COUNT, 9);
    auto lent = w.vm.borrow(numbers.data(), COUNT);
    const gpuvm_region raw = lent.raw();
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i)
        readers.emplace_back([raw] {
            std::vector<unsigned> found(1024);
            while (gpuvm_region_read(raw, 0, found.data(), 4096) == GPUVM_CODE_OK)
                HOLDS(found == std::vector<unsigned>(1024, 9));
            HOLDS(std::strstr(gpuvm_last_error(), "it was freed") != nullptr);
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    lent.close();
    // Nothing reads the memory any more.
    numbers = {};
    for (auto& reader : readers) reader.join();
    w.is_well();
}

void child_after_fork() {
    auto w = std::make_unique<world>();
    const auto launch = w->add.launch({4, 64}, w->region, 4u);
    const pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        THROWS(GPUVM_CODE_FORKED, "was forked from process", w->region.to_vector());
        THROWS(GPUVM_CODE_FORKED, "call exec in the child", gh::Vm(small()));
        // Destructors of the child free nothing of the parent's.
        w.reset();
        _exit(7);
    }
    int status = 0;
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    launch.sync();
    w->is_well(4);
}

volatile std::sig_atomic_t interrupted = 0;

void interrupt_during_a_wait() {
    world w;
    std::signal(SIGINT, [](int signal) { interrupted = signal; });
    auto region = w.vm.region<unsigned>(32);
    const auto launch = w.wait.launch({1, 32}, region);
    std::thread key([self = getpid()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        kill(self, SIGINT);
    });
    const auto waited = [&] {
        while (!launch.wait(20'000'000)) {
            if (interrupted) launch.abort();
        }
    };
    THROWS(GPUVM_CODE_STOPPED, "kernel `wait`", waited());
    key.join();
    HOLDS(interrupted == SIGINT && region.to_vector()[31] == 32);
    w.is_well();
}

void kernel_that_does_not_end() {
    world w;
    auto region = w.vm.region<unsigned>(32);
    gh::config shape(1, 32);
    shape.deadline_ns = 50'000'000;
    const auto launch = w.wait.launch(shape, region);
    HOLDS(!launch.wait(0) && !launch.done());
    try {
        launch.sync();
        HOLDS(false);
    } catch (const gh::error& error) {
        HOLDS(std::strstr(error.what(), "kernel `wait`") != nullptr);
    }
    w.is_well();
}

struct test_case {
    const char* name;
    void (*run)();
};
#define CASE(name) \
    { #name, name }

const test_case CASES[] = {
    CASE(closed_array),
    CASE(closed_twice),
    CASE(freed_behind_the_object),
    CASE(moved_from),
    CASE(never_made),
    CASE(another_kind),
    CASE(another_type_of_elements),
    CASE(another_number_of_arguments),
    CASE(memory_of_another_vm),
    CASE(memory_that_is_none),
    CASE(memory_that_is_lent_twice),
    CASE(stores_to_what_is_read_only),
    CASE(out_of_range),
    CASE(shapes_that_cannot_be),
    CASE(settings_that_cannot_be),
    CASE(source_that_does_not_compile),
    CASE(files_that_are_not_what_was_said),
    CASE(memory_that_is_not_there),
    CASE(vm_closed_first),
    CASE(array_closed_while_a_launch_runs),
    CASE(exception_in_the_middle),
    CASE(exception_in_a_callback),
    CASE(threads_that_close_what_others_use),
    CASE(child_after_fork),
    CASE(interrupt_during_a_wait),
    CASE(kernel_that_does_not_end),
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
