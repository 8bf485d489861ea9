//! Parts of managed memory that the host was given while something ran on the GPU, which may write other bytes of the same part meanwhile.
//!
//! Of these what the host has changed is copied to the GPU alone, and they are taken from the host again when the program has waited for
//! something, or a host function ends.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was there before the host could write it, where it can.
type Before = Option<Box<[u8]>>;

/// Parts, by where they begin, with where they end.
#[derive(Default)]
pub struct Early(BTreeMap<u64, (u64, Before)>);

/// Whether there are any.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// Some are about to be copied to the host, by who has the state's lock.
pub fn announce() {
    // Sequentially consistent, as in `take`: who has seen something end and this not set comes before the copy, which so has what ended.
    ARE_THERE.store(true, Ordering::SeqCst);
}

/// Whether there are any, of which nobody has been told yet: they are there when the state's lock is to be had.
pub fn take() -> bool {
    ARE_THERE.load(Ordering::SeqCst) && ARE_THERE.swap(false, Ordering::SeqCst)
}

impl Early {
    /// The host may read a part, whose ends are those of others or free.
    pub fn read(&mut self, part: &Range<u64>) {
        self.0.entry(part.start).or_insert((part.end, None));
    }

    /// The host may write it from now on; `now` is what is there.
    pub fn write(&mut self, part: &Range<u64>, now: impl FnOnce() -> Box<[u8]>) {
        self.read(part);
        if let Some((_, before @ None)) = self.0.get_mut(&part.start) {
            *before = Some(now());
        }
    }

    /// Where they are.
    pub fn parts(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|(start, (end, _))| *start..*end).collect()
    }

    /// Takes out those in a range, with what was there before.
    pub fn remove(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, Before)> {
        let starts: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        let one = |start| self.0.remove(&start).map(|(end, before)| (start..end, before));
        starts.into_iter().filter_map(one).collect()
    }
}

/// Which bytes differ, as ranges of addresses from `at` on.
pub fn changed(at: u64, before: &[u8], now: &[u8]) -> Vec<Range<u64>> {
    const WORD: usize = 8;
    let mut all: Vec<Range<u64>> = Vec::new();
    for (n, (before, now)) in before.chunks(WORD).zip(now.chunks(WORD)).enumerate() {
        if before == now {
            continue;
        }
        for place in (0..now.len()).filter(|place| before[*place] != now[*place]) {
            let addr = at + (n * WORD + place) as u64;
            match all.last_mut().filter(|last| last.end == addr) {
                Some(last) => last.end += 1,
                None => all.push(addr..addr + 1),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_the_host_has_not_changed_are_not_copied() {
        let before = [7u8; 40];
        let mut now = before;
        assert_eq!(changed(100, &before, &now), []);
        now[7..9].fill(1);
        now[39] = 2;
        assert_eq!(changed(100, &before, &now), [107..109, 139..140]);
    }

    #[test]
    fn what_was_there_first_is_kept_until_it_is_taken_out() {
        let mut early = Early::default();
        early.read(&(0..64));
        early.write(&(0..64), || vec![1; 64].into());
        early.write(&(0..64), || unreachable!("it was written before"));
        early.read(&(64..128));
        assert_eq!(early.parts(), [0..64, 64..128]);
        let gone = early.remove(&(0..64));
        assert_eq!((gone.len(), gone[0].1.as_deref()), (1, Some(&[1; 64][..])));
        assert_eq!(early.remove(&(0..200)).len(), 1);
        assert!(!take());
        announce();
        assert!(take() && !take());
    }
}
