//! Random tables written and read back.

use gpuvm_workloads::table::{Trip, Trips, write_csv, write_parquet};
use proptest::prelude::*;

use crate::common::{gzip, load_table};

fn trips() -> impl Strategy<Value = Trips> {
    let times = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let miles = prop_oneof![
        3 => (-100_000_i32..100_000).prop_map(|hundredths| hundredths as f32 / 100.0),
        1 => any::<f32>().prop_filter("finite", |miles| miles.is_finite()),
    ];
    let zones = (0..=265_u32, 0..=265_u32);
    let money = (any::<i32>(), any::<i32>(), any::<i32>());
    let trip = (times, miles, zones, money).prop_map(|(times, distance, zones, money)| Trip {
        pickup_time: times.0,
        dropoff_time: times.1,
        passengers: times.2,
        distance,
        pickup_zone: zones.0,
        dropoff_zone: zones.1,
        payment: times.3,
        fare: money.0,
        tip: money.1,
        total: money.2,
    });
    prop::collection::vec(trip, 1..60).prop_map(|trips| Trips::from_trips(&trips).unwrap())
}

proptest! {
    #[test]
    fn tables_come_back(trips in trips(), zip: bool) {
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        write_csv(&trips, &mut csv).unwrap();
        write_parquet(&trips, &mut parquet).unwrap();
        let csv = if zip { gzip(&csv) } else { csv };
        // The file's bytes say what it is, not its name.
        prop_assert_eq!(&load_table("trips.csv.gz", &csv).unwrap(), &trips);
        prop_assert_eq!(&load_table("trips.csv", &parquet).unwrap(), &trips);
    }
}
