//! Which accesses share a look-up: neighbours of one base, as far apart as a page is long at most, of which the later ones happen
//! whenever the first one does.
//!
//! What a register holds is followed as a number that is not known, plus a constant, from label to label. Accesses of one such number
//! are neighbours. The first of them looks up for all, so it may look for none that a branch, a call or another guard could keep from
//! happening: its entry may lie where no memory is. Those may use what was looked up, within its range.

use std::collections::HashMap;

use crate::access::Access;
use crate::model::{Address, Guard, Instruction, Offset, Operand};
use crate::names::{Meaning, Names};

/// What a register holds: an unknown number, and what is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Value {
    number: usize,
    plus: i64,
}

/// What accesses have to have in common: an unknown number, and the guard with what its predicate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Base {
    number: usize,
    guard: Option<(usize, bool)>,
}

/// Where an access is, for its neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbour {
    base: Base,
    /// What it adds to the number.
    offset: i64,
    /// What it adds to the register.
    own: i64,
    /// All accesses of a run happen, or none.
    run: usize,
}

/// The values of a function's registers at a place of its text.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// By register, with the stretch between two labels in which they hold.
    of: Vec<(usize, Value)>,
    stretch: usize,
    run: usize,
    numbers: usize,
}

impl Values {
    /// For a function that begins.
    pub(crate) fn new() -> Self {
        Self {
            stretch: 1,
            ..Self::default()
        }
    }

    /// Others may come here with other values.
    pub(crate) fn label(&mut self) {
        self.stretch += 1;
        self.run += 1;
    }

    fn set(&mut self, register: usize, value: Value) {
        if register >= self.of.len() {
            self.of.resize(register + 1, Default::default());
        }
        self.of[register] = (self.stretch, value);
    }

    fn new_value(&mut self) -> Value {
        self.numbers += 1;
        let number = self.numbers;
        Value { number, plus: 0 }
    }

    fn get(&mut self, register: usize) -> Value {
        match self.of.get(register) {
            Some((stretch, value)) if *stretch == self.stretch => *value,
            _ => {
                let value = self.new_value();
                self.set(register, value);
                value
            }
        }
    }

    /// Where an access by a register is; none for offsets that are no plain numbers.
    pub(crate) fn neighbour<'a>(
        &mut self,
        register: usize,
        address: &Address<'a>,
        guard: Option<Guard<'a>>,
        names: &mut Names<'a>,
    ) -> Option<Neighbour> {
        // The offset is part of an instruction again, with less than a page added: that takes 32 bits.
        let own = offset_of(address.offset).filter(|own| own.unsigned_abs() < 1 << 30)?;
        let Value { number, plus } = self.get(register);
        let guard = match guard {
            None => None,
            Some(Guard { register, negated }) => match names.find(register)? {
                Meaning::Register { id, .. } => Some((self.get(id).number, negated)),
                Meaning::Variable(_) => return None,
            },
        };
        Some(Neighbour {
            base: Base { number, guard },
            offset: plus.wrapping_add(own),
            own,
            run: self.run,
        })
    }

    /// Notes what an instruction does to registers. What it defines stands first, in PTX without exception.
    pub(crate) fn note<'a>(&mut self, instruction: &Instruction<'a>, names: &mut Names<'a>) {
        if matches!(instruction.name(), "bra" | "brx" | "call" | "ret" | "exit" | "trap") {
            self.run += 1;
        }
        if let Some(first) = instruction.operands.first() {
            let value = self.result(instruction, names);
            self.define(first, value, names);
        }
    }

    fn define<'a>(&mut self, operand: &Operand<'a>, value: Option<Value>, names: &mut Names<'a>) {
        match operand {
            Operand::Name(name) | Operand::Element(name) => {
                if let Some(Meaning::Register { id, .. }) = names.find(name) {
                    let value = value.unwrap_or_else(|| self.new_value());
                    self.set(id, value);
                }
            }
            Operand::Group(parts) => parts.iter().for_each(|part| self.define(part, None, names)),
            Operand::Number(_) | Operand::Address(_) => {}
        }
    }

    /// The result of an instruction that copies a register of 64 bits or adds a constant to it.
    fn result<'a>(&mut self, instruction: &Instruction<'a>, names: &mut Names<'a>) -> Option<Value> {
        let is_whole = matches!(
            instruction.opcode,
            "mov.b64" | "mov.u64" | "mov.s64" | "add.s64" | "add.u64" | "sub.s64" | "sub.u64"
        );
        if !is_whole || instruction.guard.is_some() {
            return None;
        }
        let (from, plus) = match (instruction.name(), instruction.operands.as_slice()) {
            ("mov", [_, Operand::Name(from)]) => (from, 0),
            ("add", [_, Operand::Name(from), Operand::Number(text)]) => (from, number(text)?),
            ("sub", [_, Operand::Name(from), Operand::Number(text)]) => (from, number(text)?.wrapping_neg()),
            _ => return None,
        };
        let Some(Meaning::Register { id, bits: 64 }) = names.find(from) else {
            return None;
        };
        let value = self.get(id);
        Some(Value {
            number: value.number,
            plus: value.plus.wrapping_add(plus),
        })
    }
}

fn offset_of(offset: Option<Offset<'_>>) -> Option<i64> {
    match offset {
        None => Some(0),
        Some(Offset { text, subtracted }) => {
            let value = number(text)?;
            Some(if subtracted { value.wrapping_neg() } else { value })
        }
    }
}

/// A number of 64 bits; none for expressions.
fn number(text: &str) -> Option<i64> {
    let (digits, is_negative) = match text.trim().strip_prefix('-') {
        Some(digits) => (digits.trim(), true),
        None => (text.trim(), false),
    };
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        // `010` is eight.
        None if digits.len() > 1 && digits.starts_with('0') => return None,
        None => digits.parse().ok()?,
    };
    Some(if is_negative {
        value.wrapping_neg().cast_signed()
    } else {
        value.cast_signed()
    })
}

/// Accesses that share a look-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// What the first and the last of its addresses add to the base.
    range: (i64, i64),
    run: usize,
    /// What the first access's register adds to the base.
    origin: i64,
    /// Some of them load and do not store.
    pub(crate) loads: bool,
    members: usize,
    /// Its number among those with several members.
    pub(crate) number: usize,
}

impl Group {
    /// What the last address adds to the register of the first access.
    pub(crate) fn last(&self) -> i64 {
        self.range.1.wrapping_sub(self.origin)
    }

    /// Bytes from the first address to the last one: less than a page.
    pub(crate) fn bytes(&self) -> u64 {
        // It is at least 0.
        self.range.1.abs_diff(self.range.0)
    }

    fn with(&self, offset: i64) -> (i64, i64) {
        (self.range.0.min(offset), self.range.1.max(offset))
    }

    fn has(&self, offset: i64) -> bool {
        self.range == self.with(offset)
    }
}

/// An access's part in a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// The group's place in the list.
    pub(crate) group: usize,
    /// It is the first one, which looks up.
    pub(crate) is_first: bool,
    /// Bytes from its address to the group's last one.
    pub(crate) below: u64,
    /// What its address adds to the register of the first access, as that was there.
    pub(crate) offset: i64,
}

/// Finds the groups of a function's accesses, in their order. Those without neighbours have no share.
pub(crate) fn share(
    accesses: impl Iterator<Item = Option<(Neighbour, Access)>>,
    page_bytes: u64,
) -> (Vec<Group>, Vec<Option<Share>>) {
    let mut groups: Vec<Group> = Vec::new();
    let mut open: HashMap<Base, usize> = HashMap::new();
    let found: Vec<Option<(Neighbour, usize)>> = accesses
        .map(|access| {
            let (neighbour, access) = access?;
            let Neighbour { base, offset, own, run } = neighbour;
            let fits = |group: &Group| {
                let (first, last) = group.with(offset);
                group.has(offset) || group.run == run && last.abs_diff(first) < page_bytes
            };
            let of_it = open.get(&base).copied().filter(|at| fits(&groups[*at]));
            // What is looked up in all threads is there under each guard.
            let of_all = Base { guard: None, ..base };
            let of_all = || open.get(&of_all).copied().filter(|at| groups[*at].has(offset));
            let at = of_it.or_else(of_all).unwrap_or_else(|| {
                groups.push(Group {
                    range: (offset, offset),
                    run,
                    origin: offset.wrapping_sub(own),
                    loads: false,
                    members: 0,
                    number: 0,
                });
                open.insert(base, groups.len() - 1);
                groups.len() - 1
            });
            let group = &mut groups[at];
            group.range = group.with(offset);
            group.loads |= access.reads() && !access.writes();
            group.members += 1;
            Some((neighbour, at))
        })
        .collect();
    let shared = groups.iter_mut().filter(|group| group.members > 1);
    shared.enumerate().for_each(|(number, group)| group.number = number);
    let mut was_seen = vec![false; groups.len()];
    let shares = found.into_iter().map(|found| {
        let (neighbour, at) = found?;
        let group = &groups[at];
        let share = Share {
            group: at,
            is_first: !std::mem::replace(&mut was_seen[at], true),
            below: group.range.1.abs_diff(neighbour.offset),
            offset: neighbour.offset.wrapping_sub(group.origin),
        };
        (group.members > 1).then_some(share)
    });
    let shares = shares.collect();
    (groups, shares)
}

/// How many groups have several members.
pub(crate) fn shared(groups: &[Group]) -> usize {
    groups.iter().filter(|group| group.members > 1).count()
}
