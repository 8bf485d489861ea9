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
use names::Names;
use variable::Variable;

/// Functions that modules call and do not have: what `gpuvm_sim/ptx_warp.h` calls them, and how many results and parameters they have.
const LIBRARY: &[(&str, &str, usize, usize)] = &[
    ("vprintf", "library_vprintf", 1, 2),
    ("__assertfail", "library_assertfail", 0, 5),
];

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
    let mut out = String::from("#include \"gpuvm_sim/ptx.h\"\n\nnamespace gpuvm_ptx {\n\n");
    let mut exported = vec![false; filled.len()];
    for item in &module.items {
        if let Item::Variable(declaration) = item {
            for variable in declared(&module, declaration)? {
                let text = module_variable(&mut around, &mut names, declaration, &variable)?;
                out.push_str(&text);
                let bytes = |value: &[u8]| u64::try_from(value.len()).ok();
                let wanted = filled
                    .iter()
                    .position(|(name, value)| *name == variable.name && bytes(value) == Some(variable.bytes));
                if let (Some(at), Some(names::Named::Variable(Space::Const | Space::Global, address))) =
                    (wanted, names.find(&variable.name))
                {
                    exported[at] = true;
                    out.push_str(&format!("extern \"C\" __attribute__((visibility(\"default\"), used)) GPUVM_SIM_PLAIN void* gpuvm_ptx_variable_{at}() {{ return reinterpret_cast<void*>({address}); }}\n"));
                }
            }
        }
    }
    if let Some(((name, value), _)) = std::iter::zip(filled, &exported).find(|(_, exported)| !**exported) {
        return Err(Untranslated::Variable {
            name: (*name).to_owned(),
            bytes: value.len(),
        });
    }
    for function in module
        .functions()
        .filter(|function| !function.is_entry && function.body.is_some())
    {
        let results = results(&module, function);
        let name = names.fresh('f', function.name);
        out.push_str(&format!("static void {name}(void* const* arguments);\n"));
        let parameters = function.parameters.len() - results;
        around.callees.insert(
            function.name,
            Callee {
                name,
                results,
                parameters,
            },
        );
    }
    for (symbol, library, results, parameters) in LIBRARY {
        if module
            .functions()
            .any(|function| function.name == *symbol && function.body.is_none())
        {
            let (name, results, parameters) = ((*library).to_owned(), *results, *parameters);
            around.callees.insert(
                symbol,
                Callee {
                    name,
                    results,
                    parameters,
                },
            );
        }
    }
    let mut functions = String::new();
    for function in module.functions() {
        let Some(statements) = &function.body else { continue };
        let first_line = match (
            kernels.iter().position(|kernel| kernel.symbol == function.name),
            around.callees.get(function.name),
        ) {
            (Some(number), _) => format!(
                "extern \"C\" __attribute__((visibility(\"default\"), used)) void gpuvm_kernel_entry_{number}(void* const* arguments) "
            ),
            (_, Some(callee)) => format!("static void {}(void* const* arguments) ", callee.name),
            _ => continue,
        };
        let (written, given_back) = function::body(&mut around, names, function, statements);
        names = given_back;
        functions.push_str(&format!("// {}\n{first_line}{}\n", function.name, written?));
    }
    out.push_str(&shared_variables(&around.shared));
    out.push_str(&functions);
    out.push_str("}  // namespace gpuvm_ptx\n");
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
            let bytes = bytes.next_multiple_of(16);
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
