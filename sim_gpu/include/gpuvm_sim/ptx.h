// What translated PTX calls: memory, barriers, collectives and registers of the simulated GPU.
#pragma once

#include "gpuvm_sim/ptx_warp.h"

namespace gpuvm_ptx {

// Where the block's shared memory is: that of the module's variables, then the launch's own. PTX sees offsets.
struct shared_memory {
    u64 variables, variable_bytes, dynamic, end;

    u64 at(u64 address, u32 bytes) const {
        const u32 offset = static_cast<u32>(address);
        if (static_cast<u64>(offset) + bytes > end) __trap();
        return (offset < variable_bytes ? variables : dynamic) + offset;
    }
    bool has(u64 address) const {
        return address - variables < variable_bytes || address - (dynamic + variable_bytes) < end - variable_bytes;
    }
    u64 generic(u64 address) const {
        const u32 offset = static_cast<u32>(address);
        return (offset < variable_bytes ? variables : dynamic) + offset;
    }
    u64 offset(u64 address) const {
        return address - variables < variable_bytes ? address - variables : address - dynamic;
    }
};
GPUVM_PTX shared_memory shared_of_block(const void* variables, u64 variable_bytes) {
    const auto* block = gpuvm_sim::lane()->block;
    return {reinterpret_cast<u64>(variables), variable_bytes, reinterpret_cast<u64>(block->shared) - variable_bytes,
            variable_bytes + block->dynamic_bytes};
}

// Whether an address is on this lane's stack, where local memory is.
GPUVM_PTX bool is_local(u64 address) {
    const u64 here = reinterpret_cast<u64>(gpuvm_sim::lane());
    return address / GPUVM_SIM_STACK_BYTES == here / GPUVM_SIM_STACK_BYTES;
}

template <class T>
GPUVM_PTX T ld(u64 address) {
    return *reinterpret_cast<const T*>(address);
}
template <class T>
GPUVM_PTX void st(u64 address, T value) {
    *reinterpret_cast<T*>(address) = value;
}
template <class T>
GPUVM_PTX T ld_volatile(u64 address) {
    return *reinterpret_cast<const volatile T*>(address);
}
template <class T>
GPUVM_PTX void st_volatile(u64 address, T value) {
    *reinterpret_cast<volatile T*>(address) = value;
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T ld_strong(u64 address) {
    return gpuvm_sim::load<Order, Scope>(reinterpret_cast<const T*>(address));
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX void st_strong(u64 address, T value) {
    gpuvm_sim::store<Order, Scope>(reinterpret_cast<T*>(address), value);
}

// Atomic operations; each returns what was there.
template <unsigned Operation, unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_fetch(u64 address, T value) {
    return gpuvm_sim::fetch<Operation, Order, Scope>(reinterpret_cast<T*>(address), value);
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_cas(u64 address, T expected, T value) {
    return gpuvm_sim::compare<Order, Scope>(reinterpret_cast<T*>(address), expected, value);
}
template <unsigned Order, unsigned Scope, class T, class Next>
GPUVM_PTX T atom_update(u64 address, Next next) {
    using B = typename bits<T>::type;
    auto* p = reinterpret_cast<B*>(address);
    B seen = gpuvm_sim::load<GPUVM_SIM_RELAXED, Scope>(p);
    for (;;) {
        const T old = get<T>(seen);
        const B found = gpuvm_sim::compare<Order, Scope>(p, seen, put<B>(next(old)));
        if (found == seen) return old;
        seen = found;
    }
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_add(u64 address, T value) {
    if constexpr (is_float<T> || is_pair<T>)
        return atom_update<Order, Scope, T>(address, [value](T old) { return add<RN>(old, value); });
    else
        return atom_fetch<GPUVM_SIM_ADD, Order, Scope, T>(address, value);
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_min(u64 address, T value) {
    return atom_update<Order, Scope, T>(address, [value](T old) { return min<0>(old, value); });
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_max(u64 address, T value) {
    return atom_update<Order, Scope, T>(address, [value](T old) { return max<0>(old, value); });
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_inc(u64 address, T value) {
    return atom_update<Order, Scope, T>(address, [value](T old) { return old >= value ? T{0} : old + 1; });
}
template <unsigned Order, unsigned Scope, class T>
GPUVM_PTX T atom_dec(u64 address, T value) {
    return atom_update<Order, Scope, T>(address, [value](T old) { return old == 0 || old > value ? value : old - 1; });
}

// A copy to shared memory. It is done at once, which `cp.async` may be; the rest of the target becomes zeros.
template <u32 Bytes>
GPUVM_PTX void copy(u64 to, u64 from, u32 bytes) {
    for (u32 n = 0; n < Bytes; n += 4) {
        u32 word = 0;
        if (n + 4 <= bytes) {
            word = ld<u32>(from + n);
        } else {
            for (u32 k = 0; n + k < bytes; ++k) word |= static_cast<u32>(ld<u8>(from + n + k)) << (8 * k);
        }
        st<u32>(to + n, word);
    }
}

// Registers that are read alone.
GPUVM_PTX u32 thread_in_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
GPUVM_PTX u32 warps_of_block() { return (blockDim.x * blockDim.y * blockDim.z + 31) / 32; }

// Lanes of a warp exchange a word; whether the other lane was in range.
enum shuffle { UP, DOWN, BFLY, IDX };
template <shuffle Kind>
GPUVM_PTX u32 shfl(u32 value, u32 by, u32 bounds, u32 members, bool* in_range) {
    const u32 me = gpuvm_sim::lane_id(), segment = bounds >> 8 & 31, clamp = bounds & 31, b = by & 31;
    const u32 first = me & segment, last = first | (clamp & ~segment);
    const u32 from = Kind == UP ? me - b : Kind == DOWN ? me + b : Kind == BFLY ? me ^ b : first | (b & ~segment);
    *in_range = Kind == UP ? static_cast<s32>(from) >= static_cast<s32>(last) : from <= last;
    constexpr u32 kinds[] = {GPUVM_SIM_SHFL_UP, GPUVM_SIM_SHFL_DOWN, GPUVM_SIM_SHFL_XOR, GPUVM_SIM_SHFL};
    return gpuvm_sim::shuffle(kinds[Kind], members, value, *in_range ? from : me);
}
GPUVM_PTX bool vote_uni(u32 members, bool p) {
    const u32 votes = __ballot_sync(members, p) & members, all = __ballot_sync(members, true) & members;
    return votes == 0 || votes == all;
}
template <class T>
GPUVM_PTX u32 match_all(u32 members, T value, bool* all) {
    int same;
    const u32 lanes = __match_all_sync(members, value, &same);
    *all = same != 0;
    return lanes;
}
GPUVM_PTX u32 elect(u32 members, bool* elected) {
    const u32 here = __ballot_sync(members, true) & members;
    const u32 first = static_cast<u32>(__builtin_ctz(here));
    *elected = gpuvm_sim::lane_id() == first;
    return first;
}

}  // namespace gpuvm_ptx
