//! Files of vectors: what comes back from good ones, and what is said of bad ones.

use std::path::PathBuf;

use gpuvm_workloads::vectors::{
    Clusters, NONE, Neighbours, Rows, VectorError, VectorSpec, Vectors, read_bvecs, read_fvecs, read_ivecs,
    write_bvecs, write_fvecs, write_ivecs,
};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::common::{file, told};

fn load(name: &str, bytes: &[u8]) -> Result<Vectors, VectorError> {
    let (path, _folder) = file(name, bytes);
    VectorSpec::File(path).load(1)
}

/// What is said of a bad file.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let (path, _folder) = file(name, bytes);
    told(&path, VectorSpec::File(path.clone()).load(1))
}

fn vector(dim: i32, components: &[f32]) -> Vec<u8> {
    let components = components.iter().flat_map(|value| value.to_le_bytes());
    dim.to_le_bytes().into_iter().chain(components).collect()
}

#[test]
fn the_formats_are_those_of_texmex() {
    let floats = [vector(2, &[0.5, -1.0]), vector(2, &[3.0, 1e-40])].concat();
    let expected = Vectors::new(2, vec![0.5, -1.0, 3.0, 1e-40]).unwrap();
    assert_eq!(load("a.fvecs", &floats).unwrap(), expected);
    let bytes = [3, 0, 0, 0, 0, 128, 255];
    assert_eq!(
        load("a.BVECS", &bytes).unwrap(),
        Vectors::new(3, vec![0.0, 128.0, 255.0]).unwrap()
    );
    let (path, _folder) = file("a.ivecs", &[2, 0, 0, 0, 7, 1, 0, 0, 255, 255, 255, 255]);
    assert_eq!(read_ivecs(&path).unwrap(), Neighbours::new(2, vec![263, NONE]).unwrap());
}

#[test]
fn files_of_several_tasks_come_back() {
    let clusters = Clusters {
        count: 20_000,
        dim: 50,
        clusters: 3,
    };
    let vectors = clusters.vectors(1).unwrap();
    let mut bytes = Vec::new();
    write_fvecs(&vectors, &mut bytes).unwrap();
    assert!(load("a.fvecs", &bytes).unwrap() == vectors);
    // The first of the bad ones is named, whatever reads it first.
    for bad in [19_999, 15_000, 9_000] {
        bytes[bad * 204] = 51;
        let expected = format!(
            " vector {bad} (byte {}): its dimension is 51, and 50 before it;",
            bad * 204
        );
        let message = refusal("a.fvecs", &bytes);
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn bad_files_are_refused_with_vector_and_byte() {
    let two = [vector(2, &[0.0; 2]), vector(2, &[1.0; 2])].concat();
    let after = |bytes: Vec<u8>| [two.clone(), bytes].concat();
    let truncated = |vector: u64, byte: u64, found: u64, expected: u64| {
        format!(" vector {vector} (byte {byte}): the file is truncated: {found} bytes of {expected}; fetch it again")
    };
    let finite = |component: usize, value: &str| {
        format!(" vector 2 (byte 24): component {component} is {value}; distances need finite numbers")
    };
    for (bytes, expected) in [
        (vec![], " the file is empty; fetch or write it again".to_owned()),
        (vec![2, 0], truncated(0, 0, 2, 4)),
        (two[..23].to_vec(), truncated(1, 12, 11, 12)),
        (after(vec![2]), truncated(2, 24, 1, 12)),
        (vec![2, 0, 0, 0], truncated(0, 0, 4, 12)),
        (after(vector(1, &[0.0])), truncated(2, 24, 8, 12)),
        (
            after(vector(3, &[0.0; 2])),
            " vector 2 (byte 24): its dimension is 3, and 2 before it; is the file damaged, or of another format?"
                .to_owned(),
        ),
        (after(vector(2, &[0.0, f32::NAN])), finite(1, "NaN")),
        (after(vector(2, &[f32::INFINITY, 0.0])), finite(0, "inf")),
    ] {
        assert_eq!(refusal("a.fvecs", &bytes), expected);
    }
    for dim in [0, -1, 65_537, i32::MIN] {
        let expected =
            format!(" vector 0 (byte 0): its dimension {dim} is not from 1 to 65536; is it a file of another format?");
        assert_eq!(refusal("a.bvecs", &vector(dim, &[0.0])), expected);
    }
}

#[test]
fn names_of_other_formats_are_refused() {
    let message = refusal("a.hdf5", b"x");
    assert_eq!(
        message,
        " the name ends in neither .fvecs nor .bvecs, so its format is not known; rename the file"
    );
}

#[test]
fn values_that_are_no_rows_are_refused() {
    for (width, values) in [(0, 0), (0, 3), (3, 0), (3, 4), (65_537, 65_537)] {
        let error = Rows::new(width, vec![0_u8; values]).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{values} values are not rows of {width}: ")),
            "{error}"
        );
    }
}

#[test]
fn what_no_byte_holds_is_not_written() {
    for value in [256.0, -1.0, 0.5] {
        let mut out = Vec::new();
        let vectors = Vectors::new(2, vec![1.0, 2.0, 3.0, value]).unwrap();
        let error = write_bvecs(&vectors, &mut out).unwrap_err().to_string();
        let expected = format!("vector 1: component 1 is {value}, not a whole number from 0 to 255; write .fvecs");
        assert_eq!((error, out.len()), (expected, 0));
    }
}

fn rows<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Rows<T>> {
    (1_usize..20, prop::collection::vec(value, 20..400)).prop_map(|(width, mut values)| {
        values.truncate(values.len() / width * width);
        Rows::new(width, values).unwrap()
    })
}

fn written<T>(rows: &Rows<T>, write: impl Fn(&Rows<T>, &mut Vec<u8>) -> Result<(), VectorError>) -> (PathBuf, TempDir) {
    let mut bytes = Vec::new();
    write(rows, &mut bytes).unwrap();
    file("vectors", &bytes)
}

proptest! {
    #[test]
    fn rows_come_back(
        floats in rows(any::<f32>().prop_filter("finite", |value| value.is_finite())),
        bytes in rows(any::<u8>().prop_map(f32::from)),
        ids in rows(any::<u32>()),
    ) {
        let (path, _folder) = written(&floats, |rows, out| write_fvecs(rows, out));
        prop_assert_eq!(read_fvecs(&path).unwrap(), floats);
        let (path, _folder) = written(&bytes, |rows, out| write_bvecs(rows, out));
        prop_assert_eq!(read_bvecs(&path).unwrap(), bytes);
        let (path, _folder) = written(&ids, |rows, out| write_ivecs(rows, out));
        prop_assert_eq!(read_ivecs(&path).unwrap(), ids);
    }
}
