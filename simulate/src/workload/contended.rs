//! Single words that many lanes change at once, beside write-backs and flushes.

use gpuvm::{Advice, LaunchConfig, Placement};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::{Calm, Wrong, close, compare, delay, keeps, launch, must};
use crate::linear::{self, Action, Operation, Verdict};
use crate::program::rng;
use crate::room::{Needs, PAGE_WORDS, Room};

/// Threads of a block where few contend more than many.
pub(super) const THREADS: u64 = 12;

/// Words on `pages` pages: `each` a page, at places that the seed draws.
fn places(rng: &mut ChaCha8Rng, pages: u64, each: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..pages)
        .flat_map(|page| (0..each).map(move |n| (page, n)))
        .map(|(page, n)| page * PAGE_WORDS + n * (PAGE_WORDS / each) + rng.random_range(0..PAGE_WORDS / each))
        .collect();
    all.sort_unstable();
    all
}

pub(super) fn counters(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (pages, steps, lanes) = (5, 5u32, 2 * THREADS);
    let bench = room.open(Needs::few(seed, 1 + seed % 3))?;
    let words = places(&mut rng, pages, 2);
    let a = bench.vm.region::<u64>().name("counters").zeroed(pages * PAGE_WORDS)?;
    let _calm = Calm(&bench.vm);
    let which: Vec<u64> = (0..lanes * u64::from(steps))
        .map(|_| words[rng.random_range(0..words.len() as u32) as usize])
        .collect();
    let given = bench.vm.buffer::<u64>(which.len() as u64)?;
    given.write(&which)?;
    let found = bench.vm.buffer::<u64>(which.len() as u64)?;
    let ran = must(
        &bench,
        "counters",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &given, steps, &found),
    );
    let mut model = vec![0u64; (pages * PAGE_WORDS) as usize];
    which.iter().for_each(|&word| model[word as usize] += 1);
    let found = found.to_vec()?;
    // A thread that was given a count has made it one more; an addition that failed gives 0.
    let counted = which.iter().zip(&found).filter(|(_, count)| **count != 0);
    let counted: Vec<(u64, u64)> = counted.map(|(word, count)| (*word, count + 1)).collect();
    keeps(&bench, ran, &a, &counted, &model)?;
    // Each count was returned to one lane.
    for &word in &words {
        let mut counts: Vec<u64> = (0..which.len())
            .filter(|&n| which[n] == word)
            .map(|n| found[n])
            .collect();
        counts.sort_unstable();
        let expected: Vec<u64> = (0..counts.len() as u64).collect();
        compare(&counts, &expected).map_err(|wrong| format!("counts returned for word {word}: {wrong}"))?;
    }
    close(&bench, a, &model)
}

/// Words of a short page, and how many of them are used.
const SHORT: (u64, u64) = (32, 4);

/// Operations on `words` for each of this many lanes and steps, as the kernel `linear` reads them. The last `short` words lie on a short
/// page, which gets half of the moves.
fn drawn(rng: &mut ChaCha8Rng, words: &[u64], short: u64, (lanes, steps): (u64, u32)) -> Vec<u64> {
    let (mut used, mut at) = (vec![0usize; words.len()], 0);
    let mut ops = Vec::new();
    for n in 0..lanes * u64::from(steps) {
        // Often a lane stays and reads: only who finds a page resident reads it without holding it.
        let stays = n % u64::from(steps) != 0 && rng.random_range(0..4u32) != 0;
        let mut which = match stays {
            true => at / 2 * 2 + rng.random_range(0..2u32) as usize,
            false if short > 0 && rng.random_bool(0.5) => words.len() - 1 - rng.random_range(0..short as u32) as usize,
            false => rng.random_range(0..words.len() as u32) as usize,
        };
        while used[which] == linear::OPERATIONS_MAX {
            which = (which + 1) % words.len();
        }
        used[which] += 1;
        at = which;
        // Every value is stored once only; additions keep to the upper part of its lower half.
        let kind = [0, 0, 0, 1, 1, 2, 3, 4][rng.random_range(0..if stays { 4 } else { 8u32 }) as usize];
        let value = if kind == 3 { 1 << 20 } else { n + 1 };
        ops.push(kind << 56 | value << 24 | words[which]);
    }
    ops
}

/// Every word's history must have an order. Fetched, or read and stored where it lives while others fetch, write and evict it.
pub(super) fn linear(room: &mut Room<'_>, placement: Placement, advice: Advice) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (steps, lanes) = (14u32, 2 * THREADS);
    let bench = room.open(Needs::few(seed, 1 + seed % 3))?;
    let a = bench.vm.region::<u64>().name("words").placement(placement);
    let all_fetched = placement == Placement::Fetch && advice == Advice::Normal;
    let (words, a) = match all_fetched {
        true => (places(&mut rng, 5, 2), a.zeroed(5 * PAGE_WORDS)?),
        // At a neighbour, where the memory model is in charge of the home too. The last page is short, so that it comes and goes within
        // one read at home.
        false => {
            let mut words = places(&mut rng, 3, 2);
            words.extend(3 * PAGE_WORDS..3 * PAGE_WORDS + SHORT.1);
            (words, a.home_on_gpu(1).zeroed(3 * PAGE_WORDS + SHORT.0)?)
        }
    };
    let _calm = Calm(&bench.vm);
    a.advise(advice)?;
    let short = if all_fetched { 0 } else { SHORT.1 };
    let ops = drawn(&mut rng, &words, short, (lanes, steps));
    let given = bench.vm.buffer::<u64>(ops.len() as u64)?;
    given.write(&ops)?;
    let log = bench.vm.buffer::<u64>(4 * ops.len() as u64)?;
    must(
        &bench,
        "linear",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &given, steps, &log),
    )?;
    let log = log.to_vec()?;
    let last = a.to_vec()?;
    for &word in &words {
        let history: Vec<Operation> = (0..ops.len())
            .filter(|&n| ops[n] & 0xff_ffff == word)
            .map(|n| operation(ops[n], &log[4 * n..4 * n + 4]))
            .collect();
        match linear::check(0, &history, last[word as usize]) {
            Verdict::Linearisable => room.linear.0 += 1,
            Verdict::Undecided => room.linear.1 += 1,
            Verdict::Broken => {
                return Err(Wrong::Differs(format!(
                    "word {word}: no order of its operations explains what they returned, and {} at the end: {}",
                    last[word as usize],
                    linear::in_words(&history)
                )));
            }
        }
    }
    let mut model = vec![0; last.len()];
    words
        .iter()
        .for_each(|&word| model[word as usize] = last[word as usize]);
    close(&bench, a, &model)
}

fn operation(op: u64, log: &[u64]) -> Operation {
    let value = op >> 24 & 0xffff_ffff;
    let stored = value | value << 32;
    Operation {
        begin: log[0],
        end: log[1],
        action: match op >> 56 {
            0 => Action::Read,
            1 => Action::Write(stored),
            2 => Action::Exchange(stored),
            3 => Action::Add(value),
            _ => Action::CompareExchange(log[3], stored),
        },
        returned: log[2],
    }
}

/// Words of each of the two pages, of which the kernel `rising` stores the first few.
const RISING: (u64, u64) = (12, 3);

/// A thread that reads a word sees it rise, whole, wherever its page is. Write-backs and reads at home meet much more often than under
/// `linear`, which must keep a history.
pub(super) fn rising(room: &mut Room<'_>, placement: Placement) -> Result<(), Wrong> {
    let seed = room.seed();
    let (turns, pages) = (30u32, ["a", "b"]);
    let bench = room.open(Needs::few(seed, 1))?;
    let region = |name| {
        let region = bench.vm.region::<u64>().name(name).placement(placement);
        region.home_on_gpu(1).zeroed(RISING.0)
    };
    let [a, b] = [region(pages[0])?, region(pages[1])?];
    let _calm = Calm(&bench.vm);
    let wrong = bench.vm.buffer::<u64>(3)?;
    wrong.write(&[0; 3])?;
    must(
        &bench,
        "rising",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &b, turns, &wrong),
    )?;
    let wrong = wrong.to_vec()?;
    if let (at @ 1.., found, before) = (wrong[0], wrong[1], wrong[2]) {
        let (page, word) = (pages[((at - 1) / RISING.1) as usize], (at - 1) % RISING.1);
        return Err(Wrong::Differs(format!(
            "word {word} of page `{page}` was read as {found:#x} after {before:#x}"
        )));
    }
    let mut model = vec![0; RISING.0 as usize];
    model[..RISING.1 as usize].fill(u64::from(turns) << 32 | u64::from(turns));
    close(&bench, a, &model)?;
    close(&bench, b, &model)
}

pub(super) fn flush(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (lanes, turns, pages) = (2 * THREADS, 6u32, 6u64);
    let apart = pages * PAGE_WORDS / lanes;
    let bench = room.open(Needs::few(seed, 1 + seed % 3))?;
    let a = bench.vm.region::<u64>().name("flushed").zeroed(pages * PAGE_WORDS)?;
    let _calm = Calm(&bench.vm);
    let progress = bench.vm.buffer::<u64>(lanes)?;
    let beside = bench.vm.stream()?;
    let writing = launch(
        &bench,
        "writers",
        LaunchConfig::new(2, THREADS as u32),
        (&a, apart, turns, &progress),
    )?;
    let mut flushed = Ok(());
    for _ in 0..4 {
        delay(&bench, &beside, &mut rng)?;
        let before = progress.to_vec()?;
        flushed = a
            .flush_beside()
            .map_err(|error| Wrong::from(error).of("a flush beside the kernel"));
        if flushed.is_err() {
            break;
        }
        for lane in 0..lanes {
            let stored = before[lane as usize];
            let home = room
                .home_word(0, lane * apart)
                .ok_or_else(|| format!("element {} has no home", lane * apart))?;
            if home < stored {
                return Err(Wrong::Differs(format!(
                    "element {}: the home holds {home} after a flush that began when {stored} was stored",
                    lane * apart
                )));
            }
        }
        if writing.is_done() {
            break;
        }
    }
    let written = writing.sync().map_err(|error| Wrong::from(error).of("writers"));
    let mut model = vec![0; (pages * PAGE_WORDS) as usize];
    (0..lanes).for_each(|lane| model[(lane * apart) as usize] = u64::from(turns));
    let stored: Vec<(u64, u64)> = (0..lanes).map(|lane| lane * apart).zip(progress.to_vec()?).collect();
    keeps(&bench, flushed.and(written.map(drop)), &a, &stored, &model)?;
    close(&bench, a, &model)
}
