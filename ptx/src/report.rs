//! What was done with a module, function by function.

use std::collections::BTreeMap;
use std::fmt;

use crate::access::{Access, Left};
use crate::bases::AccessBases;
use crate::error::Position;
use crate::model::{Function, Module, Parameter};

/// Places that are listed for one reason in the printed report.
const PLACES_SHOWN: usize = 5;

/// What was done with a module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Its kernels and functions that have a body, in the text's order.
    pub functions: Vec<FunctionReport>,
}

/// What was done with a kernel or a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Whether the host can launch it.
    pub is_entry: bool,
    /// The name of its second form, if it has one: [`TableLayout::both_forms`](crate::TableLayout::both_forms).
    pub quiet: Option<String>,
    /// Its parameters in order, of one that the host can launch.
    pub params: Vec<Parameter>,
    /// Accesses that are looked up now, in the text's order.
    pub changed: Vec<Changed>,
    /// Instructions with addresses that stayed as they were, in the text's order.
    pub left: Vec<LeftAlone>,
    /// Look-ups that they make: neighbours share one.
    pub look_ups: usize,
    /// Of a kernel: on which parameters its accesses are based, for launches over plain memory, which may run the text as it was. None where that
    /// was not found out.
    pub bases: Option<AccessBases>,
}

/// An access that is looked up now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Where it was in the given text.
    pub at: Position,
    /// What it does.
    pub access: Access,
}

/// An instruction that kept its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftAlone {
    /// Where it was in the given text.
    pub at: Position,
    /// Why.
    pub why: Left,
    /// The instruction's name with its modifiers.
    pub opcode: String,
}

impl Report {
    /// Accesses that are looked up now.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.functions.iter().map(|function| function.changed.len()).sum()
    }

    /// Whether some instruction may access paged memory past the table, at its home: dirty frames have to be written back before a
    /// launch, and frames dropped after it.
    #[must_use]
    pub fn may_use_home(&self) -> bool {
        self.functions.iter().any(FunctionReport::may_use_home)
    }
}

impl FunctionReport {
    /// Of a function in which nothing was looked at yet.
    pub(crate) fn of<'a>(module: &Module<'a>, function: &Function<'a>) -> Self {
        Self {
            name: function.name.to_owned(),
            is_entry: function.is_entry,
            params: module.parameters(function),
            changed: Vec::new(),
            left: Vec::new(),
            look_ups: 0,
            quiet: None,
            bases: None,
        }
    }

    /// As [`Report::may_use_home`], of this function's own instructions.
    #[must_use]
    pub fn may_use_home(&self) -> bool {
        self.left.iter().any(|left| left.why.may_use_home())
    }

    /// How many accesses of a kind are looked up now.
    #[must_use]
    pub fn count(&self, access: Access) -> usize {
        self.changed.iter().filter(|changed| changed.access == access).count()
    }
}

impl fmt::Display for FunctionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_entry { "kernel" } else { "function" };
        writeln!(
            f,
            "{kind} {}: {} accesses are looked up (look-ups: {})",
            self.name,
            self.changed.len(),
            self.look_ups
        )?;
        for access in Access::ALL {
            match self.count(access) {
                0 => {}
                count => writeln!(f, "  {access:<36} {count:>6}")?,
            }
        }
        let mut reasons: BTreeMap<Left, Vec<&LeftAlone>> = BTreeMap::new();
        for left in &self.left {
            reasons.entry(left.why).or_default().push(left);
        }
        for (why, places) in reasons {
            write!(f, "  left: {why:<30} {:>6}", places.len())?;
            if why.may_use_home() {
                let shown = places.iter().take(PLACES_SHOWN);
                let shown: Vec<_> = shown.map(|left| format!("{} ({})", left.opcode, left.at)).collect();
                let more = if places.len() > PLACES_SHOWN { ", .." } else { "" };
                write!(f, "  at home: {}{more}", shown.join(", "))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.functions.iter().try_for_each(|function| write!(f, "{function}"))
    }
}
