//! Reads without a tier, for comparison.

use std::{
    fs::OpenOptions,
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use io_uring::{IoUring, opcode, types};

/// Reads `bytes` bytes of a file at each of the offsets, in that order, `depth` reads at a time, by io_uring and O_DIRECT: what a disk gives to a
/// program that does nothing else. `look` is given the place of each offset among them and what was read there. How long it took.
///
/// # Errors
/// The system's; a read that ends early.
pub fn read_bare(
    path: impl AsRef<Path>,
    offsets: &[u64],
    bytes: u32,
    depth: u32,
    mut look: impl FnMut(usize, &[u8]),
) -> io::Result<Duration> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let fd = types::Fd(file.as_raw_fd());
    let mut memory = memmap2::MmapMut::map_anon(depth as usize * bytes as usize)?;
    let base = memory.as_mut_ptr();
    let mut ring = IoUring::new(depth.next_power_of_two())?;
    let mut free: Vec<usize> = (0..depth as usize).collect();
    let mut places = vec![0usize; depth as usize];
    let mut next = offsets.iter().enumerate();
    let (mut under_way, mut failure) = (0, None);
    let begun = Instant::now();
    loop {
        while failure.is_none()
            && let Some(&slot) = free.last()
            && let Some((place, &offset)) = next.next()
        {
            free.pop();
            places[slot] = place;
            // SAFETY: inside the memory.
            let to = unsafe { base.add(slot * bytes as usize) };
            let read = opcode::Read::new(fd, to, bytes)
                .offset(offset)
                .build()
                .user_data(slot as u64);
            // SAFETY: the slot is free, and it and the file live until the read has ended: the loop waits for all of them.
            if let Err(full) = unsafe { ring.submission().push(&read) } {
                failure = Some(io::Error::other(full));
                break;
            }
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        if let Err(error) = ring.submit_and_wait(1)
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Reads may be under way still.
            std::mem::forget(memory);
            return Err(error);
        }
        for entry in ring.completion() {
            let slot = entry.user_data() as usize;
            // SAFETY: the read of this slot has ended, and the slice is gone when the slot is used again.
            let found = unsafe { std::slice::from_raw_parts(base.add(slot * bytes as usize), bytes as usize) };
            match entry.result() {
                all if all == bytes as i32 => look(places[slot], found),
                error if error < 0 => failure = Some(io::Error::from_raw_os_error(-error)),
                _ => failure = Some(io::ErrorKind::UnexpectedEof.into()),
            }
            free.push(slot);
            under_way -= 1;
        }
    }
    failure.map_or_else(|| Ok(begun.elapsed()), Err)
}
