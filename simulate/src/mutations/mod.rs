//! A device library with one rule broken, to show that the checks see it. Each broken rule is a replacement of text in headers, which
//! must be there exactly once, or a setting that the library would not choose. One library holds all of them and is compiled once: a
//! number chooses when kernels run. They are in builds with the feature `mutations` alone, which tests have and users need not.

use std::collections::BTreeMap;

use gpuvm_gpu::CompileOptions;
use gpuvm_nic::soft::FaultMixError;
use thiserror::Error;

use crate::room::Options;

pub use rule::{Mutation, Origin, Plant, Setting};

#[cfg(feature = "mutations")]
mod planted;
mod rule;
mod variants;

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
    /// The text that it replaces is no part of statements.
    #[error(
        "mutation `{name}`: what it changes of `{from}` in {header} is not among a function's statements; plant it there"
    )]
    Unplaced {
        /// The mutation.
        name: &'static str,
        /// The header.
        header: &'static str,
        /// The text.
        from: &'static str,
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
    let tables = [
        planted::protocol::ALL,
        planted::peers::ALL,
        planted::guards::ALL,
        planted::copies::ALL,
        planted::places::ALL,
        planted::victims::ALL,
        planted::broadcast::ALL,
        planted::frames::ALL,
        planted::look_ups::ALL,
        planted::slots::ALL,
        planted::orders::ALL,
    ];
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

/// How seeds are run in the library that has all of them, with none chosen: as without them.
///
/// # Errors
/// No mutation is in this build, or what one of them replaces is not there.
pub fn none() -> Result<Options, MutationError> {
    if cfg!(not(feature = "mutations")) {
        return Err(MutationError::LeftOut);
    }
    let compile = CompileOptions {
        headers: with_all(all())?,
        ..CompileOptions::default()
    };
    Ok(Options {
        compile_support: compile.clone(),
        compile,
        ..Options::default()
    })
}

/// The headers in which these break something, each with all that they plant there, under their numbers from 1 on.
fn with_all(mutations: impl Iterator<Item = &'static Mutation>) -> Result<Vec<(String, String)>, MutationError> {
    let mut planted: BTreeMap<&'static str, Vec<(u32, &Mutation, &Plant)>> = BTreeMap::new();
    for (number, mutation) in (1..).zip(mutations) {
        for plant in mutation.plants {
            planted.entry(plant.header).or_default().push((number, mutation, plant));
        }
    }
    let made = planted.into_iter().map(|(header, here)| {
        let known = gpuvm_gpu::headers().iter().find(|(name, _)| *name == header);
        let text = known.map_or("", |(_, text)| text);
        let edits: Result<Vec<_>, _> = here.iter().map(|of| Ok((of.0, of.2.edit(of.1.name, text)?))).collect();
        let made = variants::with_all(text, &edits?).map_err(|at| MutationError::Unplaced {
            name: here[at].1.name,
            header,
            from: here[at].2.from,
        });
        Ok((header.to_owned(), made?))
    });
    made.collect()
}

impl Plant {
    /// It in its header's text.
    fn edit(&self, name: &'static str, text: &str) -> Result<variants::Edit, MutationError> {
        let found: Vec<usize> = text.match_indices(self.from).map(|(at, _)| at).collect();
        match found[..] {
            [at] => Ok(variants::Edit::new(at, self.from, self.to)),
            _ => Err(MutationError::Moved {
                name,
                header: self.header,
                from: self.from,
                found: found.len(),
            }),
        }
    }
}

impl Mutation {
    /// How its seeds are run: in the library of [`none`], with this one chosen.
    ///
    /// # Errors
    /// As for [`none`].
    pub fn options(&self) -> Result<Options, MutationError> {
        let faults = match self.faults {
            "" => None,
            text => Some(text.parse().map_err(|source| MutationError::Faults {
                name: self.name,
                source,
            })?),
        };
        let number = (1..).zip(all()).find(|(_, other)| other.name == self.name);
        Ok(Options {
            variant: number.map_or(0, |(number, _)| number),
            faults,
            frames_equal_spans: self.setting == Setting::FramesEqualSpans,
            unflushed: self.setting == Setting::NoFlushOfReads,
            find_races: self.setting == Setting::Races,
            ..none()?
        })
    }
}

#[cfg(all(test, feature = "mutations"))]
mod tests {
    use super::{Mutation, Plant, all, find, with_all};

    /// Long before a campaign says so: a line of the device library that was changed moves what is planted there.
    #[test]
    fn each_planted_text_is_in_its_header_once_and_has_a_place_there() {
        let alone = |mutation: &'static Mutation| with_all(std::iter::once(mutation)).err();
        let moved: Vec<String> = all().filter_map(alone).map(|error| error.to_string()).collect();
        assert!(moved.is_empty(), "{}", moved.join("\n"));
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let known = all().next().expect("a mutation");
        let word = "gpuvm/detail/page_word.cuh";
        let wrong: [(&str, Plant, &str); 3] = [
            (
                "moved",
                Plant {
                    header: word,
                    from: "no such text",
                    to: "",
                },
                "0 times",
            ),
            (
                "lost",
                Plant {
                    header: "gpuvm/none.cuh",
                    from: "text",
                    to: "",
                },
                "0 times",
            ),
            (
                "outside",
                Plant {
                    header: word,
                    from: "kPin = 1ull",
                    to: "kPin = 2ull",
                },
                "not among a function's statements",
            ),
        ];
        for (name, plant, said) in wrong {
            let plants: &'static [Plant] = Box::leak(Box::new([plant]));
            let mutation: &'static Mutation = Box::leak(Box::new(Mutation { name, plants, ..*known }));
            let error = with_all(std::iter::once(mutation)).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(said), "{error}");
        }
        let error = find("none-such").expect_err("no mutation").to_string();
        assert!(error.contains("`none-such`"), "{error}");
    }
}
