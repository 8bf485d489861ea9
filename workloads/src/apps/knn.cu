// Nearest neighbours of queries by a beam search along a graph over the vectors, a query a warp. It keeps the kBeam
// nearest vectors it met, in registers and in order; it takes the nearest whose links it did not follow yet, and meets
// all vectors that these lead to, until there is none. Lanes beside each other read a row of links; eight lanes read a
// vector, so that a warp reads four of them and fetches their pages together.
//
// A row of links or of components is shorter than a page, and the search goes anywhere next. So rows are read as
// `a[i]`, and each page's use decides whether it is fetched; spans would fetch all pages that are met.
#include "access.cuh"

constexpr u32 kNone = ~0u;
constexpr u32 kWarps = 4;
constexpr u32 kBeam = KNN_BEAM;
// Lanes that read a vector, and vectors at once.
constexpr u32 kTeam = 8, kTeams = 32 / kTeam;
// Vectors that a warp knows it has met: a newer one takes the place of an older one, which costs its distance again.
constexpr u32 kMet = 2048;

// A vector that was met: its distance, its id, and whether its links were followed, as one number. Distances are not
// negative, so numbers are ordered by distance and then by id. No vector: all ones.
__device__ inline u64 candidate(float distance, u32 id) {
    return (static_cast<u64>(__float_as_uint(distance)) << 32 | id) << 1;
}
__device__ inline u32 id_of(u64 candidate) { return static_cast<u32>(candidate >> 1); }
__device__ inline float distance_of(u64 candidate) { return __uint_as_float(static_cast<u32>(candidate >> 33)); }

// The nearest that a warp has met, ascending: number p is in lane p % 32.
struct Beam {
    u64 own[kBeam / 32];

    __device__ Beam() {
        for (u64& one : own) one = ~0ull;
    }

    __device__ u64 farthest() const { return __shfl_sync(kWholeWarp, own[kBeam / 32 - 1], 31); }

    // Puts a candidate in its place, where it is near enough and not there yet.
    __device__ void offer(u64 offered) {
        bool there = false;
        for (u64 one : own) there |= one >> 1 == offered >> 1;
        if (__any_sync(kWholeWarp, there)) return;
        u64 last = 0;
        for (u64& one : own) {
            u64 before = __shfl_up_sync(kWholeWarp, one, 1), next = __shfl_sync(kWholeWarp, one, 31);
            if (lane() == 0) before = last;
            one = min(one, max(before, offered));
            last = next;
        }
    }

    // The nearest whose links were not followed, which are from now on. None: kNone.
    __device__ u32 follow() {
        u32 found = kNone;
        for (u64& one : own) {
            u32 open = found == kNone ? __ballot_sync(kWholeWarp, !(one & 1)) : 0;
            if (!open) continue;
            u32 nearest = __ffs(open) - 1;
            if (lane() == nearest) one |= 1;
            found = id_of(__shfl_sync(kWholeWarp, one, nearest));
        }
        return found;
    }
};

__device__ inline void add_square(float& sum, float one, float other) {
    float apart = __fadd_rn(one, -other);
    sum = __fadd_rn(sum, __fmul_rn(apart, apart));
}

// The squared distance of a query and a vector, by a team of lanes that all come here, as do the other teams with
// theirs. Sum l of 32 is over the components l, l + 32, ...; four sums are a lane's. Nothing is fused, so that the
// processor, which adds in the same order, gets the same. Zero for no vector.
template <class Vectors>
__device__ float distance(const Vectors& vectors, const float4* query, u64 quads, u32 id) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (u64 k = lane() % kTeam; id != kNone && k < quads; k += kTeam) {
        float4 one = vectors[id * quads + k], other = query[k];
        add_square(sum.x, one.x, other.x), add_square(sum.y, one.y, other.y);
        add_square(sum.z, one.z, other.z), add_square(sum.w, one.w, other.w);
    }
    for (u32 apart = kTeam / 2; apart; apart /= 2) {
        sum.x = __fadd_rn(sum.x, __shfl_xor_sync(kWholeWarp, sum.x, apart));
        sum.y = __fadd_rn(sum.y, __shfl_xor_sync(kWholeWarp, sum.y, apart));
        sum.z = __fadd_rn(sum.z, __shfl_xor_sync(kWholeWarp, sum.z, apart));
        sum.w = __fadd_rn(sum.w, __shfl_xor_sync(kWholeWarp, sum.w, apart));
    }
    return __fadd_rn(__fadd_rn(sum.x, sum.z), __fadd_rn(sum.y, sum.w));
}

// The rank-th lane of a mask, or none.
__device__ inline u32 lane_of(u32 mask, u32 rank) {
    for (u32 k = 0; k < rank; ++k) mask &= mask - 1;
    return mask ? __ffs(mask) - 1 : kNone;
}

// Meets the vectors whose ids the lanes have, one or none each.
template <class Vectors>
__device__ void meet(Beam& beam, u32* met, const Vectors& vectors, const float4* query, u64 quads, u32 id) {
    bool fresh = id != kNone && atomicExch(&met[(id * 2654435761u >> 16) % kMet], id) != id;
    u32 all = __ballot_sync(kWholeWarp, fresh), rank = __popc(all & ((1u << lane()) - 1));
    u64 own = ~0ull;
    for (u32 first = 0, count = __popc(all); first < count; first += kTeams) {
        u32 from = lane_of(all, first + lane() / kTeam), taken = __shfl_sync(kWholeWarp, id, from % 32);
        float found = distance(vectors, query, quads, from == kNone ? kNone : taken);
        found = __shfl_sync(kWholeWarp, found, rank % kTeams * kTeam);
        if (fresh && rank / kTeams == first / kTeams) own = candidate(found, id);
    }
    u32 near = __ballot_sync(kWholeWarp, own < beam.farthest());
    for (; near; near &= near - 1) beam.offer(__shfl_sync(kWholeWarp, own, __ffs(near) - 1));
}

// One query: from the entries along links until no vector is left whose links were not followed.
template <class Vectors, class Links>
__device__ void search_beam(Beam& beam, u32* met, const Vectors& vectors, const Links& links, const float4* query,
                            const u32* entries, u64 quads, u32 degree, u32 entry_count) {
    for (u32 place = lane(); place < kMet; place += 32) met[place] = kNone;
    __syncwarp();
    for (u32 first = 0; first < entry_count; first += 32)
        meet(beam, met, vectors, query, quads, first + lane() < entry_count ? entries[first + lane()] : kNone);
    for (u32 from = beam.follow(); from != kNone && !__any_sync(kWholeWarp, stopped(vectors)); from = beam.follow()) {
        for (u32 first = 0; first < degree; first += 32) {
            u32 id = kNone;
            if (first + lane() < degree) id = links[from * static_cast<u64>(degree) + first + lane()];
            __syncwarp();
            meet(beam, met, vectors, query, quads, id);
        }
    }
}

// The `k` nearest of each query, the nearest first, and their distances. Vectors and queries are of `quads` times four
// components, rows of links of `degree` ids, which kNone fills up.
__global__ void __launch_bounds__(128, 4)
    search(in<float4> vectors, in<unsigned> links, const float4* queries, const unsigned* entries, unsigned* found,
           float* distances, unsigned long long quads, unsigned degree, unsigned entry_count, unsigned k,
           unsigned long long count) {
    __shared__ u32 met_by_warp[kWarps][kMet];
    u32* met = met_by_warp[threadIdx.x / 32];
    for (u64 at = warp(); at < count && !__any_sync(kWholeWarp, stopped(vectors)); at += warps()) {
        const float4* query = queries + at * quads;
        Beam beam;
        auto walk_from_entries = [&](const auto& vectors, const auto& links) {
            search_beam(beam, met, vectors, links, query, entries, quads, degree, entry_count);
        };
        nearest(walk_from_entries, vectors, links);
        for (u32 part = 0; part < kBeam / 32; ++part) {
            u32 rank = part * 32 + lane();
            if (rank >= k) continue;
            found[at * k + rank] = id_of(beam.own[part]);
            distances[at * k + rank] = distance_of(beam.own[part]);
        }
        __syncwarp();
    }
}
