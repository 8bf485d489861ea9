//! Each word of a region stored once: where it lives, in frames, and by a plain pointer to its home.

use gpuvm::{Advice, Module, Region};

use super::{FETCHED, PLAIN, trial};
use crate::args::MachineArgs;
use crate::bench::args::{PlacementBenchArgs, Share};
use crate::bench::machine::{self, Machine, Tally, pattern, size};
use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;

const KERNELS: [&str; 4] = [
    "store_once<false,false>",
    "store_once<false,true>",
    "store_once<true,false>",
    "store_once<true,true>",
];
/// Frames, where not given.
const SHARE: Share = Share(0.25);
/// What rows have besides.
const STORED: &str = "in place MB";
const WRITTEN: &str = "written back MB";

/// How words are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the home's address, as a program without paging does.
    Plain,
    /// As `Advice::WriteOnce` says.
    InPlace,
    /// In frames.
    Paged,
}

impl Way {
    const ALL: [Self; 3] = [Self::Plain, Self::InPlace, Self::Paged];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => PLAIN,
            Self::InPlace => "in place",
            Self::Paged => "paged",
        }
    }
}

/// Measures stores to `bytes` bytes, of which a launch scatters as many as the page size says.
pub fn measure(
    args: &PlacementBenchArgs,
    machine_args: &MachineArgs,
    (bytes, scattered_of): (u64, impl Fn(u64) -> u64),
    report: &mut Report,
) -> Result<(), CliError> {
    let shares = match args.frames_share.as_slice() {
        [] => &[SHARE],
        given => given,
    };
    for &page_bytes in &args.page_size {
        let pages = bytes / page_bytes;
        for &share in shares {
            let machine = Machine::open(machine_args, page_bytes, Machine::frames_for(pages, share))?;
            let region = machine.vm.region::<u64>().name("stored");
            let stores = Stores {
                module: trial::compile(&machine, &KERNELS)?,
                tally: Tally::new(&machine)?,
                region: region.zeroed(pages * page_bytes / 8)?,
                machine,
                scattered: scattered_of(page_bytes),
            };
            for scattered in [false, true] {
                let rows = stores.rows(args.output.repeat, scattered)?;
                let of_all = |row: Row| row.with("page", size(page_bytes)).with("share", share.0);
                report.rows.extend(rows.into_iter().map(of_all));
            }
        }
    }
    Ok(())
}

/// A region whose words are stored.
struct Stores {
    region: Region<u64>,
    module: Module,
    tally: Tally,
    machine: Machine,
    /// Words of a launch that scatters them, at most.
    scattered: u64,
}

impl Stores {
    /// The ways beside each other.
    fn rows(&self, repeat: u32, scattered: bool) -> Result<Vec<Row>, CliError> {
        let row = |way| Ok((way, self.row(way, repeat, scattered)?));
        let rows = Way::ALL.into_iter().map(row).collect::<Result<Vec<_>, CliError>>()?;
        let of = |wanted| rows.iter().find(|(way, _)| *way == wanted).map(|(_, row)| row.clone());
        let (plain, paged) = (of(Way::Plain), of(Way::Paged));
        let beside = |(way, row): (Way, Row)| {
            let times = paged.as_ref().map(|paged| row.figure / paged.figure);
            let row = times.into_iter().fold(row, |row, times| row.and("times paged", times));
            match &plain {
                Some(plain) if way != Way::Plain => row.ceiling(PLAIN, &plain.runs),
                _ => row,
            }
        };
        Ok(rows.into_iter().map(beside).collect())
    }

    fn row(&self, way: Way, repeat: u32, scattered: bool) -> Result<Row, CliError> {
        let words = self.region.len();
        let count = if scattered { self.scattered.min(words) } else { words };
        let bits = words.next_power_of_two().ilog2();
        let kernel = self
            .module
            .kernel(&format!("store_once<{},{scattered}>", way == Way::Plain));
        let kernel = kernel?;
        let advice = if way == Way::InPlace {
            Advice::WriteOnce
        } else {
            Advice::Normal
        };
        self.region.advise(advice)?;
        let (mut times, mut last) = (Vec::new(), None);
        for round in 1..=u64::from(repeat) {
            // No page is there, and every word gets another value than it has, whatever way was before.
            self.region.evict()?;
            let value = (round << 8) | (way as u64 + 1);
            let before = self.machine.vm.stats()?;
            let (config, _) = self.machine.many_warps();
            let args = (&self.region, count, bits, value, self.tally.arg());
            let (seconds, _) = self.tally.run(&kernel, config, args, count)?;
            last = Some(self.machine.vm.stats()?.difference(&before));
            times.push(seconds * 1e3);
            self.verify(count, value, |n| {
                if scattered { in_random_order(n, words, bits) } else { n }
            })?;
        }
        let row = Row::new("stores", Unit::Milliseconds, times)
            .with("order", if scattered { "scattered" } else { "in order" })
            .with("way", way.name())
            .with("data", size(words * 8))
            .with("frames", self.machine.vm.frames())
            .verified(count, "words");
        let rate = count as f64 / row.figure / 1e3;
        let row = row.and("M stores/s", rate);
        // Of a plain pointer's stores nobody keeps count.
        Ok(match last.filter(|_| way != Way::Plain) {
            None => row,
            Some(took) => row
                .and(FETCHED, took.bytes_fetched as f64 / 1e6)
                .and(WRITTEN, took.bytes_written_back as f64 / 1e6)
                .and(STORED, took.bytes_stored_in_place as f64 / 1e6),
        })
    }

    /// That the home holds what the launch stored: in frames still, or there already.
    fn verify(&self, count: u64, value: u64, word_of: impl Fn(u64) -> u64 + Sync) -> Result<(), CliError> {
        let found = self.region.to_vec()?;
        let wrong = machine::sum(count, |n| {
            let word = word_of(n);
            u64::from(found[word as usize] != pattern(word).wrapping_add(value))
        });
        match wrong {
            0 => Ok(()),
            wrong => Err(CliError::WrongData {
                wrong,
                of: count,
                what: "the words that were stored".to_owned(),
            }),
        }
    }
}

/// Word `n` of all of them in a random order, none twice, as `placement.cu` has it.
fn in_random_order(n: u64, words: u64, bits: u32) -> u64 {
    let (mut x, mask, shift) = (n, (1 << bits) - 1, bits / 2 + 1);
    loop {
        x = (x ^ x >> shift).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        x = (x ^ x >> shift).wrapping_mul(0x94d0_49bb_1331_11eb) & mask;
        x = (x ^ x >> shift).wrapping_add(0x5bd1_e995) & mask;
        if x < words {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_order_has_each_word_once() {
        for words in [1u64, 2, 511, 512, 513, 5000] {
            let mut all: Vec<u64> = (0..words)
                .map(|n| in_random_order(n, words, words.next_power_of_two().ilog2()))
                .collect();
            all.sort_unstable();
            assert!((0..words).eq(all), "{words}");
        }
    }
}
