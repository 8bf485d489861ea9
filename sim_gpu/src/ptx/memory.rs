//! Instructions that access memory, order it, or name places in it.

use gpuvm_ptx::Space;

use super::context::{Context, Instruction};
use super::error::Why;
use super::operand::{Operand, integer};
use super::types::{Kind, PREDICATE, Type, U32};

/// What an access's modifiers say.
struct Access {
    order: &'static str,
    scope: &'static str,
    is_volatile: bool,
    space: Option<Space>,
    vector: usize,
    /// What is left: operations.
    words: Vec<String>,
    ty: Type,
}

const WEAK: &str = "GPUVM_SIM_WEAK";

impl Access {
    fn of(of: &Instruction<'_>) -> Result<Self, Why> {
        let mut found = Self {
            order: WEAK,
            scope: "GPUVM_SIM_GPU",
            is_volatile: false,
            space: None,
            vector: 1,
            words: Vec::new(),
            ty: of.ty()?,
        };
        for word in &of.modifiers[..of.modifiers.len() - 1] {
            found.note(word);
        }
        if found.ty == PREDICATE || found.ty.bits == 128 {
            return Err(of.unknown(&found.ty.name()));
        }
        Ok(found)
    }

    fn note(&mut self, word: &str) {
        match word {
            "relaxed" => self.order = "GPUVM_SIM_RELAXED",
            "acquire" => self.order = "GPUVM_SIM_ACQUIRE",
            "release" => self.order = "GPUVM_SIM_RELEASE",
            "acq_rel" => self.order = "GPUVM_SIM_ACQ_REL",
            "mmio" => (self.order, self.scope) = ("GPUVM_SIM_RELAXED", "GPUVM_SIM_SYS"),
            "volatile" => self.is_volatile = true,
            "cta" => self.scope = "GPUVM_SIM_CTA",
            // A wider scope for clusters, which the simulated GPU has not.
            "gpu" | "cluster" => self.scope = "GPUVM_SIM_GPU",
            "sys" => self.scope = "GPUVM_SIM_SYS",
            "v2" => self.vector = 2,
            "v4" => self.vector = 4,
            "v8" => self.vector = 8,
            "shared::cluster" => self.words.push(word.to_owned()),
            // Where caches keep it.
            "weak" | "nc" | "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "unified" => {}
            _ if word.starts_with("L1::") || word.starts_with("L2::") || word.starts_with("level::") => {}
            _ => match Space::named(word) {
                Some(space) => self.space = Some(space),
                None => self.words.push(word.to_owned()),
            },
        }
    }

    fn only(&self, of: &Instruction<'_>) -> Result<(), Why> {
        self.words.first().map_or(Ok(()), |word| Err(of.unknown(word)))
    }

    /// A function and what goes between its angle brackets, before its type.
    fn function(&self, name: &str) -> String {
        match (self.is_volatile, self.order) {
            (true, _) => format!("{name}_volatile<"),
            (_, WEAK) => format!("{name}<"),
            (_, order) => format!("{name}_strong<{order}, {}, ", self.scope),
        }
    }

    fn elements<'o>(&self, operand: &'o Operand) -> Result<Vec<&'o Operand>, Why> {
        let found: Vec<&Operand> = match operand {
            Operand::Vector(parts) => parts.iter().collect(),
            one => vec![one],
        };
        match found.len() == self.vector {
            true => Ok(found),
            false => Err(Why::operands(format!(
                "{} elements and not {}",
                found.len(),
                self.vector
            ))),
        }
    }

    fn bytes(&self) -> u32 {
        self.ty.bytes() * u32::try_from(self.vector).unwrap_or(1)
    }
}

/// The translation of an instruction about memory; none for others.
pub(crate) fn translated(cx: &mut Context, of: &Instruction<'_>) -> Result<Option<String>, Why> {
    let text = match of.name {
        "ld" | "ldu" => load(cx, of)?,
        "st" if of.modifiers.first() != Some(&"async") => store(cx, of)?,
        "atom" => atomic(cx, of, true)?,
        "red" if of.modifiers.first() != Some(&"async") => atomic(cx, of, false)?,
        "fence" | "membar" => fence(of)?,
        "cvta" => cvta(cx, of)?,
        "isspacep" => isspacep(cx, of)?,
        // Hints.
        "cp" if of.modifiers.contains(&"bulk") && of.modifiers.contains(&"prefetch") => String::new(),
        "cp" => copy(cx, of)?,
        "prefetch" | "prefetchu" | "applypriority" | "discard" => String::new(),
        "createpolicy" => cx.assign(of.operand(0)?, Type::new(Kind::Bits, 64), "0ull")?,
        _ => return Ok(None),
    };
    Ok(Some(text))
}

fn load(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let access = Access::of(of)?;
    access.only(of)?;
    of.at_most(3)?;
    let ty = access.ty.in_memory();
    let at = cx.address(of.operand(1)?, access.space, access.bytes())?;
    let mut text = format!("{{ const u64 at = {at};");
    for (number, element) in (0..).zip(access.elements(of.operand(0)?)?) {
        let value = format!("{}{}>(at + {})", access.function("ld"), ty.name(), number * ty.bytes());
        text.push_str(&format!(" {}", cx.assign(element, ty, &value)?));
    }
    Ok(text + " }")
}

fn store(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let access = Access::of(of)?;
    access.only(of)?;
    of.at_most(3)?;
    let ty = Type::new(Kind::Bits, access.ty.bits);
    let at = cx.address(of.operand(0)?, access.space, access.bytes())?;
    let mut text = format!("{{ const u64 at = {at};");
    for (number, element) in (0..).zip(access.elements(of.operand(1)?)?) {
        // A number is one of the type.
        let value = cx.value(element, access.ty)?;
        let value = format!("put<{}>({value})", ty.name());
        let place = number * ty.bytes();
        text.push_str(&format!(
            " {}{}>(at + {place}, {value});",
            access.function("st"),
            ty.name()
        ));
    }
    Ok(text + " }")
}

/// Types that an atomic operation has.
fn has_type(operation: &str, ty: Type) -> bool {
    let words = matches!(ty.bits, 32 | 64);
    match operation {
        "and" | "or" | "xor" => ty.kind == Kind::Bits && words,
        "cas" | "exch" => ty.kind == Kind::Bits && (words || operation == "cas" && ty.bits == 16),
        "add" => words && ty.kind != Kind::Bits || ty.bits == 16 && ty.is_float(),
        "inc" | "dec" => ty == U32,
        "min" | "max" => words && matches!(ty.kind, Kind::Unsigned | Kind::Signed) || ty.is_float() && ty.bits != 64,
        _ => false,
    }
}

fn atomic(cx: &mut Context, of: &Instruction<'_>, returns: bool) -> Result<String, Why> {
    let access = Access::of(of)?;
    let words: Vec<&str> = access
        .words
        .iter()
        .map(String::as_str)
        .filter(|word| *word != "noftz")
        .collect();
    let [operation] = words[..] else {
        return Err(of.unknown(words.last().copied().unwrap_or_default()));
    };
    if !has_type(operation, access.ty) || access.is_volatile {
        return Err(Why::unknown(format!(
            "`{}.{operation}` of `.{}`",
            of.name,
            access.ty.name()
        )));
    }
    let order = if access.order == WEAK {
        "GPUVM_SIM_RELAXED"
    } else {
        access.order
    };
    let (order, ty) = (format!("{order}, {}", access.scope), access.ty);
    let first = usize::from(returns);
    let second = usize::from(operation == "cas");
    of.at_most(first + 3 + second)?;
    let at = cx.address(of.operand(first)?, access.space, access.bytes())?;
    let mut text = format!("{{ const u64 at = {at};");
    let values = access.elements(of.operand(first + 1)?)?;
    for (number, value) in values.into_iter().enumerate() {
        let place = u32::try_from(number).unwrap_or(0) * ty.bytes();
        let mut arguments = format!("at + {place}, {}", cx.value(value, ty)?);
        let function = match operation {
            "and" => format!("atom_fetch<GPUVM_SIM_AND, {order}, {}>", ty.name()),
            "or" => format!("atom_fetch<GPUVM_SIM_OR, {order}, {}>", ty.name()),
            "xor" => format!("atom_fetch<GPUVM_SIM_XOR, {order}, {}>", ty.name()),
            "exch" => format!("atom_fetch<GPUVM_SIM_EXCHANGE, {order}, {}>", ty.name()),
            other => format!("atom_{other}<{order}, {}>", ty.name()),
        };
        if operation == "cas" {
            arguments.push_str(&format!(", {}", cx.value(of.operand(first + 2)?, ty)?));
        }
        let call = format!("{function}({arguments})");
        let done = match returns {
            true => cx.assign(access.elements(of.operand(0)?)?[number], ty, &call)?,
            false => format!("static_cast<void>({call});"),
        };
        text.push_str(&format!(" {done}"));
    }
    Ok(text + " }")
}

fn fence(of: &Instruction<'_>) -> Result<String, Why> {
    // Memory has one proxy here.
    if of.name == "fence" && of.modifiers.first() == Some(&"proxy") {
        return Ok(String::new());
    }
    let (mut order, mut scope) = ("GPUVM_SIM_ACQ_REL", None);
    if of.name == "membar" {
        order = "GPUVM_SIM_SC";
    }
    for word in &of.modifiers {
        match *word {
            "sc" => order = "GPUVM_SIM_SC",
            "acq_rel" => {}
            "cta" => scope = Some("GPUVM_SIM_CTA"),
            "gpu" | "gl" | "cluster" => scope = Some("GPUVM_SIM_GPU"),
            "sys" => scope = Some("GPUVM_SIM_SYS"),
            other => return Err(of.unknown(other)),
        }
    }
    let scope = scope.ok_or_else(|| Why::operands("a fence without a scope"))?;
    Ok(format!("gpuvm_sim::fence<{order}, {scope}>();"))
}

fn space_of(of: &Instruction<'_>, word: &str) -> Result<Space, Why> {
    Space::named(word)
        .filter(|_| word != "shared::cluster")
        .ok_or_else(|| of.unknown(word))
}

fn cvta(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [words @ .., space, ty] = &of.modifiers[..] else {
        return Err(Why::operands("no space"));
    };
    let (space, ty) = (space_of(of, space)?, Type::named(ty).ok_or_else(|| of.unknown(ty))?);
    let to_space = match words {
        [] => false,
        ["to"] => true,
        other => return Err(of.unknown(other[0])),
    };
    if ty.bits != 64 {
        return Err(Why::unknown("addresses of 32 bits"));
    }
    of.at_most(2)?;
    let value = cx.value(of.operand(1)?, ty)?;
    let value = match (space, to_space) {
        (Space::Shared, true) => format!("shared.offset({value})"),
        (Space::Shared, false) => format!("shared.generic({value})"),
        _ => value,
    };
    cx.assign(of.operand(0)?, ty, &value)
}

fn isspacep(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [space] = of.modifiers[..] else {
        return Err(Why::operands("no space"));
    };
    of.at_most(2)?;
    let value = cx.value(of.operand(1)?, Type::new(Kind::Unsigned, 64))?;
    let holds = match space_of(of, space)? {
        Space::Shared => format!("shared.has({value})"),
        Space::Local => format!("is_local({value})"),
        Space::Global => format!("!shared.has({value}) && !is_local({value})"),
        _ => return Err(of.unknown(space)),
    };
    cx.assign(of.operand(0)?, PREDICATE, &holds)
}

/// `cp.async`, which is done at once: so there is nothing to wait for.
fn copy(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    match of.modifiers[..] {
        ["async", "commit_group" | "wait_group" | "wait_all"] => return Ok(String::new()),
        ["async", "ca" | "cg", "shared" | "shared::cta", "global", ..] => {}
        _ => return Err(Why::unknown(format!("`cp.{}`", of.modifiers.join(".")))),
    }
    let is_hint = |word: &&str| word.starts_with("L2::");
    if let Some(other) = of.modifiers[4..].iter().find(|word| !is_hint(word)) {
        return Err(of.unknown(other));
    }
    let bytes = match of.operand(2)? {
        Operand::Word(word) => integer(word).and_then(|bytes| u32::try_from(bytes).ok()),
        _ => None,
    };
    let bytes = bytes
        .filter(|bytes| matches!(bytes, 4 | 8 | 16))
        .ok_or_else(|| Why::operands("no size of 4, 8 or 16"))?;
    let to = cx.address(of.operand(0)?, Some(Space::Shared), bytes)?;
    let from = cx.address(of.operand(1)?, Some(Space::Global), bytes)?;
    // Then how many bytes are read, or whether none is; and a cache policy.
    let policies = usize::from(of.modifiers.contains(&"L2::cache_hint"));
    of.at_most(4 + policies)?;
    let read = match of.operands.get(3).filter(|_| of.operands.len() > 3 + policies) {
        None => format!("{bytes}"),
        Some(operand) => match cx.value(operand, PREDICATE) {
            Ok(ignored) if !matches!(operand, Operand::Word(word) if integer(word).is_some()) => {
                format!("({ignored} ? 0u : {bytes}u)")
            }
            _ => cx.value(operand, U32)?,
        },
    };
    Ok(format!("copy<{bytes}>({to}, {from}, {read});"))
}
