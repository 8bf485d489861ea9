//! What is simulated: small kernels that page much, each with a model of what it must come to.

use gpuvm::{Advice, Placement};

use crate::bench::{Bench, Wrong};
use crate::room::Room;

use reliable::CatchUp;

pub use catalog::{UnknownWorkload, Workload};

mod broadcast;
pub(crate) mod catalog;
mod contended;
mod headroom;
mod looked_up;
mod programs;
mod reliable;
mod resize;
mod slots;
mod spans;
mod sweeps;
mod victims;

/// Compiles what a workload's first launch would compile.
pub(crate) fn compile(workload: Workload, bench: &Bench) -> Result<(), Wrong> {
    match workload {
        Workload::LookedUp | Workload::Resident => looked_up::compile(bench),
        Workload::Slots => slots::compile(bench),
        _ => Ok(()),
    }
}

/// Runs a workload and compares what it came to with its model. Its regions are closed then.
pub(crate) fn run(workload: Workload, room: &mut Room<'_>) -> Result<(), Wrong> {
    match workload {
        Workload::Random => programs::random(room),
        Workload::Counters => contended::counters(room),
        Workload::Linear => contended::linear(room, Placement::Fetch, Advice::Normal),
        Workload::Stream => sweeps::stream(room),
        Workload::Transpose => sweeps::transpose(room),
        Workload::Bfs => sweeps::bfs(room, Placement::Fetch),
        Workload::Spans => spans::spans(room),
        Workload::Prefetch => sweeps::prefetch(room),
        Workload::Flush => contended::flush(room),
        Workload::NeverEvicted => programs::never_evicted(room),
        Workload::Direct => programs::direct(room),
        Workload::LargePages => programs::large_pages(room),
        Workload::InPlace => sweeps::bfs(room, programs::in_place(room.seed())),
        Workload::LinearInPlace => contended::linear(room, programs::in_place(room.seed()), Advice::Normal),
        Workload::StoresInPlace => {
            let placement = match room.seed() % 4 {
                0 => Placement::Fetch,
                _ => programs::in_place(room.seed()),
            };
            contended::linear(room, placement, Advice::WriteOnce)
        }
        Workload::Rising => contended::rising(room, programs::in_place(room.seed())),
        Workload::Replicas => reliable::replicas(room),
        Workload::Returns => reliable::returns(room, CatchUp::Called),
        Workload::CaughtUp => reliable::returns(room, CatchUp::ByItself),
        Workload::Checksums => reliable::checksums(room),
        Workload::Victims => victims::victims(room),
        Workload::Broadcast => broadcast::broadcast(room),
        Workload::Resize | Workload::ResizeDirect => resize::resize(room),
        Workload::LookedUp => looked_up::looked_up(room),
        Workload::Resident => looked_up::resident(room),
        Workload::Headroom => headroom::headroom(room),
        Workload::Slots => slots::slots(room),
    }
}
