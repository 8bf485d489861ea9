//! Random programs, and what they must come to: the same as on a plain array.

use std::sync::atomic::{AtomicBool, Ordering};

use gpuvm::soft::FaultTally;
use gpuvm::{Advice, CompileOptions, Integrity, LaunchConfig, Region, Stats, Vm, VmBuilder};
use gpuvm_nic::with_causes;
use gpuvm_sim_gpu::SimGpu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, compare};
use crate::kernels::PROGRAM;
use lent::Lent;
use model::{Model, operation};

pub use shape::{Element, ProgramShape, tiny};

mod lent;
mod model;
mod shape;

/// What may be said of a region.
const ADVICE: [Advice; 8] = [
    Advice::Normal,
    Advice::Sequential,
    Advice::Random,
    Advice::ReadOnce,
    Advice::KeepResident,
    Advice::WriteOnce,
    Advice::InPlace,
    Advice::Fetch,
];

/// What a program came to, for comparison with another run of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the device library counted.
    pub stats: Stats,
    /// The interleavings of the launches.
    pub traces: Vec<Option<u64>>,
    /// Faults of the shape's mix that were asked for and that bit.
    pub faults: FaultTally,
}

/// Runs the program that `rng` makes for `shape` and compares everything that can be seen with the model.
///
/// # Errors
/// What differs.
pub fn run<T: Element>(
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    options: &CompileOptions,
) -> Result<Outcome, String> {
    run_on::<T>(shape.builder(), rng, shape, options)
}

/// [`run`] on a virtual memory of other settings than the shape's.
///
/// # Errors
/// What differs.
pub fn run_on<T: Element>(
    builder: VmBuilder,
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    options: &CompileOptions,
) -> Result<Outcome, String> {
    run_watched::<T>(builder, rng, shape, options, &mut |_, _| Ok(()))
}

/// When a run calls its watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A launch will begin.
    Before(u32),
    /// It has ended, and the host has done what it does between launches.
    After(u32),
    /// All of them have, and everything was written back and compared.
    Ended,
}

/// Somebody who does things to the virtual memory between launches.
pub type Watcher<'a> = &'a mut dyn FnMut(&Vm, Moment) -> Result<(), Wrong>;

/// [`run_on`] with somebody who does things to the virtual memory between launches.
///
/// # Errors
/// What differs.
pub fn run_watched<T: Element>(
    builder: VmBuilder,
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    options: &CompileOptions,
    watch: Watcher<'_>,
) -> Result<Outcome, String> {
    let mut options = options.clone();
    options.defines.push(("ELEMENT".into(), Some(T::NAME.into())));
    let bench = Bench::with(builder, PROGRAM, &options)?;
    run_watched_in::<T>(&bench, rng, shape, watch).map_err(|wrong| wrong.to_string())
}

/// [`run`] in a virtual memory that is there, with [`PROGRAM`] compiled for `T`.
///
/// # Errors
/// What differs.
pub fn run_in<T: Element>(bench: &Bench, rng: &mut ChaCha8Rng, shape: &ProgramShape) -> Result<Outcome, Wrong> {
    run_watched_in::<T>(bench, rng, shape, &mut |_, _| Ok(()))
}

/// [`run_in`] with somebody who does things to the virtual memory between launches.
///
/// # Errors
/// What differs.
pub fn run_watched_in<T: Element>(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    watch: Watcher<'_>,
) -> Result<Outcome, Wrong> {
    if let (Some(mix), Some(seed), Some(nic)) = (&shape.faults, shape.interleaving, bench.vm.soft_nic()) {
        nic.mix_faults(mix, seed).map_err(|error| with_causes(&error))?;
    }
    let mut model = Model::<T>::new(rng.random(), shape);
    let integrity = match shape.checked {
        true => Integrity::Crc32c,
        false => Integrity::Unchecked,
    };
    let counters = model.shared.clone();
    let shared = || {
        let shared = bench.vm.region::<u64>().name("shared");
        shared
            .placement(shape.placement)
            .replicas(shape.replicas)
            .integrity(integrity)
            .from_slice(&counters)
    };
    let elements = (0..shape.elements).map(|i| model.element(i));
    let Some(apart) = shape.lent else {
        let a = bench.vm.region::<T>().name("elements");
        let a = match shape.never_evicted {
            true => a.never_evicted(),
            false => a,
        };
        let a = a.placement(shape.placement).replicas(shape.replicas);
        let a = a.integrity(integrity).from_iter(elements)?;
        let shared = shared()?;
        let _calm = Calm(&bench.vm);
        return run_over(bench, rng, shape, &mut model, (&a, &shared), watch);
    };
    let mut lent = Lent::new(elements.collect(), apart);
    let ran = bench.vm.scope(|scope| {
        let a = scope.region("elements", lent.elements_mut())?;
        let shared = shared()?;
        let _calm = Calm(&bench.vm);
        Ok(run_over(bench, rng, shape, &mut model, (&a, &shared), watch))
    })?;
    lent.holds(|i| model.element(i))?;
    ran
}

/// All launches over these regions, and what they come to.
fn run_over<T: Element>(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    model: &mut Model<T>,
    (a, shared): (&Region<T>, &Region<u64>),
    watch: Watcher<'_>,
) -> Result<Outcome, Wrong> {
    let mut traces = Vec::new();
    // Of its own, so that a program is the same with and without advice.
    let mut advisor = ChaCha8Rng::seed_from_u64(shape.elements ^ shape.interleaving.unwrap_or_default());
    for launch in 0..shape.launches {
        watch(&bench.vm, Moment::Before(launch))?;
        if shape.advised {
            let mut draw = || ADVICE[advisor.random_range(0..ADVICE.len())];
            a.advise(draw())?;
            shared.advise(draw())?;
        }
        let ended = launch_once(bench, rng, shape, model, (a, shared));
        traces.push(ended.map_err(|wrong| wrong.of(&format!("launch {launch}")))?);
        between(rng, shape, model, a)?;
        watch(&bench.vm, Moment::After(launch))?;
    }
    let mut faults = FaultTally::default();
    if shape.faults.is_some() {
        for nic in bench.vm.soft_nics() {
            nic.calm();
            faults.merge(&nic.fault_tally());
        }
    }
    let found = a.to_vec()?;
    if let Some((i, e)) = (0..).zip(&found).find(|(i, e)| **e != model.element(*i)) {
        return Err(format!("element {i} is {e:?} instead of {:?}", model.element(i)).into());
    }
    compare(&shared.to_vec()?, &model.shared).map_err(|wrong| format!("shared: {wrong}"))?;
    let violations: Vec<_> = bench.vm.soft_nics().iter().flat_map(|nic| nic.violations()).collect();
    let stats = bench.vm.stats()?;
    if !violations.is_empty() || (stats.errors != 0 && !shape.errors_allowed && shape.faults.is_none()) {
        return Err(format!(
            "the queues' rules were broken, or {} requests failed: {violations:?}",
            stats.errors
        )
        .into());
    }
    watch(&bench.vm, Moment::Ended)?;
    // Where they are looked for.
    let races = SimGpu::behind(&**bench.vm.device()).map(|gpu| gpu.races());
    if let Some((races, count @ 1..)) = races {
        let told: Vec<String> = races.iter().take(4).map(ToString::to_string).collect();
        return Err(format!("{count} races: {}", told.join("; ")).into());
    }
    Ok(Outcome { stats, traces, faults })
}

fn launch_once<T: Element>(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    model: &mut Model<T>,
    (a, shared): (&Region<T>, &Region<u64>),
) -> Result<Option<u64>, Wrong> {
    let (lanes, steps) = (shape.lanes(), u64::from(shape.steps));
    let warp_turns: Vec<u64> = (0..lanes.div_ceil(32) * steps)
        .map(|_| rng.random_range(0..1 << 30))
        .collect();
    let mut ops = Vec::with_capacity((lanes * steps) as usize);
    let mut hashes = Vec::new();
    for lane in 0..lanes {
        let mut hash = 0;
        for step in 0..steps {
            let warp_turn = warp_turns[(lane / 32 * steps + step) as usize];
            let (kind, value, i) = operation::<T>(rng, shape, lane, warp_turn);
            ops.push(kind << 56 | value << 40 | i);
            hash = model.apply(shape, kind, value, i, hash);
        }
        hashes.push(hash);
    }
    let given = bench.vm.buffer::<u64>(ops.len() as u64)?;
    given.write(&ops)?;
    let out = bench.vm.buffer::<u64>(lanes)?;
    let config = LaunchConfig::new(shape.blocks, shape.threads)
        .thread_spans(shape.thread_spans.into())
        .warp_spans(shape.warp_spans.into());
    let launched = bench
        .kernel("program")?
        .launch(config, (a, shared, &given, shape.steps, &out))?;
    let failed = AtomicBool::new(false);
    if shape.beside {
        while !launched.is_done() {
            let flushed = if rng.random() {
                a.flush_beside()
            } else {
                shared.flush_beside()
            };
            failed.fetch_or(flushed.is_err(), Ordering::Relaxed);
        }
    }
    let report = launched.sync()?;
    if failed.into_inner() {
        return Err(Wrong::Refused("a flush beside the kernel failed".into()));
    }
    compare(&out.to_vec()?, &hashes).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    Ok(report.trace_hash)
}

/// What the host does between launches: nothing, a flush, a look, or a write.
fn between<T: Element>(
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    model: &mut Model<T>,
    a: &Region<T>,
) -> Result<(), Wrong> {
    let count = rng.random_range(1..=shape.elements.min(3000));
    let first = rng.random_range(0..=shape.elements - count);
    match rng.random_range(0..4) {
        0 => {}
        1 => a.flush()?,
        2 => {
            let mut found = vec![T::make(0); count as usize];
            a.read(first, &mut found)?;
            let expected: Vec<T> = (first..first + count).map(|i| model.element(i)).collect();
            compare(&found, &expected).map_err(|wrong| format!("host read from {first}: {wrong}"))?;
        }
        _ => {
            let values: Vec<u64> = (0..count).map(|_| rng.random_range(0..0x1_0000)).collect();
            let elements: Vec<T> = values.iter().map(|&v| T::make(v)).collect();
            a.write(first, &elements)?;
            for (i, value) in (first..).zip(values) {
                model.write(i, value);
            }
        }
    }
    Ok(())
}

/// A generator for one numbered program.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}
