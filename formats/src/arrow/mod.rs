//! Columns of Arrow IPC files.

mod batch;
mod message;
mod schema;

use std::{borrow::Cow, ops::Range, path::Path, sync::OnceLock};

use arrow_ipc::{Block, Endianness, Footer, root_as_footer};

use crate::{
    FormatError, Result,
    file::{Source, some_of},
};
pub use batch::{Batch, Column};
use message::{Dictionaries, Messages, dictionaries_of, is_known};
use schema::{Layout, Leaf};

/// What a file begins and ends with.
const MAGIC: &[u8; 6] = b"ARROW1";

/// The magic and two bytes, so that what follows is aligned.
const HEAD_BYTES: u64 = 8;

/// The footer's length and the magic.
const TAIL_BYTES: u64 = 10;

/// An Arrow IPC file, which is a Feather file of version 2: its footer. Columns lie in record batches, each with its part of the rows.
///
/// The format: <https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format>. Columns of numbers, booleans, times and decimals
/// are elements, and so are the offsets and the bytes of strings, those of lists of them, and the places in a dictionary. A field of
/// structures, also of structures in lists, is a column of its own: `x` of `point` is `point.x`. A map is a list of structures of a key and a
/// value. What else a file has does not keep these from being read: unions, runs and views of lists are errors of their own columns
/// ([`FormatError::Column`]).
#[derive(Debug)]
pub struct ArrowFile {
    source: Source,
    schema: Vec<Layout>,
    /// What is looked up by its name.
    leaves: Vec<Leaf>,
    blocks: Vec<Block>,
    dictionary_blocks: Vec<Block>,
    /// Read when a column needs one.
    dictionaries: OnceLock<Dictionaries>,
    /// Bytes in which record batches may lie.
    room: Range<u64>,
}

impl ArrowFile {
    /// Reads a file's footer.
    ///
    /// # Errors
    /// [`FormatError::Read`]; [`FormatError::Kind`] for a stream, Feather's version 1, Parquet and big-endian machines' files;
    /// [`FormatError::Broken`] for a footer that is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let source = Source::open(path.as_ref(), "Arrow IPC")?;
        let (footer, room) = footer_of(&source)?;
        let footer = root_as_footer(bytemuck::cast_slice(&footer))
            .map_err(|error| source.broken_by("its footer is damaged", Some(error.to_string().into())))?;
        let version = footer.version();
        if !is_known(version) {
            return Err(source.broken(format!("its metadata is of version {version:?}; V4 and V5 are known")));
        }
        let schema = schema_of(&source, &footer)?;
        let (mut leaves, mut bytes) = (Vec::new(), 0);
        for (column, layout) in schema.iter().enumerate() {
            let leaf = Leaf {
                name: layout.name.clone(),
                column,
                fields: Vec::new(),
            };
            let added = layout.add_leaves(leaf, &mut leaves, &mut bytes);
            added.map_err(|reason| source.broken(reason))?;
        }
        Ok(Self {
            schema,
            leaves,
            blocks: footer.recordBatches().into_iter().flatten().copied().collect(),
            dictionary_blocks: footer.dictionaries().into_iter().flatten().copied().collect(),
            dictionaries: OnceLock::new(),
            room,
            source,
        })
    }

    /// The columns' names, in the file's order, with a dot between a column's and that of its field. Columns of which a name comes twice are
    /// found by [`column_at`](Self::column_at).
    pub fn columns(&self) -> impl ExactSizeIterator<Item = Cow<'_, str>> {
        self.leaves.iter().map(|leaf| Cow::Borrowed(leaf.name.as_str()))
    }

    /// How many record batches there are.
    pub fn batches(&self) -> usize {
        self.blocks.len()
    }

    /// The number of the column of that name.
    fn find(&self, name: &str) -> Result<usize> {
        let mut found = (0..self.leaves.len()).filter(|&at| self.leaves[at].name == name);
        match (found.next(), found.next()) {
            (Some(at), None) => Ok(at),
            (Some(first), Some(second)) => Err(FormatError::Ambiguous {
                path: self.source.owned_path(),
                name: name.to_owned(),
                first,
                second,
            }),
            (None, _) => {
                let is_field = |of: &Cow<'_, str>| of.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
                let fields: Vec<_> = self.columns().filter(is_field).collect();
                let has = match fields.is_empty() {
                    true => some_of(self.columns()),
                    false => some_of(fields.into_iter()),
                };
                Err(self.source.missing("column", &name, has))
            }
        }
    }

    /// Column `at` of [`columns`](Self::columns).
    fn leaf(&self, at: usize) -> Result<&Leaf> {
        let (leaf, count) = (self.leaves.get(at), self.leaves.len());
        leaf.ok_or_else(|| self.source.missing("column", &at, format!("{count}, from 0")))
    }

    fn messages(&self) -> Messages<'_> {
        Messages {
            source: &self.source,
            room: &self.room,
        }
    }

    /// All dictionaries of the file.
    fn dictionaries(&self) -> Result<&Dictionaries> {
        if let Some(read) = self.dictionaries.get() {
            return Ok(read);
        }
        let read = dictionaries_of(self.messages(), &self.schema, &self.dictionary_blocks)?;
        Ok(self.dictionaries.get_or_init(|| read))
    }
}

/// The footer, and the bytes before it that the record batches are among.
fn footer_of(source: &Source) -> Result<(Vec<u64>, Range<u64>)> {
    /// How other files are written as this kind.
    const AGAIN: &str =
        "write it as Arrow, in Python by pyarrow.feather.write_feather(table, path, compression=\"uncompressed\")";
    /// What they begin with, what they are, and what to do about it.
    const OTHERS: [(&[u8], &str, &str); 3] = [
        (b"FEA1", "a Feather file of version 1", AGAIN),
        (
            &[0xff; 4],
            "an Arrow IPC stream",
            "a file of batches that are found in it is written by pyarrow.ipc.new_file, in Rust by arrow_ipc::writer::FileWriter",
        ),
        (b"PAR1", "a Parquet file, whose columns are packed", AGAIN),
    ];
    if source.bytes < HEAD_BYTES + TAIL_BYTES {
        return Err(source.broken(format!("it has {} bytes", source.bytes)));
    }
    let head: [u8; HEAD_BYTES as usize] = source.array(0)?;
    if let Some((_, found, fix)) = OTHERS.iter().find(|(begin, ..)| head.starts_with(begin)) {
        return Err(FormatError::Kind {
            path: source.owned_path(),
            found,
            fix,
        });
    }
    if !head.starts_with(MAGIC) {
        return Err(source.broken("it does not begin with ARROW1"));
    }
    if source.array(source.bytes - MAGIC.len() as u64)? != *MAGIC {
        return Err(source.broken("it does not end with ARROW1: it is cut off"));
    }
    let length = i32::from_le_bytes(source.array(source.bytes - TAIL_BYTES)?);
    let length = u64::try_from(length).map_err(|_| source.broken(format!("its footer has {length} bytes")))?;
    let Some(begin) = (source.bytes - HEAD_BYTES - TAIL_BYTES).checked_sub(length) else {
        return Err(source.broken(format!("its footer has {length} bytes, and all of it {}", source.bytes)));
    };
    let begin = begin + HEAD_BYTES;
    Ok((source.part("its footer", begin, length)?, HEAD_BYTES..begin))
}

fn schema_of(source: &Source, footer: &Footer<'_>) -> Result<Vec<Layout>> {
    let Some(schema) = footer.schema() else {
        return Err(source.broken("its footer has no schema"));
    };
    if schema.endianness() != Endianness::Little {
        return Err(FormatError::Kind {
            path: source.owned_path(),
            found: "an Arrow file with numbers in big-endian order",
            fix: "write it again on a little-endian machine, as GPUs are",
        });
    }
    let fields = schema.fields().into_iter().flatten();
    let columns = fields.map(|field| Layout::of(field).map_err(|reason| source.broken(reason)));
    columns.collect()
}
