//! The software NIC keeps to the limits of a NIC that it is given: by name, or as numbers; what cannot keep to them is refused.

use std::time::{Duration, Instant};

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, refused, says, simulated, words};
use gpuvm::{LaunchConfig, NicEngine, NicLimits, Soft, SoftNic, Vm, VmBuilder};
use gpuvm_nic::Nic;

const N: u64 = 40 * PAGE_WORDS;

/// Settings of a small virtual memory over a NIC of these limits.
fn over(frames: u64, limits: NicLimits) -> VmBuilder {
    let builder = simulated(frames);
    let queues = builder.transport_asked().queues().unwrap_or_default();
    builder.transport(Soft::new().queues(queues).limits(limits))
}

fn limited(frames: u64) -> VmBuilder {
    over(frames, NicLimits::connectx7())
}

/// Sums all words and checks the sum.
fn sum(bench: &Bench) {
    let first = words(3, N);
    let a = bench.vm.region::<u32>().read_only().from_vec(first.clone()).unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
    assert_eq!(
        sink.to_vec().unwrap(),
        [first.iter().map(|word| u64::from(*word)).sum::<u64>()]
    );
}

/// One page after the other over one queue pair of one request: none comes sooner than after the latency.
#[test]
fn pages_take_the_time_of_the_limits() {
    let latency_ns = 200_000;
    let limits = NicLimits {
        latency_ns,
        ..NicLimits::connectx7()
    };
    for engine in [NicEngine::Cpu, NicEngine::Gpu(1)] {
        let builder = over(64, limits).queue_pairs(1).queue_depth(1);
        let bench = Bench::new(builder.soft(|soft| soft.engine(engine)), BASIC);
        let begun = Instant::now();
        sum(&bench);
        let least = Duration::from_nanos(latency_ns) * 40;
        assert!(
            begun.elapsed() >= least,
            "{:?} for 40 pages, engine {engine}",
            begun.elapsed()
        );
        let able = match bench.vm.kernel_nic() {
            Some(nic) => nic.capabilities(),
            None => bench.vm.soft_nic().expect("the software NIC").capabilities(),
        };
        assert_eq!(
            (able.link_bits_per_second, able.max_rd_atomic),
            (Some(400_000_000_000), 16)
        );
    }
}

/// Under a seed time is the simulation's: the same each time.
#[test]
fn a_seeded_run_has_them_too() {
    let run = || {
        let bench = Bench::new(limited(8).seed(5), BASIC);
        sum(&bench);
        let nic = bench.vm.soft_nic().expect("the software NIC").stats();
        assert!(nic.reads >= 40 && nic.read_depth_max <= 16, "{nic:?}");
        (nic, bench.vm.stats().unwrap())
    };
    assert_eq!(format!("{:?}", run()), format!("{:?}", run()));
}

#[test]
fn they_have_a_name() {
    let named = |limits| Vm::builder().named([("gpu", "sim"), ("nic-limits", limits)]);
    for (limits, bits) in [("connectx-7", Some(400_000_000_000)), ("none", None)] {
        let vm = named(limits).unwrap().build().unwrap();
        let able = vm.soft_nic().expect("the software NIC").capabilities();
        assert_eq!((able.link_bits_per_second, able.max_rd_atomic), (bits, 16));
    }
    let wrong = named("connectx-9").map(drop);
    says(&refused(wrong), &["nic_limits is `connectx-9`", "none or connectx-7"]);
    let direct = Vm::builder().named([("transport", "direct"), ("nic_limits", "connectx-7")]);
    says(
        &refused(direct.map(drop)),
        &["transport direct has none", "auto or soft"],
    );
}

#[test]
fn where_they_cannot_be_kept_a_reason_is_given() {
    let refuse = |builder: VmBuilder, parts: &[&str]| {
        says(
            &refused(builder.build()),
            &[&["NIC limits is connectx-7: "], parts].concat(),
        );
    };
    let given = limited(8).soft(|soft| soft.nic(SoftNic::builder().build().unwrap().into()));
    refuse(given, &["NIC of your own"]);
    let shallow = NicLimits {
        send_queue_entries: 8,
        ..NicLimits::connectx7()
    };
    let many = NicLimits {
        reads_per_queue_pair: 65,
        ..NicLimits::connectx7()
    };
    let many = over(8, many).soft(|soft| soft.engine(NicEngine::Gpu(1))).build();
    says(&refused(many), &["NIC limits is limits of its own", "at most 64"]);
    let deep = over(8, shallow).queue_depth(16).build();
    says(&refused(deep), &["queue depth is 16", "limits of its own", "at most 8"]);
}
