//! What GPUs are built from: the parts that every back end needs and none has alone. Users of a GPU need none of it.

mod arguments;
mod cache;
mod diagnostics;
mod one_by_one;
pub mod params;
mod ranges;
mod shelf;
mod spans;
mod tokens;

pub use self::arguments::Arguments;
pub use self::cache::{Cache, Key, check_code};
pub use self::diagnostics::missing_kernel;
pub use self::one_by_one::OneByOne;
pub use self::ranges::Ranges;
pub use self::shelf::{Shelf, Shelved};
pub use self::spans::Spans;
pub use self::tokens::{Token, TokenKind, tokens};
pub use crate::memory::{Release, host_page_bytes};
