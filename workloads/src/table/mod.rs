//! Tables of taxi trips: columns of New York's yellow taxis, and five queries over them.
//!
//! A [`TableSpec`] names a CSV or Parquet file of the schema that the city's Taxi and Limousine Commission (TLC) publishes
//! ("Yellow Taxi Trip Records Data Dictionary"), or a generator of the same columns; [`TableSpec::load`] makes [`Trips`] of
//! it. `docs/TABLES.md` describes files and queries.
//!
//! Each column is an array of cells of 32 bits, which a region can take. Money is whole cents: sums of integers are the same
//! in every order of addition, so results of GPU and CPU are compared for equality. A null in a file becomes 0.
//!
//! ```
//! use gpuvm_workloads::table::{TableSpec, queries};
//!
//! let trips = "trips:10000".parse::<TableSpec>()?.load(1)?;
//! let [rare, ..] = queries(&trips);
//! assert_eq!(rare.answer(&trips).count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod column;
mod csv;
mod error;
mod generate;
#[cfg(feature = "parquet")]
mod parquet;
mod queries;
mod spec;

pub use column::{Cell, Column, Value, ZONE_MAX};
pub use csv::write_csv;
pub use error::TableError;
pub use generate::generate;
#[cfg(feature = "parquet")]
pub use parquet::write_parquet;
#[cfg(feature = "parquet")]
pub(crate) use parquet::{in_io, required, write_groups};
pub use queries::{Answer, Filter, GROUPS_MAX, Grouping, Query, SUMS_MAX, Totals, queries};
pub use spec::TableSpec;

use std::path::Path;

use crate::input::{FileError, FileFault, FileKind, MemoryError, Place, shown};

/// How messages speak of tables.
const KIND: FileKind = FileKind {
    what: "the table",
    give: "name a CSV or Parquet file, or trips:ROWS",
    is: "a table is a CSV file with a trip a line, or a Parquet file",
};

/// The most rows of a table: sums of this many cells of 32 bits fit into 64 bits.
pub const MAX_ROWS: u64 = 1 << 32;

/// A trip: a row of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trip {
    /// When the meter started, in seconds since 1970 of New York's clock.
    pub pickup_time: u32,
    /// When the meter stopped, in seconds since 1970 of New York's clock.
    pub dropoff_time: u32,
    /// Passengers.
    pub passengers: u32,
    /// Miles.
    pub distance: f32,
    /// The taxi zone of the start.
    pub pickup_zone: u32,
    /// The taxi zone of the end.
    pub dropoff_zone: u32,
    /// The code of the way of payment.
    pub payment: u32,
    /// The meter's fare in cents.
    pub fare: i32,
    /// The tip in cents.
    pub tip: i32,
    /// All that was paid, in cents.
    pub total: i32,
}

impl Trip {
    fn cells(&self) -> [u32; 10] {
        [
            self.pickup_time,
            self.dropoff_time,
            self.passengers,
            // As on reading: positive zero alone.
            (self.distance + 0.0).to_bits(),
            self.pickup_zone,
            self.dropoff_zone,
            self.payment,
            self.fare as u32,
            self.tip as u32,
            self.total as u32,
        ]
    }
}

/// A table of trips, by columns of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trips {
    columns: [Vec<u32>; 10],
}

macro_rules! columns {
    ($($name:ident: $type:ty, $column:ident, $of:literal;)*) => {
        $(
            #[doc = concat!("[`Column::", stringify!($column), "`] of each trip", $of, ".")]
            pub fn $name(&self) -> &[$type] {
                bytemuck::cast_slice(self.cells(Column::$column))
            }
        )*
    };
}

impl Trips {
    columns! {
        pickup_times: u32, PickupTime, " in seconds";
        dropoff_times: u32, DropoffTime, " in seconds";
        passengers: u32, Passengers, "";
        distances: f32, Distance, " in miles";
        pickup_zones: u32, PickupZone, "";
        dropoff_zones: u32, DropoffZone, "";
        payments: u32, Payment, "";
        fares: i32, Fare, " in cents";
        tips: i32, Tip, " in cents";
        totals: i32, Total, " in cents";
    }

    /// How many trips there are.
    pub fn rows(&self) -> usize {
        self.columns[0].len()
    }

    /// A column as the bits of its cells, which are of the type [`Column::cell`].
    pub fn cells(&self, column: Column) -> &[u32] {
        &self.columns[column as usize]
    }

    /// The row `row`, or `None` behind the last one.
    pub fn row(&self, row: usize) -> Option<Trip> {
        (row < self.rows()).then(|| Trip {
            pickup_time: self.pickup_times()[row],
            dropoff_time: self.dropoff_times()[row],
            passengers: self.passengers()[row],
            distance: self.distances()[row],
            pickup_zone: self.pickup_zones()[row],
            dropoff_zone: self.dropoff_zones()[row],
            payment: self.payments()[row],
            fare: self.fares()[row],
            tip: self.tips()[row],
            total: self.totals()[row],
        })
    }

    /// A table of the trips, in their order.
    ///
    /// # Errors
    /// [`TableError::Trip`] for a distance that is not a finite number and a zone above [`ZONE_MAX`].
    pub fn from_trips(trips: &[Trip]) -> Result<Trips, TableError> {
        let mut table = Trips::default();
        table.reserve(trips.len())?;
        for (row, trip) in trips.iter().enumerate() {
            let bad = |column, why| TableError::Trip { row, column, why };
            if !trip.distance.is_finite() {
                return Err(bad(Column::Distance, "is not a finite number"));
            }
            for (column, zone) in [
                (Column::PickupZone, trip.pickup_zone),
                (Column::DropoffZone, trip.dropoff_zone),
            ] {
                if zone > ZONE_MAX {
                    return Err(bad(column, "is not a taxi zone (0 to 265)"));
                }
            }
            table.push(trip.cells());
        }
        Ok(table)
    }

    /// Adds a row.
    fn push(&mut self, cells: [u32; 10]) {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
    }

    /// Makes room for more rows, where the machine has the memory.
    fn reserve(&mut self, rows: usize) -> Result<(), TableError> {
        require_memory(rows as u64)?;
        self.columns.iter_mut().for_each(|column| column.reserve_exact(rows));
        Ok(())
    }
}

/// Fails where the machine lacks the memory for this many rows.
fn require_memory(rows: u64) -> Result<(), MemoryError> {
    crate::input::require_memory(rows.saturating_mul(size_of::<Trip>() as u64))
}

/// Where each column is among the `names` of a file.
fn places(path: &Path, names: &[&str]) -> Result<[usize; 10], FileError> {
    Column::places(names).map_err(|(column, places)| {
        let (column, found) = (column.name(), listed(names));
        let what = match places[..] {
            [one, other, ..] => format!("columns {one} and {other}, from 0, are both named {column}: rename or remove one"),
            _ => format!(
                "there is no column {column}; the file has {found}. Files of yellow taxis since 2015 have all that are needed"
            ),
        };
        FileError::new(path, FileFault::Unsupported, Place::File, what)
    })
}

/// The error of a value that its column cannot have.
fn bad_value(path: &Path, place: Place, column: Column, value: &str, why: &str) -> FileError {
    let what = format!("{} {} {why}; correct or remove that row", column.name(), shown(value));
    FileError::new(path, FileFault::Malformed, place, what)
}

/// The error of a file without rows.
fn no_trip(path: &Path) -> FileError {
    let what = "the file holds no trip; fetch or write it again";
    FileError::new(path, FileFault::Empty, Place::File, what)
}

/// The error of a file of more rows than [`MAX_ROWS`].
fn too_many_rows(path: &Path, rows: u64) -> FileError {
    let what = format!("{rows} rows, at most {MAX_ROWS} are supported; split the file");
    FileError::new(path, FileFault::TooLarge, Place::File, what)
}

/// The names of a file's columns for a message.
fn listed(names: &[&str]) -> String {
    const LIMIT: usize = 30;
    let shown: Vec<String> = names.iter().take(LIMIT).map(|name| shown(name)).collect();
    let more = names.len().saturating_sub(LIMIT);
    match more {
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
