//! A graph's rows, which all ranks read.

use std::ops::Range;

use bytemuck::Pod;
use gpuvm::{Arg, Placement, Region, Scope, ScopedRegion, Vm};
use gpuvm_workloads::apps::several;
use gpuvm_workloads::graph::Csr;

/// An array that all ranks read.
enum Read<'scope, T> {
    /// In this host's memory, where all ranks of the host have it.
    Here(ScopedRegion<'scope, T>),
    /// At memory nodes.
    AtNodes(Region<T>),
}

impl<'scope, T: Pod> Read<'scope, T> {
    fn new<'env>(
        vm: &Vm,
        scope: &'scope Scope<'scope, 'env>,
        name: &str,
        values: &'env [T],
        placement: Placement,
    ) -> Result<Self, gpuvm::Error> {
        if vm.memory_nodes().is_empty() {
            return Ok(Self::Here(scope.read_only_placed(name, values, placement)?));
        }
        let region = vm.region::<T>().name(name).read_only().placement(placement);
        Ok(Self::AtNodes(region.from_slice(values)?))
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
    pub fn new<'env>(
        vm: &Vm,
        scope: &'scope Scope<'scope, 'env>,
        csr: &'env Csr,
        placement: Placement,
    ) -> Result<Self, gpuvm::Error> {
        Ok(Self {
            offsets: Read::new(vm, scope, "row offsets", csr.offsets(), placement)?,
            neighbours: Read::new(vm, scope, "neighbours", csr.neighbours(), placement)?,
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
