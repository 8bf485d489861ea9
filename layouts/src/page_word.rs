//! The page table entry: one naturally aligned 64-bit word a page, in GPU memory.
//!
//! | bits | field |
//! |---|---|
//! | 63..44 | pins: lanes that hold the page in its frame, or at its home (ABSENT) |
//! | 43 | dirty: the frame is newer than the home |
//! | 42..32 | version: one more at every eviction |
//! | 31..4 | frame (RESIDENT), request token (FETCHING), fault code (ERROR), count of reads in place (ABSENT) |
//! | 3..2 | state |
//! | 1 | write-back in flight |
//! | 0 | referenced: a hint for the clock; ABSENT: somebody waits to fetch the page |

/// The page has no frame.
pub const STATE_ABSENT: u64 = 0;
/// A fetch owns the page; its data is not valid yet.
pub const STATE_FETCHING: u64 = 1;
/// The page's data is in its frame.
pub const STATE_RESIDENT: u64 = 2;
/// The page could not be fetched; the frame field holds the fault code.
pub const STATE_ERROR: u64 = 3;

/// Referenced since the clock's hand passed.
pub const REFERENCED_BIT: u64 = 1;
/// A WRITE of the page is in flight: its frame may not be released.
pub const WRITE_BACK_BIT: u64 = 1 << 1;
/// Position of the two state bits.
pub const STATE_SHIFT: u32 = 2;
/// The state bits in place.
pub const STATE_MASK: u64 = 3 << STATE_SHIFT;
/// Position of the frame field.
pub const FRAME_SHIFT: u32 = 4;
/// Width of the frame field.
pub const FRAME_BITS: u32 = 28;
/// Largest number of frames of a virtual memory: one less than the field holds, since pool slots keep a spare value.
pub const FRAMES_MAX: u64 = (1 << FRAME_BITS) - 1;
/// The frame field in place.
pub const FRAME_MASK: u64 = ((1 << FRAME_BITS) - 1) << FRAME_SHIFT;
/// Position of the version field.
pub const VERSION_SHIFT: u32 = 32;
/// The version field in place: 11 bits.
pub const VERSION_MASK: u64 = 0x7ff << VERSION_SHIFT;
/// The frame is newer than the home.
pub const DIRTY_BIT: u64 = 1 << 43;
/// Position of the pin count, the top field, so that it cannot carry into another.
pub const PIN_SHIFT: u32 = 44;
/// Pins that may be held on one page; the other half of the field absorbs additions in flight.
pub const PINS_MAX: u64 = 1 << 19;

/// One page table entry, decoded. For the host's recovery pass, for reports and for tests; the device
/// library works on the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageWord {
    /// Lanes that hold the page.
    pub pins: u32,
    /// The frame is newer than the home.
    pub dirty: bool,
    /// Evictions of this page, modulo 2,048.
    pub version: u16,
    /// Frame, request token or fault code, by state.
    pub frame: u32,
    /// One of the `STATE_*` values.
    pub state: u8,
    /// A WRITE of the page is in flight.
    pub write_back: bool,
    /// Used since the clock's hand passed.
    pub referenced: bool,
}

impl PageWord {
    /// Decodes the 64 bits of a word; every value is valid.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            pins: (bits >> PIN_SHIFT) as u32,
            dirty: bits & DIRTY_BIT != 0,
            version: ((bits & VERSION_MASK) >> VERSION_SHIFT) as u16,
            frame: ((bits & FRAME_MASK) >> FRAME_SHIFT) as u32,
            state: ((bits & STATE_MASK) >> STATE_SHIFT) as u8,
            write_back: bits & WRITE_BACK_BIT != 0,
            referenced: bits & REFERENCED_BIT != 0,
        }
    }

    /// Encodes the word; each field is cut to its width.
    pub const fn to_bits(self) -> u64 {
        ((self.pins as u64) << PIN_SHIFT)
            | if self.dirty { DIRTY_BIT } else { 0 }
            | (((self.version as u64) << VERSION_SHIFT) & VERSION_MASK)
            | (((self.frame as u64) << FRAME_SHIFT) & FRAME_MASK)
            | (((self.state as u64) << STATE_SHIFT) & STATE_MASK)
            | if self.write_back { WRITE_BACK_BIT } else { 0 }
            | if self.referenced { REFERENCED_BIT } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_fill_the_word_without_overlap() {
        let fields = [
            REFERENCED_BIT,
            WRITE_BACK_BIT,
            STATE_MASK,
            FRAME_MASK,
            VERSION_MASK,
            DIRTY_BIT,
            !0u64 << PIN_SHIFT,
        ];
        assert_eq!(fields.iter().fold(0, |a, f| a | f), !0);
        assert_eq!(fields.iter().map(|f| f.count_ones()).sum::<u32>(), 64);
    }

    #[test]
    fn every_bit_survives_a_round_trip() {
        for bit in 0..64 {
            for bits in [1u64 << bit, !(1u64 << bit)] {
                assert_eq!(PageWord::from_bits(bits).to_bits(), bits, "bit {bit}");
            }
        }
    }
}
