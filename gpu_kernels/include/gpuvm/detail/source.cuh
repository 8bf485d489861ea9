// Where a page is while no frame of this GPU holds it, and how it comes from there: the one answer to its exact length,
// its address at home and its transport. A new place (used in place, a copy at a neighbour) is a value of `Transport`,
// a field of `Source` and a case here.
#pragma once

#include "region.cuh"

namespace gpuvm {
namespace detail {

// How a page moves between its home and a frame. Lanes whose pages have different transports do nothing collective
// together.
enum class Transport : u32 {
    kCopied,  // lanes copy it: they reach its home by loads and stores
    kQueued,  // a NIC moves it, over a queue pair of its stripe
};

struct Source {
    u64 home;                          // the page's address at its home
    const layout::StripeDesc* stripe;  // the queue pairs that reach it; null where lanes copy it
    u32 bytes;                         // its exact length: the last page of a region may be shorter
};

// All pages of a region have one transport today. A region whose pages lanes copy has an address that they reach.
GPUVM_DEVICE Transport transport_by(u64 home) {
    return kDirect && (!kQueued || home != 0) ? Transport::kCopied : Transport::kQueued;
}
GPUVM_DEVICE Transport transport_of(const layout::RegionDesc* region) { return transport_by(region->home); }
GPUVM_DEVICE Transport transport_of(const layout::ArrayDesc& array) { return transport_by(array.home); }
GPUVM_DEVICE bool is_direct(const layout::RegionDesc* region) { return transport_of(region) == Transport::kCopied; }

// Exact length of the page that begins at byte `start` of a region of `bytes` bytes.
GPUVM_DEVICE u32 page_length(u64 bytes, u64 start, u32 whole) {
    u64 rest = bytes - start;
    return rest < whole ? static_cast<u32>(rest) : whole;
}

// Number of a page among those of its home, and which home that is.
GPUVM_DEVICE u64 page_at_home(const layout::RegionDesc* region, u64 page, u32* home) {
    *home = 0;
    return region->homes == 1 ? page : divide(page, region->homes, region->homes_reciprocal, home);
}
// The stripe that holds a page, in the replica that the page id names.
GPUVM_DEVICE const layout::StripeDesc* stripe_of(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    u32 home;
    u64 at_home = page_at_home(region, page_of(id), &home), stripe = static_cast<u64>(home) * region->nics;
    if (is_replicated(region)) stripe += replica_of(id) * region->homes * region->nics;
    if (region->nics > 1) stripe += (at_home * layout::NIC_HASH >> 32) * region->nics >> 32;
    return reinterpret_cast<const layout::StripeDesc*>(region->stripes) + stripe;
}

// The source of a page, by the page id that frames and requests keep.
GPUVM_DEVICE Source source_of(const layout::VmDesc* vm, u64 id) {
    const layout::RegionDesc* region = region_of(vm, id);
    u64 page = page_of(id), start = page << vm->page_shift, at_home = start;
    u32 home, whole = 1u << vm->page_shift;
    if (is_direct(region)) return Source{region->home + start, nullptr, page_length(region->bytes, start, whole)};
    const layout::StripeDesc* stripe = reinterpret_cast<const layout::StripeDesc*>(region->stripes);
    if (region->homes != 1 || region->nics != 1 || is_replicated(region)) {
        stripe = stripe_of(vm, id);
        at_home = page_at_home(region, page, &home) << vm->page_shift;
    }
    return Source{stripe->home + at_home, stripe, page_length(region->bytes, start, whole)};
}

// The source of a page of an array. A page that lanes copy needs no look at its region.
GPUVM_DEVICE Source source_of(const layout::ArrayDesc& array, u64 page) {
    if (transport_of(array) == Transport::kQueued) return source_of(vm_of(array), page_id(region_of(array), page));
    u64 start = page << array.page_shift;
    return Source{array.home + start, nullptr, page_length(array.bytes, start, array.offset_mask + 1)};
}

}  // namespace detail
}  // namespace gpuvm
