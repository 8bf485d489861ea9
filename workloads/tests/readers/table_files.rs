//! CSV files: what is read from good ones, and what is said of bad ones.

use gpuvm_workloads::table::{Trip, Trips};

use crate::common::{gzip, load_table, table_refusal as refusal};

const HEAD: &str = "tpep_pickup_datetime,tpep_dropoff_datetime,passenger_count,trip_distance,PULocationID,DOLocationID,\
                    payment_type,fare_amount,tip_amount,total_amount\n";
const ROW: &str = "2023-01-01 00:32:10,2023-01-01 00:40:36,1,0.97,161,141,2,9.3,0,14.3\n";

fn load(name: &str, bytes: &[u8]) -> Trips {
    load_table(name, bytes).unwrap()
}

fn trip() -> Trip {
    Trip {
        pickup_time: 1_672_533_130,
        dropoff_time: 1_672_533_636,
        passengers: 1,
        distance: 0.97,
        pickup_zone: 161,
        dropoff_zone: 141,
        payment: 2,
        fare: 930,
        tip: 0,
        total: 1430,
    }
}

#[test]
fn a_public_file_is_read() {
    // The names of 2025, in another order and another case, with columns that are not needed.
    let text = "VendorID,tpep_pickup_datetime,TPEP_dropoff_datetime,passenger_count,trip_distance,RatecodeID,store_and_fwd_flag,\
                pulocationid,DOLocationID,payment_type,fare_amount,extra,tip_amount,total_amount,Airport_fee\n\
                2,2023-01-01 00:32:10,2023-01-01 00:40:36,1.0,.97,1.0,N,161,141,2,9.3,1.0,0.0,14.3,0.0\n";
    assert_eq!(load("a.csv", text.as_bytes()).row(0), Some(trip()));
}

#[test]
fn spellings_of_lines_and_values_are_read() {
    let expected = Trips::from_trips(&[trip(), Trip::default(), trip()]).unwrap();
    let quoted =
        "\"2023-01-01T00:32:10.000\",2023-01-01 00:40:36, 1 ,\"9.7e-1\",161,141,2,+9.300,-0.0,14.2999999999\r\n";
    let text = format!("\u{feff}{}\r\n\n{ROW}\r\n  \n,,,,,,,,,\n{quoted}", HEAD.trim());
    assert_eq!(load("a.csv", text.as_bytes()), expected);
    // Gzip is known by its bytes, and the last line needs no end.
    assert_eq!(load("a", &gzip(text.trim_end().as_bytes())), expected);
}

#[test]
fn missing_values_are_0_however_they_are_written() {
    for word in [
        "", "NaN", "nan", "NULL", "null", "\\N", "NA", "N/A", "None", "<NA>", "NaT", "\"NULL\"",
    ] {
        let text = format!("{HEAD}{}\n", [word; 10].join(","));
        let expected = Trips::from_trips(&[Trip::default()]).unwrap();
        assert_eq!(load("a.csv", text.as_bytes()), expected, "{word}");
    }
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let exact = HEAD.replace("payment_type", "passenger_count");
    assert_eq!(
        refusal("a.csv", exact.as_bytes()),
        " columns 2 and 6, from 0, are both named passenger_count: rename or remove one"
    );
    let twice = HEAD.replace("tip_amount", "Tip_Amount,TIP_amount");
    assert_eq!(
        refusal("a.csv", twice.as_bytes()),
        " columns 8 and 9, from 0, are both named tip_amount: rename or remove one"
    );
    // An exact name wins.
    let text = format!(
        "{}{}",
        HEAD.replace("tip_amount", "Tip_Amount,tip_amount"),
        ROW.replace(",0,14.3", ",7,0,14.3")
    );
    assert_eq!(load("a.csv", text.as_bytes()).row(0), Some(trip()));
}

#[test]
fn negative_amounts_and_distances_are_read() {
    let text = format!("{HEAD}2098-09-11 02:23:31,2009-01-01 00:00:00,0,-12.5,0,265,4,-9.3,-0.01,-21474836.48\n");
    let row = load("a.csv", text.as_bytes()).row(0).unwrap();
    assert_eq!(
        (row.distance, row.fare, row.tip, row.total),
        (-12.5, -930, -1, i32::MIN)
    );
    assert!(row.pickup_time > row.dropoff_time);
}

#[test]
fn bad_values_are_refused_with_line_and_column() {
    let refused = |field: usize, value: &str| {
        let mut fields: Vec<&str> = ROW.trim().split(',').collect();
        fields[field] = value;
        refusal("a.csv", format!("{HEAD}{ROW}\n{}\n", fields.join(",")).as_bytes())
    };
    let end = "; correct or remove that row";
    let time = "is not a time from 1970 to 2106, such as 2023-01-31 23:59:59";
    let zone = "is not a taxi zone (a whole number from 0 to 265)";
    let code = "is not a code (a whole number from 0 to 4294967295)";
    for (field, value, expected) in [
        (
            0,
            "01/31/2023 11:59",
            format!("tpep_pickup_datetime '01/31/2023 11:59' {time}"),
        ),
        (
            1,
            "2023-02-30 00:00:00",
            format!("tpep_dropoff_datetime '2023-02-30 00:00:00' {time}"),
        ),
        (2, "two", "passenger_count 'two' is not a number".to_owned()),
        (2, "-1", format!("passenger_count '-1' {code}")),
        (2, "1.5", format!("passenger_count '1.5' {code}")),
        (3, "-inf", "trip_distance '-inf' is not a finite number".to_owned()),
        (
            3,
            "1e39",
            "trip_distance '1e39' is too large for 32-bit floating point".to_owned(),
        ),
        (4, "266", format!("PULocationID '266' {zone}")),
        (5, "1e1e1", "DOLocationID '1e1e1' is not a number".to_owned()),
        (6, "CASH", "payment_type 'CASH' is not a number".to_owned()),
        (7, "inf", "fare_amount 'inf' is not a finite number".to_owned()),
        (8, "0x1", "tip_amount '0x1' is not a number".to_owned()),
        (
            9,
            "21474836.48",
            "total_amount '21474836.48' is more than 21474836.47 dollars, which 32 bits of cents hold".to_owned(),
        ),
        // What a terminal would obey is shown, not sent to it; long values are cut.
        (7, "\u{1b}[2J", "fare_amount '\\u{1b}[2J' is not a number".to_owned()),
        (
            7,
            &"9x".repeat(50),
            format!("fare_amount '{}...' is not a number", "9x".repeat(20)),
        ),
    ] {
        assert_eq!(refused(field, value), format!("4: {expected}{end}"));
    }
    let latin = [
        HEAD.as_bytes(),
        ROW.as_bytes(),
        b"2023-01-01 00:32:10,2023-01-01 00:40:36,\xe9,1,1,1,1,1,1,1\n",
    ]
    .concat();
    assert_eq!(
        refusal("a.csv", &latin),
        format!("3: passenger_count '\u{fffd}' is not UTF-8 text{end}")
    );
}

#[test]
fn bad_lines_are_refused_with_their_number() {
    let many = "a,".repeat(1100) + "\n";
    for (text, expected) in [
        (
            format!("{HEAD}{ROW}2023-01-01 00:32:10,2023-01-01"),
            "3: 2 fields in a file of 10 columns (is the file truncated?); correct or remove that line",
        ),
        (
            format!("{HEAD}{}\n", ROW.trim().to_owned() + ",1"),
            "2: 11 fields in a file of 10 columns",
        ),
        (
            format!("{HEAD}\n\"2023-01-01\n\"{ROW}"),
            "3: a quotation mark is not closed on its line",
        ),
        (
            format!("{HEAD}{}\r{ROW}", ROW.trim()),
            "2: a carriage return within the line",
        ),
        (many, "1: more than 1024 fields"),
        (
            "x".repeat(70_000),
            "1: longer than 65536 bytes; a table is a CSV file with a trip a line",
        ),
        (String::new(), " the file holds no trip"),
        ("\n \n".to_owned(), " the file holds no trip"),
        (HEAD.to_owned(), " the file holds no trip; fetch or write it again"),
    ] {
        let message = refusal("a.csv", text.as_bytes());
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_missing_column_is_named_with_those_that_are_there() {
    let text = HEAD.replace("PULocationID", "pickup_longitude") + ROW;
    assert_eq!(
        refusal("a.csv", text.as_bytes()),
        " there is no column PULocationID; the file has 'tpep_pickup_datetime', 'tpep_dropoff_datetime', 'passenger_count', \
         'trip_distance', 'pickup_longitude', 'DOLocationID', 'payment_type', 'fare_amount', 'tip_amount', 'total_amount'. \
         Files of yellow taxis since 2015 have all that are needed"
    );
    let wide = (0..40).map(|column| format!("c{column},")).collect::<String>();
    assert!(refusal("a.csv", wide.as_bytes()).contains("'c29' and 11 more. Files"));
}

#[test]
fn trips_that_no_column_holds_are_refused() {
    let bad = |change: fn(&mut Trip)| {
        let mut trips = [trip(); 3];
        change(&mut trips[2]);
        Trips::from_trips(&trips).unwrap_err().to_string()
    };
    assert_eq!(
        bad(|trip| trip.distance = f32::NAN),
        "trip 2: trip_distance is not a finite number"
    );
    assert_eq!(
        bad(|trip| trip.dropoff_zone = 266),
        "trip 2: DOLocationID is not a taxi zone (0 to 265)"
    );
}
