//! A module's text with its accesses looked up.

use std::collections::HashSet;

use crate::access::{Access, CopySource, Found, Left, copy_source, find};
use crate::bases::{AccessBases, Bases};
use crate::error::PtxError;
use crate::look_up::{self, LookUp};
use crate::model::{Address, Function, Instruction, Item, Module, Operand, Statement, StatementKind};
use crate::names::{Meaning, Names};
use crate::origin::{Definitions, Origin};
use crate::report::{Changed, FunctionReport, LeftAlone, Report};
use crate::sharing::{self, Group, Neighbour, Share, Values};
use crate::table::{QUIET, REGISTERS, TableLayout, WINDOW};
use crate::tokens::{Token, TokenKind, text_of, tokens};

/// A module after it was rewritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The new text.
    pub text: String,
    /// What was done.
    pub report: Report,
}

/// Has each access to global memory in a module look its page up.
///
/// # Errors
///
/// The text is no PTX that the crate reads, or was rewritten before.
pub fn rewrite(ptx: &[u8], layout: &TableLayout) -> Result<Rewritten, PtxError> {
    let module = Module::parse(text_of(ptx)?)?;
    refuse_own_names(&module)?;
    let mut out = Output::new(&module);
    out.copy_until(module.header_end);
    out.text.push_str(&layout.declaration());
    let mut report = Report::default();
    for (function, body, accesses, bases) in functions(&module)? {
        let shared = share(&accesses, layout);
        let mut done = out.function(layout, function, body, &accesses, &shared);
        done.bases = bases;
        let touches = done.changed.iter().any(|changed| layout.touches_by(changed.access));
        if let Some(quiet) = layout.quiet().filter(|_| touches && function.is_entry) {
            done.quiet = Some(out.rename(function));
            out.function(&quiet, function, body, &accesses, &shared);
        }
        report.functions.push(done);
    }
    out.copy_until(module.text.len());
    let text = out.text;
    Ok(Rewritten { text, report })
}

/// A function with its body, what is done with which of its statements, and of a kernel what its accesses are based on.
type Examined<'i, 'a> = (
    &'i Function<'a>,
    &'i [Statement<'a>],
    Vec<Decided<'i, 'a>>,
    Option<AccessBases>,
);

/// The functions that have a body.
pub(crate) fn functions<'i, 'a>(module: &'i Module<'a>) -> Result<Vec<Examined<'i, 'a>>, PtxError> {
    let variables = module.items.iter().filter_map(|item| match item {
        Item::Variable(declaration) => Some(declaration),
        _ => None,
    });
    let mut names = Names::new(variables);
    let here: HashSet<&str> = module
        .functions()
        .filter(|f| f.body.is_some())
        .map(|f| f.name)
        .collect();
    let mut all = Vec::new();
    for function in module.functions() {
        if let Some(body) = &function.body {
            let (accesses, bases) = accesses(module, function, body, &mut names, &here)?;
            all.push((function, &body[..], accesses, bases));
            names.end_function();
        }
    }
    Ok(all)
}

/// The rewritten text has names of its own.
pub(crate) fn refuse_own_names(module: &Module<'_>) -> Result<(), PtxError> {
    let is_own = |name: &str| name == WINDOW || name.starts_with(REGISTERS);
    // Mostly they are nowhere. Comments and the names of files may have them.
    if ![WINDOW, REGISTERS].iter().any(|name| module.text.contains(name)) {
        return Ok(());
    }
    let (tokens, _) = tokens(module.text)?;
    let names = tokens.iter().filter(|token| token.kind == TokenKind::Name);
    let mut own = names
        .map(Token::range)
        .filter(|range| is_own(&module.text[range.clone()]));
    own.next().map_or(Ok(()), |range| {
        let at = module.position(range.start);
        let name = module.text[range].to_owned();
        Err(PtxError::Reserved { at, name })
    })
}

/// What is done with one statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Decision<'i, 'a> {
    LookUp(Access, &'i Instruction<'a>, &'i Address<'a>),
    Leave(Left, &'i Instruction<'a>),
}

/// An access before the origins of registers are known.
struct Open<'i, 'a> {
    statement: usize,
    decision: Decision<'i, 'a>,
    register: Option<usize>,
    neighbour: Option<Neighbour<'a>>,
    source: CopySource<'a>,
}

/// What is done with a statement, by its place, and where it is for its neighbours.
#[derive(Debug)]
pub(crate) struct Decided<'i, 'a> {
    pub(crate) statement: usize,
    pub(crate) decision: Decision<'i, 'a>,
    /// Of a copy.
    pub(crate) source: CopySource<'a>,
    neighbour: Option<Neighbour<'a>>,
}

/// Finds which look-ups are shared.
fn share<'a>(accesses: &[Decided<'_, 'a>], layout: &TableLayout) -> (Vec<Group<'a>>, Vec<Option<Share>>) {
    let looked_up = accesses.iter().map(|access| match access.decision {
        Decision::LookUp(kind, ..) => access.neighbour.map(|neighbour| (neighbour, kind)),
        Decision::Leave(..) => None,
    });
    sharing::share(looked_up, 1 << layout.page_shift())
}

/// What is done with which statements, in order.
fn accesses<'i, 'a>(
    module: &Module<'a>,
    function: &'i Function<'a>,
    body: &'i [Statement<'a>],
    names: &mut Names<'a>,
    here: &HashSet<&str>,
) -> Result<(Vec<Decided<'i, 'a>>, Option<AccessBases>), PtxError> {
    names.open();
    let parameters = function.parameters.iter().flat_map(|parameter| &parameter.names);
    let mut bases = Bases::new(parameters.map(|declared| declared.name));
    let mut definitions = Definitions::default();
    let mut values = Values::new();
    for parameter in &function.parameters {
        names.declare(parameter);
        for declared in &parameter.names {
            definitions.note_parameter(declared.name, names);
        }
    }
    let mut open = Vec::new();
    for (at, statement) in body.iter().enumerate() {
        values.pass(&statement.kind);
        match &statement.kind {
            StatementKind::Open => names.open(),
            StatementKind::Close => names.close(),
            StatementKind::Declaration(declaration) => names.declare(declaration),
            StatementKind::Instruction(instruction) => {
                if let Some((decision, register)) = decide(module, statement, instruction, names, here)? {
                    let neighbour = match (decision, register) {
                        (Decision::LookUp(_, _, address), Some(register)) => {
                            values.neighbour(register, address, instruction.guard, names)
                        }
                        _ => None,
                    };
                    let statement = at;
                    let source = match decision {
                        Decision::LookUp(Access::Copy, ..) => copy_source(instruction, |name| bits_of(names, name)),
                        _ => CopySource::Whole,
                    };
                    open.push(Open {
                        statement,
                        decision,
                        register,
                        neighbour,
                        source,
                    });
                }
                definitions.note(instruction, names);
                bases.note(instruction, names);
                values.note(instruction, names);
            }
            StatementKind::Label(_) | StatementKind::Pragma | StatementKind::Directive => {}
        }
    }
    let origins = definitions.origins(names.registers());
    let decided: Vec<_> = open
        .into_iter()
        .map(|access| access.decide(&origins, &mut bases))
        .collect();
    let bases = bases.end(names.registers()).filter(|_| function.is_entry);
    Ok((decided, bases))
}

impl<'i, 'a> Open<'i, 'a> {
    /// Now that the origins of registers are known.
    fn decide(self, origins: &[Origin], bases: &mut Bases<'a>) -> Decided<'i, 'a> {
        let origin = self.register.map_or(Origin::Unknown, |register| origins[register]);
        let decision = match (self.decision, origin) {
            (Decision::LookUp(_, instruction, _) | Decision::Leave(_, instruction), Origin::Outside(left)) => {
                Decision::Leave(left, instruction)
            }
            (decision, _) => decision,
        };
        let access = match decision {
            Decision::LookUp(access, ..) => Ok(access),
            Decision::Leave(left, _) => Err(left),
        };
        bases.access(access, self.register);
        Decided {
            statement: self.statement,
            decision,
            neighbour: self.neighbour,
            source: self.source,
        }
    }
}

/// Bits of a register.
fn bits_of<'a>(names: &mut Names<'a>, name: &'a str) -> Option<u32> {
    match names.find(name) {
        Some(Meaning::Register { bits, .. }) => Some(bits),
        _ => None,
    }
}

/// What is done with an instruction, unless the register that has its address comes from elsewhere.
fn decide<'i, 'a>(
    module: &Module<'a>,
    statement: &Statement<'a>,
    instruction: &'i Instruction<'a>,
    names: &mut Names<'a>,
    here: &HashSet<&str>,
) -> Result<Option<(Decision<'i, 'a>, Option<usize>)>, PtxError> {
    if instruction.name() == "call" {
        let leaves = calls_outside(instruction, here);
        return Ok(leaves.then_some((Decision::Leave(Left::OutsideCall, instruction), None)));
    }
    let (decision, address) = match find(instruction) {
        Found::None => return Ok(None),
        Found::Paged(access, address) => (Decision::LookUp(access, instruction, address), address),
        Found::Left(left, Some(address)) => (Decision::Leave(left, instruction), address),
        Found::Left(left, None) => return Ok(Some((Decision::Leave(left, instruction), None))),
    };
    if address.base.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(Some((decision, None)));
    }
    let at = module.position(statement.span.start);
    match (names.find(address.base), decision) {
        (Some(Meaning::Register { bits, .. }), Decision::LookUp(..)) if bits != 64 => Err(PtxError::NarrowAddress {
            at,
            register: address.base.to_owned(),
            bits,
        }),
        (Some(Meaning::Register { id, .. }), _) => Ok(Some((decision, Some(id)))),
        (Some(Meaning::Variable(space)), _) => Ok(Some((Decision::Leave(space.into(), instruction), None))),
        (None, Decision::Leave(..)) => Ok(Some((decision, None))),
        (None, _) => Err(PtxError::Undeclared {
            at,
            name: address.base.to_owned(),
        }),
    }
}

/// Whether a call goes to a function whose code is not here. What a register names was made by some module's code.
fn calls_outside(instruction: &Instruction<'_>, here: &HashSet<&str>) -> bool {
    let callee = instruction.operands.iter().find_map(|operand| match operand {
        Operand::Name(name) => Some(*name),
        _ => None,
    });
    callee.is_some_and(|name| !here.contains(name))
}

/// Where the pragmas begin that stand before an instruction and speak of it. Lines may lie between.
pub(crate) fn before_pragmas(statements: &[Statement<'_>]) -> Option<usize> {
    let near = statements
        .iter()
        .rev()
        .take_while(|statement| matches!(statement.kind, StatementKind::Pragma | StatementKind::Directive));
    let pragmas = near.filter(|statement| matches!(statement.kind, StatementKind::Pragma));
    pragmas.last().map(|first| first.span.start)
}

/// A text that is written anew, and how far.
pub(crate) struct Output<'o, 'a> {
    pub(crate) module: &'o Module<'a>,
    pub(crate) text: String,
    pub(crate) at: usize,
}

impl<'o, 'a> Output<'o, 'a> {
    pub(crate) fn new(module: &'o Module<'a>) -> Self {
        let text = String::with_capacity(module.text.len() * 4);
        Self { module, text, at: 0 }
    }

    pub(crate) fn copy_until(&mut self, end: usize) {
        self.text.push_str(&self.module.text[self.at..end]);
        self.at = end;
    }

    /// Begins a function once more, by a name that it gets for its second form.
    fn rename(&mut self, function: &Function<'_>) -> String {
        self.copy_until(function.span.end);
        self.text.push_str("\n\n");
        self.at = function.span.start;
        // A name is a part of the text.
        self.copy_until(function.name.as_ptr().addr() - self.module.text.as_ptr().addr());
        self.text.push_str(QUIET);
        format!("{QUIET}{}", function.name)
    }

    fn function(
        &mut self,
        layout: &TableLayout,
        function: &Function<'_>,
        body: &[Statement<'_>],
        decisions: &[Decided<'_, '_>],
        (groups, shares): &(Vec<Group<'_>>, Vec<Option<Share>>),
    ) -> FunctionReport {
        let mut report = FunctionReport::of(self.module, function);
        // Behind the opening brace.
        self.copy_until(body[0].span.end);
        self.text.push_str(&look_up::declaration(sharing::shared(groups)));
        for (decided, share) in decisions.iter().zip(shares) {
            let span = &body[decided.statement].span;
            let at = self.module.position(span.start);
            match decided.decision {
                Decision::Leave(why, instruction) => {
                    let opcode = instruction.opcode.to_owned();
                    report.left.push(LeftAlone { at, why, opcode });
                }
                Decision::LookUp(access, instruction, address) => {
                    report.look_ups += usize::from(share.is_none_or(|share| share.is_first));
                    self.copy_until(before_pragmas(&body[..decided.statement]).unwrap_or(span.start));
                    let (before, instead) = layout.look_up(&LookUp {
                        access,
                        guard: instruction.guard,
                        address,
                        shared: share.map(|share| (share, &groups[share.group])),
                    });
                    self.text.push_str(&before);
                    self.text.push_str(if before.is_empty() { "" } else { "\t" });
                    self.copy_until(address.span.start);
                    self.text.push_str(&instead);
                    self.at = address.span.end;
                    self.copy_until(span.end);
                    self.text.push_str(if before.is_empty() { "" } else { "\n\t}" });
                    report.changed.push(Changed { at, access });
                }
            }
        }
        report
    }
}
