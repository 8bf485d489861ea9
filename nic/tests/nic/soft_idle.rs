//! An engine without work uses no processor time. In a process of its own: it looks at the threads of its process.

use std::time::Duration;

use crate::common::Bed;
use gpuvm_nic::SoftNic;

/// Processor time of all engine threads so far, in clock ticks (10 ms), and how many threads there are.
fn engine_ticks() -> (u64, usize) {
    let mut sum = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").expect("Linux").flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else {
            continue;
        };
        let Some((head, tail)) = stat.rsplit_once(") ") else {
            continue;
        };
        if head.contains("nic-engine-") {
            // After the name: state is field 0; utime and stime are fields 11 and 12.
            let ticks = tail
                .split(' ')
                .skip(11)
                .take(2)
                .map(|field| field.parse::<u64>().expect("a number"));
            sum = (sum.0 + ticks.sum::<u64>(), sum.1 + 1);
        }
    }
    sum
}

/// Set for the process that `idle_engines_sleep` starts.
const CHILD: &str = "GPUVM_TEST_IDLE_CHILD";

#[test]
fn idle_engines_sleep() {
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "soft_idle::idle_engines_sleep"])
            .env(CHILD, "1")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let bed = Bed::new(SoftNic::builder().engines(2));
    let mut posters: Vec<_> = (0..64).map(|_| bed.poster(64)).collect();
    for poster in &mut posters {
        assert!(bed.run(poster, bed.read(0), &[bed.local(0, 4096)]).is_success());
    }
    std::thread::sleep(Duration::from_millis(100));
    let (before, threads) = engine_ticks();
    assert_eq!(threads, 2);
    let sleeps = bed.nic.stats().sleeps;
    std::thread::sleep(Duration::from_millis(2_500));
    let (after, _) = engine_ticks();
    assert!(
        after - before <= 1,
        "{} ticks of 10 ms in 2.5 s of idleness",
        after - before
    );
    // They wake once a second on their own, no more.
    let woken = bed.nic.stats().sleeps - sleeps;
    assert!((2..=8).contains(&woken), "{woken} sleeps");
    assert!(
        bed.run(&mut posters[63], bed.read(0), &[bed.local(0, 4096)])
            .is_success()
    );
    assert_eq!(bed.nic.stats().late_wakes, 0);
}
