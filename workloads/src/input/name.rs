//! Names of inputs: a file, or a generator with its numbers.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;

/// A name that names neither a file nor a generator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing was given.
    #[error("the name is empty; {give}")]
    Empty {
        /// What to give.
        give: &'static str,
    },
    /// A generator with missing, bad or too many numbers.
    #[error("'{spec}': {what}; write {usage} (or ./{spec} for a file of that name)")]
    Numbers {
        /// What was given.
        spec: String,
        /// What is wrong with it.
        what: String,
        /// How the generator is named, with an example.
        usage: &'static str,
    },
}

/// What a name names; one that is no UTF-8 can only be a file's, of which `file` makes it.
///
/// # Errors
/// [`SpecError`].
pub fn named<S: FromStr<Err = SpecError>>(name: &OsStr, file: impl FnOnce(PathBuf) -> S) -> Result<S, SpecError> {
    match name.to_str() {
        Some(text) => text.parse(),
        None => Ok(file(name.into())),
    }
}

/// A number in the name of a generator.
#[derive(Clone, Copy)]
pub(crate) struct Number {
    pub what: &'static str,
    /// The largest; the least is 1.
    pub max: u64,
    /// That of a name which does not have it.
    pub default: Option<u64>,
}

/// The numbers of a name of the form `GENERATOR:NUMBER:NUMBER`; `None` for a name of anything else. `usage` says how to write it.
pub(crate) fn numbers<const N: usize>(
    text: &str,
    usage: &'static str,
    generator: &str,
    numbers: [Number; N],
) -> Result<Option<[u64; N]>, SpecError> {
    let mut parts = text.split(':');
    if parts.next() != Some(generator) {
        return Ok(None);
    }
    let wrong = |what: String| SpecError::Numbers {
        spec: text.to_owned(),
        what,
        usage,
    };
    let mut found = [0; N];
    for (found, Number { what, max, default }) in found.iter_mut().zip(numbers) {
        let given = parts.next();
        let number = match given {
            None => default,
            Some(word) => word.parse().ok().filter(|number| (1..=max).contains(number)),
        };
        *found = number.ok_or_else(|| match given {
            None => wrong(format!("the {what} is missing")),
            Some(word) => wrong(format!("the {what} '{word}' is not a whole number from 1 to {max}")),
        })?;
    }
    match parts.next() {
        None => Ok(Some(found)),
        Some(_) => Err(wrong("too many parts".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::graph::GraphSpec;
    use crate::table::TableSpec;
    use crate::vectors::{Clusters, VectorSpec};

    fn is_named<S: FromStr<Err = SpecError> + Display + Debug + PartialEq>(text: &str, spec: S) {
        assert_eq!(text.parse::<S>().as_ref(), Ok(&spec));
        assert_eq!(spec.to_string().parse(), Ok(spec));
    }

    #[test]
    fn names_are_understood() {
        is_named("kron:18", GraphSpec::Kronecker { scale: 18, degree: 16 });
        is_named("urand:3:5", GraphSpec::Uniform { scale: 3, degree: 5 });
        is_named("a:b.mtx", GraphSpec::File("a:b.mtx".into()));
        is_named("./kron", GraphSpec::File("./kron".into()));
        is_named("trips:1000", TableSpec::Trips { rows: 1000 });
        is_named("a:b.csv", TableSpec::File("a:b.csv".into()));
        is_named("./trips", TableSpec::File("./trips".into()));
        let named = |count, dim, clusters| VectorSpec::Clusters(Clusters { count, dim, clusters });
        is_named("clusters:1000:96", named(1000, 96, 100));
        is_named("clusters:5:2:7", named(5, 2, 7));
        is_named("a:b.fvecs", VectorSpec::File("a:b.fvecs".into()));
        is_named("./clusters", VectorSpec::File("./clusters".into()));
    }

    #[test]
    fn a_name_that_is_no_text_is_a_files() {
        let name = OsStr::from_bytes(b"kron:\xe9");
        assert_eq!(named(name, GraphSpec::File), Ok(GraphSpec::File(name.into())));
        assert!(named(OsStr::new("kron:0"), GraphSpec::File).is_err());
    }

    #[test]
    fn bad_names_are_explained() {
        fn message<S: FromStr<Err = SpecError> + Debug>(text: &str) -> String {
            text.parse::<S>().unwrap_err().to_string()
        }
        let (graph, table, vectors) = (message::<GraphSpec>, message::<TableSpec>, message::<VectorSpec>);
        assert!(graph("").contains("name a file, kron:SCALE"));
        assert!(table("").contains("name a CSV or Parquet file"));
        assert!(vectors("").contains("name a file (.fvecs, .bvecs)"));
        assert_eq!(
            graph("kron"),
            "'kron': the scale is missing; write kron:SCALE[:DEGREE], for example kron:18 (or ./kron for a file of that name)"
        );
        for scale in ["kron:", "kron:x", "kron:0", "kron:31", "urand:-3", "kron:99999999999"] {
            assert!(graph(scale).contains("is not a whole number from 1 to 30"), "{scale}");
        }
        for degree in ["kron:3:", "kron:3:0", "kron:3:4097", "urand:3:x"] {
            assert!(
                graph(degree).contains("is not a whole number from 1 to 4096"),
                "{degree}"
            );
        }
        assert!(graph("urand:3:4:5").contains("too many parts; write urand:SCALE"));
        for rows in ["trips:", "trips:0", "trips:-1", "trips:4294967297"] {
            assert!(
                table(rows).contains("is not a whole number from 1 to 4294967296"),
                "{rows}"
            );
        }
        assert!(table("trips").contains("the number of rows is missing"));
        assert!(table("trips:5:5").contains("too many parts"));
        for case in [
            "clusters => 'clusters': the count is missing; write clusters:COUNT",
            "clusters:5 => 'clusters:5': the dimension is missing;",
            "clusters:0:4 => the count '0' is not a whole number from 1 to 4294967295",
            "clusters:4294967296:4 => the count '4294967296' is not",
            "clusters:4:65537 => the dimension '65537' is not a whole number from 1 to 65536",
            "clusters:4:x => the dimension 'x' is not",
            "clusters:4:4:-1 => the number of clusters '-1' is not",
            "clusters:4:4:4:4 => too many parts",
        ] {
            let (text, expected) = case.split_once(" => ").unwrap();
            assert!(vectors(text).contains(expected), "{text}: {}", vectors(text));
        }
    }
}
