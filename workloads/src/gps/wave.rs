//! An electromagnetic wave in two dimensions by finite differences in time: the electric field and the magnetic one, in turn.

use std::ops::Range;

use super::grids::{POINTS_MAX, kernels, over_rows, sizes};
use super::{About, App, Elements, On, Part, Worker, number};
use crate::apps::AppError;

/// How far the wave goes in half a step, of a point's width.
const COURANT: f32 = 0.5;

/// The arrays.
const HZ: usize = 0;
const EX: usize = 1;
const EY: usize = 2;

/// A wave that a pulse in the middle begins. The border reflects it.
pub struct Wave {
    rows: u64,
    width: u64,
}

impl Wave {
    /// A grid as `ROWSxWIDTH`.
    ///
    /// # Errors
    /// [`AppError::Input`].
    pub fn new(input: &str) -> Result<Self, AppError> {
        let [rows, width] = sizes("wave", input, 3, POINTS_MAX)?;
        Ok(Self { rows, width })
    }

    /// The rows that a part works on in a step: the electric field has none to change in the first row, the magnetic one none in the
    /// last.
    fn rows(&self, step: usize, part: Part) -> Range<u64> {
        let share = part.share(self.rows);
        match step {
            0 => share.start.max(1)..share.end.max(1),
            _ => share.start.min(self.rows - 1)..share.end.min(self.rows - 1),
        }
    }

    fn elements(&self, array: usize, rows: &Range<u64>) -> Elements {
        Elements {
            array,
            range: rows.start * self.width..rows.end * self.width,
        }
    }
}

impl App for Wave {
    type Word = f32;

    fn about(&self) -> About {
        let points = self.rows * self.width;
        About {
            name: "wave",
            input: format!("{}x{}", self.rows, self.width),
            parts_max: self.rows - 2,
            lengths: vec![points; 3],
            cycle: 1,
            steps: 2,
            is_small: 3 * points <= 1 << 22,
        }
    }

    fn initial(&self, array: usize) -> Vec<f32> {
        let (rows, width) = (self.rows as i64, self.width as i64);
        let mut values = vec![0.0; (rows * width) as usize];
        if array == HZ {
            let middle = |row: i64, x: i64| ((row - rows / 2).pow(2) + (x - width / 2).pow(2)) as f32;
            for row in (rows / 2 - 16).max(0)..(rows / 2 + 16).min(rows) {
                for x in (width / 2 - 16).max(0)..(width / 2 + 16).min(width) {
                    values[(row * width + x) as usize] = 1.0 / (1.0 + middle(row, x));
                }
            }
        }
        values
    }

    fn written(&self, step: usize, _iteration: u32, part: Part) -> Vec<Elements> {
        let rows = self.rows(step, part);
        let arrays: &[usize] = if step == 0 { &[EX, EY] } else { &[HZ] };
        arrays.iter().map(|array| self.elements(*array, &rows)).collect()
    }

    fn read_by(&self, step: usize, _iteration: u32, part: Part, reader: Part) -> Vec<Elements> {
        // The row before one's own is read of the magnetic field, the row behind of the electric one.
        let (array, behind) = if step == 0 { (EX, true) } else { (HZ, false) };
        let own = part.share(self.rows);
        let theirs = reader.share(self.rows);
        let seen = match behind {
            true if theirs.end == own.start => own.start..own.start + 1,
            false if theirs.start == own.end => own.end - 1..own.end,
            _ => return Vec::new(),
        };
        vec![self.elements(array, &seen)]
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError> {
        let [.., electric, magnetic] = kernels(on)?;
        let steps = [(electric, self.rows(0, on.part)), (magnetic, self.rows(1, on.part))];
        Ok(Box::new(move |step, _, shared| {
            let ((kernel, rows), courant) = (&steps[step], COURANT);
            let args = [
                shared[HZ].clone(),
                shared[EX].clone(),
                shared[EY].clone(),
                number(&self.width),
                number(&rows.start),
                number(&rows.end),
                number(&courant),
            ];
            kernel.launch_raw(over_rows(self.width, rows), &args)
        }))
    }

    fn result(&self, _iterations: u32) -> usize {
        HZ
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let (rows, width) = (self.rows as usize, self.width as usize);
        let [mut hz, mut ex, mut ey] = [HZ, EX, EY].map(|array| self.initial(array));
        for _ in 0..iterations {
            for at in (1..rows).flat_map(|row| (1..width).map(move |x| row * width + x)) {
                ex[at] = COURANT.mul_add(hz[at] - hz[at - width], ex[at]);
                ey[at] = (-COURANT).mul_add(hz[at] - hz[at - 1], ey[at]);
            }
            for at in (0..rows - 1).flat_map(|row| (0..width - 1).map(move |x| row * width + x)) {
                let curl = (ey[at + 1] - ey[at]) - (ex[at + width] - ex[at]);
                hz[at] = (-COURANT).mul_add(curl, hz[at]);
            }
        }
        hz
    }
}
