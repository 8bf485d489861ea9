//! Who may use a region when, where several GPUs do: readers side by side, a writer alone. Coherence is at the boundaries of launches,
//! as CUDA has it between kernels.
//!
//! This is the rule alone: it names GPUs by their places and steps by their names, and touches no lock, GPU or page. What the frames of
//! a GPU hold of a region is one of [`Copies`]. [`Coherence::before`] says what comes before a launch, the caller takes those steps in
//! that order and reports each, and [`Coherence::begin`] says that the launch is about to begin. All of it happens under one lock, that
//! on the region's launches: no launch with the region begins between the steps and the one that they are for.
//!
//! | before a launch on one GPU | another GPU whose copies are | comes to this first |
//! |---|---|---|
//! | that reads | dirty | its launches that write have ended; its dirty pages are home: flushed, or clean if none runs any more |
//! | that writes | dirty, flushed | its launches have ended, its dirty pages are home: clean, and stale as the launch begins |
//! | that writes | clean | its launches have ended: stale as the launch begins |
//! | of either kind | this GPU's own copies are stale | they are dropped: none |
//!
//! Two invariants follow. One GPU at most is dirty or flushed, and while one is dirty all others have none or stale copies. Launches on
//! two GPUs that run at one time only read.

/// What the frames of one GPU hold of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Copies {
    /// None.
    #[default]
    None,
    /// What the home holds.
    Clean,
    /// What the home held before another GPU wrote. No launch there names the region.
    Stale,
    /// Perhaps more than the home holds: a launch there may have written since the last flush.
    Dirty,
    /// What the home holds, but launches that read ran beside the flush: pages that they held may be marked as dirty still, and would be
    /// written back once more.
    Flushed,
}

/// What must be done before a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The launches with the region on this GPU have ended; those that write it, with `writers` alone.
    Wait { gpu: usize, writers: bool },
    /// The pages that are dirty on this GPU are home.
    Flush { gpu: usize },
    /// No frame of this GPU holds a page of the region.
    Drop { gpu: usize },
}

/// What the GPUs of a virtual memory hold of one region, by their places.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Coherence(Vec<Copies>);

impl Coherence {
    /// What comes before a launch on `gpu`, in this order. Each is to be reported: [`flushed`](Self::flushed),
    /// [`dropped`](Self::dropped).
    pub fn before(&self, gpu: usize, writes: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for (other, copies) in self.0.iter().enumerate().filter(|(other, _)| *other != gpu) {
            let wait = Step::Wait {
                gpu: other,
                writers: !writes,
            };
            match copies {
                Copies::Dirty => steps.extend([wait, Step::Flush { gpu: other }]),
                Copies::Flushed if writes => steps.extend([wait, Step::Flush { gpu: other }]),
                Copies::Clean if writes => steps.push(wait),
                Copies::None | Copies::Clean | Copies::Stale | Copies::Flushed => {}
            }
        }
        if self.of(gpu) == Copies::Stale {
            steps.push(Step::Drop { gpu });
        }
        steps
    }

    /// Dirty pages of `gpu` are home; `beside` launches there that read the region.
    pub fn flushed(&mut self, gpu: usize, beside: bool) {
        if let Copies::Dirty | Copies::Flushed = self.of(gpu) {
            self.set(gpu, if beside { Copies::Flushed } else { Copies::Clean });
        }
    }

    /// No frame of `gpu` holds a page of the region, or the GPU is lost.
    pub fn dropped(&mut self, gpu: usize) {
        self.set(gpu, Copies::None);
    }

    /// A launch on `gpu` is about to begin, and what [`before`](Self::before) says was done.
    pub fn begin(&mut self, gpu: usize, writes: bool) {
        let own = self.of(gpu);
        if !writes {
            self.set(gpu, if own == Copies::None { Copies::Clean } else { own });
            return;
        }
        for copies in self.0.iter_mut().filter(|copies| **copies != Copies::None) {
            *copies = Copies::Stale;
        }
        self.set(gpu, Copies::Dirty);
    }

    fn of(&self, gpu: usize) -> Copies {
        self.0.get(gpu).copied().unwrap_or_default()
    }

    fn set(&mut self, gpu: usize, copies: Copies) {
        if self.0.len() <= gpu {
            self.0.resize(gpu + 1, Copies::None);
        }
        self.0[gpu] = copies;
    }
}

#[cfg(test)]
mod tests;
