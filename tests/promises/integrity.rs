//! Regions with checksums: bits that flip at the home or on the way are found, and repaired where there is another copy;
//! writers that run beside write-backs are never taken for damage.

use std::os::unix::fs::FileExt as _;

use crate::common::{
    Adjust, BASIC, Bench, PAGE, PAGE_WORDS, compare, file_to_map, planted, refused, says, simulated_soft, small_soft,
    with_causes,
};
use crate::program::{Element, ProgramShape, give_up, rng, run, seeds, tiny};
use gpuvm::{CompileOptions, Error, FaultKind, Integrity, LaunchConfig, Region, VmBuilder, soft};
use gpuvm_nic::wire::mlx5::Opcode;

/// Pages of the regions here, the last one short.
const PAGES: u64 = 24;
const N: u64 = PAGES * PAGE_WORDS - 1000;

/// A virtual memory whose regions may have checksums.
fn reliable(frames: u64) -> VmBuilder {
    small_soft(frames).reliable_regions(true)
}

/// A virtual memory on the simulated GPU whose NIC can flip bits: a NIC with a mover cannot.
fn with_flips(frames: u64) -> VmBuilder {
    simulated_soft(frames).reliable_regions(true)
}

fn checked(bench: &Bench, replicas: u32) -> Region<u32> {
    let region = bench.vm.region::<u32>().name("checked").integrity(Integrity::Crc32c);
    region.replicas(replicas).from_iter(0..N as u32).unwrap()
}

/// A fault that turns one bit over of the `skip`th request of a kind.
fn flip(bench: &Bench, opcode: Opcode, bit: u64, skip: u64) -> soft::FaultId {
    let plan = soft::FaultPlan::new(soft::Fault::Flip { bit });
    bench.soft_nic().inject(plan.opcode(opcode).skip(skip))
}

fn sum(bench: &Bench, a: &Region<u32>) -> Result<u64, Error> {
    let sink = bench.vm.buffer::<u64>(1)?;
    bench.run("sum", LaunchConfig::new(2, 64), (a, &sink))?;
    Ok(sink.to_vec()?[0])
}

/// What a fault says that names everything it should.
fn is_named(error: Error) {
    let Error::Fault { fault, .. } = &error else {
        panic!("not a fault: {}", with_causes(&error));
    };
    assert_eq!(fault.kind, FaultKind::Checksum, "{}", with_causes(&error));
    let message = with_causes(&error);
    for part in ["`checked`", "page", "checksum", "soft", "home"] {
        assert!(message.contains(part), "{part} is not named: {message}");
    }
}

const TOTAL: u64 = (N - 1) * N / 2;

#[test]
fn a_bit_that_flips_on_the_way_is_found_whichever_it_is() {
    let bench = Bench::new(with_flips(6), BASIC);
    let a = checked(&bench, 1);
    assert_eq!(sum(&bench, &a).unwrap(), TOTAL);
    for seed in 0..40u64 {
        a.evict().unwrap();
        let (bit, skip) = (seed * 8191 % (PAGE * 8), seed % PAGES);
        let fault = flip(&bench, Opcode::Read, bit, skip);
        is_named(sum(&bench, &a).expect_err("a wrong bit"));
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        // The home is as it was.
        assert_eq!(sum(&bench, &a).unwrap(), TOTAL, "after bit {bit}");
    }
    assert_eq!(bench.vm.stats().unwrap().pages_corrupt, 40);
    bench.no_violations();
}

#[test]
fn a_bit_that_flips_at_the_home_is_found_whichever_it_is() {
    let bench = Bench::new(with_flips(6), BASIC);
    for seed in 0..20u64 {
        let a = checked(&bench, 1);
        bench.must("fill", LaunchConfig::new(2, 64), (&a, 7u32));
        // On the last way there of a page that is dirty still: the home holds it from then on. How many are is the clock's doing, but
        // the page of the last fault is.
        let fault = flip(&bench, Opcode::Write, seed * 6151 % (PAGE * 8), 0);
        a.evict().unwrap();
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        is_named(sum(&bench, &a).expect_err("a wrong bit"));
        is_named(sum(&bench, &a).expect_err("it is wrong for good"));
        // Written anew, it is right.
        a.write(0, &vec![3; N as usize]).unwrap();
        assert_eq!(sum(&bench, &a).unwrap(), 3 * N);
    }
    bench.no_violations();
}

#[test]
fn what_others_change_in_a_mapped_file_is_damage() {
    let bench = Bench::new(reliable(6), BASIC);
    let file = file_to_map();
    let bytes: Vec<u8> = (0..N as u32).flat_map(u32::to_ne_bytes).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    let region = bench.vm.region::<u32>().name("checked").integrity(Integrity::Crc32c);
    let a = region.map_file_mut(file.path()).unwrap();
    assert_eq!(sum(&bench, &a).unwrap(), TOTAL);
    bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
    a.evict().unwrap();
    for place in [0, 4095, 70_001, bytes.len() as u64 - 1] {
        let mut right = [0];
        file.as_file().read_exact_at(&mut right, place).unwrap();
        file.as_file().write_all_at(&[right[0] ^ 4], place).unwrap();
        is_named(sum(&bench, &a).expect_err("a wrong bit"));
        file.as_file().write_all_at(&right, place).unwrap();
        assert_eq!(sum(&bench, &a).unwrap(), TOTAL + N, "byte {place} is right again");
        a.evict().unwrap();
    }
    assert_eq!(bench.vm.stats().unwrap().pages_corrupt, 4);
    bench.no_violations();
}

#[test]
fn with_a_second_copy_every_page_is_repaired() {
    let bench = Bench::new(with_flips(6).host_homes(2), BASIC);
    let a = checked(&bench, 2);
    let mut bitten = 0;
    for seed in 0..30u64 {
        // One at a time: a page of which both copies are bad is lost.
        let opcode = [Opcode::Read, Opcode::Write][(seed % 2) as usize];
        let fault = flip(&bench, opcode, seed * 9973 % (PAGE * 8), seed * 7 % PAGES);
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        a.evict().unwrap();
        bitten += bench.soft_nic().bitten(fault);
        // Each page is read from both homes before the next bit flips.
        while !a.health().unwrap().is_whole() {
            bench.vm.catch_up().unwrap();
        }
        for _ in 0..2 {
            sum(&bench, &a).unwrap();
            a.evict().unwrap();
        }
    }
    assert_eq!(bitten, 30);
    let total = TOTAL + 30 * N;
    assert_eq!(sum(&bench, &a).unwrap(), total);
    // Read once more from whichever home: what was bad is written anew by now.
    for _ in 0..4 {
        a.evict().unwrap();
        bench.vm.catch_up().unwrap();
        assert_eq!(sum(&bench, &a).unwrap(), total);
    }
    let stats = bench.vm.stats().unwrap();
    println!(
        "{bitten} bits flipped, {} found, {} repaired",
        stats.pages_corrupt, stats.replicas_repaired
    );
    assert!(stats.pages_corrupt > 0);
    assert_eq!(stats.replicas_missed, stats.replicas_repaired);
    a.evict().unwrap();
    assert!(a.health().unwrap().is_whole(), "{:?}", a.health());
    bench.no_violations();
}

#[test]
fn what_the_host_writes_has_its_checksum_as_well() {
    let bench = Bench::new(reliable(6), BASIC);
    let a = checked(&bench, 1);
    let mut expected: Vec<u32> = (0..N as u32).collect();
    for n in 0..30u64 {
        let (first, count) = (n * 739 % (N - 3000), 1 + n * 97 % 2999);
        let values: Vec<u32> = (0..count as u32).map(|i| i ^ n as u32).collect();
        a.write(first, &values).unwrap();
        expected[first as usize..][..count as usize].copy_from_slice(&values);
        assert_eq!(
            sum(&bench, &a).unwrap(),
            expected.iter().map(|&e| u64::from(e)).sum::<u64>()
        );
    }
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    assert_eq!(bench.vm.stats().unwrap().pages_corrupt, 0);
}

#[test]
fn what_the_host_changes_in_part_is_compared_first() {
    for replicas in [1, 2] {
        let bench = Bench::new(with_flips(6).host_homes(2), BASIC);
        let a = checked(&bench, replicas);
        bench.must("fill", LaunchConfig::new(2, 64), (&a, 7u32));
        let fault = flip(&bench, Opcode::Write, 77, 0);
        a.evict().unwrap();
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        let mut expected: Vec<u32> = (7..7 + N as u32).collect();
        let mut damaged = 0;
        // A word of each page, of the short last one too: the host's own reads do not compare, and it is not known which page was written last.
        for place in (10..N).step_by(PAGE_WORDS as usize) {
            match a.write(place, &[1]) {
                Ok(()) => expected[place as usize] = 1,
                Err(Error::Damaged { region, .. }) => {
                    assert_eq!(region, "checked");
                    damaged += 1;
                }
                Err(other) => panic!("{}", with_causes(&other)),
            }
        }
        // The bit has not become part of a page with a right checksum.
        assert_eq!(damaged, 2 - replicas, "with {replicas} homes");
        if replicas == 2 {
            compare(&a.to_vec().unwrap(), &expected).unwrap();
            let total: u64 = expected.iter().map(|&value| u64::from(value)).sum();
            for _ in 0..2 {
                assert_eq!(sum(&bench, &a).unwrap(), total);
                a.evict().unwrap();
            }
        } else {
            is_named(sum(&bench, &a).expect_err("a wrong bit"));
        }
    }
}

/// Programs of which every page has a checksum: none may be taken for damaged.
fn without_alarm<T: Element>(test: &str, first: u64, count: u64, shape: impl Fn(u64) -> ProgramShape) {
    for seed in seeds(first, count) {
        let shape = ProgramShape {
            checked: true,
            ..shape(seed)
        };
        if let Err(wrong) = run::<T>(&mut rng(seed), &shape, &CompileOptions::default()) {
            give_up("integrity", test, seed, &shape, &wrong);
        }
    }
}

#[test]
fn writers_beside_write_backs_are_no_damage() {
    let test = "writers_beside_write_backs_are_no_damage";
    without_alarm::<u32>(test, 100, 20, |seed| tiny(seed, 1 + seed % 3));
    without_alarm::<u32>(test, 200, 10, |seed| ProgramShape {
        replicas: 2,
        ..tiny(seed, 1 + seed % 3)
    });
}

#[test]
fn writers_beside_write_backs_on_all_cores_are_no_damage() {
    let test = "writers_beside_write_backs_on_all_cores_are_no_damage";
    let shape = |page, bytes| {
        move |seed| ProgramShape {
            beside: true,
            replicas: 1 + (seed % 2) as u32,
            ..ProgramShape::random(&mut rng(seed ^ 0xabcd), page, bytes)
        }
    };
    without_alarm::<u32>(test, 300, 3, shape(4 << 10, 4));
    // Lengths of any number of bytes.
    without_alarm::<u8>(test, 400, 3, shape(4 << 10, 1));
    without_alarm::<[u64; 2]>(test, 500, 1, shape(64 << 10, 16));
}

/// Whether one of `most` interleavings goes wrong with the bug.
fn found(header: &str, from: &str, to: &str, most: u64) {
    let bug = planted(header, from, to);
    let shape = |seed| ProgramShape {
        checked: true,
        ..tiny(seed, 1 + seed % 3)
    };
    let wrong = (0..most).find_map(|seed| Some((seed, run::<u32>(&mut rng(seed), &shape(seed), &bug).err()?)));
    let (seed, wrong) = wrong.unwrap_or_else(|| panic!("none of {most} interleavings shows the bug"));
    println!("found by seed {seed}: {wrong}");
    run::<u32>(&mut rng(seed), &shape(seed), &CompileOptions::default()).expect("the library as it is");
}

#[test]
fn a_checksum_that_is_not_renewed_is_found() {
    found(
        "gpuvm/detail/write_back.cuh",
        "if (!pending) return false;\n    if (is_checked(region)) renew_checksum(vm, id, frame);",
        "if (!pending) return false;",
        10,
    );
}

#[test]
fn a_checksum_of_half_a_page_is_found() {
    let half = planted(
        "gpuvm/detail/integrity.cuh",
        "checksum_alone(frame_address(vm, region, frame), bytes));",
        "checksum_alone(frame_address(vm, region, frame), bytes / 2));",
    );
    let bench = Bench::with(reliable(6), BASIC, &half);
    let a = checked(&bench, 1);
    // A page that the two blocks share may be evicted and come back while `fill` runs: it is found there already.
    let filled = bench.run("fill", LaunchConfig::new(2, 64), (&a, 7u32));
    let wrong = filled
        .and_then(|_| sum(&bench, &a).map(drop))
        .expect_err("half a checksum was taken for a whole");
    assert!(with_causes(&wrong).contains("failed its checksum"), "{wrong:?}");
}

#[test]
fn damage_goes_unseen_where_nobody_compares() {
    // The flips above are seen because lanes compare, and for no other reason.
    let blind = planted(
        "gpuvm/detail/integrity.cuh",
        "if (expected == 0 || expected == found) {",
        "if (true) {",
    );
    // With a frame for each page: a page that leaves and comes again before all of it was read is right the second time.
    let bench = Bench::with(with_flips(PAGES + 8), BASIC, &blind);
    let a = checked(&bench, 1);
    let fault = flip(&bench, Opcode::Read, 12_345, 5);
    assert_ne!(sum(&bench, &a).unwrap(), TOTAL);
    assert_eq!(bench.soft_nic().bitten(fault), 1);
}

#[test]
fn what_cannot_be_is_refused() {
    let direct = Bench::new(reliable(6).transport(gpuvm::Transport::Direct), BASIC);
    let region = direct.vm.region::<u32>().name("mine");
    let message = refused(region.integrity(Integrity::Crc32c).zeroed(N));
    assert!(message.contains("`mine`") && message.contains("direct"), "{message}");
    let plain = Bench::new(small_soft(6), BASIC);
    let region = plain.vm.region::<u32>().name("mine");
    says(
        &refused(region.integrity(Integrity::Crc32c).zeroed(N)),
        &["`mine`", "reliable_regions"],
    );
    let bench = Bench::new(reliable(6), BASIC);
    says(
        &refused(bench.vm.region::<u32>().name("mine").replicas(2).zeroed(N)),
        &["`mine`", "host_homes"],
    );
    let message = refused(bench.vm.region::<u32>().name("mine").replicas(3).zeroed(N));
    assert!(message.contains("`mine`") && message.contains('3'), "{message}");
    let message = refused(small_soft(6).host_homes(3).build());
    assert!(message.contains("host homes") && message.contains('3'), "{message}");
}
