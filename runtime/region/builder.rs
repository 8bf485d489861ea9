//! What a region is to be, and where its data comes from.

use std::{marker::PhantomData, sync::Arc};

use bytemuck::Pod;
use gpuvm_gpu::DeviceMemory;
use gpuvm_memory_node::NodeClient;

use super::{Kind, Plan, Region, RegionInner, RegionPlace, nodes::Spread, replicas::checksum};
use crate::{
    element::ElementType,
    error::{Doing, Error, Result},
    home::{AtNeighbour, AtNodes, Home, HostPages, InHost, NodeMemory},
    placement::Placement,
    plan::TransportKind,
    stored::stored,
};

mod data;
mod share;
mod sources;

use data::Data;
pub use share::SharedRegion;

/// A region to be: name and kind first, then the data, which says how long it is.
#[must_use]
pub struct RegionBuilder<E> {
    place: RegionPlace,
    element: ElementType,
    /// Elements, which the last call says.
    length: u64,
    name: Option<String>,
    kind: Kind,
    at_host: bool,
    priority: i32,
    replicas: u32,
    integrity: Integrity,
    /// The neighbour GPU that holds the pages.
    neighbour: Option<u32>,
    _elements: PhantomData<E>,
}

/// Whether a region's pages have checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Integrity {
    /// None: what the home answers is taken for what was written.
    #[default]
    Unchecked,
    /// CRC-32C: kept for each page in GPU memory, made when the page is written back, compared when it is fetched.
    Crc32c,
}

impl<E> RegionBuilder<E> {
    pub(crate) fn new(place: RegionPlace, element: ElementType) -> Self {
        let placement = place.gpu.settings.placement;
        Self {
            place,
            element,
            length: 0,
            name: None,
            kind: Kind {
                placement,
                ..Kind::default()
            },
            at_host: false,
            priority: 0,
            replicas: 1,
            integrity: Integrity::Unchecked,
            neighbour: None,
            _elements: PhantomData,
        }
    }

    /// The name that errors use. Default: the element's type.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Kernels may only read it: they take it as `gpuvm::array<const T>`, and no page is ever written back.
    pub fn read_only(mut self) -> Self {
        self.kind.read_only = true;
        self
    }

    /// Keeps the pages in this host's memory although the virtual memory has memory nodes.
    pub fn at_host(mut self) -> Self {
        self.at_host = true;
        self
    }

    /// Gives the region frames of its own, one for every page, which it keeps until it ends: its pages are fetched once and
    /// never leave, and kernels read them at nearly the speed of plain memory. The frames come on top of
    /// [`frame_memory`](crate::VmBuilder::frame_memory). Such a region is flushed only when no launch uses it.
    pub fn never_evicted(mut self) -> Self {
        self.kind.never_evicted = true;
        self
    }

    stored! {
        /// What accesses do with a page that has no frame. Default: what the virtual memory says
        /// ([`VmBuilder::placement`](crate::VmBuilder::placement)).
        placement(placement: Placement) => kind.placement = Some(placement);

        /// Whose pages stay while frames are short: see [`Region::set_priority`]. Default: 0.
        priority(priority: i32) => priority = priority;

        /// Keeps each page at this many homes, 1 or 2, so that losing one of two loses nothing: at two memory nodes, or, where
        /// there are none, at two homes of this host ([`Queues::host_homes`](crate::Queues::host_homes)). Default: 1.
        replicas(count: u32) => replicas = count;

        /// Keeps a checksum for each page, so that bits which flip at the home or on the way are found; with two replicas
        /// they are repaired. Default: [`Integrity::Unchecked`].
        integrity(integrity: Integrity) => integrity = integrity;

        /// Keeps the pages in the memory of the neighbour GPU `ordinal`, which the faulting warps read and write over the link
        /// between the GPUs. For the direct transport.
        home_on_gpu(ordinal: u32) => neighbour = Some(ordinal);
    }

    /// With this many elements.
    fn of_length(mut self, length: u64) -> Self {
        self.length = length;
        self
    }

    fn page_size(&self) -> u64 {
        1 << self.place.gpu.page_shift()
    }

    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.element.name().to_owned())
    }

    /// Checks the element's size and the length before any memory is taken.
    fn check(&self) -> Result<usize> {
        let refuse = |reason: String| {
            Err(Error::Region {
                region: self.label(),
                reason,
            })
        };
        let size = self.element.bytes() as u64;
        if size == 0 || !self.page_size().is_multiple_of(size) {
            return refuse(format!(
                "the element size of {size} bytes does not divide a page of {} bytes: pad the element to a power of two",
                self.page_size()
            ));
        }
        if let (Some(ordinal), false) = (self.neighbour, self.place.gpu.transport == TransportKind::Direct) {
            return refuse(format!(
                "only the direct transport reaches memory of GPU {ordinal}; this Vm uses {}",
                self.place.gpu.transport
            ));
        }
        if let Err(reason) = self.check_guards() {
            return refuse(reason);
        }
        match self.length.checked_mul(size) {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(self.length as usize),
            _ => refuse(format!(
                "{} elements of {size} bytes exceed the address space",
                self.length
            )),
        }
    }

    /// Bytes of all elements, once [`check`](Self::check) has found that an address space holds them.
    fn bytes(&self) -> u64 {
        self.length * self.element.bytes() as u64
    }

    /// Whether this virtual memory can do what replicas and checksums need; else why not.
    fn check_guards(&self) -> Result<(), String> {
        let queues = self.place.gpu.queues();
        let homes = match self.homed_at_nodes() {
            true => self.place.gpu.nodes.len(),
            false => queues.map_or(0, |queues| queues.local_homes().len()),
        };
        let reliable = self.replicas != 1 || self.integrity != Integrity::Unchecked;
        match self.replicas {
            _ if reliable && queues.is_none() => Err(format!(
                "transport {} supports neither replicas nor checksums, since GPU threads copy pages themselves; use one with queue pairs",
                self.place.gpu.transport
            )),
            _ if reliable && !self.place.gpu.settings.reliable => {
                Err("replicas and checksums need kernels that are compiled for them: set reliable_regions".into())
            }
            _ if reliable && self.neighbour.is_some() => {
                Err("regions at a neighbour GPU support neither replicas nor checksums".into())
            }
            1 => Ok(()),
            2 if homes >= 2 => Ok(()),
            2 if self.homed_at_nodes() => Err("2 replicas need two memory nodes; name another one".into()),
            2 => Err("2 replicas need two homes; name memory nodes, or say Queues::host_homes(2)".into()),
            other => Err(format!("{other} replicas were asked for: there can be 1 or 2")),
        }
    }

    /// Checksums of the pages of `bytes`.
    fn checksums_of(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let page = self.page_size() as usize;
        (self.integrity == Integrity::Crc32c).then(|| bytes.chunks(page).map(checksum).collect())
    }

    /// Those of zeros.
    fn checksums_of_zeros(&self) -> Option<Vec<u32>> {
        if self.integrity == Integrity::Unchecked {
            return None;
        }
        let (page, bytes) = (self.page_size(), self.bytes());
        let zeros = vec![0; page as usize];
        let mut sums = vec![checksum(&zeros); bytes.div_ceil(page) as usize];
        if let (Some(last), rest) = (sums.last_mut(), bytes % page)
            && rest != 0
        {
            *last = checksum(&zeros[..rest as usize]);
        }
        Some(sums)
    }

    fn finish<T: Pod>(self, data: Data<T>) -> Result<Region<E>> {
        let checksums = self.checksums_of(bytemuck::cast_slice(data.elements()));
        if self.homed_at_nodes() {
            let (memory, mirror) = self.node_memory()?;
            let doing = || format!("filling region `{}`", self.label());
            if !data.elements().is_empty() {
                for memory in std::iter::once(&memory).chain(&mirror) {
                    memory.write(0, bytemuck::cast_slice(data.elements())).doing(doing)?;
                }
            }
            return self.finish_at_nodes(memory, mirror, checksums);
        }
        if let Some(ordinal) = self.neighbour {
            let memory = self.neighbour_memory(ordinal)?;
            if let Some(memory) = &memory {
                let written = self
                    .place
                    .gpu
                    .device
                    .write(memory.addr(), bytemuck::cast_slice(data.elements()));
                let written = written.doing(|| format!("filling region `{}` on GPU {ordinal}", self.label()));
                self.place.gpu.map_device_lost(written)?;
            }
            return self.create_at_neighbour(memory);
        }
        let mirror = match self.replicas {
            1 => None,
            _ => Some(self.copy_of(&data)?),
        };
        self.create_in_host(data.into_memory(), mirror, checksums, false)
    }

    /// A copy of the elements at another place of this host.
    fn copy_of<T: Pod>(&self, data: &Data<T>) -> Result<HostPages> {
        let mut copy = self.zeros::<T>()?;
        copy.elements_mut().copy_from_slice(data.elements());
        Ok(copy.into_memory())
    }

    /// Zeroed memory of a neighbour GPU; none for no element.
    fn neighbour_memory(&self, ordinal: u32) -> Result<Option<DeviceMemory>> {
        let bytes = self.bytes();
        if bytes == 0 {
            return Ok(None);
        }
        let memory = self.place.gpu.device.allocate_on(ordinal, bytes);
        let memory = memory.doing(|| format!("allocating region `{}` on GPU {ordinal}", self.label()));
        self.place.gpu.map_device_lost(memory).map(Some)
    }

    /// Whether the pages live at memory nodes.
    fn homed_at_nodes(&self) -> bool {
        !self.at_host && self.neighbour.is_none() && !self.place.gpu.nodes.is_empty()
    }

    /// Zeroed memory of the nodes, and that of the other replica: moved on by one node.
    fn node_memory(&self) -> Result<(NodeMemory, Option<NodeMemory>)> {
        let bytes = self.bytes();
        let at = |nodes: &[_]| {
            NodeMemory::zeroed(nodes, bytes, self.page_size(), self.kind.read_only)
                .doing(|| format!("getting memory for region `{}`", self.label()))
        };
        let mut nodes = self.sessions()?;
        let memory = at(&nodes)?;
        if self.replicas == 1 {
            return Ok((memory, None));
        }
        nodes.rotate_left(1);
        Ok((memory, Some(at(&nodes)?)))
    }

    /// The sessions with the nodes, of which those that hold any of it are there.
    fn sessions(&self) -> Result<Vec<Arc<NodeClient>>> {
        let nodes: Vec<_> = self.place.gpu.nodes.iter().map(|node| node.session()).collect();
        let pages = usize::try_from(self.bytes().div_ceil(self.page_size())).unwrap_or(usize::MAX);
        let spread = Spread {
            stripes: nodes.len().min(pages),
            nodes: nodes.len(),
        };
        // A node that is being taken back grants memory before its queue pairs are there.
        for place in 0..nodes.len() {
            if let (Some(queues), Some(_)) = (
                self.place.gpu.queues(),
                spread.stripes_at(place, self.replicas as usize).next(),
            ) {
                let there = queues.check_node(place);
                there.doing(|| format!("getting memory for region `{}`", self.label()))?;
            }
        }
        Ok(nodes)
    }

    fn finish_at_nodes(
        self,
        memory: NodeMemory,
        mirror: Option<NodeMemory>,
        checksums: Option<Vec<u32>>,
    ) -> Result<Region<E>> {
        if self.kind.read_only {
            for memory in std::iter::once(&memory).chain(&mirror) {
                let sealed = memory.seal();
                sealed.doing(|| format!("sealing region `{}`", self.label()))?;
            }
        }
        let label = self.label();
        let at_nodes = |(row, memory)| Arc::new(AtNodes::new(label.clone(), memory, row)) as Arc<dyn Home>;
        let homes = std::iter::once(memory).chain(mirror).enumerate().map(at_nodes);
        let homes = homes.collect();
        self.create(homes, checksums, false)
    }

    fn create_at_neighbour(self, memory: Option<DeviceMemory>) -> Result<Region<E>> {
        let home = Arc::new(AtNeighbour::new(self.label(), memory));
        self.create(vec![home], None, false)
    }

    /// With two homes of this host where there is a `mirror`.
    fn create_in_host(
        self,
        memory: HostPages,
        mirror: Option<HostPages>,
        checksums: Option<Vec<u32>>,
        borrowed: bool,
    ) -> Result<Region<E>> {
        let label = self.label();
        let home = |memory, place| Arc::new(InHost::new(label.clone(), memory, place)) as Arc<dyn Home>;
        let homes = match mirror {
            None => vec![home(memory, None)],
            Some(mirror) => vec![home(memory, Some(0)), home(mirror, Some(1))],
        };
        self.create(homes, checksums, borrowed)
    }

    /// `checksums`: of the pages, for a region that has any.
    fn create(self, homes: Vec<Arc<dyn Home>>, checksums: Option<Vec<u32>>, borrowed: bool) -> Result<Region<E>> {
        let plan = Plan {
            name: self.label(),
            kind: self.kind,
            priority: self.priority,
            length: self.length,
            element: self.element.clone(),
            checksums,
        };
        let inner = self
            .place
            .gpu
            .map_device_lost(RegionInner::create(&self.place, plan, homes))?;
        Ok(Region::new(inner, borrowed))
    }
}
