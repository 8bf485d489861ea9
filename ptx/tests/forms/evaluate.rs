//! What one thread does in rewritten text: the look-ups are carried out, and each access is noted with the address where it goes.

use std::collections::HashMap;

use gpuvm_ptx::{Instruction, Module, Operand, StatementKind, TableLayout, Window};

/// Where the entries are.
pub const ENTRIES: u64 = 0x7000_0000_0000;
/// Where the marks are.
pub const MARKS: u64 = 0x7100_0000_0000;
/// Where the window is: pages of 4 KiB, whose numbers need all of 32 bits.
pub const BASE: u64 = 0x7200_0000_0000;
/// Its pages.
pub const PAGES: u64 = 7 << 29;
/// Base-two logarithm of the pages' size.
pub const SHIFT: u32 = 12;
/// Where pages with an even number are: in frames. Others are at home.
pub const FRAMES: u64 = 0x0050_0000_0000_0000;
/// Homes, which begin at no page.
pub const HOMES: u64 = 0x0060_0000_0000_0040;

/// What a thread did to memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A page's mark was set.
    Marked(u64),
    /// An instruction accessed an address.
    Access(String, u64),
}

/// One thread, which runs through a module's first body without a branch.
#[derive(Debug, Default)]
pub struct Thread {
    registers: HashMap<String, u64>,
    predicates: HashMap<String, bool>,
    borrow: bool,
    /// Entries have flags.
    pub flags: bool,
    /// Pages whose entries it read.
    pub looked_up: Vec<u64>,
    /// What it did to memory that is not the table's.
    pub events: Vec<Event>,
}

/// Where a byte of the window is.
pub fn place(address: u64) -> u64 {
    let (page, offset) = ((address - BASE) >> SHIFT, (address - BASE) & ((1 << SHIFT) - 1));
    let pages = if page.is_multiple_of(2) { FRAMES } else { HOMES };
    // In an order of their own, so that no other page's entry would do.
    let slot = page.wrapping_mul(0x9e37_79b1) % PAGES;
    pages + (slot << SHIFT) + offset
}

/// Something that no right text does.
type Wrong = String;

impl Thread {
    /// With registers and predicates.
    pub fn new(registers: &[(&str, u64)], predicates: &[(&str, bool)]) -> Self {
        Self {
            registers: registers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            predicates: predicates
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            ..Self::default()
        }
    }

    /// Runs the text.
    pub fn run(&mut self, text: &str) -> Result<(), Wrong> {
        let module = Module::parse(text).map_err(|error| error.to_string())?;
        let bodies = module.functions().filter_map(|function| function.body.as_ref());
        for statement in bodies.flatten() {
            if let StatementKind::Instruction(instruction) = &statement.kind {
                self.step(instruction)?;
            }
        }
        Ok(())
    }

    fn predicate(&self, name: &str) -> bool {
        let (name, negated) = name.strip_prefix('!').map_or((name, false), |name| (name, true));
        self.predicates.get(name).copied().unwrap_or(false) != negated
    }

    fn value(&self, operand: &Operand<'_>) -> Result<u64, Wrong> {
        match operand {
            Operand::Name(name) => Ok(self.registers.get(*name).copied().unwrap_or(0)),
            Operand::Number(text) => number(text).ok_or_else(|| format!("{text} is no number")),
            other => Err(format!("{other:?} has no value")),
        }
    }

    fn step(&mut self, instruction: &Instruction<'_>) -> Result<(), Wrong> {
        if let Some(guard) = instruction.guard
            && self.predicate(guard.register) == guard.negated
        {
            return Ok(());
        }
        let operands = &instruction.operands;
        let mut address = operands.iter().filter_map(|operand| match operand {
            Operand::Address(address) => Some(address),
            _ => None,
        });
        // Of a copy the source, which stands last.
        if let Some(address) = address.next_back() {
            let base = match self.registers.get(address.base) {
                Some(value) => *value,
                None if address.base == gpuvm_ptx::WINDOW => 0,
                None => number(address.base).unwrap_or(0),
            };
            let offset = address.offset.map_or(Some(0), |offset| {
                let value = number(offset.text)?;
                Some(if offset.subtracted { value.wrapping_neg() } else { value })
            });
            let to = base.wrapping_add(offset.ok_or("an offset that is no number")?);
            return self.access(instruction, address.base, to);
        }
        self.compute(instruction)
    }

    fn access(&mut self, instruction: &Instruction<'_>, base: &str, to: u64) -> Result<(), Wrong> {
        let mut set = |value| {
            if let Some(Operand::Name(name)) = instruction.operands.first() {
                self.registers.insert((*name).to_owned(), value);
            }
            Ok(())
        };
        if base == gpuvm_ptx::WINDOW {
            let window = Window {
                base: BASE,
                bytes: PAGES << SHIFT,
                entries: ENTRIES,
                marks: MARKS,
            };
            let length = if instruction.has("u32") { 4 } else { 8 };
            let mut bytes = [0; 8];
            bytes[..length].copy_from_slice(&window.to_bytes()[to as usize..][..length]);
            return set(u64::from_le_bytes(bytes));
        }
        let in_entries = (ENTRIES..ENTRIES + PAGES * 8).contains(&to);
        if instruction.opcode == "ld.global.nc.u64" && base == "%gpuvm_t" {
            if !in_entries || !to.is_multiple_of(8) {
                return Err(format!("an entry at {to:#x}"));
            }
            let page = (to - ENTRIES) / 8;
            self.looked_up.push(page);
            let layout = TableLayout::new(1 << SHIFT).expect("a page size").touches(self.flags);
            let address = BASE + (page << SHIFT);
            return set(layout.entry(address, place(address), !page.is_multiple_of(2)));
        }
        if (MARKS..MARKS + PAGES).contains(&to) {
            self.events.push(Event::Marked(to - MARKS));
            return Ok(());
        }
        self.events.push(Event::Access(instruction.opcode.to_owned(), to));
        // What is loaded is an address, each time another one.
        if instruction.opcode == "ld.global.u64" {
            let accesses = self.events.iter().filter(|event| matches!(event, Event::Access(..)));
            return set(BASE + ((accesses.count() as u64) << 14));
        }
        Ok(())
    }

    fn compute(&mut self, instruction: &Instruction<'_>) -> Result<(), Wrong> {
        let operands = &instruction.operands;
        let value = |at: usize| operands.get(at).map_or(Ok(0), |operand| self.value(operand));
        let is_narrow = instruction.opcode.ends_with("32") && !instruction.has("wide");
        if let (Some(Operand::Group(halves)), "mov") = (operands.first(), instruction.name()) {
            let whole = value(1)?;
            for (half, value) in halves.iter().zip([u64::from(whole as u32), whole >> 32]) {
                if let Operand::Name(name) = half {
                    self.registers.insert((*name).to_owned(), value);
                }
            }
            return Ok(());
        }
        let (name, first) = match operands.first() {
            Some(Operand::Name(name)) => (instruction.name(), (*name).to_owned()),
            _ => return Ok(()),
        };
        if name == "setp" {
            let (a, b) = (value(1)?, value(2)?);
            let mut holds = match instruction.modifiers().next() {
                Some("lt") => a < b,
                Some("ge") => a >= b,
                _ => a != b,
            };
            if instruction.has("and") {
                holds &= match &operands[3] {
                    Operand::Name(name) | Operand::Number(name) => self.predicate(name),
                    other => return Err(format!("{other:?} is no predicate")),
                };
            }
            self.predicates.insert(first, holds);
            return Ok(());
        }
        if instruction.has("pred") {
            let holds = |at: usize| match operands.get(at) {
                Some(Operand::Name(name)) => Ok(self.predicate(name)),
                other => Err(format!("{other:?} is no predicate")),
            };
            let value = match name {
                "mov" => holds(1)?,
                "not" => !holds(1)?,
                "or" => holds(1)? || holds(2)?,
                _ => return Err(format!("{name}.pred")),
            };
            self.predicates.insert(first, value);
            return Ok(());
        }
        let value = match name {
            "selp" => match operands.get(3) {
                Some(Operand::Name(name)) if self.predicate(name) => value(1)?,
                _ => value(2)?,
            },
            "subc" => value(1)?.wrapping_sub(value(2)?).wrapping_sub(u64::from(self.borrow)),
            "mov" | "cvta" | "cvt" => value(1)?,
            "add" => value(1)?.wrapping_add(value(2)?),
            "sub" => value(1)?.wrapping_sub(value(2)?),
            "and" => value(1)? & value(2)?,
            "shl" => value(1)? << value(2)?,
            "shr" => value(1)? >> value(2)?,
            "shf" => (value(1)? | value(2)? << 32) >> value(3)?,
            "mad" => value(1)?.wrapping_mul(value(2)?).wrapping_add(value(3)?),
            _ => return Ok(()),
        };
        if instruction.has("cc") {
            self.borrow = self.value(&operands[1])? < self.value(&operands[2])?;
        }
        let value = if is_narrow { u64::from(value as u32) } else { value };
        self.registers.insert(first, value);
        Ok(())
    }
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let (text, negated) = text.strip_prefix('-').map_or((text, false), |text| (text, true));
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    Some(if negated { value.wrapping_neg() } else { value })
}
