// The engine of a NIC as a kernel: it finds doorbells, executes requests and writes completions (docs/PROTOCOL.md,
// section 9). Queue pair q belongs to block q mod blocks, and there to one warp, which alone changes what the NIC keeps
// of it.
#pragma once

#include "nic_move.cuh"
#include "nic_request.cuh"

namespace gpuvm {
namespace detail {
namespace nic {

// Requests of a queue pair before the warp looks at others, and for the host.
constexpr u32 kRequestsATurn = 16;
// And this many bytes end a turn; one request may have more, and is not interrupted.
constexpr u64 kBytesATurn = 256 * 1024;
// The host's word is looked at so often: it is across the wire.
constexpr u64 kControlEveryNs = 2000;
// A warp that has found nothing so often sleeps longer.
constexpr u32 kIdleLooks = 64;

GPUVM_DEVICE layout::NicQueue* queue_at(const layout::NicEngine& engine, u32 place) {
    return reinterpret_cast<layout::NicQueue*>(engine.queues) + place;
}
// Whether requests were announced, or a doorbell was stored since the last look. A hint.
GPUVM_DEVICE bool has_work(const layout::NicQueue* queue) {
    u64 doorbell = ld_relaxed_sys(&queue->doorbell), seen = ld_relaxed_gpu(&queue->seen);
    u64 head = ld_relaxed_gpu(&queue->head), target = ld_relaxed_gpu(&queue->target);
    return ld_relaxed_sys(&queue->served) != 0 && (doorbell != seen || head != target);
}

// What a warp does for a queue pair before it looks at the next one. All lanes have the same values. JudgedTurn
// (nic_judged.cuh) is another.
class Turn {
  public:
    GPUVM_DEVICE Turn(const layout::NicEngine& engine, u32 place, u32)
        : engine_(engine), queue_(queue_at(engine, place)), place_(place) {
        // All loads on their way at once: each is a trip to the L2 cache.
        const pair64* parts = reinterpret_cast<const pair64*>(queue_);
        pair64 what = ld_relaxed_sys_v2(parts), rings = ld_relaxed_sys_v2(parts + 1),
               more = ld_relaxed_sys_v2(parts + 2);
        pair64 other = ld_relaxed_sys_v2(parts + 3), at = ld_relaxed_sys_v2(parts + 4),
               done = ld_relaxed_sys_v2(parts + 5);
        state_ = static_cast<u32>(what.lo >> 32);
        number_ = static_cast<u32>(what.hi);
        flags_ = static_cast<u32>(what.hi >> 32);
        send_ = rings.lo;
        completion_ = rings.hi;
        record_ = more.lo;
        masks_ = more.hi;
        responder_ = other.lo;
        seen_ = at.lo;
        head_ = at.hi;
        target_ = done.lo;
        produced_ = done.hi;
    }

    // Whether anything was done. Nothing waits for its time, so that an engine that ends has none to do before it.
    GPUVM_DEVICE bool take(bool) {
        look_at_doorbell();
        for (u32 n = 0; n < kRequestsATurn && moved_ < kBytesATurn && head_ != target_; ++n)
            execute_next(Sentence{Failure{0, 0}, false});
        store();
        return true;
    }

  protected:
    // What stands at a place of the ring.
    struct Found {
        u32 at, blocks;
        bool whole;  // all of it was announced
        Local local;
        Failure refused;  // no syndrome: it makes sense
    };

    GPUVM_DEVICE void store() const {
        if (lane_id() != 0) return;
        st_relaxed_gpu(&queue_->seen, seen_);
        st_relaxed_gpu(&queue_->head, head_);
        st_relaxed_gpu(&queue_->target, target_);
        st_relaxed_gpu(&queue_->produced, produced_);
    }

    GPUVM_DEVICE u32 send_mask() const { return static_cast<u32>(masks_); }

    GPUVM_DEVICE void count(u32 what, u64 n) {
        if (lane_id() == 0) atom_add_relaxed_gpu(&queue_->counts[what], n);
    }

    GPUVM_DEVICE void look_at_doorbell() {
        u64 raw = 0;
        // Acquire: pairs with the fence before the poster's store, so that the requests are seen that it announces.
        if (lane_id() == 0) raw = ld_acquire_sys(&queue_->doorbell);
        // The first lane's acquire comes before all lanes' loads: a shuffle orders nothing.
        __syncwarp();
        raw = of_first(raw);
        if (raw == seen_) return;
        seen_ = raw;
        u32 index = low(raw) >> 8 & 0xffff, ahead = index - static_cast<u32>(target_) & 0xffff;
        if (high(raw) >> 8 != number_ || ahead > send_mask() + 1) return count(layout::NIC_COUNT_DOORBELLS, 1);
        target_ += ahead;
        u32 record = mlx5::be32(ld_relaxed_sys(reinterpret_cast<const u32*>(record_)));
        if ((record - index & 0xffff) >= 0x8000) count(layout::NIC_COUNT_DOORBELLS, 1);
    }

    GPUVM_DEVICE Found find(const RequestAt& request, u64 place) const {
        Found found{static_cast<u32>(place) & 0xffff, request.blocks(), false, Local{false, {0, 0}, 0},
                    Failure{kSyndromeLocalOperation, kVendorMalformed}};
        found.whole = request.units != 0 && request.units <= kUnitsMax && found.blocks <= target_ - place;
        u32 access = request.opcode == mlx5::kOpcodeRead ? layout::NIC_LOCAL_WRITE : 0;
        if (found.whole) found.local = check_local(engine_, request, access);
        if (found.local.sound && request.index != found.at)
            found.refused.vendor = kVendorWrongIndex;
        else if (found.local.sound && request.queue_pair != number_)
            found.refused.vendor = kVendorWrongQueuePair;
        else if (found.local.sound)
            found.refused = Failure{0, 0};
        return found;
    }

    GPUVM_DEVICE void break_down() {
        state_ = layout::NIC_ERROR;
        if (lane_id() == 0) st_relaxed_sys(&queue_->state, state_);
    }

    // Whether its completion was lost.
    GPUVM_DEVICE bool execute_next(const Sentence& sentence) {
        RequestAt request(send_, send_mask(), head_);
        Found found = find(request, head_);
        if (state_ == layout::NIC_ERROR) {
            head_ += found.whole ? found.blocks : 1;
            count(layout::NIC_COUNT_FLUSHED, 1);
            tell(request.opcode, found.at, 0, Failure{kSyndromeFlushed, kVendorFlushed});
            return false;
        }
        Failure failure = sentence.failure.syndrome ? sentence.failure : found.refused;
        if (!failure.syndrome) failure = execute(request, found.local, request.opcode == mlx5::kOpcodeRead);
        // What makes no sense takes one block.
        bool refused = failure.vendor >= kVendorMalformed && failure.vendor <= kVendorWrongQueuePair;
        head_ += refused || !found.whole ? 1 : found.blocks;
        if (failure.syndrome) {
            break_down();
            count(layout::NIC_COUNT_ERRORS, 1);
        } else if (!request.signalled) {
            return false;
        } else if (sentence.loses) {
            ++produced_;
            return true;
        }
        tell(request.opcode, found.at, found.local.bytes, failure);
        return false;
    }

    GPUVM_DEVICE Failure execute(const RequestAt& request, const Local& local, bool reads) {
        // Of a DUMP too: data has arrived when its completion has, so there is nothing to flush.
        if (request.opcode == mlx5::kOpcodeNop || request.opcode == mlx5::kOpcodeDump) {
            if (!local.failure.syndrome) count(layout::NIC_COUNT_OTHERS, 1);
            return local.failure;
        }
        if (!reads && request.opcode != mlx5::kOpcodeWrite) return Failure{kSyndromeLocalOperation, kVendorUnsupported};
        if (!answers()) return Failure{kSyndromeRetriesExceeded, kVendorNoResponder};
        if (!reads && local.failure.syndrome) return local.failure;
        pair64 far = request.unit(1);
        u64 remote = be64(far.lo);
        u32 access = reads ? layout::NIC_REMOTE_READ : layout::NIC_REMOTE_WRITE;
        if (local.bytes && !allows(engine_, low(far.hi), layout::NIC_KEY_REMOTE, &remote, local.bytes, access))
            return Failure{kSyndromeRemoteAccess, kVendorRemoteKey};
        if (local.failure.syndrome) return local.failure;
        u64 left = local.bytes;
        for (u32 n = request.head_units(); n < request.units; ++n) {
            pair64 segment = request.unit(n);
            u64 near = be64(segment.hi), bytes = data_bytes(low(segment.lo));
            // Asked again for where it is: the poster may have rewritten the slot since.
            if (!allows(engine_, high(segment.lo), 0, &near, bytes, reads ? layout::NIC_LOCAL_WRITE : 0) ||
                bytes > left)
                return Failure{kSyndromeLocalProtection, kVendorLocalKey};
            move_bytes(reads ? near : remote, reads ? remote : near, bytes);
            remote += bytes;
            left -= bytes;
        }
        count(reads ? layout::NIC_COUNT_READS : layout::NIC_COUNT_WRITES, 1);
        count(layout::NIC_COUNT_BYTES, local.bytes);
        moved_ += local.bytes;
        return Failure{0, 0};
    }

    GPUVM_DEVICE bool answers() const {
        u32 place = static_cast<u32>(responder_), number = static_cast<u32>(responder_ >> 32);
        if (place == place_) return number == number_;
        const layout::NicQueue* other = queue_at(engine_, place);
        u32 state = of_first(ld_relaxed_sys(&other->state));
        return of_first(ld_relaxed_sys(&other->number)) == number &&
               (state == layout::NIC_READY_TO_RECEIVE || state == layout::NIC_READY_TO_SEND);
    }

    // Writes a completion.
    GPUVM_DEVICE void tell(u32 opcode, u32 index, u64 bytes, const Failure& failure) {
        bool failed = failure.syndrome != 0;
        u32 mask = static_cast<u32>(masks_ >> 32), owner = (static_cast<u32>(produced_) & (mask + 1)) != 0;
        u32 slot = flags_ & layout::QUEUE_COLLAPSED ? 0 : static_cast<u32>(produced_) & mask;
        u32 kind = failed ? mlx5::kCompletionError : mlx5::kCompletionRequest;
        ++produced_;
        count(layout::NIC_COUNT_COMPLETIONS, 1);
        // What the lanes have moved comes before the first one's release.
        __syncwarp();
        if (lane_id() == 0) {
            u64* entry = reinterpret_cast<u64*>(completion_) + slot * 8;
            u64 now = time_ns(), details = static_cast<u64>(mlx5::be32(failure.vendor << 8 | failure.syndrome)) << 32;
            u64 when = mlx5::words(mlx5::be32(static_cast<u32>(now >> 32)), mlx5::be32(static_cast<u32>(now)));
            for (u32 n = 0; n < 5; ++n) st_relaxed_sys(entry + n, u64{0});
            st_relaxed_sys(entry + 5, mlx5::words(0, failed ? 0 : mlx5::be32(static_cast<u32>(bytes))));
            st_relaxed_sys(entry + 6, failed ? details : when);
            u32 tail = index << 16 | kind << 4 | owner;
            // Release: data and body come before the owner's bit and the index, which pollers load with acquire. In one
            // word, so that a collapsed entry has both of one completion.
            st_release_sys(entry + 7, mlx5::words(mlx5::be32(opcode << 24 | number_), mlx5::be32(tail)));
        }
        __syncwarp();
    }

    const layout::NicEngine& engine_;
    layout::NicQueue* queue_;
    u32 place_, state_, number_, flags_;
    u64 send_, completion_, record_, masks_, responder_;
    u64 seen_, head_, target_, produced_;
    u64 moved_ = 0;
};

// Looks at this warp's queue pairs; whether anything was done.
template <class T>
GPUVM_DEVICE bool serve(const layout::NicEngine& engine, u32 warp, u32 warps, bool ends) {
    bool any = false;
    for (u32 first = warp; first < engine.queue_count; first += 32 * warps) {
        u32 mine = first + lane_id() * warps;
        u32 ready = __ballot_sync(~0u, mine < engine.queue_count && has_work(queue_at(engine, mine)));
        for (; ready; ready &= ready - 1) {
            u32 lane = static_cast<u32>(__ffs(static_cast<int>(ready))) - 1;
            any = T(engine, first + lane * warps, warp).take(ends) || any;
            // The first lane's stores come before any lane's next look.
            __syncwarp();
        }
    }
    return any;
}

// The host's word: the first warp of a block asks for it now and then, the others it tells. Where this engine was asked
// to end by its stop word, it says so.
GPUVM_DEVICE u64 control_of(const layout::NicEngine& engine, u32 number, bool asks, u64* asked_at) {
    u64 word = 0;
    if (lane_id() == 0) {
        u64* told = reinterpret_cast<u64*>(engine.told) + 16 * blockIdx.x;
        if (asks && time_ns() - *asked_at >= kControlEveryNs) {
            *asked_at = time_ns();
            // Acquire: what the host has written before it said so. Release: for the block's other warps.
            const u64* control = reinterpret_cast<const u64*>(engine.control);
            word = ld_acquire_sys(control);
            if (ld_relaxed_sys(reinterpret_cast<const u32*>(control + 1) + number % layout::NIC_STOP_WORDS))
                word = static_cast<u64>(number) << 32 | static_cast<u32>(word);
            st_release_gpu(told, word);
        } else {
            // Acquire: pairs with that release.
            word = ld_acquire_gpu(told);
        }
    }
    // For all lanes: a shuffle orders nothing.
    __syncwarp();
    return __shfl_sync(~0u, word, 0);
}

// Serves queue pairs until the host says that engine `number` is to end. Blocks are whole warps.
template <class T>
GPUVM_DEVICE void run_engine(const layout::NicEngine& engine, u32 number) {
    u32 in_block = threadIdx.x / 32, warps = gridDim.x * (blockDim.x / 32), warp = in_block * gridDim.x + blockIdx.x;
    u32* heard = reinterpret_cast<u32*>(engine.heard) + warp;
    u32 change = 0, idle = 0;
    u64 asked_at = 0;
    while (true) {
        u64 word = control_of(engine, number, in_block == 0, &asked_at);
        if (static_cast<u32>(word) != change) {
            change = static_cast<u32>(word);
            // Release: whatever this warp did by what the tables said before is done.
            if (lane_id() == 0) st_release_sys(heard, change);
        }
        bool ends = static_cast<u32>(word >> 32) >= number;
        // Before the host has spoken to this launch nothing is known.
        if (change && serve<T>(engine, warp, warps, ends)) {
            idle = 0;
            continue;
        }
        // Not before: kernels end without waiting for all that they have announced.
        if (ends) return;
        idle += idle < kIdleLooks;
        sleep_ns(idle < kIdleLooks ? 32 : 512);
    }
}

}  // namespace nic
}  // namespace detail
}  // namespace gpuvm
