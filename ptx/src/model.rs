//! A module as a list of items, and functions as lists of statements. Each knows its place in the text, and what nothing needs to know of
//! it stays text.

use std::ops::Range;

use crate::error::Position;
use crate::tokens::Lines;

/// A module: the text and what is in it.
#[derive(Debug, Clone)]
pub struct Module<'a> {
    pub(crate) text: &'a str,
    pub(crate) lines: Lines,
    /// All items in the text's order. Between two of them there are only white space and comments.
    pub items: Vec<Item<'a>>,
    /// The PTX version: major and minor number.
    pub version: (u32, u32),
    /// Offset behind `.address_size 64`, where declarations may be added.
    pub(crate) header_end: usize,
}

/// What stands at the module's level.
#[derive(Debug, Clone)]
pub enum Item<'a> {
    /// `.version`, `.target`, `.file`, `.section`, `.alias` and others, as text.
    Directive(Range<usize>),
    /// A variable, with its linking directives and initial value.
    Variable(Declaration<'a>),
    /// An entry or a function, with or without a body.
    Function(Function<'a>),
}

impl Item<'_> {
    /// Its bytes in the text.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        match self {
            Self::Directive(span) => span.clone(),
            Self::Variable(declaration) => declaration.span.clone(),
            Self::Function(function) => function.span.clone(),
        }
    }
}

/// A kernel or a function.
#[derive(Debug, Clone)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether the host can launch it.
    pub is_entry: bool,
    /// Everything from its linking directives to its closing brace or semicolon.
    pub span: Range<usize>,
    /// Everything before the body: linking directives, results, name, parameters, `.maxntid` and such.
    pub header: Range<usize>,
    /// Results and parameters.
    pub parameters: Vec<Declaration<'a>>,
    /// The statements between the outermost braces, which are the first and the last one; none of a declaration.
    pub body: Option<Vec<Statement<'a>>>,
}

/// A statement and its bytes in the text.
#[derive(Debug, Clone)]
pub struct Statement<'a> {
    /// Its bytes, with its semicolon.
    pub span: Range<usize>,
    /// What it is.
    pub kind: StatementKind<'a>,
}

/// What stands in a function's body.
#[derive(Debug, Clone)]
pub enum StatementKind<'a> {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `$L__BB0_2:`
    Label(&'a str),
    /// `.reg`, `.shared`, `.local`, `.param` and such.
    Declaration(Declaration<'a>),
    /// `.pragma "..";`
    Pragma,
    /// `.loc`, `.branchtargets` and others, as text.
    Directive,
    /// `@%p ld.global.u32 %r1, [%rd1+4];`
    Instruction(Instruction<'a>),
}

/// A state space of variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.reg`
    Register,
    /// `.global`
    Global,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.const`
    Const,
    /// `.param`
    Param,
    /// Textures, samplers and what else has names.
    Other,
}

impl Space {
    /// The space of a directive or a modifier, which is given without its dot: `shared`, `shared::cta`, `param::entry`.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word.split("::").next()? {
            "reg" => Some(Self::Register),
            "global" => Some(Self::Global),
            "shared" => Some(Self::Shared),
            "local" => Some(Self::Local),
            "const" => Some(Self::Const),
            "param" => Some(Self::Param),
            _ => None,
        }
    }
}

/// Names of one space and one type.
#[derive(Debug, Clone)]
pub struct Declaration<'a> {
    /// Its bytes in the text.
    pub span: Range<usize>,
    /// The state space.
    pub space: Space,
    /// Bits of the type; 1 for predicates, 0 where it has none.
    pub bits: u32,
    /// The names.
    pub names: Vec<Declared<'a>>,
}

/// A parameter of a function that the host can launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its size in bytes.
    pub bytes: u32,
    /// Its alignment in bytes.
    pub align: u32,
    /// Its type in the text: `.f32`, `.u64`, `.b8[24]`. A pointer is a number of 64 bits.
    pub type_name: String,
}

/// One name of a declaration.
#[derive(Debug, Clone, Copy)]
pub struct Declared<'a> {
    /// The name, without its numbers where there are several.
    pub name: &'a str,
    /// `%r<5>` declares `%r0` to `%r4`.
    pub count: Option<u32>,
}

/// A guard: the instruction does something only where a predicate is true, or false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard<'a> {
    /// The predicate register.
    pub register: &'a str,
    /// `@!%p`
    pub negated: bool,
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Instruction<'a> {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard<'a>>,
    /// `ld.global.v4.f32`.
    pub opcode: &'a str,
    /// The operands in order.
    pub operands: Vec<Operand<'a>>,
}

impl<'a> Instruction<'a> {
    /// `ld`.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.opcode.split('.').next().unwrap_or_default().trim_end()
    }

    /// `global`, `v4`, `f32`.
    pub fn modifiers(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.opcode.split('.').skip(1).map(str::trim)
    }

    /// Whether it has a modifier.
    #[must_use]
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers().any(|found| found == modifier)
    }
}

/// An operand.
#[derive(Debug, Clone)]
pub enum Operand<'a> {
    /// A register, a variable, a label or a function, with what is added to it.
    Name(&'a str),
    /// One element of a vector register or of an array: `%v.x`, `table[3]`.
    Element(&'a str),
    /// A number or a constant expression.
    Number(&'a str),
    /// `{a, b}`, `(a, b)`, `p|q`.
    Group(Vec<Operand<'a>>),
    /// `[a]`, `[a+8]`
    Address(Address<'a>),
}

/// An operand that names memory.
#[derive(Debug, Clone)]
pub struct Address<'a> {
    /// Its bytes, with the brackets.
    pub span: Range<usize>,
    /// A register, a variable or a number.
    pub base: &'a str,
    /// What is added to it, a number or a constant expression.
    pub offset: Option<Offset<'a>>,
    /// Whether it is a base and an offset. Tensors, textures and multimem have more in their brackets.
    pub is_plain: bool,
}

/// What an address adds to its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset<'a> {
    /// The number, with its own sign.
    pub text: &'a str,
    /// `[a-8]`
    pub subtracted: bool,
}

impl<'a> Module<'a> {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The line and the column of an offset into the text.
    #[must_use]
    pub fn position(&self, offset: usize) -> Position {
        self.lines.position(offset)
    }

    /// The parameters of a function that the host can launch, in order.
    #[must_use]
    pub fn parameters(&self, function: &Function<'a>) -> Vec<Parameter> {
        let parameter = |declaration: &Declaration<'a>| {
            let text = &self.text[declaration.span.clone()];
            let element = (declaration.bits / 8).max(1);
            // `.b8 name[24]`, `.b32 name[2][3]`.
            let lengths = text
                .split('[')
                .skip(1)
                .filter_map(|rest| number(rest.split(']').next()?));
            let bytes = lengths.fold(element, u32::saturating_mul);
            // Behind `.ptr` it is that of what the pointer points to.
            let own = text.split(".ptr").next().unwrap_or_default();
            let align = own
                .split(".align")
                .nth(1)
                .and_then(|rest| number(rest.split_whitespace().next()?));
            let is_type = |word: &&str| {
                let bits = word
                    .strip_prefix('.')
                    .and_then(|word| word.strip_prefix(['b', 'f', 's', 'u']));
                bits.and_then(number) == Some(declaration.bits)
            };
            let type_name = own.split_whitespace().find(is_type).unwrap_or(".b8");
            Parameter {
                bytes,
                align: align.unwrap_or(element),
                type_name: match bytes == element {
                    true => type_name.to_owned(),
                    false => format!("{type_name}[{}]", bytes / element),
                },
            }
        };
        function.parameters.iter().map(parameter).collect()
    }

    /// The functions, those without a body too.
    pub fn functions(&self) -> impl Iterator<Item = &Function<'a>> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// The text again, put together from items, statements and what lies between them.
    #[must_use]
    pub fn write(&self) -> String {
        let mut out = String::with_capacity(self.text.len());
        let mut at = 0;
        let mut put = |span: Range<usize>| {
            out.push_str(&self.text[at..span.end]);
            at = span.end;
        };
        for item in &self.items {
            match item {
                Item::Function(Function {
                    header,
                    body: Some(body),
                    ..
                }) => {
                    put(header.clone());
                    body.iter().for_each(|statement| put(statement.span.clone()));
                }
                item => put(item.span()),
            }
        }
        put(self.text.len()..self.text.len());
        out
    }
}

/// A decimal or hexadecimal number.
pub(crate) fn number(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_sizes() {
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(\n\t.param .u64 .ptr .global .align 16 a,\n\t.param .u32 b,\n\
                    \t.param .align 8 .b8 c[24],\n\t.param .f64 d,\n\t.param .b16 e,\n\t.param .align 4 .b32 f[2][0x3]\n)\n{\n\tret;\n}\n";
        let module = Module::parse(text).unwrap();
        let function = module.functions().next().unwrap();
        let parameters = module.parameters(function);
        let sizes: Vec<_> = parameters.iter().map(|one| (one.bytes, one.align)).collect();
        assert_eq!(sizes, [(8, 8), (4, 4), (24, 8), (8, 8), (2, 2), (24, 4)]);
        let types: Vec<_> = parameters.iter().map(|one| &*one.type_name).collect();
        assert_eq!(types, [".u64", ".u32", ".b8[24]", ".f64", ".b16", ".b32[6]"]);
    }
}
