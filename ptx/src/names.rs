//! Which declaration a name means: blocks hide the names around them.

use std::collections::HashMap;

use crate::model::{Declaration, Space};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A register.
    Register {
        /// One for each register of a function.
        id: usize,
        /// Its size.
        bits: u32,
    },
    /// A variable.
    Variable(Space),
}

#[derive(Debug, Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Meaning>,
    /// `%r<5>`: the count and the bits, by what comes before the number.
    families: HashMap<&'a str, (u32, u32)>,
}

/// The names that are visible at a place of the text.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
    registers: usize,
}

impl<'a> Names<'a> {
    /// With those of the module.
    pub(crate) fn new<'d>(variables: impl Iterator<Item = &'d Declaration<'a>>) -> Self
    where
        'a: 'd,
    {
        let scopes = vec![Scope::default()];
        let mut names = Self { scopes, registers: 0 };
        variables.for_each(|declaration| names.declare(declaration));
        names
    }

    /// Registers that were found so far: their numbers are below this.
    pub(crate) fn registers(&self) -> usize {
        self.registers
    }

    pub(crate) fn open(&mut self) {
        self.scopes.push(Scope::default());
    }

    /// Ends the innermost block.
    pub(crate) fn close(&mut self) {
        self.scopes.pop();
    }

    /// Forgets the registers of a function.
    pub(crate) fn end_function(&mut self) {
        self.scopes.truncate(1);
        self.registers = 0;
    }

    fn new_register(&mut self, bits: u32) -> Meaning {
        let id = self.registers;
        self.registers += 1;
        Meaning::Register { id, bits }
    }

    pub(crate) fn declare(&mut self, declaration: &Declaration<'a>) {
        for declared in &declaration.names {
            let meaning = match (declaration.space, declared.count) {
                (Space::Register, Some(count)) => {
                    if let Some(scope) = self.scopes.last_mut() {
                        scope.families.insert(declared.name, (count, declaration.bits));
                    }
                    continue;
                }
                (Space::Register, None) => self.new_register(declaration.bits),
                (space, _) => Meaning::Variable(space),
            };
            if let Some(scope) = self.scopes.last_mut() {
                scope.names.insert(declared.name, meaning);
            }
        }
    }

    /// What a name means here.
    pub(crate) fn find(&mut self, name: &'a str) -> Option<Meaning> {
        let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = &name[family.len()..];
        let number: Option<u32> = number
            .parse()
            .ok()
            .filter(|_| number == "0" || !number.starts_with('0'));
        for at in (0..self.scopes.len()).rev() {
            if let Some(meaning) = self.scopes[at].names.get(name) {
                return Some(*meaning);
            }
            let (Some(number), Some((count, bits))) = (number, self.scopes[at].families.get(family).copied()) else {
                continue;
            };
            if number < count {
                let meaning = self.new_register(bits);
                self.scopes[at].names.insert(name, meaning);
                return Some(meaning);
            }
        }
        None
    }
}
