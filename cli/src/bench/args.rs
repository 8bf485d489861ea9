//! Values that options of several benchmarks have.

use std::str::FromStr;

use crate::sizes::parse_bytes;

/// Where the pages live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeArg {
    /// This host's memory.
    Host,
    /// The memory of a neighbour GPU.
    Gpu(u32),
}

impl FromStr for HomeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("gpu:").map(str::parse)) {
            ("host", _) => Ok(Self::Host),
            (_, Some(Ok(ordinal))) => Ok(Self::Gpu(ordinal)),
            _ => Err("expected host or gpu:N".to_owned()),
        }
    }
}

/// A part of the data: `1`, `1/4`, `0.25` or `25%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let share = match (text.strip_suffix('%'), text.split_once('/')) {
            (Some(percent), _) => number(percent).map(|percent| percent / 100.0),
            (_, Some((part, whole))) => number(part).zip(number(whole)).map(|(part, whole)| part / whole),
            _ => number(text),
        };
        match share {
            Some(share) if share > 0.0 && share <= 1.0 => Ok(Self(share)),
            _ => Err("a share is above 0 and at most 1: 1, 1/4, 0.25 or 25%".to_owned()),
        }
    }
}

/// Data: at least a page, and at most what page tables name.
pub fn parse_data(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < 4096 => Err(format!("{bytes} bytes; give at least one page of 4096 bytes")),
        bytes if bytes > 1 << 43 => Err(format!("{bytes} bytes; at most 8 TiB")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_understood() {
        for (text, share) in [("1", 1.0), ("1/4", 0.25), ("0.5", 0.5), ("25%", 0.25)] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in ["", "0", "2", "1/0", "-1", "x/4", "NaN", "101%", "0/1"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn homes_are_understood() {
        assert_eq!("host".parse(), Ok(HomeArg::Host));
        assert_eq!("gpu:1".parse(), Ok(HomeArg::Gpu(1)));
        for text in ["", "gpu", "gpu:", "gpu:-1", "disk"] {
            assert!(text.parse::<HomeArg>().is_err(), "{text}");
        }
    }
}
