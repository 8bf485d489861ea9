//! What the host is promised: a flush comes after the launches before it, reads see what kernels wrote, kernels see
//! what the host wrote, and a flush beside running kernels covers earlier writes and ends.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    BASIC, Bench, PAGE_WORDS, STEP, compare, refused, says, scaled, simulated_soft, small, stepped, with_causes,
};
use gpuvm::soft::{Fault, FaultPlan};
use gpuvm::{Error, LaunchConfig, Placement};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

#[test]
fn a_flush_comes_after_every_launch_before_it() {
    let bench = Bench::new(small(64).placement(Placement::Fetch), BASIC);
    let pages = 30;
    let a = bench.vm.region::<u32>().zeroed(pages * PAGE_WORDS).unwrap();
    for round in 0..5u32 {
        let before = bench.vm.stats().unwrap();
        let first = bench.launch("fill", LaunchConfig::new(2, 64), (&a, round));
        let second = bench.launch("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        a.flush().unwrap();
        assert!(first.is_done() && second.is_done());
        let written = bench.vm.stats().unwrap().difference(&before).pages_written_back;
        assert_eq!(written, pages, "every page was dirty and was written back once");
        a.flush().unwrap();
        let again = bench.vm.stats().unwrap().difference(&before).pages_written_back;
        assert_eq!(again, pages, "nothing was dirty any more");
        let expected: Vec<u32> = (0..a.len() as u32).map(|i| i + round + 1).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        first.sync().unwrap();
        second.sync().unwrap();
    }
}

#[test]
fn reads_see_launches_and_launches_see_writes_without_a_sync() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), BASIC);
    let n = 20 * PAGE_WORDS + 7;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let mut model = vec![0u32; n as usize];
    let mut launches = Vec::new();
    for round in 0..20u32 {
        launches.push(bench.launch("read_then_write", LaunchConfig::new(2, 64), (&a, STEP)));
        model = stepped(&model, 1);
        let first = (round as usize * 997) % (n as usize - 3000);
        if round % 3 == 0 {
            let values: Vec<u32> = (0..3000).map(|i| i * round).collect();
            a.write(first as u64, &values).unwrap();
            model[first..first + 3000].copy_from_slice(&values);
        } else {
            let mut out = vec![0; 3000];
            a.read(first as u64, &mut out).unwrap();
            compare(&out, &model[first..first + 3000]).unwrap_or_else(|wrong| panic!("round {round}: {wrong}"));
        }
    }
    compare(&a.to_vec().unwrap(), &model).unwrap();
    launches.into_iter().for_each(|launch| {
        launch.sync().unwrap();
    });
}

#[test]
fn host_access_past_the_end_is_refused() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), BASIC);
    let a = bench.vm.region::<u32>().name("ten").from_iter(0..10).unwrap();
    for message in [
        refused(a.read(10, &mut [0])),
        refused(a.read(8, &mut [0; 3])),
        refused(a.read(u64::MAX, &mut [0])),
        refused(a.write(10, &[1])),
        refused(a.write(u64::MAX, &[1, 2])),
    ] {
        assert!(message.contains("`ten`") && message.contains("it has 10"), "{message}");
    }
    a.read(10, &mut []).unwrap();
    a.write(10, &[]).unwrap();
    let fixed = bench.vm.region::<u32>().name("fixed").read_only().zeroed(10).unwrap();
    says(&refused(fixed.write(0, &[1])), &["`fixed`", "read-only"]);
    let buffer = bench.vm.buffer::<u32>(3).unwrap();
    refused(buffer.write(&[0; 4]));
    refused(buffer.read(&mut [0; 4]));
}

/// A flush beside kernels that write on: the even elements were written before, the odd ones count up meanwhile.
fn flush_beside(writer: &str) {
    let bench = Bench::new(small(16).placement(Placement::Fetch), BASIC);
    let pages = 8;
    let n = (pages * PAGE_WORDS) as usize;
    let home: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
    // SAFETY: as long as this slice lives, which is until the scope ends, the region's owner is the NIC, which stores
    // by atomics; the test looks on through `home`'s atomics alone, which allow both, and both live to the end.
    let lent = unsafe { std::slice::from_raw_parts_mut(home.as_ptr().cast::<u32>().cast_mut(), n) };
    let seen = |i: usize| home[i].load(Ordering::Relaxed);
    let ended = bench.vm.scope(|scope| {
        let a = scope.region("beside", lent)?;
        bench.run("fill", LaunchConfig::new(2, 64), (&a, 1_000_000u32))?;
        assert_eq!(seen(0), 0, "nothing was written back by itself: memory is large enough");
        let running = match writer {
            "count_up" => bench.launch(writer, LaunchConfig::new(2, 64), (&a,)),
            _ => bench.launch(writer, LaunchConfig::new(4, 64).warp_spans(1), (&a, PAGE_WORDS)),
        };
        let started = Instant::now();
        a.flush_beside()?;
        for even in (0..n).step_by(2) {
            assert_eq!(
                seen(even),
                1_000_000 + even as u32,
                "{writer}: element {even} was written before the flush"
            );
        }
        let mut last = 0;
        for turn in 0..10 {
            assert!(!running.is_done());
            a.flush_beside()?;
            let now = seen(n - 1);
            assert!(
                now >= last || last > 1_000_000,
                "{writer}, turn {turn}: went back from {last} to {now}"
            );
            last = now;
        }
        // The counters move on while flushes go by.
        let counted = |i: usize| (1..1_000_000).contains(&seen(i));
        while !counted(1) || !counted(n - 1) {
            a.flush_beside()?;
            assert!(
                started.elapsed() < scaled(Duration::from_secs(30)),
                "{writer}: the writes were never written back"
            );
        }
        running.abort();
        assert!(matches!(running.sync(), Err(Error::Stopped { .. })));
        Ok(())
    });
    ended.unwrap();
    assert!(seen(n - 1) > 0 && seen(n - 1) < 1_000_000);
    for even in (0..n).step_by(2) {
        assert_eq!(seen(even), 1_000_000 + even as u32);
    }
    bench.no_violations();
}

#[test]
fn a_flush_beside_writers_ends_and_covers_earlier_writes() {
    flush_beside("count_up");
}

#[test]
fn a_flush_beside_writers_that_hold_their_pages_ends_and_covers_earlier_writes() {
    flush_beside("count_up_held");
}

#[test]
fn a_page_that_cannot_go_home_keeps_no_other_from_it() {
    // More pages than a flush has lanes, none of which needs another's frame.
    let pages = 2000;
    let bench = Bench::new(simulated_soft(pages + 8), BASIC);
    let a = bench
        .vm
        .region::<u32>()
        .name("mostly")
        .zeroed(pages * PAGE_WORDS)
        .unwrap();
    bench.must("fill", LaunchConfig::new(8, 64), (&a, 1u32));
    let plan = FaultPlan::new(Fault::Fail(Syndrome::RemoteOperation)).opcode(Opcode::Write);
    let fault = bench.soft_nic().inject(plan);
    let error = a.flush().expect_err("a page that its home refused");
    assert!(with_causes(&error).contains("`mostly`"), "{}", with_causes(&error));
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    assert_eq!(bench.vm.stats().unwrap().pages_written_back, pages - 1);
    // Asked again, it takes that one too.
    let expected: Vec<u32> = (1..=(pages * PAGE_WORDS) as u32).collect();
    compare(&a.read_home().unwrap(), &expected).unwrap();
}

#[test]
fn no_update_is_lost_beside_flushes() {
    let bench = Bench::new(small(6).placement(Placement::Fetch), BASIC);
    let n = 20 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let mut flushes = 0;
    for _ in 0..6 {
        let launches = [(); 3].map(|()| bench.launch("write_by", LaunchConfig::new(4, 64), (&a, 2u32, 1u32)));
        while !launches.iter().all(gpuvm::Launch::is_done) {
            a.flush_beside().unwrap();
            flushes += 1;
        }
        launches.into_iter().for_each(|launch| {
            launch.sync().unwrap();
        });
    }
    assert!(flushes >= 6);
    compare(&a.to_vec().unwrap(), &vec![18; n as usize]).unwrap();
}
