//! Files with any bytes changed, cut off or made up: an error or an answer, never a panic, and no place outside of the file.

use std::path::Path;

use arrow_ipc::writer::IpcWriteOptions;
use gpuvm_formats::{ArrowFile, Column, Elements, SafeTensors};
use proptest::prelude::*;
use safetensors::tensor::Dtype as Stored;

use crate::{
    arrow::{file_of as arrow_of, mixed},
    tensors::file_of as tensors_of,
    write,
};

fn within(elements: &Elements, bytes: u64) {
    let end = elements.offset_bytes().checked_add(elements.bytes());
    assert!(
        end.is_some_and(|end| end <= bytes),
        "{elements:?} of a file of {bytes} bytes"
    );
}

fn read_tensors(path: &Path, bytes: u64) -> bool {
    let Ok(file) = SafeTensors::open(path) else {
        return false;
    };
    for tensor in file.tensors() {
        within(tensor.elements(), bytes);
    }
    true
}

fn read_columns(path: &Path, bytes: u64) -> bool {
    let Ok(file) = ArrowFile::open(path) else { return false };
    let mut all = true;
    // A broken footer may claim many.
    for number in 0..file.batches().min(100) {
        let Ok(batch) = file.batch(number) else {
            all = false;
            continue;
        };
        for at in 0..file.columns().len().min(100) {
            let Ok(column) = batch.column_at(at) else { continue };
            all_within(&column, bytes);
        }
    }
    all
}

fn all_within(column: &Column, bytes: u64) {
    parts(column).for_each(|part| within(part, bytes));
    let nested = column.items().into_iter().chain(column.dictionary());
    nested.for_each(|column| all_within(column, bytes));
}

fn parts(column: &Column) -> impl Iterator<Item = &Elements> {
    std::iter::once(column.values())
        .chain(column.validity())
        .chain(column.offsets())
        .chain(column.within())
        .chain(column.buffers())
}

/// What is done to a file: a byte set, a number set, or the rest cut off, at a place from its begin or from its end.
#[derive(Debug, Clone)]
enum Harm {
    Byte(usize, u8),
    Number(usize, i64),
    Cut(usize),
}

fn harms() -> impl Strategy<Value = Vec<Harm>> {
    let place = prop_oneof![
        0usize..200,
        (0usize..3000).prop_map(|back| usize::MAX - back),
        any::<usize>()
    ];
    let number = prop_oneof![Just(-1), Just(i64::MAX), Just(i64::MIN), 0i64..10_000, any::<i64>()];
    let harm = prop_oneof![
        4 => (place.clone(), any::<u8>()).prop_map(|(at, byte)| Harm::Byte(at, byte)),
        4 => (place.clone(), number).prop_map(|(at, number)| Harm::Number(at, number)),
        1 => place.prop_map(Harm::Cut),
    ];
    proptest::collection::vec(harm, 1..6)
}

fn harmed(mut bytes: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for harm in harms {
        if bytes.is_empty() {
            break;
        }
        // Large places count from the end.
        let place = |at: usize| match usize::MAX - at {
            back if back < 3000 => bytes.len() - 1 - back % bytes.len(),
            _ => at % bytes.len(),
        };
        match *harm {
            Harm::Byte(at, byte) => {
                let at = place(at);
                bytes[at] = byte;
            }
            Harm::Number(at, number) => {
                let at = place(at) & !7;
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
            Harm::Cut(at) => {
                let at = place(at);
                bytes.truncate(at);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn of_tensors(harms in harms()) {
        let folder = tempfile::tempdir().unwrap();
        let whole = tensors_of(&[("a", Stored::F32, &[2, 3], &[1; 24]), ("b", Stored::U8, &[5], &[2; 5])], &[("k", "v")]);
        let bytes = harmed(whole, &harms);
        let path = write(&folder, "x", &bytes);
        read_tensors(&path, bytes.len() as u64);
    }

    #[test]
    fn of_columns(harms in harms(), legacy: bool) {
        let folder = tempfile::tempdir().unwrap();
        let options = match legacy {
            true => IpcWriteOptions::try_new(8, true, arrow_ipc::MetadataVersion::V4).unwrap(),
            false => IpcWriteOptions::default(),
        };
        let bytes = harmed(arrow_of(&[mixed(0, 9), mixed(9, 2)], options), &harms);
        let path = write(&folder, "x", &bytes);
        read_columns(&path, bytes.len() as u64);
    }

    #[test]
    fn of_anything(bytes in proptest::collection::vec(any::<u8>(), 0..300), between: bool) {
        let folder = tempfile::tempdir().unwrap();
        let bytes = match between {
            true => {
                let footer = (bytes.len() as i32).to_le_bytes();
                [b"ARROW1\0\0", &bytes[..], &footer, b"ARROW1"].concat()
            }
            false => bytes,
        };
        let path = write(&folder, "x", &bytes);
        prop_assert!(!read_tensors(&path, bytes.len() as u64) || bytes.starts_with(&2u64.to_le_bytes()));
        read_columns(&path, bytes.len() as u64);
    }
}

#[test]
fn the_same_files_unharmed_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = tensors_of(&[("a", Stored::F32, &[2, 3], &[1; 24])], &[]);
    assert!(read_tensors(&write(&folder, "a", &bytes), bytes.len() as u64));
    let bytes = arrow_of(&[mixed(0, 9), mixed(9, 2)], IpcWriteOptions::default());
    assert!(read_columns(&write(&folder, "b", &bytes), bytes.len() as u64));
    assert!(!read_columns(
        &write(&folder, "c", &bytes[..bytes.len() / 2]),
        bytes.len() as u64 / 2
    ));
}
