//! An installation of the library, and programs that are compiled with it.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// An installation below a folder that goes with it.
pub struct Prefix {
    folder: tempfile::TempDir,
}

/// The static library that was built with this test: beside it, the youngest of those of several builds.
fn archive() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().expect("in a folder");
    let files = std::fs::read_dir(folder).expect("the folder of this program");
    let archives = files.map(|file| file.expect("a file").path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libgpuvm_capi") && name.ends_with(".a")
    });
    let built = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    archives
        .max_by_key(built)
        .expect("cargo builds the static library with this test")
}

impl Prefix {
    /// Installs the library, and moves it to another place: nothing of it may name the first one.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let first = folder.path().join("first");
        xtask::install(&archive(), &first).unwrap_or_else(|error| panic!("{error}"));
        std::fs::rename(first, folder.path().join("prefix")).expect("moved");
        Self { folder }
    }

    /// Where it is installed.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    /// Where programs and their files go.
    pub fn scratch(&self) -> &Path {
        self.folder.path()
    }

    /// Compiles a program of `tests/c` in C or C++, by its ending.
    pub fn compile(&self, source: &Path, flags: &[&str]) -> PathBuf {
        let program = self.scratch().join(source.file_stem().expect("a name"));
        let (compiler, standard) = match source.extension().and_then(OsStr::to_str) {
            Some("c") => ("cc", "-std=c11"),
            _ => ("c++", "-std=c++17"),
        };
        let (include, lib) = (self.path().join("include"), self.path().join("lib"));
        let mut cc = Command::new(compiler);
        cc.args([standard, "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]);
        cc.args(flags).arg(source).arg("-I").arg(include).arg("-L").arg(&lib);
        cc.arg(format!("-Wl,-rpath,{}", lib.display())).arg("-o").arg(&program);
        // After the program that needs them.
        cc.args(["-lgpuvm", "-lpthread"]);
        ran(&mut cc);
        program
    }
}

/// What a program is compiled with whose accesses are checked.
pub const SANITIZED: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

/// A program that is ended when it takes too long: one that hangs is a failure.
pub fn bounded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "300"]).arg(program);
    command
}

/// Runs a program that was compiled so. It does not look for leaks, which valgrind does: what it knows of the thread-local memory of modules
/// that were unloaded, as those of simulated kernels are, is wrong, and its search for pointers there can end in a fault of its own.
pub fn sanitized(program: &Path) -> Command {
    let mut command = bounded(program);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

/// A program of `tests/c`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// What a program wrote to its standard output, if it went well.
pub fn ran(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What a program wrote.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Whether a tool is there. `./test` installs it and says so by the variable: then it has to be.
pub fn has(tool: &str, required: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    assert!(
        found || std::env::var_os(required).is_none(),
        "{tool} is missing and {required} is set"
    );
    if !found {
        eprintln!("skipped: {tool} is missing");
    }
    found
}
