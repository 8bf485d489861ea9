//! What a column is, and which buffers of a record batch are its.

use arrow_ipc::{DateUnit, Field, FloatingPoint, Int, IntervalUnit, Precision, Type};

use crate::Dtype;

/// How a column's values lie in buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Validity, elements.
    Plain(Dtype),
    /// Validity, offsets, bytes.
    Text(Dtype),
    /// Validity, offsets of items, which are the only child.
    List(Dtype),
    /// Validity; so many items of the only child for each row.
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
    /// How many buffers of a record batch it has, before those of its children.
    pub buffers: usize,
    /// Whether it has further ones, whose number the batch says.
    pub views: bool,
    pub children: Vec<Layout>,
    /// Of elements that are places in a dictionary.
    pub coded: Option<Box<Coded>>,
}

/// The dictionary of a column, or of what is nested in one.
#[derive(Debug, Clone)]
pub(super) struct Coded {
    /// Its number in the file.
    pub id: i64,
    pub values: Layout,
}

/// A column that is looked up by its name: one of the schema, or a field of structures in it.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Its number in the schema.
    pub column: usize,
    /// The number of the field in each structure, the outermost first. Lists between structures have no number.
    pub fields: Vec<usize>,
}

/// What to do about a column that no region lies over.
const FLATTEN: &str = "make columns of its parts before the file is written";

impl Layout {
    /// That of a field and of all below it, or what is wrong with it. `all_have_validity`: unions and runs, too, as in files of version V4.
    /// The file's reader has bounded how many there are, and how deep.
    pub fn of(field: Field<'_>, all_have_validity: bool) -> Result<Self, String> {
        let values = Self::of_values(field, all_have_validity)?;
        let Some(dictionary) = field.dictionary() else {
            return Ok(values);
        };
        // Without a type the places are integers of 32 bits.
        let dtype = dictionary.indexType().map_or(Some(Dtype::I32), int);
        Ok(Self {
            name: values.name.clone(),
            form: Form::Plain(dtype.ok_or_else(|| untyped(&values.name, field))?),
            buffers: 2,
            views: false,
            children: Vec::new(),
            coded: Some(Box::new(Coded {
                id: dictionary.id(),
                values,
            })),
        })
    }

    /// That of the values, where a dictionary has them, too.
    fn of_values(field: Field<'_>, all_have_validity: bool) -> Result<Self, String> {
        let name = field.name().unwrap_or_default().to_owned();
        let form = form_of(field).ok_or_else(|| untyped(&name, field))?;
        let below = field.children().into_iter().flatten();
        let children = below.map(|child| Self::of(child, all_have_validity));
        Ok(Self {
            name,
            form,
            buffers: buffers_of(field, all_have_validity),
            views: matches!(field.type_type(), Type::Utf8View | Type::BinaryView),
            children: children.collect::<Result<_, _>>()?,
            coded: None,
        })
    }

    /// Adds what can be looked up of column `column`, of which this is the field `fields`.
    pub fn add_leaves(&self, column: usize, fields: &mut Vec<usize>, all: &mut Vec<Leaf>) {
        match (self.form, self.items()) {
            (_, Some(items)) => items.add_leaves(column, fields, all),
            (Form::Struct, _) => {
                for (at, child) in self.children.iter().enumerate() {
                    fields.push(at);
                    child.add_leaves(column, fields, all);
                    fields.pop();
                }
            }
            _ => all.push(Leaf {
                column,
                fields: fields.clone(),
            }),
        }
    }

    /// The names on the way to a leaf of this column: its own, and that of the field in each structure.
    pub fn names<'l>(&'l self, leaf: &'l Leaf) -> impl Iterator<Item = &'l str> {
        let mut layout = self;
        let fields = leaf.fields.iter().map_while(move |&field| {
            layout = layout.innermost().children.get(field)?;
            Some(layout.name.as_str())
        });
        std::iter::once(self.name.as_str()).chain(fields)
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
        let mut layout = self;
        while let Some(items) = layout.items() {
            layout = items;
        }
        layout
    }

    /// Why it is no array of elements: which part of it, by what its name goes on with, what that is, and what to do.
    pub fn obstacle(&self) -> Option<(String, &'static str, &'static str)> {
        let (mut layout, mut name) = (self, String::new());
        loop {
            if let Some(items) = layout.items() {
                layout = items;
                name += ".items";
            } else if let Some(coded) = &layout.coded {
                layout = &coded.values;
                name += ".dictionary";
            } else {
                return match layout.form {
                    Form::Other(found, mend) => Some((name, found, mend)),
                    Form::Struct => Some((name, "a structure in each row", FLATTEN)),
                    _ => None,
                };
            }
        }
    }

    /// The items of a list.
    pub fn items(&self) -> Option<&Self> {
        match self.form {
            Form::List(_) | Form::FixedList(_) => self.children.first(),
            _ => None,
        }
    }
}

/// How many buffers a field has without its children's.
fn buffers_of(field: Field<'_>, all_have_validity: bool) -> usize {
    match field.type_type() {
        Type::Null => 0,
        Type::RunEndEncoded => usize::from(all_have_validity),
        Type::Struct_ | Type::FixedSizeList => 1,
        Type::Utf8 | Type::Binary | Type::LargeUtf8 | Type::LargeBinary => 3,
        Type::ListView | Type::LargeListView => 3,
        Type::Union => {
            let dense = field
                .type_as_union()
                .is_some_and(|union| union.mode() == arrow_ipc::UnionMode::Dense);
            1 + usize::from(dense) + usize::from(all_have_validity)
        }
        // Numbers, lists, maps, views.
        _ => 2,
    }
}

/// What is wrong with a field of which [`form_of`] makes nothing.
fn untyped(name: &str, field: Field<'_>) -> String {
    let shown: String = name.chars().take(40).collect();
    format!(
        "column `{shown}` is of type {:?}, without what that needs",
        field.type_type()
    )
}

/// None for a type that does not say what it must.
fn form_of(field: Field<'_>) -> Option<Form> {
    let plain = |dtype| Some(Form::Plain(dtype));
    match field.type_type() {
        Type::Int => plain(int(field.type_as_int()?)?),
        Type::FloatingPoint => plain(float(field.type_as_floating_point()?)?),
        Type::Bool => plain(Dtype::Bits),
        Type::Date => plain(match field.type_as_date()?.unit() {
            DateUnit::DAY => Dtype::I32,
            _ => Dtype::I64,
        }),
        Type::Time => plain(match field.type_as_time()?.bitWidth() {
            32 => Dtype::I32,
            64 => Dtype::I64,
            _ => return None,
        }),
        Type::Timestamp | Type::Duration => plain(Dtype::I64),
        Type::Decimal => plain(match field.type_as_decimal()?.bitWidth() {
            32 => Dtype::I32,
            64 => Dtype::I64,
            128 => Dtype::Bytes(16),
            256 => Dtype::Bytes(32),
            _ => return None,
        }),
        Type::Interval => plain(match field.type_as_interval()?.unit() {
            IntervalUnit::YEAR_MONTH => Dtype::I32,
            IntervalUnit::DAY_TIME => Dtype::Bytes(8),
            IntervalUnit::MONTH_DAY_NANO => Dtype::Bytes(16),
            _ => return None,
        }),
        Type::FixedSizeBinary => {
            let bytes = field.type_as_fixed_size_binary()?.byteWidth();
            plain(Dtype::Bytes(u32::try_from(bytes).ok()?))
        }
        Type::List | Type::LargeList | Type::FixedSizeList | Type::Map => list(field),
        Type::Struct_ => Some(Form::Struct),
        // A length, and the bytes or where they are.
        Type::Utf8View | Type::BinaryView => plain(Dtype::Bytes(16)),
        Type::Utf8 | Type::Binary => Some(Form::Text(Dtype::I32)),
        Type::LargeUtf8 | Type::LargeBinary => Some(Form::Text(Dtype::I64)),
        other => Some(no_array(other)),
    }
}

/// A list, which has one child. A map is one of structures of a key and a value.
fn list(field: Field<'_>) -> Option<Form> {
    if field.children().map_or(0, |children| children.len()) != 1 {
        return None;
    }
    Some(match field.type_type() {
        Type::List | Type::Map => Form::List(Dtype::I32),
        Type::LargeList => Form::List(Dtype::I64),
        _ => Form::FixedList(u64::try_from(field.type_as_fixed_size_list()?.listSize()).ok()?),
    })
}

/// A column whose values are no elements.
fn no_array(of: Type) -> Form {
    match of {
        Type::Null => Form::Other("without values", "leave it out"),
        Type::ListView | Type::LargeListView => Form::Other(
            "views of lists",
            "cast it before the file is written, in Python by column.cast(pyarrow.large_list(type of items))",
        ),
        Type::Union => Form::Other("a union", FLATTEN),
        Type::RunEndEncoded => Form::Other(
            "encoded by its runs",
            "decode it before the file is written, in Python by pyarrow.compute.run_end_decode(column)",
        ),
        _ => Form::Other(
            "of a type that is not known",
            "cast it to numbers before the file is written",
        ),
    }
}

fn int(of: Int<'_>) -> Option<Dtype> {
    Some(match (of.is_signed(), of.bitWidth()) {
        (false, 8) => Dtype::U8,
        (false, 16) => Dtype::U16,
        (false, 32) => Dtype::U32,
        (false, 64) => Dtype::U64,
        (true, 8) => Dtype::I8,
        (true, 16) => Dtype::I16,
        (true, 32) => Dtype::I32,
        (true, 64) => Dtype::I64,
        _ => return None,
    })
}

fn float(of: FloatingPoint<'_>) -> Option<Dtype> {
    Some(match of.precision() {
        Precision::HALF => Dtype::F16,
        Precision::SINGLE => Dtype::F32,
        Precision::DOUBLE => Dtype::F64,
        _ => return None,
    })
}
