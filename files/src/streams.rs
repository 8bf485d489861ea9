//! Who reads a file in order: what comes next is read before it is asked for.

use std::ops::Range;

/// Streams that are watched at a time.
const STREAMS: usize = 16;
/// Requests of a stream may come this many blocks before or behind its front, since many ask at a time.
const NEAR: u64 = 1024;
/// Requests after which a stream is one.
const SURE_AFTER: u64 = 16;
/// A stream asks for one block in this many at least, of those that it passes.
const SPARSEST: u64 = 2;

struct Stream {
    file: u32,
    /// Where it was seen first, and how often it was asked since.
    start: u64,
    asked: u64,
    /// The block behind the last one that was asked for.
    front: u64,
    /// Blocks before this one are read, or will be.
    ahead: u64,
}

/// The streams that were seen last.
#[derive(Default)]
pub(crate) struct Streams(Vec<Stream>);

impl Streams {
    /// A block was asked for the first time since it came. The blocks that are to be read ahead now: at most `most` of them, and no more than
    /// the stream has asked for, so that a short one causes few reads in vain.
    pub fn note(&mut self, file: u32, block: u64, most: u64) -> Range<u64> {
        let near = |stream: &Stream| {
            stream.file == file && block + NEAR >= stream.front && block < stream.front + NEAR.max(most)
        };
        let Some(place) = self.0.iter().position(near) else {
            self.0.truncate(STREAMS - 1);
            let (start, front) = (block, block + 1);
            self.0.insert(
                0,
                Stream {
                    file,
                    start,
                    asked: 1,
                    front,
                    ahead: front,
                },
            );
            return 0..0;
        };
        let mut stream = self.0.remove(place);
        stream.asked += 1;
        stream.front = stream.front.max(block + 1);
        let passed = stream.front - stream.start.min(stream.front);
        let mut found = 0..0;
        if passed > SPARSEST * stream.asked + NEAR / SPARSEST {
            // Requests that happen to lie near to each other.
            (stream.start, stream.asked, stream.front) = (block, 1, block + 1);
            stream.ahead = stream.front;
        } else if stream.asked >= SURE_AFTER {
            let window = most.min(stream.asked);
            let (from, to) = (stream.front.max(stream.ahead), stream.front + window);
            // Half a window together at least, so that neighbours are read together.
            if to >= from + window / 2 {
                stream.ahead = to;
                found = from..to;
            }
        }
        self.0.insert(0, stream);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::Streams;

    /// Blocks that are read ahead for these requests, and how many of them are asked for later.
    fn ahead(blocks: &[u64]) -> (usize, usize) {
        let mut streams = Streams::default();
        let (mut all, mut used) = (0, 0);
        for (at, block) in blocks.iter().enumerate() {
            for found in streams.note(1, *block, 32) {
                all += 1;
                used += usize::from(blocks[at..].contains(&found));
            }
        }
        (all, used)
    }

    fn mixed(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44)
    }

    #[test]
    fn a_scan_is_read_ahead_and_chance_is_not() {
        let scan: Vec<u64> = (100..4100).collect();
        let (all, used) = ahead(&scan);
        assert!(all > 3900 && used > all - 64, "{all}, {used}");
        // Lanes ask in any order within what they hold.
        let jumbled: Vec<u64> = (0..4096).map(|n| (n & !127) | ((n * 37) & 127)).collect();
        let (all, used) = ahead(&jumbled);
        assert!(all > 3500 && used * 10 > all * 9 - 1000, "{all}, {used}");
        let random: Vec<u64> = mixed(4000).collect();
        let (all, _) = ahead(&random);
        assert!(all < 400, "{all} blocks were read ahead of requests at random");
    }

    #[test]
    fn a_short_stream_causes_few_reads_in_vain() {
        let mut streams = Streams::default();
        let found: usize = (0..100).map(|block| streams.note(1, block, 4096).count()).sum();
        assert!((100..300).contains(&found), "{found}");
    }

    #[test]
    fn two_scans_beside_each_other_are_two() {
        let both: Vec<u64> = (0..2000).flat_map(|n| [n, 500_000 + n]).collect();
        let (all, used) = ahead(&both);
        assert!(all > 3800 && used > 3700, "{all}, {used}");
    }
}
