//! What an elastic buffer is to be.

use std::{marker::PhantomData, sync::Arc};

use gpuvm_gpu::GpuError;
use parking_lot::Mutex;

use super::{ElasticBuffer, ElasticInner, Elastics, Mapping, State, book::UNIT};
use crate::{
    element::ElementType,
    error::{Doing, Error, Result},
    gpu::PagedGpu,
    stored::stored,
};

/// An elastic buffer to be. [`build`](Self::build) makes it.
#[must_use]
pub struct ElasticBuilder<E> {
    gpu: Arc<PagedGpu>,
    family: Arc<Elastics>,
    element: ElementType,
    max: u64,
    length: u64,
    name: Option<String>,
    tag: Option<String>,
    priority: i32,
    _elements: PhantomData<fn() -> E>,
}

impl<E> ElasticBuilder<E> {
    pub(crate) fn new(gpu: Arc<PagedGpu>, family: Arc<Elastics>, element: ElementType, max: u64) -> Self {
        Self {
            gpu,
            family,
            element,
            max,
            length: 0,
            name: None,
            tag: None,
            priority: 0,
            _elements: PhantomData,
        }
    }

    stored! {
        /// Elements that it has at first. What they hold is unspecified. Default: none. A buffer that is given its length here shares handles
        /// with others, so that little memory is wasted: see [`ElasticBuffer`].
        length(elements: u64) => length = elements;

        /// The name that errors use. Default: the element's type.
        name(name: impl Into<String>) => name = Some(name.into());

        /// The name of a group of buffers: [`VmGpu::pause`](crate::VmGpu::pause) takes it, and errors tell what the group holds.
        tag(tag: impl Into<String>) => tag = Some(tag.into());

        /// Who gives up memory that is mapped and not in use when GPU memory is short: those of low priority first. It can be
        /// changed ([`ElasticBuffer::set_priority`]). Default: 0.
        priority(priority: i32) => priority = priority;
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`Error::Setting`] for a most of no elements, elements without bytes, or sizes that no GPU has addresses for;
    /// [`Error::BeyondMax`]; [`Error::OutOfHandles`] where GPU memory is short; [`Error::Gpu`].
    pub fn build(self) -> Result<ElasticBuffer<E>> {
        let made = self.make();
        let inner = self.gpu.map_device_lost(made)?;
        Ok(ElasticBuffer::new(self.gpu, inner))
    }

    fn make(&self) -> Result<Arc<ElasticInner>> {
        let bytes_max = self.element.bytes_of(
            "most elements of an elastic buffer",
            "it must be greater than zero",
            self.max,
        )?;
        let family = &self.family;
        let name = self.name.clone().unwrap_or_else(|| self.element.name().to_owned());
        if self.length > self.max {
            return Err(Error::BeyondMax {
                buffer: name,
                wanted: self.length,
                max: self.max,
            });
        }
        let size = family.handle_bytes();
        let doing = || {
            format!(
                "reserving addresses for elastic buffer `{name}` of {} elements at most",
                self.max
            )
        };
        if size == 0 || !size.is_multiple_of(UNIT) {
            let what = "map memory in handles".into();
            return Err(GpuError::Unsupported { what }).doing(doing);
        }
        // A handle more, since it may begin in the middle of its first one.
        let reserved = bytes_max.next_multiple_of(size) + size;
        let space = family.device.reserve(reserved, &[]).doing(doing)?;
        let bytes = self.length * self.element.bytes() as u64;
        let id = family.supply(|book, fresh| book.open(bytes, fresh))?;
        let (head, mapped) = {
            let book = family.book.lock();
            (book.head(id), book.bytes(id))
        };
        let inner = Arc::new(ElasticInner {
            name,
            element: self.element.clone(),
            tag: self.tag.clone(),
            priority: self.priority.into(),
            max: self.max,
            id,
            addr: space.addr() + head,
            launches: Mutex::default(),
            mapping: Mutex::new(Mapping { space, contents: None }),
            state: Mutex::new(State {
                length: self.length,
                mapped,
                ..State::default()
            }),
            family: Arc::clone(family),
        });
        // Dropped after an error, it leaves the book.
        inner.place(&*inner.mapping.lock().space, 0)?;
        family.enter(&inner);
        Ok(inner)
    }
}
