//! Calls of other programs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Finds a program as the shell would, and in the folders that hold programs for administrators.
pub(crate) fn find(program: &str, package: &'static str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administration = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(administration)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::MissingProgram {
            program: program.to_owned(),
            package,
            source: io::Error::from(io::ErrorKind::NotFound),
        })
}

/// Runs a program to its end and returns what it wrote to its standard output.
pub(crate) fn output(program: &Path, arguments: &[&str], folder: &Path) -> Result<String, Error> {
    let command = || format!("{} {}", program.display(), arguments.join(" "));
    let failed = |status: String, output: &[u8]| {
        let text = String::from_utf8_lossy(output);
        let mut last: Vec<&str> = text.lines().rev().take(5).collect();
        last.reverse();
        Error::ProgramFailed {
            command: command(),
            status,
            output: last.join("\n"),
        }
    };
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed("it cannot be started".to_owned(), error.to_string().as_bytes()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failed(output.status.to_string(), &output.stderr))
    }
}
