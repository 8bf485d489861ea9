//! Instructions that compute.

use super::context::{Context, Instruction};
use super::error::Why;
use super::operand::Operand;
use super::types::{Kind, PREDICATE, Type, U32};

/// An instruction that is a function of its operands: what its opcode begins with, the function, the operands, the modifiers that it may
/// have, and the types. Operands, the result first: `d` and `t` of the type, `w` and `x` of twice its width, `D` and `u` of 32 bits, `P` and
/// `p` predicates.
type Form = (&'static str, &'static str, &'static str, &'static str, &'static str);

const INTEGERS: &str = "u16 u32 u64 s16 s32 s64";
const WORDS: &str = "u32 s32";
const NARROW: &str = "u16 u32 s16 s32";
const BITS: &str = "pred b16 b32 b64";
const FLOATS: &str = "f32 f64 f16 f16x2 bf16 bf16x2";
const ROUNDED: &str = "rn rz rm rp ftz sat";

/// The longer of two that begin alike comes first.
#[rustfmt::skip]
const FORMS: &[Form] = &[
    ("add", "add", "dtt", ROUNDED, "u16 u32 u64 s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("sub", "sub", "dtt", ROUNDED, "u16 u32 u64 s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("mul.lo", "mul_lo", "dtt", "", INTEGERS),
    ("mul.hi", "mul_hi", "dtt", "", INTEGERS),
    ("mul.wide", "mul_wide", "wtt", "", NARROW),
    ("mul", "mul", "dtt", ROUNDED, FLOATS),
    ("mad.lo", "mad_lo", "dttt", "", INTEGERS),
    ("mad.hi", "mad_hi", "dttt", "sat", INTEGERS),
    ("mad.wide", "mad_wide", "wttx", "", NARROW),
    ("mad", "fma", "dttt", ROUNDED, "f32 f64"),
    ("fma", "fma", "dttt", "rn rz rm rp ftz sat relu", FLOATS),
    ("mul24.lo", "mul24_lo", "dtt", "", WORDS),
    ("mul24.hi", "mul24_hi", "dtt", "", WORDS),
    ("mad24.lo", "mad24_lo", "dttt", "", WORDS),
    ("mad24.hi", "mad24_hi", "dttt", "sat", WORDS),
    ("sad", "sad", "dttt", "", INTEGERS),
    ("div", "div", "dtt", "rn rz rm rp ftz approx full", "u16 u32 u64 s16 s32 s64 f32 f64"),
    ("rem", "rem", "dtt", "", INTEGERS),
    ("abs", "abs", "dt", "ftz", "s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("neg", "neg", "dt", "ftz", "s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("min", "min", "dtt", "ftz NaN", "u16 u32 u64 s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("max", "max", "dtt", "ftz NaN", "u16 u32 u64 s16 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"),
    ("rcp", "rcp", "dt", "rn rz rm rp ftz approx", "f32 f64"),
    ("sqrt", "sqrt", "dt", "rn rz rm rp ftz approx", "f32 f64"),
    ("rsqrt", "rsqrt", "dt", "ftz approx", "f32 f64"),
    ("ex2", "ex2", "dt", "ftz approx", "f32 f16 f16x2 bf16 bf16x2"),
    ("lg2", "lg2", "dt", "ftz approx", "f32"),
    ("sin", "sin", "dt", "ftz approx", "f32"),
    ("cos", "cos", "dt", "ftz approx", "f32"),
    ("tanh", "tanh", "dt", "approx", "f32 f16 f16x2 bf16 bf16x2"),
    ("and", "and_", "dtt", "", BITS),
    ("or", "or_", "dtt", "", BITS),
    ("xor", "xor_", "dtt", "", BITS),
    ("not", "not_", "dt", "", BITS),
    ("cnot", "cnot", "dt", "", "b16 b32 b64"),
    ("shl", "shl", "dtu", "", "b16 b32 b64"),
    ("shr", "shr", "dtu", "", "b16 b32 b64 u16 u32 u64 s16 s32 s64"),
    ("shf.l.wrap", "shf_l_wrap", "dttu", "", "b32"),
    ("shf.r.wrap", "shf_r_wrap", "dttu", "", "b32"),
    ("shf.l.clamp", "shf_l_clamp", "dttu", "", "b32"),
    ("shf.r.clamp", "shf_r_clamp", "dttu", "", "b32"),
    ("popc", "popc", "Dt", "", "b32 b64"),
    ("clz", "clz", "Dt", "", "b32 b64"),
    ("bfind.shiftamt", "bfind_shiftamt", "Dt", "", "u32 u64 s32 s64"),
    ("bfind", "bfind", "Dt", "", "u32 u64 s32 s64"),
    ("brev", "brev", "dt", "", "b32 b64"),
    ("bfe", "bfe", "dtuu", "", "u32 u64 s32 s64"),
    ("bfi", "bfi", "dttuu", "", "b32 b64"),
    ("lop3", "lop3", "dtttu", "", "b32"),
    ("copysign", "copysign", "dtt", "", "f32 f64"),
    ("testp.finite", "testp_finite", "Pt", "", "f32 f64"),
    ("testp.infinite", "testp_infinite", "Pt", "", "f32 f64"),
    ("testp.number", "testp_number", "Pt", "", "f32 f64"),
    ("testp.notanumber", "testp_notanumber", "Pt", "", "f32 f64"),
    ("testp.normal", "testp_normal", "Pt", "", "f32 f64"),
    ("testp.subnormal", "testp_subnormal", "Pt", "", "f32 f64"),
    ("selp", "selp", "dttp", "", "b16 b32 b64 u16 u32 u64 s16 s32 s64 f16 f32 f64"),
];

/// A modifier as flags of the function; none for one that says nothing here.
fn flag(modifier: &str) -> Option<&'static str> {
    match modifier {
        "rz" => Some("RZ"),
        "rm" => Some("RM"),
        "rp" => Some("RP"),
        "rni" => Some("RN | INTEGRAL"),
        "rzi" => Some("RZ | INTEGRAL"),
        "rmi" => Some("RM | INTEGRAL"),
        "rpi" => Some("RP | INTEGRAL"),
        "ftz" => Some("FTZ"),
        "sat" => Some("SAT"),
        "NaN" => Some("NANS"),
        "relu" => Some("RELU"),
        _ => None,
    }
}

fn flags<'m>(modifiers: impl Iterator<Item = &'m str>) -> String {
    modifiers
        .filter_map(flag)
        .fold("RN".to_owned(), |all, one| format!("{all} | {one}"))
}

/// The translation of an instruction that computes; none for others.
pub(crate) fn translated(cx: &mut Context, of: &Instruction<'_>) -> Result<Option<String>, Why> {
    let text = match of.name {
        "mov" => mov(cx, of)?,
        "setp" => setp(cx, of)?,
        "set" => set(cx, of)?,
        "slct" => slct(cx, of)?,
        "cvt" => cvt(cx, of)?,
        "prmt" => prmt(cx, of)?,
        "dp4a" | "dp2a" => dot(cx, of)?,
        "addc" | "subc" | "madc" => carried(cx, of)?,
        "add" | "sub" | "mad" if of.modifiers.contains(&"cc") => carried(cx, of)?,
        _ => return simple(cx, of),
    };
    Ok(Some(text))
}

fn simple(cx: &mut Context, of: &Instruction<'_>) -> Result<Option<String>, Why> {
    let Some((key, function, shape, known, types)) = FORMS.iter().find(|form| of.begins(form.0)) else {
        return Ok(None);
    };
    let ty = of.ty()?;
    let name = of.modifiers.last().copied().unwrap_or_default();
    if !types.split(' ').any(|known| known == name) {
        return Err(of.unknown(name));
    }
    let modifiers = &of.modifiers[key.matches('.').count()..of.modifiers.len() - 1];
    if let Some(other) = modifiers
        .iter()
        .find(|one| !known.split(' ').any(|known| known == **one))
    {
        return Err(of.unknown(other));
    }
    check_modifiers(of, ty, modifiers)?;
    of.at_most(shape.len())?;
    let mut arguments = Vec::new();
    for (at, letter) in shape.chars().enumerate().skip(1) {
        let ty = match letter {
            'u' => U32,
            'p' => PREDICATE,
            'x' => ty.twice(),
            _ => ty,
        };
        arguments.push(cx.value(of.operand(at)?, ty)?);
    }
    let result = match shape.as_bytes().first() {
        Some(b'w') => ty.twice(),
        Some(b'D') => U32,
        Some(b'P') => PREDICATE,
        _ => ty,
    };
    let flags = flags(modifiers.iter().copied());
    let call = format!("{function}<{flags}>({})", arguments.join(", "));
    cx.assign(of.operand(0)?, result, &call).map(Some)
}

/// Modifiers that only some types have.
fn check_modifiers(of: &Instruction<'_>, ty: Type, modifiers: &[&str]) -> Result<(), Why> {
    for modifier in modifiers {
        let fits = match *modifier {
            // Directed modes of doubles would need their exact results.
            "rz" | "rm" | "rp" => ty.is_float() && ty.bits != 64,
            "sat" => ty.is_float() && ty.bits != 64 || ty == Type::new(Kind::Signed, 32),
            "cc" => false,
            _ => ty.is_float(),
        };
        if !fits {
            let name = of.modifiers.last().copied().unwrap_or_default();
            return Err(Why::unknown(format!("`{}` with `.{modifier}.{name}`", of.name)));
        }
    }
    Ok(())
}

/// `add.cc`, `addc`, `mad.lo.cc` and their like.
fn carried(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ty = of.ty()?;
    let words = &of.modifiers[..of.modifiers.len() - 1];
    let half = words.iter().find(|word| matches!(**word, "lo" | "hi"));
    if let Some(other) = words.iter().find(|word| !matches!(**word, "lo" | "hi" | "cc")) {
        return Err(of.unknown(other));
    }
    if ty.is_float() || ty.bits < 32 {
        return Err(of.unknown(of.modifiers.last().copied().unwrap_or_default()));
    }
    let is_product = of.name.starts_with("mad");
    let takes = if of.name.ends_with('c') { "carry" } else { "false" };
    let gives = if words.contains(&"cc") { "carry" } else { "unused" };
    let function = if of.name.starts_with("sub") {
        "sub_carry"
    } else {
        "add_carry"
    };
    let first = cx.value(of.operand(1)?, ty)?;
    let second = cx.value(of.operand(2)?, ty)?;
    let (first, second) = match half.filter(|_| is_product) {
        Some(half) => (
            format!("mul_{half}<0>({first}, {second})"),
            cx.value(of.operand(3)?, ty)?,
        ),
        None => (first, second),
    };
    of.at_most(if is_product { 4 } else { 3 })?;
    cx.carries = true;
    let call = format!("{function}({first}, {second}, {takes}, &{gives})");
    let assigned = cx.assign(of.operand(0)?, ty, &call)?;
    Ok(format!("{{ bool unused; static_cast<void>(unused); {assigned} }}"))
}

fn mov(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ty = of.ty()?;
    if of.modifiers.len() != 1 {
        return Err(of.unknown(of.modifiers[0]));
    }
    of.at_most(2)?;
    let whole = Type::new(Kind::Bits, ty.bits);
    let part = |count: usize| {
        let bits = ty.bits / u32::try_from(count).unwrap_or(u32::MAX);
        let fits = matches!(bits, 8 | 16 | 32 | 64);
        fits.then_some(Type::new(Kind::Bits, bits))
            .ok_or_else(|| Why::operands("a vector that does not fill its register"))
    };
    let source = match of.operand(1)? {
        Operand::Vector(parts) => {
            let part = part(parts.len())?;
            let mut all = Vec::new();
            for (at, one) in (0..).zip(parts) {
                let value = cx.value(one, part)?;
                all.push(format!("static_cast<{}>({value}) << {}", whole.name(), at * part.bits));
            }
            format!("static_cast<{}>({})", whole.name(), all.join(" | "))
        }
        one if ty == PREDICATE => cx.value(one, ty)?,
        one => {
            // A number is one of the type; what it says else is bits.
            let value = cx.value(one, ty)?;
            format!("put<{}>({value})", whole.name())
        }
    };
    match of.operand(0)? {
        Operand::Vector(parts) => {
            let part = part(parts.len())?;
            let mut text = format!("{{ const {} all = {source};", whole.name());
            for (at, one) in (0..).zip(parts) {
                let shifted = format!("static_cast<{}>(all >> {})", part.name(), at * part.bits);
                text.push_str(&format!(" {}", cx.assign(one, part, &shifted)?));
            }
            Ok(text + " }")
        }
        one if ty == PREDICATE => cx.assign(one, ty, &source),
        one => cx.assign(one, whole, &source),
    }
}

/// A comparison's name there, with what the type makes of it.
fn comparison(word: &str, ty: Type) -> Option<&'static str> {
    Some(match word {
        "eq" => "EQ",
        "ne" => "NE",
        "lt" | "lo" => "LT",
        "le" | "ls" => "LE",
        "gt" | "hi" => "GT",
        "ge" | "hs" => "GE",
        _ if !ty.is_float() => return None,
        "equ" => "EQU",
        "neu" => "NEU",
        "ltu" => "LTU",
        "leu" => "LEU",
        "gtu" => "GTU",
        "geu" => "GEU",
        "num" => "NUM",
        "nan" => "NOT_A_NUM",
        _ => return None,
    })
}

/// What is compared: an expression, and what it is combined with if anything. The operands begin behind the result.
fn compared(cx: &mut Context, of: &Instruction<'_>, words: &[&str], ty: Type) -> Result<String, Why> {
    let Some((first, rest)) = words.split_first() else {
        return Err(Why::operands("no comparison"));
    };
    if matches!(ty.kind, Kind::FloatPair | Kind::BfloatPair | Kind::Predicate) {
        return Err(of.unknown(&ty.name()));
    }
    let comparison = comparison(first, ty).ok_or_else(|| of.unknown(first))?;
    if let Some(other) = rest.iter().find(|word| !matches!(**word, "and" | "or" | "xor" | "ftz")) {
        return Err(of.unknown(other));
    }
    let flags = flags(rest.iter().copied());
    let (a, b) = (cx.value(of.operand(1)?, ty)?, cx.value(of.operand(2)?, ty)?);
    Ok(format!("compare<{comparison}, {flags}>({a}, {b})"))
}

/// What a comparison is combined with.
fn combined(cx: &mut Context, of: &Instruction<'_>, words: &[&str]) -> Result<Option<(&'static str, String)>, Why> {
    let operator = words.iter().find_map(|word| match *word {
        "and" => Some("&"),
        "or" => Some("|"),
        "xor" => Some("^"),
        _ => None,
    });
    of.at_most(if operator.is_some() { 4 } else { 3 })?;
    match operator {
        Some(operator) => Ok(Some((operator, cx.value(of.operand(3)?, PREDICATE)?))),
        None => Ok(None),
    }
}

fn setp(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ty = of.ty()?;
    let words = &of.modifiers[..of.modifiers.len() - 1];
    let holds = compared(cx, of, words, ty)?;
    let (yes, no) = match combined(cx, of, words)? {
        Some((operator, other)) => (
            format!("holds {operator} other"),
            (format!("!holds {operator} other"), format!(", other = {other}")),
        ),
        None => ("holds".to_owned(), ("!holds".to_owned(), String::new())),
    };
    let (no, other) = no;
    let assigned = match of.operand(0)? {
        Operand::Pair(first, second) => {
            format!(
                "{} {}",
                cx.assign(first, PREDICATE, &yes)?,
                cx.assign(second, PREDICATE, &no)?
            )
        }
        one => cx.assign(one, PREDICATE, &yes)?,
    };
    Ok(format!(
        "{{ const bool holds = gpuvm_ptx::{holds}{other}; {assigned} }}"
    ))
}

fn set(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ty = of.ty()?;
    let words = &of.modifiers[..of.modifiers.len() - 1];
    let Some((result, words)) = words.split_last() else {
        return Err(Why::operands("one type of two"));
    };
    let (to, yes) = match *result {
        "u32" | "s32" => (U32, "~0u"),
        "f32" => (U32, "0x3f800000u"),
        other => return Err(of.unknown(other)),
    };
    let holds = compared(cx, of, words, ty)?;
    let holds = match combined(cx, of, words)? {
        Some((operator, other)) => format!("({holds} {operator} {other})"),
        None => holds,
    };
    cx.assign(of.operand(0)?, to, &format!("{holds} ? {yes} : 0u"))
}

fn slct(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [words @ .., ty, by] = &of.modifiers[..] else {
        return Err(Why::operands("one type of two"));
    };
    if let Some(other) = words.iter().find(|word| **word != "ftz") {
        return Err(of.unknown(other));
    }
    let types = Type::named(ty).zip(Type::named(by).filter(|_| matches!(*by, "s32" | "f32")));
    let (ty, by) = types.ok_or_else(|| of.unknown(by))?;
    of.at_most(4)?;
    let (a, b) = (cx.value(of.operand(1)?, ty)?, cx.value(of.operand(2)?, ty)?);
    let selector = cx.value(of.operand(3)?, by)?;
    cx.assign(of.operand(0)?, ty, &format!("selp<0>({a}, {b}, {selector} >= 0)"))
}

fn cvt(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [words @ .., to, from] = &of.modifiers[..] else {
        return Err(Why::operands("one type of two"));
    };
    let named = |word: &str| {
        let ty = Type::named(word).filter(|ty| !matches!(ty.kind, Kind::Bits | Kind::Predicate));
        ty.ok_or_else(|| of.unknown(word))
    };
    let (to, from) = (named(to)?, named(from)?);
    let known = "rn rz rm rp rni rzi rmi rpi ftz sat relu";
    if let Some(other) = words.iter().find(|word| !known.split(' ').any(|known| known == **word)) {
        return Err(of.unknown(other));
    }
    let directed = words.iter().any(|word| matches!(*word, "rz" | "rm" | "rp"));
    if directed && to == Type::new(Kind::Float, 64) {
        return Err(Why::unknown("directed rounding to `.f64`"));
    }
    if words.contains(&"relu") && !(to.is_float() && from.is_float()) {
        return Err(of.unknown("relu"));
    }
    let flags = flags(words.iter().copied());
    if matches!(to.kind, Kind::FloatPair | Kind::BfloatPair) {
        if from != Type::new(Kind::Float, 32) {
            return Err(of.unknown(&from.name()));
        }
        of.at_most(3)?;
        let (high, low) = (cx.value(of.operand(1)?, from)?, cx.value(of.operand(2)?, from)?);
        return cx.assign(
            of.operand(0)?,
            to,
            &format!("cvt_pair<{flags}, {}>({high}, {low})", to.name()),
        );
    }
    if matches!(from.kind, Kind::FloatPair | Kind::BfloatPair) {
        return Err(of.unknown(&from.name()));
    }
    of.at_most(2)?;
    let value = cx.value(of.operand(1)?, from)?;
    cx.assign(of.operand(0)?, to, &format!("cvt<{flags}, {}>({value})", to.name()))
}

fn prmt(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let function = match &of.modifiers[..] {
        ["b32"] => "prmt".to_owned(),
        ["b32", mode @ ("f4e" | "b4e" | "rc8" | "ecl" | "ecr" | "rc16")] => format!("prmt_{mode}"),
        other => return Err(of.unknown(other.last().copied().unwrap_or_default())),
    };
    of.at_most(4)?;
    let (a, b) = (cx.value(of.operand(1)?, U32)?, cx.value(of.operand(2)?, U32)?);
    let selector = cx.value(of.operand(3)?, U32)?;
    cx.assign(of.operand(0)?, U32, &format!("{function}<0>({a}, {b}, {selector})"))
}

fn dot(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let (high, a, b) = match (of.name, &of.modifiers[..]) {
        ("dp4a", [a, b]) => (false, *a, *b),
        ("dp2a", ["lo", a, b]) => (false, *a, *b),
        ("dp2a", ["hi", a, b]) => (true, *a, *b),
        _ => return Err(Why::operands("no two types")),
    };
    let width = if of.name == "dp4a" { 8 } else { 16 };
    let part = |word: &str, bits| match word {
        "u32" => Ok(Type::new(Kind::Unsigned, bits).name()),
        "s32" => Ok(Type::new(Kind::Signed, bits).name()),
        other => Err(of.unknown(other)),
    };
    let types = format!("{}, {}", part(a, width)?, part(b, 8)?);
    of.at_most(4)?;
    let (a, b) = (cx.value(of.operand(1)?, U32)?, cx.value(of.operand(2)?, U32)?);
    let b = if high { format!("({b} >> 16)") } else { b };
    let sum = cx.value(of.operand(3)?, U32)?;
    cx.assign(of.operand(0)?, U32, &format!("{}<{types}>({a}, {b}, {sum})", of.name))
}
