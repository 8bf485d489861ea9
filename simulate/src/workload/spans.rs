//! Pages that warps or lanes hold while they touch others, or by a cursor until they come to the next one.

use gpuvm::{Buffer, LaunchConfig, Region};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, close, compare, must, pattern};
use crate::program::rng;
use crate::room::{Needs, PAGE_WORDS, Room};

/// Words of a row: one for each lane of a warp.
const ROW: u64 = 32;
/// Rows from here on are never written.
const ROWS_WRITTEN: u64 = 8;

pub(super) fn spans(room: &mut Room<'_>) -> Result<(), Wrong> {
    match room.seed() % 8 {
        1 | 5 | 6 => warps_read(room, 1, 96),
        2 => warps_read(room, 2, 16),
        3 | 7 => lanes_write(room),
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
    let bench = room.open(Needs::few(seed, frames))?;
    let mut model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("held").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    // Each lane has a column of its own.
    let words: Vec<u64> = (0..holders * u64::from(steps))
        .map(|n| rng.random_range(0..pages as u32) as u64 * PAGE_WORDS + n / u64::from(steps))
        .collect();
    let given = bench.vm.buffer::<u64>(words.len() as u64)?;
    given.write(&words)?;
    let config = LaunchConfig::new(1, holders as u32).thread_spans(declared);
    must(&bench, "thread_spans", config, (&a, &given, steps))?;
    for (n, &word) in (0u64..).zip(&words) {
        let word = &mut model[word as usize];
        *word = word.wrapping_mul(7).wrapping_add(n / u64::from(steps) + 1);
    }
    write_by_cursors(&bench, &mut rng, holders, &a, &mut model)?;
    overwrite(&bench, &mut rng, (declared, !room.finds_races()), &a, &mut model)?;
    close(&bench, a, &model)
}

/// Warps that hold a page each, write a row of their own there, and read elsewhere meanwhile.
fn warps_write(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (warps, steps) = (2u64, 5u32);
    let (frames, declared) = frames(room, warps);
    let pages = frames + 4;
    let bench = room.open(Needs::few(seed, frames))?;
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
    write_by_cursors(&bench, &mut rng, frames, &a, &mut model)?;
    overwrite(&bench, &mut rng, (declared, !room.finds_races()), &a, &mut model)?;
    close(&bench, a, &model)
}

/// Lanes of a warp.
const READERS: u64 = 3;
/// Blocks so far apart share a multiprocessor and its cache.
const BLOCKS_APART: u64 = 4;
/// Lines of a cache that a lane reads of a page, and words of a line.
const LINES: u64 = 12;
const LINE_WORDS: u64 = 16;

/// Warps that read what they hold by weak loads alone, as long as frames and pages change hands. A frame's lines of an earlier page are
/// in their cache when the next page comes: only the pin orders a lane's loads after the fetch. A warp alone has one frame, so that every
/// page comes to the lines of the one before, and in a group's followers no other acquire orders anything.
fn warps_read(room: &mut Room<'_>, warps: u64, steps: u32) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let pages = 5u64;
    // Blocks between those that read hold nothing, so nothing is declared.
    let frames = if warps == 1 { 1 } else { warps + 1 };
    let bench = room.open(Needs::few(seed, frames))?;
    let model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("read").read_only().from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let blocks = (warps - 1) * BLOCKS_APART + 1;
    let mut given = vec![0; (blocks * u64::from(steps)) as usize];
    let mut sums = vec![0u64; (blocks * READERS) as usize];
    for block in (0..warps).map(|warp| warp * BLOCKS_APART) {
        for step in 0..u64::from(steps) {
            let first = row(rng.random_range(0..pages as u32).into(), 0);
            given[(block * u64::from(steps) + step) as usize] = first;
            for lane in 0..READERS {
                let sum = &mut sums[(block * READERS + lane) as usize];
                for line in 0..LINES {
                    let word = model[(first + line * LINE_WORDS + lane) as usize];
                    *sum = sum.wrapping_mul(3).wrapping_add(word);
                }
            }
        }
    }
    let buffer = bench.vm.buffer::<u64>(given.len() as u64)?;
    buffer.write(&given)?;
    let out = bench.vm.buffer::<u64>(sums.len() as u64)?;
    let config = LaunchConfig::new(blocks as u32, READERS as u32);
    let args = (&a, &buffer, steps, BLOCKS_APART as u32, LINES as u32, &out);
    must(&bench, "read_spans", config, args)?;
    compare(&out.to_vec()?, &sums).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    read_by_cursors(&bench, &mut rng, frames, &a, &model)?;
    close(&bench, a, &model)
}

/// Warps that overwrite.
const OVERWRITERS: u64 = 2;

/// Warps that overwrite a stretch each, some of which begin or end within a page: what lies beside them stays. The pages between are not
/// fetched, and their frames had other pages before. Where they may race, all of them write the same in some launches, so that they come
/// to one page at a time.
fn overwrite(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    (declared, may_race): (u64, bool),
    a: &Region<u64>,
    model: &mut [u64],
) -> Result<(), Wrong> {
    let share = model.len() as u64 / OVERWRITERS;
    for _ in 0..2 {
        let factor = rng.random::<u64>() | 1;
        let mut given = Vec::new();
        let together = may_race && rng.random();
        for first in (0..if together { 1 } else { OVERWRITERS }).map(|n| n * share) {
            // Every other one begins with a page.
            let begin = match rng.random() {
                true => first.next_multiple_of(PAGE_WORDS),
                false => first + rng.random_range(0..share / 2),
            };
            let end = rng.random_range(begin..=first + share);
            given.extend([begin, end]);
            if together {
                given = [begin, end].repeat(OVERWRITERS as usize);
            }
            for i in begin..end {
                model[i as usize] = i.wrapping_mul(factor);
            }
        }
        let stretches = bench.vm.buffer::<u64>(given.len() as u64)?;
        stretches.write(&given)?;
        let config = LaunchConfig::new(OVERWRITERS as u32, ROW as u32).warp_spans(declared);
        must(bench, "overwrite_stretches", config, (a, &stretches, factor))?;
    }
    Ok(())
}

/// Where stretches begin, and the same for a kernel.
type Stretches = (Vec<u64>, Buffer<u64>);

/// Stretches that a lane walks by a cursor.
const WALKS: u32 = 3;

/// As many lanes as there are frames, in two blocks where there are two: a lane that waits for a frame holds none by its cursor, and so
/// no frame more is needed.
fn walkers(frames: u64) -> (LaunchConfig, u64) {
    let blocks = frames.min(2);
    let threads = frames / blocks;
    (LaunchConfig::new(blocks as u32, threads as u32), blocks * threads)
}

/// Where the stretches of this many lanes begin, `words` words each: at a row's first word, this many columns from there a lane.
fn stretches(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    lanes: u64,
    (model, words): (&[u64], u64),
    columns: u64,
) -> Result<Stretches, Wrong> {
    let rows = (model.len() as u64 - words) / ROW;
    let starts: Vec<u64> = (0..lanes * u64::from(WALKS))
        .map(|n| rng.random_range(0..rows) * ROW + n / u64::from(WALKS) * columns)
        .collect();
    let buffer = bench.vm.buffer::<u64>(starts.len() as u64)?;
    buffer.write(&starts)?;
    Ok((starts, buffer))
}

/// Lanes that read stretches of neighbours, most of which cross a page's end.
fn read_by_cursors(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    frames: u64,
    a: &Region<u64>,
    model: &[u64],
) -> Result<(), Wrong> {
    let length = PAGE_WORDS / 2 + 40;
    let (config, lanes) = walkers(frames);
    let (starts, given) = stretches(bench, rng, lanes, (model, length), 0)?;
    let out = bench.vm.buffer::<u64>(lanes)?;
    must(bench, "read_cursors", config, (a, &given, WALKS, length as u32, &out))?;
    let sums: Vec<u64> = starts
        .chunks(WALKS as usize)
        .map(|own| own.iter().flat_map(|&first| first..first + length))
        .map(|walk| walk.fold(0u64, |sum, i| sum.wrapping_mul(3).wrapping_add(model[i as usize])))
        .collect();
    Ok(compare(&out.to_vec()?, &sums).map_err(|wrong| format!("what cursors read: {wrong}"))?)
}

/// Lanes that change words of their own, a row apart, on two pages or three.
fn write_by_cursors(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    frames: u64,
    a: &Region<u64>,
    model: &mut [u64],
) -> Result<(), Wrong> {
    let length = PAGE_WORDS / ROW + 4;
    let (config, lanes) = walkers(frames);
    // Each lane has a column of its own.
    let (starts, given) = stretches(bench, rng, lanes, (model, length * ROW), 1)?;
    must(bench, "write_cursors", config, (a, &given, WALKS, length as u32, ROW))?;
    for (n, &start) in (0u64..).zip(&starts) {
        for k in 0..length {
            let word = &mut model[(start + k * ROW) as usize];
            *word = word.wrapping_mul(5).wrapping_add(n / u64::from(WALKS) + 1);
        }
    }
    Ok(())
}
