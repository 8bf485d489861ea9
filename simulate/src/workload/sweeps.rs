//! Whole regions: every page is read, written, searched or asked for ahead.

use gpuvm::{LaunchConfig, Placement, Region};
use rand::RngExt;

use crate::bench::{Bench, Calm, Wrong, close, compare, must, pattern};
use crate::program::rng;
use crate::room::{Needs, PAGE_WORDS, Room};

pub(super) fn stream(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let (pages, apart) = (6, 32u64);
    // The kernel comes to the last element, on a part of a page.
    let length = pages * PAGE_WORDS + apart + 1;
    let bench = room.open(Needs::few(seed, 1 + seed % 4))?;
    let mut model: Vec<u64> = (0..length).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("stream").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    for _ in 0..2 {
        must(&bench, "stream", LaunchConfig::new(2, 32), (&a, apart))?;
        for i in (0..length).step_by(apart as usize) {
            let seen = &mut model[i as usize];
            *seen = seen.wrapping_mul(3).wrapping_add(i);
        }
    }
    close(&bench, a, &model)
}

pub(super) fn transpose(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let side = 23 + (seed % 5) as u32;
    let length = u64::from(side) * u64::from(side);
    let bench = room.open(Needs::few(seed, 1 + seed % 2))?;
    let values: Vec<u64> = (0..length).map(|i| pattern(seed, i)).collect();
    let matrix = bench
        .vm
        .region::<u64>()
        .name("matrix")
        .read_only()
        .from_slice(&values)?;
    let out = bench.vm.region::<u64>().name("transposed").zeroed(length)?;
    let _calm = Calm(&bench.vm);
    must(&bench, "transpose", LaunchConfig::new(2, 16), (&matrix, &out, side))?;
    let side = u64::from(side);
    let model: Vec<u64> = (0..length)
        .map(|i| values[(i % side * side + i / side) as usize].wrapping_add(1))
        .collect();
    close(&bench, out, &model)?;
    close(&bench, matrix, &values)
}

pub(super) fn bfs(room: &mut Room<'_>, placement: Placement) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    // Rows and neighbours lie apart, so that a small graph has many pages.
    let (vertices, degree, apart) = (24u64, 3u64, 128u64);
    let bench = room.open(Needs::few(seed, 1 + seed % 3))?;
    let gaps = |length: u64| (0..length).map(|i| pattern(seed, i) as u32).collect::<Vec<u32>>();
    let (mut rows, mut neighbours) = (gaps((vertices + 1) * apart), gaps(vertices * degree * apart));
    for v in 0..vertices {
        rows[(v * apart) as usize] = (v * degree) as u32;
        rows[(v * apart + 1) as usize] = ((v + 1) * degree) as u32;
        for k in 0..degree {
            neighbours[((v * degree + k) * apart) as usize] = rng.random_range(0..vertices as u32);
        }
    }
    let region = |name: &str, of: &[u32]| {
        let region = bench.vm.region::<u32>().name(name).read_only().placement(placement);
        region.from_slice(of).map_err(Wrong::from)
    };
    let (row_region, neighbour_region) = (region("rows", &rows)?, region("neighbours", &neighbours)?);
    let mut distances = vec![u32::MAX; (vertices * apart) as usize];
    distances[0] = 0;
    let paged = bench.vm.region::<u32>().name("distances").from_slice(&distances)?;
    let _calm = Calm(&bench.vm);
    for level in 0..vertices as u32 {
        let changed = bench.vm.buffer::<u32>(1)?;
        let args = (&row_region, &neighbour_region, &paged, apart, vertices, level, &changed);
        must(&bench, "bfs_level", LaunchConfig::new(2, 12), args)?;
        let mut any = false;
        for v in (0..vertices)
            .filter(|v| distances[(v * apart) as usize] == level)
            .collect::<Vec<_>>()
        {
            for k in 0..degree {
                let to = u64::from(neighbours[((v * degree + k) * apart) as usize]) * apart;
                if distances[to as usize] > level + 1 {
                    (distances[to as usize], any) = (level + 1, true);
                }
            }
        }
        if (changed.to_vec()?[0] != 0) != any {
            return Err(Wrong::Differs(format!(
                "level {level}: the search goes on although its model ends, or the other way round"
            )));
        }
        if !any {
            break;
        }
    }
    compare(&paged.to_vec()?, &distances)?;
    paged.close()?;
    sum_by_cursors(&bench, 1 + seed % 3, &neighbour_region, &neighbours)?;
    row_region.close()?;
    Ok(neighbour_region.close()?)
}

/// As many lanes as there are frames walk through a region, each by a cursor: one that waits for a frame holds none.
fn sum_by_cursors(bench: &Bench, lanes: u64, region: &Region<u32>, model: &[u32]) -> Result<(), Wrong> {
    let (each, apart) = (model.len().div_ceil(lanes as usize), 5u64);
    let sum = bench.vm.buffer::<u64>(1)?;
    let config = LaunchConfig::new(lanes as u32, 1);
    must(bench, "sum_by_cursors", config, (region, apart, &sum))?;
    let walked = model.chunks(each).flat_map(|own| own.iter().step_by(apart as usize));
    let expected: u64 = walked.map(|&value| u64::from(value)).sum();
    Ok(compare(&sum.to_vec()?, &[expected]).map_err(|wrong| format!("what cursors read: {wrong}"))?)
}

pub(super) fn prefetch(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let (pages, apart) = (6u64, 8u64);
    let length = pages * PAGE_WORDS + 4 * apart;
    let bench = room.open(Needs::few(seed, 1 + seed % 5))?;
    let values: Vec<u64> = (0..length).map(|i| pattern(seed, i)).collect();
    let a = bench.vm.region::<u64>().name("ahead").read_only().from_slice(&values)?;
    let _calm = Calm(&bench.vm);
    // Its warp has left before any of the pages is there.
    must(
        &bench,
        "prefetch_only",
        LaunchConfig::new(1, 32),
        (&a, seed % (length / 2), length / 2),
    )?;
    let sum = bench.vm.buffer::<u64>(1)?;
    let stretch = length / 2;
    must(
        &bench,
        "prefetch_and_sum",
        LaunchConfig::new(2, 32),
        (&a, stretch, apart, &sum),
    )?;
    let expected: u64 = values
        .iter()
        .step_by(apart as usize)
        .fold(0, |sum, value| sum.wrapping_add(*value));
    compare(&sum.to_vec()?, &[expected])?;
    must(&bench, "prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, length))?;
    close(&bench, a, &values)
}
