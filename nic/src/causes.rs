//! An error in one line.

use std::error::Error;

/// An error and what lies below it, in one line with colons between: the errors of this project name in their own text
/// what they are about and leave the rest to their source.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
