// Lanes of several GPUs that use one broadcast array. Each block plays one of them: its view is an argument of its own.
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 fold(u64 hash, u64 value) { return ((hash << 5 | hash >> 59) ^ value) * 0x9e3779b97f4a7c15ull; }

// An operation is kind << 56 | way << 48 | value << 24 | second element << 12 | element.
enum : unsigned {
    REST,
    STORE,  // of an element that is the lane's own
    READ,   // of one that nothing else stores to
    ADD,    // these five, and what they return, are logged
    EXCHANGE,
    COMPARE,  // with what the lane has seen last
    STORE_SYSTEM,
    READ_SYSTEM,
    MAXIMUM,  // at the owner; so the next
    MINIMUM,
    PASS,  // the elements that the lane has stored to, to the lane that takes this flag
    TAKE,
    TELL,   // stores a value, and behind it the same to the second element
    HEAR,   // reads the second element, then the first
    CROSS,  // stores to one, and reads the other
};

// What an operation's value stands for: where there is room for it twice, a half that is lost shows.
template <class T>
__device__ T spread(u64 value) {
    return static_cast<T>(sizeof(T) == 8 ? value << 32 | value : value);
}

// What a launch is given.
struct Given {
    const u64* ops;
    const unsigned* met;
    unsigned* flags;
    u64 *hashes, *log, *wrong;
    unsigned steps, met_count;
};

// How a lane tells and hears: the first bit for the data, the others for what follows it.
constexpr unsigned DATA_AT_OWNER = 1, FLAG_AT_OWNER = 2, FLAG_BY_EXCHANGE = 4, READ_WEAKLY = 8, FENCE_BEHIND = 16;

template <class T>
__device__ void tell(const gpuvm::broadcast<T>& x, unsigned way, u64 data, u64 flag, T value) {
    if (way & DATA_AT_OWNER)
        x.store_system(data, value);
    else
        x.store(data, value);
    gpuvm::detail::fence_acq_rel_sys();
    if (way & FLAG_BY_EXCHANGE)
        x.atomic_exch(flag, value);
    else if (way & FLAG_AT_OWNER)
        x.store_system(flag, value);
    else
        x.store(flag, value);
}

// A value of the own copy, as it is while others store to it.
template <class T>
__device__ T look(const gpuvm::broadcast<T>& x, u64 i) {
    return gpuvm::detail::ld_relaxed_sys(x.data() + i);
}

// Who hears has to know what was told before. `before` is what no lane has told yet.
template <class T>
__device__ void hear(const gpuvm::broadcast<T>& x, unsigned way, u64 data, u64 flag, T before, T* last, u64* wrong) {
    T heard;
    if (!(way & FLAG_AT_OWNER) && !(way & FENCE_BEHIND)) {
        heard = gpuvm::detail::ld_acquire_sys(x.data() + flag);
    } else {
        heard = way & FLAG_AT_OWNER ? x.load_system(flag) : look(x, flag);
        gpuvm::detail::fence_acq_rel_sys();
    }
    T found = way & DATA_AT_OWNER ? x.load_system(data) : way & READ_WEAKLY ? x[data] : look(x, data);
    bool steps_back = heard < last[1] || (!(way & READ_WEAKLY) && found < last[0]);
    if ((heard > before && found < heard) || steps_back) {
        wrong[1] = data;
        wrong[2] = found;
        wrong[3] = heard;
        wrong[4] = last[0];
        wrong[5] = last[1];
        wrong[0] = steps_back ? 2 : 1;
    }
    last[0] = found, last[1] = heard;
}

// An operation at the owner whose times and result are logged. Loads and stores are fenced in, so that they take place
// in between.
template <class T>
__device__ T logged(const gpuvm::broadcast<T>& x, unsigned kind, u64 i, T value, T seen, u64* log) {
    T found = 0;
    log[0] = gpuvm::detail::time_ns();
    if (kind == READ_SYSTEM) __threadfence_system();
    switch (kind) {
        case ADD:
            found = x.atomic_add(i, value);
            break;
        case EXCHANGE:
            found = x.atomic_exch(i, value);
            break;
        case COMPARE:
            found = x.atomic_cas(i, seen, value);
            break;
        case STORE_SYSTEM:
            x.store_system(i, value);
            break;
        case READ_SYSTEM:
            found = x.load_system(i);
            break;
    }
    if (kind == READ_SYSTEM || kind == STORE_SYSTEM) __threadfence_system();
    log[1] = gpuvm::detail::time_ns();
    log[2] = found;
    log[3] = seen;
    return kind == STORE_SYSTEM ? seen : found;
}

// The operations of a lane. `out` is where its own elements are stored: the array, or the block's queue.
template <class T, class Out>
__device__ u64 operate(const gpuvm::broadcast<T>& x, const Out& out, const Given& given, u64 lane) {
    u64 hash = 0;
    T seen = 0, last[4] = {};
    for (u64 at = lane * given.steps; at < (lane + 1) * given.steps; ++at) {
        u64 op = given.ops[at], i = op & 0xfff, second = op >> 12 & 0xfff;
        unsigned kind = op >> 56, way = op >> 48 & 0xff;
        T value = spread<T>(op >> 24 & 0xffffff);
        switch (kind) {
            case STORE:
                out.store(i, value);
                break;
            case READ:
                hash = fold(hash, x[i]);
                break;
            case ADD:
            case EXCHANGE:
            case COMPARE:
            case STORE_SYSTEM:
            case READ_SYSTEM:
                seen = logged(x, kind, i, value, seen, given.log + at * 4);
                break;
            case MAXIMUM:
                x.atomic_max(i, value);
                break;
            case MINIMUM:
                x.atomic_min(i, value);
                break;
            case PASS:
                gpuvm::detail::st_release_gpu(given.flags + i, 1u);
                break;
            case TAKE:
                while (!gpuvm::detail::ld_acquire_gpu(given.flags + i)) __nanosleep(100);
                break;
            case TELL:
                tell(x, way, i, second, value);
                break;
            case HEAR:
                hear(x, way & 0x7f, i, second, value, last + (way >> 7) * 2, given.wrong);
                break;
            case CROSS:
                if (way & DATA_AT_OWNER)
                    x.store_system(i, value);
                else
                    x.store(i, value);
                __threadfence_system();
                given.log[at * 4] = way & DATA_AT_OWNER ? x.load_system(second) : look(x, second);
                break;
        }
    }
    return hash;
}

// Block b plays the GPU of view b % views. `shape`: views, blocks that merge their stores, steps, one more than the
// element at which blocks meet when they have stored everything, or 0, what it is when all have come, and how many
// elements they read then.
template <class T>
__device__ void play(const gpuvm::broadcast<T>& x, const u64* shape, Given given) {
    __shared__ gpuvm::merge_queue<2> queue;
    u64 lane = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x, hash;
    given.steps = shape[2];
    given.met_count = shape[5];
    if (shape[1] >> blockIdx.x & 1) {
        auto out = x.merge_in(queue);
        hash = operate(x, out, given, lane);
        out.flush();
    } else {
        hash = operate(x, x, given, lane);
    }
    if (u64 place = shape[3]) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence_system();
            x.atomic_add(place - 1, T{1});
            while (x.load_system(place - 1) < static_cast<T>(shape[4])) __nanosleep(200);
            __threadfence_system();
        }
        __syncthreads();
        // Everything is stored, and every copy has it.
        for (unsigned n = threadIdx.x; n < given.met_count; n += blockDim.x) hash = fold(hash, x[given.met[n]]);
    }
    given.hashes[lane] = hash;
}

template <class T>
__device__ void play_one(const gpuvm::broadcast<T>& a, const gpuvm::broadcast<T>& b, const gpuvm::broadcast<T>& c,
                         const gpuvm::broadcast<T>& d, const u64* shape, const Given& given) {
    unsigned view = blockIdx.x % shape[0];
    play(view == 0 ? a : view == 1 ? b : view == 2 ? c : d, shape, given);
}

__global__ void play_words(gpuvm::broadcast<unsigned> a, gpuvm::broadcast<unsigned> b, gpuvm::broadcast<unsigned> c,
                           gpuvm::broadcast<unsigned> d, const u64* shape, const u64* ops, const unsigned* met,
                           unsigned* flags, u64* hashes, u64* log, u64* wrong) {
    play_one(a, b, c, d, shape, Given{ops, met, flags, hashes, log, wrong, 0, 0});
}

__global__ void play_longs(gpuvm::broadcast<u64> a, gpuvm::broadcast<u64> b, gpuvm::broadcast<u64> c,
                           gpuvm::broadcast<u64> d, const u64* shape, const u64* ops, const unsigned* met,
                           unsigned* flags, u64* hashes, u64* log, u64* wrong) {
    play_one(a, b, c, d, shape, Given{ops, met, flags, hashes, log, wrong, 0, 0});
}
