//! Copying between frames and homes while GPU lanes access both.
//!
//! A lane may read a frame that is being refilled (it validates afterwards and drops what it read), and may store to
//! a page whose write-back is under way. A `memcpy` that races is undefined behaviour, and `rep movsb` promises no
//! granule. So the copy is made of relaxed atomic accesses:
//!
//! - where both sides are aligned alike to 16 bytes, 16-byte aligned SSE moves in inline assembly. Intel and AMD
//!   guarantee these to be single accesses on every processor with AVX; on older ones, and formally, they are two
//!   8-byte accesses. To the abstract machine the assembly stands for a loop of relaxed 8-byte atomics;
//! - else the largest granule (8, 4, 2 or 1 bytes) to which both sides are aligned alike, as Rust atomics.
//!
//! So an aligned granule of up to 8 bytes never tears when both sides are aligned alike to it, and no access goes past
//! the ends. Nothing here orders anything: the completion's release store does (see `completion_queue`).

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Is told of a copy before it is made: destination, source, length in bytes.
pub type CopyWitness = fn(u64, u64, u64);

thread_local! {
    static WITNESS: Cell<Option<CopyWitness>> = const { Cell::new(None) };
}

/// Tells `witness` of every copy that a software NIC makes on this thread from now on: for simulations that step the NIC
/// there and model when its data becomes visible. `None` ends it.
pub fn witness_copies(witness: Option<CopyWitness>) {
    WITNESS.set(witness);
}

/// Bytes moved by one turn of the vector loop.
const VECTOR_BYTES: usize = 128;
/// From this length on the loop prefetches: on random 64 KiB spans it then takes 10.0 us instead of 12.8 (`memcpy`:
/// 9.6); at 4 KiB it would cost 15 %.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PREFETCH_BYTES_MIN: usize = 16 * 1024;

macro_rules! copy_granules {
    ($name:ident, $atomic:ty, $bytes:literal) => {
        /// Copies `count` granules.
        ///
        /// # Safety
        /// Both spans are valid, for atomic accesses of this width and alignment.
        #[inline]
        unsafe fn $name(dst: usize, src: usize, count: usize) {
            for i in 0..count {
                let from = std::ptr::with_exposed_provenance::<$atomic>(src + i * $bytes);
                let to = std::ptr::with_exposed_provenance::<$atomic>(dst + i * $bytes);
                // SAFETY: the caller vouches for both spans and their alignment.
                let (from, to) = unsafe { (&*from, &*to) };
                // Relaxed: the completion orders the data, not the copy.
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    };
}
copy_granules!(copy_1, AtomicU8, 1);
copy_granules!(copy_2, AtomicU16, 2);
copy_granules!(copy_4, AtomicU32, 4);
copy_granules!(copy_8, AtomicU64, 8);

/// Copies `bytes` bytes from `src` to `dst`, front to back. Overlapping spans give garbage, but no more than that.
///
/// # Safety
/// Both spans are mapped, `dst` writable, for the length of the call; nobody holds a `&mut` to either, or a `&` to
/// plain data of `dst`.
pub unsafe fn copy(dst: u64, src: u64, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { copy_ahead(dst, src, bytes, None) }
}

/// Where the next copy will go: addresses to prefetch, which need not be valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// It reads from here.
    pub src: u64,
    /// It writes to here.
    pub dst: u64,
}

/// [`copy`], and meanwhile fetches as much of the next copy into the cache: random pages otherwise each begin with
/// a page walk and a wait for the first lines.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub unsafe fn copy_ahead(dst: u64, src: u64, bytes: u64, ahead: Option<Ahead>) {
    if let Some(witness) = WITNESS.get() {
        witness(dst, src, bytes);
    }
    let (mut dst, mut src, mut left) = (dst as usize, src as usize, bytes as usize);
    // Widest granule to which both sides are aligned alike.
    let alike = 1usize << ((dst ^ src) | 16).trailing_zeros();
    let granule = alike.min(8);
    // SAFETY: every piece lies within the two spans the caller vouches for; pieces of n bytes start at multiples
    // of n on both sides, because `dst` is brought to one and `src` is aligned alike.
    unsafe {
        let small = |dst: &mut usize, src: &mut usize, left: &mut usize, width: usize| {
            match width {
                1 => copy_1(*dst, *src, 1),
                2 => copy_2(*dst, *src, 1),
                4 => copy_4(*dst, *src, 1),
                _ => copy_8(*dst, *src, 1),
            }
            *dst += width;
            *src += width;
            *left -= width;
        };
        for width in [1, 2, 4, 8] {
            if width < alike && dst & width != 0 && left >= width {
                small(&mut dst, &mut src, &mut left, width);
            }
        }
        if alike == 16 && left >= VECTOR_BYTES && dst % 16 == 0 {
            let body = left / VECTOR_BYTES * VECTOR_BYTES;
            copy_vectors(dst, src, body, ahead);
            dst += body;
            src += body;
            left -= body;
        }
        let body = if dst % granule == 0 { left / granule } else { 0 };
        match granule {
            1 => copy_1(dst, src, body),
            2 => copy_2(dst, src, body),
            4 => copy_4(dst, src, body),
            _ => copy_8(dst, src, body),
        }
        dst += body * granule;
        src += body * granule;
        left -= body * granule;
        for width in [4, 2, 1] {
            if left >= width && dst % width == 0 && width < alike.max(2) {
                small(&mut dst, &mut src, &mut left, width);
            }
        }
    }
}

/// A loop of 16-byte aligned moves, 128 bytes a turn; each turn may prefetch as much from two other addresses.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! vector_loop {
    ($dst:ident, $src:ident, $bytes:ident $(, $next_src:ident, $next_dst:ident)?) => {
        std::arch::asm!(
            "2:",
            $(
                vector_loop!(@asm $next_src "prefetcht0 [{p}]"),
                "prefetcht0 [{p} + 64]",
                "prefetchw [{q}]",
                "prefetchw [{q} + 64]",
                "add {p}, 128",
                "add {q}, 128",
            )?
            "movaps {a}, [{s}]",
            "movaps {b}, [{s} + 16]",
            "movaps {c}, [{s} + 32]",
            "movaps {d}, [{s} + 48]",
            "movaps [{t}], {a}",
            "movaps [{t} + 16], {b}",
            "movaps [{t} + 32], {c}",
            "movaps [{t} + 48], {d}",
            "movaps {a}, [{s} + 64]",
            "movaps {b}, [{s} + 80]",
            "movaps {c}, [{s} + 96]",
            "movaps {d}, [{s} + 112]",
            "movaps [{t} + 64], {a}",
            "movaps [{t} + 80], {b}",
            "movaps [{t} + 96], {c}",
            "movaps [{t} + 112], {d}",
            "add {s}, 128",
            "add {t}, 128",
            "sub {n}, 128",
            "jnz 2b",
            s = inout(reg) $src => _,
            t = inout(reg) $dst => _,
            n = inout(reg) $bytes => _,
            $(p = inout(reg) $next_src => _, q = inout(reg) $next_dst => _,)?
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        )
    };
    // The text alone; the variable only ties it to the repetition.
    (@asm $variable:ident $text:literal) => {
        $text
    };
}

/// Copies a multiple of [`VECTOR_BYTES`] bytes by 16-byte aligned moves.
///
/// # Safety
/// As for [`copy`]; both sides aligned to 16.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_vectors(dst: usize, src: usize, bytes: usize, ahead: Option<Ahead>) {
    // SAFETY: stays within the two spans (a prefetch is no access and never faults); aligned as MOVAPS asks. No
    // `nomem`: it writes memory the compiler may hold copies of. SSE2 is part of x86-64, and PREFETCHW is a no-op
    // where it is not known.
    unsafe {
        if bytes >= PREFETCH_BYTES_MIN {
            // Long enough that its own end is worth fetching.
            let (next_src, next_dst) = (src.wrapping_add(512), dst.wrapping_add(512));
            vector_loop!(dst, src, bytes, next_src, next_dst);
        } else if let Some(Ahead {
            src: next_src,
            dst: next_dst,
        }) = ahead
        {
            vector_loop!(dst, src, bytes, next_src, next_dst);
        } else {
            vector_loop!(dst, src, bytes);
        }
    }
}

/// Copies a multiple of [`VECTOR_BYTES`] bytes.
///
/// # Safety
/// As for [`copy`]; both sides aligned to 16.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
unsafe fn copy_vectors(dst: usize, src: usize, bytes: usize, _ahead: Option<Ahead>) {
    // SAFETY: the caller's promise.
    unsafe { copy_8(dst, src, bytes / 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every alignment of both sides with every short length, and lengths about the vector loop.
    #[test]
    fn copies_exactly_its_bytes() {
        let source: Vec<u8> = (0..20_480u32).map(|i| (i * 31 % 251) as u8).collect();
        let lengths = (0..40).chain([127, 128, 129, 143, 144, 255, 256, 300, 511, 512, 640, 20_000]);
        let lengths: Vec<u64> = lengths.collect();
        for from in 0..18u64 {
            for to in 0..18u64 {
                for bytes in &lengths {
                    let mut target = vec![0xa5u8; 20_480];
                    let src = source.as_ptr().expose_provenance() as u64 + from;
                    let dst = target.as_mut_ptr().expose_provenance() as u64 + to;
                    // SAFETY: 18 and 20,000 bytes lie within both vectors, which nobody else uses.
                    unsafe { copy(dst, src, *bytes) };
                    let (to, from, bytes) = (to as usize, from as usize, *bytes as usize);
                    assert_eq!(
                        target[to..to + bytes],
                        source[from..from + bytes],
                        "{from} to {to}, {bytes}"
                    );
                    assert!(
                        target[..to]
                            .iter()
                            .chain(&target[to + bytes..])
                            .all(|byte| *byte == 0xa5)
                    );
                }
            }
        }
    }
}
