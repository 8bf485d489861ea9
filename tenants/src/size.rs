//! Sizes and shares as people write them.

use std::str::FromStr;

use bytesize::ByteSize;

/// Memory as given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemorySize {
    /// A share of the whole, in percent.
    Percent(f64),
    /// Bytes.
    Bytes(u64),
}

impl MemorySize {
    /// The bytes, where the whole has `whole_bytes`.
    pub fn bytes_of(self, whole_bytes: u64) -> u64 {
        match self {
            // Rounded up: 100% holds everything. The cast saturates.
            MemorySize::Percent(percent) => (whole_bytes as f64 * percent / 100.0).ceil() as u64,
            MemorySize::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<MemorySize, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return match parse_bytes(text)? {
                0 => Err("it must be at least one page".to_owned()),
                bytes => Ok(MemorySize::Bytes(bytes)),
            };
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(MemorySize::Percent(percent)),
            _ => Err("a share is a number above 0% and up to 1000%".to_owned()),
        }
    }
}

/// Sizes as the GNU tools take them: K, M, G and KiB, MiB, GiB are powers of 1024; KB, MB, GB powers of 1000.
///
/// # Errors
/// A text that is no size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let short = text.ends_with(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let whole = if short { format!("{text}iB") } else { text.to_owned() };
    whole
        .parse::<ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| format!("invalid size '{text}': write 4KiB, 64M, 2GiB"))
}

/// Bytes as people read them, without a fraction where there is none: 4 GiB, not 4.0 GiB.
pub fn spell_bytes(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string().replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(spell_bytes(4 << 30), "4 GiB");
        assert_eq!(spell_bytes(3 << 29), "1.5 GiB");
        assert_eq!(spell_bytes(10 << 20), "10 MiB");
    }

    #[test]
    fn sizes_are_understood() {
        for (text, bytes) in [
            ("4KiB", 4096),
            ("4K", 4096),
            ("64M", 64 << 20),
            ("2GiB", 2 << 30),
            ("2gb", 2_000_000_000),
            ("8192", 8192),
        ] {
            assert_eq!(text.parse(), Ok(MemorySize::Bytes(bytes)), "{text}");
        }
        assert_eq!("12.5%".parse(), Ok(MemorySize::Percent(12.5)));
        for text in [
            "", "%", "0%", "-1%", "NaN%", "inf%", "1001%", "0", "-4K", "4 apples", "KiB", "M",
        ] {
            assert!(text.parse::<MemorySize>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_of_the_whole() {
        assert_eq!(MemorySize::Percent(25.0).bytes_of(1001), 251);
        assert_eq!(MemorySize::Percent(100.0).bytes_of(12_345_678_901), 12_345_678_901);
        assert_eq!(MemorySize::Bytes(7).bytes_of(1001), 7);
    }
}
