//! Where the addresses in registers come from: a data flow over all definitions of a function's registers, without regard to their
//! order, so that a register has one origin. Only what is proven counts: an address of unknown origin is looked up.

use crate::access::Left;
use crate::model::{Instruction, Operand, Space};
use crate::names::{Meaning, Names};

/// What is known about a register's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Origin {
    /// No definition was looked at yet.
    #[default]
    Undefined,
    /// A number that came from at most 32 bits, or is written in the text: no address by itself.
    Number,
    /// An address in memory that has no pages, and why.
    Outside(Left),
    /// Anything else.
    Unknown,
}

impl Origin {
    /// The origin of a value that is one or the other.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Undefined, one) | (one, Self::Undefined) => one,
            (one, same) if one == same => one,
            (Self::Outside(_), Self::Outside(_)) => Self::Outside(Left::NotGlobal),
            _ => Self::Unknown,
        }
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Undefined, _) | (_, Self::Undefined) => Self::Undefined,
            (Self::Outside(left), Self::Number) | (Self::Number, Self::Outside(left)) => Self::Outside(left),
            (Self::Number, Self::Number) => Self::Number,
            _ => Self::Unknown,
        }
    }

    /// Of arithmetic that keeps numbers numbers and makes no address of anything.
    fn number_with(self, other: Self) -> Self {
        match self.plus(other) {
            Self::Outside(_) => Self::Unknown,
            origin => origin,
        }
    }

    fn minus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number, Self::Outside(_)) => Self::Unknown,
            _ => self.plus(other),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Known(Origin),
    Register(usize),
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    /// The first or the second.
    Either,
    Sum,
    Difference,
    /// The first times the second, plus the third.
    MultiplyAdd,
    /// Other arithmetic of the first and the second.
    Arithmetic,
}

#[derive(Debug)]
struct Definition {
    register: usize,
    rule: Rule,
    sources: [Source; 3],
}

/// The definitions of a function's registers.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    all: Vec<Definition>,
}

const UNKNOWN: Source = Source::Known(Origin::Unknown);
const NUMBER: Source = Source::Known(Origin::Number);

impl Definitions {
    fn define(&mut self, register: usize, rule: Rule, sources: [Source; 3]) {
        self.all.push(Definition {
            register,
            rule,
            sources,
        });
    }

    fn unknown<'a>(&mut self, operand: &Operand<'a>, names: &mut Names<'a>) {
        match operand {
            Operand::Name(name) | Operand::Element(name) => {
                if let Some(Meaning::Register { id, .. }) = names.find(name) {
                    self.define(id, Rule::Either, [UNKNOWN; 3]);
                }
            }
            Operand::Group(parts) => parts.iter().for_each(|part| self.unknown(part, names)),
            Operand::Number(_) | Operand::Address(_) => {}
        }
    }

    /// Notes what an instruction does to registers. What it defines stands first, in PTX without exception.
    pub(crate) fn note<'a>(&mut self, instruction: &Instruction<'a>, names: &mut Names<'a>) {
        let Some(first) = instruction.operands.first() else {
            return;
        };
        let Operand::Name(name) = first else {
            return self.unknown(first, names);
        };
        let Some(Meaning::Register { id, bits }) = names.find(name) else {
            return;
        };
        if bits <= 32 {
            return;
        }
        let mut source = |at: usize| match instruction.operands.get(at) {
            Some(Operand::Name(name)) => match names.find(name) {
                Some(Meaning::Register { bits: 1..=32, .. }) => NUMBER,
                Some(Meaning::Register { id, .. }) => Source::Register(id),
                Some(Meaning::Variable(Space::Other)) | None => UNKNOWN,
                Some(Meaning::Variable(space)) => Source::Known(Origin::Outside(space.into())),
            },
            Some(Operand::Number(text))
                if text
                    .trim_start_matches(['-', '+'])
                    .starts_with(|c: char| c.is_ascii_digit()) =>
            {
                NUMBER
            }
            _ => UNKNOWN,
        };
        let (a, b, c) = (source(1), source(2), source(3));
        let (rule, sources) = rule(instruction, a, b, c);
        self.define(id, rule, sources);
    }

    /// Notes that a caller defines a register.
    pub(crate) fn note_parameter<'a>(&mut self, name: &'a str, names: &mut Names<'a>) {
        self.unknown(&Operand::Name(name), names);
    }

    /// The origins of all registers. Each of them changes three times at most, and what depends on it is looked at again then.
    pub(crate) fn origins(&self, registers: usize) -> Vec<Origin> {
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); registers];
        for (at, definition) in self.all.iter().enumerate() {
            for source in definition.sources {
                if let Source::Register(register) = source {
                    users[register].push(at);
                }
            }
        }
        // A register that nothing defines has any value.
        let mut origins = vec![Origin::Unknown; registers];
        for definition in &self.all {
            origins[definition.register] = Origin::Undefined;
        }
        let mut waiting: Vec<usize> = (0..self.all.len()).collect();
        while let Some(at) = waiting.pop() {
            let definition = &self.all[at];
            let before = origins[definition.register];
            let after = before.or(definition.value(&origins));
            if after != before {
                origins[definition.register] = after;
                waiting.extend(&users[definition.register]);
            }
        }
        origins
    }
}

impl Definition {
    fn value(&self, origins: &[Origin]) -> Origin {
        let [a, b, c] = self.sources.map(|source| match source {
            Source::Known(origin) => origin,
            Source::Register(register) => origins[register],
        });
        match self.rule {
            Rule::Either => a.or(b),
            Rule::Sum => a.plus(b),
            Rule::Difference => a.minus(b),
            Rule::MultiplyAdd => a.number_with(b).plus(c),
            Rule::Arithmetic => a.number_with(b),
        }
    }
}

/// How an instruction's result follows from its operands.
fn rule(instruction: &Instruction<'_>, a: Source, b: Source, c: Source) -> (Rule, [Source; 3]) {
    let outside = |left| (Rule::Either, [Source::Known(Origin::Outside(left)); 3]);
    let one_of = |a, b| (Rule::Either, [a, b, a]);
    let mut modifiers = instruction.modifiers();
    // `cvta.shared.u64`, `cvta.to.shared.u64`
    let first = modifiers.next().unwrap_or_default();
    match instruction.name() {
        "mov" => one_of(a, a),
        "selp" => one_of(a, b),
        "cvta" => match Space::named(first) {
            None | Some(Space::Global) => one_of(a, a),
            Some(space) => outside(space.into()),
        },
        // A size below 64 bits is the operand's register's.
        "cvt" if !instruction.has("f32") && !instruction.has("f64") && !instruction.has("sat") => one_of(a, a),
        "add" => (Rule::Sum, [a, b, a]),
        // Compilers write so where the bits are known to be different ones.
        "or" => (Rule::Sum, [a, b, a]),
        "sub" => (Rule::Difference, [a, b, a]),
        "mad" if first == "wide" => (Rule::MultiplyAdd, [NUMBER, NUMBER, c]),
        "mad" if first == "lo" => (Rule::MultiplyAdd, [a, b, c]),
        "mul" if first == "wide" => one_of(NUMBER, NUMBER),
        "mul" if first == "lo" => (Rule::Arithmetic, [a, b, a]),
        "shl" | "shr" | "and" | "xor" | "min" | "max" | "div" | "rem" => (Rule::Arithmetic, [a, b, a]),
        "neg" | "not" | "abs" => (Rule::Arithmetic, [a, a, a]),
        // Places in another block's shared memory, and on the stack.
        "mapa" => outside(Left::Shared),
        "alloca" => outside(Left::Local),
        _ => one_of(UNKNOWN, UNKNOWN),
    }
}
