// A work request as a NIC's engine that is a kernel reads and judges it. The rules are those of the engine that threads
// of the processor run (nic/src/soft/execute.rs, nic/src/wire/mlx5/request.rs), and a test compares the two.
#pragma once

#include "mlx5.cuh"

namespace gpuvm {
namespace detail {
namespace nic {

constexpr u32 kOpcodeWriteImmediate = 0x09;
constexpr u32 kOpcodeCompareSwap = 0x11;
constexpr u32 kOpcodeFetchAdd = 0x12;
constexpr u32 kInline = 1u << 31;  // of a segment's length: the data is in the request
constexpr u32 kUnitsMax = 63;
constexpr u64 kMessageBytesMax = 1ull << 31;

constexpr u32 kSyndromeRemoteAccess = 0x13;

// What is said beside a syndrome: nic/src/soft/vendor.rs.
constexpr u32 kVendorFlushed = 0x01;
constexpr u32 kVendorMalformed = 0x10;
constexpr u32 kVendorWrongIndex = 0x11;
constexpr u32 kVendorWrongQueuePair = 0x12;
constexpr u32 kVendorUnsupported = 0x13;
constexpr u32 kVendorTooLong = 0x15;
constexpr u32 kVendorLocalKey = 0x20;
constexpr u32 kVendorRemoteKey = 0x21;
constexpr u32 kVendorNoResponder = 0x22;

// Syndrome and vendor's, or 0.
struct Failure {
    u32 syndrome;
    u32 vendor;
};

// What was said of a request before it is executed.
struct Sentence {
    Failure failure;  // with a syndrome: it is not, and fails so
    bool loses;       // its completion is never written
};

GPUVM_DEVICE u32 low(u64 words) { return mlx5::be32(static_cast<u32>(words)); }
GPUVM_DEVICE u32 high(u64 words) { return mlx5::be32(static_cast<u32>(words >> 32)); }
GPUVM_DEVICE u64 be64(u64 words) { return static_cast<u64>(low(words)) << 32 | high(words); }
// What the first lane has loaded: others may change the word between two lanes' loads, and all lanes have to go one
// way.
template <class T>
GPUVM_DEVICE T of_first(T value) {
    return __shfl_sync(~0u, value, 0);
}
GPUVM_DEVICE pair64 load_for_all(const pair64* at) {
    pair64 value = ld_relaxed_sys_v2(at);
    return pair64{of_first(value.lo), of_first(value.hi)};
}
// Bytes of a data segment, whose first word is this.
GPUVM_DEVICE u64 data_bytes(u32 first) { return first ? first : kMessageBytesMax; }
// Units of an inline segment.
GPUVM_DEVICE u32 inline_units(u32 first) { return ((first & ~kInline) + 4 + 15) / 16; }

// Whether a key of that side allows this access to `bytes` bytes at `address`, and where lanes find them. To be asked,
// and the answer used, before the warp says that it has heard of a later change.
GPUVM_DEVICE bool allows(const layout::NicEngine& engine, u32 key, u32 side, u64* address, u64 bytes, u32 access) {
    u32 index = (key >> 8) - layout::NIC_KEY_FIRST;
    if (index >= engine.key_count) return false;
    const pair64* entry = reinterpret_cast<const pair64*>(engine.keys) + 2 * index;
    // A thread that names a key has it from the host, which had written all of it. A guess finds a mix at most of the
    // key that is being made and of zeros, which allow nothing.
    pair64 names = load_for_all(entry), span = load_for_all(entry + 1);
    u32 lkey = static_cast<u32>(names.lo), rights = static_cast<u32>(names.lo >> 32);
    if (lkey == 0 || (key & ~layout::NIC_KEY_REMOTE) != lkey || (key & layout::NIC_KEY_REMOTE) != side) return false;
    u64 offset = *address - names.hi;
    if (offset > span.lo || bytes > span.lo - offset || (rights & access) != access) return false;
    *address += span.hi;
    return true;
}

// A request in its ring: all lanes of a warp have the same.
class RequestAt {
  public:
    GPUVM_DEVICE RequestAt(u64 ring, u32 block_mask, u64 head)
        : ring_(ring), mask_(block_mask * 4 + 3), first_(static_cast<u32>(head) * 4) {
        pair64 control = unit(0);
        u32 second = high(control.lo);
        opcode = low(control.lo) & 0xff;
        index = low(control.lo) >> 8 & 0xffff;
        queue_pair = second >> 8;
        units = second & 0xff;
        flags = static_cast<u32>(control.hi) >> 24;
        signalled = static_cast<u32>(control.hi) & mlx5::kSignalled;
    }
    // Whether it waits for earlier READs and atomics: by any fence but none and the initiator's small one.
    GPUVM_DEVICE bool fenced() const { return (flags & 0xe0) > 0x20; }
    GPUVM_DEVICE bool reads_or_swaps() const {
        return opcode == mlx5::kOpcodeRead || opcode == kOpcodeCompareSwap || opcode == kOpcodeFetchAdd;
    }
    GPUVM_DEVICE pair64 unit(u32 n) const {
        return load_for_all(reinterpret_cast<const pair64*>(ring_) + (first_ + n & mask_));
    }
    GPUVM_DEVICE u32 blocks() const { return (units + 3) / 4; }
    // Units before the local data; of operations whose data nothing looks at, all.
    GPUVM_DEVICE u32 head_units() const {
        if (opcode == mlx5::kOpcodeDump) return 1;
        if (opcode == mlx5::kOpcodeRead || opcode == mlx5::kOpcodeWrite || opcode == kOpcodeWriteImmediate) return 2;
        if (opcode == kOpcodeCompareSwap || opcode == kOpcodeFetchAdd) return 3;
        return units;
    }

    u32 opcode, index, queue_pair, units, flags, signalled;

  private:
    u64 ring_;
    u32 mask_, first_;
};

// What the local data of a request comes to.
struct Local {
    bool sound;       // it fills the request exactly
    Failure failure;  // of the first segment that cannot be
    u64 bytes;        // of all
};

GPUVM_DEVICE Local check_local(const layout::NicEngine& engine, const RequestAt& request, u32 access) {
    Local local{request.units >= request.head_units(), {0, 0}, 0};
    u32 n = request.head_units();
    while (n < request.units) {
        pair64 segment = request.unit(n);
        u32 first = low(segment.lo);
        u64 bytes = first & kInline ? first & ~kInline : data_bytes(first), address = be64(segment.hi);
        Failure failure{0, 0};
        if (first & kInline)
            failure = Failure{kSyndromeLocalOperation, kVendorUnsupported};
        else if (!allows(engine, high(segment.lo), 0, &address, bytes, access))
            failure = Failure{kSyndromeLocalProtection, kVendorLocalKey};
        if (!local.failure.syndrome) local.failure = failure;
        local.bytes += bytes;
        n += first & kInline ? inline_units(first) : 1;
    }
    if (n > request.units) local.sound = false;
    if (!local.failure.syndrome && local.bytes > kMessageBytesMax)
        local.failure = Failure{kSyndromeLocalLength, kVendorTooLong};
    return local;
}

}  // namespace nic
}  // namespace detail
}  // namespace gpuvm
