//! A record batch: where the parts of its columns are.

use arrow_ipc::{Buffer, FieldNode, MessageHeader, RecordBatch, root_as_message};

use super::{
    ArrowFile, Place,
    schema::{Form, Parts},
};
use crate::{Dtype, Elements, FormatError, Result, file::Aligned};

/// A record batch of a file: so many rows of each column.
#[derive(Debug)]
pub struct Batch<'a> {
    file: &'a ArrowFile,
    number: usize,
    rows: u64,
    /// Of each column.
    lengths: Vec<Node>,
    /// Of each column its first three buffers, of those that it has.
    buffers: Vec<[Option<Span>; 3]>,
}

/// Rows and nulls of a column.
#[derive(Debug, Clone, Copy)]
struct Node {
    rows: i64,
    nulls: i64,
}

/// Bytes of the file.
#[derive(Debug, Clone, Copy)]
struct Span {
    offset: u64,
    bytes: u64,
}

/// A column's part in a record batch.
#[derive(Debug, Clone)]
pub struct Column {
    rows: u64,
    nulls: u64,
    values: Elements,
    validity: Option<Elements>,
    offsets: Option<Elements>,
}

impl<'a> Batch<'a> {
    pub(super) fn read(file: &'a ArrowFile, number: usize, place: &Place) -> Result<Self> {
        let source = &file.source;
        let what = format!("record batch {number}");
        let inside = |begin: i64, bytes: i64| {
            let begin = u64::try_from(begin).ok()?;
            let end = begin.checked_add(u64::try_from(bytes).ok()?)?;
            (begin >= file.room.start && end <= file.room.end).then_some(begin..end)
        };
        let metadata = inside(place.offset, place.metadata_bytes.into());
        let body_begin = place.offset.checked_add(place.metadata_bytes.into());
        let body = body_begin.and_then(|begin| inside(begin, place.body_bytes));
        let (Some(metadata), Some(body)) = (metadata, body) else {
            return Err(source.broken(format!("{what} is said to lie where it cannot: {place:?}")));
        };
        let message = message_of(file, &what, metadata)?;
        let message = root_as_message(message.bytes()).map_err(|error| {
            source.broken_by(
                format!("{what} has a damaged description"),
                Some(error.to_string().into()),
            )
        })?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            _ => None,
        };
        let batch = batch.ok_or_else(|| source.broken(format!("where {what} should be is another message")))?;
        if message.version() != file.version {
            return Err(source.broken(format!("{what} is of version {:?}, unlike its file", message.version())));
        }
        if let Some(compression) = batch.compression() {
            return Err(FormatError::Compressed {
                path: source.owned_path(),
                batch: number,
                codec: format!("{:?}", compression.codec()),
            });
        }
        let (lengths, buffers) =
            parts_of(file, &batch, body).map_err(|reason| source.broken(format!("{what} {reason}")))?;
        Ok(Self {
            file,
            number,
            rows: u64::try_from(batch.length())
                .map_err(|_| source.broken(format!("{what} has {} rows", batch.length())))?,
            lengths,
            buffers,
        })
    }

    /// How many rows it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Where the column of that name is.
    ///
    /// # Errors
    /// [`FormatError::Missing`]; [`FormatError::Column`] for one that is no array of elements; [`FormatError::Broken`] for buffers that are
    /// too short for their rows.
    pub fn column(&self, name: &str) -> Result<Column> {
        let at = self.file.find(name)?;
        self.column_at(at)
    }

    /// Where column `at` of [`ArrowFile::columns`] is.
    ///
    /// # Errors
    /// As [`column`](Self::column).
    pub fn column_at(&self, at: usize) -> Result<Column> {
        let source = &self.file.source;
        let Some(layout) = self.file.columns.get(at) else {
            return Err(FormatError::Missing {
                path: source.owned_path(),
                what: "column",
                name: at.to_string(),
                has: format!("{}, from 0", self.file.columns.len()),
            });
        };
        if let Form::Other(found, mend) = layout.form {
            return Err(FormatError::Column {
                path: source.owned_path(),
                column: layout.name.clone(),
                found,
                mend,
            });
        }
        let column = self.checked(layout.form, &layout.name, self.lengths[at], self.buffers[at]);
        column.map_err(|reason| {
            source.broken(format!(
                "column `{}` of record batch {} {reason}",
                layout.name, self.number
            ))
        })
    }

    /// A column whose buffers are long enough; else what is wrong.
    fn checked(&self, form: Form, name: &str, node: Node, buffers: [Option<Span>; 3]) -> Result<Column, String> {
        let nulls = u64::try_from(node.nulls).ok().filter(|&nulls| nulls <= self.rows);
        let nulls = nulls.ok_or_else(|| format!("has {} nulls in {} rows", node.nulls, self.rows))?;
        if u64::try_from(node.rows) != Ok(self.rows) {
            return Err(format!("has {} rows, and its batch {}", node.rows, self.rows));
        }
        let elements = |span: Option<Span>, what: &str, dtype: Dtype, length: u64| {
            let span = span.ok_or("lacks a buffer")?;
            let name = match what {
                "values" => name.to_owned(),
                _ => format!("{name}.{what}"),
            };
            let elements = Elements::new(&self.file.source.path, name, dtype, length, span.offset);
            let elements = elements.filter(|elements| elements.bytes() <= span.bytes);
            elements.ok_or_else(|| format!("has {} bytes for {length} {what} of type {dtype}", span.bytes))
        };
        let validity = match buffers[0] {
            None | Some(Span { bytes: 0, .. }) if nulls == 0 => None,
            span => Some(elements(span, "validity", Dtype::Bits, self.rows)?),
        };
        let (values, offsets) = match form {
            Form::Text(dtype) => {
                let span = buffers[1].ok_or("lacks a buffer")?;
                // Writers may leave out the one offset of no row.
                let count = match (self.rows, span.bytes) {
                    (0, 0) => 0,
                    (rows, _) => rows + 1,
                };
                let bytes = buffers[2].map_or(0, |span| span.bytes);
                let values = elements(buffers[2], "values", Dtype::U8, bytes)?;
                (values, Some(elements(buffers[1], "offsets", dtype, count)?))
            }
            Form::Plain(dtype) => (elements(buffers[1], "values", dtype, self.rows)?, None),
            Form::Other(found, _) => return Err(format!("is {found}")),
        };
        Ok(Column {
            rows: self.rows,
            nulls,
            values,
            validity,
            offsets,
        })
    }
}

impl Column {
    /// How many rows it has in its record batch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// How many of them are null, as the file says.
    pub fn nulls(&self) -> u64 {
        self.nulls
    }

    /// The values, one for each row; of strings and binary the bytes of all of them. What lies at a null is unspecified.
    pub fn values(&self) -> &Elements {
        &self.values
    }

    /// A bit for each row, 0 for a null ([`Dtype::Bits`]); none where no row is null and the file keeps none.
    pub fn validity(&self) -> Option<&Elements> {
        self.validity.as_ref()
    }

    /// Of strings and binary: value `i` is the bytes from `offsets[i]` up to `offsets[i + 1]`, which nobody has checked. `I32`, or `I64`
    /// for the large kinds; one more than rows, or none where there is no row.
    pub fn offsets(&self) -> Option<&Elements> {
        self.offsets.as_ref()
    }
}

/// The message that describes a record batch, without its length before it.
fn message_of(file: &ArrowFile, what: &str, at: std::ops::Range<u64>) -> Result<Aligned> {
    /// What precedes the length since version 0.15 of Arrow.
    const CONTINUES: [u8; 4] = [0xff; 4];
    let (source, bytes) = (&file.source, at.end - at.start);
    if bytes < 8 {
        return Err(source.broken(format!("{what} has a description of {bytes} bytes")));
    }
    let [first, second] = [source.array::<4>(at.start)?, source.array::<4>(at.start + 4)?];
    let (head, length) = match first == CONTINUES {
        true => (8, i32::from_le_bytes(second)),
        false => (4, i32::from_le_bytes(first)),
    };
    match u64::try_from(length) {
        Ok(length) if length <= bytes - head => source.part(what, at.start + head, length),
        _ => Err(source.broken(format!("{what} has a description of {length} bytes in {bytes}"))),
    }
}

/// Where the columns' nodes and buffers are, in a body that lies at `body` of the file; else what is wrong.
#[allow(clippy::type_complexity, reason = "two columns of one table, used once")]
fn parts_of(
    file: &ArrowFile,
    batch: &RecordBatch<'_>,
    body: std::ops::Range<u64>,
) -> Result<(Vec<Node>, Vec<[Option<Span>; 3]>), String> {
    let nodes: Vec<&FieldNode> = batch.nodes().into_iter().flatten().collect();
    let buffers: Vec<&Buffer> = batch.buffers().into_iter().flatten().collect();
    let mut views = batch.variadicBufferCounts().into_iter().flatten();
    let (mut node, mut buffer) = (0, 0);
    let (mut lengths, mut spans) = (Vec::new(), Vec::new());
    for layout in &file.columns {
        let Parts {
            nodes: nodes_here,
            buffers: buffers_here,
            views: views_here,
        } = layout.parts;
        let first = nodes
            .get(node)
            .ok_or_else(|| format!("has {} nodes, too few", nodes.len()))?;
        lengths.push(Node {
            rows: first.length(),
            nulls: first.null_count(),
        });
        let mut own = [None; 3];
        for (place, at) in own.iter_mut().zip(0..buffers_here) {
            let found = buffers.get(buffer + at);
            let found = found.ok_or_else(|| format!("has {} buffers, too few", buffers.len()))?;
            *place = Some(span_of(found, &body).ok_or_else(|| format!("has a buffer outside of it: {found:?}"))?);
        }
        spans.push(own);
        let further = views
            .by_ref()
            .take(views_here)
            .try_fold(0usize, |sum, count| sum.checked_add(usize::try_from(count).ok()?));
        let further = further.filter(|&further| further <= buffers.len());
        let further = further.ok_or("has a number of buffers of views that cannot be")?;
        node += nodes_here;
        buffer += buffers_here + further;
    }
    match (node, buffer) == (nodes.len(), buffers.len()) {
        true => Ok((lengths, spans)),
        false => Err(format!(
            "has {} nodes and {} buffers; its file's schema has {node} and {buffer}",
            nodes.len(),
            buffers.len()
        )),
    }
}

fn span_of(buffer: &Buffer, body: &std::ops::Range<u64>) -> Option<Span> {
    let begin = body.start.checked_add(u64::try_from(buffer.offset()).ok()?)?;
    let bytes = u64::try_from(buffer.length()).ok()?;
    let end = begin.checked_add(bytes)?;
    (end <= body.end).then_some(Span { offset: begin, bytes })
}
