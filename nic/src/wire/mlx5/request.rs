//! Whole work requests: a control segment and what its operation asks for.

use core::fmt;

use super::segments::{AtomicSegment, ControlSegment, DataSegment, INLINE_BIT, InlineHeader, RemoteAddressSegment};
use super::{BLOCK_BYTES, Opcode, Segment, UNIT_BYTES, UNITS_MAX, control_flags};
use crate::wire::WireError;

/// What a request does, with its remote side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Nothing.
    Nop,
    /// Local data to remote memory.
    Write {
        /// Remote virtual address.
        remote: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Local data to remote memory, then 32 bits to the responder.
    WriteImmediate {
        /// Remote virtual address.
        remote: u64,
        /// Remote key.
        rkey: u32,
        /// The 32 bits.
        immediate: u32,
    },
    /// Remote memory to local data.
    Read {
        /// Remote virtual address.
        remote: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Compare 8 remote bytes and swap them when equal; the old value goes to local data.
    CompareSwap {
        /// Remote virtual address, a multiple of 8.
        remote: u64,
        /// Remote key.
        rkey: u32,
        /// The value expected.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Add to 8 remote bytes; the old value goes to local data.
    FetchAdd {
        /// Remote virtual address, a multiple of 8.
        remote: u64,
        /// Remote key.
        rkey: u32,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Read local data and drop it.
    Dump,
    /// An operation whose segments this crate does not know.
    Other(Opcode),
}

impl Operation {
    /// The operation's code.
    pub fn opcode(&self) -> Opcode {
        match self {
            Operation::Nop => Opcode::Nop,
            Operation::Write { .. } => Opcode::Write,
            Operation::WriteImmediate { .. } => Opcode::WriteImmediate,
            Operation::Read { .. } => Opcode::Read,
            Operation::CompareSwap { .. } => Opcode::CompareSwap,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
            Operation::Dump => Opcode::Dump,
            Operation::Other(opcode) => *opcode,
        }
    }

    /// Remote address and key, for operations that have them.
    pub fn remote(&self) -> Option<(u64, u32)> {
        match *self {
            Operation::Write { remote, rkey }
            | Operation::WriteImmediate { remote, rkey, .. }
            | Operation::Read { remote, rkey }
            | Operation::CompareSwap { remote, rkey, .. }
            | Operation::FetchAdd { remote, rkey, .. } => Some((remote, rkey)),
            Operation::Nop | Operation::Dump | Operation::Other(_) => None,
        }
    }

    /// Whether the operation waits for data from the responder: READs and atomics, of which a queue pair has a
    /// limited number in flight.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(
            self,
            Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. }
        )
    }

    /// Bytes of the segments before the local data.
    fn head_bytes(&self) -> usize {
        match self {
            Operation::Nop | Operation::Dump | Operation::Other(_) => 16,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => 48,
            _ => 32,
        }
    }
}

/// The local data of a request: a list given by the poster, or checked bytes of a request.
#[derive(Clone, Copy)]
pub enum Segments<'a> {
    /// A list.
    List(&'a [Segment<'a>]),
    /// Segments as they lie in a request; made by [`WorkRequest::parse`], which has checked them.
    Wire(&'a [u8]),
}

impl<'a> Segments<'a> {
    /// The segments in order.
    pub fn iter(&self) -> SegmentIter<'a> {
        SegmentIter { rest: *self }
    }

    /// Sum of the segments' lengths in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.iter()
            .fold(0, |sum, segment| sum.saturating_add(segment.len_bytes()))
    }
}

impl PartialEq for Segments<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Segments<'_> {}

impl fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator over [`Segments`].
#[derive(Clone, Debug)]
pub struct SegmentIter<'a> {
    rest: Segments<'a>,
}

impl<'a> Iterator for SegmentIter<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        match self.rest {
            Segments::List(list) => {
                let (first, rest) = list.split_first()?;
                self.rest = Segments::List(rest);
                Some(*first)
            }
            Segments::Wire(bytes) => {
                let (first, rest) = split_segment(bytes)?;
                self.rest = Segments::Wire(rest);
                Some(first)
            }
        }
    }
}

/// The first segment in `bytes` and what follows it; `None` at the end or when it does not fit.
fn split_segment(bytes: &[u8]) -> Option<(Segment<'_>, &[u8])> {
    let count = InlineHeader::new_checked(bytes).ok()?.byte_count();
    if count & INLINE_BIT == 0 {
        let data = DataSegment::new_checked(bytes).ok()?;
        let segment = Segment::Data {
            bytes: count,
            lkey: data.lkey(),
            address: data.address(),
        };
        return Some((segment, bytes.get(UNIT_BYTES..)?));
    }
    let length = (count & !INLINE_BIT) as usize;
    let padded = length.checked_add(4)?.next_multiple_of(UNIT_BYTES);
    let rest = bytes.get(padded..)?;
    Some((Segment::Inline(bytes.get(4..4 + length)?), rest))
}

/// The meaning of one work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest<'a> {
    /// Index of its first block, modulo 2^16.
    pub index: u16,
    /// The 24-bit number of its queue pair.
    pub queue_pair: u32,
    /// Waits for the earlier READs and atomics of the queue pair.
    pub fence: bool,
    /// Writes a completion when it succeeds; a failure always writes one.
    pub signalled: bool,
    /// Asks for an event at the responder.
    pub solicited: bool,
    /// What it does.
    pub operation: Operation,
    /// Its local data.
    pub segments: Segments<'a>,
}

impl<'a> WorkRequest<'a> {
    /// Reads the request at the start of `bytes`, which holds all its blocks.
    ///
    /// # Errors
    /// A length (`ds`) that is 0, above 63, longer than `bytes` or too short for the operation; local data that does
    /// not fill the request exactly. Unknown operations are no error.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let control = ControlSegment::new_checked(bytes)?;
        let units = control.units();
        let bad_length = |expected| WireError {
            field: "ControlSegment.ds",
            value: u64::from(units),
            offset: 7,
            expected,
        };
        if units == 0 || usize::from(units) > UNITS_MAX {
            return Err(bad_length("1 to 63 units of 16 bytes"));
        }
        let whole = bytes
            .get(..usize::from(units) * UNIT_BYTES)
            .ok_or_else(|| bad_length("a request within its buffer"))?;
        let operation = parse_operation(&control, whole).ok_or_else(|| bad_length("room for remote and operands"))?;
        let tail = match operation {
            Operation::Nop | Operation::Other(_) => &[],
            _ => whole.get(operation.head_bytes()..).unwrap_or(&[]),
        };
        check_segments(tail, whole.len() - tail.len())?;
        Ok(WorkRequest {
            index: control.index(),
            queue_pair: control.queue_pair(),
            fence: control.fenced(),
            signalled: control.signalled(),
            solicited: control.flags() & control_flags::SOLICITED != 0,
            operation,
            segments: Segments::Wire(tail),
        })
    }

    /// Bytes of the request: a multiple of 16.
    pub fn wire_bytes(&self) -> usize {
        self.segments.iter().fold(self.operation.head_bytes(), |sum, segment| {
            sum.saturating_add(segment.wire_bytes())
        })
    }

    /// Blocks of the send queue that the request takes.
    pub fn blocks(&self) -> usize {
        self.wire_bytes().div_ceil(BLOCK_BYTES)
    }

    /// Fills the first [`blocks`](Self::blocks) blocks of `buffer` with the request, unused bytes zero, and
    /// returns their length in bytes.
    ///
    /// # Errors
    /// A request of more than 63 units, a data segment of 2^31 bytes or more, a queue pair number above 24 bits, a
    /// buffer that is too short. Nothing is written then.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, WireError> {
        let bytes = self.wire_bytes();
        self.check_emit(bytes)?;
        let filled = self.blocks() * BLOCK_BYTES;
        let found = buffer.len() as u64;
        let target = buffer.get_mut(..filled).ok_or(WireError {
            field: "WorkRequest.buffer",
            value: found,
            offset: 0,
            expected: "room for all blocks of the request",
        })?;
        target.fill(0);
        self.emit_head(target, bytes / UNIT_BYTES)?;
        let mut offset = self.operation.head_bytes();
        for segment in self.segments.iter() {
            let place = target.get_mut(offset..).unwrap_or(&mut []);
            emit_segment(&segment, place)?;
            offset += segment.wire_bytes();
        }
        Ok(filled)
    }

    fn check_emit(&self, bytes: usize) -> Result<(), WireError> {
        let error = |field, value, expected| {
            Err(WireError {
                field,
                value,
                offset: 0,
                expected,
            })
        };
        if bytes > UNITS_MAX * UNIT_BYTES {
            return error("WorkRequest.bytes", bytes as u64, "at most 1008 bytes");
        }
        if self.queue_pair >> 24 != 0 {
            return error("WorkRequest.queue_pair", u64::from(self.queue_pair), "24 bits");
        }
        for segment in self.segments.iter() {
            if let Segment::Data { bytes, .. } = segment
                && bytes & INLINE_BIT != 0
            {
                return error("DataSegment.byte_count", u64::from(bytes), "below 2^31");
            }
        }
        Ok(())
    }

    fn emit_head(&self, target: &mut [u8], units: usize) -> Result<(), WireError> {
        let mut control = ControlSegment::new_checked(&mut *target)?;
        let opcode = u8::from(self.operation.opcode());
        control.set_opmod_index_opcode(u32::from(self.index) << 8 | u32::from(opcode));
        control.set_qpn_ds(self.queue_pair << 8 | units as u32);
        let mut flags = 0;
        for (set, bit) in [
            (self.fence, control_flags::FENCE),
            (self.signalled, control_flags::CQ_UPDATE),
            (self.solicited, control_flags::SOLICITED),
        ] {
            flags |= if set { bit } else { 0 };
        }
        control.set_flags(flags);
        if let Operation::WriteImmediate { immediate, .. } = self.operation {
            control.set_immediate(immediate);
        }
        if let Some((address, rkey)) = self.operation.remote() {
            let mut remote = RemoteAddressSegment::new_checked(target.get_mut(16..).unwrap_or(&mut []))?;
            remote.set_address(address);
            remote.set_rkey(rkey);
        }
        let operands = match self.operation {
            Operation::CompareSwap { compare, swap, .. } => (swap, compare),
            Operation::FetchAdd { add, .. } => (add, 0),
            _ => return Ok(()),
        };
        let mut atomic = AtomicSegment::new_checked(target.get_mut(32..).unwrap_or(&mut []))?;
        atomic.set_swap_add(operands.0);
        atomic.set_compare(operands.1);
        Ok(())
    }
}

/// The operation with its remote side; `None` when the request is too short for it.
#[inline]
fn parse_operation(control: &ControlSegment<&[u8]>, whole: &[u8]) -> Option<Operation> {
    let opcode = Opcode::from(control.opcode());
    match opcode {
        Opcode::Nop => return Some(Operation::Nop),
        Opcode::Dump => return Some(Operation::Dump),
        Opcode::Write | Opcode::WriteImmediate | Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd => {}
        other => return Some(Operation::Other(other)),
    }
    let segment = RemoteAddressSegment::new_checked(whole.get(16..)?).ok()?;
    let (remote, rkey) = (segment.address(), segment.rkey());
    Some(match opcode {
        Opcode::Write => Operation::Write { remote, rkey },
        Opcode::WriteImmediate => Operation::WriteImmediate {
            remote,
            rkey,
            immediate: control.immediate(),
        },
        Opcode::Read => Operation::Read { remote, rkey },
        _ => {
            let atomic = AtomicSegment::new_checked(whole.get(32..)?).ok()?;
            if opcode == Opcode::FetchAdd {
                Operation::FetchAdd {
                    remote,
                    rkey,
                    add: atomic.swap_add(),
                }
            } else {
                Operation::CompareSwap {
                    remote,
                    rkey,
                    compare: atomic.compare(),
                    swap: atomic.swap_add(),
                }
            }
        }
    })
}

/// Checks that segments fill `tail` exactly; `offset` is where it starts in the request.
fn check_segments(tail: &[u8], offset: usize) -> Result<(), WireError> {
    let mut rest = tail;
    while !rest.is_empty() {
        let at = offset + tail.len() - rest.len();
        let (_, next) = split_segment(rest).ok_or_else(|| WireError {
            field: "InlineHeader.byte_count",
            value: InlineHeader::new_checked(rest).map_or(0, |header| u64::from(header.byte_count())),
            offset: at,
            expected: "data within the request",
        })?;
        rest = next;
    }
    Ok(())
}

/// Writes one segment at the start of `place`, whose bytes are zero.
fn emit_segment(segment: &Segment<'_>, place: &mut [u8]) -> Result<(), WireError> {
    match *segment {
        Segment::Data { bytes, lkey, address } => {
            let mut data = DataSegment::new_checked(place)?;
            data.set_byte_count(bytes);
            data.set_lkey(lkey);
            data.set_address(address);
        }
        Segment::Inline(data) => {
            InlineHeader::new_checked(&mut *place)?.set_byte_count(data.len() as u32 | INLINE_BIT);
            crate::wire::put_bytes(place, 4, data);
        }
    }
    Ok(())
}

impl fmt::Display for WorkRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} qp {:#x} #{}",
            self.operation.opcode(),
            self.queue_pair,
            self.index
        )?;
        if let Some((remote, rkey)) = self.operation.remote() {
            write!(f, " remote {remote:#x} rkey {rkey:#x}")?;
        }
        match self.operation {
            Operation::WriteImmediate { immediate, .. } => write!(f, " immediate {immediate:#x}")?,
            Operation::CompareSwap { compare, swap, .. } => write!(f, " compare {compare:#x} swap {swap:#x}")?,
            Operation::FetchAdd { add, .. } => write!(f, " add {add:#x}")?,
            _ => {}
        }
        for segment in self.segments.iter() {
            match segment {
                Segment::Data { lkey, address, .. } => {
                    write!(f, " local {address:#x}+{} lkey {lkey:#x}", segment.len_bytes())?;
                }
                Segment::Inline(data) => write!(f, " inline {} B", data.len())?,
            }
        }
        for (set, word) in [
            (self.fence, " fence"),
            (self.signalled, " signalled"),
            (self.solicited, " solicited"),
        ] {
            f.write_str(if set { word } else { "" })?;
        }
        Ok(())
    }
}
