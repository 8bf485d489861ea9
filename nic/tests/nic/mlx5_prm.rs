//! Firmware commands, compared with the public headers field by field.
//!
//! `mlx5_ifc_fields.txt` is the record: what `mlx5_ifc_reference.c` printed with the kernel's header, and four fields of
//! another one.

use std::collections::BTreeMap;

use gpuvm_nic::mlx5::prm::{Field, STRUCTURES};

const RECORD: &str = include_str!("../mlx5_ifc_fields.txt");

/// Offset and bits, by structure and field; the whole structure as field `*`.
fn recorded() -> BTreeMap<(&'static str, &'static str), (usize, usize)> {
    let lines = RECORD.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let [structure, field, offset, bits] = words[..] else {
                panic!("{line}")
            };
            let number = |word: &str| word.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            ((structure, field), (number(offset), number(bits)))
        })
        .collect()
}

#[test]
fn every_field_lies_where_the_headers_have_it() {
    let mut recorded = recorded();
    for (structure, bytes, fields) in STRUCTURES {
        let whole = recorded.remove(&(*structure, "*"));
        assert_eq!(whole, Some((0, bytes * 8)), "{structure}");
        for (name, Field { offset, bits }) in *fields {
            let found = recorded.remove(&(*structure, *name));
            assert_eq!(found, Some((*offset, *bits)), "{structure}.{name}");
        }
    }
    assert_eq!(recorded, BTreeMap::new(), "recorded, and not used");
}

#[test]
fn fields_do_not_overlap_and_end_within_their_structure() {
    for (structure, bytes, fields) in STRUCTURES {
        let mut end = 0;
        for (name, field) in *fields {
            assert!(field.offset >= end, "{structure}.{name} begins before {end}");
            end = field.offset + field.bits;
        }
        assert!(end <= bytes * 8, "{structure}");
    }
}
