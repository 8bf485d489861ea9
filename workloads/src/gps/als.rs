//! Alternating least squares: users from items and items from users, by ratings.

use std::ops::Range;

use gpuvm::{Arg, Buffer, LaunchConfig};
use rayon::prelude::*;

use super::grids::{numbers, value};
use super::{About, App, Elements, On, Part, Worker, number, refuse};
use crate::apps::AppError;
use crate::graph::{Csr, Direction};

const SOURCE: &str = include_str!("als.cu");
/// Numbers of a row of a factor, and rows of a block, as in the kernels.
const RANK: usize = 16;
const WARPS: u64 = 4;
/// Weight of a row's length, for each of its ratings.
const REGULAR: f32 = 0.1;
/// Ratings that are drawn at most.
const RATINGS_MAX: u64 = 1 << 32;
/// How far a value may be off: floats add up in another order than the processor's numbers, and rounding errors grow as equations are
/// solved.
const TOLERANCE: f64 = 1e-3;

/// The arrays.
const USERS: usize = 0;
const ITEMS: usize = 1;

/// Ratings of some users for some items, drawn at random, and two factors of rank 16 whose product is near them.
pub struct Als {
    users: u64,
    items: u64,
    each: u64,
    /// Vertices are users, and items behind them; each rating is in both rows.
    ratings: Csr,
}

impl Als {
    /// `USERSxITEMSxEACH`: each user rates this many items, fewer where one is drawn twice.
    ///
    /// # Errors
    /// [`AppError::Input`]; memory that is short.
    pub fn new(input: &str) -> Result<Self, AppError> {
        let [users, items, each] = numbers("als", input, 1, 1 << 30)?;
        if users.saturating_mul(each) > RATINGS_MAX {
            return refuse(format!(
                "`{input}` is too much for als: give it {RATINGS_MAX} ratings at most"
            ));
        }
        let draw = |n: u64| {
            let user = n / each;
            let item = ((mixed(n) >> 32) * items) >> 32;
            (user as u32, (users + item) as u32)
        };
        let edges: Vec<(u32, u32)> = (0..users * each).into_par_iter().map(draw).collect();
        let ratings = Csr::from_edges((users + items) as u32, &edges, Direction::Undirected)?;
        Ok(Self {
            users,
            items,
            each,
            ratings,
        })
    }

    fn rows(&self, array: usize) -> u64 {
        if array == USERS { self.users } else { self.items }
    }

    /// The rating of a pair: 0.5 to 5.
    fn rating(user: u32, item: u32) -> f32 {
        let hash = mixed(u64::from(user) << 32 | u64::from(item));
        ((hash >> 40) % 10 + 1) as f32 * 0.5
    }

    /// The vertices of a factor's rows.
    fn vertices(&self, array: usize) -> Range<u64> {
        match array {
            USERS => 0..self.users,
            _ => self.users..self.users + self.items,
        }
    }

    /// Rows of a factor that a part works on.
    fn part_of(&self, array: usize, part: Part) -> Range<u64> {
        part.share(self.rows(array))
    }

    /// What the rows of a factor see of the other one: offsets, rows of the other, ratings.
    fn seen(&self, array: usize, rows: &Range<u64>) -> (Vec<u64>, Vec<u32>, Vec<f32>) {
        let first = self.vertices(array).start;
        let other = self.vertices(1 - array).start as u32;
        let own = (first + rows.start) as usize..=(first + rows.end) as usize;
        let offsets = &self.ratings.offsets()[own];
        let edges = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
        let others = self.ratings.neighbours()[edges].par_iter().map(|vertex| vertex - other);
        let rate = |row: u64| {
            let vertex = (first + row) as u32;
            let pair = move |seen: &u32| (vertex.min(*seen), vertex.max(*seen));
            let rated = self.ratings.row(vertex).iter().map(pair);
            rated.map(|(user, item)| Self::rating(user, item)).collect::<Vec<f32>>()
        };
        (
            offsets.iter().map(|offset| offset - offsets[0]).collect(),
            others.collect(),
            rows.clone().into_par_iter().flat_map_iter(rate).collect(),
        )
    }
}

/// Mixes 64 bits.
fn mixed(number: u64) -> u64 {
    let hash = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

impl App for Als {
    type Word = f32;

    fn about(&self) -> About {
        About {
            name: "als",
            input: format!("{}x{}x{}", self.users, self.items, self.each),
            parts_max: self.users.min(self.items),
            lengths: vec![self.users * RANK as u64, self.items * RANK as u64],
            cycle: 1,
            steps: 2,
            is_small: self.ratings.edges() <= 1 << 20,
        }
    }

    fn initial(&self, array: usize) -> Vec<f32> {
        let length = self.rows(array) * RANK as u64;
        match array {
            USERS => vec![0.0; length as usize],
            _ => (0..length).into_par_iter().map(value).collect(),
        }
    }

    fn written(&self, step: usize, _iteration: u32, part: Part) -> Vec<Elements> {
        let rows = self.part_of(step, part);
        vec![Elements {
            array: step,
            range: rows.start * RANK as u64..rows.end * RANK as u64,
        }]
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError> {
        let [kernel] = on.kernels("gps/als.cu", SOURCE, ["als"])?;
        let blocks = match on.gpu.device().capabilities() {
            able if able.compute_capability.is_some() => u64::from(able.sm_count) * 8,
            _ => 4,
        };
        let side = |array: usize| {
            let rows = self.part_of(array, on.part);
            let (offsets, others, ratings) = self.seen(array, &rows);
            Ok::<_, AppError>(SideOfWorker {
                offsets: on.upload(&offsets)?,
                others: on.upload(&others)?,
                ratings: on.upload(&ratings)?,
                blocks: (rows.end - rows.start).div_ceil(WARPS).clamp(1, blocks) as u32,
                rows,
            })
        };
        let sides = [side(USERS)?, side(ITEMS)?];
        Ok(Box::new(move |step, _, shared| {
            let side = &sides[step];
            let (first, count) = (side.rows.start, side.rows.end - side.rows.start);
            let args = [
                shared[1 - step].clone(),
                shared[step].clone(),
                Arg::from(&side.offsets),
                Arg::from(&side.others),
                Arg::from(&side.ratings),
                number(&first),
                number(&count),
                number(&REGULAR),
            ];
            kernel.launch_raw(LaunchConfig::new(side.blocks, 32 * WARPS as u32), &args)
        }))
    }

    fn result(&self, _iterations: u32) -> usize {
        USERS
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let wide = |values: Vec<f32>| -> Vec<f64> { values.into_iter().map(f64::from).collect() };
        let mut factors = [wide(self.initial(USERS)), wide(self.initial(ITEMS))];
        for array in (0..iterations).flat_map(|_| [USERS, ITEMS]) {
            let (offsets, others, ratings) = self.seen(array, &(0..self.rows(array)));
            let other = &factors[1 - array];
            let solved = offsets.par_windows(2).flat_map_iter(|ends| {
                let row = ends[0] as usize..ends[1] as usize;
                let seen = row.map(|edge| {
                    let at = others[edge] as usize * RANK;
                    (&other[at..at + RANK], f64::from(ratings[edge]))
                });
                least_squares(&seen.collect::<Vec<_>>())
            });
            factors[array] = solved.collect();
        }
        let [users, _] = factors;
        users.into_iter().map(|value| value as f32).collect()
    }

    fn alike(&self, found: &f32, expected: &f32) -> bool {
        f64::from((found - expected).abs()) <= TOLERANCE * f64::from(expected.abs()).max(1.0)
    }
}

/// The row whose products with these rows are nearest to the ratings, its length weighed.
fn least_squares(seen: &[(&[f64], f64)]) -> [f64; RANK] {
    let mut matrix = [[0.0; RANK]; RANK];
    let mut right = [0.0; RANK];
    for (row, rating) in seen {
        for i in 0..RANK {
            right[i] += rating * row[i];
            for j in 0..RANK {
                matrix[i][j] += row[i] * row[j];
            }
        }
    }
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] += f64::from(REGULAR) * seen.len().max(1) as f64;
    }
    // By Gauss' method: the matrix is positive definite, so that no rows need be swapped.
    for k in 0..RANK {
        let (pivot, known) = (matrix[k], right[k]);
        for i in k + 1..RANK {
            let times = matrix[i][k] / pivot[k];
            (k..RANK).for_each(|j| matrix[i][j] -= times * pivot[j]);
            right[i] -= times * known;
        }
    }
    for k in (0..RANK).rev() {
        let known: f64 = (k + 1..RANK).map(|j| matrix[k][j] * right[j]).sum();
        right[k] = (right[k] - known) / matrix[k][k];
    }
    right
}

/// What a GPU has for the rows of one factor.
struct SideOfWorker {
    offsets: Buffer<u64>,
    others: Buffer<u32>,
    ratings: Buffer<f32>,
    blocks: u32,
    rows: Range<u64>,
}
