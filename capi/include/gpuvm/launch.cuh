// Launches of kernels that nvcc compiles into the program, over regions of gpuvm. docs/C.md is the page for
// users.
//
//   __global__ void scale(gpuvm::array<float> a, float by);
//   gpuvm::host::launch(vm, {64, 256}, scale, paged, 2.0f).sync();
//
// or of a kernel that knows nothing of gpuvm, for whose pointers regions are given: its PTX, which the program has in
// it unless it was left out, is rewritten to look pages up (docs/PTX.md)
//
//   __global__ void saxpy(const float* x, float* y, float a, int n);
//   gpuvm::host::launch(vm, {64, 256}, saxpy, x, y, 2.0f, n).sync();
//
// or, with the program's own <<<>>> and whatever else goes on the stream before and behind it:
//
//   gpuvm::host::config shape(64, 256);
//   gpuvm::host::launch_by(vm, shape.on(stream), "scale", [&](cudaStream_t stream, gpuvm::array<float> a) {
//       scale<<<64, 256, 0, stream>>>(a, 2.0f);
//   }, gpuvm::host::writes(paged)).sync();
//
// What the device library serves in a file of the program is chosen by GPUVM_FEATURES where that file is compiled:
// GPUVM_FEATURES=1 is for pages that lanes copy themselves alone, which saves registers. Without it all is served.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <elf.h>

#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <tuple>

#include <gpuvm/gpuvm.cuh>
#include <gpuvm/host.hpp>

namespace gpuvm::host {

// A GPU of a virtual memory, the first one unless it is said.
struct place {
    place(const Vm& vm, std::uint32_t gpu = 0) : vm(vm), gpu(gpu) {}
    const Vm& vm;
    std::uint32_t gpu;
};

// What the file that calls it was compiled with. Features are in the names of this and of the launches below, so that
// the linker takes none of them for that of another file.
template <unsigned Features = gpuvm::detail::kFeatures>
gpuvm_device_code device_code() {
    return {layout::LAYOUT_VERSION, Features};
}

// Throws unless a call of CUDA's runtime went well.
inline void check_cuda(const char* what, cudaError_t error) {
    if (error == cudaSuccess) return;
    throw gpuvm::host::error(GPUVM_CODE_GPU, std::string(what) + ": " + cudaGetErrorString(error));
}

namespace detail {

// Memory of a launch, for which the kernel has a View.
template <class View>
struct use {
    gpuvm_use raw;
};
template <class T, class View>
use<View> use_of(const gpuvm_arg& arg) {
    return {std::is_const_v<T> ? gpuvm_reads(arg) : gpuvm_writes(arg)};
}

// A parameter of a kernel, and the memory that it takes.
template <class Param>
struct param {
    // A number, a structure or a pointer that is the kernel's as it is.
    template <class Arg>
    static auto of(const Arg& arg) {
        return static_cast<Param>(arg);
    }
};
template <class T>
struct param<gpuvm::array<T>> {
    static auto of(const Region<std::remove_const_t<T>>& region) {
        return use_of<T, gpuvm::array<T>>(gpuvm_arg_region(region.raw()));
    }
};
template <class T>
struct param<gpuvm::broadcast<T>> {
    static auto of(const Broadcast<std::remove_const_t<T>>& array) {
        return use_of<T, gpuvm::broadcast<T>>(gpuvm_arg_broadcast(array.raw()));
    }
};
template <class T>
struct param<T*> {
    static auto of(const Buffer<std::remove_const_t<T>>& buffer) {
        return use_of<T, T*>(gpuvm_arg_buffer(buffer.raw()));
    }
    static auto of(const Elastic<std::remove_const_t<T>>& elastic) {
        return use_of<T, T*>(gpuvm_arg_elastic(elastic.raw()));
    }
    // Memory that gpuvm does not know.
    static T* of(T* pointer) { return pointer; }
};

// What the kernel has in place of an argument; `views` goes on behind those of memory.
template <class View>
View view_of(const use<View>&, const void* const*& views) {
    static_assert(std::is_trivially_copyable_v<View>, "a kernel's argument is copied byte by byte");
    View view;
    std::memcpy(static_cast<void*>(&view), *views++, sizeof view);
    return view;
}
template <class T>
T view_of(const T& value, const void* const*&) {
    return value;
}

template <class View>
void add_use(const use<View>& memory, gpuvm_use*& uses) {
    *uses++ = memory.raw;
}
template <class T>
void add_use(const T&, gpuvm_use*&) {}

// What a launch's callback has.
template <class Enqueue, class... Args>
struct enqueuing {
    Enqueue& enqueue;
    const std::tuple<Args...>& args;
    std::exception_ptr thrown;

    static int call(void* context, void* stream, const void* const* views) noexcept {
        auto& self = *static_cast<enqueuing*>(context);
        try {
            return self.run(static_cast<cudaStream_t>(stream), views, std::index_sequence_for<Args...>());
        } catch (...) {
            self.thrown = std::current_exception();
            return -1;
        }
    }

  private:
    template <std::size_t... N>
    int run(cudaStream_t stream, const void* const* views, std::index_sequence<N...>) {
        // In this order: each takes its view.
        auto given = std::tuple{view_of(std::get<N>(args), views)...};
        enqueue(stream, std::get<N>(given)...);
        return 0;
    }
};

// Whether paged memory was given for a plain pointer: then the kernel's PTX is loaded, and looks pages up.
template <class Param, class Arg>
struct looked_up : std::false_type {};
template <class T, class U>
struct looked_up<T*, Region<U>> : std::true_type {
    static_assert(std::is_void_v<T> || std::is_same_v<std::remove_const_t<T>, U>,
                  "the region's elements have another type than what the pointer points to");
};

// A parameter of a kernel that looks pages up: an argument of gpuvm.h for a pointer, and a number as the kernel has it.
template <class Param>
struct plain {
    template <class Arg>
    static Param of(const Arg& arg) {
        return static_cast<Param>(arg);
    }
};
template <class T>
struct plain<T*> {
    template <class U>
    static gpuvm_arg of(const Region<U>& region) {
        return gpuvm_arg_region(region.raw());
    }
    static gpuvm_arg of(const Buffer<std::remove_const_t<T>>& buffer) { return gpuvm_arg_buffer(buffer.raw()); }
    static gpuvm_arg of(const Elastic<std::remove_const_t<T>>& elastic) { return gpuvm_arg_elastic(elastic.raw()); }
    // Memory that gpuvm does not know.
    static gpuvm_arg of(T* pointer) {
        return gpuvm_arg_address(gpuvm_number(GPUVM_TYPE_U8), reinterpret_cast<std::uintptr_t>(pointer));
    }
    static gpuvm_arg of(std::nullptr_t) { return of(static_cast<T*>(nullptr)); }
};
inline gpuvm_arg arg_of(const gpuvm_arg& arg) { return arg; }
template <class T>
gpuvm_arg arg_of(const T& value) {
    return arg(value);
}

// nvcc's name for what the host's compiler calls so: without the L before names that only one file has.
inline std::string device_name(const std::string& symbol) {
    std::size_t at = symbol.rfind("_Z", 0) == 0 ? 2 : symbol.size();
    const bool nested = at < symbol.size() && symbol[at] == 'N';
    std::string name = symbol.substr(0, at += nested);
    do {
        at += at < symbol.size() && symbol[at] == 'L';
        std::size_t length = 0, digits = at;
        for (; digits < symbol.size() && symbol[digits] >= '0' && symbol[digits] <= '9'; ++digits)
            length = 10 * length + static_cast<std::size_t>(symbol[digits] - '0');
        if (digits == at || length > symbol.size() - digits) break;
        name.append(symbol, at, digits + length - at);
        at = digits + length;
    } while (nested);
    return name.append(symbol, at, std::string::npos);
}

// A kernel's symbol in its file, from the table that is there unless the file was stripped; else nothing.
inline std::string symbol_of(const std::string& path, const Dl_info& at, const void* function) {
    std::ifstream file(path, std::ios::binary);
    const auto read = [&](std::uint64_t place, auto& out) {
        file.seekg(static_cast<std::streamoff>(place));
        return static_cast<bool>(file.read(reinterpret_cast<char*>(&out), sizeof out));
    };
    Elf64_Ehdr head{};
    if (!read(0, head)) return "";
    const auto address = reinterpret_cast<std::uintptr_t>(function);
    const auto wanted = head.e_type == ET_DYN ? address - reinterpret_cast<std::uintptr_t>(at.dli_fbase) : address;
    const auto section = [&](std::uint32_t number, Elf64_Shdr& out) {
        return read(head.e_shoff + std::uint64_t(number) * head.e_shentsize, out);
    };
    Elf64_Shdr symbols{}, names{};
    for (std::uint32_t number = 0; number < head.e_shnum && section(number, symbols); ++number) {
        if (symbols.sh_type != SHT_SYMTAB || !section(symbols.sh_link, names)) continue;
        Elf64_Sym symbol{};
        const auto end = symbols.sh_offset + symbols.sh_size;
        for (auto place = symbols.sh_offset; place < end && read(place, symbol); place += sizeof symbol) {
            if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value != wanted) continue;
            std::string name;
            file.seekg(static_cast<std::streamoff>(names.sh_offset + symbol.st_name));
            std::getline(file, name, '\0');
            return device_name(name);
        }
    }
    return "";
}

// The file that has the kernel, and its symbol in the PTX there.
inline std::pair<std::string, std::string> place_of(const void* function) {
    std::string path = "/proc/self/exe";
    Dl_info at{};
    if (dladdr(function, &at) && at.dli_fname && std::strchr(at.dli_fname, '/')) {
        // The program itself is called as its caller has called it, wherever it works by now.
        std::error_code failed;
        if (!std::filesystem::equivalent(at.dli_fname, path, failed) && !failed) path = at.dli_fname;
    }
    const char* name = nullptr;
    const cudaError_t outcome = cudaFuncGetName(&name, function);
    if (outcome == cudaSuccess) return {path, name};
    // CUDA does not know without a GPU, which the simulated one does not need.
    (void)cudaGetLastError();
    const std::string symbol = symbol_of(path, at, function);
    if (symbol.empty()) check_cuda("the kernel's name", outcome);
    return {path, symbol};
}

template <class... Given>
Launch launch_looked_up(const place& at, const config& shape, const void* function, const Given&... given) {
    const gpuvm_arg all[] = {arg_of(given)...};
    gpuvm_launch launch{};
    const Kernel& kernel = at.vm.own_kernel(function, at.gpu, [&] { return place_of(function); });
    check(gpuvm_kernel_launch(kernel.raw(), &shape, all, sizeof...(Given), &launch));
    return Launch(launch);
}

template <unsigned Features, class Enqueue, class... Args>
Launch launch_by(const place& at, const config& shape, const char* name, Enqueue& enqueue,
                 const std::tuple<Args...>& args) {
    gpuvm_use uses[sizeof...(Args) + 1];
    gpuvm_use* end = uses;
    std::apply([&](const Args&... all) { (add_use(all, end), ...); }, args);
    enqueuing<Enqueue, Args...> context{enqueue, args, nullptr};
    const gpuvm_device_code code = device_code<Features>();
    gpuvm_launch launch{};
    const gpuvm_code outcome =
        gpuvm_launch_by(at.vm.raw(), at.gpu, name, &code, &shape, uses, static_cast<std::uint64_t>(end - uses),
                        decltype(context)::call, &context, &launch);
    if (context.thrown) std::rethrow_exception(context.thrown);
    check(outcome);
    return Launch(launch);
}

}  // namespace detail

// Memory that a launch of launch_by only reads: its callback gets a gpuvm::array<const T>, or a const T*.
template <class T>
auto reads(const Region<T>& region) {
    return detail::param<gpuvm::array<const T>>::of(region);
}
template <class T>
auto reads(const Broadcast<T>& array) {
    return detail::param<gpuvm::broadcast<const T>>::of(array);
}
template <class T>
auto reads(const Buffer<T>& buffer) {
    return detail::param<const T*>::of(buffer);
}
template <class T>
auto reads(const Elastic<T>& elastic) {
    return detail::param<const T*>::of(elastic);
}
// Memory that it may write: a gpuvm::array<T>, or a T*.
template <class T>
auto writes(const Region<T>& region) {
    return detail::param<gpuvm::array<T>>::of(region);
}
template <class T>
auto writes(const Broadcast<T>& array) {
    return detail::param<gpuvm::broadcast<T>>::of(array);
}
template <class T>
auto writes(const Buffer<T>& buffer) {
    return detail::param<T*>::of(buffer);
}
template <class T>
auto writes(const Elastic<T>& elastic) {
    return detail::param<T*>::of(elastic);
}

// A launch of what `enqueue(stream, what the kernel has of each of `memory`...)` puts on the stream: kernels that use
// those, and whatever else. It calls nothing of gpuvm. What it throws is thrown on, after whatever it had enqueued has
// ended; so is an error that cudaGetLastError() has then. `shape` is that of the kernels, and `name` for messages.
template <unsigned Features = gpuvm::detail::kFeatures, class Enqueue, class... Memory>
Launch launch_by(const place& at, const config& shape, const char* name, Enqueue&& enqueue, const Memory&... memory) {
    auto and_look = [&](cudaStream_t stream, const auto&... views) {
        enqueue(stream, views...);
        check_cuda(name, cudaGetLastError());
    };
    return detail::launch_by<Features>(at, shape, name, and_look, std::tuple<Memory...>(memory...));
}

// A launch of a kernel that is compiled into the program. Regions are given for a gpuvm::array, Broadcasts for a
// gpuvm::broadcast, Buffers and Elastics for a pointer; all else is the kernel's as it is. Where a Region is given for
// a pointer, the kernel is one that looks pages up.
template <unsigned Features = gpuvm::detail::kFeatures, class... Params, class... Args>
Launch launch(const place& at, const config& shape, void (*kernel)(Params...), const Args&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each parameter of the kernel");
    const void* function = reinterpret_cast<const void*>(kernel);
    if constexpr ((detail::looked_up<Params, Args>::value || ...)) {
        return detail::launch_looked_up(at, shape, function, detail::plain<Params>::of(args)...);
    } else {
        const char* name = nullptr;
        check_cuda("the kernel", cudaFuncGetName(&name, function));
        auto enqueue = [&](cudaStream_t stream, auto... views) {
            // Exactly the parameters: `param::of` has made them so.
            void* all[sizeof...(Params) + 1] = {&views...};
            auto side = [](std::uint32_t n) { return n ? n : 1; };
            const dim3 grid(shape.grid[0], side(shape.grid[1]), side(shape.grid[2]));
            const dim3 block(shape.block[0], side(shape.block[1]), side(shape.block[2]));
            check_cuda(name, cudaLaunchKernel(function, grid, block, all, shape.dynamic_shared_bytes, stream));
        };
        return detail::launch_by<Features>(at, shape, name, enqueue, std::tuple{detail::param<Params>::of(args)...});
    }
}

}  // namespace gpuvm::host
