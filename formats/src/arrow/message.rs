//! Messages of a file: what record batches and dictionaries have of columns, and where that lies.

use std::{collections::HashMap, iter::once, ops::Range, vec::IntoIter};

use arrow_ipc::{Block, Buffer, FieldNode, Message, MetadataVersion, RecordBatch, root_as_message};

use super::schema::{Form, Layout};
use crate::{FormatError, Result, file::Source};

/// A file whose messages are read, and its bytes among which these may lie.
#[derive(Clone, Copy)]
pub(super) struct Messages<'a> {
    pub source: &'a Source,
    pub room: &'a Range<u64>,
}

/// What a record batch has of a column, or of what is nested in one.
#[derive(Debug)]
pub(super) struct Node {
    pub rows: i64,
    pub nulls: i64,
    /// Where its buffers lie in the file.
    pub buffers: Vec<Range<u64>>,
    pub children: Vec<Node>,
}

/// Whether files of a version are read.
pub(super) fn is_known(version: MetadataVersion) -> bool {
    matches!(version, MetadataVersion::V4 | MetadataVersion::V5)
}

/// What `read` makes of the message of a block, which errors call `what`, and of the bytes of the file that its buffers are among.
pub(super) fn read_message<T>(
    file: Messages<'_>,
    what: &str,
    block: &Block,
    read: impl FnOnce(Message<'_>, Range<u64>) -> Result<T>,
) -> Result<T> {
    let source = file.source;
    let place = || {
        let begin = u64::try_from(block.offset()).ok()?;
        let body = begin.checked_add(u64::try_from(block.metaDataLength()).ok()?)?;
        let end = body.checked_add(u64::try_from(block.bodyLength()).ok()?)?;
        (begin >= file.room.start && end <= file.room.end).then_some((begin..body, body..end))
    };
    let Some((metadata, body)) = place() else {
        return Err(source.broken(format!("{what} is said to lie where it cannot: {block:?}")));
    };
    let description = description_of(file, what, metadata)?;
    let message = root_as_message(bytemuck::cast_slice(&description)).map_err(|error| {
        let reason = format!("{what} has a damaged description");
        source.broken_by(reason, Some(error.to_string().into()))
    })?;
    // Writers of version V4 are known that end a file by a footer of version V5.
    match is_known(message.version()) {
        true => read(message, body),
        false => Err(source.broken(format!("{what} is of version {:?}", message.version()))),
    }
}

/// A message without its length before it.
fn description_of(file: Messages<'_>, what: &str, at: Range<u64>) -> Result<Vec<u64>> {
    let (source, bytes) = (file.source, at.end - at.start);
    if bytes < 8 {
        return Err(source.broken(format!("{what} has a description of {bytes} bytes")));
    }
    let number = |place| source.array(place).map(i32::from_le_bytes);
    // Since version 0.15 of Arrow four bytes of 0xff precede the length.
    let (head, length) = match number(at.start)? {
        -1 => (8, number(at.start + 4)?),
        length => (4, length),
    };
    match u64::try_from(length) {
        Ok(length) if length <= bytes - head => source.part(what, at.start + head, length),
        _ => Err(source.broken(format!("{what} has a description of {length} bytes in {bytes}"))),
    }
}

/// What `batch`, of a message of this version, has of columns of these layouts. Its buffers are among the bytes `body` of the file.
pub(super) fn nodes_of<'l>(
    file: Messages<'_>,
    what: &str,
    (batch, version): (&RecordBatch<'_>, MetadataVersion),
    body: Range<u64>,
    layouts: impl Iterator<Item = &'l Layout>,
) -> Result<Vec<Node>> {
    if let Some(compression) = batch.compression() {
        return Err(FormatError::Compressed {
            path: file.source.owned_path(),
            part: what.to_owned(),
            codec: format!("{:?}", compression.codec()),
        });
    }
    let mut left = Left {
        nodes: all_of(batch.nodes()),
        buffers: all_of(batch.buffers()),
        views: all_of(batch.variadicBufferCounts()),
        body,
        is_v4: version == MetadataVersion::V4,
    };
    let nodes: Result<Vec<_>, String> = layouts.map(|layout| left.take(layout)).collect();
    let nodes = nodes.and_then(|nodes| match (left.nodes.len(), left.buffers.len()) {
        (0, 0) => Ok(nodes),
        (more, buffers) => Err(format!("has {more} nodes and {buffers} buffers more than its columns")),
    });
    nodes.map_err(|reason| file.source.broken(format!("{what} {reason}")))
}

fn all_of<T>(list: Option<impl IntoIterator<Item = T>>) -> IntoIter<T> {
    list.into_iter().flatten().collect::<Vec<_>>().into_iter()
}

/// Nodes and buffers of a record batch that no column has had yet, in the order of its columns.
struct Left<'b> {
    nodes: IntoIter<&'b FieldNode>,
    buffers: IntoIter<&'b Buffer>,
    /// How many further buffers each array of views has.
    views: IntoIter<i64>,
    body: Range<u64>,
    is_v4: bool,
}

impl Left<'_> {
    fn take(&mut self, layout: &Layout) -> Result<Node, String> {
        let node = self.nodes.next().ok_or("has too few nodes")?;
        let mut count = layout.buffers + usize::from(layout.validity_in_v4 && self.is_v4);
        if layout.form == Form::Views {
            let further = self.views.next().and_then(|further| usize::try_from(further).ok());
            let further = further.filter(|further| *further <= self.buffers.len());
            count += further.ok_or("has a number of buffers of views that cannot be")?;
        }
        Ok(Node {
            rows: node.length(),
            nulls: node.null_count(),
            buffers: (0..count).map(|_| self.buffer()).collect::<Result<_, _>>()?,
            children: layout
                .children
                .iter()
                .map(|child| self.take(child))
                .collect::<Result<_, _>>()?,
        })
    }

    fn buffer(&mut self) -> Result<Range<u64>, String> {
        let buffer = self.buffers.next().ok_or("has too few buffers")?;
        let place = || {
            let begin = self.body.start.checked_add(u64::try_from(buffer.offset()).ok()?)?;
            let end = begin.checked_add(u64::try_from(buffer.length()).ok()?)?;
            (end <= self.body.end).then_some(begin..end)
        };
        place().ok_or_else(|| format!("has a buffer outside of it: {buffer:?}"))
    }
}

/// All dictionaries of a file, by their numbers, each in its parts.
pub(super) type Dictionaries = HashMap<i64, Vec<Node>>;

/// Reads all dictionaries.
pub(super) fn dictionaries_of(file: Messages<'_>, schema: &[Layout], blocks: &[Block]) -> Result<Dictionaries> {
    let source = file.source;
    let mut layouts = HashMap::new();
    schema.iter().for_each(|layout| add_values(layout, &mut layouts));
    let (mut all, mut bytes) = (Dictionaries::new(), 0);
    for (number, block) in blocks.iter().enumerate() {
        let what = &format!("dictionary batch {number}");
        let broken = |reason: String| source.broken(format!("{what} {reason}"));
        // What is kept is no more than the file has.
        bytes += u64::try_from(block.metaDataLength()).unwrap_or(0);
        if bytes > source.bytes {
            return Err(broken("lies where another one does".to_owned()));
        }
        read_message(file, what, block, |message, body| {
            let dictionary = message.header_as_dictionary_batch();
            let Some((dictionary, values)) = dictionary.and_then(|dictionary| Some((dictionary, dictionary.data()?)))
            else {
                return Err(broken("is another message".to_owned()));
            };
            let id = dictionary.id();
            let Some(&layout) = layouts.get(&id) else {
                return Err(broken(format!("is number {id}, which no column has")));
            };
            let nodes = nodes_of(file, what, (&values, message.version()), body, once(layout))?;
            if nodes.iter().any(|node| node.rows != values.length()) {
                return Err(broken(format!("has not {} rows, as it says", values.length())));
            }
            let parts = all.entry(id).or_default();
            if !parts.is_empty() && !dictionary.isDelta() {
                return Err(broken(format!("replaces an earlier one, number {id}")));
            }
            parts.extend(nodes);
            Ok(())
        })?;
    }
    Ok(all)
}

/// Adds the layouts of all dictionaries of a column, and of those in them.
fn add_values<'l>(layout: &'l Layout, all: &mut HashMap<i64, &'l Layout>) {
    if let Some((id, values)) = &layout.coded {
        all.entry(*id).or_insert(values);
        add_values(values, all);
    }
    layout.children.iter().for_each(|child| add_values(child, all));
}
