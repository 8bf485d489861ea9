//! Keys and values in CUDA's managed memory, of which the GPU holds a part.

use std::ops::Range;

use gpuvm::{Buffer, Gpu, Vm};
use gpuvm_gpu::cuda::{self, CudaGpu, Side};

use crate::{
    args::Plan,
    cache::{Cache, Part},
    error::Problem,
    paged::{frame_bytes, that_fit},
};

/// Sequences whose pages are on the GPU when a step begins, and others whose pages are on the host.
///
/// Managed memory larger than the GPU's can hang a GPU, so there is room for all of it, and what would not fit is moved to the host between
/// steps, which is not timed. So the driver has less to do than in earnest: it chooses no page, and writes none back while a kernel waits.
pub struct Managed<'a> {
    plan: &'a Plan,
    memory: Vec<cuda::Managed>,
    /// What is moved to the host before each step: the place in `memory`.
    leaving: Option<usize>,
    /// Where each sequence's keys begin.
    keys: Buffer<u64>,
    /// Where each sequence's values begin.
    values: Buffer<u64>,
    no_table: Buffer<u32>,
}

impl<'a> Managed<'a> {
    /// Room for all tokens.
    pub fn new(vm: &'a Vm, plan: &'a Plan) -> Result<Self, Problem> {
        let which = match &plan.gpu {
            _ if vm.device().capabilities().compute_capability.is_none() => return Err(Problem::NeedsNvidia),
            Gpu::Cuda(which) => which.to_string(),
            _ => "0".to_owned(),
        };
        let gpu = CudaGpu::open(which)?;
        let side = u64::from(plan.capacity()) * plan.row_bytes();
        let staying = that_fit(plan, frame_bytes(plan));
        let (mut memory, mut leaving, mut addresses) = (Vec::new(), None, [Vec::new(), Vec::new()]);
        for (sequences, leaves) in [(0..staying, false), (staying..plan.sequences(), true)] {
            let Range { start, end } = sequences;
            if start == end {
                continue;
            }
            let count = u64::from(end - start);
            let part = gpu.managed(2 * count * side)?;
            for (which, addresses) in (0..).zip(&mut addresses) {
                addresses.extend((0..count).map(|sequence| part.addr() + (2 * sequence + which) * side));
            }
            leaving = leaves.then_some(memory.len());
            memory.push(part);
        }
        let table = |addresses: &[u64]| {
            let table = vm.buffer(addresses.len() as u64)?;
            table.write(addresses)?;
            Ok::<_, gpuvm::Error>(table)
        };
        Ok(Self {
            plan,
            memory,
            leaving,
            keys: table(&addresses[0])?,
            values: table(&addresses[1])?,
            no_table: vm.buffer(1)?,
        })
    }
}

impl Cache for Managed<'_> {
    fn make_room(&mut self, _step: u32) -> Result<(), Problem> {
        Ok(())
    }

    fn between_steps(&mut self) -> Result<(), Problem> {
        match self.leaving {
            Some(part) => Ok(self.memory[part].prefetch(Side::Host)?),
            None => Ok(()),
        }
    }

    fn parts(&self) -> Vec<Part<'_>> {
        Part::all(self.plan, &self.keys, &self.values, &self.no_table)
    }

    fn held_bytes(&self) -> u64 {
        self.memory.iter().map(cuda::Managed::bytes).sum()
    }

    fn gpu_bytes(&self) -> u64 {
        frame_bytes(self.plan)
    }
}
