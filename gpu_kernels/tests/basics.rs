//! Compile, launch, collectives, barriers.

use std::time::Duration;

use gpuvm_gpu::sim::SimGpu;
use gpuvm_gpu::{CompileOptions, Gpu, LaunchConfig, Source};

fn gpu() -> SimGpu {
    SimGpu::builder()
        .memory_bytes(64 << 20)
        .build()
        .expect("a simulated GPU")
}

#[test]
fn a_grid_runs() {
    let gpu = gpu();
    let source = Source::new(
        "t.cu",
        r#"
__global__ void fill(unsigned* out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i * 3;
}
__global__ void sum(const unsigned* in, unsigned* out, unsigned n) {
    unsigned v = 0;
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) v += in[i];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
    __shared__ unsigned parts[32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) { unsigned s = 0; for (unsigned w = 0; w < blockDim.x / 32; ++w) s += parts[w]; out[0] = s; }
}
"#,
    );
    let module = gpu
        .compile(&source, &["fill", "sum"], &CompileOptions::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let n = 10_000u32;
    let data = gpu.allocate(u64::from(n) * 4, 4).unwrap();
    let out = gpu.allocate(4, 4).unwrap();
    let stream = gpu.stream().unwrap();
    let (a, o) = (data.addr().to_ne_bytes(), out.addr().to_ne_bytes());
    let fill = module.kernel("fill").unwrap();
    let sum = module.kernel("sum").unwrap();
    println!("{:?}", fill.info());
    stream
        .launch(
            &fill,
            &LaunchConfig::linear(n.div_ceil(128), 128),
            &[&a, &n.to_ne_bytes()],
            0,
            Box::new(|_| ()),
        )
        .unwrap();
    let l = stream
        .launch(
            &sum,
            &LaunchConfig::linear(1, 256),
            &[&a, &o, &n.to_ne_bytes()],
            0,
            Box::new(|_| ()),
        )
        .unwrap();
    let report = l.wait(Some(Duration::from_secs(20))).expect("in time").unwrap();
    println!("{report:?}");
    let mut bytes = [0; 4];
    gpu.read(out.addr(), &mut bytes).unwrap();
    assert_eq!(u32::from_ne_bytes(bytes), (0..n).map(|i| i * 3).sum::<u32>());
}
