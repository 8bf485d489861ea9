//! Tokens: names, modifiers, numbers, strings and punctuation. White space and comments lie between them and stay in the text.

use std::ops::Range;

use crate::error::{Position, PtxError};

/// Longest text: offsets have 32 bits.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 31;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// `ld`, `%rd1`, `$L__BB0_2`.
    Name,
    /// `.global`, `.L2::128B`.
    Dotted,
    /// `0x10`, `0f3F800000`, `1.5e-3`.
    Number,
    /// `"nounroll"`.
    Text,
    /// One character.
    Mark(u8),
    /// The text's end.
    End,
}

/// One token and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    /// What it is.
    pub(crate) kind: TokenKind,
    /// Offset of its first byte.
    pub(crate) start: u32,
    /// Offset behind its last byte.
    pub(crate) end: u32,
}

impl Token {
    /// Its bytes.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The text with its lines, to say where something is.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    starts: Vec<u32>,
}

impl Lines {
    fn of(bytes: &[u8]) -> Self {
        let mut starts = vec![0];
        let breaks = (1..).zip(bytes).filter(|(_, byte)| **byte == b'\n');
        starts.extend(breaks.map(|(next, _)| next));
        Self { starts }
    }

    /// The line and the column of an offset.
    pub(crate) fn position(&self, offset: usize) -> Position {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        Position {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: (offset - self.starts[line - 1]).saturating_add(1),
        }
    }
}

fn begins_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Reads the bytes as text; line and column of the first byte that is none otherwise.
pub(crate) fn text_of(bytes: &[u8]) -> Result<&str, PtxError> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(PtxError::TooLong {
            bytes: bytes.len(),
            max: TEXT_BYTES_MAX,
        });
    }
    str::from_utf8(bytes).map_err(|error| PtxError::NotText {
        at: Lines::of(bytes).position(error.valid_up_to()),
    })
}

/// Splits a text into its tokens, of which the last one is the end.
pub(crate) fn tokens(text: &str) -> Result<(Vec<Token>, Lines), PtxError> {
    text_of(text.as_bytes())?;
    let lines = Lines::of(text.as_bytes());
    let mut lexer = Lexer {
        text,
        bytes: text.as_bytes(),
        at: 0,
        lines: &lines,
    };
    let mut found = Vec::with_capacity(text.len() / 4);
    loop {
        let token = lexer.next()?;
        found.push(token);
        if token.kind == TokenKind::End {
            return Ok((found, lines));
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    lines: &'a Lines,
}

impl Lexer<'_> {
    fn byte(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        while self.byte(0).is_some_and(&wanted) {
            self.at += 1;
        }
    }

    fn unclosed(&self, start: usize, what: &'static str) -> PtxError {
        let at = self.lines.position(start);
        PtxError::Unclosed { at, what }
    }

    /// Passes white space and comments. A NUL ends texts that come from NVRTC; lines with `#` come from preprocessors.
    fn skip_gap(&mut self) -> Result<(), PtxError> {
        loop {
            self.skip_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b || byte == 0);
            match (self.byte(0), self.byte(1)) {
                (Some(b'/'), Some(b'/')) | (Some(b'#'), _) => self.skip_while(|byte| byte != b'\n'),
                (Some(b'/'), Some(b'*')) => {
                    let start = self.at;
                    let end = self.text[start + 2..].find("*/");
                    self.at = start + 4 + end.ok_or_else(|| self.unclosed(start, "a comment"))?;
                }
                _ => return Ok(()),
            }
        }
    }

    fn next(&mut self) -> Result<Token, PtxError> {
        self.skip_gap()?;
        let start = self.at;
        let Some(first) = self.byte(0) else {
            return Ok(self.token(TokenKind::End, start));
        };
        let follows_name = self.byte(1).is_some_and(in_name);
        let kind = match first {
            b'%' if !follows_name => self.mark(first),
            _ if begins_name(first) => {
                self.at += 1;
                self.skip_while(in_name);
                TokenKind::Name
            }
            b'0'..=b'9' => self.number(),
            b'.' if follows_name => self.dotted(),
            b'"' => self.string(start)?,
            b',' | b';' | b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b'+' | b'-' | b'*' | b'/' | b'!'
            | b'@' | b'|' | b':' | b'=' | b'&' | b'~' | b'^' | b'?' | b'.' => self.mark(first),
            _ => {
                let at = self.lines.position(start);
                let found = self.text[start..].chars().next().unwrap_or_default();
                return Err(PtxError::UnexpectedCharacter { at, found });
            }
        };
        Ok(self.token(kind, start))
    }

    fn token(&self, kind: TokenKind, start: usize) -> Token {
        // Both are at most TEXT_BYTES_MAX.
        let (start, end) = (start as u32, self.at as u32);
        Token { kind, start, end }
    }

    fn mark(&mut self, byte: u8) -> TokenKind {
        self.at += 1;
        TokenKind::Mark(byte)
    }

    fn number(&mut self) -> TokenKind {
        let start = self.at;
        let has_exponent = !matches!(self.byte(1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
        loop {
            self.skip_while(|byte| in_name(byte) || byte == b'.');
            let is_exponent = has_exponent && self.at > start && matches!(self.bytes[self.at - 1], b'e' | b'E');
            match self.byte(0) {
                Some(b'+' | b'-') if is_exponent => self.at += 1,
                _ => return TokenKind::Number,
            }
        }
    }

    /// `.word`, and `.word::word::word`.
    fn dotted(&mut self) -> TokenKind {
        self.at += 1;
        loop {
            self.skip_while(in_name);
            let goes_on = self.byte(0) == Some(b':') && self.byte(1) == Some(b':') && self.byte(2).is_some_and(in_name);
            if !goes_on {
                return TokenKind::Dotted;
            }
            self.at += 2;
        }
    }

    fn string(&mut self, start: usize) -> Result<TokenKind, PtxError> {
        self.at += 1;
        loop {
            match self.byte(0) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(TokenKind::Text);
                }
                Some(b'\\') if self.byte(1).is_some() => self.at += 2,
                Some(byte) if byte != b'\n' => self.at += 1,
                _ => return Err(self.unclosed(start, "a string")),
            }
        }
    }
}
