//! The RDMA connection manager: identifiers, events, connections whose queue pairs others make.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use gpuvm_nic::QueueAttributes;
use gpuvm_nic::rdma_sys as sys;

use super::device::no_device;
use super::{check, need_libraries, set_nonblocking};
use crate::error::NodeError;

/// What calls work on before there is a connection.
const CONNECTION_MANAGER: &str = "/dev/infiniband/rdma_cm";

/// Where events arrive. Reading it does not block.
#[derive(Debug)]
pub struct Channel(NonNull<sys::rdma_event_channel>);

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// `enum rdma_cm_event_type`, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    AddressResolved,
    RouteResolved,
    ConnectRequest,
    ConnectResponse,
    Established,
    Rejected,
    Disconnected,
    /// The address or the route was not found, or the connection failed; the text says which.
    Failed(&'static str),
    DeviceRemoved,
    Other,
}

/// An event, copied: the connection manager's own is acknowledged already.
#[derive(Debug)]
pub struct Event {
    /// Of which identifier: [`Id::key`].
    pub id: usize,
    pub kind: EventKind,
    /// A negative errno, or the reason of a reject.
    pub status: i32,
    pub private_data: Vec<u8>,
    /// What the peer wants: READs in flight that it begins.
    pub responder_resources: u8,
    /// READs in flight that this side may begin.
    pub initiator_depth: u8,
    /// The peer's queue pair.
    pub queue: u32,
    /// The new identifier of a connection request.
    pub request: Option<Id>,
}

impl Channel {
    pub fn new() -> Result<Arc<Channel>, NodeError> {
        need_libraries()?;
        // SAFETY: the call takes nothing.
        let raw = NonNull::new(unsafe { sys::rdma_create_event_channel() });
        let raw = raw.ok_or_else(|| {
            let source = io::Error::last_os_error();
            match source.raw_os_error() {
                // No /dev/infiniband/rdma_cm, or not for this user.
                Some(libc::ENOENT | libc::ENODEV | libc::ENOSYS | libc::EACCES | libc::EPERM) => {
                    no_device(None, Vec::new())
                }
                _ => NodeError::Call {
                    call: "rdma_create_event_channel",
                    what: "opening the connection manager",
                    object: CONNECTION_MANAGER.to_owned(),
                    source,
                },
            }
        })?;
        let channel = Channel(raw);
        set_nonblocking(channel.fd()).map_err(|source| NodeError::Call {
            call: "fcntl",
            what: "opening the connection manager",
            object: CONNECTION_MANAGER.to_owned(),
            source,
        })?;
        Ok(Arc::new(channel))
    }

    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives; its descriptor does not change.
        unsafe { self.0.as_ref() }.fd
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// What the connection manager says.
    pub fn next(self: &Arc<Self>) -> Result<Option<Event>, NodeError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel lives, and the event is a local.
        if unsafe { sys::rdma_get_cm_event(self.0.as_ptr(), &mut raw) } != 0 {
            let source = io::Error::last_os_error();
            return match source.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(NodeError::Call {
                    call: "rdma_get_cm_event",
                    what: "reading an event",
                    object: CONNECTION_MANAGER.to_owned(),
                    source,
                }),
            };
        }
        // SAFETY: the call succeeded, so the event is valid until it is acknowledged below.
        let event = unsafe { &*raw };
        let kind = match event.event {
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
            sys::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::ConnectRequest,
            sys::RDMA_CM_EVENT_CONNECT_RESPONSE => EventKind::ConnectResponse,
            sys::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
            sys::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
            sys::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
            sys::RDMA_CM_EVENT_ADDR_ERROR => EventKind::Failed("its address was not resolved"),
            sys::RDMA_CM_EVENT_ROUTE_ERROR => EventKind::Failed("there is no route for RDMA"),
            sys::RDMA_CM_EVENT_CONNECT_ERROR => EventKind::Failed("the connection failed"),
            sys::RDMA_CM_EVENT_UNREACHABLE => EventKind::Failed("it does not answer"),
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoved,
            _ => EventKind::Other,
        };
        let mut copied = Event {
            id: event.id as usize,
            kind,
            status: event.status,
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
            queue: 0,
            request: None,
        };
        if matches!(
            kind,
            EventKind::ConnectRequest | EventKind::ConnectResponse | EventKind::Rejected
        ) {
            // SAFETY: these events carry the connection's parameters, since all identifiers are of the TCP port space.
            let parameters = unsafe { event.param.conn };
            if !parameters.private_data.is_null() {
                let length = usize::from(parameters.private_data_len);
                // SAFETY: the event holds that many bytes until it is acknowledged.
                copied.private_data =
                    unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), length) }.to_vec();
            }
            copied.responder_resources = parameters.responder_resources;
            copied.initiator_depth = parameters.initiator_depth;
            copied.queue = parameters.qp_num;
        }
        if kind == EventKind::ConnectRequest {
            copied.request = NonNull::new(event.id).map(|raw| Id {
                raw,
                channel: Arc::clone(self),
            });
        }
        // SAFETY: the event was read above and is acknowledged once.
        unsafe { sys::rdma_ack_cm_event(raw) };
        Ok(Some(copied))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; identifiers hold an `Arc` of this and are gone.
        unsafe { sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// What a connection is asked for with.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParameters<'a> {
    pub private_data: &'a [u8],
    /// READs in flight that the peer begins.
    pub responder_resources: u8,
    /// READs in flight that this side begins.
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// The own queue pair.
    pub queue: u32,
}

impl ConnectParameters<'_> {
    fn to_raw(self) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            // All private data is far below 256 bytes.
            private_data_len: self.private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: self.queue,
        }
    }
}

/// One end of a connection, or a listener. It never has a queue pair of librdmacm's: states are changed by
/// [`Id::attributes`].
#[derive(Debug)]
pub struct Id {
    raw: NonNull<sys::rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Id {}
// SAFETY: as above; the identifier's fields are changed by calls that the owner makes one after the other.
unsafe impl Sync for Id {}

impl Id {
    pub fn new(channel: &Arc<Channel>) -> Result<Id, NodeError> {
        let mut raw = std::ptr::null_mut();
        let space = sys::RDMA_PS_TCP;
        // SAFETY: the channel lives, and the identifier is a local.
        let result = unsafe { sys::rdma_create_id(channel.0.as_ptr(), &mut raw, std::ptr::null_mut(), space) };
        let object = || CONNECTION_MANAGER.to_owned();
        check("rdma_create_id", "beginning a connection", object, result)?;
        let raw = NonNull::new(raw).ok_or_else(|| NodeError::Call {
            call: "rdma_create_id",
            what: "beginning a connection",
            object: object(),
            source: io::ErrorKind::Other.into(),
        })?;
        Ok(Id {
            raw,
            channel: Arc::clone(channel),
        })
    }

    /// What events name it by, until it is dropped.
    pub fn key(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    fn get(&self) -> &sys::rdma_cm_id {
        // SAFETY: the identifier lives until `drop`. Its plain fields are written by the calls below only, which the
        // owner makes one after the other, and by event reading before the event is seen.
        unsafe { self.raw.as_ref() }
    }

    /// The device that the connection goes through, once an address was bound or resolved.
    pub fn device(&self) -> Option<String> {
        let context = self.get().verbs;
        if context.is_null() {
            return None;
        }
        // SAFETY: librdmacm keeps the context open as long as the identifier lives.
        Some(unsafe { sys::device_name((*context).device) })
    }

    /// The own address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let address = &self.get().route.addr.src_storage;
        // SAFETY: librdmacm fills it with an address of the family that it names, or zeroes.
        unsafe { socket_address((&raw const *address).cast()) }
    }

    /// The peer's address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        let address = &self.get().route.addr.dst_storage;
        // SAFETY: as above.
        unsafe { socket_address((&raw const *address).cast()) }
    }

    /// For messages: the peer, or the own address of a listener, and the device.
    fn name(&self) -> String {
        let address = self.peer_address().or(self.local_address());
        match (address, self.device()) {
            (Some(address), Some(device)) => format!("{address} over {device}"),
            (Some(address), None) => address.to_string(),
            (None, Some(device)) => device,
            (None, None) => CONNECTION_MANAGER.to_owned(),
        }
    }

    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut raw = RawAddress::new(address);
        // SAFETY: the identifier lives; the address is a local that is read during the call.
        match unsafe { sys::rdma_bind_addr(self.raw.as_ptr(), raw.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: the identifier lives.
        match unsafe { sys::rdma_listen(self.raw.as_ptr(), backlog) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn resolve_address(&self, peer: SocketAddr, limit: Duration) -> Result<(), NodeError> {
        let mut raw = RawAddress::new(peer);
        // SAFETY: the identifier lives; the address is a local that is read during the call.
        let result = unsafe {
            sys::rdma_resolve_addr(
                self.raw.as_ptr(),
                std::ptr::null_mut(),
                raw.as_mut_ptr(),
                milliseconds(limit),
            )
        };
        check(
            "rdma_resolve_addr",
            "finding the node's RDMA address",
            || peer.to_string(),
            result,
        )
    }

    pub fn resolve_route(&self, limit: Duration) -> Result<(), NodeError> {
        // SAFETY: the identifier lives.
        let result = unsafe { sys::rdma_resolve_route(self.raw.as_ptr(), milliseconds(limit)) };
        check(
            "rdma_resolve_route",
            "finding the way to the node",
            || self.name(),
            result,
        )
    }

    /// The time after which a packet is sent again, 4.096 us << `ack_timeout`, for both ends of the connection. To be set
    /// before the route is resolved. Kernels before 5.3 do not know it: their default holds then, and the log says so.
    pub fn set_ack_timeout(&self, ack_timeout: u8) {
        if let Err(error) = self.set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, ack_timeout) {
            let peer = self.name();
            tracing::warn!(%error, errno = error.raw_os_error(), peer, ack_timeout, "the acknowledgement timeout was not set");
        }
    }

    /// The traffic class of the connection's packets, from both ends. To be set before the route is resolved.
    pub fn set_traffic_class(&self, class: u8) -> Result<(), NodeError> {
        self.set_option(sys::RDMA_OPTION_ID_TOS, class)
            .map_err(|source| NodeError::Call {
                call: "rdma_set_option",
                what: "setting the traffic class",
                object: self.name(),
                source,
            })
    }

    fn set_option(&self, option: libc::c_int, mut value: u8) -> io::Result<()> {
        let value = (&raw mut value).cast();
        // SAFETY: the identifier lives; one byte is read from a local.
        match unsafe { sys::rdma_set_option(self.raw.as_ptr(), sys::RDMA_OPTION_ID, option, value, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn connect(&self, parameters: ConnectParameters<'_>) -> Result<(), NodeError> {
        let mut raw = parameters.to_raw();
        // SAFETY: the identifier lives; the parameters and their private data are read during the call.
        let result = unsafe { sys::rdma_connect(self.raw.as_ptr(), &mut raw) };
        check("rdma_connect", "asking for the connection", || self.name(), result)
    }

    pub fn accept(&self, parameters: ConnectParameters<'_>) -> Result<(), NodeError> {
        let mut raw = parameters.to_raw();
        // SAFETY: as above.
        let result = unsafe { sys::rdma_accept(self.raw.as_ptr(), &mut raw) };
        check("rdma_accept", "accepting the connection", || self.name(), result)
    }

    pub fn reject(&self, private_data: &[u8]) -> Result<(), NodeError> {
        let (data, bytes) = (private_data.as_ptr().cast(), private_data.len() as u8);
        // SAFETY: the identifier lives; the data is read during the call.
        let result = unsafe { sys::rdma_reject(self.raw.as_ptr(), data, bytes) };
        check("rdma_reject", "refusing the connection", || self.name(), result)
    }

    /// Says that the own queue pair is ready, after a connect response.
    pub fn establish(&self) -> Result<(), NodeError> {
        // SAFETY: the identifier lives.
        let result = unsafe { sys::rdma_establish(self.raw.as_ptr()) };
        check("rdma_establish", "establishing the connection", || self.name(), result)
    }

    /// Ends the connection, or answers its end. One that is over already is no error.
    pub fn disconnect(&self) {
        // SAFETY: the identifier lives.
        unsafe { sys::rdma_disconnect(self.raw.as_ptr()) };
    }

    /// What the own queue pair needs to change to a state.
    ///
    /// # Errors
    /// Where the connection is not that far, or over.
    pub fn attributes(&self, state: u32) -> Result<QueueAttributes, NodeError> {
        // SAFETY: all zero bytes are a valid ibv_qp_attr, which holds integers only.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier lives; attributes and mask are locals.
        let result = unsafe { sys::rdma_init_qp_attr(self.raw.as_ptr(), &mut attr, &mut mask) };
        check(
            "rdma_init_qp_attr",
            "asking for a queue pair's attributes",
            || self.name(),
            result,
        )?;
        Ok(QueueAttributes::from_verbs(&attr, mask as u32))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made by `new` or a connection request. It waits for events of this identifier that were read and not
        // acknowledged; `Channel::next` acknowledges each before it returns.
        unsafe { sys::rdma_destroy_id(self.raw.as_ptr()) };
        // The channel is released after its identifier.
        let _ = &self.channel;
    }
}

fn milliseconds(limit: Duration) -> libc::c_int {
    limit.as_millis().clamp(1, 600_000) as libc::c_int
}

/// A socket address in the form of C.
union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    fn new(address: SocketAddr) -> RawAddress {
        match address {
            SocketAddr::V4(address) => RawAddress {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*address.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(address) => RawAddress {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                },
            },
        }
    }

    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

/// The address in a `sockaddr`, where its family is IPv4 or IPv6.
///
/// # Safety
/// `raw` points to a `sockaddr_storage`, or to what fits the family in it.
unsafe fn socket_address(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: every socket address begins with its family.
    match i32::from(unsafe { (*raw).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is one; it may not be aligned for it.
            let address = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(address.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(address.sin6_port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_form_of_c() {
        for text in ["10.9.0.2:7471", "0.0.0.0:0", "[fd00::1]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddress::new(address);
            // SAFETY: the address is a local of the family that it names.
            assert_eq!(unsafe { socket_address(raw.as_mut_ptr()) }, Some(address));
        }
    }
}
