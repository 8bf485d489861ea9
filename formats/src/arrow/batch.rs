//! A record batch: where the parts of its columns are.

use arrow_ipc::MessageHeader;

use super::{
    ArrowFile, Place,
    message::{Found, Node, Span},
    schema::{Coded, Form, Layout},
};
use crate::{Dtype, Elements, FormatError, Result};

/// A record batch of a file: so many rows of each column.
#[derive(Debug)]
pub struct Batch<'a> {
    file: &'a ArrowFile,
    number: usize,
    rows: u64,
    /// Of each column.
    nodes: Vec<Node>,
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
    dictionary: Vec<Column>,
    within: Vec<Elements>,
    buffers: Vec<Elements>,
}

impl<'a> Batch<'a> {
    pub(super) fn read(file: &'a ArrowFile, number: usize, place: &Place) -> Result<Self> {
        let source = &file.source;
        let what = format!("record batch {number}");
        let found = Found::read(file, &what, place)?;
        let message = found.message(file, &what)?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            _ => None,
        };
        let batch = batch.ok_or_else(|| source.broken(format!("where {what} should be is another message")))?;
        Ok(Self {
            file,
            number,
            rows: u64::try_from(batch.length())
                .map_err(|_| source.broken(format!("{what} has {} rows", batch.length())))?,
            nodes: found.nodes(file, &what, &batch, file.schema.iter())?,
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
    /// too short for their rows; where a dictionary encodes it, what is wrong with the file's dictionaries, as for [`ArrowFile::batch`].
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
        let Some(leaf) = self.file.leaves.get(at) else {
            return Err(FormatError::Missing {
                path: source.owned_path(),
                what: "column",
                name: at.to_string(),
                has: format!("{}, from 0", self.file.leaves.len()),
            });
        };
        let name = self.file.name_of(leaf);
        let (layout, node) = (&self.file.schema[leaf.column], &self.nodes[leaf.column]);
        let last = layout.last(leaf);
        if let Some((nested, found, mend)) = last.obstacle() {
            return Err(FormatError::Column {
                path: source.owned_path(),
                column: format!("{name}{nested}"),
                found,
                mend,
            });
        }
        if last.innermost().coded.is_some() {
            self.file.dictionaries()?;
        }
        let column = match u64::try_from(node.rows) == Ok(self.rows) {
            true => self.checked(layout, &leaf.fields, &name, node),
            false => Err(format!("has {} rows, and its batch {}", node.rows, self.rows)),
        };
        column.map_err(|reason| source.broken(format!("column `{name}` of record batch {} {reason}", self.number)))
    }

    /// A column whose buffers are long enough; else what is wrong. `fields`: which field of each structure in it.
    fn checked(&self, layout: &Layout, fields: &[usize], name: &str, node: &Node) -> Result<Column, String> {
        let rows = u64::try_from(node.rows).map_err(|_| format!("has {} rows", node.rows))?;
        let nulls = u64::try_from(node.nulls).ok().filter(|&nulls| nulls <= rows);
        let nulls = nulls.ok_or_else(|| format!("has {} nulls in {rows} rows", node.nulls))?;
        let elements = |span, what: &str, dtype, length| self.elements(name, span, what, dtype, length);
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
        if layout.form == Form::Struct {
            let mut column = self.field(layout, fields, name, node)?;
            let within = validity.map(|validity| validity.named(format!("{name}.within")));
            column.within.splice(0..0, within);
            return Ok(column);
        }
        let items = match (layout.items(), node.children.first()) {
            (Some(items), Some(node)) => Some(self.checked(items, fields, &format!("{name}.items"), node)?),
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
            (Form::Struct, _) => return Err("is a structure".to_owned()),
            (Form::Other(found, _), _) => return Err(format!("is {found}")),
        };
        let further = node.further.iter();
        let further = further.map(|span| elements(Some(*span), "buffers", Dtype::U8, span.bytes));
        let dictionary = match &layout.coded {
            Some(coded) => self.dictionary(coded, &format!("{name}.dictionary"))?,
            None => Vec::new(),
        };
        Ok(Column {
            rows,
            nulls,
            values,
            validity,
            offsets,
            list_size,
            items: items.map(Box::new),
            dictionary,
            within: Vec::new(),
            buffers: further.collect::<Result<_, _>>()?,
        })
    }

    /// Elements that a buffer is long enough for; `what` they are of the column.
    fn elements(
        &self,
        name: &str,
        span: Option<Span>,
        what: &str,
        dtype: Dtype,
        length: u64,
    ) -> Result<Elements, String> {
        let span = span.ok_or("lacks a buffer")?;
        let name = match what {
            "values" => name.to_owned(),
            _ => format!("{name}.{what}"),
        };
        let elements = Elements::new(&self.file.source.path, name, dtype, length, span.offset);
        let elements = elements.filter(|elements| elements.bytes() <= span.bytes);
        elements.ok_or_else(|| format!("has {} bytes for {length} {what} of type {dtype}", span.bytes))
    }

    /// The field `fields` of structures, which has as many rows as they.
    fn field(&self, layout: &Layout, fields: &[usize], name: &str, node: &Node) -> Result<Column, String> {
        let (&field, below) = fields.split_first().ok_or("is a structure")?;
        let (Some(layout), Some(child)) = (layout.children.get(field), node.children.get(field)) else {
            return Err("lacks its fields".to_owned());
        };
        match child.rows == node.rows {
            true => self.checked(layout, below, name, child),
            false => Err(format!("has {} rows in structures of {}", child.rows, node.rows)),
        }
    }

    /// The parts of a column's dictionary.
    fn dictionary(&self, coded: &Coded, name: &str) -> Result<Vec<Column>, String> {
        let all = self.file.dictionaries.get().ok_or("lacks its dictionary")?;
        let parts = all.parts(coded.id).iter();
        parts.map(|node| self.checked(&coded.values, &[], name, node)).collect()
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

    /// The values, one for each row; of strings and binary the bytes of all of them, of lists the values of all their items; of what a
    /// dictionary encodes places in that. What lies at a null is unspecified.
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

    /// Of a column that a dictionary encodes: what its [`values`](Self::values), which nobody has checked, are places in. A file may have a
    /// dictionary in parts, one after another: its places go on from part to part. Empty for other columns.
    pub fn dictionary(&self) -> &[Column] {
        &self.dictionary
    }

    /// Of a field of structures: which of the structures around it are there, the outermost first, a bit for each row as in
    /// [`validity`](Self::validity). A row is null where any of these or its own bit is 0. Structures of which none is null and the file
    /// keeps no bits are left out.
    pub fn within(&self) -> &[Elements] {
        &self.within
    }

    /// Of views of strings and binary: the buffers that the [`values`](Self::values) are views of. A value is 16 bytes: its length as `i32`,
    /// then up to 12 bytes of a short one, or of a longer one its first 4 bytes, the number of its buffer and its place in that, each `i32`.
    /// Nobody has checked these. Empty for other columns.
    pub fn buffers(&self) -> &[Elements] {
        &self.buffers
    }
}
