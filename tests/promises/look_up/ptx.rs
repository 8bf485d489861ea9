//! Kernels of nvcc and Triton, whose PTX is rewritten when it is loaded, over regions whose pages are in frames and at home. On the
//! simulated GPU they are translated to C++.

use super::{PAGE_WORDS, SOURCE, direct};
use crate::common::{Bench, compare};
use gpuvm::{KernelArgs, LaunchConfig, Module, Placement, Region};

const LOOPS: &str = include_str!("../../../ptx/tests/inputs/plain.ptx");
const SOFTMAX: &str = include_str!("../../../ptx/tests/inputs/triton_softmax.ptx");
const LAYER_NORM: &str = include_str!("../../../ptx/tests/inputs/triton_layer_norm.ptx");

/// Elements, a multiple of what each loop wants.
const N: u64 = 9 * PAGE_WORDS + 96;

fn region(bench: &Bench, values: &[f32]) -> Region<f32> {
    let region = bench.vm.region::<f32>().placement(Placement::LookUp);
    region.from_slice(values).unwrap()
}

/// Whole numbers, of which sums are exact.
fn values(seed: u64) -> Vec<f32> {
    (0..N).map(|i| ((i * 31 + seed) % 64) as f32).collect()
}

fn run(module: &Module, name: &str, config: &LaunchConfig, arguments: impl KernelArgs) {
    let launch = module.kernel(name).unwrap().launch(config.clone(), arguments);
    launch.unwrap().sync().unwrap();
}

#[test]
fn loops_of_nvcc_run_over_pages_in_frames_and_at_home() {
    for frames in [40, 6] {
        let bench = Bench::new(direct(frames), SOURCE);
        loops_of_nvcc(&bench);
        assert!(bench.vm.stats().unwrap().pages_fetched >= frames.min(12));
    }
}

/// Runs `plain.cu`'s kernels, and compares what they make.
pub fn loops_of_nvcc(bench: &Bench) {
    let config = LaunchConfig::new(3, 64);
    let module = bench.vm.load_ptx("plain.ptx", LOOPS.as_bytes()).unwrap();
    let (x, mut y) = (values(1), values(5));
    let (of_x, of_y) = (region(bench, &x), region(bench, &y));
    let (sum, row_sums) = (bench.vm.buffer::<f64>(1).unwrap(), bench.vm.buffer::<f32>(N).unwrap());
    let rows: Vec<u32> = (0..64).map(|row| row * 53 % (N as u32 / 128)).collect();
    let indices: Vec<u32> = (0..2000).map(|at| at * 7919 % N as u32).collect();
    let (of_rows, of_indices) = (
        bench.vm.buffer::<u32>(64).unwrap(),
        bench.vm.buffer::<u32>(2000).unwrap(),
    );
    of_rows.write(&rows).unwrap();
    of_indices.write(&indices).unwrap();
    let gathered = bench.vm.buffer::<f32>(64 * 128).unwrap();
    for turn in 1..=5 {
        run(&module, "axpy", &config, (&of_x, &of_y, turn as f32, N));
        y.iter_mut().zip(&x).for_each(|(y, x)| *y += turn as f32 * x);
        for name in ["total", "pieces"] {
            sum.write(&[0.0]).unwrap();
            run(&module, name, &config, (&of_x, N, &sum));
            let wanted: f64 = x.iter().map(|x| f64::from(*x)).sum();
            assert_eq!(sum.to_vec().unwrap(), [wanted], "{name}");
        }
        run(&module, "row_sums", &config, (&of_x, 96u64, N / 96, &row_sums));
        let wanted: Vec<f32> = x.chunks_exact(96).map(|row| row.iter().sum()).collect();
        compare(&row_sums.to_vec().unwrap()[..wanted.len()], &wanted).unwrap();
        run(&module, "gathered", &config, (&of_x, &of_indices, &gathered, 2000u64));
        let wanted: Vec<f32> = indices.iter().map(|at| x[*at as usize]).collect();
        compare(&gathered.to_vec().unwrap()[..2000], &wanted).unwrap();
        run(&module, "rows_of_vectors", &config, (&of_x, &of_rows, &gathered, 64u64));
        let row = |row: &u32| x[*row as usize * 128..][..128].to_vec();
        compare(
            &gathered.to_vec().unwrap(),
            &rows.iter().flat_map(row).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    run(&module, "five_points", &config, (&of_x, &of_y, 100u64, N));
    for i in 100..N as usize - 100 {
        y[i] = 0.2 * (x[i] + x[i - 1] + x[i + 1] + x[i - 100] + x[i + 100]);
    }
    compare(&of_y.to_vec().unwrap(), &y).unwrap();
}

#[test]
fn kernels_of_triton_run_over_pages_in_frames_and_at_home() {
    for frames in [40, 5] {
        let bench = Bench::new(direct(frames), SOURCE);
        kernels_of_triton(&bench);
        assert!(bench.vm.stats().unwrap().pages_fetched > 0);
    }
}

/// Runs Triton's softmax and layer norm, and compares what they make.
pub fn kernels_of_triton(bench: &Bench) {
    const COLUMNS: usize = 1000;
    let rows = N as usize / COLUMNS;
    let config = LaunchConfig::new(rows as u32, 128).dynamic_shared(8 << 10);
    let near = |found: &[f32], wanted: &[f32]| {
        for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            assert!(
                (found - wanted).abs() <= 1e-5 + wanted.abs() * 1e-4,
                "{at}: {found} and not {wanted}"
            );
        }
    };
    let x: Vec<f32> = values(3).iter().map(|x| x / 16.0).collect();
    let (of_x, out) = (region(bench, &x), region(bench, &x));
    let softmax = bench.vm.load_ptx("softmax.ptx", SOFTMAX.as_bytes()).unwrap();
    let layer_norm = bench.vm.load_ptx("layer_norm.ptx", LAYER_NORM.as_bytes()).unwrap();
    // Triton's own last parameters, which these kernels do not use.
    let none = 0u64;
    for _ in 0..3 {
        run(&softmax, "softmax", &config, (&of_x, &out, COLUMNS as u32, none, none));
        let wanted: Vec<f32> = x[..rows * COLUMNS]
            .chunks(COLUMNS)
            .flat_map(|row| {
                let sum: f32 = row.iter().map(|x| x.exp()).sum();
                row.iter().map(move |x| x.exp() / sum)
            })
            .collect();
        near(&out.to_vec().unwrap(), &wanted);
        let arguments = (&of_x, &of_x, &of_x, &out, COLUMNS as u32, 1e-3f32, none, none);
        run(&layer_norm, "layer_norm", &config, arguments);
        let wanted: Vec<f32> = x[..rows * COLUMNS]
            .chunks(COLUMNS)
            .flat_map(|row| {
                let mean = row.iter().sum::<f32>() / COLUMNS as f32;
                let spread = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / COLUMNS as f32;
                row.iter()
                    .zip(&x)
                    .map(move |(x, weight)| (x - mean) / (spread + 1e-3).sqrt() * weight + weight)
            })
            .collect();
        near(&out.to_vec().unwrap(), &wanted);
    }
}
