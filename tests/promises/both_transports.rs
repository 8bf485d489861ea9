//! Pages of one warp that come by different transports: some copied by lanes, some moved by a NIC.
//!
//! The runtime builds virtual memories with one transport, and its programs are compiled for that one. So a kernel turns
//! one of two regions into one whose pages lanes copy: the software NIC's homes are memory that lanes reach as well.

use std::time::Duration;

use crate::common::{Adjust, Bench, PAGE_WORDS, compare, planted, scaled, simulated_soft};
use gpuvm::{CompileOptions, LaunchConfig};
use gpuvm_simulate::bench::Kernels;

const KERNELS: Kernels = Kernels {
    name: "transports.cu",
    text: r#"
#include <gpuvm/gpuvm.cuh>
using namespace gpuvm;
typedef gpuvm::array<unsigned> words;

__device__ layout::RegionDesc* region_of(words& a) {
    layout::ArrayDesc& array = reinterpret_cast<layout::ArrayDesc&>(a);
    return reinterpret_cast<layout::RegionDesc*>(detail::vm_of(array)->regions) + detail::region_of(array);
}

// From here on lanes copy the pages of `a`.
__global__ void let_lanes_copy(words a) {
    layout::RegionDesc* region = region_of(a);
    region->home = reinterpret_cast<const layout::StripeDesc*>(region->stripes)->home;
}

// Adds 1 to every 16th element of both. Neighbours in a warp are at different pages, every other one at one of `a`.
__global__ void add_one(words a, words b) {
    reinterpret_cast<layout::ArrayDesc&>(a).home = region_of(a)->home;
    unsigned long long lanes = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    unsigned long long lane = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (unsigned turn = 0; turn < 2; ++turn)
        for (unsigned long long i = lane; i < a.size() / 16 && !a.failed(); i += lanes) {
            words& mine = lane % 2 == turn ? a : b;
            mine[i * 77 % (a.size() / 16) * 16] += 1;
        }
}
"#,
};

/// Compiled with all features, as a program is that others compile.
fn for_both(mut options: CompileOptions) -> CompileOptions {
    let asked = "#if defined(GPUVM_FEATURES)";
    let all = planted("gpuvm/detail/region.cuh", asked, "#if defined(GPUVM_NO_FEATURES)");
    options.headers.extend(all.headers);
    options
}

/// What came of it under this seed.
fn mixed(seed: u64, options: &CompileOptions, deadline: Duration) -> Result<(), String> {
    let builder = simulated_soft(2 + seed % 5).queue_depth(4).seed(seed);
    let bench = Bench::with(builder.launch_deadline(deadline), KERNELS, options);
    let n = 8 * PAGE_WORDS as u32;
    let make = |name| bench.vm.region::<u32>().name(name).from_iter(0..n);
    let (a, b) = (make("copied").unwrap(), make("queued").unwrap());
    bench.must("let_lanes_copy", LaunchConfig::new(1, 1), (&a,));
    let added = bench.run("add_one", LaunchConfig::new(2, 64), (&a, &b));
    added.map_err(|error| crate::common::with_causes(&error))?;
    let expected: Vec<u32> = (0..n).map(|i| i + u32::from(i % 16 == 0)).collect();
    for region in [&a, &b] {
        compare(&region.to_vec().unwrap(), &expected)?;
    }
    let stats = bench.vm.stats().unwrap();
    // Each page of either region came at least once; those of one by requests, which write-backs are too.
    if stats.pages_fetched < 16
        || stats.requests < 8
        || stats.requests >= stats.pages_fetched + stats.pages_written_back
    {
        return Err(format!("not both transports: {stats:?}"));
    }
    Ok(())
}

#[test]
fn lanes_of_a_warp_fetch_by_both_transports_at_once() {
    let options = for_both(CompileOptions::default());
    for seed in 0..8 {
        mixed(seed, &options, scaled(Duration::from_secs(60))).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn the_test_above_finds_a_library_that_takes_all_lanes_for_one_transports() {
    let parted = "__match_any_sync(miss->active, static_cast<u32>(miss->transport()));";
    let together = planted("gpuvm/detail/fault.cuh", parted, "miss->active;");
    let together = for_both(together);
    let found = (0..8).find_map(|seed| mixed(seed, &together, Duration::from_secs(1)).err());
    println!("{}", found.expect("none of 8 interleavings shows the bug"));
}
