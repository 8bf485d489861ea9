//! Graphs that are converted, and searched in their new form.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::common::{bfs, finish, gpuvm, report, says};

/// 1 - 2 - 3 - 4 and 1 - 4, 5 alone; with weights.
const MATRIX: &str = "%%MatrixMarket matrix coordinate integer symmetric\n5 5 4\n2 1 7\n3 2 300\n4 3 2\n4 1 9\n";

/// What a conversion prints that must succeed.
fn convert(folder: &Path, arguments: &str) -> String {
    let (status, out, err) = finish(gpuvm(folder, &format!("convert {arguments}")));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    out
}

/// The message of a conversion that must fail and leave the folder as it is.
fn refusal(folder: &Path, arguments: &str, status: i32) -> String {
    let files = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files(folder);
    let (code, out, err) = finish(gpuvm(folder, &format!("convert {arguments}")));
    assert_eq!((code, out.as_str()), (status, ""), "{arguments}: {err}");
    assert!(err.starts_with("error: ") && !err.contains("panicked"), "{err}");
    assert_eq!(files(folder), before, "{arguments}");
    err
}

#[test]
fn a_converted_graph_is_searched_as_the_graph_is() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    std::fs::write(
        folder.path().join("a.txt"),
        "# Directed graph: a\n900 70\n70 800\n3 900\n",
    )
    .unwrap();
    for (graph, flags) in [
        ("kron:9", ""),
        ("a.mtx", "--source 3"),
        ("a.txt", "--source 900"),
        ("a.txt", "--source 900 --undirected"),
    ] {
        let direction = if flags.ends_with("--undirected") {
            "--undirected"
        } else {
            ""
        };
        convert(folder.path(), &format!("{graph} out.gcsr --force {direction}"));
        let search = |graph: &str, flags: &str| {
            let report = report(folder.path(), &format!("{graph} {flags} --output distances"));
            let keys = ["vertices", "edges", "source", "direction", "vertices_reached", "levels"];
            let facts = keys.map(|key| report[key].clone());
            (facts, std::fs::read_to_string(folder.path().join("distances")).unwrap())
        };
        let expected = search(graph, flags);
        // The file says the direction by itself.
        assert_eq!(
            search("out.gcsr", &flags.replace("--undirected", "--verify")),
            expected,
            "{graph} {flags}"
        );
        assert_eq!(search("out.gcsr", flags), expected, "{graph} {flags}");
    }
}

/// The graph is four times as large as the memory that it is read by way of.
#[test]
fn a_graph_is_searched_while_it_is_read_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    convert(folder.path(), "kron:14 out.gcsr");
    let bytes = std::fs::metadata(folder.path().join("out.gcsr")).unwrap().len();
    let arguments = format!("out.gcsr --file-cache {} --memory 256KiB", bytes / 4);
    let searched = report(folder.path(), &arguments);
    assert_eq!(searched["verified"], true);
    assert_eq!(searched["transport"], "soft");
    let figure = |key: &str| searched[key].as_u64().unwrap();
    let (read, perfect) = (figure("file_bytes_read"), figure("file_bytes_perfect"));
    assert!(perfect > bytes / 4 && read >= perfect, "{searched}");
    // docs/PERFORMANCE.md has the figure; the order of requests is another one in every run.
    assert!(read < 3 * perfect, "{searched}");
    let whole = report(folder.path(), "out.gcsr");
    assert_eq!(whole["vertices_reached"], searched["vertices_reached"]);
    assert_eq!(whole.get("file_bytes_read"), None);
    for (arguments, said) in [
        ("kron:6 --file-cache 1MiB", "gpuvm convert kron:6"),
        ("out.gcsr --file-cache 4KiB", "at least 64 blocks"),
        ("out.gcsr --file-cache 1MiB --transport direct", "software NIC"),
        ("out.gcsr --file-cache lots", "lots"),
    ] {
        let (status, _, err) = finish(bfs(folder.path(), arguments));
        assert!(
            status != 0 && err.contains(said) && !err.contains("panicked"),
            "{arguments}: {err}"
        );
    }
}

#[test]
fn what_was_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    let out = convert(folder.path(), "a.mtx out.gcsr");
    assert_eq!(
        out,
        "out.gcsr: 5 vertices, 8 stored edges, undirected, without weights\n"
    );
    let out = convert(folder.path(), "urand:6:2 other.gcsr --weights --directed");
    assert!(
        out.starts_with("other.gcsr: 64 vertices, ") && out.ends_with(" stored edges, directed, with drawn weights\n"),
        "{out}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// Texts of other programs: what is written of each, or what is said.
#[test]
fn graphs_of_other_programs_are_converted_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let ring = "6 6\n6 2\n1 3\n2 4\n3 5\n4 6\n5 1\n";
    let edges = "2 1 3\n3 1 1\n4 2 4\n5 3 1\n6 5 5\n6 4 9\n";
    let matrix = format!("%%MatrixMarket matrix coordinate unsigned-integer symmetric\n6 6 6\n{edges}");
    let whole = |rest: &str| format!("out.gcsr: 6 vertices, 12 stored edges, undirected, {rest}\n");
    for (name, text, flags, expected) in [
        ("ring.graph", ring, "", whole("without weights")),
        ("ring.graph", ring, "--weights", whole("with drawn weights")),
        ("a.wel", edges, "--weights", whole("with the file's weights")),
        ("a.wel", edges, "--weights=drawn", whole("with drawn weights")),
        ("a.txt", edges, "--weights", whole("with drawn weights")),
        ("a.mtx", &matrix, "--weights", whole("with the file's weights")),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(
            convert(folder.path(), &format!("{name} out.gcsr --force {flags}")),
            expected,
            "{name} {flags}"
        );
    }
    let (status, _, err) = finish(bfs(folder.path(), "ring.graph --source 1 --output distances"));
    assert_eq!((status, err.as_str()), (0, ""));
    let distances = std::fs::read_to_string(folder.path().join("distances")).unwrap();
    assert_eq!(distances, "# vertex\tdistance\n1\t0\n2\t1\n3\t2\n4\t3\n5\t2\n6\t1\n");
    std::fs::write(folder.path().join("ring.txt"), ring).unwrap();
    let refused = refusal(folder.path(), "ring.txt other.gcsr", 1);
    assert!(refused.contains("may be edges, or a METIS file"), "{refused}");
}

#[test]
fn files_have_names_of_any_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, vectors) = (OsStr::from_bytes(b"nam\xe9.txt"), OsStr::from_bytes(b"nam\xe9.fvecs"));
    std::fs::write(folder.path().join(graph), "1 2\n2 3\n").unwrap();
    std::fs::write(folder.path().join(vectors), "no vectors").unwrap();
    for (arguments, name, said) in [
        ("run bfs", graph, "nam\u{fffd}.txt (undirected): 3 vertices"),
        ("run cc", graph, "3 vertices"),
        (
            "run knn",
            vectors,
            "nam\u{fffd}.fvecs: vector 0 (byte 0): its dimension",
        ),
    ] {
        let mut command = gpuvm(folder.path(), arguments);
        command.arg(name);
        let (_, out, err) = finish(command);
        assert!(format!("{out}{err}").contains(said), "{arguments}: {out}{err}");
    }
}

/// Nothing writes into it: a program that opened it would wait for ever.
#[test]
fn a_named_pipe_in_place_of_a_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, name) in [
        ("run knn", "p.fvecs"),
        ("run query1", "p.parquet"),
        ("run query1", "p.csv"),
        ("run bfs", "p.gcsr"),
        ("run bfs", "p.wsg"),
        ("convert --force", "p.gcsr out.gcsr"),
    ] {
        let pipe = folder.path().join(name.split(' ').next().unwrap());
        assert!(pipe.exists() || Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (status, _, err) = finish(gpuvm(folder.path(), &format!("{arguments} {name}")));
        assert!(
            status == 1 && err.contains("not a regular file"),
            "{arguments} {name}: {err}"
        );
    }
}

#[test]
fn weights_are_stored_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    let file = |arguments: &str| {
        convert(folder.path(), &format!("{arguments} out.gcsr --force"));
        std::fs::read(folder.path().join("out.gcsr")).unwrap()
    };
    // The third section; the header says where it is.
    let weights = |file: &[u8]| -> Vec<u32> {
        let at = u64::from_le_bytes(file[72..80].try_into().unwrap()) as usize;
        let words = file[at..at + 32].chunks_exact(4);
        words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    assert_eq!(file("a.mtx")[72..80], [0; 8]);
    assert_eq!(weights(&file("a.mtx --weights")), [7, 9, 7, 300, 300, 2, 9, 2]);
    assert_eq!(file("a.mtx --weights"), file("a.mtx --weights=file"));
    let drawn = file("a.mtx --weights=drawn");
    assert!(weights(&drawn).iter().all(|weight| (1..=255).contains(weight)));
    assert_eq!(file("a.mtx --weights=drawn --graph-seed 1"), drawn);
    assert_ne!(file("a.mtx --weights=drawn --graph-seed 2"), drawn);
    // Through another file, with its weights and without.
    for (flags, expected) in [("--weights", file("a.mtx --weights")), ("", file("a.mtx"))] {
        convert(folder.path(), "a.mtx between.gcsr --weights --force");
        assert_eq!(file(&format!("between.gcsr {flags}")), expected);
    }
}

#[test]
fn an_output_that_is_there_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("out.gcsr"), "as it was").unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    for name in ["out.gcsr", "link"] {
        // The graph does not exist: the output is looked at first.
        let err = refusal(folder.path(), &format!("not_here {name}"), 1);
        assert_eq!(
            err,
            format!("error: {name} is there already; name another file, or replace it with --force\n")
        );
    }
    refusal(folder.path(), "not_here out.gcsr --force", 1);
    assert_eq!(std::fs::read(folder.path().join("out.gcsr")).unwrap(), b"as it was");
    convert(folder.path(), "kron:4 out.gcsr --force");
    assert_eq!(report(folder.path(), "out.gcsr")["vertices"], 16);
}

#[test]
fn outputs_that_cannot_be_are_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    std::os::unix::fs::symlink("a.mtx", folder.path().join("link")).unwrap();
    for output in ["a.mtx", "./a.mtx", "link", "link --force"] {
        let err = refusal(folder.path(), &format!("a.mtx {output}"), 1);
        says(&err, &["is the input itself, which writing would destroy"]);
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("a.mtx")).unwrap(), MATRIX);
    for (output, cause) in [
        ("no/folder/out.gcsr", "No such file or directory"),
        ("a.mtx/out.gcsr", "Not a directory"),
        (". --force", "is a directory"),
        // Nothing makes files there.
        ("/proc/out.gcsr", "No such file or directory"),
        ("/dev/null", "it is not a regular file"),
        ("/dev/stdout --force", "it is not a regular file"),
    ] {
        let err = refusal(folder.path(), &format!("not_here {output}"), 1);
        let path = output.trim_end_matches(" --force");
        assert!(
            err.starts_with(&format!(
                "error: cannot write the graph to {path}\n  caused by: {cause}"
            )),
            "{err}"
        );
    }
}

#[test]
fn broken_graphs_leave_no_output() {
    let folder = tempfile::tempdir().unwrap();
    convert(folder.path(), "kron:6 good.gcsr");
    let mut damaged = std::fs::read(folder.path().join("good.gcsr")).unwrap();
    // The padding is no one's; the neighbours are at the end.
    *damaged.last_mut().unwrap() ^= 1;
    for (name, bytes, flags, reason) in [
        (
            "a.mtx",
            MATRIX.replace("300", "-3").into_bytes(),
            "--weights",
            "a.mtx:4: invalid weight '-3'",
        ),
        (
            "a.mtx",
            MATRIX.replace("4 1 9\n", "").into_bytes(),
            "",
            "a.mtx:5: the file is truncated: 4 entries are promised",
        ),
        (
            "a.gcsr",
            damaged.clone(),
            "",
            "a.gcsr: byte 8192: the checksum of the neighbours does not fit",
        ),
        (
            "a.gcsr",
            damaged[..5000].to_vec(),
            "",
            "a.gcsr: byte 56: the neighbours end at byte",
        ),
        (
            "a.gcsr",
            b"1 2\n".to_vec(),
            "",
            "a.gcsr: byte 4: the file ends within the header",
        ),
        (
            "a.sg",
            b"1 2\n".to_vec(),
            "",
            "a.sg: byte 4: the file ends within the header of 17 bytes",
        ),
        (
            "a.wsg",
            vec![0; 17],
            "",
            "a.wsg: byte 17: the file ends here, and with 0 vertices and 0 edges it would end at byte 25",
        ),
    ] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let err = refusal(folder.path(), &format!("{name} out.gcsr {flags}"), 1);
        let expected = format!("error: cannot load the graph {name}\n  caused by: {reason}");
        assert!(err.starts_with(&expected), "{err}");
    }
    // A search looks at the checksums only where it is asked to.
    std::fs::write(folder.path().join("a.gcsr"), damaged).unwrap();
    let (status, _, err) = finish(bfs(folder.path(), "a.gcsr --verify"));
    assert!(
        status == 1 && err.contains("the checksum of the neighbours does not fit"),
        "{err}"
    );
}

#[test]
fn wrong_flags_end_with_status_2() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, reason) in [
        ("kron:4", "<OUTPUT>"),
        ("kron:44 out", "the scale '44' is not a whole number from 1 to 30"),
        ("kron:4 out --weights=some", "invalid value 'some'"),
        ("kron:4 out --directed --undirected", "cannot be used with"),
        ("kron:4 out --graph-seed x", "invalid digit"),
    ] {
        let err = refusal(folder.path(), arguments, 2);
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}
