//! Declarations of variables and registers, from their text.

use gpuvm_ptx::Space;

use super::error::Why;
use super::operand::{integer, number, parts, without_comments};
use super::types::{Kind, Type};

/// A name of a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// `%r<5>`: so many registers of that name.
    pub(crate) count: Option<u32>,
    /// Of an element.
    pub(crate) ty: Type,
    /// Of all of it; 0 where the text says `[]`.
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    /// What it holds at first, as text.
    pub(crate) initial: Option<String>,
}

/// The names of a declaration.
pub(crate) fn variables(text: &str) -> Result<Vec<Variable>, Why> {
    let text = without_comments(text);
    let mut rest = text.trim().trim_end_matches(';').trim();
    let (mut ty, mut align, mut vector, mut is_pointer) = (None, None, 1, false);
    while let Some(directive) = rest.strip_prefix('.') {
        let end = directive
            .find(|c: char| c.is_whitespace() || c == '(')
            .unwrap_or(directive.len());
        let word = &directive[..end];
        rest = directive[end..].trim_start();
        match word {
            "align" => {
                let (number, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                // Behind `.ptr` it is that of what the pointer points to.
                align = align.or(integer(number).filter(|_| !is_pointer));
                rest = behind.trim_start();
            }
            "ptr" => is_pointer = true,
            "v2" => vector = 2,
            "v4" => vector = 4,
            "visible" | "extern" | "weak" | "common" => {}
            _ if Space::named(word).is_some() => {}
            _ => {
                ty = ty.or(Some(
                    Type::named(word).ok_or_else(|| Why::unknown(format!("variables with `.{word}`")))?,
                ))
            }
        }
    }
    let ty = ty.ok_or_else(|| Why::operands("a variable without a type"))?;
    let element = u64::from(ty.bits.div_ceil(8)) * vector;
    parts(rest)
        .into_iter()
        .map(|part| one(part, ty, element, align.unwrap_or(element)))
        .collect()
}

fn one(text: &str, ty: Type, element: u64, align: u64) -> Result<Variable, Why> {
    let (declared, initial) = match text.split_once('=') {
        Some((declared, initial)) => (declared.trim(), Some(initial.trim().to_owned())),
        None => (text, None),
    };
    let end = declared.find(['<', '[', ' ']).unwrap_or(declared.len());
    let (name, rest) = declared.split_at(end);
    let count = rest.trim().strip_prefix('<').and_then(|rest| rest.split('>').next());
    let count = count.and_then(|count| integer(count.trim()).and_then(|count| u32::try_from(count).ok()));
    let mut bytes = element;
    for length in rest.split('[').skip(1) {
        let length = length.split(']').next().unwrap_or_default().trim();
        let known = if length.is_empty() { Some(0) } else { integer(length) };
        let known = known.ok_or_else(|| Why::unknown(format!("the length `{length}`")))?;
        bytes = bytes
            .checked_mul(known)
            .ok_or_else(|| Why::operands("a length of more than 64 bits"))?;
    }
    Ok(Variable {
        name: name.to_owned(),
        count,
        ty,
        bytes,
        align: align.max(1),
        initial,
    })
}

impl Variable {
    /// Its first bytes, as far as the text has them; the others are zeros.
    pub(crate) fn initial_bytes(&self) -> Result<Vec<u8>, Why> {
        let mut bytes = Vec::new();
        if let Some(initial) = &self.initial {
            self.add(initial, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn add(&self, text: &str, bytes: &mut Vec<u8>) -> Result<(), Why> {
        if let Some(list) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            return parts(list).into_iter().try_for_each(|part| self.add(part, bytes));
        }
        let float = (self.ty.kind == Kind::Float).then_some(self.ty.bits);
        let value = number(text, float).ok_or_else(|| Why::unknown(format!("the initial value `{text}`")))?;
        let length = usize::try_from(self.ty.bytes()).unwrap_or(8).min(8);
        bytes.extend_from_slice(&value.to_le_bytes()[..length]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_read() {
        let one = |text: &str| variables(text).unwrap().remove(0);
        let found = one(".visible .const .align 8 .b8 gpuvm_window[32];");
        assert_eq!((found.name.as_str(), found.bytes, found.align), ("gpuvm_window", 32, 8));
        let found = one(".reg .b64 \t%rd<17>;");
        assert_eq!((found.name.as_str(), found.count, found.ty.bits), ("%rd", Some(17), 64));
        let found = one(".param .u64 .ptr .global .align 16 a");
        assert_eq!((found.name.as_str(), found.bytes, found.align), ("a", 8, 8));
        let found = one(".global .align 4 .b32 t[2][0x3] = {{1, 2}, -1};");
        assert_eq!((found.bytes, found.align), (24, 4));
        assert_eq!(
            found.initial_bytes().unwrap(),
            [1, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255]
        );
        assert_eq!(one(".extern .shared .align 16 .b8 s[];").bytes, 0);
        assert_eq!(
            one(".const .f32 c = 0f3F800000;").initial_bytes().unwrap(),
            1.0f32.to_le_bytes()
        );
        assert_eq!(variables(".reg .pred a, b;").unwrap().len(), 2);
        assert!(variables(".global .texref t;").is_err());
        assert!(one(".global .u64 p = q;").initial_bytes().is_err());
    }
}
