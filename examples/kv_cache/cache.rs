//! Keys and values of growing sequences, in each form.

use std::{fmt, ops::Range};

use clap::ValueEnum;
use gpuvm::{Arg, Buffer, Vm};

use crate::{args::Plan, elastic::Elastic, error::Problem, managed::Managed, paged::Paged};

/// Four numbers, which a lane loads at once: the kernels' `float4`.
pub type Four = [f32; 4];

/// How keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Room for as many tokens as the longest sequence comes to, for every sequence: the ceiling.
    Preallocated,
    /// Two elastic buffers a sequence, which grow each step.
    Elastic,
    /// Blocks of some tokens out of a pool of fixed size, and a table that says which ones a sequence has.
    Blocks,
    /// Two paged arrays, of which GPU memory holds a part.
    Paged,
    /// CUDA's managed memory, of which the GPU holds as much when a step begins. Needs an NVIDIA GPU, and is run where it is asked for.
    Managed,
}

impl Form {
    /// Those that are run unless others are asked for, the ceiling first.
    pub const USUAL: [Self; 4] = [Self::Preallocated, Self::Elastic, Self::Blocks, Self::Paged];

    /// What the option calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preallocated => "preallocated",
            Self::Elastic => "elastic",
            Self::Blocks => "blocks",
            Self::Paged => "paged",
            Self::Managed => "managed",
        }
    }

    /// What the kernels call the way that its keys and values lie.
    pub fn way(self) -> &'static str {
        match self {
            // Addresses of sequences, too.
            Self::Managed => Self::Elastic.name(),
            form => form.name(),
        }
    }

    /// Keys and values in this form, without any token.
    ///
    /// # Errors
    /// What the runtime says, above all where GPU memory is short.
    pub fn make<'a>(self, vm: &'a Vm, plan: &'a Plan) -> Result<Box<dyn Cache + 'a>, Problem> {
        Ok(match self {
            Self::Preallocated => Box::new(Preallocated::new(vm, plan)?),
            Self::Elastic => Box::new(Elastic::new(vm, plan)?),
            Self::Blocks => Box::new(Blocks::new(vm, plan)?),
            Self::Paged => Box::new(Paged::new(vm, plan)?),
            Self::Managed => Box::new(Managed::new(vm, plan)?),
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Keys and values of all sequences.
pub trait Cache {
    /// Makes room for the tokens of a step. Launches of the step before may run.
    ///
    /// # Errors
    /// What the runtime says, above all where GPU memory is short.
    fn make_room(&mut self, step: u32) -> Result<(), Problem>;

    /// What is done before each step, and not timed.
    ///
    /// # Errors
    /// The driver's.
    fn between_steps(&mut self) -> Result<(), Problem> {
        Ok(())
    }

    /// What kernels take, a launch for each: together all sequences.
    fn parts(&self) -> Vec<Part<'_>>;

    /// Bytes that sequences hold, used or not, and that nobody else can have.
    fn held_bytes(&self) -> u64;

    /// Bytes of GPU memory that are taken for keys and values.
    fn gpu_bytes(&self) -> u64;
}

/// Neighbouring sequences, as a launch takes them.
pub struct Part<'a> {
    /// The sequences.
    pub sequences: Range<u32>,
    /// Their keys.
    pub keys: Arg<'a>,
    /// Their values.
    pub values: Arg<'a>,
    /// The table of blocks; any buffer for forms without one.
    pub table: Arg<'a>,
}

impl<'a> Part<'a> {
    /// All sequences in one part.
    pub fn all(
        plan: &Plan,
        keys: impl Into<Arg<'a>>,
        values: impl Into<Arg<'a>>,
        table: impl Into<Arg<'a>>,
    ) -> Vec<Self> {
        vec![Self {
            sequences: 0..plan.sequences(),
            keys: keys.into(),
            values: values.into(),
            table: table.into(),
        }]
    }
}

/// Room for all.
struct Preallocated<'a> {
    plan: &'a Plan,
    keys: Buffer<Four>,
    values: Buffer<Four>,
    no_table: Buffer<u32>,
}

impl<'a> Preallocated<'a> {
    fn new(vm: &Vm, plan: &'a Plan) -> Result<Self, Problem> {
        let room = u64::from(plan.sequences()) * u64::from(plan.capacity()) * plan.row();
        Ok(Self {
            plan,
            keys: vm.buffer(room)?,
            values: vm.buffer(room)?,
            no_table: vm.buffer(1)?,
        })
    }
}

/// Bytes of two buffers.
fn bytes_of(keys: &Buffer<Four>, values: &Buffer<Four>) -> u64 {
    (keys.len() + values.len()) * size_of::<Four>() as u64
}

impl Cache for Preallocated<'_> {
    fn make_room(&mut self, _step: u32) -> Result<(), Problem> {
        Ok(())
    }

    fn parts(&self) -> Vec<Part<'_>> {
        Part::all(self.plan, &self.keys, &self.values, &self.no_table)
    }

    fn held_bytes(&self) -> u64 {
        bytes_of(&self.keys, &self.values)
    }

    fn gpu_bytes(&self) -> u64 {
        self.held_bytes()
    }
}

/// A pool of blocks.
struct Blocks<'a> {
    plan: &'a Plan,
    keys: Buffer<Four>,
    values: Buffer<Four>,
    /// Which blocks each sequence has, a row each.
    table: Buffer<u32>,
    /// Its rows, as the host has them.
    rows: Vec<u32>,
    /// How many blocks each sequence has.
    taken: Vec<u32>,
    free: Vec<u32>,
}

impl<'a> Blocks<'a> {
    fn new(vm: &Vm, plan: &'a Plan) -> Result<Self, Problem> {
        let tokens = (0..plan.sequences()).map(|sequence| plan.tokens(sequence, plan.steps));
        let blocks: u32 = tokens.map(|tokens| tokens.div_ceil(plan.block_tokens)).sum();
        let pool = u64::from(blocks) * u64::from(plan.block_tokens) * plan.row();
        let entries = plan.prompts.len() * blocks_max(plan) as usize;
        let mut free: Vec<u32> = (0..blocks).collect();
        // In no order, as in a pool that sequences have come to and left for some time.
        free.sort_unstable_by_key(|block| block.wrapping_mul(SCATTER));
        Ok(Self {
            plan,
            keys: vm.buffer(pool)?,
            values: vm.buffer(pool)?,
            table: vm.buffer(entries as u64)?,
            rows: vec![0; entries],
            taken: vec![0; plan.prompts.len()],
            free,
        })
    }
}

/// Multiples of it, in 32 bits, lie far apart: 2^32 by the golden ratio.
const SCATTER: u32 = 0x9e37_79b9;

/// Blocks that a sequence comes to at most: entries of its row of the table.
pub fn blocks_max(plan: &Plan) -> u32 {
    plan.capacity().div_ceil(plan.block_tokens)
}

impl Cache for Blocks<'_> {
    fn make_room(&mut self, step: u32) -> Result<(), Problem> {
        let row = blocks_max(self.plan) as usize;
        let mut changed = false;
        for (sequence, taken) in self.taken.iter_mut().enumerate() {
            let tokens = self.plan.tokens(sequence as u32, step);
            while *taken < tokens.div_ceil(self.plan.block_tokens) {
                let block = self.free.pop().ok_or(Problem::PoolEmpty { step })?;
                self.rows[sequence * row + *taken as usize] = block;
                *taken += 1;
                changed = true;
            }
        }
        if changed {
            // It waits for the launches that read the table.
            self.table.write(&self.rows)?;
        }
        Ok(())
    }

    fn parts(&self) -> Vec<Part<'_>> {
        Part::all(self.plan, &self.keys, &self.values, &self.table)
    }

    fn held_bytes(&self) -> u64 {
        let blocks: u64 = self.taken.iter().map(|taken| u64::from(*taken)).sum();
        2 * blocks * u64::from(self.plan.block_tokens) * self.plan.row_bytes()
    }

    fn gpu_bytes(&self) -> u64 {
        bytes_of(&self.keys, &self.values)
    }
}
