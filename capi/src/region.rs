//! Regions.

use std::ffi::{c_char, c_void};

use bytemuck::Zeroable;
use gpuvm::{Advice, Integrity, Placement, RawRegion, RegionBuilder, SharedRegion, Untyped};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    element::gpuvm_element,
    guard::guard,
    handles::{self, gpuvm_region, gpuvm_vm},
    raw::{self, Growing, Out, OutStruct},
};

/// What a read does with a page that has no frame. It never changes results.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_placement {
    /// `GPUVM_PLACEMENT_LOOK_UP` where GPU threads reach the home by loads, `GPUVM_PLACEMENT_FETCH` elsewhere.
    Default = 0,
    /// The page is fetched.
    Fetch = 1,
    /// The element is read where the page lives.
    InPlace = 2,
    /// The page is fetched while frames are free, and read in place from then on.
    WhileFree = 3,
    /// The GPU decides for each page.
    Auto = 4,
    /// The page is looked up and used where it is, stores and atomics too; pages come between launches.
    LookUp = 5,
}

/// By their number.
const PLACEMENTS: [Option<Placement>; 6] = [
    None,
    Some(Placement::Fetch),
    Some(Placement::InPlace),
    Some(Placement::WhileFree),
    Some(Placement::Auto),
    Some(Placement::LookUp),
];

/// Whether pages have checksums.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_integrity {
    /// None.
    Unchecked = 0,
    /// CRC-32C, made when a page is written back and compared when it is fetched. The Vm has `reliable_regions`.
    Crc32c = 1,
}

const INTEGRITIES: [Integrity; 2] = [Integrity::Unchecked, Integrity::Crc32c];

/// How kernels will use a region. It changes what launches cost, never what they compute.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_advice {
    /// Nothing is known: takes back what was advised.
    Normal = 0,
    /// Pages are used in ascending order, each for a short time.
    Sequential = 1,
    /// Pages are used in no order.
    Random = 2,
    /// Each page is used for a short time, and not again.
    ReadOnce = 3,
    /// Pages leave when no others can.
    KeepResident = 4,
    /// Elements are stored once, and not used again soon: they go to the page's home.
    WriteOnce = 5,
    /// As `GPUVM_PLACEMENT_IN_PLACE`, from now on.
    InPlace = 6,
    /// As `GPUVM_PLACEMENT_FETCH`, from now on.
    Fetch = 7,
}

const ADVICES: [Advice; 8] = [
    Advice::Normal,
    Advice::Sequential,
    Advice::Random,
    Advice::ReadOnce,
    Advice::KeepResident,
    Advice::WriteOnce,
    Advice::InPlace,
    Advice::Fetch,
];

/// What a region is to be. Every field but `size` may be 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_region_options {
    /// `sizeof(gpuvm_region_options)`.
    pub size: u64,
    /// The name that errors use. NULL: the element's type.
    pub name: *const c_char,
    /// The GPU of the Vm that it is made on, by its place. Kernels of all take it.
    pub gpu: u32,
    /// Not 0: kernels may only read it.
    pub read_only: u32,
    /// Not 0: it has frames of its own, and its pages never leave.
    pub never_evicted: u32,
    /// `gpuvm_placement`.
    pub placement: u32,
    /// Not 0: its pages stay in this host's memory although the Vm has memory nodes.
    pub at_host: u32,
    /// Not 0: its pages live in the memory of the neighbour GPU `home_gpu`.
    pub home_on_gpu: u32,
    /// The ordinal of a neighbour GPU; simulated ones are counted from 1 on.
    pub home_gpu: u32,
    /// Homes that hold each page, 1 or 2. 0: 1.
    pub replicas: u32,
    /// `gpuvm_integrity`.
    pub integrity: u32,
    /// Whose pages stay while frames are short: see `gpuvm_region_set_priority`.
    pub priority: i32,
}

impl Growing for gpuvm_region_options {
    const NAME: &'static str = "gpuvm_region_options";
}

/// How a region's homes are.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_region_health {
    /// `sizeof(gpuvm_region_health)`.
    pub size: u64,
    /// Pages of which no home that can be reached has a good copy.
    pub pages_without_copy: u64,
    /// Copies of pages that are not what was written back last.
    pub stale_pages: u64,
    /// Homes.
    pub homes: u64,
    /// Homes that cannot be reached.
    pub lost_homes: u64,
}

impl Growing for gpuvm_region_health {
    const NAME: &'static str = "gpuvm_region_health";
}

/// Makes a region: `last` is the builder's last call.
fn make(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    region: *mut gpuvm_region,
    last: impl FnOnce(RegionBuilder<Untyped>, &gpuvm_region_options) -> Result<RawRegion>,
) -> gpuvm_code {
    calls::make(region, || {
        let options = raw::options("options", options)?;
        let element = element.read()?;
        let vm = handles::copy(vm)?;
        let builder = vm.gpu(options.gpu as usize)?.raw_region(element);
        last(options.apply(builder)?, &options)
    })
}

impl gpuvm_region_options {
    fn apply(&self, builder: RegionBuilder<Untyped>) -> Result<RegionBuilder<Untyped>> {
        let placement = raw::one_of("placement", self.placement, &PLACEMENTS)?;
        let integrity = raw::one_of("integrity", self.integrity, &INTEGRITIES)?;
        let mut builder = builder.integrity(integrity).priority(self.priority);
        if let Some(placement) = placement {
            builder = builder.placement(placement);
        }
        if let Some(name) = raw::optional_text("name", self.name)? {
            builder = builder.name(name);
        }
        if self.read_only != 0 {
            builder = builder.read_only();
        }
        if self.never_evicted != 0 {
            builder = builder.never_evicted();
        }
        if self.at_host != 0 {
            builder = builder.at_host();
        }
        if self.home_on_gpu != 0 {
            builder = builder.home_on_gpu(self.home_gpu);
        }
        Ok(match self.replicas {
            0 => builder,
            replicas => builder.replicas(replicas),
        })
    }
}

/// Makes a region of `length` elements whose bytes are zero. `options`: NULL for the defaults. Free it by `gpuvm_region_free`. After an error
/// `*region` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_zeroed(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    length: u64,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    make(vm, options, element, region, |builder, _| Ok(builder.zeroed(length)?))
}

/// Makes a region of a copy of `bytes` bytes, a whole number of elements. Else as `gpuvm_region_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_copied(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    data: *const c_void,
    bytes: u64,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    let copied = |builder: RegionBuilder<Untyped>, _: &_| Ok(builder.from_bytes(raw::bytes("data", data, bytes)?)?);
    make(vm, options, element, region, copied)
}

/// Makes a region over `length` elements in the program's memory, in place. Until `gpuvm_region_free` has returned the memory stays, and is
/// read and written through the region only; where the region is read-only it may be read by others, too. If that returns
/// `GPUVM_CODE_STILL_USED`, the memory stays until the process ends. Else as `gpuvm_region_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_borrowed(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    memory: *mut c_void,
    length: u64,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    make(vm, options, element, region, |builder, _| {
        if memory.is_null() && length != 0 {
            let (what, is) = ("memory", "is NULL");
            return Err(Failure::Pointer { what, is });
        }
        let bytes = length.checked_mul(element.read()?.bytes() as u64);
        let bytes = bytes.ok_or_else(|| raw::too_many("length", length))?;
        // SAFETY: C's caller lends the memory until `gpuvm_region_free` has returned, which closes the region, and for good if that tells so.
        Ok(unsafe { builder.from_owner((), memory.cast(), bytes) }?)
    })
}

/// Makes a region of a copy of all bytes of the file at `path`. It is as long as the file. Else as `gpuvm_region_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_from_file(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    path: *const c_char,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    let read = |builder: RegionBuilder<Untyped>, _: &_| Ok(builder.from_file(raw::text("path", path)?)?);
    make(vm, options, element, region, read)
}

/// Makes a region over the pages of the file at `path`, in place: what kernels write goes into the file, unless the options say read-only. It
/// is as long as the file, which nothing makes shorter while the region lives. Else as `gpuvm_region_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_map_file(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    path: *const c_char,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    make(vm, options, element, region, |builder, options| {
        let path = raw::text("path", path)?;
        Ok(match options.read_only {
            0 => builder.map_file_mut(path)?,
            _ => builder.map_file(path)?,
        })
    })
}

/// Makes a region over `length` elements of the file at `path`, from byte `offset_bytes` on, a multiple of the element's alignment. Regions over
/// spans of one file may overlap if all of them are read-only; what is around a span stays as it is. Else as `gpuvm_region_map_file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_map_file_span(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    path: *const c_char,
    offset_bytes: u64,
    length: u64,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    make(vm, options, element, region, |builder, options| {
        let path = raw::text("path", path)?;
        Ok(match options.read_only {
            0 => builder.map_file_span_mut(path, offset_bytes, length)?,
            _ => builder.map_file_span(path, offset_bytes, length)?,
        })
    })
}

/// Lets other processes read the region, which is read-only and lies at memory nodes without replicas: they attach to it by a name, bytes that
/// go to them by any way that they have. Stores how many bytes the name has in `length`, and copies it to `name` where `capacity` is that many
/// at least. `name`: NULL with capacity 0. Its memory stays until the last process that has it leaves the nodes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_share(
    region: gpuvm_region,
    name: *mut c_void,
    capacity: u64,
    length: *mut u64,
) -> gpuvm_code {
    calls::on(region, |region| {
        let room = raw::bytes_mut("name", name, capacity)?;
        let length = Out::new("length", length)?;
        let bytes = region.share()?.to_bytes();
        if let Some(room) = room.get_mut(..bytes.len()) {
            room.copy_from_slice(&bytes);
        }
        length.set(bytes.len() as u64);
        Ok(())
    })
}

/// Makes a read-only region over what another process has shared by the name of `bytes` bytes. The Vm has the same memory nodes, in the same
/// order, and pages of the same size. Else as `gpuvm_region_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_attach(
    vm: gpuvm_vm,
    options: *const gpuvm_region_options,
    element: gpuvm_element,
    name: *const c_void,
    bytes: u64,
    region: *mut gpuvm_region,
) -> gpuvm_code {
    make(vm, options, element, region, |builder, _| {
        let name = raw::bytes("name", name, bytes)?;
        let shared = SharedRegion::from_bytes(name).ok_or_else(|| {
            Failure::value(
                "name",
                format!("{bytes} bytes"),
                "gpuvm_region_share made no such name".to_owned(),
            )
        })?;
        Ok(builder.attach(&shared)?)
    })
}

/// Ends the region: waits for the launches that name it and for calls of other threads that use it, writes its dirty pages back, and frees
/// the handle. It is freed also after an error of the runtime, which says what could not be written: flush first where that must not be.
/// `GPUVM_CODE_STILL_USED`: memory that it borrowed may still be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_free(region: gpuvm_region) -> gpuvm_code {
    guard(|| Ok(handles::take(region)?.close()?))
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_length(region: gpuvm_region, length: *mut u64) -> gpuvm_code {
    calls::get(region, "length", length, |region| Ok(region.len()))
}

/// Stores how many pages it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_pages(region: gpuvm_region, pages: *mut u64) -> gpuvm_code {
    calls::get(region, "pages", pages, |region| Ok(region.pages()))
}

/// Stores the device address of its first element, where all elements lie as plain memory for good: of a region that is never evicted, on the
/// GPU that it was made on, once kernels have touched each of its pages. Else 0. It is for reading: stores there never reach the home.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_resident_address(region: gpuvm_region, address: *mut u64) -> gpuvm_code {
    calls::get(region, "address", address, |region| {
        Ok(region.resident_addr()?.unwrap_or(0))
    })
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_read(
    region: gpuvm_region,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(region, first, data, bytes, RawRegion::read_bytes)
}

/// As `gpuvm_region_read`; or, when the GPU is lost, as the home holds the elements: without what was only in GPU memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_read_home(
    region: gpuvm_region,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(region, first, data, bytes, RawRegion::read_home_bytes)
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the region. Later launches see them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_write(
    region: gpuvm_region,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::write(region, first, data, bytes, RawRegion::write_bytes)
}

/// Writes back what launches wrote that were enqueued before, and waits for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_flush(region: gpuvm_region) -> gpuvm_code {
    calls::on(region, |region| Ok(region.flush()?))
}

/// Writes dirty pages back without waiting for launches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_flush_beside(region: gpuvm_region) -> gpuvm_code {
    calls::on(region, |region| Ok(region.flush_beside()?))
}

/// Writes dirty pages back and gives the frames back. Waits for the launches that name the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_evict(region: gpuvm_region) -> gpuvm_code {
    calls::on(region, |region| Ok(region.evict()?))
}

/// Says how the launches to come will use the region, by a `gpuvm_advice`. Stores whether this region follows it; `followed` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_advise(region: gpuvm_region, advice: u32, followed: *mut bool) -> gpuvm_code {
    calls::on(region, |region| {
        let place = Out::optional("followed", followed)?;
        let followed = region.advise(raw::one_of("advice", advice, &ADVICES)?)?;
        if let Some(place) = place {
            place.set(followed);
        }
        Ok(())
    })
}

/// Stores where launches to come use the region's pages on the GPU that it was made on, a `gpuvm_placement`, after what was asked and advised.
/// Copies that in words, and why not where that was asked, to `text` as `gpuvm_vm_gpu_name` does; `text` may be NULL with a capacity of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_effective(
    region: gpuvm_region,
    placement: *mut u32,
    text: *mut c_char,
    capacity: u64,
    length: *mut u64,
) -> gpuvm_code {
    calls::on(region, |region| {
        let place = Out::new("placement", placement)?;
        let effective = region.effective();
        raw::put_text("text", &effective.to_string(), text, capacity, length)?;
        let is_it = |placement: &Option<Placement>| *placement == Some(effective.placement);
        place.set(PLACEMENTS.iter().position(is_it).unwrap_or_default() as u32);
        Ok(())
    })
}

/// Says whose pages stay: while frames are short, pages of a region leave when no page of a region of lower priority can. Launches that run
/// follow it from some moment on. The eight lowest priorities of the regions that are there are told apart, those above are one. A region that
/// is never evicted has no use for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_set_priority(region: gpuvm_region, priority: i32) -> gpuvm_code {
    calls::on(region, |region| Ok(region.set_priority(priority)?))
}

/// Stores the priority that was said last: by the options, or by `gpuvm_region_set_priority`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_priority(region: gpuvm_region, priority: *mut i32) -> gpuvm_code {
    calls::get(region, "priority", priority, |region| Ok(region.priority()))
}

/// Drops the pages that lie wholly in `count` elements from `first` on, without writing them back: each holds what its home holds. Waits for
/// the launches that name the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_discard(region: gpuvm_region, first: u64, count: u64) -> gpuvm_code {
    calls::on(region, |region| Ok(region.discard(first..first.saturating_add(count))?))
}

/// Stores how the region's homes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_region_get_health(region: gpuvm_region, health: *mut gpuvm_region_health) -> gpuvm_code {
    calls::on(region, |region| {
        let place = OutStruct::new("health", health)?;
        let health = region.health()?;
        place.set(gpuvm_region_health {
            size: 0,
            pages_without_copy: health.pages_without_copy,
            stale_pages: health.homes.iter().map(|home| home.stale_pages).sum(),
            homes: health.homes.len() as u64,
            lost_homes: health.homes.iter().filter(|home| home.is_lost).count() as u64,
        });
        Ok(())
    })
}
