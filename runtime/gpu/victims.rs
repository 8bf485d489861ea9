//! Memory that neighbour GPUs lend, for clean pages that leave their frames.

use std::time::{Duration, Instant};

use gpuvm_gpu::{DeviceMemory, Gpu};
use gpuvm_layouts::{self as layout, VictimsDesc, VmDesc};
use parking_lot::Mutex;

use super::pool::FreeList;
use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Error, Result},
    plan::{Settings, TransportKind, refuse},
};

/// One of so many slots is to be free before fetched pages keep theirs. With more free, there is room for pages twice: a page that leaves
/// again needs no copy. With less, what room there is goes to pages that have no frame.
const SPARE_SHARE: u32 = 64;
/// How long the host rests between two looks at the lanes that copy pages to a neighbour.
const WRITERS_LOOK: Duration = Duration::from_micros(20);

/// The slots of one GPU, at all neighbours that it borrows from.
pub(crate) struct Victims {
    desc: DeviceArray<VictimsDesc>,
    free: FreeList,
    _chunks: DeviceArray<u64>,
    lent: DeviceArray<u32>,
    writers: DeviceArray<u32>,
    slots_kept: DeviceArray<u32>,
    frames: u64,
    /// Mapped until the GPU is no virtual memory's any more: a lane may read a slot for which it is too late.
    _memory: Vec<DeviceMemory>,
    /// Addresses of the chunks.
    starts: Vec<u64>,
    chunk_slots: u32,
    page_size: u64,
    /// Chunks that are lent: those before this one.
    still_lent: Mutex<u32>,
}

impl Victims {
    /// None where nothing is borrowed.
    pub fn new(gpu: &dyn Gpu, transport: TransportKind, settings: &Settings) -> Result<Option<Self>> {
        if settings.borrowed.is_empty() {
            return Ok(None);
        }
        if transport != TransportKind::Direct {
            let reason = "lanes copy pages to borrowed memory of neighbour GPUs themselves: use the transport direct";
            return refuse("transport", transport.to_string(), reason);
        }
        let page_size = settings.page_size;
        let chunk_bytes = settings.borrowed_chunk.max(page_size);
        let chunk_slots = (chunk_bytes / page_size) as u32;
        let (mut memory, mut starts) = (Vec::new(), Vec::new());
        for &(ordinal, bytes) in &settings.borrowed {
            let chunks = bytes / chunk_bytes;
            if chunks == 0 {
                let reason =
                    format!("GPU {ordinal} is to lend {bytes} bytes; memory is lent in chunks of {chunk_bytes}");
                return refuse("borrowed memory", format!("{bytes} bytes"), reason);
            }
            let lent = gpu.allocate_on(ordinal, chunks * chunk_bytes);
            let lent = lent.doing(|| format!("borrowing {} bytes of GPU {ordinal}", chunks * chunk_bytes))?;
            starts.extend((0..chunks).map(|chunk| lent.addr() + chunk * chunk_bytes));
            memory.push(lent);
        }
        let slots = starts.len() as u64 * u64::from(chunk_slots);
        if slots >= layout::FRAMES_MAX {
            let reason = "page table words count at most 2^28 - 2 slots: use larger pages";
            return refuse("borrowed memory", format!("{slots} pages"), reason);
        }
        let doing = || "allocating the bookkeeping of borrowed memory".to_owned();
        let free = FreeList::new(gpu, slots as u32).doing(doing)?;
        let chunks = DeviceArray::from_slice(gpu, &starts).doing(doing)?;
        let lent = DeviceArray::from_slice(gpu, &vec![1_u32; starts.len()]).doing(doing)?;
        let writers = DeviceArray::zeroed(gpu, starts.len() as u64).doing(doing)?;
        let frames = settings.frame_memory / page_size;
        // The simulator watches pairs of them.
        let slots_kept = DeviceArray::zeroed(gpu, frames.next_multiple_of(2)).doing(doing)?;
        let desc = VictimsDesc {
            free: VmDesc {
                pool: free.state(),
                pool_ring: free.ring(),
                frame_count: slots as u32,
                frame_reciprocal: layout::reciprocal(slots as u32),
                ..zero()
            },
            chunks: chunks.addr(),
            lent: lent.addr(),
            writers: writers.addr(),
            chunk_shift: chunk_slots.trailing_zeros(),
            spare_min: slots as u32 / SPARE_SHARE,
            slots_kept: slots_kept.addr(),
            ..zero()
        };
        let victims = Self {
            desc: DeviceArray::from_slice(gpu, &[desc]).doing(doing)?,
            free,
            _chunks: chunks,
            lent,
            writers,
            slots_kept,
            frames,
            _memory: memory,
            chunk_slots,
            page_size,
            still_lent: Mutex::new(starts.len() as u32),
            starts,
        };
        victims.free_all(gpu)?;
        Ok(Some(victims))
    }

    /// Address of the [`VictimsDesc`].
    pub fn desc_addr(&self) -> u64 {
        self.desc.addr()
    }

    /// No word names a slot any more: all that are lent are free. No kernel may run.
    pub fn free_all(&self, gpu: &dyn Gpu) -> Result<()> {
        let lent = self.still_lent.lock();
        let doing = || "freeing the slots of borrowed memory".to_owned();
        let none = vec![0_u32; self.starts.len()];
        self.writers.write(gpu, 0, &none).doing(doing)?;
        let none = vec![0_u32; self.frames as usize];
        self.slots_kept.write(gpu, 0, &none).doing(doing)?;
        self.free.fill(gpu, 0..*lent * self.chunk_slots).doing(doing)
    }

    /// Bytes that are lent now.
    pub fn lent_bytes(&self) -> u64 {
        u64::from(*self.still_lent.lock()) * self.chunk_bytes()
    }

    /// Bytes whose loan has ended: none is ever lent again.
    pub fn given_back_bytes(&self) -> u64 {
        self.starts.len() as u64 * self.chunk_bytes() - self.lent_bytes()
    }

    fn chunk_bytes(&self) -> u64 {
        u64::from(self.chunk_slots) * self.page_size
    }

    /// What a lender may do with what it was given back, for tests: fills it with a byte.
    pub fn scribble(&self, gpu: &dyn Gpu, byte: u8) -> Result<()> {
        let first = *self.still_lent.lock() as usize;
        let bytes = vec![byte; self.chunk_bytes() as usize];
        let starts = &self.starts[first..];
        let doing = || "writing memory that was given back".to_owned();
        starts
            .iter()
            .try_for_each(|&start| gpu.write(start, &bytes).doing(doing))
    }

    /// Ends the loan of `bytes` bytes, in whole chunks, while launches run; how many those were. From its return on no lane writes
    /// there, and none uses what it reads there. It waits for lanes that copy a page there now, no longer than `limit`.
    pub fn take_back(&self, gpu: &dyn Gpu, bytes: u64, limit: Duration) -> Result<u64> {
        let mut still_lent = self.still_lent.lock();
        let taken = bytes.div_ceil(self.chunk_bytes()).min(u64::from(*still_lent)) as u32;
        let (first, doing) = (*still_lent - taken, || "taking borrowed memory back".to_owned());
        self.lent
            .write(gpu, u64::from(first), &vec![0_u32; taken as usize])
            .doing(doing)?;
        *still_lent = first;
        let deadline = Instant::now() + limit;
        // Those of an earlier call, too, which may have ended before their writers did.
        let mut writers = vec![0_u32; self.starts.len() - first as usize];
        loop {
            self.writers
                .read_into(gpu, u64::from(first), &mut writers)
                .doing(doing)?;
            if writers.iter().all(|count| *count == 0) {
                return Ok(u64::from(taken) * self.chunk_bytes());
            }
            if Instant::now() > deadline {
                let writers = writers.iter().sum();
                return Err(Error::StillWritten { writers, waited: limit });
            }
            std::thread::sleep(WRITERS_LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuvm_gpu::CompileOptions;
    use gpuvm_sim_gpu::SimGpu;

    use super::*;

    const CHUNK_BYTES: u64 = 16 << 20;

    #[test]
    fn giving_back_waits_for_those_who_write_there_also_in_a_later_call() {
        let gpu = SimGpu::builder().neighbours(1).memory_bytes(64 << 20).build().unwrap();
        let settings = Settings {
            frame_memory: 1 << 20,
            page_size: 4096,
            wait_limit: Duration::from_secs(1),
            launch_deadline: Duration::from_secs(1),
            regions_max: 1,
            guarded: false,
            borrowed: vec![(1, 2 * CHUNK_BYTES)],
            borrowed_chunk: CHUNK_BYTES,
            support_options: CompileOptions::default(),
        };
        let victims = Victims::new(&gpu, TransportKind::Direct, &settings).unwrap().unwrap();
        let limit = Duration::from_millis(5);
        assert_eq!((victims.lent_bytes(), victims.given_back_bytes()), (2 * CHUNK_BYTES, 0));
        // A lane copies a page to the last chunk, and does not end.
        victims.writers.write(&gpu, 1, &[1]).unwrap();
        let refused = |bytes| {
            let taken = victims.take_back(&gpu, bytes, limit);
            assert!(
                matches!(taken, Err(Error::StillWritten { writers: 1, .. })),
                "{taken:?}"
            );
        };
        refused(1);
        refused(1);
        refused(1);
        assert_eq!((victims.lent_bytes(), victims.given_back_bytes()), (0, 2 * CHUNK_BYTES));
        victims.writers.write(&gpu, 1, &[0]).unwrap();
        assert_eq!(victims.take_back(&gpu, 1, limit).unwrap(), 0);
    }
}
