//! An out-of-core sort of keys of 32 bits: two passes over the keys, by their highest digit and then within its buckets.
//!
//! As a distribution sort on disks does it (Knuth, The Art of Computer Programming, volume 3, section 5.4.9), each pass reads and writes
//! every key once. What is sorted in between is a part of the keys in plain device memory, by a radix sort. While one part is sorted the
//! one before is stored and the next one brought, by a launch on a stream of its own.

use std::sync::OnceLock;

use gpuvm::{Buffer, Kernel, Launch, LaunchConfig, StreamHandle};
use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::array::Use;
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::space::{Space, finish};
use super::way::Way;
use super::{App, Array, Column, Found, Loaded};
use crate::graph::generate::stream;
use crate::input::require_memory;

/// Blocks of 128 threads of a multiprocessor that bring and store keys, beside those that sort.
const BLOCKS: u32 = 2;
/// Threads of a block that sorts.
const THREADS: u32 = 128;
/// Keys that such a block takes.
const TILE: u64 = 8192;
/// Values of a digit.
const DIGITS: usize = 256;
/// The lowest bit of the highest digit.
const HIGHEST: u32 = 24;
/// The lowest bits of all digits.
const ALL: [u32; 4] = [0, 8, 16, HIGHEST];
/// Keys that a warp brings at once; pieces end where their number divides the place in the array.
const PIECE: u64 = 4096;
/// Keys drawn from one stream of random numbers.
const BLOCK: usize = 1 << 16;

parameters! {
    /// How keys are sorted.
    SortParameters {
        /// Keys that are sorted at once in plain device memory, which has four buffers of them
        "part" part: u64 = 1 << 25, 1..=(1 << 31) - 1;
    }
}

/// Keys to sort.
pub struct Sort {
    keys: Vec<u32>,
    part: u64,
    expected: OnceLock<[Column; 1]>,
}

impl Sort {
    /// These keys, by parts of `part` keys in device memory, or of a bucket of one highest digit where that has more.
    ///
    /// # Errors
    /// [`AppError::Input`] for no keys, and for parts of none or of 2^31 keys and more.
    pub fn new(keys: Vec<u32>, part: u64) -> Result<Self, AppError> {
        if keys.is_empty() || part == 0 || part >= 1 << 31 {
            return Err(AppError::Input {
                what: format!(
                    "cannot sort {} keys in parts of {part}: there must be at least one key, and parts have 1 to 2^31 - 1",
                    keys.len()
                ),
            });
        }
        Ok(Self {
            part: part.min(keys.len() as u64),
            keys,
            expected: OnceLock::new(),
        })
    }

    /// `count` random keys, which the seed names.
    ///
    /// # Errors
    /// [`AppError::Input`] for no keys, and for more than this machine has memory for.
    pub fn random(count: u64, seed: u64, parameters: &SortParameters) -> Result<Self, AppError> {
        require_memory(count.saturating_mul(size_of::<u32>() as u64))?;
        let mut keys = vec![0; count as usize];
        let blocks = keys.par_chunks_mut(BLOCK).enumerate();
        blocks.for_each(|(block, keys)| {
            let mut random = stream(seed, block as u64);
            keys.fill_with(|| random.next_u32());
        });
        Self::new(keys, parameters.part)
    }

    /// What the first pass sorts by the highest digit.
    fn stretches(&self) -> Vec<Part> {
        let all = self.keys.len() as u64;
        let stretch = |number: u64| {
            let first = number * self.part;
            let keys = self.part.min(all - first);
            Part {
                runs: vec![(first, keys)],
                first,
                keys,
                shifts: &ALL[3..],
            }
        };
        (0..all.div_ceil(self.part)).map(stretch).collect()
    }

    /// What the second pass sorts: as many neighbouring buckets as are no more keys than a part has, or one. `counts`: keys of each
    /// highest digit in each stretch.
    fn buckets(&self, counts: &[Vec<u32>]) -> Vec<Part> {
        let total = |digit: usize| counts.iter().map(|counts| u64::from(counts[digit])).sum::<u64>();
        let (mut parts, mut first, mut digit) = (Vec::new(), 0, 0);
        // Where each stretch's next bucket begins.
        let mut starts: Vec<u64> = (0..counts.len() as u64).map(|number| number * self.part).collect();
        while digit < DIGITS {
            let (mut past, mut keys) = (digit + 1, total(digit));
            while past < DIGITS && keys + total(past) <= self.part {
                keys += total(past);
                past += 1;
            }
            let run = |(counts, start): (&Vec<u32>, &mut u64)| {
                let count = counts[digit..past].iter().map(|count| u64::from(*count)).sum();
                let from = *start;
                *start += count;
                (from, count)
            };
            let part = Part {
                runs: counts.iter().zip(&mut starts).map(run).collect(),
                first,
                keys,
                // Keys of one bucket have one highest digit.
                shifts: if past == digit + 1 { &ALL[..3] } else { &ALL },
            };
            if keys > 0 {
                parts.push(part);
            }
            first += keys;
            digit = past;
        }
        parts
    }
}

/// Keys that are sorted together.
#[derive(Debug)]
struct Part {
    /// Where they are: first element and length of each run.
    runs: Vec<(u64, u64)>,
    /// Where they come to be.
    first: u64,
    keys: u64,
    /// The digits that they are sorted by.
    shifts: &'static [u32],
}

impl Part {
    /// What each warp brings: first element, place in the part, keys.
    fn places(&self) -> Vec<u64> {
        let (mut places, mut place) = (Vec::new(), 0);
        for &(first, count) in &self.runs {
            let (mut at, past) = (first, first + count);
            while at < past {
                let keys = (PIECE - at % PIECE).min(past - at);
                places.extend([at, place, keys]);
                at += keys;
                place += keys;
            }
        }
        places
    }
}

impl App for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn input(&self) -> String {
        format!("{} keys of 4 bytes, in parts of {}", self.keys.len(), self.part)
    }

    fn array_bytes(&self) -> Vec<u64> {
        vec![self.keys.len() as u64 * 4; 3]
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        if space.way() == Way::Chunked {
            return Err(AppError::Way {
                way: Way::Chunked,
                reason: "its parts are scattered runs, which a sweep over rows does not copy".to_owned(),
            });
        }
        let names = ["exchange", "count_digits", "add_counts", "place_keys"];
        let empty = vec![0; self.keys.len()];
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels("sort.cu", include_str!("sort.cu"), names, &[])?,
            input: space.array("keys", Use::Read, &self.keys)?,
            buckets: space.array("buckets", Use::ReadWrite, &empty)?,
            sorted: space.array("sorted", Use::ReadWrite, &empty)?,
            exchanges: space.vm().stream().map_err(AppError::vm(Step::Open))?,
            totals: space.buffer(DIGITS as u64)?,
            room: None,
        }))
    }

    fn expected(&self) -> &[Column] {
        self.expected.get_or_init(|| {
            let mut keys = self.keys.clone();
            keys.par_sort_unstable();
            [Column::new("key", keys)]
        })
    }
}

/// Plain memory for two parts that are worked on at once.
struct Room {
    keys: u64,
    /// For each, what it is brought to or sorted from, and sorted to, in turn.
    pairs: [[Buffer<u32>; 2]; 2],
    counts: Buffer<u32>,
}

impl Room {
    fn new(space: &Space, keys: u64) -> Result<Self, AppError> {
        if keys > u64::from(u32::MAX) {
            let what = format!("{keys} keys begin with the same 8 bits: the sort has places for 2^32 - 1");
            return Err(AppError::Input { what });
        }
        let pair = || -> Result<_, AppError> { Ok([space.buffer(keys)?, space.buffer(keys)?]) };
        Ok(Self {
            keys,
            pairs: [pair()?, pair()?],
            counts: space.buffer(DIGITS as u64 * keys.div_ceil(TILE))?,
        })
    }
}

struct Work<'a> {
    app: &'a Sort,
    space: &'a Space,
    kernels: [Kernel; 4],
    input: Array<u32>,
    /// The keys after the first pass.
    buckets: Array<u32>,
    sorted: Array<u32>,
    exchanges: StreamHandle,
    totals: Buffer<u32>,
    room: Option<Room>,
}

impl Work<'_> {
    /// Makes room for parts of this many keys, where there is less.
    fn make_room(&mut self, keys: u64) -> Result<(), AppError> {
        if self.room.as_ref().is_none_or(|room| room.keys < keys) {
            // The smaller one goes first.
            self.room = None;
            self.room = Some(Room::new(self.space, keys)?);
        }
        Ok(())
    }

    /// Takes each part from `from`, sorts it, and stores it to `to`. How many keys of each part have each value of the digit by which they
    /// were sorted last.
    fn pass(&self, from: &Array<u32>, to: &Array<u32>, parts: &[Part]) -> Result<Vec<Vec<u32>>, AppError> {
        let Some(room) = &self.room else {
            unreachable!("made before each pass")
        };
        let mut counts = Vec::new();
        // Which buffer of each pair has its part.
        let mut holds = [0, 0];
        // A step brings a part, sorts the one before it, and stores the one before that, from the pair of the one that is brought.
        for step in 0..parts.len() + 2 {
            let (pair, part) = (step % 2, |back: usize| parts.get(step.checked_sub(back)?));
            let (other, held) = (1 - pair, holds[pair]);
            let [incoming, outgoing] = [&room.pairs[pair][1 - held], &room.pairs[pair][held]];
            let moving = self.exchange((from, part(0), incoming), (to, part(2), outgoing))?;
            let sorted = part(1).map(|part| self.sort(part, room, other, holds[other]));
            // Whatever comes of the sort: nothing else waits for it.
            finish(Ok(moving))?;
            holds[pair] = 1 - held;
            if let Some(sorted) = sorted {
                holds[other] = sorted?;
                counts.push(self.totals.to_vec().map_err(AppError::vm(Step::ReadBack))?);
            }
        }
        Ok(counts)
    }

    /// Begins to bring a part, and to store another one.
    fn exchange(
        &self,
        (from, brought, incoming): (&Array<u32>, Option<&Part>, &Buffer<u32>),
        (to, stored, outgoing): (&Array<u32>, Option<&Part>, &Buffer<u32>),
    ) -> Result<Launch, AppError> {
        let places = brought.map_or(Vec::new(), Part::places);
        let (first, keys) = stored.map_or((0, 0), |part| (part.first, part.keys));
        let pieces = places.len() as u64 / 3;
        let places = self.space.upload(&places)?;
        let args = (from.arg()?, &places, pieces, incoming, to.arg()?, first, keys, outgoing);
        let config = self.space.whole_gpu(BLOCKS, 1);
        let launched = self.kernels[0].launch_on(&self.exchanges, config, args);
        launched.map_err(AppError::vm(Step::Run))
    }

    /// Sorts the part that buffer `holds` of a pair has; which one has it then.
    fn sort(&self, part: &Part, room: &Room, pair: usize, mut holds: usize) -> Result<usize, AppError> {
        let [_, count, add, place] = &self.kernels;
        let (keys, tiles) = (part.keys, part.keys.div_ceil(TILE) as u32);
        let (counts, totals, failed) = (&room.counts, &self.totals, AppError::vm(Step::Run));
        let a_block_a_tile = LaunchConfig::new(tiles, THREADS);
        let a_warp_a_digit = LaunchConfig::new(DIGITS as u32 * 32 / THREADS, THREADS);
        let mut launches = Vec::new();
        for &shift in part.shifts {
            let (here, there) = (&room.pairs[pair][holds], &room.pairs[pair][1 - holds]);
            let args = (here, keys, TILE as u32, shift, counts);
            launches.push(count.launch(a_block_a_tile.clone(), args).map_err(&failed)?);
            let args = (counts, tiles, totals);
            launches.push(add.launch(a_warp_a_digit.clone(), args).map_err(&failed)?);
            let args = (here, keys, TILE as u32, shift, counts, totals, there);
            launches.push(place.launch(a_block_a_tile.clone(), args).map_err(&failed)?);
            holds = 1 - holds;
        }
        launches.into_iter().map(Ok).try_for_each(finish)?;
        Ok(holds)
    }
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.input.prefetch()?;
        self.make_room(self.app.part)?;
        let counts = self.pass(&self.input, &self.buckets, &self.app.stretches())?;
        let buckets = self.app.buckets(&counts);
        self.make_room(buckets.iter().map(|part| part.keys).max().unwrap_or(0))?;
        self.pass(&self.buckets, &self.sorted, &buckets)?;
        Ok(())
    }

    fn found(&self) -> Result<Found, AppError> {
        Ok(vec![Column::new("key", self.sorted.to_vec()?)].into())
    }
}
