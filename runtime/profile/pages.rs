//! What samples of a page table come to, page by page and over time.

use std::time::Duration;

use gpuvm_layouts::{self as layout, PageWord};

/// Most stretches of time that are told apart.
const COLUMNS_MAX: usize = 128;
/// Most groups of neighbouring pages that are told apart in each.
const ROWS_MAX: usize = 64;
/// Versions before they begin again.
const VERSIONS: u16 = (layout::VERSION_MASK >> layout::VERSION_SHIFT) as u16 + 1;

/// What was seen of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageProfile {
    /// How often it came into a frame: exact, unless it left 2,048 times and more between two samples.
    pub fetches: u32,
    /// How often it left its frame: as exact.
    pub evictions: u32,
    /// Samples in which it had a frame.
    pub resident: u32,
    /// Those of them in which it had been used since the clock's hand passed it.
    pub referenced: u32,
    /// Those of them in which it had been written and not written back yet.
    pub dirty: u32,
    /// Stays in a frame that a sample saw: others were over before one came.
    pub stays_seen: u32,
    /// Those of them in which one saw it used.
    pub stays_used: u32,
    /// Those of them in which one saw it written.
    pub stays_written: u32,
    /// The sample that saw it fetched for the first time.
    pub first_fetch: Option<u32>,
    /// Bytes of it that were read in place, estimated from a sample of the reads.
    pub bytes_in_place: u64,
}

/// What was seen of a region in a stretch of time. Its pages are told apart in up to 64 groups of neighbours, of the same size but for
/// rounding: page `p` of `n` is in group `p * groups / n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeatColumn {
    /// Its end, since the first sample.
    pub end: Duration,
    /// Samples.
    pub samples: u32,
    /// Fetches by group.
    pub fetches: Vec<u32>,
    /// By group: samples in which a page had a frame, added up over its pages.
    pub resident: Vec<u64>,
}

impl HeatColumn {
    /// Becomes both, of which `next` is the later one.
    fn join(&mut self, next: &Self) {
        self.end = next.end;
        self.samples += next.samples;
        self.fetches
            .iter_mut()
            .zip(&next.fetches)
            .for_each(|(sum, more)| *sum += more);
        self.resident
            .iter_mut()
            .zip(&next.resident)
            .for_each(|(sum, more)| *sum += more);
    }
}

/// One page as the last sample left it.
#[derive(Clone, Copy, Default)]
struct Seen {
    word: u64,
    /// The last versions in which it was seen in a frame, used there, and written there.
    stay: Stay,
    used: Stay,
    written: Stay,
}

/// What the samples of a region have come to so far.
pub(super) struct Tally {
    seen: Vec<Seen>,
    pages: Vec<PageProfile>,
    columns: Vec<HeatColumn>,
    samples_per_column: u32,
}

/// A version, plus one; 0 for none.
#[derive(Clone, Copy, Default)]
struct Stay(u16);

impl Stay {
    /// Whether that version has not been noted yet, as 1 or 0; it is from now on.
    fn note(&mut self, version: u16) -> u32 {
        let new = self.0 != version + 1;
        self.0 = version + 1;
        new.into()
    }
}

fn is_resident(word: PageWord) -> bool {
    u64::from(word.state) == layout::STATE_RESIDENT
}

impl Tally {
    /// Begins with a first table.
    pub fn new(words: &[u64]) -> Self {
        let seen = |&word| Seen {
            word,
            ..Seen::default()
        };
        Self {
            seen: words.iter().map(seen).collect(),
            pages: vec![PageProfile::default(); words.len()],
            columns: Vec::new(),
            samples_per_column: 1,
        }
    }

    /// Adds what the sample number `sample` says, `at` so long after the first one.
    pub fn add(&mut self, sample: u32, at: Duration, words: &[u64]) {
        if words.len() != self.pages.len() {
            return;
        }
        let (pages, rows) = (words.len(), words.len().min(ROWS_MAX));
        let mut column = HeatColumn {
            end: at,
            samples: 1,
            fetches: vec![0; rows],
            resident: vec![0; rows],
        };
        for (number, ((&word, seen), page)) in words.iter().zip(&mut self.seen).zip(&mut self.pages).enumerate() {
            let fetches = page.see(sample, PageWord::from_bits(word), seen);
            seen.word = word;
            let row = number * rows / pages;
            column.fetches[row] += fetches;
            column.resident[row] += u64::from(is_resident(PageWord::from_bits(word)));
        }
        self.add_column(column);
    }

    fn add_column(&mut self, column: HeatColumn) {
        match self.columns.last_mut() {
            Some(last) if last.samples < self.samples_per_column => return last.join(&column),
            _ => self.columns.push(column),
        }
        if self.columns.len() > COLUMNS_MAX {
            let joined = self.columns.chunks(2).map(|pair| {
                let mut joined = pair[0].clone();
                pair[1..].iter().for_each(|next| joined.join(next));
                joined
            });
            self.columns = joined.collect();
            self.samples_per_column *= 2;
        }
    }

    /// The pages and the stretches of time. `chunks`: what was read in place of each page, or nothing.
    pub fn finish(mut self, chunks: &[u64]) -> (Vec<PageProfile>, Vec<HeatColumn>) {
        for (page, chunks) in self.pages.iter_mut().zip(chunks) {
            page.bytes_in_place = chunks * 16;
        }
        (self.pages, self.columns)
    }
}

impl PageProfile {
    /// Takes the word `new` in, after the one that was `seen` last. Returns how often the page was fetched between them.
    fn see(&mut self, sample: u32, new: PageWord, seen: &mut Seen) -> u32 {
        let old = PageWord::from_bits(seen.word);
        let evictions = u32::from((new.version + VERSIONS - old.version) % VERSIONS);
        // Each stay ends with an eviction. A host that rebuilds the tables may take a frame away without one.
        let fetches = (evictions + u32::from(is_resident(new))).saturating_sub(is_resident(old).into());
        self.evictions += evictions;
        self.fetches += fetches;
        if fetches > 0 {
            self.first_fetch.get_or_insert(sample);
        }
        if is_resident(new) {
            self.resident += 1;
            self.stays_seen += seen.stay.note(new.version);
            if new.referenced {
                self.referenced += 1;
                self.stays_used += seen.used.note(new.version);
            }
            if new.dirty || new.write_back {
                self.dirty += 1;
                self.stays_written += seen.written.note(new.version);
            }
        }
        fetches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(state: u64, version: u16) -> PageWord {
        PageWord {
            state: state as u8,
            version,
            ..PageWord::default()
        }
    }

    /// What a page comes to whose words these were, one a sample.
    fn after(words: &[PageWord]) -> PageProfile {
        let mut tally = Tally::new(&[words[0].to_bits()]);
        for (sample, word) in (1..).zip(&words[1..]) {
            tally.add(sample, Duration::from_millis(sample.into()), &[word.to_bits()]);
        }
        tally.finish(&[3]).0[0]
    }

    #[test]
    fn versions_tell_how_often_a_page_came_and_left() {
        let (absent, fetching, resident) = (layout::STATE_ABSENT, layout::STATE_FETCHING, layout::STATE_RESIDENT);
        for (states, fetches, evictions) in [
            (vec![(absent, 0), (resident, 0)], 1, 0),
            (vec![(absent, 0), (absent, 1)], 1, 1),
            (vec![(resident, 7), (resident, 7)], 0, 0),
            (vec![(resident, 7), (resident, 9), (absent, 10)], 2, 3),
            (vec![(resident, 7), (fetching, 8), (resident, 8)], 1, 1),
            // The versions begin again.
            (vec![(absent, 2047), (resident, 1)], 3, 2),
        ] {
            let words: Vec<_> = states.iter().map(|&(state, version)| word(state, version)).collect();
            let page = after(&words);
            assert_eq!((page.fetches, page.evictions), (fetches, evictions), "{states:?}");
            assert_eq!(page.bytes_in_place, 48);
        }
    }

    #[test]
    fn a_stay_that_is_written_counts_once() {
        let resident = |version, dirty, referenced| PageWord {
            dirty,
            referenced,
            ..word(layout::STATE_RESIDENT, version)
        };
        let words = [
            word(layout::STATE_ABSENT, 0),
            resident(0, true, true),
            resident(0, false, true),
            resident(0, true, false),
            resident(1, true, true),
            word(layout::STATE_ABSENT, 2),
        ];
        let page = after(&words);
        assert_eq!(
            (page.resident, page.referenced, page.dirty, page.stays_written),
            (4, 3, 3, 2)
        );
        assert_eq!((page.stays_seen, page.stays_used), (2, 2));
        assert_eq!((page.fetches, page.first_fetch), (2, Some(1)));
    }

    #[test]
    fn many_samples_fit_into_few_columns() {
        let pages = 130;
        let mut tally = Tally::new(&vec![word(layout::STATE_ABSENT, 0).to_bits(); pages]);
        let samples = 10_000;
        for sample in 1..=samples {
            // Each page is there and gone in turn.
            let words = vec![word(layout::STATE_RESIDENT, (sample % 2048) as u16).to_bits(); pages];
            tally.add(sample, Duration::from_micros(sample.into()), &words);
        }
        let (pages, columns) = tally.finish(&[]);
        assert!(
            columns.len() > COLUMNS_MAX / 2 && columns.len() <= COLUMNS_MAX,
            "{}",
            columns.len()
        );
        assert_eq!(columns.iter().map(|column| column.samples).sum::<u32>(), samples);
        let (by_page, by_column): (u32, u32) = (
            pages.iter().map(|page| page.fetches).sum(),
            columns.iter().flat_map(|column| &column.fetches).sum(),
        );
        assert_eq!(by_page, by_column);
        assert_eq!(
            columns.iter().flat_map(|column| &column.resident).sum::<u64>(),
            130 * u64::from(samples)
        );
        assert_eq!(
            columns.last().map(|column| column.end),
            Some(Duration::from_micros(samples.into()))
        );
    }
}
