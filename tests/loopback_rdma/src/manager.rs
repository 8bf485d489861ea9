//! The functions of librdmacm.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::OnceLock;

use gpuvm_nic::rdma_sys as sys;

use crate::world::{Bell, EventChannel, Identifier, Parameters, Pending, Stage, World, world};
use crate::{Outcome, pointer, set_errno, success, verbs};

/// Bytes of private data of a request and of an answer, to which InfiniBand's messages are filled up.
const ROOM: [usize; 3] = [56, 196, 148];
/// A reject of the consumer's own.
const CONSUMER: c_int = 28;
/// Where nothing listens.
const NOBODY: c_int = 8;
/// First port that is given to who does not say one.
const PORT_FIRST: u16 = 20_000;

/// The connection manager's own context.
fn context() -> *mut sys::ibv_context {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    let made = CONTEXT.get_or_init(|| verbs::new_context().expose_provenance());
    std::ptr::with_exposed_provenance_mut(*made)
}

fn event(id: usize, kind: u32) -> Pending {
    Pending {
        id,
        listener: 0,
        kind,
        status: 0,
        private_data: Vec::new(),
        parameters: Parameters::default(),
    }
}

/// Private data, filled up with zeroes.
///
/// # Safety
/// `data` is null or has `bytes` bytes.
unsafe fn filled(data: *const c_void, bytes: u8, room: usize) -> Vec<u8> {
    let mut private = match data.is_null() {
        true => Vec::new(),
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes.into()) }.to_vec(),
    };
    private.resize(room, 0);
    private
}

/// An IPv4 address.
///
/// # Safety
/// `address` may be read as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Outcome<SocketAddrV4> {
    // SAFETY: the caller's promise.
    if i32::from(unsafe { (*address).sa_family }) != libc::AF_INET {
        return Err(libc::EAFNOSUPPORT);
    }
    // SAFETY: the family says that it is one.
    let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
    Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)))
}

/// # Safety
/// `place` may be written.
unsafe fn store_address(place: *mut libc::sockaddr_storage, address: SocketAddrV4) {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: the caller's promise; there is room for an address of any family.
    unsafe { place.cast::<libc::sockaddr_in>().write(address) };
}

/// `rdma_create_event_channel`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut sys::rdma_event_channel {
    pointer(Bell::new().map(|bell| {
        let made = Box::into_raw(Box::new(sys::rdma_event_channel { fd: bell.0 }));
        let channel = EventChannel {
            bell,
            events: VecDeque::new(),
        };
        world().event_channels.insert(made.addr(), channel);
        made
    }))
}

/// `rdma_destroy_event_channel`.
///
/// # Safety
/// `channel` is from [`rdma_create_event_channel`], and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut sys::rdma_event_channel) {
    world().event_channels.remove(&channel.addr());
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(channel) });
}

/// An identifier, known to the world.
fn new_identifier(world: &mut World, channel: usize) -> *mut sys::rdma_cm_id {
    // SAFETY: all zero bytes are a valid rdma_cm_id: null pointers and numbers.
    let mut made: Box<sys::rdma_cm_id> = Box::new(unsafe { zeroed() });
    made.channel = std::ptr::with_exposed_provenance_mut(channel);
    made.port_num = 1;
    let made = Box::into_raw(made);
    let identifier = Identifier {
        channel,
        stage: Stage::Idle,
        peer: None,
        remote_queue: 0,
        address: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
    };
    world.identifiers.insert(made.expose_provenance(), identifier);
    made
}

/// `rdma_create_id`.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut sys::rdma_event_channel,
    out: *mut *mut sys::rdma_cm_id,
    _: *mut c_void,
    _: u32,
) -> c_int {
    let made = new_identifier(&mut world(), channel.expose_provenance());
    // SAFETY: the caller's promise.
    unsafe { *out = made };
    0
}

/// `rdma_destroy_id`: its peer sees the connection's end, or a reject.
///
/// # Safety
/// `id` was made by this library, and is not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut sys::rdma_cm_id) -> c_int {
    let mut world = world();
    let gone = world.identifiers.remove(&id.addr());
    world.listeners.retain(|_, listener| *listener != id.addr());
    let mut orphans = Vec::new();
    for channel in world.event_channels.values_mut() {
        channel.events.retain(|event| {
            let stays = event.id != id.addr() && event.listener != id.addr();
            if event.listener == id.addr() {
                orphans.push(event.id);
            }
            stays
        });
    }
    if let Some(gone) = gone
        && let Some(peer) = gone.peer
    {
        world.leave(peer);
    }
    for orphan in orphans {
        let peer = world.identifiers.remove(&orphan).and_then(|child| child.peer);
        peer.into_iter().for_each(|peer| world.leave(peer));
        let orphan = std::ptr::with_exposed_provenance_mut::<sys::rdma_cm_id>(orphan);
        // SAFETY: nothing was told of it.
        drop(unsafe { Box::from_raw(orphan) });
    }
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(id) });
    0
}

impl World {
    /// The other end of `id` is gone.
    fn leave(&mut self, id: usize) {
        let Some(identifier) = self.identifiers.get_mut(&id) else {
            return;
        };
        identifier.peer = None;
        let told = match identifier.stage {
            Stage::Asked => Pending {
                status: CONSUMER,
                ..event(id, sys::RDMA_CM_EVENT_REJECTED)
            },
            Stage::Joined => event(id, sys::RDMA_CM_EVENT_DISCONNECTED),
            _ => return,
        };
        identifier.stage = Stage::Over;
        self.tell(told);
    }

    fn of(&mut self, id: *mut sys::rdma_cm_id) -> Outcome<&mut Identifier> {
        self.identifiers.get_mut(&id.addr()).ok_or(libc::EINVAL)
    }

    fn connect(&mut self, id: *mut sys::rdma_cm_id, private_data: Vec<u8>, parameters: Parameters) -> Outcome<()> {
        let to = self.of(id)?.address;
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, to.port());
        let listener = self.listeners.get(&to).or_else(|| self.listeners.get(&any)).copied();
        let Some(listener) = listener else {
            self.tell(Pending {
                status: NOBODY,
                ..event(id.addr(), sys::RDMA_CM_EVENT_REJECTED)
            });
            return Ok(());
        };
        let channel = self.identifiers.get(&listener).ok_or(libc::EINVAL)?.channel;
        let child = new_identifier(self, channel);
        // SAFETY: the child is just made, and the asking identifier its owner's.
        unsafe {
            (*child).verbs = context();
            store_address(&raw mut (*child).route.addr.src_storage, to);
            (*child).route.addr.dst_storage = (*id).route.addr.src_storage;
        }
        let asked = self.of(child)?;
        (asked.stage, asked.peer, asked.remote_queue) = (Stage::Asked, Some(id.addr()), parameters.queue);
        let asking = self.of(id)?;
        (asking.stage, asking.peer) = (Stage::Asked, Some(child.addr()));
        self.tell(Pending {
            listener,
            private_data,
            parameters,
            ..event(child.addr(), sys::RDMA_CM_EVENT_CONNECT_REQUEST)
        });
        Ok(())
    }

    fn accept(&mut self, id: *mut sys::rdma_cm_id, private_data: Vec<u8>, parameters: Parameters) -> Outcome<()> {
        let child = self.of(id)?;
        let peer = child.peer.filter(|_| child.stage == Stage::Asked).ok_or(libc::EINVAL)?;
        child.stage = Stage::Joined;
        let asking = self.identifiers.get_mut(&peer).ok_or(libc::EINVAL)?;
        (asking.stage, asking.remote_queue) = (Stage::Joined, parameters.queue);
        self.tell(Pending {
            private_data,
            parameters,
            ..event(peer, sys::RDMA_CM_EVENT_CONNECT_RESPONSE)
        });
        Ok(())
    }
}

/// `rdma_bind_addr`.
///
/// # Safety
/// `id` lives, and `address` may be read as its family says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut sys::rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller's promise.
    let address = unsafe { address_of(address) };
    success(address.and_then(|mut address| {
        let mut world = world();
        if address.port() == 0 {
            address.set_port(PORT_FIRST + (world.number() % 40_000) as u16);
        }
        if world.listeners.contains_key(&address) {
            return Err(libc::EADDRINUSE);
        }
        world.of(id)?.address = address;
        // SAFETY: the caller's promise.
        unsafe {
            store_address(&raw mut (*id).route.addr.src_storage, address);
            if !address.ip().is_unspecified() {
                (*id).verbs = context();
            }
        }
        Ok(())
    }))
}

/// `rdma_listen`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_listen(id: *mut sys::rdma_cm_id, _: c_int) -> c_int {
    let mut world = world();
    success(world.of(id).map(|listener| listener.address).map(|address| {
        world.listeners.insert(address, id.expose_provenance());
    }))
}

/// `rdma_resolve_addr`.
///
/// # Safety
/// `id` lives, and `to` may be read as its family says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut sys::rdma_cm_id,
    _: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let to = unsafe { address_of(to) };
    success(to.and_then(|to| {
        let mut world = world();
        world.of(id)?.address = to;
        let port = PORT_FIRST + (world.number() % 40_000) as u16;
        // SAFETY: the caller's promise.
        unsafe {
            (*id).verbs = context();
            store_address(&raw mut (*id).route.addr.src_storage, SocketAddrV4::new(*to.ip(), port));
            store_address(&raw mut (*id).route.addr.dst_storage, to);
        }
        world.tell(event(id.addr(), sys::RDMA_CM_EVENT_ADDR_RESOLVED));
        Ok(())
    }))
}

/// `rdma_resolve_route`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_resolve_route(id: *mut sys::rdma_cm_id, _: c_int) -> c_int {
    world().tell(event(id.addr(), sys::RDMA_CM_EVENT_ROUTE_RESOLVED));
    0
}

/// `rdma_set_option`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_set_option(_: *mut sys::rdma_cm_id, _: c_int, _: c_int, _: *mut c_void, _: usize) -> c_int {
    0
}

fn parameters_of(from: &sys::rdma_conn_param) -> Parameters {
    Parameters {
        responder_resources: from.responder_resources,
        initiator_depth: from.initiator_depth,
        queue: from.qp_num,
    }
}

/// `rdma_connect`.
///
/// # Safety
/// `id` lives, and what is asked for may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut sys::rdma_cm_id, wanted: *mut sys::rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let (wanted, data) = unsafe {
        (
            &*wanted,
            filled((*wanted).private_data, (*wanted).private_data_len, ROOM[0]),
        )
    };
    success(world().connect(id, data, parameters_of(wanted)))
}

/// `rdma_accept`.
///
/// # Safety
/// As [`rdma_connect`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut sys::rdma_cm_id, given: *mut sys::rdma_conn_param) -> c_int {
    // SAFETY: the caller's promise.
    let (given, data) = unsafe {
        (
            &*given,
            filled((*given).private_data, (*given).private_data_len, ROOM[1]),
        )
    };
    success(world().accept(id, data, parameters_of(given)))
}

/// `rdma_establish`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_establish(id: *mut sys::rdma_cm_id) -> c_int {
    let mut world = world();
    let peer = world.of(id).map(|own| own.peer);
    success(peer.map(|peer| {
        let told = peer.map(|peer| event(peer, sys::RDMA_CM_EVENT_ESTABLISHED));
        told.into_iter().for_each(|told| world.tell(told));
    }))
}

/// `rdma_reject`.
///
/// # Safety
/// `id` lives, and `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut sys::rdma_cm_id, data: *const c_void, bytes: u8) -> c_int {
    // SAFETY: the caller's promise.
    let private_data = unsafe { filled(data, bytes, ROOM[2]) };
    let mut world = world();
    let peer = world.of(id).map(|own| {
        own.stage = Stage::Over;
        own.peer.take()
    });
    success(peer.map(|peer| {
        let Some(peer) = peer else { return };
        if let Some(asking) = world.identifiers.get_mut(&peer) {
            (asking.stage, asking.peer) = (Stage::Over, None);
        }
        world.tell(Pending {
            status: CONSUMER,
            private_data,
            ..event(peer, sys::RDMA_CM_EVENT_REJECTED)
        });
    }))
}

/// `rdma_disconnect`: both ends are told.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_disconnect(id: *mut sys::rdma_cm_id) -> c_int {
    let mut world = world();
    let peer = world.of(id).map(|own| own.peer.filter(|_| own.stage == Stage::Joined));
    success(peer.and_then(|peer| {
        let peer = peer.ok_or(libc::EINVAL)?;
        world.leave(id.addr());
        world.leave(peer);
        Ok(())
    }))
}

/// `rdma_init_qp_attr`.
///
/// # Safety
/// `id` lives; attributes and mask may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut sys::rdma_cm_id,
    attributes: *mut sys::ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let (attributes, mask) = unsafe { (&mut *attributes, &mut *mask) };
    let mut world = world();
    success(world.of(id).and_then(|own| {
        let state = sys::IBV_QP_STATE;
        *mask = match attributes.qp_state {
            sys::IBV_QPS_INIT => state | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS,
            sys::IBV_QPS_RTR if own.peer.is_none() => return Err(libc::EINVAL),
            sys::IBV_QPS_RTR => state | sys::IBV_QP_DEST_QPN | sys::IBV_QP_MAX_DEST_RD_ATOMIC,
            sys::IBV_QPS_RTS => state | sys::IBV_QP_MAX_QP_RD_ATOMIC,
            _ => return Err(libc::EINVAL),
        };
        attributes.dest_qp_num = own.remote_queue;
        attributes.port_num = 1;
        attributes.max_rd_atomic = 16;
        attributes.max_dest_rd_atomic = 16;
        Ok(())
    }))
}

/// An event that was read, with the private data that it points to.
struct Told {
    event: sys::rdma_cm_event,
    _private_data: Vec<u8>,
}

/// `rdma_get_cm_event`, which never waits here.
///
/// # Safety
/// `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut sys::rdma_event_channel,
    out: *mut *mut sys::rdma_cm_event,
) -> c_int {
    let mut world = world();
    let Some(found) = world.event_channels.get_mut(&channel.addr()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let Some(pending) = found.events.pop_front() else {
        found.bell.clear();
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: all zero bytes are a valid rdma_cm_event: null pointers and numbers.
    let mut event: sys::rdma_cm_event = unsafe { zeroed() };
    event.id = std::ptr::with_exposed_provenance_mut(pending.id);
    event.listen_id = std::ptr::with_exposed_provenance_mut(pending.listener);
    event.event = pending.kind;
    event.status = pending.status;
    // SAFETY: all zero bytes are valid parameters, too.
    let mut parameters: sys::rdma_conn_param = unsafe { zeroed() };
    parameters.private_data = match pending.private_data.is_empty() {
        true => std::ptr::null(),
        false => pending.private_data.as_ptr().cast(),
    };
    parameters.private_data_len = pending.private_data.len() as u8;
    parameters.responder_resources = pending.parameters.responder_resources;
    parameters.initiator_depth = pending.parameters.initiator_depth;
    parameters.qp_num = pending.parameters.queue;
    event.param.conn = parameters;
    let told = Box::new(Told {
        event,
        _private_data: pending.private_data,
    });
    // SAFETY: the caller's promise; the event is at the beginning of no fixed place, so its own address is given.
    unsafe { *out = &raw mut (*Box::into_raw(told)).event };
    0
}

/// `rdma_ack_cm_event`.
///
/// # Safety
/// `event` is from [`rdma_get_cm_event`], and not acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut sys::rdma_cm_event) -> c_int {
    let told = event.wrapping_byte_sub(std::mem::offset_of!(Told, event));
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(told.cast::<Told>()) });
    0
}
