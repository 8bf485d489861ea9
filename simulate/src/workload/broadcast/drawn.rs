//! What the lanes of one launch do, by the seed, and what that must come to.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Wrong, compare, fold};

/// What a lane does in one step: the numbers are the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Stores to an element that is its own.
    Store = 1,
    /// Reads one that nothing else stores to.
    Read,
    /// Adds at the owner; logged, as the next four.
    Add,
    /// Exchanges at the owner.
    Exchange,
    /// Compares at the owner with what the lane has seen last, and exchanges.
    Compare,
    /// Stores at the owner.
    StoreSystem,
    /// Reads at the owner.
    ReadSystem,
    /// Takes the larger value, at the owner.
    Maximum,
    /// Takes the smaller value, at the owner.
    Minimum,
    /// Gives an element to another lane of the view.
    Pass,
    /// Waits for that.
    Take,
    /// Stores to two elements, one behind the other.
    Tell,
    /// Reads those in the other order.
    Hear,
    /// Stores to one element and reads another.
    Cross,
}

/// How a lane tells and hears, as in the kernel.
const DATA_AT_OWNER: u64 = 1;
const FLAG_AT_OWNER: u64 = 2;
const FLAG_BY_EXCHANGE: u64 = 4;
/// Those, and whether data is read weakly, and by a fence behind a relaxed load.
const WAYS: u64 = 32;
/// The channel that is heard.
const CHANNEL_SHIFT: u32 = 7;
/// Where values begin: those that are drawn are below, and what is added keeps them below 24 bits.
pub const VALUES: u32 = 1 << 20;
/// Operations of a word whose history is kept.
const HISTORY_MAX: usize = 24;

/// What a launch is drawn for.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Views of the array.
    pub views: usize,
    /// Elements of a line.
    pub line: usize,
    /// What stands for a drawn value in an element.
    pub spread: u64,
    /// Whether words have operations whose order only a look at their last values tells.
    pub histories: bool,
    /// Nothing that races on purpose: one lane of each view marks lines, and nothing reads what another view may store meanwhile.
    pub tame: bool,
}

/// A launch.
pub struct Drawn {
    /// Views of the array.
    pub views: usize,
    /// Blocks of the launch.
    pub blocks: u32,
    /// Lanes of a block.
    pub threads: u32,
    /// A bit a block that merges its stores.
    pub merging: u64,
    /// As many of each lane.
    pub ops: Vec<u64>,
    /// Elements that go from lane to lane, each time one.
    pub flags: u32,
    /// Whether blocks meet when they have stored everything.
    pub meeting: Option<Meeting>,
    /// Elements with operations whose order only their last values tell.
    pub histories: Vec<History>,
    /// Stores that each view's lanes make to others.
    pub stores: Vec<u64>,
    /// By lane, of what it reads.
    hashes: Vec<u64>,
    /// Two stores with a look at each other: where the looks are logged, and what is stored.
    crosses: Vec<([usize; 2], u64)>,
}

/// An element whose operations are logged.
pub struct History {
    /// Which.
    pub element: usize,
    /// What is done to it.
    pub ops: Vec<Logged>,
}

/// An operation that is logged.
#[derive(Clone, Copy)]
pub struct Logged {
    /// What is done.
    pub kind: Kind,
    /// With which value, as it stands in the element.
    pub value: u64,
    lane: usize,
    step: usize,
}

/// All blocks wait for each other when they have stored everything.
pub struct Meeting {
    /// Where they count.
    pub element: u64,
    /// The count when all have come.
    pub all: u64,
    /// What each block reads then.
    pub read: Vec<u32>,
}

/// What a launch came to.
pub struct Played {
    /// By lane, of what it has read.
    pub hashes: Vec<u64>,
    /// Four words a step of each lane.
    pub log: Vec<u64>,
    /// What a lane has heard that cannot be, or zeros.
    pub wrong: Vec<u64>,
}

impl Drawn {
    /// The log of an operation: when it began and ended, what it returned, and what it compared with.
    pub fn log_of<'a>(&self, op: &Logged, played: &'a Played) -> &'a [u64] {
        let steps = self.ops.len() / self.hashes.len();
        &played.log[4 * (op.lane * steps + op.step)..][..4]
    }

    /// What lanes have read is what they must.
    pub fn check(&self, played: &Played) -> Result<(), Wrong> {
        let [what, data, found, heard, before_data, before_heard] = played.wrong[..] else {
            return Err(Wrong::Differs("nothing says what lanes have heard".to_owned()));
        };
        let after = format!("element {data} was {found} for who had heard of {heard}");
        match what {
            0 => {}
            1 => return Err(Wrong::Differs(after)),
            _ => {
                let before = format!("after {before_data} and {before_heard}");
                return Err(Wrong::Differs(format!("time went back: {after}, {before}")));
            }
        }
        for &(looks, value) in &self.crosses {
            let seen = looks.map(|at| played.log[4 * at]);
            if !seen.contains(&value) {
                return Err(Wrong::Differs(format!(
                    "two lanes stored {value} and then looked: neither has seen the other's, but {seen:?}"
                )));
            }
        }
        compare(&played.hashes, &self.hashes).map_err(|wrong| format!("what lanes read: {wrong}"))?;
        Ok(())
    }
}

/// A pair of elements by which one lane tells lanes of other views.
struct Channel {
    teller: usize,
    elements: [usize; 2],
    way: u64,
    before: u64,
    told: u64,
}

struct Drawing<'a> {
    rng: &'a mut ChaCha8Rng,
    shape: Shape,
    model: &'a mut Vec<u64>,
    threads: usize,
    merging: u64,
    lists: Vec<Vec<u64>>,
    hashes: Vec<u64>,
    stores: Vec<u64>,
    /// Elements that one lane at a time stores to.
    own: Vec<(usize, usize)>,
    /// Nothing stores to these.
    idle: Vec<usize>,
    histories: Vec<History>,
    extremes: [usize; 2],
    channels: Vec<Channel>,
    /// Pairs of elements for lanes that look at each other.
    crossed: Vec<usize>,
    crosses: Vec<([(usize, usize); 2], u64)>,
    flags: u32,
    /// Elements that all copies have as soon as they are stored.
    stored: Vec<usize>,
    unique: u64,
}

/// Draws a launch. The model is what it must leave, but for words with histories.
pub fn draw(rng: &mut ChaCha8Rng, shape: Shape, model: &mut Vec<u64>) -> Drawn {
    let each = if shape.tame { 1 } else { rng.random_range(1..=2u32) };
    let blocks = each * shape.views as u32;
    // No more lanes than a seed has time for.
    let threads = [2, 3, 4, 8, 9, 12][rng.random_range(0..if each == 1 { 6 } else { 3u32 }) as usize];
    let merging = match rng.random_range(0..3u32) {
        0 => 0,
        _ => u64::from(rng.random::<u32>()) & ((1 << blocks) - 1),
    };
    let lanes = (blocks * threads) as usize;
    let mut pool = pool(rng, shape.line, model.len());
    let mut drawing = Drawing {
        rng,
        shape,
        threads: threads as usize,
        merging,
        lists: vec![Vec::new(); lanes],
        hashes: vec![0; lanes],
        stores: vec![0; shape.views],
        own: Vec::new(),
        idle: Vec::new(),
        histories: Vec::new(),
        extremes: [0; 2],
        channels: Vec::new(),
        crossed: Vec::new(),
        crosses: Vec::new(),
        flags: 0,
        stored: Vec::new(),
        unique: u64::from(VALUES),
        model,
    };
    let counts = pool.pop().unwrap_or_default();
    drawing.share_out(pool);
    let steps = drawing.rng.random_range(5..=10u32);
    let crossing = drawing.rng.random_range(0..steps);
    for step in 0..steps {
        if step == crossing {
            drawing.cross();
        }
        let mut order: Vec<usize> = (0..lanes).collect();
        shuffle(drawing.rng, &mut order);
        order.into_iter().for_each(|lane| drawing.step(lane));
    }
    drawing.finish(blocks, counts)
}

/// Elements of a few lines, in any order.
fn pool(rng: &mut ChaCha8Rng, line: usize, length: usize) -> Vec<usize> {
    let mut lines: Vec<usize> = (0..length.div_ceil(line)).collect();
    shuffle(rng, &mut lines);
    lines.truncate(rng.random_range(2..=4u32) as usize);
    let of = |at: &usize| at * line..((at + 1) * line).min(length);
    let mut pool: Vec<usize> = lines.iter().flat_map(of).collect();
    shuffle(rng, &mut pool);
    pool.truncate(48);
    pool
}

fn shuffle<T>(rng: &mut ChaCha8Rng, values: &mut [T]) {
    for end in (1..values.len()).rev() {
        values.swap(end, rng.random_range(0..=end as u32) as usize);
    }
}

impl Drawing<'_> {
    fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end as u32) as usize
    }

    fn lanes(&self) -> usize {
        self.lists.len()
    }

    fn block(&self, lane: usize) -> usize {
        lane / self.threads
    }

    fn view(&self, lane: usize) -> usize {
        self.block(lane) % self.shape.views
    }

    fn merges(&self, lane: usize) -> bool {
        self.merging >> self.block(lane) & 1 == 1
    }

    /// Whether the lane may change an owner's copy.
    fn may_mark(&self, lane: usize) -> bool {
        !self.shape.tame || lane.is_multiple_of(self.threads)
    }

    /// A lane that may change an owner's copy.
    fn marker(&mut self) -> usize {
        let lane = self.below(self.lanes());
        if self.shape.tame {
            lane / self.threads * self.threads
        } else {
            lane
        }
    }

    fn another_view(&mut self, lane: usize) -> usize {
        loop {
            let other = self.marker();
            if self.view(other) != self.view(lane) {
                return other;
            }
        }
    }

    /// A value that stands for more than what the elements hold.
    fn next_above(&self, elements: [usize; 2]) -> u64 {
        let most = elements.map(|at| self.model[at]).into_iter().max();
        most.unwrap_or_default() / self.shape.spread + 1
    }

    /// Says what each element of the pool is for.
    fn share_out(&mut self, mut pool: Vec<usize>) {
        let mut next = || pool.pop().unwrap_or_default();
        if self.shape.histories {
            let history = |element| History {
                element,
                ops: Vec::new(),
            };
            self.histories = vec![history(next()), history(next())];
        }
        self.extremes = [next(), next()];
        let pairs = [[next(), next()], [next(), next()]];
        for elements in pairs {
            let teller = self.marker();
            let mut way = self.rng.random_range(0..WAYS);
            if self.shape.tame {
                way = way & FLAG_BY_EXCHANGE | DATA_AT_OWNER | FLAG_AT_OWNER;
            }
            if way & FLAG_BY_EXCHANGE != 0 {
                way |= FLAG_AT_OWNER;
            }
            let before = self.next_above(elements);
            self.channels.push(Channel {
                teller,
                elements,
                way,
                before,
                told: before,
            });
        }
        while pool.len() > 4 {
            let at = pool.pop().unwrap_or_default();
            if self.rng.random_range(0..4u32) == 0 {
                self.idle.push(at);
            } else {
                let lane = self.below(self.lanes());
                self.own.push((at, lane));
            }
            self.stored.push(at);
        }
        self.crossed = pool;
    }

    fn push(&mut self, lane: usize, kind: Kind, way: u64, value: u64, elements: [usize; 2]) {
        let [first, second] = elements.map(|at| at as u64);
        self.lists[lane].push((kind as u64) << 56 | way << 48 | value << 24 | second << 12 | first);
    }

    fn step(&mut self, lane: usize) {
        let own: Vec<usize> = (0..self.own.len()).filter(|&n| self.own[n].1 == lane).collect();
        let some = (!own.is_empty()).then(|| own[self.below(own.len())]);
        match (self.rng.random_range(0..16u32), some) {
            (0..6, Some(n)) => self.store(lane, n),
            (6..8, Some(n)) => self.read(lane, self.own[n].0),
            (8, Some(n)) => self.pass(lane, n),
            (9..11, _) => self.logged(lane),
            (11, _) => self.extreme(lane),
            (12..15, _) => self.tell_or_hear(lane),
            _ => {
                if !self.idle.is_empty() {
                    let which = self.below(self.idle.len());
                    let at = self.idle[which];
                    self.read(lane, at);
                }
            }
        }
    }

    fn store(&mut self, lane: usize, n: usize) {
        let (at, value) = (self.own[n].0, self.rng.random_range(0..VALUES).into());
        self.push(lane, Kind::Store, 0, value, [at, 0]);
        self.model[at] = value * self.shape.spread;
        let view = self.view(lane);
        self.stores[view] += 1;
        // Who looks for races does not see the queue's locks, which are in shared memory: each element leaves once.
        if self.shape.tame && self.merges(lane) {
            self.own.swap_remove(n);
        }
    }

    fn read(&mut self, lane: usize, at: usize) {
        self.push(lane, Kind::Read, 0, 0, [at, 0]);
        self.hashes[lane] = fold(self.hashes[lane], self.model[at]);
    }

    /// Another lane of the view stores to the element from now on. The order of merged stores is that of one block.
    fn pass(&mut self, lane: usize, n: usize) {
        let to = self.below(self.lanes());
        let same_block = self.block(to) == self.block(lane);
        let ordered = same_block || (!self.merges(lane) && !self.merges(to));
        let seen = !self.shape.tame || !self.merges(lane);
        if to == lane || !seen || self.view(to) != self.view(lane) || !ordered {
            return self.store(lane, n);
        }
        let flag = self.flags as usize;
        self.flags += 1;
        self.push(lane, Kind::Pass, 0, 0, [flag, 0]);
        self.push(to, Kind::Take, 0, 0, [flag, 0]);
        self.own[n].1 = to;
        self.store(to, n);
    }

    fn logged(&mut self, lane: usize) {
        let which = self.below(2);
        let full = |history: &History| history.ops.len() == HISTORY_MAX;
        if self.histories.get(which).is_none_or(full) || !self.may_mark(lane) {
            return;
        }
        let kinds = [
            Kind::Add,
            Kind::Exchange,
            Kind::Compare,
            Kind::StoreSystem,
            Kind::ReadSystem,
        ];
        let kind = kinds[self.below(5)];
        self.unique += 1;
        let value = match kind {
            Kind::Add => self.rng.random_range(1..=8u32).into(),
            Kind::ReadSystem => 0,
            _ => self.unique,
        };
        let logged = Logged {
            kind,
            value: value * self.shape.spread,
            lane,
            step: self.lists[lane].len(),
        };
        let history = &mut self.histories[which];
        history.ops.push(logged);
        let at = history.element;
        self.push(lane, kind, 0, value, [at, 0]);
    }

    fn extreme(&mut self, lane: usize) {
        if !self.may_mark(lane) {
            return;
        }
        let (which, value) = (self.below(2), u64::from(self.rng.random_range(0..VALUES)));
        let (at, spread) = (self.extremes[which], value * self.shape.spread);
        let (kind, new) = match which {
            0 => (Kind::Maximum, self.model[at].max(spread)),
            _ => (Kind::Minimum, self.model[at].min(spread)),
        };
        self.model[at] = new;
        self.push(lane, kind, 0, value, [at, 0]);
    }

    fn tell_or_hear(&mut self, lane: usize) {
        let which = self.below(2);
        let Channel {
            teller,
            elements,
            way,
            before,
            told,
        } = self.channels[which];
        // The teller has its turn as often as all who hear.
        if self.rng.random_range(0..3u32) == 0 {
            self.channels[which].told = told + 1;
            self.push(teller, Kind::Tell, way, told + 1, elements);
            let spread = (told + 1) * self.shape.spread;
            elements.into_iter().for_each(|at| self.model[at] = spread);
            let view = self.view(teller);
            self.stores[view] += u64::from(way & DATA_AT_OWNER == 0) + u64::from(way & FLAG_AT_OWNER == 0);
        } else if lane != teller {
            let way = way | (which as u64) << CHANNEL_SHIFT;
            self.push(lane, Kind::Hear, way, before, elements);
        }
    }

    /// A lane stores to one element and looks at another, to which a lane of another view stores before it looks at the first.
    fn cross(&mut self) {
        for pair in self.crossed.clone().chunks_exact(2) {
            let &[a, b] = pair else { continue };
            let value = self.next_above([a, b]);
            let spread = value * self.shape.spread;
            let one = self.marker();
            let other = self.another_view(one);
            let at_owner = if self.shape.tame || self.rng.random() {
                DATA_AT_OWNER
            } else {
                0
            };
            let places = [(one, self.lists[one].len()), (other, self.lists[other].len())];
            self.push(one, Kind::Cross, at_owner, value, [a, b]);
            self.push(other, Kind::Cross, at_owner, value, [b, a]);
            self.crosses.push((places, spread));
            for (lane, at) in [(one, a), (other, b)] {
                self.model[at] = spread;
                let view = self.view(lane);
                self.stores[view] += 1 - at_owner;
            }
            if at_owner == 0 {
                self.stored.extend([a, b]);
            }
        }
    }

    fn finish(mut self, blocks: u32, counts: usize) -> Drawn {
        let steps = self.lists.iter().map(Vec::len).max().unwrap_or_default();
        let place = |(lane, n): (usize, usize)| lane * steps + n;
        let meeting = (self.rng.random_range(0..3u32) != 0).then(|| {
            self.model[counts] += u64::from(blocks);
            for channel in self.channels.iter().filter(|channel| channel.way & DATA_AT_OWNER == 0) {
                self.stored.push(channel.elements[0]);
            }
            for lane in 0..self.lists.len() {
                let read = self.stored.iter().skip(lane % self.threads).step_by(self.threads);
                self.hashes[lane] = read.fold(self.hashes[lane], |hash, &at| fold(hash, self.model[at]));
            }
            Meeting {
                element: counts as u64,
                all: self.model[counts],
                read: self.stored.iter().map(|at| *at as u32).collect(),
            }
        });
        let crosses = self.crosses.iter().map(|(places, value)| (places.map(place), *value));
        Drawn {
            views: self.shape.views,
            blocks,
            threads: self.threads as u32,
            merging: self.merging,
            flags: self.flags,
            meeting,
            histories: self.histories,
            stores: self.stores,
            hashes: self.hashes,
            crosses: crosses.collect(),
            ops: self
                .lists
                .into_iter()
                .flat_map(|list| list.into_iter().chain(std::iter::repeat(0)).take(steps))
                .collect(),
        }
    }
}
