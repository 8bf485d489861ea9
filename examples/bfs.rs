//! Breadth-first search over a generated Kronecker graph, with memory for a quarter of its pages.

use std::error::Error;
use std::io::{Write, stdout};

use gpuvm::Vm;
use gpuvm_workloads::{
    bfs::{self, Options},
    graph::{GraphSpec, LoadOptions, reference},
};

fn main() -> Result<(), Box<dyn Error>> {
    let graph = "kron:14"
        .parse::<GraphSpec>()?
        .load(&LoadOptions::default(), &mut |_| {})?;
    let csr = graph.csr();
    let source = csr.first_connected().ok_or("the graph has no edge")?;
    let options = Options {
        machine: Vm::builder(),
        frame_bytes: bfs::paged_bytes(csr, 4096) / 4,
        page_bytes: 4096,
        placement: gpuvm::Placement::Fetch,
        shape: None,
        profile: None,
        file_cache: None,
    };
    let mut levels = Vec::new();
    let outcome = bfs::run(csr, source, &options, &mut |level| levels.push(level))?;
    // Not println!, which panics where the output is closed or full.
    let mut out = stdout().lock();
    for level in levels {
        writeln!(out, "level {}: {} vertices", level.level, level.reached)?;
    }
    reference::compare(&reference::bfs(csr, source)?, &outcome.distances)?;
    writeln!(
        out,
        "{} vertices in {} levels, as the CPU finds them; {} faults served by GPU threads",
        outcome.reached, outcome.levels, outcome.stats.faults
    )?;
    Ok(())
}
