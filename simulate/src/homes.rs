//! Homes that are taken away and return, by the seed's choice, and flips of single bits: what workloads with replicas and
//! checksums do to their virtual memory.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gpuvm::soft::{Fault, FaultId, FaultPlan};
use gpuvm::{HostHome, Vm};
use gpuvm_gpu::Actor;
use gpuvm_nic::wire::mlx5::Opcode;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::bench::Wrong;
use crate::room::PAGE;
use crate::watch::Watcher;

/// The two homes of a virtual memory, which a watcher hears of.
pub struct Homes {
    watcher: Arc<Watcher>,
    homes: Vec<HostHome>,
    takers: RefCell<Vec<Arc<Taker>>>,
    /// Homes that were taken by the host.
    taken: Cell<u64>,
    returned: Cell<u64>,
}

impl Homes {
    /// Those of `vm`, told of to `watcher`.
    pub fn of(vm: &Vm, watcher: Arc<Watcher>) -> Self {
        Self {
            watcher,
            homes: vm.host_homes(),
            takers: RefCell::default(),
            taken: Cell::new(0),
            returned: Cell::new(0),
        }
    }

    /// Whether the home is away.
    pub fn is_lost(&self, home: usize) -> bool {
        self.homes[home].is_lost()
    }

    /// Takes a home away now.
    ///
    /// # Errors
    /// The NIC's.
    pub fn lose(&self, home: usize) -> Result<(), Wrong> {
        self.watcher.home_lost(home as u32);
        self.taken.set(self.taken.get() + 1);
        Ok(self.homes[home].lose()?)
    }

    /// Takes a home away after this many steps of the scheduler, if kernels run for so long.
    pub fn lose_within(&self, vm: &Vm, home: usize, steps: u32) {
        let taker = Arc::new(Taker {
            watcher: Arc::clone(&self.watcher),
            place: home as u32,
            home: self.homes[home].clone(),
            steps: AtomicU32::new(steps.max(1)),
            has_taken: AtomicBool::new(false),
        });
        let simulation = vm.device().simulation().expect("a program runs on the simulated GPU");
        simulation.attach(Arc::clone(&taker) as Arc<dyn Actor>);
        self.takers.borrow_mut().push(taker);
    }

    /// Nothing is taken away any more.
    pub fn stop(&self) {
        for taker in self.takers.borrow().iter() {
            // Relaxed: the host runs, or lanes and actors do, on one thread.
            taker.steps.store(0, Ordering::Relaxed);
        }
    }

    /// Lets a home return: all that it holds is stale.
    ///
    /// # Errors
    /// Its queue pairs cannot be opened.
    pub fn give_back(&self, vm: &Vm, home: usize) -> Result<(), Wrong> {
        self.homes[home].restore();
        vm.readmit_homes()?;
        self.returned.set(self.returned.get() + 1);
        self.watcher.home_returned(home as u32);
        Ok(())
    }

    /// Lets a home return: what goes on beside kernels takes it back.
    pub fn let_return(&self, home: usize) {
        self.homes[home].restore();
        self.returned.set(self.returned.get() + 1);
        self.watcher.home_returns(home as u32);
    }

    /// Looks at all copies after everything was written back.
    ///
    /// # Errors
    /// Two that count differ.
    pub fn agree(&self) -> Result<(), Wrong> {
        self.watcher.copies_agree().map(|_| ()).map_err(Wrong::Differs)
    }

    /// Losses, those of them while kernels ran, and returns.
    pub fn counts(&self) -> (u64, u64, u64) {
        // Relaxed: as in `stop`.
        let taken = |taker: &&Arc<Taker>| taker.has_taken.load(Ordering::Relaxed);
        let within = self.takers.borrow().iter().filter(taken).count() as u64;
        (self.taken.get() + within, within, self.returned.get())
    }
}

/// Takes a home away after this many steps of the scheduler.
struct Taker {
    watcher: Arc<Watcher>,
    place: u32,
    home: HostHome,
    steps: AtomicU32,
    has_taken: AtomicBool,
}

impl Actor for Taker {
    fn step(&self, _now_ns: u64) -> bool {
        // Relaxed: one thread steps it.
        let steps = self.steps.load(Ordering::Relaxed);
        if steps == 0 {
            return false;
        }
        self.steps.store(steps - 1, Ordering::Relaxed);
        if steps > 1 {
            return false;
        }
        self.watcher.home_lost(self.place);
        self.has_taken.store(true, Ordering::Relaxed);
        self.home.lose().is_ok()
    }
}

/// Flips of single bits that were planted.
pub struct Flips {
    planted: Vec<FaultId>,
}

impl Flips {
    /// Plants `count` flips that the generator draws, each of one bit of one request of these kinds to region `region` at its home
    /// in a replica.
    ///
    /// # Errors
    /// There is no software NIC, or no such region.
    pub fn plant(
        vm: &Vm,
        watcher: &Watcher,
        rng: &mut ChaCha8Rng,
        (region, replica): (u32, u32),
        opcodes: &[Opcode],
        count: u32,
    ) -> Result<Self, Wrong> {
        let nic = vm.soft_nic().ok_or_else(|| "there is no software NIC".to_owned())?;
        let span = watcher
            .home_span(region, replica)
            .ok_or_else(|| format!("region {region} has no home that is watched"))?;
        watcher.expect_flips();
        let plan = |rng: &mut ChaCha8Rng| {
            let bit = rng.random_range(0..PAGE * 8);
            let opcode = opcodes[rng.random_range(0..opcodes.len() as u32) as usize];
            FaultPlan::new(Fault::Flip { bit })
                .opcode(opcode)
                .remote(span.clone())
                .skip(rng.random_range(0..8))
        };
        let planted = (0..count).map(|_| nic.inject(plan(rng))).collect();
        Ok(Self { planted })
    }

    /// How many have bitten.
    pub fn bitten(&self, vm: &Vm) -> u64 {
        let Some(nic) = vm.soft_nic() else { return 0 };
        self.planted.iter().map(|&fault| nic.bitten(fault)).sum()
    }
}

/// Whether an error is that of a page which does not have its checksum, and names region and page.
pub fn names_damage(error: &str, region: &str) -> bool {
    [region, "page", "checksum"].iter().all(|part| error.contains(part))
}
