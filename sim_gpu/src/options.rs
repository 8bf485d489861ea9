//! How a simulated GPU runs kernels.

/// How the simulated GPU runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// On all workers, as fast as they go.
    #[default]
    Fast,
    /// On one thread in virtual time: one seed, one interleaving.
    Seeded(u64),
}

/// How weak the memory of the seeded mode is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryModel {
    /// As weak as PTX allows, within bounds: a cache a multiprocessor that weak loads go through, stores that wait for a
    /// release, loads that were performed early, stores that a NIC does not see before a fence of system scope, a NIC's
    /// data that arrives late for who did not acquire its completion.
    #[default]
    Weak,
    /// One access after the other: what a dropped fence does not break.
    Sequential,
}

/// How the seeded mode picks the lane that runs next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// A random walk under half of the seeds, priorities with 1 to 5 changes under the others, by a draw.
    #[default]
    BySeed,
    /// A random walk: any lane that can run is as likely as any other.
    RandomWalk,
    /// Random priorities a lane, and this many points at which the running lane becomes the last (PCT: Burckhardt and
    /// others, 2010). It finds every bug that needs few switches with a known chance.
    Priorities {
        /// Points at which the running lane becomes the last.
        changes: u32,
    },
}

/// What the seeded mode does besides running kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimOptions {
    /// How weak memory is.
    pub memory_model: MemoryModel,
    /// How lanes are picked.
    pub schedule: Schedule,
    /// Whether data races in device memory are looked for, see [`SimGpu::races`](crate::SimGpu::races). Memory is sequentially consistent then:
    /// races are found by what orders accesses, not by what they come to.
    pub find_races: bool,
    /// How many of the last events are kept, see [`SimGpu::events`](crate::SimGpu::events).
    pub events_kept: usize,
    /// What `gpuvm_sim::variant()` is in kernels: a source may hold several variants of its code and choose among them by it,
    /// compiled once.
    pub variant: u32,
}
