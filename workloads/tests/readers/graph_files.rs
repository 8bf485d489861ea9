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
        ("unsigned-integer general", "18446744073709551615"),
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
    let arrows = "7 3 -1 1217567877\n3 9 0.5 1217567877\n";
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
    for case in [
        "%%MatrixMarket matrix array real general\n2 2\n => 1: the format 'array' is not supported",
        "%%MatrixMarket vector coordinate real general\n => 1: the object 'vector' is not supported",
        "%%MatrixMarket matrix coordinate bool general\n => 1: the field 'bool' is not supported",
        "%%MatrixMarket matrix coordinate real odd\n => 1: the symmetry 'odd' is not supported",
        "%%MatrixMarket matrix coordinate real hermitian\n => 1: a matrix of this field cannot be",
        "%%MatrixMarket matrix coordinate pattern skew-symmetric\n => 1: a matrix of this field",
        "%%MatrixMarket matrix coordinate real\n => 1: a header of 4 words",
        "%%MatrixMarket matrix coordinate real general\n% a\n => 2: the file is empty, it holds no sizes",
        "%%MatrixMarket matrix coordinate real general\n% a\n3 3\n => 3: the entries are missing",
        "%%MatrixMarket matrix coordinate real general\n3 x 3\n => 2: the columns 'x' are not a number",
        "%%MatrixMarket matrix coordinate real general\n3 3 3 3\n => 2: '3' after the three sizes",
        "%%MatrixMarket matrix coordinate real general\n3 4 0\n => 2: the matrix has 3 rows and 4 columns",
        "%%MatrixMarket matrix coordinate real general\n0 0 0\n => 2: the file is empty, it holds no vertex",
        "%%MatrixMarket matrix coordinate real general\n2147483648 2147483648 0\n => 2: 2147483648 vertices, at most 2147483647",
    ] {
        let (text, expected) = case.split_once(" => ").unwrap();
        let message = refusal("m", text.as_bytes());
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    for case in [
        " => 3: the file is truncated: 2 entries are promised, it ends after 0",
        "1 2 1\n\n => 5: the file is truncated: 2 entries are promised, it ends after 1",
        "1 2 1\n2 3 1\n\n2 3 1\n => 7: one entry too many: 2 entries are promised",
        "1 2 1\n0 3 1\n => 5: the row index 0 is outside 1 to 3",
        "1 4 1\n => 4: the column index 4 is outside 1 to 3",
        "1 99999999999 1\n => 4: the column index 99999999999 is outside 1 to 3",
        "1 2\n => 4: an entry with 0 of the 1 numbers of its value",
        "1\n => 4: an entry without a column index",
        "1 two 1\n => 4: the column index 'two' is not a number",
        "1 -2 1\n => 4: the column index '-2' is not a number",
        "1 2 1.5\n => 4: the value '1.5' is not a number",
        "1 2 1 1\n => 4: '1' after the entry",
    ] {
        let (text, expected) = case.split_once(" => ").unwrap();
        assert_eq!(refusal("m", format!("{head}{text}").as_bytes()), expected, "{text}");
    }
    let lying = "%%MatrixMarket matrix coordinate pattern general\n2 2 18446744073709551615\n1 2\n";
    assert!(refusal("m", lying.as_bytes()).starts_with("3: the file is truncated"));
}

#[test]
fn bad_edge_lists_are_refused_with_their_line() {
    for case in [
        " => 1: the file is empty, it holds no edge",
        "\n\n\n => 3: the file is empty, it holds no edge",
        "# nothing\n#\n => 2: the file is empty, it holds no edge",
        "1 2\n3\n => 2: an edge with one id; expected two (is the file truncated?)",
        "1 2\n3 x\n => 2: invalid vertex ID 'x': expected a non-negative integer",
        "1 2\n-3 4\n => 2: invalid vertex ID '-3': expected a non-negative integer",
        "# a\n1 18446744073709551616\n => 2: vertex ID '18446744073709551616' does not fit into 64 bits",
        "1 2 three\n => 1: 'three' after the two ids of an edge",
        "1 2 3 4 5\n => 1: '5' after the two ids of an edge",
        "1,x\n => 1: invalid vertex ID 'x': expected a non-negative integer",
        "1,,2\n => 1: invalid vertex ID '': expected a non-negative integer",
        "one,two\n => 1: the file is empty, it holds no edge",
        // What a terminal would obey is shown, not sent to it.
        "1 \u{1b}[2J\u{202e}\n => 1: invalid vertex ID '\\u{1b}[2J\\u{202e}': expected a non-negative integer",
        "1 2\n3 4\r5 6\n => 2: a carriage return within the line; lines end with LF or CR LF, not with CR alone",
    ] {
        let (text, expected) = case.split_once(" => ").unwrap();
        assert_eq!(refusal("edges.txt", text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let text = "not UTF-8 text; a graph file is text with an edge a line (Matrix Market, DIMACS or an edge list) or a row (METIS), or its name ends in .gcsr, .sg or .wsg";
    assert_eq!(refusal("a", b"1 2\n3 4\n\xff\xfe 5\n"), format!("3: {text}"));
    // Comments name people, in whatever encoding.
    assert_eq!(load_bytes("a", b"# caf\xe9\n1 2\n", None), load("a", "1 2\n"));
    let matrix = b"%%MatrixMarket matrix coordinate pattern general\n% J. M\xfcller\n2 2 1\n1 2\n";
    assert_eq!(rows(&load_bytes("a.mtx", matrix, None)), [vec![1], vec![]]);
    assert_eq!(
        rows(&load_bytes("a.graph", b"% M\xfcller\n2 1\n2\n% M\xfcller\n1\n", None)),
        [[1], [0]]
    );
    assert_eq!(
        rows(&load_bytes("a.gr", b"c M\xfcller\np edge 2 1\ne 1 2\n", None)),
        [[1], [0]]
    );
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

#[test]
fn metis_files_are_read_in_every_format() {
    let rows_of = [vec![1], vec![0, 2], vec![1], vec![]];
    for (text, form) in [
        ("4 2\n2\n1 3\n2\n\n", "none"),
        (
            "% c\n4 2 0\n2\n% c\n3 1\r\n2\n\n\n\n",
            "comments, CR LF, unsorted, lines at the end",
        ),
        ("4 2 001\n2 7\n1 7 3 8\n2 8\n\n", "weights of edges"),
        ("4 2 10\n5 2\n5 1 3\n5 2\n5\n", "weights of vertices"),
        ("4 2 010 2\n5 6 2\n5 6 1 3\n5 6 2\n5 6\n", "two weights"),
        ("4 2 100\n9 2\n9 1 3\n9 2\n9\n", "sizes"),
        ("4 2 111 1\n9 5 2 7\n9 5 1 7 3 8\n9 5 2 8\n9 5\n", "all"),
    ] {
        for direction in [None, Some(Direction::Directed)] {
            let graph = load_bytes("a.graph", text.as_bytes(), direction);
            assert_eq!(
                (rows(&graph), graph.vertex_of(1)),
                (rows_of.to_vec(), Some(0)),
                "{form}"
            );
            assert_eq!(graph.direction(), Direction::Undirected);
        }
        assert_eq!(
            load_bytes("A.METIS.GZ", &gzip(text.as_bytes()), None),
            load("a.graph", text),
            "{form}"
        );
    }
    // A row that is longer than a line of other text.
    let hub: String = (2..=20_001).map(|leaf| format!("{leaf} ")).collect();
    let star = load("a.graph", &format!("20001 20000\n{hub}\n{}", "1\n".repeat(20_000)));
    assert_eq!(star.csr().row(0).len(), 20_000);
    for case in [
        "% c\n => 1: the file is empty, it holds no sizes of the graph",
        "6\n => 1: the edges are missing; expected",
        "2 1 2\n2\n1\n => 1: the format '2' is not up to three digits of 0 and 1",
        "2 1 1 1\n2\n1\n => 1: '1' weights of a vertex, in the format 1",
        "2 1 10 0\n => 1: '0' weights of a vertex, in the format 10",
        "2 1 0 0 0\n => 1: '0' weights of a vertex",
        "2 1 10 1 1\n => 1: '1' after the sizes",
        "2 1\n3\n1\n => 2: the neighbour 3 is outside 1 to 2",
        "2 1\n0\n1\n => 2: the neighbour 0 is outside 1 to 2",
        "2 1 1\n2\n1 4\n => 2: a neighbour without its weight",
        "2 1 100\n\n9 1\n => 2: the size and weights of the vertex are missing",
        "2 1\n2\n1\n1 2\n => 4: one row too many: 2 vertices are promised",
        "3 1\n2\n1\n => 3: the file is truncated: 3 vertices are promised, it ends after 2",
        "2 2\n2\n1\n => 3: 2 edges are promised, each in the rows of both its ends, and the rows have 2",
        "3 1\n2\n3\n\n =>  the graph is undirected by its header, and not every edge",
    ] {
        let (text, expected) = case.split_once(" => ").unwrap();
        let message = refusal("a.graph", text.as_bytes());
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    let unequal = common::refusal("a.graph", b"2 1 1\n2 7\n1 8\n", &common::WEIGHTED);
    assert!(unequal.contains("with one weight"), "{unequal}");
}

#[test]
fn files_of_dimacs_are_read() {
    let arcs = load("a.gr", "c by hand\np sp 4 3\na 1 2 5\nc more\na 2 3 6\na 2 1 5\n");
    assert_eq!(
        (arcs.direction(), rows(&arcs)),
        (Direction::Directed, vec![vec![1], vec![0, 2], vec![], vec![]])
    );
    let edges = load("a.col", "p edge 4 2\ne 1 2\ne 3 2\n");
    assert_eq!(
        (edges.direction(), rows(&edges)),
        (Direction::Undirected, vec![vec![1], vec![0, 2], vec![1], vec![]])
    );
    assert_eq!((edges.id_of(0), edges.vertex_of(4)), (Some(1), Some(3)));
    for (text, expected) in [
        ("p max 4 3\n", "1: the problem 'max' of DIMACS is not supported"),
        ("p sp 4\n", "1: the edges are missing"),
        ("c\nc\n", "2: the file is empty, it holds no line of the problem"),
        ("p sp 2 1\na 1 3 1\n", "2: the second end 3 is outside 1 to 2"),
        ("p sp 2 1\ne 1 2\n", "2: 'e' begins no line here; 'a' and 'c' do"),
        ("p sp 2 1\na 1 2\n", "2: an arc without a weight"),
        ("p edge 2 1\ne 1 2 3\n", "2: '3' after the entry"),
        (
            "p edge 2 2\ne 1 2\n",
            "2: the file is truncated: 2 entries are promised",
        ),
        ("p edge 2 1\ne 1 2\ne 2 1\n", "3: one entry too many"),
    ] {
        let message = refusal("a", text.as_bytes());
        assert!(message.starts_with(expected), "{text}: {message}");
    }
}

#[test]
fn lists_of_other_writers_are_read() {
    let plain = load("a", "2 1\n3 1\n4 2\n5 3\n6 5\n6 4\n");
    let edges = ["2", "1", "3", "1", "4", "2", "5", "3", "6", "5", "6", "4"];
    let with = |head: &str, between: &str| {
        let lines = edges.chunks(2).map(|edge| format!("{}\n", edge.join(between)));
        format!("{head}{}", lines.collect::<String>())
    };
    for text in [
        with("% sym unweighted\n% 6 6 6\n", " "),
        with("", ","),
        with("", ", "),
        with("source,target\n", ","),
        with("\"Source\",\"Target\"\n", ","),
        with("FromNodeId\tToNodeId\n", "\t"),
        with("// a list\n", " "),
        with("node_1,node_2\r\n", ","),
    ] {
        assert_eq!(load("out.x", &text), plain, "{text}");
    }
    let asym = load("out.x", "% asym positive\n1 2 7\n2 3 7\n");
    assert_eq!(
        (asym.direction(), rows(&asym)),
        (Direction::Directed, vec![vec![1], vec![2], vec![]])
    );
    let sides = refusal("out.x", b"% bip unweighted\n1 1\n");
    assert!(sides.starts_with("1: a bipartite graph, each side of which"), "{sides}");
}

#[test]
fn lists_of_another_shape_are_refused() {
    for (text, expected) in [
        ("1 2\n2 3 4\n", "2: 3 numbers, and 2 in the line before"),
        ("5 4\n2\n1 3\n2\n", "2: an edge with one id"),
        ("a,b\n1,2,3\n", "2: 3 numbers, and 2 in the line before"),
        // A cycle of METIS, whose every line looks like an edge.
        (
            "6 6\n6 2\n1 3\n2 4\n3 5\n4 6\n5 1\n",
            " these lines may be edges, or a METIS file",
        ),
        ("AdjacencyGraph\n2\n2\n", "1: invalid vertex ID 'AdjacencyGraph'"),
    ] {
        let message = refusal("a.txt", text.as_bytes());
        assert!(message.starts_with(expected), "{text}: {message}");
    }
    assert!(load("a", "# edges\n2 2\n2 1\n1 2\n").csr().edges() == 2);
    assert!(load("a", "2 2\n2 1\n1 2\n").csr().edges() == 2);
}
