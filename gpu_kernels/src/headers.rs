//! The device headers, embedded so that an installed program can compile kernels without its source tree. `gpuvm/layouts.h` is made of the
//! crate gpuvm-layouts.

use std::path::Path;
use std::sync::OnceLock;
use std::{fs, io};

/// Where the headers are: see `build.rs`, which chooses one of the two.
#[allow(dead_code)] // One build has one of them.
enum Headers {
    Embedded(&'static [(&'static str, &'static str)]),
    Folder(&'static str),
}

include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// Every header of the device library as (path for `#include`, text).
///
/// # Panics
/// In a build with `GPUVM_HEADERS=read`, such as that of `./test`, when the source tree is gone.
pub fn headers() -> &'static [(&'static str, &'static str)] {
    static ALL: OnceLock<Vec<(&'static str, &'static str)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = vec![("gpuvm/layouts.h", gpuvm_layouts::header())];
        match HEADERS {
            Headers::Embedded(files) => all.extend(files),
            Headers::Folder(root) => read(Path::new(root), "", &mut all).unwrap_or_else(|error| {
                panic!(
                    "this program was built to read the device library from {root} (GPUVM_HEADERS=read), which fails: {error}; build it \
                     without that variable"
                )
            }),
        }
        all.sort_unstable();
        all
    })
}

/// Writes the device library below `folder`, which is made where it is missing: nvcc, NVRTC and editors find it with `-I folder`. A
/// build script that does this for nvcc compiles with the headers that the program's runtime has.
///
/// # Errors
/// The system's, with the file that cannot be written.
pub fn write_headers(folder: impl AsRef<Path>) -> io::Result<()> {
    for (name, text) in headers() {
        let path = folder.as_ref().join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text)).map_err(|error| {
            let what = format!(
                "cannot write {}: {error}: name a folder that may be written",
                path.display()
            );
            io::Error::new(error.kind(), what)
        })?;
    }
    Ok(())
}

/// Adds the headers in `folder`, whose names begin with `prefix`.
fn read(folder: &Path, prefix: &str, all: &mut Vec<(&'static str, &'static str)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            read(&path, &format!("{name}/"), all)?;
        } else if [".h", ".cuh", ".inl", ".cpp"].iter().any(|end| name.ends_with(end)) {
            all.push((name.leak(), fs::read_to_string(&path)?.leak()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_written_as_includes_name_them_and_what_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        write_headers(folder.path().join("new/include")).unwrap();
        let text = fs::read_to_string(folder.path().join("new/include/gpuvm/detail/fault.cuh")).unwrap();
        let own = headers().iter().find(|(name, _)| *name == "gpuvm/detail/fault.cuh");
        assert_eq!(own.unwrap().1, text);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let told = write_headers(&file).unwrap_err().to_string();
        assert!(told.contains("file/gpuvm") && told.contains("may be written"), "{told}");
    }
}
