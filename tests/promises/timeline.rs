//! A timeline has every launch, and of single faults as many as were asked for; a program without one has none of it.

use std::{path::Path, process::Command};

use gpuvm::{DeviceCode, Error, LaunchConfig, Placement, Timeline, Transport, Vm, VmBuilder};
use serde_json::Value;

use crate::common::{BASIC, Bench, PAGE_WORDS, STEP, refused, simulated, simulated_gpu, simulated_soft, words};

const FRAMES: u64 = 16;
/// Several times as many pages as frames.
const COUNT: u64 = 64 * PAGE_WORDS;

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

fn slices<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    let mut found = named(events, name);
    found.retain(|event| event["ph"] == "X");
    found
}

/// Where a slice begins and ends, in microseconds.
fn span(event: &Value) -> (f64, f64) {
    let start = event["ts"].as_f64().unwrap();
    (start, start + event["dur"].as_f64().unwrap())
}

/// Adds to each element three times over, reads it back, and says what was counted.
fn work(builder: VmBuilder) -> gpuvm::Stats {
    let bench = Bench::new(builder, BASIC);
    let data = bench
        .vm
        .region::<u32>()
        .name("data")
        .from_slice(&words(1, COUNT))
        .unwrap();
    for _ in 0..3 {
        bench.must("write_by", LaunchConfig::new(2, 64), (&data, 1u32, STEP));
    }
    data.flush().unwrap();
    data.close().unwrap();
    bench.vm.stats().unwrap()
}

/// The end's account of a GPU.
fn account(events: &[Value]) -> &Value {
    let ends = named(events, "gpuvm_timeline_end");
    assert_eq!(ends.len(), 1);
    &ends[0]["args"]
}

#[test]
fn every_launch_and_with_one_in_one_every_fault_is_there_in_its_order() {
    for builder in [
        simulated(FRAMES)
            .placement(Placement::Fetch)
            .transport(Transport::Direct),
        simulated_soft(FRAMES),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("timeline.json");
        let stats = work(builder.timeline(Timeline::to(&path).one_in(1)));
        let events = events(&path);
        let end = account(&events);
        assert_eq!((&end["dropped"], &end["omitted"]), (&0.into(), &0.into()));
        assert_eq!(slices(&events, "kernel `write_by`").len(), 3);
        for host in [
            "launch of kernel `write_by`",
            "wait for kernel `write_by`",
            "wait and flush of region `data`",
        ] {
            assert!(!slices(&events, host).is_empty(), "{host}");
        }
        assert!(
            slices(&events, "flush of region `data`").len() > 1,
            "the kernel, and who waits for it"
        );
        let faults = slices(&events, "fault");
        assert!(
            stats.faults > 0 && stats.pages_fetched >= 3 * 64 && stats.evictions > 0 && stats.pages_written_back > 0,
            "{stats:?}"
        );
        assert_eq!(faults.len() as u64, stats.faults);
        assert_eq!(named(&events, "eviction").len() as u64, stats.evictions);
        assert_eq!(slices(&events, "write-back").len() as u64, stats.pages_written_back);
        assert_eq!(named(&events, "doorbell").len() as u64, stats.doorbells);
        let fetched = faults.len() + slices(&events, "prefetch").len();
        assert_eq!(fetched as u64, stats.pages_fetched);
        let launches = slices(&events, "kernel `write_by`");
        // A slice ends when the host has learnt that its launch has.
        let (first, last) = (
            launches[0]["args"]["enqueued_us"].as_f64().unwrap(),
            span(launches[2]).1,
        );
        let slack = end["clock_uncertain_us"].as_f64().unwrap() + 1.0;
        for fault in faults {
            let (start, end) = span(fault);
            let step = |name: &str| fault["args"][name].as_f64().unwrap();
            let (claimed, posted, arrived) = (step("claimed_us"), step("posted_us"), step("arrived_us"));
            assert!(0.0 <= claimed && claimed <= posted && posted <= arrived, "{fault}");
            assert!(arrived <= end - start + 0.01, "{fault}");
            assert!(
                first - slack <= start && end <= last + slack,
                "{fault} in {first} to {last}, {end}"
            );
            assert_eq!(fault["args"]["region"], "data");
            assert_eq!(fault["args"]["came"], true);
            assert!(fault["args"]["page"].as_u64().unwrap() < 64);
        }
        rows_do_not_overlap(&events);
    }
}

/// Slices of one track lie one after the other, or one in the other.
fn rows_do_not_overlap(events: &[Value]) {
    let key = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let mut all: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
    all.sort_by(|a, b| {
        let (from, to) = (span(a), span(b));
        key(a)
            .cmp(&key(b))
            .then(from.0.total_cmp(&to.0))
            .then(to.1.total_cmp(&from.1))
    });
    let mut open: Vec<(f64, &Value)> = Vec::new();
    for (at, event) in all.iter().enumerate() {
        let (start, end) = span(event);
        if at > 0 && key(all[at - 1]) != key(event) {
            open.clear();
        }
        // Times have three decimals.
        open.retain(|(ends, _)| *ends > start + 0.002);
        if let Some((ends, outer)) = open.last() {
            assert!(end <= ends + 0.002, "{event} reaches out of {outer}");
        }
        open.push((end, event));
    }
}

#[test]
fn a_sample_is_smaller_and_a_tiny_ring_says_what_it_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let (few, tiny) = (folder.path().join("few.json"), folder.path().join("tiny.json"));
    let stats = work(simulated_soft(FRAMES).timeline(Timeline::to(&few).one_in(8)));
    let noted = slices(&events(&few), "fault").len() as u64;
    assert!(noted > 0 && noted < stats.faults / 2, "{noted} of {}", stats.faults);

    let stats = work(simulated_soft(FRAMES).timeline(Timeline::to(&tiny).one_in(1).ring_events(3)));
    let events = events(&tiny);
    let end = account(&events);
    let number = |name: &str| end[name].as_u64().unwrap();
    assert!(number("dropped") > 0, "{end}");
    let noted = ["faults", "evictions", "doorbells", "prefetches"]
        .map(number)
        .iter()
        .sum::<u64>();
    // Write-backs and prefetches over queue pairs are two events each.
    let most = stats.faults + stats.evictions + stats.doorbells + 2 * (stats.prefetches + stats.read_ahead);
    assert!(
        noted + number("dropped") <= most + 2 * stats.requests,
        "{end} {stats:?}"
    );
    assert!(
        noted + number("dropped") >= stats.faults + stats.evictions,
        "{end} {stats:?}"
    );
    assert_eq!(slices(&events, "kernel `write_by`").len(), 3);
    let labels = named(&events, "process_labels")[0]["args"]["labels"].as_str().unwrap();
    assert!(labels.contains("dropped"), "{labels}");
}

#[test]
fn a_file_that_is_full_or_cannot_be_written_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("full.json");
    let timeline = Timeline::to(&full).one_in(1).file_bytes(64 << 10);
    work(simulated_soft(FRAMES).timeline(timeline));
    assert!(std::fs::metadata(&full).unwrap().len() <= 64 << 10);
    assert!(account(&events(&full))["omitted"].as_u64().unwrap() > 0);

    let nowhere = folder.path().join("no/such/folder.json");
    let refusal = simulated(FRAMES)
        .placement(Placement::Fetch)
        .timeline(nowhere.as_path())
        .build();
    assert!(matches!(&refusal, Err(Error::Timeline { path, .. }) if *path == nowhere));
    assert!(refused(refusal).contains("folder.json"));
    let precious = folder.path().join("graph.mtx");
    std::fs::write(&precious, "[\n").unwrap();
    for (wrong, says) in [
        (Timeline::to(&precious), "not a timeline"),
        (Timeline::to(&full).one_in(0), "at least 1"),
        (Timeline::to(&full).ring_events(0), "2^24"),
        (Timeline::to(&full).file_bytes(1), "64 KiB"),
        (Timeline::to("/dev/null"), "not a regular file"),
    ] {
        let message = refused(simulated(FRAMES).placement(Placement::Fetch).timeline(wrong).build());
        assert!(message.contains(says), "{message}");
    }
    assert_eq!(std::fs::read(&precious).unwrap(), b"[\n");
    // By another open file, as another process has it.
    let taken = folder.path().join("taken.json");
    let other = std::fs::File::create(&taken).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let message = refused(
        simulated(FRAMES)
            .placement(Placement::Fetch)
            .timeline(Timeline::to(&taken))
            .build(),
    );
    assert!(message.contains("another process"), "{message}");
}

#[test]
fn several_gpus_and_virtual_memories_are_processes_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timeline.%p.json");
    let builder = || {
        Vm::builder()
            .placement(Placement::Fetch)
            .gpus([simulated_gpu(FRAMES).workers(1), simulated_gpu(FRAMES).workers(1)])
            .transport(Transport::Direct)
            .frame_memory(FRAMES * 4096)
            .timeline(Timeline::to(&path).one_in(1))
    };
    let (one, other) = (builder().build().unwrap(), builder().build().unwrap());
    let mut faults = Vec::new();
    for vm in [one, other] {
        for (place, gpu) in vm.gpus().iter().enumerate() {
            let data = gpu
                .region::<u32>()
                .name(format!("of GPU {place}"))
                .zeroed(COUNT)
                .unwrap();
            let kernel = gpu.kernel(BASIC.name, BASIC.text, "write_by").unwrap();
            let launch = kernel.launch(LaunchConfig::new(1, 64), (&data, 1u32, STEP)).unwrap();
            launch.sync().unwrap();
            faults.push(gpu.stats().unwrap().faults);
        }
    }
    let written = path.to_str().unwrap().replace("%p", &std::process::id().to_string());
    let events = events(Path::new(&written));
    assert_eq!(named(&events, "process_name").len(), 4);
    for (number, faults) in (1..).zip(faults) {
        let own: Vec<_> = events.iter().filter(|event| event["pid"] == number).cloned().collect();
        assert_eq!(slices(&own, "kernel `write_by`").len(), 1, "{number}");
        let noted = slices(&own, "fault");
        assert_eq!(noted.len() as u64, faults);
        let region = format!("of GPU {}", (number - 1) % 2);
        assert!(noted.iter().all(|fault| fault["args"]["region"] == region.as_str()));
        assert_eq!(account(&own)["dropped"], 0);
    }
}

#[test]
fn a_seeded_run_has_a_timeline_too_and_the_array_is_whole_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timeline.json");
    let gpu = simulated_gpu(FRAMES).seed(7);
    let builder = simulated_soft(FRAMES).gpu(gpu).timeline(Timeline::to(&path).one_in(1));
    let bench = Bench::new(builder, BASIC);
    let data = bench
        .vm
        .region::<u32>()
        .name("data")
        .from_slice(&words(1, COUNT))
        .unwrap();
    bench.must("write_by", LaunchConfig::new(1, 64), (&data, 1u32, STEP));
    // Nothing was dropped yet: a process that died now would leave this.
    let faults = slices(&events(&path), "fault").len() as u64;
    assert_eq!(faults, bench.vm.stats().unwrap().faults);
}

/// The text of the device library after the preprocessor, without line numbers.
fn preprocessed(defines: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in gpuvm_gpu::headers() {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let source = "#include <gpuvm/detail/flush.cuh>\n#include <gpuvm/gpuvm.cuh>\n";
    std::fs::write(folder.path().join("program.cc"), source).unwrap();
    let mut cxx = Command::new("c++");
    cxx.args(["-E", "-P", "-std=c++20", "-DGPUVM_SIM"])
        .current_dir(folder.path());
    let output = cxx.args(defines).args(["-I", ".", "program.cc"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_without_a_timeline_has_none_of_its_code() {
    for defines in [&[][..], &["-DGPUVM_FEATURES=31"]] {
        let plain = preprocessed(defines);
        assert!(plain.contains("frame_left") && plain.contains("struct Miss"));
        for token in ["timeline_", "GPUVM_TIMELINE", "claimed_after", "on_way"] {
            // Types, numbers and a field of the layouts alone are called by it.
            assert!(!plain.contains(token), "{token}");
        }
    }
    assert_eq!(DeviceCode::TIMELINE, 32);
    assert!(preprocessed(&["-DGPUVM_FEATURES=33"]).contains("timeline_put(vm, event);"));
}
