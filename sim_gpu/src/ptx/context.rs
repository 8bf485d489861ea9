//! What all instructions are translated with: their operands as expressions.

use gpuvm_ptx::Space;

use super::error::Why;
use super::names::{Named, Names};
use super::operand::{Operand, added, number};
use super::types::{PREDICATE, Type};

/// A statement's instruction.
#[derive(Debug)]
pub(crate) struct Instruction<'i> {
    /// `ld`
    pub(crate) name: &'i str,
    /// `global`, `u32`
    pub(crate) modifiers: Vec<&'i str>,
    pub(crate) operands: Vec<Operand>,
}

impl Instruction<'_> {
    /// Whether it is `name` with these modifiers first.
    pub(crate) fn begins(&self, key: &str) -> bool {
        let mut words = key.split('.');
        words.next() == Some(self.name) && words.clone().count() <= self.modifiers.len() && {
            std::iter::zip(words, &self.modifiers).all(|(wanted, found)| wanted == *found)
        }
    }

    /// The operand number `at`.
    pub(crate) fn operand(&self, at: usize) -> Result<&Operand, Why> {
        let missing = || Why::operands(format!("`{}` has fewer operands than it needs", self.name));
        self.operands.get(at).ok_or_else(missing)
    }

    /// There are no more operands than these.
    pub(crate) fn at_most(&self, count: usize) -> Result<(), Why> {
        match self.operands.len() <= count {
            true => Ok(()),
            false => Err(Why::unknown(format!("`{}` with so many operands", self.name))),
        }
    }

    /// The last modifier, which is a type.
    pub(crate) fn ty(&self) -> Result<Type, Why> {
        let last = self.modifiers.last().copied().unwrap_or_default();
        Type::named(last).ok_or_else(|| Why::unknown(format!("the type `{last}`")))
    }

    /// A modifier that is not known.
    pub(crate) fn unknown(&self, modifier: &str) -> Why {
        Why::unknown(format!("`{}` with `.{modifier}`", self.name))
    }
}

/// Where an instruction stands.
pub(crate) struct Context {
    pub(crate) names: Names,
    /// Whether the function uses the carry flag.
    pub(crate) carries: bool,
}

/// A register that is read alone, as an expression.
fn special(name: &str) -> Option<String> {
    let (base, part) = name.split_once('.').unwrap_or((name, ""));
    let of_place = |what: &str| matches!(part, "x" | "y" | "z").then(|| format!("{what}.{part}"));
    let all = match base {
        "%tid" => of_place("threadIdx"),
        "%ntid" => of_place("blockDim"),
        "%ctaid" | "%clusterid" => of_place("blockIdx"),
        "%nctaid" | "%nclusterid" => of_place("gridDim"),
        // A block is a cluster of its own.
        "%cluster_ctaid" => Some("0u".to_owned()),
        "%cluster_nctaid" => Some("1u".to_owned()),
        _ => None,
    };
    let text = match name {
        "%laneid" => "gpuvm_sim::lane_id()",
        "%warpid" => "thread_in_block() / 32",
        "%nwarpid" => "32u",
        "%smid" => "gpuvm_sim::sm_id()",
        "%lanemask_eq" => "1u << gpuvm_sim::lane_id()",
        "%lanemask_lt" => "(1u << gpuvm_sim::lane_id()) - 1",
        "%lanemask_le" => "(2u << gpuvm_sim::lane_id()) - 1",
        "%lanemask_ge" => "~0u << gpuvm_sim::lane_id()",
        "%lanemask_gt" => "~1u << gpuvm_sim::lane_id()",
        "%clock" => "static_cast<u32>(clock64())",
        "%clock64" => "static_cast<u64>(clock64())",
        "%clock_hi" => "static_cast<u64>(clock64()) >> 32",
        "%globaltimer" => "gpuvm_sim::globaltimer()",
        "%globaltimer_lo" => "static_cast<u32>(gpuvm_sim::globaltimer())",
        "%globaltimer_hi" => "gpuvm_sim::globaltimer() >> 32",
        "%dynamic_smem_size" => "gpuvm_sim::lane()->block->dynamic_bytes",
        "%total_smem_size" | "%aggr_smem_size" => "shared.end",
        "%cluster_ctarank" => "0u",
        "%cluster_nctarank" => "1u",
        "%is_explicit_cluster" => "false",
        _ => return all,
    };
    Some(text.to_owned())
}

impl Context {
    /// An operand that is read, as an expression of a type.
    pub(crate) fn value(&mut self, operand: &Operand, ty: Type) -> Result<String, Why> {
        let name = match operand {
            Operand::Word(word) => word,
            Operand::Not(register) if ty == PREDICATE => return Ok(format!("!{}", self.register(register, ty)?)),
            _ => return Err(Why::operands(format!("{operand:?} where one value is needed"))),
        };
        let float = (ty.is_float() && ty.bits >= 32).then_some(ty.bits);
        if let Some(bits) = number(name, float) {
            return Ok(format!("get<{}>({bits:#x}ull)", ty.name()));
        }
        if name == "WARP_SZ" {
            return Ok(format!("get<{}>(32u)", ty.name()));
        }
        if let Some(special) = special(name) {
            return Ok(format!("get<{}>({special})", ty.name()));
        }
        let (base, offset) = added(name)?;
        match self.find(&base)? {
            Named::Register(..) if offset == 0 => self.register(name, ty),
            Named::Register(..) => Err(Why::operands(format!("`{name}` where one value is needed"))),
            Named::Variable(space, _) if ty.bits < 64 && space != Space::Shared => {
                Err(Why::unknown(format!("an address in {} bits", ty.bits)))
            }
            Named::Variable(_, address) => Ok(format!("get<{}>({address} + static_cast<u64>({offset}ll))", ty.name())),
        }
    }

    fn find(&mut self, name: &str) -> Result<Named, Why> {
        self.names.find(name).ok_or_else(|| match name.starts_with('%') {
            true => Why::unknown(format!("the register `{name}`")),
            false => Why::Undeclared(name.to_owned()),
        })
    }

    fn register(&mut self, name: &str, ty: Type) -> Result<String, Why> {
        match self.find(name)? {
            Named::Register(register, bits) if bits >= ty.bits && (bits == 1) == (ty.bits == 1) => {
                Ok(format!("get<{}>({register})", ty.name()))
            }
            Named::Register(_, bits) => Err(Why::operands(format!("`{name}` has {bits} bits and not {}", ty.bits))),
            Named::Variable(..) => Err(Why::operands(format!("`{name}` is no register"))),
        }
    }

    /// A predicate by its register's name.
    pub(crate) fn predicate(&mut self, name: &str) -> Result<String, Why> {
        self.register(name, PREDICATE)
    }

    /// Gives a register a value of a type, which an expression has.
    pub(crate) fn assign(&mut self, operand: &Operand, ty: Type, expression: &str) -> Result<String, Why> {
        let Operand::Word(name) = operand else {
            return Err(Why::operands(format!("{operand:?} where one register is needed")));
        };
        if name == "_" {
            return Ok(format!("static_cast<void>({expression});"));
        }
        match self.find(name)? {
            Named::Register(register, bits) if bits >= ty.bits && (bits == 1) == (ty.bits == 1) => {
                Ok(format!("{register} = put<{}>({expression});", Type::of_register(bits)))
            }
            Named::Register(_, bits) => Err(Why::operands(format!("`{name}` has {bits} bits and not {}", ty.bits))),
            Named::Variable(..) => Err(Why::operands(format!("`{name}` is no register"))),
        }
    }

    /// Where an access of so many bytes goes: an expression of 64 bits. `space`: the instruction's, none where its address is generic.
    pub(crate) fn address(&mut self, operand: &Operand, space: Option<Space>, bytes: u32) -> Result<String, Why> {
        let Operand::Address { base, offset } = operand else {
            return Err(Why::operands(format!("{operand:?} where an address is needed")));
        };
        let added = match offset {
            0 => String::new(),
            offset => format!(" + static_cast<u64>({offset}ll)"),
        };
        let (text, own) = match number(base, None) {
            Some(bits) => (format!("{bits:#x}ull"), None),
            None => match self.find(base)? {
                Named::Register(register, bits) if bits == 64 || (bits == 32 && space == Some(Space::Shared)) => {
                    (register, None)
                }
                Named::Register(_, bits) => return Err(Why::unknown(format!("an address in {bits} bits"))),
                Named::Variable(space, address) => (address, Some(space)),
            },
        };
        if let (Some(space), Some(own)) = (space, own)
            && space != own
        {
            return Err(Why::operands(format!("`{base}` is in another space")));
        }
        Ok(match space.or(own) {
            Some(Space::Shared) => format!("shared.at({text}{added}, {bytes})"),
            _ => format!("({text}{added})"),
        })
    }
}
