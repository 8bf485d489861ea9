//! A region may lie over a mapped file: kernels read its pages, and write them back into it, to its exact end.

use std::path::Path;

use crate::common::{BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, refused, says, small, small_soft, stepped, words};
use gpuvm::LaunchConfig;

/// With files that the system keeps in memory, and with files of which a part is in memory.
fn each(test: impl Fn(Bench)) {
    test(Bench::new(small(4), BASIC));
    test(Bench::new(small_soft(4).file_cache(64 * PAGE), BASIC));
}

fn file_of(words: impl Iterator<Item = u32>) -> tempfile::NamedTempFile {
    let file = crate::common::file_to_map();
    std::fs::write(file.path(), words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>()).unwrap();
    file
}

fn words_of(path: &Path) -> Vec<u32> {
    let bytes = std::fs::read(path).unwrap();
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn kernels_read_a_file_in_place_and_leave_it_alone() {
    each(|bench| {
        let n = 30 * PAGE_WORDS + 5;
        let values = words(1, n);
        let file = file_of(values.iter().copied());
        // No right to write is needed.
        let mut rights = file.as_file().metadata().unwrap().permissions();
        rights.set_readonly(true);
        std::fs::set_permissions(file.path(), rights).unwrap();
        let a = bench.vm.region::<u32>().name("file").map_file(file.path()).unwrap();
        assert!(a.is_read_only());
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
        let total: u64 = values.iter().copied().map(u64::from).sum();
        assert_eq!(sink.to_vec().unwrap(), [total]);
        compare(&a.to_vec().unwrap(), &values).unwrap();
        let message = refused(bench.run("fill", LaunchConfig::new(1, 32), (&a, 1u32)));
        assert!(message.contains("read-only region `file`"), "{message}");
        a.close().unwrap();
        assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
        compare(&words_of(file.path()), &values).unwrap();
    });
}

#[test]
fn what_kernels_write_is_in_the_file_after_a_flush_and_after_a_drop() {
    each(|bench| {
        let n = 30 * PAGE_WORDS + 5;
        let file = file_of((0..n).map(|_| 7));
        let map = || bench.vm.region::<u32>().name("file").map_file_mut(file.path()).unwrap();
        let a = map();
        bench.must("fill", LaunchConfig::new(2, 64), (&a, STEP));
        a.flush().unwrap();
        let expected: Vec<u32> = (STEP..STEP + n as u32).collect();
        compare(&words_of(file.path()), &expected).unwrap();
        a.write(3, &[1, 2]).unwrap();
        drop(a);
        let mut expected = expected;
        expected[3..5].copy_from_slice(&[1, 2]);
        compare(&words_of(file.path()), &expected).unwrap();
        let a = map();
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, STEP));
        drop(a);
        compare(&words_of(file.path()), &stepped(&expected, 1)).unwrap();
        assert_eq!(
            std::fs::metadata(file.path()).unwrap().len(),
            4 * n,
            "neither longer nor shorter"
        );
    });
}

#[test]
fn bytes_to_the_files_exact_end() {
    each(|bench| {
        let n = 3 * PAGE + 1;
        let file = crate::common::file_to_map();
        std::fs::write(file.path(), vec![0xee; n as usize]).unwrap();
        let a = bench.vm.region::<u8>().map_file_mut(file.path()).unwrap();
        let places = bench.vm.buffer::<u64>(3).unwrap();
        places.write(&[0, PAGE, n - 1]).unwrap();
        bench.must("store", LaunchConfig::new(1, 32), (&a, &places, 3u32, 1u8));
        a.close().unwrap();
        let found = std::fs::read(file.path()).unwrap();
        let expected: Vec<u8> = (0..n)
            .map(|i| match i {
                0 => 1,
                PAGE => 2,
                last if last == n - 1 => 3,
                _ => 0xee,
            })
            .collect();
        compare(&found, &expected).unwrap();
    });
}

#[test]
fn a_file_that_cannot_be_mapped_is_named() {
    each(|bench| {
        let region = || bench.vm.region::<u32>().name("file");
        let file = file_of(0..10);
        let path = file.path().display().to_string();
        file.as_file().set_len(39).unwrap();
        for message in [
            refused(region().map_file(file.path())),
            refused(region().map_file_mut(file.path())),
        ] {
            assert!(message.contains(&path) && message.contains("39 bytes"), "{message}");
        }
        for message in [
            refused(region().map_file("/nonexistent/file")),
            refused(region().map_file_mut("/nonexistent/file")),
        ] {
            says(&message, &["`file`", "/nonexistent/file", "No such file"]);
        }
        let message = refused(region().read_only().map_file_mut(file.path()));
        assert!(message.contains("map_file"), "{message}");
        let message = refused(region().map_file("/dev"));
        assert!(message.contains("/dev"), "{message}");
        // Of no element.
        let empty = crate::common::file_to_map();
        assert!(region().map_file(empty.path()).unwrap().to_vec().unwrap().is_empty());
        region().map_file_mut(empty.path()).unwrap().flush().unwrap();
    });
}

#[test]
fn a_file_is_mapped_twice_only_to_be_read() {
    each(|bench| {
        let region = |name: &str| bench.vm.region::<u32>().name(name);
        let file = file_of(0..10);
        let other_name = file.path().with_extension("link");
        std::fs::hard_link(file.path(), &other_name).unwrap();
        let reader = region("one").map_file(file.path()).unwrap();
        region("two").map_file(&other_name).unwrap();
        let message = refused(region("three").map_file_mut(&other_name));
        assert!(message.contains("`three`") && message.contains("`one`"), "{message}");
        drop(reader);
        let writer = region("four").map_file_mut(&other_name).unwrap();
        refused(region("five").map_file(file.path()));
        drop(writer);
        std::fs::remove_file(other_name).unwrap();
    });
}

/// Kernels that read and write spans of a file, at offsets that no system page begins at.
fn spans_are_read_and_written_where_they_are(bench: &Bench) {
    let n = 40 * PAGE_WORDS;
    let values = words(2, n);
    let file = file_of(values.iter().copied());
    let total = bench.vm.buffer::<u64>(1).unwrap();
    let ends = n as usize;
    for (first, end) in [
        (0, 7),
        (1, ends),
        (1023, 1025),
        (3 * 1024 + 5, 30 * 1024),
        (ends - 1, ends),
    ] {
        let length = (end - first) as u64;
        let a = bench.vm.region::<u32>().name("span");
        let a = a.map_file_span(file.path(), 4 * first as u64, length).unwrap();
        assert!(a.is_read_only() && a.len() == length);
        total.write(&[0]).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &total));
        let expected: u64 = values[first..end].iter().copied().map(u64::from).sum();
        assert_eq!(total.to_vec().unwrap(), [expected], "elements {first}..{end}");
    }
    // Two that share a system page, each with an end within a page of the GPU.
    let mut expected = values;
    let span = |first: usize, end: usize| {
        let a = bench.vm.region::<u32>().name("span");
        a.map_file_span_mut(file.path(), 4 * first as u64, (end - first) as u64)
            .unwrap()
    };
    let spans = [(3, 2055), (2055, 9 * 1024 + 1)];
    let regions = spans.map(|(first, end)| span(first, end));
    for a in &regions {
        bench.must("read_then_write", LaunchConfig::new(2, 64), (a, STEP));
    }
    for ((first, end), a) in spans.into_iter().zip(regions) {
        let written = stepped(&expected[first..end], 1);
        expected[first..end].copy_from_slice(&written);
        a.flush().unwrap();
        drop(a);
    }
    compare(&words_of(file.path()), &expected).unwrap();
    // The bytes of an element that no number begins at.
    let bytes = bench.vm.region::<u8>().map_file_span(file.path(), 4097, 3).unwrap();
    assert_eq!(bytes.to_vec().unwrap(), expected[1024].to_ne_bytes()[1..]);
}

#[test]
fn spans_of_a_file_are_regions() {
    each(|bench| spans_are_read_and_written_where_they_are(&bench));
    spans_are_read_and_written_where_they_are(&Bench::new(small(4).transport(gpuvm::Transport::Direct), BASIC));
}

#[test]
fn a_span_that_the_file_does_not_have_is_refused() {
    each(|bench| {
        let region = || bench.vm.region::<u32>().name("span");
        let file = file_of(0..10);
        let path = file.path().display().to_string();
        for (offset, length) in [
            (0, 11),
            (40, 1),
            (44, 0),
            (4, u64::MAX / 8),
            (u64::MAX - 3, 1),
            (1 << 63, 0),
        ] {
            let message = refused(region().map_file_span(file.path(), offset, length));
            assert!(message.contains("`span`") && message.contains("40 bytes"), "{message}");
            assert!(
                message.contains(&path) && message.contains(&offset.to_string()),
                "{message}"
            );
            refused(region().map_file_span_mut(file.path(), offset, length));
        }
        let message = refused(region().map_file_span(file.path(), 0, u64::MAX));
        assert!(message.contains("address space"), "{message}");
        for offset in [1, 2, 39] {
            says(
                &refused(region().map_file_span(file.path(), offset, 1)),
                &["not a multiple of 4", "from_reader"],
            );
        }
        let message = refused(region().read_only().map_file_span_mut(file.path(), 0, 1));
        assert!(message.contains("map_file_span"), "{message}");
        // Of no element, anywhere in the file.
        for offset in [0, 8, 40] {
            let none = region().map_file_span_mut(file.path(), offset, 0).unwrap();
            assert!(none.to_vec().unwrap().is_empty());
        }
    });
}

#[test]
fn spans_that_share_a_byte_are_only_read() {
    each(|bench| {
        let file = file_of(0..10);
        let read = |name: &str, first: u64, length| {
            let region = bench.vm.region::<u32>().name(name);
            region.map_file_span(file.path(), 4 * first, length)
        };
        let write = |name: &str, first: u64, length| {
            let region = bench.vm.region::<u32>().name(name);
            region.map_file_span_mut(file.path(), 4 * first, length)
        };
        let reader = read("reader", 2, 3).unwrap();
        read("again", 4, 6).unwrap();
        for (first, length) in [(0, 3), (2, 3), (3, 1), (4, 6), (0, 10)] {
            says(&refused(write("writer", first, length)), &["`writer`", "`reader`"]);
        }
        let (before, after) = (write("before", 0, 2).unwrap(), write("after", 5, 5).unwrap());
        refused(read("late", 1, 1));
        refused(bench.vm.region::<u32>().map_file(file.path()));
        before.write(1, &[100]).unwrap();
        after.write(0, &[200]).unwrap();
        assert_eq!(reader.to_vec().unwrap(), [2, 3, 4]);
        drop((before, after));
        read("late", 1, 5).unwrap();
        assert_eq!(words_of(file.path()), [0, 100, 2, 3, 4, 200, 6, 7, 8, 9]);
    });
}
