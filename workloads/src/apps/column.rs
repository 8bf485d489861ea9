//! What applications come to: named columns, how they are compared, and the files that they are written to.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::{AppError, compare_by};
use crate::graph::Graph;

/// A column of a result: one value a row, or as many in each.
#[derive(Clone, Debug)]
pub struct Column {
    /// What it is called.
    pub name: &'static str,
    /// Values of a row, where it has several.
    pub width: Option<usize>,
    /// Row by row.
    pub values: Values,
}

macro_rules! values {
    ($($kind:ident($number:ty) = $numpy:literal;)*) => {
        /// Numbers of one type.
        #[derive(Clone, Debug)]
        pub enum Values {
            $(#[doc = concat!("`", stringify!($number), "`")] $kind(Vec<$number>),)*
        }

        $(impl From<Vec<$number>> for Values {
            fn from(values: Vec<$number>) -> Self {
                Self::$kind(values)
            }
        })*

        impl Values {
            /// How many there are.
            fn len(&self) -> usize {
                match self { $(Self::$kind(values) => values.len(),)* }
            }

            /// Their bytes, little-endian.
            fn bytes(&self) -> &[u8] {
                match self { $(Self::$kind(values) => bytemuck::cast_slice(values),)* }
            }

            /// NumPy's name of the type.
            fn numpy(&self) -> &'static str {
                match self { $(Self::$kind(_) => $numpy,)* }
            }

            fn at(&self, place: usize) -> &dyn Display {
                match self { $(Self::$kind(values) => &values[place],)* }
            }
        }
    };
}
values! {
    I32(i32) = "<i4";
    I64(i64) = "<i8";
    U32(u32) = "<u4";
    U64(u64) = "<u8";
    F32(f32) = "<f4";
}

// Bytes in memory are those in files.
const _: () = assert!(cfg!(target_endian = "little"));

impl Column {
    /// One value a row.
    pub fn new(name: &'static str, values: impl Into<Values>) -> Self {
        Self {
            name,
            width: None,
            values: values.into(),
        }
    }

    /// This many values a row.
    pub fn wide(name: &'static str, width: usize, values: impl Into<Values>) -> Self {
        Self {
            width: Some(width),
            ..Self::new(name, values)
        }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.width.unwrap_or(1)
    }

    /// Compares it with the processor's, value for value: floats may be off by `slack` of that value. How many values.
    ///
    /// # Errors
    /// [`AppError::Wrong`].
    fn compare(&self, expected: &Self, slack: &dyn Fn(f64) -> f64) -> Result<u64, AppError> {
        let alike = |one: &f32, other: &f32| {
            let (exact, close) = (f64::from(*one), f64::from(*other));
            one == other || one.to_bits() == other.to_bits() || (exact - close).abs() <= slack(close)
        };
        match (&self.values, &expected.values) {
            (Values::F32(found), Values::F32(expected)) => compare_by(self.name, found, expected, alike),
            (Values::I32(found), Values::I32(expected)) => compare_by(self.name, found, expected, i32::eq),
            (Values::I64(found), Values::I64(expected)) => compare_by(self.name, found, expected, i64::eq),
            (Values::U32(found), Values::U32(expected)) => compare_by(self.name, found, expected, u32::eq),
            (Values::U64(found), Values::U64(expected)) => compare_by(self.name, found, expected, u64::eq),
            _ => unreachable!("a column has one type"),
        }
    }
}

/// Compares columns with the processor's, as [`Column::compare`] does.
///
/// # Errors
/// [`AppError::Wrong`].
pub(super) fn compare(found: &[Column], expected: &[Column], slack: &dyn Fn(f64) -> f64) -> Result<u64, AppError> {
    let pairs = found.iter().zip(expected);
    pairs.map(|(found, expected)| found.compare(expected, slack)).sum()
}

/// A result with the ids of its vertices.
pub fn with_ids(graph: &Graph, found: Vec<Column>) -> Vec<Column> {
    let ids: Vec<u64> = (0..graph.csr().vertices())
        .filter_map(|vertex| graph.id_of(vertex))
        .collect();
    std::iter::once(Column::new("vertex", ids)).chain(found).collect()
}

/// What a file of a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line a row, values apart by tabs, after a line `# ` with the columns' names.
    Text,
    /// NumPy's: an array, or one of records where there are several columns.
    Npy,
    /// Parquet; columns of several values a row are lists.
    Parquet,
}

/// A file's name that says no format.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// An end that is none of the known ones.
    #[error("unknown format of results {}: end the name in .txt, .tsv, .npy or .parquet, or without an extension for text", path.display())]
    Unknown {
        /// The name.
        path: PathBuf,
    },
    /// A build without Parquet.
    #[error("cannot write the Parquet file {}: this build has no Parquet; cargo build --release -p gpuvm-cli --features parquet", path.display())]
    NoParquet {
        /// The name.
        path: PathBuf,
    },
}

impl Format {
    /// By the end of a file's name.
    ///
    /// # Errors
    /// [`FormatError`].
    pub fn of(path: &Path) -> Result<Self, FormatError> {
        let own = || path.to_owned();
        match path.extension().map(|end| end.to_ascii_lowercase()) {
            None => Ok(Self::Text),
            Some(end) if end == "txt" || end == "tsv" => Ok(Self::Text),
            Some(end) if end == "npy" => Ok(Self::Npy),
            Some(end) if end == "parquet" && cfg!(feature = "parquet") => Ok(Self::Parquet),
            Some(end) if end == "parquet" => Err(FormatError::NoParquet { path: own() }),
            Some(_) => Err(FormatError::Unknown { path: own() }),
        }
    }

    /// Writes columns of one length.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(self, columns: &[Column], out: &mut (dyn Write + Send)) -> io::Result<()> {
        match self {
            Self::Text => text(columns, out),
            Self::Npy => npy(columns, out),
            #[cfg(feature = "parquet")]
            Self::Parquet => parquet::write(columns, out),
            #[cfg(not(feature = "parquet"))]
            Self::Parquet => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Display for Column {
    /// The name, with the number of values of a row: `ids[10]`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            Some(width) => write!(out, "{}[{width}]", self.name),
            None => out.write_str(self.name),
        }
    }
}

fn rows(columns: &[Column]) -> usize {
    columns.first().map_or(0, Column::rows)
}

fn text(columns: &[Column], out: &mut dyn Write) -> io::Result<()> {
    let names: Vec<String> = columns.iter().map(ToString::to_string).collect();
    writeln!(out, "# {}", names.join("\t"))?;
    for row in 0..rows(columns) {
        let mut tab = "";
        for column in columns {
            let width = column.width.unwrap_or(1);
            for place in row * width..(row + 1) * width {
                write!(out, "{tab}{}", column.values.at(place))?;
                tab = "\t";
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Version 1.0 of NumPy's format (`numpy/lib/_format_impl.py`): a magic word, the header's length, a Python dictionary, the values.
fn npy(columns: &[Column], out: &mut dyn Write) -> io::Result<()> {
    let rows = rows(columns);
    let (kind, shape) = match columns {
        [column] => {
            let across = column.width.map_or(String::new(), |width| format!(" {width},"));
            (format!("'{}'", column.values.numpy()), across)
        }
        _ => {
            let field = |column: &Column| match column.width {
                Some(width) => format!("('{}', '{}', ({width},))", column.name, column.values.numpy()),
                None => format!("('{}', '{}')", column.name, column.values.numpy()),
            };
            let fields: Vec<String> = columns.iter().map(field).collect();
            (format!("[{}]", fields.join(", ")), String::new())
        }
    };
    let header = format!("{{'descr': {kind}, 'fortran_order': False, 'shape': ({rows},{shape}), }}");
    // The values begin at a multiple of 64.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(length as u16).to_le_bytes())?;
    writeln!(out, "{header:<width$}", width = length - 1)?;
    let parts: Vec<(&[u8], usize)> = columns
        .iter()
        .map(|column| (column.values.bytes(), column.values.bytes().len() / rows.max(1)))
        .collect();
    match parts[..] {
        [(all, _)] => out.write_all(all),
        _ => (0..rows).try_for_each(|row| {
            parts
                .iter()
                .try_for_each(|(all, bytes)| out.write_all(&all[row * bytes..][..*bytes]))
        }),
    }
}

#[cfg(feature = "parquet")]
mod parquet {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parquet::basic::{LogicalType, Repetition, Type as Physical};
    use parquet::column::writer::ColumnWriter;
    use parquet::errors::ParquetError;
    use parquet::schema::types::{Type, TypePtr};

    use crate::apps::column::{Column, Values, rows};
    use crate::table::{in_io, required, write_groups};

    fn field(column: &Column) -> Result<TypePtr, ParquetError> {
        let (physical, logical) = match column.values {
            Values::I32(_) => (Physical::INT32, None),
            Values::I64(_) => (Physical::INT64, None),
            Values::U32(_) => (Physical::INT32, Some(LogicalType::integer(32, false))),
            Values::U64(_) => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Values::F32(_) => (Physical::FLOAT, None),
        };
        if column.width.is_none() {
            return required(column.name, physical, logical);
        }
        // The three levels of the format's lists.
        let element = required("element", physical, logical)?;
        let list = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![element]);
        let outer = Type::group_type_builder(column.name).with_repetition(Repetition::REQUIRED);
        let outer = outer
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(list.build()?)]);
        outer.build().map(Arc::new)
    }

    pub(super) fn write(columns: &[Column], out: &mut (dyn Write + Send)) -> io::Result<()> {
        let fields = columns.iter().map(field).collect::<Result<_, _>>();
        let write = |place: usize, rows: std::ops::Range<usize>, writer: &mut ColumnWriter<'_>| {
            let column = &columns[place];
            let width = column.width.unwrap_or(1);
            let (at, count) = (rows.start * width..rows.end * width, rows.len() * width);
            // Every value is there; the first one of a list begins it.
            let levels = column.width.map(|_| {
                (
                    vec![1; count],
                    (0..count).map(|k| i16::from(k % width > 0)).collect::<Vec<_>>(),
                )
            });
            let (there, repeated) = levels.unzip();
            let (there, repeated) = (there.as_deref(), repeated.as_deref());
            match (&column.values, writer) {
                (Values::I32(values), ColumnWriter::Int32ColumnWriter(writer)) => {
                    writer.write_batch(&values[at], there, repeated)
                }
                (Values::I64(values), ColumnWriter::Int64ColumnWriter(writer)) => {
                    writer.write_batch(&values[at], there, repeated)
                }
                (Values::U32(values), ColumnWriter::Int32ColumnWriter(writer)) => {
                    writer.write_batch(bytemuck::cast_slice(&values[at]), there, repeated)
                }
                (Values::U64(values), ColumnWriter::Int64ColumnWriter(writer)) => {
                    writer.write_batch(bytemuck::cast_slice(&values[at]), there, repeated)
                }
                (Values::F32(values), ColumnWriter::FloatColumnWriter(writer)) => {
                    writer.write_batch(&values[at], there, repeated)
                }
                _ => Err(ParquetError::General("a column of another type".to_owned())),
            }
        };
        let written = fields.and_then(|fields| write_groups(fields, rows(columns), out, &write));
        written.map_err(in_io)
    }
}
