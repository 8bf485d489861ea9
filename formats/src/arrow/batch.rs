//! A record batch: where the parts of its columns are.

use arrow_ipc::Block;

use super::{
    ArrowFile,
    message::{Node, nodes_of, read_message},
    schema::{Form, Layout},
};
use crate::{Dtype, Elements, FormatError, Result};

/// A record batch of a file: this many rows of each column.
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

impl ArrowFile {
    /// Reads where the columns of record batch `number` are, from 0.
    ///
    /// # Errors
    /// [`FormatError::Missing`], [`FormatError::Read`], [`FormatError::Broken`], [`FormatError::Compressed`].
    pub fn batch(&self, number: usize) -> Result<Batch<'_>> {
        let count = self.blocks.len();
        match self.blocks.get(number) {
            Some(block) => Batch::read(self, number, block),
            None => Err(self.source.missing("record batch", &number, format!("{count}, from 0"))),
        }
    }

    /// The column of that name in each record batch, in their order: the rows one after another. One region each, where a batch is one.
    ///
    /// # Errors
    /// As [`batch`](Self::batch) and [`Batch::column`].
    pub fn column(&self, name: &str) -> Result<Vec<Column>> {
        self.column_at(self.find(name)?)
    }

    /// As [`column`](Self::column), but that it is number `at` of [`columns`](Self::columns).
    ///
    /// # Errors
    /// As there.
    pub fn column_at(&self, at: usize) -> Result<Vec<Column>> {
        self.leaf(at)?;
        let batches = 0..self.batches();
        batches.map(|number| self.batch(number)?.column_at(at)).collect()
    }
}

impl<'a> Batch<'a> {
    fn read(file: &'a ArrowFile, number: usize, block: &Block) -> Result<Self> {
        let (source, what) = (&file.source, format!("record batch {number}"));
        read_message(file.messages(), &what, block, |message, body| {
            let batch = message.header_as_record_batch();
            let batch = batch.ok_or_else(|| source.broken(format!("{what} is another message")))?;
            let rows = u64::try_from(batch.length());
            Ok(Self {
                file,
                number,
                rows: rows.map_err(|_| source.broken(format!("{what} has {} rows", batch.length())))?,
                nodes: nodes_of(
                    file.messages(),
                    &what,
                    (&batch, message.version()),
                    body,
                    file.schema.iter(),
                )?,
            })
        })
    }

    /// How many rows it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Where the column of that name is.
    ///
    /// # Errors
    /// [`FormatError::Missing`], [`FormatError::Ambiguous`]; [`FormatError::Column`] for one that is no array of elements;
    /// [`FormatError::Broken`] for buffers that are too short for their rows; where a dictionary encodes it, what is wrong with the file's
    /// dictionaries, as for [`ArrowFile::batch`].
    pub fn column(&self, name: &str) -> Result<Column> {
        self.column_at(self.file.find(name)?)
    }

    /// Where column `at` of [`ArrowFile::columns`] is.
    ///
    /// # Errors
    /// As [`column`](Self::column).
    pub fn column_at(&self, at: usize) -> Result<Column> {
        let (source, leaf) = (&self.file.source, self.file.leaf(at)?);
        let (layout, node) = (&self.file.schema[leaf.column], &self.nodes[leaf.column]);
        let last = layout.last(leaf);
        if let Some((nested, found, fix)) = last.obstacle() {
            return Err(FormatError::Column {
                path: source.owned_path(),
                column: format!("{}{nested}", leaf.name),
                found,
                fix,
            });
        }
        if last.innermost().coded.is_some() {
            self.file.dictionaries()?;
        }
        let column = match u64::try_from(node.rows) == Ok(self.rows) {
            true => self.checked(layout, &leaf.fields, &leaf.name, node),
            false => Err(format!("has {} rows, and its batch {}", node.rows, self.rows)),
        };
        let (name, number) = (&leaf.name, self.number);
        column.map_err(|reason| source.broken(format!("column `{name}` of record batch {number} {reason}")))
    }

    /// A column whose buffers are long enough; else what is wrong. `fields`: which field of each structure in it.
    fn checked(&self, layout: &Layout, fields: &[usize], name: &str, node: &Node) -> Result<Column, String> {
        let rows = u64::try_from(node.rows).map_err(|_| format!("has {} rows", node.rows))?;
        let nulls = u64::try_from(node.nulls).ok().filter(|&nulls| nulls <= rows);
        let nulls = nulls.ok_or_else(|| format!("has {} nulls in {rows} rows", node.nulls))?;
        let bytes = |at: usize| node.buffers.get(at).map_or(0, |place| place.end - place.start);
        let elements = |at: usize, what: &str, dtype: Dtype, length: u64| {
            let place = node.buffers.get(at).ok_or("has too few buffers")?;
            let path = &self.file.source.path;
            let elements = Elements::new(path, format!("{name}{what}"), dtype, length, place.start);
            let elements = elements.filter(|elements| elements.bytes() <= bytes(at));
            elements.ok_or_else(|| format!("has {} bytes for {length} elements {dtype}", bytes(at)))
        };
        let validity = |what: &str| match nulls == 0 && bytes(0) == 0 {
            true => Ok::<_, String>(None),
            false => elements(0, what, Dtype::Bits, rows).map(Some),
        };
        // Writers may leave out the one offset of no row.
        let offsets = |dtype| match rows.checked_add(u64::from(rows > 0 || bytes(1) > 0)) {
            Some(count) => elements(1, ".offsets", dtype, count).map(Some),
            None => Err("has too many rows".to_owned()),
        };
        if layout.form == Form::Struct {
            let mut column = self.field(layout, fields, name, node)?;
            column.within.splice(0..0, validity(".within")?);
            return Ok(column);
        }
        let items = match (layout.items(), node.children.first()) {
            (Some(items), Some(node)) => Some(self.checked(items, fields, &format!("{name}.items"), node)?),
            _ => None,
        };
        let (values, offsets, list_size) = match (layout.form, &items) {
            (Form::Plain(dtype), _) => (elements(1, "", dtype, rows)?, None, None),
            (Form::Views, _) => (elements(1, "", Dtype::Bytes(16), rows)?, None, None),
            (Form::Text(dtype), _) => (elements(2, "", Dtype::U8, bytes(2))?, offsets(dtype)?, None),
            (Form::List(dtype), Some(items)) => (items.values.clone(), offsets(dtype)?, None),
            (Form::FixedList(size), Some(items)) => match rows.checked_mul(size) {
                Some(all) if all <= items.rows => (items.values.clone(), None, Some(size)),
                _ => return Err(format!("has {} items for {rows} rows of {size}", items.rows)),
            },
            (form, _) => return Err(format!("is {form:?}")),
        };
        let further = (layout.form == Form::Views).then_some(2..node.buffers.len());
        let buffers = further
            .into_iter()
            .flatten()
            .map(|at| elements(at, ".buffers", Dtype::U8, bytes(at)));
        Ok(Column {
            rows,
            nulls,
            values,
            validity: validity(".validity")?,
            offsets,
            list_size,
            items: items.map(Box::new),
            dictionary: self.dictionary(layout, &format!("{name}.dictionary"))?,
            within: Vec::new(),
            buffers: buffers.collect::<Result<_, _>>()?,
        })
    }

    /// The field `fields` of structures, which has as many rows as they.
    fn field(&self, layout: &Layout, fields: &[usize], name: &str, node: &Node) -> Result<Column, String> {
        let (&field, below) = fields.split_first().ok_or("is a structure")?;
        match (layout.children.get(field), node.children.get(field)) {
            (Some(layout), Some(child)) if child.rows == node.rows => self.checked(layout, below, name, child),
            _ => Err(format!("has fields without {} rows", node.rows)),
        }
    }

    /// The parts of a column's dictionary, if it has one.
    fn dictionary(&self, layout: &Layout, name: &str) -> Result<Vec<Column>, String> {
        let Some((id, values)) = &layout.coded else {
            return Ok(Vec::new());
        };
        let all = self.file.dictionaries.get().ok_or("has no dictionary")?;
        let parts = all.get(id).into_iter().flatten();
        parts.map(|node| self.checked(values, &[], name, node)).collect()
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

    /// Of strings and binary: value `i` is the bytes from `offsets[i]` up to `offsets[i + 1]`, which nothing has checked; of lists the
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

    /// Of a column that a dictionary encodes: what its [`values`](Self::values), which nothing has checked, are places in. A file may have a
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
    /// Nothing has checked these. Empty for other columns.
    pub fn buffers(&self) -> &[Elements] {
        &self.buffers
    }
}
