//! Every device source of the repository compiles for NVIDIA GPUs, by NVRTC, where that library is.
//!
//! `./test` brings NVRTC (no GPU and no driver are needed) and sets `GPUVM_REQUIRE_NVRTC`, with which a missing library
//! is a failure. Nothing is run: that needs a GPU.

use std::path::{Path, PathBuf};

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

/// Compute capabilities: the oldest that is supported, and the one that is measured on.
const ARCHITECTURES: [&str; 2] = ["compute_75", "compute_90"];

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["runtime", "examples", "bench", "workloads/src", "tests/kernels"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder of the repository");
        found.extend(
            entries
                .map(|entry| entry.expect("a folder's entry").path())
                .filter(|path| path.extension().is_some_and(|ending| ending == "cu")),
        );
    }
    found.sort();
    found
}

#[test]
fn every_device_source_compiles_for_nvidia_gpus() {
    if !gpuvm_gpu::cuda::presence().nvrtc {
        assert!(
            std::env::var_os("GPUVM_REQUIRE_NVRTC").is_none(),
            "libnvrtc cannot be loaded"
        );
        eprintln!("SKIPPED: libnvrtc is not on the loader's path; `./test` brings it");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = sources(&root);
    assert!(sources.len() >= 5, "{sources:?}");
    for source in sources {
        let text = std::fs::read_to_string(&source).expect("a source");
        for arch in ARCHITECTURES {
            let options = CompileOptions {
                include_paths: vec![root.join("gpu_kernels/include").display().to_string()],
                options: vec!["--std=c++17".into(), format!("--gpu-architecture={arch}")],
                ..Default::default()
            };
            if let Err(error) = compile_ptx_with_opts(&text, options) {
                panic!("{} for {arch}: {error:?}", source.display());
            }
        }
    }
}

#[test]
fn a_misused_element_is_refused_by_nvrtc_too() {
    if !gpuvm_gpu::cuda::presence().nvrtc {
        eprintln!("SKIPPED: libnvrtc is not on the loader's path; `./test` brings it");
        return;
    }
    let include = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("include")
        .display()
        .to_string();
    let options = CompileOptions {
        include_paths: vec![include],
        options: vec!["--std=c++17".into()],
        ..Default::default()
    };
    let text = "#include <gpuvm/gpuvm.cuh>\n__global__ void k(gpuvm::array<int> a) { auto x = a[0]; }";
    let error = compile_ptx_with_opts(text, options).expect_err("a kept element");
    assert!(format!("{error:?}").contains("T x = a[i];"), "{error:?}");
}
