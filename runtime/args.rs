//! Kernel arguments, checked against what the compiler says of the kernel's parameters.

use std::{any::TypeId, sync::Arc};

use bytemuck::Pod;
use gpuvm_gpu::ParamKind;

use crate::{
    buffer::Buffer,
    given::{Given, GivenKind},
    region::Region,
    scope::ScopedRegion,
};

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
    use crate::given::Given;

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
    let kind = GivenKind::Scalar {
        class: class_of::<T>(),
        bytes: size_of::<T>(),
        name: std::any::type_name::<T>(),
    };
    Given {
        bytes: bytemuck::bytes_of(value).to_vec(),
        kind,
        gpu: None,
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
            kind: GivenKind::Pointer {
                class: class_of::<T>(),
                element_bytes: size_of::<T>(),
                name: std::any::type_name::<T>(),
            },
            gpu: Some(Arc::clone(&self.gpu)),
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
            kind: GivenKind::Array {
                class: class_of::<T>(),
                element_bytes: size_of::<T>(),
                name: std::any::type_name::<T>(),
                read_only: region.read_only,
                region: region.name.clone(),
            },
            region: Some((region.view.id(), region.name.clone())),
            gpu: Some(Arc::clone(&region.gpu)),
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
