//! What ptxas made of the kernels, as nvdisasm shows it: no function uses a memory descriptor that it does not load, and none
//! calls itself.
//!
//! From compute capability 9.0 on, an access to global memory names a descriptor, which lies in the constants at 0x208 and which
//! each function that is not inlined loads for itself into a pair of registers. ptxas 13.0 has left that load out, together with
//! a load of data whose value nothing used: what the registers held then was an illegal instruction on an H200, or by
//! luck was not.
//!
//! The stack of a kernel whose functions call themselves is not known when it is compiled. It gets the context's limit, 1 KiB, and what lies
//! beyond was an illegal address on an H200.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::Command;

use gpuvm_gpu::cuda::{Architecture, compile_to_cubin};
use gpuvm_gpu::{CompileOptions, Source};

use super::{Form, Unit, chain, kernels_of, nvrtc, options, text};

/// The disassembler that `./test` brings, by `GPUVM_NVDISASM`.
pub fn disassembler() -> Option<String> {
    let there = std::env::var("GPUVM_NVDISASM").ok();
    assert!(
        there.is_some() || std::env::var_os("GPUVM_REQUIRE_NVRTC").is_none(),
        "GPUVM_NVDISASM names no nvdisasm"
    );
    there
}

/// What is wrong with the functions of a cubin, a line each.
pub fn faults(nvdisasm: &str, cubin: &[u8]) -> Vec<String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(cubin).expect("a temporary file");
    let out = Command::new(nvdisasm).arg("-c").arg(file.path()).output();
    let out = out.unwrap_or_else(|error| panic!("{nvdisasm}: {error}"));
    assert!(
        out.status.success(),
        "nvdisasm: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let functions = read(&String::from_utf8(out.stdout).expect("a listing"));
    let lengths = functions.values().map(|function| function.instructions).sum::<u32>();
    assert!(lengths > 10, "the listing looks different now");
    wrong(&functions)
}

fn wrong(functions: &BTreeMap<String, Function>) -> Vec<String> {
    let unloaded = functions
        .iter()
        .filter(|(_, function)| !function.used.is_subset(&function.written))
        .map(|(name, _)| format!("{name} uses a memory descriptor that it does not load"));
    let recursive = functions
        .keys()
        .filter(|name| reached(functions, name).contains(name.as_str()))
        .map(|name| format!("{name} calls itself"));
    unloaded.chain(recursive).collect()
}

/// The functions that `name` calls, and those that they call.
fn reached<'a>(functions: &'a BTreeMap<String, Function>, name: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = functions[name].calls.iter().map(String::as_str).collect();
    while let Some(called) = next.pop() {
        if found.insert(called) {
            next.extend(
                functions
                    .get(called)
                    .into_iter()
                    .flat_map(|function| &function.calls)
                    .map(String::as_str),
            );
        }
    }
    found
}

#[derive(Default)]
struct Function {
    /// Registers that were moved to uniform ones by which an access then named its descriptor. Others hold masks of lanes, or
    /// addresses of bulk copies, which a caller may have passed.
    used: BTreeSet<u32>,
    /// What was moved last to a uniform register.
    moved: BTreeMap<u32, u32>,
    written: BTreeSet<u32>,
    calls: BTreeSet<String>,
    instructions: u32,
}

/// The functions of a listing: a label that begins with `.text.` or `$`, then lines such as `/*0010*/  @P0 LDC.64 R2, c[0x0][0x208] ;`.
fn read(listing: &str) -> BTreeMap<String, Function> {
    let mut functions = BTreeMap::<String, Function>::new();
    let mut current = None;
    for line in listing.lines() {
        if let Some(name) = line
            .strip_suffix(':')
            .filter(|name| name.starts_with(['$', '.']) && !name.starts_with(".L"))
        {
            current = Some(name.to_owned());
            continue;
        }
        let Some(function) = &current else { continue };
        let Some((_, instruction)) = line
            .trim_start()
            .strip_prefix("/*")
            .and_then(|rest| rest.split_once("*/"))
        else {
            continue;
        };
        let instruction = instruction.trim().trim_end_matches(';');
        let instruction = match instruction.starts_with('@') {
            true => instruction.split_once(' ').map_or("", |(_, rest)| rest.trim_start()),
            false => instruction,
        };
        let Some((operation, operands)) = instruction.split_once(' ') else {
            continue;
        };
        note(functions.entry(function.clone()).or_default(), operation, operands);
    }
    functions
}

fn note(function: &mut Function, operation: &str, operands: &str) {
    function.instructions += 1;
    if operation.starts_with("CALL") {
        let called = operands.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
        function.calls.extend(called.map(|(name, _)| name.to_owned()));
        return;
    }
    for named in operands.split("desc[UR").skip(1) {
        let pair = named.split(']').next().and_then(|number| number.parse::<u32>().ok());
        let parts = pair.into_iter().flat_map(|first| [first, first + 1]);
        let from: Vec<u32> = parts.filter_map(|part| function.moved.get(&part).copied()).collect();
        function.used.extend(from);
    }
    let is_predicate =
        |operand: &&str| operand.starts_with('P') || operand.starts_with("UP") || operand.starts_with('!');
    // What is written comes first, perhaps after predicates.
    let mut operands = operands.split(',').map(str::trim).skip_while(is_predicate);
    if operation.starts_with("R2UR") {
        let (to, from) = (operands.next().and_then(uniform), operands.next().and_then(register));
        function.moved.extend(to.zip(from));
        return;
    }
    if operation.starts_with("ST") || operation.starts_with("RED.") {
        return;
    }
    let Some(first) = operands.next() else {
        return;
    };
    let count = match operation {
        _ if operation.contains(".128") => 4,
        _ if operation.contains("64") || operation.contains("WIDE") || operation == "CS2R" => 2,
        _ => 1,
    };
    if let Some(first) = register(first) {
        function.written.extend(first..first + count);
    } else if let Some(first) = uniform(first) {
        function
            .moved
            .retain(|number, _| !(first..first + count).contains(number));
    }
}

/// The number of `UR12`.
fn uniform(operand: &str) -> Option<u32> {
    operand.strip_prefix("UR")?.split('.').next()?.parse().ok()
}

/// The number of `R12`, `R12.reuse`, `R12.64`.
fn register(operand: &str) -> Option<u32> {
    let digits = operand.strip_prefix('R')?;
    digits.split('.').next()?.parse().ok()
}

#[test]
fn a_descriptor_that_is_not_loaded_and_a_recursion_are_found() {
    let loads = ".text.k:\n  /*0000*/  LDC.64 R2, c[0x0][0x208] ;\n  /*0010*/  R2UR UR4, R2.reuse ;\n  /*0020*/  R2UR UR5, R3 ;\n  /*0028*/  LDG.E R0, desc[UR4][R8.64] ;\n";
    let lacks = "$k$f:\n  /*0030*/  @!P0 IMAD.MOV.U32 R2, RZ, RZ, R9 ;\n  /*0040*/  R2UR UR5, R3 ;\n  /*0048*/  STG.E desc[UR4][R8.64], R2 ;\n";
    // An address that the caller has passed is moved in the same way.
    let passed = "$k$e:\n  /*0044*/  R2UR UR5, R53 ;\n  /*0046*/  UIADD3.64 UR4, UR4, -UR6, URZ ;\n  /*0048*/  LDG.E R0, desc[UR4][R8.64] ;\n";
    let turns = "$k$g:\n  /*0050*/  CALL.REL.NOINC `($k$h) ;\n$k$h:\n  /*0060*/  @P0 CALL.REL.NOINC `($k$g) ;\n";
    let found = wrong(&read(&format!("{loads}{lacks}{passed}{turns}")));
    let names: Vec<&str> = found.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["$k$f", "$k$g", "$k$h"], "{found:?}");
    let (true, Some(nvdisasm)) = (nvrtc(), disassembler()) else {
        return;
    };
    let compile = |source: Source, name: &str, options: &CompileOptions| {
        compile_to_cubin(&source, &[name], options, Architecture(90))
            .unwrap_or_else(|error| panic!("{}", chain(&error)))
    };
    // What keeps ptxas 13.0 from the first: a function of its own, and a look whose value is used.
    let header = "gpuvm/detail/fault.cuh";
    let headers = gpuvm_gpu::headers();
    let (_, whole) = headers.iter().find(|(name, _)| *name == header).expect("a header");
    let mut whole = (*whole).to_owned();
    for (from, to) in [
        ("GPUVM_NOINLINE void count_lanes(", "GPUVM_DEVICE void count_lanes("),
        (
            "if (!leads && outcome == kRoundHeld && state_of(ld_acquire_gpu(miss->word())) == kError) outcome = kRoundFailed;",
            "if (!leads && outcome == kRoundHeld) ld_acquire_gpu(miss->word());",
        ),
    ] {
        assert_eq!(whole.matches(from).count(), 1, "`{from}` in {header}");
        whole = whole.replacen(from, to, 1);
    }
    let unit = Unit {
        path: "tests/kernels/basic.cu".to_owned(),
        defines: String::new(),
        form: Form::Queued,
    };
    let mut planted = options(&unit);
    planted.headers.push((header.to_owned(), whole));
    let cubin = compile(
        Source::new(unit.path.as_str(), kernels_of(&text(&unit.path), &["sum"])),
        "sum",
        &planted,
    );
    let found = faults(&nvdisasm, &cubin.image);
    assert!(found.iter().any(|line| line.contains("acquire_round")), "{found:?}");

    let deep = "__device__ __noinline__ int f(int n, int* p) { return n ? f(n / 2, p) * f(n / 3, p) + p[n] : 1; }\n\
                __global__ void k(int* p) { *p = f(*p, p); }";
    let cubin = compile(Source::new("k.cu", deep), "k", &CompileOptions::default());
    let found = faults(&nvdisasm, &cubin.image);
    assert!(found.iter().any(|line| line.contains("calls itself")), "{found:?}");
}
