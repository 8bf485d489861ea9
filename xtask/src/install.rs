//! Installs the C library.

use std::{fs, io, path::Path};

use crate::{Doing, TaskError, VERSION, link, root};

/// Installs the C library below `prefix`: `lib/libgpuvm.so`, which is linked from the static library `archive` of gpuvm-capi, the headers, and
/// what CMake and pkg-config read. All of it may be moved together afterwards.
///
/// # Errors
/// [`TaskError`].
pub fn install(archive: &Path, prefix: &Path) -> Result<(), TaskError> {
    let root = root();
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    make_dir(&lib)?;
    let named = lib.join(format!("libgpuvm.so.{VERSION}"));
    link::shared_library(archive, &root.join("capi/gpuvm.map"), &named)?;
    let soname = link::soname();
    link_to(&lib.join(&soname), &format!("libgpuvm.so.{VERSION}"))?;
    link_to(&lib.join("libgpuvm.so"), &soname)?;

    copy_all(&root.join("gpu_kernels/include"), &include)?;
    let layouts = include.join("gpuvm/layouts.h");
    fs::write(&layouts, gpuvm_layouts::header()).doing("write", &layouts)?;
    copy_all(&root.join("capi/include"), &include)?;

    let templates = root.join("capi/install");
    let cmake = lib.join("cmake/gpuvm");
    for (name, folder) in [
        ("gpuvmConfig.cmake", &cmake),
        ("gpuvmConfigVersion.cmake", &cmake),
        ("gpuvm.pc", &lib.join("pkgconfig")),
    ] {
        make_dir(folder)?;
        let template = templates.join(format!("{name}.in"));
        let text = fs::read_to_string(&template).doing("read", &template)?;
        let text = text.replace("@VERSION@", VERSION).replace("@SONAME@", &soname);
        let to = folder.join(name);
        fs::write(&to, text).doing("write", &to)?;
    }
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), TaskError> {
    fs::create_dir_all(path).doing("make", path)
}

/// A link in the place of what was there.
fn link_to(path: &Path, target: &str) -> Result<(), TaskError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).doing("replace", path),
        _ => std::os::unix::fs::symlink(target, path).doing("link", path),
    }
}

/// Copies all files of a folder and of those in it.
fn copy_all(from: &Path, to: &Path) -> Result<(), TaskError> {
    make_dir(to)?;
    for entry in fs::read_dir(from).doing("read", from)? {
        let entry = entry.doing("read", from)?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_all(&path, &place)?,
            false => drop(fs::copy(&path, &place).doing("copy", &path)?),
        }
    }
    Ok(())
}
