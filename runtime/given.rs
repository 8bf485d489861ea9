//! What a launch is given: a kernel's arguments, whatever their types in Rust.

use std::sync::Arc;

use gpuvm_gpu::{ParamInfo, ParamKind};

use crate::{gpu::PagedGpu, launch::Memory};

/// What a launch keeps of one argument.
pub(crate) struct Given {
    pub bytes: Vec<u8>,
    pub kind: GivenKind,
    /// The GPU that it belongs to.
    pub gpu: Option<Arc<PagedGpu>>,
    /// Index and name, when it is a region.
    pub region: Option<(u32, String)>,
    /// Keeps the memory behind it alive and tells it of the launch.
    pub memory: Option<Arc<dyn Memory>>,
}

/// What an argument is, for the check.
pub(crate) enum GivenKind {
    Scalar {
        class: ParamKind,
        bytes: usize,
        name: &'static str,
    },
    Pointer {
        class: ParamKind,
        element_bytes: usize,
        name: &'static str,
    },
    Array {
        class: ParamKind,
        element_bytes: usize,
        name: &'static str,
        read_only: bool,
        region: String,
    },
}

impl GivenKind {
    /// What it is, for messages.
    pub fn what(&self) -> String {
        match self {
            Self::Scalar { name, .. } => format!("a value of type {name}"),
            Self::Pointer { name, .. } => format!("a buffer of {name}"),
            Self::Array {
                name,
                region,
                read_only,
                ..
            } => {
                format!(
                    "the {}region `{region}` of {name}",
                    if *read_only { "read-only " } else { "" }
                )
            }
        }
    }

    /// Whether a parameter takes this argument.
    pub fn fits(&self, param: &ParamInfo) -> Result<(), String> {
        let element = |class: &ParamKind, bytes: &usize| {
            (param.element_bytes == 0 && param.kind == ParamKind::Pointer)
                || (param.element_bytes as usize == *bytes && param.element_kind == *class)
        };
        let fits = match self {
            Self::Scalar { class, bytes, .. } => param.kind == *class && param.bytes as usize == *bytes,
            Self::Pointer {
                class, element_bytes, ..
            } => param.kind == ParamKind::Pointer && element(class, element_bytes),
            Self::Array {
                class, element_bytes, ..
            } => {
                matches!(param.kind, ParamKind::PagedArray | ParamKind::PagedArrayConst)
                    && element(class, element_bytes)
            }
        };
        if !fits {
            return Err(format!("{} was given for `{}`", self.what(), param.type_name));
        }
        match self {
            Self::Array {
                read_only: true,
                region,
                ..
            } if param.kind == ParamKind::PagedArray => Err(format!(
                "the read-only region `{region}` was given for `{}`: take gpuvm::array<const T>",
                param.type_name
            )),
            _ => Ok(()),
        }
    }
}
