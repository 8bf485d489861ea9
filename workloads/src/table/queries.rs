//! Five queries over trips as data, and their answers on the CPU, which every paged answer is compared with.
//!
//! They are in the spirit of the taxi queries with which BaM was measured (Qureshi et al., ASPLOS 2023): one column is
//! scanned, and the others are needed only in rows that qualified so far. An engine that moves whole columns to the GPU
//! moves all of them; one that reads on demand moves what qualifies.

use std::fmt;

use rayon::prelude::*;

use super::{Column, Trips, ZONE_MAX};

/// The most columns that a query sums.
pub const SUMS_MAX: usize = 2;

/// The most groups of a query: the taxi zones from 0, times the hours of a day.
pub const GROUPS_MAX: usize = (ZONE_MAX as usize + 1) * 24;

/// Rows of a task.
const TASK_ROWS: usize = 1 << 17;

/// A range of a column's values, both ends within. Ends are keys ([`Cell::key`](super::Cell::key)), so that every column is
/// compared as unsigned numbers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The column.
    pub column: Column,
    /// The lowest key that qualifies.
    pub min: u32,
    /// The highest key that qualifies.
    pub max: u32,
}

impl Filter {
    /// Whether a row of the table qualifies.
    fn takes(&self, trips: &Trips, row: usize) -> bool {
        (self.min..=self.max).contains(&self.column.cell().key(trips.cells(self.column)[row]))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |key| self.column.cell().value(key);
        let name = self.column.name();
        match self.max {
            u32::MAX => write!(out, "{name} >= {}", value(self.min)),
            max if max == self.min => write!(out, "{name} = {}", value(max)),
            max => write!(out, "{name} from {} to {}", value(self.min), value(max)),
        }
    }
}

/// Which rows are summed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// All that qualify.
    One,
    /// Those of a pickup zone and an hour of the day: group `zone * 24 + hour`.
    PickupZoneHour,
}

impl Grouping {
    /// How many groups there are, empty ones too.
    pub fn groups(self) -> usize {
        match self {
            Grouping::One => 1,
            Grouping::PickupZoneHour => GROUPS_MAX,
        }
    }

    /// The columns that name a row's group.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Grouping::One => &[],
            Grouping::PickupZoneHour => &[Column::PickupZone, Column::PickupTime],
        }
    }

    fn group(self, trips: &Trips, row: usize) -> usize {
        match self {
            Grouping::One => 0,
            Grouping::PickupZoneHour => {
                let hour = trips.pickup_times()[row] / 3_600 % 24;
                trips.pickup_zones()[row] as usize * 24 + hour as usize
            }
        }
    }
}

/// A query: counts and sums over the rows that all filters take.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// `Q0` to `Q4`.
    pub name: &'static str,
    /// The share of the rows that qualifies, from 0 to 1, as the filters were made for it.
    pub selectivity: f64,
    /// The first one's column is scanned; another's is needed in the rows that those before it take.
    pub filters: Vec<Filter>,
    /// The groups.
    pub grouping: Grouping,
    /// The columns of money that are summed, at most [`SUMS_MAX`].
    pub sums: Vec<Column>,
}

impl fmt::Display for Query {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: count", self.name)?;
        for column in &self.sums {
            write!(out, ", sum({})", column.name())?;
        }
        for (filter, word) in self.filters.iter().zip(["where", "and"]) {
            write!(out, " {word} {filter}")?;
        }
        match self.grouping {
            Grouping::One => Ok(()),
            Grouping::PickupZoneHour => write!(out, " by PULocationID and hour of tpep_pickup_datetime"),
        }
    }
}

/// What a query says of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows.
    pub count: u64,
    /// The sums in cents, in the order of [`Query::sums`]; 0 where there is no such column.
    pub sums: [i64; SUMS_MAX],
}

/// The answer to a query: the totals of each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// As many as [`Grouping::groups`].
    pub groups: Vec<Totals>,
}

impl Answer {
    fn empty(query: &Query) -> Answer {
        Answer {
            groups: vec![Totals::default(); query.grouping.groups()],
        }
    }

    /// Rows that qualified.
    pub fn count(&self) -> u64 {
        self.groups.iter().map(|group| group.count).sum()
    }

    fn add(mut self, other: &Answer) -> Answer {
        for (group, other) in self.groups.iter_mut().zip(&other.groups) {
            group.count += other.count;
            for (sum, other) in group.sums.iter_mut().zip(other.sums) {
                *sum += other;
            }
        }
        self
    }
}

impl Query {
    /// Takes the highest values of the scanned column, so that this share of the rows qualifies with the other filter.
    pub fn select(&mut self, trips: &Trips, share: f64) {
        self.selectivity = share;
        self.filters[0] = top(trips, self.filters[0].column, share, self.filters.get(1).copied());
    }

    /// The answer, by the CPU's cores.
    pub fn answer(&self, trips: &Trips) -> Answer {
        let tasks = trips.rows().div_ceil(TASK_ROWS);
        let answers = (0..tasks).into_par_iter().fold(
            || Answer::empty(self),
            |mut answer, task| {
                let begin = task * TASK_ROWS;
                for row in begin..trips.rows().min(begin + TASK_ROWS) {
                    if self.filters.iter().all(|filter| filter.takes(trips, row)) {
                        let group = &mut answer.groups[self.grouping.group(trips, row)];
                        group.count += 1;
                        for (sum, column) in group.sums.iter_mut().zip(&self.sums) {
                            *sum += i64::from(trips.cells(*column)[row] as i32);
                        }
                    }
                }
                answer
            },
        );
        answers.reduce(|| Answer::empty(self), |one, other| one.add(&other))
    }
}

/// The five queries for a table. Their thresholds are quantiles of its values, so that as many rows qualify as is said, and
/// those that tie with the last one; fewer where another filter takes fewer.
pub fn queries(trips: &Trips) -> [Query; 5] {
    use Column::{Distance, Fare, Passengers, Payment, PickupTime, Tip, Total};
    let query = |name, selectivity, scanned, fixed: Option<Filter>, grouping, sums: &[Column]| {
        let mut filters = vec![top(trips, scanned, selectivity, fixed)];
        filters.extend(fixed);
        let sums = sums.to_vec();
        Query {
            name,
            selectivity,
            filters,
            grouping,
            sums,
        }
    };
    let range = |column, min, max| Some(Filter { column, min, max });
    [
        query("Q0", 0.0001, Distance, None, Grouping::One, &[Total]),
        query("Q1", 0.01, Distance, None, Grouping::One, &[Fare, Tip]),
        query(
            "Q2",
            0.1,
            PickupTime,
            range(Payment, 1, 1),
            Grouping::One,
            &[Total, Tip],
        ),
        query(
            "Q3",
            0.5,
            Distance,
            range(Passengers, 1, 2),
            Grouping::One,
            &[Fare, Tip],
        ),
        query("Q4", 0.1, Distance, None, Grouping::PickupZoneHour, &[Fare, Tip]),
    ]
}

/// The filter that takes the highest values of a column, so that it and `fixed` take the share `selectivity` of all rows.
fn top(trips: &Trips, column: Column, selectivity: f64, fixed: Option<Filter>) -> Filter {
    let cell = column.cell();
    let cells = trips.cells(column).par_iter().enumerate();
    let taken = cells.filter(|(row, _)| fixed.is_none_or(|fixed| fixed.takes(trips, *row)));
    let mut keys: Vec<u32> = taken.map(|(_, bits)| cell.key(*bits)).collect();
    let wanted = ((trips.rows() as f64 * selectivity).round() as usize).clamp(1, keys.len().max(1));
    let first = keys.len().saturating_sub(wanted);
    let min = match keys.is_empty() {
        true => 0,
        false => *keys.select_nth_unstable(first).1,
    };
    let max = u32::MAX;
    Filter { column, min, max }
}

#[cfg(test)]
mod tests {
    use super::super::{Trip, generate};
    use super::*;

    #[test]
    fn queries_take_the_share_that_they_say() {
        let trips = generate(200_000, 3).unwrap();
        for query in queries(&trips) {
            let count = query.answer(&trips).count() as f64;
            let wanted = query.selectivity * trips.rows() as f64;
            // Distances are hundredths of miles: some tie with the threshold.
            assert!(count >= wanted && count < wanted * 1.02 + 5.0, "{query}: {count}");
        }
    }

    #[test]
    fn answers_are_those_of_a_plain_loop() {
        let trips = generate(300_000, 5).unwrap();
        let [q0, .., q4] = queries(&trips);
        let min = |query: &Query| match Column::Distance.cell().value(query.filters[0].min) {
            super::super::Value::F32(miles) => miles,
            other => panic!("{other}"),
        };
        let rows = || (0..trips.rows()).filter_map(|row| trips.row(row));
        let far = rows().filter(|trip| trip.distance >= min(&q0));
        let total: i64 = far.map(|trip| i64::from(trip.total)).sum();
        assert_eq!(q0.answer(&trips).groups[0].sums, [total, 0]);
        let mut groups = vec![Totals::default(); GROUPS_MAX];
        for trip in rows().filter(|trip| trip.distance >= min(&q4)) {
            let group = &mut groups[(trip.pickup_zone * 24 + trip.pickup_time % 86_400 / 3_600) as usize];
            group.count += 1;
            group.sums[0] += i64::from(trip.fare);
            group.sums[1] += i64::from(trip.tip);
        }
        assert_eq!(q4.answer(&trips).groups, groups);
    }

    #[test]
    fn tables_without_rows_that_qualify_are_answered() {
        for trips in [Trips::default(), Trips::from_trips(&[Trip::default(); 3]).unwrap()] {
            for query in queries(&trips) {
                let fixed_takes = query.filters.len() == 1;
                let count = if fixed_takes { trips.rows() as u64 } else { 0 };
                assert_eq!(query.answer(&trips).count(), count, "{query}");
            }
        }
    }

    #[test]
    fn queries_read_as_sentences() {
        let trip = Trip {
            distance: 2.5,
            passengers: 1,
            payment: 1,
            ..Trip::default()
        };
        let texts = queries(&Trips::from_trips(&[trip]).unwrap()).map(|query| query.to_string());
        assert_eq!(texts[0], "Q0: count, sum(total_amount) where trip_distance >= 2.5");
        assert!(
            texts[2].ends_with("where tpep_pickup_datetime >= 0 and payment_type = 1"),
            "{}",
            texts[2]
        );
        assert!(texts[3].ends_with("and passenger_count from 1 to 2"), "{}", texts[3]);
        assert!(
            texts[4].ends_with("by PULocationID and hour of tpep_pickup_datetime"),
            "{}",
            texts[4]
        );
    }
}
