//! The columns of a trip: their names in files, and their cells in memory.

use std::fmt;

/// The largest code of a taxi zone that is read: the TLC's lookup table has 1 to 263, 264 ("unknown") and 265 ("outside of NYC").
pub const ZONE_MAX: u32 = 265;

/// A column of [`Trips`](super::Trips).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Column {
    /// When the meter started: seconds since 1970 of New York's clock.
    PickupTime,
    /// When the meter stopped: seconds since 1970 of New York's clock.
    DropoffTime,
    /// Passengers, as the driver entered them.
    Passengers,
    /// Miles by the meter.
    Distance,
    /// The taxi zone of the start, at most [`ZONE_MAX`].
    PickupZone,
    /// The taxi zone of the end, at most [`ZONE_MAX`].
    DropoffZone,
    /// How it was paid: 0 flex fare, 1 credit card, 2 cash, 3 no charge, 4 dispute, 5 unknown, 6 voided.
    Payment,
    /// The meter's fare in cents.
    Fare,
    /// The tip in cents; cash tips are in no file.
    Tip,
    /// All that was paid, in cents.
    Total,
}

/// What the 32 bits of a cell are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Seconds and codes.
    U32,
    /// Cents.
    I32,
    /// Miles; never NaN, infinite or -0.
    F32,
}

/// A cell with its type, for messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Seconds or a code.
    U32(u32),
    /// Cents.
    I32(i32),
    /// Miles.
    F32(f32),
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U32(value) => value.fmt(out),
            Value::I32(value) => value.fmt(out),
            Value::F32(value) => value.fmt(out),
        }
    }
}

impl Cell {
    /// A number that orders as the value of the cell's `bits` does. Ranges of queries are ranges of keys.
    pub fn key(self, bits: u32) -> u32 {
        const SIGN: u32 = 1 << 31;
        match self {
            Cell::U32 => bits,
            Cell::I32 => bits ^ SIGN,
            // Negative numbers order by their magnitude downwards.
            Cell::F32 => bits ^ (((bits as i32 >> 31) as u32) | SIGN),
        }
    }

    /// The value whose key is `key`: the inverse of [`Cell::key`].
    pub fn value(self, key: u32) -> Value {
        const SIGN: u32 = 1 << 31;
        match self {
            Cell::U32 => Value::U32(key),
            Cell::I32 => Value::I32((key ^ SIGN) as i32),
            Cell::F32 => Value::F32(f32::from_bits(key ^ (((!key as i32 >> 31) as u32) | SIGN))),
        }
    }
}

/// What a column's cells are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Time,
    Code { max: u32 },
    Miles,
    Money,
}

impl Column {
    /// All columns, in the order of the public files.
    pub const ALL: [Column; 10] = [
        Column::PickupTime,
        Column::DropoffTime,
        Column::Passengers,
        Column::Distance,
        Column::PickupZone,
        Column::DropoffZone,
        Column::Payment,
        Column::Fare,
        Column::Tip,
        Column::Total,
    ];

    /// The name in the TLC's files of yellow taxis.
    pub fn name(self) -> &'static str {
        match self {
            Column::PickupTime => "tpep_pickup_datetime",
            Column::DropoffTime => "tpep_dropoff_datetime",
            Column::Passengers => "passenger_count",
            Column::Distance => "trip_distance",
            Column::PickupZone => "PULocationID",
            Column::DropoffZone => "DOLocationID",
            Column::Payment => "payment_type",
            Column::Fare => "fare_amount",
            Column::Tip => "tip_amount",
            Column::Total => "total_amount",
        }
    }

    /// What a cell of the column is.
    pub fn cell(self) -> Cell {
        match self.kind() {
            Kind::Time | Kind::Code { .. } => Cell::U32,
            Kind::Miles => Cell::F32,
            Kind::Money => Cell::I32,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Column::PickupTime | Column::DropoffTime => Kind::Time,
            Column::Passengers | Column::Payment => Kind::Code { max: u32::MAX },
            Column::PickupZone | Column::DropoffZone => Kind::Code { max: ZONE_MAX },
            Column::Distance => Kind::Miles,
            Column::Fare | Column::Tip | Column::Total => Kind::Money,
        }
    }

    /// Where each column is among the `names` of a file; else the first that is missing or there several times, and where it is. Case does
    /// not matter, for the TLC's files differ in it, but an exact name wins.
    pub(super) fn places(names: &[&str]) -> Result<[usize; 10], (Column, Vec<usize>)> {
        let mut places = [0; 10];
        for (place, column) in places.iter_mut().zip(Column::ALL) {
            let all = |is: &dyn Fn(&str) -> bool| (0..names.len()).filter(|at| is(names[*at])).collect::<Vec<_>>();
            let mut found = all(&|name| name == column.name());
            if found.is_empty() {
                found = all(&|name| name.eq_ignore_ascii_case(column.name()));
            }
            *place = match found[..] {
                [one] => one,
                _ => return Err((column, found)),
            };
        }
        Ok(places)
    }
}

/// The cell of a time, given in units of which a second has `per_second`.
#[cfg(feature = "parquet")]
pub(super) fn time_cell(value: i64, per_second: i64) -> Result<u32, &'static str> {
    u32::try_from(value.div_euclid(per_second)).map_err(|_| "is before 1970 or after February 2106")
}

impl Kind {
    /// The cell of a number; not for times.
    pub(super) fn number_cell(self, value: f64) -> Result<u32, &'static str> {
        match self {
            Kind::Time => Err("is not a time"),
            // As a null, for which many writers have nothing else.
            _ if value.is_nan() => Ok(0),
            _ if !value.is_finite() => Err("is not a finite number"),
            Kind::Code { max } if value.fract() != 0.0 || !(0.0..=f64::from(max)).contains(&value) => match max {
                ZONE_MAX => Err("is not a taxi zone (a whole number from 0 to 265)"),
                _ => Err("is not a code (a whole number from 0 to 4294967295)"),
            },
            Kind::Code { .. } => Ok(value as u32),
            Kind::Money => {
                let cents = (value * 100.0).round();
                let fits = (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&cents);
                // The range was checked.
                fits.then_some(cents as i32 as u32)
                    .ok_or("is more than 21474836.47 dollars, which 32 bits of cents hold")
            }
            Kind::Miles => {
                // Positive zero in place of a negative one: keys would tell them apart.
                let miles = value as f32 + 0.0;
                miles
                    .is_finite()
                    .then_some(miles.to_bits())
                    .ok_or("is too large for 32-bit floating point")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_values_do() {
        let miles = [f32::MIN, -1.5, -1e-40, 0.0, 1e-40, 0.01, 1.5, 700.25, f32::MAX];
        let bits: Vec<u32> = miles.iter().map(|value| value.to_bits()).collect();
        assert!(bits.windows(2).all(|two| Cell::F32.key(two[0]) < Cell::F32.key(two[1])));
        for value in miles {
            assert_eq!(Cell::F32.value(Cell::F32.key(value.to_bits())), Value::F32(value));
        }
        let cents = [i32::MIN, -1, 0, 1, i32::MAX];
        assert!(
            cents
                .windows(2)
                .all(|two| Cell::I32.key(two[0] as u32) < Cell::I32.key(two[1] as u32))
        );
        for value in cents {
            assert_eq!(Cell::I32.value(Cell::I32.key(value as u32)), Value::I32(value));
        }
        assert_eq!(Cell::U32.value(Cell::U32.key(7)), Value::U32(7));
    }

    #[test]
    fn numbers_become_cells_or_are_refused() {
        let money = |value| Kind::Money.number_cell(value).map(|cell| cell as i32);
        assert_eq!(money(8.999_999_999), Ok(900));
        assert_eq!(money(-3.5), Ok(-350));
        assert_eq!(money(21_474_836.47), Ok(i32::MAX));
        assert!(money(21_474_836.48).is_err() && money(f64::INFINITY).is_err());
        assert_eq!((money(f64::NAN), Kind::Miles.number_cell(-f64::NAN)), (Ok(0), Ok(0)));
        assert_eq!(Kind::Miles.number_cell(-0.0), Ok(0));
        assert!(Kind::Miles.number_cell(1e39).is_err());
        let zone = Column::PickupZone.kind();
        assert_eq!(zone.number_cell(265.0), Ok(265));
        assert!(zone.number_cell(266.0).is_err() && zone.number_cell(1.5).is_err() && zone.number_cell(-1.0).is_err());
        assert_eq!(time_cell(1_500_000, 1_000_000), Ok(1));
        assert!(time_cell(-1, 1_000).is_err() && time_cell(1 << 32, 1).is_err());
    }
}
