//! Parquet files (<https://parquet.apache.org/docs/file-format/>), by the columns that are needed alone.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::page::PageReader;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnDescriptor, Type, TypePtr};
use rayon::prelude::*;

use super::column::{Kind, time_cell};
use super::{Column, MAX_ROWS, TableError, Trips, bad_value, no_trip, places, too_many_rows};
use crate::input::{FileError, FileFault, Input, Place};

/// Values that are decoded at a time.
const BATCH_ROWS: usize = 1 << 14;

/// Rows of a written row group, as in the TLC's files.
const GROUP_ROWS: usize = 1 << 20;

/// Reads the columns of a file, each row group's in parallel.
pub(super) fn read(file: Input<'_>) -> Result<Trips, TableError> {
    let path = file.path;
    let damaged = |source| damaged(path, source);
    let reader = unharmed(|| SerializedFileReader::new(file.file)).map_err(damaged)?;
    let metadata = reader.metadata();
    let sources = sources(path, metadata)?;
    let groups = metadata.row_groups().iter();
    let rows: Vec<u64> = groups
        .map(|group| u64::try_from(group.num_rows()))
        .collect::<Result<_, _>>()
        .map_err(|_| damaged(ParquetError::General("a row group of negative length".to_owned())))?;
    let total = rows.iter().fold(0, |sum: u64, rows| sum.saturating_add(*rows));
    if total > MAX_ROWS {
        return Err(too_many_rows(path, total).into());
    }
    if total == 0 {
        return Err(no_trip(path).into());
    }
    let mut trips = Trips::default();
    trips.reserve(total as usize)?;
    for (group, rows) in rows.into_iter().enumerate() {
        let tasks = trips.columns.par_iter_mut().zip(&sources);
        let results = tasks.map(|(cells, source)| {
            let chunk = Chunk {
                path,
                metadata,
                group,
                rows: rows as usize,
            };
            chunk.read(source, cells)
        });
        // The first column's error, whichever came first.
        results.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()?;
    }
    Ok(trips)
}

/// The error of a file that Parquet's decoder does not read.
fn damaged(path: &Path, source: ParquetError) -> FileError {
    let what = "the Parquet file cannot be read: it is truncated, damaged or packed in a way that is not supported (snappy, zstd, gzip and none \
                are); fetch or write it again";
    FileError::new(path, FileFault::Damaged, Place::File, what).caused_by(source)
}

/// What `read` returns, or an error where it panics: what the decoder expects of a file may not hold for a damaged one.
fn unharmed<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(ParquetError::General(
            "the decoder met what it did not expect".to_owned(),
        ))
    })
}

/// A column of the file that a column of the table is read from.
struct Source {
    column: Column,
    /// Its place among the file's leaves.
    place: usize,
    /// Units of a second, where it holds times.
    per_second: i64,
    /// Whether its whole numbers have no sign.
    unsigned: bool,
}

fn sources(path: &Path, metadata: &ParquetMetaData) -> Result<Vec<Source>, FileError> {
    let schema = metadata.file_metadata().schema_descr();
    let names: Vec<String> = schema.columns().iter().map(|leaf| leaf.path().string()).collect();
    let places = places(path, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let sources = Column::ALL.into_iter().zip(places).map(|(column, place)| {
        let leaf = schema.column(place);
        per_second(column.kind(), &leaf)
            .map(|per_second| Source {
                column,
                place,
                per_second,
                unsigned: is_unsigned(&leaf),
            })
            .map_err(|wanted| {
                let (column, found) = (column.name(), type_name(&leaf));
                let what = format!("the column {column} has the type {found}; {wanted} is needed");
                FileError::new(path, FileFault::Unsupported, Place::File, what)
            })
    });
    sources.collect()
}

/// Units of a second, 1 for numbers; else the types that the column may have.
fn per_second(kind: Kind, leaf: &ColumnDescriptor) -> Result<i64, &'static str> {
    let flat = leaf.max_rep_level() == 0 && leaf.max_def_level() <= 1;
    let logical = leaf.logical_type_ref();
    let converted = leaf.converted_type();
    if kind != Kind::Time {
        let physical = matches!(
            leaf.physical_type(),
            Physical::INT32 | Physical::INT64 | Physical::FLOAT | Physical::DOUBLE
        );
        let plain = matches!(logical, None | Some(LogicalType::Integer(_)))
            && !matches!(
                converted,
                ConvertedType::DECIMAL
                    | ConvertedType::DATE
                    | ConvertedType::TIME_MILLIS
                    | ConvertedType::TIME_MICROS
                    | ConvertedType::TIMESTAMP_MILLIS
                    | ConvertedType::TIMESTAMP_MICROS
            );
        return match flat && physical && plain {
            true => Ok(1),
            false => Err("INT32, INT64, FLOAT or DOUBLE, not repeated and not nested,"),
        };
    }
    let unit = match (leaf.physical_type(), logical, converted) {
        (Physical::INT96, ..) => Some(1),
        (Physical::INT64, Some(LogicalType::Timestamp(timestamp)), _) => Some(match timestamp.unit {
            TimeUnit::MILLIS => 1_000,
            TimeUnit::MICROS => 1_000_000,
            TimeUnit::NANOS => 1_000_000_000,
        }),
        (Physical::INT64, None, ConvertedType::TIMESTAMP_MILLIS) => Some(1_000),
        (Physical::INT64, None, ConvertedType::TIMESTAMP_MICROS) => Some(1_000_000),
        _ => None,
    };
    unit.filter(|_| flat)
        .ok_or("INT64 as TIMESTAMP, or INT96, not repeated and not nested,")
}

/// Whether a column's whole numbers have no sign. Older writers say so by the converted type alone.
fn is_unsigned(leaf: &ColumnDescriptor) -> bool {
    use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
    match leaf.logical_type_ref() {
        Some(LogicalType::Integer(integer)) => !integer.is_signed,
        _ => matches!(leaf.converted_type(), UINT_8 | UINT_16 | UINT_32 | UINT_64),
    }
}

fn type_name(leaf: &ColumnDescriptor) -> String {
    let physical = leaf.physical_type();
    match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(logical), _) => format!("{physical} as {logical:?}"),
        (None, ConvertedType::NONE) => physical.to_string(),
        (None, converted) => format!("{physical} as {converted}"),
    }
}

/// A row group of a file.
struct Chunk<'a> {
    path: &'a Path,
    metadata: &'a ParquetMetaData,
    group: usize,
    rows: usize,
}

impl Chunk<'_> {
    /// Adds the cells of one column.
    fn read(&self, source: &Source, cells: &mut Vec<u32>) -> Result<(), FileError> {
        let damaged = |source| damaged(self.path, source);
        let before = cells.len();
        unharmed(|| self.decode(source, cells)).map_err(damaged)??;
        match cells.len() - before == self.rows {
            true => Ok(()),
            false => Err(damaged(ParquetError::EOF(format!(
                "column {} ends before row {} of row group {}",
                source.column.name(),
                self.rows,
                self.group
            )))),
        }
    }

    fn decode(&self, source: &Source, cells: &mut Vec<u32>) -> Result<Result<(), FileError>, ParquetError> {
        // Readers of one open file would move each other's position.
        let file = File::open(self.path)?;
        let column = self.metadata.row_group(self.group).column(source.place);
        if !lies_within(column, file.metadata()?.len()) {
            return Err(ParquetError::EOF(
                "a column is said to lie outside of the file".to_owned(),
            ));
        }
        let pages: Box<dyn PageReader> = Box::new(SerializedPageReader::new(
            Arc::new(Pages(file)),
            column,
            self.rows,
            None,
        )?);
        let leaf = column.column_descr_ptr();
        let nullable = leaf.max_def_level() > 0;
        let kind = source.column.kind();
        let place = Cells {
            chunk: self,
            column: source.column,
            nullable,
            cells,
        };
        match get_column_reader(leaf, pages) {
            ColumnReader::Int32ColumnReader(reader) if source.unsigned => place.read(
                reader,
                |value| *value as u32,
                |value| kind.number_cell(f64::from(*value)),
            ),
            ColumnReader::Int32ColumnReader(reader) => {
                place.read(reader, |value| *value, |value| kind.number_cell(f64::from(*value)))
            }
            ColumnReader::Int64ColumnReader(reader) if kind == Kind::Time => {
                place.read(reader, |value| *value, |value| time_cell(*value, source.per_second))
            }
            // Codes and cents that lose digits here are too large for 32 bits.
            ColumnReader::Int64ColumnReader(reader) if source.unsigned => {
                place.read(reader, |value| *value as u64, |value| kind.number_cell(*value as f64))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                place.read(reader, |value| *value, |value| kind.number_cell(*value as f64))
            }
            ColumnReader::Int96ColumnReader(reader) => {
                place.read(reader, |value| value.to_seconds(), |seconds| time_cell(*seconds, 1))
            }
            ColumnReader::FloatColumnReader(reader) => {
                place.read(reader, |value| *value, |value| kind.number_cell(f64::from(*value)))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                place.read(reader, |value| *value, |value| kind.number_cell(*value))
            }
            _ => Err(ParquetError::General("a column that changed its type".to_owned())),
        }
    }
}

/// Whether a column's pages are in a file of that length: the decoder would panic, or seek pages for ever.
fn lies_within(column: &ColumnChunkMetaData, file_bytes: u64) -> bool {
    let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let range = u64::try_from(begin)
        .ok()
        .zip(u64::try_from(column.compressed_size()).ok());
    let end = range.and_then(|(begin, bytes)| begin.checked_add(bytes));
    end.is_some_and(|end| end <= file_bytes)
}

/// A file whose end is an error: the decoder skips what a damaged page header says, and that may be billions of values.
struct Pages(File);

/// What [`Pages`] are read by.
struct UpToEnd<R>(R);

impl Length for Pages {
    fn len(&self) -> u64 {
        Length::len(&self.0)
    }
}

impl ChunkReader for Pages {
    type T = UpToEnd<<File as ChunkReader>::T>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        self.0.get_read(start).map(UpToEnd)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.get_bytes(start, length)
    }
}

impl<R: Read> Read for UpToEnd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 if !buffer.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => Ok(bytes),
        }
    }
}

/// Where the values of a column go.
struct Cells<'a> {
    chunk: &'a Chunk<'a>,
    column: Column,
    nullable: bool,
    cells: &'a mut Vec<u32>,
}

impl Cells<'_> {
    /// Adds all values of a column, as `value` has them; 0 for a null.
    fn read<T: DataType, V: Display>(
        self,
        mut reader: ColumnReaderImpl<T>,
        value: impl Fn(&T::T) -> V,
        cell: impl Fn(&V) -> Result<u32, &'static str>,
    ) -> Result<Result<(), FileError>, ParquetError> {
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let mut row = 0;
        while row < self.chunk.rows {
            values.clear();
            levels.clear();
            let wanted = BATCH_ROWS.min(self.chunk.rows - row);
            let (rows, ..) = reader.read_records(wanted, Some(&mut levels), None, &mut values)?;
            if rows == 0 {
                break;
            }
            let mut present = values.iter();
            for at in 0..rows {
                let value = match !self.nullable || levels.get(at).is_some_and(|level| *level > 0) {
                    true => present.next().map(&value),
                    false => None,
                };
                match value.map(|value| (cell(&value), value)) {
                    None => self.cells.push(0),
                    Some((Ok(cell), _)) => self.cells.push(cell),
                    Some((Err(why), value)) => return Ok(Err(self.refusal(row + at, &value.to_string(), why))),
                }
            }
            row += rows;
        }
        Ok(Ok(()))
    }

    fn refusal(&self, row: usize, value: &str, why: &'static str) -> FileError {
        let group = self.chunk.group;
        bad_value(self.chunk.path, Place::Row { group, row }, self.column, value, why)
    }
}

/// Writes a table as a Parquet file of the public schema: times in microseconds without a time zone, codes as INT64, miles
/// and dollars as DOUBLE, packed by zstd. [`TableSpec`](super::TableSpec) reads it back as it was.
///
/// # Errors
/// [`TableError::Write`] where `out` fails; it has a part of the table then.
pub fn write_parquet(trips: &Trips, out: impl Write + Send) -> Result<(), TableError> {
    let field = |column: Column| {
        let (physical, logical) = match column.kind() {
            Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(false, TimeUnit::MICROS))),
            Kind::Code { .. } => (Physical::INT64, None),
            Kind::Miles | Kind::Money => (Physical::DOUBLE, None),
        };
        required(column.name(), physical, logical)
    };
    let write = |place: usize, rows: Range<usize>, writer: &mut ColumnWriter<'_>| {
        let column = Column::ALL[place];
        let cells = &trips.cells(column)[rows];
        match writer {
            ColumnWriter::Int64ColumnWriter(writer) => {
                let scale = if column.kind() == Kind::Time { 1_000_000 } else { 1 };
                let values: Vec<i64> = cells.iter().map(|cell| i64::from(*cell) * scale).collect();
                writer.write_batch(&values, None, None)
            }
            ColumnWriter::DoubleColumnWriter(writer) => {
                let values: Vec<f64> = match column.kind() {
                    Kind::Miles => cells.iter().map(|cell| miles(f32::from_bits(*cell))).collect(),
                    _ => cells.iter().map(|cell| f64::from(*cell as i32) / 100.0).collect(),
                };
                writer.write_batch(&values, None, None)
            }
            _ => Err(ParquetError::General("a column of another type".to_owned())),
        }
    };
    let fields = Column::ALL.into_iter().map(field).collect::<Result<_, _>>();
    let written = fields.and_then(|fields| write_groups(fields, trips.rows(), out, &write));
    written.map_err(|source| TableError::Write { source: in_io(source) })
}

/// A column that has a value in every row.
pub(crate) fn required(name: &str, physical: Physical, logical: Option<LogicalType>) -> Result<TypePtr, ParquetError> {
    let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
    field.with_logical_type(logical).build().map(Arc::new)
}

/// What the file system said, where that is the cause.
pub(crate) fn in_io(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast() {
            Ok(source) => *source,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

/// Writes some rows of the column at a place.
type WriteRows<'a> = dyn Fn(usize, Range<usize>, &mut ColumnWriter<'_>) -> Result<usize, ParquetError> + 'a;

/// Writes a file of these columns, packed by zstd: `write` writes some rows of the column at a place.
pub(crate) fn write_groups(
    fields: Vec<TypePtr>,
    rows: usize,
    out: impl Write + Send,
    write: &WriteRows<'_>,
) -> Result<(), ParquetError> {
    let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(Default::default()));
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))?;
    for first in (0..rows).step_by(GROUP_ROWS) {
        let mut group = file.next_row_group()?;
        let mut place = 0;
        while let Some(mut writer) = group.next_column()? {
            write(place, first..rows.min(first + GROUP_ROWS), writer.untyped())?;
            writer.close()?;
            place += 1;
        }
        group.close()?;
    }
    file.close().map(|_| ())
}

/// The number of hundredths that is nearest, where it is the same in 32 bits: 1.72 and not 1.7200000286.
fn miles(miles: f32) -> f64 {
    let exact = f64::from(miles);
    let hundredths = (exact * 100.0).round() / 100.0;
    if hundredths as f32 == miles { hundredths } else { exact }
}
