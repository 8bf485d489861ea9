//! PTX that the simulated GPU does not run.

use gpuvm_ptx::Position;

/// What a statement has that is not translated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Why {
    /// An instruction, a modifier or a type.
    #[error("the simulated GPU does not run {0}")]
    Unknown(String),
    /// A name that nothing declares.
    #[error("`{0}` is not declared")]
    Undeclared(String),
    /// Operands that do not fit the instruction.
    #[error("{0}; check the file with `ptxas`")]
    Operands(String),
}

impl Why {
    pub(crate) fn unknown(what: impl Into<String>) -> Self {
        Self::Unknown(what.into())
    }

    pub(crate) fn operands(what: impl Into<String>) -> Self {
        Self::Operands(what.into())
    }
}

/// A module that is not translated, and the first place that says why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untranslated {
    /// The text is no PTX.
    #[error(transparent)]
    Text(#[from] gpuvm_ptx::PtxError),
    /// A statement.
    #[error("`{statement}`: {why} ({at} of the text after it was rewritten)")]
    Statement {
        /// Where.
        at: Position,
        /// Its text.
        statement: String,
        /// Why.
        why: Why,
    },
    /// A kernel that is asked for.
    #[error("it has no kernel {0}")]
    Kernel(String),
    /// A variable that the host fills.
    #[error("it has no variable {name} of {bytes} bytes")]
    Variable {
        /// Its name.
        name: String,
        /// How many bytes the host has for it.
        bytes: usize,
    },
}
