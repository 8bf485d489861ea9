//! Parquet files of other writers: types, packings, nulls; and what is said of bad ones.

use std::sync::Arc;

use gpuvm_workloads::table::{Column, Trip, Trips, generate, write_parquet};
use parquet::basic::{Compression, ConvertedType, Encoding};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::Int96;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::common::{load_table, table_refusal as refusal};

fn load(name: &str, bytes: &[u8]) -> Trips {
    load_table(name, bytes).unwrap()
}

/// The columns as the TLC writes them, with some that are not needed.
const PUBLIC: &str = "message schema {
    optional int32 VendorID;
    optional int64 tpep_pickup_datetime (TIMESTAMP(MICROS,false));
    optional int64 tpep_dropoff_datetime (TIMESTAMP(MICROS,false));
    optional double passenger_count;
    optional double trip_distance;
    optional binary store_and_fwd_flag (STRING);
    optional int32 PULocationID;
    optional int32 DOLocationID;
    optional int64 payment_type;
    optional double fare_amount;
    optional double tip_amount;
    optional double total_amount;
    optional double Airport_fee;
}";

/// A file of two row groups with `rows` rows each. Row `r` of a column holds the number `r`, or `first` and then `r`, but for whole numbers without
/// a logical type; times
/// are `r` hours of the unit, whose second has `per_second`. Every third value of an optional column is null.
fn file(schema: &str, rows: i32, per_second: i64, first: f64, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    for _ in 0..2 {
        let mut group = file.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            let mut plain: Vec<i32> = (0..rows).collect();
            let mut levels = None;
            let leaf = match column.untyped() {
                ColumnWriter::Int32ColumnWriter(writer) => writer.get_descriptor().clone(),
                ColumnWriter::Int64ColumnWriter(writer) => writer.get_descriptor().clone(),
                ColumnWriter::Int96ColumnWriter(writer) => writer.get_descriptor().clone(),
                ColumnWriter::FloatColumnWriter(writer) => writer.get_descriptor().clone(),
                ColumnWriter::DoubleColumnWriter(writer) => writer.get_descriptor().clone(),
                ColumnWriter::ByteArrayColumnWriter(writer) => writer.get_descriptor().clone(),
                _ => panic!("a type that no test has"),
            };
            if leaf.max_def_level() == 1 {
                plain.retain(|row| row % 3 != 2);
                levels = Some((0..rows).map(|row| i16::from(row % 3 != 2)).collect::<Vec<i16>>());
            }
            let levels = levels.as_deref();
            let is_time = leaf.name().to_lowercase().ends_with("datetime");
            let named = leaf.converted_type() != ConvertedType::NONE;
            let number = |row: &i32| if *row == 0 { first } else { f64::from(*row) };
            let written = match column.untyped() {
                ColumnWriter::Int32ColumnWriter(writer) => {
                    let value = |row: &i32| if named { number(row) as i32 } else { *row };
                    writer.write_batch(&plain.iter().map(value).collect::<Vec<_>>(), levels, None)
                }
                ColumnWriter::Int64ColumnWriter(writer) => {
                    let scale = if is_time { 3_600 * per_second } else { 1 };
                    let value = |row: &i32| match named && !is_time {
                        true => number(row) as i64,
                        false => i64::from(*row) * scale,
                    };
                    writer.write_batch(&plain.iter().map(value).collect::<Vec<_>>(), levels, None)
                }
                ColumnWriter::Int96ColumnWriter(writer) => {
                    let values = plain.iter().map(|row| {
                        let nanos = *row as u64 * 3_600_000_000_000;
                        // 1 January 1970 is the Julian day 2440588.
                        let mut time = Int96::new();
                        time.set_data(nanos as u32, (nanos >> 32) as u32, 2_440_588);
                        time
                    });
                    writer.write_batch(&values.collect::<Vec<_>>(), levels, None)
                }
                ColumnWriter::FloatColumnWriter(writer) => {
                    let values: Vec<f32> = plain.iter().map(|row| number(row) as f32).collect();
                    writer.write_batch(&values, levels, None)
                }
                ColumnWriter::DoubleColumnWriter(writer) => {
                    let values: Vec<f64> = plain.iter().map(number).collect();
                    writer.write_batch(&values, levels, None)
                }
                ColumnWriter::ByteArrayColumnWriter(writer) => {
                    let values: Vec<_> = plain.iter().map(|_| "N".into()).collect();
                    writer.write_batch(&values, levels, None)
                }
                _ => panic!("a type that no test has"),
            };
            written.unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    file.into_inner().unwrap()
}

/// The table of such a file.
fn expected(rows: i32, has_nulls: bool) -> Trips {
    let group = (0..rows).map(|row| {
        let row = if has_nulls && row % 3 == 2 { 0 } else { row };
        let (code, money) = (row as u32, row * 100);
        Trip {
            pickup_time: code * 3_600,
            dropoff_time: code * 3_600,
            passengers: code,
            distance: row as f32,
            pickup_zone: code,
            dropoff_zone: code,
            payment: code,
            fare: money,
            tip: money,
            total: money,
        }
    });
    Trips::from_trips(&group.clone().chain(group).collect::<Vec<_>>()).unwrap()
}

fn plain() -> WriterPropertiesBuilder {
    WriterProperties::builder()
}

#[test]
fn public_files_are_read_however_they_are_packed() {
    for properties in [
        plain(),
        plain().set_compression(Compression::SNAPPY),
        plain().set_compression(Compression::GZIP(Default::default())),
        plain().set_compression(Compression::ZSTD(Default::default())),
        plain()
            .set_dictionary_enabled(false)
            .set_writer_version(WriterVersion::PARQUET_2_0),
        plain()
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_data_page_row_count_limit(7),
    ] {
        assert_eq!(
            load("a.parquet", &file(PUBLIC, 20, 1_000_000, 0.0, properties)),
            expected(20, true)
        );
    }
}

#[test]
fn every_type_of_numbers_and_times_is_read() {
    for (time, per_second) in [
        ("int64 NAME (TIMESTAMP(MILLIS,true))", 1_000),
        ("int64 NAME (TIMESTAMP(NANOS,false))", 1_000_000_000),
        ("int64 NAME (TIMESTAMP_MILLIS)", 1_000),
        ("int64 NAME (TIMESTAMP_MICROS)", 1_000_000),
        ("int96 NAME", 1),
    ] {
        for number in [
            "int32 NAME",
            "int64 NAME",
            "int32 NAME (INTEGER(8,false))",
            "int32 NAME (INTEGER(16,true))",
            "int32 NAME (UINT_32)",
            "int64 NAME (INTEGER(64,false))",
            "int64 NAME (UINT_64)",
            "float NAME",
            "double NAME",
        ] {
            let columns = Column::ALL.map(|column| {
                let is_time = column.name().ends_with("datetime");
                let column = if is_time { time } else { number }.replace("NAME", &column.name().to_uppercase());
                format!("required {column};")
            });
            let schema = format!("message schema {{ {} }}", columns.join(" "));
            assert_eq!(
                load("a", &file(&schema, 20, per_second, 0.0, plain())),
                expected(20, false),
                "{schema}"
            );
        }
    }
}

#[test]
fn numbers_without_a_sign_are_read_as_such() {
    let of = |column: &str, kind: &str| {
        let (physical, logical) = kind.split_once(' ').unwrap();
        let schema = PUBLIC.replace(&format!("double {column}"), &format!("{physical} {column} {logical}"));
        // A whole number without a logical type.
        let schema = schema.replace("double passenger_count", "int64 passenger_count");
        file(&schema, 4, 1_000_000, -96.0, plain())
    };
    let top = 4_294_967_200;
    for kind in ["int32 (INTEGER(32,false))", "int32 (UINT_32)", "int32 (UINT_16)"] {
        let trips = load("a.parquet", &of("passenger_count", kind));
        assert_eq!((trips.passengers()[0], trips.distances()[0]), (top, -96.0), "{kind}");
        assert_eq!(
            load("a.parquet", &of("trip_distance", kind)).distances()[0],
            top as f32,
            "{kind}"
        );
    }
    for (column, kind, value) in [
        (
            "passenger_count",
            "int64 (INTEGER(64,false))",
            "18446744073709551520' is not a code",
        ),
        (
            "passenger_count",
            "int64 (UINT_64)",
            "18446744073709551520' is not a code",
        ),
        ("passenger_count", "int32 (INTEGER(32,true))", "-96' is not a code"),
        ("passenger_count", "int64 (INT_64)", "-96' is not a code"),
        (
            "fare_amount",
            "int32 (UINT_32)",
            "4294967200' is more than 21474836.47 dollars",
        ),
    ] {
        let message = refusal("a.parquet", &of(column, kind));
        let expected = format!(" row group 0, row 0: {column} '{value}");
        assert!(message.starts_with(&expected), "{column} {kind}: {message}");
    }
}

#[test]
fn logical_types_that_are_no_numbers_are_refused_by_name() {
    for (kind, name) in [
        ("int32 NAME (DECIMAL(9,2))", "Decimal"),
        ("int64 NAME (DECIMAL(12,2))", "Decimal"),
        ("int32 NAME (DATE)", "Date"),
        ("int32 NAME (TIME(MILLIS,true))", "Time"),
        ("int64 NAME (TIME(MICROS,true))", "Time"),
        ("int64 NAME (TIMESTAMP(MILLIS,true))", "Timestamp"),
    ] {
        let schema = PUBLIC.replace("double passenger_count", &kind.replace("NAME", "passenger_count"));
        let message = refusal("a.parquet", &file(&schema, 4, 1, 0.0, plain()));
        let expected = format!(
            " the column passenger_count has the type {} as {name}",
            &kind[..5].to_uppercase()
        );
        assert!(message.starts_with(&expected), "{kind}: {message}");
    }
}

#[test]
fn nan_is_a_missing_value() {
    let trips = load("a.parquet", &file(PUBLIC, 4, 1_000_000, f64::NAN, plain()));
    assert_eq!(trips, load("a.parquet", &file(PUBLIC, 4, 1_000_000, 0.0, plain())));
}

#[test]
fn more_rows_than_a_row_group_come_back() {
    let trips = generate((1 << 20) + 5, 1).unwrap();
    let mut bytes = Vec::new();
    write_parquet(&trips, &mut bytes).unwrap();
    assert!(load("a.parquet", &bytes) == trips);
}

#[test]
fn columns_of_other_types_are_refused() {
    let refused = |from: &str, to: &str| refusal("a.parquet", &file(&PUBLIC.replace(from, to), 3, 1, 0.0, plain()));
    assert_eq!(
        refused("optional int64 payment_type", "optional binary payment_type (STRING)"),
        " the column payment_type has the type BYTE_ARRAY as String; INT32, INT64, FLOAT or DOUBLE, not repeated and not \
         nested, is needed"
    );
    assert_eq!(
        refused(
            "optional double fare_amount",
            "optional int64 fare_amount (DECIMAL(12,2))"
        ),
        " the column fare_amount has the type INT64 as Decimal(DecimalType { scale: 2, precision: 12 }); INT32, INT64, FLOAT \
         or DOUBLE, not repeated and not nested, is needed"
    );
    let seconds = refused("tpep_pickup_datetime (TIMESTAMP(MICROS,false))", "tpep_pickup_datetime");
    assert_eq!(
        seconds,
        " the column tpep_pickup_datetime has the type INT64; INT64 as TIMESTAMP, or INT96, not repeated and not nested, is \
         needed"
    );
    let missing = refused("trip_distance", "miles");
    assert!(
        missing.starts_with(" there is no column trip_distance; the file has 'VendorID', "),
        "{missing}"
    );
}

#[test]
fn bad_values_are_refused_with_row_and_column() {
    // The first value of every column of floating point is bad; columns are looked at in their order.
    let bytes = file(PUBLIC, 20, 1_000_000, 1.5, plain());
    assert_eq!(
        refusal("a.parquet", &bytes),
        " row group 0, row 0: passenger_count '1.5' is not a code (a whole number from 0 to 4294967295); correct or remove that row"
    );
    // Rows that are null count.
    let bytes = file(PUBLIC, 400, 1_000_000, 0.0, plain());
    assert_eq!(
        refusal("a.parquet", &bytes),
        " row group 0, row 267: PULocationID '267' is not a taxi zone (a whole number from 0 to 265); correct or remove that row"
    );
    let bytes = file(PUBLIC, 20, 1_000_000_000_000, 0.0, plain());
    assert!(
        refusal("a.parquet", &bytes)
            .starts_with(" row group 0, row 3: tpep_pickup_datetime '10800000000000000' is before")
    );
}

#[test]
fn other_files_called_parquet_are_refused() {
    for bytes in [&b"PARE0123456789"[..], b"text"] {
        let begins = str::from_utf8(&bytes[..4]).unwrap();
        let expected =
            format!(" no Parquet file: it begins with '{begins}', not with PAR1; fetch it again, or rename it");
        assert_eq!(refusal("a.PARQUET", bytes), expected);
    }
    assert_eq!(
        refusal("a.parquet", b""),
        " the file holds no trip; fetch or write it again"
    );
    let empty = file(PUBLIC, 0, 1, 0.0, plain());
    assert_eq!(
        refusal("a.parquet", &empty),
        " the file holds no trip; fetch or write it again"
    );
}
