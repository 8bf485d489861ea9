//! What applications can be told beside their input: parameters with a range and a default.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A parameter of an application, as a command line shows it.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// What it may be, in words.
    pub allowed: String,
    /// What it is unless it is given; `None` where its help says that.
    pub default: Option<String>,
    /// Whether a text is such a value.
    pub check: fn(&str) -> Result<(), ParameterError>,
}

/// Values of parameters by their names, as texts.
pub type Given = [(&'static str, String)];

/// A value that a parameter cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {name} `{text}`: expected {allowed}")]
pub struct ParameterError {
    /// The parameter.
    pub name: &'static str,
    /// What was given.
    pub text: String,
    /// What it may be.
    pub allowed: String,
}

/// All parameters of an application. The macro `parameters!` makes such a structure.
pub trait Parameters: Default {
    /// What there is.
    fn list() -> Vec<Parameter>;

    /// Sets one of them.
    ///
    /// # Errors
    /// For a text that is no value of it.
    fn set(&mut self, name: &str, text: &str) -> Result<(), ParameterError>;

    /// The defaults, but for those that are given.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    fn of(given: &Given) -> Result<Self, ParameterError> {
        let mut all = Self::default();
        given.iter().try_for_each(|(name, text)| all.set(name, text))?;
        Ok(all)
    }
}

impl Parameters for () {
    fn list() -> Vec<Parameter> {
        Vec::new()
    }

    fn set(&mut self, _: &str, _: &str) -> Result<(), ParameterError> {
        Ok(())
    }
}

/// A type of parameters: a number, or one that may be missing.
pub trait Value: Sized {
    /// The number.
    type Number: FromStr + PartialOrd + Display;
    /// What it is, in words.
    const WORDS: &'static str;

    /// One that was given.
    fn given(number: Self::Number) -> Self;

    /// The number as a text, where there is one.
    fn shown(&self) -> Option<String>;

    /// What it may be, in words.
    fn allowed(range: &RangeInclusive<Self::Number>) -> String {
        format!("{} from {} to {}", Self::WORDS, range.start(), range.end())
    }

    /// Reads a value of that parameter.
    ///
    /// # Errors
    /// For what is no number, none of the range, or NaN.
    fn read(name: &'static str, text: &str, range: RangeInclusive<Self::Number>) -> Result<Self, ParameterError> {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Self::given).ok_or_else(|| ParameterError {
            name,
            text: text.to_owned(),
            allowed: Self::allowed(&range),
        })
    }
}

macro_rules! numbers {
    ($($number:ty = $words:literal;)*) => {$(
        impl Value for $number {
            type Number = $number;
            const WORDS: &'static str = $words;
            fn given(number: $number) -> Self {
                number
            }
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
        impl Value for Option<$number> {
            type Number = $number;
            const WORDS: &'static str = $words;
            fn given(number: $number) -> Self {
                Some(number)
            }
            fn shown(&self) -> Option<String> {
                self.as_ref().map(ToString::to_string)
            }
        }
    )*};
}
numbers! {
    u32 = "a whole number";
    u64 = "a whole number";
    f32 = "a number";
    f64 = "a number";
}

/// Makes a structure of parameters: the help, the name on a command line, the field, its type, its default and its range.
macro_rules! parameters {
    ($(#[$about:meta])* $kind:ident { $(#[doc = $help:literal] $name:literal $field:ident: $type:ty = $default:expr, $range:expr;)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $kind {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Default for $kind {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::apps::Parameters for $kind {
            fn list() -> Vec<$crate::apps::Parameter> {
                use $crate::apps::Value;
                let default = Self::default();
                vec![$($crate::apps::Parameter {
                    name: $name,
                    help: $help.trim_ascii(),
                    allowed: <$type>::allowed(&$range),
                    default: default.$field.shown(),
                    check: |text| <$type>::read($name, text, $range).map(drop),
                },)*]
            }

            fn set(&mut self, name: &str, text: &str) -> Result<(), $crate::apps::ParameterError> {
                match name {
                    $($name => self.$field = $crate::apps::Value::read($name, text, $range)?,)*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}
pub(super) use parameters;
