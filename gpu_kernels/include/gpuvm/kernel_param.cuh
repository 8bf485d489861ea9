// Describes kernel parameters to the host: a table of plain constants for each kernel, filled by the compiler.
// No standard headers: NVRTC reads this too.
#pragma once

// What a parameter of type T is. A type that stands for paged data specialises it with
//   static constexpr unsigned kind = 2 (paged array), 3 (read-only paged array), 4 (broadcast array) or 5 (read-only);
//   using element = the type it holds;
// `element` may be left out when `static constexpr unsigned element_bytes` is there.
template <class T>
struct gpuvm_kernel_param {
    static constexpr unsigned kind = 0;
};

template <class T>
struct gpuvm_kernel_param<T*> {
    static constexpr unsigned kind = 1;
    using element = T;
};

// One row of a kernel's table; mirrored by the host, which reads it from the compiled module.
struct gpuvm_param_row {
    unsigned bytes;
    unsigned align;
    unsigned kind;           // gpuvm_kernel_param<T>::kind
    unsigned scalar;         // class of T: 0 other, 1 signed, 2 unsigned, 3 floating point
    unsigned element_bytes;  // 0: no element, or void
    unsigned element_align;  // 0: unknown
    unsigned element_scalar;
    char type_name[196];  // zero-terminated, cut when longer
};

template <unsigned Count>
struct gpuvm_param_table {
    unsigned count;
    unsigned row_bytes;
    gpuvm_param_row rows[Count == 0 ? 1 : Count];
};

namespace gpuvm_detail {

template <class T>
struct plain {
    using type = T;
};
template <class T>
struct plain<const T> {
    using type = T;
};
template <class T>
struct plain<volatile T> {
    using type = T;
};
template <class T>
struct plain<const volatile T> {
    using type = T;
};

template <class...>
using void_for = void;

template <class A, class B>
struct same {
    static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
    static constexpr bool value = true;
};

// 0 other, 1 signed, 2 unsigned, 3 floating point.
template <class T>
__host__ __device__ constexpr unsigned scalar_class() {
    using P = typename plain<T>::type;
    if (same<P, float>::value || same<P, double>::value) return 3;
    if (same<P, signed char>::value || same<P, short>::value || same<P, int>::value || same<P, long>::value ||
        same<P, long long>::value)
        return 1;
    if (same<P, bool>::value || same<P, unsigned char>::value || same<P, unsigned short>::value ||
        same<P, unsigned>::value || same<P, unsigned long>::value || same<P, unsigned long long>::value)
        return 2;
    if (same<P, char>::value) return static_cast<char>(-1) < 0 ? 1 : 2;
    return 0;
}

// The element's size, alignment and class, from `element`, else `element_bytes`, else nothing.
template <class Param, class = void>
struct element_bytes_of {
    static constexpr unsigned bytes = 0;
};
template <class Param>
struct element_bytes_of<Param, void_for<decltype(Param::element_bytes)>> {
    static constexpr unsigned bytes = Param::element_bytes;
};

template <class E>
struct element_facts {
    static constexpr unsigned bytes = sizeof(E);
    static constexpr unsigned align = alignof(E);
    static constexpr unsigned scalar = scalar_class<E>();
};
template <>
struct element_facts<void> {
    static constexpr unsigned bytes = 0, align = 0, scalar = 0;
};
template <class R, class... A>
struct element_facts<R(A...)> {
    static constexpr unsigned bytes = 0, align = 0, scalar = 0;
};

template <class Param, class = void>
struct element_of {
    static constexpr unsigned bytes = element_bytes_of<Param>::bytes, align = 0, scalar = 0;
};
template <class Param>
struct element_of<Param, void_for<typename Param::element>>
    : element_facts<typename plain<typename Param::element>::type> {};

// The compiler's spelling of T, cut out of the spelling of this function.
template <class T>
__host__ __device__ constexpr void spell(char* out, unsigned room) {
#ifdef _MSC_VER
    const char* text = __FUNCSIG__;
#else
    const char* text = __PRETTY_FUNCTION__;
#endif
    unsigned begin = 0, end = 0, last = 0;
    for (unsigned i = 0; text[i]; ++i) {
        if (begin == 0 && text[i] == 'T' && text[i + 1] == ' ' && text[i + 2] == '=' && text[i + 3] == ' ')
            begin = i + 4;
        if (text[i] == ']') last = i;
    }
    end = last;
    unsigned n = 0;
    for (unsigned i = begin; i < end && n + 1 < room; ++i) out[n++] = text[i];
    out[n] = 0;
}

template <class T>
__host__ __device__ constexpr gpuvm_param_row row() {
    using Param = gpuvm_kernel_param<typename plain<T>::type>;
    gpuvm_param_row r{};
    r.bytes = sizeof(T);
    r.align = alignof(T);
    r.kind = Param::kind;
    r.scalar = scalar_class<T>();
    r.element_bytes = element_of<Param>::bytes;
    r.element_align = element_of<Param>::align;
    r.element_scalar = element_of<Param>::scalar;
    spell<T>(r.type_name, sizeof(r.type_name));
    return r;
}

template <class F>
struct signature;
template <class... A>
struct signature<void (*)(A...)> {
    static constexpr unsigned count = sizeof...(A);
    using table = gpuvm_param_table<count>;
    static __host__ __device__ constexpr table make() {
        table t{};
        t.count = count;
        t.row_bytes = sizeof(gpuvm_param_row);
        unsigned i = 0;
        ((t.rows[i++] = row<A>()), ...);
        (void)i;
        return t;
    }
};

}  // namespace gpuvm_detail

// GPUVM_KERNEL_TABLE(n, kernel): the table of the n-th kernel as the module symbol gpuvm_kernel_table_n.
#ifdef GPUVM_SIM
#define GPUVM_TABLE_STORAGE __attribute__((visibility("default"), used))
#else
#define GPUVM_TABLE_STORAGE __device__
#endif
#define GPUVM_KERNEL_TABLE(n, ...)                                                                               \
    extern "C" {                                                                                                 \
    GPUVM_TABLE_STORAGE typename gpuvm_detail::signature<decltype(&__VA_ARGS__)>::table gpuvm_kernel_table_##n = \
        gpuvm_detail::signature<decltype(&__VA_ARGS__)>::make();                                                 \
    }
