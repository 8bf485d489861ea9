//! A function's body, statement by statement.

use std::collections::HashMap;

use gpuvm_ptx::{Declaration, Function, Guard, Module, Space, Statement, StatementKind};

use super::context::{Context, Instruction};
use super::error::{Untranslated, Why};
use super::names::{Named, Names, declarations};
use super::operand::{Operand, operands, without_comments};
use super::types::U32;
use super::variable::{Variable, variables};
use super::{arithmetic, matrix, memory, warp};

/// Shared memory of the module's variables.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) bytes: u64,
}

impl Shared {
    /// The address of another variable, as an expression. Those without a length are the launch's own memory, behind all others.
    pub(crate) fn add(&mut self, variable: &Variable) -> String {
        if variable.bytes == 0 {
            return "shared.variable_bytes".to_owned();
        }
        // No compiler takes more bytes than there are addresses.
        let at = self.bytes.checked_next_multiple_of(variable.align).unwrap_or(u64::MAX);
        self.bytes = at.saturating_add(variable.bytes);
        format!("{at}ull")
    }
}

/// A function that others call: what it is called, and how many results and parameters it has.
#[derive(Clone)]
pub(crate) struct Callee {
    pub(crate) name: String,
    pub(crate) results: usize,
    pub(crate) parameters: usize,
}

/// What functions of a module share.
pub(crate) struct Around<'m, 'a> {
    pub(crate) module: &'m Module<'a>,
    pub(crate) callees: HashMap<&'a str, Callee>,
    pub(crate) shared: Shared,
}

/// One function while it is translated.
struct Body<'w, 'm, 'a> {
    around: &'w mut Around<'m, 'a>,
    cx: Context,
    is_entry: bool,
    labels: HashMap<(usize, String), String>,
    /// Labels that `brx.idx` chooses among, by the list's name.
    lists: HashMap<&'a str, Vec<String>>,
    /// Arrays on the lane's stack.
    arrays: String,
    out: String,
}

/// Where an error is.
fn at_statement(module: &Module<'_>, span: &std::ops::Range<usize>, why: Why) -> Untranslated {
    let text = without_comments(&module.text()[span.clone()]);
    let statement: Vec<&str> = text.split_whitespace().collect();
    Untranslated::Statement {
        at: module.position(span.start),
        statement: statement.join(" ").chars().take(120).collect(),
        why,
    }
}

/// The names of a declaration of the module's.
pub(crate) fn declared(module: &Module<'_>, declaration: &Declaration<'_>) -> Result<Vec<Variable>, Untranslated> {
    variables(&module.text()[declaration.span.clone()]).map_err(|why| at_statement(module, &declaration.span, why))
}

/// An error at a declaration.
pub(crate) fn at_declaration(module: &Module<'_>, declaration: &Declaration<'_>, why: Why) -> Untranslated {
    at_statement(module, &declaration.span, why)
}

/// A function's translation, without its first line. Names: those of the module.
pub(crate) fn body<'a>(
    around: &mut Around<'_, 'a>,
    names: Names,
    function: &Function<'a>,
    statements: &[Statement<'a>],
) -> (Result<String, Untranslated>, Names) {
    let cx = Context { names, carries: false };
    let mut body = Body {
        around,
        cx,
        is_entry: function.is_entry,
        labels: HashMap::new(),
        lists: HashMap::new(),
        arrays: String::new(),
        out: String::new(),
    };
    let written = body.write(function, statements);
    let mut text = String::from(
        "{\n    const shared_memory shared = shared_of_block(kShared, kSharedBytes);\n    static_cast<void>(shared);\n",
    );
    text.push_str(&declarations(&body.cx.names.end_function()));
    if body.cx.carries {
        text.push_str("    bool carry = false;\n");
    }
    text.push_str(&body.arrays);
    text.push_str(&body.out);
    text.push_str(if function.is_entry {
        "}\n"
    } else {
        "    return true;\n}\n"
    });
    (written.map(|()| text), body.cx.names)
}

impl<'a> Body<'_, '_, 'a> {
    fn write(&mut self, function: &Function<'a>, statements: &[Statement<'a>]) -> Result<(), Untranslated> {
        self.cx.names.open();
        for (at, parameter) in function.parameters.iter().enumerate() {
            for variable in declared(self.around.module, parameter)? {
                if parameter.space != Space::Param {
                    let why = Why::unknown("functions with registers for parameters");
                    return Err(at_declaration(self.around.module, parameter, why));
                }
                let address = format!("reinterpret_cast<u64>(arguments[{at}])");
                self.cx.names.variable(&variable.name, Space::Param, address);
            }
        }
        self.find_labels(statements);
        for statement in statements {
            let done = self.statement(statement);
            done.map_err(|why| at_statement(self.around.module, &statement.span, why))?;
        }
        self.cx.names.close();
        Ok(())
    }

    fn text(&self, statement: &Statement<'_>) -> &'a str {
        &self.around.module.text()[statement.span.clone()]
    }

    /// Labels have their block's scope, and may be used before they come.
    fn find_labels(&mut self, statements: &[Statement<'a>]) {
        let (mut next, mut open) = (self.cx.names.next_block(), Vec::new());
        let mut last = None;
        for statement in statements {
            match &statement.kind {
                StatementKind::Open => {
                    open.push(next);
                    next += 1;
                }
                StatementKind::Close => drop(open.pop()),
                StatementKind::Label(name) => {
                    let block = open.last().copied().unwrap_or_default();
                    let fresh = self.cx.names.fresh('L', name);
                    self.labels.insert((block, (*name).to_owned()), fresh);
                    last = Some(*name);
                    continue;
                }
                StatementKind::Directive => {
                    let list = without_comments(self.text(statement));
                    if let (Some(name), Some(list)) = (last, list.trim().strip_prefix(".branchtargets")) {
                        let labels = list.trim_end_matches(';').split(',');
                        self.lists
                            .insert(name, labels.map(|label| label.trim().to_owned()).collect());
                    }
                }
                _ => {}
            }
            last = None;
        }
    }

    fn label(&self, name: &str) -> Result<String, Why> {
        let mut blocks = self.cx.names.blocks();
        let found = blocks.find_map(|block| self.labels.get(&(block, name.to_owned())));
        found.cloned().ok_or_else(|| Why::Undeclared(name.to_owned()))
    }

    fn statement(&mut self, statement: &Statement<'a>) -> Result<(), Why> {
        match &statement.kind {
            StatementKind::Open => {
                self.cx.names.open();
                self.out.push_str("    {\n");
            }
            StatementKind::Close => {
                self.cx.names.close();
                self.out.push_str("    }\n");
            }
            StatementKind::Label(name) => {
                let label = self.label(name)?;
                self.out.push_str(&format!("{label}:;\n"));
            }
            StatementKind::Declaration(declaration) => self.declaration(declaration, self.text(statement))?,
            StatementKind::Pragma | StatementKind::Directive => {}
            StatementKind::Instruction(found) => {
                // The opcode is a part of the module's text.
                let end =
                    found.opcode.as_ptr() as usize + found.opcode.len() - self.around.module.text().as_ptr() as usize;
                let rest = without_comments(&self.around.module.text()[end..statement.span.end]);
                let instruction = Instruction {
                    name: found.name(),
                    modifiers: found.modifiers().collect(),
                    operands: operands(rest.trim().trim_end_matches(';'))?,
                };
                let text = self.instruction(&instruction)?;
                let guard = self.guard(found.guard)?;
                self.out.push_str(&format!("    {guard}{text}\n"));
            }
        }
        Ok(())
    }

    fn guard(&mut self, guard: Option<Guard<'_>>) -> Result<String, Why> {
        let Some(Guard { register, negated }) = guard else {
            return Ok(String::new());
        };
        let not = if negated { "!" } else { "" };
        Ok(format!("if ({not}{}) ", self.cx.predicate(register)?))
    }

    fn declaration(&mut self, declaration: &Declaration<'_>, text: &str) -> Result<(), Why> {
        for variable in variables(text)? {
            let name = &variable.name;
            match declaration.space {
                Space::Register => self.cx.names.registers(&variable),
                Space::Shared => {
                    let address = self.around.shared.add(&variable);
                    self.cx.names.variable(name, Space::Shared, address);
                }
                Space::Local | Space::Param => {
                    let fresh = self.cx.names.fresh('v', name);
                    // Arguments are read in whole words at times.
                    let (align, bytes) = (variable.align.max(16), variable.bytes.max(1));
                    self.arrays
                        .push_str(&format!("    alignas({align}) u8 {fresh}[{bytes}];\n"));
                    let address = format!("reinterpret_cast<u64>({fresh})");
                    self.cx.names.variable(name, declaration.space, address);
                }
                _ => return Err(Why::unknown("variables of a function in this space")),
            }
        }
        Ok(())
    }

    fn instruction(&mut self, of: &Instruction<'_>) -> Result<String, Why> {
        if let Some(text) = self.control(of)? {
            return Ok(text);
        }
        for translated in [
            arithmetic::translated,
            memory::translated,
            warp::translated,
            matrix::translated,
        ] {
            if let Some(text) = translated(&mut self.cx, of)? {
                return Ok(format!("{{ {text} }}"));
            }
        }
        let all: Vec<&str> = std::iter::once(of.name).chain(of.modifiers.iter().copied()).collect();
        Err(Why::unknown(format!("`{}`", all.join("."))))
    }

    /// Instructions that say what comes next.
    fn control(&mut self, of: &Instruction<'_>) -> Result<Option<String>, Why> {
        let text = match of.name {
            "ret" | "exit" if self.is_entry => "return;".to_owned(),
            // Whether the caller goes on.
            "ret" => "return true;".to_owned(),
            "exit" => "return false;".to_owned(),
            "bra" => match of.operand(0)? {
                Operand::Word(label) => format!("goto {};", self.label(label)?),
                _ => return Err(Why::operands("no label")),
            },
            "brx" => self.branch_by_number(of)?,
            "call" => self.call(of)?,
            _ => return Ok(None),
        };
        Ok(Some(text))
    }

    fn branch_by_number(&mut self, of: &Instruction<'_>) -> Result<String, Why> {
        let number = self.cx.value(of.operand(0)?, U32)?;
        let list = match of.operand(1)? {
            Operand::Word(list) => self
                .lists
                .get(list.as_str())
                .ok_or_else(|| Why::Undeclared(list.clone()))?,
            _ => return Err(Why::operands("no list of labels")),
        };
        let mut text = format!("switch ({number}) {{");
        for (at, label) in list.iter().enumerate() {
            text.push_str(&format!(" case {at}: goto {};", self.label(label)?));
        }
        // Any other number is undefined: it is told.
        Ok(text + " default: __trap(); }")
    }

    /// `call (result), f, (a, b);`
    fn call(&mut self, of: &Instruction<'_>) -> Result<String, Why> {
        let (results, rest) = match of.operands.split_first() {
            Some((Operand::List(results), rest)) => (&results[..], rest),
            _ => (&[][..], &of.operands[..]),
        };
        let Some((Operand::Word(name), rest)) = rest.split_first() else {
            return Err(Why::operands("no function"));
        };
        let parameters = match rest {
            [] => &[][..],
            [Operand::List(parameters)] => &parameters[..],
            _ => return Err(Why::unknown("calls by a function's address")),
        };
        let callee = self.around.callees.get(name.as_str()).cloned();
        let callee = callee.ok_or_else(|| Why::unknown(format!("calls of `{name}`, which is not in the module")))?;
        if (results.len(), parameters.len()) != (callee.results, callee.parameters) {
            return Err(Why::operands(format!("not as many operands as `{name}` has")));
        }
        let mut places = Vec::new();
        for operand in results.iter().chain(parameters) {
            let Operand::Word(name) = operand else {
                return Err(Why::unknown(format!("{operand:?} as a parameter")));
            };
            match self.cx.names.find(name) {
                Some(Named::Variable(Space::Param, address)) => {
                    places.push(format!("reinterpret_cast<void*>({address})"))
                }
                _ => {
                    return Err(Why::unknown(format!(
                        "`{name}` as a parameter, which is no `.param` variable"
                    )));
                }
            }
        }
        // A function without operands still is given an array.
        places.push("nullptr".to_owned());
        let exit = if self.is_entry { "return" } else { "return false" };
        Ok(format!(
            "{{ void* const places[] = {{{}}}; if (!{}(places)) {exit}; }}",
            places.join(", "),
            callee.name
        ))
    }
}
