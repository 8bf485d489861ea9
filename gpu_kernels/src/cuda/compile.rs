//! Kernel source to GPU binary, by NVRTC.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::log::{self, Usage};
use super::nvrtc::{COMPILATION, Program, architectures, version};
use super::{elf, includes};
use crate::api::{CompileOptions, ParamInfo, Source};
use crate::back_end::{Cache, Key, Shelf, Shelved, missing_kernel, params};
use crate::error::GpuError;

/// Name of the generated part that follows the user's source, as it shows in errors.
const TRAILER: &str = "gpuvm-kernel-table";
/// Where NVRTC says that a kernel's name is wrong.
const NAME_MAP: &str = "__nv_name_map";

/// A compute capability to compile for: 90 is 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture(pub u32);

/// A compiled source.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The binary for one architecture, or PTX with a zero byte at its end.
    pub image: Vec<u8>,
    /// Whether the image is PTX, which the driver compiles when it loads it: NVRTC does not know the GPU.
    pub is_ptx: bool,
    /// The kernels that were asked for, in that order.
    pub kernels: Vec<CubinKernel>,
    /// What the compiler said: warnings in the user's source. Empty when the binary came from the cache.
    pub log: String,
    /// All that NVRTC and ptxas said, of the device library's headers too. Empty when the binary came from the cache.
    pub full_log: String,
}

/// A kernel of a compiled source.
#[derive(Clone, Debug)]
pub struct CubinKernel {
    /// The name it was asked for by.
    pub name: String,
    /// Its name in the image.
    pub lowered: String,
    /// Its parameters; none when the image is PTX, whose tables are read when it is loaded.
    pub params: Option<Vec<ParamInfo>>,
    /// What ptxas said of it; none from the cache and of PTX.
    pub usage: Option<Usage>,
}

/// Compiles `source` for compute capability `architecture`, without a GPU or a driver and without the cache.
///
/// # Errors
/// [`GpuError::Compile`] with the log, [`GpuError::KernelNotFound`], [`GpuError::Driver`] when NVRTC is not there.
pub fn compile_to_cubin(
    source: &Source,
    kernels: &[&str],
    options: &CompileOptions,
    architecture: Architecture,
) -> Result<Cubin, GpuError> {
    Request::new(source, kernels, options, architecture)?.compile()
}

/// Compiles `source` as [`compile_to_cubin`] does and puts the binary on `shelf`, for GPUs of that and of higher minor compute capabilities.
///
/// # Errors
/// As there; [`GpuError::Driver`] where this NVRTC does not know the architecture; [`GpuError::Io`].
pub fn precompile(
    shelf: &Shelf,
    source: &Source,
    kernels: &[&str],
    options: &CompileOptions,
    architecture: Architecture,
) -> Result<(), GpuError> {
    let Architecture(wanted) = architecture;
    let made = compile_to_cubin(source, kernels, options, architecture)?;
    if made.is_ptx {
        let advice = "; take one of these, or name a newer NVRTC by GPUVM_NVRTC";
        return Err(unknown(source, wanted, &architectures()?, advice));
    }
    shelf.store(&shelved(source, kernels, options), &target(wanted), &encode(&made))
}

/// What [`precompile`] put on `shelf` for this architecture, or for the nearest one below it that it runs the binaries of. NVRTC is not
/// asked.
///
/// # Errors
/// [`GpuError::Io`].
pub fn precompiled(
    shelf: &Shelf,
    source: &Source,
    kernels: &[&str],
    options: &CompileOptions,
    Architecture(wanted): Architecture,
) -> Result<Option<Cubin>, GpuError> {
    // CUDA C++ Programming Guide, "Binary Compatibility": those of one major version, from the minor one on that they are for.
    let targets = (wanted / 10 * 10..=wanted).rev().map(target);
    let found = shelf.find(&shelved(source, kernels, options), targets)?;
    Ok(found.and_then(|bytes| decode(&bytes, kernels)))
}

fn target(architecture: u32) -> String {
    format!("sm_{architecture}")
}

fn shelved<'a>(source: &'a Source, kernels: &'a [&'a str], options: &'a CompileOptions) -> Shelved<'a> {
    Shelved {
        source,
        kernels,
        options,
        headers: crate::headers(),
    }
}

fn unknown(source: &Source, wanted: u32, known: &[u32], advice: &str) -> GpuError {
    GpuError::Driver {
        what: format!("compile {} for sm_{wanted}", source.name),
        name: "architecture".into(),
        text: format!("this NVRTC compiles for {known:?}"),
        advice: advice.into(),
    }
}

/// As [`compile_to_cubin`], from the cache where that has it.
pub(crate) fn compile_cached(
    source: &Source,
    kernels: &[&str],
    options: &CompileOptions,
    architecture: Architecture,
    dir: Option<PathBuf>,
) -> Result<Cubin, GpuError> {
    let request = Request::new(source, kernels, options, architecture)?;
    let cache = Cache::open(dir)?;
    let Some(key) = request.key()? else {
        return request.compile();
    };
    if let Some(found) = cache.bytes(&key).and_then(|bytes| decode(&bytes, kernels)) {
        return Ok(found);
    }
    let made = request.compile()?;
    cache.store_bytes(&key, &encode(&made))?;
    Ok(made)
}

/// PTX of a source of functions alone, which others link to, from the cache where that has it.
pub(crate) fn library_cached(
    source: &Source,
    options: &CompileOptions,
    architecture: Architecture,
    dir: Option<PathBuf>,
) -> Result<String, GpuError> {
    let request = Request::new(source, &[], options, architecture)?.of_a_library();
    let cache = Cache::open(dir)?;
    let key = request.key()?;
    let found = key.as_ref().and_then(|key| cache.bytes(key));
    let bytes = match found.and_then(|bytes| decode(&bytes, &[])) {
        Some(found) => found.image,
        None => {
            let made = request.compile()?;
            if let Some(key) = key {
                cache.store_bytes(&key, &encode(&made))?;
            }
            made.image
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches('\0').to_owned())
}

/// PTX of a source of functions alone, without a GPU or a driver and without the cache: see [`gpuvm_ptx::with_library`].
///
/// # Errors
/// As [`compile_to_cubin`].
pub fn compile_library(
    source: &Source,
    options: &CompileOptions,
    architecture: Architecture,
) -> Result<String, GpuError> {
    let made = Request::new(source, &[], options, architecture)?
        .of_a_library()
        .compile()?;
    Ok(String::from_utf8_lossy(&made.image).trim_end_matches('\0').to_owned())
}

/// What is compiled, and how.
struct Request<'a> {
    source: &'a Source,
    kernels: &'a [&'a str],
    dirs: &'a [PathBuf],
    text: String,
    headers: Vec<(String, String)>,
    options: Vec<String>,
    is_ptx: bool,
}

impl<'a> Request<'a> {
    fn new(
        source: &'a Source,
        kernels: &'a [&'a str],
        options: &'a CompileOptions,
        Architecture(wanted): Architecture,
    ) -> Result<Self, GpuError> {
        let known = architectures()?;
        let is_ptx = !known.contains(&wanted);
        // PTX of an older architecture runs on every newer one.
        let Some(base) = known.iter().copied().filter(|arch| *arch <= wanted).max() else {
            let advice = "; CUDA 13 dropped GPUs older than 7.5: install an NVRTC of CUDA 12 for them";
            return Err(unknown(source, wanted, &known, advice));
        };
        let headers = includes::headers(&options.headers);
        let names: BTreeSet<String> = headers.iter().map(|(name, _)| name.clone()).collect();
        let kind = if is_ptx { "compute" } else { "sm" };
        let mut flags = vec![
            format!("--gpu-architecture={kind}_{base}"),
            "--std=c++17".to_owned(),
            // NVRTC knows no functions for the host, and takes a lambda with `auto` parameters for one without this.
            "-default-device".to_owned(),
            if options.debug {
                "--device-debug"
            } else {
                "--generate-line-info"
            }
            .to_owned(),
        ];
        if !is_ptx {
            flags.push("--ptxas-options=-v".to_owned());
        }
        flags.extend(
            options
                .include_dirs
                .iter()
                .map(|dir| format!("--include-path={}", dir.display())),
        );
        for (name, value) in &options.defines {
            flags.push(format!("--define-macro={name}={}", value.as_deref().unwrap_or("1")));
        }
        Ok(Self {
            source,
            kernels,
            dirs: &options.include_dirs,
            text: includes::spelled_out("", &source.text, &names) + &trailer(kernels),
            headers,
            options: flags,
            is_ptx,
        })
    }

    /// As PTX of functions that others call.
    fn of_a_library(mut self) -> Self {
        self.is_ptx = true;
        // What it names of files would be taken for the text's own.
        self.options
            .retain(|option| option != "--ptxas-options=-v" && option != "--generate-line-info");
        if let Some(architecture) = self.options.first_mut() {
            *architecture = architecture.replace("=sm_", "=compute_");
        }
        self.options.push("--relocatable-device-code=true".to_owned());
        self
    }

    /// What the binary depends on; none when that cannot be told.
    fn key(&self) -> Result<Option<String>, GpuError> {
        let (major, minor) = version()?;
        let mut key = Key::default();
        key.add("cuda").add(env!("CARGO_PKG_VERSION"));
        key.add(&format!("NVRTC {major}.{minor}"))
            .add(&self.options.join("\u{0}"))
            .add(&self.source.name)
            .add(&self.text);
        let mut read_from = self.text.clone();
        for (name, text) in &self.headers {
            key.add(name).add(text);
            if !name.starts_with("gpuvm/") {
                read_from.push_str(text);
            }
        }
        if !self.dirs.is_empty() {
            let Some(files) = includes::files(&read_from, self.dirs) else {
                return Ok(None);
            };
            for (path, bytes) in files {
                key.add(&path.to_string_lossy()).add(&String::from_utf8_lossy(&bytes));
            }
        }
        Ok(Some(key.finish()))
    }

    fn compile(&self) -> Result<Cubin, GpuError> {
        let doing = || format!("compile {}", self.source.name);
        let program = Program::new(&self.text, &self.source.name, &self.headers).map_err(|f| f.error(doing()))?;
        // NVRTC keeps what it was asked for by name.
        let tables = (0..self.kernels.len()).map(|n| format!("&{}", table_name(n)));
        let kept = self.kernels.iter().map(|name| (*name).to_owned());
        for name in kept.chain(tables) {
            program.keep(&name).map_err(|f| f.error(doing()))?;
        }
        let compiled = program.compile(&self.options);
        let log = program.log();
        if let Err(failed) = compiled {
            return Err(match failed.0 {
                COMPILATION => self.refused(&log),
                _ => GpuError::Compile {
                    file: self.source.name.clone(),
                    log: format!("{}\n{log}", failed.error(doing())),
                },
            });
        }
        let image = program.image(self.is_ptx).map_err(|f| f.error(doing()))?;
        let kernels = self.kernels.iter().enumerate().map(|(number, name)| {
            let lowered = program.lowered(name).map_err(|f| f.error(doing()))?;
            Ok(CubinKernel {
                name: (*name).to_owned(),
                usage: log::usage(&log, &lowered),
                params: self.params(&image, number)?,
                lowered,
            })
        });
        Ok(Cubin {
            kernels: kernels.collect::<Result<_, GpuError>>()?,
            image,
            is_ptx: self.is_ptx,
            log: self.shown(&log),
            full_log: log,
        })
    }

    fn params(&self, image: &[u8], number: usize) -> Result<Option<Vec<ParamInfo>>, GpuError> {
        if self.is_ptx {
            return Ok(None);
        }
        let failed = |cause| GpuError::ModuleLoad {
            module: self.source.name.clone(),
            cause,
        };
        let table = elf::variable(image, &table_name(number))
            .ok_or_else(|| failed(format!("NVRTC's binary has no {}", table_name(number))))?;
        params::parse(table).map(Some).map_err(failed)
    }

    fn shown(&self, log: &str) -> String {
        log::for_user(log, |file| {
            file == TRAILER || crate::headers().iter().any(|(name, _)| *name == file)
        })
    }

    fn refused(&self, log: &str) -> GpuError {
        let log = self.shown(log);
        let generated = |line: &str| [TRAILER, NAME_MAP, "gpuvm/"].iter().any(|file| line.starts_with(file));
        missing_kernel(self.source, self.kernels, &log, generated).unwrap_or(GpuError::Compile {
            file: self.source.name.clone(),
            log,
        })
    }
}

/// The variable that describes kernel `number`.
pub(crate) fn table_name(number: usize) -> String {
    format!("gpuvm_kernel_table_{number}")
}

/// What is appended to the user's source: a table for each kernel, and the launch's state for a source that does not use the device
/// library, so that it can be asked for by name in all.
fn trailer(kernels: &[&str]) -> String {
    let mut text = format!("\n#line 1 \"{TRAILER}\"\n#include \"gpuvm/kernel_param.cuh\"\n");
    for (number, kernel) in kernels.iter().enumerate() {
        text.push_str(&format!("GPUVM_KERNEL_TABLE({number}, {kernel})\n"));
    }
    text
}

/// A cache entry: whether it is PTX, the lowered names, the image; lengths before texts.
fn encode(cubin: &Cubin) -> Vec<u8> {
    let mut bytes = vec![u8::from(cubin.is_ptx)];
    for kernel in &cubin.kernels {
        bytes.extend((kernel.lowered.len() as u32).to_le_bytes());
        bytes.extend(kernel.lowered.as_bytes());
    }
    bytes.extend(&cubin.image);
    bytes
}

/// The entry of a source with these kernels; none when it is no such thing, and is made anew.
fn decode(bytes: &[u8], kernels: &[&str]) -> Option<Cubin> {
    let (&is_ptx, mut rest) = bytes.split_first()?;
    let is_ptx = is_ptx != 0;
    let mut names = Vec::new();
    for _ in kernels {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        names.push(String::from_utf8(name.to_vec()).ok()?);
        rest = after;
    }
    let all = kernels.iter().zip(names).enumerate();
    let kernels = all.map(|(number, (name, lowered))| {
        let params = match is_ptx {
            true => None,
            false => Some(params::parse(elf::variable(rest, &table_name(number))?).ok()?),
        };
        Some(CubinKernel {
            name: (*name).to_owned(),
            lowered,
            params,
            usage: None,
        })
    });
    Some(Cubin {
        kernels: kernels.collect::<Option<_>>()?,
        image: rest.to_vec(),
        is_ptx,
        log: String::new(),
        full_log: String::new(),
    })
}
