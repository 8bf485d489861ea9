//! Columns of Arrow IPC files.

mod batch;
mod dictionary;
mod message;
mod schema;

use std::{borrow::Cow, ops::Range, path::Path, sync::OnceLock};

use arrow_ipc::{Block, Endianness, Footer, MetadataVersion, root_as_footer};

use crate::{
    FormatError, Result,
    file::{Aligned, Source, some_of},
};
pub use batch::{Batch, Column};
use dictionary::Dictionaries;
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
    blocks: Vec<Place>,
    dictionary_blocks: Vec<Place>,
    /// Read when a column needs one.
    dictionaries: OnceLock<Dictionaries>,
    version: MetadataVersion,
    /// Bytes in which record batches may lie.
    room: Range<u64>,
}

/// Where a record batch lies in the file.
#[derive(Debug, Clone)]
struct Place {
    offset: i64,
    metadata_bytes: i32,
    body_bytes: i64,
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
        let footer = root_as_footer(footer.bytes())
            .map_err(|error| source.broken_by("its footer is damaged", Some(error.to_string().into())))?;
        let version = footer.version();
        if !matches!(version, MetadataVersion::V4 | MetadataVersion::V5) {
            return Err(source.broken(format!("its metadata is of version {version:?}; V4 and V5 are known")));
        }
        let schema = schema_of(&source, &footer)?;
        let mut leaves = Vec::new();
        for (number, layout) in schema.iter().enumerate() {
            layout.add_leaves(number, &mut Vec::new(), &mut leaves);
        }
        let blocks = footer.recordBatches().into_iter().flatten().map(Place::of).collect();
        let dictionary_blocks = footer.dictionaries().into_iter().flatten().map(Place::of).collect();
        Ok(Self {
            source,
            schema,
            leaves,
            blocks,
            dictionary_blocks,
            dictionaries: OnceLock::new(),
            version,
            room,
        })
    }

    /// The columns' names, in the file's order, with a dot between a column's and that of its field. A name may come twice; the first column
    /// of a name is found by it.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = Cow<'_, str>> {
        self.leaves.iter().map(|leaf| self.name_of(leaf))
    }

    /// How many record batches there are.
    pub fn batches(&self) -> usize {
        self.blocks.len()
    }

    /// Reads where the columns of record batch `number` are, from 0.
    ///
    /// # Errors
    /// [`FormatError::Missing`], [`FormatError::Read`], [`FormatError::Broken`], [`FormatError::Compressed`].
    pub fn batch(&self, number: usize) -> Result<Batch<'_>> {
        let place = self.blocks.get(number).ok_or_else(|| FormatError::Missing {
            path: self.source.owned_path(),
            what: "record batch",
            name: number.to_string(),
            has: format!("{}, from 0", self.blocks.len()),
        })?;
        Batch::read(self, number, place)
    }

    /// The column of that name in each record batch, in their order: the rows one after another. One region each, where a batch is one.
    ///
    /// # Errors
    /// As [`batch`](Self::batch) and [`Batch::column`].
    pub fn column(&self, name: &str) -> Result<Vec<Column>> {
        self.find(name)?;
        (0..self.batches())
            .map(|number| self.batch(number)?.column(name))
            .collect()
    }

    /// The number of the column of that name.
    fn find(&self, name: &str) -> Result<usize> {
        // Compared name by name: a broken file may have many long ones.
        let is = |leaf: &Leaf| {
            let rest = self.schema[leaf.column]
                .names(leaf)
                .try_fold((name, true), |(rest, first), part| {
                    let rest = if first { rest } else { rest.strip_prefix('.')? };
                    Some((rest.strip_prefix(part)?, false))
                });
            rest.is_some_and(|(rest, _)| rest.is_empty())
        };
        let found = self.leaves.iter().position(is);
        found.ok_or_else(|| {
            let is_field = |leaf: &&Leaf| !leaf.fields.is_empty() && self.schema[leaf.column].name == name;
            let fields: Vec<_> = self.leaves.iter().filter(is_field).collect();
            FormatError::Missing {
                path: self.source.owned_path(),
                what: "column",
                name: name.to_owned(),
                has: match fields.is_empty() {
                    true => some_of(self.columns()),
                    false => some_of(fields.into_iter().map(|leaf| self.name_of(leaf))),
                },
            }
        })
    }

    fn name_of<'f>(&'f self, leaf: &'f Leaf) -> Cow<'f, str> {
        let layout = &self.schema[leaf.column];
        match leaf.fields.is_empty() {
            true => Cow::Borrowed(layout.name.as_str()),
            false => Cow::Owned(layout.names(leaf).collect::<Vec<_>>().join(".")),
        }
    }

    /// All dictionaries of the file.
    fn dictionaries(&self) -> Result<&Dictionaries> {
        if let Some(read) = self.dictionaries.get() {
            return Ok(read);
        }
        let read = Dictionaries::read(self)?;
        Ok(self.dictionaries.get_or_init(|| read))
    }
}

impl Place {
    fn of(block: &Block) -> Self {
        Self {
            offset: block.offset(),
            metadata_bytes: block.metaDataLength(),
            body_bytes: block.bodyLength(),
        }
    }
}

/// The footer, and the bytes before it that the record batches are among.
fn footer_of(source: &Source) -> Result<(Aligned, Range<u64>)> {
    /// What other files begin with, what they are, and what to do about it.
    const OTHERS: [(&[u8], &str, &str); 3] = [
        (
            b"FEA1",
            "a Feather file of version 1",
            "write it again, in Python by pyarrow.feather.write_feather(table, path, compression=\"uncompressed\")",
        ),
        (
            &[0xff; 4],
            "an Arrow IPC stream",
            "a file of batches that are found in it is written by pyarrow.ipc.new_file, in Rust by arrow_ipc::writer::FileWriter",
        ),
        (
            b"PAR1",
            "a Parquet file, whose columns are packed",
            "write it as Arrow, in Python by pyarrow.feather.write_feather(table, path, compression=\"uncompressed\")",
        ),
    ];
    if source.bytes < HEAD_BYTES + TAIL_BYTES {
        return Err(source.broken(format!("it has {} bytes", source.bytes)));
    }
    let head: [u8; HEAD_BYTES as usize] = source.array(0)?;
    if let Some((_, found, mend)) = OTHERS.iter().find(|(begin, ..)| head.starts_with(begin)) {
        return Err(FormatError::Kind {
            path: source.owned_path(),
            found,
            mend,
        });
    }
    let tail: [u8; TAIL_BYTES as usize] = source.array(source.bytes - TAIL_BYTES)?;
    if !head.starts_with(MAGIC) {
        return Err(source.broken("it does not begin with ARROW1"));
    }
    let (length, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err(source.broken("it does not end with ARROW1: it is cut off"));
    }
    let length = i32::from_le_bytes(length.try_into().unwrap_or_default());
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
            mend: "write it again on a little-endian machine, as GPUs are",
        });
    }
    let all_have_validity = footer.version() == MetadataVersion::V4;
    let fields = schema.fields().into_iter().flatten();
    let columns = fields.map(|field| Layout::of(field, all_have_validity).map_err(|reason| source.broken(reason)));
    columns.collect()
}
