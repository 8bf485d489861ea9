//! Grids that are cut along their slowest axis: Jacobi's method, and diffusion in three dimensions.

use std::ops::Range;

use gpuvm::{Arg, Kernel, Launch, LaunchConfig};
use rayon::prelude::*;

use super::{App, Elements, On, Part, Worker, number, refuse};
use crate::apps::AppError;

const SOURCE: &str = include_str!("grids.cu");
/// All of its kernels: what several applications compile is compiled once.
const KERNELS: [&str; 4] = ["jacobi", "diffusion", "wave_electric", "wave_magnetic"];
/// Points of a lane, as in the kernels.
pub(super) const DEEP: u64 = 8;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The most points along an axis: a launch has at most 65535 blocks along its second and third one.
pub(super) const POINTS_MAX: u64 = 65_535 * DEEP;
/// The most points of a grid.
const POINTS_OF_GRID_MAX: u64 = 1 << 40;
/// Of the difference between a point's neighbours and itself, what flows in a step.
const RATE: f32 = 0.1;

/// Numbers `NxM..`, each from `least` to `most`.
pub(super) fn numbers<const N: usize>(name: &str, text: &str, least: u64, most: u64) -> Result<[u64; N], AppError> {
    let found: Result<Vec<u64>, _> = text.split('x').map(str::parse).collect();
    let found: Option<[u64; N]> = found.ok().and_then(|found| found.try_into().ok());
    match found.filter(|found| found.iter().all(|size| (least..=most).contains(size))) {
        Some(found) => Ok(found),
        None => refuse(format!(
            "`{text}` is no input of {name}: give {N} sizes from {least} to {most} with x between"
        )),
    }
}

/// The sizes of a grid, as [`numbers`].
pub(super) fn sizes<const N: usize>(name: &str, text: &str, least: u64, most: u64) -> Result<[u64; N], AppError> {
    let sizes = numbers(name, text, least, most)?;
    let points = sizes.iter().try_fold(1u64, |points, size| points.checked_mul(*size));
    match points.filter(|points| *points <= POINTS_OF_GRID_MAX) {
        Some(_) => Ok(sizes),
        None => refuse(format!(
            "`{text}` is too much for {name}: a grid has {POINTS_OF_GRID_MAX} points at most"
        )),
    }
}

/// A value of a point, from 0 to below 1, which needs no more bits than a float has.
pub(super) fn value(point: u64) -> f32 {
    let hash = point.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash ^ hash >> 29) & 0xffff) as f32 / 65_536.0
}

pub(super) fn values(points: u64) -> Vec<f32> {
    (0..points).into_par_iter().map(value).collect()
}

/// The inner rows of a part, of so many with the border.
pub(super) fn inner(part: Part, rows: u64) -> Range<u64> {
    let share = part.share(rows);
    share.start.max(1)..share.end.min(rows - 1).max(share.start.max(1))
}

/// Of what a part writes, the rows that another one reads: those right beside its own.
pub(super) fn beside(part: Part, reader: Part, rows: u64) -> Vec<Range<u64>> {
    let (own, theirs) = (inner(part, rows), inner(reader, rows));
    let mut seen = Vec::new();
    if !own.is_empty() && !theirs.is_empty() {
        if theirs.start == own.end {
            seen.push(own.end - 1..own.end);
        }
        if theirs.end == own.start {
            seen.push(own.start..own.start + 1);
        }
    }
    seen
}

/// A grid whose slices along the slowest axis have so many points each, in one of two arrays that are swapped.
struct Slices {
    count: u64,
    points: u64,
}

impl Slices {
    fn elements(&self, iteration: u32, slices: Range<u64>) -> Elements {
        Elements {
            array: 1 - iteration as usize % 2,
            range: slices.start * self.points..slices.end * self.points,
        }
    }

    fn written(&self, iteration: u32, part: Part) -> Vec<Elements> {
        vec![self.elements(iteration, inner(part, self.count))]
    }

    fn read_by(&self, iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        let slices = beside(part, reader, self.count).into_iter();
        slices.map(|slices| self.elements(iteration, slices)).collect()
    }
}

/// Jacobi's method for Laplace's equation: each inner point becomes the mean of its four neighbours.
pub struct Jacobi {
    rows: u64,
    width: u64,
}

impl Jacobi {
    /// A grid as `ROWSxWIDTH`.
    ///
    /// # Errors
    /// [`AppError::Input`].
    pub fn new(input: &str) -> Result<Self, AppError> {
        let [rows, width] = sizes("jacobi", input, 3, POINTS_MAX)?;
        Ok(Self { rows, width })
    }

    fn slices(&self) -> Slices {
        Slices {
            count: self.rows,
            points: self.width,
        }
    }
}

impl App for Jacobi {
    type Word = f32;

    fn name(&self) -> &'static str {
        "jacobi"
    }

    fn input(&self) -> String {
        format!("{}x{}", self.rows, self.width)
    }

    fn parts_max(&self) -> u64 {
        self.rows - 2
    }

    fn lengths(&self) -> Vec<u64> {
        vec![self.rows * self.width; 2]
    }

    fn initial(&self, _array: usize) -> Vec<f32> {
        values(self.rows * self.width)
    }

    fn written(&self, _step: usize, iteration: u32, part: Part) -> Vec<Elements> {
        self.slices().written(iteration, part)
    }

    fn read_by(&self, _step: usize, iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        self.slices().read_by(iteration, part, reader)
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Box<dyn Worker + 'a>, AppError> {
        let [kernel, ..] = kernels(on)?;
        let rows = inner(on.part, self.rows);
        Ok(Box::new(JacobiWorker {
            config: over_rows(self.width, &rows),
            kernel,
            width: self.width,
            rows,
        }))
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let (rows, width) = (self.rows as usize, self.width as usize);
        let mut from = self.initial(0);
        let mut to = from.clone();
        for _ in 0..iterations {
            for at in (1..rows - 1).flat_map(|row| (1..width - 1).map(move |x| row * width + x)) {
                let beside = from[at - 1] + from[at + 1];
                to[at] = 0.25 * (from[at - width] + from[at + width] + beside);
            }
            std::mem::swap(&mut from, &mut to);
        }
        from
    }
}

/// The kernels on a GPU, in the order of [`KERNELS`].
pub(super) fn kernels(on: &On<'_>) -> Result<[Kernel; 4], AppError> {
    on.kernels("gps/grids.cu", SOURCE, KERNELS)
}

/// A launch with a lane for each column and for each [`DEEP`] of these rows.
pub(super) fn over_rows(width: u64, rows: &Range<u64>) -> LaunchConfig {
    let down = (rows.end - rows.start).div_ceil(DEEP).max(1);
    let across = width.div_ceil(u64::from(THREADS));
    LaunchConfig::grid([across as u32, down as u32, 1], [THREADS, 1, 1])
}

struct JacobiWorker {
    kernel: Kernel,
    config: LaunchConfig,
    width: u64,
    rows: Range<u64>,
}

impl Worker for JacobiWorker {
    fn launch(&self, _step: usize, iteration: u32, shared: &[Arg<'_>]) -> Result<Launch, gpuvm::Error> {
        let from = iteration as usize % 2;
        let args = [
            shared[from].clone(),
            shared[1 - from].clone(),
            number(&self.width),
            number(&self.rows.start),
            number(&self.rows.end),
        ];
        self.kernel.launch_raw(self.config.clone(), &args)
    }
}

/// Diffusion by an explicit step: heat flows between a point and its six neighbours.
pub struct Diffusion {
    planes: u64,
    height: u64,
    width: u64,
}

impl Diffusion {
    /// A grid as `PLANESxHEIGHTxWIDTH`.
    ///
    /// # Errors
    /// [`AppError::Input`].
    pub fn new(input: &str) -> Result<Self, AppError> {
        let [planes, height, width] = sizes("diffusion", input, 3, POINTS_MAX)?;
        Ok(Self { planes, height, width })
    }

    fn slices(&self) -> Slices {
        Slices {
            count: self.planes,
            points: self.height * self.width,
        }
    }
}

impl App for Diffusion {
    type Word = f32;

    fn name(&self) -> &'static str {
        "diffusion"
    }

    fn input(&self) -> String {
        format!("{}x{}x{}", self.planes, self.height, self.width)
    }

    fn parts_max(&self) -> u64 {
        self.planes - 2
    }

    fn lengths(&self) -> Vec<u64> {
        vec![self.planes * self.height * self.width; 2]
    }

    fn initial(&self, _array: usize) -> Vec<f32> {
        values(self.planes * self.height * self.width)
    }

    fn written(&self, _step: usize, iteration: u32, part: Part) -> Vec<Elements> {
        self.slices().written(iteration, part)
    }

    fn read_by(&self, _step: usize, iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        self.slices().read_by(iteration, part, reader)
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Box<dyn Worker + 'a>, AppError> {
        let [_, kernel, ..] = kernels(on)?;
        Ok(Box::new(DiffusionWorker {
            kernel,
            grid: self,
            planes: inner(on.part, self.planes),
        }))
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let (height, width) = (self.height as usize, self.width as usize);
        let plane = height * width;
        let mut from = self.initial(0);
        let mut to = from.clone();
        for _ in 0..iterations {
            for z in 1..self.planes as usize - 1 {
                for at in (1..height - 1).flat_map(|y| (1..width - 1).map(move |x| z * plane + y * width + x)) {
                    let sum = from[at - 1] + from[at + 1] + (from[at - width] + from[at + width]);
                    let sum = sum + (from[at - plane] + from[at + plane]);
                    to[at] = RATE.mul_add((-6.0f32).mul_add(from[at], sum), from[at]);
                }
            }
            std::mem::swap(&mut from, &mut to);
        }
        from
    }
}

struct DiffusionWorker<'a> {
    kernel: Kernel,
    grid: &'a Diffusion,
    planes: Range<u64>,
}

impl Worker for DiffusionWorker<'_> {
    fn launch(&self, _step: usize, iteration: u32, shared: &[Arg<'_>]) -> Result<Launch, gpuvm::Error> {
        let from = iteration as usize % 2;
        let args = [
            shared[from].clone(),
            shared[1 - from].clone(),
            number(&self.grid.width),
            number(&self.grid.height),
            number(&self.planes.start),
            number(&self.planes.end),
            number(&RATE),
        ];
        let deep = (self.planes.end - self.planes.start).div_ceil(DEEP).max(1);
        let blocks = [self.grid.width.div_ceil(32), self.grid.height.div_ceil(8), deep];
        let config = LaunchConfig::grid(blocks.map(|count| count as u32), [32, 8, 1]);
        self.kernel.launch_raw(config, &args)
    }
}
