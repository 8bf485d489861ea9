//! How one GPU of a virtual memory is brought up.

use std::sync::{Arc, OnceLock};

use gpuvm_files::{Engine, FileError, Tier, TierOptions};
use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, TimelineDesc, VmDesc};
use gpuvm_nic::Nic;
use parking_lot::{Mutex, RwLock};

use super::{
    CatchingUp, GpuState, Holds, Machines, PagedGpu, Scratch, keepers,
    machines::connect,
    meters::{COUNTER_SHARDS, Meters},
    pool::FramePool,
    region_table::RegionTable,
    slots::GpuSlots,
    support::{self, Support},
    victims::Victims,
};
use crate::{
    arena::RingArena,
    device::DeviceArray,
    error::{Doing, Error, Result},
    frames::{Changing, FrameAccess, FrameMemory, unit_bytes},
    handles::Handles,
    launch_state::StatePool,
    local_home::LocalHome,
    node::Node,
    plan::{FileCache, QueuePlan, Settings, refuse},
    queues::{QueueShape, Queues},
    tenancy,
    timeline::{GpuTimeline, Sheet},
    turns::Turns,
};

/// A request without a completion for this share of the wait limit is given up and made again, so that its waiters live to see
/// it, even when it is lost again.
const TIMEOUT_SHARE: u32 = 8;

/// Stripes of a region: a row for each replica, of a stripe a node or a NIC.
fn stripes_each(nodes: usize, nics: usize, plan: &QueuePlan) -> u64 {
    let rows = if nodes > 1 || plan.host_homes > 1 { 2 } else { 1 };
    (nodes.max(nics).max(1) * rows) as u64
}

/// The file cache, if it was asked for. Where a GPU's copy engines move the NIC's bytes it is memory that they reach.
fn bring_up_tier(gpu: &Arc<dyn Gpu>, nics: &[Arc<dyn Nic>], settings: &Settings) -> Result<Option<Tier>> {
    let Some(FileCache { bytes, on_gpu }) = settings.file_cache else {
        return Ok(None);
    };
    let mut options = TierOptions::default().block(settings.page_size);
    if gpu.capabilities().deterministic {
        // Its runs repeat, so nothing may depend on when a disk answers.
        options = options.engine(Engine::Polled(0));
    }
    let tier = match nics.iter().any(|nic| nic.capabilities().has_mover) {
        _ if on_gpu => {
            let (base, slots) = GpuSlots::new(gpu, bytes, settings.page_size)?;
            // SAFETY: the memory lives as long as the slots, and nothing else knows of it.
            unsafe { Tier::on_device(base, bytes, slots, options) }
        }
        true => {
            let memory = gpu.allocate_host(bytes);
            let memory = memory.doing(|| format!("allocating the file cache of {bytes} bytes"))?;
            let base = memory.host_ptr();
            // SAFETY: the memory is pages of the system, valid as long as the keeper lives, and nothing else knows of it.
            unsafe { Tier::over(base, bytes, Box::new(memory), options) }
        }
        false => Tier::new(bytes, options),
    };
    tier.map(Some).or_else(|error| match error {
        FileError::TooSmall { .. } => refuse("file_cache", format!("{bytes} bytes"), error.to_string()),
        source => Err(Error::FileCache { bytes, source }),
    })
}

/// Brings up the GPU at `place` of a virtual memory, whose homes in this host's memory are `local_homes` where they can be
/// lost.
///
/// # Errors
/// [`Error::Gpu`], [`Error::Nic`], [`Error::Node`], [`Error::Setting`] where a NIC has no room for such queue pairs.
pub(crate) fn bring_up(
    place: usize,
    settings: &Arc<Settings>,
    plan: &QueuePlan,
    machines: Machines,
    local_homes: &[Arc<LocalHome>],
    sheet: Option<&Arc<Sheet>>,
) -> Result<Arc<PagedGpu>> {
    let Machines { gpu, nics, nodes } = machines;
    let nodes: Vec<_> = nodes.into_iter().map(|session| Arc::new(Node::new(session))).collect();
    let transport = nics.transport();
    let (soft_nics, engine, arena, nics) = (nics.soft(), nics.kernel(), nics.arena(), nics.all());
    connect(&*gpu, &nics);
    let (gpu, member) = tenancy::join(gpu, &settings.tenancy)?;
    let handles = Arc::new(Handles::new(Arc::clone(&gpu), member.clone()));
    let (frames, counts) = bring_up_frames(&*gpu, &nics, settings, &handles)?;
    let queues = bring_up_queues(&*gpu, &nics, arena, (local_homes, &nodes), (settings, plan), &frames)?;
    let large = settings.page_size > u64::from(layout::FILL_CHUNK_BYTES);
    let pool = FramePool::new(&*gpu, frames, counts, queues.is_none() && large)?;
    let regions = RegionTable::new(&*gpu, settings.regions_max, stripes_each(nodes.len(), nics.len(), plan))?;
    let meters = Meters::new(&*gpu).doing(|| "allocating the regions' bookkeeping".into())?;
    let desc = describe(&*gpu, settings, &pool, queues.as_deref(), &regions, &meters);
    let victims = Victims::new(&*gpu, transport, settings)?;
    let tier = bring_up_tier(&gpu, &nics, settings)?;
    let options = support::options(transport, settings, &settings.support_options);
    let begin = |(asked, sheet)| GpuTimeline::new(&gpu, asked, sheet, place);
    let timeline = settings.timeline.as_ref().zip(sheet).map(begin).transpose()?;
    let timeline_desc = place_timeline(&*gpu, timeline.as_deref())?;
    let gpu = Arc::new(PagedGpu {
        place,
        threads: Mutex::default(),
        turns: Arc::new(Turns::new(Arc::clone(&gpu))),
        catching_up: CatchingUp::default(),
        nodes,
        queues,
        nics,
        soft_nics,
        engine,
        pool,
        victims,
        tier,
        regions,
        meters,
        launch_states: StatePool::new(desc, timeline_desc.as_ref().map_or(0, DeviceArray::addr)),
        desc: DeviceArray::from_slice(&*gpu, &[desc]).doing(|| "allocating the regions' bookkeeping".into())?,
        _timeline_desc: timeline_desc,
        support: Support::compile(&*gpu, &options, timeline.is_some())?,
        stream: gpu.stream().doing(|| "creating the default stream".into())?,
        state: Mutex::new(GpuState::new(settings.regions_max)),
        lost: OnceLock::new(),
        timeline,
        form: RwLock::default(),
        held: Mutex::new(Holds::new()),
        window: Mutex::default(),
        scratch: Scratch::default(),
        peers: Arc::default(),
        ended: Arc::default(),
        transport,
        settings: Arc::clone(settings),
        frame_priority: settings.frame_priority.into(),
        gave: Mutex::default(),
        handles,
        device: gpu,
    });
    gpu.lend_frames(member.as_deref());
    keepers::start(&gpu)?;
    gpu.check_version()?;
    gpu.begin_timeline()?;
    Ok(gpu)
}

/// The frames, how many there are, and how many there may be.
fn bring_up_frames(
    gpu: &dyn Gpu,
    nics: &[Arc<dyn Nic>],
    settings: &Settings,
    handles: &Arc<Handles>,
) -> Result<(FrameMemory, (u32, u32))> {
    let (count, capacity) = settings.frames_in(unit_bytes(handles.handle_bytes(), settings.page_size))?;
    let choose = || {
        let changing = settings.frame_capacity.map(|_| Changing { handles, capacity });
        FrameMemory::choose(gpu, nics, count, settings.page_size, changing)
    };
    let frames = handles.make_room(count * settings.page_size, "frames", choose)?;
    Ok((frames, (count as u32, capacity as u32)))
}

/// The queue pairs; none where lanes copy the pages themselves.
fn bring_up_queues(
    gpu: &dyn Gpu,
    nics: &[Arc<dyn Nic>],
    arena: Option<Arc<RingArena>>,
    homes: (&[Arc<LocalHome>], &[Arc<Node>]),
    (settings, plan): (&Settings, &QueuePlan),
    frames: &FrameMemory,
) -> Result<Option<Arc<Queues>>> {
    if let (FrameAccess::HostMemory, Some(arena)) = (frames.access(), &arena) {
        arena.stay_on_host();
    }
    let flush_reads = plan.flush_reads || frames.needs_flush(&gpu.capabilities());
    // Known only now: a flush takes a block of its own.
    plan.check_blocks(nics, flush_reads)?;
    if nics.is_empty() {
        return Ok(None);
    }
    let groups = (homes.0.len().max(1) * nics.len() + homes.1.len()) as u64;
    let shape = QueueShape {
        count: plan.count(nics, settings.page_size, groups)?,
        depth: plan.depth,
        flush_reads,
        collapsed: plan.collapsed,
        timeout: settings.wait_limit / TIMEOUT_SHARE,
        reliable: settings.reliable,
    };
    let queues = Queues::create(gpu, nics, arena, homes, shape, frames)?;
    Ok(Some(Arc::new(queues)))
}

/// The timeline's description where lanes find it; none without one.
fn place_timeline(gpu: &dyn Gpu, timeline: Option<&GpuTimeline>) -> Result<Option<DeviceArray<TimelineDesc>>> {
    let placed = timeline.map(|timeline| DeviceArray::from_slice(gpu, &[timeline.describe()]));
    placed.transpose().doing(|| "allocating the timeline".to_owned())
}

/// All of it for lanes.
fn describe(
    gpu: &dyn Gpu,
    settings: &Settings,
    pool: &FramePool,
    queues: Option<&Queues>,
    regions: &RegionTable,
    meters: &Meters,
) -> VmDesc {
    let (fills, fill_count) = pool.fills();
    VmDesc {
        layout_version: layout::LAYOUT_VERSION,
        page_shift: settings.page_size.trailing_zeros(),
        frames: pool.memory().addr(),
        pool: pool.free.describe(),
        frame_pages: pool.frame_pages.addr(),
        regions: regions.addr(),
        region_count: settings.regions_max,
        queue_count: queues.map_or(0, Queues::count),
        queues: queues.map_or(0, Queues::table_addr),
        counters: meters.counters.addr(),
        counter_shards: COUNTER_SHARDS,
        queue_groups: queues.map_or(0, Queues::group_count),
        latencies: meters.latencies.addr(),
        wait_limit_ns: u64::try_from(settings.wait_limit.as_nanos()).unwrap_or(u64::MAX),
        ticks_per_us: gpu.capabilities().ticks_per_us.ceil() as u32,
        fills,
        fill_count,
    }
}
