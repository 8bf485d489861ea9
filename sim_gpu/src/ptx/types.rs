//! PTX's fundamental types, by the names that the translated text has for them.

/// How bits are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Predicate,
    Bits,
    Unsigned,
    Signed,
    Float,
    Bfloat,
    FloatPair,
    BfloatPair,
}

/// A type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bits: u32,
}

/// Bits of a register.
pub(crate) const PREDICATE: Type = Type::new(Kind::Predicate, 1);
/// What counts and selects.
pub(crate) const U32: Type = Type::new(Kind::Unsigned, 32);

impl Type {
    pub(crate) const fn new(kind: Kind, bits: u32) -> Self {
        Self { kind, bits }
    }

    /// The type that a modifier names, which is given without its dot.
    pub(crate) fn named(word: &str) -> Option<Self> {
        let fixed = match word {
            "pred" => Some(PREDICATE),
            "f16x2" => Some(Self::new(Kind::FloatPair, 32)),
            "bf16x2" => Some(Self::new(Kind::BfloatPair, 32)),
            "bf16" => Some(Self::new(Kind::Bfloat, 16)),
            _ => None,
        };
        if fixed.is_some() {
            return fixed;
        }
        let kind = match word.get(..1)? {
            "b" => Kind::Bits,
            "u" => Kind::Unsigned,
            "s" => Kind::Signed,
            "f" => Kind::Float,
            _ => return None,
        };
        let bits: u32 = word[1..].parse().ok()?;
        let known: &[u32] = match kind {
            Kind::Bits => &[8, 16, 32, 64, 128],
            Kind::Float => &[16, 32, 64],
            _ => &[8, 16, 32, 64],
        };
        known.contains(&bits).then_some(Self::new(kind, bits))
    }

    /// Its name in the translated text.
    pub(crate) fn name(self) -> String {
        match self.kind {
            Kind::Predicate => "bool".to_owned(),
            Kind::Bits | Kind::Unsigned => format!("u{}", self.bits),
            Kind::Signed => format!("s{}", self.bits),
            Kind::Float => format!("f{}", self.bits),
            Kind::Bfloat => "bf16".to_owned(),
            Kind::FloatPair => "f16x2".to_owned(),
            Kind::BfloatPair => "bf16x2".to_owned(),
        }
    }

    /// What a register of so many bits is there.
    pub(crate) fn of_register(bits: u32) -> String {
        match bits {
            1 => PREDICATE.name(),
            bits => Self::new(Kind::Bits, bits).name(),
        }
    }

    /// As memory has it: bits, and a sign where a wider register takes one.
    pub(crate) fn in_memory(self) -> Self {
        match self.kind {
            Kind::Signed => self,
            _ => Self::new(Kind::Bits, self.bits),
        }
    }

    /// The type of a product in full.
    pub(crate) fn twice(self) -> Self {
        Self::new(self.kind, self.bits * 2)
    }

    pub(crate) fn bytes(self) -> u32 {
        self.bits / 8
    }

    pub(crate) fn is_float(self) -> bool {
        !matches!(self.kind, Kind::Bits | Kind::Unsigned | Kind::Signed | Kind::Predicate)
    }
}
