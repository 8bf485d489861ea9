//! What can be wrong with PTX text, with its place and what to do.

use std::fmt;

/// A place in the text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in bytes.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Text that is not PTX, or PTX that cannot be rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PtxError {
    /// The bytes are not text.
    #[error("{at}: not UTF-8 text; give PTX (`nvcc -ptx`, `cuobjdump -ptx`), not a cubin or an object file")]
    NotText {
        /// The first byte that is none.
        at: Position,
    },
    /// Offsets into the text have 32 bits.
    #[error("the text has {bytes} bytes and may have at most {max}; split the module")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A byte that begins no token.
    #[error("{at}: unexpected character {found:?}; PTX has none of these outside of comments and strings")]
    UnexpectedCharacter {
        /// Where.
        at: Position,
        /// The character.
        found: char,
    },
    /// A comment, a string or a bracket that does not end.
    #[error("{at}: {what} that begins here does not end; the file may be cut off: write it again")]
    Unclosed {
        /// Where it begins.
        at: Position,
        /// What it is.
        what: &'static str,
    },
    /// A token that cannot stand where it stands.
    #[error("{at}: found {found} where {expected} should be; check the file with `ptxas`")]
    Unexpected {
        /// Where.
        at: Position,
        /// The token.
        found: String,
        /// What could stand there.
        expected: &'static str,
    },
    /// Brackets in brackets, without an end.
    #[error("{at}: more than {max} levels of {what}; no compiler writes such PTX: simplify it")]
    TooDeep {
        /// Where the limit is passed.
        at: Position,
        /// What is nested.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The text does not say which PTX it is.
    #[error("{at}: the module has no `{directive}` before its first function; write it again as a whole module")]
    MissingDirective {
        /// Where the module's first function or the text's end is.
        at: Position,
        /// The directive.
        directive: &'static str,
    },
    /// PTX of a version that the crate does not know.
    #[error("{at}: PTX ISA {found} is not supported; compile with a CUDA toolkit that writes 6.0 to 9.x")]
    Version {
        /// The directive.
        at: Position,
        /// The version.
        found: String,
    },
    /// Addresses of 32 bits.
    #[error("{at}: addresses have {bits} bits; compile for 64 bits (`.address_size 64`)")]
    AddressSize {
        /// The directive.
        at: Position,
        /// Bits of an address.
        bits: String,
    },
    /// A global or generic access by a register that has not 64 bits.
    #[error("{at}: the address register `{register}` has {bits} bits; use a register of 64 bits")]
    NarrowAddress {
        /// The access.
        at: Position,
        /// The register.
        register: String,
        /// Its size.
        bits: u32,
    },
    /// A name that no declaration before it has.
    #[error("{at}: `{name}` is used as an address and is not declared before; check the file with `ptxas`")]
    Undeclared {
        /// The access.
        at: Position,
        /// The name.
        name: String,
    },
    /// A name that the rewritten text needs for itself.
    #[error("{at}: the name `{name}` is reserved; the text was rewritten before: give the original")]
    Reserved {
        /// Where it is used first.
        at: Position,
        /// The name.
        name: String,
    },
    /// A page size that the table cannot have.
    #[error("a page of {bytes} bytes; give a power of two from 512 to 2097152")]
    PageSize {
        /// The size.
        bytes: u64,
    },
    /// A window for which 32 bits do not number the pages, and one behind them.
    #[error("{bytes} bytes of addresses in pages of {page_bytes} bytes: 2^32 pages or more; use larger pages")]
    TooManyPages {
        /// Bytes of addresses.
        bytes: u64,
        /// The page size.
        page_bytes: u64,
    },
}

impl PtxError {
    /// Where in the text it is; none for errors of the whole text and of settings.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        match *self {
            Self::NotText { at }
            | Self::UnexpectedCharacter { at, .. }
            | Self::Unclosed { at, .. }
            | Self::Unexpected { at, .. }
            | Self::TooDeep { at, .. }
            | Self::MissingDirective { at, .. }
            | Self::Version { at, .. }
            | Self::AddressSize { at, .. }
            | Self::NarrowAddress { at, .. }
            | Self::Undeclared { at, .. }
            | Self::Reserved { at, .. } => Some(at),
            Self::TooLong { .. } | Self::PageSize { .. } | Self::TooManyPages { .. } => None,
        }
    }
}
