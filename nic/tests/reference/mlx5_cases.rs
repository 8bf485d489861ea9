//! Work requests, doorbells and completions that the public header made from random fields.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use super::{Program, Reference};

const REFERENCE: Reference = Reference {
    program: Program::File(concat!(env!("CARGO_MANIFEST_DIR"), "/../nic/tests/mlx5dv_cases.c")),
    record: include_str!("../mlx5dv_cases.txt"),
    headers: &["infiniband/mlx5dv.h"],
    package: "libibverbs-dev",
};

/// One line: what was made, of what, and its bytes.
pub struct Case {
    /// The line, for messages.
    pub line: String,
    /// `request` or `completion`.
    pub what: String,
    fields: HashMap<String, String>,
}

impl Case {
    fn parse(line: &str) -> Self {
        let (what, rest) = line.split_once(' ').expect("fields after the kind");
        let fields = rest.split(' ').map(|field| {
            let (name, value) = field.split_once('=').expect("name=value");
            (name.to_owned(), value.to_owned())
        });
        Case {
            line: line.to_owned(),
            what: what.to_owned(),
            fields: fields.collect(),
        }
    }

    /// A field's text, if the case has it.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// A number.
    pub fn number(&self, name: &str) -> u64 {
        let text = self.text(name).unwrap_or_else(|| panic!("no {name} in {}", self.line));
        u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{name} is no number in {}", self.line))
    }

    /// Bytes.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let text = self.text(name).unwrap_or_else(|| panic!("no {name} in {}", self.line));
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits a byte");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    /// The data segments: length, key, address.
    pub fn local(&self) -> Vec<(u32, u32, u64)> {
        let segment = |text: &str| {
            let fields: Vec<u64> = text
                .split(':')
                .map(|field| u64::from_str_radix(field, 16).expect("a number"))
                .collect();
            (fields[0] as u32, fields[1] as u32, fields[2])
        };
        let list = self.text("local").into_iter().flat_map(|text| text.split(','));
        list.map(segment).collect()
    }
}

/// Fails unless the header of this machine, if it is there, makes what was recorded.
pub fn check_record(test: &str) {
    REFERENCE.check_record(test);
}

/// The recorded cases, and `count` requests and completions each that the header makes of a new seed, where it is there.
pub fn cases(test: &str, count: usize) -> Vec<Case> {
    let seed = std::hash::RandomState::new().build_hasher().finish();
    let arguments = [seed.to_string(), count.to_string(), count.to_string()];
    let fresh = REFERENCE.run(test, &arguments).unwrap_or_default();
    let recorded = REFERENCE.record.lines().filter(|line| !line.starts_with('#'));
    let cases: Vec<Case> = recorded.chain(fresh.lines()).map(Case::parse).collect();
    assert!(cases.len() >= 56, "{} cases", cases.len());
    for case in &cases {
        assert_eq!(case.text("header_disagrees"), None, "{}", case.line);
    }
    cases
}
