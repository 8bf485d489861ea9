//! The device library for programs that compile kernels themselves.

use std::{
    fs,
    io::{Error, Result},
    path::Path,
};

/// Every header of the device library: the path by which `#include` names it, and its text.
pub fn headers() -> &'static [(&'static str, &'static str)] {
    gpuvm_gpu::headers()
}

/// Writes the device library below `folder`, which is made where it is missing: nvcc, NVRTC and editors find it with `-I folder`. A
/// build script that does this for nvcc compiles with the headers that the program's runtime has.
///
/// # Errors
/// The system's, with the file that cannot be written.
pub fn write_headers(folder: impl AsRef<Path>) -> Result<()> {
    for (name, text) in headers() {
        let path = folder.as_ref().join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text)).map_err(|error| {
            let what = format!(
                "cannot write {}: {error}: name a folder that may be written",
                path.display()
            );
            Error::new(error.kind(), what)
        })?;
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
