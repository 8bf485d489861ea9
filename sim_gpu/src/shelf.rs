//! Kernel modules that were compiled before, on a machine with a compiler, for machines that have none.
//!
//! A cache belongs to one machine: its keys name the compiler. The keys here name what is compiled alone, so that whoever looks for a
//! module needs no compiler to find it.

use std::path::PathBuf;

use gpuvm_gpu::back_end::{Cache, Key};
use gpuvm_gpu::{CompileOptions, GpuError, Source};
use tempfile::TempPath;

use super::abi::{COLOUR_BYTES, LANE_OFFSET, STACK_BYTES};
use super::compile::headers;

/// A folder of such modules.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    pub dir: PathBuf,
    /// Whether what is compiled is put there, rather than looked for.
    pub fill: bool,
}

impl Shelf {
    /// A private copy of the module, in `cache`, if it is on the shelf.
    pub fn find(
        &self,
        cache: &Cache,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Option<TempPath>, GpuError> {
        if self.fill || !holds(options) {
            return Ok(None);
        }
        let found = self.open()?.bytes(&key(source, kernels, options));
        found.map(|object| cache.copy(&object)).transpose()
    }

    /// Puts a compiled module on the shelf, if that is asked for and the module is of the kind that it holds.
    pub fn store(
        &self,
        object: &TempPath,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<(), GpuError> {
        if !self.fill || !holds(options) {
            return Ok(());
        }
        let bytes = std::fs::read(object).map_err(|e| GpuError::io("read a compiled kernel at", Some(object), e))?;
        self.open()?.store_bytes(&key(source, kernels, options), &bytes)
    }

    fn open(&self) -> Result<Cache, GpuError> {
        if !self.fill {
            // A folder that is not there is none that was filled: none is made.
            let found = std::fs::read_dir(&self.dir);
            found.map_err(|e| GpuError::io("look for kernels that were compiled before in", Some(&self.dir), e))?;
        }
        Cache::open(Some(self.dir.clone()))
    }
}

/// Modules whose text is known without a look at folders of the machine, optimised.
fn holds(options: &CompileOptions) -> bool {
    options.include_dirs.is_empty() && !options.debug
}

fn key(source: &Source, kernels: &[&str], options: &CompileOptions) -> String {
    let mut key = Key::default();
    key.add(env!("CARGO_PKG_VERSION"))
        .add(&format!("{STACK_BYTES} {COLOUR_BYTES} {LANE_OFFSET}"))
        .add(&source.name)
        .add(&source.text);
    for kernel in kernels {
        key.add(kernel);
    }
    key.add("defines");
    for (name, value) in &options.defines {
        key.add(name).add(value.as_deref().unwrap_or("1"));
    }
    key.add("headers");
    for (name, content) in headers() {
        key.add(name).add(content);
    }
    for (name, content) in &options.headers {
        key.add(name).add(content);
    }
    key.finish()
}
