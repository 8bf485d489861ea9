//! Keys and values in regions, of which frames hold a part.

use std::ops::Range;

use gpuvm::{Advice, Arg, Buffer, Region, Vm};

use crate::{
    args::Plan,
    cache::{Cache, Four, Part},
    error::Problem,
};

/// The fewest frames that a share of little data is rounded up to.
const FRAMES_MIN: u64 = 16;
/// The share of the frames that sequences which stay are given; the others' pages pass through the rest.
const STAYING: f64 = 3.0 / 4.0;

/// Bytes of the frames that a plan asks for.
pub fn frame_bytes(plan: &Plan) -> u64 {
    let asked = plan.memory.bytes_of(plan.used_bytes());
    asked
        .next_multiple_of(plan.page_bytes)
        .max(FRAMES_MIN * plan.page_bytes)
}

/// Two regions for the sequences that stay in their frames, and two for those that do not.
///
/// A step reads everything once, in order: with too few frames for all, each page would have left when its turn comes again. The advice
/// that pages are read once has the clock take frames of such pages, so that the sequences that fit keep theirs, and only the others are
/// fetched in every step.
pub struct Paged<'a> {
    vm: &'a Vm,
    plan: &'a Plan,
    parts: Vec<PagedPart>,
    no_table: Buffer<u32>,
}

struct PagedPart {
    sequences: Range<u32>,
    keys: Region<Four>,
    values: Region<Four>,
}

impl<'a> Paged<'a> {
    /// Regions with room for all tokens.
    pub fn new(vm: &'a Vm, plan: &'a Plan) -> Result<Self, Problem> {
        let staying = staying(plan, vm.frames() * vm.page_size());
        let mut parts = Vec::new();
        for (sequences, advice) in [
            (0..staying, Advice::Normal),
            (staying..plan.sequences(), Advice::ReadOnce),
        ] {
            if sequences.is_empty() {
                continue;
            }
            let room = u64::from(sequences.end - sequences.start) * u64::from(plan.capacity()) * plan.row();
            let region = |name: &str| {
                let region = vm.region::<Four>().name(name).zeroed(room)?;
                region.advise(advice)?;
                Ok::<_, gpuvm::Error>(region)
            };
            parts.push(PagedPart {
                keys: region("keys")?,
                values: region("values")?,
                sequences,
            });
        }
        let no_table = vm.buffer(1)?;
        Ok(Self {
            vm,
            plan,
            parts,
            no_table,
        })
    }
}

/// How many sequences, from the first on, keep their frames.
fn staying(plan: &Plan, frame_bytes: u64) -> u32 {
    let all = 0..plan.sequences();
    if 2 * page_bytes(plan, all.clone()) <= frame_bytes {
        return all.end;
    }
    that_fit(plan, (frame_bytes as f64 * STAYING) as u64)
}

/// How many sequences, from the first on, have room in so much memory, each in pages of its own.
pub fn that_fit(plan: &Plan, bytes: u64) -> u32 {
    let mut left = bytes;
    let fit = (0..plan.sequences()).take_while(|&sequence| {
        let own = 2 * page_bytes(plan, sequence..sequence + 1);
        let fits = own <= left;
        left = left.saturating_sub(own);
        fits
    });
    fit.count() as u32
}

/// Bytes of the pages that the keys of neighbouring sequences lie in at last, when a region begins with the first of them.
fn page_bytes(plan: &Plan, sequences: Range<u32>) -> u64 {
    let (mut pages, mut counted) = (0, 0);
    for (place, sequence) in (0..).zip(sequences) {
        let first = place * u64::from(plan.capacity()) * plan.row_bytes();
        let end = first + u64::from(plan.tokens(sequence, plan.steps)) * plan.row_bytes();
        // Two sequences may share a page.
        let begin = (first / plan.page_bytes).max(counted);
        counted = end.div_ceil(plan.page_bytes).max(begin);
        pages += counted - begin;
    }
    pages * plan.page_bytes
}

impl Cache for Paged<'_> {
    fn make_room(&mut self, _step: u32) -> Result<(), Problem> {
        Ok(())
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let parts = self.parts.iter().map(|part| Part {
            sequences: part.sequences.clone(),
            keys: Arg::from(&part.keys),
            values: Arg::from(&part.values),
            table: Arg::from(&self.no_table),
        });
        parts.collect()
    }

    fn held_bytes(&self) -> u64 {
        let parts = self.parts.iter();
        parts
            .map(|part| 2 * page_bytes(self.plan, part.sequences.clone()))
            .sum()
    }

    fn gpu_bytes(&self) -> u64 {
        self.vm.frames() * self.vm.page_size()
    }
}
