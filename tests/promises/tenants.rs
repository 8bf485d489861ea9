//! Processes that share a GPU's memory: a virtual memory holds no more than its limit, asks other tenants when it is short, and gives them
//! what is above its share.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, MemoryLeft, Piece};
use gpuvm_sim_gpu::SimGpu;
use gpuvm_tenants::{
    AskError, DriverView, Folder, GpuKey, Holder, Holding, LimitChange, SharedGpu, Tenant, Terms, TermsChange,
};
use parking_lot::Mutex;

use crate::common::{Bench, HOLDING, PAGE, PAGE_WORDS, compare, refused, scaled, simulated, with_causes, words};
use gpuvm::{Error, LaunchConfig, Tenancy, Vm, VmBuilder};

/// Bytes of a handle of the simulated GPU.
const HANDLE: u64 = 1 << 16;
/// Bytes that bookkeeping takes, and more.
const ROOM: u64 = 4 << 20;

/// A GPU that others have a part of, and their registry.
struct Place {
    above: tempfile::TempDir,
    gpu: Arc<SimGpu>,
    key: GpuKey,
}

impl Place {
    fn new(name: &str, handles: u64) -> Self {
        let gpu = SimGpu::builder().workers(2).memory_bytes(handles * HANDLE + ROOM);
        Self {
            above: tempfile::tempdir().unwrap(),
            gpu: Arc::new(gpu.shared_as(name).build().unwrap()),
            key: name.parse().unwrap(),
        }
    }

    fn folder(&self) -> Folder {
        Folder::at(self.path())
    }

    fn path(&self) -> impl AsRef<Path> + Into<std::path::PathBuf> {
        self.above.path().join("registry")
    }

    /// A virtual memory there, with frames of this many handles.
    fn vm(&self, handles: u64, terms: Terms) -> VmBuilder {
        let gpu: Arc<dyn Gpu> = Arc::clone(&self.gpu) as _;
        simulated(4)
            .gpu(gpu)
            .frame_memory(handles * HANDLE)
            .frame_capacity(handles * HANDLE)
            .frame_minimum(2 * HANDLE)
            .tenancy(Tenancy::of_environment().folder(self.path()).terms(terms))
    }

    /// Somebody else, as another process would be one.
    fn other(&self, terms: Terms) -> (Tenant, Arc<Other>) {
        let other = Arc::new(Other::default());
        let holder: Arc<dyn Holder> = Arc::clone(&other) as _;
        let gpu = SharedGpu {
            key: self.key.clone(),
            total_bytes: self.left().total,
        };
        (Tenant::join(&self.folder(), &gpu, terms, holder).unwrap(), other)
    }

    fn left(&self) -> MemoryLeft {
        self.gpu.own_memory().unwrap()
    }

    fn driver(&self) -> DriverView {
        let MemoryLeft { free, total } = self.left();
        DriverView {
            memory: Some(gpuvm_tenants::MemoryLeft { free, total }),
            by_pid: Vec::new(),
        }
    }

    /// What tenants say that they hold, in all.
    fn held(&self) -> Vec<Holding> {
        let peers = gpuvm_tenants::tenants(&self.folder(), &self.key).unwrap();
        peers.iter().map(|peer| peer.answer.as_ref().unwrap().holding).collect()
    }
}

/// Pieces of the GPU, all of which its owner can do without.
#[derive(Default)]
struct Other {
    pieces: Mutex<Vec<Arc<dyn Piece>>>,
}

impl Other {
    fn take(&self, gpu: &SimGpu, handles: u64) {
        let pieces = (0..handles).map(|_| gpu.piece().unwrap());
        self.pieces.lock().extend(pieces);
    }

    fn bytes(&self) -> u64 {
        self.pieces.lock().len() as u64 * HANDLE
    }
}

impl Holder for Other {
    fn holding(&self) -> Holding {
        Holding {
            buffers: self.bytes(),
            ..Holding::default()
        }
    }

    fn give_up(&self, bytes: u64, _deadline: Instant) -> u64 {
        let mut pieces = self.pieces.lock();
        let left = pieces.len().saturating_sub(bytes.div_ceil(HANDLE) as usize);
        pieces.split_off(left).len() as u64 * HANDLE
    }
}

fn terms(limit: Option<u64>, priority: i8) -> Terms {
    Terms::new(0, limit, priority).unwrap()
}

fn within() -> Duration {
    scaled(Duration::from_secs(10))
}

/// Fills all frames, and more.
fn filled(bench: &Bench, handles: u64) -> (gpuvm::Region<u32>, Vec<u32>) {
    let before = words(7, handles * HANDLE / 4);
    let region = bench.vm.region::<u32>().name("data").from_slice(&before).unwrap();
    let flag = told(&bench.vm, 1);
    bench.must("churn", LaunchConfig::new(2, 64), (&region, &flag));
    let after = before.iter().map(|word| word.wrapping_add(1)).collect();
    (region, after)
}

fn told(vm: &Vm, stop: u32) -> gpuvm::ElasticBuffer<u32> {
    let words = vm.elastic::<u32>(8).length(8).build().unwrap();
    words.write(0, &[stop, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    words
}

#[test]
fn a_process_is_one_tenant_of_a_gpu_and_says_what_it_holds() {
    let place = Place::new("says", 40);
    assert_eq!(place.held(), []);
    let first = place.vm(8, terms(None, 0)).build().unwrap();
    let second = place.vm(4, terms(None, 0)).build().unwrap();
    let held = place.held();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].frames, 12 * HANDLE);
    let buffer = second.buffer::<u8>(5 * HANDLE).unwrap();
    let more = place.held()[0];
    assert_eq!(more.buffers, held[0].buffers + 5 * HANDLE);
    // All that the GPU has given out.
    let left = place.left();
    assert!(more.total() <= left.total - left.free, "{more:?}, {left:?}");
    assert!(more.total() + ROOM > left.total - left.free, "{more:?}, {left:?}");
    drop((buffer, second));
    assert_eq!(place.held()[0].frames, 8 * HANDLE);
    drop(first);
    assert_eq!(place.held(), []);
    let alone = place.vm(4, terms(None, 0)).tenancy(Tenancy::none()).build().unwrap();
    assert_eq!(place.held(), []);
    drop(alone);
}

#[test]
fn frames_go_to_a_tenant_of_higher_priority_and_pages_stay_right() {
    let place = Place::new("gives", 24);
    let bench = Bench::new(place.vm(16, terms(None, 0)), HOLDING);
    let (region, expected) = filled(&bench, 20);
    let (asker, _other) = place.other(terms(None, 1));
    let wanted = place.left().free + 10 * HANDLE;
    let granted = asker.ask(wanted, within(), || place.driver()).unwrap();
    assert_eq!(granted.given.len(), 1);
    assert!(place.left().free >= wanted);
    // What nothing used went first.
    assert!(bench.vm.frames() * PAGE <= 10 * HANDLE, "{}", bench.vm.frames());
    compare(&region.to_vec().unwrap(), &expected).unwrap();
    // No more than down to its minimum.
    let wanted = place.left().total;
    let error = asker.ask(wanted, within(), || place.driver()).unwrap_err();
    assert!(matches!(error, AskError::Short(_)), "{error}");
    // An equal that would hold more than it leaves gets none.
    let (equal, other) = place.other(terms(None, 0));
    let handles = place.left().free / HANDLE - 1;
    other.take(&place.gpu, handles);
    let error = equal.ask(place.left().free + HANDLE, within(), || place.driver());
    assert!(error.is_err());
    drop((asker, equal, other));
    assert_eq!(
        bench.vm.resize_frames(16 * HANDLE).unwrap().bytes,
        16 * HANDLE,
        "{:?}",
        place.left()
    );
    compare(&region.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn frames_that_follow_what_is_free_leave_what_another_tenant_was_given() {
    let place = Place::new("follows", 40);
    let builder = place.vm(16, terms(None, 0)).frame_capacity(24 * HANDLE);
    let bench = Bench::new(builder.frames_leave_free(4 * HANDLE), HOLDING);
    let (region, expected) = filled(&bench, 40);
    let sum = bench.vm.buffer::<u64>(1).unwrap();
    // Pages leave their frames all the time, so that the frames grow where memory is free.
    let churn = || bench.must("sum", LaunchConfig::new(1, 64), (&region, &sum));
    let begun = Instant::now();
    while bench.vm.frames() * PAGE < 24 * HANDLE {
        churn();
        assert!(begun.elapsed() < within(), "{} frames", bench.vm.frames());
    }
    let (asker, other) = place.other(terms(None, 1));
    let wanted = place.left().free + 12 * HANDLE;
    asker.ask(wanted, within(), || place.driver()).unwrap();
    let given = Instant::now();
    while given.elapsed() < Duration::from_millis(200) {
        churn();
    }
    let free = place.left().free;
    assert!(free >= wanted, "{free} of {wanted}");
    // Once it has been taken they follow what is left.
    other.take(&place.gpu, free / HANDLE - 8);
    let begun = Instant::now();
    let before = bench.vm.frames();
    while bench.vm.frames() <= before {
        churn();
        assert!(begun.elapsed() < within(), "{} frames", bench.vm.frames());
    }
    compare(&region.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn what_is_its_minimum_stays() {
    let place = Place::new("minimum", 24);
    let taken = |minimum| {
        let vm = place.vm(16, Terms::new(minimum, None, 0).unwrap()).build().unwrap();
        let (asker, _other) = place.other(terms(None, 1));
        let held: u64 = place.held().iter().map(Holding::total).sum();
        let spare = held - minimum;
        let wanted = place.left().free + spare;
        let asked = asker.ask(wanted, within(), || place.driver());
        (vm.frames() * PAGE, spare, asked.is_ok())
    };
    let (frames, all, _) = taken(0);
    assert_eq!(frames, 2 * HANDLE);
    // It ends within a handle: that one stays.
    let minimum = all - 3 * HANDLE - HANDLE / 2;
    let (frames, spare, asked) = taken(minimum);
    assert!(spare > 3 * HANDLE && spare < 4 * HANDLE, "{spare}");
    assert_eq!((frames, asked), (13 * HANDLE, false));
}

#[test]
fn memory_that_a_launch_may_still_read_is_given_when_it_has_ended() {
    let place = Place::new("lingers", 24);
    let bench = Bench::new(place.vm(16, terms(None, 0)), HOLDING);
    let (region, expected) = filled(&bench, 20);
    let other = bench.vm.region::<u32>().zeroed(PAGE_WORDS).unwrap();
    let flag = told(&bench.vm, 0);
    let churn = bench.kernel("churn");
    let launch = churn.launch(LaunchConfig::new(1, 64), (&other, &flag)).unwrap();
    let (asker, _other) = place.other(terms(None, 1));
    let wanted = place.left().free + 8 * HANDLE;
    let error = asker.ask(wanted, scaled(Duration::from_millis(500)), || place.driver());
    assert!(error.is_err());
    assert!(place.left().free < wanted && !launch.is_done());
    let one = 1u32.to_ne_bytes();
    bench.vm.device().write(flag.pointer(), &one).unwrap();
    launch.sync().unwrap();
    asker.ask(wanted, within(), || place.driver()).unwrap();
    assert!(place.left().free >= wanted);
    compare(&region.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn who_finds_no_memory_asks_other_tenants() {
    let place = Place::new("asks", 40);
    let (_tenant, other) = place.other(terms(None, -1));
    let all = place.left().free / HANDLE - 1;
    other.take(&place.gpu, all - ROOM / HANDLE);
    // Frames,
    let vm = place.vm(ROOM / HANDLE + 4, terms(None, 0)).build().unwrap();
    assert!(other.bytes() < (all - ROOM / HANDLE) * HANDLE);
    // elastic buffers,
    let before = other.bytes();
    let elastic = vm.elastic::<u32>(1 << 32).build().unwrap();
    elastic.grow(place.left().free / 4 + 2 * HANDLE / 4).unwrap();
    let frames = vm.frames() * PAGE;
    elastic.grow((frames + 2 * HANDLE) / 4).unwrap();
    assert_eq!(vm.frames() * PAGE, 2 * HANDLE, "its own frames give first");
    assert!(other.bytes() < before);
    // and plain ones.
    let before = other.bytes();
    let buffer = vm.buffer::<u8>(place.left().free + 2 * HANDLE).unwrap();
    assert!(other.bytes() < before);
    drop((buffer, elastic, vm));
}

#[test]
fn who_needs_memory_in_one_piece_is_given_more_than_is_free_in_pieces() {
    let room = ROOM / HANDLE;
    let place = Place::new("pieces", 5 * room);
    let hole = place.gpu.allocate(room / 2 * HANDLE, 256).unwrap();
    let (_tenant, other) = place.other(terms(None, -1));
    other.take(&place.gpu, place.left().free / HANDLE - room);
    // Enough is free now, but at two places.
    drop(hole);
    let frames = room + room / 4;
    assert!(place.left().free > frames * HANDLE);
    let gpu: Arc<dyn Gpu> = Arc::clone(&place.gpu) as _;
    let tenancy = Tenancy::of_environment().folder(place.path()).terms(terms(None, 0));
    let vm = simulated(4)
        .gpu(gpu)
        .frame_memory(frames * HANDLE)
        .tenancy(tenancy)
        .build()
        .unwrap();
    assert_eq!(vm.frames() * PAGE, frames * HANDLE);
}

#[test]
fn who_gets_nothing_is_told_who_holds_what() {
    let place = Place::new("keeps", 40);
    let (_tenant, other) = place.other(terms(None, 5));
    other.take(&place.gpu, 30);
    let vm = place.vm(4, terms(None, 0)).build().unwrap();
    let buffer = vm.buffer::<u8>(place.left().total);
    let error = buffer.expect_err("there is too little");
    assert!(matches!(error, Error::Tenants { .. }), "{error:?}");
    let message = with_causes(&error);
    let holder = format!("pid {}", std::process::id());
    for part in ["a buffer of", &holder, "1.9 MiB", "higher priority"] {
        assert!(message.contains(part), "no `{part}` in {message}");
    }
    let elastic = vm.elastic::<u32>(1 << 32).build().unwrap();
    let error = elastic.grow(place.left().total / 4).expect_err("there is too little");
    let Error::OutOfHandles { asked: Some(_), .. } = &error else {
        panic!("{error:?}");
    };
    assert!(error.to_string().contains("higher priority"), "{error}");
    assert_eq!(other.bytes(), 30 * HANDLE);
}

#[test]
fn a_process_holds_no_more_than_its_limit() {
    let place = Place::new("limit", 80);
    let limit = 30 * HANDLE + ROOM;
    let vm = place.vm(16, terms(Some(limit), 0)).build().unwrap();
    let held = place.held()[0].total();
    let elastic = vm.elastic::<u32>(1 << 32).build().unwrap();
    // Its own frames make room below the limit.
    let grown = (limit - held) / HANDLE + 6;
    elastic.grow(grown * HANDLE / 4).unwrap();
    assert!(vm.frames() * PAGE <= 10 * HANDLE);
    assert!(place.held()[0].total() <= limit);
    let message = refused(elastic.grow(limit / 4));
    assert!(message.contains("GPUVM_MEMORY_LIMIT"), "{message}");
    for bytes in [limit, u64::MAX - 4] {
        let message = refused(vm.buffer::<u8>(bytes).map(drop));
        assert!(message.contains("memory limit of"), "{message}");
    }
    // Lowered while it runs, as `gpuvm tenants set` does: what is above goes at once.
    elastic.shrink(grown * HANDLE / 4).unwrap();
    let peers = gpuvm_tenants::tenants(&place.folder(), &place.key).unwrap();
    let lower = place.held()[0].total() - 12 * HANDLE;
    let change = TermsChange {
        limit: Some(LimitChange::Bytes(lower)),
        ..TermsChange::default()
    };
    peers[0].set(&change, within()).unwrap();
    let held = place.held()[0].total();
    assert!(held <= lower, "{held} bytes are held, the limit is {lower}");
    let message = refused(vm.buffer::<u8>(lower).map(drop));
    assert!(message.contains("memory limit of"), "{message}");
    drop((elastic, vm));
    let frames = place.vm(16, terms(Some(8 * HANDLE), 0)).build();
    let message = refused(frames.map(drop));
    assert!(message.contains("memory limit of 512 KiB"), "{message}");
}

#[test]
fn without_a_registry_a_process_is_no_tenant_and_works() {
    let place = Place::new("alone", 40);
    std::fs::write(place.above.path().join("registry"), "a file").unwrap();
    let bench = Bench::new(place.vm(8, terms(Some(30 * HANDLE + ROOM), 0)), HOLDING);
    let (region, expected) = filled(&bench, 10);
    compare(&region.to_vec().unwrap(), &expected).unwrap();
    // Its limit holds.
    let message = refused(bench.vm.buffer::<u8>(31 * HANDLE + ROOM).map(drop));
    assert!(message.contains("memory limit"), "{message}");
}

#[test]
fn a_virtual_memory_may_end_while_it_is_asked() {
    let place = Place::new("ends", 40);
    let (asker, _other) = place.other(terms(None, 1));
    let done = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let wanted = place.left().free + HANDLE;
                let _ = asker.ask(wanted, Duration::from_millis(200), || place.driver());
            }
        });
        for _ in 0..20 {
            drop(place.vm(8, terms(None, 0)).build().unwrap());
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(
        begun.elapsed() < scaled(Duration::from_secs(60)),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_name_that_no_registry_can_have_is_refused() {
    let gpu = gpuvm::SimulatedGpu::new().workers(1).shared_as("no name/");
    let message = refused(simulated(4).gpu(gpu).build().map(drop));
    assert!(message.contains("no name/"), "{message}");
}
