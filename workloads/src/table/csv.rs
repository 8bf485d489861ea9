//! Comma-separated values: a line with the names of the columns, then a trip a line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use chrono::{DateTime, Datelike, NaiveDate, Timelike};
use csv_core::{ReadRecordResult, Reader};

use super::column::Kind;
use super::{Column, MAX_ROWS, Place, TableError, Trips};
use crate::graph::source::{GZIP_MAGIC, Pieces, shown};

/// The longest line that is read; a file without line ends must not fill the memory.
const LINE_LIMIT_BYTES: usize = 64 * 1024;

/// The most columns of a file.
const COLUMNS_MAX: usize = 1024;

/// The rows that room is made for at first.
const ROWS_AT_FIRST: usize = 1 << 12;

/// Reads a plain or gzip file from its beginning.
pub(super) fn read(path: &Path, file: File) -> Result<Trips, TableError> {
    let mut records = Records::open(path, file)?;
    if !records.advance()? {
        return Err(TableError::Empty { path: path.to_owned() });
    }
    let names: Vec<String> = (0..records.fields()).map(|at| records.name(at)).collect();
    let short: Vec<&str> = names.iter().map(String::as_str).collect();
    let places = Column::places(&short).map_err(|column| TableError::MissingColumn {
        path: path.to_owned(),
        column,
        found: super::listed(&short),
    })?;
    let mut trips = Trips::default();
    while records.advance()? {
        if records.fields() != names.len() {
            let (found, names) = (records.fields(), names.len());
            return Err(records.malformed(format!(
                "{found} fields in a file of {names} columns (is the file truncated?); correct or remove that line"
            )));
        }
        if trips.rows() == trips.columns[0].capacity() {
            trips.reserve(trips.rows().max(ROWS_AT_FIRST))?;
        }
        let mut cells = [0; 10];
        for ((cell, column), place) in cells.iter_mut().zip(Column::ALL).zip(places) {
            *cell = records.cell(column, place)?;
        }
        trips.push(cells);
        if trips.rows() as u64 > MAX_ROWS {
            let (path, rows) = (path.to_owned(), trips.rows() as u64);
            return Err(TableError::TooManyRows { path, rows });
        }
    }
    match trips.rows() {
        0 => Err(TableError::Empty { path: path.to_owned() }),
        _ => Ok(trips),
    }
}

/// The records of a file: its lines that are not empty, split into fields. A field in quotation marks ends on its line.
struct Records<'a> {
    path: &'a Path,
    input: Box<dyn BufRead>,
    gzip: bool,
    number: u64,
    line: Vec<u8>,
    splitter: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    fields: usize,
}

impl<'a> Records<'a> {
    /// Gzip is known by its first two bytes, whatever the name says.
    fn open(path: &'a Path, file: File) -> Result<Records<'a>, TableError> {
        let mut raw = BufReader::with_capacity(1 << 18, file);
        let failed = |source| TableError::Open {
            path: path.to_owned(),
            source,
        };
        let gzip = raw.fill_buf().map_err(failed)?.starts_with(&GZIP_MAGIC);
        let input: Box<dyn BufRead> = match gzip {
            true => Box::new(BufReader::with_capacity(1 << 18, Pieces::new(raw))),
            false => Box::new(raw),
        };
        Ok(Records {
            path,
            input,
            gzip,
            number: 0,
            line: Vec::new(),
            splitter: Reader::new(),
            text: vec![0; LINE_LIMIT_BYTES + 1],
            ends: vec![0; COLUMNS_MAX],
            fields: 0,
        })
    }

    /// Reads the next record; `false` at the end of the file.
    fn advance(&mut self) -> Result<bool, TableError> {
        loop {
            self.line.clear();
            self.number += 1;
            let mut limited = self.input.by_ref().take(LINE_LIMIT_BYTES as u64 + 1);
            if let Err(error) = limited.read_until(b'\n', &mut self.line) {
                return Err(self.read_error(error));
            }
            if self.line.is_empty() {
                return Ok(false);
            }
            if self.line.len() > LINE_LIMIT_BYTES {
                return Err(self.malformed(format!(
                    "longer than {LINE_LIMIT_BYTES} bytes; a table is a CSV file with a trip a line, or a Parquet file"
                )));
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        if self.number == 1 {
            // Spreadsheets write a byte order mark.
            let marked = self.line.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec);
            self.line = marked.unwrap_or(std::mem::take(&mut self.line));
        }
        let text = self.line.trim_ascii_end().len();
        self.line.truncate(text);
        self.line.push(b'\n');
        self.splitter.reset();
        let (result, taken, _, fields) = self.splitter.read_record(&self.line, &mut self.text, &mut self.ends);
        self.fields = fields;
        match result {
            ReadRecordResult::Record if taken == self.line.len() => Ok(true),
            ReadRecordResult::Record => {
                Err(self.malformed("a carriage return within the line; lines end with LF or CR LF, not with CR alone"))
            }
            ReadRecordResult::OutputEndsFull => Err(self.malformed(format!(
                "more than {COLUMNS_MAX} fields; a table is a CSV file with a trip a line, or a Parquet file"
            ))),
            _ => Err(self.malformed("a quotation mark is not closed on its line; correct that line")),
        }
    }

    /// Fields of the record read last.
    fn fields(&self) -> usize {
        self.fields
    }

    fn field(&self, at: usize) -> &[u8] {
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text[begin..self.ends[at]].trim_ascii()
    }

    fn name(&self, at: usize) -> String {
        String::from_utf8_lossy(self.field(at)).into_owned()
    }

    /// The cell of a column, which is field `at`.
    fn cell(&self, column: Column, at: usize) -> Result<u32, TableError> {
        let field = self.field(at);
        if field.is_empty() {
            return Ok(0);
        }
        let text = str::from_utf8(field).map_err(|_| "is no UTF-8 text");
        let cell = text.and_then(|text| match column.kind() {
            Kind::Time => seconds(text.as_bytes()).ok_or("is no time from 1970 to 2106, such as 2023-01-31 23:59:59"),
            kind => kind.number_cell(text.parse().map_err(|_| "is no number")?),
        });
        cell.map_err(|why| TableError::Value {
            path: self.path.to_owned(),
            place: Place::Line(self.number),
            column,
            value: shown(&String::from_utf8_lossy(field)),
            why,
        })
    }

    fn malformed(&self, what: impl Into<String>) -> TableError {
        TableError::Malformed {
            path: self.path.to_owned(),
            line: self.number,
            what: what.into(),
        }
    }

    fn read_error(&self, source: io::Error) -> TableError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let (path, line) = (self.path.to_owned(), self.number);
        match source.kind() {
            UnexpectedEof | InvalidInput | InvalidData if self.gzip => TableError::Gzip { path, line, source },
            _ => TableError::Read { path, line, source },
        }
    }
}

/// Seconds since 1970 of `2023-01-31 23:59:59`; with `T` in place of the space, and a fraction that is dropped, too.
fn seconds(text: &[u8]) -> Option<u32> {
    let (time, fraction) = text.split_at_checked(19)?;
    let fraction_fits = match fraction {
        [] => true,
        [b'.', digits @ ..] => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let number = |from: usize, to: usize| {
        let digits = &time[from..to];
        let value = |sum: Option<u32>, digit: &u8| Some(sum? * 10 + char::from(*digit).to_digit(10)?);
        digits.iter().fold(Some(0), value)
    };
    let separators = [time[4], time[7], time[13], time[16]] == *b"--::" && matches!(time[10], b' ' | b'T');
    if !fraction_fits || !separators {
        return None;
    }
    let date = NaiveDate::from_ymd_opt(number(0, 4)? as i32, number(5, 7)?, number(8, 10)?)?;
    let time = date.and_hms_opt(number(11, 13)?, number(14, 16)?, number(17, 19)?)?;
    u32::try_from(time.and_utc().timestamp()).ok()
}

/// Writes a table as a CSV file of the public schema, which [`TableSpec`](super::TableSpec) reads back as it was.
///
/// # Errors
/// [`TableError::Write`] where `out` fails; it has a part of the table then.
pub fn write_csv(trips: &Trips, out: impl Write) -> Result<(), TableError> {
    let write = || -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 18, out);
        writeln!(out, "{}", Column::ALL.map(Column::name).join(","))?;
        for row in (0..trips.rows()).filter_map(|row| trips.row(row)) {
            write_time(&mut out, row.pickup_time)?;
            out.write_all(b",")?;
            write_time(&mut out, row.dropoff_time)?;
            write!(out, ",{},{}", row.passengers, row.distance)?;
            write!(out, ",{},{},{}", row.pickup_zone, row.dropoff_zone, row.payment)?;
            for cents in [row.fare, row.tip, row.total] {
                let sign = if cents < 0 { "-" } else { "" };
                let cents = cents.unsigned_abs();
                write!(out, ",{sign}{}.{:02}", cents / 100, cents % 100)?;
            }
            out.write_all(b"\n")?;
        }
        out.flush()
    };
    write().map_err(|source| TableError::Write { source })
}

fn write_time(out: &mut impl Write, seconds: u32) -> io::Result<()> {
    let time = DateTime::from_timestamp(seconds.into(), 0).unwrap_or_default();
    let (year, month, day) = (time.year(), time.month(), time.day());
    let (hour, minute, second) = (time.hour(), time.minute(), time.second());
    write!(out, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        assert_eq!(seconds(b"1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds(b"2023-01-01T00:00:59.999"), Some(1_672_531_259));
        assert_eq!(seconds(b"2024-02-29 23:59:59"), Some(1_709_251_199));
        for time in [0, 951_782_400, 1_700_000_000, u32::MAX] {
            let mut text = Vec::new();
            write_time(&mut text, time).unwrap();
            assert_eq!(seconds(&text), Some(time));
        }
        for bad in [
            "2023-02-29 00:00:00",
            "2023-01-01",
            "2023-01-01 24:00:00",
            "2023-01-01 00:00:00.",
            "2023-01-01 00:00:00Z",
            "2023-1-01  00:00:00",
            "1969-12-31 23:59:59",
            "2106-02-07 06:28:16",
            "+023-01-01 00:00:00",
        ] {
            assert_eq!(seconds(bad.as_bytes()), None, "{bad}");
        }
    }
}
