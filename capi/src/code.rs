//! What a function returns: a number for programs, and the text that goes with it.

use std::{
    ffi::{CStr, CString},
    sync::LazyLock,
};

use gpuvm::{Error, ErrorKind};

/// What became of a call. The numbers stay what they are in every version.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_code {
    /// It was done.
    Ok = 0,
    /// A handle that was freed, that was never made, or the null handle.
    InvalidHandle = 1,
    /// A handle of something else than the function takes.
    WrongKind = 2,
    /// A pointer that may not be NULL, or that is not aligned.
    InvalidPointer = 3,
    /// A text that is not UTF-8.
    InvalidText = 4,
    /// A value, a setting or an enumeration's number that cannot be.
    InvalidValue = 5,
    /// A GPU, a transport or a feature that this machine, this build or this Vm does not have.
    Unavailable = 6,
    /// GPU or host memory is short, and its holders release none. Nothing was changed, and the same may work later.
    OutOfMemory = 7,
    /// The GPU refused.
    Gpu = 8,
    /// The NIC refused.
    Nic = 9,
    /// A memory node refused, or cannot be reached.
    Node = 10,
    /// A region that cannot be, or that does not take what was asked of it.
    Region = 11,
    /// A file that cannot be read or written.
    File = 12,
    /// Two regions over the same memory or file, not both read-only.
    Overlap = 13,
    /// Elements past the end.
    OutOfRange = 14,
    /// Bytes that are not a multiple of the element size.
    PartOfAnElement = 15,
    /// Arguments that do not fit the kernel.
    Arguments = 16,
    /// Memory that belongs to another GPU of the Vm.
    OtherGpu = 17,
    /// A launch that declares more spans than the frames can carry.
    Spans = 18,
    /// An access of a kernel, or a flush, could not be served.
    Fault = 19,
    /// The launch was stopped before its end.
    Stopped = 20,
    /// The GPU is lost, or the Vm cannot be used any more.
    Lost = 21,
    /// Writes of kernels may be lost with a GPU.
    WritesLost = 22,
    /// The source text of a module does not compile.
    Compile = 23,
    /// The module has no such kernel.
    NoKernel = 24,
    /// The launch has not ended within the time.
    StillRuns = 25,
    /// An elastic buffer whose contents are in host memory.
    Paused = 26,
    /// An elastic buffer would be longer than it may be.
    BeyondMax = 27,
    /// A page has no good copy, or not its checksum.
    Damaged = 28,
    /// Memory that was lent, or borrowed, is still used.
    StillUsed = 29,
    /// The process was forked after it had used the library.
    Forked = 30,
    /// A callback of the program said that it failed.
    Callback = 31,
    /// A mistake of the library itself.
    Internal = 32,
}

/// The names of all numbers, by number: those of the enumeration, as the header writes them.
static NAMES: LazyLock<Vec<CString>> = LazyLock::new(|| {
    let variants = include_str!("code.rs").lines().filter_map(|line| {
        let (name, number) = line.strip_prefix("    ")?.strip_suffix(',')?.split_once(" = ")?;
        number.parse::<u32>().ok().map(|_| name)
    });
    let name = |variant: &str| {
        let words = variant.chars().map(|c| match c.is_uppercase() {
            true => format!("_{c}"),
            false => c.to_uppercase().to_string(),
        });
        CString::new(format!("GPUVM_CODE{}", words.collect::<String>())).unwrap_or_default()
    };
    variants.map(name).collect()
});

/// The name of a number, if it is one of the enumeration's.
pub fn name(code: i32) -> Option<&'static CStr> {
    NAMES.get(usize::try_from(code).ok()?).map(CString::as_c_str)
}

/// Why a handle names nothing that a function can use.
#[derive(Debug, thiserror::Error)]
pub enum Gone {
    /// The null handle.
    #[error("`{what}` is the null handle; a {wanted} is needed")]
    Null {
        /// The parameter or field.
        what: &'static str,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Freed, or never made.
    #[error(
        "`{what}` is {handle:#x}, which is not a valid handle: it was freed, or belongs to another process; a {wanted} is needed"
    )]
    NoHandle {
        /// The parameter or field.
        what: &'static str,
        /// The number.
        handle: u64,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Of something else.
    #[error("`{what}` is the handle of a {found}; a {wanted} is needed")]
    WrongKind {
        /// The parameter or field.
        what: &'static str,
        /// What was wanted.
        wanted: &'static str,
        /// What was given.
        found: &'static str,
    },
}

/// Why a call was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// See [`Gone`].
    #[error(transparent)]
    Gone(#[from] Gone),
    /// A pointer that is NULL or not aligned.
    #[error("`{what}` {is}")]
    Pointer {
        /// The parameter or field.
        what: &'static str,
        /// What is wrong with it.
        is: &'static str,
    },
    /// A text that is none.
    #[error("`{what}` is not UTF-8 from byte {byte} on")]
    Text {
        /// The parameter or field.
        what: &'static str,
        /// The first byte that is wrong.
        byte: usize,
    },
    /// A value that cannot be.
    #[error("`{what}` is {value}: {reason}")]
    Value {
        /// The parameter or field.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it has to be.
        reason: String,
    },
    /// What the runtime reports.
    #[error(transparent)]
    Runtime(#[from] Error),
    /// A wait that ended before the launch.
    #[error("the launch has not ended within {waited_ns} ns; wait again, or abort it")]
    StillRuns {
        /// How long it was waited for.
        waited_ns: u64,
    },
    /// A child process.
    #[error(
        "process {this} was forked from process {first}, which has the GPU's threads; call exec in the child, or use gpuvm there only"
    )]
    Forked {
        /// The process that calls.
        this: u32,
        /// The process that called first.
        first: u32,
    },
    /// A callback that failed.
    #[error("the callback returned {value}, not 0")]
    Callback {
        /// What it returned.
        value: i32,
    },
    /// A call of a launch's callback.
    #[error(
        "a launch's callback called gpuvm, which waits for the callback; make this call before or after the launch"
    )]
    Enqueuing,
    /// A panic.
    #[error("internal error of gpuvm: {message}; please report it")]
    Panicked {
        /// What the panic says.
        message: String,
    },
}

impl Failure {
    /// Its number.
    pub fn code(&self) -> gpuvm_code {
        match self {
            Self::Gone(Gone::WrongKind { .. }) => gpuvm_code::WrongKind,
            Self::Gone(Gone::NoHandle { .. } | Gone::Null { .. }) => gpuvm_code::InvalidHandle,
            Self::Pointer { .. } => gpuvm_code::InvalidPointer,
            Self::Text { .. } => gpuvm_code::InvalidText,
            Self::Value { .. } => gpuvm_code::InvalidValue,
            Self::Runtime(error) => of_kind(error.kind()),
            Self::StillRuns { .. } => gpuvm_code::StillRuns,
            Self::Forked { .. } => gpuvm_code::Forked,
            Self::Callback { .. } | Self::Enqueuing => gpuvm_code::Callback,
            Self::Panicked { .. } => gpuvm_code::Internal,
        }
    }

    /// Something is wrong with the value of a parameter or a field.
    pub fn value(what: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Self::Value {
            what,
            value: value.to_string(),
            reason: reason.into(),
        }
    }
}

macro_rules! codes {
    ($($what:literal, $kind:ident, $code:ident, $class:literal;)*) => {
        fn of_kind(kind: ErrorKind) -> gpuvm_code {
            match kind {
                $(ErrorKind::$kind => gpuvm_code::$code,)*
                // Of a later runtime.
                _ => gpuvm_code::Internal,
            }
        }
    };
}

gpuvm::error_kinds!(codes);

/// Calls of the library's functions.
pub type Result<T, E = Failure> = std::result::Result<T, E>;
