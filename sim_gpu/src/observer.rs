//! Who watches a seeded GPU, and what it is told.

/// What a seeded GPU is about to do, or has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A lane is about to make an access of its kernel to memory that others see, or has completed a collective.
    Lane {
        /// Number of the launch, from 0 on.
        launch: u32,
        /// Number of the block in its grid.
        block: u32,
        /// Number of the thread in its block.
        thread: u32,
    },
    /// An [`Actor`](gpuvm_gpu::Actor) has been stepped.
    Actor {
        /// Its number, in the order of [`Simulation::attach`](gpuvm_gpu::Simulation::attach).
        number: u32,
        /// What it answered.
        did: bool,
    },
    /// The scheduler goes on after host threads ran, which may have changed anything.
    Host,
}

impl Step {
    /// The step of the lane with this name.
    pub(crate) fn of_lane(id: u64) -> Self {
        Self::Lane {
            launch: (id >> 48) as u32,
            block: (id >> 10) as u32,
            thread: (id & 1023) as u32,
        }
    }
}

/// Watches a seeded GPU: called before every access of a lane, after every step of an actor, and when the
/// scheduler goes on after it had stood still. Between two calls one lane made one access at most, and stores that the
/// memory model had delayed became visible. A GPU without a seed never calls it.
pub trait Observer: Send + Sync {
    /// Something happens at virtual time `now_ns`. Called on the scheduler's thread, on a lane's stack of 128 KiB perhaps: it must
    /// neither block nor use a GPU. It may read device memory, which no one writes meanwhile.
    fn step(&self, now_ns: u64, step: Step);
}
