//! Pages with two homes, which are taken away and return, and pages with checksums, of which bits flip.

use gpuvm::{LaunchConfig, Region, StreamHandle, Vm};
use gpuvm_nic::wire::mlx5::Opcode;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::contended::THREADS;
use super::programs::{SECOND, needs_of, shape};
use crate::bench::{Bench, Calm, Wrong, close, compare, delay, launch};
use crate::homes::{Flips, Homes, names_damage};
use crate::program::{self, Moment, ProgramShape, rng};
use crate::room::{Happened, Needs, PAGE_WORDS, Room};

/// What becomes of a home that was taken away in the first launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It does not return.
    Gone,
    /// It returns, with everything stale in the second launch, and is caught up only then.
    Stale,
    /// It returns and is caught up at once.
    Recovered,
}

pub(super) fn replicas(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let shape = ProgramShape {
        replicas: 2,
        checked: seed % 8 == 7,
        launches: 3,
        steps: 2 + (seed / 8 % 3) as u32,
        threads: [8, 8, 12, 16][(seed % 4) as usize],
        // Those to a home that is lost.
        errors_allowed: true,
        ..shape(seed, 1 + seed % 3)
    };
    let bench = room.open(needs_of(&shape))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let mut draw = rng(seed ^ SECOND);
    let one = draw.random_range(0..2u32) as usize;
    let other = 1 - one;
    let fate = [Fate::Gone, Fate::Stale, Fate::Recovered][draw.random_range(0..3u32) as usize];
    let (first, second) = (draw.random_range(0..STEPS), draw.random_range(0..STEPS));
    let returns = |vm: &Vm, home: usize| {
        homes.stop();
        if !homes.is_lost(home) {
            homes.lose(home)?;
        }
        homes.give_back(vm, home)
    };
    let mut watch = |vm: &Vm, moment: Moment| {
        match (moment, fate) {
            (Moment::Before(0), _) => homes.lose_within(vm, one, first),
            (Moment::After(0), Fate::Stale) => returns(vm, one)?,
            (Moment::After(0), Fate::Recovered) => {
                returns(vm, one)?;
                vm.catch_up()?;
            }
            (Moment::Before(1), Fate::Recovered) => homes.lose_within(vm, other, second),
            (Moment::After(1), Fate::Stale) => vm.catch_up()?,
            (Moment::After(1), Fate::Recovered) => {
                returns(vm, other)?;
                vm.catch_up()?;
            }
            (Moment::Before(2), Fate::Stale) => homes.lose_within(vm, other, second),
            (Moment::Before(2), Fate::Recovered) => homes.lose_within(vm, one, second),
            (Moment::After(2), _) => homes.stop(),
            (Moment::Ended, _) => homes.agree()?,
            _ => {}
        }
        Ok(())
    };
    let ran = program::run_watched_in::<u32>(&bench, &mut rng(seed), &shape, &mut watch);
    room.happened = happened(&homes);
    ran.map(|_| ())
}

/// Steps of the scheduler after which a home may be taken away: a launch has some more, or some less.
const STEPS: u32 = 600;

fn happened(homes: &Homes) -> Happened {
    let (losses, within, returns) = homes.counts();
    Happened {
        losses,
        within,
        returns,
        flips: 0,
    }
}

/// Who catches up with homes that have returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CatchUp {
    /// The host, by calls.
    Called,
    /// What goes on beside kernels.
    ByItself,
}

pub(super) fn returns(room: &mut Room<'_>, catch_up: CatchUp) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (lanes, turns, pages) = (2 * THREADS, 6u32, 6u64);
    let apart = pages * PAGE_WORDS / lanes;
    let bench = room.open(Needs::few(seed, 1 + seed % 3))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let a = bench.vm.region::<u64>().name("returned").replicas(2);
    let a = a.zeroed(pages * PAGE_WORDS)?;
    let _calm = Calm(&bench.vm);
    let progress = bench.vm.buffer::<u64>(lanes)?;
    let beside = bench.vm.stream()?;
    let writing = launch(
        &bench,
        "writers",
        LaunchConfig::new(2, THREADS as u32),
        (&a, apart, turns, &progress),
    )?;
    let mut within = 0;
    let home = (seed / 16 % 2) as usize;
    let mut lost = || within += u64::from(!writing.is_done());
    let ran = match catch_up {
        CatchUp::Called => rounds(&bench, &beside, &homes, &a, &mut rng, home, &mut lost),
        CatchUp::ByItself => left_alone(&bench, &beside, &homes, &a, &mut rng, home, &mut lost),
    };
    homes.stop();
    let ran = match ran {
        // Requests fail for longer than anybody waits here.
        Err(Wrong::Differs(_)) if room.has_faults() => Ok(()),
        ran => ran,
    };
    room.happened = Happened {
        within,
        ..happened(&homes)
    };
    let ended = writing.sync().map_err(|error| Wrong::from(error).of("writers"));
    ran?;
    ended?;
    let mut model = vec![0; (pages * PAGE_WORDS) as usize];
    (0..lanes).for_each(|lane| model[(lane * apart) as usize] = u64::from(turns));
    compare(&a.to_vec()?, &model)?;
    // Once faults have stopped both homes hold everything again; without faults they do already.
    bench.vm.soft_nics().iter().for_each(|nic| nic.calm());
    if room.has_faults() {
        (0..2)
            .filter(|home| homes.is_lost(*home))
            .for_each(|home| homes.let_return(home));
        bench.vm.catch_up()?;
    }
    if !a.health()?.is_whole() {
        return Err(Wrong::Differs(format!("both homes are there, and {:?}", a.health()?)));
    }
    homes.agree()?;
    close(&bench, a, &model)
}

/// Takes one home away after the other, and lets it return, beside a kernel that writes; `lost` is called when one has gone.
fn rounds(
    bench: &Bench,
    beside: &StreamHandle,
    homes: &Homes,
    a: &Region<u64>,
    rng: &mut ChaCha8Rng,
    first: usize,
    lost: &mut dyn FnMut(),
) -> Result<(), Wrong> {
    let delay = |rng: &mut ChaCha8Rng| delay(bench, beside, rng);
    let mut home = first;
    for _ in 0..3 {
        delay(rng)?;
        // Only where the other one holds everything.
        if !a.health()?.is_whole() {
            bench.vm.catch_up()?;
            continue;
        }
        homes.lose(home)?;
        lost();
        if rng.random_range(0..4u32) != 0 {
            delay(rng)?;
        }
        homes.give_back(&bench.vm, home)?;
        if rng.random() {
            delay(rng)?;
        }
        bench.vm.catch_up()?;
        home = 1 - home;
    }
    Ok(())
}

/// Delays within which a home that has returned is caught up by itself.
const DELAYS: u32 = 300;

/// As [`rounds`], but nothing says that a home is there again. It may be lost once more before it is caught up.
fn left_alone(
    bench: &Bench,
    beside: &StreamHandle,
    homes: &Homes,
    a: &Region<u64>,
    rng: &mut ChaCha8Rng,
    first: usize,
    lost: &mut dyn FnMut(),
) -> Result<(), Wrong> {
    let mut home = first;
    for _ in 0..3 {
        delay(bench, beside, rng)?;
        homes.lose(home)?;
        lost();
        if rng.random_range(0..4u32) != 0 {
            delay(bench, beside, rng)?;
        }
        homes.let_return(home);
        if rng.random() {
            homes.lose_within(&bench.vm, home, rng.random_range(0..STEPS));
        }
        let mut waited = 0;
        while homes.is_lost(home) || !a.health()?.is_whole() {
            if waited == DELAYS {
                let health = a.health()?;
                return Err(Wrong::Differs(format!(
                    "a home that has returned is not caught up: {health:?}"
                )));
            }
            if homes.is_lost(home) {
                homes.let_return(home);
            }
            delay(bench, beside, rng)?;
            waited += 1;
        }
        // One that was to be lost is there for the other's turn.
        homes.stop();
        home = 1 - home;
    }
    Ok(())
}

/// Bits that flip in a run.
const FLIPS: u32 = 4;

pub(super) fn checksums(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let replicas = 1 + (seed / 2 % 2) as u32;
    // Without a second copy every other run has nothing to find: what writers do beside write-backs is no damage.
    let flips = replicas == 2 || seed % 2 == 1;
    let shape = ProgramShape {
        replicas,
        checked: true,
        steps: 3 + (seed / 8 % 2) as u32,
        threads: if seed.is_multiple_of(3) { 12 } else { 8 },
        errors_allowed: room.has_faults(),
        ..shape(seed / 4, 1 + seed % 3)
    };
    let bench = room.open(needs_of(&shape))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let watcher = room.watcher();
    let mut draw = rng(seed ^ SECOND);
    let mut planted: Option<Flips> = None;
    let mut watch = |vm: &Vm, moment: Moment| {
        match moment {
            Moment::Before(0) if flips => {
                // The host reads from the first home and compares no checksum, so that one is damaged on the way only. Of both
                // homes one stays right.
                let (replica, opcodes): (u32, &[_]) = match replicas == 2 && draw.random() {
                    true => (1, &[Opcode::Read, Opcode::Write]),
                    false => (0, &[Opcode::Read]),
                };
                planted = Some(Flips::plant(vm, &watcher, &mut draw, (0, replica), opcodes, FLIPS)?);
            }
            Moment::Ended if replicas == 2 => homes.agree()?,
            _ => {}
        }
        Ok(())
    };
    let ran = program::run_watched_in::<u32>(&bench, &mut rng(seed), &shape, &mut watch);
    let bitten = planted.map_or(0, |planted| planted.bitten(&bench.vm));
    room.happened.flips = bitten;
    let corrupt = bench.vm.stats()?.pages_corrupt;
    if corrupt > bitten {
        return Err(Wrong::Differs(format!(
            "{corrupt} pages were taken for damaged, and {bitten} bits were flipped"
        )));
    }
    match ran {
        // A single copy that is damaged is an error of the launch that needs it, which says so.
        Err(Wrong::Refused(error)) if replicas == 1 && corrupt != 0 && names_damage(&error, "`elements`") => Ok(()),
        Ok(_) if replicas == 1 && corrupt != 0 => Err(Wrong::Differs(format!(
            "{corrupt} pages were damaged, and no launch says so"
        ))),
        ran => ran.map(|_| ()),
    }
}
