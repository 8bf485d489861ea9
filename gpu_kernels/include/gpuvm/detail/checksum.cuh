// CRC-32C (Castagnoli) of pages, without tables: lanes share a page, each takes a part, and the parts are put together
// by multiplications modulo the polynomial.
#pragma once

#include "platform.cuh"

namespace gpuvm {
namespace detail {

// The polynomial, lowest power in the highest bit, as are all remainders here.
constexpr u32 kCrcPolynomial = 0x82f63b78;
constexpr u32 kCrcOne = 0x80000000;

// A remainder times x to the power of `bits`.
GPUVM_DEVICE constexpr u32 crc_shifted(u32 value, u32 bits) {
    for (u32 n = 0; n < bits; ++n) value = (value >> 1) ^ (kCrcPolynomial & (0u - (value & 1)));
    return value;
}

// A remainder times x to the power of 32, as a sum of constants, one for each bit of the value: no step waits for
// another.
template <u32 Bit = 0>
GPUVM_DEVICE u32 crc_word(u32 value) {
    constexpr u32 column = crc_shifted(1u << Bit, 32);
    u32 sum = column & (0u - (value >> Bit & 1));
    if constexpr (Bit < 31) sum ^= crc_word<Bit + 1>(value);
    return sum;
}

// Product of two remainders.
GPUVM_NOINLINE u32 crc_product(u32 a, u32 b) {
    u32 sum = 0;
    for (u32 n = 0; n < 32; ++n) {
        sum ^= b & (0u - (a >> (31 - n) & 1));
        b = crc_shifted(b, 1);
    }
    return sum;
}

// Runs the bytes [at, end) of a span into `crc`, which starts as all ones at the first byte of a message.
GPUVM_NOINLINE u32 crc_run(u32 crc, u64 from, u32 at, u32 end) {
    if (!((from | at) & 15)) {
        for (; at + 16 <= end; at += 16) {
            // Strong: past L1, which may hold an earlier page of the frame.
            pair64 piece = ld_relaxed_gpu_v2(reinterpret_cast<const pair64*>(from + at));
            crc = crc_word(crc ^ static_cast<u32>(piece.lo));
            crc = crc_word(crc ^ static_cast<u32>(piece.lo >> 32));
            crc = crc_word(crc ^ static_cast<u32>(piece.hi));
            crc = crc_word(crc ^ static_cast<u32>(piece.hi >> 32));
        }
    }
    for (; at < end; ++at) crc = crc_shifted(crc ^ ld_relaxed_gpu(reinterpret_cast<const u8*>(from + at)), 8);
    return crc;
}

// A checksum as the table keeps it: 0 says that it is not known.
GPUVM_DEVICE u32 kept(u32 crc) { return ~crc != 0 ? ~crc : 1; }

// The lane with this many lanes of the group below it.
GPUVM_DEVICE u32 lane_of_rank(u32 group, u32 rank) {
    if (group == ~0u) return rank;
    for (u32 n = 0; n < rank; ++n) group &= group - 1;
    return __ffs(group) - 1;
}

// Checksum of a page of `bytes` bytes, by all lanes of the group together; each gets it.
GPUVM_NOINLINE u32 checksum_together(u64 from, u32 bytes, u32 group) {
    u32 rank = __popc(group & ((1u << lane_id()) - 1));
    // As many lanes as there is a power of two of, with parts of a power of two of bytes that end where the page does:
    // the first lanes may have less than a part, or nothing, and leading zeros leave a remainder as it is.
    u32 lanes = 1;
    while (lanes * 2 <= __popc(group)) lanes *= 2;
    u32 part = 16;
    u32 power = crc_shifted(kCrcOne, 128);  // x to the bits of a part
    while (part * lanes < bytes) {
        part *= 2;
        power = crc_product(power, power);
    }
    u32 crc = 0;
    if (rank < lanes) {
        i64 end = static_cast<i64>(bytes) - static_cast<i64>(lanes - 1 - rank) * part;
        i64 start = end - part;
        if (start < 0) start = 0;
        if (end > 0) crc = crc_run(start == 0 ? ~0u : 0, from, static_cast<u32>(start), static_cast<u32>(end));
    }
    for (u32 step = 1; step < lanes; step *= 2) {
        u32 right = __shfl_sync(group, crc, lane_of_rank(group, rank + step < lanes ? rank + step : rank));
        if (rank % (2 * step) == 0) crc = crc_product(crc, power) ^ right;
        power = crc_product(power, power);
    }
    return kept(__shfl_sync(group, crc, __ffs(group) - 1));
}

// The checksum of a page, by one lane.
GPUVM_DEVICE u32 checksum_alone(u64 from, u32 bytes) { return kept(crc_run(~0u, from, 0, bytes)); }

}  // namespace detail
}  // namespace gpuvm
