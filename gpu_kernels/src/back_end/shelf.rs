//! Kernel modules that were compiled before, on a machine with a compiler, for machines that have none.
//!
//! A cache belongs to one machine: its keys name the compiler. The keys here name what is compiled alone, and what for, so that the thread that
//! looks for a module needs no compiler to find it.

use std::path::PathBuf;

use super::{Cache, Key};
use crate::{CompileOptions, GpuError, Source};

/// A folder of such modules.
#[derive(Clone, Debug)]
pub struct Shelf {
    /// The folder.
    pub dir: PathBuf,
    /// Whether what is compiled is put there, rather than looked for.
    pub fill: bool,
}

/// What a module is compiled of.
#[derive(Clone, Copy, Debug)]
pub struct Shelved<'a> {
    /// The source.
    pub source: &'a Source,
    /// Its kernels.
    pub kernels: &'a [&'a str],
    /// How it is compiled.
    pub options: &'a CompileOptions,
    /// The headers that the compiler has besides those of `options`, with their texts.
    pub headers: &'a [(&'static str, &'static str)],
}

impl Shelf {
    /// The bytes of a module for the first of `targets` that the shelf has it for: kinds of GPU, with all else that a compiled module depends on.
    ///
    /// # Errors
    /// [`GpuError::Io`] where the folder cannot be read, or others may write to it.
    pub fn find(
        &self,
        module: &Shelved<'_>,
        targets: impl IntoIterator<Item = String>,
    ) -> Result<Option<Vec<u8>>, GpuError> {
        if self.fill || !module.is_of_texts() {
            return Ok(None);
        }
        // A folder that is not there is none that was filled: none is made.
        let found = std::fs::read_dir(&self.dir);
        found.map_err(|e| GpuError::io("look for kernels that were compiled before in", Some(&self.dir), e))?;
        let (shelf, key) = (Cache::open(Some(self.dir.clone()))?, module.key());
        let mut found = targets.into_iter().map(|target| shelf.bytes(&key_for(&key, &target)));
        Ok(found.find_map(|bytes| bytes))
    }

    /// Puts a module that was compiled for a target on the shelf, if that is asked for and the module is of the kind that it holds.
    ///
    /// # Errors
    /// [`GpuError::Io`].
    pub fn store(&self, module: &Shelved<'_>, target: &str, bytes: &[u8]) -> Result<(), GpuError> {
        match self.fill && module.is_of_texts() {
            true => Cache::open(Some(self.dir.clone()))?.store_bytes(&key_for(&module.key(), target), bytes),
            false => Ok(()),
        }
    }
}

fn key_for(module: &Key, target: &str) -> String {
    let mut key = module.clone();
    key.add("target").add(target);
    key.finish()
}

impl Shelved<'_> {
    /// Whether its text is known without a look at folders of the machine, and it is optimised.
    fn is_of_texts(&self) -> bool {
        self.options.include_dirs.is_empty() && !self.options.debug
    }

    /// Of all but the target.
    fn key(&self) -> Key {
        let mut key = Key::default();
        key.add(env!("CARGO_PKG_VERSION"))
            .add(&self.source.name)
            .add(&self.source.text);
        for kernel in self.kernels {
            key.add(kernel);
        }
        key.add("defines");
        for (name, value) in &self.options.defines {
            key.add(name).add(value.as_deref().unwrap_or("1"));
        }
        key.add("headers");
        for (name, content) in self.headers {
            key.add(name).add(content);
        }
        for (name, content) in &self.options.headers {
            key.add(name).add(content);
        }
        key
    }
}
