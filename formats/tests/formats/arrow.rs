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
use gpuvm_formats::{ArrowFile, Dtype, Elements};

use crate::{refused, says, sum, vm, write};

pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

pub fn file_of(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// Columns of lists: of numbers, of so many numbers each, of strings.
fn lists(first: i64, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let numbers = || (0..rows as i64).map(|i| first + i);
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
    let numbers = || (0..rows as i64).map(|i| first + i);
    let halves: StructArray = StructArray::from(vec![(
        Arc::new(Field::new("x", DataType::Int32, true)),
        Arc::new(numbers().map(|i| Some(i as i32)).collect::<Int32Array>()) as ArrayRef,
    )]);
    // A file has one dictionary for all batches.
    let names: ArrayRef = Arc::new(StringArray::from(vec!["even", "odd"]));
    let coded = DictionaryArray::new(Int8Array::from_iter_values(numbers().map(|i| (i % 2) as i8)), names);
    let ends = Int32Array::from_iter_values((rows > 0).then_some(rows as i32));
    let runs = RunArray::try_new(&ends, &Int32Array::from(vec![7; ends.len()])).unwrap();
    let bytes: Vec<u8> = numbers().flat_map(|i| [i as u8; 3]).collect();
    let binary = FixedSizeBinaryArray::new(3, bytes.into(), None);
    let others: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(numbers().collect::<Int64Array>())),
        ("struct", Arc::new(halves)),
        (
            "fare",
            Arc::new(
                numbers()
                    .map(|i| (i % 5 != 0).then_some(i as f64 / 4.0))
                    .collect::<Float64Array>(),
            ),
        ),
        (
            "view",
            Arc::new(
                numbers()
                    .map(|_| Some("longer than what a view has room for"))
                    .collect::<StringViewArray>(),
            ),
        ),
        (
            "name",
            Arc::new(
                numbers()
                    .map(|i| (i % 7 != 0).then(|| "x".repeat(i as usize % 11)))
                    .collect::<StringArray>(),
            ),
        ),
        ("coded", Arc::new(coded)),
        (
            "large",
            Arc::new(numbers().map(|i| Some(i.to_string())).collect::<LargeStringArray>()),
        ),
        (
            "flag",
            Arc::new(numbers().map(|i| Some(i % 3 == 0)).collect::<BooleanArray>()),
        ),
        ("null", Arc::new(NullArray::new(rows))),
        ("runs", Arc::new(runs)),
        (
            "day",
            Arc::new(numbers().map(|i| Some(i as i32)).collect::<Date32Array>()),
        ),
        ("time", Arc::new(TimestampMicrosecondArray::from_iter_values(numbers()))),
        (
            "price",
            Arc::new(numbers().map(i128::from).collect::<Decimal128Array>()),
        ),
        ("binary", Arc::new(binary)),
        (
            "short",
            Arc::new(numbers().map(|i| Some(i as u16)).collect::<UInt16Array>()),
        ),
    ];
    batch(lists(first, rows).into_iter().chain(others).collect())
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
        let total: u64 = ids.map(|part| sum::<_, u64>(&vm, "sum_i64", &part)).sum();
        assert_eq!(total, 8000 * 7999 / 2);
        columns_are_as_written(&vm, &file);
        strings_are_as_written(&vm, &file);
        lists_are_as_written(&vm, &file);
    }
}

fn lists_are_as_written(vm: &gpuvm::Vm, file: &ArrowFile) {
    let part = |name: &str| file.batch(2).unwrap().column(name).unwrap();
    let i32s = |elements: &Elements| elements.region::<i32>(vm).unwrap().to_vec().unwrap();
    let numbers = 5001..8000;

    let list = part("list");
    let items = list.items().unwrap();
    let some = numbers.clone().filter(|i| i % 3 != 0);
    let expected: Vec<i32> = some.clone().flat_map(|i| [i; 2]).collect();
    assert_eq!((list.rows(), list.nulls()), (2999, 1000));
    assert_eq!((items.rows(), items.nulls()), (2 * some.count() as u64, 0));
    assert_eq!((list.list_size(), list.values().name()), (None, "list.items"));
    assert_eq!(i32s(list.values()), expected);
    let ends = numbers.clone().scan(0, |end, i| {
        *end += if i % 3 == 0 { 0 } else { 2 };
        Some(*end)
    });
    assert_eq!(
        i32s(list.offsets().unwrap()),
        std::iter::once(0).chain(ends).collect::<Vec<_>>()
    );

    // Rows that are null have their items, too.
    let vector = part("vector");
    assert_eq!((vector.list_size(), vector.nulls()), (Some(3), 749));
    assert!(vector.offsets().is_none());
    let floats = vector.values().region::<f32>(vm).unwrap().to_vec().unwrap();
    let rows = floats.as_chunks::<3>().0.iter().zip(numbers.clone());
    assert_eq!(floats.len(), 3 * 2999);
    rows.for_each(|(found, i)| assert!(i % 4 == 0 || *found == [i as f32, 0.5, -1.0], "{i}: {found:?}"));

    // A list of strings has offsets twice.
    let words = part("words");
    let items = words.items().unwrap();
    let rows = words.offsets().unwrap().region::<i64>(vm).unwrap().to_vec().unwrap();
    let (ends, text) = (i32s(items.offsets().unwrap()), words.values().region::<u8>(vm).unwrap());
    let (text, validity) = (text.to_vec().unwrap(), items.validity().unwrap());
    let validity = validity.region::<u8>(vm).unwrap().to_vec().unwrap();
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

fn columns_are_as_written(vm: &gpuvm::Vm, file: &ArrowFile) {
    let last = file.batch(2).unwrap();
    let fare = last.column("fare").unwrap();
    let nulls = (5001..8000).filter(|i| i % 5 == 0).count();
    assert_eq!(
        (fare.rows(), fare.nulls(), fare.values().name()),
        (2999, nulls as u64, "fare")
    );
    let fares = fare.values().region::<f64>(vm).unwrap();
    let expected = (5001..8000)
        .filter(|i| i % 5 != 0)
        .map(|i| f64::from(i) / 4.0)
        .sum::<f64>();
    // At a null its writer has left 0.
    assert_eq!(sum::<_, f64>(vm, "sum_f64", &fares), expected);
    let bits = fare.validity().unwrap().region::<u8>(vm).unwrap().to_vec().unwrap();
    assert!((0..2999).all(|i| bits[i / 8] >> (i % 8) & 1 == u8::from((5001 + i) % 5 != 0)));
    let flag = last.column("flag").unwrap();
    assert_eq!(
        (flag.values().dtype(), flag.values().len(), flag.values().bytes()),
        (Dtype::Bits, 2999, 375)
    );
    let bits = flag.values().region::<u8>(vm).unwrap().to_vec().unwrap();
    assert!((0..2999).all(|i| bits[i / 8] >> (i % 8) & 1 == u8::from((5001 + i) % 3 == 0)));
    let values = |name: &str| last.column(name).unwrap().values().clone();
    assert_eq!(values("day").region::<i32>(vm).unwrap().to_vec().unwrap()[7], 5008);
    assert_eq!(values("time").region::<i64>(vm).unwrap().to_vec().unwrap()[7], 5008);
    assert_eq!(values("short").region::<u16>(vm).unwrap().to_vec().unwrap()[7], 5008);
    let prices = values("price");
    assert_eq!(prices.dtype(), Dtype::Bytes(16));
    assert_eq!(prices.region::<[u64; 2]>(vm).unwrap().to_vec().unwrap()[7], [5008, 0]);
    assert_eq!(
        values("binary").region::<u8>(vm).unwrap().to_vec().unwrap()[3..6],
        [138; 3]
    );
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
    assert_eq!(sum::<_, u64>(vm, "sum_u8", &text), total * u64::from(b'x'));
    let large = file.batch(1).unwrap().column("large").unwrap();
    assert_eq!(
        large.offsets().unwrap().region::<i64>(vm).unwrap().to_vec().unwrap(),
        [0, 4]
    );
    assert_eq!(large.values().region::<u8>(vm).unwrap().to_vec().unwrap(), b"5000");
}

#[test]
fn what_is_no_array_of_elements_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        &folder,
        "trips.arrow",
        &file_of(&[mixed(0, 20)], IpcWriteOptions::default()),
    );
    let file = ArrowFile::open(&path).unwrap();
    for (column, words) in [
        ("runs", ["its runs", "run_end_decode"]),
        ("null", ["without values", "leave it out"]),
    ] {
        let message = refused(file.column(column));
        says(&message, &words);
        says(&message, &[&format!("`{column}`"), "trips.arrow"]);
    }
    says(
        &refused(file.column("nothing")),
        &["no column `nothing`", "`list`", "and 10 more"],
    );
    says(&refused(file.batch(1)), &["record batch `1`", "it has 1"]);
    let id = file.batch(0).unwrap().column("id").unwrap();
    says(
        &refused(id.values().region::<f64>(&vm())),
        &["`id`", "I64", "f64", "ask for i64"],
    );
}

#[test]
fn lists_of_what_is_no_element_say_what_that_is() {
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let none: ArrayRef = Arc::new(FixedSizeListArray::new(item, 1, Arc::new(NullArray::new(2)), None));
    let item = Arc::new(Field::new("item", none.data_type().clone(), true));
    let rows = batch(vec![
        ("none", Arc::clone(&none)),
        ("deep", Arc::new(FixedSizeListArray::new(item, 1, none, None))),
        ("id", Arc::new(Int32Array::from(vec![7, 8]))),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "lists.arrow", &file_of(&[rows], IpcWriteOptions::default()));
    let file = ArrowFile::open(&path).unwrap();
    says(
        &refused(file.column("none")),
        &["`none.items`", "without values", "leave it out"],
    );
    says(&refused(file.column("deep")), &["`deep.items.items`", "without values"]);
    let id = file.column("id").unwrap().remove(0);
    assert_eq!(id.values().region::<i32>(&vm()).unwrap().to_vec().unwrap(), [7, 8]);
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
    let vm = vm();
    for name in [
        "id", "name", "large", "flag", "binary", "list", "vector", "words", "struct.x", "coded", "view",
    ] {
        let column = ArrowFile::open(&path).unwrap().column(name).unwrap().remove(0);
        assert!(column.values().region::<u8>(&vm).unwrap().is_empty(), "{name}");
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
    let open = |bytes: &[u8]| ArrowFile::open(write(&folder, "other", bytes));
    says(
        &refused(open(&stream.into_inner().unwrap())),
        &["IPC stream", "FileWriter"],
    );
    says(
        &refused(open(b"FEA1 and more of that kind FEA1")),
        &["version 1", "write_feather"],
    );
    says(
        &refused(open(b"PAR1 and more of that kind PAR1")),
        &["Parquet", "write_feather"],
    );
    says(&refused(open(b"")), &["0 bytes"]);
    says(
        &refused(open(b"something else, long enough")),
        &["does not begin with ARROW1"],
    );
    let whole = file_of(&[rows], IpcWriteOptions::default());
    says(&refused(open(&whole[..whole.len() - 1])), &["cut off"]);
    for length in [-1, i32::MIN, i32::MAX, whole.len() as i32] {
        let mut bytes = whole.clone();
        let at = bytes.len() - 10;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        says(&refused(open(&bytes)), &["footer"]);
    }
}
