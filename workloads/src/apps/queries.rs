//! The five queries over a table of trips ([`queries`]): one column is scanned, the others are read where a row qualifies.

use std::sync::OnceLock;

use gpuvm::{Buffer, Kernel};

use super::array::{Stream, Use};
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::space::Space;
use super::{App, Array, Column as ResultColumn, Found, Loaded, Parameter, ParameterError, Parameters};
use crate::table::{Cell, Column, Filter, Grouping, Query, Trips, queries};

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;
/// Pages that a warp holds: one of the scanned column, and one of another.
const SPANS: u64 = 2;
/// The queries' names on the command line.
const NAMES: [&str; 5] = ["query0", "query1", "query2", "query3", "query4"];

/// The shares of rows that they take.
const SHARES: [&str; 5] = ["0.0001", "0.01", "0.1", "0.5", "0.1"];

parameters! {
    /// Which rows qualify.
    QueryParameters {
        /// The share of all rows: those with the highest values of the scanned column, and those that tie with the last one
        "share" share: Option<f64> = None, 0.0..=1.0;
        /// The least value of the scanned column, in the place of a share: miles, or for query2 seconds since 1970
        "least" least: Option<f64> = None, 0.0..=4_294_967_295.0;
        /// The way of payment: 1 is by card, 2 in cash
        "payment" payment: u32 = 1, 0..=u32::MAX;
        /// The fewest passengers
        "fewest" fewest: u32 = 1, 0..=u32::MAX;
        /// The most passengers
        "most" most: u32 = 2, 0..=u32::MAX;
    }
}

/// Those of one of the five queries.
#[derive(Default)]
pub struct OfQuery<const PLACE: usize>(pub QueryParameters);

impl<const PLACE: usize> Parameters for OfQuery<PLACE> {
    fn list() -> Vec<Parameter> {
        let mut all = QueryParameters::list();
        all.retain(|parameter| match parameter.name {
            "payment" => PLACE == 2,
            "fewest" | "most" => PLACE == 3,
            _ => true,
        });
        all[0].default = Some(SHARES[PLACE].to_owned());
        all
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), ParameterError> {
        self.0.set(name, text)
    }
}

/// One query over a table.
pub struct TableQuery {
    name: &'static str,
    trips: Trips,
    query: Query,
    expected: OnceLock<Vec<ResultColumn>>,
}

impl TableQuery {
    /// One of the five queries over a table.
    ///
    /// # Errors
    /// [`AppError::Input`] for a table without rows.
    pub fn new<const PLACE: usize>(trips: Trips, parameters: &OfQuery<PLACE>) -> Result<Self, AppError> {
        if trips.rows() == 0 {
            return Err(AppError::Input {
                what: "a table without rows: queries need at least one trip".to_owned(),
            });
        }
        let mut query = queries(&trips)[PLACE].clone();
        parameters.0.apply(&mut query, &trips);
        Ok(Self {
            name: NAMES[PLACE],
            trips,
            query,
            expected: OnceLock::new(),
        })
    }

    /// The groups that have rows, or all rows' one: totals of each are its rows and two sums.
    fn groups(&self, totals: &[[i64; 3]]) -> Vec<ResultColumn> {
        let one = self.query.grouping == Grouping::One;
        let there: Vec<usize> = (0..totals.len()).filter(|group| one || totals[*group][0] > 0).collect();
        let column = |name, of: &dyn Fn(usize) -> i64| {
            ResultColumn::new(name, there.iter().map(|group| of(*group)).collect::<Vec<i64>>())
        };
        let mut columns = Vec::new();
        if !one {
            columns.push(column("zone", &|group| (group / 24) as i64));
            columns.push(column("hour", &|group| (group % 24) as i64));
        }
        columns.push(column("rows", &|group| totals[group][0]));
        for (place, sum) in self.query.sums.iter().enumerate() {
            columns.push(column(cents_name(*sum), &|group| totals[group][1 + place]));
        }
        columns
    }

    /// The columns that it reads, once each.
    fn columns(&self) -> Vec<Column> {
        let filtered = self.query.filters.iter().map(|filter| &filter.column);
        let all = filtered.chain(self.query.grouping.columns()).chain(&self.query.sums);
        let mut columns = Vec::new();
        for &column in all {
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
        columns
    }
}

impl App for TableQuery {
    fn name(&self) -> &'static str {
        self.name
    }

    fn input(&self) -> String {
        format!("{} trips, {}", self.trips.rows(), self.query)
    }

    fn array_bytes(&self) -> Vec<u64> {
        vec![self.trips.rows() as u64 * 4; self.columns().len()]
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        // All of them by one compilation, which the five queries share.
        let names = ["sum_taken", "sum_taken_twice", "sum_groups"];
        let [taken, twice, groups] = space.kernels("queries.cu", include_str!("queries.cu"), names, &[])?;
        let kernel = match (self.query.grouping, self.query.filters.len()) {
            (Grouping::PickupZoneHour, _) => groups,
            (Grouping::One, 1) => taken,
            (Grouping::One, _) => twice,
        };
        let column = |column: Column| -> Result<_, AppError> {
            let array = space.array(column.name(), Use::Read, self.trips.cells(column))?;
            Ok((column, array))
        };
        let ranges: Vec<u32> = self.query.filters.iter().flat_map(range).collect();
        Ok(Box::new(Work {
            app: self,
            space,
            kernel,
            ranges: space.upload(&ranges)?,
            columns: self.columns().into_iter().map(column).collect::<Result<_, _>>()?,
            totals: space.buffer(3 * self.query.grouping.groups() as u64)?,
        }))
    }

    fn expected(&self) -> &[ResultColumn] {
        self.expected.get_or_init(|| {
            let answer = self.query.answer(&self.trips);
            let groups = answer.groups.iter();
            let totals: Vec<[i64; 3]> = groups
                .map(|group| [group.count as i64, group.sums[0], group.sums[1]])
                .collect();
            self.groups(&totals)
        })
    }
}

struct Work<'a> {
    app: &'a TableQuery,
    space: &'a Space,
    kernel: Kernel,
    columns: Vec<(Column, Array<u32>)>,
    ranges: Buffer<u32>,
    totals: Buffer<u64>,
}

impl Work<'_> {
    fn column(&self, wanted: Column) -> &Array<u32> {
        match self.columns.iter().find(|(column, _)| *column == wanted) {
            Some((_, array)) => array,
            None => unreachable!("every column of the query was made"),
        }
    }

    fn launch(&self, first: u64, count: u64) -> Result<gpuvm::Launch, AppError> {
        let query = &self.app.query;
        let arg = |column: Column| self.column(column).arg();
        let sums = query.sums.len() as u32;
        // A query with one sum has no second column: the kernel looks at it for two alone.
        let (one, other) = (query.sums[0], query.sums[query.sums.len() - 1]);
        let (one, other) = (arg(one)?, arg(other)?);
        let (config, ranges, totals) = (self.space.whole_gpu(BLOCKS, SPANS), &self.ranges, &self.totals);
        let column = arg(query.filters[0].column)?;
        let launched = match (&query.filters[1..], query.grouping.columns()) {
            ([], [zones, times]) => {
                let (zones, times) = (arg(*zones)?, arg(*times)?);
                let args = (column, zones, times, one, other, sums, ranges, totals, first, count);
                self.kernel.launch(config, args)
            }
            ([second], _) => {
                let second = arg(second.column)?;
                let args = (column, second, one, other, sums, ranges, totals, first, count);
                self.kernel.launch(config, args)
            }
            _ => {
                let args = (column, one, other, sums, ranges, totals, first, count);
                self.kernel.launch(config, args)
            }
        };
        launched.map_err(AppError::vm(Step::Run))
    }
}

/// What a sum of money is called.
fn cents_name(column: Column) -> &'static str {
    match column {
        Column::Fare => "fare_cents",
        Column::Tip => "tip_cents",
        _ => "total_cents",
    }
}

impl QueryParameters {
    /// Changes what a query takes.
    fn apply(&self, query: &mut Query, trips: &Trips) {
        let own = Self::default();
        let range = match query.filters.get(1).map(|filter| filter.column) {
            Some(Column::Payment) => Some((self.payment, self.payment)),
            Some(_) => Some((self.fewest, self.most)),
            None => None,
        };
        if let Some((min, max)) = range {
            (query.filters[1].min, query.filters[1].max) = (min, max);
        }
        if self.share.is_some() || (self.payment, self.fewest, self.most) != (own.payment, own.fewest, own.most) {
            query.select(trips, self.share.unwrap_or(query.selectivity));
        }
        if let Some(least) = self.least {
            let cell = query.filters[0].column.cell();
            let bits = if cell == Cell::F32 {
                (least as f32).to_bits()
            } else {
                least as u32
            };
            query.filters[0].min = cell.key(bits);
        }
    }
}

/// A filter as kernels take it: how its cells are ordered, the lowest and the highest key.
fn range(filter: &Filter) -> [u32; 3] {
    let cell = match filter.column.cell() {
        Cell::U32 => 0,
        Cell::I32 => 1,
        Cell::F32 => 2,
    };
    [cell, filter.min, filter.max]
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.columns.iter().try_for_each(|(_, array)| array.prefetch())?;
        let zeros = vec![0_u64; self.totals.len() as usize];
        self.totals.write(&zeros).map_err(AppError::vm(Step::Memory))?;
        let rows = |row| row;
        let streams: Vec<Stream<'_>> = self.columns.iter().map(|(_, array)| array.by_rows(&rows)).collect();
        let all = self.app.trips.rows() as u64;
        self.space
            .sweep(all, &streams, &mut |first, count| self.launch(first, count))
    }

    fn found(&self) -> Result<Found, AppError> {
        let totals = self.totals.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        Ok(self.app.groups(bytemuck::cast_slice(&totals)).into())
    }
}
