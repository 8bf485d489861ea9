//! Fields of structures, maps, and columns that dictionaries encode.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, DictionaryArray, Int8Array, Int32Array, StringArray, StringViewArray, StructArray,
    builder::{
        Float64Builder, Int32Builder, ListBuilder, MapBuilder, StringBuilder, StringDictionaryBuilder, StructBuilder,
    },
    types::{Int8Type, Int16Type},
};
use arrow_ipc::writer::{DictionaryHandling, IpcWriteOptions};
use arrow_schema::{DataType, Field};
use gpuvm_formats::{ArrowFile, Column};

use crate::{
    arrow::{batch, file_of, opened},
    read, refused, says, write,
};

/// Whether each row is there, by its own bit and those of the structures around it.
fn there(column: &Column) -> Vec<bool> {
    let kept: Vec<Vec<u8>> = column.within().iter().chain(column.validity()).map(read).collect();
    let rows = 0..column.rows() as usize;
    rows.map(|i| kept.iter().all(|bits| bits[i / 8] >> (i % 8) & 1 == 1))
        .collect()
}

fn strings(column: &Column) -> Vec<String> {
    let (ends, text) = (read::<i32>(column.offsets().unwrap()), read::<u8>(column.values()));
    let places = ends.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
    places
        .map(|place| String::from_utf8_lossy(&text[place]).into_owned())
        .collect()
}

/// A place: a name, and the numbers `x`, `y` in a structure of their own.
fn places(rows: i32) -> ArrayRef {
    let field = |name: &str, of: DataType| Field::new(name, of, true);
    let inner = vec![field("x", DataType::Int32), field("y", DataType::Float64)];
    let at = field("at", DataType::Struct(inner.into()));
    let mut places = StructBuilder::from_fields(vec![field("name", DataType::Utf8), at], 0);
    for i in 0..rows {
        let name: &mut StringBuilder = places.field_builder(0).unwrap();
        name.append_value(format!("p{i}"));
        let at: &mut StructBuilder = places.field_builder(1).unwrap();
        let x: &mut Int32Builder = at.field_builder(0).unwrap();
        x.append_option((i % 5 != 0).then_some(i));
        let y: &mut Float64Builder = at.field_builder(1).unwrap();
        y.append_value(f64::from(i) / 2.0);
        at.append(i % 3 != 0);
        places.append(i % 2 != 0);
    }
    Arc::new(places.finish())
}

#[test]
fn a_field_of_a_structure_is_a_column() {
    let folder = tempfile::tempdir().unwrap();
    let numbers = |first: i32| Arc::new((first..first + 100).collect::<Int32Array>());
    let columns: Vec<(&str, ArrayRef)> = vec![("place", places(100)), ("id", numbers(0)), ("place.id", numbers(1000))];
    let file = opened(&folder, columns);
    let names = ["place.name", "place.at.x", "place.at.y", "id", "place.id"];
    assert_eq!(file.columns().collect::<Vec<_>>(), names);
    let column = |name: &str| file.column(name).unwrap().remove(0);
    let x = column("place.at.x");
    assert_eq!((x.rows(), x.nulls(), x.within().len()), (100, 20, 2));
    assert_eq!((x.values().len(), x.values().name()), (100, "place.at.x"));
    let values = read::<i32>(x.values());
    for (i, there) in there(&x).into_iter().enumerate() {
        assert_eq!(there, i % 2 != 0 && i % 3 != 0 && i % 5 != 0, "row {i}");
        assert!(!there || values[i] == i as i32);
    }
    let y = column("place.at.y");
    let values = read::<f64>(y.values());
    assert!(y.validity().is_none() && (0..100).all(|i| values[i] == i as f64 / 2.0));
    let name = column("place.name");
    assert_eq!((strings(&name)[99].as_str(), name.within().len()), ("p99", 1));
    // A column whose own name has a dot.
    assert_eq!(read::<i32>(column("place.id").values())[7], 1007);
    assert_eq!(
        (read::<i32>(column("id").values())[7], column("id").within().len()),
        (7, 0)
    );
    for (wrong, has) in [
        ("place", "it has `place.name`, `place.at.x`, `place.at.y`"),
        ("place.at", "it has `place.at.x`, `place.at.y`"),
        ("place.", "`id`"),
        ("place.at.z", "`place.id`"),
        ("", "`id`"),
    ] {
        says(&refused(file.column(wrong)), &[&format!("no column `{wrong}`"), has]);
    }
}

#[test]
fn fields_of_structures_in_lists_and_maps_have_offsets() {
    let point = StructBuilder::from_fields(vec![Field::new("x", DataType::Int32, true)], 0);
    let mut points = ListBuilder::new(point);
    let mut stock = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in 0..50 {
        for i in 0..row % 4 {
            let x: &mut Int32Builder = points.values().field_builder(0).unwrap();
            x.append_value(10 * row + i);
            points.values().append(i != 1);
            stock.keys().append_value(format!("k{i}"));
            stock.values().append_value(row + i);
        }
        points.append(row % 7 != 0);
        stock.append(true).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("points", Arc::new(points.finish())),
        ("stock", Arc::new(stock.finish())),
    ];
    let file = opened(&folder, columns);
    let names = ["points.x", "stock.key", "stock.value"];
    assert_eq!(file.columns().collect::<Vec<_>>(), names);
    let [x, keys, amounts] = names.map(|name| file.column(name).unwrap().remove(0));
    assert_eq!((x.rows(), x.nulls(), keys.rows(), keys.nulls()), (50, 8, 50, 0));
    let (ends, values, items) = (
        read::<i32>(x.offsets().unwrap()),
        read::<i32>(x.values()),
        x.items().unwrap(),
    );
    // Which point is null is said of the items, not of the rows.
    assert_eq!((x.within().len(), items.within().len(), items.nulls()), (0, 1, 0));
    assert_eq!(items.within()[0].name(), "points.x.items.within");
    let (names, kept) = (strings(keys.items().unwrap()), there(items));
    for row in 0..50 {
        let places = ends[row] as usize..ends[row + 1] as usize;
        assert_eq!(places.len(), row % 4);
        for (i, place) in places.enumerate() {
            assert_eq!((kept[place], values[place]), (i != 1, (10 * row + i) as i32));
            assert_eq!(names[place], format!("k{i}"));
        }
    }
    assert_eq!(read::<i32>(amounts.offsets().unwrap()), ends);
    assert_eq!(read::<i32>(amounts.values())[..6], [1, 2, 3, 3, 4, 5]);
}

#[test]
fn a_column_that_a_dictionary_encodes_has_places_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let coded = |values: &[&str], rows: i8| -> ArrayRef {
        let places = (0..rows).map(|i| (i % 5 != 4).then_some(i % values.len() as i8));
        let values = Arc::new(StringArray::from(values.to_vec()));
        Arc::new(DictionaryArray::new(places.collect::<Int8Array>(), values))
    };
    // The second batch goes on with the first one's dictionary.
    let kinds = [coded(&["bus", "taxi"], 60), coded(&["bus", "taxi", "tram", "boat"], 9)];
    let batches = kinds.map(|kinds| batch(vec![("kind", kinds)]));
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
        assert!(there(part).into_iter().eq((0..part.rows()).map(|i| i % 5 != 4)));
        let places = (0..).zip(read::<i8>(part.values()));
        assert!(places.filter(|(i, _)| i % 5 != 4).all(|(i, place)| place == i % values));
    }
    let mut tags = ListBuilder::new(StringDictionaryBuilder::<Int16Type>::new());
    (0..30).for_each(|i| tags.append_value((0..i % 3).map(|n| Some(format!("t{n}")))));
    let kind = coded(&["a"], 30);
    let field = Arc::new(Field::new("kind", kind.data_type().clone(), true));
    let within = StructArray::from(vec![(field, kind)]);
    let file = opened(
        &folder,
        vec![("tags", Arc::new(tags.finish())), ("within", Arc::new(within))],
    );
    let tags = file.column("tags").unwrap().remove(0);
    let items = tags.items().unwrap();
    assert_eq!((tags.dictionary().len(), items.rows()), (0, 30));
    assert_eq!(strings(&items.dictionary()[0]), ["t0", "t1"]);
    assert_eq!(read::<i16>(tags.values())[..6], [0, 0, 1, 0, 0, 1]);
    let kind = file.column("within.kind").unwrap().remove(0);
    assert_eq!(
        (strings(&kind.dictionary()[0]).join(" ").as_str(), kind.nulls()),
        ("a", 6)
    );
}

#[test]
fn dictionaries_that_cannot_be_do_not_harm_other_columns() {
    let folder = tempfile::tempdir().unwrap();
    let places = Int8Array::from(vec![0, 0]);
    let x: ArrayRef = Arc::new(Int32Array::from(vec![3]));
    let points = StructArray::from(vec![(Arc::new(Field::new("x", DataType::Int32, false)), x)]);
    let points = DictionaryArray::<Int8Type>::new(places.clone(), Arc::new(points));
    let kinds = DictionaryArray::<Int8Type>::new(places, Arc::new(StringArray::from(vec!["some kind"])));
    let id: ArrayRef = Arc::new(Int32Array::from(vec![4, 5]));
    let columns: Vec<(&str, ArrayRef)> = vec![("point", Arc::new(points)), ("kind", Arc::new(kinds)), ("id", id)];
    let mut whole = file_of(&[batch(columns)], IpcWriteOptions::default());
    let file = ArrowFile::open(write(&folder, "whole.arrow", &whole)).unwrap();
    let words = ["`point.dictionary`", "a structure", "columns of its parts"];
    says(&refused(file.column("point")), &words);
    assert_eq!(strings(&file.column("kind").unwrap()[0].dictionary()[0]), ["some kind"]);
    // The first dictionary's description begins after the schema's: four bytes of 0xff, and its length.
    let begins = (8..whole.len() - 8).filter(|&at| whole[at..at + 4] == [0xff; 4]);
    let second = begins.filter(|at| at % 8 == 0).nth(1).unwrap();
    whole[second + 8..second + 40].fill(0xee);
    let file = ArrowFile::open(write(&folder, "broken.arrow", &whole)).unwrap();
    let words = ["dictionary batch 0", "damaged", "broken.arrow"];
    says(&refused(file.column("kind")), &words);
    assert_eq!(read::<i32>(file.column("id").unwrap()[0].values()), [4, 5]);
}

#[test]
fn a_structure_without_fields_has_nothing_to_look_up() {
    let folder = tempfile::tempdir().unwrap();
    let (none, id) = (StructArray::new_empty_fields(2, None), Int32Array::from(vec![4, 5]));
    let file = opened(&folder, vec![("none", Arc::new(none)), ("id", Arc::new(id))]);
    assert_eq!(file.columns().collect::<Vec<_>>(), ["id"]);
    assert_eq!(read::<i32>(file.column("id").unwrap()[0].values()), [4, 5]);
    says(&refused(file.column("none")), &["no column `none`", "it has `id`"]);
}

#[test]
fn views_of_strings_have_their_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let text = "long and short ".repeat(1000);
    let word = |i: usize| &text[i..][..i * i % 40];
    let words = StringViewArray::from_iter((0..5000).map(|i| (i % 6 != 5).then(|| word(i))));
    assert!(words.data_buffers().len() > 1);
    let last = Arc::new((0..5000).collect::<Int32Array>());
    let file = opened(&folder, vec![("word", Arc::new(words)), ("last", last)]);
    let column = file.column("word").unwrap().remove(0);
    let buffers: Vec<Vec<u8>> = column.buffers().iter().map(read).collect();
    let there = read::<u8>(column.validity().unwrap());
    for (i, view) in read::<[u32; 4]>(column.values()).iter().enumerate() {
        assert_eq!(there[i / 8] >> (i % 8) & 1 == 1, i % 6 != 5);
        let inside: Vec<u8> = view[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let found = match view[0] as usize {
            _ if i % 6 == 5 => continue,
            length @ 0..=12 => &inside[..length],
            length => &buffers[view[2] as usize][view[3] as usize..][..length],
        };
        assert_eq!(found, word(i).as_bytes(), "row {i}");
    }
    // What comes after the buffers, whose number only the batch says.
    assert_eq!(read::<i32>(file.column("last").unwrap()[0].values())[4999], 4999);
}
