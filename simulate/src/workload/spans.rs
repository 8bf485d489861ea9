//! Pages that warps or lanes hold while they touch others.

use gpuvm::LaunchConfig;
use rand::RngExt;

use super::{close, must, needs};
use crate::bench::{Calm, Wrong, compare, pattern};
use crate::program::rng;
use crate::run::{PAGE_WORDS, Room};

/// Words of a row: one for each lane of a warp.
const ROW: u64 = 32;
/// Rows from here on are never written.
const ROWS_WRITTEN: u64 = 8;

pub(super) fn spans(room: &mut Room<'_>) -> Result<(), Wrong> {
    match room.seed() % 4 {
        1 => warps_read(room),
        3 => lanes_write(room),
        _ => warps_write(room),
    }
}

/// One frame more than can be held at once, and whether that is declared.
fn frames(room: &Room<'_>, holders: u64) -> (u64, u64) {
    let declared = u64::from(!room.frames_equal_spans());
    (holders + declared, declared)
}

/// Where row `row` of page `page` begins.
fn row(page: u64, row: u64) -> u64 {
    page * PAGE_WORDS + row * ROW
}

/// Lanes that hold a page each, and write a word of their own there.
fn lanes_write(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (holders, steps) = (8u64, 5u32);
    let (frames, declared) = frames(room, holders);
    let pages = frames + 4;
    let bench = room.open(needs(seed, frames))?;
    let mut model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("held").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    // Each lane has a column of its own.
    let words: Vec<u64> = (0..holders * u64::from(steps))
        .map(|n| rng.random_range(0..pages as u32) as u64 * PAGE_WORDS + n / u64::from(steps))
        .collect();
    let given = bench.vm.buffer::<u64>(words.len() as u64)?;
    given.write(&words)?;
    let config = LaunchConfig::new(1, holders as u32).lane_spans(declared);
    must(&bench, "lane_spans", config, (&a, &given, steps))?;
    for (n, &word) in (0u64..).zip(&words) {
        let word = &mut model[word as usize];
        *word = word.wrapping_mul(7).wrapping_add(n / u64::from(steps) + 1);
    }
    close(&bench, a, &model)
}

/// Warps that hold a page each, write a row of their own there, and read elsewhere meanwhile.
fn warps_write(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (warps, steps) = (2u64, 5u32);
    let (frames, declared) = frames(room, warps);
    let pages = frames + 4;
    let bench = room.open(needs(seed, frames))?;
    let mut model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("held").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let mut given = Vec::new();
    let mut sums = vec![0u64; (warps * ROW) as usize];
    for warp in 0..warps {
        for step in 0..u64::from(steps) {
            let first = row(rng.random_range(0..pages as u32).into(), warp);
            let kept = ROWS_WRITTEN + rng.random_range(0..8u64);
            let other = row(rng.random_range(0..pages as u32).into(), kept);
            given.extend([first, other]);
            for lane in 0..ROW {
                let word = &mut model[(first + lane) as usize];
                *word = word.wrapping_mul(5).wrapping_add(step + 1);
                let sum = &mut sums[(warp * ROW + lane) as usize];
                *sum = sum.wrapping_add(model[(other + lane) as usize]);
            }
        }
    }
    let buffer = bench.vm.buffer::<u64>(given.len() as u64)?;
    buffer.write(&given)?;
    let out = bench.vm.buffer::<u64>(sums.len() as u64)?;
    let config = LaunchConfig::new(2, ROW as u32).warp_spans(declared);
    must(&bench, "warp_spans", config, (&a, &buffer, steps, &out))?;
    compare(&out.to_vec()?, &sums).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    close(&bench, a, &model)
}

/// Lanes of a warp.
const READERS: u64 = 3;
/// Blocks 0 and 4 share a multiprocessor and its cache.
const READING_BLOCKS: [u64; 2] = [0, 4];

/// Two warps that read what they hold by weak loads alone, as long as frames and pages change hands. A frame's lines of an earlier page are
/// in the cache that they share when the next page comes: only the pin orders a lane's loads after the fetch.
fn warps_read(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (pages, steps) = (5u64, 16u32);
    // Blocks between the two that read hold nothing, so nothing is declared.
    let bench = room.open(needs(seed, READING_BLOCKS.len() as u64 + 1))?;
    let model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("read").read_only().from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let blocks = READING_BLOCKS[1] + 1;
    let mut given = vec![0; (blocks * u64::from(steps)) as usize];
    let mut sums = vec![0u64; (blocks * READERS) as usize];
    for block in READING_BLOCKS {
        for step in 0..u64::from(steps) {
            let first = row(rng.random_range(0..pages as u32).into(), 0);
            given[(block * u64::from(steps) + step) as usize] = first;
            for lane in 0..READERS {
                let sum = &mut sums[(block * READERS + lane) as usize];
                *sum = sum.wrapping_mul(3).wrapping_add(model[(first + lane) as usize]);
            }
        }
    }
    let buffer = bench.vm.buffer::<u64>(given.len() as u64)?;
    buffer.write(&given)?;
    let out = bench.vm.buffer::<u64>(sums.len() as u64)?;
    let config = LaunchConfig::new(blocks as u32, READERS as u32);
    let args = (&a, &buffer, steps, READING_BLOCKS[1] as u32, &out);
    must(&bench, "read_spans", config, args)?;
    compare(&out.to_vec()?, &sums).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    close(&bench, a, &model)
}
