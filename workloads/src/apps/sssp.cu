// Shortest paths from one vertex over weighted edges: near and far vertices (Davidson, Baxter, Garland and Owens, IPDPS
// 2014) in one bitmap. `pending` has the vertices whose distance fell since their row was walked. A round walks the
// rows of those nearer than a limit, which the host raises when none is left. A warp takes 1024 vertices and walks
// their rows end to end; long rows are listed in pieces for the second kernel of a round.
#include "rows.cuh"

constexpr u32 kFar = ~0u;

// What a walk lowers, and the least distance of what it leaves pending.
struct Relax {
    u32* distances;
    u32* pending;
    u32 left = kFar;

    __device__ void operator()(u32 vertex, u32 from, u32 weight) {
        u32 there = from + weight;
        // Farther than 32 bits are. Then a look: an old distance is larger, and only costs the atomic.
        if (there < from || there >= distances[vertex]) return;
        if (atomicMin(&distances[vertex], there) <= there) return;
        // A thread that takes the bit reads this distance.
        __threadfence();
        atomicOr(&pending[vertex / 32], 1u << vertex % 32);
        leave(there);
    }
    __device__ void leave(u32 distance) {
        if (distance < left) left = distance;
    }
    __device__ void tell(u32* least) {
        if (left != kFar) atomicMin(least, left);
    }
};

__global__ void __launch_bounds__(128, 4) sssp_start(unsigned* distances, unsigned* pending, unsigned long long* list,
                                                     unsigned* least, unsigned vertices, unsigned source) {
    for (u64 v = thread(); v < vertices; v += threads()) {
        distances[v] = v == source ? 0 : kFar;
        if (v % 32 == 0) pending[v / 32] = v / 32 == source / 32 ? 1u << source % 32 : 0;
    }
    if (thread() < kListHead) list[thread()] = 0;
    if (thread() < 2) least[thread()] = kFar;
}

// The rows of pending vertices nearer than `limit`. `least[round % 2]` becomes the least distance of what stays
// pending, or of what became so meanwhile.
__global__ void __launch_bounds__(128, 4)
    sssp_round(in<unsigned long long> offsets, in<unsigned> neighbours, in<unsigned> weights, unsigned* distances,
               unsigned* pending, unsigned long long* list, unsigned* listed_rows, unsigned* least, unsigned vertices,
               unsigned limit, int round) {
    u64 words = (vertices + 31ull) / 32;
    Relax relax{distances, pending};
    // What the round after this one uses.
    if (thread() == 0) list[(round + 1) % 2] = 0, least[(round + 1) % 2] = kFar;
    for (u64 first = warp() * 32; first < words; first += warps() * 32) {
        u32 mine = first + lane() < words ? now(&pending[first + lane()]) : 0;
        for (u32 some = __ballot_sync(kWholeWarp, mine != 0); some; some &= some - 1) {
            u32 place = __ffs(some) - 1, members = __shfl_sync(kWholeWarp, mine, place), begins = 0;
            u64 word = first + place, vertex = word * 32 + lane(), begin = 0, end = 0;
            u32 distance = members >> lane() & 1 ? now(&distances[vertex]) : kFar;
            bool near = distance < limit;
            if (!near) relax.leave(distance);
            u32 taken = __ballot_sync(kWholeWarp, near);
            if (!taken) continue;
            if (lane() == 0) atomicAnd(&pending[word], ~taken);
            // A distance that falls from now on sets the bit again.
            __threadfence();
            __syncwarp();
            if (near) begins = now(&distances[vertex]);
            bool listed = false;
            auto walk_word = [&](const auto& offsets, const auto& neighbours, const auto& weights) {
                if (near) begin = offsets[vertex], end = offsets[vertex + 1];
                // After a fault lanes may have read zeros.
                if (__any_sync(kWholeWarp, stopped(neighbours))) return;
                listed = end - begin >= kListedRow;
                walk_rows(neighbours, begin, listed ? 0 : static_cast<u32>(end - begin), begins,
                          [&](u64 edge, u32 from) { relax(neighbours[edge], from, weights[edge]); });
            };
            nearest(walk_word, offsets, neighbours, weights);
            if (__any_sync(kWholeWarp, stopped(neighbours))) return;
            for (u32 owners = __ballot_sync(kWholeWarp, listed); owners; owners &= owners - 1) {
                u32 owner = __ffs(owners) - 1, row = static_cast<u32>(word * 32 + owner);
                list_row(list, round, __shfl_sync(kWholeWarp, begin, owner), __shfl_sync(kWholeWarp, end, owner),
                         [&](u64 at) { listed_rows[at] = row; });
            }
        }
    }
    relax.tell(&least[round % 2]);
}

// The pieces that the round has listed.
__global__ void __launch_bounds__(128, 4)
    sssp_pieces(in<unsigned> neighbours, in<unsigned> weights, unsigned* distances, unsigned* pending,
                const unsigned long long* list, const unsigned* listed_rows, unsigned* least, int round) {
    Relax relax{distances, pending};
    u64 pieces = list[round % 2];
    for (u64 at = kListHead + warp(); at < kListHead + pieces && !stopped(neighbours); at += warps()) {
        u64 begin = list[at] / kPieceUnit, end = begin + list[at] % kPieceUnit;
        u32 from = now(&distances[listed_rows[at]]);
        // From a multiple of 128 bytes on.
        auto walk_piece_of_row = [&](const auto& neighbours, const auto& weights) {
            for (u64 edge = begin / 32 * 32 + lane(); edge < end && !stopped(neighbours); edge += 32)
                if (edge >= begin) relax(neighbours[edge], from, weights[edge]);
        };
        nearest(walk_piece_of_row, neighbours, weights);
    }
    relax.tell(&least[round % 2]);
}
