//! Where a page is: its bytes in the region, and its place at a home that is spread over stripes. What is later known besides, such
//! as another place that holds a copy, belongs here too.

use std::ops::Range;

/// The pages of a region. All have the same length but the last one, which may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pages {
    bytes: u64,
    shift: u32,
}

impl Pages {
    /// Those of a region of `bytes` bytes; a page has `1 << shift`.
    pub const fn new(bytes: u64, shift: u32) -> Self {
        Self { bytes, shift }
    }

    /// Bytes of the region.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Their number.
    pub const fn count(self) -> u64 {
        self.bytes.div_ceil(1 << self.shift)
    }

    /// Where a page begins.
    pub const fn start(self, page: u64) -> u64 {
        page << self.shift
    }

    /// The bytes of a page that is there.
    pub fn span(self, page: u64) -> Range<u64> {
        self.start(page)..self.start(page + 1).min(self.bytes)
    }

    /// The page of a byte.
    pub const fn of(self, offset: u64) -> u64 {
        offset >> self.shift
    }

    /// The pages of which `span` has bytes.
    pub fn of_span(self, span: &Range<u64>) -> Range<u64> {
        match span.is_empty() {
            true => self.of(span.start)..self.of(span.start),
            false => self.of(span.start)..self.of(span.end - 1) + 1,
        }
    }

    /// The pages of which `span`, which lies in the region, has all bytes.
    pub fn within(self, span: &Range<u64>) -> Range<u64> {
        let first = span.start.div_ceil(1 << self.shift);
        let end = match span.end == self.bytes {
            true => self.count(),
            false => self.of(span.end),
        };
        first..end.max(first)
    }

    /// Whether `span` has all bytes of the pages that it has bytes of.
    pub fn are_whole(self, span: &Range<u64>) -> bool {
        let on_edge = |at: u64| at == self.bytes || at == self.start(self.of(at));
        on_edge(span.start) && on_edge(span.end)
    }
}

/// How pages are spread over the parts of a home: page `p` is page `p / count` of stripe `p % count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Striping {
    /// Stripes.
    pub count: u64,
    pub page_bytes: u64,
}

/// Where a page begins at a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaceAtHome {
    pub stripe: usize,
    /// In the stripe, in bytes.
    pub offset: u64,
}

impl Striping {
    /// Stripes of a region of `pages` pages over up to `most` homes, and the pages of each.
    pub fn over(pages: u64, most: u64, page_bytes: u64) -> (Self, Vec<u64>) {
        let count = most.min(pages);
        let sizes = (0..count).map(|stripe| (pages - stripe).div_ceil(count)).collect();
        (Self { count, page_bytes }, sizes)
    }

    /// Where a page is.
    pub fn place_of(self, page: u64) -> PlaceAtHome {
        let count = self.count.max(1);
        PlaceAtHome {
            stripe: (page % count) as usize,
            offset: page / count * self.page_bytes,
        }
    }

    /// Pages of `first..first + count` that lie in `stripe`: the first of them, and how many.
    pub fn pages_of(self, stripe: usize, first: u64, count: u64) -> (u64, u64) {
        let stripes = self.count;
        let start = first + (stripe as u64 + stripes - first % stripes) % stripes;
        (start, (first + count).saturating_sub(start).div_ceil(stripes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_may_be_shorter() {
        let pages = Pages::new(2 * 4096 + 5, 12);
        assert_eq!(pages.count(), 3);
        assert_eq!(pages.span(1), 4096..8192);
        assert_eq!(pages.span(2), 8192..8197);
        assert_eq!(pages.of_span(&(4095..8192)), 0..2);
        assert_eq!(pages.of_span(&(7..7)), 0..0);
        for (span, whole) in [
            (0..4096, true),
            (0..8197, true),
            (8192..8197, true),
            (8192..8196, false),
            (1..8192, false),
            (4096..4097, false),
        ] {
            assert_eq!(pages.are_whole(&span), whole, "{span:?}");
        }
        assert_eq!(Pages::new(0, 12).count(), 0);
        for (span, within) in [
            (0..8197, 0..3),
            (1..8197, 1..3),
            (0..8196, 0..2),
            (4095..8192, 1..2),
            (4097..8191, 2..2),
            (8193..8197, 3..3),
            (4096..4096, 1..1),
        ] {
            assert_eq!(pages.within(&span), within, "{span:?}");
        }
    }

    #[test]
    fn stripes_hold_every_page_once() {
        for (pages, most) in [(1, 1), (1, 3), (5, 2), (9, 3)] {
            let (striping, sizes) = Striping::over(pages, most, 8);
            assert_eq!(sizes.iter().sum::<u64>(), pages);
            for page in 0..pages {
                let place = striping.place_of(page);
                assert!(place.offset < sizes[place.stripe] * 8);
                assert_eq!(striping.pages_of(place.stripe, page, 1), (page, 1));
            }
        }
    }
}
