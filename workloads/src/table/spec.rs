//! What a user writes to name a table, and loading it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{MAX_ROWS, TableError, TableSpecError, Trips, csv, generate};
use crate::graph::source::shown;

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
    let failed = |source| TableError::Open {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    // Pipes have no beginning to come back to, and Parquet's directory is at the end.
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut begins = Vec::new();
    file.by_ref().take(4).read_to_end(&mut begins).map_err(failed)?;
    file.rewind().map_err(failed)?;
    if begins.is_empty() {
        return Err(TableError::Empty { path: path.to_owned() });
    }
    if begins == PARQUET_MAGIC {
        #[cfg(feature = "parquet")]
        return super::parquet::read(path, file);
        #[cfg(not(feature = "parquet"))]
        return Err(TableError::ParquetLeftOut { path: path.to_owned() });
    }
    if path.extension().is_some_and(|end| end.eq_ignore_ascii_case("parquet")) {
        return Err(TableError::NotParquet {
            path: path.to_owned(),
            begins: shown(&String::from_utf8_lossy(&begins)),
        });
    }
    csv::read(path, file)
}

impl FromStr for TableSpec {
    type Err = TableSpecError;

    fn from_str(text: &str) -> Result<TableSpec, TableSpecError> {
        if text.is_empty() {
            return Err(TableSpecError::Empty);
        }
        if text != "trips" && !text.starts_with("trips:") {
            return Ok(TableSpec::File(PathBuf::from(text)));
        }
        let rows = text.strip_prefix("trips:").and_then(|rows| rows.parse().ok());
        match rows.filter(|rows| (1..=MAX_ROWS).contains(rows)) {
            Some(rows) => Ok(TableSpec::Trips { rows }),
            None => Err(TableSpecError::Rows { spec: text.to_owned() }),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        let trips = TableSpec::Trips { rows: 1000 };
        assert_eq!("trips:1000".parse(), Ok(trips.clone()));
        assert_eq!(trips.to_string().parse(), Ok(trips));
        assert_eq!("a:b.csv".parse(), Ok(TableSpec::File("a:b.csv".into())));
        assert_eq!("./trips".parse(), Ok(TableSpec::File("./trips".into())));
    }

    #[test]
    fn bad_names_are_explained() {
        let message = |text: &str| text.parse::<TableSpec>().unwrap_err().to_string();
        assert!(message("").contains("name a CSV or Parquet file"));
        for bad in [
            "trips",
            "trips:",
            "trips:0",
            "trips:-1",
            "trips:5:5",
            "trips:4294967297",
        ] {
            assert!(message(bad).contains("from 1 to 4294967296"), "{bad}");
        }
    }
}
