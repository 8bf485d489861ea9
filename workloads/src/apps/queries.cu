// Five queries over columns of trips: counts and sums of the rows whose cells are in range. A warp scans a piece of one
// column, whose pages it holds; the other columns are read for the rows that qualify alone.
//
// `totals` has three numbers of each group: its rows, and two sums of cents. Sums of integers come out alike in any
// order.
#include "access.cuh"

constexpr u64 kPiece = 4096;
// Cells that a lane loads before it looks at them.
constexpr u32 kCells = 8;
// Where one in this many rows qualifies, five of six lines of 32 rows have one that does.
constexpr u64 kManyOf = 16;

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

// Rows that the lanes of a warp look at together: number `cell` of a lane's is `first + lane + 32 * cell`. The lane's
// bit `cell` of `taken` says whether it qualifies.
struct Stripe {
    u64 first, rows;
    u32 taken;
    // This many qualify that most lines of another column are needed: they are read side by side. Else one by one, so
    // that a page with few of them can stay where it is.
    bool many;

    // Cells of a column in the rows that qualify, by all lanes of the warp. It holds a page at a time.
    template <class Column>
    __device__ void read(const Column& column, u32 (&cells)[kCells]) const {
        for (u64 at = 0; many && at < rows;) {
            auto part = hold(column, first + at, rows - at);
            if (__any_sync(kWholeWarp, !part)) return;
            u64 here = least(part.size(), rows - at);
#pragma unroll
            for (u32 cell = 0; cell < kCells; ++cell) {
                u64 k = lane() + 32 * cell - at;
                if (taken >> cell & 1 && k < here) cells[cell] = part[k];
            }
            at += here;
        }
#pragma unroll
        for (u32 cell = 0; cell < kCells; ++cell)
            if (!many && taken >> cell & 1) cells[cell] = column[first + lane() + 32 * cell];
    }
};

// Calls `take(stripe)`, by all lanes of a warp, for the stripes of rows [first, first + count) that have rows whose
// cell is in range.
template <class Column, class Take>
__device__ void scan(const Column& column, Range range, u64 first, u64 count, Take take) {
    u64 end = first + count;
    for (u64 piece = first + warp() * kPiece; piece < end && !__any_sync(kWholeWarp, stopped(column));
         piece += warps() * kPiece) {
        u64 past = least(piece + kPiece, end);
        for (u64 at = piece; at < past;) {
            auto part = hold(column, at, past - at);
            if (__any_sync(kWholeWarp, !part)) break;
            u64 here = least(part.size(), past - at);
            for (u64 k = 0; k < here; k += 32 * kCells) {
                Stripe stripe{at + k, least(32 * kCells, here - k), 0, false};
#pragma unroll
                for (u32 cell = 0; cell < kCells; ++cell) {
                    u64 own = lane() + 32 * cell;
                    if (own < stripe.rows && range.has(part[k + own])) stripe.taken |= 1u << cell;
                }
                u32 all = sum_of_warp(static_cast<u32>(__popc(stripe.taken)));
                stripe.many = all * kManyOf >= stripe.rows;
                if (all) take(stripe);
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

// Adds the rows that qualify to a lane's totals: their number, and sums of one column or two.
template <class One, class Other>
__device__ void sum_stripe(Totals& own, const Stripe& stripe, const One& one, const Other& other, u32 sums) {
    u32 cells[kCells] = {};
    own.count += __popc(stripe.taken);
    stripe.read(one, cells);
#pragma unroll
    for (u32 cell = 0; cell < kCells; ++cell)
        if (stripe.taken >> cell & 1) own.one += cents(cells[cell]);
    if (sums < 2) return;
    stripe.read(other, cells);
#pragma unroll
    for (u32 cell = 0; cell < kCells; ++cell)
        if (stripe.taken >> cell & 1) own.other += cents(cells[cell]);
}

// Sums one column, or two, over the rows whose scanned cell is in range: `ranges` has one of each filter.
__global__ void __launch_bounds__(128, 4)
    sum_taken(in<unsigned> scanned, in<unsigned> one, in<unsigned> other, unsigned sums, const unsigned* ranges,
              unsigned long long* totals, unsigned long long first, unsigned long long count) {
    Totals own;
    auto sum = [&](const auto& scanned, const auto& one, const auto& other) {
        scan(scanned, Range(ranges), first, count,
             [&](const Stripe& stripe) { sum_stripe(own, stripe, one, other, sums); });
    };
    nearest(sum, scanned, one, other);
    own.add_to(totals);
}

// Over those of these rows whose cell of a second column is in range, too.
__global__ void __launch_bounds__(128, 4)
    sum_taken_twice(in<unsigned> scanned, in<unsigned> second, in<unsigned> one, in<unsigned> other, unsigned sums,
                    const unsigned* ranges, unsigned long long* totals, unsigned long long first,
                    unsigned long long count) {
    Totals own;
    Range narrower(ranges + 3);
    auto sum = [&](const auto& scanned, const auto& second, const auto& one, const auto& other) {
        scan(scanned, Range(ranges), first, count, [&](Stripe stripe) {
            u32 cells[kCells] = {};
            stripe.read(second, cells);
#pragma unroll
            for (u32 cell = 0; cell < kCells; ++cell)
                if (!narrower.has(cells[cell])) stripe.taken &= ~(1u << cell);
            u32 all = sum_of_warp(static_cast<u32>(__popc(stripe.taken)));
            stripe.many = all * kManyOf >= stripe.rows;
            if (all) sum_stripe(own, stripe, one, other, sums);
        });
    };
    nearest(sum, scanned, second, one, other);
    own.add_to(totals);
}

// For each pickup zone and hour of the day: group `zone * 24 + hour`.
__global__ void __launch_bounds__(128, 4)
    sum_groups(in<unsigned> scanned, in<unsigned> zones, in<unsigned> times, in<unsigned> one, in<unsigned> other,
               unsigned sums, const unsigned* ranges, unsigned long long* totals, unsigned long long first,
               unsigned long long count) {
    auto sum = [&](const auto& scanned, const auto& zones, const auto& times, const auto& one, const auto& other) {
        scan(scanned, Range(ranges), first, count, [&](const Stripe& stripe) {
            u32 zone[kCells] = {}, time[kCells] = {}, money[kCells] = {}, more[kCells] = {};
            stripe.read(zones, zone);
            stripe.read(times, time);
            stripe.read(one, money);
            if (sums > 1) stripe.read(other, more);
#pragma unroll
            for (u32 cell = 0; cell < kCells; ++cell) {
                if (!(stripe.taken >> cell & 1)) continue;
                u64* group = totals + 3 * (zone[cell] * 24 + time[cell] / 3600 % 24);
                atomicAdd(&group[0], 1ull);
                atomicAdd(&group[1], cents(money[cell]));
                if (sums > 1) atomicAdd(&group[2], cents(more[cell]));
            }
        });
    };
    nearest(sum, scanned, zones, times, one, other);
}
