//! Which instructions access memory, and which of them can be looked up.

use std::fmt;

use crate::model::{Address, Instruction, Operand, Space, number};

/// An access that is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// `ld`, `ldu`
    Load,
    /// `st`
    Store,
    /// `atom`
    Atomic,
    /// `red`
    Reduction,
    /// `cp.async`
    Copy,
    /// `prefetch`, `applypriority`
    Prefetch,
    /// `discard`: it may change what is there.
    Discard,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Load,
        Self::Store,
        Self::Atomic,
        Self::Reduction,
        Self::Copy,
        Self::Prefetch,
        Self::Discard,
    ];

    /// Whether the page may differ afterwards.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Store | Self::Atomic | Self::Reduction | Self::Discard)
    }

    /// Whether the page's bytes are read.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Load | Self::Atomic | Self::Reduction | Self::Copy)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Load => "loads",
            Self::Store => "stores",
            Self::Atomic => "atomics",
            Self::Reduction => "reductions",
            Self::Copy => "async copies",
            Self::Prefetch => "prefetches",
            Self::Discard => "discards",
        })
    }
}

/// Why an instruction keeps its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Left {
    /// Shared memory, also of the cluster.
    Shared,
    /// Local memory.
    Local,
    /// Constant memory.
    Const,
    /// Parameters.
    Param,
    /// A variable of the module.
    Variable,
    /// Not global memory, one of several spaces.
    NotGlobal,
    /// `cp.async.bulk` and its family: one instruction copies more than a page's part.
    Bulk,
    /// `wmma` from or to global memory: rows of a matrix lie in several pages.
    Matrix,
    /// Textures.
    Texture,
    /// Surfaces.
    Surface,
    /// `multimem`: addresses of several GPUs.
    Multimem,
    /// Descriptors of tensors and proxies.
    Descriptor,
    /// An address range in a cache policy, which is a hint.
    Policy,
    /// A call of a function whose code is not in the module.
    OutsideCall,
    /// `st.async`: done at some time after the instruction. Looked up, it is not left: a page that is pinned for it might go before.
    Asynchronous,
    /// An instruction with an address that is not known here.
    Unknown,
}

impl Left {
    /// Whether the instruction may access paged memory at its home.
    #[must_use]
    pub fn may_use_home(self) -> bool {
        match self {
            Self::Shared | Self::Local | Self::Const | Self::Param | Self::Variable | Self::NotGlobal => false,
            Self::Policy => false,
            Self::Bulk | Self::Matrix | Self::Texture | Self::Surface | Self::Multimem => true,
            Self::Descriptor | Self::OutsideCall | Self::Asynchronous | Self::Unknown => true,
        }
    }

    fn of(space: Space) -> Self {
        match space {
            Space::Shared => Self::Shared,
            Space::Local => Self::Local,
            Space::Const => Self::Const,
            Space::Param => Self::Param,
            Space::Global | Space::Register | Space::Other => Self::Variable,
        }
    }
}

impl From<Space> for Left {
    fn from(space: Space) -> Self {
        Self::of(space)
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared memory",
            Self::Local => "local memory",
            Self::Const => "constant memory",
            Self::Param => "parameters",
            Self::Variable => "variables of the module",
            Self::NotGlobal => "not global memory",
            Self::Bulk => "bulk or tensor copies",
            Self::Matrix => "matrix loads and stores",
            Self::Texture => "textures",
            Self::Surface => "surfaces",
            Self::Multimem => "multimem",
            Self::Descriptor => "descriptors",
            Self::Policy => "cache policies",
            Self::OutsideCall => "calls of code outside of the module",
            Self::Asynchronous => "asynchronous stores",
            Self::Unknown => "unknown instructions",
        })
    }
}

/// What an instruction has to do with memory.
#[derive(Debug)]
pub(crate) enum Found<'i, 'a> {
    /// Nothing.
    None,
    /// An access whose address may be paged.
    Paged(Access, &'i Address<'a>),
    /// What stays as it is, unless its address is in another space.
    Left(Left, Option<&'i Address<'a>>),
}

/// The space that an instruction names; none for generic addresses.
fn space(instruction: &Instruction<'_>) -> Option<Space> {
    instruction.modifiers().find_map(Space::named)
}

/// What an instruction has to do with memory, by its opcode.
pub(crate) fn find<'i, 'a>(instruction: &'i Instruction<'a>) -> Found<'i, 'a> {
    let mut addresses = instruction.operands.iter().filter_map(|operand| match operand {
        Operand::Address(address) => Some(address),
        _ => None,
    });
    let Some(first) = addresses.next() else {
        return Found::None;
    };
    let has = |modifier| instruction.has(modifier);
    let is_bulk = has("bulk");
    // With a barrier the address is one of the cluster's shared memory.
    let completes = instruction.modifiers().any(|found| found.starts_with("mbarrier"));
    let access = match instruction.name() {
        "ld" | "ldu" => Access::Load,
        "st" | "red" if is_bulk || completes => return Found::Left(Left::Shared, None),
        "st" => Access::Store,
        "atom" => Access::Atomic,
        "red" => Access::Reduction,
        "cp" if is_bulk => {
            let within = !has("global") && !has("tensor") && !has("prefetch");
            return Found::Left(if within { Left::Shared } else { Left::Bulk }, None);
        }
        "cp" if has("async") && !completes && !has("mbarrier") => {
            return match addresses.next() {
                Some(source) => plain(Access::Copy, source),
                None => Found::Left(Left::Unknown, None),
            };
        }
        "prefetch" if has("tensormap") => return Found::Left(Left::Descriptor, None),
        "prefetch" | "prefetchu" | "applypriority" => Access::Prefetch,
        "discard" => Access::Discard,
        other => return left(other, space(instruction), first),
    };
    match space(instruction) {
        None | Some(Space::Global) => plain(access, first),
        Some(space) => Found::Left(Left::of(space), None),
    }
}

fn plain<'i, 'a>(access: Access, address: &'i Address<'a>) -> Found<'i, 'a> {
    match address.is_plain {
        true => Found::Paged(access, address),
        false => Found::Left(Left::Unknown, Some(address)),
    }
}

/// Instructions that are never looked up.
fn left<'i, 'a>(name: &str, space: Option<Space>, address: &'i Address<'a>) -> Found<'i, 'a> {
    let reason = match (name, space) {
        ("wmma", None | Some(Space::Global)) => return Found::Left(Left::Matrix, Some(address)),
        ("tex" | "tld4", _) => Left::Texture,
        ("suld" | "sust" | "sured", _) => Left::Surface,
        ("multimem", _) => Left::Multimem,
        ("tensormap" | "fence" | "membar", _) => Left::Descriptor,
        ("createpolicy", _) => Left::Policy,
        // What these ask for is in no memory.
        ("txq" | "suq", _) => return Found::None,
        ("ldmatrix" | "stmatrix" | "mbarrier" | "cp" | "tcgen05" | "clusterlaunchcontrol", _) => Left::Shared,
        (_, Some(space @ (Space::Shared | Space::Local | Space::Const | Space::Param))) => Left::of(space),
        _ => return Found::Left(Left::Unknown, Some(address)),
    };
    Found::Left(reason, None)
}

/// What `cp.async` reads of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopySource<'a> {
    /// As many bytes as it writes.
    Whole,
    /// As many as a number or a register says; the rest is zeros.
    Bytes(&'a str),
    /// None where a predicate is true.
    IgnoredWhere(&'a str),
}

/// What `cp.async` reads; `bits`: how many the register of that name has.
pub(crate) fn copy_source<'a>(
    instruction: &Instruction<'a>,
    bits: impl FnOnce(&'a str) -> Option<u32>,
) -> CopySource<'a> {
    // Behind the two addresses and the size. A cache policy has 64 bits.
    match instruction.operands.get(3) {
        Some(Operand::Number(number)) => CopySource::Bytes(number),
        Some(Operand::Name(name)) => match bits(name) {
            Some(1) => CopySource::IgnoredWhere(name),
            Some(32) => CopySource::Bytes(name),
            _ => CopySource::Whole,
        },
        _ => CopySource::Whole,
    }
}

/// Bytes that an access reads or writes, where that is known.
pub(crate) fn bytes(instruction: &Instruction<'_>, access: Access) -> Option<u32> {
    if access == Access::Copy {
        return match instruction.operands.get(2) {
            Some(Operand::Number(text)) => number(text).filter(|bytes| matches!(bytes, 4 | 8 | 16)),
            _ => None,
        };
    }
    let bits = |modifier: &str| match modifier {
        "f16x2" | "bf16x2" => Some(32_u32),
        _ => modifier.trim_start_matches(['b', 'f', 's', 'u']).parse().ok(),
    };
    // The type, which may come before an operation.
    let bits = instruction.modifiers().filter_map(bits).last()?;
    let elements = ["v2", "v4", "v8"].iter().position(|vector| instruction.has(vector));
    let elements = elements.map_or(1, |at| 2 << at);
    (bits.is_multiple_of(8) && bits <= 128).then_some(bits / 8 * elements)
}
