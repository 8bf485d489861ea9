//! Kernel arguments, checked against what the compiler says of the kernel's parameters.

use std::{
    any::TypeId,
    sync::{Arc, Mutex, Weak},
};

use bytemuck::Pod;
use gpuvm_gpu::{ParamInfo, ParamKind};

use crate::{
    buffer::Buffer,
    launch::InFlight,
    region::{Region, RegionInner},
    scope::ScopedRegion,
    vm::Vm,
};

/// What a launch keeps of one argument.
pub(crate) struct Given {
    pub bytes: Vec<u8>,
    pub kind: Kind,
    /// The virtual memory that it belongs to.
    pub vm: Option<Vm>,
    /// Index and name, when it is a region.
    pub region: Option<(u32, String)>,
    /// Keeps the memory behind it alive and tells it of the launch.
    pub memory: Option<Arc<dyn Memory>>,
}

/// What an argument is, for the check.
pub(crate) enum Kind {
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

/// Memory that a launch names.
pub(crate) trait Memory: Send + Sync {
    /// The launches that host accesses to this memory wait for.
    fn launches(&self) -> &Mutex<Vec<Weak<InFlight>>>;

    /// A launch that may write the memory is about to begin. Called with the launches locked.
    fn may_be_written(&self) {}
}

impl Memory for RegionInner {
    fn launches(&self) -> &Mutex<Vec<Weak<InFlight>>> {
        &self.launches
    }

    fn may_be_written(&self) {
        self.expect_writes();
    }
}

impl<T: Pod> Memory for crate::buffer::BufferInner<T> {
    fn launches(&self) -> &Mutex<Vec<Weak<InFlight>>> {
        &self.launches
    }
}

/// One argument of a kernel: a number, a [`Value`], a [`Region`] or a [`Buffer`].
///
/// Numbers must have exactly the parameter's type: `5u32` for `unsigned`, `5u64` for `unsigned long long`.
pub trait KernelArg: private::Sealed {}

/// Any plain structure as a kernel's by-value parameter of the same size.
#[derive(Debug, Clone, Copy)]
pub struct Value<T>(pub T);

/// The arguments of a kernel: a tuple of up to twelve, or `()`.
pub trait KernelArgs: private::SealedArgs {}

pub(crate) mod private {
    use super::Given;

    pub trait Sealed {
        #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
        fn give(&self) -> Given;
    }

    pub trait SealedArgs {
        #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
        fn give_all(&self) -> Vec<Given>;
    }
}

/// The class of a number; `Other` for anything else.
fn class_of<T: 'static>() -> ParamKind {
    let id = TypeId::of::<T>();
    let is = |ids: &[TypeId]| ids.contains(&id);
    if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
        ParamKind::Float
    } else if is(&[
        TypeId::of::<i8>(),
        TypeId::of::<i16>(),
        TypeId::of::<i32>(),
        TypeId::of::<i64>(),
        TypeId::of::<isize>(),
    ]) {
        ParamKind::Signed
    } else if is(&[
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ]) {
        ParamKind::Unsigned
    } else {
        ParamKind::Other
    }
}

fn scalar<T: Pod>(value: &T) -> Given {
    let kind = Kind::Scalar {
        class: class_of::<T>(),
        bytes: size_of::<T>(),
        name: std::any::type_name::<T>(),
    };
    Given {
        bytes: bytemuck::bytes_of(value).to_vec(),
        kind,
        vm: None,
        region: None,
        memory: None,
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl KernelArg for $number {}
        impl private::Sealed for $number {
            #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
            fn give(&self) -> Given {
                scalar(self)
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl<T: Pod> KernelArg for Value<T> {}
impl<T: Pod> private::Sealed for Value<T> {
    #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
    fn give(&self) -> Given {
        scalar(&self.0)
    }
}

impl<T: Pod> KernelArg for &Buffer<T> {}
impl<T: Pod> private::Sealed for &Buffer<T> {
    #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
    fn give(&self) -> Given {
        Given {
            bytes: self.inner.memory.addr().to_ne_bytes().to_vec(),
            kind: Kind::Pointer {
                class: class_of::<T>(),
                element_bytes: size_of::<T>(),
                name: std::any::type_name::<T>(),
            },
            vm: Some(self.vm.clone()),
            region: None,
            memory: Some(self.inner.clone()),
        }
    }
}

impl<T: Pod> KernelArg for &Region<T> {}
impl<T: Pod> private::Sealed for &Region<T> {
    #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
    fn give(&self) -> Given {
        let region = &self.inner;
        Given {
            bytes: bytemuck::bytes_of(&region.array()).to_vec(),
            kind: Kind::Array {
                class: class_of::<T>(),
                element_bytes: size_of::<T>(),
                name: std::any::type_name::<T>(),
                read_only: region.read_only,
                region: region.name.clone(),
            },
            region: Some((region.id, region.name.clone())),
            vm: Some(Vm {
                inner: Arc::clone(&region.vm),
            }),
            memory: Some(region.clone()),
        }
    }
}

impl<T: Pod> KernelArg for &ScopedRegion<'_, T> {}
impl<T: Pod> private::Sealed for &ScopedRegion<'_, T> {
    #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
    fn give(&self) -> Given {
        let region: &Region<T> = self;
        private::Sealed::give(&region)
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: KernelArg),*> KernelArgs for ($($name,)*) {}
        impl<$($name: KernelArg),*> private::SealedArgs for ($($name,)*) {
            #[allow(private_interfaces, reason = "the trait is sealed: nobody outside calls it")]
            #[allow(non_snake_case, reason = "a variable a type")]
            fn give_all(&self) -> Vec<Given> {
                let ($($name,)*) = self;
                vec![$(private::Sealed::give($name)),*]
            }
        }
    )*};
}
tuples! {
    ; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; A B C D E F G H I;
    A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L;
}

impl Kind {
    fn given(&self) -> String {
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
            return Err(format!("{} was given for `{}`", self.given(), param.type_name));
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
