//! Graph files: what is read from good ones, and what is said of bad ones.

use gpuvm_workloads::graph::{Direction, Graph, GraphSpec, LoadOptions, Progress, Stage};
use tempfile::TempDir;

use crate::common::{self, gzip, rows};

fn load_bytes(name: &str, bytes: &[u8], direction: Option<Direction>) -> Graph {
    let options = LoadOptions {
        direction,
        ..LoadOptions::default()
    };
    common::load(name, bytes, &options).0.unwrap()
}

fn load(name: &str, text: &str) -> Graph {
    load_bytes(name, text.as_bytes(), None)
}

fn refusal(name: &str, bytes: &[u8]) -> String {
    common::refusal(name, bytes, &LoadOptions::default())
}

#[test]
fn a_general_matrix_is_directed() {
    let text = "%%MatrixMarket matrix coordinate real general\n% by hand\n\n% more\n3 3 4\n\
                1 2 0.5\n2 3 -1e9\r\n\n  3   1\t0\n1 1 7\n";
    let graph = load("a.mtx", text);
    assert_eq!(graph.direction(), Direction::Directed);
    assert_eq!(rows(&graph), [vec![1], vec![2], vec![0]]);
    assert_eq!(
        (graph.vertex_of(0), graph.vertex_of(1), graph.vertex_of(4)),
        (None, Some(0), None)
    );
    assert_eq!((graph.id_of(2), graph.id_of(3)), (Some(3), None));
    let both = load_bytes("a.mtx", text.as_bytes(), Some(Direction::Undirected));
    assert_eq!(rows(&both), [vec![1, 2], vec![0, 2], vec![0, 1]]);
}

#[test]
fn every_symmetry_and_field_is_read() {
    for (kind, value) in [
        ("pattern symmetric", ""),
        ("Pattern Symmetric", ""),
        ("real symmetric", "1.5"),
        ("real skew-symmetric", "-2"),
        ("integer skew-symmetric", "+123456789012345678901234567890"),
        ("complex hermitian", "1 -1e-3"),
        ("complex symmetric", "0 0"),
    ] {
        let text = format!("%%matrixmarket MATRIX coordinate {kind}\n3 3 2\n2 1 {value}\n3 2 {value}");
        for direction in [None, Some(Direction::Directed)] {
            let graph = load_bytes("m", text.as_bytes(), direction);
            assert_eq!(rows(&graph), [vec![1], vec![0, 2], vec![1]], "{kind}");
            assert_eq!(graph.direction(), Direction::Undirected);
        }
    }
    for (kind, value) in [
        ("pattern general", ""),
        ("integer general", "-3"),
        ("complex general", "1 2"),
    ] {
        let graph = load(
            "m",
            &format!("%%MatrixMarket matrix coordinate {kind}\n2 2 1\n2 1 {value}\n"),
        );
        assert_eq!(rows(&graph), [vec![], vec![0]], "{kind}");
    }
}

#[test]
fn isolated_vertices_of_a_matrix_stay() {
    let graph = load("m", "%%MatrixMarket matrix coordinate pattern general\n5 5 0\n");
    assert_eq!((graph.csr().vertices(), graph.csr().edges()), (5, 0));
}

#[test]
fn an_edge_list_numbers_ids_in_ascending_order() {
    let text = "# FromNodeId\tToNodeId\n900\t18446744073709551615\n18446744073709551615 4\n\
                # in between\n\n 4 900 \n";
    let graph = load("edges.txt", text);
    assert_eq!(graph.direction(), Direction::Undirected);
    assert_eq!(rows(&graph), [vec![1, 2], vec![0, 2], vec![0, 1]]);
    assert_eq!(graph.vertex_of(900), Some(1));
    assert_eq!(graph.vertex_of(901), None);
    assert_eq!(graph.id_of(2), Some(u64::MAX));
    let counted = load("edges.txt", "0 2\n2 1");
    assert_eq!(rows(&counted), [vec![2], vec![2], vec![0, 1]]);
    assert_eq!((counted.vertex_of(2), counted.vertex_of(3)), (Some(2), None));
    // One based and without gaps is not counted from 0.
    assert_eq!(load("edges.txt", "1 2\n").vertex_of(1), Some(0));
}

#[test]
fn snap_headers_say_the_direction() {
    let arrows = "7 3\n3 9 0.5 1217567877\n";
    let directed = [vec![2], vec![0], vec![]];
    let text = format!("# Directed graph (each unordered pair of nodes is saved once): a.txt\n{arrows}");
    let graph = load("a.txt", &text);
    assert_eq!(
        (graph.direction(), rows(&graph)),
        (Direction::Directed, directed.to_vec())
    );
    for text in [
        format!("# a list\n# Undirected graph: ../a.txt\n{arrows}"),
        arrows.to_owned(),
    ] {
        let graph = load("a.txt", &text);
        assert_eq!(rows(&graph), [vec![1, 2], vec![0], vec![0]]);
        let graph = load_bytes("a.txt", text.as_bytes(), Some(Direction::Directed));
        assert_eq!(rows(&graph), directed);
    }
}

#[test]
fn gzip_is_known_by_its_bytes() {
    let text = "1 2\n2 3\n";
    let plain = load("plain.txt", text);
    assert_eq!(load_bytes("named.txt", &gzip(text.as_bytes()), None), plain);
    assert_eq!(load_bytes("not_zipped.gz", text.as_bytes(), None), plain);
    let members = [gzip(b"1 2\n2"), gzip(b" 3\n")].concat();
    assert_eq!(load_bytes("two.gz", &members, None), plain);
}

#[test]
fn names_ending_in_mtx_are_matrices() {
    assert!(refusal("a.mtx", b"1 2\n").starts_with("1: a header of 2 words"));
    assert!(refusal("a.MTX.GZ", &gzip(b"\n1 2\n")).starts_with("2: a header of 2 words"));
    assert_eq!(
        refusal("a.mtx", b"%MatrixMarket matrix coordinate real general\n"),
        "1: '%matrixmarket': a Matrix Market file starts with '%%MatrixMarket'"
    );
}

#[test]
fn bad_matrices_are_refused_with_their_line() {
    let head = "%%MatrixMarket matrix coordinate integer general\n%\n3 3 2\n";
    for (text, expected) in [
        (
            "%%MatrixMarket matrix array real general\n2 2\n",
            "1: the format 'array' is not supported",
        ),
        (
            "%%MatrixMarket vector coordinate real general\n",
            "1: the object 'vector' is not supported",
        ),
        (
            "%%MatrixMarket matrix coordinate bool general\n",
            "1: the field 'bool' is not supported",
        ),
        (
            "%%MatrixMarket matrix coordinate real odd\n",
            "1: the symmetry 'odd' is not supported",
        ),
        (
            "%%MatrixMarket matrix coordinate real hermitian\n",
            "1: a matrix of this field cannot be",
        ),
        (
            "%%MatrixMarket matrix coordinate pattern skew-symmetric\n",
            "1: a matrix of this field",
        ),
        ("%%MatrixMarket matrix coordinate real\n", "1: a header of 4 words"),
        (
            "%%MatrixMarket matrix coordinate real general\n% a\n",
            "2: the file is empty, it holds no sizes",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n% a\n3 3\n",
            "3: the entries are missing",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n3 x 3\n",
            "2: the columns 'x' are no number",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n3 3 3 3\n",
            "2: '3' after the three sizes",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n3 4 0\n",
            "2: the matrix has 3 rows and 4 columns",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n0 0 0\n",
            "2: the file is empty, it holds no vertex",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n2147483648 2147483648 0\n",
            "2: 2147483648 vertices, at most 2147483647",
        ),
    ] {
        let message = refusal("m", text.as_bytes());
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    for (text, expected) in [
        ("", "3: the file is truncated: 2 entries are promised, it ends after 0"),
        (
            "1 2 1\n\n",
            "5: the file is truncated: 2 entries are promised, it ends after 1",
        ),
        (
            "1 2 1\n2 3 1\n\n2 3 1\n",
            "7: one entry too many: 2 entries are promised",
        ),
        ("1 2 1\n0 3 1\n", "5: the row index 0 is outside 1 to 3"),
        ("1 4 1\n", "4: the column index 4 is outside 1 to 3"),
        ("1 99999999999 1\n", "4: the column index 99999999999 is outside 1 to 3"),
        ("1 2\n", "4: an entry with 0 of the 1 numbers of its value"),
        ("1\n", "4: an entry without a column index"),
        ("1 two 1\n", "4: the column index 'two' is no number"),
        ("1 -2 1\n", "4: the column index '-2' is no number"),
        ("1 2 1.5\n", "4: the value '1.5' is no number"),
        ("1 2 1 1\n", "4: '1' after the entry"),
    ] {
        assert_eq!(refusal("m", format!("{head}{text}").as_bytes()), expected, "{text}");
    }
    let lying = "%%MatrixMarket matrix coordinate pattern general\n2 2 18446744073709551615\n1 2\n";
    assert!(refusal("m", lying.as_bytes()).starts_with("3: the file is truncated"));
}

#[test]
fn bad_edge_lists_are_refused_with_their_line() {
    for (text, expected) in [
        ("", "1: the file is empty, it holds no edge"),
        ("\n\n\n", "3: the file is empty, it holds no edge"),
        ("# nothing\n#\n", "2: the file is empty, it holds no edge"),
        (
            "1 2\n3\n",
            "2: an edge with one id; expected two (is the file truncated?)",
        ),
        ("1 2\n3 x\n", "2: 'x' is no vertex id (a whole number, 0 or more)"),
        ("1 2\n-3 4\n", "2: '-3' is no vertex id (a whole number, 0 or more)"),
        (
            "# a\n1 18446744073709551616\n",
            "2: '18446744073709551616' does not fit into 64 bits",
        ),
        ("1 2 three\n", "1: 'three' after the two ids of an edge"),
        ("1 2 3 4 5\n", "1: '5' after the two ids of an edge"),
        ("1,2\n", "1: '1,2' is no vertex id (a whole number, 0 or more)"),
        // What a terminal would obey is shown, not sent to it.
        (
            "1 \u{1b}[2J\u{202e}\n",
            "1: '\\u{1b}[2J\\u{202e}' is no vertex id (a whole number, 0 or more)",
        ),
        (
            "1 2\n3 4\r5 6\n",
            "2: a carriage return within the line; lines end with LF or CR LF, not with CR alone",
        ),
    ] {
        assert_eq!(refusal("edges.txt", text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let text = "not UTF-8 text; a graph file is text with an edge a line (Matrix Market or an edge list), or its name ends in .gcsr, .sg or .wsg";
    assert_eq!(refusal("a", b"1 2\n3 4\n\xff\xfe 5\n"), format!("3: {text}"));
    assert_eq!(refusal("a", b"# caf\xe9\n1 2\n"), format!("1: {text}"));
    // Some editors begin text with a byte order mark.
    assert_eq!(load("a", "\u{feff}1 2\n"), load("a", "1 2\n"));
}

#[test]
fn progress_reaches_the_end_and_never_steps_back() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("edges.txt");
    let text: String = (0..400_000).map(|k| format!("{k} {}\n", k * 7 % 400_000)).collect();
    std::fs::write(&path, &text).unwrap();
    let specs = [
        GraphSpec::File(path),
        "kron:14".parse().unwrap(),
        "urand:14".parse().unwrap(),
    ];
    for (spec, loading) in specs.iter().zip([Stage::Read, Stage::Generate, Stage::Generate]) {
        let mut seen: Vec<Progress> = Vec::new();
        spec.load(&LoadOptions::default(), &mut |step| seen.push(step)).unwrap();
        for stage in [loading, Stage::Build] {
            common::reaches_its_end(&seen, stage);
        }
        let total = seen[0].total;
        assert!(loading != Stage::Read || total == text.len() as u64);
    }
}
