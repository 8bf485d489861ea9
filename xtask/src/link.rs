//! The shared library, with versions of its symbols.

use std::{fs, path::Path, process::Command};

use crate::{Doing, TaskError, VERSION};

/// Libraries of the system that Rust's standard library and the bindings use.
const LIBRARIES: [&str; 6] = ["-lgcc_s", "-lpthread", "-ldl", "-lrt", "-lm", "-lc"];

/// The name by which programs find the library: its major version is that of its binary interface.
pub fn soname() -> String {
    let major = VERSION.split('.').next().unwrap_or_default();
    format!("libgpuvm.so.{major}")
}

/// The names in a version script: what the library exports.
pub fn symbols(script: &str) -> Vec<&str> {
    let words = script.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '*'));
    words.filter(|word| word.starts_with("gpuvm_")).collect()
}

/// Links the static library to a shared one.
pub fn shared_library(archive: &Path, script: &Path, to: &Path) -> Result<(), TaskError> {
    let text = fs::read_to_string(script).doing("read", script)?;
    let mut cc = Command::new("cc");
    cc.arg("-shared").arg("-o").arg(to);
    cc.arg(format!("-Wl,-soname,{}", soname()));
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    // Of the archive, what these need. A name that is not there is an error.
    cc.args(
        symbols(&text)
            .iter()
            .map(|name| format!("-Wl,--require-defined={name}")),
    );
    cc.args([
        "-Wl,--gc-sections",
        "-Wl,--no-undefined",
        "-Wl,-z,relro,-z,now",
        "-Wl,--strip-debug",
    ]);
    cc.arg(archive).args(LIBRARIES);
    let output = cc.output().map_err(|source| TaskError::Program {
        program: "cc",
        package: "gcc",
        source,
    })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(TaskError::Failed {
            program: "cc",
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        }),
    }
}
