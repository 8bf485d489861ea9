//! Bare reads of a file: io_uring and O_DIRECT, so many at a time.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use crate::bench::machine::pattern;
use crate::error::CliError;

/// Reads these pages of the file in that order, `depth` at a time, and looks at a word of each. The seconds that it took.
pub fn read(path: &Path, order: &[u32], page_bytes: u64, depth: usize) -> Result<f64, CliError> {
    let failed = |source| CliError::Output { path: path.to_owned(), source };
    read_all(path, order, page_bytes, depth).map_err(failed)?.map_err(|wrong| CliError::WrongData {
        wrong,
        of: order.len() as u64,
        what: "the bare reads".to_owned(),
    })
}

/// Or how many pages were wrong.
fn read_all(path: &Path, order: &[u32], page_bytes: u64, depth: usize) -> io::Result<Result<f64, u64>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let fd = types::Fd(file.as_raw_fd());
    let mut ring = IoUring::new(depth.next_power_of_two() as u32)?;
    // Pages of the system are aligned as O_DIRECT asks for.
    let mut memory = memmap2::MmapMut::map_anon(depth * page_bytes as usize)?;
    let base = memory.as_mut_ptr();
    let mut free: Vec<usize> = (0..depth).collect();
    let mut pages = vec![0u32; depth];
    let (mut next, mut done, mut wrong) = (order.iter(), 0, 0);
    let begun = Instant::now();
    while done < order.len() {
        while let Some(&place) = free.last()
            && let Some(&page) = next.next()
        {
            free.pop();
            pages[place] = page;
            // SAFETY: inside the memory.
            let to = unsafe { base.add(place * page_bytes as usize) };
            let read = opcode::Read::new(fd, to, page_bytes as u32)
                .offset(u64::from(page) * page_bytes)
                .build()
                .user_data(place as u64);
            // SAFETY: the place is free, and it and the file live until the read has ended: the loop waits for all of them, and after an
            // error the process ends with the memory still there.
            unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
        }
        if let Err(error) = ring.submit_and_wait(1) {
            std::mem::forget(memory);
            return Err(error);
        }
        for entry in ring.completion() {
            let place = entry.user_data() as usize;
            let word = place * page_bytes as usize;
            // SAFETY: the read of this place has ended, and the word lies in it, aligned.
            let found = unsafe { base.add(word).cast::<u64>().read() };
            let right = pattern(u64::from(pages[place]) * page_bytes / 8);
            wrong += u64::from(entry.result() != page_bytes as i32 || found != right);
            free.push(place);
            done += 1;
        }
    }
    Ok(if wrong == 0 { Ok(begun.elapsed().as_secs_f64()) } else { Err(wrong) })
}
