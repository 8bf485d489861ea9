//! The other form of a rewritten text, for arrays whose pages come by faults: an access calls functions of the device library
//! (`gpuvm/calls.cuh`), which pin the page and say where it is, and then give the pin back. The instruction itself stays, with another
//! address, so that each type, vector, operation and order is what it was.

use std::fmt::{Result as Written, Write as _};

use crate::access::{Access, CopySource, Left, bytes};
use crate::error::PtxError;
use crate::look_up::{address, inside};
use crate::model::{Address, Function, Instruction, Item, Module, Statement};
use crate::report::{Changed, FunctionReport, LeftAlone, Report};
use crate::rewrite::{Decided, Decision, Output, Rewritten, before_pragmas, functions, refuse_own_names};
use crate::table::TableLayout;
use crate::tokens::text_of;

/// The parameter of each kernel behind its own: what the launch's arrays are, by value.
pub const LAUNCH: &str = "gpuvm_launch";
/// The variable in shared memory by which functions find it: it has the parameter's address.
const OF_BLOCK: &str = "gpuvm_launch_of_block";
/// In what a function is told of an access, above its bytes: as `calls.cuh` says.
const WRITES: u32 = 1 << 8;
/// The functions. What they give back is a place, or one of the three numbers.
const DECLARED: &str = "
.extern .func (.param .b64 gpuvm_place) gpuvm_call_first(.param .b64 gpuvm_call, .param .b64 gpuvm_launch, .param .b64 gpuvm_address, .param .b32 gpuvm_how);
.extern .func (.param .b64 gpuvm_place) gpuvm_call_next(.param .b64 gpuvm_call);";
const DONE: u32 = 1;
const FAILED: u32 = 2;

/// The registers and the memory of a function. An access needs this many bytes: `calls.cuh` says it, too.
const OF_FUNCTION: &str = "
.reg .b64 %gpuvm_c, %gpuvm_v; .local .align 16 .b8 gpuvm_call[320];
\tmov.b64 %gpuvm_c, gpuvm_call; cvta.local.u64 %gpuvm_c, %gpuvm_c;";
/// The registers of an access.
const BLOCK: &str =
    "{ .reg .b64 %gpuvm_a, %gpuvm_e; .reg .b32 %gpuvm_i, %gpuvm_h, %gpuvm_w, %gpuvm_n; .reg .pred %gpuvm_p;\n";

/// Has each access to global memory in a module call for its page, where its address is in the window.
///
/// Kernels get one parameter more, of `launch_bytes` bytes. The functions that are called are declared: [`with_library`] puts them in.
/// Copies to shared memory are complete behind their instruction, and hints about paged memory are dropped.
///
/// # Errors
///
/// As [`rewrite`](crate::rewrite).
pub fn rewrite_to_calls(ptx: &[u8], layout: &TableLayout, launch_bytes: u32) -> Result<Rewritten, PtxError> {
    let module = Module::parse(text_of(ptx)?)?;
    refuse_own_names(&module)?;
    let examined = functions(&module)?;
    let is_called = |decided: &Decided<'_, '_>| matches!(chosen(decided), Chosen::Called(_));
    let in_functions = examined
        .iter()
        .any(|(function, _, accesses, _)| !function.is_entry && accesses.iter().any(is_called));
    let mut out = Output::new(&module);
    out.copy_until(module.header_end);
    out.text.push_str(&layout.declaration());
    out.text.push_str(DECLARED);
    if in_functions {
        let _ = write!(out.text, "\n.shared .align 8 .b64 {OF_BLOCK};");
    }
    let mut writer = Writer {
        out,
        launch_bytes,
        in_functions,
        labels: 0,
    };
    let mut report = Report::default();
    let mut examined = examined.iter().peekable();
    for function in module.functions() {
        let known = examined.next_if(|(known, ..)| std::ptr::eq(*known, function));
        if function.is_entry {
            writer.parameter(function);
        }
        if let Some((_, body, accesses, _)) = known {
            // Writing to a string does not fail.
            report.functions.extend(writer.function(function, body, accesses));
        }
    }
    writer.out.copy_until(module.text.len());
    let text = writer.out.text;
    Ok(Rewritten { text, report })
}

/// What is done with an access.
enum Chosen<'d, 'i, 'a> {
    /// It calls, for this many bytes.
    Called(Called<'d, 'i, 'a>),
    Left(Left, &'i Instruction<'a>),
}

struct Called<'d, 'i, 'a> {
    access: Access,
    instruction: &'i Instruction<'a>,
    address: &'i Address<'a>,
    bytes: u32,
    source: &'d CopySource<'a>,
}

fn chosen<'d, 'i, 'a>(decided: &'d Decided<'i, 'a>) -> Chosen<'d, 'i, 'a> {
    match decided.decision {
        Decision::Leave(why, instruction) => Chosen::Left(why, instruction),
        Decision::LookUp(Access::Store | Access::Reduction, instruction, _) if instruction.has("async") => {
            Chosen::Left(Left::Asynchronous, instruction)
        }
        Decision::LookUp(access, instruction, address) => {
            let bytes = match access {
                Access::Prefetch | Access::Discard => Some(0),
                _ => bytes(instruction, access),
            };
            match bytes {
                Some(bytes) => Chosen::Called(Called {
                    access,
                    instruction,
                    address,
                    bytes,
                    source: &decided.source,
                }),
                None => Chosen::Left(Left::Unknown, instruction),
            }
        }
    }
}

struct Writer<'o, 'a> {
    out: Output<'o, 'a>,
    launch_bytes: u32,
    in_functions: bool,
    labels: u32,
}

impl Writer<'_, '_> {
    /// Gives a kernel one parameter more.
    fn parameter(&mut self, function: &Function<'_>) {
        let module = self.out.module;
        let parameter = format!(".param .align 16 .b8 {LAUNCH}[{}]", self.launch_bytes);
        let name_end = function.name.as_ptr().addr() - module.text.as_ptr().addr() + function.name.len();
        let (at, text) = match function.parameters.last() {
            Some(last) => (last.span.end, format!(", {parameter}")),
            None => match module.text[name_end..function.header.end].find('(') {
                Some(open) => (name_end + open + 1, parameter),
                None => (name_end, format!("({parameter})")),
            },
        };
        self.out.copy_until(at);
        self.out.text.push_str(&text);
        let header = &module.text[function.header.clone()];
        if function.body.is_some() && ![".maxntid", ".reqntid"].iter().any(|bound| header.contains(bound)) {
            // Who launches it counts on the few registers that it had.
            self.out.copy_until(function.header.end);
            self.out.text.push_str("\n.maxntid 1024\n");
        }
    }

    fn function(
        &mut self,
        function: &Function<'_>,
        body: &[Statement<'_>],
        accesses: &[Decided<'_, '_>],
    ) -> std::result::Result<FunctionReport, std::fmt::Error> {
        let mut report = FunctionReport::of(self.out.module, function);
        // Behind the opening brace.
        self.out.copy_until(body[0].span.end);
        let calls = accesses
            .iter()
            .any(|decided| matches!(chosen(decided), Chosen::Called(_)));
        self.begin(function.is_entry, calls)?;
        for decided in accesses {
            let statement = &body[decided.statement];
            let at = self.out.module.position(statement.span.start);
            match chosen(decided) {
                Chosen::Left(why, instruction) => {
                    let opcode = instruction.opcode.to_owned();
                    report.left.push(LeftAlone { at, why, opcode });
                }
                Chosen::Called(called) => {
                    let start = before_pragmas(&body[..decided.statement]).unwrap_or(statement.span.start);
                    self.out.copy_until(start);
                    self.access(statement, &called)?;
                    let access = called.access;
                    report.changed.push(Changed { at, access });
                }
            }
        }
        report.look_ups = report.changed.len();
        Ok(report)
    }

    /// What a function needs before its first access.
    fn begin(&mut self, is_entry: bool, calls: bool) -> Written {
        let text = &mut self.out.text;
        if calls {
            text.push_str(OF_FUNCTION);
        } else if is_entry && self.in_functions {
            text.push_str("\n.reg .b64 %gpuvm_v;");
        }
        if is_entry && (calls || self.in_functions) {
            write!(
                text,
                "\n\tmov.b64 %gpuvm_v, {LAUNCH}; cvta.param.u64 %gpuvm_v, %gpuvm_v;"
            )?;
        }
        if is_entry && self.in_functions {
            // All threads store the same.
            write!(text, "\n\tst.relaxed.cta.shared.b64 [{OF_BLOCK}], %gpuvm_v;")?;
        }
        if !is_entry && calls {
            write!(text, "\n\tld.relaxed.cta.shared.b64 %gpuvm_v, [{OF_BLOCK}];")?;
        }
        Ok(())
    }

    fn access(&mut self, statement: &Statement<'_>, called: &Called<'_, '_, '_>) -> Written {
        let number = self.labels;
        self.labels += 1;
        let text = &mut self.out.text;
        text.push_str(BLOCK);
        address(text, called.address)?;
        inside(text, called.instruction.guard)?;
        match called.access {
            // A hint, and what it promises nothing needs.
            Access::Prefetch | Access::Discard => writeln!(text, "\t@%gpuvm_p bra $gpuvm_over_{number};")?,
            _ => self.called(statement, called, number)?,
        }
        self.out.copy_until(statement.span.end);
        write!(self.out.text, "\n$gpuvm_over_{number}:\n\t}}")
    }

    /// The calls, and the instruction with the place that they give.
    fn called(&mut self, statement: &Statement<'_>, called: &Called<'_, '_, '_>, number: u32) -> Written {
        let module = self.out.module;
        let text = &mut self.out.text;
        let how = called.bytes | if called.access.writes() { WRITES } else { 0 };
        match called.source {
            CopySource::Whole => writeln!(text, "\tmov.b32 %gpuvm_n, {how};")?,
            // Where nothing is read the address may be any.
            CopySource::Bytes(bytes) => writeln!(
                text,
                "\tmov.b32 %gpuvm_n, {bytes};\n\tsetp.ne.and.u32 %gpuvm_p, %gpuvm_n, 0, %gpuvm_p;"
            )?,
            CopySource::IgnoredWhere(ignored) => writeln!(
                text,
                "\tmov.b32 %gpuvm_n, {how};\n\t@{ignored} bra $gpuvm_plain_{number};"
            )?,
        }
        write!(
            text,
            "\t@!%gpuvm_p bra $gpuvm_plain_{number};\n\
             \t{{ .param .b64 gpuvm_0; .param .b64 gpuvm_1; .param .b64 gpuvm_2; .param .b32 gpuvm_3; .param .b64 gpuvm_4;\n\
             \tst.param.b64 [gpuvm_0], %gpuvm_c; st.param.b64 [gpuvm_1], %gpuvm_v; st.param.b64 [gpuvm_2], %gpuvm_a; st.param.b32 [gpuvm_3], %gpuvm_n;\n\
             \tcall (gpuvm_4), gpuvm_call_first, (gpuvm_0, gpuvm_1, gpuvm_2, gpuvm_3);\n\
             \tld.param.b64 %gpuvm_e, [gpuvm_4]; }}\n\
             $gpuvm_again_{number}:\n\
             \tsetp.gt.u64 %gpuvm_p, %gpuvm_e, {FAILED};\n\
             \t@%gpuvm_p "
        )?;
        // What an L1 cache of constants holds may be of another page that the frame had.
        let modifiers = called.instruction.modifiers().filter(|modifier| *modifier != "nc");
        let name = match called.instruction.name() {
            "ldu" => "ld",
            name => name,
        };
        let opcode: Vec<&str> = std::iter::once(name).chain(modifiers).collect();
        let given = called.instruction.opcode;
        let behind = given.as_ptr().addr() - module.text.as_ptr().addr() + given.len();
        let span = &called.address.span;
        let (before, after) = (
            &module.text[behind..span.start],
            &module.text[span.end..statement.span.end],
        );
        writeln!(text, "{}{before}[%gpuvm_e]{after}", opcode.join("."))?;
        if called.access == Access::Copy {
            text.push_str("\t@%gpuvm_p cp.async.wait_all;\n");
        }
        write!(
            text,
            "\t{{ .param .b64 gpuvm_0; .param .b64 gpuvm_1;\n\
             \tst.param.b64 [gpuvm_0], %gpuvm_c;\n\
             \tcall (gpuvm_1), gpuvm_call_next, (gpuvm_0);\n\
             \tld.param.b64 %gpuvm_e, [gpuvm_1]; }}\n\
             \tsetp.eq.u64 %gpuvm_p, %gpuvm_e, {FAILED};\n\
             \t@%gpuvm_p exit;\n\
             \tsetp.ne.u64 %gpuvm_p, %gpuvm_e, {DONE};\n\
             \t@%gpuvm_p bra $gpuvm_again_{number};\n\
             \tbra $gpuvm_over_{number};\n\
             $gpuvm_plain_{number}:\n\t"
        )
    }
}

/// A text that [`rewrite_to_calls`] made, with the functions that it calls: PTX that nvcc or NVRTC made of `gpuvm/calls.cuh`, for the
/// architecture that it is to run on, as code that others link to (`-rdc=true`).
///
/// # Errors
///
/// One of them is no PTX that the crate reads.
pub fn with_library(text: &str, library: &str) -> Result<String, PtxError> {
    let (own, others) = (Module::parse(text)?, Module::parse(library)?);
    let (major, minor) = own.version.max(others.version);
    let (mut target, library_target) = (targets(&own), targets(&others));
    // What follows the architecture says what is in the text, such as `debug`.
    if let (Some(own), Some(others)) = (target.first_mut(), library_target.first())
        && architecture(others) > architecture(own)
    {
        *own = others;
    }
    let body = text[own.header_end..].replacen(DECLARED, &library[others.header_end..], 1);
    Ok(format!(
        ".version {major}.{minor}\n.target {}\n.address_size 64\n{body}",
        target.join(", ")
    ))
}

/// What a module is for: an architecture, and options.
fn targets<'a>(module: &Module<'a>) -> Vec<&'a str> {
    let text = module.items.iter().find_map(|item| match item {
        Item::Directive(span) => module.text[span.clone()].strip_prefix(".target"),
        _ => None,
    });
    text.unwrap_or_default().split(',').map(str::trim).collect()
}

/// 90 of `sm_90a`.
fn architecture(target: &str) -> u32 {
    let digits = target
        .trim_start_matches("sm_")
        .trim_end_matches(|c: char| c.is_ascii_lowercase());
    digits.parse().unwrap_or_default()
}
