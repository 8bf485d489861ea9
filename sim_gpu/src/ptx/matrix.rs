//! Matrices that lanes of a warp hold together.

use gpuvm_ptx::Space;

use super::context::{Context, Instruction};
use super::error::Why;
use super::operand::Operand;
use super::types::{Kind, Type, U32};

const F32: Type = Type::new(Kind::Float, 32);

/// The translation of such an instruction; none for others.
pub(crate) fn translated(cx: &mut Context, of: &Instruction<'_>) -> Result<Option<String>, Why> {
    let text = match of.name {
        "mma" => multiply(cx, of)?,
        "ldmatrix" => load(cx, of)?,
        _ => return Ok(None),
    };
    Ok(Some(text))
}

fn vector(operand: &Operand, count: usize) -> Result<&[Operand], Why> {
    match operand {
        Operand::Vector(parts) if parts.len() == count => Ok(parts),
        other => Err(Why::operands(format!("{other:?} where {count} registers are needed"))),
    }
}

fn values(cx: &mut Context, operand: &Operand, count: usize, ty: Type) -> Result<String, Why> {
    let mut all = Vec::new();
    for one in vector(operand, count)? {
        all.push(cx.value(one, ty)?);
    }
    Ok(all.join(", "))
}

fn multiply(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let [
        "sync",
        "aligned",
        "m16n8k16",
        "row",
        "col",
        "f32",
        of_a @ ("f16" | "bf16"),
        of_b,
        "f32",
    ] = of.modifiers[..]
    else {
        return Err(Why::unknown(format!("`mma.{}`", of.modifiers.join("."))));
    };
    if of_a != of_b {
        return Err(of.unknown(of_b));
    }
    of.at_most(4)?;
    let a = values(cx, of.operand(1)?, 4, U32)?;
    let b = values(cx, of.operand(2)?, 2, U32)?;
    let c = values(cx, of.operand(3)?, 4, F32)?;
    let mut text = format!(
        "const u32 a[] = {{{a}}}, b[] = {{{b}}}; const f32 c[] = {{{c}}}; f32 d[4]; gpuvm_ptx::mma<{of_a}>(d, a, b, c);"
    );
    for (at, one) in vector(of.operand(0)?, 4)?.iter().enumerate() {
        text.push_str(&format!(" {}", cx.assign(one, F32, &format!("d[{at}]"))?));
    }
    Ok(text)
}

fn load(cx: &mut Context, of: &Instruction<'_>) -> Result<String, Why> {
    let (count, by_columns) = match of.modifiers[..] {
        ["sync", "aligned", "m8n8", count, "shared" | "shared::cta", "b16"] => (count, false),
        [
            "sync",
            "aligned",
            "m8n8",
            count,
            "trans",
            "shared" | "shared::cta",
            "b16",
        ] => (count, true),
        _ => return Err(Why::unknown(format!("`ldmatrix.{}`", of.modifiers.join(".")))),
    };
    let count = match count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        other => return Err(of.unknown(other)),
    };
    of.at_most(2)?;
    let at = cx.address(of.operand(1)?, Some(Space::Shared), 0)?;
    let mut text = format!("u32 words[{count}]; gpuvm_ptx::ldmatrix<{count}, {by_columns}>(words, {at});");
    for (at, one) in vector(of.operand(0)?, count)?.iter().enumerate() {
        text.push_str(&format!(" {}", cx.assign(one, U32, &format!("words[{at}]"))?));
    }
    Ok(text)
}
