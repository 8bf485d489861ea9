//! Which chunks of a region will be read next, by how much of each was read so far.

/// Most places where a region is read in order at once: with more, nothing says what comes next.
const FRONTS_MAX: usize = 64;
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
}

impl Streams {
    pub fn new(parts: u32) -> Self {
        Self {
            read: Vec::new(),
            parts,
            lead: 1,
        }
    }

    /// Chunks that should have a copy soon, the next first: `ahead` chunks that follow where the region is read in ascending order, of each
    /// `paths` + 1 in a row all but the first, which faults fetch over the GPU's own link meanwhile. `read`: how many parts of each chunk
    /// were.
    pub fn look(&mut self, read: Vec<u32>, paths: usize, ahead: usize) -> Vec<u64> {
        let moved = read != self.read;
        self.read = read;
        if !moved {
            return Vec::new();
        }
        let begun = |chunk: usize| self.read[chunk] > self.parts / BEGUN_SHARE;
        // Lanes are not in step: some have come to chunks that most others have before them.
        let last = self.read.len().saturating_sub(1);
        let fronts: Vec<usize> = (0..last).filter(|&chunk| begun(chunk) && !begun(chunk + 1)).collect();
        if fronts.len() > FRONTS_MAX {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for front in fronts {
            let next = front + 1 + self.lead..(front + 1 + self.lead + ahead).min(self.read.len());
            wanted.extend(next.filter(|&chunk| !begun(chunk) && chunk % (paths + 1) != 0));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|chunk| chunk as u64).collect()
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

    fn read_of(&self, chunk: u64) -> u32 {
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

    #[test]
    fn a_stream_is_met_ahead_by_every_other_chunk() {
        let mut streams = Streams::new(PARTS);
        assert_eq!(streams.look(read_to(0), 1, 4), [3, 5]);
        assert_eq!(
            streams.look(read_to(0), 1, 4),
            Vec::<u64>::new(),
            "nothing was read since"
        );
        assert_eq!(streams.look(read_to(3), 1, 8), [5, 7, 9, 11]);
    }

    #[test]
    fn with_two_paths_two_of_three_chunks_come_from_them() {
        assert_eq!(Streams::new(PARTS).look(read_to(0), 2, 6), [2, 4, 5, 7]);
    }

    #[test]
    fn copies_that_come_late_are_begun_earlier() {
        let mut streams = Streams::new(PARTS);
        streams.look(read_to(9), 1, 4);
        streams.landed(9, 32);
        assert_eq!(streams.look(read_to(10), 1, 4), [15, 17]);
        // And those that come early a little later.
        streams.landed(17, 32);
        assert_eq!(streams.look(read_to(11), 1, 4), [15, 17]);
        (0..100).for_each(|_| streams.landed(1, 32));
        assert_eq!(streams.look(read_to(12), 1, 4), [45, 47], "not as early as one likes");
    }

    #[test]
    fn the_end_of_a_region_is_the_end() {
        let mut streams = Streams::new(PARTS);
        assert_eq!(streams.look(read_to(60), 1, 4), [63]);
        assert_eq!(streams.look(read_to(63), 1, 4), Vec::<u64>::new());
        assert!(streams.is_all_read());
        assert_eq!(Streams::new(PARTS).look(Vec::new(), 1, 4), Vec::<u64>::new());
    }

    #[test]
    fn scattered_reads_are_no_streams() {
        let scattered: Vec<u32> = (0..1000).map(|chunk| 8 * u32::from(chunk % 3 == 0)).collect();
        assert_eq!(Streams::new(PARTS).look(scattered, 1, 4), Vec::<u64>::new());
    }

    #[test]
    fn several_streams_go_on_beside_each_other() {
        let read: Vec<u32> = (0..64).map(|chunk| 8 * u32::from(chunk == 8 || chunk == 40)).collect();
        assert_eq!(Streams::new(PARTS).look(read, 1, 2), [11, 43]);
    }

    #[test]
    fn what_was_read_is_known() {
        let mut streams = Streams::new(PARTS);
        assert!(streams.saw_nothing());
        streams.look(read_to(3), 1, 4);
        assert!(streams.is_read(2) && !streams.is_read(3) && !streams.saw_nothing() && !streams.is_all_read());
    }
}
