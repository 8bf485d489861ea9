//! What a tenant is promised and held to.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::size::{MemorySize, parse_bytes, spell_bytes};

/// The most that a tenant may hold: a size, a share of the GPU's memory, or `none`.
pub const LIMIT_VARIABLE: &str = "GPUVM_MEMORY_LIMIT";
/// What a tenant always keeps: a size, or a share of the GPU's memory.
pub const MINIMUM_VARIABLE: &str = "GPUVM_MEMORY_MIN";
/// Which tenant goes first: a whole number from -100 to 100.
pub const PRIORITY_VARIABLE: &str = "GPUVM_PRIORITY";

/// Priorities reach from its negative to this.
const PRIORITY_MAX: i8 = 100;

/// How much of a GPU's memory a tenant keeps, how much it may hold, and whether it goes first. A limit is never below the minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawTerms", into = "RawTerms")]
pub struct Terms {
    minimum: u64,
    limit: Option<u64>,
    priority: i8,
}

/// Terms as they travel, before they are checked.
#[derive(Serialize, Deserialize)]
struct RawTerms {
    minimum: u64,
    limit: Option<u64>,
    priority: i8,
}

impl TryFrom<RawTerms> for Terms {
    type Error = TermsError;

    fn try_from(raw: RawTerms) -> Result<Self, TermsError> {
        Terms::new(raw.minimum, raw.limit, raw.priority)
    }
}

impl From<Terms> for RawTerms {
    fn from(terms: Terms) -> Self {
        let Terms {
            minimum,
            limit,
            priority,
        } = terms;
        Self {
            minimum,
            limit,
            priority,
        }
    }
}

impl Terms {
    /// Terms with a minimum and a limit in bytes. Without a limit a tenant may hold all that it can have. The default is no minimum,
    /// no limit and priority 0.
    ///
    /// # Errors
    /// A limit below the minimum; a priority that is not from -100 to 100.
    pub fn new(minimum: u64, limit: Option<u64>, priority: i8) -> Result<Self, TermsError> {
        if let Some(limit) = limit.filter(|&limit| limit < minimum) {
            return Err(TermsError::LimitBelowMinimum { limit, minimum });
        }
        if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority) {
            return Err(TermsError::Priority {
                given: priority.to_string(),
            });
        }
        Ok(Self {
            minimum,
            limit,
            priority,
        })
    }

    /// The terms of `GPUVM_MEMORY_LIMIT`, `GPUVM_MEMORY_MIN` and `GPUVM_PRIORITY`, for a GPU with `total_bytes` of memory. A variable that
    /// is not set, or is empty, leaves the default.
    ///
    /// # Errors
    /// A variable that means nothing, named with what it holds; a limit below the minimum.
    pub fn from_env(total_bytes: u64) -> Result<Self, TermsError> {
        Self::from_variables(total_bytes, |name| std::env::var_os(name))
    }

    fn from_variables(total_bytes: u64, get: impl Fn(&str) -> Option<OsString>) -> Result<Self, TermsError> {
        let mut change = TermsChange::default();
        let get = |name| get(name).map(|value| value.to_string_lossy().trim().to_owned());
        let get = |name| get(name).filter(|value| !value.is_empty());
        if let Some(text) = get(MINIMUM_VARIABLE) {
            let minimum = parsed::<Minimum>(MINIMUM_VARIABLE, text, str::parse)?;
            change.minimum = Some(minimum.bytes_of(total_bytes));
        }
        if let Some(text) = get(LIMIT_VARIABLE) {
            let limit = parsed::<Limit>(LIMIT_VARIABLE, text, str::parse)?;
            change.limit = Some(limit.change(total_bytes));
        }
        if let Some(text) = get(PRIORITY_VARIABLE) {
            change.priority = Some(parsed(PRIORITY_VARIABLE, text, parse_priority)?);
        }
        Terms::default().changed(&change)
    }

    /// What the tenant always keeps, in bytes.
    pub fn minimum(&self) -> u64 {
        self.minimum
    }

    /// The most that the tenant may hold, in bytes; any amount where there is none.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Higher goes first, from -100 to 100.
    pub fn priority(&self) -> i8 {
        self.priority
    }

    /// These terms with a change.
    ///
    /// # Errors
    /// As for [`Terms::new`].
    pub fn changed(&self, change: &TermsChange) -> Result<Self, TermsError> {
        let limit = match change.limit {
            None => self.limit,
            Some(LimitChange::None) => None,
            Some(LimitChange::Bytes(bytes)) => Some(bytes),
        };
        let minimum = change.minimum.unwrap_or(self.minimum);
        Terms::new(minimum, limit, change.priority.unwrap_or(self.priority))
    }
}

/// What `gpuvm tenants set` changes; what is not named stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsChange {
    /// A new minimum in bytes.
    pub minimum: Option<u64>,
    /// A new limit, or none from now on.
    pub limit: Option<LimitChange>,
    /// A new priority.
    pub priority: Option<i8>,
}

/// What becomes of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitChange {
    /// There is none from now on.
    None,
    /// This many bytes.
    Bytes(u64),
}

/// A minimum as given: a size, which may be 0, or up to 100 % of the GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minimum(MemorySize);

impl Minimum {
    /// The bytes, of a GPU with this many.
    pub fn bytes_of(self, total_bytes: u64) -> u64 {
        self.0.bytes_of(total_bytes)
    }
}

impl FromStr for Minimum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_bytes(text) {
            Ok(0) => Ok(Self(MemorySize::Bytes(0))),
            _ => share_or_bytes(text).map(Self),
        }
    }
}

/// A limit as given: a size, up to 100 % of the GPU's memory, or `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit(Option<MemorySize>);

impl Limit {
    /// The change that it stands for, on a GPU with this many bytes.
    pub fn change(self, total_bytes: u64) -> LimitChange {
        match self.0 {
            None => LimitChange::None,
            Some(size) => LimitChange::Bytes(size.bytes_of(total_bytes)),
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => share_or_bytes(text).map(|size| Self(Some(size))),
        }
    }
}

fn share_or_bytes(text: &str) -> Result<MemorySize, String> {
    match text.parse()? {
        MemorySize::Percent(percent) if percent > 100.0 => Err("a GPU has no more than 100% of its memory".to_owned()),
        size => Ok(size),
    }
}

/// A priority from -100 to 100.
///
/// # Errors
/// What it has to be.
pub fn parse_priority(text: &str) -> Result<i8, String> {
    let priority = text.parse::<i8>().ok();
    let priority = priority.filter(|priority| (-PRIORITY_MAX..=PRIORITY_MAX).contains(priority));
    priority.ok_or_else(|| format!("'{text}' is not a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"))
}

/// Terms that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// What a tenant keeps is more than it may hold.
    #[error(
        "the memory limit of {} is below the minimum of {}; raise the limit ({LIMIT_VARIABLE}, --limit) or lower the minimum ({MINIMUM_VARIABLE}, --min)",
        spell_bytes(*.limit), spell_bytes(*.minimum)
    )]
    LimitBelowMinimum {
        /// The limit in bytes.
        limit: u64,
        /// The minimum in bytes.
        minimum: u64,
    },
    /// A priority out of bounds.
    #[error("the priority {given} is not from -{PRIORITY_MAX} to {PRIORITY_MAX}")]
    Priority {
        /// As given.
        given: String,
    },
    /// A variable of the environment that means nothing.
    #[error("{name}={text}: {why}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it holds.
        text: String,
        /// What it has to be.
        why: String,
    },
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.limit.map_or_else(|| "none".to_owned(), spell_bytes);
        let minimum = spell_bytes(self.minimum);
        write!(f, "minimum {minimum}, limit {limit}, priority {}", self.priority)
    }
}

/// What a variable says.
fn parsed<T>(name: &'static str, text: String, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, TermsError> {
    parse(&text).map_err(|why| TermsError::Variable { name, text, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Terms, TermsError> {
        Terms::from_variables(1000, |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_environment_gives_terms() {
        assert_eq!(of(&[]), Ok(Terms::default()));
        let all = [
            (LIMIT_VARIABLE, "50%"),
            (MINIMUM_VARIABLE, "100"),
            (PRIORITY_VARIABLE, "-7"),
        ];
        assert_eq!(of(&all), Terms::new(100, Some(500), -7));
        let none = [
            (LIMIT_VARIABLE, "none"),
            (MINIMUM_VARIABLE, "0"),
            (PRIORITY_VARIABLE, ""),
        ];
        assert_eq!(of(&none), Ok(Terms::default()));
        let large = [(LIMIT_VARIABLE, " 8GiB "), (MINIMUM_VARIABLE, "2G")];
        assert_eq!(of(&large), Terms::new(2 << 30, Some(8 << 30), 0));
    }

    #[test]
    fn what_means_nothing_is_named() {
        for (name, text, why) in [
            (LIMIT_VARIABLE, "lots", "LIMIT=lots: invalid size 'lots': write 4KiB"),
            (LIMIT_VARIABLE, "0", "LIMIT=0: it must be at least one page"),
            (LIMIT_VARIABLE, "101%", "no more than 100%"),
            (MINIMUM_VARIABLE, "-1", "MIN=-1: invalid size '-1'"),
            (MINIMUM_VARIABLE, "NaN%", "a share is a number"),
            (PRIORITY_VARIABLE, "101", "from -100 to 100"),
            (PRIORITY_VARIABLE, "1000", "'1000' is not a whole number"),
            (PRIORITY_VARIABLE, "high", "GPUVM_PRIORITY=high"),
        ] {
            let error = of(&[(name, text)]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_limit_is_never_below_the_minimum() {
        let below = [(LIMIT_VARIABLE, "1KiB"), (MINIMUM_VARIABLE, "2KiB")];
        let error = of(&below).unwrap_err();
        assert_eq!(
            error,
            TermsError::LimitBelowMinimum {
                limit: 1024,
                minimum: 2048
            }
        );
        let text = error.to_string();
        assert!(
            text.starts_with("the memory limit of 1 KiB is below the minimum of 2 KiB"),
            "{text}"
        );
        let wire = serde_json::from_str::<Terms>(r#"{"minimum":2,"limit":1,"priority":0}"#);
        assert!(wire.is_err());
        let wire = serde_json::from_str::<Terms>(r#"{"minimum":0,"limit":null,"priority":101}"#);
        assert!(wire.is_err());
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let terms = Terms::new(10, Some(20), 3).unwrap();
        assert_eq!(terms.changed(&TermsChange::default()), Ok(terms));
        let unlimited = TermsChange {
            limit: Some(LimitChange::None),
            ..TermsChange::default()
        };
        assert_eq!(terms.changed(&unlimited), Terms::new(10, None, 3));
        let wrong = TermsChange {
            minimum: Some(21),
            ..TermsChange::default()
        };
        assert!(terms.changed(&wrong).is_err());
        let text = serde_json::to_string(&unlimited).unwrap();
        assert_eq!(serde_json::from_str::<TermsChange>(&text).unwrap(), unlimited);
    }
}
