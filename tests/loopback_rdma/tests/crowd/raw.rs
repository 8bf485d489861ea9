//! A client by hand, which does what no `NodeClient` would.

use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use gpuvm_memory_node::{CompletionStatus, HostQueue, Request};
use gpuvm_nic::rdma_sys as sys;

/// How long an answer of the fake may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The status of one request over the beginning of the queue's buffer.
pub fn status(queue: &HostQueue, request: Request, bytes: u32) -> CompletionStatus {
    queue.post(7, request, 0, bytes).unwrap();
    let completions = queue.poll();
    completions.first().expect("the fake does requests at once").status
}

/// What a node says to a request to join.
#[derive(Debug)]
pub enum Answer {
    /// With what was said.
    Accepted(#[allow(dead_code, reason = "for messages")] Vec<u8>),
    Rejected,
    Nothing,
}

/// An identifier with a queue pair that takes no messages.
pub struct Raw {
    channel: *mut sys::rdma_event_channel,
    id: *mut sys::rdma_cm_id,
    context: *mut sys::ibv_context,
    completions: (*mut sys::ibv_comp_channel, *mut sys::ibv_cq),
    domain: *mut sys::ibv_pd,
    queue: std::cell::Cell<*mut sys::ibv_qp>,
}

impl Raw {
    /// One that knows the way to the node.
    pub fn new(address: &str) -> Self {
        let to: SocketAddr = address.parse().unwrap();
        let IpAddr::V4(ip) = to.ip() else {
            panic!("the fake has IPv4 alone")
        };
        let mut to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: to.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from(ip).to_be(),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: each call gets what the one before it made, and locals.
        unsafe {
            let channel = sys::rdma_create_event_channel();
            let fd = (*channel).fd;
            libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
            let mut id = null_mut();
            let space = sys::RDMA_PS_TCP;
            assert_eq!(sys::rdma_create_id(channel, &mut id, null_mut(), space), 0);
            assert_eq!(sys::rdma_resolve_addr(id, null_mut(), (&raw mut to).cast(), 1000), 0);
            let list = sys::ibv_get_device_list(null_mut());
            let context = sys::ibv_open_device(*list);
            sys::ibv_free_device_list(list);
            let domain = sys::ibv_alloc_pd(context);
            let notices = sys::ibv_create_comp_channel(context);
            let completions = sys::ibv_create_cq(context, 256, null_mut(), notices, 0);
            let mut wanted: sys::ibv_qp_init_attr = zeroed();
            (wanted.send_cq, wanted.recv_cq) = (completions, completions);
            wanted.qp_type = sys::IBV_QPT_RC;
            let queue = sys::ibv_create_qp(domain, &mut wanted);
            Self {
                channel,
                id,
                context,
                completions: (notices, completions),
                domain,
                queue: queue.into(),
            }
        }
    }

    /// The next event that is one of `kinds`, and its private data.
    fn wait(&self, wanted: &[u32], limit: Duration) -> Option<(u32, Vec<u8>)> {
        let end = Instant::now() + limit;
        loop {
            let mut event = null_mut();
            // SAFETY: the channel lives; the event is read before it is acknowledged.
            unsafe {
                if sys::rdma_get_cm_event(self.channel, &mut event) == 0 {
                    let kind = (*event).event;
                    let said = (*event).param.conn;
                    let data = match said.private_data.is_null() {
                        true => Vec::new(),
                        false => {
                            std::slice::from_raw_parts(said.private_data.cast::<u8>(), said.private_data_len.into())
                                .to_vec()
                        }
                    };
                    sys::rdma_ack_cm_event(event);
                    if wanted.contains(&kind) {
                        return Some((kind, data));
                    }
                    continue;
                }
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks to join with that private data.
    pub fn ask(&mut self, private_data: &[u8]) -> Answer {
        // SAFETY: all zero bytes are valid parameters; identifier and queue pair live, and the data is read during the call.
        unsafe {
            let mut wanted: sys::rdma_conn_param = zeroed();
            wanted.private_data = private_data.as_ptr().cast();
            wanted.private_data_len = private_data.len() as u8;
            wanted.qp_num = (*self.queue.get()).qp_num;
            assert_eq!(sys::rdma_connect(self.id, &mut wanted), 0);
        }
        let answers = [sys::RDMA_CM_EVENT_CONNECT_RESPONSE, sys::RDMA_CM_EVENT_REJECTED];
        match self.wait(&answers, LIMIT) {
            Some((sys::RDMA_CM_EVENT_CONNECT_RESPONSE, data)) => Answer::Accepted(data),
            Some(_) => Answer::Rejected,
            None => Answer::Nothing,
        }
    }

    /// Takes the queue pair to ready. False where the node has ended the connection.
    pub fn join(&self) -> bool {
        let states = [sys::IBV_QPS_INIT, sys::IBV_QPS_RTR, sys::IBV_QPS_RTS];
        let joined = states.into_iter().all(|state| {
            // SAFETY: all zero bytes are valid attributes; identifier and queue pair live.
            unsafe {
                let mut attributes: sys::ibv_qp_attr = zeroed();
                attributes.qp_state = state;
                let mut mask = 0;
                sys::rdma_init_qp_attr(self.id, &mut attributes, &mut mask) == 0
                    && sys::ibv_modify_qp(self.queue.get(), &mut attributes, mask) == 0
            }
        });
        // SAFETY: the identifier lives.
        joined && unsafe { sys::rdma_establish(self.id) } == 0
    }

    /// Sends bytes, whether or not the node is there.
    pub fn send(&self, bytes: &[u8]) {
        let mut place = sys::ibv_sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        };
        // SAFETY: all zero bytes are a valid request; the queue pair lives, and the bytes are read during the call.
        unsafe {
            let mut request: sys::ibv_send_wr = zeroed();
            (request.sg_list, request.num_sge) = (&mut place, 1);
            request.opcode = sys::IBV_WR_SEND;
            request.send_flags = sys::IBV_SEND_INLINE;
            sys::ibv_post_send(self.queue.get(), &mut request, &mut null_mut());
        }
    }

    /// Waits until the node has ended the connection.
    pub fn wait_for_end(&self, limit: Duration) {
        let end = self.wait(&[sys::RDMA_CM_EVENT_DISCONNECTED], limit);
        assert!(end.is_some(), "the node keeps a client that breaks rules");
    }

    /// The queue pair goes, and nothing is said.
    pub fn vanish(self) {
        self.destroy_queue();
        // The node finds out by its own probe; the identifier would tell it.
        self.wait_for_end(LIMIT);
    }

    fn destroy_queue(&self) {
        let queue = self.queue.replace(null_mut());
        if !queue.is_null() {
            // SAFETY: made by `new`, and taken out, so that this happens once.
            unsafe { sys::ibv_destroy_qp(queue) };
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.destroy_queue();
        // SAFETY: all were made by `new`, and go in the order that libibverbs asks for.
        unsafe {
            sys::rdma_destroy_id(self.id);
            sys::rdma_destroy_event_channel(self.channel);
            sys::ibv_destroy_cq(self.completions.1);
            sys::ibv_destroy_comp_channel(self.completions.0);
            sys::ibv_dealloc_pd(self.domain);
            sys::ibv_close_device(self.context);
        }
    }
}
