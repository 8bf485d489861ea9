//! Counters that wrap, and times that are compared: what single functions of the device library make of all values near their ends.

use std::collections::VecDeque;

use bytemuck::Zeroable;
use gpuvm::{LaunchConfig, Placement, Transport};
use gpuvm_layouts::{self as layout, PoolDesc, PoolState};
use rand::RngExt;

use crate::common::{Bench, Kernels, simulated};
use crate::program::{rng, seeds};

const SOURCE: Kernels = Kernels {
    name: "wrapping.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
namespace lib = gpuvm::detail;
namespace layout = gpuvm::layout;
typedef unsigned long long u64;

// What a count is at another place of the hand than that at which it was noted.
__global__ void counts(const unsigned* uses, const u64* hands, unsigned shift, unsigned n, unsigned* now) {
    layout::VictimsDesc victims{};
    victims.age_shift = shift;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        now[i] = lib::uses_now(lib::uses_at(uses[i], lib::age_at(&victims, hands[2 * i])),
                               lib::age_at(&victims, hands[2 * i + 1]));
}

// Whether a region is backed off whose time is so far from now; then one that begins to back off, and how far its time is.
__global__ void backed(const unsigned* away, unsigned n, u64 limit, unsigned* is, unsigned* begun) {
    layout::RegionDesc region{};
    for (unsigned i = 0; i < n; ++i) {
        region.backed_off_until = static_cast<unsigned>(lib::time_ns() >> lib::kBackOffShift) + away[i];
        is[i] = lib::is_backed_off(&region);
    }
    layout::VmDesc vm{};
    vm.wait_limit_ns = limit;
    lib::back_off(&vm, &region);
    begun[0] = region.backed_off_until - static_cast<unsigned>(lib::time_ns() >> lib::kBackOffShift);
    begun[1] = lib::is_backed_off(&region);
    lib::end_back_off(&region);
    begun[2] = lib::is_backed_off(&region);
}

// Whether pages of `rank` are spared from one who may take those up to `asked`, `passed` frames after pages up to `fewer` were not.
__global__ void spared(const unsigned* ranks, const u64* hands, unsigned frames, unsigned n, unsigned* is) {
    layout::PoolState pool{};
    layout::VmDesc vm{};
    vm.pool.state = reinterpret_cast<u64>(&pool);
    vm.pool.count = frames;
    layout::RegionDesc region{};
    for (unsigned i = 0; i < n; ++i) {
        pool.hand = hands[2 * i];
        if (ranks[3 * i + 2]) lib::lower_protection(&vm, ranks[3 * i + 2]);
        else pool.spared = 0;
        pool.hand += hands[2 * i + 1];
        region.flags = ranks[3 * i] << layout::REGION_RANK_SHIFT;
        is[i] = lib::is_spared(&vm, &region, ranks[3 * i + 1]);
    }
}

// Gives a run of frames, or takes one: 0.
__global__ void pool(u64 at, const u64* gives, unsigned limit, unsigned n, unsigned* taken) {
    const auto* desc = reinterpret_cast<const layout::PoolDesc*>(at);
    for (unsigned i = 0; i < n; ++i) {
        if (gives[i]) lib::pool_give_run(desc, static_cast<unsigned>(gives[i] >> 32), gives[i] & 0xffffffff, limit);
        else if (!lib::pool_pop(desc, taken + i)) taken[i] = ~0u;
    }
}
",
};

const FAR: [u64; 7] = [0, 1 << 8, 1 << 16, 1 << 31, 1 << 32, 1 << 48, 1 << 55];

fn bench() -> Bench {
    // Its kernels use what serves faults.
    let builder = simulated(4).placement(Placement::Fetch);
    Bench::new(builder.transport(Transport::Direct), SOURCE)
}

/// A buffer of these.
fn given<T: bytemuck::Pod>(bench: &Bench, values: &[T]) -> gpuvm::Buffer<T> {
    let buffer = bench.vm.buffer::<T>(values.len().max(1) as u64).unwrap();
    buffer.write(values).unwrap();
    buffer
}

#[test]
fn a_count_halves_with_each_age_that_it_is_old() {
    let (bench, most) = (bench(), (1 << layout::USE_AGE_SHIFT) - 1);
    for shift in [0u32, 1, 5, 30] {
        let (mut uses, mut hands, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for age in [0u64, 200, 254, 255, 256, 511, 1 << 24] {
            for ages in (0..30u64).chain([100, 254, 255]) {
                for used in [0, 1, 2, 3, 1000, most - 1, most, most + 1, u32::MAX] {
                    // In the last moment of an age, or in the first.
                    let moment = [0, (1 << shift) - 1];
                    let noted = (age << shift) + moment[used as usize % 2];
                    let now = ((age + ages) << shift) + moment[used as usize / 2 % 2];
                    if now < noted {
                        continue;
                    }
                    let passed = (now >> shift) - (noted >> shift);
                    uses.push(used);
                    hands.extend([noted, now]);
                    expected.push(used.min(most).checked_shr(passed as u32).unwrap_or(0));
                }
            }
        }
        let (n, now) = (uses.len() as u32, given(&bench, &vec![9u32; uses.len()]));
        let args = (&given(&bench, &uses), &given(&bench, &hands), shift, n, &now);
        bench.must("counts", LaunchConfig::new(1, 64), args);
        assert_eq!(now.to_vec().unwrap(), expected, "ages of 2^{shift} frames");
    }
}

#[test]
fn who_backs_off_does_so_for_a_part_of_the_wait_limit_and_never_again() {
    let bench = bench();
    for limit in [0u64, 1 << 20, 10_000_000_000, 3_600_000_000_000] {
        // In units of 2^16 ns from now; one of them may pass meanwhile.
        let over =
            (0..40)
                .map(|bit| 0u32.wrapping_sub((1u64 << bit) as u32))
                .chain([0, 1 << 31, (1 << 31) - 1, 1 << 30]);
        let over: Vec<u32> = over.collect();
        let is = given(&bench, &vec![9u32; over.len()]);
        let begun = given(&bench, &[9u32; 3]);
        let args = (&given(&bench, &over), over.len() as u32, limit, &is, &begun);
        bench.must("backed", LaunchConfig::new(1, 1), args);
        let is = is.to_vec().unwrap();
        let wrong: Vec<u32> = over
            .iter()
            .zip(&is)
            .filter(|(_, is)| **is != 0)
            .map(|(away, _)| *away)
            .collect();
        assert!(wrong.is_empty(), "{wrong:x?}");
        let [away, during, after] = begun.to_vec().unwrap()[..] else {
            unreachable!()
        };
        let part = (limit / 64) >> 16;
        let near = u64::from(away) <= part + 2 && u64::from(away) + 1000 >= part;
        assert!(near || limit == 0, "{away} units of a limit of {limit} ns");
        assert_eq!((during != 0 || limit < 1 << 30, after), (true, 0));
    }
}

#[test]
fn pages_are_spared_by_rank_until_the_hand_has_gone_round() {
    let (bench, ranks) = (bench(), 0..=layout::REGION_RANK_MAX);
    for frames in [1u32, 100, 5000] {
        let round = u64::from(frames).max(64 * 32);
        let (mut given_ranks, mut hands, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (its, asked) in ranks
            .clone()
            .flat_map(|its| ranks.clone().map(move |asked| (its, asked)))
        {
            for (fewer, hand) in ranks
                .clone()
                .flat_map(|fewer| FAR.map(|far| (fewer, far.saturating_sub(3))))
            {
                for passed in [0, 1, round - 1, round, round + 1] {
                    given_ranks.extend([its, asked, fewer]);
                    hands.extend([hand, passed]);
                    let lets_go = its <= asked || (its <= fewer && passed < round);
                    expected.push(u32::from(!lets_go));
                }
            }
        }
        let (n, is) = (expected.len() as u32, given(&bench, &vec![9u32; expected.len()]));
        let args = (&given(&bench, &given_ranks), &given(&bench, &hands), frames, n, &is);
        bench.must("spared", LaunchConfig::new(1, 1), args);
        let is = is.to_vec().unwrap();
        let wrong = is.iter().zip(&expected).position(|(is, expected)| is != expected);
        let which = wrong.map(|at| (&given_ranks[3 * at..][..3], &hands[2 * at..][..2]));
        assert_eq!(which, None, "of {frames} frames: ranks, hand and frames passed");
    }
}

#[test]
fn a_pool_is_a_queue_in_whatever_lap_it_is() {
    let bench = bench();
    for seed in seeds(40_000, 24) {
        let rng = &mut rng(seed);
        let count = [1u64, 2, 3, 5, 7, 31, 32, 33][rng.random_range(0..8)];
        let laps = [0, 1 << 30, 1 << 31, 1 << 32, (1 << 52) / count][rng.random_range(0..5)];
        let start = (laps * count).saturating_sub(rng.random_range(0..3 * count));
        let limit = rng.random_range(1..=count) as u32;
        // Empty: a slot before the next ticket's place is a lap ahead.
        let lap = |place: u64| start / count + u64::from(place < start % count);
        let ring: Vec<u64> = (0..count).map(|place| (2 * lap(place)) << 32).collect();
        let state = PoolState {
            head: start,
            tail: start,
            ..PoolState::zeroed()
        };
        let (ring, state) = (
            given(&bench, &ring),
            given(&bench, bytemuck::cast_slice::<_, u64>(&[state])),
        );
        let desc = PoolDesc::new(state.addr(), ring.addr(), count as u32);
        let desc = given(&bench, bytemuck::cast_slice::<_, u64>(&[desc]));
        let (mut model, mut expected, mut gives) = (VecDeque::new(), Vec::new(), Vec::new());
        for _ in 0..200 {
            let room = count as usize - model.len();
            let (first, which) = (
                rng.random_range(0..limit),
                rng.random::<u32>() >> rng.random_range(0..32),
            );
            if which == 0 || which.count_ones() as usize > room || rng.random_range(0..3) == 0 {
                gives.push(0);
                expected.push(model.pop_front().unwrap_or(u32::MAX));
                continue;
            }
            gives.push(u64::from(first) << 32 | u64::from(which));
            let frames = (0..32)
                .filter(|bit| which >> bit & 1 == 1)
                .map(|bit| (first + bit) % limit);
            model.extend(frames);
            expected.push(0);
        }
        let (n, taken) = (gives.len() as u32, given(&bench, &vec![0u32; gives.len()]));
        let args = (desc.addr(), &given(&bench, &gives), limit, n, &taken);
        bench.must("pool", LaunchConfig::new(1, 1), args);
        assert_eq!(
            taken.to_vec().unwrap(),
            expected,
            "seed {seed}: {count} frames from ticket {start} on"
        );
        let left = bytemuck::pod_read_unaligned::<PoolState>(bytemuck::cast_slice(&state.to_vec().unwrap()));
        assert_eq!(left.available, model.len() as u64, "seed {seed}");
        assert_eq!(left.tail - left.head, left.available, "seed {seed}");
    }
}
