//! Calls of other programs.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;

/// How long tools may take, the download of a kernel among them.
const TOOL: Duration = Duration::from_secs(600);

/// How long a build may take.
const BUILD: Duration = Duration::from_secs(1800);

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
        })
}

/// Runs a program to its end and returns what it wrote to its standard output.
pub(crate) fn output(program: &Path, arguments: &[&str], folder: &Path) -> Result<Vec<u8>, Error> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("LC_ALL", "C");
    run(command, TOOL, false)
}

/// Runs a program to its end and returns its standard output as text.
pub(crate) fn text(program: &Path, arguments: &[&str], folder: &Path) -> Result<String, Error> {
    output(program, arguments, folder).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Builds with cargo and returns the programs that came out, tests and benches among them, in cargo's order:
/// `built(&["test", "--no-run", "-p", "gpuvm-nic", "--test", "rxe"])`. Cargo shows its progress.
///
/// # Errors
/// [`Error::ProgramFailed`] where the build fails or takes longer than half an hour, [`Error::Check`] where no program
/// comes out.
pub fn built(arguments: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(arguments)
        .args(["--locked", "--message-format=json-render-diagnostics"]);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let messages = run(command, BUILD, true)?;
    let messages = messages.split(|byte| *byte == b'\n');
    let programs = messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let programs: Vec<_> = programs
        .filter_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
        .collect();
    if programs.is_empty() {
        return Err(Error::Check(format!(
            "`cargo {}` has built no program",
            arguments.join(" ")
        )));
    }
    Ok(programs)
}

/// Runs a command for a bounded time. With `show`, what it writes to its standard error is the caller's.
pub(crate) fn run(mut command: Command, limit: Duration, show: bool) -> Result<Vec<u8>, Error> {
    let line = format!("{command:?}");
    let failed = |status: String, output: &[u8]| {
        let text = String::from_utf8_lossy(output);
        let mut last: Vec<&str> = text.lines().rev().take(5).collect();
        last.reverse();
        Error::ProgramFailed {
            command: line.clone(),
            status,
            output: last.join("\n"),
        }
    };
    let cannot = |error: io::Error| failed("it cannot be run".to_owned(), error.to_string().as_bytes());
    // Files, not pipes: nothing needs to read meanwhile.
    let (mut written, mut complaints) = (
        tempfile::tempfile().map_err(cannot)?,
        tempfile::tempfile().map_err(cannot)?,
    );
    command
        .stdin(Stdio::null())
        .stdout(written.try_clone().map_err(cannot)?);
    if !show {
        command.stderr(complaints.try_clone().map_err(cannot)?);
    }
    let mut child = command.spawn().map_err(cannot)?;
    let ends = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            break status;
        }
        if Instant::now() > ends {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(
                format!("it took longer than {limit:?}"),
                &content(&mut complaints).unwrap_or_default(),
            ));
        }
        thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        return Err(failed(
            status.to_string(),
            &content(&mut complaints).unwrap_or_default(),
        ));
    }
    content(&mut written).map_err(cannot)
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_failures_of_programs() {
        assert_eq!(run(shell("echo yes; echo no >&2"), TOOL, false).unwrap(), b"yes\n");
        let error = run(shell("echo the reason >&2; exit 4"), TOOL, false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the reason") && error.contains("exit status: 4"),
            "{error}"
        );
        let error = run(Command::new("no-such-program"), TOOL, false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no-such-program"), "{error}");
        let error = run(shell("exec sleep 1000"), Duration::from_millis(100), false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("longer than 100ms"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find("no-such-program", "its-package").unwrap_err().to_string();
        assert!(
            error.contains("no-such-program") && error.contains("apt-get install its-package"),
            "{error}"
        );
    }

    #[test]
    fn cargo_names_what_it_has_built() {
        let programs = built(&["build", "--release", "--workspace", "--bin", "softroce"]).unwrap();
        assert!(
            programs
                .iter()
                .any(|program| program.ends_with("softroce") && program.is_file()),
            "{programs:?}"
        );
        assert!(built(&["build", "-p", "no-such-package"]).is_err());
    }
}
