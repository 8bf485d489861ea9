//! Who holds the memory that is not available.

use std::collections::HashMap;
use std::fmt;

use crate::message::{Description, Holding};
use crate::peer::Peer;
use crate::plan::Stake;
use crate::size::spell_bytes;

/// What the GPU's driver says of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverView {
    /// How much there is; nothing where it does not say.
    pub memory: Option<MemoryLeft>,
    /// What processes hold, by their numbers, in bytes; empty where it does not say.
    pub by_pid: Vec<(u32, u64)>,
}

/// Memory of a GPU in bytes, all processes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// What no tenant holds.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// Others hold the memory, and keep it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Short {
    /// What was asked for, in bytes.
    pub wanted: u64,
    /// What is available now, in bytes: what is free, where the driver says so, and what others would give.
    pub available: u64,
    /// The other tenants.
    pub holders: Vec<HolderOf>,
    /// Processes that are no tenants and what they hold, in bytes, as the driver says.
    pub others: Vec<(u32, u64)>,
    /// What is held by no tenant of these and not by the asker, in bytes: what the driver itself needs, and processes that it does not name.
    /// Nothing where the driver does not say how much is free.
    pub unnamed: Option<u64>,
}

/// A tenant that holds memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderOf {
    /// Its process.
    pub pid: u32,
    /// What it says of itself; nothing where it does not answer.
    pub says: Option<Description>,
    /// What the driver says that its process holds, in bytes, where it does.
    pub driver: Option<u64>,
    /// Why it gives no more.
    pub keeps: Keeps,
}

/// Why a tenant gives no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// It does not answer.
    Silent {
        /// Why not.
        why: String,
    },
    /// It holds no more than its minimum.
    Minimum,
    /// Its priority is higher than the asker's.
    Priority,
    /// It holds no more than the asker would then.
    Share,
    /// It was asked and gave less. All in bytes.
    GaveLess {
        /// What it was asked for.
        asked: u64,
        /// What it gave.
        gave: u64,
    },
    /// It would give this many bytes, which are not enough.
    Would {
        /// The bytes.
        bytes: u64,
    },
}

impl Keeps {
    /// Why a tenant gives nothing by the rule of shares.
    pub(crate) fn by_the_rule(stake: &Stake, asker: &Stake) -> Self {
        if stake.holding <= stake.minimum {
            Keeps::Minimum
        } else if stake.priority > asker.priority {
            Keeps::Priority
        } else {
            Keeps::Share
        }
    }
}

impl Short {
    pub(crate) fn new<'a>(
        wanted: u64,
        asker: &Stake,
        holders: impl Iterator<Item = (&'a Peer, Keeps)>,
        view: DriverView,
    ) -> Self {
        let mut by_pid: HashMap<u32, u64> = HashMap::new();
        for (pid, bytes) in view.by_pid {
            let sum = by_pid.entry(pid).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let holders: Vec<HolderOf> = holders
            .map(|(peer, keeps)| HolderOf {
                pid: peer.pid(),
                says: peer.answer.as_ref().ok().cloned(),
                driver: by_pid.get(&peer.pid()).copied(),
                keeps,
            })
            .collect();
        by_pid.remove(&std::process::id());
        for holder in &holders {
            by_pid.remove(&holder.pid);
        }
        let mut others: Vec<(u32, u64)> = by_pid.into_iter().collect();
        others.sort_unstable();
        let would = holders.iter().map(|holder| match holder.keeps {
            Keeps::Would { bytes } => bytes,
            _ => 0,
        });
        let free = view.memory.map_or(0, |memory| memory.free);
        let available = would.fold(free, u64::saturating_add);
        let named = holders
            .iter()
            .map(HolderOf::bytes)
            .chain(others.iter().map(|(_, bytes)| *bytes));
        let named = named.fold(asker.holding, u64::saturating_add);
        let held = view.memory.map(|memory| memory.total.saturating_sub(memory.free));
        Self {
            wanted,
            available,
            holders,
            others,
            unnamed: held.map(|held| held.saturating_sub(named)),
        }
    }
}

impl HolderOf {
    /// What it holds, in bytes, as far as anybody says.
    fn bytes(&self) -> u64 {
        let says = self.says.as_ref().map(|description| description.holding.total());
        says.or(self.driver).unwrap_or(0)
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wanted, available) = (spell_bytes(self.wanted), spell_bytes(self.available));
        write!(
            f,
            "{wanted} of GPU memory were asked for, and {available} are available"
        )?;
        for holder in &self.holders {
            write!(f, "; {holder}")?;
        }
        for (pid, bytes) in &self.others {
            let bytes = spell_bytes(*bytes);
            write!(
                f,
                "; pid {pid} is not a tenant, and the driver says that it holds {bytes}"
            )?;
        }
        if let Some(bytes) = self.unnamed.filter(|&bytes| bytes > 0) {
            let bytes = spell_bytes(bytes);
            write!(
                f,
                "; {bytes} are held by the driver and by processes that it does not name"
            )?;
        }
        write!(
            f,
            "; end one of them, lower a limit with `gpuvm tenants set PID --limit SIZE`, or raise this process's priority with `gpuvm tenants set {} --priority N`",
            std::process::id()
        )
    }
}

impl fmt::Display for HolderOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)?;
        if let Some(Description {
            program,
            terms,
            holding,
            ..
        }) = &self.says
        {
            write!(f, " ({program}) holds {} ({terms})", parts(holding))?;
        }
        write!(f, "{}", self.keeps)?;
        match (self.says.is_some(), self.driver) {
            (false, Some(bytes)) => write!(f, ", and the driver says that it holds {}", spell_bytes(bytes)),
            (false, None) => write!(f, ", and the driver does not say what it holds"),
            (true, _) => Ok(()),
        }
    }
}

fn parts(holding: &Holding) -> String {
    let parts = [
        (holding.frames, "in frames"),
        (holding.buffers, "in buffers"),
        (holding.other, "otherwise"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, what)| format!("{} {what}", spell_bytes(*bytes)))
        .collect();
    match parts.len() {
        0 => "nothing".to_owned(),
        _ => parts.join(" and "),
    }
}

impl fmt::Display for Keeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keeps::Silent { why } => write!(f, " does not answer ({why})"),
            Keeps::Minimum => f.write_str(" and keeps its minimum"),
            Keeps::Priority => f.write_str(" and has the higher priority"),
            Keeps::Share => f.write_str(" and holds no more than its share"),
            Keeps::GaveLess { asked, gave } => {
                let (asked, gave) = (spell_bytes(*asked), spell_bytes(*gave));
                write!(f, " and gave {gave} of {asked} that it was asked for")
            }
            Keeps::Would { bytes } => write!(f, " and would give {}", spell_bytes(*bytes)),
        }
    }
}
