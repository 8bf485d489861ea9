//! Lists the device headers under `include/` so that the crate can embed them. With `GPUVM_HEADERS=read` it only notes their folder, from
//! which the program reads them when it runs: after a change of a header nothing is to be built. `./test` builds so.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("include");
    println!("cargo::rerun-if-env-changed=GPUVM_HEADERS");
    let text = match env::var("GPUVM_HEADERS").as_deref() {
        Ok("read") => {
            println!("cargo::rerun-if-changed=build.rs");
            format!(
                "static HEADERS: Headers = Headers::Folder({:?});\n",
                root.to_string_lossy()
            )
        }
        Err(env::VarError::NotPresent) => embedded(&root)?,
        _ => return Err(io::Error::other("GPUVM_HEADERS may be `read`, or not set")),
    };
    fs::write(
        PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("headers.rs"),
        text,
    )
}

fn embedded(root: &Path) -> io::Result<String> {
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut text = String::from("static HEADERS: Headers = Headers::Embedded(&[\n");
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
        let name = file.strip_prefix(root).map_err(io::Error::other)?;
        let _ = writeln!(
            text,
            "    ({:?}, include_str!({:?})),",
            name.to_string_lossy(),
            file.to_string_lossy()
        );
    }
    text.push_str("]);\n");
    Ok(text)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let kind = path.extension().and_then(|e| e.to_str());
        if path.is_dir() {
            collect(&path, files)?;
        } else if matches!(kind, Some("h" | "cuh" | "inl" | "cpp")) {
            files.push(path);
        }
    }
    Ok(())
}
