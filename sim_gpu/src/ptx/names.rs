//! What names mean where, and what the translated text calls them.

use std::collections::{BTreeMap, HashMap};

use gpuvm_ptx::Space;

use super::types::Type;
use super::variable::Variable;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// A register: its name and its bits.
    Register(String, u32),
    /// A variable: its space, and its address in it as an expression.
    Variable(Space, String),
}

/// Names of the blocks that are open, the innermost last.
#[derive(Default)]
pub(crate) struct Names {
    scopes: Vec<Scope>,
    /// Blocks so far.
    blocks: usize,
    /// Declarations so far.
    declared: usize,
    /// Registers that were used: by name, their bits.
    used: BTreeMap<String, u32>,
}

#[derive(Default)]
struct Scope {
    block: usize,
    names: HashMap<String, Entry>,
}

struct Entry {
    /// Of registers with numbers, how many.
    count: Option<u32>,
    named: Named,
}

/// A name as the translated text may have it.
fn clean(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.trim_start_matches(['%', '$']).chars().map(kept).collect()
}

impl Names {
    /// A block begins; its number in its function.
    pub(crate) fn open(&mut self) -> usize {
        let block = self.blocks;
        self.blocks += 1;
        self.scopes.push(Scope {
            block,
            names: HashMap::new(),
        });
        block
    }

    /// The innermost block ends.
    pub(crate) fn close(&mut self) {
        self.scopes.pop();
    }

    /// The number of the next block.
    pub(crate) fn next_block(&self) -> usize {
        self.blocks
    }

    /// Numbers of the blocks that are open, the innermost first.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = usize> {
        self.scopes.iter().rev().map(|scope| scope.block)
    }

    /// The function ends: its registers that were used, with their bits.
    pub(crate) fn end_function(&mut self) -> BTreeMap<String, u32> {
        std::mem::take(&mut self.used)
    }

    /// What the translated text calls something, which is called so nowhere else.
    pub(crate) fn fresh(&mut self, kind: char, name: &str) -> String {
        self.declared += 1;
        format!("{kind}{}_{}", self.declared, clean(name))
    }

    /// Declares registers in the innermost block.
    pub(crate) fn registers(&mut self, variable: &Variable) {
        let named = Named::Register(self.fresh('r', &variable.name), variable.ty.bits);
        self.insert(&variable.name, variable.count, named);
    }

    /// Declares a variable in the innermost block.
    pub(crate) fn variable(&mut self, name: &str, space: Space, address: String) {
        self.insert(name, None, Named::Variable(space, address));
    }

    fn insert(&mut self, name: &str, count: Option<u32>, named: Named) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name.to_owned(), Entry { count, named });
        }
    }

    /// What a name means here. A register counts as used.
    pub(crate) fn find(&mut self, name: &str) -> Option<Named> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.find(name))?;
        if let Named::Register(register, bits) = &found {
            self.used.insert(register.clone(), *bits);
        }
        Some(found)
    }
}

impl Scope {
    fn find(&self, name: &str) -> Option<Named> {
        if let Some(entry) = self.names.get(name).filter(|entry| entry.count.is_none()) {
            return Some(entry.named.clone());
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // `%r10` may be number 10 of `%r`, or number 0 of `%r1`.
        (stem.len()..name.len()).find_map(|end| {
            let entry = self.names.get(&name[..end])?;
            let number: u32 = name[end..].parse().ok()?;
            match &entry.named {
                Named::Register(register, bits) if entry.count.is_some_and(|count| number < count) => {
                    Some(Named::Register(format!("{register}_{number}"), *bits))
                }
                _ => None,
            }
        })
    }
}

/// Declarations of registers, zero at first.
pub(crate) fn declarations(registers: &BTreeMap<String, u32>) -> String {
    let one = |(name, bits): (&String, &u32)| format!("    {} {name} = 0;\n", Type::of_register(*bits));
    registers.iter().map(one).collect()
}
