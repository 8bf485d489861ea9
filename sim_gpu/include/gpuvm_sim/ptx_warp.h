// What a warp does with matrices, and functions of the GPU's own library.
#pragma once

#include "gpuvm_sim/ptx_arith.h"

namespace gpuvm_ptx {

template <class T>
GPUVM_PTX T from_lane(T value, u32 lane) {
    return gpuvm_sim::shuffle(GPUVM_SIM_SHFL, ~0u, value, lane);
}

// Rows of 8 matrices' halves, whose addresses the lanes have: a word of each of N matrices, of a row or of a column.
template <u32 N, bool Columns>
static inline void ldmatrix(u32* words, u64 address) {
    const u32 lane = gpuvm_sim::lane_id(), row = lane / 4, pair = lane % 4;
    for (u32 n = 0; n < N; ++n) {
        if constexpr (Columns) {
            const u64 first = from_lane(address, 8 * n + 2 * pair), second = from_lane(address, 8 * n + 2 * pair + 1);
            words[n] = *reinterpret_cast<const u16*>(first + row * 2) |
                       static_cast<u32>(*reinterpret_cast<const u16*>(second + row * 2)) << 16;
        } else {
            words[n] = *reinterpret_cast<const u32*>(from_lane(address, 8 * n + row) + pair * 4);
        }
    }
}

template <class F>
GPUVM_PTX double dot(u32 a, u32 b) {
    const auto x = get<pair<F>>(a), y = get<pair<F>>(b);
    return wide(x.lo) * wide(y.lo) + wide(x.hi) * wide(y.hi);
}

// d = a * b + c for matrices of 16 x 16, 16 x 8 and 16 x 8 elements, as lanes hold their parts. Sums are rounded once.
template <class F>
static inline void mma(f32* d, const u32* a, const u32* b, const f32* c) {
    const u32 lane = gpuvm_sim::lane_id(), row = lane & ~3u, column = lane % 4 * 2;
    double sums[4] = {c[0], c[1], c[2], c[3]};
    for (u32 part = 0; part < 4; ++part) {
        u32 words[4];
        for (u32 n = 0; n < 4; ++n) words[n] = from_lane(a[n], row | part);
        for (u32 n = 0; n < 2; ++n) {
            const u32 from = (column + n) * 4 + part;
            const u32 low = from_lane(b[0], from), high = from_lane(b[1], from);
            sums[n] += dot<F>(words[0], low) + dot<F>(words[2], high);
            sums[2 + n] += dot<F>(words[1], low) + dot<F>(words[3], high);
        }
    }
    for (u32 n = 0; n < 4; ++n) d[n] = static_cast<f32>(sums[n]);
}

// `printf` with its arguments packed one behind the other.
static inline int print(const char* format, u64 arguments) {
    char text[1024];
    u32 length = 0;
    const auto next = [&arguments](u32 bytes) {
        const u64 at = (arguments + bytes - 1) / bytes * bytes;
        arguments = at + bytes;
        return at;
    };
    const auto room = [&length] { return sizeof(text) - length; };
    const auto more = [&length](int written) {
        length += written < 0 ? 0 : static_cast<u32>(written);
        if (length >= sizeof(text)) length = sizeof(text) - 1;
    };
    while (*format != 0) {
        if (*format != '%' || format[1] == '%') {
            format += *format == '%';
            if (length + 1 < sizeof(text)) text[length++] = *format;
            ++format;
            continue;
        }
        char one[32];
        u32 used = 0, wide = 4;
        do {
            if (*format == 'l' || *format == 'j' || *format == 'z' || *format == 't') wide = 8;
            if (*format == '*')
                used += static_cast<u32>(
                    snprintf(one + used, sizeof(one) - used, "%d", *reinterpret_cast<const int*>(next(4))));
            else
                one[used++] = *format;
            ++format;
        } while (*format != 0 && !strchr("diouxXcsfFeEgGaAp", *format) && used + 12 < sizeof(one));
        if (*format == 0) break;
        const char kind = *format++;
        one[used++] = kind;
        one[used] = 0;
        if (strchr("fFeEgGaA", kind))
            more(snprintf(text + length, room(), one, *reinterpret_cast<const double*>(next(8))));
        else if (kind == 's' || kind == 'p')
            more(snprintf(text + length, room(), one, *reinterpret_cast<const char* const*>(next(8))));
        else if (wide == 8)
            more(snprintf(text + length, room(), one, *reinterpret_cast<const long long*>(next(8))));
        else
            more(snprintf(text + length, room(), one, *reinterpret_cast<const int*>(next(4))));
    }
    gpuvm_sim_bound->print(gpuvm_sim::lane(), text, length);
    return static_cast<int>(length);
}

// Functions without a body that compilers call: of each the result's place first, then those of the parameters.
static inline bool library_vprintf(void* const* places) {
    const char* format = *static_cast<const char* const*>(places[1]);
    *static_cast<int*>(places[0]) = print(format, *static_cast<const u64*>(places[2]));
    return true;
}
static inline bool library_assertfail(void* const* places) {
    const auto text = [places](u32 n) { return *static_cast<const char* const*>(places[n]); };
    gpuvm_sim::assert_failed(text(0), text(1), *static_cast<const u32*>(places[2]));
    return true;
}

#if defined(GPUVM_HAS_CALLS)
// Those of `gpuvm/calls.cuh`, which comes before a text that calls them.
static inline bool library_call_first(void* const* places) {
    const auto number = [places](u32 n) { return *static_cast<const u64*>(places[n]); };
    *static_cast<u64*>(places[0]) =
        ::gpuvm_call_first(number(1), number(2), number(3), *static_cast<const u32*>(places[4]));
    return true;
}
static inline bool library_call_next(void* const* places) {
    *static_cast<u64*>(places[0]) = ::gpuvm_call_next(*static_cast<const u64*>(places[1]));
    return true;
}
#endif

}  // namespace gpuvm_ptx
