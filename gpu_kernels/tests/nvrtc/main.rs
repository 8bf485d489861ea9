//! Every kernel file of the repository compiles to machine code for NVIDIA GPUs, within a budget of registers a kernel.
//!
//! `./test` brings NVRTC (no GPU and no driver are needed) and sets `GPUVM_REQUIRE_NVRTC`, with which a missing library
//! is a failure. Nothing is run: that needs a GPU. Kernels that tests keep in strings are compiled where those run.

mod budget;
mod machine_code;
mod posting;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use budget::{ALL, BORROWING, FILES, File, GUARDED, Limit, SIMULATED_ALONE, TIMELINE};
use gpuvm_gpu::cuda::{Architecture, compile_to_cubin, presence};
use gpuvm_gpu::{CompileOptions, GpuError, Source};
use gpuvm_layouts as layout;

/// The two forms of the device library that the runtime compiles, each with its compute capabilities: the oldest that is
/// supported, the first with asynchronous copies to shared memory, and the one that is measured on. The queues know no
/// difference between the last two.
const FORMS: [(Form, &[u32]); 2] = [(Form::Direct, &[75, 80, 90]), (Form::Queued, &[75, 90])];
/// The one that `GPUVM_TEST_QUICK` leaves, of which it leaves out the kernels of tests.
const MEASURED: u32 = 90;
/// Those of the form with replicas and checksums.
const GUARDED_FOR: [u32; 2] = [75, 90];
/// Those of the form that borrows of neighbours, each with its way to copy.
const BORROWING_FOR: [u32; 3] = [75, 80, 90];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Direct,
    Queued,
    /// Queued, for a virtual memory whose regions may have replicas and checksums.
    Guarded,
    /// Direct, for a virtual memory that borrows memory of neighbours.
    Borrowing,
    /// For any virtual memory: what a program has that nvcc compiles and that does not say less.
    All,
}

impl Form {
    /// `FEATURE_*`.
    fn features(self) -> u32 {
        match self {
            Self::Direct => layout::FEATURE_DIRECT,
            Self::Queued => layout::FEATURE_QUEUED,
            Self::Guarded => layout::FEATURE_QUEUED | layout::FEATURE_GUARDED,
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

fn options(form: Form, file: &File) -> CompileOptions {
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
        (file.is_resizable(), layout::FEATURE_RESIZABLE),
        (file.has_timeline(), layout::FEATURE_TIMELINE),
    ];
    let more = more.iter().filter(|(has, _)| *has).map(|(_, feature)| feature);
    let features = more.fold(form.features(), |all, feature| all | feature).to_string();
    options.defines.push(("GPUVM_FEATURES".to_owned(), Some(features)));
    let own = file.defines.iter();
    options
        .defines
        .extend(own.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))));
    options
}

/// What is wrong with `file` in that form for that compute capability, a line each. `used` gets what each kernel takes,
/// and how long NVRTC took.
fn check(file: &File, form: Form, architecture: u32, used: &Mutex<Vec<String>>) -> Vec<String> {
    let place = |kernel: &str| format!("{file} {kernel} ({form:?}, sm_{architecture})");
    let names: Vec<&str> = file.kernels.iter().map(|kernel| kernel.name).collect();
    let text = match form {
        // The others would take a minute, and have no budget there. Templates are compiled by their names alone.
        Form::Guarded | Form::Borrowing | Form::All if !names.iter().any(|name| name.contains('<')) => {
            kernels_of(&text(file.path), &names)
        }
        _ => text(file.path),
    };
    let source = Source::new(file.path, text);
    let begun = std::time::Instant::now();
    let cubin = match compile_to_cubin(&source, &names, &options(form, file), Architecture(architecture)) {
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
    let mut said = format!("{file} {form:?} sm_{architecture}: {:.1?}\n", begun.elapsed());
    for (kernel, budget) in cubin.kernels.iter().zip(file.kernels) {
        let Some(usage) = kernel.usage else {
            wrong.push(format!("{}: ptxas does not say what it takes", place(&kernel.name)));
            continue;
        };
        let limit = match form {
            Form::Direct | Form::Borrowing => budget.direct,
            Form::Queued | Form::Guarded | Form::All => budget.queued,
        };
        let spills = usage.spill_store_bytes + usage.spill_load_bytes;
        writeln!(
            said,
            "    {} registers {} spilled {spills} stack {} shared {}",
            kernel.name, usage.registers, usage.stack_bytes, usage.shared_bytes
        )
        .expect("to a string");
        wrong.extend(exceeded(limit, usage.registers, spills).map(|what| format!("{}: {what}", place(&kernel.name))));
    }
    used.lock().expect("no thread panics with it").push(said);
    wrong
}

fn exceeded(limit: Limit, registers: u32, spilled: u32) -> Option<String> {
    let over = registers > limit.registers || spilled > limit.spilled_bytes;
    over.then(|| {
        format!(
            "{registers} registers and {spilled} bytes spilled; its budget is {} and {}",
            limit.registers, limit.spilled_bytes
        )
    })
}

fn chain(error: &GpuError) -> String {
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// `cargo test -p gpuvm-gpu --test nvrtc -- --nocapture` prints what every kernel takes.
#[test]
fn every_kernel_compiles_for_nvidia_gpus_within_its_budget() {
    if !nvrtc() {
        return;
    }
    let mut jobs = Vec::new();
    for file in FILES.iter().chain(TIMELINE) {
        for (form, architectures) in FORMS {
            // What has no paged data is the same in both forms, and no NIC leads to a neighbour GPU's memory.
            let paged = file.kernels.iter().any(|kernel| !kernel.is_plain);
            if form == Form::Direct || paged && !file.is_for_neighbours() {
                let once = (Form::Queued, 90);
                let all = architectures.iter().filter(|architecture| {
                    (!SIMULATED_ALONE.contains(&file.path) || (form, **architecture) == once)
                        && (!file.is_for_one_architecture() || **architecture == MEASURED)
                });
                jobs.extend(all.map(|architecture| (file, form, *architecture)));
            }
        }
    }
    within_budgets(&jobs);
}

#[test]
fn kernels_with_replicas_and_checksums_keep_a_budget_too() {
    in_another_form(GUARDED, Form::Guarded, &GUARDED_FOR);
}

#[test]
fn kernels_that_borrow_memory_keep_a_budget_too() {
    in_another_form(BORROWING, Form::Borrowing, &BORROWING_FOR);
}

#[test]
fn kernels_of_programs_that_choose_no_features_keep_a_budget_too() {
    in_another_form(ALL, Form::All, &[MEASURED]);
}

/// A form that few programs ask for, by a few files.
fn in_another_form(files: &[File], form: Form, architectures: &[u32]) {
    if !nvrtc() {
        return;
    }
    let each = |file| {
        architectures
            .iter()
            .map(move |architecture| (file, form, *architecture))
    };
    let jobs: Vec<_> = files.iter().flat_map(each).collect();
    within_budgets(&jobs);
}

fn within_budgets(jobs: &[(&File, Form, u32)]) {
    let quick = std::env::var_os("GPUVM_TEST_QUICK").is_some();
    let jobs: Vec<_> = jobs
        .iter()
        .filter(|job| !quick || job.2 == MEASURED && !job.0.is_test_or_application())
        .collect();
    let (next, used, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                // Relaxed: only the numbers have to differ; the scope's end orders the rest.
                while let Some((file, form, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = check(file, *form, *architecture, &used);
                    wrong.lock().expect("no thread panics with it").extend(found);
                }
            });
        }
    });
    let mut used = used.into_inner().expect("no thread panicked");
    used.sort();
    println!("{}", used.concat());
    let wrong = wrong.into_inner().expect("no thread panicked");
    assert!(
        wrong.is_empty(),
        "what has to change, or its budget, with a reason, in gpu_kernels/tests/nvrtc/budget/files.rs:\n  {}",
        wrong.join("\n  ")
    );
}

/// A planted excess: the test above can fail.
#[test]
fn too_many_registers_spills_and_warnings_are_found() {
    let limit = Limit {
        registers: 32,
        spilled_bytes: 8,
    };
    assert_eq!(exceeded(limit, 32, 8), None);
    assert!(exceeded(limit, 33, 0).is_some_and(|what| what.contains("33 registers")));
    assert!(exceeded(limit, 32, 9).is_some_and(|what| what.contains("9 bytes")));
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
        // Programs that are ported, and those that nvcc compiles, have their host code beside their kernels.
        let is_program = path.ends_with("tests/ports") || path.ends_with("examples/cpp");
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
    let mut found = BTreeSet::new();
    kernel_files(&root(), &mut found);
    let listed: BTreeSet<String> = FILES.iter().map(|file| file.path.to_owned()).collect();
    assert_eq!(found, listed, "files with kernels, and files in budget.rs");
    for path in found {
        let files = FILES.iter().chain(TIMELINE).filter(|file| file.path == path);
        let kernels = files.flat_map(|file| file.kernels);
        let budgeted = kernels.map(|kernel| kernel.name.split('<').next().expect("a name").to_owned());
        assert_eq!(
            declared(&text(&path)),
            budgeted.collect(),
            "kernels of {path}, and kernels in budget.rs"
        );
    }
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
    for (kernel, said) in [
        ("void k(gpuvm::array<int> a) { auto x = a[0]; }", "T x = a[i];"),
        (
            "void k(gpuvm::broadcast<int> a) { auto x = a[0]; a[1] = x; }",
            "broadcast_element",
        ),
        (
            "void k(gpuvm::broadcast<const int> a) { a[0] = 1; }",
            "must be a modifiable lvalue",
        ),
        ("void k(gpuvm::broadcast<int3> a) { a[0] = int3{}; }", "divide the page"),
    ] {
        let source = Source::new("k.cu", format!("#include <gpuvm/gpuvm.cuh>\n__global__ {kernel}"));
        let error = compile_to_cubin(&source, &["k"], &CompileOptions::default(), Architecture(90));
        let error = chain(&error.expect_err(kernel));
        assert!(error.contains(said), "{error}");
    }
}
