//! CUDA's assembler takes what the rewriter wrote, and says how many registers each kernel has before and after.
//!
//! `./test` brings nvcc, which ptxas comes with (no GPU and no driver are needed), and names it in `GPUVM_NVCC`. Nothing is run: that
//! needs a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuvm_ptx::{QUIET, rewrite};

use crate::calls::called;
use crate::{given, input, kernel, layout, look_up, rewritten};

/// nvcc and ptxas beside it.
fn tools() -> Option<(PathBuf, PathBuf)> {
    let Some(nvcc) = std::env::var_os("GPUVM_NVCC").map(PathBuf::from) else {
        eprintln!("SKIPPED: GPUVM_NVCC does not name nvcc; `./test` brings it");
        return None;
    };
    let ptxas = nvcc.with_file_name("ptxas");
    assert!(ptxas.exists(), "{} has no ptxas beside it", nvcc.display());
    Some((nvcc, ptxas))
}

/// A folder of its own, which is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}

/// Registers of each kernel: `Compiling entry function 'NAME'`, then `Used N registers`.
fn assemble(ptxas: &Path, folder: &Path, text: &str) -> Vec<(String, u32)> {
    let target = text.split_once(".target ").expect("a target").1;
    let target: String = target
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    let (file, cubin) = (folder.join("a.ptx"), folder.join("a.cubin"));
    std::fs::write(&file, text).expect("written");
    let mut command = Command::new(ptxas);
    // Functions of other modules are linked later.
    command
        .arg(format!("-arch={target}"))
        .args(["-c", "-v", "-o"])
        .arg(cubin)
        .arg(file);
    let said = said(&mut command);
    let mut found = Vec::new();
    let mut name = None;
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().map(str::to_owned);
        } else if let Some((_, rest)) = line.split_once("Used ") {
            let number = rest.split(' ').next().and_then(|number| number.parse().ok());
            found.extend(name.take().zip(number));
        }
    }
    found
}

/// Assembles a text before and after, and prints the registers.
fn compare(ptxas: &Path, folder: &Path, name: &str, text: &str) {
    let after = rewrite(text.as_bytes(), &layout()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let touching = rewrite(text.as_bytes(), &layout().touches(true)).expect("as before");
    let [before, after, touching] = [text, &after.text, &touching.text].map(|text| assemble(ptxas, folder, text));
    assert_eq!((before.len(), before.len()), (after.len(), touching.len()));
    let both = rewrite(text.as_bytes(), &layout().touches(true).both_forms(true)).expect("as before");
    let both = assemble(ptxas, folder, &both.text);
    // What it calls is linked later.
    let calling = assemble(ptxas, folder, &called(text));
    assert_eq!(before.len(), calling.len());
    let of = |all: &[(String, u32)], kernel: &str| {
        let found = all.iter().find(|(found, _)| found == kernel);
        found.map(|(_, registers)| *registers)
    };
    for (kernel, registers) in &before {
        let [looked_up, touches] = [&after, &touching].map(|all| of(all, kernel).unwrap_or(0));
        // What has no loads has one form.
        let quiet = of(&both, &format!("{QUIET}{kernel}")).unwrap_or(touches);
        println!(
            "{name:<22} {kernel:<18} {registers:>3} registers, looked up {looked_up:>3}, with touches {touches:>3}, second form {quiet:>3}"
        );
    }
}

#[test]
fn compiled_kernels_assemble() {
    let Some((_, ptxas)) = tools() else { return };
    let folder = Scratch::new("compiled");
    for name in given::FILES {
        let text = std::fs::read_to_string(input(name)).expect("a file of the repository");
        compare(&ptxas, &folder.0, name, &text);
    }
}

#[test]
fn kernels_assemble_for_each_generation() {
    let Some((nvcc, ptxas)) = tools() else { return };
    let folder = Scratch::new("generations");
    let out = folder.0.join("plain.ptx");
    for generation in [75, 80, 90, 100] {
        let mut command = Command::new(&nvcc);
        command.arg(format!("-arch=compute_{generation}")).args(["-ptx", "-o"]);
        said(command.arg(&out).arg(input("plain.cu")));
        let text = std::fs::read_to_string(&out).expect("nvcc wrote it");
        compare(&ptxas, &folder.0, &format!("plain.cu sm_{generation}"), &text);
    }
    // Lines, and the whole of debug information.
    for option in ["-lineinfo", "-G"] {
        let mut command = Command::new(&nvcc);
        command.args(["-arch=compute_90", option, "-ptx", "-o"]);
        said(command.arg(&out).arg(input("plain.cu")));
        let text = std::fs::read_to_string(&out).expect("nvcc wrote it");
        let layout = layout().touches(true).both_forms(true);
        let after = rewrite(text.as_bytes(), &layout).unwrap_or_else(|error| panic!("{option}: {error}"));
        assert!(!assemble(&ptxas, &folder.0, &after.text).is_empty());
    }
}

/// Each form of [`look_up`], so that they are what PTX has.
#[test]
fn every_form_assembles() {
    let Some((_, ptxas)) = tools() else { return };
    let folder = Scratch::new("forms");
    let mut all = String::new();
    for (form, _) in look_up::FORMS {
        for guard in ["", "@%p1 ", "@!%p1 "] {
            all += &format!("{guard}{}\n", form.replace("ADDRESS", "[%rd1+-512]"));
        }
    }
    all += ".pragma \"used_bytes_mask 0xfff\";\nld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];\n";
    // Vectors of 32 bytes came with this generation.
    let newest = |text: &str| text.replace("sm_90", "sm_100").replace(".version 8.7", ".version 9.0");
    assemble(&ptxas, &folder.0, &newest(&kernel(&all)));
    for layout in [layout(), layout().touches(true)] {
        assemble(&ptxas, &folder.0, &newest(&rewritten(&all, &layout).0));
    }
    assemble(&ptxas, &folder.0, &called(&newest(&kernel(&all))));
}

/// The instructions of a look-up are in the oldest PTX that is read.
#[test]
fn the_oldest_version_assembles() {
    let Some((_, ptxas)) = tools() else { return };
    let folder = Scratch::new("oldest");
    let text = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 a) { .reg .b64 %r; .reg .b32 %v;\n\
                ld.param.u64 %r, [a]; ld.global.u32 %v, [%r]; st.u32 [%r+4], %v; red.global.add.u32 [%r+8], %v; ret; }";
    compare(&ptxas, &folder.0, "PTX 6.3", text);
}
