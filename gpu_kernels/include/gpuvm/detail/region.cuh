// Regions and pages by their page ids: where the page's entry and its frames are. source.cuh has their homes.
#pragma once

#include "page_word.cuh"
#include "report.cuh"
#include "timeline.cuh"

namespace gpuvm {
namespace detail {

// What the device code of a program serves: `layout::FEATURE_*`. All of it, unless the program says less by
// GPUVM_FEATURES, a number: what a virtual memory does not use costs its kernels registers, though nothing where a page
// is there. The runtime says it for source text that it compiles, and refuses launches of a program that lacks what is
// used.
#if defined(GPUVM_FEATURES)
constexpr u32 kFeatures = GPUVM_FEATURES;
#else
constexpr u32 kFeatures = layout::FEATURES_ALL;
#endif
static_assert(kFeatures & (layout::FEATURE_DIRECT | layout::FEATURE_QUEUED) &&
                  !(kFeatures & ~(layout::FEATURES_ALL | layout::FEATURE_TIMELINE)),
              "GPUVM_FEATURES: one of FEATURE_DIRECT and FEATURE_QUEUED at least, and no unknown one");
constexpr bool kDirect = (kFeatures & layout::FEATURE_DIRECT) != 0;
constexpr bool kQueued = (kFeatures & layout::FEATURE_QUEUED) != 0;
constexpr bool kReliable = kQueued && kFeatures & layout::FEATURE_RELIABLE;
constexpr bool kVictims = kDirect && kFeatures & layout::FEATURE_VICTIMS;
static_assert(kTimeline == ((kFeatures & layout::FEATURE_TIMELINE) != 0), "timeline.cuh knows FEATURE_TIMELINE");
constexpr bool kResizable = (kFeatures & layout::FEATURE_RESIZABLE) != 0;

// `value` divided by `divisor`, whose reciprocal is rounded down: the product is the quotient or one less.
GPUVM_DEVICE u64 divide(u64 value, u32 divisor, u64 reciprocal, u32* rest) {
    u64 quotient = multiply_high(value, reciprocal);
    u64 left = value - quotient * divisor;
    if (left >= divisor) {
        ++quotient;
        left -= divisor;
    }
    *rest = static_cast<u32>(left);
    return quotient;
}

GPUVM_DEVICE bool is_replicated(const layout::RegionDesc* region) {
    return kReliable && region->flags & layout::REGION_REPLICATED;
}
GPUVM_DEVICE bool is_checked(const layout::RegionDesc* region) {
    return kReliable && region->flags & layout::REGION_CHECKED;
}
// Neither is so of most regions: one look for both.
GPUVM_DEVICE bool is_reliable(const layout::RegionDesc* region) {
    return kReliable && region->flags & (layout::REGION_REPLICATED | layout::REGION_CHECKED);
}
// A stripe whose home is never available again.
GPUVM_DEVICE bool is_lost(const layout::StripeDesc* stripe) { return kReliable && stripe->flags & layout::STRIPE_LOST; }

GPUVM_DEVICE u32 region_number(u64 id) {
    return static_cast<u32>(id >> layout::PAGE_ID_REGION_SHIFT) & (layout::REGIONS_MAX - 1);
}
// The replica that an page id names, and the values that name another.
GPUVM_DEVICE u32 replica_of(u64 id) {
    return static_cast<u32>(id >> layout::PAGE_ID_REPLICA_SHIFT) & (layout::REPLICAS_MAX - 1);
}
GPUVM_DEVICE u64 at_replica(u64 id, u64 replica) {
    return (id & ~(1ull << layout::PAGE_ID_REPLICA_SHIFT)) | replica << layout::PAGE_ID_REPLICA_SHIFT;
}
GPUVM_DEVICE u64 other_replica(u64 id) { return id ^ 1ull << layout::PAGE_ID_REPLICA_SHIFT; }
GPUVM_DEVICE const layout::RegionDesc* regions_of(const layout::VmDesc* vm) {
    return reinterpret_cast<const layout::RegionDesc*>(vm->regions);
}
GPUVM_DEVICE const layout::RegionDesc* region_of(const layout::VmDesc* vm, u64 id) {
    return regions_of(vm) + region_number(id);
}
GPUVM_DEVICE u64 page_of(u64 id) { return id & (layout::REGION_PAGES_MAX - 1); }
GPUVM_DEVICE u64 page_id(u32 region, u64 page) {
    return layout::PAGE_ID_TAKEN_BIT | static_cast<u64>(region) << layout::PAGE_ID_REGION_SHIFT | page;
}
// What an array's description names.
GPUVM_DEVICE const layout::VmDesc* vm_of(const layout::ArrayDesc& array) {
    return reinterpret_cast<const layout::VmDesc*>(array.vm);
}
GPUVM_DEVICE u64* words_of(const layout::ArrayDesc& array) { return reinterpret_cast<u64*>(array.words); }
GPUVM_DEVICE u32 region_of(const layout::ArrayDesc& array) { return array.region & (layout::REGIONS_MAX - 1); }
GPUVM_DEVICE bool never_evicted(const layout::ArrayDesc& array) { return array.region & layout::ARRAY_NEVER_EVICTED; }
// Whether pages are not used again: the first to leave, and not worth a slot.
GPUVM_DEVICE bool is_read_once(const layout::RegionDesc* region) { return region->flags & layout::REGION_READ_ONCE; }
// Whether the words of absent pages name slots at a neighbour.
GPUVM_DEVICE bool has_victims(const layout::ArrayDesc& array) {
    return kVictims && array.region & layout::ARRAY_VICTIMS;
}
// Whether stores to a page without a frame go to its home.
GPUVM_DEVICE bool stores_in_place(const layout::ArrayDesc& array) {
    return kDirect && array.region & layout::ARRAY_STORES_IN_PLACE;
}
GPUVM_DEVICE u64* word_of(const layout::VmDesc* vm, u64 id) {
    return reinterpret_cast<u64*>(region_of(vm, id)->words) + page_of(id);
}
// The fetch of a page failed, for `code`. Counted last, and with a release: a host that sees the count sees the page.
GPUVM_NOINLINE void fail_page(const layout::VmDesc* vm, u64 id, u32 token, u32 code) {
    publish_error(word_of(vm, id), token, code);
    atom_add_release_gpu(&counters(vm)->pages_failed, u64{1});
}
GPUVM_DEVICE u64 frame_address(const layout::VmDesc* vm, const layout::RegionDesc* region, u32 frame) {
    // One wide multiply-add; a shift of 64 bits would take two instructions and the addition two more.
    return region->frames + static_cast<u64>(frame) * (1u << vm->page_shift);
}
// The key by which the queue pair's NIC reaches a frame of the region.
GPUVM_DEVICE u32 frame_key(const layout::VmDesc* vm, const layout::QueueDesc* queue, const layout::StripeDesc* stripe,
                           u32 frame) {
    u64 keys = stripe->frame_keys != 0 ? stripe->frame_keys : queue->frame_keys;
    return reinterpret_cast<const u32*>(keys)[static_cast<u64>(frame) << vm->page_shift >> layout::FRAME_KEY_SHIFT];
}
GPUVM_DEVICE u32* join_of(const layout::VmDesc* vm, u64 id) {
    return reinterpret_cast<u32*>(region_of(vm, id)->joins) + page_of(id);
}
// Whether its frames come from the pool. A region that is never evicted has its own: page p in frame p.
GPUVM_DEVICE bool is_pooled(const layout::RegionDesc* region) {
    return !(region->flags & layout::REGION_NEVER_EVICTED);
}

GPUVM_DEVICE void count_own_frame(const layout::RegionDesc* region) {
    if (!is_pooled(region)) count_resident(reinterpret_cast<u64*>(region->words));
}

GPUVM_NOINLINE void report_wait(const layout::VmDesc* vm, u32 fault_code, u64 id, u32 queue, u64 index, u64 waited_ns) {
    Fault fault;
    fault.code = fault_code;
    fault.region = region_number(id);
    fault.page = page_of(id);
    fault.queue = queue;
    fault.index = index;
    fault.waited_ns = waited_ns;
    report(vm, fault);
}

}  // namespace detail
}  // namespace gpuvm
