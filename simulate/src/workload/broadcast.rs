//! Arrays of which each GPU holds a copy: lanes of several GPUs that store to all copies, change the owner's, and tell each other.

mod drawn;

use bytemuck::Pod;
use gpuvm::{Broadcast, Buffer, LaunchConfig, Vm};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::drawn::{Drawn, Kind, Logged, Played, VALUES};
use crate::bench::{Bench, Wrong, compare, must};
use crate::linear::{self, Action, Operation, Verdict};
use crate::program::rng;
use crate::room::{Needs, Room};

/// Launches of a seed.
const LAUNCHES: u32 = 3;
/// Views that the kernel has arguments for.
const VIEWS: usize = 4;
/// Bytes of a page of views that lie on one GPU.
const PAGE_BYTES: u64 = 512;
/// An element.
trait Element: Pod + Into<u64> {
    /// The kernel for arrays of it.
    const KERNEL: &'static str;
    /// What a drawn value is multiplied by: as in the kernel.
    const SPREAD: u64;
    /// Of a value that it has room for.
    fn of(value: u64) -> Self;
}

impl Element for u32 {
    const KERNEL: &'static str = "play_words";
    const SPREAD: u64 = 1;

    fn of(value: u64) -> Self {
        value as u32
    }
}

impl Element for u64 {
    const KERNEL: &'static str = "play_longs";
    const SPREAD: u64 = 1 << 32 | 1;

    fn of(value: u64) -> Self {
        value
    }
}

pub(super) fn broadcast(room: &mut Room<'_>) -> Result<(), Wrong> {
    match room.seed().is_multiple_of(3) {
        true => play::<u64>(room),
        false => play::<u32>(room),
    }
}

fn play<T: Element>(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let bench = room.open(Needs::few(seed, 1))?;
    let views = rng.random_range(2..=VIEWS as u32) as usize;
    let length = rng.random_range(40..=(5 * PAGE_BYTES / size_of::<T>() as u64) as u32);
    let some = |rng: &mut ChaCha8Rng| u64::from(rng.random_range(0..VALUES)) * T::SPREAD;
    let mut model: Vec<u64> = (0..length).map(|_| some(&mut rng)).collect();
    let array = bench.vm.broadcast::<T>().name("copied").count_all();
    let array = array.views_on_one_gpu(views).from_slice(&narrowed(&model))?;
    let mut stores = vec![0; views];
    for launch in 0..LAUNCHES {
        // Without a look at the copies the next launch finds what this one has forwarded.
        let looks = launch + 1 == LAUNCHES || rng.random_range(0..4u32) != 0;
        let shape = drawn::Shape {
            views,
            line: 128 / size_of::<T>(),
            spread: T::SPREAD,
            histories: looks,
            tame: room.finds_races(),
        };
        let drawn = drawn::draw(&mut rng, shape, &mut model);
        let played = launched(&bench, &array, &drawn)?;
        drawn.check(&played)?;
        stores
            .iter_mut()
            .zip(&drawn.stores)
            .for_each(|(all, more)| *all += more);
        if looks {
            looked_at(room, &array, &drawn, &played, &mut model)?;
            let counted: Vec<u64> = array.traffic()?.iter().map(|sent| sent.stores).collect();
            compare(&counted, &stores).map_err(|wrong| format!("stores that were counted: {wrong}"))?;
        }
        if rng.random_range(0..4u32) == 0 {
            let first = rng.random_range(0..length);
            let new: Vec<u64> = (first..length.min(first + 40)).map(|_| some(&mut rng)).collect();
            array.write(first.into(), &narrowed::<T>(&new))?;
            model[first as usize..][..new.len()].copy_from_slice(&new);
        }
    }
    array.flush()?;
    compare(&widened(&array.read_home()), &model).map_err(|wrong| format!("at its home: {wrong}"))?;
    Ok(())
}

/// Runs what was drawn.
fn launched<T: Element>(bench: &Bench, array: &Broadcast<T>, drawn: &Drawn) -> Result<Played, Wrong> {
    let vm = &bench.vm;
    let views: [_; VIEWS] = std::array::from_fn(|view| array.view(view % drawn.views));
    let lanes = u64::from(drawn.blocks * drawn.threads);
    let (met, meets_at, all) = match &drawn.meeting {
        Some(meeting) => (&meeting.read[..], meeting.element + 1, meeting.all),
        None => (&[0][..], 0, 0),
    };
    let steps = drawn.ops.len() as u64 / lanes;
    let shape = [
        drawn.views as u64,
        drawn.merging,
        steps,
        meets_at,
        all,
        met.len() as u64,
    ];
    let (shape, ops, met) = (filled(vm, &shape)?, filled(vm, &drawn.ops)?, filled(vm, met)?);
    let flags = filled(vm, &vec![0u32; drawn.flags.max(1) as usize])?;
    let (hashes, wrong) = (vm.buffer::<u64>(lanes)?, filled(vm, &[0u64; 6])?);
    let log = vm.buffer::<u64>(4 * drawn.ops.len() as u64)?;
    let [a, b, c, d] = views;
    let config = LaunchConfig::new(drawn.blocks, drawn.threads);
    must(
        bench,
        T::KERNEL,
        config,
        (a, b, c, d, &shape, &ops, &met, &flags, &hashes, &log, &wrong),
    )?;
    Ok(Played {
        hashes: hashes.to_vec()?,
        log: log.to_vec()?,
        wrong: wrong.to_vec()?,
    })
}

/// All copies are equal, and what lanes have made of them.
fn looked_at<T: Element>(
    room: &mut Room<'_>,
    array: &Broadcast<T>,
    drawn: &Drawn,
    played: &Played,
    model: &mut [u64],
) -> Result<(), Wrong> {
    let owners = widened(&array.to_vec()?);
    for of in &drawn.histories {
        let one = |op| operation(op, drawn.log_of(op, played));
        let history: Vec<Operation> = of.ops.iter().map(one).collect();
        let (word, first, last) = (of.element, model[of.element], owners[of.element]);
        match linear::check(first, &history, last) {
            Verdict::Linearisable => room.linear.0 += 1,
            Verdict::Undecided => room.linear.1 += 1,
            Verdict::Broken => {
                let history = linear::in_words(&history);
                return Err(Wrong::Differs(format!(
                    "element {word}: no order of its operations explains what they returned, {first} before and {last} after: {history}"
                )));
            }
        }
        model[word] = last;
    }
    for (view, copy) in array.copies()?.iter().enumerate() {
        compare(&widened(copy), model).map_err(|wrong| format!("the copy of view {view}: {wrong}"))?;
    }
    compare(&owners, model).map_err(|wrong| format!("the host: {wrong}"))?;
    Ok(())
}

fn operation(op: &Logged, log: &[u64]) -> Operation {
    let value = op.value;
    Operation {
        begin: log[0],
        end: log[1],
        action: match op.kind {
            Kind::Add => Action::Add(value),
            Kind::Exchange => Action::Exchange(value),
            Kind::Compare => Action::CompareExchange(log[3], value),
            Kind::StoreSystem => Action::Write(value),
            _ => Action::Read,
        },
        returned: log[2],
    }
}

fn widened<T: Element>(values: &[T]) -> Vec<u64> {
    values.iter().map(|value| (*value).into()).collect()
}

fn narrowed<T: Element>(values: &[u64]) -> Vec<T> {
    values.iter().map(|value| T::of(*value)).collect()
}

fn filled<T: Pod>(vm: &Vm, values: &[T]) -> Result<Buffer<T>, Wrong> {
    let buffer = vm.buffer::<T>(values.len() as u64)?;
    buffer.write(values)?;
    Ok(buffer)
}
