//! The data, in one array or in several with a neighbour each.

use gpuvm::{Advice, Integrity, Region};

use crate::bench::args::HomeArg;
use crate::bench::machine::{Machine, at_home, fill, pattern};
use crate::error::CliError;

/// The most arrays that a kernel takes pages of in turn.
const HOMES_MAX: usize = 3;

/// Refuses what several homes do not have.
pub fn check(homes: &[HomeArg], writes_or_lanes: bool) -> Result<(), CliError> {
    if homes.len() == 1 {
        return Ok(());
    }
    let refuse = |reason: String| Err(CliError::Options(reason));
    if homes.len() > HOMES_MAX || homes.contains(&HomeArg::Host) {
        let names = names(homes);
        return refuse(format!(
            "--home {names}; it is host, or one to {HOMES_MAX} neighbours gpu:N"
        ));
    }
    if writes_or_lanes {
        return refuse("pages with several homes are read by warps and spans: leave out lanes and --writes".to_owned());
    }
    Ok(())
}

/// Homes as they are given.
pub fn names(homes: &[HomeArg]) -> String {
    let name = |home: &HomeArg| match home {
        HomeArg::Host => "host".to_owned(),
        HomeArg::Gpu(ordinal) => format!("gpu:{ordinal}"),
    };
    homes.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Words that hold the pattern. Of several arrays, page p of the data is page p / n of array p % n.
pub struct Data {
    arrays: Vec<Region<u64>>,
}

impl Data {
    /// Arrays of `bytes` together, none of whose pages has a frame.
    pub fn new(machine: &Machine, homes: &[HomeArg], integrity: Integrity, bytes: u64) -> Result<Self, CliError> {
        let (page_words, count) = (machine.page_words, homes.len() as u64);
        let pages = bytes / 8 / page_words;
        let array = |(place, &home): (u64, &HomeArg)| {
            let words = pages.div_ceil(count) * page_words;
            let word = |index: u64| {
                let page = index / page_words * count + place;
                pattern(page * page_words + index % page_words)
            };
            let region = machine.vm.region::<u64>().name("data").integrity(integrity);
            let region = at_home(region, home).from_vec(fill(words, word)?)?;
            // Each page is to be a fault.
            region.advise(Advice::Random)?;
            Ok(region)
        };
        let arrays: Result<_, CliError> = (0..).zip(homes).map(array).collect();
        Ok(Self { arrays: arrays? })
    }

    /// The only array, or the first one.
    pub fn first(&self) -> &Region<u64> {
        &self.arrays[0]
    }

    /// Several arrays as a kernel takes them, and how many there are; the last one again where there are fewer.
    pub fn several(&self) -> Option<([&Region<u64>; HOMES_MAX], u32)> {
        let last = self.arrays.len() - 1;
        (last > 0).then(|| ([0, 1, 2].map(|place| &self.arrays[last.min(place)]), last as u32 + 1))
    }

    /// Takes all pages out of their frames.
    pub fn evict(&self) -> Result<(), CliError> {
        self.arrays.iter().try_for_each(Region::evict).map_err(CliError::Vm)
    }
}
