//! Advice changes what a launch costs and never what it computes; what is discarded is not written back.

use crate::common::{
    BASIC, Bench, PAGE_WORDS, compare, config, refused, simulated_soft, small, small_soft, stepped, transports, words,
};
use crate::program::{ProgramShape, give_up, rng, run, seeds, tiny};
use gpuvm::{
    Advice, CompileOptions, Error, Integrity, LaunchConfig, Placement, Region, Stats, Transport, VmBuilder, soft,
};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

const ALL: [Advice; 8] = [
    Advice::Normal,
    Advice::Sequential,
    Advice::Random,
    Advice::ReadOnce,
    Advice::KeepResident,
    Advice::WriteOnce,
    Advice::InPlace,
    Advice::Fetch,
];

/// What it took to read all of a region, whose elements' sum is compared.
fn read(bench: &Bench, a: &Region<u32>, expected: &[u32]) -> Stats {
    let before = bench.vm.stats().unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", config(), (a, &sink));
    let sum: u64 = expected.iter().map(|&word| u64::from(word)).sum();
    assert_eq!(sink.to_vec().unwrap(), [sum]);
    bench.vm.stats().unwrap().difference(&before)
}

#[test]
fn random_programs_come_to_the_same_under_any_advice() {
    for seed in seeds(5100, 60) {
        let shape = ProgramShape {
            advised: true,
            direct: seed % 2 == 0,
            never_evicted: seed % 16 == 15,
            launches: 4,
            ..tiny(seed, 1 + seed / 2 % 4)
        };
        if let Err(wrong) = run::<u32>(&mut rng(seed), &shape, &CompileOptions::default()) {
            let test = "random_programs_come_to_the_same_under_any_advice";
            give_up("advice", test, seed, &shape, &wrong);
        }
    }
}

#[test]
fn what_is_read_is_the_same_under_any_advice_on_where() {
    let values = words(1, 40 * PAGE_WORDS + 4);
    for placement in [
        Placement::Auto,
        Placement::Fetch,
        Placement::InPlace,
        Placement::WhileFree,
        Placement::LookUp,
    ] {
        let bench = Bench::new(
            small(16).placement(Placement::Fetch).transport(Transport::Direct),
            BASIC,
        );
        let a = bench.vm.region::<u32>().read_only().placement(placement);
        let a = a.from_slice(&values).unwrap();
        for (last, advice) in ALL.iter().flat_map(|last| ALL.map(|advice| (*last, advice))) {
            let sink = bench.vm.buffer::<u64>(1).unwrap();
            let running = bench.launch("sum", config(), (&a, &sink));
            // Beside a launch that goes on as it began.
            a.advise(last).unwrap();
            a.advise(advice).unwrap();
            running.sync().unwrap();
            read(&bench, &a, &values);
        }
    }
}

#[test]
fn pages_are_placed_as_was_advised_until_that_is_taken_back() {
    let values = words(2, 40 * PAGE_WORDS);
    for placement in [Placement::Fetch, Placement::InPlace] {
        let bench = Bench::new(small(8).placement(Placement::Fetch).transport(Transport::Direct), BASIC);
        let a = bench.vm.region::<u32>().read_only().placement(placement);
        let a = a.from_slice(&values).unwrap();
        let at_home = |advice| {
            assert!(a.advise(advice).unwrap(), "{advice:?}");
            a.evict().unwrap();
            match read(&bench, &a, &values).pages_fetched {
                0 => true,
                40.. => false,
                some => panic!("{some} pages were fetched under {advice:?}"),
            }
        };
        assert!(at_home(Advice::InPlace));
        // The two kinds of advice go together.
        assert!(at_home(Advice::ReadOnce));
        assert!(!at_home(Advice::Fetch));
        assert!(!at_home(Advice::KeepResident));
        assert_eq!(at_home(Advice::Normal), placement == Placement::InPlace);
    }
}

#[test]
fn advice_that_a_region_cannot_follow_is_said_to_be_ignored() {
    let by_nic = Bench::new(small_soft(8), BASIC);
    let by_lanes = Bench::new(small(8).placement(Placement::Fetch).transport(Transport::Direct), BASIC);
    for (bench, in_place) in [(&by_nic, false), (&by_lanes, true)] {
        let read_only = bench.vm.region::<u32>().read_only().zeroed(PAGE_WORDS).unwrap();
        let own = bench.vm.region::<u32>().never_evicted().zeroed(PAGE_WORDS).unwrap();
        let written = bench.vm.region::<u32>().zeroed(PAGE_WORDS).unwrap();
        assert_eq!(written.advise(Advice::WriteOnce).unwrap(), in_place);
        for advice in ALL {
            let followed = advice != Advice::InPlace || in_place;
            let followed = followed && advice != Advice::WriteOnce;
            assert_eq!(read_only.advise(advice).unwrap(), followed, "{advice:?}");
            let followed = matches!(advice, Advice::Normal | Advice::Random | Advice::Fetch);
            assert_eq!(own.advise(advice).unwrap(), followed, "{advice:?}");
        }
    }
}

/// Pages of a region, of 24, that have left their frames after two passes over another one of seven times the frames.
fn lost(settings: VmBuilder, on_region: Advice, on_stream: Advice) -> u64 {
    let bench = Bench::new(settings, BASIC);
    let (values, others) = (words(3, 24 * PAGE_WORDS), words(4, 500 * PAGE_WORDS));
    let a = bench.vm.region::<u32>().name("worked on").from_slice(&values).unwrap();
    let stream = bench.vm.region::<u32>().name("stream").read_only();
    let stream = stream.from_slice(&others).unwrap();
    a.advise(on_region).unwrap();
    stream.advise(on_stream).unwrap();
    read(&bench, &a, &values);
    for _ in 0..2 {
        read(&bench, &stream, &others);
    }
    let before = bench.vm.stats().unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("touch", LaunchConfig::new(1, 32), (&a, PAGE_WORDS, &sink));
    bench.no_violations();
    bench.vm.stats().unwrap().difference(&before).pages_fetched
}

#[test]
fn pages_that_are_to_stay_outlive_a_stream() {
    for settings in transports(70).map(|builder| builder.placement(Placement::Fetch)) {
        assert_eq!(lost(settings.clone(), Advice::KeepResident, Advice::Normal), 0);
        let without = lost(settings, Advice::Normal, Advice::Normal);
        assert!(
            without > 12,
            "{without} pages left without the advice: this test shows nothing"
        );
    }
}

#[test]
fn a_stream_that_is_read_once_leaves_others_their_frames() {
    for settings in transports(70).map(|builder| builder.placement(Placement::Fetch)) {
        for advice in [Advice::ReadOnce, Advice::Sequential] {
            // A worker that the system stops while its lanes hold the stream's pages has the clock look elsewhere: the least tells, of the
            // same number without the advice, too.
            let least = |advice| {
                let tries = (0..5).map(|_| lost(settings.clone(), Advice::Normal, advice));
                tries.min().unwrap_or(u64::MAX)
            };
            let (with, without) = (least(advice), least(Advice::Normal));
            assert!(
                with <= 6 && without > 12,
                "{with} pages left under {advice:?}, {without} without"
            );
        }
    }
}

#[test]
fn pages_that_are_all_to_stay_leave_all_the_same() {
    for settings in transports(16).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, BASIC);
        let values = words(5, 150 * PAGE_WORDS);
        let a = bench.vm.region::<u32>().from_slice(&values).unwrap();
        assert!(a.advise(Advice::KeepResident).unwrap());
        for round in 1..=2 {
            bench.must("write_by", config(), (&a, 1u32, crate::common::STEP));
            read(&bench, &a, &stepped(&values, round));
        }
        bench.no_violations();
    }
}

#[test]
fn pages_are_read_ahead_where_a_nic_brings_them() {
    for (settings, ahead) in transports(64)
        .map(|builder| builder.placement(Placement::Fetch))
        .into_iter()
        .zip([false, true])
    {
        let bench = Bench::new(settings, BASIC);
        let values = words(6, 200 * PAGE_WORDS);
        let took = |advice| {
            let a = bench.vm.region::<u32>().read_only().from_slice(&values).unwrap();
            a.advise(advice).unwrap();
            read(&bench, &a, &values)
        };
        let (random, sequential) = (took(Advice::Random), took(Advice::Sequential));
        assert_eq!(
            (random.read_ahead, sequential.read_ahead > 0),
            (0, ahead),
            "{sequential:?}"
        );
        assert!(random.faults >= 200, "{random:?}");
        assert_eq!(sequential.faults < 100, ahead, "{sequential:?}");
        bench.no_violations();
    }
}

/// A region of 20 pages and a part of one, all of them dirty: its home holds `old`, its frames `new`.
fn dirty(bench: &Bench, never_evicted: bool) -> (Region<u32>, Vec<u32>, Vec<u32>) {
    let old = words(7, 20 * PAGE_WORDS + 7);
    let region = bench.vm.region::<u32>().name("scratch");
    let region = if never_evicted { region.never_evicted() } else { region };
    let a = region.from_slice(&old).unwrap();
    bench.must("write_by", config(), (&a, 1u32, crate::common::STEP));
    let new = stepped(&old, 1);
    (a, old, new)
}

#[test]
fn what_is_discarded_is_not_written_home() {
    // First and one past the last element; first and one past the last page that lies wholly in between.
    let all = 20 * PAGE_WORDS + 7;
    let cases = [
        (PAGE_WORDS / 2..10 * PAGE_WORDS + 5, 1..10),
        (0..all, 0..21),
        (20 * PAGE_WORDS..all, 20..21),
        (20 * PAGE_WORDS + 1..all, 0..0),
        (5 * PAGE_WORDS..6 * PAGE_WORDS, 5..6),
        (5 * PAGE_WORDS + 1..6 * PAGE_WORDS, 0..0),
        (3 * PAGE_WORDS..3 * PAGE_WORDS, 0..0),
        (all..all, 0..0),
    ];
    for never_evicted in [false, true] {
        for settings in transports(64).map(|builder| builder.placement(Placement::Fetch)) {
            let bench = Bench::new(settings, BASIC);
            for (range, pages) in &cases {
                let (a, old, new) = dirty(&bench, never_evicted);
                let before = bench.vm.stats().unwrap();
                a.discard(range.clone()).unwrap();
                let mut expected = new;
                let gone = pages.start * PAGE_WORDS..(pages.end * PAGE_WORDS).min(all);
                let gone = gone.start as usize..gone.end as usize;
                expected[gone.clone()].copy_from_slice(&old[gone]);
                let took = bench.vm.stats().unwrap().difference(&before);
                assert_eq!(took.bytes_written_back, 0, "{range:?}");
                if !never_evicted {
                    assert_eq!(took.evictions, pages.end - pages.start, "{range:?}");
                }
                // Lanes and the host see the same.
                let took = read(&bench, &a, &expected);
                assert_eq!(took.pages_fetched, pages.end - pages.start, "{range:?}");
                compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("{range:?}: {wrong}"));
                let took = bench.vm.stats().unwrap().difference(&before);
                assert_eq!(took.pages_written_back, 21 - (pages.end - pages.start), "{range:?}");
            }
            bench.no_violations();
        }
    }
}

#[test]
fn a_discard_waits_for_the_launches_that_write_what_it_drops() {
    for settings in transports(64).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, BASIC);
        let (a, old, _) = dirty(&bench, false);
        let running = bench.launch("write_by", config(), (&a, 1u32, 5u32));
        a.discard(0..a.len()).unwrap();
        assert!(running.is_done());
        running.sync().unwrap();
        compare(&a.to_vec().unwrap(), &old).unwrap();
        // Its frames are free again: nothing has to leave for as many pages as there are frames.
        let values = words(8, 64 * PAGE_WORDS);
        let b = bench.vm.region::<u32>().from_slice(&values).unwrap();
        drop(a);
        assert_eq!(read(&bench, &b, &values).evictions, 0);
    }
}

#[test]
fn a_range_that_cannot_be_is_refused() {
    let bench = Bench::new(small(64).placement(Placement::Fetch), BASIC);
    let (a, _, new) = dirty(&bench, false);
    let n = a.len();
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    for range in [0..n + 1, n + 1..n + 1, 5..4, n..0, u64::MAX..u64::MAX, 0..u64::MAX] {
        let refused = a.discard(range.clone());
        assert!(
            matches!(&refused, Err(Error::OutOfRange { name, .. }) if name == "scratch"),
            "{range:?}: {refused:?}"
        );
    }
    compare(&a.to_vec().unwrap(), &new).unwrap();
}

#[test]
fn a_page_that_is_discarded_after_its_write_back_failed_has_no_wrong_checksum() {
    let bench = Bench::new(simulated_soft(8).reliable_regions(true), BASIC);
    let old = words(9, PAGE_WORDS);
    let a = bench.vm.region::<u32>().integrity(Integrity::Crc32c);
    let a = a.from_slice(&old).unwrap();
    bench.must("write_by", config(), (&a, 1u32, crate::common::STEP));
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess)).opcode(Opcode::Write);
    bench.soft_nic().inject(plan);
    refused(a.flush());
    a.discard(0..PAGE_WORDS).unwrap();
    read(&bench, &a, &old);
}
