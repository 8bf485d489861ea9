//! A graph's rows, which all ranks read.

use std::ops::Range;

use bytemuck::Pod;
use gpuvm::{Arg, Placement, Region, Scope, ScopedRegion, Vm};
use gpuvm_workloads::apps::several;
use gpuvm_workloads::graph::Csr;

use crate::Ranks;
use crate::shared::at_nodes;

/// Where rows come to.
#[derive(Clone, Copy)]
pub struct On<'a, 'scope, 'env> {
    pub vm: &'a Vm,
    pub ranks: &'a dyn Ranks,
    pub scope: &'scope Scope<'scope, 'env>,
    pub placement: Placement,
}

/// An array that all ranks read.
enum Read<'scope, T> {
    /// In this host's memory, where all ranks of the host have it.
    Here(ScopedRegion<'scope, T>),
    /// At memory nodes.
    AtNodes(Region<T>),
}

impl<'scope, T: Pod> Read<'scope, T> {
    fn new<'env>(on: On<'_, 'scope, 'env>, name: &str, values: &'env [T]) -> Result<Self, gpuvm::Error> {
        if on.vm.memory_nodes().is_empty() {
            return Ok(Self::Here(on.scope.read_only_placed(name, values, on.placement)?));
        }
        let region = || on.vm.region::<T>().name(name).read_only().placement(on.placement);
        Ok(Self::AtNodes(at_nodes(
            on.ranks,
            || region().from_slice(values),
            |shared| region().attach(shared),
        )?))
    }

    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Here(region) => Arg::from(&**region),
            Self::AtNodes(region) => Arg::from(region),
        }
    }
}

/// Offsets and neighbours.
pub struct Rows<'scope> {
    offsets: Read<'scope, u64>,
    neighbours: Read<'scope, u32>,
}

impl<'scope> Rows<'scope> {
    pub fn new<'env>(on: On<'_, 'scope, 'env>, csr: &'env Csr) -> Result<Self, gpuvm::Error> {
        Ok(Self {
            offsets: Read::new(on, "row offsets", csr.offsets())?,
            neighbours: Read::new(on, "neighbours", csr.neighbours())?,
        })
    }

    /// Both, for a launch.
    pub fn args(&self) -> [Arg<'_>; 2] {
        [self.offsets.arg(), self.neighbours.arg()]
    }
}

/// The vertices of each rank, with about as many edges.
pub fn parts(csr: &Csr, ranks: usize) -> Vec<Range<usize>> {
    let parts = several::parts(csr, ranks).into_iter();
    parts.map(|part| part.start as usize..part.end as usize).collect()
}
