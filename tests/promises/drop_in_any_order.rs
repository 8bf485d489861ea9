//! Everything may be dropped at any time in any order, and several launches, streams and virtual memories live beside
//! each other.

use std::time::Duration;

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, STEP, compare, refused, scaled, simulated, small, with_causes};
use gpuvm::{Error, LaunchConfig};

/// The `n`-th order of `count` things.
fn order(mut n: usize, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    (1..=count)
        .rev()
        .map(|choices| {
            let chosen = left.remove(n % choices);
            n /= choices;
            chosen
        })
        .collect()
}

/// All `count` orders, or as many of them, spread evenly, as GPUVM_TEST_ORDERS says.
fn orders(count: usize) -> impl Iterator<Item = usize> {
    let number = std::env::var("GPUVM_TEST_ORDERS")
        .ok()
        .and_then(|text| text.parse().ok());
    // An odd step takes orders of both halves of every choice.
    let step = count / number.unwrap_or(count).clamp(1, count);
    (0..count).step_by(step | 1)
}

#[test]
fn everything_can_be_dropped_mid_flight_in_every_order() {
    for n in orders(120) {
        let vm = small(4).workers(1).build().unwrap();
        let module = vm.compile(BASIC.name, BASIC.text, &BASIC.names()).unwrap();
        let kernel = module.kernel("sum").unwrap();
        let count = 60 * PAGE_WORDS;
        let region = vm.region::<u32>().zeroed(count).unwrap();
        let buffer = vm.buffer::<u64>(1).unwrap();
        let launch = kernel.launch(LaunchConfig::new(2, 64), (&region, &buffer)).unwrap();
        let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(launch)),
            Some(Box::new(region)),
            Some(Box::new(buffer)),
            Some(Box::new((module, kernel))),
            Some(Box::new(vm)),
        ];
        order(n, things.len())
            .into_iter()
            .for_each(|thing| drop(things[thing].take()));
    }
}

#[test]
fn dropping_kills_and_aborts_mix_in_every_order() {
    for n in orders(24) {
        // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
        let bench = Bench::new(simulated(4).workers(1), BASIC);
        let region = bench.vm.region::<u32>().zeroed(10 * PAGE_WORDS).unwrap();
        let turns = bench.vm.buffer::<u32>(1).unwrap();
        // It runs until it is stopped: the thread that waits for it first would wait for ever, so it is stopped first.
        let launch = bench.launch("until_stopped", LaunchConfig::new(1, 64), (&region, &turns));
        let second = bench.launch("fill", LaunchConfig::new(1, 64), (&region, 1u32));
        if n % 3 > 0 {
            std::thread::sleep(Duration::from_millis(n as u64 % 5));
        }
        if n % 2 == 0 {
            launch.kill()
        } else {
            launch.abort()
        }
        let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(launch)),
            Some(Box::new(second)),
            Some(Box::new(region)),
            Some(Box::new(bench)),
        ];
        order(n, things.len())
            .into_iter()
            .for_each(|thing| drop(things[thing].take()));
    }
}

#[test]
fn regions_and_kernels_in_flight_on_several_streams_keep_to_themselves() {
    let bench = Bench::new(small(12), BASIC);
    let n = 25 * PAGE_WORDS + 3;
    let streams: Vec<_> = (0..4).map(|_| bench.vm.stream().unwrap()).collect();
    let regions: Vec<_> = (0..4)
        .map(|r| bench.vm.region::<u32>().name(format!("region {r}")).zeroed(n).unwrap())
        .collect();
    let mut launches = Vec::new();
    for round in 0..5 {
        for (r, (stream, region)) in streams.iter().zip(&regions).enumerate() {
            let name = if round == 0 { "fill" } else { "read_then_write" };
            let launch = bench
                .kernel(name)
                .launch_on(stream, LaunchConfig::new(2, 64), (region, STEP + r as u32));
            launches.push(launch.unwrap());
        }
    }
    launches.iter().for_each(|launch| {
        launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    });
    for (r, region) in regions.iter().enumerate() {
        let expected: Vec<u32> = (0..n as u32)
            .map(|i| i.wrapping_add((STEP + r as u32).wrapping_mul(5)))
            .collect();
        compare(&region.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("region {r}: {wrong}"));
    }
    bench.no_violations();
}

#[test]
fn an_abort_ends_a_loop_that_asks_and_everything_works_again() {
    let bench = Bench::new(small(8), BASIC);
    let a = bench.vm.region::<u32>().zeroed(4 * PAGE_WORDS).unwrap();
    let turns = bench.vm.buffer::<u32>(1).unwrap();
    let launch = bench.launch("until_stopped", LaunchConfig::new(1, 64), (&a, &turns));
    assert!(
        launch.wait(Some(Duration::from_millis(100))).is_none(),
        "it runs until it is stopped"
    );
    launch.abort();
    let ended = launch
        .wait(Some(scaled(Duration::from_secs(20))))
        .expect("it looks at failed()");
    assert!(
        matches!(ended, Err(Error::Stopped { .. })),
        "what it wrote is incomplete, and it says so: {ended:?}"
    );
    assert!(turns.to_vec().unwrap()[0] > 0);
    bench.must("fill", LaunchConfig::new(2, 64), (&a, 3u32));
    compare(&a.to_vec().unwrap(), &(3..3 + a.len() as u32).collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_killed_launch_in_one_vm_leaves_another_alone() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let (first, second) = (Bench::new(simulated(8), BASIC), Bench::new(simulated(8), BASIC));
    let n = 40 * PAGE_WORDS;
    let (a, b) = (
        first.vm.region::<u32>().zeroed(n).unwrap(),
        second.vm.region::<u32>().zeroed(n).unwrap(),
    );
    let turns = first.vm.buffer::<u32>(1).unwrap();
    for round in 1..=3u32 {
        let endless = first.launch("until_stopped", LaunchConfig::new(2, 64), (&a, &turns));
        let beside = second.launch("read_then_write", LaunchConfig::new(2, 64), (&b, 1u32));
        endless.kill();
        refused(endless.sync());
        beside.sync().unwrap();
        let expected: Vec<u32> = (0..n as u32).map(|_| round).collect();
        compare(&b.to_vec().unwrap(), &expected).unwrap();
        first.must("fill", LaunchConfig::new(2, 64), (&a, round));
        compare(&a.to_vec().unwrap(), &(round..round + n as u32).collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn a_launch_killed_beside_others_fails_alone_or_says_so() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let bench = Bench::new(simulated(8), BASIC);
    let n = 30 * PAGE_WORDS;
    let (a, b) = (
        bench.vm.region::<u32>().zeroed(n).unwrap(),
        bench.vm.region::<u32>().zeroed(n).unwrap(),
    );
    let turns = bench.vm.buffer::<u32>(1).unwrap();
    let other = bench.vm.stream().unwrap();
    for round in 0..6u64 {
        bench.must("fill", LaunchConfig::new(2, 64), (&b, 0u32));
        let endless = bench.launch("until_stopped", LaunchConfig::new(1, 64), (&a, &turns));
        let config = LaunchConfig::new(2, 64);
        let beside = bench
            .kernel("read_then_write")
            .launch_on(&other, config, (&b, 5u32))
            .unwrap();
        std::thread::sleep(Duration::from_millis(round));
        endless.kill();
        refused(endless.sync());
        match beside.sync() {
            // It ran to its end: every element was changed, once.
            Ok(_) => compare(&b.to_vec().unwrap(), &(5..5 + n as u32).collect::<Vec<_>>()).unwrap(),
            // Stopped with it: an error, and each element was changed or was not.
            Err(error) => {
                assert!(matches!(error, Error::Stopped { .. }), "{}", with_causes(&error));
                let found = b.to_vec().unwrap();
                let sound = found.iter().zip(0..).all(|(&v, i)| v == i || v == i + 5);
                assert!(sound, "round {round}");
            }
        }
    }
}

#[test]
fn threads_of_the_host_share_a_virtual_memory() {
    let bench = Bench::new(small(12), BASIC);
    let n = 10 * PAGE_WORDS + 9;
    let rounds = 25u32;
    std::thread::scope(|threads| {
        for t in 0..3u32 {
            let bench = &bench;
            threads.spawn(move || {
                let stream = bench.vm.stream().unwrap();
                let a = bench
                    .vm
                    .region::<u32>()
                    .name(format!("of thread {t}"))
                    .zeroed(n)
                    .unwrap();
                for round in 1..=rounds {
                    let kernel = bench.kernel("read_then_write");
                    let launch = kernel
                        .launch_on(&stream, LaunchConfig::new(1, 64), (&a, t + 1))
                        .unwrap();
                    match round % 4 {
                        0 => a.flush().unwrap(),
                        1 => a.flush_beside().unwrap(),
                        2 => {
                            launch.sync().unwrap();
                        }
                        _ => drop(launch),
                    }
                    let mut last = [0];
                    a.read(n - 1, &mut last).unwrap();
                    assert_eq!(last[0], round * (t + 1), "thread {t}, round {round}");
                }
                compare(&a.to_vec().unwrap(), &vec![rounds * (t + 1); n as usize]).unwrap();
            });
        }
        // Regions come and go meanwhile, with pages in frames, and counters are read.
        for round in 0..rounds {
            let short = bench.vm.region::<u32>().zeroed(4 * PAGE_WORDS).unwrap();
            let launch = bench.launch("fill", LaunchConfig::new(1, 32), (&short, round));
            drop(short);
            launch.sync().unwrap();
            assert!(bench.vm.stats().unwrap().pages_fetched > 0 && bench.vm.bookkeeping_bytes() > 0);
        }
    });
    bench.no_violations();
}

#[test]
fn kernels_killed_at_any_moment_leave_a_sound_memory() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let bench = Bench::new(simulated(6), BASIC);
    let n = 40 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let kept = bench.vm.region::<u32>().zeroed(5 * PAGE_WORDS).unwrap();
    let (mut low, mut high) = (0, 0);
    for round in 0..40u64 {
        bench.must("read_then_write", LaunchConfig::new(1, 64), (&kept, 1u32));
        // Atomic updates, each page dirty, all frames contended.
        let launch = bench.launch("write_by", LaunchConfig::new(4, 64), (&a, 2u32, 1u32));
        std::thread::sleep(Duration::from_micros(round * 150));
        launch.kill();
        high += 1;
        if launch.sync().is_ok() {
            low += 1;
        }
        if round % 5 == 0 {
            let found = a.to_vec().unwrap();
            let wrong = found.iter().position(|v| !(low..=high).contains(v));
            assert_eq!(wrong, None, "round {round}: not between {low} and {high}");
            compare(&kept.to_vec().unwrap(), &vec![round as u32 + 1; kept.len() as usize]).unwrap();
        }
    }
    assert!(low < high, "no launch was killed before its end");
}
