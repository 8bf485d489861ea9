// Nearest neighbours by a look at every vector. A launch of `distances` takes some of the vectors, one of `select` puts
// those that are near enough among the nearest that are known.
#include "access.cuh"

// distances[q * count + v]: squared distance of query q and vector first + v. A warp takes a vector, and holds its
// page.
template <class T>
__global__ void __launch_bounds__(128, 4)
    distances(in<T> vectors, const T* queries, T* distances, unsigned long long width, unsigned long long first,
              unsigned long long count, unsigned long long query_count) {
    for (u64 at = warp(); at < count && !__any_sync(kWholeWarp, stopped(vectors)); at += warps()) {
        u64 begin = (first + at) * width;
        auto measure = [&](const auto& vectors) {
            auto part = hold(vectors, begin, width);
            if (!part) return;
            u64 here = least(part.size(), width);
            for (u64 query = 0; query < query_count; ++query) {
                T sum = 0;
                for (u64 k = lane(); k < width; k += 32) {
                    // A vector that begins within a page may end in the next one.
                    T apart = (k < here ? part[k] : static_cast<T>(vectors[begin + k])) - queries[query * width + k];
                    sum += apart * apart;
                }
                sum = sum_of_warp(sum);
                if (lane() == 0) distances[query * count + at] = sum;
            }
        };
        nearest(measure, vectors);
    }
}

// Whether a distance comes before one that is kept. NaN comes last, as in NumPy's sort; a place without a vector (-1)
// is behind all.
template <class T>
__device__ bool comes_before(T one, T kept, i64 id) {
    return id < 0 || one < kept || (kept != kept && one == one);
}

// The `k` nearest of each query so far, ascending; of equal distances the first vector's comes first. Vectors come in
// their order. A warp takes a query.
template <class T>
__global__ void __launch_bounds__(128, 4)
    select(const T* distances, T* nearest, long long* ids, unsigned long long first, unsigned long long count,
           unsigned k, unsigned long long query_count) {
    for (u64 query = warp(); query < query_count; query += warps()) {
        T* best = nearest + query * k;
        i64* id = ids + query * k;
        for (u64 begin = 0; begin < count; begin += 32) {
            bool there = begin + lane() < count;
            T own = there ? distances[query * count + begin + lane()] : T(0);
            u32 near = __ballot_sync(kWholeWarp, there && comes_before(own, best[k - 1], id[k - 1]));
            for (; near; near &= near - 1) {
                u32 from = __ffs(near) - 1;
                T one = __shfl_sync(kWholeWarp, own, from);
                u32 place = 0;
                for (u32 at = lane(); at < k; at += 32) place += !comes_before(one, best[at], id[at]);
                place = sum_of_warp(place);
                // From the last ones on: each moves one place up.
                for (u32 end = (k + 31) / 32 * 32; end > place; end -= 32) {
                    u32 at = end - 32 + lane();
                    bool moves = at > place && at < k;
                    T before = moves ? best[at - 1] : T(0);
                    i64 before_id = moves ? id[at - 1] : 0;
                    __syncwarp();
                    if (moves) best[at] = before, id[at] = before_id;
                    __syncwarp();
                    if (end <= 32) break;
                }
                if (lane() == 0 && place < k) best[place] = one, id[place] = static_cast<i64>(first + begin + from);
                __syncwarp();
            }
        }
    }
}
