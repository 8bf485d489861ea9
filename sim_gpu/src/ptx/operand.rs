//! Operands of an instruction, from its text.

use super::error::Why;

/// An operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A register, a number, a name with what is added to it.
    Word(String),
    /// `!%p`
    Not(String),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)`
    List(Vec<Operand>),
    /// `p|q`
    Pair(Box<Operand>, Box<Operand>),
    /// `[a+8]`
    Address { base: String, offset: i64 },
}

/// Text without comments, each a space.
pub(crate) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        out.push_str(&rest[..at]);
        out.push(' ');
        let end = if rest[at..].starts_with("//") { "\n" } else { "*/" };
        rest = rest[at..].split_once(end).map_or("", |(_, behind)| behind);
    }
    out.push_str(rest);
    out
}

/// Parts between commas that no bracket is around.
pub(crate) fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let at_comma = |c| {
        depth += i32::from(matches!(c, '(' | '[' | '{')) - i32::from(matches!(c, ')' | ']' | '}'));
        c == ',' && depth == 0
    };
    let parts = text.split(at_comma).map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// The operands in a text without comments.
pub(crate) fn operands(text: &str) -> Result<Vec<Operand>, Why> {
    parts(text).into_iter().map(operand).collect()
}

fn inside(text: &str, open: char, close: char) -> Option<&str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

fn operand(text: &str) -> Result<Operand, Why> {
    if let Some(parts) = inside(text, '{', '}') {
        return Ok(Operand::Vector(operands(parts)?));
    }
    if let Some(parts) = inside(text, '(', ')') {
        return Ok(Operand::List(operands(parts)?));
    }
    if let Some(address) = inside(text, '[', ']') {
        let (base, offset) = added(address.trim())?;
        return Ok(Operand::Address { base, offset });
    }
    if let Some((first, second)) = text.split_once('|') {
        let both = (operand(first.trim())?, operand(second.trim())?);
        return Ok(Operand::Pair(Box::new(both.0), Box::new(both.1)));
    }
    Ok(match text.strip_prefix('!') {
        Some(rest) => Operand::Not(rest.trim().to_owned()),
        None => Operand::Word(text.to_owned()),
    })
}

/// A base and what is added to it: `a`, `a+8`, `a + -8`, `a-8`.
pub(crate) fn added(text: &str) -> Result<(String, i64), Why> {
    let Some(at) = text.find(['+', '-']).filter(|at| *at > 0) else {
        return Ok((text.to_owned(), 0));
    };
    let (base, rest) = text.split_at(at);
    let digits = rest[1..].trim();
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(digits) => (true, digits.trim()),
        None => (false, digits),
    };
    let size = integer(digits).ok_or_else(|| Why::unknown(format!("the offset `{rest}`")))?;
    // Two's complement: larger offsets wrap as addresses do.
    let size = size as i64;
    let subtracted = rest.starts_with('-') != negative;
    let offset = if subtracted { size.wrapping_neg() } else { size };
    Ok((base.trim().to_owned(), offset))
}

/// An integer without a sign: decimal, hexadecimal, octal or binary, with `U` or without.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    let lower = text.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    if let Some(digits) = lower.strip_prefix("0b") {
        return u64::from_str_radix(digits, 2).ok();
    }
    match lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        Some(digits) => u64::from_str_radix(digits, 8).ok(),
        None => lower.parse().ok(),
    }
}

/// Bits of a number for a type of floating point, or of an integer where `bits` is none.
pub(crate) fn number(text: &str, float: Option<u32>) -> Option<u64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits.trim()),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    if !lower.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let exact = |prefix: &str| {
        lower
            .strip_prefix(prefix)
            .and_then(|digits| u64::from_str_radix(digits, 16).ok())
    };
    let value = match (exact("0f"), exact("0d"), float) {
        // Bits of another width become the type's own number.
        (Some(bits), _, Some(64)) => f64::from(f32::from_bits(bits as u32)).to_bits(),
        (Some(bits), _, _) | (_, Some(bits), Some(64) | None) => bits,
        (_, Some(bits), Some(32)) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (None, None, Some(64)) => lower.parse::<f64>().ok()?.to_bits(),
        (None, None, Some(32)) if lower.contains(['.', 'e']) && !lower.starts_with("0x") => {
            u64::from(lower.parse::<f32>().ok()?.to_bits())
        }
        (None, None, _) => {
            let value = integer(digits)?;
            return Some(if negative { value.wrapping_neg() } else { value });
        }
        _ => return None,
    };
    let sign = match float {
        Some(64) => 1 << 63,
        _ => 1 << 31,
    };
    Some(if negative { value ^ sign } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_read() {
        let word = |text: &str| Operand::Word(text.to_owned());
        let read = operands("{ %r1, _ }, [ %rd1 + -8 ], %p1|%p2, !%p3, (a, b), -1").unwrap();
        let address = Operand::Address {
            base: "%rd1".to_owned(),
            offset: -8,
        };
        let pair = Operand::Pair(Box::new(word("%p1")), Box::new(word("%p2")));
        let list = Operand::List(vec![word("a"), word("b")]);
        let wanted = [
            Operand::Vector(vec![word("%r1"), word("_")]),
            address,
            pair,
            Operand::Not("%p3".to_owned()),
            list,
            word("-1"),
        ];
        assert_eq!(read, wanted);
        assert!(operands("[%rd1+%rd2]").is_err());
    }

    #[test]
    fn numbers_are_read() {
        for (text, float, bits) in [
            ("12", None, Some(12)),
            ("-1", None, Some(u64::MAX)),
            ("0x10U", None, Some(16)),
            ("017", None, Some(15)),
            ("0b101", None, Some(5)),
            ("0f3F800000", Some(32), Some(0x3f80_0000)),
            ("0f3F800000", None, Some(0x3f80_0000)),
            ("0d3FF0000000000000", Some(64), Some(0x3ff0_0000_0000_0000)),
            ("-0f3F800000", Some(32), Some(0xbf80_0000)),
            ("1.5", Some(64), Some(0x3ff8_0000_0000_0000)),
            ("1.5", Some(32), Some(0x3fc0_0000)),
            ("-8388608", Some(32), Some(0xffff_ffff_ff80_0000)),
            ("%r1", None, None),
            ("WARP_SZ", None, None),
        ] {
            assert_eq!(number(text, float), bits, "{text}");
        }
        assert_eq!(without_comments("a /* b */ c // d\n e"), "a   c   e");
    }
}
