//! Random tables written and read back, and files that are nearly tables.

use gpuvm_workloads::table::{Trip, Trips, generate, write_csv, write_parquet};
use proptest::prelude::*;

use super::{gzip, load, load_bytes};

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

/// Damages some bytes, more often near the end, where a Parquet file says what is in it.
fn damage(bytes: &mut Vec<u8>, places: &[(u32, u8)], cut: Option<u32>) {
    for &(place, value) in places {
        let length = bytes.len();
        let at = place as usize >> 1;
        let at = if place % 2 == 0 {
            at % length
        } else {
            length - 1 - at % length.min(2500)
        };
        bytes[at] ^= value;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut as usize % bytes.len());
    }
}

proptest! {
    #[test]
    fn tables_come_back(trips in trips(), zip: bool) {
        let (mut csv, mut parquet) = (Vec::new(), Vec::new());
        write_csv(&trips, &mut csv).unwrap();
        write_parquet(&trips, &mut parquet).unwrap();
        let csv = if zip { gzip(&csv) } else { csv };
        // The file's bytes say what it is, not its name.
        prop_assert_eq!(&load("trips.csv.gz", &csv), &trips);
        prop_assert_eq!(&load("trips.csv", &parquet), &trips);
    }

    /// Whatever a file holds, the answer is a table or an error that names the file.
    #[test]
    fn damaged_files_are_answered(
        places in prop::collection::vec((any::<u32>(), 1_u8..), 1..4),
        cut in prop::option::weighted(0.1, any::<u32>()),
        is_parquet: bool,
        zip: bool,
    ) {
        let trips = generate(50, 1).unwrap();
        let mut bytes = Vec::new();
        if is_parquet {
            write_parquet(&trips, &mut bytes).unwrap();
        } else {
            write_csv(&trips, &mut bytes).unwrap();
        }
        if zip && !is_parquet {
            bytes = gzip(&bytes);
        }
        damage(&mut bytes, &places, cut);
        let (result, path, _folder) = load_bytes("trips", &bytes);
        match result {
            Ok(read) => prop_assert!(read.rows() <= trips.rows()),
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.starts_with(&path.display().to_string()), "{}", message);
            }
        }
    }

    #[test]
    fn garbage_is_answered(body in prop::collection::vec(prop_oneof![
        4 => prop::sample::select(b"0123456789,\n\r.-:\"".to_vec()),
        1 => any::<u8>(),
    ], 0..200)) {
        let mut text = Vec::new();
        write_csv(&generate(1, 1).unwrap(), &mut text).unwrap();
        text.extend(body);
        let (result, path, _folder) = load_bytes("trips", &text);
        if let Err(error) = result {
            prop_assert!(error.to_string().starts_with(&path.display().to_string()), "{}", error);
        }
    }
}
