//! The program itself.

use std::io;
use std::path::{Path, PathBuf};

/// What processes that this program starts of itself are called.
pub const NAME: &str = "gpuvm";

/// This program's file, also after another one has taken its name.
pub fn own_program() -> io::Result<PathBuf> {
    /// Names the file that runs, not what bears its name now.
    const OWN: &str = "/proc/self/exe";
    match Path::new(OWN).exists() {
        true => Ok(OWN.into()),
        false => std::env::current_exe(),
    }
}
