//! Kernels after they were rewritten: where each form of access goes, what is left alone, what is refused, and whether CUDA's assembler
//! takes them.

mod assembled;
mod bases;
mod calls;
mod evaluate;
mod fat_binaries;
mod given;
mod left;
mod look_up;
mod mistakes;
mod refused;
mod shared;

use std::path::{Path, PathBuf};

use gpuvm_ptx::{FunctionReport, TableLayout, rewrite};

/// The files of `tests/inputs`.
fn input(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs").join(name)
}

/// A kernel with registers of all kinds around some instructions.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_90\n.address_size 64\n.extern .func outside(.param .b64 a);\n.global .align 4 .b32 own[4];\n\
         .const .b32 fixed[4];\n.extern .shared .align 16 .b8 block[];\n.visible .entry kernel(.param .u64 given)\n{{\n\
         .reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<99>;\n.reg .b64 %rd<99>;\n.reg .f32 %f<9>;\n.reg .b128 %q<9>;\n\
         .local .align 8 .b8 stack[64];\n{body}\nret;\n}}\n"
    )
}

fn layout() -> TableLayout {
    TableLayout::new(1 << evaluate::SHIFT).expect("a page size")
}

/// The text and the report of some instructions after they were rewritten.
fn rewritten(body: &str, layout: &TableLayout) -> (String, FunctionReport) {
    let text = kernel(body);
    let rewritten = rewrite(text.as_bytes(), layout).unwrap_or_else(|error| panic!("{body}: {error}"));
    let [report] = <[FunctionReport; 1]>::try_from(rewritten.report.functions).expect("one kernel");
    (rewritten.text, report)
}
