//! Messages of a file: what describes a record batch or a part of a dictionary, and where its buffers lie.

use std::ops::Range;

use arrow_ipc::{Buffer, FieldNode, Message, RecordBatch, root_as_message};

use super::{ArrowFile, Place, schema::Layout};
use crate::{FormatError, Result, file::Aligned};

/// A message, and the bytes of the file that its buffers are among.
pub(super) struct Found {
    description: Aligned,
    body: Range<u64>,
}

/// What a record batch has of a column, or of what is nested in one.
#[derive(Debug)]
pub(super) struct Node {
    pub rows: i64,
    pub nulls: i64,
    /// Its first three buffers, of those that it has.
    pub buffers: [Option<Span>; 3],
    /// What views are of.
    pub further: Vec<Span>,
    pub children: Vec<Node>,
}

/// Bytes of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub offset: u64,
    pub bytes: u64,
}

impl Found {
    /// The message at `place`, which errors call `what`.
    pub fn read(file: &ArrowFile, what: &str, place: &Place) -> Result<Self> {
        let inside = |begin: i64, bytes: i64| {
            let begin = u64::try_from(begin).ok()?;
            let end = begin.checked_add(u64::try_from(bytes).ok()?)?;
            (begin >= file.room.start && end <= file.room.end).then_some(begin..end)
        };
        let metadata = inside(place.offset, place.metadata_bytes.into());
        let body_begin = place.offset.checked_add(place.metadata_bytes.into());
        let body = body_begin.and_then(|begin| inside(begin, place.body_bytes));
        let (Some(metadata), Some(body)) = (metadata, body) else {
            let reason = format!("{what} is said to lie where it cannot: {place:?}");
            return Err(file.source.broken(reason));
        };
        let description = description_of(file, what, metadata)?;
        Ok(Self { description, body })
    }

    pub fn message(&self, file: &ArrowFile, what: &str) -> Result<Message<'_>> {
        let message = root_as_message(self.description.bytes()).map_err(|error| {
            let reason = format!("{what} has a damaged description");
            file.source.broken_by(reason, Some(error.to_string().into()))
        })?;
        match message.version() == file.version {
            true => Ok(message),
            false => Err(file
                .source
                .broken(format!("{what} is of version {:?}, unlike its file", message.version()))),
        }
    }

    /// What `batch`, which is the message's, has of columns of these layouts.
    pub fn nodes<'l>(
        &self,
        file: &ArrowFile,
        what: &str,
        batch: &RecordBatch<'_>,
        layouts: impl Iterator<Item = &'l Layout>,
    ) -> Result<Vec<Node>> {
        if let Some(compression) = batch.compression() {
            return Err(FormatError::Compressed {
                path: file.source.owned_path(),
                part: what.to_owned(),
                codec: format!("{:?}", compression.codec()),
            });
        }
        let nodes = Parts::all_of(layouts, batch, self.body.clone());
        nodes.map_err(|reason| file.source.broken(format!("{what} {reason}")))
    }
}

/// A message without its length before it.
fn description_of(file: &ArrowFile, what: &str, at: Range<u64>) -> Result<Aligned> {
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

/// Nodes and buffers of a record batch, in the order of its columns.
struct Parts<'b> {
    nodes: Vec<&'b FieldNode>,
    buffers: Vec<&'b Buffer>,
    /// How many further buffers each array of views has.
    views: Vec<i64>,
    body: Range<u64>,
    /// How many of each were taken.
    taken: [usize; 3],
}

impl<'b> Parts<'b> {
    /// Those of each column, whose body lies at `body` of the file; else what is wrong.
    fn all_of<'l>(
        layouts: impl Iterator<Item = &'l Layout>,
        batch: &RecordBatch<'b>,
        body: Range<u64>,
    ) -> Result<Vec<Node>, String> {
        let mut parts = Self {
            nodes: batch.nodes().into_iter().flatten().collect(),
            buffers: batch.buffers().into_iter().flatten().collect(),
            views: batch.variadicBufferCounts().into_iter().flatten().collect(),
            body,
            taken: [0; 3],
        };
        let nodes = layouts.map(|layout| parts.take(layout)).collect::<Result<_, _>>()?;
        let [node, buffer, _] = parts.taken;
        match (node, buffer) == (parts.nodes.len(), parts.buffers.len()) {
            true => Ok(nodes),
            false => Err(format!(
                "has {} nodes and {} buffers; its columns have {node} and {buffer}",
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
        let span = |at: usize| {
            let found = self.buffers.get(at);
            let found = found.ok_or_else(|| format!("has {} buffers, too few", self.buffers.len()))?;
            span_of(found, &self.body).ok_or_else(|| format!("has a buffer outside of it: {found:?}"))
        };
        let mut buffers = [None; 3];
        for (place, at) in buffers.iter_mut().zip(0..layout.buffers) {
            *place = Some(span(*buffer + at)?);
        }
        *buffer += layout.buffers;
        let mut further = Vec::new();
        if layout.views {
            let count = self.views.get(*view).and_then(|&count| usize::try_from(count).ok());
            let count = count.filter(|count| *count <= self.buffers.len() - *buffer);
            let count = count.ok_or("has a number of buffers of views that cannot be")?;
            further = (*buffer..*buffer + count).map(span).collect::<Result<_, _>>()?;
            *buffer += count;
            *view += 1;
        }
        Ok(Node {
            rows: first.length(),
            nulls: first.null_count(),
            buffers,
            further,
            children: layout
                .children
                .iter()
                .map(|child| self.take(child))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn span_of(buffer: &Buffer, body: &Range<u64>) -> Option<Span> {
    let begin = body.start.checked_add(u64::try_from(buffer.offset()).ok()?)?;
    let bytes = u64::try_from(buffer.length()).ok()?;
    let end = begin.checked_add(bytes)?;
    (end <= body.end).then_some(Span { offset: begin, bytes })
}
