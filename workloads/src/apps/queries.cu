// Five queries over columns of trips: counts and sums of the rows whose cells are in range. A warp scans a piece of one
// column, whose pages it holds; the other columns are read for the rows that qualify alone, as `a[i]`, so that a page
// with few of them can stay where it is.
//
// `totals` has three numbers of each group: its rows, and two sums of cents. Sums of integers come out alike in any
// order.
#include "access.cuh"

constexpr u64 kPiece = 4096;
// Cells that a lane loads before it looks at them.
constexpr u32 kCells = 8;

// A number that orders as the cell does: whole numbers without a sign are as they are.
constexpr u32 kSigned = 1, kFloat = 2;
__device__ inline u32 key(u32 bits, u32 cell) {
    constexpr u32 sign = 1u << 31;
    if (cell == kFloat) return bits ^ (static_cast<u32>(static_cast<i32>(bits) >> 31) | sign);
    return cell == kSigned ? bits ^ sign : bits;
}

// How a column's cells are ordered, and the lowest and highest key that qualify.
struct Range {
    u32 cell, min, max;
    __device__ explicit Range(const u32* range) : cell(range[0]), min(range[1]), max(range[2]) {}
    __device__ bool has(u32 bits) const { return key(bits, cell) >= min && key(bits, cell) <= max; }
};

// Calls `take(row)` for those of rows [first, first + count) whose cell is in range. The lanes of a warp wait for each
// other at each page, so that they read one page of each column at a time, however many pages their rows miss.
template <class Take>
__device__ void scan(const in<u32>& column, Range range, u64 first, u64 count, Take take) {
    u64 end = first + count;
    for (u64 piece = first + warp() * kPiece; piece < end && !__any_sync(kWholeWarp, stopped());
         piece += warps() * kPiece) {
        u64 past = least(piece + kPiece, end);
        for (u64 at = piece; at < past;) {
            auto part = hold(column, at, past - at);
            if (__any_sync(kWholeWarp, !part)) break;
            u64 here = least(part.size(), past - at);
            for (u64 k = lane(); k < here; k += 32 * kCells) {
                u32 taken = 0;
#pragma unroll
                for (u32 cell = 0; cell < kCells; ++cell)
                    if (k + cell * 32 < here && range.has(part[k + cell * 32])) taken |= 1u << cell;
                for (u32 cell = 0; taken >> cell; ++cell)
                    if (taken >> cell & 1) take(at + k + cell * 32);
            }
            at += here;
        }
    }
}

// Cents have a sign.
__device__ inline u64 cents(u32 bits) { return static_cast<u64>(static_cast<i64>(static_cast<i32>(bits))); }

// What a lane has taken so far.
struct Totals {
    u64 count = 0, one = 0, other = 0;

    // By a whole warp.
    __device__ void add_to(u64* totals) {
        u64 rows = sum_of_warp(count), first = sum_of_warp(one), second = sum_of_warp(other);
        if (lane() != 0 || rows == 0) return;
        atomicAdd(&totals[0], rows);
        atomicAdd(&totals[1], first);
        atomicAdd(&totals[2], second);
    }
};

// Sums one column, or two, over the rows whose scanned cell is in range: `ranges` has one of each filter.
__global__ void __launch_bounds__(128, 4)
    sum_taken(in<unsigned> scanned, in<unsigned> one, in<unsigned> other, unsigned sums, const unsigned* ranges,
              unsigned long long* totals, unsigned long long first, unsigned long long count) {
    Totals own;
    scan(scanned, Range(ranges), first, count, [&](u64 row) {
        ++own.count;
        own.one += cents(one[row]);
        if (sums > 1) own.other += cents(other[row]);
    });
    own.add_to(totals);
}

// Over those of these rows whose cell of a second column is in range, too.
__global__ void __launch_bounds__(128, 4)
    sum_taken_twice(in<unsigned> scanned, in<unsigned> second, in<unsigned> one, in<unsigned> other, unsigned sums,
                    const unsigned* ranges, unsigned long long* totals, unsigned long long first,
                    unsigned long long count) {
    Totals own;
    Range narrower(ranges + 3);
    scan(scanned, Range(ranges), first, count, [&](u64 row) {
        if (!narrower.has(second[row])) return;
        ++own.count;
        own.one += cents(one[row]);
        if (sums > 1) own.other += cents(other[row]);
    });
    own.add_to(totals);
}

// For each pickup zone and hour of the day: group `zone * 24 + hour`.
__global__ void __launch_bounds__(128, 4)
    sum_groups(in<unsigned> scanned, in<unsigned> zones, in<unsigned> times, in<unsigned> one, in<unsigned> other,
               unsigned sums, const unsigned* ranges, unsigned long long* totals, unsigned long long first,
               unsigned long long count) {
    scan(scanned, Range(ranges), first, count, [&](u64 row) {
        u32 zone = zones[row], time = times[row];
        u64* group = totals + 3 * (zone * 24 + time / 3600 % 24);
        atomicAdd(&group[0], 1ull);
        atomicAdd(&group[1], cents(one[row]));
        if (sums > 1) atomicAdd(&group[2], cents(other[row]));
    });
}
