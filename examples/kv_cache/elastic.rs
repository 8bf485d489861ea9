//! Keys and values in elastic buffers.

use gpuvm::{Buffer, ElasticBuffer, Vm};

use crate::{
    args::Plan,
    cache::{Cache, Four, Part},
    error::Problem,
};

/// Two buffers a sequence.
pub struct Elastic<'a> {
    vm: &'a Vm,
    plan: &'a Plan,
    /// Keys and values of each sequence.
    sequences: Vec<[ElasticBuffer<Four>; 2]>,
    /// Where each sequence's keys begin. A buffer that grows stays where it is, so this is written once.
    ///
    /// Kernels find the buffers here, so that launches do not name them, and gpuvm cannot know what they use. Growing needs no more; before
    /// a buffer shrinks or is dropped the launches that use it have to have ended.
    keys: Buffer<u64>,
    /// Where each sequence's values begin.
    values: Buffer<u64>,
    no_table: Buffer<u32>,
}

impl<'a> Elastic<'a> {
    /// Buffers without an element, which take no memory.
    pub fn new(vm: &'a Vm, plan: &'a Plan) -> Result<Self, Problem> {
        let most = u64::from(plan.capacity()) * plan.row();
        let buffer = |what: &str, sequence| {
            let name = format!("{what} of sequence {sequence}");
            vm.elastic::<Four>(most).name(name).tag("kv cache").build()
        };
        let both = |sequence| Ok([buffer("keys", sequence)?, buffer("values", sequence)?]);
        let sequences: Vec<[ElasticBuffer<Four>; 2]> = (0..plan.sequences()).map(both).collect::<gpuvm::Result<_>>()?;
        let addresses = |of: usize| {
            let addresses: Vec<u64> = sequences.iter().map(|buffers| buffers[of].pointer()).collect();
            let table = vm.buffer(addresses.len() as u64)?;
            table.write(&addresses)?;
            Ok::<_, gpuvm::Error>(table)
        };
        Ok(Self {
            keys: addresses(0)?,
            values: addresses(1)?,
            no_table: vm.buffer(1)?,
            vm,
            plan,
            sequences,
        })
    }
}

impl Cache for Elastic<'_> {
    fn make_room(&mut self, step: u32) -> Result<(), Problem> {
        for (sequence, buffers) in (0..).zip(&self.sequences) {
            let fours = u64::from(self.plan.tokens(sequence, step)) * self.plan.row();
            for buffer in buffers {
                buffer.ensure(fours)?;
            }
        }
        Ok(())
    }

    fn parts(&self) -> Vec<Part<'_>> {
        Part::all(self.plan, &self.keys, &self.values, &self.no_table)
    }

    fn held_bytes(&self) -> u64 {
        let stats = self.vm.elastic_stats();
        stats.used_bytes + stats.ahead_bytes + stats.rest_bytes
    }

    fn gpu_bytes(&self) -> u64 {
        let handles = self.vm.elastic_stats().handles;
        handles.held * handles.handle_bytes
    }
}
