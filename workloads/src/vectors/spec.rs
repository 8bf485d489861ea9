//! What a user writes to name vectors, and loading them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::files::{KIND, read_bvecs, read_fvecs};
use super::{COUNT_MAX, Clusters, DIM_MAX, VectorError, Vectors};
use crate::input::{FileError, FileFault, Number, Place, SpecError, numbers};

/// The clusters of generated vectors where none are given.
const DEFAULT_CLUSTERS: u64 = 100;

/// Vectors by name: a file, or `clusters:COUNT:DIM[:CLUSTERS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VectorSpec {
    /// A `.fvecs` or `.bvecs` file.
    File(PathBuf),
    /// Generated vectors.
    Clusters(Clusters),
}

impl VectorSpec {
    /// Reads the vectors, or generates them from `seed`, on all cores.
    ///
    /// # Errors
    /// [`VectorError`], with the file, the vector and its place in bytes where a file is at fault.
    pub fn load(&self, seed: u64) -> Result<Vectors, VectorError> {
        match self {
            VectorSpec::Clusters(clusters) => clusters.vectors(seed),
            VectorSpec::File(path) => {
                let ends = |end: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end));
                if ends("fvecs") {
                    read_fvecs(path)
                } else if ends("bvecs") {
                    read_bvecs(path)
                } else {
                    let what =
                        "the name ends in neither .fvecs nor .bvecs, so its format is not known; rename the file";
                    Err(FileError::new(path, FileFault::Unsupported, Place::File, what).into())
                }
            }
        }
    }
}

impl FromStr for VectorSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<VectorSpec, SpecError> {
        if text.is_empty() {
            return Err(SpecError::Empty { give: KIND.give });
        }
        let number = |what, max: usize, default| Number {
            what,
            max: max as u64,
            default,
        };
        let wanted = [
            number("count", COUNT_MAX, None),
            number("dimension", DIM_MAX, None),
            number("number of clusters", COUNT_MAX, Some(DEFAULT_CLUSTERS)),
        ];
        let usage = "clusters:COUNT:DIM[:CLUSTERS], for example clusters:100000:96";
        // The largest ones are numbers of 32 bits.
        let found = numbers(text, usage, "clusters", wanted)?.map(|found| found.map(|number| number as u32));
        Ok(match found {
            Some([count, dim, clusters]) => VectorSpec::Clusters(Clusters { count, dim, clusters }),
            None => VectorSpec::File(PathBuf::from(text)),
        })
    }
}

impl fmt::Display for VectorSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VectorSpec::File(path) => write!(out, "{}", path.display()),
            VectorSpec::Clusters(Clusters { count, dim, clusters }) => {
                write!(out, "clusters:{count}:{dim}:{clusters}")
            }
        }
    }
}
