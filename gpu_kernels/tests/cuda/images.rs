//! Kernels that were compiled elsewhere: loaded, described, launched; files that are broken.

use gpuvm_gpu::ParamKind;
use gpuvm_gpu::cuda::{Architecture, compile_to_cubin};

use super::*;

const SOURCE: &str = r#"
#include <gpuvm/gpuvm.cuh>
extern "C" __global__ void plain(unsigned* out, unsigned value) { out[threadIdx.x] = value + threadIdx.x; }
GPUVM_EXPORT(plain)
namespace inner {
__global__ void nested(gpuvm::array<const float> a, unsigned* out) { out[0] = a.size() != 0; }
GPUVM_EXPORT(nested)
}
__global__ void silent(unsigned* out) { out[0] = 1; }
"#;

/// The source as a user's own compiler makes it: a cubin of the GPU, or PTX, which any newer one takes.
fn image(architecture: u32) -> Vec<u8> {
    let names = ["plain", "inner::nested", "silent"];
    let source = Source::new("images.cu", SOURCE);
    let made = compile_to_cubin(&source, &names, &CompileOptions::default(), Architecture(architecture));
    made.unwrap_or_else(|error| panic!("{error}")).image
}

#[test]
fn kernels_of_a_users_own_file_run_and_are_described() {
    let Some(gpu) = gpu() else { return };
    let (major, minor) = gpu.capabilities().compute_capability.expect("an NVIDIA GPU has one");
    let module = gpu.load("images.cubin", &image(10 * major + minor), &["plain", "nested"]);
    let module = module.unwrap_or_else(|error| panic!("{error}"));
    let (plain, nested) = (module.kernel("plain").unwrap(), module.kernel("nested").unwrap());
    let params: Vec<_> = plain.info().params.iter().map(|param| param.kind).collect();
    assert_eq!(params, [ParamKind::Pointer, ParamKind::Unsigned]);
    assert_eq!(nested.info().params[0].kind, ParamKind::PagedArrayConst);
    assert_eq!(nested.info().params[0].type_name, "gpuvm::array<const float>");
    let all = (gpuvm_layouts::LAYOUT_VERSION, gpuvm_layouts::FEATURES_ALL);
    assert_eq!(plain.info().compiled_with, Some(all));
    let out = gpu.allocate(4 * 32, 256).unwrap();
    let stream = gpu.stream().unwrap();
    let args: [&[u8]; 2] = [&out.addr().to_ne_bytes(), &100u32.to_ne_bytes()];
    run(&stream, &plain, &LaunchConfig::linear(1, 32), &args, 0).unwrap();
    assert_eq!(words(&gpu, &out, 32), (100..132).collect::<Vec<u32>>());
    let short = stream.launch(&plain, &LaunchConfig::linear(1, 32), &args[..1], 0, Box::new(|_| ()));
    assert!(matches!(short, Err(GpuError::BadArguments { .. })));
}

#[test]
fn files_that_are_broken_or_lack_kernels_are_refused() {
    let Some(gpu) = gpu() else { return };
    let (major, minor) = gpu.capabilities().compute_capability.expect("an NVIDIA GPU has one");
    let whole = image(10 * major + minor);
    let refused = |image: &[u8], kernels: &[&str]| match gpu.load("images.cubin", image, kernels) {
        Ok(_) => panic!("{} bytes with {kernels:?} are loaded", image.len()),
        Err(error) => error,
    };
    for cut in [0, 3, 4, 64, whole.len() / 2, whole.len() - 1] {
        let error = refused(&whole[..cut], &["plain"]);
        assert!(matches!(error, GpuError::ModuleLoad { .. }), "{error}");
    }
    let error = refused(&whole, &["plain", "absent"]);
    assert!(
        matches!(&error, GpuError::KernelNotFound { known, .. } if known.iter().any(|name| name == "plain")),
        "{error}"
    );
    let error = refused(&whole, &["silent"]).to_string();
    assert!(error.contains("GPUVM_EXPORT(silent)"), "{error}");
    // PTX that is none, and a GPU of another architecture.
    let error = refused(
        b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry x(",
        &["x"],
    );
    assert!(matches!(error, GpuError::Driver { .. }), "{error}");
    if (major, minor) != (8, 0) {
        let error = refused(&image(80), &["plain"]);
        assert!(matches!(error, GpuError::Driver { .. }), "{error}");
    }
    assert!(gpu.lost().is_none());
}
