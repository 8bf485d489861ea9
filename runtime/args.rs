//! Kernel arguments. [`Arg`] is one by bytes and type at run time; Rust's types are a face over it.

use std::sync::Arc;

use bytemuck::Pod;
use gpuvm_layouts as layout;

use crate::{
    broadcast::{Broadcast, BroadcastInner},
    buffer::{Buffer, BufferInner},
    elastic::{ElasticBuffer, ElasticInner},
    element::ElementType,
    error::Result,
    given::{ArgKind, Given},
    gpu::PagedGpu,
    launch_state::StateSlot,
    region::{OnGpu, Region, RegionInner},
    scope::ScopedRegion,
    tiered::TieredBuffer,
};

/// One argument of a kernel, by bytes and type at run time: `Arg::value(..)`, `Arg::from(&buffer)`, `Arg::from(&region)`.
#[derive(Clone)]
pub struct Arg<'a>(Kind<'a>);

/// What an argument is.
#[derive(Clone)]
enum Kind<'a> {
    Value {
        element: ElementType,
        bytes: &'a [u8],
    },
    Buffer {
        gpu: &'a Arc<PagedGpu>,
        element: &'a ElementType,
        inner: &'a Arc<BufferInner>,
    },
    Elastic {
        gpu: &'a Arc<PagedGpu>,
        inner: &'a Arc<ElasticInner>,
    },
    Region(&'a Arc<RegionInner>),
    /// A region whose elements the kernel takes for others of the same bytes.
    Words {
        region: &'a Arc<RegionInner>,
        element: ElementType,
    },
    Broadcast {
        array: &'a Arc<BroadcastInner>,
        /// One of several views of one GPU; none for the view of the kernel's GPU.
        view: Option<usize>,
    },
    /// A view of an array as a pointer.
    Memory {
        array: &'a Arc<BroadcastInner>,
        view: usize,
    },
    Address {
        element: ElementType,
        address: u64,
    },
}

/// An argument as the kernels of one GPU have it.
pub(crate) enum Placed<'a> {
    Value(&'a [u8]),
    Address(u64),
    /// With the bytes of an element.
    Region(&'a RegionInner, Arc<OnGpu>, u64),
    Broadcast(&'a BroadcastInner, usize),
}

impl Placed<'_> {
    /// Of an array: whether a launch may look up where its pages are.
    pub fn looks_up(&self) -> Option<bool> {
        match self {
            Self::Region(region, on, _) => Some(region.looks_up(on)),
            _ => None,
        }
    }

    /// Of an array that launches look up while all of its pages have frames, and only then: whether they seem to have. None of others that are looked up.
    pub fn seems_resident(&self) -> Option<bool> {
        match self {
            Self::Region(region, on, _) if !region.looks_up(on) => {
                Some(region.looks_up_resident(on) && on.gpu.seems_resident(&on.view))
            }
            _ => None,
        }
    }

    /// Pages of an array.
    pub fn pages(&self) -> u64 {
        match self {
            Self::Region(_, on, _) => on.view.pages().count(),
            _ => 0,
        }
    }

    /// Of an array: whether all its pages have frames. Its launches are locked, or it is a guess.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Region(_, on, _) => on.view.is_complete(),
            _ => true,
        }
    }

    /// Of an array: whether it lies in its frames as plain memory, for a launch that may write it or not. As [`is_complete`](Self::is_complete).
    pub fn is_plain(&self, writes: bool) -> bool {
        match self {
            Self::Region(_, on, _) => on.view.serves_as_plain(writes),
            _ => true,
        }
    }

    /// Whether [`is_plain`](Self::is_plain) may be so when no page comes or goes any more: it is, or was before.
    pub fn may_be_plain(&self, writes: bool) -> bool {
        match self {
            Self::Region(_, on, _) => on.view.has_been_plain() && on.view.may_serve_as_plain(writes),
            _ => true,
        }
    }

    /// Whether it is the address of memory that has no pages, or may have some in it.
    pub fn is_address(&self) -> bool {
        match self {
            Self::Address(_) => true,
            Self::Value(bytes) => bytes.len() > size_of::<u64>(),
            Self::Region(..) | Self::Broadcast(..) => false,
        }
    }

    /// Whether it is an array that kernels may only read.
    pub fn is_read_only(&self) -> bool {
        matches!(self, Self::Region(region, ..) if region.kind.read_only)
    }

    /// Of an array: what a kernel that came as PTX gets where it lies as plain memory.
    pub fn plain_bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Region(_, on, _) => Some(on.view.plain()?.first.to_ne_bytes().to_vec()),
            _ => None,
        }
    }

    /// A launch is about to begin that may write it, and uses it as plain memory or marks what it writes.
    pub fn expect_written(&self, as_plain: bool) {
        match self {
            Self::Region(_, on, _) if as_plain => on.view.expect_written(),
            Self::Region(_, on, _) => on.view.expect_marked(),
            _ => {}
        }
    }

    /// What the kernel of a launch in that state gets which looks pages up, or uses its arrays as plain memory, as they all can be.
    pub fn looked_up_bytes(&self, state: &StateSlot, as_plain: bool) -> Vec<u8> {
        match self {
            Self::Region(region, on, element) => {
                let plain = on.view.plain().filter(|_| as_plain);
                let mut array = region.looked_up(on, state, plain);
                array.length = region.pages.bytes() / element;
                bytemuck::bytes_of(&array).to_vec()
            }
            _ => self.bytes(state.vm_addr()),
        }
    }

    /// Of an array: its name, and why a launch cannot look its pages up, if so.
    pub fn why_not_looked_up(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Region(region, on, _) => Some((&*region.name, region.why_not_looked_up(on)?)),
            _ => None,
        }
    }

    /// What a kernel that came as PTX gets: of an array its address in the window, or that of its home.
    ///
    /// # Errors
    /// A broadcast array, with the reason; the window's.
    pub fn ptx_bytes(&self, at_home: bool) -> Result<std::result::Result<Vec<u8>, String>> {
        Ok(match self {
            Self::Region(region, on, _) if at_home => Ok(region.home_addr(on).to_ne_bytes().to_vec()),
            Self::Region(_, on, _) => Ok(on.gpu.places(&on.view)?.addr.to_ne_bytes().to_vec()),
            Self::Value(bytes) => Ok(bytes.to_vec()),
            Self::Address(address) => Ok(address.to_ne_bytes().to_vec()),
            Self::Broadcast(array, _) => Err(format!("the broadcast array `{}` has no place in a window", array.name)),
        })
    }

    /// Of an array that has a place in the window: what the kernel of a launch is told of it which calls for pages.
    pub fn called(&self, vm: u64) -> Option<layout::CalledArray> {
        match self {
            Self::Region(region, on, _) => Some(layout::CalledArray {
                array: region.array(on, vm),
                base: on.view.places_there()?.addr,
                read_only: region.kind.read_only.into(),
            }),
            _ => None,
        }
    }

    /// What the kernel of a launch gets whose `VmDesc` is at `vm`. A region is described as advice has it at this moment.
    pub fn bytes(&self, vm: u64) -> Vec<u8> {
        match self {
            Self::Value(bytes) => bytes.to_vec(),
            Self::Address(address) => address.to_ne_bytes().to_vec(),
            Self::Region(region, on, element) => {
                let mut array = region.array(on, vm);
                array.length = region.pages.bytes() / element;
                bytemuck::bytes_of(&array).to_vec()
            }
            Self::Broadcast(array, view) => bytemuck::bytes_of(&array.desc(*view, vm)).to_vec(),
        }
    }
}

impl<'a> Arg<'a> {
    /// A value that the kernel takes by value: its bytes, in this machine's order.
    pub fn value(element: ElementType, bytes: &'a [u8]) -> Self {
        Self(Kind::Value { element, bytes })
    }

    /// An address that the kernel takes as a pointer to `element`: memory that gpuvm does not know, such as another library's device
    /// memory, host memory that the GPU reaches, or managed memory.
    ///
    /// # Safety
    /// Kernels of this GPU reach what lies there, as the kernel uses it, until the launch has ended. Nothing holds a Rust reference to
    /// what the kernel writes meanwhile, nor one to what it reads that lets it change otherwise than by atomics.
    pub unsafe fn address(element: ElementType, address: u64) -> Self {
        Self(Kind::Address { element, address })
    }

    /// A region as an array of other elements: for kernels that copy its rows, whatever they are. Those that have a part of one past the end
    /// are not there.
    pub fn words<E>(region: &'a Region<E>, element: ElementType) -> Self {
        let region = &region.inner;
        Self(Kind::Words { region, element })
    }

    /// Brings it to a GPU whose kernel takes it, if it is a region that is not there yet.
    ///
    /// # Errors
    /// As for a region that is made there.
    pub(crate) fn place_on(&self, gpu: &Arc<PagedGpu>) -> Result<Placed<'a>> {
        Ok(match &self.0 {
            Kind::Value { bytes, .. } => Placed::Value(bytes),
            Kind::Buffer { inner, .. } => Placed::Address(inner.memory.addr()),
            Kind::Elastic { inner, .. } => Placed::Address(inner.addr),
            Kind::Region(region) => Placed::Region(
                region,
                gpu.map_device_lost(region.on(gpu))?,
                region.element.bytes() as u64,
            ),
            Kind::Words { region, element } => {
                Placed::Region(region, gpu.map_device_lost(region.on(gpu))?, element.bytes() as u64)
            }
            Kind::Broadcast { array, view } => {
                // Checked before: the kernel's GPU is one of the array's virtual memory, which has a view a GPU.
                Placed::Broadcast(array, view.or_else(|| array.view_of(gpu)).unwrap_or_default())
            }
            Kind::Memory { array, view } => Placed::Address(array.addr(*view)),
            Kind::Address { address, .. } => Placed::Address(*address),
        })
    }

    /// What a launch keeps of it.
    pub(crate) fn give(&self) -> Given<'_> {
        match &self.0 {
            Kind::Value { element, bytes } => Given {
                kind: ArgKind::Scalar {
                    element,
                    bytes: bytes.len(),
                },
                gpu: None,
                memory: None,
            },
            Kind::Buffer { gpu, element, inner } => Given {
                kind: ArgKind::Pointer(element),
                gpu: Some(gpu),
                memory: Some(Arc::clone(inner) as _),
            },
            Kind::Elastic { gpu, inner } => Given {
                kind: ArgKind::Pointer(&inner.element),
                gpu: Some(gpu),
                memory: Some(Arc::clone(inner) as _),
            },
            Kind::Region(region) => given_region(region, &region.element),
            Kind::Words { region, element } => given_region(region, element),
            Kind::Broadcast { array, .. } => Given {
                kind: ArgKind::Broadcast {
                    element: &array.element,
                    array: &array.name,
                },
                gpu: Some(array.gpu(0)),
                memory: Some(Arc::clone(array) as _),
            },
            Kind::Memory { array, .. } => Given {
                kind: ArgKind::Pointer(&array.element),
                gpu: None,
                memory: Some(Arc::clone(array) as _),
            },
            Kind::Address { element, .. } => Given {
                kind: ArgKind::Pointer(element),
                gpu: None,
                memory: None,
            },
        }
    }
}

/// What a launch keeps of a region, whose elements the kernel takes for such.
fn given_region<'a>(region: &'a Arc<RegionInner>, element: &'a ElementType) -> Given<'a> {
    Given {
        kind: ArgKind::Array {
            element,
            read_only: region.kind.read_only,
            region: &region.name,
            one_gpu: region.keeps_to_one_gpu(),
        },
        gpu: Some(&region.own.gpu),
        memory: Some(Arc::clone(region) as _),
    }
}

impl<'a, E> From<&'a Buffer<E>> for Arg<'a> {
    fn from(buffer: &'a Buffer<E>) -> Self {
        Self(Kind::Buffer {
            gpu: &buffer.gpu,
            element: &buffer.element,
            inner: &buffer.inner,
        })
    }
}

impl<'a, E> From<&'a TieredBuffer<E>> for Arg<'a> {
    fn from(buffer: &'a TieredBuffer<E>) -> Self {
        let buffer: &Buffer<E> = buffer;
        Self::from(buffer)
    }
}

impl<'a, E> From<&'a ElasticBuffer<E>> for Arg<'a> {
    fn from(buffer: &'a ElasticBuffer<E>) -> Self {
        let (gpu, inner) = (&buffer.gpu, &buffer.inner);
        Self(Kind::Elastic { gpu, inner })
    }
}

impl<'a, E> From<&'a Region<E>> for Arg<'a> {
    fn from(region: &'a Region<E>) -> Self {
        Self(Kind::Region(&region.inner))
    }
}

/// Here, since arguments know arrays.
impl<T> Broadcast<T> {
    /// A view as a kernel's bare pointer, for what arrays are compared with.
    #[doc(hidden)]
    pub fn pointer(&self, view: usize) -> Arg<'_> {
        Arg(Kind::Memory {
            array: self.inner(),
            view,
        })
    }

    /// The array as one of its views has it, for a kernel of the GPU that has several.
    #[doc(hidden)]
    pub fn view(&self, view: usize) -> Arg<'_> {
        Arg(Kind::Broadcast {
            array: self.inner(),
            view: Some(view),
        })
    }
}

impl<'a, T> From<&'a Broadcast<T>> for Arg<'a> {
    fn from(array: &'a Broadcast<T>) -> Self {
        let array = array.inner();
        Self(Kind::Broadcast { array, view: None })
    }
}

/// One argument of a kernel: a number, a [`Value`], a [`Region`], a [`Buffer`], a [`TieredBuffer`], an [`ElasticBuffer`], a [`Broadcast`] array, or an [`Arg`] that is any of these.
///
/// Numbers must have exactly the parameter's type: `5u32` for `unsigned`, `5u64` for `unsigned long long`.
pub trait KernelArg: private::Sealed {}

/// Any plain structure as a kernel's by-value parameter of the same size.
#[derive(Debug, Clone, Copy)]
pub struct Value<T>(pub T);

/// The arguments of a kernel: a tuple of up to twelve, or `()`.
pub trait KernelArgs: private::SealedArgs {}

pub(crate) mod private {
    use super::Arg;

    pub trait Sealed {
        fn arg(&self) -> Arg<'_>;
    }

    pub trait SealedArgs {
        fn args(&self) -> Vec<Arg<'_>>;
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl KernelArg for $number {}
        impl private::Sealed for $number {
            fn arg(&self) -> Arg<'_> {
                Arg::value(ElementType::of::<$number>(), bytemuck::bytes_of(self))
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

impl<T: Pod> KernelArg for Value<T> {}
impl<T: Pod> private::Sealed for Value<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::value(ElementType::of::<T>(), bytemuck::bytes_of(&self.0))
    }
}

impl<T: Pod> KernelArg for &Buffer<T> {}
impl<T: Pod> private::Sealed for &Buffer<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::from(*self)
    }
}

impl<T: Pod> KernelArg for &TieredBuffer<T> {}
impl<T: Pod> private::Sealed for &TieredBuffer<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::from(*self)
    }
}

impl<T: Pod> KernelArg for &ElasticBuffer<T> {}
impl<T: Pod> private::Sealed for &ElasticBuffer<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::from(*self)
    }
}

impl<T: Pod> KernelArg for &Region<T> {}
impl<T: Pod> private::Sealed for &Region<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::from(*self)
    }
}

impl<T: Pod> KernelArg for &ScopedRegion<'_, T> {}
impl<T: Pod> private::Sealed for &ScopedRegion<'_, T> {
    fn arg(&self) -> Arg<'_> {
        let region: &Region<T> = self;
        Arg::from(region)
    }
}

impl<T: Pod> KernelArg for &Broadcast<T> {}
impl<T: Pod> private::Sealed for &Broadcast<T> {
    fn arg(&self) -> Arg<'_> {
        Arg::from(*self)
    }
}

impl KernelArg for Arg<'_> {}
impl private::Sealed for Arg<'_> {
    fn arg(&self) -> Arg<'_> {
        self.clone()
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: KernelArg),*> KernelArgs for ($($name,)*) {}
        impl<$($name: KernelArg),*> private::SealedArgs for ($($name,)*) {
            #[allow(non_snake_case, reason = "a variable a type")]
            fn args(&self) -> Vec<Arg<'_>> {
                let ($($name,)*) = self;
                vec![$(private::Sealed::arg($name)),*]
            }
        }
    )*};
}
tuples! {
    ; A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; A B C D E F G H I;
    A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L;
}
