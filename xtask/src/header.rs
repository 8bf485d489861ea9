//! The header of the C library, made of the crate gpuvm-capi.

use std::fs;

use crate::{Doing, TaskError, VERSION, root};

/// The text of `gpuvm.h`.
///
/// # Errors
/// [`TaskError`].
pub fn header() -> Result<String, TaskError> {
    let folder = root().join("capi");
    let failed = |output: String| TaskError::Failed {
        program: "cbindgen",
        output,
    };
    let mut config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).map_err(failed)?;
    let numbers = VERSION.split('.').map(|part| part.parse().unwrap_or(0));
    let number = numbers.fold(0, |number: u32, part: u32| number << 8 | part);
    config.after_includes = Some(format!(
        "\n// The version of this header: see gpuvm_version().\n#define GPUVM_VERSION {number}u\n#define GPUVM_VERSION_TEXT \"{VERSION}\"\n\n\
         // The layout version that device code has to have been compiled with: gpuvm_device_code.\n#define GPUVM_LAYOUT_VERSION {}u",
        gpuvm_layouts::LAYOUT_VERSION
    ));
    let tail = folder.join("tail.h");
    config.trailer = Some(fs::read_to_string(&tail).doing("read", &tail)?);
    let bindings = cbindgen::Builder::new()
        .with_crate(&folder)
        .with_config(config)
        .generate();
    let mut bytes = Vec::new();
    bindings.map_err(|error| failed(error.to_string()))?.write(&mut bytes);
    String::from_utf8(bytes).map_err(|error| failed(error.to_string()))
}
