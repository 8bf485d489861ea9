// gpuvm for C++17: what gpuvm.h has, with types that free themselves, and errors that are exceptions. docs/C.md is the
// page for users.
//
// Every class here is one handle. It can be moved and not copied, and its destructor frees it. Whatever is used after
// it was moved from or freed throws. Functions throw gpuvm::host::error and are as safe to call from several threads as
// those of gpuvm.h.
#pragma once

#include <gpuvm.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpuvm::host {

// What went wrong: the number, and the text of gpuvm_last_error().
class error : public std::runtime_error {
  public:
    error(gpuvm_code code, const std::string& text) : std::runtime_error(text), code_(code) {}

    gpuvm_code code() const noexcept { return code_; }
    // GPU or host memory is short: nothing was changed, and the same may work later.
    bool is_out_of_memory() const noexcept { return code_ == GPUVM_CODE_OUT_OF_MEMORY; }

  private:
    gpuvm_code code_;
};

// Throws unless a call went well.
inline void check(gpuvm_code code) {
    if (code != GPUVM_CODE_OK) throw error(code, gpuvm_last_error());
}

// Throws unless the library that the program runs with fits the header that it was compiled with. Every Vm asks.
inline void check_version() {
    const std::uint32_t library = gpuvm_version(), header = GPUVM_VERSION;
    // The major version, and while that is 0 the minor one, too.
    const unsigned ignored = header >> 16 == 0 ? 8 : 16;
    const bool older = (library >> 8) < (header >> 8);
    if (library >> ignored == header >> ignored && !older) return;
    throw error(GPUVM_CODE_UNAVAILABLE, std::string("libgpuvm is version ") + gpuvm_version_text() +
                                            ", and the program was compiled for " GPUVM_VERSION_TEXT
                                            ": install that version, or compile the program again");
}

// A structure of gpuvm.h that begins with its size: the rest is zero.
template <class T>
T sized() {
    T out{};
    out.size = sizeof(T);
    return out;
}

// The type of elements of a T: a number's, or that of a structure of this many bytes.
template <class T>
gpuvm_element element_of() {
    static_assert(std::is_trivially_copyable_v<T>, "elements are plain data: they are copied byte by byte");
    if constexpr (std::is_floating_point_v<T> && sizeof(T) <= 8) {
        return gpuvm_number(sizeof(T) == 4 ? GPUVM_TYPE_F32 : GPUVM_TYPE_F64);
    } else if constexpr (std::is_integral_v<T>) {
        constexpr unsigned log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
        return gpuvm_number((std::is_signed_v<T> ? GPUVM_TYPE_I8 : GPUVM_TYPE_U8) + log2);
    } else {
        return gpuvm_structure(nullptr, sizeof(T), alignof(T));
    }
}

namespace detail {

// What a function of gpuvm.h stores behind its last pointer.
template <class T, class Function, class... Args>
T stored(Function function, Args... args) {
    T out{};
    check(function(args..., &out));
    return out;
}
// The same of a structure that begins with its size.
template <class T, class Function, class... Args>
T filled(Function function, Args... args) {
    auto out = sized<T>();
    check(function(args..., &out));
    return out;
}

// A text that a function of gpuvm.h copies.
template <class Function, class C>
std::string text(Function function, C handle, std::uint32_t number) {
    std::uint64_t length = 0;
    check(function(handle, number, nullptr, 0, &length));
    std::string out(length, '\0');
    // C++17 keeps a zero behind the text, and has room for one there.
    check(function(handle, number, out.data(), length + 1, nullptr));
    return out;
}

// A handle of gpuvm.h and who frees it.
template <class C, gpuvm_code (*Free)(C)>
class handle {
  public:
    handle() noexcept = default;
    explicit handle(C raw) noexcept : raw_(raw) {}
    handle(handle&& other) noexcept : raw_(other.release()) {}
    handle& operator=(handle&& other) noexcept {
        if (this != &other) {
            drop();
            raw_ = other.release();
        }
        return *this;
    }
    handle(const handle&) = delete;
    handle& operator=(const handle&) = delete;
    // An error of it is lost: see close().
    ~handle() { drop(); }

    // Frees it and throws what its end has to say.
    void close() { check(Free(release())); }
    // That of gpuvm.h, which stays this object's.
    C raw() const noexcept { return raw_; }
    // That of gpuvm.h, which is the caller's to free.
    C release() noexcept { return std::exchange(raw_, C{}); }
    explicit operator bool() const noexcept { return raw_.id != 0; }

  private:
    void drop() noexcept {
        if (raw_.id != 0) Free(release());
    }

    C raw_{};
};

// What arrays of elements have in common. `length`, `read` and `write` are those of gpuvm.h.
template <class T, class C, gpuvm_code (*Free)(C), gpuvm_code (*Length)(C, std::uint64_t*),
          gpuvm_code (*Read)(C, std::uint64_t, void*, std::uint64_t),
          gpuvm_code (*Write)(C, std::uint64_t, const void*, std::uint64_t)>
class elements : public handle<C, Free> {
  public:
    using value_type = T;
    using handle<C, Free>::handle;

    // Elements.
    std::uint64_t size() const { return stored<std::uint64_t>(Length, this->raw()); }
    // Copies `count` elements from `first` on.
    void read(std::uint64_t first, T* out, std::uint64_t count) const {
        check(Read(this->raw(), first, out, count * sizeof(T)));
    }
    // Stores `count` elements from `first` on.
    void write(std::uint64_t first, const T* values, std::uint64_t count) const {
        check(Write(this->raw(), first, values, count * sizeof(T)));
    }
    void write(std::uint64_t first, const std::vector<T>& values) const { write(first, values.data(), values.size()); }
    // All elements.
    std::vector<T> to_vector() const {
        std::vector<T> out(size());
        read(0, out.data(), out.size());
        return out;
    }
};

}  // namespace detail

// An array whose pages kernels fetch: the argument for a gpuvm::array<T>. Its destructor waits for the launches that
// name it; close() says whether all of it was written back.
template <class T>
class Region : public detail::elements<T, gpuvm_region, gpuvm_region_free, gpuvm_region_length, gpuvm_region_read,
                                       gpuvm_region_write> {
  public:
    using Region::elements::elements;

    void flush() const { check(gpuvm_region_flush(this->raw())); }
    void flush_beside() const { check(gpuvm_region_flush_beside(this->raw())); }
    void evict() const { check(gpuvm_region_evict(this->raw())); }
    void discard(std::uint64_t first, std::uint64_t count) const {
        check(gpuvm_region_discard(this->raw(), first, count));
    }
    // Whether the region follows it.
    bool advise(gpuvm_advice advice) const {
        return detail::stored<bool>(gpuvm_region_advise, this->raw(), static_cast<std::uint32_t>(advice));
    }
    std::uint64_t pages() const { return detail::stored<std::uint64_t>(gpuvm_region_pages, this->raw()); }
    // The device address of the first element, of a region that is never evicted and whose pages are all there; else 0.
    std::uint64_t resident_address() const {
        return detail::stored<std::uint64_t>(gpuvm_region_resident_address, this->raw());
    }
    // Whose pages stay while frames are short.
    void set_priority(std::int32_t priority) const { check(gpuvm_region_set_priority(this->raw(), priority)); }
    gpuvm_placement effective() const {
        std::uint32_t placement = 0;
        check(gpuvm_region_effective(this->raw(), &placement, nullptr, 0, nullptr));
        return static_cast<gpuvm_placement>(placement);
    }
    std::int32_t priority() const { return detail::stored<std::int32_t>(gpuvm_region_priority, this->raw()); }
    // The name by which other processes attach to it, of a read-only region at memory nodes.
    std::vector<unsigned char> share() const {
        std::uint64_t length = 0;
        check(gpuvm_region_share(this->raw(), nullptr, 0, &length));
        std::vector<unsigned char> name(length);
        check(gpuvm_region_share(this->raw(), name.data(), name.size(), &length));
        return name;
    }
    void read_home(std::uint64_t first, T* out, std::uint64_t count) const {
        check(gpuvm_region_read_home(this->raw(), first, out, count * sizeof(T)));
    }
    gpuvm_region_health health() const {
        return detail::filled<gpuvm_region_health>(gpuvm_region_get_health, this->raw());
    }
};

// Plain device memory: the argument for a T*.
template <class T>
class Buffer : public detail::elements<T, gpuvm_buffer, gpuvm_buffer_free, gpuvm_buffer_length, gpuvm_buffer_read,
                                       gpuvm_buffer_write> {
  public:
    using Buffer::elements::elements;

    // The device address of the first element.
    std::uint64_t pointer() const { return detail::stored<std::uint64_t>(gpuvm_buffer_pointer, this->raw()); }

    // Of those that Vm::tiered made: moves the chunks that hold some of this many elements.
    gpuvm_moved move_to(gpuvm_tier_place place, std::uint64_t first, std::uint64_t count) const {
        return detail::filled<gpuvm_moved>(gpuvm_buffer_move_to, this->raw(), first, count,
                                           static_cast<std::uint32_t>(place));
    }
    // How many bytes may lie on the GPU.
    gpuvm_moved set_budget(std::uint64_t bytes) const {
        return detail::filled<gpuvm_moved>(gpuvm_buffer_set_budget, this->raw(), bytes);
    }
    // Whose chunks go to host memory first when GPU memory is short: those of low priority.
    void set_priority(std::int32_t priority) const { check(gpuvm_buffer_set_priority(this->raw(), priority)); }
    std::uint64_t resident_bytes() const {
        return detail::stored<std::uint64_t>(gpuvm_buffer_resident_bytes, this->raw());
    }
    gpuvm_tier_place place(std::uint64_t element) const {
        return static_cast<gpuvm_tier_place>(detail::stored<std::uint32_t>(gpuvm_buffer_place, this->raw(), element));
    }
};

// Device memory that grows and shrinks at one address: the argument for a T*.
template <class T>
class Elastic : public detail::elements<T, gpuvm_elastic, gpuvm_elastic_free, gpuvm_elastic_length, gpuvm_elastic_read,
                                        gpuvm_elastic_write> {
  public:
    using Elastic::elements::elements;

    gpuvm_grown grow(std::uint64_t count) const {
        return detail::filled<gpuvm_grown>(gpuvm_elastic_grow, this->raw(), count);
    }
    gpuvm_grown ensure(std::uint64_t count) const {
        return detail::filled<gpuvm_grown>(gpuvm_elastic_ensure, this->raw(), count);
    }
    void shrink(std::uint64_t count) const { check(gpuvm_elastic_shrink(this->raw(), count)); }
    // Who gives up unused memory first when it is short: those of low priority.
    void set_priority(std::int32_t priority) const { check(gpuvm_elastic_set_priority(this->raw(), priority)); }
    std::uint64_t capacity() const { return detail::stored<std::uint64_t>(gpuvm_elastic_capacity, this->raw()); }
    // The device address of the first element.
    std::uint64_t pointer() const { return detail::stored<std::uint64_t>(gpuvm_elastic_pointer, this->raw()); }
};

// An array of which each subscribed GPU holds a copy: the argument for a gpuvm::broadcast<T>.
template <class T>
class Broadcast : public detail::elements<T, gpuvm_broadcast, gpuvm_broadcast_free, gpuvm_broadcast_length,
                                          gpuvm_broadcast_read, gpuvm_broadcast_write> {
  public:
    using Broadcast::elements::elements;

    void flush() const { check(gpuvm_broadcast_flush(this->raw())); }
    void read_home(std::uint64_t first, T* out, std::uint64_t count) const {
        check(gpuvm_broadcast_read_home(this->raw(), first, out, count * sizeof(T)));
    }
    void subscribe(std::uint32_t gpu, std::uint64_t first, std::uint64_t count) const {
        check(gpuvm_broadcast_subscribe(this->raw(), gpu, first, count));
    }
    void unsubscribe(std::uint32_t gpu, std::uint64_t first, std::uint64_t count) const {
        check(gpuvm_broadcast_unsubscribe(this->raw(), gpu, first, count));
    }
    std::uint32_t owner(std::uint64_t element) const {
        return detail::stored<std::uint32_t>(gpuvm_broadcast_owner, this->raw(), element);
    }
    // Bit n is that of GPU n.
    std::uint32_t subscribers(std::uint64_t element) const {
        return detail::stored<std::uint32_t>(gpuvm_broadcast_subscribers, this->raw(), element);
    }
};

// A further stream of a GPU.
class Stream : public detail::handle<gpuvm_stream, gpuvm_stream_free> {
  public:
    using handle::handle;

    // The cudaStream_t, for other work in its order; null on the simulated GPU.
    void* cuda() const { return detail::stored<void*>(gpuvm_stream_raw, raw()); }
};

// Ids of records for a SlotCache, in memory of the GPU, and the stream of the call.
class slot_ids {
  public:
    template <class I>
    slot_ids(const I* address, std::uint64_t count) {
        static_assert(std::is_integral_v<I> && std::is_signed_v<I> && (sizeof(I) == 4 || sizeof(I) == 8),
                      "ids are int32_t or int64_t: -1 stands for none");
        ids_.address = reinterpret_cast<std::uintptr_t>(address);
        ids_.count = count;
        ids_.wide = sizeof(I) == 8;
    }
    // All of a buffer.
    template <class I>
    slot_ids(const Buffer<I>& ids)
        : slot_ids(reinterpret_cast<const I*>(static_cast<std::uintptr_t>(ids.pointer())), ids.size()) {}

    // On a stream of the cache's GPU, else on its default one.
    slot_ids& on(const Stream& stream) {
        ids_.stream = stream.raw();
        return *this;
    }
    // That of gpuvm.h.
    const gpuvm_slot_ids* raw() const { return &ids_; }

  private:
    gpuvm_slot_ids ids_ = sized<gpuvm_slot_ids>();
};

// Slots in GPU memory for records of regions that are larger than it. Calls return at once; wait() throws what they
// met.
class SlotCache : public detail::handle<gpuvm_slot_cache, gpuvm_slot_cache_free> {
  public:
    using handle::handle;

    // Has the records of ids in slots, and stores in which, from an address in memory of the GPU on; -1 for no record.
    void ensure(const slot_ids& ids, std::int32_t* slots) const {
        check(gpuvm_slot_cache_ensure(raw(), ids.raw(), reinterpret_cast<std::uintptr_t>(slots)));
    }
    // Fetches records ahead, as far as there are slots that are not needed.
    void prefetch(const slot_ids& ids) const { check(gpuvm_slot_cache_prefetch(raw(), ids.raw())); }
    // Keeps records where they are, by their slots as ensure() stored them, until release() is called with the same.
    void hold(const slot_ids& slots) const { check(gpuvm_slot_cache_hold(raw(), slots.raw(), false)); }
    void release(const slot_ids& slots) const { check(gpuvm_slot_cache_hold(raw(), slots.raw(), true)); }
    // Others have stored to the tables, past this library.
    void refresh() const { check(gpuvm_slot_cache_refresh(raw())); }
    void wait() const { check(gpuvm_slot_cache_wait(raw())); }
    gpuvm_slot_stats stats() const { return detail::filled<gpuvm_slot_stats>(gpuvm_slot_cache_get_stats, raw()); }
    // The slots of a table, a record behind the other.
    template <class T>
    Buffer<T> frames(std::uint64_t table = 0) const {
        gpuvm_buffer buffer{};
        check(gpuvm_slot_cache_frames(raw(), table, element_of<T>(), &buffer));
        return Buffer<T>(buffer);
    }
};

// A launch in flight. Its destructor does not wait for it, and an error that sync() was not asked for is lost.
class [[nodiscard]] Launch : public detail::handle<gpuvm_launch, gpuvm_launch_free> {
  public:
    using handle::handle;

    // Waits for its end, and throws its error.
    gpuvm_launch_report sync() const { return detail::filled<gpuvm_launch_report>(gpuvm_launch_sync, raw()); }
    // Waits for this many nanoseconds at most; whether it has ended. Throws its error.
    bool wait(std::uint64_t timeout_ns) const {
        const gpuvm_code code = gpuvm_launch_wait(raw(), timeout_ns, nullptr);
        if (code == GPUVM_CODE_STILL_RUNS) return false;
        check(code);
        return true;
    }
    bool done() const { return detail::stored<bool>(gpuvm_launch_is_done, raw()); }
    void abort() const { check(gpuvm_launch_abort(raw())); }
    void kill() const { check(gpuvm_launch_kill(raw())); }
};

// The shape of a launch: config(blocks, threads), with what gpuvm_launch_options has besides.
struct config : gpuvm_launch_options {
    config(std::uint32_t blocks, std::uint32_t threads) : gpuvm_launch_options(sized<gpuvm_launch_options>()) {
        grid[0] = blocks;
        block[0] = threads;
    }
    explicit config(const gpuvm_launch_options& options) : gpuvm_launch_options(options) {}

    // On a stream, which has to live until the launch function has returned.
    config& on(const Stream& on) {
        stream = on.raw();
        return *this;
    }
    // Its report does not say how long it took: for many small launches.
    config& without_time() {
        untimed = 1;
        return *this;
    }
    // Spans and cursors that one thread, or one warp, holds at once.
    config& spans(std::uint64_t of_thread, std::uint64_t of_warp = 0) {
        thread_spans = of_thread;
        warp_spans = of_warp;
        return *this;
    }
};

// A device address of memory that gpuvm does not know, for a T*.
template <class T>
struct address {
    std::uint64_t value;
};

namespace detail {

template <class T>
gpuvm_arg arg(const Region<T>& region) {
    return gpuvm_arg_region(region.raw());
}
template <class T>
gpuvm_arg arg(const Buffer<T>& buffer) {
    return gpuvm_arg_buffer(buffer.raw());
}
template <class T>
gpuvm_arg arg(const Elastic<T>& elastic) {
    return gpuvm_arg_elastic(elastic.raw());
}
template <class T>
gpuvm_arg arg(const Broadcast<T>& broadcast) {
    return gpuvm_arg_broadcast(broadcast.raw());
}
template <class T>
gpuvm_arg arg(const address<T>& at) {
    return gpuvm_arg_address(element_of<T>(), at.value);
}
// A number, or a structure that the kernel takes by value.
template <class T>
gpuvm_arg arg(const T& value) {
    static_assert(!std::is_pointer_v<T>,
                  "a pointer of the host is none of the GPU: give a Buffer, or gpuvm::host::address");
    return gpuvm_arg_structure(element_of<T>(), &value);
}

}  // namespace detail

// A kernel.
class Kernel : public detail::handle<gpuvm_kernel, gpuvm_kernel_free> {
  public:
    using handle::handle;

    // Enqueues a launch and returns. Numbers have exactly the parameters' types: 5u for an unsigned.
    template <class... Args>
    Launch launch(const config& config, const Args&... args) const {
        const gpuvm_arg all[sizeof...(Args) + 1] = {detail::arg(args)..., gpuvm_arg{}};
        gpuvm_launch launch{};
        check(gpuvm_kernel_launch(raw(), &config, all, sizeof...(Args), &launch));
        return Launch(launch);
    }
    std::uint32_t parameters() const { return detail::stored<std::uint32_t>(gpuvm_kernel_param_count, raw()); }
    // The C++ type of a parameter, counted from 0.
    std::string parameter(std::uint32_t param) const { return detail::text(gpuvm_kernel_param_type, raw(), param); }
};

// Compiled source text.
class Module : public detail::handle<gpuvm_module, gpuvm_module_free> {
  public:
    using handle::handle;

    // The kernel that was named so when the source was compiled.
    Kernel kernel(const std::string& name) const {
        gpuvm_kernel kernel{};
        check(gpuvm_module_kernel(raw(), name.c_str(), &kernel));
        return Kernel(kernel);
    }
};

namespace detail {

// Kernels of files that have PTX in them, which a virtual memory has loaded.
struct own_kernels {
    std::mutex mutex;
    std::map<std::pair<std::string, std::uint32_t>, Module> files;
    std::map<std::pair<const void*, std::uint32_t>, Kernel> kernels;
};

}  // namespace detail

// A setting of a virtual memory by its name, such as {"frame_memory", 1 << 20}, {"launch_deadline", 2.5} (seconds),
// {"transport", "soft"} or {"reliable_regions", true}. gpuvm_setting_name() lists all.
struct setting {
    std::string name, text;

    setting(std::string of, std::string value) : name(std::move(of)), text(std::move(value)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    setting(std::string of, T value) : name(std::move(of)) {
        if constexpr (std::is_same_v<T, bool>) {
            text = value ? "true" : "false";
        } else {
            text = std::to_string(value);
        }
    }
};

// A virtual memory.
class Vm : public detail::handle<gpuvm_vm, gpuvm_vm_free> {
  public:
    // With default settings but for these: Vm vm{{"frame_memory", "1MiB"}, {"sim_workers", 2}}.
    Vm() : Vm(std::vector<setting>{}) {}
    Vm(std::initializer_list<setting> settings) : Vm(std::vector<setting>(settings)) {}
    explicit Vm(const std::vector<setting>& settings) : handle(make(settings)) {}

    // Frees it and throws what its end has to say.
    void close() {
        own_.reset();
        handle::close();
    }

    // `length` elements whose bytes are zero.
    template <class T>
    Region<T> region(std::uint64_t length, const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(gpuvm_region_zeroed(raw(), &options, element_of<T>(), length, &region));
        return Region<T>(region);
    }
    // A copy of the elements.
    template <class T>
    Region<T> region(const std::vector<T>& values,
                     const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        const std::uint64_t bytes = values.size() * sizeof(T);
        check(gpuvm_region_copied(raw(), &options, element_of<T>(), values.data(), bytes, &region));
        return Region<T>(region);
    }
    // Memory of the program's, in place, which stays and is left alone until the region is closed.
    template <class T>
    Region<T> borrow(T* memory, std::uint64_t length,
                     const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(gpuvm_region_borrowed(raw(), &options, element_of<T>(), memory, length, &region));
        return Region<T>(region);
    }
    // A copy of a file.
    template <class T>
    Region<T> region_of_file(const std::string& path,
                             const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(gpuvm_region_from_file(raw(), &options, element_of<T>(), path.c_str(), &region));
        return Region<T>(region);
    }
    // A file, in place.
    template <class T>
    Region<T> map_file(const std::string& path,
                       const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(gpuvm_region_map_file(raw(), &options, element_of<T>(), path.c_str(), &region));
        return Region<T>(region);
    }
    // This many elements of a file from a byte on, in place.
    template <class T>
    Region<T> map_file_span(const std::string& path, std::uint64_t offset_bytes, std::uint64_t length,
                            const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(
            gpuvm_region_map_file_span(raw(), &options, element_of<T>(), path.c_str(), offset_bytes, length, &region));
        return Region<T>(region);
    }
    // What another process has shared by this name, at the same memory nodes.
    template <class T>
    Region<T> attach(const std::vector<unsigned char>& name,
                     const gpuvm_region_options& options = sized<gpuvm_region_options>()) const {
        gpuvm_region region{};
        check(gpuvm_region_attach(raw(), &options, element_of<T>(), name.data(), name.size(), &region));
        return Region<T>(region);
    }
    template <class T>
    Buffer<T> buffer(std::uint64_t length, std::uint32_t gpu = 0) const {
        gpuvm_buffer buffer{};
        check(gpuvm_buffer_new(raw(), gpu, element_of<T>(), length, &buffer));
        return Buffer<T>(buffer);
    }
    // A buffer that may be larger than GPU memory: chunks lie on the GPU or in host memory, at one address.
    template <class T>
    Buffer<T> tiered(std::uint64_t length, const gpuvm_tiered_options& options = sized<gpuvm_tiered_options>()) const {
        gpuvm_buffer buffer{};
        check(gpuvm_buffer_tiered(raw(), &options, element_of<T>(), length, &buffer));
        return Buffer<T>(buffer);
    }
    // Slots for records of `record_elements` elements of a region each. For several tables: gpuvm_slot_cache_new.
    template <class T>
    SlotCache slot_cache(const Region<T>& table, std::uint64_t record_elements, std::uint64_t slots,
                         const gpuvm_slot_options& options = sized<gpuvm_slot_options>()) const {
        const gpuvm_slot_table of{table.raw(), record_elements * sizeof(T)};
        gpuvm_slot_cache cache{};
        check(gpuvm_slot_cache_new(raw(), &options, &of, 1, slots, &cache));
        return SlotCache(cache);
    }
    template <class T>
    Elastic<T> elastic(std::uint64_t max, const gpuvm_elastic_options& options = sized<gpuvm_elastic_options>()) const {
        gpuvm_elastic elastic{};
        check(gpuvm_elastic_new(raw(), &options, element_of<T>(), max, &elastic));
        return Elastic<T>(elastic);
    }
    template <class T>
    Broadcast<T> broadcast(std::uint64_t length,
                           const gpuvm_broadcast_options& options = sized<gpuvm_broadcast_options>()) const {
        gpuvm_broadcast broadcast{};
        check(gpuvm_broadcast_zeroed(raw(), &options, element_of<T>(), length, &broadcast));
        return Broadcast<T>(broadcast);
    }
    template <class T>
    Broadcast<T> broadcast(const std::vector<T>& values,
                           const gpuvm_broadcast_options& options = sized<gpuvm_broadcast_options>()) const {
        gpuvm_broadcast broadcast{};
        const std::uint64_t bytes = values.size() * sizeof(T);
        check(gpuvm_broadcast_copied(raw(), &options, element_of<T>(), values.data(), bytes, &broadcast));
        return Broadcast<T>(broadcast);
    }

    // Compiles source text, which messages call `name`, for kernels of a GPU.
    Module compile(const std::string& name, const std::string& source, std::initializer_list<const char*> kernels,
                   std::uint32_t gpu = 0, const gpuvm_compile_options& options = sized<gpuvm_compile_options>()) const {
        gpuvm_module module{};
        check(gpuvm_module_compile(raw(), gpu, name.c_str(), source.c_str(), kernels.begin(), kernels.size(), &options,
                                   &module));
        return Module(module);
    }
    Module compile_file(const std::string& path, std::initializer_list<const char*> kernels, std::uint32_t gpu = 0,
                        const gpuvm_compile_options& options = sized<gpuvm_compile_options>()) const {
        gpuvm_module module{};
        check(gpuvm_module_compile_file(raw(), gpu, path.c_str(), kernels.begin(), kernels.size(), &options, &module));
        return Module(module);
    }
    // A cubin, a fat binary or PTX of nvcc's, with GPUVM_EXPORT(kernel) behind each of these kernels in its source.
    Module load(const std::string& name, const void* image, std::uint64_t bytes,
                std::initializer_list<const char*> kernels, std::uint32_t gpu = 0) const {
        gpuvm_module module{};
        check(gpuvm_module_load(raw(), gpu, name.c_str(), image, bytes, kernels.begin(), kernels.size(), &module));
        return Module(module);
    }
    Module load_file(const std::string& path, std::initializer_list<const char*> kernels, std::uint32_t gpu = 0) const {
        gpuvm_module module{};
        check(gpuvm_module_load_file(raw(), gpu, path.c_str(), kernels.begin(), kernels.size(), &module));
        return Module(module);
    }
    // PTX of kernels that know nothing of gpuvm, such as nvcc's: their accesses are rewritten to look pages up.
    // Regions, buffers and addresses are given for their pointers.
    Module load_ptx(const std::string& name, const std::string& ptx, std::uint32_t gpu = 0) const {
        gpuvm_module module{};
        check(gpuvm_module_load_ptx(raw(), gpu, name.c_str(), ptx.data(), ptx.size(), &module));
        return Module(module);
    }
    Module load_ptx_file(const std::string& path, std::uint32_t gpu = 0) const {
        gpuvm_module module{};
        check(gpuvm_module_load_ptx_file(raw(), gpu, path.c_str(), &module));
        return Module(module);
    }
    // The kernel that nvcc made of a function of the program, from the PTX in its file: `find()` says which file that
    // is, and what the kernel is called there. It is loaded by the first call, and stays as long as this object.
    template <class Find>
    const Kernel& own_kernel(const void* function, std::uint32_t gpu, Find&& find) const {
        if (!own_) throw error(GPUVM_CODE_INVALID_HANDLE, "the virtual memory was closed");
        const std::lock_guard<std::mutex> lock(own_->mutex);
        Kernel& kernel = own_->kernels[{function, gpu}];
        if (!kernel) {
            const std::pair<std::string, std::string> at = find();
            Module& file = own_->files[{at.first, gpu}];
            if (!file) file = load_ptx_file(at.first, gpu);
            kernel = file.kernel(at.second);
        }
        return kernel;
    }
    // One kernel of a source.
    Kernel kernel(const std::string& name, const std::string& source, const char* kernel, std::uint32_t gpu = 0) const {
        return compile(name, source, {kernel}, gpu).kernel(kernel);
    }
    Stream stream(std::uint32_t gpu = 0) const {
        gpuvm_stream stream{};
        check(gpuvm_stream_new(raw(), gpu, &stream));
        return Stream(stream);
    }

    // A stream that the program made, a cudaStream_t of the GPU's primary context, for launches in its order. It is
    // live until the handle is gone and they have ended.
    Stream borrow(void* cuda_stream, std::uint32_t gpu = 0) const {
        gpuvm_stream stream{};
        check(gpuvm_stream_borrow(raw(), gpu, cuda_stream, &stream));
        return Stream(stream);
    }
    std::uint32_t gpus() const { return detail::stored<std::uint32_t>(gpuvm_vm_gpu_count, raw()); }
    std::string gpu_name(std::uint32_t gpu = 0) const { return detail::text(gpuvm_vm_gpu_name, raw(), gpu); }
    gpuvm_gpu_info info(std::uint32_t gpu = 0) const {
        return detail::filled<gpuvm_gpu_info>(gpuvm_vm_gpu_info, raw(), gpu);
    }
    // What kernels of a GPU use of the device library: the GPUVM_FEATURES of a program that compiles them while it
    // runs.
    gpuvm_device_code device_code(std::uint32_t gpu = 0) const {
        return detail::stored<gpuvm_device_code>(gpuvm_vm_device_code, raw(), gpu);
    }
    // All counters by their names, which gpuvm_counter_name() lists: stats().at("pages_fetched").
    std::map<std::string, std::uint64_t> stats(std::uint32_t gpu = 0) const {
        std::vector<const char*> names;
        while (const char* name = gpuvm_counter_name(names.size(), nullptr)) names.push_back(name);
        std::vector<std::uint64_t> values(names.size());
        check(gpuvm_vm_counters(raw(), gpu, names.data(), names.size(), values.data()));
        std::map<std::string, std::uint64_t> all;
        for (std::size_t i = 0; i < names.size(); ++i) all.emplace(names[i], values[i]);
        return all;
    }
    // Nanoseconds from miss to publication that the share `quantile` (0 to 1) of the demand fetches did not exceed.
    std::uint64_t fault_ns(double quantile, std::uint32_t gpu = 0) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_fault_ns, raw(), gpu, quantile);
    }
    gpuvm_resized resize_frames(std::uint64_t bytes, std::uint64_t within_ns = 0, std::uint32_t gpu = 0) const {
        return detail::filled<gpuvm_resized>(gpuvm_vm_resize_frames, raw(), gpu, bytes, within_ns);
    }
    // When memory is short frames and elastic buffers of low priority give it first.
    void set_frame_priority(std::int32_t priority, std::uint32_t gpu = 0) const {
        check(gpuvm_vm_set_frame_priority(raw(), gpu, priority));
    }
    // Bytes that were brought to host memory.
    std::uint64_t pause(const std::string& tag) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_pause, raw(), tag.c_str());
    }
    std::uint64_t resume(const std::string& tag) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_resume, raw(), tag.c_str());
    }
    std::uint64_t trim(std::uint64_t most, std::uint32_t gpu = 0) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_trim, raw(), gpu, most);
    }
    // Bytes of memory of neighbour GPUs that they have back, and that are borrowed again.
    std::uint64_t give_back_borrowed(std::uint64_t most, std::uint32_t gpu = 0) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_give_back_borrowed, raw(), gpu, most);
    }
    std::uint64_t borrow_again(std::uint64_t most, std::uint32_t gpu = 0) const {
        return detail::stored<std::uint64_t>(gpuvm_vm_borrow_again, raw(), gpu, most);
    }
    // Takes back homes that were lost and are there again, and catches up with them.
    void catch_up() const { check(gpuvm_vm_catch_up(raw())); }
    // Calls `iteration()` once, and has GPUs subscribe to what they read of broadcast arrays meanwhile. What it throws
    // is thrown.
    template <class Iteration>
    void track(Iteration&& iteration) const {
        struct call {
            Iteration& iteration;
            std::exception_ptr thrown;
        } call{iteration, nullptr};
        const auto run = [](void* context) -> std::int32_t {
            auto& called = *static_cast<struct call*>(context);
            try {
                called.iteration();
                return 0;
            } catch (...) {
                called.thrown = std::current_exception();
                return 1;
            }
        };
        const gpuvm_code code = gpuvm_vm_track(raw(), run, &call);
        if (call.thrown) std::rethrow_exception(call.thrown);
        check(code);
    }

  private:
    static gpuvm_vm make(const std::vector<setting>& settings) {
        check_version();
        std::vector<gpuvm_setting> all;
        for (const setting& one : settings) all.push_back({one.name.c_str(), one.text.c_str(), 0});
        return detail::stored<gpuvm_vm>(gpuvm_vm_new, all.data(), all.size());
    }

    std::unique_ptr<detail::own_kernels> own_ = std::make_unique<detail::own_kernels>();
};

}  // namespace gpuvm::host
