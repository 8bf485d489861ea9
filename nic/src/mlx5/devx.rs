//! Queue pairs made by DEVX: firmware commands ([`super::prm`]) over memory that this program registers.
//!
//! Rings and doorbell records lie where [`super::SharedMemory::allocate_queues`] puts them, in the GPU's own memory where
//! there is a dma-buf of it: what a GPU polls is near it. The completion queue is collapsed. Each queue pair asks for a
//! register of its own; the library may give several out of one page, or one to several, and takes it back with its queue
//! pair: nothing may have the page mapped then. The processor writes the first state of a ring and never reads one.
//!
//! Not tested on a ConnectX.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::rdma_sys as sys;
use parking_lot::Mutex;

mod library;
mod memory;

pub(super) use memory::Devx;

use library::{from_status, last_error, library};
use memory::{Chunk, PAGE};

use super::domain::Domain;
use super::dv;
use super::failure::failed_with;
use super::made::{Made, Parts, Refusal, destroy_at_last};
use super::prm::{
    Answer, Command, CreateCompletionQueue, CreateQueuePair, GlobalHeader, Link, Place, RemoteAccess, ToInit,
    ToReadyToReceive, ToReadyToSend,
};
use crate::wire::mlx5::{BLOCK_BYTES, CQE_BYTES, CQE_INVALID};
use crate::{AddressAttributes, NicError, QueueAttributes, RingSpan};

/// Where the doorbell record of the completion queue lies after the queue pair's.
const CQ_RECORD: u64 = 64;
/// `IBV_ACCESS_REMOTE_WRITE` and `_READ`.
const REMOTE: [u32; 2] = [2, 4];

fn devx_of(domain: &Domain) -> Result<&Devx, NicError> {
    domain.devx.as_ref().ok_or_else(|| NicError::NoDevice {
        reason: format!("{} was opened without DEVX", domain.device.name),
    })
}

/// Objects of the library, each until it is destroyed.
#[derive(Default)]
struct Objects {
    queue_pair: Option<NonNull<dv::DevxObj>>,
    completion_queue: Option<NonNull<dv::DevxObj>>,
    registers: Option<NonNull<dv::Uar>>,
    chunk: Option<Chunk>,
}

/// What one step of a connection tells that a later one needs.
#[derive(Clone, Copy, Default)]
struct Local {
    port: u8,
    pkey_index: u16,
}

/// A queue pair and its completion queue.
pub(super) struct DevxPair {
    /// Dropped first.
    parts: Parts,
    objects: Mutex<Objects>,
    local: Mutex<Local>,
    domain: Arc<Domain>,
}

// SAFETY: libmlx5 may be called from any thread; calls on the objects are made under the lock.
unsafe impl Send for DevxPair {}
// SAFETY: as above.
unsafe impl Sync for DevxPair {}

impl DevxPair {
    /// Makes one for `depth` requests in flight, a power of two, in state reset.
    pub fn create(domain: &Arc<Domain>, depth: u32) -> Result<Self, NicError> {
        let ring = |bytes: usize| RingSpan {
            slots: depth,
            shift: bytes.trailing_zeros(),
            ..RingSpan::default()
        };
        let mut pair = Self {
            parts: Parts {
                send: ring(BLOCK_BYTES),
                completion: ring(CQE_BYTES),
                ..Parts::default()
            },
            objects: Mutex::default(),
            local: Mutex::default(),
            domain: Arc::clone(domain),
        };
        // On an error `pair` is dropped, with what it has.
        pair.make(depth)?;
        Ok(pair)
    }

    fn make(&mut self, depth: u32) -> Result<(), NicError> {
        let domain = Arc::clone(&self.domain);
        let devx = devx_of(&domain)?;
        let uar_page = self.make_registers()?;
        let send_bytes = (u64::from(depth) * BLOCK_BYTES as u64).next_multiple_of(PAGE);
        let completion_bytes = (u64::from(depth) * CQE_BYTES as u64).next_multiple_of(PAGE);
        let chunk = devx.allocate(&domain.device, &domain.dv, send_bytes + completion_bytes + PAGE)?;
        let (start, at) = (chunk.start, chunk.place);
        self.objects.lock().chunk = Some(chunk);
        let place = |offset| Place {
            offset: at.offset + offset,
            ..at
        };
        let records = send_bytes + completion_bytes;
        self.parts.send.address = start;
        self.parts.completion.address = start + send_bytes;
        // Receive, then send.
        self.parts.record = start + records + 4;
        self.clear(depth)?;

        let log = depth.trailing_zeros() as u8;
        let command = Command::CreateCompletionQueue(CreateCompletionQueue {
            log_entries: log,
            uar_page,
            event_queue: devx.event_queue,
            ring: place(send_bytes),
            record: place(records + CQ_RECORD),
        });
        let (completion_queue, completion_number) =
            self.create_object(format!("creating a completion queue of {depth} entries"), command)?;
        self.objects.lock().completion_queue = Some(completion_queue);
        let command = Command::CreateQueuePair(CreateQueuePair {
            domain: devx.domain,
            log_blocks: log,
            uar_page,
            completion_queue: completion_number,
            ring: place(0),
            record: place(records),
        });
        let (queue_pair, number) = self.create_object(format!("creating a queue pair of {depth} requests"), command)?;
        self.objects.lock().queue_pair = Some(queue_pair);
        self.parts.numbered(number);
        Ok(())
    }

    /// Its register, of the best kind that there is.
    fn make_registers(&mut self) -> Result<u32, NicError> {
        let domain = &self.domain;
        let library = library(&domain.dv, &domain.device.name)?;
        let kinds = [dv::UAR_DEDICATED, dv::UAR_NOT_CACHED, dv::UAR_BLUE_FLAME];
        // SAFETY: the context is open.
        let mut made = kinds
            .iter()
            .map(|kind| unsafe { (library.alloc_uar)(domain.context(), *kind) });
        let made = made.find_map(NonNull::new).ok_or_else(|| {
            domain.failed(
                "allocating a page of doorbell registers",
                "mlx5dv_devx_alloc_uar",
                last_error(),
            )
        })?;
        self.objects.lock().registers = Some(made);
        // SAFETY: just made; the library does not change it.
        let page = unsafe { made.as_ref() };
        self.parts.register = page.reg_addr.expose_provenance() as u64;
        if let Some(found) = self.parts.odd_register() {
            let source = io::Error::other(found);
            return Err(domain.failed("using the doorbell register", "mlx5dv_devx_alloc_uar", source));
        }
        Ok(page.page_id)
    }

    /// Sets every completion to invalid and the records to 0. Nothing may be in flight.
    fn clear(&self, entries: u32) -> Result<(), NicError> {
        let memory = &devx_of(&self.domain)?.memory;
        let mut invalid = [0; CQE_BYTES];
        invalid[CQE_BYTES - 1] = CQE_INVALID;
        let records = [0; CQ_RECORD as usize + 8];
        // SAFETY: both lie within this queue pair's chunk, by `make`; it is in reset, or not made yet.
        let written = unsafe {
            memory
                .write_queues(self.parts.completion.address, &invalid.repeat(entries as usize))
                .and_then(|()| memory.write_queues(self.parts.record - 4, &records))
        };
        written.map_err(|error| {
            let source = io::Error::other(error);
            let name = &self.domain.device.name;
            failed_with(
                name,
                "clearing queues",
                "write",
                source,
                "the GPU that holds them may be lost",
            )
        })
    }

    fn create_object(&self, doing: String, command: Command) -> Result<(NonNull<dv::DevxObj>, u32), NicError> {
        let domain = &self.domain;
        let library = library(&domain.dv, &domain.device.name)?;
        let (input, mut out) = (command.encode(), vec![0u8; command.answer_bytes()]);
        // SAFETY: the context is open; both buffers are as long as is said.
        let made = unsafe {
            (library.obj_create)(
                domain.context(),
                input.as_ptr().cast(),
                input.len(),
                out.as_mut_ptr().cast(),
                out.len(),
            )
        };
        let answer = command.read_answer(&out);
        let made = NonNull::new(made).ok_or_else(|| {
            let call = "mlx5dv_devx_obj_create";
            domain.failed(with_answer(doing, &answer), call, last_error())
        })?;
        Ok((made, answer.value))
    }

    /// Sends a command about the queue pair.
    fn command(&self, command: Command) -> Result<Result<Answer, Refusal>, NicError> {
        let library = library(&self.domain.dv, &self.domain.device.name)?;
        let objects = self.objects.lock();
        let object = objects.queue_pair.ok_or(NicError::UnknownQueuePair {
            queue_pair: self.parts.number,
        })?;
        let (input, mut out) = (command.encode(), vec![0u8; command.answer_bytes()]);
        let (call, name) = match command {
            Command::QueryQueuePair { .. } => (library.obj_query, "mlx5dv_devx_obj_query"),
            _ => (library.obj_modify, "mlx5dv_devx_obj_modify"),
        };
        // SAFETY: the object lives: its lock is held. Both buffers are as long as is said.
        let status = unsafe {
            call(
                object.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                out.as_mut_ptr().cast(),
                out.len(),
            )
        };
        let answer = command.read_answer(&out);
        Ok(from_status(status).map(|()| answer).map_err(|source| Refusal {
            call: name,
            source,
            said: with_answer(String::new(), &answer),
        }))
    }

    /// How a peer is reached: resolved by the verbs library, as for datagrams.
    fn resolve(&self, to: &AddressAttributes) -> Result<dv::AddressVector, Refusal> {
        let refused = |call, source| Refusal {
            call,
            source,
            said: String::new(),
        };
        let mut wanted = to.to_verbs();
        // SAFETY: the domain lives; the attributes are a local.
        let made = unsafe { sys::ibv_create_ah(self.domain.protection(), &mut wanted) };
        let Some(address) = NonNull::new(made) else {
            return Err(refused("ibv_create_ah", last_error()));
        };
        // SAFETY: just made, and of mlx5 as the device.
        let found = unsafe { self.domain.dv.address_vector(address.as_ptr()) };
        // SAFETY: made above, and not used afterwards.
        let ended = unsafe { sys::ibv_destroy_ah(address.as_ptr()) };
        let found = found.map_err(|error| refused("mlx5dv_init_obj", error))?;
        from_status(ended).map_err(|error| refused("ibv_destroy_ah", error))?;
        Ok(found)
    }

    fn to_init(&self, wanted: &QueueAttributes) -> Command {
        let local = Local {
            port: wanted.port_num,
            pkey_index: wanted.pkey_index,
        };
        *self.local.lock() = local;
        let [write, read] = REMOTE.map(|bit| wanted.access_flags & bit != 0);
        Command::ToInit(ToInit {
            queue_pair: self.parts.number,
            port: local.port,
            pkey_index: local.pkey_index,
            access: RemoteAccess { read, write },
        })
    }

    fn to_ready_to_receive(&self, wanted: &QueueAttributes) -> Result<Command, Refusal> {
        let to = &wanted.address;
        let local = *self.local.lock();
        let global = GlobalHeader {
            gid: to.dgid,
            source_index: to.sgid_index,
            hop_limit: to.hop_limit,
            traffic_class: to.traffic_class,
            flow_label: to.flow_label & 0xf_ffff,
        };
        let ethernet = self.domain.ethernet;
        let link = if ethernet {
            let found = self.resolve(to)?;
            Link::Ethernet {
                mac: found.rmac,
                udp_source: u16::from_be_bytes(found.rlid),
                priority: to.sl & 7,
            }
        } else {
            Link::InfiniBand {
                lid: to.dlid,
                source_path_bits: to.src_path_bits & 0x7f,
                service_level: to.sl & 15,
            }
        };
        Ok(Command::ToReadyToReceive(ToReadyToReceive {
            queue_pair: self.parts.number,
            port: local.port,
            pkey_index: local.pkey_index,
            mtu: wanted.mtu as u8 & 7,
            remote: wanted.dest_qp_num & 0xff_ffff,
            receive_psn: wanted.rq_psn & 0xff_ffff,
            // Room for all that the peer may begin.
            log_reads_in: log_up(wanted.max_dest_rd_atomic),
            rnr_timer: wanted.min_rnr_timer & 31,
            link,
            global: (ethernet || to.is_global).then_some(global),
            rate: to.static_rate,
        }))
    }

    fn to_ready_to_send(&self, wanted: &QueueAttributes) -> Command {
        Command::ToReadyToSend(ToReadyToSend {
            queue_pair: self.parts.number,
            send_psn: wanted.sq_psn & 0xff_ffff,
            // No more than the peer has room for.
            log_reads_out: wanted.max_rd_atomic.checked_ilog2().unwrap_or(0).min(7) as u8,
            ack_timeout: wanted.timeout & 31,
            retries: wanted.retry_cnt & 7,
            rnr_retries: wanted.rnr_retry & 7,
        })
    }
}

fn log_up(count: u8) -> u8 {
    u32::from(count.max(1)).next_power_of_two().trailing_zeros().min(7) as u8
}

/// What was being done, with what the firmware said of it.
fn with_answer(doing: String, answer: &Answer) -> String {
    match answer.status {
        0 => doing,
        _ if doing.is_empty() => answer.to_string(),
        _ => format!("{doing} ({answer})"),
    }
}

impl Made for DevxPair {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn completion(&self) -> RingSpan {
        self.parts.completion
    }

    fn collapsed(&self) -> bool {
        true
    }

    /// Indexes begin at 0 again, and the NIC's count of completions is in no entry that is looked at.
    fn begin_anew(&self) -> Result<(), NicError> {
        self.clear(self.parts.completion.slots)?;
        self.parts.begin_anew();
        Ok(())
    }

    fn modify(&self, wanted: &QueueAttributes) -> Result<Result<(), Refusal>, NicError> {
        let queue_pair = self.parts.number;
        let command = match wanted.state {
            QueueAttributes::RESET => Command::ToReset { queue_pair },
            QueueAttributes::INIT => self.to_init(wanted),
            QueueAttributes::READY_TO_RECEIVE => match self.to_ready_to_receive(wanted) {
                Ok(command) => command,
                Err(refusal) => return Ok(Err(refusal)),
            },
            QueueAttributes::READY_TO_SEND => self.to_ready_to_send(wanted),
            QueueAttributes::ERROR => Command::ToError { queue_pair },
            other => {
                return Err(NicError::BadArgument {
                    what: "state of a queue pair",
                    value: other.into(),
                    expected: "0 (reset), 1 (init), 2 (ready to receive), 3 (ready to send) or 6 (error)",
                });
            }
        };
        Ok(self.command(command)?.map(|_| ()))
    }

    fn query(&self) -> Result<Result<u32, Refusal>, NicError> {
        let queue_pair = self.parts.number;
        let asked = self.command(Command::QueryQueuePair { queue_pair })?;
        Ok(asked.map(|answer| answer.value))
    }

    fn destroy(&self) -> Result<(), NicError> {
        // No doorbell call comes after the queue pair is destroyed.
        drop(self.parts.proxy.lock().take());
        let domain = &self.domain;
        let library = library(&domain.dv, &domain.device.name)?;
        let mut objects = self.objects.lock();
        let Objects {
            queue_pair,
            completion_queue,
            registers,
            chunk,
        } = &mut *objects;
        let number = self.parts.number;
        for (object, what) in [
            (queue_pair, "queue pair"),
            (completion_queue, "completion queue of queue pair"),
        ] {
            let Some(found) = *object else { continue };
            // SAFETY: made by `make`, the queue pair goes first, and each is taken out when it is destroyed.
            from_status(unsafe { (library.obj_destroy)(found.as_ptr()) }).map_err(|error| {
                domain.failed(
                    format!("destroying {what} {number:#x}"),
                    "mlx5dv_devx_obj_destroy",
                    error,
                )
            })?;
            *object = None;
        }
        if let Some(chunk) = chunk.take() {
            devx_of(&self.domain)?.free(&chunk);
        }
        if let Some(page) = registers.take() {
            // SAFETY: made by `make_registers`; its queues are gone, and it is taken out.
            unsafe { (library.free_uar)(page.as_ptr()) };
        }
        Ok(())
    }
}

impl Drop for DevxPair {
    fn drop(&mut self) {
        destroy_at_last(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_reads_are_rounded_to_what_both_sides_have_room_for() {
        assert_eq!([0, 1, 2, 3, 16, 17, 128, 255].map(log_up), [0, 0, 1, 2, 4, 5, 7, 7]);
    }
}
