//! Which chunks of a region are to be brought next, by how much of each was read so far.

use std::collections::HashSet;

/// A chunk of which more than one part of so many was read is left to faults.
const BEGUN_SHARE: u32 = 8;
/// A copy came late if more than one part of so many of its chunk was read by then.
const LATE_SHARE: u32 = 4;

/// What was seen of one region's use.
pub(super) struct Streams {
    /// What was read of each chunk, in parts.
    read: Vec<u32>,
    /// Parts of a chunk.
    parts: u32,
    /// Chunks between those that are read and the first one to bring: as many as are read while it comes.
    lead: usize,
    /// Chunks whose copies nobody read for long: perhaps their pages have frames.
    idle: HashSet<u64>,
}

impl Streams {
    pub fn new(parts: u32) -> Self {
        Self {
            read: Vec::new(),
            parts,
            lead: 1,
            idle: HashSet::new(),
        }
    }

    /// Chunks of which little was read yet, in ascending order, which is that of most kernels: of each `paths` + 1 in a row all but the
    /// first, which faults fetch over the GPU's own link meanwhile. None where nothing was read since the last look. `read`: how many
    /// parts of each chunk were.
    ///
    /// The lanes of a kernel are not in step: while the first have come to a chunk, the last are hundreds before it. So a chunk is in use for
    /// long, and no look at where lanes are tells what comes next.
    pub fn look(&mut self, read: Vec<u32>, paths: usize) -> impl Iterator<Item = u64> {
        let moved = read != self.read;
        self.read = read;
        let little = |chunk: &usize| self.read[*chunk] <= self.parts / BEGUN_SHARE;
        let count = if moved { self.read.len() } else { 0 };
        let first = (0..count).find(little).unwrap_or(count);
        let next = (first + self.lead).min(count)..count;
        let of_paths = next.filter(move |chunk| chunk % (paths + 1) != 0);
        of_paths
            .filter(little)
            .map(|chunk| chunk as u64)
            .filter(|chunk| !self.idle.contains(chunk))
    }

    /// Nobody read a chunk's copy for long: it is brought no more.
    pub fn give_up(&mut self, chunk: u64) {
        self.idle.insert(chunk);
    }

    /// The kernel begins anew.
    pub fn begin(&mut self) {
        self.idle.clear();
    }

    /// The copy of a chunk has come: whether that was in time says how long before its use the next ones are to be begun. `most`: chunks
    /// that are no use any more when they come so early. True when it was late.
    pub fn landed(&mut self, chunk: u64, most: usize) -> bool {
        let read = self.read_of(chunk);
        let late = read > self.parts / LATE_SHARE;
        if late {
            self.lead = (self.lead + 2).min(most);
        } else if read == 0 && self.lead > 1 {
            // Slowly: a copy that is late is worth nothing, and an early one only takes room.
            self.lead -= usize::from(chunk % 8 == 1);
        }
        late
    }

    /// How many chunks before their use copies are begun now.
    pub fn lead(&self) -> usize {
        self.lead
    }

    /// Whether next to all of a chunk was read, so that its copy is of no more use.
    pub fn is_read(&self, chunk: u64) -> bool {
        self.read_of(chunk) >= self.parts - self.parts / 16
    }

    /// Whether all chunks were, or next to all: a kernel that reads on begins anew.
    pub fn is_all_read(&self) -> bool {
        let read = (0..self.read.len() as u64).filter(|chunk| self.is_read(*chunk)).count();
        !self.read.is_empty() && read + read / 32 >= self.read.len()
    }

    /// Whether nothing was read.
    pub fn saw_nothing(&self) -> bool {
        self.read.iter().all(|read| *read == 0)
    }

    /// What was read of a chunk, in parts.
    pub fn read_of(&self, chunk: u64) -> u32 {
        self.read.get(chunk as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: u32 = 32;

    /// Uses of a region of 64 chunks that was read up to `end`, half of that one and a little of the next.
    fn read_to(end: usize) -> Vec<u32> {
        let read = |chunk: usize| match chunk {
            _ if chunk < end => PARTS,
            _ if chunk == end => PARTS / 2,
            _ => u32::from(chunk == end + 1),
        };
        (0..64).map(read).collect()
    }

    fn look(streams: &mut Streams, read: Vec<u32>, paths: usize, most: usize) -> Vec<u64> {
        streams.look(read, paths).take(most).collect()
    }

    #[test]
    fn a_stream_is_met_ahead_by_every_other_chunk() {
        let mut streams = Streams::new(PARTS);
        assert_eq!(look(&mut streams, read_to(0), 1, 2), [3, 5]);
        assert!(
            look(&mut streams, read_to(0), 1, 2).is_empty(),
            "nothing was read since"
        );
        assert_eq!(look(&mut streams, read_to(3), 1, 4), [5, 7, 9, 11]);
    }

    #[test]
    fn with_two_paths_two_of_three_chunks_come_from_them() {
        assert_eq!(look(&mut Streams::new(PARTS), read_to(0), 2, 4), [2, 4, 5, 7]);
    }

    #[test]
    fn copies_that_come_late_are_begun_earlier() {
        let mut streams = Streams::new(PARTS);
        look(&mut streams, read_to(9), 1, 2);
        assert!(streams.landed(9, 32));
        assert_eq!(look(&mut streams, read_to(10), 1, 2), [15, 17]);
        // And those that come early a little later.
        assert!(!streams.landed(17, 32));
        assert_eq!(look(&mut streams, read_to(11), 1, 2), [15, 17]);
        (0..100).for_each(|_| _ = streams.landed(1, 32));
        assert_eq!(
            look(&mut streams, read_to(12), 1, 2),
            [45, 47],
            "not as early as one likes"
        );
    }

    #[test]
    fn the_end_of_a_region_is_the_end() {
        let mut streams = Streams::new(PARTS);
        assert_eq!(look(&mut streams, read_to(60), 1, 9), [63]);
        assert!(look(&mut streams, read_to(63), 1, 9).is_empty());
        assert!(streams.is_all_read());
        assert!(look(&mut Streams::new(PARTS), Vec::new(), 1, 9).is_empty());
    }

    #[test]
    fn a_copy_that_nobody_reads_is_not_brought_again() {
        let mut streams = Streams::new(PARTS);
        look(&mut streams, read_to(0), 1, 2);
        streams.give_up(5);
        assert_eq!(look(&mut streams, read_to(1), 1, 2), [3, 7]);
        streams.begin();
        assert_eq!(look(&mut streams, read_to(0), 1, 2), [3, 5]);
    }

    #[test]
    fn what_was_read_is_known() {
        let mut streams = Streams::new(PARTS);
        assert!(streams.saw_nothing());
        look(&mut streams, read_to(3), 1, 4);
        assert!(streams.is_read(2) && !streams.is_read(3) && !streams.saw_nothing() && !streams.is_all_read());
        assert_eq!((streams.read_of(3), streams.read_of(99)), (PARTS / 2, 0));
    }
}
