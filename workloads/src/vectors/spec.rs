//! What a user writes to name vectors, and loading them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{COUNT_MAX, Clusters, DIM_MAX, VectorError, VectorSpecError, Vectors, read_bvecs, read_fvecs};

/// The clusters of generated vectors where none are given.
const DEFAULT_CLUSTERS: u32 = 100;

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
                    Err(VectorError::Format { path: path.clone() })
                }
            }
        }
    }
}

impl FromStr for VectorSpec {
    type Err = VectorSpecError;

    fn from_str(text: &str) -> Result<VectorSpec, VectorSpecError> {
        if text.is_empty() {
            return Err(VectorSpecError::Empty);
        }
        let mut parts = text.split(':');
        if parts.next() != Some("clusters") {
            return Ok(VectorSpec::File(PathBuf::from(text)));
        }
        let wrong = |what: String| VectorSpecError::Numbers {
            spec: text.to_owned(),
            what,
        };
        let mut number = |what: &str, limit: usize, default: Option<u32>| match (parts.next(), default) {
            (None, Some(number)) => Ok(number),
            (None, None) => Err(wrong(format!("the {what} is missing"))),
            (Some(word), _) => {
                let number = word
                    .parse()
                    .ok()
                    .filter(|number| (1..=limit).contains(&(*number as usize)));
                number.ok_or_else(|| wrong(format!("the {what} '{word}' is not a whole number from 1 to {limit}")))
            }
        };
        let clusters = Clusters {
            count: number("count", COUNT_MAX, None)?,
            dim: number("dimension", DIM_MAX, None)?,
            clusters: number("number of clusters", COUNT_MAX, Some(DEFAULT_CLUSTERS))?,
        };
        match parts.next() {
            None => Ok(VectorSpec::Clusters(clusters)),
            Some(_) => Err(wrong("too many parts".to_owned())),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        let named = |count, dim, clusters| VectorSpec::Clusters(Clusters { count, dim, clusters });
        assert_eq!("clusters:1000:96".parse(), Ok(named(1000, 96, 100)));
        assert_eq!("clusters:5:2:7".parse(), Ok(named(5, 2, 7)));
        assert_eq!(named(5, 2, 7).to_string().parse(), Ok(named(5, 2, 7)));
        assert_eq!("a:b.fvecs".parse(), Ok(VectorSpec::File("a:b.fvecs".into())));
        assert_eq!("./clusters".parse(), Ok(VectorSpec::File("./clusters".into())));
    }

    #[test]
    fn bad_names_are_explained() {
        let message = |text: &str| text.parse::<VectorSpec>().unwrap_err().to_string();
        assert!(message("").contains("name a file"));
        for (text, expected) in [
            ("clusters", "'clusters': the count is missing; write clusters:COUNT"),
            ("clusters:5", "'clusters:5': the dimension is missing;"),
            (
                "clusters:0:4",
                "the count '0' is not a whole number from 1 to 4294967295",
            ),
            ("clusters:4294967296:4", "the count '4294967296' is not"),
            (
                "clusters:4:65537",
                "the dimension '65537' is not a whole number from 1 to 65536",
            ),
            ("clusters:4:x", "the dimension 'x' is not"),
            ("clusters:4:4:-1", "the number of clusters '-1' is not"),
            ("clusters:4:4:4:4", "too many parts"),
        ] {
            assert!(message(text).contains(expected), "{text}: {}", message(text));
        }
    }
}
