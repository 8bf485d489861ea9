//! The host's pass over a GPU's pages that no launch uses: after a launch was stopped where it stood, met a page or
//! frames with as many pins as there can be, or a region ended with frames left, and after queue pairs were given up.

use std::{collections::BTreeSet, sync::Arc};

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, PageWord};

use super::{
    pool::FramePool,
    victims::{Victims, slot_of},
    view::RegionView,
};
use crate::error::{Error, Result};

/// Makes every page absent or resident, unpinned and never "being written back", and rebuilds the table of frames and the pool from the
/// page tables. Dirty pages keep their frames. A held region stays held, since who holds it does not ask again: its pages with frames have
/// its pin, and those that launches marked are dirty.
pub(super) fn rebuild(
    gpu: &dyn Gpu,
    regions: impl Iterator<Item = Arc<RegionView>>,
    pool: &FramePool,
    victims: Option<&Victims>,
) -> Result<()> {
    let mut frame_pages = vec![0u64; pool.capacity() as usize];
    let mut slots = BTreeSet::new();
    // A region that has ended keeps no frame, whatever its launches' handles keep alive of it.
    for region in regions {
        let mut words = region.read_words(gpu)?;
        let (held, marks) = (region.is_held(), region.marks(gpu)?);
        for (page, bits) in words.iter_mut().enumerate() {
            let slot = slot_of(*bits).filter(|_| held && region.has_slots());
            let mut word = recovered(PageWord::from_bits(*bits));
            if let Some(slot) = slot {
                // A launch that is about to begin may have it in its table.
                word.frame = slot + 1;
                slots.insert(slot);
            }
            let resident = u64::from(word.state) == layout::STATE_RESIDENT;
            word.dirty |= resident && marks.get(page) == Some(&true);
            word.pins = (resident && held).into();
            *bits = word.to_bits();
            // Frames of the region's own have no entry in the table, and never were in the pool.
            if resident && !region.is_never_evicted() {
                let Some(page_id) = frame_pages.get_mut(word.frame as usize) else {
                    return Err(Error::Poisoned {
                        reason: format!("page {page} of region `{}` names frame {}", region.name(), word.frame),
                    });
                };
                *page_id = layout::page_id(region.id(), page as u64);
            }
        }
        // Only then: what fails in between is done again.
        region.write_words(gpu, &words)?;
        region.clear_marks(gpu)?;
    }
    if let Some(victims) = victims {
        victims.free_all(gpu, |slot| slots.contains(&slot))?;
    }
    pool.rebuild(gpu, frame_pages)
}

/// A word as nothing but its page needs it.
fn recovered(word: PageWord) -> PageWord {
    let resident = u64::from(word.state) == layout::STATE_RESIDENT;
    PageWord {
        pins: 0,
        // A write-back that was dropped on its way: the frame is newer than the home still.
        dirty: resident && (word.dirty || word.write_back),
        version: word.version,
        frame: if resident { word.frame } else { 0 },
        state: if resident {
            layout::STATE_RESIDENT as u8
        } else {
            layout::STATE_ABSENT as u8
        },
        write_back: false,
        referenced: resident && word.referenced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_write_back_leaves_its_page_dirty() {
        let word = PageWord {
            state: layout::STATE_RESIDENT as u8,
            frame: 7,
            write_back: true,
            pins: 3,
            ..Default::default()
        };
        let word = recovered(word);
        assert!(word.dirty && !word.write_back && word.pins == 0 && word.frame == 7);
    }

    #[test]
    fn claims_and_errors_become_absent_and_keep_their_version() {
        for state in [layout::STATE_FETCHING, layout::STATE_ERROR] {
            let word = recovered(PageWord {
                state: state as u8,
                frame: 9,
                version: 5,
                pins: 1,
                ..Default::default()
            });
            assert_eq!(
                word,
                PageWord {
                    version: 5,
                    ..Default::default()
                }
            );
        }
    }
}
