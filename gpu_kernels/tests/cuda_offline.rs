//! The CUDA back end where there is no GPU: errors that say what is missing, and NVRTC, which needs neither GPU nor driver.

use std::path::PathBuf;

use gpuvm_gpu::back_end::Shelf;
use gpuvm_gpu::cuda::{
    Architecture, Cubin, CudaGpu, compile_to_cubin, devices, driver_version, nvrtc_version, precompile, precompiled,
    presence,
};
use gpuvm_gpu::{CompileOptions, GpuError, ParamKind, Source};

const H200: Architecture = Architecture(90);

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

fn compile(text: &str, kernels: &[&str]) -> Result<Cubin, GpuError> {
    compile_to_cubin(
        &Source::new("my/kernel.cu", text),
        kernels,
        &CompileOptions::default(),
        H200,
    )
}

#[test]
fn without_a_driver_the_error_says_so() {
    if presence().driver {
        eprintln!("SKIPPED: this machine has a driver");
        return;
    }
    let errors = [
        CudaGpu::open(0).err(),
        CudaGpu::open("GPU-0123").err(),
        devices().err(),
        driver_version().err(),
    ];
    for error in errors {
        let text = error.expect("there is no driver").to_string();
        for part in ["libcuda.so.1", "install NVIDIA's driver"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn what_was_compiled_before_is_found_for_gpus_that_run_it_and_for_no_others() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let shelf = |fill| Shelf {
        dir: folder.path().join("shelf"),
        fill,
    };
    let source = Source::new("my/kernel.cu", "__global__ void k(int* a) { *a = WHAT; }");
    let options = |what: &str| CompileOptions {
        defines: vec![("WHAT".into(), Some(what.into()))],
        ..CompileOptions::default()
    };
    let find = |what, number| precompiled(&shelf(false), &source, &["k"], &options(what), Architecture(number));
    assert!(find("1", 90).is_err(), "nothing has made the folder");
    precompile(&shelf(true), &source, &["k"], &options("1"), H200).unwrap();
    let made = compile_to_cubin(&source, &["k"], &options("1"), H200).unwrap();
    for newer in [90, 91] {
        let found = find("1", newer).unwrap().expect("it is there");
        assert_eq!((found.image, found.is_ptx), (made.image.clone(), false));
        assert_eq!(found.kernels[0].lowered, made.kernels[0].lowered);
        assert_eq!(found.kernels[0].params.as_ref().map(Vec::len), Some(1));
    }
    for (what, number) in [("1", 89), ("1", 100), ("2", 90)] {
        assert!(find(what, number).unwrap().is_none(), "{what} {number}");
    }
    let unknown = precompile(&shelf(true), &source, &["k"], &options("1"), Architecture(999));
    assert!(unknown.unwrap_err().to_string().contains("sm_999"));
}

#[test]
fn without_nvrtc_the_error_says_so() {
    if presence().nvrtc {
        eprintln!("SKIPPED: this machine has NVRTC");
        return;
    }
    let errors = [compile("__global__ void k() {}", &["k"]).err(), nvrtc_version().err()];
    for error in errors {
        let error = error.expect("there is no NVRTC").to_string();
        assert!(error.contains("libnvrtc") && error.contains("GPUVM_NVRTC"), "{error}");
    }
}

#[test]
fn nvrtc_tells_its_version() {
    if nvrtc() {
        let (major, _) = nvrtc_version().unwrap_or_else(|error| panic!("{error}"));
        assert!((11..100).contains(&major), "{major}");
    }
}

#[test]
fn names_and_parameters_of_templates_in_namespaces() {
    if !nvrtc() {
        return;
    }
    let text = "#include <gpuvm/gpuvm.cuh>\n\
        namespace ns { template <class T> __global__ void sum(gpuvm::array<T> a, unsigned long long n, T* out) {\n\
        for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = a[i]; } }\n\
        extern \"C\" __global__ void plain(int x, float* p) { p[0] = x; }\n\
        __global__ void none() {}\n";
    let cubin = compile(text, &["ns::sum<float>", "plain", "none"]).unwrap_or_else(|e| panic!("{e}"));
    assert!(!cubin.is_ptx && cubin.image.starts_with(b"\x7fELF"));
    assert_eq!(cubin.log, "");
    let [sum, plain, none] = &cubin.kernels[..] else {
        panic!("three kernels")
    };
    assert!(sum.lowered.starts_with("_ZN2ns3sumIfE"), "{}", sum.lowered);
    assert_eq!((plain.lowered.as_str(), plain.name.as_str()), ("plain", "plain"));
    let params = sum.params.as_deref().expect("a table");
    assert_eq!(params[0].kind, ParamKind::PagedArray);
    assert_eq!((params[0].element_bytes, params[0].element_kind), (4, ParamKind::Float));
    assert_eq!((params[1].bytes, params[1].kind), (8, ParamKind::Unsigned));
    assert_eq!(
        (params[2].kind, params[2].type_name.as_str()),
        (ParamKind::Pointer, "float *")
    );
    let params = plain.params.as_deref().expect("a table");
    assert_eq!((params[0].kind, params[0].bytes), (ParamKind::Signed, 4));
    assert_eq!(none.params.as_deref(), Some(&[][..]));
    let usage = plain.usage.expect("ptxas was asked");
    assert!(usage.registers > 0 && usage.spill_store_bytes == 0, "{usage:?}");
}

#[test]
fn spills_are_seen() {
    if !nvrtc() {
        return;
    }
    let text = "__global__ void __launch_bounds__(1024, 2) big(float* p) {\n\
        float v[96];\n#pragma unroll\nfor (int i = 0; i < 96; ++i) v[i] = p[i * 1024 + threadIdx.x];\n__syncthreads();\n\
        #pragma unroll\nfor (int i = 0; i < 96; ++i) p[i * 1024 + threadIdx.x] = v[95 - i] * v[i];\n}";
    let cubin = compile(text, &["big"]).unwrap_or_else(|e| panic!("{e}"));
    let usage = cubin.kernels[0].usage.expect("ptxas was asked");
    assert!(
        usage.registers <= 32 && usage.spill_store_bytes > 0 && usage.spill_load_bytes > 0,
        "{usage:?}"
    );
}

#[test]
fn an_error_has_the_users_file_and_line() {
    if !nvrtc() {
        return;
    }
    let text = "#include <gpuvm/gpuvm.cuh>\n\n__global__ void k(int* p) {\n    *p = missing;\n}\n";
    match compile(text, &["k"]) {
        Err(GpuError::Compile { file, log }) => {
            assert_eq!(file, "my/kernel.cu");
            assert!(
                log.contains("my/kernel.cu(4): error") && log.contains("missing"),
                "{log}"
            );
            assert!(!log.contains("ptxas info"), "{log}");
        }
        other => panic!("{other:?}"),
    }
    match compile("__global__ void there(int* p) { *p = 1; }", &["absent"]) {
        Err(GpuError::KernelNotFound { name, known, .. }) => {
            assert_eq!((name.as_str(), known), ("absent", vec!["there".to_owned()]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_reach_the_compiler() {
    if !nvrtc() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("near.h"), "#define NEAR 2\n").expect("a file");
    let options = CompileOptions {
        include_dirs: vec![PathBuf::from(dir.path())],
        headers: vec![
            ("pack/a.h".into(), "#include \"b.h\"\n".into()),
            ("pack/b.h".into(), "#define PACKED 3\n".into()),
        ],
        defines: vec![("GIVEN".into(), Some("5".into())), ("FLAG".into(), None)],
        debug: true,
    };
    let text = "#include <near.h>\n#include \"pack/a.h\"\n\
        static_assert(NEAR == 2 && PACKED == 3 && GIVEN == 5 && FLAG == 1, \"options\");\n__global__ void k() {}\n";
    let source = Source::new("k.cu", text);
    compile_to_cubin(&source, &["k"], &options, H200).unwrap_or_else(|e| panic!("{e}"));
    // An architecture that this NVRTC does not know becomes PTX, which the driver compiles.
    let cubin = compile_to_cubin(&source, &["k"], &options, Architecture(9999)).unwrap_or_else(|e| panic!("{e}"));
    assert!(cubin.is_ptx && cubin.image.ends_with(&[0]) && cubin.kernels[0].params.is_none());
    let error = compile_to_cubin(&source, &["k"], &options, Architecture(10)).expect_err("nothing is so old");
    assert!(error.to_string().contains("sm_10"), "{error}");
}
