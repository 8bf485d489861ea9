//! Pages that some launches look up and others fetch. Between launches they come to frames, and the host, another GPU and changes of
//! frames take them away; beside them the host flushes, changes frames, or stops a launch where it stands. Of every other seed pages come beside
//! launches, too, which read them again and again.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use gpuvm::{Buffer, Error, FaultKind, Kernel, Launch, LaunchConfig, Placement, Region, StreamHandle, VmGpu};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Wrong, check_frames, close, compare, fold, must, pattern};
use crate::kernels::LOOKED_UP;
use crate::program::rng;
use crate::room::{Borrowed, Needs, PAGE, PAGE_WORDS, RESIZED_FRAMES as UNIT, Room};

/// Pages that give way at most before they are counted.
const MOVED_MOST: u64 = 8;
/// Most lanes of launches that run together.
const LANES: u64 = 12;
/// Words of a page: the first ones are each a lane's own; as many behind them only rise, and are each a lane's own as well; to one all add;
/// some nothing writes. A short page, which a region ends with, has no more, and is not a multiple of 16 bytes.
const ADDED: u64 = 2 * LANES;
const KEPT: Range<u64> = ADDED + 1..SHORT;
const SHORT: u64 = 31;
/// Launches, or pairs of them, of a seed.
const ROUNDS: u32 = 5;
/// Handles that frames have at most, where they come and go.
const UNITS_MAX: u64 = 2;

/// Kinds of an operation of the kernel `use_pages`.
const READ: u64 = 0;
const UPDATES: Range<u64> = 1..4;
const ADD: u64 = 4;
const PREFETCH: u64 = 5;
const TELL: u64 = 6;

/// A region and what it must hold.
struct Held {
    region: Region<u64>,
    model: Vec<u64>,
    /// Of words whose lane was stopped: they are no less than that, and no more than in the model.
    least: BTreeMap<u64, u64>,
}

/// The kernels on one GPU, and streams there.
struct Node {
    gpu: VmGpu,
    use_pages: Kernel,
    pause: Kernel,
    streams: [StreamHandle; 3],
}

struct Both<'a> {
    room: &'a Room<'a>,
    bench: &'a Bench,
    nodes: Vec<Node>,
    /// Two that are written, then two that are read: one that is looked up, one that is fetched.
    regions: Vec<Held>,
    resizes: bool,
    /// Whether pages come beside launches that only read them.
    brings_beside: bool,
    /// Whether a neighbour lends memory.
    lends: bool,
    /// Whether the first GPU was not recovered yet after a launch was stopped there: the next one does that.
    is_broken: bool,
}

/// A word that a lane makes rise and tells of.
struct Told {
    lane: u64,
    step: u64,
    region: usize,
    word: u64,
    value: u64,
    before: u64,
}

/// What the lanes of one launch do, and what they find.
struct Drawn {
    lanes: u64,
    steps: u64,
    ops: Vec<u64>,
    hashes: Vec<u64>,
    told: Vec<Told>,
}

/// A launch of that.
struct Running {
    drawn: Drawn,
    place: usize,
    launch: Launch,
    hashes: Buffer<u64>,
    progress: Buffer<u64>,
}

pub(super) fn looked_up(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (resizes, second_gpu) = (seed % 4 == 3, seed % 4 == 1);
    let (brings_beside, lends) = (seed / 4 % 2 == 1, seed / 8 % 2 == 1);
    let (frames, pages) = match resizes {
        true => (UNIT * rng.random_range(1..=UNITS_MAX), 5..=9),
        false if brings_beside => (rng.random_range(4..=24), 1..=4),
        false => (rng.random_range(1..=9), 1..=4),
    };
    let bench = room.open(Needs {
        frame_capacity: if resizes { UNITS_MAX * UNIT } else { 0 },
        second_gpu,
        beside: brings_beside,
        borrowed: Borrowed {
            chunk_pages: if lends { 1 << (seed / 16 % 3) } else { 0 },
            chunks: if lends { 1 + seed / 48 % 6 } else { 0 },
        },
        ..Needs::few(seed, frames)
    })?;
    // At a neighbour the memory model is in charge of the home too; of no other GPU.
    let far = !second_gpu && rng.random() && !lends;
    let regions = regions(&bench, &mut rng, (seed, pages), far)?;
    let mut both = Both {
        room,
        nodes: nodes(room, &bench)?,
        bench: &bench,
        regions,
        resizes,
        brings_beside,
        lends,
        is_broken: false,
    };
    both.rounds(&mut rng)?;
    both.readers(&mut rng)?;
    both.reach_past(&mut rng, (seed / 4 % 2) as usize)?;
    both.close()
}

/// Lanes do not reach the homes. In a quarter of the seeds frames are too few for all pages, and in a quarter they come and go.
pub(super) fn resident(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (resizes, is_short) = (seed % 4 == 3, seed % 4 == 2);
    let frames = match (resizes, is_short) {
        (true, _) => UNIT * rng.random_range(1..=UNITS_MAX),
        (_, true) => rng.random_range(1..=9),
        // Pages of three regions, and some more or fewer of the one that is fetched.
        _ => rng.random_range(12..=20),
    };
    let bench = room.open(Needs {
        frame_capacity: if resizes { UNITS_MAX * UNIT } else { 0 },
        ..Needs::few(seed, frames)
    })?;
    let pages = if resizes { 2..=4 } else { 1..=3 };
    let regions = regions(&bench, &mut rng, (seed, pages), false)?;
    let mut both = Both {
        room,
        nodes: nodes(room, &bench)?,
        bench: &bench,
        regions,
        resizes,
        brings_beside: false,
        lends: false,
        is_broken: false,
    };
    both.rounds(&mut rng)?;
    both.rest()?;
    both.close()
}

fn nodes(room: &Room<'_>, bench: &Bench) -> Result<Vec<Node>, Wrong> {
    bench.vm.gpus().iter().map(|gpu| Node::of(gpu, room)).collect()
}

/// Two that are written, then two that are read: one that is looked up, one that is fetched. Each has as many pages as `pages` allows, and a short one.
fn regions(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    (seed, pages): (u64, RangeInclusive<u64>),
    far: bool,
) -> Result<Vec<Held>, Wrong> {
    let mut region = |n: u64| -> Result<Held, Wrong> {
        let length = rng.random_range(pages.clone()) * PAGE_WORDS + SHORT;
        let of = |i: u64| if is_told(i) { 0 } else { pattern(seed ^ n << 40, i) };
        let model: Vec<u64> = (0..length).map(of).collect();
        let region = bench.vm.region::<u64>().name(["a", "b", "kept", "fetched"][n as usize]);
        let region = if n < 2 { region } else { region.read_only() };
        let region = if n < 3 {
            region.placement(Placement::LookUp)
        } else {
            region
        };
        let region = if far { region.home_on_gpu(1) } else { region };
        Ok(Held {
            region: region.from_slice(&model)?,
            model,
            least: BTreeMap::new(),
        })
    };
    (0..4).map(&mut region).collect()
}

/// Compiles the form that looks pages up, which launches want only then.
pub(super) fn compile(bench: &Bench) -> Result<(), Wrong> {
    let region = bench.vm.region::<u64>().placement(Placement::LookUp).zeroed(1)?;
    must(bench, "ask_for", LaunchConfig::new(1, 1), (&region, 0u64, 1u64))
}

fn is_told(word: u64) -> bool {
    (LANES..2 * LANES).contains(&(word % PAGE_WORDS))
}

/// What a lane does next. One that is stopped only reads, and tells how far it is.
fn kind(rng: &mut ChaCha8Rng, stopped: bool, alike: Option<u64>) -> u64 {
    match rng.random_range(0..12u32) {
        0..=3 => READ,
        4..=7 if alike.is_some() => alike.unwrap_or(TELL),
        4..=6 if !stopped => rng.random_range(UPDATES),
        7 if !stopped => ADD,
        8 if !stopped => PREFETCH,
        _ if alike.is_some() => READ,
        _ => TELL,
    }
}

impl Node {
    fn of(gpu: &VmGpu, room: &Room<'_>) -> Result<Self, Wrong> {
        let names = ["use_pages", "pause"];
        let [use_pages, pause] = gpu.kernels(LOOKED_UP.name, LOOKED_UP.text, names, &room.compile_options())?;
        Ok(Self {
            gpu: gpu.clone(),
            use_pages,
            pause,
            streams: [gpu.stream()?, gpu.stream()?, gpu.stream()?],
        })
    }
}

impl Both<'_> {
    /// Launches, and what the host does beside and between them.
    fn rounds(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        for _ in 0..ROUNDS {
            self.round(rng)?;
            if self.brings_beside {
                self.again(rng)?;
            }
            self.between(rng)?;
            if !self.is_broken {
                check_frames(&self.bench.vm)?;
            }
        }
        Ok(())
    }

    /// Launches that only read, of which the later ones fetch nothing where frames are enough.
    fn rest(&self) -> Result<(), Wrong> {
        let kept = &self.regions[2];
        for _ in 0..3 {
            self.add_up(kept, kept)?;
        }
        let before = self.bench.vm.stats()?;
        self.add_up(kept, kept)?;
        let fetched = self.bench.vm.stats()?.difference(&before).pages_fetched;
        let pages = (kept.model.len() as u64).div_ceil(PAGE_WORDS);
        let fit = pages <= self.bench.vm.frames() && !self.is_broken;
        match fit && fetched != 0 {
            true => Err(Wrong::Differs(format!("{fetched} pages were fetched that had frames"))),
            false => Ok(()),
        }
    }

    /// One launch or two beside each other, what the host does meanwhile, and what lanes have found.
    fn round(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let place = rng.random_range(0..self.nodes.len() as u32) as usize;
        let kept = if rng.random_range(0..4u32) == 0 { 3 } else { 2 };
        let stopped = rng.random_range(0..6u32) == 0;
        let first = rng.random_range(1..LANES);
        let both = [0..first, first..LANES];
        let parts = &both[..rng.random_range(1..=2u32) as usize];
        let mut running = Vec::new();
        for (lanes, stream) in parts.iter().zip(0..) {
            let drawn = self.draw(rng, lanes.clone(), kept, stopped);
            running.push(self.launch(drawn, place, stream, kept)?);
        }
        for _ in 0..rng.random_range(0..4u32) {
            self.beside(rng, &running, place, kept)?;
        }
        self.is_broken = if place == 0 { stopped } else { self.is_broken };
        if stopped {
            running[0].launch.kill();
        }
        for one in running {
            match (one.launch.sync(), stopped) {
                (Ok(_), false) => {
                    compare(&one.hashes.to_vec()?, &one.drawn.hashes)
                        .map_err(|wrong| format!("what lanes read: {wrong}"))?;
                    for told in &one.drawn.told {
                        self.regions[told.region].least.remove(&told.word);
                    }
                }
                (Ok(_) | Err(Error::Stopped { .. } | Error::Gpu { .. }), true) => self.was_stopped(&one)?,
                (Err(error), _) => return Err(Wrong::from(error).of("use_pages")),
            }
        }
        Ok(())
    }

    /// Lanes add up what a region holds, again and again, while its pages come and the host flushes beside them.
    fn again(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let held = &self.regions[rng.random_range(0..3u32) as usize];
        if self.is_broken || !held.least.is_empty() {
            // What lanes of a stopped launch have left is not known.
            return Ok(());
        }
        if rng.random() {
            held.region.evict()?;
        }
        self.add_up_again(rng, held)
    }

    fn add_up_again(&self, rng: &mut ChaCha8Rng, held: &Held) -> Result<(), Wrong> {
        let sum = self.bench.vm.buffer::<u64>(1)?;
        sum.write(&[0])?;
        let (rounds, pause) = (rng.random_range(2..12u32), rng.random_range(500..8_000u32));
        let args = (&held.region, PAGE_WORDS as u32, SHORT as u32, rounds, pause, &sum);
        let launch = self.bench.kernel("again")?.launch(LaunchConfig::new(2, 8), args)?;
        if rng.random() {
            let flushed = held.region.flush_beside();
            flushed.map_err(|error| Wrong::from(error).of("a flush beside readers"))?;
        }
        launch.sync().map_err(|error| Wrong::from(error).of("again"))?;
        let expected = held.sum().wrapping_mul(u64::from(rounds));
        Ok(compare(&sum.to_vec()?, &[expected]).map_err(|wrong| format!("what lanes added up again: {wrong}"))?)
    }

    /// What some lanes do. The model is as they leave it.
    fn draw(&mut self, rng: &mut ChaCha8Rng, lanes: Range<u64>, kept: usize, stopped: bool) -> Drawn {
        let mut drawn = Drawn {
            lanes: lanes.end - lanes.start,
            steps: rng.random_range(4..=10),
            ops: Vec::new(),
            hashes: Vec::new(),
            told: Vec::new(),
        };
        // In some launches all lanes store in one way: others would leave the same marks.
        let stores = [1, 2, 3, ADD, TELL];
        let alike = (rng.random() && !stopped).then(|| stores[rng.random_range(0..stores.len() as u32) as usize]);
        for lane in lanes.clone() {
            let mut hash = 0;
            for step in 0..drawn.steps {
                let kind = kind(rng, stopped, alike);
                let n = match kind {
                    READ | PREFETCH => [0, 1, kept][rng.random_range(0..3u32) as usize],
                    _ => rng.random_range(0..2u32) as usize,
                };
                let held = &mut self.regions[n];
                let length = held.model.len() as u64;
                let first = rng.random_range(0..length.div_ceil(PAGE_WORDS)) * PAGE_WORDS;
                let i = first
                    + match kind {
                        READ => rng.random_range(KEPT),
                        ADD => ADDED,
                        PREFETCH => 0,
                        TELL => LANES + lane,
                        _ => lane,
                    };
                let now = &mut held.model[i as usize];
                let value = match kind {
                    PREFETCH => rng.random_range(1..=length - i).min(700),
                    TELL => *now + 1,
                    _ => rng.random_range(1..0x1_0000u64),
                };
                drawn.ops.push(kind << 56 | value << 40 | (n.min(2) as u64) << 32 | i);
                match kind {
                    READ => hash = fold(hash, *now),
                    ADD => *now = now.wrapping_add(value),
                    PREFETCH => {}
                    TELL => {
                        let before = held.least.get(&i).copied().unwrap_or(*now);
                        let (lane, region, word) = (lane - lanes.start, n, i);
                        drawn.told.push(Told {
                            lane,
                            step,
                            region,
                            word,
                            value,
                            before,
                        });
                        *now = value;
                    }
                    _ => {
                        hash = fold(hash, *now);
                        *now = now.wrapping_mul(5).wrapping_add(value);
                    }
                }
            }
            drawn.hashes.push(hash);
        }
        drawn
    }

    fn launch(&self, drawn: Drawn, place: usize, stream: usize, kept: usize) -> Result<Running, Wrong> {
        let node = &self.nodes[place];
        let given = node.gpu.buffer::<u64>(drawn.ops.len() as u64)?;
        given.write(&drawn.ops)?;
        let (hashes, progress) = (
            node.gpu.buffer::<u64>(drawn.lanes)?,
            node.gpu.buffer::<u64>(drawn.lanes)?,
        );
        progress.write(&vec![0; drawn.lanes as usize])?;
        let blocks = 1 + u32::from(drawn.lanes.is_multiple_of(2));
        let config = LaunchConfig::new(blocks, drawn.lanes as u32 / blocks);
        let [a, b, kept] = [0, 1, kept].map(|n| &self.regions[n].region);
        let args = (a, b, kept, &given, drawn.steps as u32, &hashes, &progress);
        let launch = node.use_pages.launch_on(&node.streams[stream], config, args)?;
        Ok(Running {
            drawn,
            place,
            launch,
            hashes,
            progress,
        })
    }

    /// What the host does while launches run.
    fn beside(&self, rng: &mut ChaCha8Rng, running: &[Running], place: usize, kept: usize) -> Result<(), Wrong> {
        if rng.random() {
            // Virtual time goes by: the host waits for a launch, of the same form.
            let ns = rng.random_range(500..20_000u32);
            let (node, region) = (&self.nodes[place], &self.regions[kept].region);
            let paused = node
                .pause
                .launch_on(&node.streams[2], LaunchConfig::new(1, 1), (region, ns))?;
            paused.sync().map_err(|error| Wrong::from(error).of("pause"))?;
        }
        if self.resizes && rng.random() {
            return self.resize(rng);
        }
        if self.lends && rng.random() {
            // What launches read there they read on.
            self.give_back(rng.random_range(1..4))?;
        }
        let n = rng.random_range(0..2u32) as usize;
        let mut stored = Vec::new();
        for one in running {
            let progress = self.progress(one)?;
            let told = one.drawn.told.iter().filter(|told| told.region == n);
            stored.extend(told.filter(|told| told.step < progress[told.lane as usize]));
        }
        let flushed = self.regions[n].region.flush_beside();
        flushed.map_err(|error| Wrong::from(error).of("a flush beside launches"))?;
        for told in stored {
            let home = self.home_word(n, told.word)?;
            if home < told.value {
                return Err(Wrong::Differs(format!(
                    "word {}: the home holds {home} after a flush that began when {} was stored",
                    told.word, told.value
                )));
            }
        }
        Ok(())
    }

    /// How far lanes say that they are. Unlike a read of the buffer this waits for no launch.
    fn progress(&self, one: &Running) -> Result<Vec<u64>, Wrong> {
        let mut progress = vec![0u64; one.drawn.lanes as usize];
        let device = self.nodes[one.place].gpu.device();
        let read = device.read(one.progress.addr(), bytemuck::cast_slice_mut(&mut progress));
        read.map_err(|error| Wrong::Refused(format!("how far lanes are: {error}")))?;
        Ok(progress)
    }

    fn home_word(&self, region: usize, word: u64) -> Result<u64, Wrong> {
        let home = self.room.home_word(region as u32, word);
        home.ok_or_else(|| Wrong::Differs(format!("word {word} has no home")))
    }

    /// More frames or fewer.
    fn resize(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let bytes = rng.random_range(1..=UNITS_MAX) * UNIT * PAGE;
        let within = Duration::from_nanos(rng.random::<u64>() & ((1 << rng.random_range(8..21u32)) - 1));
        self.bench.vm.resize_frames_within(bytes, within)?;
        Ok(())
    }

    /// Words that lanes of a stopped launch told of hold that at least.
    fn was_stopped(&mut self, one: &Running) -> Result<(), Wrong> {
        let progress = one.progress.to_vec()?;
        for told in &one.drawn.told {
            let least = &mut self.regions[told.region].least;
            match told.step < progress[told.lane as usize] {
                true => least.insert(told.word, told.value),
                false => Some(*least.entry(told.word).or_insert(told.before)),
            };
        }
        Ok(())
    }

    /// What the host does between launches.
    fn between(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        if self.lends {
            self.fill_slots(rng)?;
            self.end_loans(rng)?;
        }
        let n = rng.random_range(0..2u32) as usize;
        let held = &mut self.regions[n];
        let length = held.model.len() as u64;
        match rng.random_range(0..9u32) {
            0 => {}
            1 => held.region.flush()?,
            2 => held.is_right(&held.region.to_vec()?)?,
            3 => {
                let first = rng.random_range(0..length);
                let new = |i: u64| {
                    if is_told(i) {
                        held.model[i as usize]
                    } else {
                        rng.random()
                    }
                };
                let new: Vec<u64> = (first..length.min(first + 700)).map(new).collect();
                held.region.write(first, &new)?;
                held.model[first as usize..][..new.len()].copy_from_slice(&new);
                held.least
                    .retain(|word, _| !(first..first + new.len() as u64).contains(word));
            }
            4 => held.region.evict()?,
            5 => {
                held.region.flush()?;
                let first = rng.random_range(0..length);
                held.region.discard(first..length)?;
            }
            6 if held.least.is_empty() => self.salvage(n)?,
            7 => self.reach_past(rng, n)?,
            _ if self.resizes => self.resize(rng)?,
            _ => {}
        }
        Ok(())
    }

    /// The neighbour has its memory back, which holds anything then, or lends it again.
    fn end_loans(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let is_back = match rng.random_range(0..3u32) {
            0 => self.give_back(rng.random_range(0..6))?,
            1 => {
                let bytes = u64::from(rng.random_range(1..6u32)) * PAGE;
                self.bench.vm.borrow_again(bytes)?;
                true
            }
            // What was given back beside launches is free now that those have ended.
            _ => self.give_back(0)?,
        };
        if is_back {
            self.bench.vm.scribble_given_back(0xdd)?;
        }
        Ok(())
    }

    /// Whether the neighbour has this many pages' memory back: lanes of a launch that was stopped in the middle of a copy count as copying
    /// until the GPU recovers.
    fn give_back(&self, pages: u32) -> Result<bool, Wrong> {
        match self.bench.vm.give_back_borrowed(u64::from(pages) * PAGE) {
            Ok(_) => Ok(true),
            Err(Error::StillWritten { .. }) if self.is_broken => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Launches that only read, so that pages of what others write come to the neighbour, too; others may leave their frames meanwhile.
    fn fill_slots(&self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        let of = |n: u32| &self.regions[n as usize];
        let (held, other, kept) = (of(rng.random_range(0..3)), of(rng.random_range(0..3)), of(2));
        if self.is_broken || !held.least.is_empty() || rng.random() {
            return Ok(());
        }
        for _ in 0..rng.random_range(1..7u32) {
            self.add_up(held, kept)?;
        }
        if rng.random() {
            other.region.evict()?;
        }
        match self.brings_beside {
            true => self.add_up_again(rng, held),
            false => self.add_up(held, kept),
        }
    }

    /// What is newer in GPU memory than at its home is salvaged.
    fn salvage(&self, n: usize) -> Result<(), Wrong> {
        let held = &self.regions[n];
        let saved = held.region.salvage()?;
        for page in &saved {
            let expected = &held.model[page.first as usize..][..page.elements.len()];
            compare(&page.elements, expected).map_err(|wrong| format!("salvaged from {}: {wrong}", page.first))?;
        }
        let is_saved = |word| saved.iter().any(|page| word - word % PAGE_WORDS == page.first);
        for word in (0..held.model.len() as u64).filter(|word| word % PAGE_WORDS < SHORT && !is_saved(*word)) {
            let (home, expected) = (self.home_word(n, word)?, held.model[word as usize]);
            if home != expected {
                return Err(Wrong::Differs(format!(
                    "word {word} was not salvaged: its home holds {home} instead of {expected}"
                )));
            }
        }
        Ok(())
    }

    /// One access past the end, which is told once.
    fn reach_past(&self, rng: &mut ChaCha8Rng, n: usize) -> Result<(), Wrong> {
        let held = &self.regions[n];
        let past = held.model.len() as u64 + rng.random_range(0..4u64).saturating_sub(1);
        let stores = rng.random_range(0..2u32);
        let config = LaunchConfig::new(1, 1);
        let reached = self
            .bench
            .kernel("reach_past")?
            .launch(config, (&held.region, past, stores))?;
        let told = match reached.sync() {
            Err(Error::Fault { fault, later: 0, .. }) => {
                matches!(fault.kind, FaultKind::OutOfRange { index, length } if (index, length) == (past, held.model.len() as u64))
            }
            _ => false,
        };
        match told {
            true => Ok(()),
            false => Err(Wrong::Differs(format!(
                "an access past the end, at {past}, was not told once"
            ))),
        }
    }

    /// Launches that only read: of what was used at home as many pages come as frames are free, and none is written back.
    fn readers(&mut self, rng: &mut ChaCha8Rng) -> Result<(), Wrong> {
        self.regions.iter().try_for_each(|held| held.region.evict())?;
        let before = self.bench.vm.stats()?;
        let (frames, brings_beside) = (self.bench.vm.frames(), self.brings_beside);
        let [_, b, kept, fetched] = &self.regions[..] else {
            return Err(Wrong::Differs("there are not four regions".to_owned()));
        };
        let pages = |held: &Held| (held.model.len() as u64).div_ceil(PAGE_WORDS);
        let came = |expected: u64| {
            let came = self.bench.vm.stats()?.pages_fetched - before.pages_fetched;
            // Where frames are too few, a page may give way to another in each launch.
            let most = if brings_beside { u64::MAX } else { expected + MOVED_MOST };
            match (expected..=most).contains(&came) {
                true => Ok(()),
                false => Err(Wrong::Differs(format!("{came} pages have come instead of {expected}"))),
            }
        };
        let ask = |held: &Held, count| {
            must(
                self.bench,
                "ask_for",
                LaunchConfig::new(1, 1),
                (&held.region, 0u64, count),
            )
        };
        // What was used at home before may come with the first.
        ask(b, b.model.len() as u64)?;
        ask(b, 0)?;
        let of_b = frames.min(pages(b));
        came(of_b)?;
        self.add_up(kept, kept)?;
        self.add_up(kept, kept)?;
        came(of_b + pages(kept).min(frames - of_b))?;
        b.region.evict()?;
        // The first of them marks a sample alone of what it uses at home.
        for _ in 0..3 {
            self.add_up(kept, kept)?;
        }
        came(of_b + pages(kept).min(frames))?;
        // Used at home, fetched, and held then.
        kept.region.evict()?;
        self.add_up(kept, kept)?;
        self.add_up(kept, fetched)?;
        self.add_up(kept, kept)?;
        for _ in 0..3 {
            match rng.random_range(0..5u32) {
                0 => kept.region.evict()?,
                1 => ask(kept, kept.model.len() as u64)?,
                2 => self.add_up(kept, fetched)?,
                _ => self.add_up(kept, kept)?,
            }
        }
        self.regions.iter().try_for_each(|held| held.region.evict())?;
        match self.bench.vm.stats()?.pages_written_back - before.pages_written_back {
            0 => Ok(()),
            count => Err(Wrong::Differs(format!(
                "{count} pages were written back that were only read"
            ))),
        }
    }

    /// Lanes add up what a region holds, in the form that `form` says.
    fn add_up(&self, held: &Held, form: &Held) -> Result<(), Wrong> {
        let sum = self.bench.vm.buffer::<u64>(1)?;
        sum.write(&[0])?;
        let args = (&held.region, &form.region, PAGE_WORDS as u32, SHORT as u32, &sum);
        must(self.bench, "add_up", LaunchConfig::new(2, 8), args)?;
        Ok(compare(&sum.to_vec()?, &[held.sum()]).map_err(|wrong| format!("what lanes added up: {wrong}"))?)
    }

    fn close(self) -> Result<(), Wrong> {
        for mut held in self.regions {
            held.is_right(&held.region.to_vec()?)?;
            close(self.bench, held.region, &held.model)?;
        }
        Ok(())
    }
}

impl Held {
    /// Of the words that `add_up` adds up.
    fn sum(&self) -> u64 {
        let pages = self.model.chunks(PAGE_WORDS as usize);
        let words = pages.flat_map(|page| &page[..SHORT as usize]);
        words.fold(0, |sum: u64, word| sum.wrapping_add(*word))
    }

    /// What the host finds is right, and is known from now on.
    fn is_right(&mut self, found: &[u64]) -> Result<(), Wrong> {
        for (word, least) in std::mem::take(&mut self.least) {
            let (now, most) = (found[word as usize], &mut self.model[word as usize]);
            if now < least || now > *most {
                return Err(Wrong::Differs(format!(
                    "word {word}: {now} after its lane was stopped, instead of {least} to {most}"
                )));
            }
            *most = now;
        }
        Ok(compare(found, &self.model).map_err(|wrong| format!("the host: {wrong}"))?)
    }
}
