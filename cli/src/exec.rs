//! `gpuvm exec`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use gpuvm_ptx::exec;

use crate::args::ExecArgs;
use crate::error::CliError;

/// The library that is loaded into the program, and where it is, from this command's folder; in the last one tests have it built.
const LIBRARY: &str = "libgpuvm_exec.so";
const FOLDERS: [&str; 3] = [".", "../lib", "deps"];
/// What the loader loads before all else.
const PRELOAD: &str = "LD_PRELOAD";

/// Becomes the program: it comes back with an error alone.
pub fn run(args: &ExecArgs) -> Result<(), CliError> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Ok(());
    };
    let named = program.to_string_lossy().into_owned();
    let library = library().ok_or(CliError::NoExecLibrary)?;
    gpuvm_gpu::cuda::driver_version().map_err(|source| CliError::NoDriver {
        program: named.clone(),
        source,
    })?;
    let mut command = Command::new(program);
    command.args(arguments).env(PRELOAD, before_others(library));
    let settings = [
        (exec::PAGE_SIZE, Some(args.page_size)),
        (exec::FRAMES, args.frames),
        (exec::REGISTERS, args.registers.map(u64::from)),
        (exec::QUIET, args.quiet.then_some(1)),
        (exec::VERBOSE, args.verbose.then_some(1)),
    ];
    for (name, value) in settings {
        match value {
            Some(value) => command.env(name, value.to_string()),
            None => command.env_remove(name),
        };
    }
    Err(CliError::Exec {
        program: named,
        source: command.exec(),
    })
}

fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let places = FOLDERS.iter().map(|place| folder.join(place).join(LIBRARY));
    places.filter_map(|place| place.canonicalize().ok()).next()
}

/// What the user has loaded before all else stays so.
fn before_others(library: PathBuf) -> OsString {
    let mut all = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
