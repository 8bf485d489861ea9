//! What a user writes to name a table, and loading it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{KIND, MAX_ROWS, TableError, Trips, csv, generate};
use crate::input::{FileFault, Input, Number, Place, SpecError, numbers, shown};

/// A table by name: a file, or `trips:ROWS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSpec {
    /// A CSV file, plain or gzip, or a Parquet file.
    File(PathBuf),
    /// A generated table.
    Trips {
        /// Rows, from 1 to [`MAX_ROWS`].
        rows: u64,
    },
}

impl TableSpec {
    /// Reads the table, or generates it from `seed`, on all cores.
    ///
    /// A file is Parquet when it begins with `PAR1`, and else CSV, which is gzip when it begins with gzip's magic bytes.
    ///
    /// # Errors
    /// [`TableError`], with the file, the place in it and the column where a file is at fault.
    pub fn load(&self, seed: u64) -> Result<Trips, TableError> {
        match self {
            TableSpec::File(path) => load_file(path),
            TableSpec::Trips { rows } => generate(*rows, seed),
        }
    }
}

/// What a Parquet file begins with.
const PARQUET_MAGIC: [u8; 4] = *b"PAR1";

fn load_file(path: &Path) -> Result<Trips, TableError> {
    let file = Input::open(path, &KIND)?;
    let begin = file.begin::<4>();
    if begin == PARQUET_MAGIC {
        #[cfg(feature = "parquet")]
        return super::parquet::read(file);
        #[cfg(not(feature = "parquet"))]
        return Err(file.error(FileFault::Unsupported, Place::File, LEFT_OUT).into());
    }
    if !begin.is_empty() && path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet")) {
        let begin = shown(&String::from_utf8_lossy(&begin));
        let what = format!("no Parquet file: it begins with {begin}, not with PAR1; fetch it again, or rename it");
        return Err(file.error(FileFault::Malformed, Place::File, what).into());
    }
    csv::read(file)
}

/// What a build says of a Parquet file that reads none.
#[cfg(not(feature = "parquet"))]
const LEFT_OUT: &str = "a Parquet file, which this build does not read; build gpuvm with `--features parquet` (`./run` does so where a \
                        file's name ends in .parquet), or write the table as CSV";

impl FromStr for TableSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<TableSpec, SpecError> {
        if text.is_empty() {
            return Err(SpecError::Empty { give: KIND.give });
        }
        let rows = Number {
            what: "number of rows",
            max: MAX_ROWS,
            default: None,
        };
        let trips = numbers(text, "trips:ROWS, for example trips:1000000", "trips", [rows])?;
        Ok(match trips {
            Some([rows]) => TableSpec::Trips { rows },
            None => TableSpec::File(PathBuf::from(text)),
        })
    }
}

impl fmt::Display for TableSpec {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableSpec::File(path) => write!(out, "{}", path.display()),
            TableSpec::Trips { rows } => write!(out, "trips:{rows}"),
        }
    }
}
