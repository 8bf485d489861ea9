//! Nothing outside a region is read or written: not behind a ragged last page, not where a page number is cut, not
//! with an element that does not fit its page.

use crate::common::{BASIC, Bench, PAGE, PAGE_WORDS, compare, planted, refused, says, small, small_soft};
use gpuvm::{CompileOptions, LaunchConfig};

const GUARD: u32 = 0xdead_beef;

/// Kernels write and read a lent slice whose end is inside a page and whose neighbours belong to somebody else.
fn ragged(options: &CompileOptions, elements: usize) -> Result<(), String> {
    let bench = Bench::with(small_soft(4), BASIC, options);
    let (before, after) = (37, 2 * PAGE_WORDS as usize);
    let mut memory = vec![GUARD; before + elements + after];
    let fetched = bench.vm.stats().unwrap().bytes_fetched;
    let outcome = bench.vm.scope(|scope| {
        let lent = scope.region("ragged", &mut memory[before..before + elements])?;
        let wrong = bench.vm.buffer::<u64>(1)?;
        bench.run("fill", LaunchConfig::new(2, 64), (&lent, 3u32))?;
        for way in 0..2u32 {
            bench.run("check", LaunchConfig::new(2, 64), (&lent, 3u32, way, &wrong))?;
        }
        assert_eq!(wrong.to_vec()?, [0], "{elements} elements");
        Ok(())
    });
    outcome.map_err(|error| crate::common::with_causes(&error))?;
    let expected: Vec<u32> = (0..elements as u32).map(|i| i + 3).collect();
    compare(&memory[before..before + elements], &expected)?;
    let strangers = memory[..before].iter().chain(&memory[before + elements..]);
    if strangers.copied().any(|word| word != GUARD) {
        return Err("memory beside the region was written".into());
    }
    let nic = bench.soft_nic();
    if nic.stats().errors != 0 {
        return Err("a request reached outside of registered memory".into());
    }
    let stats = bench.vm.stats().unwrap();
    if (stats.bytes_fetched - fetched).is_multiple_of(PAGE) && !(elements * 4).is_multiple_of(PAGE as usize) {
        return Err(format!("{} bytes were fetched: whole pages", stats.bytes_fetched));
    }
    Ok(())
}

#[test]
fn a_ragged_last_page_is_read_and_written_to_its_exact_end() {
    for elements in [1, 3, 1023, 1024, 1025, 9 * 1024 + 1, 9 * 1024 + 1021] {
        ragged(&CompileOptions::default(), elements).unwrap_or_else(|wrong| panic!("{elements} elements: {wrong}"));
    }
}

#[test]
fn the_test_above_finds_a_library_that_moves_whole_pages() {
    let whole = planted(
        "gpuvm/detail/source.cuh",
        "return rest < whole ? static_cast<u32>(rest) : whole;",
        "return (void)rest, whole;",
    );
    ragged(&whole, 9 * 1024 + 1).unwrap_err();
}

#[test]
fn single_bytes_beside_each_other_keep_their_neighbours() {
    let bench = Bench::new(small(2), BASIC);
    let n = 3 * PAGE as usize + 1;
    let a = bench.vm.region::<u8>().from_vec(vec![0xee; n]).unwrap();
    let at: Vec<u64> = (0..n as u64).filter(|i| i % 3 != 1).collect();
    let places = bench.vm.buffer::<u64>(at.len() as u64).unwrap();
    places.write(&at).unwrap();
    bench.must("store", LaunchConfig::new(4, 64), (&a, &places, at.len() as u32, 1u8));
    let mut expected = vec![0xee; n];
    for (order, &i) in at.iter().enumerate() {
        expected[i as usize] = (1 + order) as u8;
    }
    compare(&a.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn elements_beyond_2_to_the_32_are_themselves() {
    // 5 GiB that nothing touches but for a few pages: an RDMA device would pin them all.
    let bench = Bench::new(small_soft(8), BASIC);
    let n = 5u64 << 30;
    let a = bench.vm.region::<u8>().name("five GiB").zeroed(n).unwrap();
    let at = [
        77,
        (1u64 << 32) + 77,
        (1 << 32) - 1,
        1 << 32,
        (1 << 31) + 4,
        n - 1,
        n - 4097,
        4096,
    ];
    let places = bench.vm.buffer::<u64>(at.len() as u64).unwrap();
    places.write(&at).unwrap();
    bench.must("store", LaunchConfig::new(1, 32), (&a, &places, at.len() as u32, 100u8));
    // Out of the frames and back.
    bench.sweep(50);
    let out = bench.vm.buffer::<u32>(at.len() as u64).unwrap();
    bench.must("fetch", LaunchConfig::new(1, 32), (&a, &places, at.len() as u32, &out));
    assert_eq!(out.to_vec().unwrap(), (100..108).collect::<Vec<u32>>());
    for (order, &i) in at.iter().enumerate() {
        let mut byte = [0];
        a.read(i, &mut byte).unwrap();
        assert_eq!(byte[0], 100 + order as u8, "element {i}");
    }
    let before = 1 << 32;
    let mut beside = [0; 4];
    a.read(before + 1, &mut beside).unwrap();
    assert_eq!(beside, [0; 4]);
}

#[test]
fn page_numbers_beyond_32_bits_are_not_cut() {
    let bench = Bench::new(small(8), BASIC);
    let pages: Vec<u64> = vec![0, 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 1 << 40, (1 << 44) - 2];
    let count = pages.len() as u64;
    let given = bench.vm.buffer::<u64>(count).unwrap();
    given.write(&pages).unwrap();
    for region in [0u32, 1, 65_535] {
        let (back, placed) = (
            bench.vm.buffer::<u64>(count).unwrap(),
            bench.vm.buffer::<u64>(count).unwrap(),
        );
        let arguments = (&given, count as u32, region, &back, &placed);
        bench.must("owners", LaunchConfig::new(1, 32), arguments);
        assert_eq!(back.to_vec().unwrap(), pages);
        assert_eq!(placed.to_vec().unwrap(), pages);
    }
}

#[test]
fn an_element_that_does_not_divide_the_page_is_refused() {
    let bench = Bench::new(small(8), BASIC);
    let mut lent = [[0u8; 24]; 8];
    for message in [
        refused(bench.vm.region::<[u8; 12]>().name("odd").zeroed(100)),
        refused(bench.vm.region::<[u32; 3]>().name("odd").from_slice(&[[0; 3]; 100])),
        refused(bench.vm.region::<[u64; 1024]>().name("odd").zeroed(2)),
        refused(bench.vm.region::<()>().name("odd").zeroed(100)),
        refused(bench.vm.scope(|scope| scope.region("odd", &mut lent).map(|_| ()))),
    ] {
        says(&message, &["`odd`", "does not divide a page"]);
    }
}

#[test]
fn lengths_that_cannot_be_are_refused_and_an_empty_region_works() {
    let bench = Bench::new(small(8), BASIC);
    for length in [u64::MAX, u64::MAX / 4, 1 << 62] {
        let message = refused(bench.vm.region::<u32>().name("huge").zeroed(length));
        assert!(message.contains("`huge`"), "{message}");
        let reader = std::io::repeat(0);
        let message = refused(bench.vm.region::<u32>().name("huge").from_reader(reader, length));
        assert!(message.contains("`huge`"), "{message}");
    }
    // Within the address space, but more than the machine lends.
    let message = refused(bench.vm.region::<u8>().name("huge").zeroed(1 << 61));
    assert!(message.contains("`huge`"), "{message}");
    let empty = bench.vm.region::<u32>().name("empty").zeroed(0).unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(1, 32), (&empty, &sink));
    empty.flush().unwrap();
    assert!(empty.to_vec().unwrap().is_empty() && empty.is_empty() && empty.pages() == 0);
    says(&refused(empty.write(0, &[1])), &["`empty`", "out of range"]);
    empty.close().unwrap();
}

#[test]
fn a_region_is_as_long_as_its_data() {
    let bench = Bench::new(small(8), BASIC);
    let region = || bench.vm.region::<u32>().name("ten");
    for message in [
        refused(region().from_iter(0..)),
        refused(region().from_iter(Misjudged { yields: 9, said: 10 })),
        refused(region().from_iter(Misjudged { yields: 11, said: 10 })),
        refused(region().from_reader(&[0u8; 39][..], 10)),
        refused(region().from_file("/dev/zero")),
        refused(region().from_file("/nonexistent/file")),
    ] {
        assert!(message.contains("`ten`"), "{message}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0u8; 41]).unwrap();
    let message = refused(region().from_file(file.path()));
    let path = file.path().display().to_string();
    says(
        &message,
        &[&path, "41 bytes, not a multiple of the element size of 4 bytes"],
    );
    std::fs::write(file.path(), (0..10u32).flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()).unwrap();
    assert_eq!(
        region().from_file(file.path()).unwrap().to_vec().unwrap(),
        (0..10).collect::<Vec<_>>()
    );
    // A reader is read to the region's length and no further.
    let mut bytes = &[7u8; 50][..];
    region().from_reader(&mut bytes, 10).unwrap();
    assert_eq!(bytes.len(), 10);
    let even = (0..2000).filter(|i| i % 2 == 0);
    for (made, expected) in [
        (region().from_slice(&[1; 9]), vec![1; 9]),
        (region().from_vec(vec![2; 11]), vec![2; 11]),
        (region().from_iter(0..10), (0..10).collect()),
        (region().from_iter((0..10u64).map(|i| i as u32)), (0..10).collect()),
        (region().from_iter(even.clone()), even.collect()),
        (region().from_iter(std::iter::empty()), vec![]),
    ] {
        let made = made.unwrap();
        assert_eq!(made.len(), expected.len() as u64);
        compare(&made.to_vec().unwrap(), &expected).unwrap();
    }
}

/// An iterator that is wrong about its length.
struct Misjudged {
    yields: u32,
    said: usize,
}

impl Iterator for Misjudged {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.yields = self.yields.checked_sub(1)?;
        Some(self.yields)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.said, Some(self.said))
    }
}
