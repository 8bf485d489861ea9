//! The virtual memory: its handle, and those of its GPUs.

use std::{ops::Deref, path::Path, sync::Arc, time::Duration};

use bytemuck::Pod;
use gpuvm_files::{Tier, TierStats};
use gpuvm_gpu::{CompileOptions, Gpu, Source};
use gpuvm_nic::{NicCapabilities, SoftNic};

use crate::{
    broadcast::BroadcastBuilder,
    buffer::{Buffer, RawBuffer},
    catch_up::{self, Catching},
    device_code::DeviceCode,
    elastic::{ElasticBuffer, ElasticBuilder, ElasticStats, Elastics},
    element::{ElementType, Untyped},
    error::{Doing, Error, Result},
    frames::FrameAccess,
    gpu::{Machines, PagedGpu, Resized, bring_up},
    kernel::{Kernel, Module},
    kernel_nic::KernelNic,
    launch::LaunchConfig,
    launched::{Launch, StreamHandle},
    metrics,
    plan::{QueuePlan, Settings, TransportKind},
    precompiled::{self, Precompiled, Use},
    profile::Profiler,
    region::{RawRegion, RegionBuilder, RegionPlace},
    scope::Scope,
    shared::Shared,
    slot_cache::SlotCacheBuilder,
    stats::Stats,
    tiered::{TieredBuffer, TieredBuilder},
    timeline::Sheet,
};

/// Data larger than GPU memory, for kernels. A handle: clones share one virtual memory. What a GPU has ends with the last of the
/// handles, and of the regions, buffers, modules and launches on that GPU.
///
/// It has one GPU or several ([`VmBuilder::gpus`](crate::VmBuilder::gpus)). [`gpu`](Self::gpu) is the handle of one; whatever that
/// handle can do, a `Vm` does on its first GPU: it derefs to [`VmGpu`].
#[derive(Clone)]
pub struct Vm {
    shared: Arc<Shared>,
    gpus: Arc<[VmGpu]>,
}

impl Vm {
    /// Brings up a virtual memory over GPUs that were opened.
    pub(crate) fn bring_up(
        settings: Settings,
        opened: Vec<(QueuePlan, Machines)>,
        sheet: Option<&Arc<Sheet>>,
    ) -> Result<Self> {
        metrics::serve_as_asked()?;
        let host_homes = opened.iter().map(|(plan, _)| plan.host_homes).max().unwrap_or(1);
        let shared = Arc::new(Shared::new(settings, host_homes));
        let gpus = (0..).zip(opened).map(|(place, (plan, machines))| {
            let homes = shared.host_homes_of(&plan);
            let gpu = bring_up(place, shared.settings(), &plan, machines, homes, sheet)?;
            catch_up::start(&gpu, shared.regions())?;
            let regions = Arc::clone(shared.regions());
            let (device, turns) = (Arc::clone(&gpu.device), Arc::clone(&gpu.turns));
            let elastics = Elastics::new(device, Arc::clone(&gpu.handles), turns);
            Ok(VmGpu {
                place: RegionPlace { gpu, regions },
                elastics: Arc::new(elastics),
            })
        });
        let gpus = gpus.collect::<Result<Arc<[VmGpu]>>>()?;
        metrics::watch(gpus.iter().map(VmGpu::paged));
        Ok(Self { shared, gpus })
    }

    /// The GPU at `place`, from 0 on in the order in which they were given.
    ///
    /// # Errors
    /// [`Error::Setting`] when there are fewer.
    pub fn gpu(&self, place: usize) -> Result<&VmGpu> {
        self.gpus.get(place).ok_or_else(|| Error::Setting {
            setting: "GPU",
            value: place.to_string(),
            reason: format!("the Vm has {}, counted from 0", self.gpus.len()),
        })
    }

    /// An array of which each GPU holds a copy. One of the builder's last calls gives it its data, and thereby its length.
    pub fn broadcast<T: Pod>(&self) -> BroadcastBuilder<T> {
        self.broadcast_of(ElementType::of::<T>())
    }

    /// An array of elements whose type is known at run time alone, of which each GPU holds a copy: as [`broadcast`](Self::broadcast), with
    /// [`from_bytes`](BroadcastBuilder::from_bytes) for data that is there.
    pub fn raw_broadcast(&self, element: ElementType) -> BroadcastBuilder<Untyped> {
        self.broadcast_of(element)
    }

    fn broadcast_of<E>(&self, element: ElementType) -> BroadcastBuilder<E> {
        let gpus = self.gpus.iter().map(|gpu| Arc::clone(gpu.paged())).collect();
        BroadcastBuilder::new(gpus, Arc::clone(self.shared.broadcasts()), element)
    }

    /// Runs `iteration` once and notes which pages of the [broadcast arrays](Self::broadcast) each GPU reads meanwhile. Then each GPU
    /// subscribes to those that it has read, and to no others: stores go to no GPU that does not read them. A thread that reads another page later
    /// reads the owner's copy, slower and right. Reads by `gpuvm::broadcast<T>::data()` are not seen.
    ///
    /// # Errors
    /// What `iteration` returns, also of subscriptions that cannot be changed ([`Error::Gpu`]).
    pub fn track<R>(&self, iteration: impl FnOnce() -> Result<R>) -> Result<R> {
        let arrays = self.shared.broadcasts().live();
        arrays.iter().try_for_each(|array| array.begin_tracking())?;
        let outcome = iteration();
        let mut ended = Ok(());
        for array in &arrays {
            ended = ended.and(array.end_tracking());
        }
        let outcome = outcome?;
        ended.map(|()| outcome)
    }

    /// Pauses elastic buffers as [`VmGpu::pause`] does, on all GPUs.
    ///
    /// # Errors
    /// As there; those of GPUs before that one are paused then.
    pub fn pause(&self, tag: &str) -> Result<u64> {
        self.gpus.iter().map(|gpu| gpu.pause(tag)).sum()
    }

    /// Resumes elastic buffers as [`VmGpu::resume`] does, on all GPUs.
    ///
    /// # Errors
    /// As there; those of GPUs before that one are resumed then.
    pub fn resume(&self, tag: &str) -> Result<u64> {
        self.gpus.iter().map(|gpu| gpu.resume(tag)).sum()
    }

    /// All GPUs, in their order; one at least.
    pub fn gpus(&self) -> &[VmGpu] {
        &self.gpus
    }
}

impl Deref for Vm {
    type Target = VmGpu;

    /// The first GPU.
    fn deref(&self) -> &VmGpu {
        &self.gpus[0]
    }
}

impl Vm {
    /// Takes back homes that were lost and are there again, catches up with them and with copies that are stale for other reasons,
    /// and waits for it. A thread a GPU does so in the background, but for a virtual memory with a seed; it calls a lost memory
    /// node from time to time, and after a failure it tries again, each time later, up to some seconds.
    ///
    /// A memory node that was lost is called at once, where the virtual memory has
    /// [`reliable_regions`](crate::VmBuilder::reliable_regions), without which nothing has replicas: it gets a new session and new
    /// memory for each replicated region. Regions without replicas have lost what they had there. What can be caught up is also
    /// caught up where this returns an error.
    ///
    /// # Errors
    /// [`Error::Node`] when a lost memory node does not answer, refuses, or has too little memory; [`Error::Fault`] when a page
    /// cannot be read or written; [`Error::Unavailable`] when a home's queue pairs do not come to rest within the wait limit.
    /// The first is returned. It may be tried again.
    pub fn catch_up(&self) -> Result<()> {
        self.catch_up_all(true)
    }

    /// Lets homes that have returned take part again, and catches up with nothing: what they hold is stale until kernels write
    /// it back, or [`catch_up`](Self::catch_up) does.
    ///
    /// # Errors
    /// As for [`catch_up`](Self::catch_up).
    #[doc(hidden)]
    pub fn readmit_homes(&self) -> Result<()> {
        self.catch_up_all(false)
    }

    /// The homes in this host's memory, in order; none unless there are several.
    pub fn host_homes(&self) -> Vec<crate::HostHome> {
        self.shared.host_homes().iter().cloned().map(crate::HostHome).collect()
    }

    /// On all GPUs, whatever becomes of one. The first error is returned.
    fn catch_up_all(&self, repair: bool) -> Result<()> {
        let mut outcome = Ok(());
        for gpu in self.gpus.iter() {
            let (gpu, regions) = (gpu.paged(), self.shared.regions());
            outcome = outcome.and(gpu.map_device_lost(Catching { gpu, regions }.catch_up_now(repair)));
        }
        outcome
    }
}

/// One GPU of a virtual memory: regions are made on it, and kernels for it are compiled. A handle as [`Vm`] is.
///
/// A kernel of any GPU takes the regions of all, whichever they were made on. A region comes to another GPU with the first launch there
/// that names it, which takes memory for its page table, and for all of its pages if it is
/// [never evicted](crate::RegionBuilder::never_evicted). Launches that read it run side by side on all GPUs; one that may write it, as its
/// parameter `gpuvm::array<T>` says, runs when those on other GPUs have ended, and [`Kernel::launch`](crate::Kernel::launch) waits for them. Regions with checksums
/// or replicas, at memory nodes or at a neighbour GPU keep to the GPU that they were made on, as buffers do: [`Error::OtherGpu`].
#[derive(Clone)]
pub struct VmGpu {
    place: RegionPlace,
    elastics: Arc<Elastics>,
}

impl VmGpu {
    pub(crate) fn paged(&self) -> &Arc<PagedGpu> {
        &self.place.gpu
    }

    /// Its place among the GPUs of the virtual memory.
    pub fn index(&self) -> usize {
        self.paged().place
    }

    /// Address of the [`VmDesc`] in device memory, for tools that look at what lanes change while they run. What brings pages beside launches has ended.
    #[doc(hidden)]
    pub fn description_address(&self) -> u64 {
        self.paged().end_beside();
        self.paged().desc_addr()
    }

    /// A region of elements `T`. One of the builder's last calls gives it its data, and thereby its length:
    /// [`zeroed`](RegionBuilder::zeroed), [`from_slice`](RegionBuilder::from_slice), [`from_vec`](RegionBuilder::from_vec),
    /// [`from_iter`](RegionBuilder::from_iter), [`from_reader`](RegionBuilder::from_reader), [`from_file`](RegionBuilder::from_file),
    /// [`map_file`](RegionBuilder::map_file), [`map_file_mut`](RegionBuilder::map_file_mut),
    /// [`map_file_span`](RegionBuilder::map_file_span), [`map_file_span_mut`](RegionBuilder::map_file_span_mut).
    pub fn region<T: Pod>(&self) -> RegionBuilder<T> {
        RegionBuilder::new(self.place.clone(), ElementType::of::<T>())
    }

    /// Gives `bytes` bytes of borrowed memory back, in whole chunks of 16 MiB, at once, also while launches run: how many those were. What
    /// was there is fetched from its home from now on, or read there by launches to come; launches that look pages up and run now read on where
    /// they found them. When this returns no lane writes there any more. The memory is free for its owner when the launches that run now have
    /// ended, and as many chunks in a row were given back as were borrowed together (16): the next launch that looks pages up frees it, or the next
    /// such call. [`Stats::loans_awaited_ns`](crate::Stats) counts that time. It waits for single page copies, not for a launch, and no longer
    /// than the wait limit.
    ///
    /// # Errors
    /// [`Error::StillWritten`] when such a copy has not ended by then; [`Error::Gpu`].
    pub fn give_back_borrowed(&self, bytes: u64) -> Result<u64> {
        self.give_back(None, bytes)
    }

    /// Gives back as [`give_back_borrowed`](Self::give_back_borrowed) does, of what the neighbour GPU `ordinal` lends alone.
    ///
    /// # Errors
    /// As [`give_back_borrowed`](Self::give_back_borrowed).
    pub fn give_back_to(&self, ordinal: u32, bytes: u64) -> Result<u64> {
        self.give_back(Some(ordinal), bytes)
    }

    fn give_back(&self, to: Option<u32>, bytes: u64) -> Result<u64> {
        let gpu = self.paged();
        let Some(victims) = gpu.victims() else { return Ok(0) };
        let _span = gpu.span(|| format!("giving back {bytes} borrowed bytes"));
        let back = gpu.map_device_lost(victims.take_back(&*gpu.device, to, bytes, gpu.settings.wait_limit))?;
        gpu.update_loans()?;
        Ok(back)
    }

    /// Borrows up to `bytes` bytes again, in whole chunks, of what was given back before: how many bytes there were. It waits for the
    /// launches that run.
    ///
    /// # Errors
    /// [`Error::Gpu`], or as a launch.
    pub fn borrow_again(&self, bytes: u64) -> Result<u64> {
        self.paged().borrow_again(bytes)
    }

    /// What a neighbour may do with memory that it was given back, for tests: fills it with a byte, as far as it is still allocated. How many bytes those
    /// were.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    #[doc(hidden)]
    pub fn scribble_given_back(&self, byte: u8) -> Result<u64> {
        self.paged().scribble_given_back(byte)
    }

    /// Bytes that neighbour GPUs lend to this one now ([`VmBuilder::borrow_from`](crate::VmBuilder::borrow_from)).
    pub fn borrowed_bytes(&self) -> u64 {
        self.paged().victims().map_or(0, |victims| victims.lent_bytes())
    }

    /// Plain device memory of `length` zeroed elements, which a kernel takes as a pointer. It is not paged.
    ///
    /// # Errors
    /// [`Error::Gpu`] when device memory is short; [`Error::Tenants`], which says who holds it, where other processes share the GPU.
    pub fn buffer<T: Pod>(&self, length: u64) -> Result<Buffer<T>> {
        Buffer::zeroed(Arc::clone(self.paged()), ElementType::of::<T>(), length)
    }

    /// Memory of `length` zeroed elements at one address, in chunks that lie on the GPU as far as there is room, and in host memory beyond:
    /// a kernel, or any library, takes it as a pointer.
    ///
    /// # Errors
    /// As for [`TieredBuilder::build`].
    pub fn tiered_buffer<T: Pod>(&self, length: u64) -> Result<TieredBuffer<T>> {
        self.tiered(length).build()
    }

    /// A tiered buffer of `length` elements, with a name, a budget of GPU memory or a priority.
    pub fn tiered<T: Pod>(&self, length: u64) -> TieredBuilder<T> {
        TieredBuilder::new(Arc::clone(self.paged()), ElementType::of::<T>(), length)
    }

    /// A tiered buffer of elements whose type is known at run time alone: as [`tiered`](Self::tiered).
    pub fn raw_tiered(&self, element: ElementType, length: u64) -> TieredBuilder<Untyped> {
        TieredBuilder::new(Arc::clone(self.paged()), element, length)
    }

    /// Device memory for up to `max_elements` elements that grows and shrinks at one address, which a kernel takes as a pointer. It has no
    /// element at first and takes no memory.
    ///
    /// # Errors
    /// As for [`ElasticBuilder::build`].
    pub fn elastic_buffer<T: Pod>(&self, max_elements: u64) -> Result<ElasticBuffer<T>> {
        self.elastic(max_elements).build()
    }

    /// An elastic buffer of up to `max_elements` elements, with a length, a name, a tag or a priority.
    pub fn elastic<T: Pod>(&self, max_elements: u64) -> ElasticBuilder<T> {
        self.elastic_of(ElementType::of::<T>(), max_elements)
    }

    /// An elastic buffer of elements whose type is known at run time alone: as [`elastic`](Self::elastic).
    pub fn raw_elastic(&self, element: ElementType, max_elements: u64) -> ElasticBuilder<Untyped> {
        self.elastic_of(element, max_elements)
    }

    fn elastic_of<E>(&self, element: ElementType, max: u64) -> ElasticBuilder<E> {
        let (gpu, family) = (Arc::clone(self.paged()), Arc::clone(&self.elastics));
        ElasticBuilder::new(gpu, family, element, max)
    }

    /// Brings the contents of this GPU's elastic buffers with the [tag](ElasticBuilder::tag) to host memory, so that others may have their
    /// GPU memory: how many bytes those are. It waits for the launches that name them. Their addresses stay theirs; a launch that names one
    /// is refused until [`resume`](Self::resume). Those that are paused already stay so.
    ///
    /// # Errors
    /// [`Error::HostMemory`], [`Error::Gpu`]. None is paused then that was not, unless memory could not be unmapped: then all are.
    pub fn pause(&self, tag: &str) -> Result<u64> {
        let _span = self.paged().span(|| format!("pause of `{tag}`"));
        self.paged().map_device_lost(self.elastics.pause(tag))
    }

    /// Brings the contents of the paused buffers with the tag back to where they were: how many bytes those are.
    ///
    /// # Errors
    /// [`Error::OutOfHandles`] when GPU memory is short, [`Error::Gpu`]. All of them are paused still then, and nothing is lost.
    pub fn resume(&self, tag: &str) -> Result<u64> {
        let _span = self.paged().span(|| format!("resume of `{tag}`"));
        self.paged().map_device_lost(self.elastics.resume(tag))
    }

    /// Gives `bytes` bytes of GPU memory that elastic buffers do not use back to the driver, rounded up to handles, so that other allocators
    /// of this process find memory: how many bytes there were. What was given back by buffers goes first, then what is mapped and not in
    /// use. Memory that a launch may still use stays. On an NVIDIA GPU the driver has it as soon as no kernel of this process runs there.
    pub fn trim(&self, bytes: u64) -> u64 {
        self.paged().handles.trim(bytes, None)
    }

    /// What elastic buffers have, and what their growth cost.
    pub fn elastic_stats(&self) -> ElasticStats {
        self.elastics.stats()
    }

    /// A cache of records: `slots` slots in this GPU's memory for records of tables in home memory, which calls on the GPU fill.
    pub fn slot_cache(&self, slots: u64) -> SlotCacheBuilder {
        SlotCacheBuilder::new(Arc::clone(self.paged()), slots)
    }

    /// A region of elements whose type is known at run time alone: as [`region`](Self::region), with
    /// [`from_bytes`](RegionBuilder::from_bytes) for data that is there.
    pub fn raw_region(&self, element: ElementType) -> RegionBuilder<Untyped> {
        RegionBuilder::new(self.place.clone(), element)
    }

    /// Plain device memory of `length` zeroed elements whose type is known at run time alone.
    ///
    /// # Errors
    /// As [`buffer`](Self::buffer).
    pub fn raw_buffer(&self, element: ElementType, length: u64) -> Result<RawBuffer> {
        Buffer::zeroed(Arc::clone(self.paged()), element, length)
    }

    /// A further stream: launches of one stream run in order, those of different streams beside each other.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn stream(&self) -> Result<StreamHandle> {
        let stream = self.device().stream().doing(|| "creating a stream".into());
        let stream = self.paged().map_device_lost(stream)?;
        Ok(StreamHandle::new(self.paged(), stream))
    }

    /// Runs `body` with a scope in which regions may borrow host memory. Before this returns every region of the scope
    /// has waited for its launches, has written its dirty pages back and has left the NIC, whatever `body` did with
    /// the handles.
    ///
    /// # Errors
    /// What `body` returns, else the first error of a region that could not write its pages back.
    pub fn scope<'env, R>(&self, body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>) -> Result<R> {
        Scope::run(&self.place, body)
    }

    /// What the device library counted since the virtual memory began. Exact when no launch runs.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn stats(&self) -> Result<Stats> {
        self.paged().map_device_lost(Stats::read(self.paged()))
    }

    /// What reads and writes files by way of [`file_cache`](crate::VmBuilder::file_cache): `io_uring`, `threads`, or, into memory of the GPU,
    /// `cuFile` or `cuFile without nvidia-fs`, which goes by way of the host. None without that memory.
    pub fn file_engine(&self) -> Option<&'static str> {
        self.paged().tier().map(Tier::engine)
    }

    /// What the file cache did since the virtual memory began; none without [`file_cache`](crate::VmBuilder::file_cache).
    pub fn file_stats(&self) -> Option<TierStats> {
        self.paged().tier().map(Tier::stats)
    }

    /// Notes from now on which blocks of files are asked for, until [`perfect_file_reads`](Self::perfect_file_reads): 16 bytes each.
    pub fn record_file_requests(&self) {
        if let Some(tier) = self.paged().tier() {
            tier.record();
        }
    }

    /// Blocks that a perfect cache in place of the file cache would have read since
    /// [`record_file_requests`](Self::record_file_requests): none reads fewer. [`file_stats`](Self::file_stats) says how many were read.
    pub fn perfect_file_reads(&self) -> Option<u64> {
        self.paged().tier().and_then(Tier::perfect_reads)
    }

    /// Begins a profile of the regions that there are: a host thread reads their page tables, with rests of `interval` between, until
    /// [`Profiler::finish`]. Kernels run as ever; each sample takes 8 bytes a page over the link to the GPU. Of regions that are read in
    /// place lanes count by page what they read there, which takes 8 bytes a page of GPU memory until the region ends.
    ///
    /// ```
    /// # use gpuvm::{LaunchConfig, Vm};
    /// # fn main() -> Result<(), gpuvm::Error> {
    /// # let vm = Vm::builder().frame_memory(1 << 18).build()?;
    /// # let sum = r"
    /// # #include <gpuvm/gpuvm.cuh>
    /// # __global__ void sum(gpuvm::array<const unsigned> a, unsigned long long* sum) {
    /// #     unsigned long long own = 0;
    /// #     for (unsigned long long i = threadIdx.x; i < a.size(); i += blockDim.x) own += a[i];
    /// #     atomicAdd(sum, own);
    /// # }";
    /// # let kernel = vm.kernel("sum.cu", sum, "sum")?;
    /// # let total = vm.buffer::<u64>(1)?;
    /// let keys = vm.region::<u32>().name("keys").read_only().zeroed(1 << 18)?;
    /// let profiler = vm.profile(std::time::Duration::from_millis(2))?;
    /// kernel.launch(LaunchConfig::new(1, 32), (&keys, &total))?.sync()?;
    /// let profile = profiler.finish()?;
    /// assert!(profile.regions[0].fetches() >= keys.pages());
    /// for told in profile.suggestions().unwrap_or_default() {
    ///     println!("{}: {}, since {}", told.region, told.advice, told.because);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Region`] while another profile of such a region is being taken; [`Error::Gpu`] when memory is short or a table cannot be
    /// read; [`Error::Unavailable`] when no thread can be started.
    pub fn profile(&self, interval: Duration) -> Result<Profiler> {
        let gpu = self.paged();
        gpu.map_device_lost(Profiler::start(gpu, interval))
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        1 << self.paged().page_shift()
    }

    /// The transport that fills the frames.
    pub fn transport(&self) -> TransportKind {
        self.paged().transport
    }

    /// The transport for reports, with the engine of a software NIC where that is a kernel: `soft, engine gpu:4`.
    pub fn transport_name(&self) -> String {
        match self.kernel_nic() {
            Some(nic) => gpuvm_nic::Nic::capabilities(&**nic).name,
            None => self.transport().to_string(),
        }
    }

    /// The memory nodes, as they were given.
    pub fn memory_nodes(&self) -> Vec<&str> {
        self.paged().nodes.iter().map(|node| node.address()).collect()
    }

    /// The GPU's name.
    pub fn gpu_name(&self) -> String {
        self.paged().capabilities().name
    }

    /// The GPU itself, for what kernels are compared with: memory that is not paged.
    pub fn device(&self) -> &Arc<dyn Gpu> {
        &self.paged().device
    }

    /// The first software NIC, for its statistics and its fault injection; none when other NICs fill the frames.
    pub fn soft_nic(&self) -> Option<&Arc<SoftNic>> {
        self.paged().soft_nics.first()
    }

    /// All software NICs, in their order.
    pub fn soft_nics(&self) -> &[Arc<SoftNic>] {
        &self.paged().soft_nics
    }

    /// The software NIC whose engine is a kernel; none when others fill the frames.
    pub fn kernel_nic(&self) -> Option<&Arc<KernelNic>> {
        self.paged().engine.as_ref()
    }

    /// Queue pairs, of all homes and NICs together.
    pub fn queue_pairs(&self) -> u32 {
        self.paged().queues().map_or(0, |queues| queues.count())
    }

    /// Queue pairs whose doorbells a thread of the processor rings, since the GPU cannot: each request of theirs waits for it.
    pub fn proxied_queue_pairs(&self) -> u32 {
        self.paged().queues().map_or(0, |queues| queues.proxied())
    }

    /// Whether each READ is followed by a read of its frame: see [`Soft::flush_reads`](crate::Soft::flush_reads).
    pub fn flushes_reads(&self) -> bool {
        self.paged().queues().is_some_and(|queues| queues.flushes_reads())
    }

    /// What each NIC says of itself; none where lanes copy the pages themselves.
    pub fn nics(&self) -> Vec<NicCapabilities> {
        self.paged().nics.iter().map(|nic| nic.capabilities()).collect()
    }

    /// Bytes of page table and frame bookkeeping: 8 a page of every live region, 16 a frame, 128 a never-evicted region, whose own
    /// frames have none.
    pub fn bookkeeping_bytes(&self) -> u64 {
        self.paged().bookkeeping_bytes()
    }

    /// Compiles CUDA C++ source text, which error messages call `name`, for its kernel `kernel`.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernel(&self, name: &str, source: &str, kernel: &str) -> Result<Kernel> {
        let [kernel] = self.kernels(name, source, [kernel], &CompileOptions::default())?;
        Ok(kernel)
    }

    /// Several kernels of one source, in the order of their names, with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernels<const N: usize>(
        &self,
        name: &str,
        source: &str,
        kernels: [&str; N],
        options: &CompileOptions,
    ) -> Result<[Kernel; N]> {
        let module = self.compile_with(name, source, &kernels, options)?;
        let found: Vec<Kernel> = kernels
            .iter()
            .map(|kernel| module.kernel(kernel))
            .collect::<Result<_>>()?;
        Ok(found
            .try_into()
            .unwrap_or_else(|_: Vec<Kernel>| unreachable!("one kernel for each name")))
    }

    /// Compiles CUDA C++ source text, which error messages call `name`, and finds `kernels` in it, to be looked up by name.
    ///
    /// # Errors
    /// [`Error::Gpu`] with the compiler's log, an unknown kernel, or no compiler.
    pub fn compile(&self, name: &str, source: &str, kernels: &[&str]) -> Result<Module> {
        self.compile_with(name, source, kernels, &CompileOptions::default())
    }

    /// Compiles CUDA C++ source text with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(&self, name: &str, source: &str, kernels: &[&str], options: &CompileOptions) -> Result<Module> {
        Module::compile(Arc::clone(self.paged()), Source::new(name, source), kernels, options)
    }

    /// Compiles the CUDA C++ file at `path`.
    ///
    /// # Errors
    /// [`Error::File`], and as [`compile`](Self::compile).
    pub fn compile_file(&self, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        self.compile_file_with(path, kernels, &CompileOptions::default())
    }

    /// Compiles the CUDA C++ file at `path` with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile_file`](Self::compile_file).
    pub fn compile_file_with(
        &self,
        path: impl AsRef<Path>,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Module> {
        let path = path.as_ref();
        let source = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        self.compile_with(&path.display().to_string(), &source, kernels, options)
    }

    /// Loads a cubin, a fat binary or PTX that nvcc made with the device library's headers ([`write_headers`](crate::write_headers)),
    /// which error messages call `name`. Its kernels are launched as those of a source, with the same checks of their arguments:
    /// `GPUVM_EXPORT(kernel)` behind each of them, in the source, describes it. `GPUVM_FEATURES` there: see [`device_code`](Self::device_code).
    ///
    /// # Errors
    /// [`Error::Gpu`] for a broken file, one for other GPUs, or an unknown kernel, and on the simulated GPU, which compiles sources;
    /// [`Error::DeviceCode`] for kernels that do not fit this library or this virtual memory.
    pub fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Module> {
        let module = self.paged().load(name, image, kernels)?;
        let module = Module::loaded(Arc::clone(self.paged()), module);
        for kernel in kernels {
            module.kernel(kernel)?.check_code()?;
        }
        Ok(module)
    }

    /// Loads the file at `path`, as [`load`](Self::load). Its code runs as the user: it belongs to the user or to root, and not everybody
    /// may write to it or replace it in its folder.
    ///
    /// # Errors
    /// [`Error::File`], with [`PermissionDenied`](std::io::ErrorKind::PermissionDenied) where others may have written it; and as there.
    pub fn load_file(&self, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        let path = path.as_ref();
        self.load_file_as(&path.display().to_string(), path, kernels)
    }

    /// As [`load_file`](Self::load_file), with what error messages call it.
    ///
    /// # Errors
    /// As there.
    pub fn load_file_as(&self, name: &str, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        self.load(name, &read_code(path.as_ref())?, kernels)
    }

    /// Loads PTX of kernels that know nothing of gpuvm, as nvcc, clang, NVRTC, Triton or Numba make it, and which error messages call `name`.
    /// A program, a library, an object or a fat binary that has PTX in it is taken, too. Each access to global memory is rewritten to look its page up (`docs/PTX.md`). Any region
    /// is given for a pointer, wherever [it is placed](crate::Placement), as buffers and addresses are; of the other parameters the size alone is
    /// compared. A kernel with an instruction that cannot look pages up, such as a bulk copy, uses all pages [at home](crate::Kernel::at_home). A kernel that stores to a region that is read-only breaks what other launches read.
    ///
    /// A launch over regions that cannot be looked up, such as those behind queue pairs, runs another form of the kernel, in which each access calls the device
    /// library for its page: slower, and compiled at the first such launch. An access past a region's end, and a page that is not available, are faults of it.
    ///
    /// # Errors
    /// [`Error::Gpu`] for text that is no PTX, with the line; with what the driver's assembler says; and on the simulated GPU for an instruction
    /// that it does not run. [`Error::Unavailable`] where addresses cannot be reserved.
    pub fn load_ptx(&self, name: &str, ptx: &[u8]) -> Result<Module> {
        crate::rewritten::load(self.paged(), name, ptx)
    }

    /// As [`load_ptx`](Self::load_ptx), of the file at `path`, which belongs to the user or to root, and which not everybody may write.
    ///
    /// # Errors
    /// As there; [`Error::File`].
    pub fn load_ptx_file(&self, path: impl AsRef<Path>) -> Result<Module> {
        let path = path.as_ref();
        self.load_ptx(&path.display().to_string(), &read_code(path)?)
    }

    /// As [`load_ptx`](Self::load_ptx) for a source that looks pages up as rewritten kernels do, with where it finds the window: a test of all but the rewriting on
    /// GPUs that run no PTX.
    ///
    /// # Errors
    /// As there, and of compiling.
    #[doc(hidden)]
    pub fn compile_as_rewritten(&self, name: &str, source: &str, kernels: &[&str]) -> Result<(Module, [u64; 4])> {
        let described = self.paged().window()?.described;
        let module = self
            .paged()
            .compile(&Source::new(name, source), kernels, &CompileOptions::default())?;
        let window = [described.base, described.bytes, described.entries, described.marks];
        Ok((
            Module::of_ptx(Arc::clone(self.paged()), module, Default::default(), None),
            window,
        ))
    }

    /// A stream that others made and use: launches on it run in its order. `stream` is a `CUstream` or `cudaStream_t` of this GPU's primary
    /// context, as CUDA's runtime, cudarc, CuPy and PyTorch make them; 0, 1 and 2 are CUDA's default streams.
    ///
    /// A launch runs behind what the stream had before, and who waits for the launch waits for that too: its deadline counts from its start.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] for a stream of another context, and on the simulated GPU.
    ///
    /// # Safety
    /// It is live, and stays so until launches on it have ended and the handle was dropped.
    pub unsafe fn borrow_stream(&self, stream: u64) -> Result<StreamHandle> {
        // SAFETY: passed on from the caller.
        unsafe { StreamHandle::borrowed(self.paged(), stream) }
    }

    /// What kernels of this GPU use of the device library, no more and no less. A program that compiles kernels itself while it runs
    /// defines `GPUVM_FEATURES` as its `features`, beside the headers of [`write_headers`](crate::write_headers).
    pub fn device_code(&self) -> DeviceCode {
        DeviceCode::with(self.paged().features())
    }

    /// A launch of a kernel that this library did not compile, such as one that nvcc compiled into the program: `enqueue` puts it on the
    /// stream, before this returns. It has the stream as CUDA knows it, if CUDA does, and for each of `uses` the bytes of what the kernel
    /// takes: a `gpuvm::array` ([`ArrayDesc`](crate::ArrayDesc)), a `gpuvm::broadcast` ([`BroadcastDesc`](crate::BroadcastDesc)), or a pointer, all of this launch alone. `name` is for messages, `code` says what the
    /// kernel was compiled with, and `config` what shape it has; its dynamic shared memory does not matter. `stream`: none for the GPU's
    /// default one.
    ///
    /// # Errors
    /// As [`crate::Kernel::launch`]; [`crate::Error::DeviceCode`] for a kernel that does not fit; [`crate::Error::Gpu`] with what `enqueue` says. Nothing runs any
    /// more after an error.
    ///
    /// # Safety
    /// `enqueue` enqueues nothing but kernels on that stream, which use memory as `uses` and `config` say, and were compiled with what
    /// `code` says. It calls nothing of this library, which would wait for itself.
    pub unsafe fn launch_by(
        &self,
        stream: Option<&StreamHandle>,
        (name, code): (&str, DeviceCode),
        config: &LaunchConfig,
        uses: &[Use<'_>],
        enqueue: impl FnOnce(Option<u64>, &[Vec<u8>]) -> std::result::Result<(), String>,
    ) -> Result<Launch> {
        let what = Precompiled {
            name,
            code,
            config,
            uses,
        };
        precompiled::launch(self.paged(), stream, &what, enqueue)
    }

    /// A launch of a kernel that was rewritten for this virtual memory's [window over homes](crate::VmBuilder::window_over) and loaded by others, which may
    /// reach all of `regions` and write them. `enqueue` puts it on the stream, and is told whether all their pages have frames. `name`: for
    /// messages, and whether it uses all pages at home.
    ///
    /// # Errors
    /// As [`launch_by`](Self::launch_by).
    ///
    /// # Safety
    /// `enqueue` enqueues nothing but that kernel, or work that reads and writes the regions at home where that is said. It calls nothing of this library.
    #[doc(hidden)]
    pub unsafe fn launch_over(
        &self,
        stream: &StreamHandle,
        name: (&str, bool),
        regions: &[&RawRegion],
        enqueue: impl FnOnce(bool) -> std::result::Result<(), String>,
    ) -> Result<Launch> {
        precompiled::launch_over(self.paged(), stream, name, regions, enqueue)
    }

    /// What a module with rewritten kernels has in its variable `gpuvm_window`.
    ///
    /// # Errors
    /// As [`load_ptx`](Self::load_ptx).
    #[doc(hidden)]
    pub fn window_bytes(&self) -> Result<[u8; gpuvm_ptx::Window::BYTES]> {
        Ok(self.paged().window()?.described.to_bytes())
    }

    /// Number of frames of this GPU.
    pub fn frames(&self) -> u64 {
        u64::from(self.paged().frame_count())
    }

    /// Gives this GPU `bytes` bytes of frames, rounded down to whole units, while kernels run: see
    /// [`resize_frames_within`](Self::resize_frames_within). Frames that are to go have a second to leave.
    ///
    /// ```
    /// # use gpuvm::Vm;
    /// # fn main() -> Result<(), gpuvm::Error> {
    /// # let vm = Vm::builder().gpu(gpuvm::SimulatedGpu::new().workers(1)).frame_memory(1 << 20).frame_capacity(4 << 20).build()?;
    /// // Other libraries need memory for a while.
    /// vm.resize_frames(1 << 19)?;
    /// vm.trim(1 << 19);
    /// let resized = vm.resize_frames(4 << 20)?;
    /// println!("{} bytes of frames after {:?}", resized.bytes, resized.took);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`resize_frames_within`](Self::resize_frames_within).
    pub fn resize_frames(&self, bytes: u64) -> Result<Resized> {
        self.resize_frames_within(bytes, Duration::from_secs(1))
    }

    /// As [`resize_frames`](Self::resize_frames), with the time that frames have to empty. No kernel is stopped or waits. Pages in frames
    /// that go leave as others do that are evicted; pages that lanes hold stay, and so do frames for all spans of launches in flight:
    /// [`Resized::kept_bytes`]. The memory goes to what needs some next on this GPU ([`trim`](Self::trim) gives it to the
    /// driver). A unit is a handle of memory, 2 MiB on NVIDIA GPUs and 64 KiB on simulated ones, or one page if that is larger.
    ///
    /// A kernel of the runtime empties frames, and lanes that look for a frame help it. Kernels that look for none and leave the runtime's
    /// no place on the GPU for that time keep the frames. Frames that come are given to the pool in the same way; those that are not there
    /// in time come later, and until then the next change is refused.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) without [`VmBuilder::frame_capacity`](crate::VmBuilder::frame_capacity), and while frames of an
    /// earlier change come back; [`Error::Setting`](crate::Error::Setting) for less than a unit or more than the capacity; [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost).
    pub fn resize_frames_within(&self, bytes: u64, within: Duration) -> Result<Resized> {
        self.paged().resize_frames(bytes, within)
    }

    /// When memory is short those of low priority give it first: frames, and elastic buffers
    /// ([`ElasticBuffer::set_priority`](crate::ElasticBuffer::set_priority)). It holds for the next who is short.
    pub fn set_frame_priority(&self, priority: i32) {
        self.paged().set_frame_priority(priority);
    }

    /// Most frames that this GPU may have: those that it has, unless their number can change.
    pub fn frame_capacity(&self) -> u64 {
        u64::from(self.paged().frame_capacity())
    }

    /// Where the frames lie, and how the NICs reach them.
    pub fn frame_access(&self) -> FrameAccess {
        self.paged().frames().access()
    }
}

/// What a file holds that is to run: one that belongs to the user or to root, and which not everybody may write.
fn read_code(path: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::File {
        path: path.to_owned(),
        source,
    };
    let code = std::fs::read(path).map_err(failed)?;
    let trusted = gpuvm_gpu::back_end::check_code(path);
    trusted.map_err(|why| failed(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)))?;
    Ok(code)
}
