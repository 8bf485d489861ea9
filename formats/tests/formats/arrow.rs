//! Columns of files that the Arrow project's own crate wrote.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float64Array, Int8Array, Int32Array, Int64Array, LargeStringArray, ListArray, NullArray,
    RecordBatch, RunArray, StringArray, StringViewArray, StructArray, TimestampMicrosecondArray, UInt16Array,
    builder::{LargeListBuilder, StringBuilder},
    types::{Float32Type, Int32Type},
};
use arrow_ipc::{
    MetadataVersion,
    writer::{FileWriter, IpcWriteOptions, StreamWriter},
};
use arrow_schema::{DataType, Field};
use gpuvm_formats::{ArrowFile, Column, Dtype};

use crate::{read, refused, says, sum, vm, write};

pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

pub fn file_of(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// A file of these columns in a batch, opened.
pub fn opened(folder: &tempfile::TempDir, columns: Vec<(&str, ArrayRef)>) -> ArrowFile {
    let bytes = file_of(&[batch(columns)], IpcWriteOptions::default());
    ArrowFile::open(write(folder, "trips.arrow", &bytes)).unwrap()
}

/// Columns of lists: of numbers, of this many numbers each, of strings.
fn lists(first: i64, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let numbers = || first..first + rows as i64;
    let list = numbers().map(|i| (i % 3 != 0).then(|| vec![Some(i as i32); 2]));
    let vectors = numbers().map(|i| (i % 4 != 0).then(|| [Some(i as f32), Some(0.5), Some(-1.0)]));
    let mut words = LargeListBuilder::new(StringBuilder::new());
    numbers().for_each(|i| words.append_value((0..i % 3).map(|n| (n != 1).then(|| format!("{i}.{n}")))));
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(list);
    let vectors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 3);
    vec![
        ("vector", Arc::new(vectors)),
        ("words", Arc::new(words.finish())),
        ("list", Arc::new(list)),
    ]
}

/// Columns of every kind that is read, `rows` rows from number `first` on; between them kinds that are not.
pub fn mixed(first: i64, rows: usize) -> RecordBatch {
    let numbers = || first..first + rows as i64;
    macro_rules! columns {
        ($($name:literal $kind:ty: $each:expr;)*) => {
            [$(($name, Arc::new(numbers().map($each).collect::<$kind>()) as ArrayRef)),*]
        };
    }
    let x: ArrayRef = Arc::new(numbers().map(|i| i as i32).collect::<Int32Array>());
    let point = StructArray::from(vec![(Arc::new(Field::new("x", DataType::Int32, true)), x)]);
    // A file has one dictionary for all batches.
    let names = Arc::new(StringArray::from(vec!["even", "odd"]));
    let coded = DictionaryArray::new(numbers().map(|i| (i % 2) as i8).collect::<Int8Array>(), names);
    let ends = Int32Array::from_iter_values((rows > 0).then_some(rows as i32));
    let runs = RunArray::try_new(&ends, &Int32Array::from(vec![7; ends.len()])).unwrap();
    let bytes: Vec<u8> = numbers().flat_map(|i| [i as u8; 3]).collect();
    let mut all = lists(first, rows);
    all.extend(columns! {
        "id" Int64Array: |i| i;
        "fare" Float64Array: |i| (i % 5 != 0).then_some(i as f64 / 4.0);
        "view" StringViewArray: |_| Some("longer than what a view has room for");
        "name" StringArray: |i| (i % 7 != 0).then(|| "x".repeat(i as usize % 11));
        "large" LargeStringArray: |i| Some(i.to_string());
        "flag" BooleanArray: |i| Some(i % 3 == 0);
        "day" Date32Array: |i| Some(i as i32);
        "price" Decimal128Array: i128::from;
        "short" UInt16Array: |i| i as u16;
    });
    let others: [(&str, ArrayRef); 6] = [
        ("time", Arc::new(TimestampMicrosecondArray::from_iter_values(numbers()))),
        ("struct", Arc::new(point)),
        ("coded", Arc::new(coded)),
        ("null", Arc::new(NullArray::new(rows))),
        ("runs", Arc::new(runs)),
        ("binary", Arc::new(FixedSizeBinaryArray::new(3, bytes.into(), None))),
    ];
    all.extend(others);
    batch(all)
}

#[test]
fn kernels_read_columns_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let batches = [mixed(0, 5000), mixed(5000, 1), mixed(5001, 2999)];
    for options in [
        IpcWriteOptions::default(),
        IpcWriteOptions::try_new(8, false, MetadataVersion::V5).unwrap(),
        IpcWriteOptions::try_new(64, false, MetadataVersion::V4).unwrap(),
        IpcWriteOptions::try_new(8, true, MetadataVersion::V4).unwrap(),
    ] {
        let path = write(&folder, "trips.arrow", &file_of(&batches, options));
        let (vm, file) = (vm(), ArrowFile::open(&path).unwrap());
        assert_eq!((file.batches(), file.columns().len()), (3, 18));
        let rows: Vec<u64> = (0..3).map(|i| file.batch(i).unwrap().rows()).collect();
        assert_eq!(rows, [5000, 1, 2999]);
        let ids = file.column("id").unwrap();
        let ids = ids.iter().map(|part| part.values().region::<i64>(&vm).unwrap());
        let total: u64 = ids
            .map(|part| sum::<_, u64>(&vm, "long long, unsigned long long", &part))
            .sum();
        assert_eq!(total, 8000 * 7999 / 2);
        let last = |name: &str| file.batch(2).unwrap().column(name).unwrap();
        columns_are_as_written(&vm, &last);
        lists_are_as_written(&last);
        strings_are_as_written(&vm, &file);
    }
}

fn lists_are_as_written(part: &dyn Fn(&str) -> Column) {
    let numbers = 5001..8000;
    let list = part("list");
    let items = list.items().unwrap();
    let there = |i: i32| if i % 3 == 0 { 0 } else { 2 };
    let expected: Vec<i32> = numbers.clone().flat_map(|i| vec![i; there(i) as usize]).collect();
    assert_eq!((list.rows(), list.nulls()), (2999, 1000));
    assert_eq!((items.rows(), items.nulls()), (expected.len() as u64, 0));
    assert_eq!((list.list_size(), list.values().name()), (None, "list.items"));
    assert_eq!(read::<i32>(list.values()), expected);
    let lengths = read::<i32>(list.offsets().unwrap());
    assert!(
        lengths
            .windows(2)
            .zip(numbers.clone())
            .all(|(ends, i)| ends[1] - ends[0] == there(i))
    );

    // Rows that are null have their items, too.
    let vector = part("vector");
    assert_eq!((vector.list_size(), vector.nulls()), (Some(3), 749));
    assert!(vector.offsets().is_none());
    let floats = read::<f32>(vector.values());
    let rows = floats.as_chunks::<3>().0.iter().zip(numbers.clone());
    assert_eq!(floats.len(), 3 * 2999);
    rows.for_each(|(found, i)| assert!(i % 4 == 0 || *found == [i as f32, 0.5, -1.0], "{i}: {found:?}"));

    // A list of strings has offsets twice.
    let words = part("words");
    let items = words.items().unwrap();
    let (rows, ends) = (
        read::<i64>(words.offsets().unwrap()),
        read::<i32>(items.offsets().unwrap()),
    );
    let (text, validity) = (read::<u8>(words.values()), read::<u8>(items.validity().unwrap()));
    assert_eq!((items.nulls(), items.items().is_none()), (999, true));
    for (row, i) in numbers.enumerate() {
        let items = rows[row] as usize..rows[row + 1] as usize;
        assert_eq!(items.len() as i32, i % 3);
        for (n, at) in items.enumerate() {
            let word = &text[ends[at] as usize..ends[at + 1] as usize];
            match validity[at / 8] >> (at % 8) & 1 {
                1 => assert_eq!(word, format!("{i}.{n}").as_bytes()),
                _ => assert_eq!((n, word.len()), (1, 0)),
            }
        }
    }
}

fn columns_are_as_written(vm: &gpuvm::Vm, last: &dyn Fn(&str) -> Column) {
    let fare = last("fare");
    let there = |i: i32| i % 5 != 0;
    let nulls = (5001..8000).filter(|i| !there(*i)).count() as u64;
    assert_eq!((fare.rows(), fare.nulls(), fare.values().name()), (2999, nulls, "fare"));
    let fares = fare.values().region::<f64>(vm).unwrap();
    let expected: i32 = (5001..8000).filter(|i| there(*i)).sum();
    // At a null its writer has left 0.
    assert_eq!(sum::<_, f64>(vm, "double, double", &fares), f64::from(expected) / 4.0);
    let (bits, flag) = (read::<u8>(fare.validity().unwrap()), last("flag").values().clone());
    assert!((0..2999).all(|i| bits[i / 8] >> (i % 8) & 1 == u8::from(there(5001 + i as i32))));
    assert_eq!((flag.dtype(), flag.len(), flag.bytes()), (Dtype::Bits, 2999, 375));
    let bits = read::<u8>(&flag);
    assert!((0..2999).all(|i| bits[i / 8] >> (i % 8) & 1 == u8::from((5001 + i) % 3 == 0)));
    assert_eq!(read::<i32>(last("day").values())[7], 5008);
    assert_eq!(read::<i64>(last("time").values())[7], 5008);
    assert_eq!(read::<u16>(last("short").values())[7], 5008);
    assert_eq!(last("price").values().dtype(), Dtype::Bytes(16));
    assert_eq!(read::<[u64; 2]>(last("price").values())[7], [5008, 0]);
    assert_eq!(read::<u8>(last("binary").values())[3..6], [138; 3]);
}

fn strings_are_as_written(vm: &gpuvm::Vm, file: &ArrowFile) {
    let name = file.batch(0).unwrap().column("name").unwrap();
    let offsets = name.offsets().unwrap().region::<i32>(vm).unwrap();
    let validity = name.validity().unwrap().region::<u8>(vm).unwrap();
    assert_eq!(offsets.len(), 5001);
    let found = vm.buffer::<u64>(2).unwrap();
    let kernel = vm.kernel("sums.cu", crate::SUMS, "strings").unwrap();
    let launch = kernel.launch(gpuvm::LaunchConfig::new(1, 64), (&offsets, &validity, &found));
    launch.unwrap().sync().unwrap();
    assert_eq!(found.to_vec().unwrap(), [10, 5000 - 5000u64.div_ceil(7)]);
    let text = name.values().region::<u8>(vm).unwrap();
    let total: u64 = (0..5000).filter(|i| i % 7 != 0).map(|i| i % 11).sum();
    assert_eq!(
        sum::<_, u64>(vm, "unsigned char, unsigned long long", &text),
        total * u64::from(b'x')
    );
    let large = file.batch(1).unwrap().column("large").unwrap();
    assert_eq!(read::<i64>(large.offsets().unwrap()), [0, 4]);
    assert_eq!(read::<u8>(large.values()), b"5000");
}

#[test]
fn what_is_no_array_of_elements_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = file_of(&[mixed(0, 20)], IpcWriteOptions::default());
    let file = ArrowFile::open(write(&folder, "trips.arrow", &bytes)).unwrap();
    let runs = ["`runs`", "trips.arrow", "its runs", "run_end_decode"];
    says(&refused(file.column("runs")), &runs);
    let null = ["`null`", "trips.arrow", "without values", "leave it out"];
    says(&refused(file.column("null")), &null);
    let nothing = ["no column `nothing`", "`list`", "and 10 more"];
    says(&refused(file.column("nothing")), &nothing);
    says(&refused(file.batch(1)), &["record batch `1`", "it has 1"]);
    says(&refused(file.column_at(18)), &["no column `18`", "it has 18"]);
    let id = file.batch(0).unwrap().column("id").unwrap();
    let refused = refused(id.values().region::<f64>(&vm()));
    says(&refused, &["`id`", "I64", "f64", "ask for i64"]);
}

#[test]
fn lists_of_what_is_no_element_say_what_that_is() {
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let none: ArrayRef = Arc::new(FixedSizeListArray::new(item, 1, Arc::new(NullArray::new(2)), None));
    let item = Arc::new(Field::new("item", none.data_type().clone(), true));
    let deep = Arc::new(FixedSizeListArray::new(item, 1, Arc::clone(&none), None));
    let id = Arc::new(Int32Array::from(vec![7, 8]));
    let folder = tempfile::tempdir().unwrap();
    let file = opened(&folder, vec![("none", none), ("deep", deep), ("id", id)]);
    let none = ["`none.items`", "without values", "leave it out"];
    says(&refused(file.column("none")), &none);
    says(&refused(file.column("deep")), &["`deep.items.items`", "without values"]);
    assert_eq!(read::<i32>(file.column("id").unwrap()[0].values()), [7, 8]);
}

#[test]
fn columns_of_one_name_are_told_apart_by_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = |x: i32| Arc::new(Int32Array::from(vec![x]));
    let field = Arc::new(Field::new("y", DataType::Int32, true));
    let point: ArrayRef = Arc::new(StructArray::from(vec![(field, numbers(4) as ArrayRef)]));
    let file = opened(
        &folder,
        vec![("x", numbers(1)), ("x.y", numbers(2)), ("x", numbers(3)), ("x", point)],
    );
    assert_eq!(file.columns().collect::<Vec<_>>(), ["x", "x.y", "x", "x.y"]);
    says(
        &refused(file.column("x")),
        &["columns 0 and 2 of", "named `x`", ".at(0)"],
    );
    let same = file.batch(0).unwrap().column("x.y");
    says(&refused(same), &["columns 1 and 3 of", "named `x.y`", "column_at(1)"]);
    let found = (0..4).flat_map(|at| read::<i32>(file.column_at(at).unwrap()[0].values()));
    assert_eq!(found.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn files_of_no_batch_and_of_no_row_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let none = mixed(0, 0);
    let mut writer = FileWriter::try_new(Vec::new(), &none.schema()).unwrap();
    writer.finish().unwrap();
    let path = write(&folder, "none.arrow", &writer.into_inner().unwrap());
    assert!(ArrowFile::open(&path).unwrap().column("id").unwrap().is_empty());
    let path = write(&folder, "empty.arrow", &file_of(&[none], IpcWriteOptions::default()));
    let file = ArrowFile::open(&path).unwrap();
    let names = [
        "id", "name", "large", "flag", "binary", "list", "vector", "words", "struct.x", "coded", "view",
    ];
    for name in names {
        let column = file.column(name).unwrap().remove(0);
        assert!(read::<u8>(column.values()).is_empty(), "{name}");
        assert!(column.offsets().is_none_or(|offsets| offsets.len() <= 1), "{name}");
    }
}

#[test]
fn other_kinds_of_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let rows = mixed(0, 3);
    let mut stream = StreamWriter::try_new(Vec::new(), &rows.schema()).unwrap();
    stream.write(&rows).unwrap();
    stream.finish().unwrap();
    let of = |bytes: &[u8]| refused(ArrowFile::open(write(&folder, "other", bytes)));
    says(&of(&stream.into_inner().unwrap()), &["IPC stream", "FileWriter"]);
    says(&of(b"FEA1 and more of that kind FEA1"), &["version 1", "write_feather"]);
    says(&of(b"PAR1 and more of that kind PAR1"), &["Parquet", "write_feather"]);
    says(&of(b""), &["0 bytes"]);
    says(&of(b"something else, long enough"), &["does not begin with ARROW1"]);
    let whole = file_of(&[rows], IpcWriteOptions::default());
    says(&of(&whole[..whole.len() - 1]), &["cut off"]);
    for length in [-1, i32::MIN, i32::MAX, whole.len() as i32] {
        let mut bytes = whole.clone();
        let at = bytes.len() - 10;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        says(&of(&bytes), &["footer"]);
    }
}
