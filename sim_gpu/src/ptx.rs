//! PTX as C++ that the kernels' compiler takes: a function for each entry and each function, a local variable for each register, a call of
//! `gpuvm_sim/ptx.h` for each instruction.
//!
//! Addresses of global, constant, local and parameter memory are the process's own; those of shared memory are offsets into the block's, so
//! that they have 32 bits. What is not translated is refused with its place.

mod arithmetic;
mod context;
mod error;
mod function;
mod matrix;
mod memory;
mod names;
mod operand;
mod types;
mod variable;
mod warp;

use std::collections::HashMap;

use gpuvm_gpu::PtxKernel;
use gpuvm_ptx::{Declaration, Function, Item, Module, Space};

use error::{Untranslated, Why};
use function::{Around, Callee, Shared, at_declaration, declared};
use names::{Named, Names};
use variable::Variable;

/// Functions that modules call and do not have: what `gpuvm_sim/ptx_warp.h` calls them, and how many results and parameters they have.
const LIBRARY: &[(&str, &str, usize, usize)] = &[
    ("vprintf", "library_vprintf", 1, 2),
    ("__assertfail", "library_assertfail", 0, 5),
    // Of `gpuvm/calls.cuh`.
    ("gpuvm_call_first", "library_call_first", 1, 4),
    ("gpuvm_call_next", "library_call_next", 1, 1),
];

/// What others find by its name.
const EXPORTED: &str = "extern \"C\" __attribute__((visibility(\"default\"), used))";

/// C++ text of `kernels`, numbered in this order, and of the module's variables. Those that the host fills are `gpuvm_ptx_variable_0` and on.
pub(crate) fn translated(text: &str, kernels: &[PtxKernel], filled: &[(&str, &[u8])]) -> Result<String, Untranslated> {
    let module = Module::parse(text)?;
    let mut names = Names::default();
    names.open();
    let mut around = Around {
        module: &module,
        callees: HashMap::new(),
        shared: Shared::default(),
    };
    let variables = module_variables(&mut around, &mut names, filled)?;
    let declared = callees(&mut around, &mut names);
    let functions = functions(&mut around, names, kernels)?;
    Ok(format!(
        "#include \"gpuvm_sim/ptx.h\"\n\nnamespace gpuvm_ptx {{\n\n{variables}{declared}{}{functions}}}  // namespace gpuvm_ptx\n",
        shared_variables(&around.shared)
    ))
}

fn module_variables(
    around: &mut Around<'_, '_>,
    names: &mut Names,
    filled: &[(&str, &[u8])],
) -> Result<String, Untranslated> {
    let module = around.module;
    let mut out = String::new();
    let mut exported = vec![false; filled.len()];
    for item in &module.items {
        let Item::Variable(declaration) = item else { continue };
        for variable in declared(module, declaration)? {
            out.push_str(&module_variable(around, names, declaration, &variable)?);
            let is_it = |(name, value): &(&str, &[u8])| *name == variable.name && value.len() as u64 == variable.bytes;
            let Some(at) = filled.iter().position(is_it) else {
                continue;
            };
            if let Some(Named::Variable(Space::Const | Space::Global, address)) = names.find(&variable.name) {
                exported[at] = true;
                out.push_str(&format!(
                    "{EXPORTED} GPUVM_SIM_PLAIN void* gpuvm_ptx_variable_{at}() {{ return reinterpret_cast<void*>({address}); }}\n"
                ));
            }
        }
    }
    match std::iter::zip(filled, exported).find(|(_, exported)| !exported) {
        Some(((name, value), _)) => Err(Untranslated::Variable {
            name: (*name).to_owned(),
            bytes: value.len(),
        }),
        None => Ok(out),
    }
}

/// Declarations of the functions that others call.
fn callees(around: &mut Around<'_, '_>, names: &mut Names) -> String {
    let module = around.module;
    let mut out = String::new();
    for function in module.functions().filter(|function| !function.is_entry) {
        let library = LIBRARY.iter().find(|library| library.0 == function.name);
        let callee = match (&function.body, library) {
            (Some(_), _) => {
                let results = results(module, function);
                let name = names.fresh('f', function.name);
                out.push_str(&format!("static bool {name}(void* const* arguments);\n"));
                Callee {
                    name,
                    results,
                    parameters: function.parameters.len() - results,
                }
            }
            (None, Some((_, name, results, parameters))) => Callee {
                name: (*name).to_owned(),
                results: *results,
                parameters: *parameters,
            },
            (None, None) => continue,
        };
        // A declaration may come before or after the function itself.
        if function.body.is_some() || !around.callees.contains_key(function.name) {
            around.callees.insert(function.name, callee);
        }
    }
    out
}

fn functions(around: &mut Around<'_, '_>, mut names: Names, kernels: &[PtxKernel]) -> Result<String, Untranslated> {
    let module = around.module;
    let is_entry = |kernel: &PtxKernel| {
        let mut functions = module.functions();
        functions.any(|function| function.is_entry && function.body.is_some() && function.name == kernel.symbol)
    };
    if let Some(missing) = kernels.iter().find(|kernel| !is_entry(kernel)) {
        return Err(Untranslated::Kernel(missing.symbol.clone()));
    }
    let mut out = String::new();
    for function in module.functions() {
        let Some(statements) = &function.body else { continue };
        let number = kernels.iter().position(|kernel| kernel.symbol == function.name);
        let first_line = match (number, around.callees.get(function.name)) {
            (Some(number), _) => format!("{EXPORTED} void gpuvm_kernel_entry_{number}(void* const* arguments)"),
            (_, Some(callee)) => format!("static bool {}(void* const* arguments)", callee.name),
            _ => continue,
        };
        let (written, given_back) = function::body(around, names, function, statements);
        names = given_back;
        out.push_str(&format!("// {}\n{first_line} {}\n", function.name, written?));
    }
    Ok(out)
}

/// How many of a function's parameters are results: those before its name.
fn results(module: &Module<'_>, function: &Function<'_>) -> usize {
    let name = function.name.as_ptr() as usize - module.text().as_ptr() as usize;
    function
        .parameters
        .iter()
        .filter(|parameter| parameter.span.start < name)
        .count()
}

fn shared_variables(shared: &Shared) -> String {
    match shared.bytes {
        0 => "\nstatic constexpr void* kShared = nullptr;\nstatic constexpr u64 kSharedBytes = 0;\n\n".to_owned(),
        bytes => {
            let bytes = bytes.checked_next_multiple_of(16).unwrap_or(bytes);
            format!("\nalignas(128) __shared__ u8 kShared[{bytes}];\nstatic constexpr u64 kSharedBytes = {bytes};\n\n")
        }
    }
}

/// A variable of the module: its definition, if it has one.
fn module_variable(
    around: &mut Around<'_, '_>,
    names: &mut Names,
    declaration: &Declaration<'_>,
    variable: &Variable,
) -> Result<String, Untranslated> {
    let refused = |why| at_declaration(around.module, declaration, why);
    match declaration.space {
        Space::Shared => {
            let address = around.shared.add(variable);
            names.variable(&variable.name, Space::Shared, address);
            Ok(String::new())
        }
        // One that another module has: whoever uses it is refused.
        Space::Const | Space::Global if variable.bytes == 0 => Ok(String::new()),
        space @ (Space::Const | Space::Global) => {
            let fresh = names.fresh('v', &variable.name);
            let initial: Vec<String> = variable
                .initial_bytes()
                .map_err(refused)?
                .iter()
                .map(u8::to_string)
                .collect();
            names.variable(&variable.name, space, format!("reinterpret_cast<u64>({fresh})"));
            let (align, bytes) = (variable.align, variable.bytes);
            Ok(format!(
                "alignas({align}) static u8 {fresh}[{bytes}] = {{{}}};\n",
                initial.join(", ")
            ))
        }
        _ => Err(refused(Why::unknown("variables of a module in this space"))),
    }
}
