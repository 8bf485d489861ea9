//! Kernel source to shared object: the host's C++ compiler.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, io};

use parking_lot::Mutex;
use tempfile::{TempDir, TempPath};

use super::abi::{COLOUR_BYTES, LANE_OFFSET, STACK_BYTES};
use super::headers::HEADERS;
use super::rewrite;
use gpuvm_gpu::GpuError;
use gpuvm_gpu::back_end::missing_kernel;
use gpuvm_gpu::back_end::{Cache, Key};
use gpuvm_gpu::{CompileOptions, Source};

/// Name of the generated part that follows the user's source, as it shows in errors.
const TRAILER: &str = "gpuvm-kernel-table";
/// What makes CUDA of C++: read before every kernel source.
const EMULATION: [&str; 2] = ["-include", "gpuvm_sim/cuda.h"];
/// The file of a kernel's source with all that it includes.
const PREPROCESSED: &str = "kernel.ii";
/// The second translation unit of seeded modules.
const TSAN_HOOKS: &str = "gpuvm_sim/tsan_hooks.cpp";

/// A compiler that was found, and how it is called.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    command: Vec<String>,
    /// First line of `--version`, part of every cache key and of a seed's name.
    pub(crate) version: String,
}

/// How lanes are preempted, which decides how modules are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// A signal to a worker that has run one lane for long. x86-64 only.
    Signal,
    /// A counter in every basic block of the kernel. Works everywhere, slows kernels down.
    Counter,
}

/// What decides how modules are compiled besides the source.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) compiler: Compiler,
    pub(crate) seeded: bool,
    pub(crate) preemption: Preemption,
}

/// Versions of the compilers that this process has asked, by command: a process that makes many GPUs asks once.
static VERSIONS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

impl Compiler {
    /// `asked`, else GPUVM_CXX, else g++, else clang++. A command may carry arguments after spaces.
    pub(crate) fn find(asked: Option<&str>) -> Result<Self, GpuError> {
        let from_env = env::var("GPUVM_CXX").ok().filter(|v| !v.trim().is_empty());
        let candidates = match asked.map(str::to_owned).or(from_env) {
            Some(one) => vec![one],
            None => vec!["g++".to_owned(), "clang++".to_owned()],
        };
        let mut unusable = None;
        for candidate in &candidates {
            let command: Vec<String> = candidate.split_whitespace().map(str::to_owned).collect();
            let Some((program, rest)) = command.split_first() else {
                continue;
            };
            if let Some(version) = VERSIONS.lock().get(candidate) {
                let version = version.clone();
                return Ok(Self { command, version });
            }
            let output = match Command::new(program).args(rest).arg("--version").output() {
                Ok(output) => output,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    unusable.get_or_insert(does_not_start(candidate, &error));
                    continue;
                }
            };
            if output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout);
                let version = text.lines().next().unwrap_or_default().trim().to_owned();
                VERSIONS.lock().insert(candidate.clone(), version.clone());
                return Ok(Self { command, version });
            }
            unusable.get_or_insert(does_not_answer(candidate, &output));
        }
        Err(unusable.unwrap_or(GpuError::CompilerMissing { tried: candidates }))
    }
}

/// What to do where nothing better is known.
const ANOTHER: &str = "set GPUVM_CXX to a compiler that runs";

/// The error for a compiler that the system does not start.
fn does_not_start(command: &str, error: &io::Error) -> GpuError {
    GpuError::CompilerUnusable {
        command: command.to_owned(),
        cause: error.to_string(),
        advice: match error.raw_os_error() {
            Some(libc::EMFILE) => {
                "this process may open too few files (RLIMIT_NOFILE); raise that limit: ulimit -n 1024"
            }
            Some(libc::ENFILE) => "the machine has too many open files; close some",
            Some(libc::ENOMEM | libc::EAGAIN) => {
                "there is too little memory or there are too many processes; look at `ulimit -v` and `ulimit -u`"
            }
            Some(libc::EACCES) => "set GPUVM_CXX to a compiler that this user may execute",
            _ => ANOTHER,
        },
    }
}

/// The error for a compiler that does not tell its version.
fn does_not_answer(command: &str, output: &Output) -> GpuError {
    let said = String::from_utf8_lossy(&output.stderr);
    let cause = match said.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("`--version` ended with {}: {}", output.status, line.trim()),
        None => format!("`--version` ended with {}", output.status),
    };
    GpuError::CompilerUnusable {
        command: command.to_owned(),
        cause,
        advice: ANOTHER,
    }
}

impl Build {
    /// The flags for a kernel's translation unit, without includes.
    pub(crate) fn flags(&self, options: &CompileOptions) -> Vec<String> {
        let mut flags: Vec<String> = [
            "-std=c++17",
            "-fPIC",
            "-fvisibility=hidden",
            "-fvisibility-inlines-hidden",
            "-fno-exceptions",
            "-fno-strict-aliasing",
            // The same results on every processor: x86-64 has no fused product and sum that a compiler uses unasked.
            "-ffp-contract=off",
            // One copy of a template's static per module, so that the module can be unloaded and is separate from others.
            if self.is_gnu() {
                "-fno-gnu-unique"
            } else {
                "-fno-common"
            },
            // A big frame must hit the guard page, not jump over it.
            "-fstack-clash-protection",
            "-fno-stack-protector",
            "-Wno-unknown-pragmas",
            "-Wno-attributes",
            "-fdiagnostics-color=never",
            "-g1",
        ]
        .map(str::to_owned)
        .into();
        flags.push(match (options.debug, self.seeded) {
            (true, _) => "-O0".into(),
            // Calls between all accesses take the time of a run: -O2 made none faster and took half as long again to compile.
            (false, true) => "-O1".into(),
            (false, false) => "-O2".into(),
        });
        if options.debug {
            flags.push("-g".into());
        }
        if cfg!(target_arch = "aarch64") && self.is_gnu() {
            // It takes the guard for 64 KiB otherwise, and frames below that step over one of 4 KiB.
            flags.push("--param=stack-clash-protection-guard-size=12".into());
        }
        flags.push(format!("-DGPUVM_SIM_STACK_BYTES={STACK_BYTES}ul"));
        flags.push(format!("-DGPUVM_SIM_COLOUR_BYTES={COLOUR_BYTES}ul"));
        flags.push(format!("-DGPUVM_SIM_LANE_OFFSET={LANE_OFFSET}ul"));
        if self.seeded {
            flags.extend(["-fsanitize=thread", "-DGPUVM_SIM_SEEDED=1"].map(str::to_owned));
            // A volatile access is a strong one, and every copy of memory is seen: no instruction does it unannounced.
            flags.extend(["memcpy", "memmove", "memset"].map(|name| format!("-fno-builtin-{name}")));
            if self.is_gnu() {
                flags.extend(["-Wno-tsan", "--param=tsan-distinguish-volatile=1"].map(str::to_owned));
            } else {
                for option in ["-tsan-distinguish-volatile=1", "-tsan-instrument-read-before-write=1"] {
                    flags.extend(["-mllvm".to_owned(), option.to_owned()]);
                }
            }
        } else if self.preemption == Preemption::Counter {
            flags.extend(["-fsanitize-coverage=trace-pc", "-DGPUVM_SIM_COUNTED=1"].map(str::to_owned));
        }
        for (name, value) in &options.defines {
            flags.push(format!("-D{name}={}", value.as_deref().unwrap_or("1")));
        }
        flags
    }

    fn is_gnu(&self) -> bool {
        !self.compiler.version.contains("clang")
    }

    /// Compiles `source` with the kernels named, or finds it in the cache; the path of a shared object that the caller deletes after
    /// loading it.
    pub(crate) fn object(
        &self,
        cache: &Cache,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<TempPath, GpuError> {
        let text = format!("{}{}", rewrite::shared_arrays(&source.text), trailer(kernels));
        let mut key = Key::default();
        key.add(env!("CARGO_PKG_VERSION"))
            .add(&self.compiler.version)
            .add(&self.compiler.command.join(" "));
        key.add(&self.flags(options).join("\u{0}")).add(&source.name);
        // Files in the caller's directories may change: there only what the compiler really reads tells.
        let shortcut = options.include_dirs.is_empty().then(|| {
            let mut all = key.clone();
            for (name, content) in headers() {
                all.add(name).add(content);
            }
            for (name, content) in &options.headers {
                all.add(name).add(content);
            }
            all.add(&text);
            all.finish()
        });
        if let Some(shortcut) = &shortcut
            && let Some(object) = cache.find(shortcut)?
        {
            return Ok(object);
        }
        let (work, file) = self.lay_out(cache, source, &text, options)?;
        let preprocessed = self.preprocess(work.path(), &file, source, options)?;
        key.add(&without_lines_of_the_library(&preprocessed));
        let key = key.finish();
        let object = match cache.find(&key)? {
            Some(object) => object,
            None => {
                let built = self.build(work.path(), source, kernels, options)?;
                cache.store(&key, &built)?
            }
        };
        if let Some(shortcut) = shortcut {
            cache.add_name(&shortcut, &key);
        }
        Ok(object)
    }

    /// Writes source and headers into a fresh directory; that, and the source's path relative to it.
    fn lay_out(
        &self,
        cache: &Cache,
        source: &Source,
        text: &str,
        options: &CompileOptions,
    ) -> Result<(TempDir, PathBuf), GpuError> {
        let dir = cache.work_dir()?;
        let work = dir.path();
        let write = |path: &Path, text: &str| -> Result<(), GpuError> {
            let fail = |e| GpuError::io("write a kernel's source to", Some(path), e);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(fail)?;
            fs::write(path, text).map_err(fail)
        };
        let include = work.join("include");
        for (name, content) in headers() {
            write(&include.join(name), content)?;
        }
        for (name, content) in &options.headers {
            write(&include.join(plain_path(name)), content)?;
        }
        let file = plain_path(&source.name);
        write(&work.join(&file), text)?;
        Ok((dir, file))
    }

    fn command(&self, work: &Path, options: &CompileOptions) -> Command {
        let mut command = Command::new(&self.compiler.command[0]);
        command
            .current_dir(work)
            .args(&self.compiler.command[1..])
            .args(self.flags(options))
            .env("LC_ALL", "C");
        command.arg("-Iinclude");
        for dir in &options.include_dirs {
            command
                .arg("-I")
                .arg(fs::canonicalize(dir).unwrap_or_else(|_| dir.clone()));
        }
        command
    }

    fn preprocess(
        &self,
        work: &Path,
        file: &Path,
        source: &Source,
        options: &CompileOptions,
    ) -> Result<String, GpuError> {
        let mut command = self.command(work, options);
        command.args(EMULATION).args(["-E", "-x", "c++"]).arg(file);
        command.args(["-o", PREPROCESSED]);
        let output = run(&mut command)?;
        if !output.status.success() {
            return Err(self.refused(source, &output, &[]));
        }
        let path = work.join(PREPROCESSED);
        let bytes = fs::read(&path).map_err(|e| GpuError::io("read what the preprocessor wrote to", Some(&path), e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Compiles what [`Build::preprocess`] has left.
    fn build(
        &self,
        work: &Path,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<PathBuf, GpuError> {
        let object = work.join("kernel.so");
        let mut command = self.command(work, options);
        if !(self.seeded || self.preemption == Preemption::Counter) {
            command
                .args(["-shared", "-x", "c++-cpp-output", PREPROCESSED, "-o"])
                .arg(&object);
            let output = run(&mut command)?;
            return if output.status.success() {
                Ok(object)
            } else {
                Err(self.refused(source, &output, kernels))
            };
        }
        command.args(["-c", "-x", "c++-cpp-output", PREPROCESSED, "-o", "kernel.o"]);
        let output = run(&mut command)?;
        if !output.status.success() {
            return Err(self.refused(source, &output, kernels));
        }
        // The hooks must not be instrumented, and the object is linked without the sanitizer's own library.
        let mut plain = self.clone();
        (plain.seeded, plain.preemption) = (false, Preemption::Signal);
        let mut link = plain.command(work, &CompileOptions::default());
        link.args([
            "-shared",
            "kernel.o",
            "-x",
            "c++",
            &format!("include/{TSAN_HOOKS}"),
            "-o",
        ])
        .arg(&object);
        let output = run(&mut link)?;
        if output.status.success() {
            Ok(object)
        } else {
            Err(self.refused(source, &output, &[]))
        }
    }

    /// The error for a failed compilation: a missing kernel when only the generated trailer is at fault.
    fn refused(&self, source: &Source, output: &Output, kernels: &[&str]) -> GpuError {
        let log = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let generated = |line: &str| line.starts_with(TRAILER) || line.starts_with("include/gpuvm");
        if let Some(error) = missing_kernel(source, kernels, &log, generated) {
            return error;
        }
        GpuError::Compile {
            file: source.name.clone(),
            log: if log.is_empty() { output.status.to_string() } else { log },
        }
    }
}

/// The device library's headers and this GPU's own.
pub(crate) fn headers() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    gpuvm_gpu::headers().iter().chain(HEADERS)
}

fn run(command: &mut Command) -> Result<Output, GpuError> {
    let program = PathBuf::from(command.get_program());
    command
        .output()
        .map_err(|e| GpuError::io("run the C++ compiler", Some(&program), e))
}

/// Preprocessed text as it counts for a key: of the library's headers the code alone, so that a comment in one of them compiles no kernel
/// anew. Their line numbers are then those of an earlier text where a debugger asks; those of `assert` are in the code.
fn without_lines_of_the_library(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut in_library = false;
    for line in text.lines() {
        let marker = line.strip_prefix("# ").and_then(|rest| rest.split('"').nth(1));
        if let Some(file) = marker {
            // The folder in which the compiler runs, which is another one each time.
            if file.ends_with("//") {
                continue;
            }
            in_library = file.starts_with("include/gpuvm");
        }
        let code = if marker.is_some() && in_library {
            marker.unwrap_or_default()
        } else {
            line
        };
        if !(in_library && code.trim().is_empty()) {
            kept.push_str(code);
            kept.push('\n');
        }
    }
    kept
}

/// What is appended to the user's source: a table and an entry for each kernel.
fn trailer(kernels: &[&str]) -> String {
    let mut text = format!("\n#line 1 \"{TRAILER}\"\n");
    for (number, kernel) in kernels.iter().enumerate() {
        text.push_str(&format!("GPUVM_SIM_KERNEL({number}, {kernel})\n"));
    }
    text
}

/// `name` as a relative path that stays below where it is put.
fn plain_path(name: &str) -> PathBuf {
    let kept = Path::new(name)
        .components()
        .filter(|c| matches!(c, Component::Normal(_)));
    let path: PathBuf = kept.collect();
    if path.as_os_str().is_empty() || path.starts_with("include") {
        PathBuf::from("kernel.cu")
    } else {
        path
    }
}
