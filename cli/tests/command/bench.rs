//! `gpuvm bench` on the simulated GPU, in small: what it reports, and what it refuses.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{finish, gpuvm, says};

/// `gpuvm bench` with arguments separated by blanks, in `folder`.
fn bench(folder: &Path, arguments: &str) -> Command {
    gpuvm(folder, &format!("bench {arguments}"))
}

fn in_a_folder(arguments: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    finish(bench(folder.path(), arguments))
}

/// The report of a run that must succeed.
fn report(arguments: &str) -> Value {
    let (status, out, err) = in_a_folder(&format!("{arguments} --gpu sim --json"));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

/// The rows, each with the keys and the sense that every row has.
fn rows(report: &Value) -> Vec<Value> {
    let rows = report["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let (figure, best) = (row["figure"].as_f64().unwrap(), row["best"].as_f64().unwrap());
        assert!(figure > 0.0 && best > 0.0, "{row}");
        let better = if row["unit"] == "us" || row["unit"] == "ms" {
            best <= figure
        } else {
            best >= figure
        };
        assert!(better, "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        assert!(!row["runs"].as_array().unwrap().is_empty(), "{row}");
        if let Some(ceiling) = row["ceiling"].as_f64() {
            let ratio = if row["unit"] == "us" || row["unit"] == "ms" {
                ceiling / figure
            } else {
                figure / ceiling
            };
            assert!((row["ratio"].as_f64().unwrap() - ratio).abs() < 1e-6, "{row}");
            assert!(!row["ceiling_name"].as_str().unwrap().is_empty(), "{row}");
        }
    }
    rows.clone()
}

fn parameter(row: &Value, name: &str) -> String {
    row["parameters"][name].as_str().unwrap_or_default().to_owned()
}

#[test]
fn faults_by_who_and_how_much_is_written() {
    let report = report("faults --data 512KiB --access warp,span --writes 0,100 --frames-share 1,1/4 --repeat 2");
    let rows = rows(&report);
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
        let back = row["more"]["written back"].as_f64().unwrap();
        let leave = parameter(row, "frames") != "all";
        let written = parameter(row, "written") == "100 %";
        assert_eq!(back > 0.0, leave && written, "{row}");
        assert_eq!(row["more"]["evictions"].as_f64().unwrap() > 0.0, leave, "{row}");
        assert_eq!(row["verified"], 128, "{row}");
    }
    assert!(report["machine"]["gpu"].as_str().unwrap().starts_with("simulated GPU"));
    assert!(
        report["command"]
            .as_str()
            .unwrap()
            .starts_with("gpuvm bench faults --data 512KiB")
    );
    assert!(report["pages_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["doorbell_calls_per_read"].as_f64().is_some());
}

#[test]
fn faults_in_every_order_and_by_lanes() {
    let orders = report("faults --data 256KiB --access warp --pattern sequential,random,zipf --repeat 1");
    assert_eq!(rows(&orders).len(), 3);
    let lanes = report("faults --pages 64 --frames 16 --repeat 1 --queue-pairs 1 --queue-depth 32 --warps 4");
    let rows_of_lanes = rows(&lanes);
    assert_eq!(parameter(&rows_of_lanes[0], "access"), "lanes");
    assert!(lanes["faults"].as_f64().unwrap() >= 64.0);
    let sparse = report("faults --data 1MiB --sparse 10 --access warp --repeat 1");
    assert_eq!(parameter(&rows(&sparse)[0], "touched"), "10");
}

#[test]
fn spans_that_have_no_frames_are_left_out_with_the_reason() {
    let report = report("faults --data 256KiB --access warp,span --frames 4 --warps 8 --repeat 1");
    assert_eq!(rows(&report).len(), 1);
    assert!(
        report["skipped"][0]["reason"].as_str().unwrap().contains("4 frames"),
        "{report}"
    );
}

#[test]
fn faults_from_three_neighbours_beside_bare_reads_from_the_same() {
    let loans = "--borrow 1:16MiB --borrow 2:16MiB --borrow 3:16MiB";
    let common = "faults --transport direct --data 1MiB --frames-share 1/4 --repeat 1";
    for homes in ["", "--home gpu:1,gpu:2,gpu:3", "--home gpu:3,gpu:1"] {
        let report = report(&format!("{common} {loans} {homes}"));
        let rows = rows(&report);
        assert_eq!(rows.len(), 2, "a[i] and spans");
        for row in rows {
            assert_eq!(row["ceiling_name"], "bare page reads from 3 GPUs", "{row}");
            assert!(row["more"]["bare reads from one M pages/s"].as_f64().unwrap() > 0.0);
            assert_eq!(row["verified"], 256, "{row}");
        }
    }
}

#[test]
fn one_gpu_with_others_in_its_virtual_memory() {
    for (arguments, count) in [
        ("faults --transport direct --data 1MiB --access warp", "3"),
        ("hits --data 256KiB --page-size 4KiB", "15"),
    ] {
        let others = vec!["sim"; count.parse().unwrap()].join(",");
        for row in rows(&report(&format!("{arguments} --repeat 1 --beside {others}"))) {
            assert_eq!(parameter(&row, "GPUs beside"), count, "{row}");
        }
    }
}

#[test]
fn latency_by_lanes_and_crowds() {
    let report = report("latency --faults 32 --lanes 1,8,32 --crowd 4 --page-size 4KiB,64KiB --repeat 1");
    let rows = rows(&report);
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row["unit"] == "us" && row["ceiling"].is_number()));
    for key in ["ns_min", "ns_p50", "ns_p99", "ns_p999"] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(rows[0]["more"]["p99"].as_f64().unwrap() >= rows[0]["more"]["min"].as_f64().unwrap());
}

#[test]
fn hits_beside_the_raw_pointer() {
    let report = report("hits --data 256KiB --repeat 1");
    let rows = rows(&report);
    for access in [
        "raw pointer",
        "a[i]",
        "span",
        "reader",
        "cursor",
        "pin",
        "never evicted",
        "resident()",
    ] {
        let found = rows.iter().filter(|row| parameter(row, "access") == access);
        for row in found.clone() {
            assert_eq!(row["ratio"].is_number(), access != "raw pointer", "{row}");
        }
        assert!(found.count() >= 2, "{access}");
    }
}

#[test]
fn a_search_beside_the_hosts_memory_in_place() {
    let report = report(
        "bfs --graph kron:9 --transport direct --placement fetch,while-free --page-size 4KiB --frames-share 1,1/4 --repeat 1",
    );
    let rows = rows(&report);
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["the host's memory in place", "paged", "paged", "paged", "paged"]
    );
    let placed = rows
        .iter()
        .skip(1)
        .map(|row| row["parameters"]["placement"].as_str().unwrap());
    assert_eq!(
        placed.collect::<Vec<_>>(),
        ["fetch", "fetch", "while-free", "while-free"]
    );
    assert!(rows.iter().all(|row| row["verified"] == 512 && row["unit"] == "ms"));
    assert!(rows[2]["more"]["times that of memory for all"].as_f64().unwrap() > 0.0);
    assert_eq!(report["skipped"][0]["name"], "managed memory");
}

#[test]
fn every_trace_under_every_placement() {
    let report = report("placement --data 1MiB --reads 4096 --repeat 2");
    let rows = rows(&report);
    let of = |trace: &'static str, placement: &'static str| {
        let of_both = move |row: &&Value| row["name"] == trace && parameter(row, "placement") == placement;
        rows.iter().filter(of_both).collect::<Vec<_>>()
    };
    for (trace, shares) in [
        ("pagerank", 2),
        ("zipf", 2),
        ("zipf-moves", 1),
        ("uniform", 1),
        ("window", 1),
        ("loop", 1),
        ("once", 1),
    ] {
        for placement in ["plain pointer", "in-place", "fetch", "auto"] {
            let found = of(trace, placement);
            assert_eq!(found.len(), shares, "{trace} {placement}");
            for row in found {
                let more = |name: &str| row["more"][name].as_f64();
                let (fetched, in_place) = (more("fetched MB"), more("in place MB"));
                match placement {
                    // What is read in place is estimated, from some reads alone.
                    "in-place" => assert!(fetched == Some(0.0) && in_place.is_some(), "{row}"),
                    "fetch" => assert!(fetched > Some(0.0) && in_place == Some(0.0), "{row}"),
                    "auto" => assert!(fetched > Some(0.0) && in_place.is_some(), "{row}"),
                    _ => assert!(fetched.is_none() && in_place.is_none(), "{row}"),
                }
                let slower = more("times in-place").unwrap().max(more("times fetch").unwrap());
                let better = (placement == "auto").then_some(slower);
                assert_eq!(more("times the better"), better, "{row}");
                assert!(better.is_none_or(|better| (row["ratio"].as_f64().unwrap() * better - 1.0).abs() < 1e-6));
                assert_eq!(row["unit"], "ms");
            }
        }
    }
    // A hot set that moves is read once before it moves and once after.
    assert_eq!(of("zipf", "auto")[0]["verified"], 4096);
    assert_eq!(of("zipf-moves", "auto")[0]["verified"], 8192);
    let whole = of("loop", "in-place")[0];
    assert_eq!(whole["verified"], 8 << 17);
    assert!(whole["more"]["in place MB"].as_f64().unwrap() > 0.0, "{whole}");
    assert!(report["worst_times_better"].as_f64().unwrap() > 0.0, "{report}");
    let firsts = [
        of("first-word", "in-place"),
        of("first-word", "fetch"),
        of("first-word", "auto"),
    ];
    for row in firsts.iter().flatten() {
        assert_eq!(row["unit"], "us");
        assert_eq!(row["ceiling_name"], "in-place");
        assert!(row["more"]["p99"].as_f64() >= row["more"]["min"].as_f64(), "{row}");
    }
    assert_eq!(firsts.map(|rows| rows.len()), [1; 3]);
}

#[test]
fn traces_that_read_each_word_have_the_sum_of_all() {
    // With as many reads as words, the order that has none twice has each.
    let report = report(
        "placement --trace once,loop --placement auto,while-free --data 384KiB --reads 1000000 --frames-share 1/2,1 \
         --page-size 4KiB --repeat 1",
    );
    let rows = rows(&report);
    assert_eq!(rows.len(), 12);
    let words = 384 << 10 >> 3;
    for row in &rows {
        let reads = if row["name"] == "loop" { 8 * words } else { words };
        assert_eq!(row["verified"], reads, "{row}");
    }
    let frames: Vec<String> = rows.iter().map(|row| parameter(row, "frames")).collect();
    assert_eq!(frames.iter().filter(|frames| *frames == "48").count(), 6);
}

#[test]
fn each_word_is_stored_in_place_in_frames_and_by_a_pointer() {
    let report = report("placement --stores --data 4MiB --reads 3000 --page-size 4KiB,64KiB --repeat 2");
    let rows = rows(&report);
    assert_eq!(rows.len(), 12);
    for row in rows {
        let more = |name: &str| row["more"][name].as_f64();
        let words = if parameter(&row, "order") == "scattered" {
            3000
        } else {
            524_288
        };
        assert_eq!((&row["verified"], &row["unit"]), (&words.into(), &"ms".into()));
        let moved = (more("fetched MB"), more("in place MB"));
        match parameter(&row, "way").as_str() {
            "in place" => assert_eq!(moved, (Some(0.0), Some(f64::from(words) * 8e-6)), "{row}"),
            "paged" => assert!(moved.0 > Some(0.0) && moved.1 == Some(0.0), "{row}"),
            _ => assert_eq!(moved, (None, None), "{row}"),
        }
        assert!(more("times paged") > Some(0.0), "{row}");
        assert_eq!(row["ceiling_name"] == "plain pointer", moved.0.is_some(), "{row}");
    }
}

#[test]
fn memory_that_a_neighbour_lends_and_takes_back() {
    let report = report("tier --data 24MiB --take-back 16MiB --repeat 2 --passes 2");
    let rows = rows(&report);
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["take back", "lender's kernel", "consolidation", "consolidation"]
    );
    let more = |row: usize, name: &str| rows[row]["more"][name].as_f64().unwrap();
    // Two chunks, one a run; the pages that were there come from their home, none of them wrong.
    assert_eq!(rows[0]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(rows[0]["unit"], "ms");
    assert_eq!(parameter(&rows[0], "loan"), "32 MiB of GPU 1");
    assert_eq!(
        (more(0, "given back MB"), more(0, "still borrowed MB")),
        (33.554432, 0.0)
    );
    assert!(more(0, "pages lost") > 0.0, "{}", rows[0]);
    for name in ["before", "meanwhile", "after", "without a tier"] {
        assert!(more(0, &format!("{name} M pages/s")) > 0.0, "{name}");
    }
    assert_eq!(rows[1]["ceiling_name"], "the same without a borrower");
    assert!(more(1, "borrower M pages/s") > 0.0);
    // After the first pass what has no frame is at the neighbour, where there is one.
    assert!(more(2, "of the neighbour %") > 90.0, "{}", rows[2]);
    assert_eq!(more(3, "of the neighbour %"), 0.0);
    assert_eq!(parameter(&rows[2], "way"), "borrowed memory");
    assert_eq!(report["skipped"][0]["name"], "managed memory");
    assert!(report["give_back_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_window_without_frames_for_it_is_left_out_with_the_reason() {
    let report = report("placement --trace window,once --placement in-place --data 256KiB --repeat 1");
    assert!(rows(&report).iter().all(|row| row["name"] == "once"));
    let reason = report["skipped"][0]["reason"].as_str().unwrap();
    says(&reason, &["the window has 8 pages, and there are 8 frames"]);
}

#[test]
fn limits_without_what_only_cuda_has() {
    let report = report("limits --data 256KiB --page-size 4KiB,64KiB --repeat 1");
    let rows = rows(&report);
    for name in [
        "warps read random pages",
        "warps write random pages",
        "one warp, one page, p50",
        "one dependent load",
        "GPU to processor to GPU",
        "warps copy random pages inside the GPU",
    ] {
        assert!(rows.iter().any(|row| row["name"] == name), "{name}");
    }
    let skipped = report["skipped"][0]["reason"].as_str().unwrap();
    assert!(skipped.contains("needs an NVIDIA GPU"), "{skipped}");
}

#[test]
fn what_needs_an_nvidia_gpu_says_so() {
    for arguments in [
        "uvm --gpu sim",
        "limits --gpu sim --data 64KiB --page-size 4KiB --only copies",
    ] {
        let (status, out, err) = in_a_folder(arguments);
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}: {err}");
        says(&err, &["needs an NVIDIA GPU, and this run has simulated GPU"]);
        assert!(err.contains("--gpu cuda:0"), "{err}");
    }
}

#[test]
fn tables() {
    let (status, out, err) = in_a_folder("faults --gpu sim --data 64KiB --access warp --repeat 1");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("faults: simulated GPU"), "{out}");
    assert!(out.contains("| bare page reads |"), "{out}");
}

#[test]
fn every_row_is_the_one_that_was_asked_for() {
    let report = report("take --data 1MiB --rows 3000 --row 512 --repeat 2");
    let row = &report["rows"][0];
    assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
    // The first run, which is not counted, is compared as well.
    assert_eq!(row["verified"], 9000, "{row}");
    assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
    // Frames for an eighth of 256 pages: most rows fault.
    assert_eq!(row["parameters"]["frames"], "128 KiB", "{row}");
    assert!(row["more"]["pages fetched"].as_f64().unwrap() > 1000.0, "{row}");
}

#[test]
fn frames_go_and_come_back_beside_a_kernel() {
    let report = report("resize --data 3MiB --frames 2MiB --shrink 1MiB --repeat 2");
    let rows = rows(&report);
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row["more"]["not done MB"].as_f64(), Some(0.0), "{row}");
    }
}

#[test]
fn growths_of_all_kinds_and_the_waste_of_many_buffers() {
    let report = report("elastic --growths 40 --repeat 2");
    let rows = rows(&report);
    assert_eq!(rows.len(), 7);
    for row in &rows {
        assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
    }
    // Beside the bare handle.
    assert_eq!(rows.iter().filter(|row| !row["ratio"].is_null()).count(), 4);
    for key in [
        "bare_us_p50",
        "on_demand_us_p50",
        "on_demand_reused_us_p50",
        "premapped_us_p50",
        "premapped_handle_us_p50",
    ] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let wasted = report["wasted_percent"].as_f64().unwrap();
    assert!((0.0..=5.0).contains(&wasted), "{wasted} % is wasted");
    let (status, out, _) = in_a_folder("elastic --gpu sim --growths 1 --buffers 1 --repeat 1");
    assert!(status == 0 && out.contains("pre-mapped"), "{out}");
}

#[test]
fn tiered_buffers_beside_the_bound_and_their_moves() {
    let report = report("tiered --data 1MiB --repeat 2");
    let rows = rows(&report);
    // Two kernels over each place and each share, and moves each way.
    assert_eq!(rows.len(), 2 * (2 + 4) + 6);
    assert_eq!(rows.iter().filter(|row| !row["ratio"].is_null()).count(), 8);
    for row in &rows {
        assert!(
            row["figure"].as_f64().unwrap() > 0.0 && row["verified"].as_u64().unwrap() > 0,
            "{row}"
        );
    }
    // All of 16 chunks go and come together, then one by one, then together again in each run.
    let moves: Vec<u64> = rows[12..].iter().map(|row| row["verified"].as_u64().unwrap()).collect();
    assert_eq!(moves, [1, 1, 16, 16, 2, 2]);
    let (status, _, err) = in_a_folder("tiered --gpu sim --data 4KiB");
    assert!(status != 0 && err.contains("four chunks of 64 KiB"), "{err}");
}

#[test]
fn faults_stand_beside_bare_reads_and_the_file_goes() {
    // Where O_DIRECT is: folders for temporary files may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let folder_name = folder.path().display();
    let sizes = "--data 4MiB --file-cache 1MiB --depth 32 --repeat 2 --page-size 4KiB,16KiB";
    let report = report(&format!("files --dir {folder_name} {sizes}"));
    let rows = rows(&report);
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn every_loop_beside_its_peers() {
    for (transport, loops) in [("direct", 7), ("soft", 2)] {
        let common = "natural --data 256KiB --page-size 4KiB --frames-share 1,1/4 --repeat 1 --launches 2";
        let some = if loops == 7 { "" } else { "--loops saxpy,rows" };
        let report = report(&format!("{common} --transport {transport} {some}"));
        let rows = rows(&report);
        assert_eq!(rows.len(), loops * 4, "{report}");
        for (place, row) in rows.iter().enumerate() {
            // Rows of a loop follow each other, peers first.
            let by = ["raw pointer", "pinned host memory, in place", "a[i]", "a[i]"][place % 4];
            assert_eq!(row["parameters"]["by"], by, "{row}");
            assert_eq!(row["name"], rows[place / 4 * 4]["name"], "{row}");
            assert_eq!(row["runs"].as_array().unwrap().len(), 1, "{row}");
            assert_eq!(row["ratio"].is_number(), by == "a[i]", "{row}");
            for name in ["launch 1", "times in place"] {
                assert_eq!(row["more"][name].as_f64() > Some(0.0), by == "a[i]", "{row}");
            }
        }
        assert_eq!(report["skipped"][0]["name"], "managed memory");
    }
}

#[test]
fn a_row_by_each_placement() {
    let placed = "--data 300KiB --loops stencil,rows --page-size 4KiB,64KiB --frames-share 1/2 --placement auto,in-place --repeat 1";
    let (status, out, err) = in_a_folder(&format!("natural --gpu sim {placed} --transport direct"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let cells = out.lines().filter(|line| line.contains("by a[i], data 256 KiB"));
    assert_eq!(cells.count(), 8, "{out}");
    assert!(out.contains("not measured: managed memory"), "{out}");
}

#[test]
fn every_application_in_every_form_beside_one_gpu() {
    let report = report("gps --count 2 --iterations 2 --repeat 1");
    let rows = rows(&report);
    let form = |row: &Value| row["parameters"]["form"].as_str().unwrap().to_owned();
    for app in ["jacobi", "pagerank", "sssp", "als", "diffusion", "wave"] {
        let of_app = rows.iter().filter(|row| row["name"] == app);
        let forms: Vec<String> = of_app.clone().map(form).collect();
        assert_eq!(forms, ["one-gpu", "broadcast", "peer-loads", "copies"], "{app}");
        for row in of_app {
            let alone = form(row) == "one-gpu";
            assert_eq!(row["parameters"]["gpus"], if alone { "1" } else { "2" }, "{row}");
            assert_eq!(row["more"]["speedup"].is_null(), alone, "{row}");
            if form(row) == "broadcast" {
                assert!(row["more"]["sent MB"].as_f64().unwrap() > 0.0, "{row}");
                assert!(row["more"]["sent of read"].as_f64().unwrap() <= 1.05, "{row}");
                assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let means = rows.iter().filter(|row| row["name"] == "geometric mean");
    assert_eq!(
        means.map(form).collect::<Vec<_>>(),
        ["broadcast", "peer-loads", "copies"]
    );
    assert!(report["broadcast_speedup_2"].as_f64().unwrap() > 0.0);
    assert!(report["broadcast_least_speedup_2"].as_f64().unwrap() > 0.0);
    let skipped = report["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 6);
    assert!(
        skipped
            .iter()
            .all(|skipped| skipped["reason"].as_str().unwrap().contains("no managed memory")),
        "{skipped:?}"
    );
}

#[test]
fn sixteen_gpus_and_a_table() {
    let arguments =
        "gps --gpu sim --count 1,16 --app jacobi:70x64,wave:40x40 --form broadcast --iterations 1 --repeat 1";
    let (status, out, err) = in_a_folder(arguments);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("gpus 16") && out.contains("geometric mean"), "{out}");
    let (status, _, err) = in_a_folder("gps --gpu sim,sim,sim --app als:40x30x5 --iterations 1 --repeat 1");
    assert_eq!((status, err.as_str()), (0, ""));
}

#[test]
fn ctrl_c_ends_the_benchmark_under_way_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bench(folder.path(), "core --gpu sim --out reports --repeat 1000");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut all = command.spawn().unwrap();
    // Of any of its threads: the command has one with a stack of its own.
    let child = || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", all.id())).unwrap();
        threads.flatten().find_map(|thread| {
            let children = std::fs::read_to_string(thread.path().join("children")).ok()?;
            Some(children.split_ascii_whitespace().next()?.to_owned())
        })
    };
    let started = Instant::now();
    let child = loop {
        if let Some(child) = child() {
            break child;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no benchmark was started");
        std::thread::sleep(Duration::from_millis(5));
    };
    let id = all.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(all.wait().unwrap().code(), Some(130));
    // It would run for minutes if it were left alone.
    let (child, ended) = (Path::new("/proc").join(child), Instant::now());
    while child.exists() {
        assert!(ended.elapsed() < Duration::from_secs(10), "the benchmark goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let left: Vec<_> = std::fs::read_dir(folder.path().join("reports")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn wrong_flags_end_with_status_2() {
    for (arguments, reason) in [
        ("faults --no-such-flag", "--no-such-flag"),
        ("faults --data 0", "give at least one page"),
        ("faults --data lots", "invalid size"),
        ("faults --pages 0", "0 is not in 1..="),
        ("faults --writes 101", "101 is not in 0..=100"),
        ("faults --frames-share 0", "a share is above 0"),
        ("faults --home disk", "expected host or gpu:N"),
        ("faults --pattern spiral", "possible values"),
        ("faults --repeat 0", "0 is not in 1..=1000"),
        ("faults --pages 1 --data 4KiB", "cannot be used with"),
        ("latency --lanes 33", "33 is not in 1..=32"),
        ("latency --page-size 4KiB,5000", "a page is a power of two"),
        ("hits --accesses 33", "a multiple of 32"),
        ("limits --only speed", "possible values"),
        ("uvm --faults 0", "0 is not in 1..="),
        ("placement --trace spiral", "possible values"),
        ("placement --placement sideways", "is none of auto, fetch"),
        ("placement --reads 0", "0 is not in 1..="),
        ("placement --frames-share 2", "a share is above 0"),
        ("tier --passes 1", "1 is not in 2..=100"),
        ("tier --borrow 1", "names no GPU and size"),
        ("tier --take-back 0", "give at least one page"),
        ("resize --gpu sim --shrink none", "--shrink"),
        ("elastic --growths 0", "0 is not in 1..="),
        ("elastic --buffers 0", "0 is not in 1..="),
        ("files --depth 0", "0 is not in 1..="),
        ("natural --loops spiral", "possible values"),
        ("natural --launches 1", "1 is not in 2..=10"),
        ("gps --count 0", "a number of GPUs from 1 to 16"),
        ("gps --count 17", "a number of GPUs from 1 to 16"),
        (
            "gps --form sideways",
            "none of one-gpu, broadcast, peer-loads, copies, managed",
        ),
        ("gps --iterations 0", "0 is not in 1..="),
        ("gps --gpus sim,sim", "--gpu"),
        ("core", "--out <DIR>"),
    ] {
        let (status, out, err) = in_a_folder(arguments);
        assert_eq!((status, out.as_str()), (2, ""), "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    for line in [
        "faults --gpu sim --data 4KiB --page-size 2MiB => the data has 0 pages of 2 MiB",
        "faults --gpu sim --data 64KiB --sparse 17 => it must have 17 to",
        "faults --gpu sim --lanes-apart --writes 50 => lanes with a page each only read",
        "faults --gpu sim --transport direct --home gpu:1,gpu:2,gpu:3,gpu:4 => it is host, or one to 3 neighbours gpu:N",
        "faults --gpu sim --transport direct --home gpu:1,gpu:2 --writes 50 => several homes are read by warps and spans",
        "hits --gpu sim --data 4KiB => hits take one page of 64 KiB to 16 GiB",
        "limits --gpu sim --data 4KiB --page-size 4KiB => two pages of 4 KiB",
        "faults --gpu sim --data 64KiB --home gpu:1 => cannot get 65536 bytes of memory",
        "core --out /dev/null/x => cannot write /dev/null/x",
        "placement --gpu sim --data 63KiB => the traces take at least 64 pages of 4 KiB",
        "placement --gpu sim --transport soft => transport soft fetches every page, whatever the placement; use --transport direct",
        "faults --gpu cuda:9 => cannot be used",
        "tier --gpu cuda:9 => cannot be used",
        "tier --gpu sim --data 64KiB => the data has 16 pages of 4 KiB",
        "tier --gpu sim --data 64MiB --page-size 1MiB --frames-share 1/32 => 4 warps hold a page of 1 MiB each, and there are 2 frames",
        "tier --gpu sim --frames-share 1 => give --frames-share below 1",
        "tier --gpu sim --borrow 1:1MiB => memory is lent in chunks",
        "tier --gpu sim --transport soft => needs the transport direct",
        "take --gpu sim --row 6 => --row must be a positive multiple of 4",
        "take --gpu sim --row 1MiB --data 4KiB => --row must be a positive multiple of 4",
        "resize --gpu sim --frames 1MiB --shrink 1MiB => --shrink must be at least a page and less than --frames",
        "files --gpu sim --dir /nonexistent/folder => /nonexistent/folder",
        "files --gpu sim --data 4KiB --page-size 64KiB => 0 pages of 64 KiB",
        "files --gpu sim --data 4MiB --file-cache 4KiB => at least 64 blocks",
        "files --gpu sim --transport direct --data 1MiB => software NIC",
        "natural --gpu sim --data 64KiB => --data is less than 256 KiB",
        "gps --gpu sim,sim --count 3 => --count 3; there are 2 GPUs",
        "gps --gpu sim --app life => there is no application `life`; there are jacobi,",
        "gps --gpu sim --app jacobi:2x9 => invalid input `2x9` of jacobi",
        "gps --gpu sim --app als:9 => invalid input `9` of als",
        "gps --gpu sim --app pagerank:urand:99 => scale",
        "gps --gpu sim --app jacobi:9x9 --count 8 => has work for 7 GPUs, not for 8",
    ] {
        let (arguments, reason) = line.split_once(" => ").unwrap();
        let (status, out, err) = in_a_folder(arguments);
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}: {err}");
        let name = arguments.split_once(' ').unwrap().0;
        let begin = if name == "core" {
            "error: ".to_owned()
        } else {
            format!("error: the benchmark {name} failed\n")
        };
        assert!(err.starts_with(&begin) && err.contains(reason), "{arguments}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

#[test]
fn all_of_them_one_file_each() {
    let folder = tempfile::tempdir().unwrap();
    let run = bench(folder.path(), "core --gpu sim --out reports --repeat 1");
    let (status, out, err) = finish(run);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("uvm is left out"), "{err}");
    for name in ["limits", "latency", "faults", "faults-sparse", "hits", "placement"] {
        assert!(out.contains(&format!("## {name}\n")), "{out}");
        let text = std::fs::read_to_string(folder.path().join(format!("reports/{name}.json"))).unwrap();
        rows(&serde_json::from_str(&text).unwrap());
    }
    assert_eq!(
        std::fs::read_to_string(folder.path().join("reports/core.txt")).unwrap(),
        out
    );
}

#[test]
fn a_benchmark_that_fails_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    // The simulated GPU has neighbours where one is named to borrow from, and none else.
    let run = bench(folder.path(), "core --gpu sim --peer 1 --out reports --repeat 1");
    let (status, out, err) = finish(run);
    assert_eq!(status, 1, "{err}");
    says(
        &err,
        &["3 of 14 benchmarks failed: limits-peer, faults-peer, faults-peer-written"],
    );
    assert!(out.contains("## limits-peer\nFAILED"), "{out}");
    assert!(out.contains("## hits\n") && out.contains("## tier\n"), "{out}");
    assert!(!folder.path().join("reports/limits-peer.json").exists());
}
