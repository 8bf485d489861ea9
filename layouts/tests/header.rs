//! The generated C header is the one in the repository.

use std::{fmt::Write, path::Path};

fn generate(crate_dir: &Path) -> String {
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new()
        .with_crate(crate_dir)
        .with_config(config)
        .generate()
        .expect("cbindgen reads the crate");
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    let text = String::from_utf8(bytes).expect("UTF-8");
    // NVRTC has no <cstdint>: the header uses the compiler's own names for 32 and 64 bits.
    let mut text = text
        .replace("uint64_t", "unsigned long long")
        .replace("uint32_t", "unsigned int")
        .replace("uintptr_t", "unsigned long long");
    text = text.lines().map(|line| if line.starts_with("constexpr const unsigned long long") { widen(line) } else { line.to_owned() } + "\n").collect();
    writeln!(text, "\nnamespace gpuvm {{\nnamespace layout {{").expect("write");
    for fact in gpuvm_layouts::layout_facts() {
        let name = fact.name;
        writeln!(
            text,
            "static_assert(sizeof({name}) == {}, \"size of {name}\");",
            fact.size
        )
        .expect("write");
    }
    // NVRTC has nvcc's front end, and nvcc does check them.
    text.push_str("#if !defined(__CUDACC_RTC__)  // NVRTC has no offsetof\n");
    for fact in gpuvm_layouts::layout_facts() {
        let name = fact.name;
        for field in fact.fields {
            writeln!(
                text,
                "static_assert(__builtin_offsetof({name}, {0}) == {1}, \"offset of {name}::{0}\");",
                field.name, field.offset
            )
            .expect("write");
        }
    }
    writeln!(text, "#endif\n}}  // namespace layout\n}}  // namespace gpuvm").expect("write");
    text
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

#[test]
fn the_header_in_the_repository_is_the_generated_one() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_dir.join("../gpu_kernels/include/gpuvm/layouts.h");
    let generated = generate(crate_dir);
    if std::env::var_os("GPUVM_BLESS").is_some() {
        std::fs::write(&path, &generated).expect("write the header");
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        present == generated,
        "gpu_kernels/include/gpuvm/layouts.h is out of date: run GPUVM_BLESS=1 cargo test -p gpuvm-layouts"
    );
}
