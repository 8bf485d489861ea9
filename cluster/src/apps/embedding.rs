//! Bags of an embedding table.

use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use gpuvm::{Placement, Region, Vm};
use gpuvm_workloads::apps::{EmbeddingShape, Space, Way, sum_bags};
use rayon::prelude::*;

use super::Ran;
use crate::partitioned::even_parts;
use crate::{ClusterError, Ranks, shared};

/// Values that are made, and written, at a time.
const PIECE_QUADS: u64 = 1 << 16;

/// An embedding table that all ranks read.
pub struct Table {
    region: Region<[f32; 4]>,
    shape: EmbeddingShape,
}

impl Table {
    /// A table of this shape, one for each host, in memory that its ranks share, or at memory nodes. All ranks call it.
    ///
    /// # Errors
    /// The shape's, the region's, [`ClusterError::Share`].
    pub fn new(vm: &Vm, ranks: &dyn Ranks, shape: EmbeddingShape, placement: Placement) -> Result<Self, ClusterError> {
        shape.check()?;
        let region = || vm.region::<[f32; 4]>().name("table").read_only().placement(placement);
        if !vm.memory_nodes().is_empty() {
            let quads = 0..shape.rows * (shape.columns / 4);
            let fill = || region().from_iter(quads.map(|at| shape.quad(at)));
            let region = shared::at_nodes(ranks, fill, |shared| region().attach(shared));
            let region = region.map_err(ClusterError::vm("making the table"))?;
            return Ok(Self { region, shape });
        }
        let write = |out: &mut dyn Write| {
            write_table(shape, out).map_err(|source| ClusterError::Share {
                what: "keep the table".to_owned(),
                source,
            })
        };
        let region = shared::on_host(ranks, "the table", write, |path| {
            region().map_file(path).map_err(ClusterError::vm("making the table"))
        })?;
        Ok(Self { region, shape })
    }
}

fn write_table(shape: EmbeddingShape, out: &mut dyn Write) -> std::io::Result<()> {
    let quads = shape.rows * (shape.columns / 4);
    let mut at = 0;
    while at < quads {
        let end = (at + PIECE_QUADS).min(quads);
        let values: Vec<[f32; 4]> = (at..end).into_par_iter().map(|at| shape.quad(at)).collect();
        out.write_all(bytemuck::cast_slice(&values))?;
        at = end;
    }
    Ok(())
}

/// The sums of all bags, whose ids the seed names: each rank has an even share of the bags and gathers their rows.
///
/// # Errors
/// The virtual memory's.
pub fn embedding(
    vm: &Vm,
    ranks: &dyn Ranks,
    table: &Table,
    seed: u64,
    placement: Placement,
) -> Result<Ran<[f32; 4]>, ClusterError> {
    let (begun, place, shape) = (Instant::now(), ranks.place(), table.shape);
    let quads = shape.columns / 4;
    let bags = even_parts(shape.bags as usize, place.size);
    let in_quads = |part: &Range<usize>| part.start * quads as usize..part.end * quads as usize;
    let parts: Vec<_> = bags.iter().map(in_quads).collect();
    let mine = bags[place.rank].start as u64..bags[place.rank].end as u64;
    let space = Space::new(vm, Way::Paged(placement), "")?;
    let (kernel, config) = sum_bags(&space)?;
    let ids = space.upload(&shape.ids(seed, mine.clone()))?;
    let count = mine.end - mine.start;
    let out = space.buffer::<[f32; 4]>(count * quads)?;
    let failed = ClusterError::vm("gathering rows");
    let set_up = begun.elapsed();
    ranks.barrier();
    let started = Instant::now();
    let args = (&table.region, &ids, &out, quads, shape.bag_ids, count);
    kernel
        .launch(config, args)
        .and_then(|launch| launch.sync())
        .map_err(&failed)?;
    let elapsed = started.elapsed();
    let mut own = out.to_vec().map_err(&failed)?;
    // A buffer has one element at least.
    own.truncate(parts[place.rank].len());
    Ok(Ran {
        own,
        parts,
        set_up,
        elapsed,
    })
}
