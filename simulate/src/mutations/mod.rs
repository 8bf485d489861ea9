//! Device libraries with one rule broken, to show that the checks see it. Each is a replacement of text in a header, which must be
//! there exactly once, or a setting that the library would not choose. They are in builds with the feature `mutations` alone, which tests have and
//! users need not.

use gpuvm_gpu::CompileOptions;
use gpuvm_nic::soft::FaultMixError;
use thiserror::Error;

use crate::run::Options;
use crate::workload::Workload;

#[cfg(feature = "mutations")]
mod planted;

/// Where the rule that is broken stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The n-th rule of the paging protocol whose breaking the model checker of the protocol found as well.
    Protocol(u32),
    /// The n-th of the defects that were seen in an earlier system of this kind.
    Peers(u32),
    /// The n-th of the rules of pages with two homes or with checksums.
    Guards(u32),
    /// The n-th of the rules of copies: large pages that many lanes fill, and the ends of regions.
    Copies(u32),
    /// The n-th of the rules of pages that are read where they live.
    Places(u32),
    /// The n-th of the rules of copies at a neighbour, who takes their memory back.
    Victims(u32),
    /// The n-th of the rules of arrays of which each GPU holds a copy.
    Broadcast(u32),
    /// The n-th of the rules of frames that come and go.
    Frames(u32),
}

/// A replacement of text in one header.
#[derive(Debug, Clone, Copy)]
pub struct Plant {
    /// The header.
    pub header: &'static str,
    /// What is there, exactly once.
    pub from: &'static str,
    /// What takes its place.
    pub to: &'static str,
}

/// A setting in place of, or beside, replacements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// None.
    Usual,
    /// As many frames as spans can be held, undeclared.
    FramesEqualSpans,
    /// A NIC whose READs land after their completions, and no flush of them.
    NoFlushOfReads,
}

/// One broken rule.
#[derive(Debug, Clone, Copy)]
pub struct Mutation {
    /// Its name on a command line.
    pub name: &'static str,
    /// Which rule of which list.
    pub origin: Origin,
    /// What is broken, in words.
    pub rule: &'static str,
    /// The replacements.
    pub plants: &'static [Plant],
    /// The setting.
    pub setting: Setting,
    /// The workload that finds it.
    pub workload: Workload,
    /// Faults that it takes, as on a command line.
    pub faults: &'static str,
    /// A seed that finds it, from a hunt that began at 0.
    pub seed: u64,
    /// How it shows: one of these is part of what is said then. Anything else would be another fault's doing.
    pub seen: &'static [&'static str],
}

/// A mutation that cannot be made.
#[derive(Debug, Error)]
pub enum MutationError {
    /// There is none of that name.
    #[error("there is no mutation `{name}`; --mutation list lists them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// This build has none.
    #[error("this build has no mutations; build it with `--features mutations`")]
    LeftOut,
    /// The text that it replaces is not where it was.
    #[error(
        "mutation `{name}`: `{from}` is {found} times in {header} instead of once; plant the bug where that code is now"
    )]
    Moved {
        /// The mutation.
        name: &'static str,
        /// The header.
        header: &'static str,
        /// The text.
        from: &'static str,
        /// How often it is there.
        found: usize,
    },
    /// Its faults are none.
    #[error("mutation `{name}`: its faults cannot be read")]
    Faults {
        /// The mutation.
        name: &'static str,
        /// Why.
        source: FaultMixError,
    },
}

/// All of them; none in a build without the feature `mutations`.
pub fn all() -> impl Iterator<Item = &'static Mutation> {
    #[cfg(feature = "mutations")]
    let tables = planted::ALL;
    #[cfg(not(feature = "mutations"))]
    let tables: [&[Mutation]; 0] = [];
    tables.into_iter().flatten()
}

/// The mutation of this name.
///
/// # Errors
/// There is none, or no mutation is in this build.
pub fn find(name: &str) -> Result<&'static Mutation, MutationError> {
    if cfg!(not(feature = "mutations")) {
        return Err(MutationError::LeftOut);
    }
    let found = all().find(|mutation| mutation.name == name);
    found.ok_or_else(|| MutationError::Unknown { name: name.to_owned() })
}

impl Mutation {
    /// How its seeds are run.
    ///
    /// # Errors
    /// What it replaces is not there.
    pub fn options(&self) -> Result<Options, MutationError> {
        let mut headers: Vec<(String, String)> = Vec::new();
        for plant in self.plants {
            let stock = || {
                let all = gpuvm_gpu::headers().iter();
                all.filter(|(name, _)| *name == plant.header)
                    .map(|(_, text)| (*text).to_owned())
                    .next()
            };
            let place = match headers.iter().position(|(name, _)| name == plant.header) {
                Some(place) => place,
                None => {
                    headers.push((plant.header.to_owned(), stock().unwrap_or_default()));
                    headers.len() - 1
                }
            };
            let text = &mut headers[place].1;
            let found = text.matches(plant.from).count();
            if found != 1 {
                return Err(MutationError::Moved {
                    name: self.name,
                    header: plant.header,
                    from: plant.from,
                    found,
                });
            }
            *text = text.replacen(plant.from, plant.to, 1);
        }
        let faults = match self.faults {
            "" => None,
            text => Some(text.parse().map_err(|source| MutationError::Faults {
                name: self.name,
                source,
            })?),
        };
        // The runtime's own kernels stay as they are, compiled once, unless the rule is theirs.
        const OF_SUPPORT: [&str; 5] = [
            "gpuvm/detail/flush.cuh",
            "gpuvm/detail/write_back.cuh",
            "gpuvm/detail/catch_up.cuh",
            "gpuvm/detail/broadcast.cuh",
            "gpuvm/detail/resize.cuh",
        ];
        let of_support = self.plants.iter().any(|plant| OF_SUPPORT.contains(&plant.header));
        let compile = CompileOptions {
            headers,
            ..CompileOptions::default()
        };
        Ok(Options {
            compile_support: if of_support {
                compile.clone()
            } else {
                CompileOptions::default()
            },
            compile,
            faults,
            frames_equal_spans: self.setting == Setting::FramesEqualSpans,
            unflushed: self.setting == Setting::NoFlushOfReads,
            ..Options::default()
        })
    }
}

#[cfg(all(test, feature = "mutations"))]
mod tests {
    use super::all;

    /// Long before a campaign says so: a line of the device library that was changed moves what is planted there.
    #[test]
    fn each_planted_text_is_in_its_header_once() {
        let moved: Vec<String> = all()
            .filter_map(|mutation| mutation.options().err())
            .map(|error| error.to_string())
            .collect();
        assert!(moved.is_empty(), "{}", moved.join("\n"));
    }
}
