//! What a GPU that is simulated in this process does for machines that are simulated beside it.

use std::any::Any;
use std::sync::Arc;

/// Called after a store into a watched page with the store's device address.
pub type OnStore = Arc<dyn Fn(u64) + Send + Sync>;

/// To be told of a copy before it is made: destination, source, length in bytes.
pub type OnCopy = fn(u64, u64, u64);

/// Words for what a lane waits for, from the note's code and two values.
pub type NoteFormatter = Arc<dyn Fn(u32, u64, u64) -> String + Send + Sync>;

/// Whether what somebody waits for has come.
pub type IsOver = Box<dyn Fn() -> bool + Send>;

/// A simulated GPU, as the engines beside it see it. [`Gpu::simulation`](crate::Gpu::simulation) hands it out. It is
/// [`Any`], so that who knows the simulator can ask it for more.
pub trait Simulation: Any + Send + Sync {
    /// After a device library's register store (`gpuvm_sim::mmio_store64`) into one of `pages`, given as (first address, bytes),
    /// calls `on_store` with the address, on the thread that runs the lane. It stays for the life of the GPU.
    fn watch_stores(&self, pages: &[(u64, u64)], on_store: OnStore);

    /// Adds an engine that the scheduler steps between lanes when the GPU is
    /// [deterministic](crate::Capabilities::deterministic), and never otherwise.
    fn attach(&self, actor: Arc<dyn Actor>);

    /// The time of a [deterministic](crate::Capabilities::deterministic) GPU in nanoseconds, and 0 of others.
    fn now_ns(&self) -> u64;

    /// Lets lanes and actors of a deterministic GPU run until it is `at_ns` there, or `is_over` says so. The seed decides where that is:
    /// the same work of the host follows at the same point of every run. On other GPUs the call does nothing.
    fn run_until(&self, at_ns: u64, is_over: IsOver);

    /// What an [`Actor`] calls in a step, before it copies what lanes see: the memory model then knows what comes from outside, and
    /// says when lanes see it. On other threads the call does nothing.
    fn on_copy(&self) -> OnCopy;

    /// How a watchdog's report words what a lane waits for, from the note's code and two values.
    fn set_note_formatter(&self, format: NoteFormatter);
}

/// An engine, such as a NIC's, that a deterministic GPU steps.
pub trait Actor: Send + Sync {
    /// Does at most one small piece of work at the GPU's time in nanoseconds, which never steps back; false when there was
    /// nothing to do. It must not block.
    fn step(&self, now_ns: u64) -> bool;
}
