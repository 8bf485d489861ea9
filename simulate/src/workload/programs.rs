//! Random programs of every kind of access, on pages that come and go by one way or another.

use gpuvm::Placement;
use gpuvm_layouts as layout;
use rand::RngExt;

use crate::bench::Wrong;
use crate::program::{self, ProgramShape, rng, tiny};
use crate::room::{Needs, Room};

/// Sets a workload's draws apart from those of the program that it runs.
pub(super) const SECOND: u64 = 0x7365_636f_6e64_0000;

pub(super) fn shape(seed: u64, frames: u64) -> ProgramShape {
    ProgramShape {
        launches: 1 + (seed / 4 % 2) as u32,
        steps: 4 + (seed / 8 % 4) as u32,
        // Parts of warps, small enough that a seed is done soon.
        threads: [8, 12, 16, 32][(seed % 4) as usize],
        advised: seed / 64 % 2 == 1,
        ..tiny(seed, frames)
    }
}

pub(super) fn needs_of(shape: &ProgramShape) -> Needs {
    Needs {
        page: shape.page,
        queue_pairs: shape.queue_pairs,
        queue_depth: shape.queue_depth,
        ..Needs::few(0, shape.frames)
    }
}

fn program_on(room: &mut Room<'_>, shape: &ProgramShape) -> Result<(), Wrong> {
    let shape = ProgramShape {
        errors_allowed: room.has_faults(),
        ..shape.clone()
    };
    let bench = room.open(needs_of(&shape))?;
    program::run_in::<u32>(&bench, &mut rng(room.seed()), &shape).map(|_| ())
}

pub(super) fn random(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    program_on(room, &shape(seed, 1 + seed % 3))
}

pub(super) fn never_evicted(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let shape = ProgramShape {
        never_evicted: true,
        ..shape(seed, 1 + seed % 3)
    };
    program_on(room, &shape)
}

/// A placement under which pages are read where they live.
pub(super) fn in_place(seed: u64) -> Placement {
    [Placement::InPlace, Placement::WhileFree, Placement::Auto][(seed % 3) as usize]
}

/// Of one program in seven pages are read where they live. Memory that is lent is fetched.
fn placement_of(seed: u64) -> Placement {
    match seed % 7 {
        4 => in_place(seed / 7),
        _ => Placement::Fetch,
    }
}

pub(super) fn direct(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let placement = placement_of(seed);
    let shape = ProgramShape {
        direct: true,
        launches: 1,
        threads: 8,
        steps: 3,
        // Every other time at an address that decides how wide copies are.
        lent: (seed / 16 % 2 == 1 && placement == Placement::Fetch).then_some(seed / 32 % 4),
        placement,
        ..shape(seed, 1 + seed % 3)
    };
    program_on(room, &shape)
}

/// Bytes of a large page.
const LARGE_PAGE: u64 = 32 << 10;

pub(super) fn large_pages(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut draw = rng(seed ^ SECOND);
    // Just above what is filled by chunks, most often, and every fourth time a whole page before it. Both regions end in a part of a chunk.
    let least = u64::from(layout::FILL_PAGE_BYTES);
    let tail = draw.random_range(0..u64::from(layout::FILL_CHUNK_BYTES) / 8);
    let whole = if seed % 4 == 3 { LARGE_PAGE } else { 0 };
    let placement = placement_of(seed);
    let shape = ProgramShape {
        page: LARGE_PAGE,
        // The last element is one that a lane owns.
        elements: (whole + least) / 4 + 2 * tail.next_multiple_of(2) + 2,
        shared: least / 8 + draw.random_range(1..64),
        direct: true,
        blocks: 3,
        threads: 4 + 4 * (seed % 2) as u32,
        launches: 1,
        steps: 3,
        lent: (placement == Placement::Fetch).then_some(2 * (seed / 4 % 4)),
        placement,
        ..shape(seed, 1 + seed / 2 % 2)
    };
    program_on(room, &shape)
}
