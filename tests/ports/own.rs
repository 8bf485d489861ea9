//! A program of our own, ported as others' programs are.

use gpuvm_workloads::apps::Use;

use super::bench::{Bench, Failure, results};
use super::port::{Port, Source};

const OWN: Source = Source {
    folder: "tests/ports/own",
    url: "https://github.com/gpuvm/gpuvm",
    revision: "this one",
};

pub const PORT: Port = Port {
    name: "own/heat",
    source: &OWN,
    files: &["heat.cu"],
    kernels: &["step", "sum"],
    sizes: &["CELLS"],
    n: [40_000, 1 << 24],
    changes: 6,
    run: heat,
    ..Port::NONE
};

/// `THREADS` and `STEPS` of the program.
const THREADS: u32 = 128;
const STEPS: usize = 6;

fn heat(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let cells = bench.n;
    let host: Vec<f32> = (0..cells).map(|i| (i % 100) as f32).collect();
    let mut now = bench.large("now", Use::ReadWrite, &host)?;
    let mut next = bench.large("next", Use::ReadWrite, &host)?;
    let sums = bench.small(&[0f32; THREADS as usize])?;
    let (grid, block) = ([cells.div_ceil(THREADS), 1], [THREADS, 1]);
    for _ in 0..STEPS {
        bench.launch("step", grid, block, (now.arg()?, next.arg()?, cells))?;
        std::mem::swap(&mut now, &mut next);
    }
    bench.launch("sum", [1, 1], block, (now.arg()?, &sums, cells))?;
    Ok([results(&sums.to_vec()?), results(&now.to_vec()?)].concat())
}
