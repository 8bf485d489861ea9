// What a kernel module and the simulated GPU know of each other, and namespace gpuvm_sim for the device library's
// platform header. Layouts and numbers here are mirrored in the host's sim/abi.rs.
#pragma once

#include "gpuvm_sim/types.h"

// A block's constants. Read only for kernels.
struct gpuvm_sim_block {
    uint3 block_idx;
    dim3 block_dim;
    dim3 grid_dim;
    unsigned sm;
    unsigned seeded;
    unsigned dynamic_bytes;
    void* shared;  // dynamic shared memory
    unsigned variant;
};

// A lane's constants, at a place that follows from the stack address.
struct gpuvm_sim_lane {
    const gpuvm_sim_block* block;
    uint3 thread;
    unsigned lane;
    unsigned warp_slot;
};

// Collectives that are rendezvous of the lanes a mask names.
enum gpuvm_sim_collective : unsigned {
    GPUVM_SIM_SYNCWARP = 0,
    GPUVM_SIM_SHFL = 1,
    GPUVM_SIM_SHFL_UP = 2,
    GPUVM_SIM_SHFL_DOWN = 3,
    GPUVM_SIM_SHFL_XOR = 4,
    GPUVM_SIM_BALLOT = 5,
    GPUVM_SIM_ANY = 6,
    GPUVM_SIM_ALL = 7,
    GPUVM_SIM_MATCH_ANY = 8,
    GPUVM_SIM_MATCH_ALL = 9,
    GPUVM_SIM_REDUCE_ADD = 10,
    GPUVM_SIM_REDUCE_MIN_U = 11,
    GPUVM_SIM_REDUCE_MAX_U = 12,
    GPUVM_SIM_REDUCE_MIN_S = 13,
    GPUVM_SIM_REDUCE_MAX_S = 14,
    GPUVM_SIM_REDUCE_AND = 15,
    GPUVM_SIM_REDUCE_OR = 16,
    GPUVM_SIM_REDUCE_XOR = 17,
    GPUVM_SIM_BALLOT2 = 18,
};

enum gpuvm_sim_barrier : unsigned {
    GPUVM_SIM_BARRIER = 0,
    GPUVM_SIM_BARRIER_COUNT = 1,
    GPUVM_SIM_BARRIER_AND = 2,
    GPUVM_SIM_BARRIER_OR = 3,
};

enum gpuvm_sim_failure : unsigned { GPUVM_SIM_ASSERT = 0, GPUVM_SIM_TRAP = 1 };

// Calls into the simulator; bound when the module is loaded.
struct gpuvm_sim_hooks {
    unsigned long long (*collective)(gpuvm_sim_lane*, unsigned kind, unsigned mask, unsigned long long a,
                                     unsigned long long b);
    unsigned long long (*gather)(gpuvm_sim_lane*, const void* site, unsigned match, unsigned long long key);
    unsigned (*barrier)(gpuvm_sim_lane*, unsigned kind, unsigned predicate);
    void (*sleep)(gpuvm_sim_lane*, unsigned ns);
    void (*mmio_store)(gpuvm_sim_lane*, unsigned long long* address, unsigned long long value);
    unsigned long long (*time_ns)(gpuvm_sim_lane*);
    void (*note)(gpuvm_sim_lane*, unsigned code, unsigned long long a, unsigned long long b);
    void (*print)(gpuvm_sim_lane*, const char* text, unsigned long bytes);
    void (*fail)(gpuvm_sim_lane*, unsigned kind, const char* what, const char* file, unsigned line);
    void (*step)(gpuvm_sim_lane*, unsigned event);
    // An access with its order and scope, carried out there; see gpuvm_sim/memory.h. Only in the seeded mode.
    unsigned long long (*access)(gpuvm_sim_lane*, unsigned what, void* address, unsigned long long value,
                                 unsigned long long expected);
    // A plain access of `bytes` bytes that the caller does next, and from where in the kernel's code.
    void (*plain)(gpuvm_sim_lane*, unsigned kind, void* address, unsigned long bytes, const void* site);
    void (*fence)(gpuvm_sim_lane*, unsigned order, unsigned scope);
};

enum gpuvm_sim_plain : unsigned { GPUVM_SIM_READ = 1, GPUVM_SIM_WRITE = 2, GPUVM_SIM_VOLATILE = 16 };

extern "C" {
__attribute__((visibility("hidden"))) extern const gpuvm_sim_hooks* gpuvm_sim_bound;
}

namespace gpuvm_sim {

// The running lane. Stacks are aligned to their size; equal offsets in them would share cache sets, hence the colour.
static inline __attribute__((always_inline)) gpuvm_sim_lane* lane() {
    unsigned long sp;
#if defined(__x86_64__)
    // Neither volatile nor clobbering: within one function the answer never changes, whatever the stack pointer does.
    asm("movq %%rsp, %0" : "=r"(sp));
#else
    sp = reinterpret_cast<unsigned long>(__builtin_frame_address(0));
#endif
    unsigned long colour = (sp / GPUVM_SIM_STACK_BYTES) % 32 * GPUVM_SIM_COLOUR_BYTES;
    return reinterpret_cast<gpuvm_sim_lane*>((sp & ~(GPUVM_SIM_STACK_BYTES - 1ul)) + GPUVM_SIM_LANE_OFFSET - colour);
}

static inline unsigned long long collective(unsigned kind, unsigned mask, unsigned long long a = 0,
                                            unsigned long long b = 0) {
    return gpuvm_sim_bound->collective(lane(), kind, mask, a, b);
}

// __activemask() and __match_any_sync(that mask, key) in one rendezvous, grouped by call site.
__attribute__((noinline)) static unsigned match_active(unsigned long long key, unsigned* active) {
    unsigned long long r = gpuvm_sim_bound->gather(lane(), __builtin_return_address(0), 1, key);
    *active = static_cast<unsigned>(r >> 32);
    return static_cast<unsigned>(r);
}

// Two __ballot_sync in one rendezvous.
static inline void ballot2(unsigned mask, bool a, bool b, unsigned* ra, unsigned* rb) {
    unsigned long long r = collective(GPUVM_SIM_BALLOT2, mask, (a ? 1u : 0u) | (b ? 2u : 0u));
    *ra = static_cast<unsigned>(r);
    *rb = static_cast<unsigned>(r >> 32);
}

// A store to a device register: atomic, after all stores of this lane before it, and seen by the register's owner.
static inline void mmio_store64(unsigned long long* p, unsigned long long v) {
    gpuvm_sim_bound->mmio_store(lane(), p, v);
}

static inline unsigned long long globaltimer() { return gpuvm_sim_bound->time_ns(lane()); }
static inline unsigned lane_id() { return lane()->lane; }
static inline unsigned sm_id() { return lane()->block->sm; }
static inline unsigned warp_slot() { return lane()->warp_slot; }
static inline unsigned seeded() { return lane()->block->seeded; }

// What this lane waits for, for the watchdog's report; code 0 clears it.
static inline void wait_note(unsigned code, unsigned long long a, unsigned long long b) {
    gpuvm_sim_bound->note(lane(), code, a, b);
}

static inline void* dynamic_shared() { return lane()->block->shared; }

// Stands for an `extern __shared__` array declared outside functions.
template <class T>
struct dynamic_array {
    operator T*() const { return static_cast<T*>(dynamic_shared()); }
    template <class I>
    T& operator[](I i) const {
        return static_cast<T*>(dynamic_shared())[i];
    }
};

}  // namespace gpuvm_sim

#define threadIdx (gpuvm_sim::lane()->thread)
#define blockIdx (gpuvm_sim::lane()->block->block_idx)
#define blockDim (gpuvm_sim::lane()->block->block_dim)
#define gridDim (gpuvm_sim::lane()->block->grid_dim)
static constexpr int warpSize = 32;
