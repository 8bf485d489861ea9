//! Dictionaries of a file: where the values are that columns name by their places.

use std::{collections::HashMap, iter::once};

use arrow_ipc::MessageHeader;

use super::{
    ArrowFile,
    message::{Found, Node},
    schema::Layout,
};
use crate::Result;

/// All dictionaries of a file, by their numbers, each in its parts.
#[derive(Debug)]
pub(super) struct Dictionaries(HashMap<i64, Vec<Node>>);

impl Dictionaries {
    pub fn read(file: &ArrowFile) -> Result<Self> {
        let source = &file.source;
        let mut layouts = HashMap::new();
        file.schema.iter().for_each(|layout| add_values(layout, &mut layouts));
        let mut all = HashMap::<i64, Vec<Node>>::new();
        let mut bytes = 0;
        for (number, place) in file.dictionary_blocks.iter().enumerate() {
            let what = format!("dictionary batch {number}");
            let found = Found::read(file, &what, place)?;
            // What is kept is no more than the file has.
            bytes += u64::try_from(place.metadata_bytes).unwrap_or(0);
            if bytes > source.bytes {
                return Err(source.broken(format!("{what} lies where another one does")));
            }
            let message = found.message(file, &what)?;
            let dictionary = match message.header_type() {
                MessageHeader::DictionaryBatch => message.header_as_dictionary_batch(),
                _ => None,
            };
            let values = dictionary.and_then(|dictionary| Some((dictionary, dictionary.data()?)));
            let Some((dictionary, values)) = values else {
                return Err(source.broken(format!("where {what} should be is another message")));
            };
            let id = dictionary.id();
            let Some(&layout) = layouts.get(&id) else {
                return Err(source.broken(format!("{what} is number {id}, which no column has")));
            };
            let nodes = found.nodes(file, &what, &values, once(layout))?;
            if nodes.iter().any(|node| node.rows != values.length()) {
                return Err(source.broken(format!("{what} has not {} rows, as it says", values.length())));
            }
            let parts = all.entry(id).or_default();
            if !parts.is_empty() && !dictionary.isDelta() {
                return Err(source.broken(format!("{what} replaces an earlier one, number {id}")));
            }
            parts.extend(nodes);
        }
        Ok(Self(all))
    }

    /// The parts of dictionary `id`, one after another.
    pub fn parts(&self, id: i64) -> &[Node] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}

/// Adds the layouts of all dictionaries of a column, and of those in them.
fn add_values<'l>(layout: &'l Layout, all: &mut HashMap<i64, &'l Layout>) {
    if let Some(coded) = &layout.coded {
        all.entry(coded.id).or_insert(&coded.values);
        add_values(&coded.values, all);
    }
    for child in &layout.children {
        add_values(child, all);
    }
}
