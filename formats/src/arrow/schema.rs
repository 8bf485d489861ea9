//! What a column is, and which buffers of a record batch are its.

use arrow_ipc::{DateUnit, Field, IntervalUnit, Precision, Type, UnionMode};

use crate::{Dtype, HEADER_BYTES_MAX};

/// How a column's values lie in buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Validity, elements.
    Plain(Dtype),
    /// Validity, views, and what these are of.
    Views,
    /// Validity, offsets, bytes.
    Text(Dtype),
    /// Validity, offsets of items, which are the only child.
    List(Dtype),
    /// Validity; this many items of the only child for each row.
    FixedList(u64),
    /// Validity; the fields are the children.
    Struct,
    /// No array of elements: what it is, and what to do.
    Other(&'static str, &'static str),
}

/// A column, or what is nested in one.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub name: String,
    pub form: Form,
    /// How many buffers of a record batch it has, before those of its children; of views without those that they are of.
    pub buffers: usize,
    /// Whether it has a further one in messages of version V4.
    pub validity_in_v4: bool,
    pub children: Vec<Layout>,
    /// Of elements that are places in a dictionary: its number in the file, and its values.
    pub coded: Option<(i64, Box<Layout>)>,
}

/// A column that is looked up by its name: one of the schema, or a field of structures in it.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// The column's name, and those of the field in each structure, with dots between them.
    pub name: String,
    /// Its number in the schema.
    pub column: usize,
    /// The number of the field in each structure, the outermost first. Lists between structures have no number.
    pub fields: Vec<usize>,
}

/// What to do about a column that no region lies over.
const FLATTEN: &str = "make columns of its parts before the file is written";

impl Layout {
    /// That of a field and of all below it, or what is wrong with it. The file's reader has bounded how many there are, and how deep.
    pub fn of(field: Field<'_>) -> Result<Self, String> {
        let name = field.name().unwrap_or_default();
        let untyped = || {
            let shown: String = name.chars().take(40).collect();
            let of = field.type_type();
            format!("column `{shown}` is of type {of:?}, without what that needs")
        };
        let below = field.children().into_iter().flatten();
        let (form, buffers) = form_of(field).ok_or_else(untyped)?;
        let values = Self {
            name: name.to_owned(),
            form,
            buffers,
            validity_in_v4: matches!(field.type_type(), Type::Union | Type::RunEndEncoded),
            children: below.map(Self::of).collect::<Result<_, _>>()?,
            coded: None,
        };
        let Some(dictionary) = field.dictionary() else {
            return Ok(values);
        };
        // Without a type the places are integers of 32 bits.
        let places = dictionary
            .indexType()
            .map_or((true, 32), |int| (int.is_signed(), int.bitWidth()));
        let dtype = integer(places.0, places.1);
        Ok(Self {
            name: name.to_owned(),
            form: Form::Plain(dtype.ok_or_else(untyped)?),
            buffers: 2,
            validity_in_v4: false,
            children: Vec::new(),
            coded: Some((dictionary.id(), Box::new(values))),
        })
    }

    /// Adds what can be looked up of this, which errors say is too much.
    pub fn add_leaves(&self, leaf: Leaf, all: &mut Vec<Leaf>, bytes: &mut u64) -> Result<(), String> {
        let layout = self.innermost();
        if layout.form != Form::Struct {
            all.push(leaf);
            return Ok(());
        }
        for (at, child) in layout.children.iter().enumerate() {
            // Many fields may have one long name in a file.
            *bytes += (leaf.name.len() + child.name.len()) as u64;
            if *bytes > HEADER_BYTES_MAX {
                return Err(format!("its columns' names have more than {HEADER_BYTES_MAX} bytes"));
            }
            let field = Leaf {
                name: format!("{}.{}", leaf.name, child.name),
                column: leaf.column,
                fields: leaf.fields.iter().copied().chain([at]).collect(),
            };
            child.add_leaves(field, all, bytes)?;
        }
        Ok(())
    }

    /// The last field of a leaf of this column, or the column where it is no structure.
    pub fn last(&self, leaf: &Leaf) -> &Self {
        leaf.fields.iter().fold(self, |layout, &field| {
            let layout = layout.innermost();
            layout.children.get(field).unwrap_or(layout)
        })
    }

    /// What the items of lists in lists are; this itself where it is no list.
    pub fn innermost(&self) -> &Self {
        self.items().map_or(self, Self::innermost)
    }

    /// Why it is no array of elements: which part of it, by what its name goes on with, what that is, and what to do.
    pub fn obstacle(&self) -> Option<(String, &'static str, &'static str)> {
        let (part, below) = match (self.items(), &self.coded, self.form) {
            (Some(items), ..) => (".items", items),
            (_, Some((_, values)), _) => (".dictionary", &**values),
            (.., Form::Other(found, fix)) => return Some((String::new(), found, fix)),
            (.., Form::Struct) => return Some((String::new(), "a structure in each row", FLATTEN)),
            _ => return None,
        };
        let (name, found, fix) = below.obstacle()?;
        Some((format!("{part}{name}"), found, fix))
    }

    /// The items of a list.
    pub fn items(&self) -> Option<&Self> {
        match self.form {
            Form::List(_) | Form::FixedList(_) => self.children.first(),
            _ => None,
        }
    }
}

/// A field's form, and how many buffers it has without its children's. None for a type that does not say what it must.
fn form_of(field: Field<'_>) -> Option<(Form, usize)> {
    let plain = |dtype| Some((Form::Plain(dtype), 2));
    // A map is a list of structures of a key and a value.
    let list = |form, buffers| (field.children().map_or(0, |children| children.len()) == 1).then_some((form, buffers));
    let other = |found, fix, buffers| Some((Form::Other(found, fix), buffers));
    match field.type_type() {
        Type::Int => {
            let int = field.type_as_int()?;
            plain(integer(int.is_signed(), int.bitWidth())?)
        }
        Type::FloatingPoint => plain(match field.type_as_floating_point()?.precision() {
            Precision::HALF => Dtype::F16,
            Precision::SINGLE => Dtype::F32,
            Precision::DOUBLE => Dtype::F64,
            _ => return None,
        }),
        Type::Bool => plain(Dtype::Bits),
        Type::Date => plain(match field.type_as_date()?.unit() {
            DateUnit::DAY => Dtype::I32,
            _ => Dtype::I64,
        }),
        Type::Time => plain(integer(true, field.type_as_time()?.bitWidth())?),
        Type::Timestamp | Type::Duration => plain(Dtype::I64),
        Type::Decimal => plain(match field.type_as_decimal()?.bitWidth() {
            128 => Dtype::Bytes(16),
            256 => Dtype::Bytes(32),
            bits => integer(true, bits)?,
        }),
        Type::Interval => plain(match field.type_as_interval()?.unit() {
            IntervalUnit::YEAR_MONTH => Dtype::I32,
            IntervalUnit::DAY_TIME => Dtype::Bytes(8),
            IntervalUnit::MONTH_DAY_NANO => Dtype::Bytes(16),
            _ => return None,
        }),
        Type::FixedSizeBinary => {
            let bytes = field.type_as_fixed_size_binary()?.byteWidth();
            plain(Dtype::Bytes(bytes.try_into().ok()?))
        }
        Type::List | Type::Map => list(Form::List(Dtype::I32), 2),
        Type::LargeList => list(Form::List(Dtype::I64), 2),
        Type::FixedSizeList => {
            let size = field.type_as_fixed_size_list()?.listSize();
            list(Form::FixedList(size.try_into().ok()?), 1)
        }
        Type::Struct_ => Some((Form::Struct, 1)),
        Type::Utf8View | Type::BinaryView => Some((Form::Views, 2)),
        Type::Utf8 | Type::Binary => Some((Form::Text(Dtype::I32), 3)),
        Type::LargeUtf8 | Type::LargeBinary => Some((Form::Text(Dtype::I64), 3)),
        Type::Null => other("without values", "leave it out", 0),
        Type::ListView | Type::LargeListView => other(
            "views of lists",
            "cast it before the file is written, in Python by column.cast(pyarrow.large_list(type of items))",
            3,
        ),
        Type::Union => {
            let dense = field.type_as_union()?.mode() == UnionMode::Dense;
            other("a union", FLATTEN, 1 + usize::from(dense))
        }
        Type::RunEndEncoded => other(
            "encoded by its runs",
            "decode it before the file is written, in Python by pyarrow.compute.run_end_decode(column)",
            0,
        ),
        _ => other("of a type that is not known", "write it as numbers", 2),
    }
}

fn integer(signed: bool, bits: i32) -> Option<Dtype> {
    let at = [8, 16, 32, 64].into_iter().position(|width| width == bits)?;
    Some(match signed {
        true => [Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64][at],
        false => [Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64][at],
    })
}
