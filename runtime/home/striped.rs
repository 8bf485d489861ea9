//! Memory of one node or more, over which pages are striped.

use std::{ops::Range, sync::Arc};

use gpuvm_memory_node::{Grant, GrantAccess, NodeClient, NodeError, ShareKey};
use parking_lot::Mutex;

use crate::pages::{PlaceAtHome, Striping};

/// Pages that are copied to or from several nodes at a time.
const WINDOW_PAGES: u64 = 1024;

/// Memory of one node or more, striped.
pub(crate) struct NodeMemory {
    pub grants: Vec<Grant>,
    stripes: Striping,
}

impl Striping {
    /// Cuts the copy of `bytes` bytes at `offset` into pieces.
    fn pieces(&self, offset: u64, bytes: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (page, end) = (self.page_bytes, offset + bytes as u64);
        let mut at = offset;
        while at < end {
            let (number, inside) = (at / page, at % page);
            let buffer = (at - offset) as usize;
            let whole = ((end - at) / page).min(WINDOW_PAGES);
            if inside != 0 || whole == 0 {
                let here = (page - inside).min(end - at);
                let place = self.place_of(number);
                pieces.push(Piece::Part {
                    grant: place.stripe,
                    offset: place.offset + inside,
                    buffer: buffer..buffer + here as usize,
                });
                at += here;
            } else {
                pieces.push(Piece::Pages {
                    first: number,
                    count: whole,
                    buffer,
                });
                at += whole * page;
            }
        }
        pieces
    }
}

/// A part of a copy.
enum Piece {
    /// Bytes of one page: its grant, the offset there, and the bytes of the host's buffer.
    Part {
        grant: usize,
        offset: u64,
        buffer: Range<usize>,
    },
    /// Whole pages, from this one on, and where they begin in the host's buffer.
    Pages { first: u64, count: u64, buffer: usize },
}

impl NodeMemory {
    /// Zeroed memory for `bytes` bytes, striped over as many of `nodes` as there are pages.
    pub fn zeroed(nodes: &[Arc<NodeClient>], bytes: u64, page_bytes: u64, read_only: bool) -> Result<Self, NodeError> {
        let (stripes, sizes) = Striping::over(bytes.div_ceil(page_bytes), nodes.len() as u64, page_bytes);
        let access = if read_only {
            GrantAccess::ReadOnly
        } else {
            GrantAccess::ReadWrite
        };
        let grants = nodes.iter().zip(sizes);
        let grants = grants.map(|(node, pages)| node.grant(pages * page_bytes, access));
        Ok(Self {
            grants: grants.collect::<Result<_, _>>()?,
            stripes,
        })
    }

    /// Read-only memory for `bytes` bytes that others have filled, sealed and shared, striped as they have it: keys of the stripes, in their order.
    pub fn attached(
        nodes: &[Arc<NodeClient>],
        bytes: u64,
        page_bytes: u64,
        keys: &[ShareKey],
    ) -> Result<Self, NodeError> {
        let (stripes, sizes) = Striping::over(bytes.div_ceil(page_bytes), nodes.len() as u64, page_bytes);
        let mut grants = Vec::new();
        for ((node, pages), key) in nodes.iter().zip(sizes).zip(keys) {
            let grant = node.attach(key)?;
            let (wanted, granted) = (pages * page_bytes, grant.bytes());
            if granted < wanted {
                return Err(NodeError::OutOfBounds {
                    offset: 0,
                    bytes: wanted,
                    granted,
                });
            }
            grants.push(grant);
        }
        Ok(Self { grants, stripes })
    }

    /// The keys by which others read the stripes, which are sealed.
    pub fn share(&self) -> Result<Vec<ShareKey>, NodeError> {
        self.grants.iter().map(Grant::share).collect()
    }

    /// Where a page lies.
    pub fn place_of(&self, page: u64) -> PlaceAtHome {
        self.stripes.place_of(page)
    }

    /// Bytes of a stripe.
    pub fn stripe_bytes(&self, stripe: usize, pages: u64) -> u64 {
        let (_, held) = self.stripes.pages_of(stripe, 0, pages);
        held * self.stripes.page_bytes
    }

    /// No further host may write; the keys change.
    pub fn seal(&self) -> Result<(), NodeError> {
        self.grants.iter().try_for_each(Grant::seal)
    }

    /// Copies bytes out. What kernels wrote must have been flushed.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), NodeError> {
        if let [grant] = &self.grants[..] {
            return grant.read(offset, out);
        }
        let stripes = self.stripes;
        let page = stripes.page_bytes as usize;
        for piece in stripes.pieces(offset, out.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].read(offset, &mut out[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = stripes.pages_of(index, first, count);
                        // A node that holds none of them may be lost.
                        if here == 0 {
                            continue;
                        }
                        let mut gathered = vec![0; here as usize * page];
                        grant.read(stripes.place_of(start).offset, &mut gathered)?;
                        for (turn, source) in gathered.chunks_exact(page).enumerate() {
                            let number = start + turn as u64 * stripes.count;
                            let at = buffer + (number - first) as usize * page;
                            out[at..at + page].copy_from_slice(source);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies bytes in. No frame may hold a page of theirs.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), NodeError> {
        if let [grant] = &self.grants[..] {
            return grant.write(offset, data);
        }
        let stripes = self.stripes;
        let page = stripes.page_bytes as usize;
        for piece in stripes.pieces(offset, data.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].write(offset, &data[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = stripes.pages_of(index, first, count);
                        // A node that holds none of them may be lost.
                        if here == 0 {
                            continue;
                        }
                        let mut gathered = Vec::with_capacity(here as usize * page);
                        for turn in 0..here {
                            let number = start + turn * stripes.count;
                            let at = buffer + (number - first) as usize * page;
                            gathered.extend_from_slice(&data[at..at + page]);
                        }
                        grant.write(stripes.place_of(start).offset, &gathered)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A region's memory at nodes, until it is given back when the region ends.
pub(crate) struct Striped(pub Mutex<Option<NodeMemory>>);

impl Striped {
    pub fn new(memory: NodeMemory) -> Self {
        Self(Mutex::new(Some(memory)))
    }

    /// Asks about the memory; none once it was given back.
    pub fn with<R>(&self, ask: impl FnOnce(&mut NodeMemory) -> R) -> Option<R> {
        self.0.lock().as_mut().map(ask)
    }

    /// Stripes; 0 once the memory was given back.
    pub fn stripe_count(&self) -> usize {
        self.with(|memory| memory.grants.len()).unwrap_or(0)
    }

    /// Asks about the memory in which a page lies.
    pub fn with_grant<R>(&self, page: u64, ask: impl FnOnce(&Grant) -> R) -> Option<R> {
        let place = |memory: &mut NodeMemory| memory.grants.get(memory.place_of(page).stripe).map(ask);
        self.with(place).flatten()
    }

    /// Whether nothing can write a page any more.
    pub fn is_sealed(&self, page: u64) -> bool {
        self.with_grant(page, Grant::is_sealed).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where byte `at` of a region lies: its stripe and the offset there.
    fn place(at: u64, stripes: Striping) -> (u64, u64) {
        let page = at / stripes.page_bytes;
        (
            page % stripes.count,
            page / stripes.count * stripes.page_bytes + at % stripes.page_bytes,
        )
    }

    #[test]
    fn every_byte_of_a_copy_lies_in_one_piece_at_its_place() {
        let page = 8;
        for (pages, most) in [(1, 1), (1, 3), (2, 3), (5, 2), (9, 3), (2500, 3)] {
            let (stripes, sizes) = Striping::over(pages, most, page);
            assert_eq!(sizes.iter().sum::<u64>(), pages);
            let end = pages * page;
            for (offset, bytes) in [
                (0, end),
                (3, end - 3),
                (0, end - 5),
                (7, end.min(9) - 7),
                (end - 1, 1),
                (end / 2, 0),
            ] {
                let mut seen = vec![None; bytes as usize];
                let mut put = |at: usize, to: (u64, u64)| assert_eq!(seen[at].replace(to), None, "twice");
                for piece in stripes.pieces(offset, bytes as usize) {
                    match piece {
                        Piece::Part { grant, offset, buffer } => {
                            let start = buffer.start;
                            buffer.for_each(|at| put(at, (grant as u64, offset + (at - start) as u64)));
                        }
                        Piece::Pages { first, count, buffer } => {
                            for grant in 0..stripes.count {
                                let (start, here) = stripes.pages_of(grant as usize, first, count);
                                for byte in 0..here * page {
                                    let number = start + byte / page * stripes.count;
                                    let at = buffer as u64 + (number - first) * page + byte % page;
                                    put(at as usize, (grant, stripes.place_of(start).offset + byte));
                                }
                            }
                        }
                    }
                }
                for (at, found) in (offset..).zip(seen) {
                    let (stripe, inside) = place(at, stripes);
                    assert_eq!(found, Some((stripe, inside)), "byte {at} of {pages} pages over {most}");
                    assert!(inside < sizes[stripe as usize] * page);
                }
            }
        }
    }
}
