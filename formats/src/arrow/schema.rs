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
}

/// What to do about a column that no region lies over.
const FLATTEN: &str = "make columns of its parts, in Python by table.flatten() or pyarrow.compute.list_flatten(column)";

impl Layout {
    /// That of a field and of all below it, or what is wrong with it. `union_has_validity`: as in files of version V4. The file's reader has
    /// bounded how many there are, and how deep.
    pub fn of(field: Field<'_>, union_has_validity: bool) -> Result<Self, String> {
        let name = field.name().unwrap_or_default().to_owned();
        let form = form_of(field).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            format!(
                "column `{shown}` is of type {:?}, without what that needs",
                field.type_type()
            )
        })?;
        let encoded = field.dictionary().is_some();
        let below = field.children().into_iter().flatten().filter(|_| !encoded);
        let children = below.map(|child| Self::of(child, union_has_validity));
        Ok(Self {
            name,
            form,
            buffers: buffers_of(field, union_has_validity),
            views: !encoded && matches!(field.type_type(), Type::Utf8View | Type::BinaryView),
            children: children.collect::<Result<_, _>>()?,
        })
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
fn buffers_of(field: Field<'_>, union_has_validity: bool) -> usize {
    if field.dictionary().is_some() {
        // Indexes; what they name is elsewhere.
        return 2;
    }
    match field.type_type() {
        Type::Null | Type::RunEndEncoded => 0,
        Type::Struct_ | Type::FixedSizeList => 1,
        Type::Utf8 | Type::Binary | Type::LargeUtf8 | Type::LargeBinary => 3,
        Type::ListView | Type::LargeListView => 3,
        Type::Union => {
            let dense = field
                .type_as_union()
                .is_some_and(|union| union.mode() == arrow_ipc::UnionMode::Dense);
            1 + usize::from(dense) + usize::from(union_has_validity)
        }
        // Numbers, lists, maps, views.
        _ => 2,
    }
}

/// None for a type that does not say what it must.
fn form_of(field: Field<'_>) -> Option<Form> {
    if field.dictionary().is_some() {
        return Some(Form::Other(
            "encoded by a dictionary",
            "decode it before the file is written, in Python by column.dictionary_decode()",
        ));
    }
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
        Type::List | Type::LargeList | Type::FixedSizeList => list(field),
        Type::Utf8 | Type::Binary => Some(Form::Text(Dtype::I32)),
        Type::LargeUtf8 | Type::LargeBinary => Some(Form::Text(Dtype::I64)),
        other => Some(no_array(other)),
    }
}

/// A list, which has one child.
fn list(field: Field<'_>) -> Option<Form> {
    if field.children().map_or(0, |children| children.len()) != 1 {
        return None;
    }
    Some(match field.type_type() {
        Type::List => Form::List(Dtype::I32),
        Type::LargeList => Form::List(Dtype::I64),
        _ => Form::FixedList(u64::try_from(field.type_as_fixed_size_list()?.listSize()).ok()?),
    })
}

/// A column whose values are no elements.
fn no_array(of: Type) -> Form {
    const VIEWS: &str = "cast it before the file is written, in Python by column.cast(pyarrow.large_string())";
    match of {
        Type::Null => Form::Other("without values", "leave it out"),
        Type::ListView | Type::LargeListView => Form::Other(
            "views of lists",
            "cast it before the file is written, in Python by column.cast(pyarrow.large_list(type of items))",
        ),
        Type::Struct_ => Form::Other("a structure in each row", FLATTEN),
        Type::Map => Form::Other("a map in each row", FLATTEN),
        Type::Union => Form::Other("a union", FLATTEN),
        Type::RunEndEncoded => Form::Other(
            "encoded by its runs",
            "decode it before the file is written, in Python by pyarrow.compute.run_end_decode(column)",
        ),
        Type::Utf8View | Type::BinaryView => Form::Other("views of strings", VIEWS),
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
