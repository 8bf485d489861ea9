//! Which accesses share a look-up: neighbours of one base, as far apart as a page is long at most.
//!
//! What a register holds is followed as a number that is not known, plus a constant, from label to label. Accesses of one such number
//! are neighbours. The first of them looks up for all, so it may look for none that a branch, a call or a guard keeps from happening: its
//! entry may lie where no memory is. Accesses under several guards share where all the predicates have their values at the first access:
//! then it can tell which of the pages are used. What comes behind a branch may use what was looked up, within the range that its own
//! guard, or none, was looked up for.

use std::collections::HashMap;

use crate::access::Access;
use crate::model::{Address, Guard, Instruction, Offset, Operand, StatementKind};
use crate::names::{Meaning, Names};

/// Groups of one number that accesses may join.
const OPEN_MAX: usize = 4;
/// Guards of a group.
const PARTS_MAX: usize = 32;

/// What a register holds: an unknown number, and what is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Value {
    number: usize,
    plus: i64,
}

/// A guard, and what is known of its predicate.
#[derive(Debug, Clone, Copy)]
struct Condition<'a> {
    guard: Guard<'a>,
    /// What the predicate holds, and whether threads access where it does not.
    holds: (usize, bool),
    /// When it came to hold that.
    since: usize,
}

/// Where an access is, for its neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbour<'a> {
    /// The number that is not known.
    number: usize,
    /// What it adds to the number.
    offset: i64,
    /// What it adds to the register.
    own: i64,
    condition: Option<Condition<'a>>,
    place: Place,
}

/// Where in a function's text an access is.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// All accesses of a run happen in a thread, or none, but for their guards.
    run: usize,
    /// Names mean the same within a scope.
    scope: usize,
    /// Instructions before it.
    time: usize,
}

/// The values of a function's registers at a place of its text.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// By register, with the stretch between two labels in which they hold, and since when.
    of: Vec<(usize, Value, usize)>,
    /// What the sum of two unknown numbers is.
    sums: HashMap<(usize, usize), usize>,
    stretch: usize,
    /// When the stretch began.
    begun: usize,
    run: usize,
    scope: usize,
    time: usize,
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

    /// A statement begins. Others may come to a label with other values; names may mean something else after a declaration, in a block and
    /// behind it.
    pub(crate) fn pass(&mut self, statement: &StatementKind<'_>) {
        match statement {
            StatementKind::Label(_) => {
                self.stretch += 1;
                self.run += 1;
                self.time += 1;
                self.begun = self.time;
            }
            StatementKind::Open | StatementKind::Close | StatementKind::Declaration(_) => self.scope += 1,
            StatementKind::Instruction(_) | StatementKind::Pragma | StatementKind::Directive => {}
        }
    }

    fn set(&mut self, register: usize, value: Value, since: usize) {
        if register >= self.of.len() {
            self.of.resize(register + 1, Default::default());
        }
        self.of[register] = (self.stretch, value, since);
    }

    fn new_value(&mut self) -> Value {
        self.numbers += 1;
        let number = self.numbers;
        Value { number, plus: 0 }
    }

    fn get(&mut self, register: usize) -> Value {
        self.get_since(register).0
    }

    /// A register's value, and since when it has it.
    fn get_since(&mut self, register: usize) -> (Value, usize) {
        match self.of.get(register) {
            Some((stretch, value, since)) if *stretch == self.stretch => (*value, *since),
            _ => {
                // Nothing in this stretch has defined it.
                let value = self.new_value();
                self.set(register, value, self.begun);
                (value, self.begun)
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
    ) -> Option<Neighbour<'a>> {
        // The offset is part of an instruction again, with less than a page added: that takes 32 bits.
        let own = offset_of(address.offset).filter(|own| own.unsigned_abs() < 1 << 30)?;
        let Value { number, plus } = self.get(register);
        let condition = match guard {
            None => None,
            Some(guard) => match names.find(guard.register)? {
                Meaning::Register { id, .. } => {
                    let (value, since) = self.get_since(id);
                    let holds = (value.number, guard.negated);
                    Some(Condition { guard, holds, since })
                }
                Meaning::Variable(_) => return None,
            },
        };
        Some(Neighbour {
            number,
            offset: plus.wrapping_add(own),
            own,
            condition,
            place: Place {
                run: self.run,
                scope: self.scope,
                time: self.time,
            },
        })
    }

    /// Notes what an instruction does to registers. What it defines stands first, in PTX without exception.
    pub(crate) fn note<'a>(&mut self, instruction: &Instruction<'a>, names: &mut Names<'a>) {
        self.time += 1;
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
                    self.set(id, value, self.time);
                }
            }
            Operand::Group(parts) => parts.iter().for_each(|part| self.define(part, None, names)),
            Operand::Number(_) | Operand::Address(_) => {}
        }
    }

    /// The result of an instruction that copies a register of 64 bits, or adds a constant or another one to it.
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
            ("add", [_, Operand::Name(left), Operand::Name(right)]) => {
                let (left, right) = (self.whole(left, names)?, self.whole(right, names)?);
                return Some(self.sum(left, right));
            }
            _ => return None,
        };
        let value = self.whole(from, names)?;
        Some(Value {
            number: value.number,
            plus: value.plus.wrapping_add(plus),
        })
    }

    /// The value of a register of 64 bits.
    fn whole<'a>(&mut self, name: &'a str, names: &mut Names<'a>) -> Option<Value> {
        match names.find(name) {
            Some(Meaning::Register { id, bits: 64 }) => Some(self.get(id)),
            _ => None,
        }
    }

    /// Of two unknown numbers it is one, each time.
    fn sum(&mut self, left: Value, right: Value) -> Value {
        let both = (left.number.min(right.number), left.number.max(right.number));
        let number = match self.sums.get(&both) {
            Some(number) => *number,
            None => {
                let number = self.new_value().number;
                self.sums.insert(both, number);
                number
            }
        };
        Value {
            number,
            plus: left.plus.wrapping_add(right.plus),
        }
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
#[derive(Debug, Clone)]
pub(crate) struct Group<'a> {
    /// What the first and the last of its addresses add to the base.
    range: (i64, i64),
    /// By their guards.
    parts: Vec<Part<'a>>,
    /// The first access's.
    place: Place,
    /// What the first access's register adds to the base.
    origin: i64,
    /// Some of them load and do not store.
    pub(crate) loads: bool,
    members: usize,
    /// Its number among those with several members.
    pub(crate) number: usize,
}

/// The accesses of a group that have one guard, which the first access looks up for.
#[derive(Debug, Clone, Copy)]
struct Part<'a> {
    condition: Option<Condition<'a>>,
    range: (i64, i64),
    /// Of those that change what is there.
    stores: Option<(i64, i64)>,
}

/// Where accesses under a guard are, from the group's last address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used<'a> {
    pub(crate) guard: Option<Guard<'a>>,
    /// Bytes to the nearest one.
    pub(crate) nearest: u64,
    /// Bytes to the farthest one.
    pub(crate) farthest: u64,
}

impl Part<'_> {
    fn is_under(&self, condition: Option<Condition<'_>>) -> bool {
        self.condition.map(|own| own.holds) == condition.map(|other| other.holds)
    }
}

fn with(range: (i64, i64), offset: i64) -> (i64, i64) {
    (range.0.min(offset), range.1.max(offset))
}

impl<'a> Group<'a> {
    fn new(first: &Neighbour<'a>) -> Self {
        Self {
            range: (first.offset, first.offset),
            parts: Vec::new(),
            place: first.place,
            origin: first.offset.wrapping_sub(first.own),
            loads: false,
            members: 0,
            number: 0,
        }
    }

    /// What the last address adds to the register of the first access.
    pub(crate) fn last(&self) -> i64 {
        self.range.1.wrapping_sub(self.origin)
    }

    /// Bytes from the first address to the last one: less than a page.
    pub(crate) fn bytes(&self) -> u64 {
        // It is at least 0.
        self.range.1.abs_diff(self.range.0)
    }

    /// Where its accesses are, by their guards.
    pub(crate) fn used(&self) -> impl Iterator<Item = Used<'a>> {
        self.parts.iter().map(|part| self.used_in(part, part.range))
    }

    /// Where those are that the first access sets marks for.
    pub(crate) fn stored(&self) -> impl Iterator<Item = Used<'a>> {
        let stores = self.parts.iter().filter_map(|part| Some((part, part.stores?)));
        stores.map(|(part, range)| self.used_in(part, range))
    }

    fn used_in(&self, part: &Part<'a>, range: (i64, i64)) -> Used<'a> {
        Used {
            guard: part.condition.map(|condition| condition.guard),
            nearest: self.range.1.abs_diff(range.1),
            farthest: self.range.1.abs_diff(range.0),
        }
    }

    /// Whether what is looked up is there for an access, wherever that is in the text.
    fn covers(&self, access: &Neighbour<'_>) -> bool {
        // In all threads, or in those that the guard lets through.
        let parts = self.parts.iter();
        let mut ranges = parts.filter(|part| part.condition.is_none() || part.is_under(access.condition));
        let Some(range) = ranges.next().map(|part| part.range) else {
            return false;
        };
        let range = ranges.fold(range, |range, part| with(with(range, part.range.0), part.range.1));
        range == with(range, access.offset)
    }

    /// Whether the first access can look up for another one too.
    fn admits(&self, access: &Neighbour<'_>, page_bytes: u64) -> bool {
        let (first, last) = with(self.range, access.offset);
        // The predicate has its value at the first access, and its name means it there.
        let is_known = access
            .condition
            .is_none_or(|condition| condition.since <= self.place.time);
        let has_room = self.parts.len() < PARTS_MAX || self.parts.iter().any(|part| part.is_under(access.condition));
        access.place.run == self.place.run
            && access.place.scope == self.place.scope
            && is_known
            && has_room
            && last.abs_diff(first) < page_bytes
    }

    /// Takes one that the first access looks up for too.
    fn add(&mut self, access: &Neighbour<'a>, writes: bool) {
        let offset = access.offset;
        self.range = with(self.range, offset);
        let at = self.parts.iter().position(|part| part.is_under(access.condition));
        let at = at.unwrap_or_else(|| {
            self.parts.push(Part {
                condition: access.condition,
                range: (offset, offset),
                stores: None,
            });
            self.parts.len() - 1
        });
        let part = &mut self.parts[at];
        part.range = with(part.range, offset);
        if writes {
            part.stores = Some(part.stores.map_or((offset, offset), |stores| with(stores, offset)));
        }
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
    /// It sets the mark itself: the first access does not know whether it happens.
    pub(crate) marks_itself: bool,
}

/// Finds the groups of a function's accesses, in their order. Those without neighbours have no share.
pub(crate) fn share<'a>(
    accesses: impl Iterator<Item = Option<(Neighbour<'a>, Access)>>,
    page_bytes: u64,
) -> (Vec<Group<'a>>, Vec<Option<Share>>) {
    let mut groups: Vec<Group<'_>> = Vec::new();
    // By number, the newest last: numbers are given in order.
    let mut open: Vec<[Option<usize>; OPEN_MAX]> = Vec::new();
    let found: Vec<Option<(Neighbour<'_>, usize, bool)>> = accesses
        .map(|access| {
            let (neighbour, access) = access?;
            if open.len() <= neighbour.number {
                open.resize(neighbour.number + 1, [None; OPEN_MAX]);
            }
            let open = &mut open[neighbour.number];
            let fits = |at: &usize| {
                let group: &Group<'_> = &groups[*at];
                group.covers(&neighbour) || group.admits(&neighbour, page_bytes)
            };
            let at = open.iter().rev().flatten().copied().find(fits).unwrap_or_else(|| {
                open.rotate_left(1);
                open[OPEN_MAX - 1] = Some(groups.len());
                groups.push(Group::new(&neighbour));
                groups.len() - 1
            });
            let group = &mut groups[at];
            let is_known = group.admits(&neighbour, page_bytes);
            if is_known {
                group.add(&neighbour, access.writes());
            }
            group.loads |= access.reads() && !access.writes();
            group.members += 1;
            Some((neighbour, at, access.writes() && !is_known))
        })
        .collect();
    let shared = groups.iter_mut().filter(|group| group.members > 1);
    shared.enumerate().for_each(|(number, group)| group.number = number);
    let mut was_seen = vec![false; groups.len()];
    let shares = found.into_iter().map(|found| {
        let (neighbour, at, marks_itself) = found?;
        let group = &groups[at];
        let share = Share {
            group: at,
            is_first: !std::mem::replace(&mut was_seen[at], true),
            below: group.range.1.abs_diff(neighbour.offset),
            offset: neighbour.offset.wrapping_sub(group.origin),
            marks_itself,
        };
        (group.members > 1).then_some(share)
    });
    let shares = shares.collect();
    (groups, shares)
}

/// How many groups have several members.
pub(crate) fn shared(groups: &[Group<'_>]) -> usize {
    groups.iter().filter(|group| group.members > 1).count()
}
