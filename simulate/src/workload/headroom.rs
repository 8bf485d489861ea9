//! Frames that follow what others leave free of the GPU's memory, by what goes on beside kernels, while lanes use pages.

use gpuvm::{ElasticBuffer, LaunchConfig, Region, StreamHandle};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, check_frames, close, compare, delay, launch, pattern};
use crate::program::rng;
use crate::room::{Needs, PAGE, PAGE_WORDS, RESIZED_FRAMES as UNIT, Room};

/// Handles that frames have at first and at most.
const UNITS: u64 = 4;
/// Pages: some more than frames.
const PAGES: u64 = UNITS * UNIT + 9;
/// Launches of a seed.
const LAUNCHES: u32 = 2;
/// Words of a page that are counted up.
const COUNTED: u64 = 4;
/// Bytes that frames leave free.
const HEADROOM: u64 = 1 << 20;
/// Changes of what others have beside one launch.
const CHANGES: u32 = 3;
/// Delays and launches within which frames have followed.
const TURNS: u32 = 60;

/// Those who share the GPU's memory.
struct Sharing<'a> {
    bench: &'a Bench,
    beside: StreamHandle,
    /// What others hold, element `i` of which is `pattern(seed, i)`.
    others: ElasticBuffer<u64>,
    seed: u64,
    /// Elements with which they leave the headroom free and no more, while frames are as they were at first.
    even: u64,
}

pub(super) fn headroom(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let bench = room.open(Needs {
        frame_capacity: UNITS * UNIT,
        leave_free: HEADROOM,
        ..Needs::few(seed, UNITS * UNIT)
    })?;
    let mut model = vec![0; (PAGES * PAGE_WORDS) as usize];
    let region = bench.vm.region::<u64>().name("counters").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let mut sharing = Sharing {
        others: bench.vm.elastic::<u64>(1 << 20).name("others").build()?,
        beside: bench.vm.stream()?,
        bench: &bench,
        seed,
        even: 0,
    };
    sharing.even = sharing.free()?.saturating_sub(HEADROOM) / 8;
    let followed = (0..LAUNCHES).try_for_each(|_| {
        sharing.beside_a_launch(&region, &mut model, &mut rng)?;
        sharing.frames_give_way(&mut rng)?;
        Ok(check_frames(&bench.vm)?)
    });
    let followed = followed.and_then(|()| {
        sharing.others.shrink(sharing.others.len())?;
        sharing.frames_come_back(&region, &mut model, &mut rng)
    });
    match followed {
        // Requests fail for longer than anybody waits here.
        Err(Wrong::Differs(what)) if room.has_faults() && what.starts_with(NOT_YET) => {}
        followed => followed?,
    }
    check_frames(&bench.vm)?;
    drop(sharing.others);
    close(&bench, region, &model)
}

/// How it is said that frames do not follow.
const NOT_YET: &str = "the frame pool does not follow";

impl Sharing<'_> {
    /// What a launch may take, as the runtime counts it.
    fn free(&self) -> Result<u64, Wrong> {
        let left = self.bench.vm.device().own_memory();
        let left = left.map_err(|error| Wrong::Refused(gpuvm_nic::with_causes(&error)))?;
        Ok(left.free)
    }

    /// Lanes count on pages, while others take memory and give it back.
    fn beside_a_launch(&self, region: &Region<u64>, model: &mut [u64], rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let (lanes, steps) = (2 * rng.random_range(2..=12u32), rng.random_range(6..=14u32));
        let word = |rng: &mut ChaCha8Rng| rng.random_range(0..PAGES) * PAGE_WORDS + rng.random_range(0..COUNTED);
        let words: Vec<u64> = (0..lanes * steps).map(|_| word(rng)).collect();
        let vm = &self.bench.vm;
        let given = vm.buffer::<u64>(words.len() as u64)?;
        given.write(&words)?;
        let found = vm.buffer::<u64>(words.len() as u64)?;
        let config = LaunchConfig::new(2, lanes / 2);
        let counting = launch(self.bench, "count_and_read", config, (region, &given, steps, &found))?;
        let changed = (0..CHANGES).try_for_each(|_| self.change(rng));
        let counted = counting.sync();
        changed?;
        counted.map_err(|error| Wrong::from(error).of("count_and_read"))?;
        for word in words {
            model[word as usize] += 1;
        }
        Ok(compare(&region.to_vec()?, model)?)
    }

    /// Others have more or less from now on. What they hold stays theirs while frames, and memory ahead of their own, come and go.
    fn change(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let unit = UNIT * PAGE / 8;
        let wanted = self.even.saturating_sub(2 * unit) + rng.random_range(0..(UNITS + 1) * unit);
        let has = self.others.len();
        match wanted > has {
            true => {
                self.others.ensure(wanted)?;
                let new: Vec<u64> = (has..wanted).map(|i| pattern(self.seed, i)).collect();
                self.others.write(has, &new)?;
            }
            false => self.others.shrink(has - wanted)?,
        }
        for _ in 0..rng.random_range(0..4u32) {
            delay(self.bench, &self.beside, rng)?;
        }
        let mut held = vec![0; self.others.len() as usize];
        self.others.read(0, &mut held)?;
        let at = (0..).zip(&held).find(|(i, word)| **word != pattern(self.seed, *i));
        match at {
            None => Ok(()),
            Some((i, word)) => Err(Wrong::Differs(format!("word {i} of the others is {word:#x}"))),
        }
    }

    /// No launch keeps memory that left the frames: soon the headroom is free, or frames have given what they may.
    fn frames_give_way(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        for _ in 0..TURNS {
            delay(self.bench, &self.beside, rng)?;
            if self.free()? >= HEADROOM || self.bench.vm.frames() <= UNIT {
                return Ok(());
            }
        }
        let (frames, free) = (self.bench.vm.frames(), self.free()?);
        Err(Wrong::Differs(format!(
            "{NOT_YET}: there are {frames}, and {free} bytes are free"
        )))
    }

    /// Nothing else needs memory: as long as pages leave their frames there come more.
    fn frames_come_back(&self, region: &Region<u64>, model: &mut [u64], rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let (lanes, steps) = (PAGES.div_ceil(3), 3u32);
        let pages = (0..lanes * u64::from(steps)).map(|n| n % PAGES);
        let words: Vec<u64> = pages.map(|page| page * PAGE_WORDS).collect();
        let vm = &self.bench.vm;
        let given = vm.buffer::<u64>(words.len() as u64)?;
        given.write(&words)?;
        let found = vm.buffer::<u64>(words.len() as u64)?;
        for _ in 0..TURNS {
            if vm.frames() == UNITS * UNIT {
                return Ok(());
            }
            let config = LaunchConfig::new(1, lanes as u32);
            let args = (region, &given, steps, &found);
            let counted = launch(self.bench, "count_and_read", config, args)?.sync();
            counted.map_err(|error| Wrong::from(error).of("count_and_read"))?;
            words.iter().for_each(|word| model[*word as usize] += 1);
            delay(self.bench, &self.beside, rng)?;
        }
        let (frames, free) = (vm.frames(), self.free()?);
        Err(Wrong::Differs(format!(
            "{NOT_YET}: there are {frames} again, and {free} bytes are free"
        )))
    }
}
