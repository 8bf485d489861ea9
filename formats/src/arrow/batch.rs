//! A record batch: where the parts of its columns are.

use arrow_ipc::{Buffer, FieldNode, MessageHeader, RecordBatch, root_as_message};

use super::{
    ArrowFile, Place,
    schema::{Form, Layout},
};
use crate::{Dtype, Elements, FormatError, Result, file::Aligned};

/// A record batch of a file: so many rows of each column.
#[derive(Debug)]
pub struct Batch<'a> {
    file: &'a ArrowFile,
    number: usize,
    rows: u64,
    /// Of each column.
    nodes: Vec<Node>,
}

/// What a record batch has of a column, or of what is nested in one.
#[derive(Debug)]
struct Node {
    rows: i64,
    nulls: i64,
    /// Its first three buffers, of those that it has.
    buffers: [Option<Span>; 3],
    children: Vec<Node>,
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
    list_size: Option<u64>,
    items: Option<Box<Column>>,
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
        let nodes = Parts::all_of(file, &batch, body).map_err(|reason| source.broken(format!("{what} {reason}")))?;
        Ok(Self {
            file,
            number,
            rows: u64::try_from(batch.length())
                .map_err(|_| source.broken(format!("{what} has {} rows", batch.length())))?,
            nodes,
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
        if let Some((column, found, mend)) = obstacle(layout) {
            let path = source.owned_path();
            return Err(FormatError::Column {
                path,
                column,
                found,
                mend,
            });
        }
        let node = &self.nodes[at];
        let column = match u64::try_from(node.rows) == Ok(self.rows) {
            true => self.checked(layout, &layout.name, node),
            false => Err(format!("has {} rows, and its batch {}", node.rows, self.rows)),
        };
        column.map_err(|reason| {
            source.broken(format!(
                "column `{}` of record batch {} {reason}",
                layout.name, self.number
            ))
        })
    }

    /// A column whose buffers are long enough; else what is wrong.
    fn checked(&self, layout: &Layout, name: &str, node: &Node) -> Result<Column, String> {
        let rows = u64::try_from(node.rows).map_err(|_| format!("has {} rows", node.rows))?;
        let nulls = u64::try_from(node.nulls).ok().filter(|&nulls| nulls <= rows);
        let nulls = nulls.ok_or_else(|| format!("has {} nulls in {rows} rows", node.nulls))?;
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
        let buffers = node.buffers;
        let validity = match buffers[0] {
            None | Some(Span { bytes: 0, .. }) if nulls == 0 => None,
            span => Some(elements(span, "validity", Dtype::Bits, rows)?),
        };
        let offsets = |dtype| {
            let span = buffers[1].ok_or("lacks a buffer")?;
            // Writers may leave out the one offset of no row.
            let count = match (rows, span.bytes) {
                (0, 0) => 0,
                (rows, _) => rows.checked_add(1).ok_or("has too many rows")?,
            };
            elements(buffers[1], "offsets", dtype, count)
        };
        let items = match (layout.items(), node.children.first()) {
            (Some(items), Some(node)) => Some(self.checked(items, &format!("{name}.items"), node)?),
            _ => None,
        };
        let (values, offsets, list_size) = match (layout.form, &items) {
            (Form::Text(dtype), _) => {
                let bytes = buffers[2].map_or(0, |span| span.bytes);
                let values = elements(buffers[2], "values", Dtype::U8, bytes)?;
                (values, Some(offsets(dtype)?), None)
            }
            (Form::Plain(dtype), _) => (elements(buffers[1], "values", dtype, rows)?, None, None),
            (Form::List(dtype), Some(items)) => (items.values.clone(), Some(offsets(dtype)?), None),
            (Form::FixedList(size), Some(items)) => {
                if rows.checked_mul(size).is_none_or(|all| all > items.rows) {
                    return Err(format!("has {} items for {rows} rows of {size}", items.rows));
                }
                (items.values.clone(), None, Some(size))
            }
            (Form::List(_) | Form::FixedList(_), None) => return Err("lacks its items".to_owned()),
            (Form::Other(found, _), _) => return Err(format!("is {found}")),
        };
        Ok(Column {
            rows,
            nulls,
            values,
            validity,
            offsets,
            list_size,
            items: items.map(Box::new),
        })
    }
}

/// What of a column is no array of elements, and what to do about it.
fn obstacle(layout: &Layout) -> Option<(String, &'static str, &'static str)> {
    let (mut layout, mut name) = (layout, layout.name.clone());
    while let Some(items) = layout.items() {
        layout = items;
        name += ".items";
    }
    match layout.form {
        Form::Other(found, mend) => Some((name, found, mend)),
        _ => None,
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

    /// The values, one for each row; of strings and binary the bytes of all of them, of lists the values of all their items. What lies at a
    /// null is unspecified.
    pub fn values(&self) -> &Elements {
        &self.values
    }

    /// A bit for each row, 0 for a null ([`Dtype::Bits`]); none where no row is null and the file keeps none.
    pub fn validity(&self) -> Option<&Elements> {
        self.validity.as_ref()
    }

    /// Of strings and binary: value `i` is the bytes from `offsets[i]` up to `offsets[i + 1]`, which nobody has checked; of lists the
    /// [items](Self::items). `I32`, or `I64` for the large kinds; one more than rows, or none where there is no row.
    pub fn offsets(&self) -> Option<&Elements> {
        self.offsets.as_ref()
    }

    /// Of lists that are all as long: their length. The items of row `i` are those from `i * list_size` on, also of a row that is null.
    pub fn list_size(&self) -> Option<u64> {
        self.list_size
    }

    /// Of lists: the items of all rows one after another, with their own nulls, and with offsets of their own where they are strings or lists.
    pub fn items(&self) -> Option<&Column> {
        self.items.as_deref()
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

/// Nodes and buffers of a record batch, in the order of its file's schema.
struct Parts<'b> {
    nodes: Vec<&'b FieldNode>,
    buffers: Vec<&'b Buffer>,
    /// How many further buffers each array of views has.
    views: Vec<i64>,
    body: std::ops::Range<u64>,
    /// How many of each were taken.
    taken: [usize; 3],
}

impl<'b> Parts<'b> {
    /// Those of each column, whose body lies at `body` of the file; else what is wrong.
    fn all_of(file: &ArrowFile, batch: &RecordBatch<'b>, body: std::ops::Range<u64>) -> Result<Vec<Node>, String> {
        let mut parts = Self {
            nodes: batch.nodes().into_iter().flatten().collect(),
            buffers: batch.buffers().into_iter().flatten().collect(),
            views: batch.variadicBufferCounts().into_iter().flatten().collect(),
            body,
            taken: [0; 3],
        };
        let nodes = file.columns.iter().map(|layout| parts.take(layout));
        let nodes = nodes.collect::<Result<_, _>>()?;
        let [node, buffer, _] = parts.taken;
        match (node, buffer) == (parts.nodes.len(), parts.buffers.len()) {
            true => Ok(nodes),
            false => Err(format!(
                "has {} nodes and {} buffers; its file's schema has {node} and {buffer}",
                parts.nodes.len(),
                parts.buffers.len()
            )),
        }
    }

    fn take(&mut self, layout: &Layout) -> Result<Node, String> {
        let [node, buffer, view] = &mut self.taken;
        let first = self.nodes.get(*node);
        let first = first.ok_or_else(|| format!("has {} nodes, too few", self.nodes.len()))?;
        *node += 1;
        let mut buffers = [None; 3];
        for (place, at) in buffers.iter_mut().zip(0..layout.buffers) {
            let found = self.buffers.get(*buffer + at);
            let found = found.ok_or_else(|| format!("has {} buffers, too few", self.buffers.len()))?;
            *place = Some(span_of(found, &self.body).ok_or_else(|| format!("has a buffer outside of it: {found:?}"))?);
        }
        *buffer += layout.buffers;
        if layout.views {
            let further = self.views.get(*view).and_then(|&further| usize::try_from(further).ok());
            let further = further.filter(|further| *further <= self.buffers.len() - *buffer);
            *buffer += further.ok_or("has a number of buffers of views that cannot be")?;
            *view += 1;
        }
        Ok(Node {
            rows: first.length(),
            nulls: first.null_count(),
            buffers,
            children: layout
                .children
                .iter()
                .map(|child| self.take(child))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn span_of(buffer: &Buffer, body: &std::ops::Range<u64>) -> Option<Span> {
    let begin = body.start.checked_add(u64::try_from(buffer.offset()).ok()?)?;
    let bytes = u64::try_from(buffer.length()).ok()?;
    let end = begin.checked_add(bytes)?;
    (end <= body.end).then_some(Span { offset: begin, bytes })
}
