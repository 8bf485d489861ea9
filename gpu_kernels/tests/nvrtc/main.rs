//! Every kernel file of the repository compiles to machine code for NVIDIA GPUs, and takes what `budgets.tsv` says.
//!
//! `./test` brings NVRTC (no GPU and no driver are needed) and sets `GPUVM_REQUIRE_NVRTC`, with which a missing library
//! is a failure. Nothing is run: that needs a GPU. Kernels that tests keep in strings are compiled where those run.

mod budget;
mod machine_code;
mod posting;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use budget::{ARCHITECTURES, Found, Line, MEASURED, Taken, Unit};
use gpuvm_gpu::cuda::{Architecture, compile_to_cubin, presence};
use gpuvm_gpu::{CompileOptions, GpuError, Source};
use gpuvm_layouts as layout;

/// The forms of the device library that the runtime compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Lanes copy pages themselves.
    Direct,
    /// They ask a NIC.
    Queued,
    /// Queued, for a virtual memory whose regions may have replicas and checksums.
    Reliable,
    /// Direct, for a virtual memory that borrows memory of neighbours.
    Borrowing,
    /// For any virtual memory: what a program has that nvcc compiles and that does not say less.
    All,
}

impl Form {
    const ALL: [Self; 5] = [Self::Direct, Self::Queued, Self::Reliable, Self::Borrowing, Self::All];

    /// Its name in `budgets.tsv`.
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Queued => "queued",
            Self::Reliable => "reliable",
            Self::Borrowing => "borrowing",
            Self::All => "all",
        }
    }

    /// `FEATURE_*`.
    fn features(self) -> u32 {
        match self {
            Self::Direct => layout::FEATURE_DIRECT,
            Self::Queued => layout::FEATURE_QUEUED,
            Self::Reliable => layout::FEATURE_QUEUED | layout::FEATURE_RELIABLE,
            Self::Borrowing => layout::FEATURE_DIRECT | layout::FEATURE_VICTIMS,
            Self::All => layout::FEATURES_ALL,
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Whether NVRTC is there; `./test` brings it and asks for it.
fn nvrtc() -> bool {
    let there = presence().nvrtc;
    assert!(
        there || std::env::var_os("GPUVM_REQUIRE_NVRTC").is_none(),
        "libnvrtc cannot be loaded"
    );
    if !there {
        eprintln!("SKIPPED: libnvrtc is not on the loader's path; `./test` brings it");
    }
    there
}

fn options(unit: &Unit) -> CompileOptions {
    let mut options = CompileOptions {
        // Headers of `gpuvm bench` and of workloads; others do not include them.
        headers: vec![
            ("bench/common.cuh".to_owned(), text("cli/src/bench/common.cuh")),
            ("search.cuh".to_owned(), text("workloads/src/search.cuh")),
            ("rows.cuh".to_owned(), text("workloads/src/rows.cuh")),
            ("access.cuh".to_owned(), text("workloads/src/apps/access.cuh")),
            ("shared.cuh".to_owned(), text("workloads/src/gps/shared.cuh")),
        ],
        ..CompileOptions::default()
    };
    let more = [
        (unit.has("RESIZABLE"), layout::FEATURE_RESIZABLE),
        (unit.has("TIMELINE"), layout::FEATURE_TIMELINE),
    ];
    let more = more.iter().filter(|(has, _)| *has).map(|(_, feature)| feature);
    let features = more
        .fold(unit.form.features(), |all, feature| all | feature)
        .to_string();
    options.defines.push(("GPUVM_FEATURES".to_owned(), Some(features)));
    let own = unit.defines();
    options
        .defines
        .extend(own.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))));
    options
}

/// What is wrong with a unit for that compute capability, a line each. `found` gets what each kernel takes.
fn check(unit: &Unit, lines: &[&Line], architecture: u32, found: &Found) -> Vec<String> {
    let place = |kernel: &str| format!("{unit} {kernel} sm_{architecture}");
    let names: Vec<&str> = lines.iter().map(|line| line.kernel.as_str()).collect();
    let text = match unit.form {
        // The others would take a minute, and have no budget there. Templates are compiled by their names alone.
        Form::Reliable | Form::Borrowing | Form::All if !names.iter().any(|name| name.contains('<')) => {
            kernels_of(&text(&unit.path), &names)
        }
        _ => text(&unit.path),
    };
    let source = Source::new(unit.path.as_str(), text);
    let cubin = match compile_to_cubin(&source, &names, &options(unit), Architecture(architecture)) {
        Ok(cubin) => cubin,
        Err(error) => return vec![format!("{}: {}", place(""), chain(&error))],
    };
    let mut wrong = Vec::new();
    if cubin.is_ptx {
        wrong.push(format!("{}: this NVRTC makes no machine code for it", place("")));
    }
    let warnings = cubin.full_log.lines().filter(|line| line.contains("warning"));
    wrong.extend(warnings.map(|line| format!("{}: {line}", place(""))));
    // Older ones have no such descriptors, but for what is uniform.
    if let (90.., Some(nvdisasm)) = (architecture, machine_code::disassembler()) {
        let found = machine_code::faults(&nvdisasm, &cubin.image).into_iter();
        wrong.extend(found.map(|what| format!("{}: {what}", place(""))));
    }
    let at = ARCHITECTURES.iter().position(|one| *one == architecture);
    let at = at.expect("one of the table's");
    for (kernel, line) in cubin.kernels.iter().zip(lines) {
        let Some(usage) = kernel.usage else {
            wrong.push(format!("{}: ptxas does not say what it takes", place(&kernel.name)));
            continue;
        };
        let taken = Taken {
            registers: usage.registers,
            spilled_bytes: usage.spill_store_bytes + usage.spill_load_bytes,
        };
        let key = (unit.clone(), line.kernel.clone(), architecture);
        found.lock().expect("no thread panics with it").insert(key, taken);
        let over = line.budgets[at].and_then(|budget| taken.exceeds(budget));
        wrong.extend(over.map(|what| format!("{}: {what}", place(&line.kernel))));
    }
    wrong
}

fn chain(error: &GpuError) -> String {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// `./test budgets` sets `GPUVM_RENEW_BUDGETS`, with which the table is written anew.
#[test]
fn every_kernel_compiles_for_nvidia_gpus_within_its_budget() {
    if !nvrtc() {
        return;
    }
    let is_set = |name| std::env::var_os(name).is_some();
    let (quick, night, renew) = (
        is_set("GPUVM_TEST_QUICK"),
        is_set("GPUVM_TEST_NIGHT"),
        is_set("GPUVM_RENEW_BUDGETS"),
    );
    if renew {
        // Kernels that are new get their lines first.
        budget::renew(&Found::default());
    }
    let lines = budget::lines();
    let mut units: BTreeMap<&Unit, Vec<&Line>> = BTreeMap::new();
    for line in &lines {
        units.entry(&line.unit).or_default().push(line);
    }
    let mut jobs = Vec::new();
    for (unit, lines) in &units {
        // New lines of tests are measured, too.
        let left_out = unit.is_test() && !night && !renew || unit.is_application() && quick;
        if left_out {
            continue;
        }
        for (at, architecture) in ARCHITECTURES.into_iter().enumerate() {
            let asked = architecture == MEASURED || night;
            if asked && lines.iter().any(|line| line.budgets[at].is_some()) {
                jobs.push((*unit, lines, architecture));
            }
        }
    }
    let (next, found, wrong) = (AtomicUsize::new(0), Found::default(), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                // Relaxed: only the numbers have to differ; the scope's end orders the rest.
                while let Some((unit, lines, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let what = check(unit, lines, *architecture, &found);
                    wrong.lock().expect("no thread panics with it").extend(what);
                }
            });
        }
    });
    if renew {
        return budget::renew(&found);
    }
    let wrong = wrong.into_inner().expect("no thread panicked");
    assert!(
        wrong.is_empty(),
        "what has to change, or the table, by `./test budgets`:\n  {}",
        wrong.join("\n  ")
    );
}

/// A planted excess: the test above can fail.
#[test]
fn too_many_registers_spills_and_warnings_are_found() {
    let taken = |registers, spilled_bytes| Taken {
        registers,
        spilled_bytes,
    };
    assert_eq!(taken(40, 74).exceeds(taken(32, 8)), None);
    assert!(
        taken(41, 0)
            .exceeds(taken(32, 8))
            .is_some_and(|what| what == "41 in place of 32/8")
    );
    assert!(taken(32, 75).exceeds(taken(32, 8)).is_some());
    // What spills nothing has no tolerance.
    assert!(taken(32, 1).exceeds(taken(32, 0)).is_some());
    if !nvrtc() {
        return;
    }
    let header = "#pragma once\nstatic __device__ int unused_one() { int never; return 1; }\n";
    let options = CompileOptions {
        headers: vec![("gpuvm/detail/wire.cuh".to_owned(), header.to_owned())],
        ..CompileOptions::default()
    };
    let source = Source::new(
        "k.cu",
        "#include <gpuvm/detail/wire.cuh>\n__global__ void k(int* p) { *p = unused_one(); }",
    );
    let cubin = compile_to_cubin(&source, &["k"], &options, Architecture(90)).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        cubin.full_log.contains("warning") && cubin.log.is_empty(),
        "{}",
        cubin.full_log
    );
}

/// Files with kernels below `folder`, by their paths from the root.
fn kernel_files(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("a folder's entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Programs that are ported, and those that nvcc compiles, have their host code beside their kernels; others are inputs.
        let is_program = ["tests/ports", "tests/gpu/exec", "examples/cpp", "ptx/tests/inputs"]
            .iter()
            .any(|end| path.ends_with(end));
        if path.is_dir() && !is_program && name != "target" && !name.starts_with('.') {
            kernel_files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "cu") {
            let path = path.strip_prefix(root()).expect("below the root");
            found.insert(path.to_string_lossy().into_owned());
        }
    }
}

/// Names that `text` declares as kernels.
fn declared(text: &str) -> BTreeSet<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let after = text.split("__global__ ").skip(1);
    let names = after.filter_map(|rest| {
        let (_, name) = rest.split_once("void ")?;
        let name = match name.strip_prefix("__launch_bounds__(") {
            Some(bounds) => bounds.split_once(") ")?.1,
            None => name,
        };
        // Behind a macro for its bounds, if there is one.
        Some(name.split('(').next()?.split_whitespace().last()?.to_owned())
    });
    names.collect()
}

/// `text` without the kernels that have other names. A kernel is a paragraph.
fn kernels_of(text: &str, names: &[&str]) -> String {
    let kept = |paragraph: &&str| {
        let kernels = declared(paragraph);
        kernels.is_empty() || kernels.iter().any(|kernel| names.contains(&kernel.as_str()))
    };
    text.split("\n\n").filter(kept).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn no_kernel_is_without_a_budget() {
    let (missing, gone) = (budget::missing(), budget::gone());
    assert!(
        missing.is_empty() && gone.is_empty(),
        "`./test budgets` adds {missing:?} and removes {gone:?}"
    );
    let three = "__global__ void a(int);\ntemplate <int N>\n__global__ void\n__launch_bounds__(256, 8) b() {}\n\
                __global__ void BOUNDS c(int);";
    let names = ["a", "b", "c"].map(str::to_owned);
    assert_eq!(declared(three), BTreeSet::from(names));
    let apart = "int x;\n\n__global__ void a() {}\n\n__global__ void b() {}\n\n__global__ void c() {}";
    assert_eq!(declared(&kernels_of(apart, &["b"])), BTreeSet::from(["b".to_owned()]));
}

#[test]
fn a_misused_element_is_refused_by_nvrtc_too() {
    if !nvrtc() {
        return;
    }
    for case in [
        "void k(gpuvm::array<int> a) { auto x = a[0]; } => T x = a[i];",
        "void k(gpuvm::broadcast<int> a) { auto x = a[0]; a[1] = x; } => broadcast_element",
        "void k(gpuvm::broadcast<const int> a) { a[0] = 1; } => must be a modifiable lvalue",
        "void k(gpuvm::broadcast<int3> a) { a[0] = int3{}; } => divide the page",
    ] {
        let (kernel, said) = case.split_once(" => ").unwrap();
        let source = Source::new("k.cu", format!("#include <gpuvm/gpuvm.cuh>\n__global__ {kernel}"));
        let error = compile_to_cubin(&source, &["k"], &CompileOptions::default(), Architecture(90));
        let error = chain(&error.expect_err(kernel));
        assert!(error.contains(said), "{error}");
    }
}
