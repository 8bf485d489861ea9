//! Fields of structures, maps, and columns that dictionaries encode.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, DictionaryArray, Int8Array, Int32Array, RecordBatch, StringArray, StringViewArray, StructArray,
    builder::{
        Float64Builder, Int32Builder, ListBuilder, MapBuilder, StringBuilder, StringDictionaryBuilder, StructBuilder,
    },
    types::{Int8Type, Int16Type},
};
use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions};
use arrow_schema::{DataType, Field, Fields};
use gpuvm_formats::{ArrowFile, Column, Elements};

use crate::{
    arrow::{batch, file_of},
    refused, says, vm, write,
};

fn opened(folder: &tempfile::TempDir, batches: &[RecordBatch]) -> ArrowFile {
    let path = write(folder, "nested.arrow", &file_of(batches, IpcWriteOptions::default()));
    ArrowFile::open(path).unwrap()
}

fn bytes(elements: &Elements) -> Vec<u8> {
    elements.region::<u8>(&vm()).unwrap().to_vec().unwrap()
}

fn i32s(elements: &Elements) -> Vec<i32> {
    elements.region::<i32>(&vm()).unwrap().to_vec().unwrap()
}

/// Whether row `i` is there, by its own bit and those of the structures around it.
fn is_there(column: &Column, i: usize) -> bool {
    let mut kept = column.within().iter().chain(column.validity());
    kept.all(|bits| bytes(bits)[i / 8] >> (i % 8) & 1 == 1)
}

fn strings(column: &Column) -> Vec<String> {
    let (ends, text) = (i32s(column.offsets().unwrap()), bytes(column.values()));
    let places = ends.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
    places
        .map(|place| String::from_utf8(text[place].to_vec()).unwrap())
        .collect()
}

/// A place: a name, and the numbers `x`, `y` in a structure of their own.
fn places(rows: i32) -> ArrayRef {
    let inner = Fields::from(vec![
        Field::new("x", DataType::Int32, true),
        Field::new("y", DataType::Float64, true),
    ]);
    let fields = vec![
        Field::new("name", DataType::Utf8, true),
        Field::new_struct("at", inner, true),
    ];
    let mut places = StructBuilder::from_fields(fields, 0);
    for i in 0..rows {
        let name = places.field_builder::<StringBuilder>(0).unwrap();
        name.append_value(format!("p{i}"));
        let at = places.field_builder::<StructBuilder>(1).unwrap();
        at.field_builder::<Int32Builder>(0)
            .unwrap()
            .append_option((i % 5 != 0).then_some(i));
        at.field_builder::<Float64Builder>(1)
            .unwrap()
            .append_value(f64::from(i) / 2.0);
        at.append(i % 3 != 0);
        places.append(i % 2 != 0);
    }
    Arc::new(places.finish())
}

#[test]
fn a_field_of_a_structure_is_a_column() {
    let folder = tempfile::tempdir().unwrap();
    let id: ArrayRef = Arc::new((0..100).collect::<Int32Array>());
    let named: ArrayRef = Arc::new((0..100).map(|i| i + 1000).collect::<Int32Array>());
    let rows = batch(vec![("place", places(100)), ("id", id), ("place.id", named)]);
    let file = opened(&folder, &[rows]);
    assert_eq!(
        file.columns().collect::<Vec<_>>(),
        ["place.name", "place.at.x", "place.at.y", "id", "place.id"]
    );
    let column = |name: &str| file.column(name).unwrap().remove(0);
    let x = column("place.at.x");
    let values = i32s(x.values());
    assert_eq!(
        (x.rows(), x.nulls(), x.within().len(), x.values().name()),
        (100, 20, 2, "place.at.x")
    );
    for (i, value) in values.iter().enumerate() {
        let there = i % 2 != 0 && i % 3 != 0 && i % 5 != 0;
        assert_eq!(is_there(&x, i), there, "row {i}");
        assert!(!there || *value == i as i32);
    }
    assert_eq!(values.len(), 100);
    let y = column("place.at.y");
    let values = y.values().region::<f64>(&vm()).unwrap().to_vec().unwrap();
    assert!(y.validity().is_none() && (0..100).all(|i| values[i] == i as f64 / 2.0));
    let name = column("place.name");
    assert_eq!((strings(&name)[99].as_str(), name.within().len()), ("p99", 1));
    // A column whose own name has a dot.
    assert_eq!(i32s(column("place.id").values())[7], 1007);
    assert_eq!((i32s(column("id").values())[7], column("id").within().len()), (7, 0));
    for (wrong, has) in [
        ("place", "`place.name`, `place.at.x`, `place.at.y`"),
        ("place.at", "`id`"),
        ("place.", "`id`"),
        ("place.at.z", "`place.id`"),
        ("", "`id`"),
    ] {
        says(&refused(file.column(wrong)), &[&format!("no column `{wrong}`"), has]);
    }
}

#[test]
fn fields_of_structures_in_lists_and_maps_have_offsets() {
    let mut points = ListBuilder::new(StructBuilder::from_fields(
        vec![Field::new("x", DataType::Int32, true)],
        0,
    ));
    let mut stock = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in 0..50 {
        for i in 0..row % 4 {
            let point = points.values();
            point
                .field_builder::<Int32Builder>(0)
                .unwrap()
                .append_value(10 * row + i);
            point.append(i != 1);
            stock.keys().append_value(format!("k{i}"));
            stock.values().append_value(row + i);
        }
        points.append(row % 7 != 0);
        stock.append(true).unwrap();
    }
    let (points, stock): (ArrayRef, ArrayRef) = (Arc::new(points.finish()), Arc::new(stock.finish()));
    let folder = tempfile::tempdir().unwrap();
    let file = opened(&folder, &[batch(vec![("points", points), ("stock", stock)])]);
    assert_eq!(
        file.columns().collect::<Vec<_>>(),
        ["points.x", "stock.key", "stock.value"]
    );
    let column = |name: &str| file.column(name).unwrap().remove(0);
    let (x, keys, amounts) = (column("points.x"), column("stock.key"), column("stock.value"));
    assert_eq!((x.rows(), x.nulls(), keys.rows(), keys.nulls()), (50, 8, 50, 0));
    let (ends, values, items) = (i32s(x.offsets().unwrap()), i32s(x.values()), x.items().unwrap());
    // Which point is null is said of the items, not of the rows.
    assert_eq!((x.within().len(), items.within().len(), items.nulls()), (0, 1, 0));
    assert_eq!(items.within()[0].name(), "points.x.items.within");
    let (names, amounts_ends) = (strings(keys.items().unwrap()), i32s(amounts.offsets().unwrap()));
    for row in 0..50 {
        let places = ends[row as usize] as usize..ends[row as usize + 1] as usize;
        assert_eq!(places.len() as i32, row % 4);
        let there = places.clone().map(|i| is_there(items, i));
        assert!(there.eq((0..row % 4).map(|i| i != 1)));
        assert_eq!(
            values[places.clone()],
            (0..row % 4).map(|i| 10 * row + i).collect::<Vec<_>>()
        );
        assert!(
            names[places]
                .iter()
                .enumerate()
                .all(|(i, name)| *name == format!("k{i}"))
        );
    }
    assert_eq!(amounts_ends, ends);
    assert_eq!(i32s(amounts.values())[..6], [1, 2, 3, 3, 4, 5]);
}

#[test]
fn a_column_that_a_dictionary_encodes_has_places_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let coded = |values: &[&str], rows: i8| -> ArrayRef {
        let places = Int8Array::from_iter((0..rows).map(|i| (i % 5 != 4).then_some(i % values.len() as i8)));
        Arc::new(DictionaryArray::new(
            places,
            Arc::new(StringArray::from(values.to_vec())),
        ))
    };
    // The second batch goes on with the first one's dictionary.
    let batches = [
        batch(vec![("kind", coded(&["bus", "taxi"], 60))]),
        batch(vec![("kind", coded(&["bus", "taxi", "tram", "boat"], 9))]),
    ];
    let options = IpcWriteOptions::default().with_dictionary_handling(DictionaryHandling::Delta);
    let file = ArrowFile::open(write(&folder, "delta.arrow", &file_of(&batches, options))).unwrap();
    let parts = file.column("kind").unwrap();
    assert_eq!(parts.len(), 2);
    for (part, values) in parts.iter().zip([2, 4]) {
        let names: Vec<String> = part.dictionary().iter().flat_map(strings).collect();
        assert_eq!(
            (part.dictionary().len(), names.join(" ").as_str()),
            (2, "bus taxi tram boat")
        );
        let places = part.values().region::<i8>(&vm()).unwrap().to_vec().unwrap();
        for (i, place) in places.iter().enumerate() {
            assert_eq!(is_there(part, i), i % 5 != 4);
            assert!(i % 5 == 4 || *place as usize == i % values);
        }
    }
    let mut tags = ListBuilder::new(StringDictionaryBuilder::<Int16Type>::new());
    (0..30).for_each(|i| tags.append_value((0..i % 3).map(|n| Some(format!("t{n}")))));
    let within = StructArray::from(vec![(
        Arc::new(Field::new("kind", coded(&["a"], 30).data_type().clone(), true)),
        coded(&["a"], 30),
    )]);
    let (tags, within): (ArrayRef, ArrayRef) = (Arc::new(tags.finish()), Arc::new(within));
    let file = opened(&folder, &[batch(vec![("tags", tags), ("within", within)])]);
    let tags = file.column("tags").unwrap().remove(0);
    let items = tags.items().unwrap();
    assert_eq!((tags.dictionary().len(), items.rows()), (0, 30));
    assert_eq!(strings(&items.dictionary()[0]), ["t0", "t1"]);
    let places = tags.values().region::<i16>(&vm()).unwrap().to_vec().unwrap();
    assert_eq!(places[..6], [0, 0, 1, 0, 0, 1]);
    let kind = file.column("within.kind").unwrap().remove(0);
    assert_eq!(
        (strings(&kind.dictionary()[0]), kind.nulls()),
        (vec!["a".to_owned()], 6)
    );
}

#[test]
fn dictionaries_that_cannot_be_do_not_harm_other_columns() {
    let folder = tempfile::tempdir().unwrap();
    let id: ArrayRef = Arc::new(Int32Array::from(vec![4, 5]));
    let places = Int8Array::from(vec![0, 0]);
    let points = StructArray::from(vec![(
        Arc::new(Field::new("x", DataType::Int32, false)),
        Arc::new(Int32Array::from(vec![3])) as ArrayRef,
    )]);
    let points = DictionaryArray::<Int8Type>::new(places.clone(), Arc::new(points));
    let kinds = DictionaryArray::<Int8Type>::new(places, Arc::new(StringArray::from(vec!["some kind"])));
    let columns: Vec<(&str, ArrayRef)> = vec![("point", Arc::new(points)), ("kind", Arc::new(kinds)), ("id", id)];
    let mut whole = file_of(&[batch(columns)], IpcWriteOptions::default());
    let file = ArrowFile::open(write(&folder, "whole.arrow", &whole)).unwrap();
    says(
        &refused(file.column("point")),
        &["`point.dictionary`", "a structure", "columns of its parts"],
    );
    assert_eq!(strings(&file.column("kind").unwrap()[0].dictionary()[0]), ["some kind"]);
    // The first dictionary's description begins after the schema's: four bytes of 0xff, and its length.
    let begins = (8..whole.len() - 8).filter(|&at| whole[at..at + 4] == [0xff; 4]);
    let second = begins.filter(|at| at % 8 == 0).nth(1).unwrap();
    whole[second + 8..second + 40].fill(0xee);
    let file = ArrowFile::open(write(&folder, "broken.arrow", &whole)).unwrap();
    says(
        &refused(file.column("kind")),
        &["dictionary batch 0", "damaged", "broken.arrow"],
    );
    assert_eq!(i32s(file.column("id").unwrap()[0].values()), [4, 5]);
}

#[test]
fn a_structure_without_fields_has_nothing_to_look_up() {
    let folder = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("none", Arc::new(StructArray::new_empty_fields(2, None))),
        ("id", Arc::new(Int32Array::from(vec![4, 5]))),
    ];
    let file = opened(&folder, &[batch(columns)]);
    assert_eq!(file.columns().collect::<Vec<_>>(), ["id"]);
    assert_eq!(i32s(file.column("id").unwrap()[0].values()), [4, 5]);
    says(&refused(file.column("none")), &["no column `none`", "it has `id`"]);
}

#[test]
fn views_of_strings_have_their_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let word = |i: usize| {
        "long and short ".repeat(1000)[i..]
            .chars()
            .take(i * i % 40)
            .collect::<String>()
    };
    let words = StringViewArray::from_iter((0..5000).map(|i| (i % 6 != 5).then(|| word(i))));
    assert!(words.data_buffers().len() > 1);
    let last = Arc::new((0..5000).collect::<Int32Array>());
    let file = opened(&folder, &[batch(vec![("word", Arc::new(words)), ("last", last)])]);
    let column = file.column("word").unwrap().remove(0);
    let buffers: Vec<Vec<u8>> = column.buffers().iter().map(bytes).collect();
    let views = column.values().region::<[u32; 4]>(&vm()).unwrap().to_vec().unwrap();
    let there = bytes(column.validity().unwrap());
    for (i, view) in views.iter().enumerate() {
        if there[i / 8] >> (i % 8) & 1 == 0 {
            assert_eq!(i % 6, 5);
            continue;
        }
        let length = view[0] as usize;
        let inside: Vec<u8> = view[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = match length {
            0..=12 => &inside[..length],
            _ => &buffers[view[2] as usize][view[3] as usize..][..length],
        };
        assert_eq!(found, word(i).as_bytes(), "row {i}");
    }
    // What comes after the buffers, whose number only the batch says.
    assert_eq!(i32s(file.column("last").unwrap()[0].values())[4999], 4999);
}
