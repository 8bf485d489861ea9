//! The structures for C++.

use std::fmt::Write;
use std::sync::OnceLock;

/// The text of `gpuvm/layouts.h`: all structures and constants, then the size of each structure and the offset of each field as
/// `static_assert`. Compilers are nvcc, NVRTC, g++ and clang++, of C++17.
pub fn header() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| include_str!(concat!(env!("OUT_DIR"), "/layouts.h")).to_owned() + &asserts())
}

fn asserts() -> String {
    let mut text = String::from("\nnamespace gpuvm {\nnamespace layout {\n");
    for fact in crate::layout_facts() {
        let name = fact.name;
        let _ = writeln!(
            text,
            "static_assert(sizeof({name}) == {}, \"size of {name}\");",
            fact.size
        );
    }
    // NVRTC has nvcc's front end, and nvcc does check them.
    text += "#if !defined(__CUDACC_RTC__)  // NVRTC has no offsetof\n";
    for fact in crate::layout_facts() {
        let name = fact.name;
        for field in fact.fields {
            let _ = writeln!(
                text,
                "static_assert(__builtin_offsetof({name}, {0}) == {1}, \"offset of {name}::{0}\");",
                field.name, field.offset
            );
        }
    }
    text + "#endif\n}  // namespace layout\n}  // namespace gpuvm\n"
}
