//! What is told when the program ends.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Kernels that are listed.
const LISTED: usize = 20;

/// Of one process.
#[derive(Debug, Default)]
pub struct Summary {
    /// Bytes of frames, and of a page.
    paged: Option<(u64, u64)>,
    /// Bytes of the GPU's memory that held managed memory as a whole, and launches of each kernel that ran over it.
    held: u64,
    ran: BTreeMap<String, u64>,
    /// Launches of each kernel that looked pages up.
    looked_up: BTreeMap<String, u64>,
    /// Launches that found all pages at home, with the reason.
    at_home: BTreeMap<String, (u64, String)>,
    notes: Vec<String>,
    /// How often something was done, how long it took, and bytes.
    times: BTreeMap<&'static str, (u64, Duration, u64)>,
}

impl Summary {
    pub fn pages(&mut self, frames: u64, page: u64) {
        self.paged = Some((frames, page));
    }

    pub fn holds(&mut self, bytes: u64) {
        self.held = bytes.max(self.held);
    }

    pub fn ran(&mut self, kernel: &str) {
        match self.ran.get_mut(kernel) {
            Some(launches) => *launches += 1,
            None => drop(self.ran.insert(kernel.to_owned(), 1)),
        }
    }

    pub fn looked_up(&mut self, kernel: &str) {
        match self.looked_up.get_mut(kernel) {
            Some(launches) => *launches += 1,
            None => drop(self.looked_up.insert(kernel.to_owned(), 1)),
        }
    }

    pub fn at_home(&mut self, kernel: &str, why: &str) {
        match self.at_home.get_mut(kernel) {
            Some((launches, _)) => *launches += 1,
            None => drop(self.at_home.insert(kernel.to_owned(), (1, why.to_owned()))),
        }
    }

    /// Something that has begun then is done.
    pub fn took(&mut self, what: &'static str, begun: Instant) {
        self.moved(what, begun, 0);
    }

    /// As [`took`](Self::took), with bytes.
    pub fn moved(&mut self, what: &'static str, begun: Instant, bytes: u64) {
        let (times, all, moved) = self.times.entry(what).or_default();
        *times += 1;
        *all += begun.elapsed();
        *moved += bytes;
    }

    /// A launch that the driver refused.
    pub fn refused(&mut self, kernel: &str, status: u32) {
        self.note(format!("`{kernel}` was not launched: CUDA error {status}"));
    }

    /// Something that is told once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// As lines; `times`: with how long things took.
    pub fn text(&self, times: bool) -> String {
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            // A string takes all.
            let _ = writeln!(text, "gpuvm exec: {line}");
        };
        for note in &self.notes {
            line(format_args!("{note}"));
        }
        if !self.ran.is_empty() {
            let (launches, kernels, held) = (self.ran.values().sum::<u64>(), self.ran.len(), self.held >> 20);
            line(format_args!(
                "launches of {kernels} kernels as they are: {launches}; {held} MiB of the GPU's memory held all managed memory"
            ));
        }
        if let Some((frames, page)) = self.paged {
            let (launches, kernels) = (self.looked_up.values().sum::<u64>(), self.looked_up.len());
            let (frames, page) = (frames >> 20, page >> 10);
            line(format_args!(
                "launches of {kernels} kernels that looked pages up: {launches}; {frames} MiB of frames, pages of {page} KiB"
            ));
        }
        for (kernel, (launches, why)) in self.at_home.iter().take(LISTED) {
            line(format_args!("launches of `{kernel}` at home: {launches} ({why})"));
        }
        if self.at_home.len() > LISTED {
            line(format_args!("and of {} other kernels", self.at_home.len() - LISTED));
        }
        for (what, (count, all, bytes)) in self.times.iter().filter(|_| times) {
            let took = all.as_secs_f64() * 1e3;
            match bytes {
                0 => line(format_args!("{what}: {count} times, {took:.1} ms")),
                bytes => line(format_args!("{what}: {count} times, {took:.1} ms, {} KiB", bytes >> 10)),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_at_home_are_named_with_their_reason() {
        let mut summary = Summary::default();
        assert_eq!(summary.text(true), "");
        summary.pages(3 << 30, 64 << 10);
        summary.looked_up("axpy");
        summary.looked_up("axpy");
        summary.at_home("bulk", "cp.async.bulk looks no page up");
        summary.note("once".into());
        summary.note("once".into());
        assert_eq!(
            summary.text(false),
            "gpuvm exec: once\n\
             gpuvm exec: launches of 1 kernels that looked pages up: 2; 3072 MiB of frames, pages of 64 KiB\n\
             gpuvm exec: launches of `bulk` at home: 1 (cp.async.bulk looks no page up)\n"
        );
    }
}
