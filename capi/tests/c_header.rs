//! The generated C header is the one in the repository.

use std::path::Path;

fn generate(crate_dir: &Path) -> String {
    let mut config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("cbindgen.toml");
    let version = env!("CARGO_PKG_VERSION");
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    let number = numbers.iter().fold(0, |number, part| number << 8 | part);
    config.after_includes = Some(format!(
        "\n// The version of this header: see gpuvm_version().\n#define GPUVM_VERSION {number}u\n#define GPUVM_VERSION_TEXT \"{version}\"\n\n\
         // The layout version that device code has to have been compiled with: gpuvm_device_code.\n#define GPUVM_LAYOUT_VERSION {}u",
        gpuvm_layouts::LAYOUT_VERSION
    ));
    config.trailer = Some(std::fs::read_to_string(crate_dir.join("tail.h")).expect("tail.h"));
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .expect("cbindgen reads the crate");
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_header_in_the_repository_is_the_generated_one() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_dir.join("include/gpuvm.h");
    let generated = generate(crate_dir);
    if std::env::var_os("GPUVM_BLESS").is_some() {
        std::fs::write(&path, &generated).expect("write the header");
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        present == generated,
        "capi/include/gpuvm.h is out of date: run GPUVM_BLESS=1 cargo test -p gpuvm-capi"
    );
}

#[test]
fn every_number_has_the_name_that_the_header_gives_it() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/gpuvm.h");
    let header = std::fs::read_to_string(header).expect("the header");
    let codes = header.lines().filter_map(|line| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        let number: i32 = number.parse().ok()?;
        name.starts_with("GPUVM_CODE_").then_some((name, number))
    });
    let codes: Vec<_> = codes.collect();
    assert!(codes.len() > 30, "{codes:?}");
    let name_of = |number: i32| {
        // SAFETY: the library's texts end with a zero and stay for good.
        unsafe { std::ffi::CStr::from_ptr(gpuvm_capi::gpuvm_code_name(number)) }
    };
    for (name, number) in &codes {
        assert_eq!(name_of(*number).to_str(), Ok(*name), "{number}");
    }
    for other in [-1, codes.len() as i32] {
        assert_eq!(name_of(other), c"GPUVM_CODE_UNKNOWN");
    }
}
