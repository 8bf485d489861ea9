//! Slot caches: each call's records are in the slots that it says, whatever came before, and nothing of that waits for the host.

use std::collections::BTreeMap;

use gpuvm::{Buffer, Error, Ids, LaunchConfig, Region, SlotCache, SlotFault, SlotPolicy, Vm};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{Bench, Kernels, config, direct, pattern, refused, with_causes};
use crate::mock_gpu::MockGpu;

const SOURCE: Kernels = Kernels {
    name: "slots.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
__global__ void plus(unsigned long long word, unsigned by) { atomicAdd(reinterpret_cast<unsigned*>(word), by); }
__global__ void add(gpuvm::array<unsigned long long> a, unsigned long long by) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * 1ull * blockDim.x) a[i] += by;
}
",
};

fn vm(frames: u64) -> Vm {
    direct(frames)
        .build()
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

fn table(vm: &Vm, records: u64, words: u64, seed: u64) -> Region<u64> {
    let values = (0..records * words).map(|i| pattern(seed, i));
    vm.region::<u64>().from_iter(values).unwrap()
}

fn ids(vm: &Vm, ids: &[i64]) -> Buffer<i64> {
    let buffer = vm.buffer(ids.len() as u64).unwrap();
    buffer.write(ids).unwrap();
    buffer
}

/// The slots of a call, which ended well.
fn ensure(vm: &Vm, cache: &SlotCache, wanted: &[i64]) -> Vec<i32> {
    let slots = vm.buffer::<i32>(wanted.len() as u64).unwrap();
    cache.ensure(&ids(vm, wanted), &slots).unwrap();
    cache.wait().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    slots.to_vec().unwrap()
}

/// Word `word` of a slot.
fn word(cache: &SlotCache, table: usize, words: u64, slot: i32, word: u64) -> u64 {
    let mut chunk = [0; 16];
    let at = u64::from(slot as u32) * words / 2 + word / 2;
    cache.frames(table).read_bytes_from(at, &mut chunk).unwrap();
    let half = 8 * (word % 2) as usize;
    u64::from_ne_bytes(chunk[half..half + 8].try_into().unwrap())
}

/// Each record has one slot, no slot has two, and all of each record is there.
fn check(cache: &SlotCache, wanted: &[i64], slots: &[i32], tables: &[(u64, u64)]) -> BTreeMap<i64, i32> {
    let (mut of, mut back) = (BTreeMap::new(), BTreeMap::new());
    for (&id, &slot) in wanted.iter().zip(slots) {
        if id == -1 {
            assert_eq!(slot, -1);
            continue;
        }
        assert!((0..cache.slots() as i32).contains(&slot), "record {id} in slot {slot}");
        assert_eq!(*of.entry(id).or_insert(slot), slot, "record {id} has two slots");
        assert_eq!(*back.entry(slot).or_insert(id), id, "slot {slot} has two records");
    }
    for (n, &(words, seed)) in tables.iter().enumerate() {
        let mut frames = vec![0u64; words as usize * cache.slots() as usize];
        cache
            .frames(n)
            .read_bytes(bytemuck::cast_slice_mut(&mut frames))
            .unwrap();
        for (&id, &slot) in &of {
            let found = &frames[words as usize * slot as usize..][..words as usize];
            let right = (0..words).all(|k| found[k as usize] == pattern(seed, id as u64 * words + k));
            assert!(right, "table {n}: slot {slot} has something else than record {id}");
        }
    }
    of
}

/// Words of a record and seeds: a chunk, one that lanes share badly, and one of several parts.
const TABLES: [(u64, u64); 3] = [(2, 1), (14, 2), (2 * 32 * 8 + 10, 3)];

#[test]
fn records_are_in_the_slots_that_calls_say() {
    let vm = vm(4);
    let records = 900;
    let regions = TABLES.map(|(words, seed)| table(&vm, records, words, seed));
    for (seed, policy) in [
        (1, SlotPolicy::LeastRecent),
        (2, SlotPolicy::Frequency),
        (3, SlotPolicy::FirstCome),
    ] {
        let slots = 150;
        let builder = vm.slot_cache(slots).policy(policy);
        let cache = regions
            .iter()
            .zip(TABLES)
            .fold(builder, |builder, (region, (words, _))| {
                builder.table(region, 8 * words)
            });
        let cache = cache.build().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut hits, mut resident) = (0, BTreeMap::new());
        // One block plans most; the last ones are of several.
        for count in [1, 7, 150, 40, 600, 1, 90, 5000, 4100, 33] {
            let hot = rng.random_range(0..records as i64);
            let some: Vec<i64> = (0..150)
                .map(|_| (hot + rng.random_range(0..300)) % records as i64)
                .collect();
            let draw = |_| match rng.random_range(0..8) {
                0 => -1,
                _ => some[rng.random_range(0..150)],
            };
            let wanted: Vec<i64> = (0..count).map(draw).collect();
            let found = check(&cache, &wanted, &ensure(&vm, &cache, &wanted), &TABLES);
            let had = wanted.iter().filter(|id| resident.contains_key(*id));
            hits += had.clone().count() as u64;
            for id in had {
                assert_eq!(resident[id], found[id], "record {id} moved");
            }
            // What was given away is not known: the slots of this call are.
            let taken: Vec<i32> = found.values().copied().collect();
            resident.retain(|_, slot| !taken.contains(slot));
            resident.extend(found);
            let stats = cache.stats().unwrap();
            assert_eq!(stats.hits, hits, "{policy:?}, {count} ids");
            let free = stats.misses - stats.evictions;
            assert!(free <= slots && stats.evictions <= stats.misses);
            assert_eq!(
                stats.bytes,
                stats.misses * 8 * TABLES.iter().map(|(words, _)| words).sum::<u64>()
            );
        }
    }
}

#[test]
fn slots_leave_by_the_rule_that_was_chosen() {
    let vm = vm(4);
    let region = table(&vm, 64, 2, 1);
    let cache = |policy| vm.slot_cache(8).policy(policy).table(&region, 16).build().unwrap();
    let run =
        |cache: &SlotCache, ids: &mut dyn Iterator<Item = i64>| ids.for_each(|id| drop(ensure(&vm, cache, &[id])));
    let hits = |cache: &SlotCache| cache.stats().unwrap().hits;
    // The one that was used longest ago.
    let recent = cache(SlotPolicy::LeastRecent);
    run(&recent, &mut (0..8).chain([0, 1, 2, 4, 8, 9]));
    let before = hits(&recent);
    run(&recent, &mut [0, 1, 2, 4, 6, 7, 8, 9].into_iter());
    assert_eq!(hits(&recent), before + 8);
    run(&recent, &mut [3, 5].into_iter());
    assert_eq!(hits(&recent), before + 8);
    // Of a scan that begins anew as many stay as there are slots, but one.
    for (policy, each) in [(SlotPolicy::FirstCome, 7), (SlotPolicy::LeastRecent, 0)] {
        let scanned = cache(policy);
        for round in 0..4 {
            run(&scanned, &mut (0..16));
            assert_eq!(hits(&scanned), round * each, "{policy:?}");
        }
    }
    // Those that are used often stay beside others that come once.
    let often = cache(SlotPolicy::Frequency);
    run(&often, &mut (0..20).map(|n| n % 4));
    let before = hits(&often);
    run(&often, &mut (10..40));
    run(&often, &mut (0..4));
    assert_eq!(hits(&often), before + 4);
}

#[test]
fn more_records_than_slots_and_ids_of_none_are_told_and_change_nothing_else() {
    let vm = vm(4);
    let region = table(&vm, 6000, 2, 1);
    let tables = [(2, 1)];
    let cache = vm.slot_cache(40).table(&region, 16).build().unwrap();
    for count in [41i64, 3000, 5000] {
        let wanted: Vec<i64> = (0..count).collect();
        let slots = vm.buffer::<i32>(count as u64).unwrap();
        cache.ensure(&ids(&vm, &wanted), &slots).unwrap();
        let Err(Error::Slots { fault, .. }) = cache.wait() else {
            panic!("{count} records fit into 40 slots")
        };
        let missing = count as u64 - 40;
        assert_eq!(fault, SlotFault::TooManyRecords { missing, slots: 40 });
        let slots = slots.to_vec().unwrap();
        let (wanted, slots): (Vec<i64>, Vec<i32>) = wanted.iter().zip(&slots).filter(|(_, slot)| **slot >= 0).unzip();
        assert_eq!(slots.len(), 40);
        check(&cache, &wanted, &slots, &tables);
        // Those that found none are as they were.
        let wanted: Vec<i64> = (count - 40..count).collect();
        check(&cache, &wanted, &ensure(&vm, &cache, &wanted), &tables);
        cache.wait().unwrap();
    }
    for bad in [6000, i64::MAX, -2, i64::MIN] {
        let slots = vm.buffer::<i32>(3).unwrap();
        cache.ensure(&ids(&vm, &[5, bad, 7]), &slots).unwrap();
        let why = refused(cache.wait());
        assert!(why.contains(&bad.to_string()) && why.contains("6000 records"), "{why}");
        let slots = slots.to_vec().unwrap();
        assert_eq!(slots[1], -1);
        check(&cache, &[5, 7], &[slots[0], slots[2]], &tables);
    }
    let short = vm.buffer::<i32>(2).unwrap();
    let why = refused(cache.ensure(&ids(&vm, &[1, 2, 3]), &short));
    assert!(why.contains("0..3") && why.contains('2'), "{why}");
    cache
        .ensure(&ids(&vm, &[1, 2, 3]), &vm.buffer::<i32>(9).unwrap())
        .unwrap();
    cache.wait().unwrap();
}

#[test]
fn held_records_and_those_of_the_last_call_stay() {
    let vm = vm(4);
    let region = table(&vm, 500, 4, 1);
    let tables = [(4, 1)];
    let cache = vm.slot_cache(30).table(&region, 32).build().unwrap();
    let first: Vec<i64> = (100..110).collect();
    let kept = vm.buffer::<i32>(10).unwrap();
    cache.ensure(&ids(&vm, &first), &kept).unwrap();
    cache.hold(&kept).unwrap();
    for round in 0..5 {
        let others: Vec<i64> = (20 * round..20 * round + 20).collect();
        check(&cache, &others, &ensure(&vm, &cache, &others), &tables);
    }
    check(&cache, &first, &kept.to_vec().unwrap(), &tables);
    let others: Vec<i64> = (200..221).collect();
    cache.ensure(&ids(&vm, &others), &vm.buffer(21).unwrap()).unwrap();
    let why = refused(cache.wait());
    assert!(why.contains("1 records got no slot"), "{why}");
    cache.release(&kept).unwrap();
    check(&cache, &others, &ensure(&vm, &cache, &others), &tables);
    cache.release(&kept).unwrap();
    let why = refused(cache.wait());
    assert!(why.contains("released more often than it was held"), "{why}");
    // What is fetched ahead takes the slots that the last call does not need, and no others.
    let last: Vec<i64> = (300..320).collect();
    let slots = ensure(&vm, &cache, &last);
    let before = cache.stats().unwrap();
    cache.prefetch(&ids(&vm, &(400..440).collect::<Vec<_>>())).unwrap();
    cache.wait().unwrap();
    check(&cache, &last, &slots, &tables);
    assert_eq!(cache.stats().unwrap().prefetched, before.prefetched + 10);
    assert_eq!(ensure(&vm, &cache, &last), slots);
    let ahead: Vec<i64> = (400..440).collect();
    let before = cache.stats().unwrap().hits;
    for one in ahead.chunks(1) {
        check(&cache, one, &ensure(&vm, &cache, one), &tables);
    }
    assert!(
        cache.stats().unwrap().hits > before,
        "none of those that came ahead was there"
    );
}

#[test]
fn what_is_stored_to_a_table_is_seen_by_the_next_call() {
    let bench = Bench::new(direct(40), SOURCE);
    let vm = &bench.vm;
    let region = table(vm, 300, 2, 1);
    let cache = vm.slot_cache(64).table(&region, 16).build().unwrap();
    let wanted: Vec<i64> = (10..40).collect();
    let kept = vm.buffer::<i32>(30).unwrap();
    cache.ensure(&ids(vm, &wanted), &kept).unwrap();
    cache.hold(&kept).unwrap();
    let kept = kept.to_vec().unwrap();
    let mut added = 0;
    for round in 0..4 {
        if round % 2 == 0 {
            // Its pages come to frames, where they are written.
            bench.must("add", config(), (&region, 5u64));
            bench.must("add", config(), (&region, 5u64));
        } else {
            let mut values = region.to_vec().unwrap();
            values.iter_mut().for_each(|value| *value = value.wrapping_add(10));
            region.write(0, &values).unwrap();
        }
        added += 10;
        let all: Vec<i64> = (0..60).collect();
        let slots = ensure(vm, &cache, &all);
        // Held ones are in their slots, and new as well.
        assert_eq!(&slots[10..40], &kept[..]);
        for (id, slot) in all.iter().zip(slots) {
            let wanted = pattern(1, 2 * *id as u64 + 1).wrapping_add(added);
            assert_eq!(word(&cache, 0, 2, slot, 1), wanted, "record {id} in round {round}");
        }
    }
    let hits = cache.stats().unwrap().hits;
    ensure(vm, &cache, &wanted);
    assert_eq!(
        cache.stats().unwrap().hits,
        hits + 30,
        "nothing was stored, and records were fetched anew"
    );
    region.close().unwrap();
    let why = refused(cache.ensure(&ids(vm, &wanted), &vm.buffer(30).unwrap()));
    assert!(why.contains("has ended"), "{why}");
}

#[test]
fn graphs_have_calls_for_ids_that_change() {
    let tables = [(6, 1)];
    for (slots, count) in [(50, 40), (5000, 4500)] {
        let gpu = MockGpu::new(None);
        let vm = direct(4).gpu(gpu.clone()).build().unwrap();
        let region = table(&vm, 9000, 6, 1);
        let cache = vm.slot_cache(slots).table(&region, 48).build().unwrap();
        let (given, out) = (vm.buffer::<i64>(count).unwrap(), vm.buffer::<i32>(count).unwrap());
        // SAFETY: the buffers live as long as the graph.
        let call = || unsafe { cache.ensure_on(0, Ids::from(&given), out.addr()) };
        gpu.capture(true);
        let why = refused(call());
        assert!(why.contains("captured") && why.contains("once before"), "{why}");
        gpu.capture(false);
        call().unwrap();
        gpu.capture(true);
        call().unwrap();
        gpu.capture(false);
        let mut rng = ChaCha8Rng::seed_from_u64(slots);
        for _ in 0..6 {
            let first = rng.random_range(0..4000);
            let wanted: Vec<i64> = (0..count).map(|_| first + rng.random_range(0..count as i64)).collect();
            given.write(&wanted).unwrap();
            gpu.launch_captured();
            cache.wait().unwrap();
            check(&cache, &wanted, &out.to_vec().unwrap(), &tables);
        }
    }
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let vm = vm(4);
    let region = table(&vm, 10, 4, 1);
    let build = |slots, record_bytes| vm.slot_cache(slots).table(&region, record_bytes).build();
    for (slots, record_bytes, said) in [
        (0, 32, "from 1"),
        (1 << 31, 32, "from 1"),
        (4, 0, "multiples of 16"),
        (4, 24, "multiples of 16"),
        (4, (64 << 20) + 16, "multiples of 16"),
        (4, 48, "not a multiple of the record size"),
    ] {
        let why = refused(build(slots, record_bytes));
        assert!(why.contains(said), "{why}");
    }
    let why = refused(vm.slot_cache(4).build());
    assert!(why.contains("tables"), "{why}");
    let why = refused(vm.slot_cache(4).table(&region, 32).table(&region, 16).build());
    assert!(why.contains("it has 20 records") && why.contains("10"), "{why}");
}

/// As if another call, or a hold, were under way that never ends: it is told, and what it left is gone.
#[test]
fn calls_beside_each_other_are_told_and_the_cache_begins_anew() {
    let bench = Bench::new(direct(4), SOURCE);
    let region = table(&bench.vm, 60, 2, 1);
    let cache = bench.vm.slot_cache(9).table(&region, 16).build().unwrap();
    let busy = cache.description().state + core::mem::offset_of!(gpuvm_layouts::SlotCacheState, busy) as u64;
    let wanted = [3, 1, 59];
    for beside in [1u32 << 24, 1] {
        check(&cache, &wanted, &ensure(&bench.vm, &cache, &wanted), &[(2, 1)]);
        bench.must("plus", LaunchConfig::new(1, 1), (busy, beside));
        let slots = bench.vm.buffer::<i32>(3).unwrap();
        cache.ensure(&ids(&bench.vm, &wanted), &slots).unwrap();
        let told = cache.wait();
        assert!(
            matches!(
                told,
                Err(Error::Slots {
                    fault: SlotFault::CallsBeside,
                    ..
                })
            ),
            "{told:?}"
        );
        let before = cache.stats().unwrap();
        check(&cache, &wanted, &ensure(&bench.vm, &cache, &wanted), &[(2, 1)]);
        assert_eq!(cache.stats().unwrap().misses - before.misses, 3);
    }
    // A hold beside a call as well.
    let slots = bench.vm.buffer::<i32>(3).unwrap();
    cache.ensure(&ids(&bench.vm, &wanted), &slots).unwrap();
    bench.must("plus", LaunchConfig::new(1, 1), (busy, 1u32 << 24));
    cache.hold(&slots).unwrap();
    assert!(matches!(
        cache.wait(),
        Err(Error::Slots {
            fault: SlotFault::CallsBeside,
            ..
        })
    ));
    cache.release(&slots).unwrap();
    cache.wait().unwrap();
}

/// A hold keeps what the call before it brought, whatever was stored meanwhile; the next call brings that.
#[test]
fn a_hold_behind_a_store_keeps_its_records() {
    let vm = vm(4);
    let region = table(&vm, 60, 2, 1);
    let cache = vm.slot_cache(9).table(&region, 16).build().unwrap();
    let wanted = [3, 1, 59];
    let slots = vm.buffer::<i32>(3).unwrap();
    cache.ensure(&ids(&vm, &wanted), &slots).unwrap();
    let new: Vec<u64> = (0..120).map(|i| pattern(2, i)).collect();
    region.write(0, &new).unwrap();
    cache.hold(&slots).unwrap();
    let again = ensure(&vm, &cache, &[10, 1, 59, 3]);
    assert_eq!(again[1..], [1, 2, 0].map(|n| slots.to_vec().unwrap()[n]));
    check(&cache, &[10, 1, 59, 3], &again, &[(2, 2)]);
    cache.release(&slots).unwrap();
    cache.wait().unwrap();
}
