//! Instructions that lanes of a warp or a block carry out together, and those that concern none of them.

use super::context::{Context, Instruction};
use super::error::Why;
use super::operand::{Operand, integer};
use super::types::{Kind, PREDICATE, Type, U32};

/// The translation of such an instruction; none for others.
pub(crate) fn translated(cx: &mut Context, of: &Instruction<'_>) -> Result<Option<String>, Why> {
    let text = match of.name {
        "bar" | "barrier" => barrier(cx, of)?,
        "shfl" => shuffle(cx, of)?,
        "vote" => vote(cx, of)?,
        "match" => matching(cx, of)?,
        "redux" => reduce(cx, of)?,
        "elect" if of.modifiers == ["sync"] => {
            let members = cx.value(of.operand(1)?, U32)?;
            both(cx, of.operand(0)?, &format!("elect({members}, &in)"))?
        }
        "activemask" => cx.assign(of.operand(0)?, U32, "__activemask()")?,
        "nanosleep" => format!("__nanosleep({});", cx.value(of.operand(0)?, U32)?),
        "trap" => "__trap();".to_owned(),
        // What it says of time and registers says nothing here.
        "pmevent" | "setmaxnreg" | "griddepcontrol" => String::new(),
        _ => return Ok(None),
    };
    Ok(Some(text))
}

fn barrier(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let words: Vec<&str> = of
        .modifiers
        .iter()
        .copied()
        .filter(|word| !matches!(*word, "cta" | "aligned"))
        .collect();
    if words == ["warp", "sync"] {
        of.at_most(1)?;
        return Ok(format!("__syncwarp({});", cx.value(of.operand(0)?, U32)?));
    }
    let first = match words[..] {
        ["sync"] => 0,
        ["red", "popc", "u32"] | ["red", "and" | "or", "pred"] => 1,
        _ => return Err(Why::unknown(format!("`{}.{}`", of.name, of.modifiers.join(".")))),
    };
    let is_whole = |operand: &Operand| matches!(operand, Operand::Word(word) if integer(word) == Some(0));
    if !is_whole(of.operand(first)?) {
        return Err(Why::unknown("barriers with a number other than 0"));
    }
    if of.operands.len() > 1 + 2 * first {
        return Err(Why::unknown("barriers of a part of a block"));
    }
    if first == 0 {
        return Ok("__syncthreads();".to_owned());
    }
    let value = cx.value(of.operand(2)?, PREDICATE)?;
    match words[1] {
        "popc" => cx.assign(
            of.operand(0)?,
            U32,
            &format!("static_cast<u32>(__syncthreads_count({value}))"),
        ),
        kind => cx.assign(
            of.operand(0)?,
            PREDICATE,
            &format!("__syncthreads_{kind}({value}) != 0"),
        ),
    }
}

/// A register, or one and a predicate, from a call that sets `in`.
fn both(cx: &mut Context, result: &Operand, call: &str) -> Result<String, Why> {
    let (word, also) = match result {
        Operand::Pair(word, also) => (&**word, cx.assign(also, PREDICATE, "in")?),
        one => (one, String::new()),
    };
    Ok(format!("{{ bool in; {} {also} }}", cx.assign(word, U32, call)?))
}

fn shuffle(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ["sync", kind @ ("up" | "down" | "bfly" | "idx"), "b32"] = of.modifiers[..] else {
        return Err(Why::unknown(format!("`shfl.{}`", of.modifiers.join("."))));
    };
    of.at_most(5)?;
    let mut arguments = Vec::new();
    for at in 1..5 {
        arguments.push(cx.value(of.operand(at)?, U32)?);
    }
    let call = format!("shfl<{}>({}, &in)", kind.to_uppercase(), arguments.join(", "));
    both(cx, of.operand(0)?, &call)
}

fn vote(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ["sync", kind, ty] = of.modifiers[..] else {
        return Err(Why::unknown(format!("`vote.{}`", of.modifiers.join("."))));
    };
    of.at_most(3)?;
    let (value, members) = (cx.value(of.operand(1)?, PREDICATE)?, cx.value(of.operand(2)?, U32)?);
    match (kind, ty) {
        ("ballot", "b32") => cx.assign(of.operand(0)?, U32, &format!("__ballot_sync({members}, {value})")),
        ("any" | "all", "pred") => cx.assign(
            of.operand(0)?,
            PREDICATE,
            &format!("__{kind}_sync({members}, {value}) != 0"),
        ),
        ("uni", "pred") => cx.assign(of.operand(0)?, PREDICATE, &format!("vote_uni({members}, {value})")),
        _ => Err(of.unknown(kind)),
    }
}

fn matching(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [kind @ ("any" | "all"), "sync", "b32" | "b64"] = of.modifiers[..] else {
        return Err(Why::unknown(format!("`match.{}`", of.modifiers.join("."))));
    };
    of.at_most(3)?;
    let (value, members) = (cx.value(of.operand(1)?, of.ty()?)?, cx.value(of.operand(2)?, U32)?);
    match kind {
        "any" => cx.assign(of.operand(0)?, U32, &format!("__match_any_sync({members}, {value})")),
        _ => both(cx, of.operand(0)?, &format!("match_all({members}, {value}, &in)")),
    }
}

fn reduce(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let ["sync", operation, word] = of.modifiers[..] else {
        return Err(Why::unknown(format!("`redux.{}`", of.modifiers.join("."))));
    };
    let ty = match (operation, word) {
        ("add" | "min" | "max", "u32") | ("and" | "or" | "xor", "b32") => U32,
        ("add" | "min" | "max", "s32") => Type::new(Kind::Signed, 32),
        _ => return Err(of.unknown(word)),
    };
    of.at_most(3)?;
    let (value, members) = (cx.value(of.operand(1)?, ty)?, cx.value(of.operand(2)?, U32)?);
    cx.assign(
        of.operand(0)?,
        ty,
        &format!("__reduce_{operation}_sync({members}, {value})"),
    )
}
