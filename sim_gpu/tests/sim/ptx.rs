//! PTX of compilers on the simulated GPU, as it is and after it was rewritten.

use std::sync::Arc;

use crate::common::{Bed, builder};
use gpuvm_gpu::{Gpu, GpuError, LaunchConfig, Module, ParamInfo, PtxKernel};
use gpuvm_ptx::{TableLayout, WINDOW, Window, rewrite};
use gpuvm_sim_gpu::{Mode, SimGpu, SimGpuBuilder};

/// A file of ptx/tests/inputs.
fn input(name: &str) -> String {
    let path = format!("{}/../ptx/tests/inputs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// All kernels of a text, which is rewritten with a window in which nothing is paged, or with that which is given.
fn load(gpu: &SimGpu, text: &str, window: Window) -> Result<Arc<dyn Module>, GpuError> {
    let rewritten = rewrite(text.as_bytes(), &TableLayout::new(4096).unwrap()).unwrap();
    let entries = rewritten.report.functions.iter().filter(|function| function.is_entry);
    let kernels: Vec<PtxKernel> = entries
        .map(|function| PtxKernel {
            name: function.name.clone(),
            symbol: function.name.clone(),
            params: function
                .params
                .iter()
                .map(|param| ParamInfo::of_ptx(param.bytes, param.align, &param.type_name))
                .collect(),
        })
        .collect();
    gpu.load_ptx("test.ptx", &rewritten.text, &kernels, &[(WINDOW, &window.to_bytes())])
}

fn bed(builder: SimGpuBuilder, text: &str) -> Bed {
    let gpu = builder.build().unwrap();
    let module = load(&gpu, text, Window::default()).unwrap_or_else(|error| panic!("{error}"));
    let stream = gpu.stream().unwrap();
    Bed { module, stream, gpu }
}

/// Both modes.
fn beds(text: &str) -> [Bed; 2] {
    [bed(builder(), text), bed(builder().mode(Mode::Seeded(3)), text)]
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}

const N: u64 = 1000;

#[test]
fn loops_of_nvcc_run() {
    for bed in beds(&input("plain.ptx")) {
        let (x, y) = (bed.words(N as usize), bed.words(N as usize));
        let value = |i: u64| (i % 17) as f32;
        for i in 0..N {
            bed.gpu.write(x.addr() + i * 4, &value(i).to_ne_bytes()).unwrap();
            bed.gpu.write(y.addr() + i * 4, &1f32.to_ne_bytes()).unwrap();
        }
        let [x_at, y_at, n] = [x.addr(), y.addr(), N].map(u64::to_ne_bytes);
        let config = LaunchConfig::linear(3, 64);
        bed.outcome("axpy", &config, &[&x_at, &y_at, &2f32.to_ne_bytes(), &n])
            .unwrap();
        let wanted: Vec<f32> = (0..N).map(|i| 1.0 + 2.0 * value(i)).collect();
        assert_eq!(floats(&bed.read(&y, N as usize)), wanted);

        let out = bed.words(64);
        bed.outcome("total", &config, &[&x_at, &n, &out.addr().to_ne_bytes()])
            .unwrap();
        let words = bed.read(&out, 2);
        let sum = f64::from_bits(u64::from(words[1]) << 32 | u64::from(words[0]));
        assert_eq!(sum, (0..N).map(|i| f64::from(value(i))).sum::<f64>());

        let [width, rows] = [50u64, 20].map(u64::to_ne_bytes);
        bed.outcome("row_sums", &config, &[&x_at, &width, &rows, &out.addr().to_ne_bytes()])
            .unwrap();
        let wanted: Vec<f32> = (0..20).map(|row| (row * 50..row * 50 + 50).map(value).sum()).collect();
        assert_eq!(floats(&bed.read(&out, 20)), wanted);
    }
}
