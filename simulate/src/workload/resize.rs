//! Frames that come and go while lanes use pages, and memory that left them and is others' at once.

use std::time::Duration;

use gpuvm::{ElasticBuffer, LaunchConfig};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, check_frames, close, compare, launch, pattern};
use crate::program::rng;
use crate::room::{Needs, PAGE, PAGE_WORDS, RESIZED_FRAMES as UNIT, Room};

/// Handles that frames have at first, and at most.
const UNITS: u64 = 2;
const UNITS_MAX: u64 = 3;
/// Pages: some more than frames.
const PAGES: u64 = UNITS_MAX * UNIT + 5;
/// Launches of a seed.
const LAUNCHES: u32 = 3;
/// Words of a page that are counted up; as many behind them are read.
const COUNTED: u64 = 4;
/// In the kernel's list of words: this one is read.
const READ: u64 = 1 << 63;
/// What others store in memory that they have: no count comes so far.
const MARK: u64 = 0xdddd_0000_dddd_0000;

/// A virtual memory whose frames come and go.
struct Resizing<'a> {
    bench: &'a Bench,
    /// What others hold of its GPU's memory.
    others: ElasticBuffer<u64>,
}

pub(super) fn resize(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let bench = room.open(Needs {
        frame_capacity: UNITS_MAX * UNIT,
        ..Needs::few(seed, UNITS * UNIT)
    })?;
    let is_counted = |word: u64| word % PAGE_WORDS < COUNTED;
    let first = |word: u64| if is_counted(word) { 0 } else { pattern(seed, word) };
    let mut model: Vec<u64> = (0..PAGES * PAGE_WORDS).map(first).collect();
    let region = bench.vm.region::<u64>().name("counters").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let resizing = Resizing {
        others: bench.vm.elastic::<u64>(1 << 20).name("others").build()?,
        bench: &bench,
    };
    for _ in 0..LAUNCHES {
        let (lanes, steps) = (2 * rng.random_range(2..=12u32), rng.random_range(2..=6u32));
        let word = |rng: &mut ChaCha8Rng| rng.random_range(0..PAGES) * PAGE_WORDS + rng.random_range(0..2 * COUNTED);
        let words: Vec<u64> = (0..lanes * steps).map(|_| word(&mut rng)).collect();
        let asked = |word: &u64| if is_counted(*word) { *word } else { *word | READ };
        let which: Vec<u64> = words.iter().map(asked).collect();
        let given = bench.vm.buffer::<u64>(which.len() as u64)?;
        given.write(&which)?;
        let found = bench.vm.buffer::<u64>(which.len() as u64)?;
        let config = LaunchConfig::new(2, lanes / 2);
        let counting = launch(&bench, "count_and_read", config, (&region, &given, steps, &found))?;
        for _ in 0..rng.random_range(1..=3u32) {
            resizing.change(&mut rng)?;
        }
        counting
            .sync()
            .map_err(|error| Wrong::from(error).of("count_and_read"))?;
        for (&word, found) in words.iter().zip(found.to_vec()?) {
            let held = &mut model[word as usize];
            let right = match is_counted(word) {
                true => {
                    *held += 1;
                    found < MARK
                }
                false => found == *held,
            };
            if !right {
                return Err(Wrong::Differs(format!("a lane found {found:#x} in word {word}")));
            }
        }
        compare(&region.to_vec()?, &model)?;
        if rng.random() {
            resizing.change(&mut rng)?;
        }
        check_frames(&bench.vm)?;
    }
    let Resizing { others, .. } = resizing;
    drop(others);
    close(&bench, region, &model)
}

impl Resizing<'_> {
    /// More frames or fewer. Others have the memory of those that went, and store in it.
    fn change(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let units = rng.random_range(1..=UNITS_MAX);
        // Frames that are to come need the memory back.
        let kept = self.others.len();
        self.others.shrink(kept)?;
        let within = Duration::from_nanos(rng.random::<u64>() & ((1 << rng.random_range(8..21u32)) - 1));
        let resized = self.bench.vm.resize_frames_within(units * UNIT * PAGE, within)?;
        if resized.bytes != self.bench.vm.frames() * PAGE || resized.bytes > UNITS_MAX * UNIT * PAGE {
            let frames = self.bench.vm.frames();
            return Err(Wrong::Differs(format!("{frames} frames after {resized:?}")));
        }
        let gone = UNITS_MAX * UNIT * PAGE - resized.bytes;
        self.others.ensure(gone / 8)?;
        self.others.write(0, &vec![MARK; (gone / 8) as usize])?;
        Ok(())
    }
}
