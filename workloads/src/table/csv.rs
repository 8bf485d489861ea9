//! Comma-separated values: a line with the names of the columns, then a trip a line.

use std::io::{self, BufWriter, Write};

use chrono::{DateTime, Datelike, NaiveDate, Timelike};
use csv_core::{ReadRecordResult, Reader};

use super::column::Kind;
use super::{Column, KIND, MAX_ROWS, TableError, Trips, bad_value, no_trip, places, too_many_rows};
use crate::input::{FileError, Input, LINE_LIMIT_BYTES, Lines, Place};

/// The most columns of a file.
const COLUMNS_MAX: usize = 1024;

/// How programs write a value that is missing, in any case.
const MISSING: [&str; 8] = ["NaN", "NaT", "NA", "<NA>", "N/A", "NULL", "None", "\\N"];

/// The rows that room is made for at first.
const ROWS_AT_FIRST: usize = 1 << 12;

/// Reads a plain or gzip file.
pub(super) fn read(file: Input<'_>) -> Result<Trips, TableError> {
    let path = file.path;
    let mut progress = |_| {};
    let mut records = Records::of(Lines::of(file, &mut progress)?);
    if !records.advance()? {
        return Err(no_trip(path).into());
    }
    let names: Vec<String> = (0..records.fields()).map(|at| records.name(at)).collect();
    let places = places(path, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut trips = Trips::default();
    while records.advance()? {
        if records.fields() != names.len() {
            let (found, names) = (records.fields(), names.len());
            let what = format!(
                "{found} fields in a file of {names} columns (is the file truncated?); correct or remove that line"
            );
            return Err(records.lines.malformed(what).into());
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
            return Err(too_many_rows(path, trips.rows() as u64).into());
        }
    }
    match trips.rows() {
        0 => Err(no_trip(path).into()),
        _ => Ok(trips),
    }
}

/// The records of a file: its lines that are not empty, split into fields. A field in quotation marks ends on its line.
struct Records<'a> {
    lines: Lines<'a>,
    line: Vec<u8>,
    splitter: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    fields: usize,
}

impl<'a> Records<'a> {
    fn of(lines: Lines<'a>) -> Records<'a> {
        Records {
            lines,
            line: Vec::new(),
            splitter: Reader::new(),
            text: vec![0; LINE_LIMIT_BYTES + 1],
            ends: vec![0; COLUMNS_MAX],
            fields: 0,
        }
    }

    /// Reads the next record; `false` at the end of the file.
    fn advance(&mut self) -> Result<bool, FileError> {
        if !self.lines.advance_to_text()? {
            return Ok(false);
        }
        self.line.clear();
        self.line.extend_from_slice(self.lines.bytes());
        self.line.push(b'\n');
        self.splitter.reset();
        let (result, _, _, fields) = self.splitter.read_record(&self.line, &mut self.text, &mut self.ends);
        self.fields = fields;
        match result {
            ReadRecordResult::Record => Ok(true),
            ReadRecordResult::OutputEndsFull => {
                let what = format!("more than {COLUMNS_MAX} fields; {}", KIND.is);
                Err(self.lines.malformed(what))
            }
            _ => Err(self
                .lines
                .malformed("a quotation mark is not closed on its line; correct that line")),
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
    fn cell(&self, column: Column, at: usize) -> Result<u32, FileError> {
        let field = self.field(at);
        if field.is_empty() || MISSING.iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes())) {
            return Ok(0);
        }
        let text = str::from_utf8(field).map_err(|_| "is not UTF-8 text");
        let cell = text.and_then(|text| match column.kind() {
            Kind::Time => {
                seconds(text.as_bytes()).ok_or("is not a time from 1970 to 2106, such as 2023-01-31 23:59:59")
            }
            kind => kind.number_cell(text.parse().map_err(|_| "is not a number")?),
        });
        cell.map_err(|why| {
            let place = Place::Line(self.lines.number());
            bad_value(self.lines.path(), place, column, &String::from_utf8_lossy(field), why)
        })
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
