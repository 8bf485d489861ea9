//! Which chunks of a region will be read next, by when each was used last.

/// Most chunks that a region is read at together: with more, nothing says what comes next.
const FRONTS_MAX: usize = 64;
/// Chunks in use between two looks from which on reads are taken for scattered, where few of them follow each other.
const SCATTERED: usize = 64;

/// What was seen of one region's use.
#[derive(Default)]
pub(super) struct Streams {
    uses: Vec<u32>,
}

impl Streams {
    /// Chunks that should have a copy soon, the next first: those that follow where the region is read in ascending order, of each
    /// `paths` + 1 in a row all but the first, which faults fetch over the GPU's own link meanwhile. `uses`: when each chunk was used last,
    /// 0 for never. `ahead`: chunks to look ahead of a reader, besides as many as it came since the last look.
    pub fn look(&mut self, uses: &[u32], paths: usize, ahead: usize) -> Vec<u64> {
        self.uses.resize(uses.len(), 0);
        let active: Vec<usize> = (0..uses.len()).filter(|&n| uses[n] != self.uses[n]).collect();
        self.uses.copy_from_slice(uses);
        let untouched = |chunk: usize| uses.get(chunk) == Some(&0);
        // Who comes to a chunk that nobody has used yet.
        let fronts: Vec<usize> = active.iter().copied().filter(|&chunk| untouched(chunk + 1)).collect();
        if fronts.len() > FRONTS_MAX || (active.len() > SCATTERED && fronts.len() * 4 > active.len()) {
            return Vec::new();
        }
        let mut wanted = Vec::new();
        for &front in &fronts {
            let come = (0..=front)
                .rev()
                .take_while(|chunk| active.binary_search(chunk).is_ok())
                .count();
            // What it reaches before a copy could be there is left to faults.
            let next = front + 1 + come / 2..front + 1 + 2 * come + ahead;
            wanted.extend(next.filter(|&chunk| untouched(chunk) && chunk % (paths + 1) != 0));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted.into_iter().map(|chunk| chunk as u64).collect()
    }

    /// Whether nothing was used.
    pub fn saw_nothing(&self) -> bool {
        self.uses.iter().all(|uses| *uses == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses of a region of 64 chunks that was read up to `end`, the last one in part.
    fn read_to(end: usize) -> Vec<u32> {
        (0..64)
            .map(|chunk| if chunk < end { 32 } else { u32::from(chunk == end) })
            .collect()
    }

    #[test]
    fn a_stream_is_met_ahead_by_every_other_chunk() {
        let mut streams = Streams::default();
        assert_eq!(streams.look(&read_to(0), 1, 4), [1, 3, 5]);
        assert_eq!(
            streams.look(&read_to(0), 1, 4),
            Vec::<u64>::new(),
            "nothing was read since"
        );
        // Three chunks since the last look: the one before was in part.
        assert_eq!(streams.look(&read_to(3), 1, 4), [7, 9, 11, 13]);
    }

    #[test]
    fn with_two_paths_two_of_three_chunks_come_from_them() {
        assert_eq!(Streams::default().look(&read_to(0), 2, 6), [1, 2, 4, 5, 7]);
    }

    #[test]
    fn the_end_of_a_region_is_the_end() {
        let mut streams = Streams::default();
        streams.look(&read_to(61), 1, 4);
        assert_eq!(streams.look(&read_to(62), 1, 4), [63]);
        assert_eq!(streams.look(&read_to(63), 1, 4), Vec::<u64>::new());
    }

    #[test]
    fn scattered_reads_are_no_streams() {
        let scattered: Vec<u32> = (0..1000).map(|chunk| u32::from(chunk % 3 == 0)).collect();
        assert_eq!(Streams::default().look(&scattered, 1, 4), Vec::<u64>::new());
    }

    #[test]
    fn several_streams_go_on_beside_each_other() {
        let uses: Vec<u32> = (0..64).map(|chunk| u32::from(chunk == 8 || chunk == 40)).collect();
        assert_eq!(Streams::default().look(&uses, 1, 2), [9, 11, 41, 43]);
    }

    #[test]
    fn a_region_that_is_not_used_shows_nothing() {
        let mut streams = Streams::default();
        streams.look(&[0; 64], 1, 4);
        assert!(streams.saw_nothing());
        streams.look(&read_to(9), 1, 4);
        assert!(!streams.saw_nothing());
    }
}
