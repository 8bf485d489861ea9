//! What the command says of bad flags and bad files, and how it ends.

use crate::common::{bfs, finish, gpuvm, says};

/// The message of a run that must fail with `status` and print nothing on the standard output.
fn refusal(files: &[(&str, &[u8])], arguments: &str, status: i32) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let (code, out, err) = finish(bfs(folder.path(), arguments));
    assert_eq!((code, out.as_str()), (status, ""), "{arguments}: {err}");
    assert!(err.starts_with("error: "), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    err
}

#[test]
fn wrong_flags_end_with_status_2() {
    for case in [
        "kron:8 --no-such-flag => --no-such-flag",
        "kron:99 => the scale '99' is not a whole number from 1 to 30",
        "kron:8:0 => the degree '0' is not a whole number from 1 to 4096",
        "kron => the scale is missing; write kron:SCALE[:DEGREE]",
        "kron:8 --memory 0% => a share is a number above 0%",
        "kron:8 --memory -5% => a share is a number above 0%",
        "kron:8 --memory lots => invalid size 'lots': write 4KiB, 64M, 2GiB",
        "kron:8 --page-size 5000 => a page is a power of two from 4KiB to 2MiB",
        "kron:8 --queue-depth 100 => a queue's depth is a power of two",
        "kron:8 --placement home => `home` is none of auto, fetch, in-place, while-free",
        "kron:8 --rdma-mtu 1000 => an MTU is 256, 512",
        "kron:8 --gid-index 300 => 300 is not in 0..=255",
        "kron:8 --queue-pairs 0 => 0 is not in 1..=1024",
        "kron:8 --gpu rocm => expected auto, sim, cuda:N or cuda:GPU-UUID",
        "kron:8 --transport tcp => expected auto, soft, rxe, mlx5 or direct",
        "kron:8 --source -1 => invalid vertex ID '-1': expected a non-negative integer",
        "kron:8 --source abc => invalid vertex ID 'abc': expected a non-negative integer",
        "kron:8 --memory-node x => invalid node address 'x': write HOST:PORT",
        "kron:8 --memory-node host:0 => invalid node address 'host:0': write HOST:PORT",
        "kron:8 --directed --undirected => cannot be used with",
        "kron:8 --seed 1 --graph-seed 2 => cannot be used with",
        " => <GRAPH>",
    ] {
        let (arguments, reason) = case.split_once(" => ").unwrap();
        let err = refusal(&[], arguments, 2);
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}

#[test]
fn rows_are_read_in_place_only_where_lanes_reach_them() {
    let err = refusal(&[], "kron:8 --placement while-free --transport soft", 1);
    says(&err, &["placement while-free is for the transport direct: over soft"]);
}

#[test]
fn back_ends_that_are_not_there_are_named() {
    for (arguments, name) in [
        ("not_here --transport rxe --rdma-device no-such-rxe", "transport rxe"),
        ("not_here --transport mlx5", "transport mlx5"),
    ] {
        // The graph does not exist either: the machines are looked at first.
        let err = refusal(&[], arguments, 1);
        let start = format!(
            "error: the GPU, the transport or a setting that was asked for cannot be used\n  caused by: {name} is not available: "
        );
        assert!(err.starts_with(&start), "{err}");
    }
    // A GPU that no machine has, whether or not it has a driver.
    says(
        &refusal(&[], "not_here --gpu cuda:99", 1),
        &["caused by: the GPU failed while opening GPU cuda:99"],
    );
}

#[test]
fn what_only_an_rdma_device_has_is_refused_without_one() {
    for (arguments, setting, whose) in [
        ("--gid-index 3", "gid_index is `3`", "mlx5"),
        ("--rdma-port 2", "rdma_port is `2`", "mlx5"),
        ("--rdma-mtu 1024", "rdma_mtu is `1024`", "mlx5"),
        ("--service-level 1", "service_level is `1`", "mlx5"),
        ("--traffic-class 4", "traffic_class is `4`", "mlx5"),
        ("--rdma-queues devx", "mlx5_queues is `devx`", "mlx5"),
        ("--rdma-device rxe0", "rdma_device is `rxe0`", "rxe or mlx5"),
        ("--rdma-retries 1", "rdma_retries is `1`", "rxe, mlx5 or memory nodes"),
        // The default, said: it does not fit either.
        ("--rdma-retries 6", "rdma_retries is `6`", "rxe, mlx5 or memory nodes"),
        (
            "--memory-node 192.0.2.9:7471",
            "memory_node is `192.0.2.9:7471`",
            "auto, rxe or mlx5",
        ),
        (
            "--rdma-ack-timeout 20",
            "rdma_ack_timeout is `20`",
            "rxe, mlx5 or memory nodes",
        ),
    ] {
        // The graph does not exist either: the settings are looked at first.
        let err = refusal(&[], &format!("not_here --gpu sim --transport soft {arguments}"), 1);
        let reason = format!("transport soft has none; leave it out, or use transport {whose}\n");
        assert!(err.contains(setting) && err.ends_with(&reason), "{arguments}: {err}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused_by_name() {
    for case in [
        "--transport direct --queue-pairs 2 => queue_pairs is `2`: transport direct has none; leave it out, or use transport auto, soft, rxe or mlx5",
        "--rdma-device rxe0 => rdma_device is `rxe0`: transport auto has none; leave it out, or use transport rxe or mlx5",
        "--transport rxe --rdma-device rxe0 --rdma-device rxe1 => nics is `rxe0,rxe1`: transport rxe drives one device",
        "--seed 0 --workers 4 => workers is 4: a seed needs a single worker; leave out the workers or the seed",
        "--gpu cuda:0 --seed 7 => seed is `7`: only simulated GPUs have it: leave it out, or use the gpu sim",
        "--gpu cuda:0 --workers 2 => workers is `2`: only simulated GPUs have it: leave it out, or use the gpu sim",
        "--seed 7 --transport rxe => seed is 7: transport rxe does not support a seed; use the software NIC",
    ] {
        let (arguments, reason) = case.split_once(" => ").unwrap();
        let err = refusal(&[], &format!("not_here {arguments}"), 1);
        assert!(err.ends_with(&format!("{reason}\n")), "{arguments}: {err}");
    }
}

#[test]
fn broken_files_are_named_with_their_line() {
    let matrix = "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, b"1 2\n2 3\n").unwrap();
    let packed = packed.finish().unwrap();
    for (name, bytes, reason) in [
        ("a.txt", b"".as_slice(), "a.txt:1: the file is empty, it holds no edge"),
        ("a.txt", b"# nothing\n", "a.txt:1: the file is empty, it holds no edge"),
        (
            "a.txt",
            b"1 2\n3 cats\n",
            "a.txt:2: invalid vertex ID 'cats': expected a non-negative integer",
        ),
        ("a.txt", b"1 2\n\xff\n", "a.txt:2: not UTF-8 text"),
        (
            "a.gz",
            &packed[..packed.len() - 9],
            "a.gz:3: the gzip data is truncated",
        ),
        (
            "a.mtx",
            format!("{matrix}1 2\n").as_bytes(),
            "a.mtx:3: the file is truncated: 2 entries are promised",
        ),
        (
            "a.mtx",
            format!("{matrix}1 2\n4 1\n").as_bytes(),
            "a.mtx:4: the row index 4 is outside 1 to 3",
        ),
        (
            "a.mtx",
            format!("{matrix}1 2\n2 1\n2 3\n").as_bytes(),
            "a.mtx:5: one entry too many",
        ),
    ] {
        let err = refusal(&[(name, bytes)], name, 1);
        let expected = format!("error: cannot load the graph {name}\n  caused by: {reason}");
        assert!(err.starts_with(&expected), "{err}");
    }
}

#[test]
fn a_missing_file_is_named_with_its_cause() {
    let err = refusal(&[], "not/here.mtx", 1);
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert_eq!(lines[0], "error: cannot load the graph not/here.mtx");
    assert!(
        lines[1].starts_with("  caused by: cannot open the graph file not/here.mtx;"),
        "{err}"
    );
    assert!(lines[2].starts_with("  caused by: No such file or directory"), "{err}");
}

#[test]
fn sources_that_are_not_there_are_named() {
    let list = ("a.txt", b"10 20\n20 30\n".as_slice());
    let message = "error: cannot search the graph a.txt\n  caused by: the graph has no vertex 15; its ids go from 10 to 30, not all of them used\n";
    assert_eq!(refusal(&[list], "a.txt --source 15", 1), message);
    let matrix = (
        "m.mtx",
        b"%%MatrixMarket matrix coordinate pattern general\n3 3 0\n".as_slice(),
    );
    let message =
        "error: cannot search the graph m.mtx\n  caused by: the graph has no vertex 0; its ids go from 1 to 3\n";
    assert_eq!(refusal(&[matrix], "m.mtx --source 0", 1), message);
    let message = "error: cannot search the graph m.mtx\n  caused by: no vertex of the graph has a neighbour; choose a start with --source\n";
    assert_eq!(refusal(&[matrix], "m.mtx", 1), message);
}

#[test]
fn outputs_that_cannot_be_written_are_named_before_the_work() {
    // The graph does not exist either: the output is looked at first.
    let err = refusal(&[], "not_here --output no/folder/out.txt", 1);
    assert!(
        err.starts_with("error: cannot write to no/folder/out.txt\n  caused by: No such file"),
        "{err}"
    );
    let err = refusal(&[], "not_here --output .", 1);
    assert!(err.starts_with("error: cannot write to .\n"), "{err}");
}

#[test]
fn an_output_that_is_the_graph_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, link) = (folder.path().join("a.txt"), folder.path().join("link"));
    std::fs::write(&graph, "1 2\n2 3\n").unwrap();
    std::os::unix::fs::symlink(&graph, link).unwrap();
    for name in ["a.txt", "./a.txt", "link"] {
        let (code, out, err) = finish(bfs(folder.path(), &format!("a.txt --output {name}")));
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("is the input itself"), "{err}");
    }
    assert_eq!(std::fs::read_to_string(graph).unwrap(), "1 2\n2 3\n");
}

#[test]
fn memory_that_no_page_table_can_name_is_refused() {
    let err = refusal(&[], "kron:4 --memory 15EiB", 1);
    assert!(
        err.contains("the whole graph has ") && !err.contains("larger pages"),
        "{err}"
    );
}

#[test]
fn diagnostics_in_a_pipe_have_no_colours() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bfs(folder.path(), "kron:4 --gpu auto");
    command.env("RUST_LOG", "gpuvm=trace");
    let (code, _, err) = finish(command);
    assert_eq!(code, 0, "{err}");
    assert!(!err.is_empty() && !err.contains('\x1b'), "{err}");
}

#[test]
fn a_command_shows_its_own_options_and_the_rest_is_in_one_place() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        "run bfs --help",
        "run bfs -h",
        "profile bfs --help",
        "bench faults --help",
    ] {
        let (code, help, _) = finish(gpuvm(folder.path(), arguments));
        assert_eq!(code, 0, "{help}");
        for option in ["--rdma", "--gid-index", "--queue-depth", "--secret-file", "Packets of"] {
            assert!(!help.contains(option), "{arguments}: {option}: {help}");
        }
        says(&help, &["--gpu", "`gpuvm options` shows more"]);
    }
    let (code, all, _) = finish(gpuvm(folder.path(), "options"));
    assert_eq!(code, 0);
    let (usual, packets) = all.split_once("Packets of a ConnectX device:").unwrap();
    for option in ["--memory-node", "--queue-depth", "--workers", "--rdma-retries", "--gpu"] {
        assert!(usual.contains(option) && !packets.contains(option), "{option}: {all}");
    }
    assert!(packets.contains("--traffic-class"), "{all}");
    // A secret is what a memory node has, too.
    let (_, help, _) = finish(gpuvm(folder.path(), "serve --help"));
    assert!(help.contains("--secret-file"), "{help}");
}

#[test]
fn memory_below_a_page_is_refused() {
    let message = "error: --memory 4096 bytes is less than one page of 8192 bytes\n";
    assert_eq!(refusal(&[], "kron:6 --memory 4KiB --page-size 8KiB", 1), message);
}

#[test]
fn a_failed_run_leaves_no_output() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("out"), "as it was\n").unwrap();
    let (code, _, err) = finish(bfs(folder.path(), "not_here --output out"));
    assert_eq!(code, 1, "{err}");
    assert_eq!(
        std::fs::read_to_string(folder.path().join("out")).unwrap(),
        "as it was\n"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
