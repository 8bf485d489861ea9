//! `.gcsr` files and GAP's `.sg` and `.wsg` files: what is read from good ones, and what is said of bad ones.

use std::ops::Range;

use gpuvm_workloads::graph::{
    Csr, Direction, Graph, GraphSpec, LoadOptions, Progress, Stage, Weights, draw_weights, reference,
};

use crate::common::{
    PLAIN, VERIFIED, WEIGHTED, csr_file, gap_file, load, reaches_its_end, refusal, rows, weighted_rows,
};

/// A `.gcsr` file with all sections: ids from 70 to 900, and weights.
fn sections() -> Vec<u8> {
    let list = "# Directed graph\n900 70\n70 800\n300 900\n900 800\n";
    csr_file(&load("a.txt", list.as_bytes(), &WEIGHTED).0.unwrap())
}

/// Bytes of the header of a `.gcsr` file.
const HEADER: usize = 112;
/// Where sections of fewer than 2 MiB begin.
const PAGE: usize = 4096;
/// Offsets of 4 vertices, neighbours, weights, ids.
const LENGTHS: [usize; 4] = [40, 16, 16, 32];

fn section(index: usize) -> Range<usize> {
    let begin = (index + 1) * PAGE;
    begin..begin + LENGTHS[index]
}

/// Changes bytes, and the header's checksum with them.
fn patched(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let checksum = crc32c::crc32c(&file[..HEADER - 4]);
    file[HEADER - 4..HEADER].copy_from_slice(&checksum.to_le_bytes());
    file
}

#[test]
fn a_mapped_graph_is_the_graph_that_was_written() {
    for (name, text) in [
        ("a.txt", "# Directed graph\n900 70\n70 800\n300 900\n900 800\n"),
        ("a.txt", "0 1\n1 2\n"),
        (
            "m.mtx",
            "%%MatrixMarket matrix coordinate integer symmetric\n5 5 2\n2 1 7\n4 3 300\n",
        ),
        ("m.mtx", "%%MatrixMarket matrix coordinate pattern general\n3 3 0\n"),
    ] {
        let graph = load(name, text.as_bytes(), &WEIGHTED).0.unwrap();
        let file = csr_file(&graph);
        let (mapped, path, _folder) = load("g.gcsr", &file, &VERIFIED);
        let mapped = mapped.unwrap();
        assert_eq!(mapped, graph);
        assert_eq!(
            (mapped.vertex_of(900), mapped.id_of(0)),
            (graph.vertex_of(900), graph.id_of(0))
        );
        // Known by its first bytes, and gone from the folder only for those who do not have it.
        std::fs::rename(&path, path.with_extension("txt")).unwrap();
        let renamed = GraphSpec::File(path.with_extension("txt"));
        let renamed = renamed.load(&PLAIN, &mut |_| {}).unwrap();
        std::fs::remove_file(path.with_extension("txt")).unwrap();
        assert_eq!((renamed.csr(), renamed.weights()), (graph.csr(), None));
        assert_eq!(
            mapped.clone().csr().clone().into_parts(),
            graph.csr().clone().into_parts()
        );
        assert_eq!(csr_file(&mapped), file);
    }
}

#[test]
fn sections_lie_where_the_layout_says() {
    let file = sections();
    assert_eq!(file.len(), section(3).end);
    assert_eq!(
        (&file[..8], &file[8..12]),
        (&b"\x89gcsr\r\n\x1a"[..], &[1, 0, 0, 0][..])
    );
    let words = |range: Range<usize>| -> Vec<u64> {
        let words = file[range].chunks_exact(8);
        words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    };
    // Directed, with weights and ids; vertices, edges, the first id.
    assert_eq!(words(8..40), [7 << 32 | 1, 4, 4, 0]);
    assert_eq!(words(section(0)), [0, 1, 2, 2, 4]);
    assert_eq!(words(section(3)), [70, 300, 800, 900]);
    for index in 0..4 {
        let entry = words(40 + index * 16..56 + index * 16);
        assert_eq!(
            entry,
            [
                section(index).start as u64,
                u64::from(crc32c::crc32c(&file[section(index)]))
            ]
        );
    }
    // From 2 MiB on a section begins at a multiple of 2 MiB.
    let graph = "urand:17:4".parse::<GraphSpec>().unwrap();
    let large = csr_file(&graph.load(&PLAIN, &mut |_| {}).unwrap());
    let at = [40, 56].map(|at| u64::from_le_bytes(large[at..at + 8].try_into().unwrap()));
    assert_eq!(at, [PAGE as u64, 2 << 20]);
    assert!(large.len() > 4 << 20);
}

#[test]
fn a_file_that_ends_too_early_says_where() {
    let whole = sections();
    let within = (0..HEADER).map(|end| {
        (
            end,
            format!(" byte {end}: the file ends within the header of {HEADER} bytes; "),
        )
    });
    let sections = (0..4).flat_map(|index| {
        let section = section(index);
        [section.start - 1, section.start, section.start + 1, section.end - 1]
    });
    let behind = [HEADER].into_iter().chain(sections);
    let behind = behind.map(|end| (end, format!(", and the file at byte {end}: it is truncated; ")));
    for (end, expected) in within.chain(behind) {
        let message = refusal("g.gcsr", &whole[..end], &PLAIN);
        assert!(message.contains(&expected), "{end}: {message}");
    }
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let far = u64::MAX.to_le_bytes();
    let half = (1_u64 << 63).to_le_bytes();
    for (at, bytes, expected) in [
        (0, &b"\x88"[..], "byte 0: no .gcsr file begins with these bytes"),
        (8, &[2], "byte 8: the file has version 2, and version 1 is read"),
        (8, &[0], "byte 8: the file has version 0, and version 1 is read"),
        (12, &[15], "byte 12: unknown flags 0xf"),
        (16, &far, "byte 16: 18446744073709551615 vertices, at most 2147483647"),
        (16, &[0, 0, 0, 128], "byte 16: 2147483648 vertices, at most 2147483647"),
        // Lengths that would overflow 64 bits, or the file.
        (
            16,
            &[255, 255, 255, 127],
            "byte 40: the offsets end at byte 17179873280, and the file",
        ),
        (
            24,
            &far,
            "byte 56: the neighbours end at byte 73786976294838214652, and the file",
        ),
        (
            24,
            &half,
            "byte 56: the neighbours end at byte 36893488147419111424, and the file",
        ),
        (24, &[5, 64], "byte 56: the neighbours end at byte 73748, and the file"),
        (32, &far, "byte 32: vertex ids from 18446744073709551615 on do not fit"),
        (40, &[0, 0], "byte 40: the offsets cannot begin at byte 0"),
        (40, &[64, 0], "byte 40: the offsets cannot begin at byte 64"),
        (40, &[4], "byte 40: the offsets cannot begin at byte 4100"),
        (
            56,
            &far,
            "byte 56: the neighbours cannot begin at byte 18446744073709551615",
        ),
        (
            56,
            &[248, 255, 255, 255, 255, 255, 255, 255],
            "byte 56: the neighbours end at byte 18446744073709551624",
        ),
        (72, &half, "byte 72: the weights end at byte 9223372036854775824"),
        (88, &half, "byte 88: the vertex ids end at byte 9223372036854775840"),
    ] {
        let message = refusal("g.gcsr", &patched(sections(), at, bytes), &PLAIN);
        assert!(message.starts_with(&format!(" {expected}")), "{at}: {message}");
    }
    let mut flipped = sections();
    flipped[20] ^= 1;
    let message = refusal("g.gcsr", &flipped, &PLAIN);
    assert!(
        message.starts_with(" byte 108: the checksum of the header does not fit"),
        "{message}"
    );
}

#[test]
fn rows_that_cannot_be_are_refused() {
    // Row 0 is [2], row 1 [3], row 2 is empty, row 3 is [0, 2].
    let offset = |index: usize, value: u64| (section(0).start + index * 8, value.to_le_bytes().to_vec());
    let neighbour = |index: usize, value: u32| (section(1).start + index * 4, value.to_le_bytes().to_vec());
    for ((at, bytes), row, expected) in [
        (offset(0, 1), 0, "begins at neighbour 1, it has to begin at 0"),
        (offset(1, 3), 1, "ends at neighbour 2, before it begins at 3"),
        (
            offset(3, u64::MAX),
            3,
            "ends at neighbour 4, before it begins at 18446744073709551615",
        ),
        (offset(4, 5), 3, "ends at neighbour 5, and the graph has 4"),
        (
            neighbour(0, 4),
            0,
            "has the neighbour 4, and the graph's vertices are 0 to 3",
        ),
        (
            neighbour(3, u32::MAX),
            3,
            "has the neighbour 4294967295, and the graph's vertices are 0 to 3",
        ),
        (neighbour(3, 0), 3, "has the neighbour 0 after 0; they have to ascend"),
        (neighbour(0, 0), 0, "has itself as a neighbour"),
    ] {
        let file = patched(sections(), at, &bytes);
        let message = refusal("g.gcsr", &file, &PLAIN);
        // An end of a row is told by the row, and by the byte of its end.
        assert!(message.ends_with(&format!(": row {row} {expected}")), "{message}");
        let byte: usize = message
            .strip_prefix(" byte ")
            .unwrap()
            .split(':')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!((at..=at + 8).contains(&byte), "{at}: {message}");
    }
    let weightless = patched(sections(), section(2).start + 8, &[0; 4]);
    let message = refusal("g.gcsr", &weightless, &WEIGHTED);
    assert_eq!(
        message,
        format!(
            " byte {}: row 3 has the weight 0; weights are positive",
            section(2).start + 8
        )
    );
    assert!(load("g.gcsr", &weightless, &PLAIN).0.is_ok());
    let unsorted = patched(sections(), section(3).start + 8, &70_u64.to_le_bytes());
    let message = refusal("g.gcsr", &unsorted, &PLAIN);
    assert_eq!(
        message,
        format!(
            " byte {}: row 1 has the id 70 after 70; they have to ascend",
            section(3).start + 8
        )
    );
}

#[test]
fn a_changed_bit_is_found_where_that_is_asked_for() {
    let whole = sections();
    let vertices = 4;
    for at in (0..HEADER).chain((0..4).flat_map(section)) {
        for bit in [0, 7] {
            let mut file = whole.clone();
            file[at] ^= 1 << bit;
            let (result, ..) = load("g.gcsr", &file, &VERIFIED);
            assert!(result.is_err(), "byte {at}, bit {bit}");
            // Without that, nothing outside the graph is named.
            if let Ok(graph) = load("g.gcsr", &file, &WEIGHTED).0 {
                assert!(at >= PAGE && graph.csr().offsets().is_sorted());
                assert!(graph.csr().neighbours().iter().all(|neighbour| *neighbour < vertices));
            }
        }
    }
    let mut file = whole;
    file[section(1).start] = 1;
    let message = refusal("g.gcsr", &file, &VERIFIED);
    assert!(
        message.starts_with(" byte 8192: the checksum of the neighbours does not fit"),
        "{message}"
    );
}

#[test]
fn a_graph_that_calls_itself_undirected_has_every_edge_twice() {
    let graph = load("a.txt", b"1 2\n2 3\n3 9\n", &WEIGHTED).0.unwrap();
    let good = csr_file(&graph);
    let weights = draw_weights(graph.csr(), 1).unwrap();
    let other = if weights[0] == 200 { 100 } else { 200_u32 };
    // Written by another program: checksums that fit.
    let mut bad = patched(good.clone(), section(2).start, &other.to_le_bytes());
    let at = 3 * PAGE..3 * PAGE + weights.len() * 4;
    let checksum = crc32c::crc32c(&bad[at]);
    bad = patched(bad, 80, &checksum.to_le_bytes());
    assert!(load("g.gcsr", &bad, &WEIGHTED).0.is_ok());
    let message = refusal("g.gcsr", &bad, &VERIFIED);
    assert!(
        message.contains("not every edge is in the rows of both its ends"),
        "{message}"
    );
    let one_way = gap_file(&[vec![(1, 5)], vec![]], false, false);
    assert!(refusal("g.sg", &one_way, &PLAIN).contains("not every edge is in the rows of both its ends"));
    let unequal = gap_file(&[vec![(1, 5)], vec![(0, 6)]], false, true);
    assert!(refusal("g.wsg", &unequal, &WEIGHTED).contains("with one weight"));
    assert!(load("g.wsg", &unequal, &PLAIN).0.is_ok());
}

#[test]
fn directions_of_binary_files_are_kept_or_mirrored() {
    let one_way = [vec![(1, 9), (2, 4)], vec![], vec![(0, 3)]];
    let both = [vec![(1, 9), (2, 3)], vec![(0, 9)], vec![(0, 3)]];
    let with = |direction| LoadOptions {
        direction: Some(direction),
        ..WEIGHTED
    };
    let check = |name: &str, bytes: &[u8]| {
        for options in [WEIGHTED, with(Direction::Directed)] {
            let graph = load(name, bytes, &options).0.unwrap();
            assert_eq!(
                (graph.direction(), weighted_rows(&graph)),
                (Direction::Directed, one_way.to_vec())
            );
        }
        let graph = load(name, bytes, &with(Direction::Undirected)).0.unwrap();
        assert_eq!(
            (graph.direction(), weighted_rows(&graph)),
            (Direction::Undirected, both.to_vec())
        );
        graph
    };
    let serialized = gap_file(&one_way, true, true);
    let mirrored = check("g.wsg", &serialized);
    let graph = load("g.WSG", &serialized, &WEIGHTED).0.unwrap();
    check("g.gcsr", &csr_file(&graph));
    // Both directions are stored: there is nothing to take away.
    for (name, bytes) in [("g.wsg", gap_file(&both, false, true)), ("g.gcsr", csr_file(&mirrored))] {
        assert_eq!(load(name, &bytes, &with(Direction::Directed)).0.unwrap(), mirrored);
    }
}

#[test]
fn serialized_rows_are_put_in_order() {
    let rows_of = |name: &str, bytes: &[u8], options: &LoadOptions| rows(&load(name, bytes, options).0.unwrap());
    // Unsorted, with a self-loop and with duplicates of several weights.
    let given = [vec![(2, 7), (0, 1), (1, 4), (2, 3)], vec![(0, 4)], vec![(0, 3), (0, 9)]];
    let ordered = [vec![(1, 4), (2, 3)], vec![(0, 4)], vec![(0, 3)]];
    for directed in [false, true] {
        let graph = load("g.wsg", &gap_file(&given, directed, true), &WEIGHTED).0.unwrap();
        assert_eq!(weighted_rows(&graph), ordered);
        let plain = [vec![1, 2], vec![0], vec![0]];
        assert_eq!(rows_of("g.wsg", &gap_file(&given, directed, true), &PLAIN), plain);
        assert_eq!(rows_of("g.sg", &gap_file(&given, directed, false), &PLAIN), plain);
    }
    let graph = load("g.sg", &gap_file(&given, true, false), &WEIGHTED).0.unwrap();
    assert_eq!(graph.weights().unwrap(), draw_weights(graph.csr(), 1).unwrap());
    let drawn = LoadOptions {
        weights: Weights::Drawn,
        ..PLAIN
    };
    assert_eq!(load("g.wsg", &gap_file(&given, true, true), &drawn).0.unwrap(), graph);
    assert_eq!(rows_of("g.sg", &gap_file(&[], false, false), &PLAIN).len(), 0);
}

#[test]
fn serialized_graphs_that_cannot_be_are_refused() {
    let good = [vec![(1, 5), (2, 6)], vec![(0, 5)], vec![(0, 6)]];
    for (directed, weighted, name) in [
        (false, false, "g.sg"),
        (true, false, "g.sg"),
        (false, true, "g.wsg"),
        (true, true, "g.wsg"),
    ] {
        let whole = gap_file(&good, directed, weighted);
        assert!(load(name, &whole, &WEIGHTED).0.is_ok());
        let message = refusal(name, &[&whole[..], &[0]].concat(), &WEIGHTED);
        assert!(
            message.contains("with 3 vertices and 4 edges it would end at byte"),
            "{message}"
        );
        let other = if weighted { "g.sg" } else { "g.wsg" };
        assert!(refusal(other, &whole, &WEIGHTED).contains("it would end at byte"));
    }
    // GAP built with vertices of 64 bits: each is followed by zeros.
    let wide = |weighted: bool| {
        let narrow = gap_file(&good, false, false);
        let (head, neighbours) = narrow.split_at(17 + 4 * 8);
        let neighbours = neighbours
            .chunks(4)
            .flat_map(|id| [id, &[0; 4], if weighted { &[5, 0, 0, 0, 0, 0, 0, 0] } else { &[] }].concat());
        [head, &neighbours.collect::<Vec<u8>>()].concat()
    };
    for (name, weighted) in [("g.sg", false), ("g.wsg", true)] {
        let message = refusal(name, &wide(weighted), &WEIGHTED);
        assert!(
            message.starts_with(" its vertices are numbers of 64 bits (64-bit ids)"),
            "{message}"
        );
    }
    let file = |at: usize, bytes: &[u8]| {
        let mut file = gap_file(&good, false, true);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for (at, bytes, expected) in [
        (0, &[2][..], "byte 0: 2 in the place of 0 (undirected) or 1 (directed)"),
        (1, &[255; 8], "byte 1: -1 edges"),
        (9, &[255; 8], "byte 9: -1 vertices, from 0 to 2147483647 are supported"),
        (9, &[0, 0, 0, 128], "byte 9: 2147483648 vertices"),
        // Lengths that overflow 64 bits.
        (
            8,
            &[127],
            "byte 81: the file ends here, and with 3 vertices and 9151314442816847876 edges it would end at",
        ),
        (17, &[1], "byte 17: row 0 begins at neighbour 1"),
        (25, &[4], "byte 33: row 1 ends at neighbour 3, before it begins at 4"),
        (41, &[5], "byte 41: row 2 ends at neighbour 5, and the graph has 4"),
        (
            57,
            &[3],
            "byte 57: row 0 has the neighbour 3, and the graph's vertices are 0 to 2",
        ),
        (76, &[255], "byte 73: row 2 has the neighbour 4278190080, and"),
        (53, &[0], "byte 53: row 0 has the weight 0; weights are positive"),
        (
            80,
            &[255],
            "byte 77: row 2 has the weight -16777210; weights are positive",
        ),
    ] {
        let message = refusal("g.wsg", &file(at, bytes), &WEIGHTED);
        assert!(message.starts_with(&format!(" {expected}")), "{at}: {message}");
    }
}

#[test]
fn a_search_over_a_mapped_graph_finds_what_one_over_the_graph_finds() {
    let graph: GraphSpec = "kron:10".parse().unwrap();
    let graph = graph.load(&WEIGHTED, &mut |_| {}).unwrap();
    let (mapped, ..) = load("g.gcsr", &csr_file(&graph), &VERIFIED);
    let search = |csr: &Csr| reference::bfs(csr, csr.first_connected().unwrap()).unwrap();
    assert_eq!(search(mapped.unwrap().csr()), search(graph.csr()));
}

#[test]
fn progress_of_binary_files_reaches_the_end() {
    let graph: Graph = "kron:13"
        .parse::<GraphSpec>()
        .unwrap()
        .load(&WEIGHTED, &mut |_| {})
        .unwrap();
    let (mut file, mut seen) = (Vec::new(), Vec::<Progress>::new());
    graph.write(&mut file, &mut |step| seen.push(step)).unwrap();
    let of_write = (Stage::Write, seen);
    let folder = tempfile::tempdir().unwrap();
    let loaded = |name: &str, bytes: &[u8], stage| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut seen = Vec::new();
        GraphSpec::File(path)
            .load(&WEIGHTED, &mut |step| seen.push(step))
            .unwrap();
        (stage, seen)
    };
    let serialized = gap_file(&weighted_rows(&graph), false, true);
    for (stage, seen) in [
        of_write,
        loaded("g.gcsr", &file, Stage::Check),
        loaded("g.wsg", &serialized, Stage::Read),
        loaded("g.wsg", &serialized, Stage::Check),
    ] {
        reaches_its_end(&seen, stage);
    }
}
