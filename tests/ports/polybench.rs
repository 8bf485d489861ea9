//! PolyBench-ACC's CUDA programs. Matrices are paged; vectors stay plain memory.

use gpuvm::Buffer;
use gpuvm_workloads::apps::Use;

use super::bench::{Bench, Failure, results};
use super::port::{Port, Source};

const POLYBENCH: Source = Source {
    folder: "PolyBench-ACC",
    url: "https://github.com/cavazos-lab/PolyBench-ACC",
    revision: "70ea4ca9047dc4ec9c3ca79b4c91b3b2cc1510e7",
};

const UTILITIES: &str = "CUDA/utilities/polybench.h";

/// What all ports have in common.
const ALL: Port = Port {
    source: &POLYBENCH,
    ..Port::NONE
};

/// Tolerances are the programs' own: `PERCENT_DIFF_ERROR_THRESHOLD`. Sizes on a real GPU are their `STANDARD_DATASET`.
pub const PORTS: [Port; 7] = [
    Port {
        name: "polybench/mvt",
        files: &[
            UTILITIES,
            "CUDA/linear-algebra/kernels/mvt/mvt.cuh",
            "CUDA/linear-algebra/kernels/mvt/mvt.cu",
        ],
        kernels: &["mvt_kernel1", "mvt_kernel2"],
        sizes: &["N"],
        n: [128, 4096],
        changes: 7,
        tolerance: 0.05,
        run: mvt,
        ..ALL
    },
    Port {
        name: "polybench/atax",
        files: &[
            UTILITIES,
            "CUDA/linear-algebra/kernels/atax/atax.cuh",
            "CUDA/linear-algebra/kernels/atax/atax.cu",
        ],
        kernels: &["atax_kernel1", "atax_kernel2"],
        sizes: &["NX", "NY"],
        n: [128, 4096],
        changes: 7,
        tolerance: 0.5,
        run: atax,
        ..ALL
    },
    Port {
        name: "polybench/bicg",
        files: &[
            UTILITIES,
            "CUDA/linear-algebra/kernels/bicg/bicg.cuh",
            "CUDA/linear-algebra/kernels/bicg/bicg.cu",
        ],
        kernels: &["bicg_kernel1", "bicg_kernel2"],
        sizes: &["NX", "NY"],
        n: [128, 4096],
        changes: 7,
        tolerance: 0.5,
        run: bicg,
        ..ALL
    },
    Port {
        name: "polybench/gesummv",
        files: &[
            UTILITIES,
            "CUDA/linear-algebra/kernels/gesummv/gesummv.cuh",
            "CUDA/linear-algebra/kernels/gesummv/gesummv.cu",
        ],
        kernels: &["gesummv_kernel"],
        sizes: &["N"],
        n: [128, 4096],
        changes: 7,
        tolerance: 0.05,
        run: gesummv,
        ..ALL
    },
    Port {
        name: "polybench/2dconv",
        files: &[
            UTILITIES,
            "CUDA/stencils/convolution-2d/2DConvolution.cuh",
            "CUDA/stencils/convolution-2d/2DConvolution.cu",
        ],
        kernels: &["convolution2D_kernel"],
        sizes: &["NI", "NJ"],
        n: [128, 4096],
        changes: 2,
        tolerance: 0.05,
        run: convolution,
        ..ALL
    },
    Port {
        name: "polybench/corr",
        files: &[
            UTILITIES,
            "CUDA/datamining/correlation/correlation.cuh",
            "CUDA/datamining/correlation/correlation.cu",
        ],
        kernels: &["mean_kernel", "std_kernel", "reduce_kernel", "corr_kernel"],
        sizes: &["M", "N"],
        n: [64, 2048],
        changes: 8,
        tolerance: 1.05,
        run: correlation,
        ..ALL
    },
    Port {
        name: "polybench/fdtd2d",
        files: &[
            UTILITIES,
            "CUDA/stencils/fdtd-2d/fdtd2d.cuh",
            "CUDA/stencils/fdtd-2d/fdtd2d.cu",
        ],
        kernels: &["fdtd_step1_kernel", "fdtd_step2_kernel", "fdtd_step3_kernel"],
        sizes: &["NX", "NY"],
        n: [96, 2048],
        changes: 4,
        tolerance: 10.05,
        run: fdtd2d,
        ..ALL
    },
];

/// A thread a row or a column. MVT and ATAX have blocks of 32 x 8, whose 8 rows of threads add to the same elements
/// without atomics; they have one row here.
const LINE: [u32; 2] = [256, 1];

fn line(n: u32) -> [u32; 2] {
    [n.div_ceil(LINE[0]), 1]
}

/// A thread an element of a matrix.
const PLANE: [u32; 2] = [32, 8];

fn plane(n: u32) -> [u32; 2] {
    [n.div_ceil(PLANE[0]), n.div_ceil(PLANE[1])]
}

fn zeros(bench: &Bench) -> Result<Buffer<f32>, Failure> {
    bench.small(&vector(bench.n, |_| 0.0))
}

/// Multiples of the constant, in the precision of C.
fn of_pi(i: f32) -> f32 {
    (f64::from(i) * std::f64::consts::PI) as f32
}

fn vector(n: u32, value: impl Fn(f32) -> f32) -> Vec<f32> {
    (0..n).map(|i| value(i as f32)).collect()
}

/// Row by row, by the indices.
fn matrix(rows: u32, columns: u32, value: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    let row = |i: u32| (0..columns).map(move |j| (i as f32, j as f32));
    (0..rows).flat_map(row).map(|(i, j)| value(i, j)).collect()
}

fn mvt(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let a = bench.large("a", Use::Read, &matrix(n, n, |i, j| i * j / by))?;
    let x1 = bench.small(&vector(n, |i| i / by))?;
    let x2 = bench.small(&vector(n, |i| (i + 1.0) / by))?;
    let y1 = bench.small(&vector(n, |i| (i + 3.0) / by))?;
    let y2 = bench.small(&vector(n, |i| (i + 4.0) / by))?;
    let n = n as i32;
    bench.launch("mvt_kernel1", line(bench.n), LINE, (n, a.arg()?, &x1, &y1))?;
    bench.launch("mvt_kernel2", line(bench.n), LINE, (n, a.arg()?, &x2, &y2))?;
    Ok([results(&x1.to_vec()?), results(&x2.to_vec()?)].concat())
}

fn atax(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let a = bench.large("A", Use::Read, &matrix(n, n, |i, j| i * j / by))?;
    let x = bench.small(&vector(n, of_pi))?;
    let [y, tmp] = [zeros(bench)?, zeros(bench)?];
    let n = n as i32;
    bench.launch("atax_kernel1", line(bench.n), LINE, (n, n, a.arg()?, &x, &tmp))?;
    bench.launch("atax_kernel2", line(bench.n), LINE, (n, n, a.arg()?, &y, &tmp))?;
    Ok(results(&y.to_vec()?))
}

fn bicg(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let a = bench.large("A", Use::Read, &matrix(n, n, |i, j| i * j / by))?;
    let [p, r] = [bench.small(&vector(n, of_pi))?, bench.small(&vector(n, of_pi))?];
    let [s, q] = [zeros(bench)?, zeros(bench)?];
    let n = n as i32;
    bench.launch("bicg_kernel1", line(bench.n), LINE, (n, n, a.arg()?, &r, &s))?;
    bench.launch("bicg_kernel2", line(bench.n), LINE, (n, n, a.arg()?, &p, &q))?;
    Ok([results(&s.to_vec()?), results(&q.to_vec()?)].concat())
}

fn gesummv(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let a = bench.large("A", Use::Read, &matrix(n, n, |i, j| i * j / by))?;
    let b = bench.large("B", Use::Read, &matrix(n, n, |i, j| i * j / by))?;
    let x = bench.small(&vector(n, |i| i / by))?;
    let [tmp, y] = [zeros(bench)?, zeros(bench)?];
    let (alpha, beta) = (43532.0f32, 12313.0f32);
    let args = (n as i32, alpha, beta, a.arg()?, b.arg()?, &tmp, &x, &y);
    bench.launch("gesummv_kernel", line(n), LINE, args)?;
    Ok(results(&y.to_vec()?))
}

fn convolution(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let n = bench.n;
    // The program's are random.
    let random = |i: f32, j: f32| ((i * 31.0 + j * 17.0) % 1021.0) / 1021.0;
    let a = bench.large("A", Use::Read, &matrix(n, n, random))?;
    let b = bench.large("B", Use::ReadWrite, &matrix(n, n, |_, _| 0.0))?;
    let args = (n as i32, n as i32, a.arg()?, b.arg()?);
    bench.launch("convolution2D_kernel", plane(n), PLANE, args)?;
    Ok(results(&b.to_vec()?))
}

fn correlation(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let data = bench.large("data", Use::ReadWrite, &matrix(n, n, |i, j| i * j / by))?;
    let symmat = bench.large("symmat", Use::ReadWrite, &matrix(n, n, |_, _| 0.0))?;
    let [mean, deviation] = [zeros(bench)?, zeros(bench)?];
    let n = n as i32;
    bench.launch("mean_kernel", line(bench.n), LINE, (n, n, &mean, data.arg()?))?;
    bench.launch(
        "std_kernel",
        line(bench.n),
        LINE,
        (n, n, &mean, &deviation, data.arg()?),
    )?;
    let args = (n, n, &mean, &deviation, data.arg()?);
    bench.launch("reduce_kernel", plane(bench.n), PLANE, args)?;
    bench.launch("corr_kernel", line(bench.n), LINE, (n, n, symmat.arg()?, data.arg()?))?;
    // The program's host stores the last element.
    let mut values = results(&symmat.to_vec()?);
    values.pop();
    Ok([values, results(&data.to_vec()?)].concat())
}

/// Steps of time; the program's own 500 are too many for the simulated GPU.
const TIMES: u32 = 4;

fn fdtd2d(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let (n, by) = (bench.n, bench.n as f32);
    let source = bench.small(&vector(TIMES, |t| t))?;
    let ex = matrix(n, n, |i, j| (i * (j + 1.0) + 1.0) / by);
    let ey = matrix(n, n, |i, j| ((i - 1.0) * (j + 2.0) + 2.0) / by);
    let hz = matrix(n, n, |i, j| ((i - 9.0) * (j + 4.0) + 3.0) / by);
    let ex = bench.large("ex", Use::ReadWrite, &ex)?;
    let ey = bench.large("ey", Use::ReadWrite, &ey)?;
    let hz = bench.large("hz", Use::ReadWrite, &hz)?;
    let n = n as i32;
    for t in 0..TIMES as i32 {
        let args = (n, n, &source, ex.arg()?, ey.arg()?, hz.arg()?, t);
        bench.launch("fdtd_step1_kernel", plane(bench.n), PLANE, args)?;
        for step in ["fdtd_step2_kernel", "fdtd_step3_kernel"] {
            bench.launch(step, plane(bench.n), PLANE, (n, n, ex.arg()?, ey.arg()?, hz.arg()?, t))?;
        }
    }
    Ok([results(&hz.to_vec()?), results(&ex.to_vec()?), results(&ey.to_vec()?)].concat())
}
