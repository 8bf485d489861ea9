//! The device library under nvcc, which compiles it into programs: it takes what it takes under NVRTC, and its files may be linked together.
//!
//! `./test` brings nvcc (no GPU and no driver are needed) and names it in `GPUVM_NVCC`. Nothing is run: that needs a GPU.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuvm_gpu::cuda::{Architecture, compile_to_cubin, presence};
use gpuvm_gpu::{CompileOptions, Source};
use gpuvm_layouts as layout;

fn nvcc() -> Option<OsString> {
    let nvcc = std::env::var_os("GPUVM_NVCC");
    if nvcc.is_none() {
        eprintln!("SKIPPED: GPUVM_NVCC does not name nvcc; `./test` brings it");
    }
    nvcc
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What nvcc says of a source, in a folder of its own; it compiles without a warning.
fn compiled(nvcc: &OsString, arguments: &[&str]) -> String {
    compiled_for(nvcc, "-arch=sm_90", arguments)
}

fn compiled_for(nvcc: &OsString, architecture: &str, arguments: &[&str]) -> String {
    let headers = tempfile::tempdir().expect("a folder");
    gpuvm_gpu::write_headers(headers.path()).expect("the headers");
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", architecture, "-Werror", "all-warnings", "-I"]);
    command.arg(headers.path()).args(arguments);
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}

/// Registers of each kernel, by ptxas: `Compiling entry function 'NAME'`, then `Used N registers`.
fn registers(said: &str) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    let mut name = None;
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().map(str::to_owned);
        } else if let Some((_, rest)) = line.split_once("Used ") {
            let number = rest.split(' ').next().and_then(|number| number.parse().ok());
            found.extend(name.take().zip(number));
        }
    }
    found
}

/// Some of the kernels of `tests/kernels/basic.cu`: all of them would take a minute.
fn basic_kernels(names: &[&str]) -> String {
    let text = std::fs::read_to_string(root().join("tests/kernels/basic.cu")).expect("a file of the repository");
    // A kernel is a paragraph.
    let is_kept =
        |part: &&str| !part.contains("__global__") || names.iter().any(|name| part.contains(&format!(" {name}(")));
    text.split("\n\n").filter(is_kept).collect::<Vec<_>>().join("\n\n")
}

#[test]
fn kernels_take_the_registers_that_they_take_under_nvrtc() {
    let Some(nvcc) = nvcc().filter(|_| presence().nvrtc) else {
        return;
    };
    let scratch = tempfile::tempdir().expect("a folder");
    let names = ["sum", "copy", "read_then_write"];
    let text = basic_kernels(&names);
    let file = scratch.path().join("basic.cu");
    std::fs::write(&file, &text).expect("written");
    for features in [layout::FEATURE_DIRECT, layout::FEATURE_QUEUED] {
        let cubin = scratch.path().join("basic.cubin");
        let define = format!("-DGPUVM_FEATURES={features}");
        let (cubin, source) = (cubin.to_string_lossy(), file.to_string_lossy());
        let said = compiled(&nvcc, &[&define, "-cubin", "-Xptxas=-v", "-o", &cubin, &source]);
        let by_nvcc = registers(&said);
        let options = CompileOptions {
            defines: vec![("GPUVM_FEATURES".to_owned(), Some(features.to_string()))],
            ..CompileOptions::default()
        };
        let by_nvrtc = compile_to_cubin(
            &Source::new("basic.cu", text.as_str()),
            &names,
            &options,
            Architecture(90),
        );
        let by_nvrtc = by_nvrtc.unwrap_or_else(|error| panic!("{error}"));
        for kernel in &by_nvrtc.kernels {
            let theirs = by_nvcc.iter().find(|(name, _)| *name == kernel.lowered);
            let (_, theirs) = theirs.unwrap_or_else(|| panic!("{} is not in {by_nvcc:?}", kernel.lowered));
            let ours = kernel.usage.expect("ptxas was asked").registers;
            println!(
                "{} with features {features}: {theirs} registers under nvcc, {ours} under NVRTC",
                kernel.name
            );
            // One in a hundred, and one for small kernels.
            assert!(
                theirs.abs_diff(ours) <= 1 + ours / 100,
                "{}: {theirs}, not {ours}",
                kernel.name
            );
        }
    }
}

#[test]
fn files_with_different_features_make_one_program() {
    let Some(nvcc) = nvcc() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let kernel = |name: &str| {
        format!(
            "#include <gpuvm/gpuvm.cuh>\n\
             __global__ void {name}(gpuvm::array<unsigned> a) {{ a[threadIdx.x] += 1; }}\n\
             unsigned features_of_{name}() {{ return gpuvm::detail::kFeatures; }}\n"
        )
    };
    let write = |name: &str, text: String| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let main = "unsigned features_of_one();\nint main() { return features_of_one() == 1 && features_of_two() == 2 ? 0 : 1; }\n";
    let one = write("one.cu", "#define GPUVM_FEATURES 1\n".to_owned() + &kernel("one"));
    let two = write(
        "two.cu",
        "#define GPUVM_FEATURES 2\n".to_owned() + &kernel("two") + main,
    );
    // Whole programs, and device code that is linked by itself.
    for way in ["-rdc=false", "-rdc=true"] {
        let program = scratch.path().join("program");
        compiled(&nvcc, &[way, "-o", &program.to_string_lossy(), &one, &two]);
        let status = Command::new(&program).status().expect("it runs");
        assert!(status.success(), "{way}");
    }
}

/// The device library's own PTX is long and has all kinds of accesses: what `gpuvm-ptx` makes of it assembles.
#[test]
fn kernels_can_be_rewritten_as_ptx() {
    let Some(nvcc) = nvcc() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let path = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (source, ptx, rewritten, cubin) = (path("basic.cu"), path("a.ptx"), path("b.ptx"), path("a.cubin"));
    std::fs::write(&source, basic_kernels(&["sum", "copy"])).expect("written");
    compiled(&nvcc, &["-DGPUVM_FEATURES=1", "-ptx", "-o", &ptx, &source]);
    let layout = gpuvm_ptx::TableLayout::new(4096).expect("a page size");
    let after = gpuvm_ptx::rewrite(&std::fs::read(&ptx).expect("nvcc wrote it"), &layout);
    let after = after.unwrap_or_else(|error| panic!("{error}"));
    println!("{}", after.report);
    assert!(after.report.changed() > 40, "{}", after.report);
    std::fs::write(&rewritten, after.text).expect("written");
    compiled(&nvcc, &["-cubin", "-o", &cubin, &rewritten]);
}

/// Kernels that call for their pages, with the device library that they call: for each generation, and with each way to move pages.
#[test]
fn kernels_that_call_assemble_with_the_library() {
    let Some(nvcc) = nvcc() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let path = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (source, library, text, cubin) = (path("calls.cu"), path("library.ptx"), path("a.ptx"), path("a.cubin"));
    std::fs::write(&source, "#include <gpuvm/calls.cuh>\n").expect("written");
    let inputs = root().join("ptx/tests/inputs");
    let layout = gpuvm_ptx::TableLayout::new(4096).expect("a page size");
    let both = layout::FEATURE_DIRECT | layout::FEATURE_QUEUED;
    for (generation, features, option, files) in [
        (75, layout::FEATURE_QUEUED, "-lineinfo", &["plain.cu"][..]),
        (80, layout::FEATURE_DIRECT, "-lineinfo", &["triton_add.ptx", "cub.ptx"]),
        (90, both, "-G", &["plain.cu", "spaces.cu"]),
        (
            90,
            layout::FEATURE_QUEUED,
            "-G",
            &["lanes.ptx", "triton_matmul.ptx", "numba_axpy.ptx"],
        ),
        (90, layout::FEATURES_ALL, "-G", &["triton_layer_norm.ptx"]),
        (100, layout::FEATURE_DIRECT, "-lineinfo", &["triton_softmax.ptx"]),
    ] {
        let architecture = format!("-arch=compute_{generation}");
        let define = format!("-DGPUVM_FEATURES={features}");
        compiled_for(
            &nvcc,
            &architecture,
            &["-ptx", "-rdc=true", &define, "-o", &library, &source],
        );
        let library = std::fs::read_to_string(&library).expect("nvcc wrote it");
        for file in files {
            let input = inputs.join(file).to_string_lossy().into_owned();
            if file.ends_with(".cu") {
                compiled_for(&nvcc, &architecture, &["-ptx", option, "-o", &text, &input]);
            } else {
                std::fs::copy(&input, &text).expect("copied");
            }
            let given = std::fs::read(&text).expect("written");
            let after = gpuvm_ptx::rewrite_to_calls(&given, &layout, 1296).expect("it is PTX");
            assert!(after.report.changed() > 1, "{}", after.report);
            let whole = gpuvm_ptx::with_library(&after.text, &library).expect("both are PTX");
            std::fs::write(&text, whole).expect("written");
            let assembled = format!("-arch=sm_{generation}");
            let said = compiled_for(&nvcc, &assembled, &["-cubin", "-Xptxas=-v", "-o", &cubin, &text]);
            for (kernel, registers) in registers(&said) {
                println!("{kernel} of {file} for sm_{generation}, with features {features}: {registers} registers");
                // A block of 1,024 threads has as many registers for each.
                let is_bounded = bounds_its_blocks(&given, &kernel);
                assert!(is_bounded || option == "-G" || registers <= 64, "{kernel}: {registers}");
            }
        }
    }
}

/// Whether a kernel says how many threads its blocks have.
fn bounds_its_blocks(text: &[u8], kernel: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let after = text.split(&format!("entry {kernel}(")).nth(1);
    let header = after.and_then(|after| after.split('{').next()).unwrap_or_default();
    [".maxntid", ".reqntid"].iter().any(|bound| header.contains(bound))
}
