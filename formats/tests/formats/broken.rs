//! Files with any bytes changed, cut off or made up: an error or an answer, never a panic, and no place outside of the file.

use std::path::Path;

use arrow_ipc::{MetadataVersion, writer::IpcWriteOptions};
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

fn read_tensors(path: &Path, bytes: usize) -> bool {
    let file = SafeTensors::open(path);
    let tensors = file.iter().flat_map(SafeTensors::tensors);
    tensors.for_each(|tensor| within(tensor.elements(), bytes as u64));
    file.is_ok()
}

fn read_columns(path: &Path, bytes: usize) -> bool {
    let Ok(file) = ArrowFile::open(path) else { return false };
    // A broken footer may claim many.
    let batches: Vec<_> = (0..file.batches().min(100)).map(|number| file.batch(number)).collect();
    for batch in batches.iter().flatten() {
        let columns = (0..file.columns().len().min(100)).flat_map(|at| batch.column_at(at));
        columns.for_each(|column| all_within(&column, bytes as u64));
    }
    batches.iter().all(Result::is_ok)
}

fn all_within(column: &Column, bytes: u64) {
    let bits = column.within().iter().chain(column.validity());
    let others = column.offsets().into_iter().chain(column.buffers());
    bits.chain(others)
        .chain([column.values()])
        .for_each(|part| within(part, bytes));
    let nested = column.items().into_iter().chain(column.dictionary());
    nested.for_each(|column| all_within(column, bytes));
}

/// What is done to a file at a place from its begin or from its end: this many bytes of a number are set; with none of them the rest is cut off.
type Harm = (usize, usize, i64);

fn harms() -> impl Strategy<Value = Vec<Harm>> {
    let back = (0usize..3000).prop_map(|back| usize::MAX - back);
    let place = prop_oneof![0usize..200, back, any::<usize>()];
    let number = prop_oneof![Just(-1), Just(i64::MAX), Just(i64::MIN), 0i64..10_000, any::<i64>()];
    let width = prop_oneof![4 => Just(1usize), 4 => Just(8), 1 => Just(0)];
    proptest::collection::vec((place, width, number), 1..6)
}

fn harmed(mut bytes: Vec<u8>, harms: &[Harm]) -> Vec<u8> {
    for &(at, width, number) in harms {
        // Large places count from the end.
        let at = match (bytes.len(), usize::MAX - at) {
            (0, _) => break,
            (length, back) if back < 3000 => length - 1 - back % length,
            (length, _) => at % length,
        };
        if width == 0 {
            bytes.truncate(at);
        } else {
            let at = at & !(width - 1);
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
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
        read_tensors(&write(&folder, "x", &bytes), bytes.len());
    }

    #[test]
    fn of_columns(harms in harms(), legacy: bool) {
        let folder = tempfile::tempdir().unwrap();
        let options = match legacy {
            true => IpcWriteOptions::try_new(8, true, MetadataVersion::V4).unwrap(),
            false => IpcWriteOptions::default(),
        };
        let bytes = harmed(arrow_of(&[mixed(0, 9), mixed(9, 2)], options), &harms);
        read_columns(&write(&folder, "x", &bytes), bytes.len());
    }

    #[test]
    fn of_anything(bytes in proptest::collection::vec(any::<u8>(), 0..300), between: bool) {
        let folder = tempfile::tempdir().unwrap();
        let footer = (bytes.len() as i32).to_le_bytes();
        let bytes = if between { [b"ARROW1\0\0", &bytes[..], &footer, b"ARROW1"].concat() } else { bytes };
        let path = write(&folder, "x", &bytes);
        prop_assert!(!read_tensors(&path, bytes.len()) || bytes.starts_with(&2u64.to_le_bytes()));
        read_columns(&path, bytes.len());
    }
}

#[test]
fn the_same_files_unharmed_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = tensors_of(&[("a", Stored::F32, &[2, 3], &[1; 24])], &[]);
    assert!(read_tensors(&write(&folder, "a", &bytes), bytes.len()));
    let bytes = arrow_of(&[mixed(0, 9), mixed(9, 2)], IpcWriteOptions::default());
    assert!(read_columns(&write(&folder, "b", &bytes), bytes.len()));
    let half = &bytes[..bytes.len() / 2];
    assert!(!read_columns(&write(&folder, "c", half), half.len()));
}
