//! Memory that a region borrows cannot be touched, freed or outlived while it is lent: the compiler says so
//! (`docs/guide/tests/misuse.rs`), and the scope waits whatever becomes of the handles.

use crate::common::{BASIC, Bench, PAGE_WORDS, compare, refused, small};
use gpuvm::{Error, LaunchConfig, Placement, Transport};

#[test]
fn a_forgotten_handle_changes_nothing() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), BASIC);
    let mut memory = vec![0u32; 30 * PAGE_WORDS as usize];
    let ended = bench.vm.scope(|scope| {
        let lent = scope.region("forgotten", &mut memory)?;
        std::mem::forget(bench.launch("fill", LaunchConfig::new(2, 64), (&lent, 9u32)));
        std::mem::forget(lent);
        Ok(())
    });
    ended.unwrap();
    let expected: Vec<u32> = (0..memory.len() as u32).map(|i| i + 9).collect();
    compare(&memory, &expected).unwrap();
}

#[test]
fn a_scope_that_fails_or_panics_gives_the_memory_back_written() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), BASIC);
    for panics in [false, true] {
        let mut memory = vec![0u32; 30 * PAGE_WORDS as usize];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bench.vm.scope(|scope| {
                let lent = scope.region("lent", &mut memory)?;
                let _running = bench.launch("fill", LaunchConfig::new(2, 64), (&lent, 9u32));
                if panics {
                    std::panic::panic_any("on purpose");
                }
                lent.read(u64::MAX, &mut [0])
            })
        }));
        match outcome {
            Ok(outcome) => assert!(refused(outcome).contains("out of range") && !panics),
            Err(panic) => assert_eq!(panic.downcast_ref(), Some(&"on purpose")),
        }
        let expected: Vec<u32> = (0..memory.len() as u32).map(|i| i + 9).collect();
        compare(&memory, &expected).unwrap();
    }
}

#[test]
fn what_the_body_returns_comes_out_of_the_scope() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), BASIC);
    let numbers = [5u32, 6, 7];
    let sum = bench.vm.scope(|scope| {
        let lent = scope.read_only("three", &numbers)?;
        // The lent memory may be read meanwhile.
        assert_eq!(numbers[1], 6);
        let sink = bench.vm.buffer::<u64>(1)?;
        bench.run("sum", LaunchConfig::new(1, 32), (&lent, &sink))?;
        Ok::<_, Error>(sink.to_vec()?[0])
    });
    assert_eq!(sum.unwrap(), 18);
}

#[test]
fn two_may_read_the_same_memory_each_as_it_is_placed() {
    let bench = Bench::new(small(8).placement(Placement::Fetch).transport(Transport::Direct), BASIC);
    let numbers: Vec<u32> = (0..4096).collect();
    let sums = bench.vm.scope(|scope| {
        let mut found = Vec::new();
        let kept = scope.read_only_placed("kept", &numbers, Placement::Fetch)?;
        for (region, fetches) in [
            (
                &scope.read_only_placed("in place", &numbers, Placement::InPlace)?,
                false,
            ),
            (&kept, true),
            (&scope.read_only("again", &numbers)?, true),
        ] {
            let before = bench.vm.stats()?;
            let sink = bench.vm.buffer::<u64>(1)?;
            bench.run("sum", LaunchConfig::new(1, 32), (&**region, &sink))?;
            let fetched = bench.vm.stats()?.difference(&before).pages_fetched;
            assert_eq!(fetched > 0, fetches, "{}: {fetched} pages", region.name());
            found.push(sink.to_vec()?[0]);
        }
        Ok::<_, Error>(found)
    });
    assert_eq!(sums.unwrap(), [4096 * 4095 / 2; 3]);
}
