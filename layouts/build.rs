//! Writes what `gpuvm_layouts::header` begins with: the constants and structures of this crate in C++, by cbindgen.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(cbindgen::Config::from_file(root.join("cbindgen.toml"))?);
    for module in modules(&root.join("src"))? {
        builder = builder.with_src(module);
    }
    let mut bytes = Vec::new();
    builder.generate()?.write(&mut bytes);
    // NVRTC has no <cstdint>: the header uses the compiler's own names for 32 and 64 bits.
    let text = String::from_utf8(bytes)?
        .replace("uint64_t", "unsigned long long")
        .replace("uint32_t", "unsigned int")
        .replace("uintptr_t", "unsigned long long");
    let is_wide = |line: &str| line.starts_with("constexpr const unsigned long long");
    let lines = text
        .lines()
        .map(|line| if is_wide(line) { widen(line) } else { line.to_owned() } + "\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    Ok(fs::write(out.join("layouts.h"), lines.collect::<String>())?)
}

/// The files of a folder, in the order of their names.
fn modules(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<std::io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Appends `ULL` to the numbers of a 64-bit constant: `1 << 43` is too wide for C's `int`.
fn widen(line: &str) -> String {
    let mut out = String::new();
    let mut in_word = false;
    let mut in_number = false;
    for c in line.chars().chain([' ']) {
        let word = c.is_ascii_alphanumeric() || c == '_';
        if in_number && !word {
            out.push_str("ULL");
        }
        in_number = word && (in_number || (!in_word && c.is_ascii_digit()));
        in_word = word;
        out.push(c);
    }
    out.trim_end().to_owned()
}
