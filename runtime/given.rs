//! What a launch is given: a kernel's arguments, whatever their types in Rust.

use std::sync::Arc;

use gpuvm_gpu::{ParamInfo, ParamKind};

use crate::{
    element::ElementType,
    error::{Error, Result},
    gpu::PagedGpu,
    launch::Memory,
};

/// What a launch keeps of one argument.
pub(crate) struct Given<'a> {
    pub kind: ArgKind<'a>,
    /// The GPU that it belongs to.
    pub gpu: Option<&'a Arc<PagedGpu>>,
    /// Keeps the memory behind it alive and tells it of the launch.
    pub memory: Option<Arc<dyn Memory>>,
}

impl Given<'_> {
    /// Refuses an argument that kernels of `gpu` do not take, since it belongs elsewhere.
    ///
    /// # Errors
    /// [`Error::Arguments`], [`Error::OtherGpu`].
    pub fn is_for(&self, gpu: &Arc<PagedGpu>, kernel: &str, position: usize) -> Result<()> {
        let Some(own) = self.gpu.filter(|own| !Arc::ptr_eq(own, gpu)) else {
            return Ok(());
        };
        if !own.is_beside(gpu) {
            return Err(Error::Arguments {
                kernel: kernel.to_owned(),
                reason: format!("argument {position} belongs to another Vm than the kernel"),
            });
        }
        match self.kind.keeps_to_one_gpu() {
            None => Ok(()),
            Some(reason) => Err(Error::OtherGpu {
                kernel: kernel.to_owned(),
                gpu: gpu.place,
                argument: self.kind.what(),
                of: own.place,
                reason,
            }),
        }
    }
}

/// What an argument is, for the check.
pub(crate) enum ArgKind<'a> {
    Scalar {
        element: &'a ElementType,
        /// Bytes that were given.
        bytes: usize,
    },
    Pointer(&'a ElementType),
    Array {
        element: &'a ElementType,
        read_only: bool,
        region: &'a str,
        /// Why kernels of other GPUs do not take it, if so.
        one_gpu: Option<&'static str>,
    },
    Broadcast {
        element: &'a ElementType,
        array: &'a str,
    },
}

impl ArgKind<'_> {
    /// What it is, for messages.
    pub fn what(&self) -> String {
        match self {
            Self::Scalar { element, .. } => format!("a value of type {}", element.name()),
            Self::Pointer(element) => format!("a buffer of {}", element.name()),
            Self::Array {
                element,
                region,
                read_only,
                ..
            } => {
                let kind = if *read_only { "read-only " } else { "" };
                format!("the {kind}region `{region}` of {}", element.name())
            }
            Self::Broadcast { element, array } => format!("the broadcast array `{array}` of {}", element.name()),
        }
    }

    /// Whether it is a region that kernels never write.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Array { read_only: true, .. })
    }

    /// Why a kernel of another GPU does not take it, if so.
    pub fn keeps_to_one_gpu(&self) -> Option<&'static str> {
        match self {
            Self::Scalar { .. } | Self::Broadcast { .. } => None,
            Self::Pointer(_) => Some("plain memory belongs to one GPU"),
            Self::Array { one_gpu, .. } => *one_gpu,
        }
    }

    /// Whether a parameter of a kernel takes this argument that came as PTX: its size alone is known, and arrays are given for pointers.
    pub fn fits_bytes(&self, param: &ParamInfo) -> std::result::Result<(), String> {
        let bytes = match self {
            Self::Scalar { bytes, .. } => *bytes,
            Self::Pointer(_) | Self::Array { .. } => size_of::<u64>(),
            Self::Broadcast { .. } => {
                return Err(format!(
                    "{} was given: kernels that came as PTX take no such arrays",
                    self.what()
                ));
            }
        };
        match bytes == param.bytes as usize {
            true => Ok(()),
            false => Err(format!(
                "{} was given, which has {bytes} bytes, for a parameter of {}",
                self.what(),
                param.bytes
            )),
        }
    }

    /// Whether a parameter takes this argument.
    pub fn fits(&self, param: &ParamInfo) -> std::result::Result<(), String> {
        let same = |element: &ElementType| {
            (param.element_bytes == 0 && param.kind == ParamKind::Pointer)
                || (param.element_bytes as usize == element.bytes() && param.element_kind == element.class())
        };
        let fits = match self {
            Self::Scalar { element, bytes } if *bytes != element.bytes() => {
                let (name, wanted) = (element.name(), element.bytes());
                return Err(format!("{bytes} bytes were given for a {name}, which has {wanted}"));
            }
            Self::Scalar { element, .. } => param.kind == element.class() && param.bytes as usize == element.bytes(),
            Self::Pointer(element) => param.kind == ParamKind::Pointer && same(element),
            Self::Array { element, .. } => {
                matches!(param.kind, ParamKind::PagedArray | ParamKind::PagedArrayConst) && same(element)
            }
            Self::Broadcast { element, .. } => {
                matches!(param.kind, ParamKind::Broadcast | ParamKind::BroadcastConst) && same(element)
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
