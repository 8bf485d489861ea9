//! Grids that are cut along their slowest axis: Jacobi's method, and diffusion in three dimensions.

use std::ops::Range;

use gpuvm::{Kernel, LaunchConfig};
use rayon::prelude::*;

use super::{About, App, Elements, On, Part, Worker, number, refuse};
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
            "invalid input `{text}` of {name}: give {N} sizes from {least} to {most} with x between"
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

/// The inner rows of a part, of this many with the border.
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

/// What happens to the points of a grid in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Jacobi's method for Laplace's equation: each inner point becomes the mean of its four neighbours.
    Jacobi,
    /// Diffusion by an explicit step: heat flows between a point and its six neighbours.
    Diffusion,
}

/// A grid in one of two arrays that are swapped.
pub struct Grid {
    step: Step,
    /// As it was given.
    input: String,
    /// Slices along the slowest axis, of which a part has neighbouring ones.
    slices: u64,
    /// Rows of a slice.
    height: u64,
    width: u64,
}

impl Grid {
    /// Jacobi's method on a grid of `ROWSxWIDTH`.
    ///
    /// # Errors
    /// [`AppError::Input`].
    pub fn jacobi(input: &str) -> Result<Self, AppError> {
        let [slices, width] = sizes("jacobi", input, 3, POINTS_MAX)?;
        Ok(Self {
            step: Step::Jacobi,
            input: input.to_owned(),
            slices,
            height: 1,
            width,
        })
    }

    /// Diffusion in a grid of `PLANESxHEIGHTxWIDTH`.
    ///
    /// # Errors
    /// [`AppError::Input`].
    pub fn diffusion(input: &str) -> Result<Self, AppError> {
        let [slices, height, width] = sizes("diffusion", input, 3, POINTS_MAX)?;
        Ok(Self {
            step: Step::Diffusion,
            input: input.to_owned(),
            slices,
            height,
            width,
        })
    }

    fn points(&self) -> u64 {
        self.slices * self.height * self.width
    }

    fn elements(&self, iteration: u32, slices: Range<u64>) -> Elements {
        let points = self.height * self.width;
        Elements {
            array: 1 - iteration as usize % 2,
            range: slices.start * points..slices.end * points,
        }
    }

    /// The inner points of a plane of this many rows.
    fn inner_points(&self, rows: u64) -> impl Iterator<Item = usize> + use<> {
        let (rows, width) = (rows as usize, self.width as usize);
        (1..rows - 1).flat_map(move |row| (1..width - 1).map(move |x| row * width + x))
    }

    /// One iteration, by the processor.
    fn iterate(&self, from: &[f32], to: &mut [f32]) {
        let width = self.width as usize;
        match self.step {
            Step::Jacobi => {
                for at in self.inner_points(self.slices) {
                    let beside = from[at - 1] + from[at + 1];
                    to[at] = 0.25 * (from[at - width] + from[at + width] + beside);
                }
            }
            Step::Diffusion => {
                let plane = self.height as usize * width;
                for z in 1..self.slices as usize - 1 {
                    for at in self.inner_points(self.height).map(|at| z * plane + at) {
                        let sum = from[at - 1] + from[at + 1] + (from[at - width] + from[at + width]);
                        let sum = sum + (from[at - plane] + from[at + plane]);
                        to[at] = RATE.mul_add((-6.0f32).mul_add(from[at], sum), from[at]);
                    }
                }
            }
        }
    }
}

impl App for Grid {
    type Word = f32;

    fn about(&self) -> About {
        let name = match self.step {
            Step::Jacobi => "jacobi",
            Step::Diffusion => "diffusion",
        };
        About::in_turn(name, self.input.clone(), self.slices - 2, self.points())
    }

    fn initial(&self, _array: usize) -> Vec<f32> {
        (0..self.points()).into_par_iter().map(value).collect()
    }

    fn written(&self, _step: usize, iteration: u32, part: Part) -> Vec<Elements> {
        vec![self.elements(iteration, inner(part, self.slices))]
    }

    fn read_by(&self, _step: usize, iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        let slices = beside(part, reader, self.slices).into_iter();
        slices.map(|slices| self.elements(iteration, slices)).collect()
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError> {
        let [jacobi, diffusion, ..] = kernels(on)?;
        let slices = inner(on.part, self.slices);
        Ok(Box::new(move |_, iteration, shared| {
            let from = iteration as usize % 2;
            let (from, to) = (shared[from].clone(), shared[1 - from].clone());
            let (width, height) = (number(&self.width), number(&self.height));
            let (first, end) = (number(&slices.start), number(&slices.end));
            match self.step {
                Step::Jacobi => jacobi.launch_raw(over_rows(self.width, &slices), &[from, to, width, first, end]),
                Step::Diffusion => {
                    let deep = (slices.end - slices.start).div_ceil(DEEP).max(1);
                    let blocks = [self.width.div_ceil(32), self.height.div_ceil(8), deep];
                    let config = LaunchConfig::grid(blocks.map(|count| count as u32), [32, 8, 1]);
                    diffusion.launch_raw(config, &[from, to, width, height, first, end, number(&RATE)])
                }
            }
        }))
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let mut from = self.initial(0);
        let mut to = from.clone();
        for _ in 0..iterations {
            self.iterate(&from, &mut to);
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
