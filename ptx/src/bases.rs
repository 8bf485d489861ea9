//! Whether a kernel, as it was written, may be given where arrays lie as plain memory, in place of their addresses in the window: a data
//! flow that says on which parameters each address is based, and whether an address of an array goes to memory, from where later launches
//! would take it though the array lies elsewhere by then.
//!
//! An address that is the sum of an array's address and anything else is taken for one in that array.

use crate::access::{Access, Left};
use crate::model::{Instruction, Operand, Space};
use crate::names::{Meaning, Names};

/// Parameters by their numbers, a bit each.
type Mask = u64;
/// More ways than that to come to a value are not told apart.
const WAYS: usize = 6;

/// What a value of 64 bits may be: the parameters of which it is a sum, for each way to come to it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// By each of these.
    Sums(Vec<Mask>),
    /// By too many ways, of these parameters or none.
    Any(Mask),
}

impl Value {
    fn one(mask: Mask) -> Self {
        Self::Sums(vec![mask])
    }

    /// Of a value that nothing defines yet.
    fn none() -> Self {
        Self::Sums(Vec::new())
    }

    /// All parameters that it may have to do with.
    fn all(&self) -> Mask {
        match self {
            Self::Sums(ways) => ways.iter().fold(0, |all, way| all | way),
            Self::Any(mask) => *mask,
        }
    }

    fn of(mut ways: Vec<Mask>) -> Self {
        ways.sort_unstable();
        ways.dedup();
        match ways.len() <= WAYS {
            true => Self::Sums(ways),
            false => Self::Any(ways.iter().fold(0, |all, way| all | way)),
        }
    }

    fn or(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Sums(a), Self::Sums(b)) => Self::of([&a[..], b].concat()),
            _ => Self::Any(self.all() | other.all()),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Sums(a), Self::Sums(b)) => Self::of(a.iter().flat_map(|a| b.iter().map(move |b| a | b)).collect()),
            _ => Self::Any(self.all() | other.all()),
        }
    }
}

/// How a register's value follows from others.
#[derive(Debug)]
struct Definition {
    register: usize,
    how: How,
    sources: Vec<Source>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    OneOf,
    Sum,
    /// Less the second, which may take an address that came from memory to another array.
    Difference,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Parameters(Mask),
    Register(usize),
}

/// An access of a kernel, by the register with its address.
#[derive(Debug)]
struct Based {
    register: Option<usize>,
    writes: bool,
}

/// What is known of a kernel while it is read.
#[derive(Debug, Default)]
pub(crate) struct Bases<'a> {
    parameters: Vec<&'a str>,
    definitions: Vec<Definition>,
    accesses: Vec<Based>,
    /// Registers whose values go to memory, or to other functions.
    escapes: Vec<usize>,
    /// Something is not understood.
    is_lost: bool,
}

/// On which of its parameters the accesses of a kernel are based: [`FunctionReport::bases`](crate::FunctionReport::bases). Parameters are bits
/// by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessBases {
    /// Of each way to come to an access's address that differs from the others: the parameters of which it is a sum.
    pub accesses: Vec<u64>,
    /// Those on which stores, atomics and reductions are based.
    pub writes: u64,
    /// Those whose value goes to memory.
    pub escapes: u64,
}

impl AccessBases {
    /// Whether the kernel may write what the parameter of that number names.
    #[must_use]
    pub fn writes(&self, parameter: usize) -> bool {
        parameter < Mask::BITS as usize && self.writes >> parameter & 1 != 0
    }

    /// Whether a launch may give the kernel where its arrays lie as plain memory. `arrays`: the parameters for which it has arrays. `pointers`:
    /// those for which it has other addresses.
    #[must_use]
    pub fn allow(&self, arrays: u64, pointers: u64) -> bool {
        self.escapes & arrays == 0 && self.accesses.iter().all(|way| way & (arrays | pointers) != 0)
    }
}

impl<'a> Bases<'a> {
    /// Of a kernel with these parameters.
    pub(crate) fn new(parameters: impl Iterator<Item = &'a str>) -> Self {
        let parameters: Vec<_> = parameters.collect();
        Self {
            is_lost: parameters.len() > Mask::BITS as usize,
            parameters,
            ..Self::default()
        }
    }

    fn mask(&self, name: &str) -> Option<Mask> {
        self.parameters
            .iter()
            .position(|known| *known == name)
            .map(|at| 1 << at)
    }

    /// Notes an access; of one that is left alone why.
    pub(crate) fn access(&mut self, access: std::result::Result<Access, Left>, register: Option<usize>) {
        match access {
            Ok(access) => self.accesses.push(Based {
                register,
                writes: access.writes(),
            }),
            Err(left) => self.is_lost |= left.may_use_home(),
        }
    }

    /// Notes what an instruction does to registers of 64 bits, and which of them it stores.
    pub(crate) fn note(&mut self, instruction: &Instruction<'a>, names: &mut Names<'a>) {
        let mut operands = instruction.operands.iter();
        let name = instruction.name();
        match name {
            // Another function may do anything.
            "call" => return self.is_lost = true,
            "st" | "red" | "sust" | "multimem" => return operands.for_each(|operand| self.escape(operand, names)),
            _ => {}
        }
        let Some(first) = operands.next() else { return };
        if matches!(first, Operand::Group(_)) && name == "mov" {
            // In parts it is not followed any more.
            operands.clone().for_each(|operand| self.escape(operand, names));
        }
        if name == "atom" {
            operands.for_each(|operand| self.escape(operand, names));
            return self.define(first, How::Sum, &[Source::Parameters(0)], names);
        }
        let sources = match (name, instruction.operands.get(1)) {
            ("ld", Some(Operand::Address(address)))
                if instruction.modifiers().any(|m| Space::named(m) == Some(Space::Param)) =>
            {
                vec![Source::Parameters(self.mask(address.base).unwrap_or(0))]
            }
            ("ld" | "ldu", _) => vec![Source::Parameters(0)],
            _ => {
                let mut sources = Vec::new();
                // Behind the two values of a choice there is the predicate.
                let values = if matches!(name, "selp" | "slct") { 2 } else { usize::MAX };
                let values = operands.take(values);
                values.for_each(|operand| self.sources(operand, names, &mut sources));
                sources
            }
        };
        let how = match name {
            "selp" | "mov" | "min" | "max" | "slct" => How::OneOf,
            "sub" => How::Difference,
            _ => How::Sum,
        };
        self.define(first, how, &sources, names);
    }

    fn sources(&self, operand: &Operand<'a>, names: &mut Names<'a>, into: &mut Vec<Source>) {
        match operand {
            Operand::Name(name) => match names.find(name) {
                Some(Meaning::Register { id, bits: 64.. }) => into.push(Source::Register(id)),
                // The address of a parameter: who reads through it is not followed.
                Some(Meaning::Variable(Space::Param)) => into.push(Source::Parameters(self.mask(name).unwrap_or(0))),
                _ => into.push(Source::Parameters(0)),
            },
            Operand::Group(parts) => parts.iter().for_each(|part| self.sources(part, names, into)),
            Operand::Element(_) | Operand::Number(_) | Operand::Address(_) => into.push(Source::Parameters(0)),
        }
    }

    fn define(&mut self, operand: &Operand<'a>, how: How, sources: &[Source], names: &mut Names<'a>) {
        match operand {
            Operand::Name(name) | Operand::Element(name) => {
                if let Some(Meaning::Register { id, bits: 64.. }) = names.find(name) {
                    self.definitions.push(Definition {
                        register: id,
                        how,
                        sources: sources.to_vec(),
                    });
                }
            }
            Operand::Group(parts) => parts.iter().for_each(|part| self.define(part, how, sources, names)),
            Operand::Number(_) | Operand::Address(_) => {}
        }
    }

    fn escape(&mut self, operand: &Operand<'a>, names: &mut Names<'a>) {
        match operand {
            Operand::Name(name) => {
                if let Some(Meaning::Register { id, bits: 64.. }) = names.find(name) {
                    self.escapes.push(id);
                }
            }
            Operand::Group(parts) => parts.iter().for_each(|part| self.escape(part, names)),
            Operand::Element(_) | Operand::Number(_) | Operand::Address(_) => {}
        }
    }

    /// What is known at the end, of this many registers. None: the kernel has to look pages up.
    pub(crate) fn end(self, registers: usize) -> Option<AccessBases> {
        if self.is_lost {
            return None;
        }
        let values = self.values(registers);
        let mut found = AccessBases::default();
        for access in &self.accesses {
            // A variable of the module has a place of its own.
            let Some(register) = access.register else { continue };
            match &values[register] {
                Value::Sums(ways) if !ways.is_empty() => found.accesses.extend(ways),
                _ => return None,
            }
            if access.writes {
                found.writes |= values[register].all();
            }
        }
        found.accesses.sort_unstable();
        found.accesses.dedup();
        found.escapes = self
            .escapes
            .iter()
            .fold(0, |all, &register| all | values[register].all());
        Some(found)
    }

    fn values(&self, registers: usize) -> Vec<Value> {
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); registers];
        for (at, definition) in self.definitions.iter().enumerate() {
            for source in &definition.sources {
                if let Source::Register(register) = *source {
                    users[register].push(at);
                }
            }
        }
        let mut values = vec![Value::none(); registers];
        let mut waiting: Vec<usize> = (0..self.definitions.len()).rev().collect();
        while let Some(at) = waiting.pop() {
            let definition = &self.definitions[at];
            let after = values[definition.register].or(&definition.value(&values));
            if after != values[definition.register] {
                values[definition.register] = after;
                waiting.extend(&users[definition.register]);
            }
        }
        values
    }
}

impl Definition {
    fn value(&self, values: &[Value]) -> Value {
        let mut sources = self.sources.iter().map(|source| match *source {
            Source::Parameters(mask) => Value::one(mask),
            Source::Register(register) => values[register].clone(),
        });
        let joined = match self.how {
            How::Sum => sources.reduce(|all, one| all.plus(&one)),
            How::OneOf => sources.reduce(|all, one| all.or(&one)),
            How::Difference => sources.next().map(|from| {
                let less = sources.next().unwrap_or_else(|| Value::one(0));
                match &from {
                    Value::Sums(ways) if ways.contains(&0) && less.all() != 0 => Value::Any(less.all() | from.all()),
                    _ => from.plus(&less),
                }
            }),
        };
        joined.unwrap_or_else(|| Value::one(0))
    }
}
