//! Compilation, its cache, its errors; memory and argument checks.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{bed, builder};
use gpuvm_gpu::{CompileOptions, Gpu, GpuError, LaunchConfig, ParamKind, Source};
use gpuvm_sim_gpu::Mode;

const SIMPLE: &str = "__global__ void k(unsigned* out) { out[0] = VALUE; }";

fn options(value: &str) -> CompileOptions {
    CompileOptions {
        defines: vec![("VALUE".into(), Some(value.into()))],
        ..CompileOptions::default()
    }
}

fn run(gpu: &impl Gpu, options: &CompileOptions) -> u32 {
    let module = gpu
        .compile(&Source::new("k.cu", SIMPLE), &["k"], options)
        .unwrap_or_else(|e| panic!("{e}"));
    let out = gpu.allocate(4, 4).expect("memory");
    let stream = gpu.stream().expect("a stream");
    let kernel = module.kernel("k").expect("compiled");
    let launch = stream.launch(
        &kernel,
        &LaunchConfig::linear(1, 1),
        &[&out.addr().to_ne_bytes()],
        0,
        Box::new(|_| ()),
    );
    launch
        .expect("a launch")
        .wait(None)
        .expect("no timeout")
        .expect("it runs");
    let mut bytes = [0; 4];
    gpu.read(out.addr(), &mut bytes).expect("live memory");
    u32::from_ne_bytes(bytes)
}

/// The entries of a cache, of each one of its two names.
fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(dir)
        .expect("a directory")
        .map(|e| e.expect("an entry").path());
    let files = all.filter(|p| p.is_file() && p.extension().is_none());
    let by_file: BTreeMap<u64, _> = files
        .map(|path| (fs::metadata(&path).expect("an entry").ino(), path))
        .collect();
    by_file.into_values().collect()
}

#[test]
fn a_comment_in_the_library_compiles_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = builder().cache_dir(dir.path()).build().expect("a GPU");
    let source = Source::new(
        "k.cu",
        "#include <gpuvm/gpuvm.cuh>\n__global__ void k(unsigned* out) { out[0] = 1; }",
    );
    let header = "gpuvm/detail/wait.cuh";
    let all = gpuvm_gpu::headers().iter();
    let text = all.filter(|(name, _)| *name == header).map(|(_, text)| text).next();
    let text = text.expect("the header");
    let with = |more: &str, source: &Source| {
        let options = CompileOptions {
            headers: vec![(header.to_owned(), format!("{text}{more}"))],
            ..CompileOptions::default()
        };
        gpu.compile(source, &["k"], &options).unwrap_or_else(|e| panic!("{e}"));
        entries(dir.path()).len()
    };
    assert_eq!(with("", &source), 1);
    assert_eq!(with("// A comment.\n\n/* And\nanother. */\n", &source), 1);
    assert_eq!(with("inline int more() { return 1; }\n", &source), 2);
    // What a user's file says of its lines is what the file has.
    let below = Source::new("k.cu", format!("// A comment.\n{}", source.text));
    assert_eq!(with("", &below), 3);
}

#[test]
fn the_cache_is_hit_and_repairs_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let gpu = builder().cache_dir(dir.path()).build().expect("a GPU");
    let cold = Instant::now();
    assert_eq!(run(&gpu, &options("5")), 5);
    let cold = cold.elapsed();
    let warm = Instant::now();
    assert_eq!(run(&gpu, &options("5")), 5);
    assert!(
        warm.elapsed() < cold / 2,
        "a hit took {:?}, a compilation {cold:?}",
        warm.elapsed()
    );
    assert_eq!(run(&gpu, &options("6")), 6);
    let files = entries(dir.path());
    assert_eq!(files.len(), 2, "{files:?}");
    for damage in [&b"garbage"[..], b""] {
        for file in &files {
            fs::write(file, damage).expect("damage");
        }
        assert_eq!((run(&gpu, &options("5")), run(&gpu, &options("6"))), (5, 6));
    }
    for file in &files {
        let mut bytes = fs::read(file).expect("an entry");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).expect("damage");
    }
    assert_eq!((run(&gpu, &options("5")), run(&gpu, &options("6"))), (5, 6));
    assert_eq!(
        fs::read_dir(dir.path()).expect("a directory").count(),
        4,
        "nothing but two names of each is left behind"
    );
}

#[test]
fn many_may_compile_the_same_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let gpu = builder().cache_dir(dir.path()).build().expect("a GPU");
                assert_eq!(run(&gpu, &options("9")), 9);
            });
        }
    });
    assert_eq!(entries(dir.path()).len(), 1);
}

#[test]
fn headers_in_directories_are_looked_at_each_time() {
    let (dir, cache) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    let gpu = builder().cache_dir(cache.path()).build().expect("a GPU");
    let options = CompileOptions {
        include_dirs: vec![dir.path().to_owned()],
        headers: vec![("mine/extra.cuh".into(), "#define EXTRA 100\n".into())],
        ..CompileOptions::default()
    };
    let source = Source::new(
        "k.cu",
        "#include \"value.h\"\n#include <mine/extra.cuh>\n__global__ void k(unsigned* out) { out[0] = value + EXTRA; }",
    );
    for value in [1u32, 2] {
        fs::write(
            dir.path().join("value.h"),
            format!("constexpr unsigned value = {value};"),
        )
        .expect("written");
        let module = gpu.compile(&source, &["k"], &options).unwrap_or_else(|e| panic!("{e}"));
        let out = gpu.allocate(4, 4).expect("memory");
        let (stream, kernel) = (gpu.stream().expect("a stream"), module.kernel("k").expect("compiled"));
        let launch = stream.launch(
            &kernel,
            &LaunchConfig::linear(1, 1),
            &[&out.addr().to_ne_bytes()],
            0,
            Box::new(|_| ()),
        );
        launch
            .expect("a launch")
            .wait(None)
            .expect("no timeout")
            .expect("it runs");
        let mut bytes = [0; 4];
        gpu.read(out.addr(), &mut bytes).expect("live memory");
        assert_eq!(u32::from_ne_bytes(bytes), value + 100);
    }
}

#[test]
fn compile_errors_show_the_users_file_and_line() {
    let gpu = builder().build().expect("a GPU");
    let text =
        "__global__ void k(int* p) {\n    extern __shared__\n        int s[];\n    s[0] = 1;\n    *p = nonsense;\n}\n";
    match gpu.compile(
        &Source::new("dir/my kernel.cu", text),
        &["k"],
        &CompileOptions::default(),
    ) {
        Err(GpuError::Compile { file, log }) => {
            assert_eq!(file, "dir/my kernel.cu");
            assert!(
                log.contains("dir/my kernel.cu:5:10: error") && log.contains("nonsense"),
                "{log}"
            );
        }
        other => panic!("{:?}", other.err()),
    }
    let text = "__global__ void one() {}\ntemplate <class T> __global__ void two(T*) {}\n";
    match gpu.compile(
        &Source::new("k.cu", text),
        &["one", "three"],
        &CompileOptions::default(),
    ) {
        Err(GpuError::KernelNotFound { name, known, .. }) => {
            assert_eq!(
                (name.as_str(), known),
                ("three", vec!["one".to_owned(), "two".to_owned()])
            );
        }
        other => panic!("{:?}", other.err()),
    }
    let module = gpu
        .compile(&Source::new("k.cu", text), &["one"], &CompileOptions::default())
        .expect("it compiles");
    assert!(matches!(
        module.kernel("two<int>"),
        Err(GpuError::KernelNotFound { .. })
    ));
}

#[test]
fn a_missing_compiler_is_an_error_that_says_what_to_do() {
    let gpu = builder().compiler("no-such-compiler-here").build().expect("a GPU");
    let error = gpu
        .compile(&Source::new("k.cu", ""), &[], &CompileOptions::default())
        .err()
        .expect("no compiler");
    assert!(matches!(&error, GpuError::CompilerMissing { tried } if tried == &["no-such-compiler-here"]));
    assert!(error.to_string().contains("apt install g++"));
}

#[test]
fn a_compiler_that_does_not_run_is_an_error_that_says_why() {
    for (command, cause, advice) in [
        (
            "false",
            "`--version` ended with exit status: 1",
            "set GPUVM_CXX to a compiler that runs",
        ),
        (
            "/etc/passwd",
            "Permission denied",
            "set GPUVM_CXX to a compiler that this user may execute",
        ),
    ] {
        let gpu = builder().compiler(command).build().expect("a GPU");
        let compiled = gpu.compile(&Source::new("k.cu", ""), &[], &CompileOptions::default());
        let error = compiled.err().expect("no compiler").to_string();
        assert!(
            error.starts_with(&format!("cannot run the C++ compiler {command}: {cause}")),
            "{error}"
        );
        assert!(error.ends_with(advice), "{error}");
    }
}

#[test]
fn clang_compiles_too_where_it_is_installed() {
    let gpu = builder().compiler("clang++").build().expect("a GPU");
    let source = Source::new(
        "k.cu",
        "__global__ void k(unsigned* out) { out[threadIdx.x] = __ballot_sync(~0u, 1); }",
    );
    match gpu.compile(&source, &["k"], &CompileOptions::default()) {
        Ok(module) => assert_eq!(module.kernel("k").expect("compiled").info().params.len(), 1),
        Err(GpuError::CompilerMissing { .. }) => println!("skipped: there is no clang++"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn parameters_are_described() {
    let bed = bed(
        r#"
namespace lib { template <class T> struct view { T* p; unsigned long n; }; }
template <class T> struct gpuvm_kernel_param<lib::view<T>> { static constexpr unsigned kind = 2; using element = T; };
struct alignas(32) Big { double d[4]; };
template <class T> __global__ void k(const T* a, lib::view<T> v, int i, unsigned char u, double d, Big b, void* p, bool flag) {
    if (threadIdx.x == 0) { v.p[0] = a[0] + i + u + (T)d + (T)b.d[3] + (p == v.p) + flag; }
}
"#,
        &["k<float>"],
    );
    let kernel = bed.kernel("k<float>");
    let params = &kernel.info().params;
    let kinds: Vec<_> = params.iter().map(|p| (p.kind, p.bytes, p.element_bytes)).collect();
    use ParamKind::{Float, Other, PagedArray, Pointer, Signed, Unsigned};
    assert_eq!(
        kinds,
        [
            (Pointer, 8, 4),
            (PagedArray, 16, 4),
            (Signed, 4, 0),
            (Unsigned, 1, 0),
            (Float, 8, 0),
            (Other, 32, 0),
            (Pointer, 8, 0),
            (Unsigned, 1, 0)
        ]
    );
    assert_eq!(
        (params[5].align, params[0].element_kind, params[1].element_align),
        (32, Float, 4)
    );
    assert_eq!(
        (params[1].type_name.as_str(), params[3].type_name.as_str()),
        ("lib::view<float>", "unsigned char")
    );
    let out = bed.words(4);
    let (addr, mut view, mut big) = (out.addr().to_ne_bytes(), [0u8; 16], [0u8; 32]);
    bed.gpu
        .write(out.addr() + 8, &2.5f32.to_ne_bytes())
        .expect("live memory");
    view[..8].copy_from_slice(&addr);
    big[24..].copy_from_slice(&8.0f64.to_ne_bytes());
    let a = (out.addr() + 8).to_ne_bytes();
    let d = 32.0f64.to_ne_bytes();
    let args: [&[u8]; 8] = [&a, &view, &(-1i32).to_ne_bytes(), &[200], &d, &big, &addr, &[1]];
    bed.outcome("k<float>", &LaunchConfig::linear(1, 1), &args)
        .expect("it runs");
    assert_eq!(
        f32::from_bits(bed.read(&out, 1)[0]),
        2.5 - 1.0 + 200.0 + 32.0 + 8.0 + 1.0 + 1.0
    );
    let refuse = |args: &[&[u8]], config: &LaunchConfig| {
        bed.stream
            .launch(&kernel, config, args, 0, Box::new(|_| ()))
            .err()
            .expect("refused")
            .to_string()
    };
    let one = LaunchConfig::linear(1, 1);
    assert!(refuse(&args[..7], &one).contains("takes 8 arguments, 7 were given"));
    assert!(refuse(&[&a, &view, &[1], &[1], &d, &big, &addr, &[1]], &one).contains("argument 2 is 1 bytes"));
    assert!(refuse(&args, &LaunchConfig::linear(1, 1025)).contains("1024"));
    assert!(refuse(&args, &LaunchConfig::linear(0, 1)).contains("no block"));
}

#[test]
fn memory_is_counted_zeroed_and_checked() {
    let gpu = builder().memory_bytes(1 << 20).build().expect("a GPU");
    let a = gpu.allocate(600_000, 4096).expect("it fits");
    assert_eq!(a.addr() % 4096, 0);
    match gpu.allocate(600_000, 1) {
        Err(GpuError::OutOfMemory {
            asked: 600_000,
            free,
            capacity: 1_048_576,
        }) => assert_eq!(free, (1 << 20) - 600_064),
        other => panic!("{other:?}"),
    }
    gpu.write(a.addr(), &[7; 600_000]).expect("inside");
    assert!(matches!(
        gpu.write(a.addr() + 1, &[7; 600_000]),
        Err(GpuError::BadAddress { .. })
    ));
    assert!(matches!(
        gpu.read(12, &mut [0; 4]),
        Err(GpuError::BadAddress { addr: 12, bytes: 4 })
    ));
    let addr = a.addr();
    drop(a);
    assert!(matches!(gpu.read(addr, &mut [0; 4]), Err(GpuError::BadAddress { .. })));
    let whole = gpu.allocate(1 << 20, 256).expect("all of it is free again");
    let mut bytes = vec![1; 1 << 20];
    gpu.read(whole.addr(), &mut bytes).expect("inside");
    assert!(bytes.iter().all(|&b| b == 0), "memory is zeroed");
    for (bytes, align) in [(0, 1), (16, 3), (16, 0)] {
        assert!(matches!(
            gpu.allocate(bytes, align),
            Err(GpuError::BadAllocation { .. })
        ));
    }
    assert!(matches!(gpu.allocate(u64::MAX, 256), Err(GpuError::OutOfMemory { .. })));
    assert!(matches!(
        gpu.allocate_host(u64::MAX),
        Err(GpuError::BadAllocation { .. })
    ));
    let host = gpu.allocate_host(10_000).expect("host memory does not count");
    gpu.write(host.device_addr() + 9_999, &[3]).expect("inside");
    // SAFETY: inside the live allocation, and no kernel runs.
    assert_eq!(unsafe { host.host_ptr().add(9_999).read() }, 3);
    let quiet = Instant::now();
    drop(gpu);
    assert!(quiet.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_device_library_compiles_in_both_modes() {
    let text = r#"
#include <gpuvm/gpuvm.cuh>
__global__ void k(gpuvm::array<float> a, gpuvm::array<const unsigned> b, float* out) { a[threadIdx.x] = out[0] + b[0]; }
"#;
    for mode in [Mode::Fast, Mode::Seeded(1)] {
        let gpu = builder().mode(mode).build().expect("a GPU");
        let module = gpu.compile(&Source::new("k.cu", text), &["k"], &CompileOptions::default());
        let kernel = module.unwrap_or_else(|e| panic!("{e}")).kernel("k").expect("compiled");
        let params = &kernel.info().params;
        assert_eq!(
            (params[0].kind, params[0].element_kind),
            (ParamKind::PagedArray, ParamKind::Float)
        );
        assert_eq!(
            (params[1].kind, params[1].element_bytes),
            (ParamKind::PagedArrayConst, 4)
        );
    }
}
