//! The tokens of C++ source text, as far as finding declarations in it needs them.

/// A piece of C++ source: what kind it is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An identifier, a keyword or a number.
    Word,
    /// One character of punctuation.
    Punctuation,
    /// A string, character or raw string literal.
    Literal,
    /// White space, comment or line continuation.
    Blank,
    /// A line break that ends a preprocessor line, or any other.
    Newline,
}

/// A token of `text[start..end]`.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Its first byte in the text.
    pub start: usize,
    /// The byte behind its last.
    pub end: usize,
}

/// The tokens of `text`, which together cover all of it. Text that is cut off anywhere is read to its end.
pub fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let rest = &bytes[at..];
        let kind = match rest[0] {
            b'\n' => {
                at += 1;
                TokenKind::Newline
            }
            b'\\' if rest.get(1) == Some(&b'\n') => {
                at += 2;
                TokenKind::Blank
            }
            b'/' if rest.get(1) == Some(&b'/') => {
                at += rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len());
                TokenKind::Blank
            }
            b'/' if rest.get(1) == Some(&b'*') => {
                at += find(rest, b"*/", 2).map_or(rest.len(), |n| n + 2);
                TokenKind::Blank
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                TokenKind::Blank
            }
            b'R' if rest.get(1) == Some(&b'"') => {
                at += raw_string(rest);
                TokenKind::Literal
            }
            c if c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80 => {
                // A quote inside a number separates digits.
                let number = c.is_ascii_digit();
                let part = |&c: &u8| c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80 || (number && c == b'\'');
                at += rest.iter().position(|c| !part(c)).unwrap_or(rest.len());
                TokenKind::Word
            }
            quote @ (b'"' | b'\'') => {
                at += quoted(rest, quote);
                TokenKind::Literal
            }
            _ => {
                at += 1;
                TokenKind::Punctuation
            }
        };
        out.push(Token { kind, start, end: at });
    }
    out
}

fn find(bytes: &[u8], what: &[u8], from: usize) -> Option<usize> {
    bytes
        .get(from..)?
        .windows(what.len())
        .position(|w| w == what)
        .map(|n| n + from)
}

/// Length of the literal that starts here; a line break ends an unfinished one.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'\n' => return at,
            c if c == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

fn raw_string(bytes: &[u8]) -> usize {
    let Some(open) = bytes.iter().position(|&c| c == b'(') else {
        return bytes.len();
    };
    let mut close = vec![b')'];
    close.extend_from_slice(&bytes[2..open]);
    close.push(b'"');
    find(bytes, &close, open).map_or(bytes.len(), |n| n + close.len())
}
