// How a NIC's engine that is a kernel moves bytes: by a warp, between homes and frames that lanes use meanwhile.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {
namespace nic {

// Loads of 16 bytes that a lane has on their way: a page of 4 KiB by all lanes.
constexpr u32 kAtOnce = 8;

// What is left to be moved. All lanes of a warp have the same.
struct Move {
    u64 to;
    u64 from;
    u64 left;
    GPUVM_DEVICE void went(u64 bytes) {
        to += bytes;
        from += bytes;
        left -= bytes;
    }
};

// One T, by the first lane.
template <class T>
GPUVM_DEVICE void move_one(Move* move) {
    if (lane_id() == 0)
        st_relaxed_sys(reinterpret_cast<T*>(move->to), ld_relaxed_sys(reinterpret_cast<const T*>(move->from)));
    move->went(sizeof(T));
}
// As many as there are.
template <class T>
GPUVM_DEVICE void move_all(Move* move) {
    u64 count = move->left / sizeof(T);
    for (u64 n = lane_id(); n < count; n += 32)
        st_relaxed_sys(reinterpret_cast<T*>(move->to) + n, ld_relaxed_sys(reinterpret_cast<const T*>(move->from) + n));
    move->went(count * sizeof(T));
}
// As copy_by_warp (bring.cuh) does for memory that nothing else writes meanwhile: here both sides may be written, and
// no load may come from a cache.
GPUVM_DEVICE void move_chunks(Move* move) {
    const pair64* from = reinterpret_cast<const pair64*>(move->from);
    pair64* to = reinterpret_cast<pair64*>(move->to);
    u64 count = move->left / sizeof(pair64), n = lane_id();
    for (; n + 32 * (kAtOnce - 1) < count; n += 32 * kAtOnce) {
        pair64 held[kAtOnce];
#pragma unroll
        for (u32 k = 0; k < kAtOnce; ++k) held[k] = ld_relaxed_sys_v2(from + n + 32 * k);
#pragma unroll
        for (u32 k = 0; k < kAtOnce; ++k) st_relaxed_sys_v2(to + n + 32 * k, held[k]);
    }
    for (; n < count; n += 32) st_relaxed_sys_v2(to + n, ld_relaxed_sys_v2(from + n));
    move->went(count * sizeof(pair64));
}

// Moves bytes by a whole warp. An aligned granule of up to 8 bytes does not tear where both sides are aligned alike to
// it, and no access goes past the ends. Orders nothing: the completion does.
GPUVM_DEVICE void move_bytes(u64 to, u64 from, u64 bytes) {
    Move move{to, from, bytes};
    u32 differ = static_cast<u32>(to ^ from) | 16, alike = differ & (0 - differ);
    if (alike > 1 && move.to & 1 && move.left >= 1) move_one<u8>(&move);
    if (alike > 2 && move.to & 2 && move.left >= 2) move_one<u16>(&move);
    if (alike > 4 && move.to & 4 && move.left >= 4) move_one<u32>(&move);
    if (alike > 8 && move.to & 8 && move.left >= 8) move_one<u64>(&move);
    if (!(move.to & (alike - 1))) {
        if (alike == 16) move_chunks(&move);
        if (alike == 8) move_all<u64>(&move);
        if (alike == 4) move_all<u32>(&move);
        if (alike == 2) move_all<u16>(&move);
        if (alike == 1) move_all<u8>(&move);
    }
    // What is left is shorter than that, and begins at a multiple of each width that it is as long as.
    if (move.left >= 8) move_one<u64>(&move);
    if (move.left >= 4) move_one<u32>(&move);
    if (move.left >= 2) move_one<u16>(&move);
    if (move.left >= 1) move_one<u8>(&move);
    // All lanes' accesses come before any lane's later ones: of the next segment, or of the next request.
    __syncwarp();
}

}  // namespace nic
}  // namespace detail
}  // namespace gpuvm
