//! What a kernel is given on the command line: `f32:1024=index`, `2.5`, `null`.

use std::fmt;
use std::str::FromStr;

use gpuvm::{ElementType, ParamInfo};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Most bytes of an array.
const ARRAY_BYTES_MAX: u64 = 1 << 30;

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// An array that the kernel gets a pointer to.
    Array(Array),
    /// A number, as it was written.
    Number(String),
    /// A null pointer.
    Null,
}

/// An array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// What it has.
    pub element: Number,
    /// How many.
    pub count: u64,
    fill: Fill,
}

/// What an array holds at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Zeros,
    /// Each element's own number.
    Index,
    /// Whole numbers below 256, or fractions below 1.
    Random,
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are named as the types")]
pub enum Number {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "i8" | "s8" => Self::I8,
            "i16" | "s16" => Self::I16,
            "i32" | "s32" => Self::I32,
            "i64" | "s64" => Self::I64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return Err(format!("`{text}` is not a type; give u8 to u64, i8 to i64, f32 or f64")),
        })
    }
}

/// For each type: what stands in `$body`, with `$T` as the type.
macro_rules! of_type {
    ($number:expr, $T:ident => $body:expr) => {
        match $number {
            Number::U8 => {
                type $T = u8;
                $body
            }
            Number::U16 => {
                type $T = u16;
                $body
            }
            Number::U32 => {
                type $T = u32;
                $body
            }
            Number::U64 => {
                type $T = u64;
                $body
            }
            Number::I8 => {
                type $T = i8;
                $body
            }
            Number::I16 => {
                type $T = i16;
                $body
            }
            Number::I32 => {
                type $T = i32;
                $body
            }
            Number::I64 => {
                type $T = i64;
                $body
            }
            Number::F32 => {
                type $T = f32;
                $body
            }
            Number::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}

impl Number {
    /// As the library calls it.
    pub fn element(self) -> ElementType {
        of_type!(self, T => ElementType::of::<T>())
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        of_type!(self, T => size_of::<T>())
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// The number of those bytes, as text.
    pub fn shown(self, bytes: &[u8]) -> String {
        of_type!(self, T => bytemuck::pod_read_unaligned::<T>(bytes).to_string())
    }

    fn of_whole(self, number: u64) -> Vec<u8> {
        of_type!(self, T => (number as T).to_ne_bytes().to_vec())
    }

    fn of_text(self, text: &str) -> Option<Vec<u8>> {
        of_type!(self, T => text.parse::<T>().ok().map(|number| number.to_ne_bytes().to_vec()))
    }
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "null" {
            return Ok(Self::Null);
        }
        let Some((element, rest)) = text.split_once(':') else {
            return match text.parse::<f64>().is_ok() || parse_hex(text).is_some() {
                true => Ok(Self::Number(text.to_owned())),
                false => Err("give TYPE:COUNT=FILL for an array, a number, or null".to_owned()),
            };
        };
        let (count, fill) = rest.split_once('=').unwrap_or((rest, "zeros"));
        let fill = match fill {
            "zeros" => Fill::Zeros,
            "index" => Fill::Index,
            "random" => Fill::Random,
            _ => return Err(format!("invalid fill `{fill}`: expected zeros, index or random")),
        };
        let element: Number = element.parse()?;
        let most = ARRAY_BYTES_MAX / element.bytes() as u64;
        match count.parse() {
            Ok(count) if (1..=most).contains(&count) => Ok(Self::Array(Array { element, count, fill })),
            _ => Err(format!("an array has 1 to {most} elements of this type, not `{count}`")),
        }
    }
}

fn parse_hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.element.element().name(), self.count)
    }
}

impl Array {
    /// What it holds at first.
    pub fn filled(&self, seed: u64) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let one = |at: u64| match (self.fill, self.element) {
            (Fill::Zeros, element) => element.of_whole(0),
            (Fill::Index, element) => element.of_whole(at),
            (Fill::Random, Number::F32) => rng.random::<f32>().to_ne_bytes().to_vec(),
            (Fill::Random, Number::F64) => rng.random::<f64>().to_ne_bytes().to_vec(),
            (Fill::Random, element) => element.of_whole(rng.random_range(0..256)),
        };
        (0..self.count).flat_map(one).collect()
    }
}

/// The bytes of a number that a parameter takes; an error says what it takes.
pub fn number_for(text: &str, param: &ParamInfo) -> Result<Vec<u8>, String> {
    let of_type = |types: &[Number]| types.iter().find_map(|one| one.of_text(text));
    let name = param.type_name.trim_start_matches('.');
    let bytes = param.bytes as usize;
    let found = match (name.parse::<Number>(), parse_hex(text)) {
        (Ok(one), Some(whole)) if !one.is_float() => {
            (bytes == 8 || whole >> (8 * bytes) == 0).then(|| one.of_whole(whole))
        }
        (Ok(one), None) => one.of_text(text).or_else(|| match one {
            // The sign of a parameter says nothing.
            Number::U8 => of_type(&[Number::I8]),
            Number::U16 => of_type(&[Number::I16]),
            Number::U32 => of_type(&[Number::I32]),
            Number::U64 => of_type(&[Number::I64]),
            _ => None,
        }),
        // `.b32` takes bits: what is written with a point is a float's.
        (Err(_), hex) => match (bytes, hex) {
            (_, Some(whole)) => Some(whole.to_ne_bytes()[..bytes.min(8)].to_vec()),
            (1, _) => of_type(&[Number::U8, Number::I8]),
            (2, _) => of_type(&[Number::U16, Number::I16]),
            (4, _) => of_type(&[Number::U32, Number::I32, Number::F32]),
            (8, _) => of_type(&[Number::U64, Number::I64, Number::F64]),
            _ => None,
        },
        _ => None,
    };
    found.filter(|found| found.len() == bytes).ok_or_else(|| {
        format!(
            "`{text}` is given where the kernel takes {} of {bytes} bytes",
            param.type_name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let array = |element, count, fill| Ok(Given::Array(Array { element, count, fill }));
        assert_eq!("f32:1024=index".parse(), array(Number::F32, 1024, Fill::Index));
        assert_eq!("u8:1".parse(), array(Number::U8, 1, Fill::Zeros));
        assert_eq!("null".parse(), Ok(Given::Null));
        for number in ["-3", "2.5", "1e9", "0x10"] {
            assert_eq!(number.parse(), Ok(Given::Number(number.to_owned())));
        }
        for wrong in [
            "f16:3",
            "f32:0",
            "f32:9999999999",
            "f32:3=ones",
            "three",
            "",
            "u8:",
            ":3",
        ] {
            assert!(wrong.parse::<Given>().is_err(), "{wrong}");
        }
        let Ok(Given::Array(random)) = "u16:500=random".parse() else {
            panic!()
        };
        assert_eq!((random.filled(3), random.filled(3).len()), (random.filled(3), 1000));
        assert_ne!(random.filled(3), random.filled(4));
    }

    #[test]
    fn numbers_become_what_the_parameter_is() {
        let bytes = |text: &str, name: &str, bytes| number_for(text, &ParamInfo::of_ptx(bytes, bytes, name)).ok();
        assert_eq!(bytes("2", ".f32", 4), Some(2f32.to_ne_bytes().to_vec()));
        assert_eq!(bytes("2.5", ".b32", 4), Some(2.5f32.to_ne_bytes().to_vec()));
        assert_eq!(bytes("2", ".b32", 4), Some(2u32.to_ne_bytes().to_vec()));
        assert_eq!(bytes("-2", ".u32", 4), Some((-2i32).to_ne_bytes().to_vec()));
        assert_eq!(
            bytes("0xffffffffff", ".u64", 8),
            Some(0xff_ffff_ffffu64.to_ne_bytes().to_vec())
        );
        assert_eq!(bytes("0x1ff", ".u8", 1), None);
        assert_eq!(bytes("2.5", ".u32", 4), None);
        assert_eq!(bytes("300", ".u8", 1), None);
        assert_eq!(bytes("1", ".b8", 16), None);
    }
}
