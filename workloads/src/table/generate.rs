//! Random trips with the shape of the public ones: few zones have most trips, distances are near log-normal, fares follow
//! distance and duration, and pickups ascend by day through a year.
//!
//! The rows depend on their number and the seed alone: every block of rows has its own stream of random numbers, so the
//! number of cores does not matter. Only additions, multiplications and divisions are rounded, as IEEE 754 says, so the
//! machine does not matter either.

use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::{MAX_ROWS, TableError, Trip, Trips, ZONE_MAX, require_memory};
use crate::graph::generate::stream;
use crate::random::near_normal;

/// Rows drawn from one stream.
const BLOCK_ROWS: usize = 1 << 14;

/// 1 January 2023, 00:00 of New York's clock.
const YEAR_BEGINS: u32 = 1_672_531_200;

const DAYS: u64 = 365;

/// Shares of the pickups in each hour of a day, in thousandths.
const HOURS: [u32; 24] = [
    29, 20, 14, 9, 6, 6, 15, 28, 38, 42, 45, 48, 52, 53, 57, 59, 58, 64, 70, 63, 57, 58, 58, 51,
];

/// Shares of the passengers 0, 1, 2..., in thousandths.
const PASSENGERS: [u32; 7] = [20, 740, 145, 35, 20, 20, 20];

/// Shares of the payments 0, 1, 2..., in thousandths.
const PAYMENTS: [u32; 5] = [30, 780, 165, 10, 15];

/// Zones of the airports, where trips are long: JFK and LaGuardia.
const AIRPORTS: [u32; 2] = [132, 138];

/// Draws a value by its weight: 16 random bits are its place in a table that has each value as often as it weighs.
struct Draw(Vec<u16>);

impl Draw {
    fn new(weights: impl IntoIterator<Item = u32>) -> Draw {
        const SLOTS: u64 = 1 << 16;
        let weights: Vec<u64> = weights.into_iter().map(u64::from).collect();
        let total: u64 = weights.iter().sum();
        let (mut table, mut sum) = (Vec::with_capacity(SLOTS as usize), 0);
        for (value, weight) in weights.into_iter().enumerate() {
            sum += weight;
            table.resize((sum * SLOTS / total) as usize, value as u16);
        }
        Draw(table)
    }

    fn value(&self, bits: u64) -> u32 {
        self.0[(bits & 0xffff) as usize].into()
    }
}

/// What rows are drawn from.
struct Shares {
    hours: Draw,
    zones: Draw,
    passengers: Draw,
    payments: Draw,
}

impl Shares {
    fn new() -> Shares {
        // Zipf's law over the zones 1 to 263; 97 has no common factor with 263, so that zones of one rank do not neighbour.
        const ZONES: u32 = ZONE_MAX - 2;
        let rank = |zone: u32| (zone * 97) % ZONES;
        let zones = (0..=ZONES).map(|zone| if zone == 0 { 0 } else { (1 << 20) / (1 + rank(zone)) });
        Shares {
            hours: Draw::new(HOURS),
            zones: Draw::new(zones),
            passengers: Draw::new(PASSENGERS),
            payments: Draw::new(PAYMENTS),
        }
    }

    fn trip(&self, random: &mut impl Rng, day: u32) -> Trip {
        let (codes, time, size) = (random.next_u64(), random.next_u64(), random.next_u64());
        let hour = self.hours.value(time);
        let pickup_time = YEAR_BEGINS + day * 86_400 + hour * 3_600 + part(time >> 16, 3_600);
        let (pickup_zone, dropoff_zone) = (self.zones.value(codes), self.zones.value(codes >> 16));
        let passengers = self.passengers.value(codes >> 32);
        let payment = self.payments.value(codes >> 48);
        let to_airport = AIRPORTS.contains(&pickup_zone) || AIRPORTS.contains(&dropoff_zone);
        let median = if to_airport { 1_050.0 } else { 170.0 };
        let hundredths = (median * near_exp(0.85 * near_normal(size))).min(20_000.0) as u32;
        // A mile takes from 3 to 7 minutes.
        let duration = 100 + hundredths * (180 + part(time >> 32, 240)) / 100;
        let fare = (300 + hundredths * 7 / 2 + duration / 3) as i32 / 10 * 10;
        let has_toll = hundredths > 800 && time >> 62 == 0;
        let extra = 150 + if to_airport { 0 } else { 250 } + if has_toll { 694 } else { 0 };
        // Cards tip from 0 to 30 percent, and a few nothing.
        let percent = part(time >> 48, 40).saturating_sub(9) as i32;
        let tip = if payment == 1 {
            (fare + extra) * percent / 100
        } else {
            0
        };
        // A dispute takes the fare back.
        let sign = if payment == 4 { -1 } else { 1 };
        Trip {
            pickup_time,
            dropoff_time: pickup_time + duration,
            passengers,
            distance: hundredths as f32 / 100.0,
            pickup_zone,
            dropoff_zone,
            payment,
            fare: sign * fare,
            tip,
            total: sign * (fare + extra) + tip,
        }
    }
}

/// A number below `limit` from 16 random bits.
fn part(bits: u64, limit: u32) -> u32 {
    ((bits as u32 & 0xffff) * limit) >> 16
}

/// Near the exponential function around 0, by multiplications alone: (1 + x / 256)^256.
fn near_exp(x: f64) -> f64 {
    (0..8).fold(1.0 + x / 256.0, |power, _| power * power)
}

/// Draws a table of `rows` trips from a seed, on all cores.
///
/// # Errors
/// [`TableError::Memory`] where the machine cannot hold it.
///
/// # Panics
/// With more rows than [`MAX_ROWS`].
pub fn generate(rows: u64, seed: u64) -> Result<Trips, TableError> {
    assert!(rows <= MAX_ROWS, "{rows} rows are more than {MAX_ROWS}");
    require_memory(rows)?;
    let shares = Shares::new();
    let mut trips = Trips {
        columns: std::array::from_fn(|_| vec![0; rows as usize]),
    };
    let mut chunks = trips.columns.each_mut().map(|column| column.chunks_mut(BLOCK_ROWS));
    let blocks = (rows as usize).div_ceil(BLOCK_ROWS);
    let blocks: Vec<[&mut [u32]; 10]> = (0..blocks)
        .map(|_| chunks.each_mut().map(|chunk| chunk.next().unwrap_or_default()))
        .collect();
    blocks.into_par_iter().enumerate().for_each(|(block, mut columns)| {
        let mut random = stream(seed, block as u64);
        for at in 0..columns[0].len() {
            let row = (block * BLOCK_ROWS + at) as u64;
            let trip = shares.trip(&mut random, (row * DAYS / rows) as u32);
            for (column, cell) in columns.iter_mut().zip(trip.cells()) {
                column[at] = cell;
            }
        }
    });
    Ok(trips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_one_table() {
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let first = alone.install(|| generate(40_000, 7).unwrap());
        let many = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
        assert_eq!(first, many.install(|| generate(40_000, 7).unwrap()));
        assert_ne!(first, generate(40_000, 8).unwrap());
        assert_eq!(first.rows(), 40_000);
    }

    #[test]
    fn columns_have_their_shapes() {
        let trips = generate(200_000, 1).unwrap();
        let mut counts = [0_usize; ZONE_MAX as usize + 1];
        for zone in trips.pickup_zones() {
            counts[*zone as usize] += 1;
        }
        counts.sort_unstable();
        // Zipf's law: the first ten of 263 zones have H(10) / H(263) = 48 % of the trips.
        let top: usize = counts[counts.len() - 10..].iter().sum();
        assert!((90_000..102_000).contains(&top), "{top}");
        let cards = trips.payments().iter().filter(|payment| **payment == 1).count();
        assert!((154_000..158_000).contains(&cards), "{cards}");
        let mut distances = trips.distances().to_vec();
        distances.sort_unstable_by(f32::total_cmp);
        let (median, far) = (distances[100_000], distances[199_800]);
        assert!((1.4..2.5).contains(&median) && far > 10.0 * median, "{median} {far}");
        let pickups = trips.pickup_times();
        assert!(pickups.windows(2).all(|two| two[0] / 86_400 <= two[1] / 86_400));
        assert_eq!(pickups[199_999] / 86_400 - pickups[0] / 86_400, 364);
        assert!(trips.totals().iter().any(|total| *total < 0));
        for row in (0..trips.rows()).filter_map(|row| trips.row(row)) {
            assert!(row.dropoff_time > row.pickup_time && row.pickup_zone >= 1 && row.tip >= 0);
        }
    }
}
