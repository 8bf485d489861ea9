//! Copies of chunks at a neighbour, which come and go while lanes fetch their pages from there.

use gpuvm::{Advice, Buffer, LaunchConfig, Region, Vm};
use gpuvm_gpu::GpuError;
use gpuvm_nic::with_causes;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{launch, needs};
use crate::bench::{Calm, Wrong, compare, pattern};
use crate::program::rng;
use crate::run::{Borrowed, Needs, PAGE, Room};

/// Regions of one chunk.
const REGIONS: u64 = 3;
/// Words of each: few, so that a copy takes as long as a reader is between its two looks.
const WORDS: u64 = 24;
/// Launches of a seed.
const LAUNCHES: u32 = 3;

pub(super) fn mirror(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let borrowed = Borrowed {
        chunk_pages: 1,
        chunks: 1,
        mirror_pages: 1,
    };
    let bench = room.open(Needs {
        borrowed,
        ..needs(seed, 1 + seed % 2)
    })?;
    let mut model: Vec<Vec<u64>> = (0..REGIONS)
        .map(|n| (0..WORDS).map(|i| pattern(seed ^ n << 40, i)).collect())
        .collect();
    // In most seeds pages take no slots, and come from copies of chunks or from their homes.
    let advice = if seed.is_multiple_of(4) {
        Advice::Normal
    } else {
        Advice::ReadOnce
    };
    let region = |words: &Vec<u64>| {
        let region = bench.vm.region::<u64>().name("mirrored").from_slice(words)?;
        region.advise(advice)?;
        Ok(region)
    };
    let mut regions = model.iter().map(region).collect::<Result<Vec<_>, gpuvm::Error>>()?;
    let doing = |error: GpuError| Wrong::Refused(format!("memory for copies: {}", with_causes(&error)));
    let memory = bench.vm.device().allocate(4 * PAGE, PAGE).map_err(doing)?;
    let beside = bench.vm.stream()?;
    let slots = rng.random_range(1..=2u32);
    let _calm = Calm(&bench.vm);
    for _ in 0..LAUNCHES {
        let places = places(room, memory.addr())?;
        let (ops, hashes, shape) = operations(&mut rng, &model);
        let (given, found) = (filled(&bench.vm, &ops)?, bench.vm.buffer::<u64>(hashes.len() as u64)?);
        let [a, b, c] = &regions[..] else {
            return Err(Wrong::Differs("there are not three regions".to_owned()));
        };
        let (config, steps) = shape;
        let reads = launch(&bench, "read_pages", config, (a, b, c, &given, steps, &found))?;
        let count = rng.random_range(4..=24u32);
        let order = |rng: &mut ChaCha8Rng| rng.random_range(0..REGIONS as u32) << 8 | rng.random_range(0..slots);
        let brought: Vec<u32> = (0..count).map(|_| order(&mut rng)).collect();
        let (places, brought) = (filled(&bench.vm, &places)?, filled(&bench.vm, &brought)?);
        let scale = rng.random_range(2..14u32);
        let pause = rng.random::<u32>() & ((1 << scale) - 1);
        let args = (&places, &brought, count, WORDS as u32, PAGE as u32, pause);
        let brings = bench
            .kernel("bring")?
            .launch_on(&beside, LaunchConfig::new(1, 1), args)?;
        let read = reads.sync().map_err(|error| Wrong::from(error).of("read_pages"));
        brings
            .sync()
            .map_err(|error| Wrong::from(error).of("who brings copies"))?;
        read?;
        compare(&found.to_vec()?, &hashes).map_err(|wrong| format!("what lanes read: {wrong}"))?;
        if rng.random() {
            let n = rng.random_range(0..REGIONS as u32) as usize;
            model[n] = (0..WORDS).map(|_| rng.random()).collect();
            regions[n].write(0, &model[n])?;
        }
    }
    let ended: Vec<(Region<u64>, &Vec<u64>)> = regions.drain(..).zip(&model).collect();
    ended
        .into_iter()
        .try_for_each(|(region, words)| super::close(&bench, region, words))
}

/// Where entries and homes are, and memory for copies.
fn places(room: &Room<'_>, memory: u64) -> Result<Vec<u64>, Wrong> {
    let mut places = Vec::new();
    for n in 0..REGIONS as u32 {
        let (entries, home) = room.watcher().mirrored(n).ok_or("a region has no mirror".to_owned())?;
        places.extend([entries, home]);
    }
    places.push(memory);
    Ok(places)
}

/// What each lane reads and makes of it, and the launch that does.
fn operations(rng: &mut ChaCha8Rng, model: &[Vec<u64>]) -> (Vec<u64>, Vec<u64>, (LaunchConfig, u32)) {
    let (blocks, threads, steps) = (2u32, rng.random_range(2..=6u32), rng.random_range(6..=20u32));
    let (mut ops, mut hashes) = (Vec::new(), Vec::new());
    for _ in 0..blocks * threads {
        let mut hash = 0;
        for _ in 0..steps {
            let (n, i) = (rng.random_range(0..REGIONS as u32), rng.random_range(0..WORDS as u32));
            ops.push(u64::from(n) << 32 | u64::from(i));
            hash = fold(hash, model[n as usize][i as usize]);
        }
        hashes.push(hash);
    }
    (ops, hashes, (LaunchConfig::new(blocks, threads), steps))
}

fn filled<T: bytemuck::Pod>(vm: &Vm, values: &[T]) -> Result<Buffer<T>, Wrong> {
    let buffer = vm.buffer::<T>(values.len() as u64)?;
    buffer.write(values)?;
    Ok(buffer)
}

/// As in the kernel.
fn fold(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
