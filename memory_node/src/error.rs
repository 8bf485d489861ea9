//! What can go wrong between a client, a node and their devices.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::Reason;

/// What a node or its client could not do.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An RDMA library is not installed.
    #[error(
        "{library} cannot be loaded; install it (Debian, Ubuntu: apt-get install librdmacm1 ibverbs-providers; \
         Fedora: dnf install librdmacm libibverbs)"
    )]
    LibraryMissing {
        /// The library's file name.
        library: &'static str,
    },
    /// There is no such RDMA device, or none at all.
    #[error(
        "there is no RDMA device{}; {}",
        .wanted.as_ref().map(|name| format!(" {name}")).unwrap_or_default(), known_devices(.known, .closed)
    )]
    NoDevice {
        /// The device asked for, where one was.
        wanted: Option<String>,
        /// The devices there are.
        known: Vec<String>,
        /// Devices of the kernel that this program cannot use.
        closed: Vec<String>,
    },
    /// A device has no address to bind to.
    #[error("the RDMA device {device} has no IP address; give its network interface one, with the interface up")]
    NoDeviceAddress {
        /// The device.
        device: String,
    },
    /// An address is not on the device that was asked for.
    #[error("the address {address} belongs to the RDMA device {found}, not to {device}")]
    OtherDevice {
        /// The address.
        address: String,
        /// The device it belongs to.
        found: String,
        /// The device asked for.
        device: String,
    },
    /// A host name or address that means nothing.
    #[error("cannot find the address of '{address}'; write HOST:PORT, for example 10.9.0.2:7471")]
    Address {
        /// As given.
        address: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// The node cannot listen at an address.
    #[error("cannot listen at {address}{}", listen_hint(.source))]
    Listen {
        /// The address.
        address: String,
        /// What the connection manager says.
        source: io::Error,
    },
    /// An option that cannot be.
    #[error("{option}: {why}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The node's memory could not be allocated.
    #[error("cannot get {bytes} bytes of {what}; {hint}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What kind of memory.
        what: &'static str,
        /// What to do.
        hint: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file that should hold the node's memory cannot be used.
    #[error("cannot use {} as memory: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What failed.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// Memory could not be registered with the device.
    #[error("cannot register {bytes} bytes with the RDMA device {device}{}", register_hint(.source, *.locked_max))]
    Register {
        /// Bytes of the memory region.
        bytes: u64,
        /// The device.
        device: String,
        /// RLIMIT_MEMLOCK in bytes, where there is one.
        locked_max: Option<u64>,
        /// What the device says.
        source: io::Error,
    },
    /// This process may not lock as much memory as it should serve.
    #[error(
        "this process may lock {locked_max} bytes of memory only, and serving {bytes} bytes needs {needed}; raise \
         RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, memlock in \
         /etc/security/limits.conf) or serve less"
    )]
    LockedMemory {
        /// Bytes to serve.
        bytes: u64,
        /// Bytes to lock for that.
        needed: u64,
        /// RLIMIT_MEMLOCK.
        locked_max: u64,
    },
    /// A call of libibverbs or librdmacm failed.
    #[error("{call} on {object} failed ({what}){}", call_hint(call, .source))]
    Call {
        /// The function.
        call: &'static str,
        /// For what it was called.
        what: &'static str,
        /// The device, or the connection with its addresses.
        object: String,
        /// Its errno.
        source: io::Error,
    },
    /// A queue pair did not take a state.
    #[error("queue pair {number} did not change to {state}")]
    QueueState {
        /// The queue pair's number.
        number: u32,
        /// The state.
        state: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The node cannot be reached.
    #[error("the memory node {address} cannot be reached: {why}")]
    Unreachable {
        /// The node.
        address: String,
        /// What is known.
        why: String,
    },
    /// The node refused the connection.
    #[error("the memory node {address} refused: {refusal}")]
    Refused {
        /// The node.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// The node did not prove that it knows the secret.
    #[error("the memory node {address} does not know the secret: start it with the same one, or join it without any")]
    NodeNotProved {
        /// The node.
        address: String,
    },
    /// The node did not grant memory.
    #[error("the memory node {address} does not grant {bytes} bytes: {refusal}")]
    NotGranted {
        /// The node.
        address: String,
        /// Bytes asked for.
        bytes: u64,
        /// Why.
        refusal: Refusal,
    },
    /// The node refused something about a grant.
    #[error("the memory node {address} refused to {what}: {refusal}")]
    GrantRefused {
        /// The node.
        address: String,
        /// What was asked.
        what: &'static str,
        /// Why.
        refusal: Refusal,
    },
    /// A step took longer than it may.
    #[error("{what} took longer than {waited:?}")]
    Timeout {
        /// The step.
        what: String,
        /// The bound.
        waited: Duration,
    },
    /// A copy is not inside its grant.
    #[error("{bytes} bytes at offset {offset} are not inside the grant of {granted} bytes")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes of the copy.
        bytes: u64,
        /// Bytes of the grant.
        granted: u64,
    },
    /// A write to a grant that was sealed.
    #[error("the grant is sealed: it can be read only")]
    Sealed,
    /// A copy failed.
    #[error("a copy of {bytes} bytes at offset {offset} of a grant at the memory node {address} failed: {status}")]
    Copy {
        /// The node.
        address: String,
        /// First byte in the grant.
        offset: u64,
        /// Bytes of the request.
        bytes: u64,
        /// The completion's status.
        status: String,
    },
    /// Who waited for a session does not want it any more.
    #[error("joining the memory node {address} was cancelled")]
    Cancelled {
        /// The node.
        address: String,
    },
    /// The session is over.
    #[error("the session with the memory node {address} is over: {why}")]
    Dead {
        /// The node.
        address: String,
        /// Why.
        why: String,
    },
    /// Something of the operating system failed.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
}

/// Why a node refused a connection or a grant: what it said, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// A number that belongs to it.
    pub detail: u64,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.detail;
        match self.reason {
            Reason::SecretNeeded => write!(out, "it asks for a secret, and none was given"),
            Reason::WrongSecret => write!(out, "the secret is wrong"),
            Reason::NotAllowed => write!(out, "this machine's address is not on its allow-list"),
            Reason::ClientsMax => write!(out, "it is full: it has its maximum of {detail} clients"),
            Reason::WrongVersion => write!(
                out,
                "it speaks version {detail} of the protocol, this program version {}",
                crate::protocol::VERSION
            ),
            Reason::UnknownSession => write!(out, "it does not know the session; it may have been started anew"),
            Reason::QueuesMax => write!(out, "a client may have {detail} queue pairs there, and all are in use"),
            Reason::Malformed => write!(out, "it could not read the request"),
            Reason::Stopping => write!(out, "it is stopping"),
            Reason::OutOfResources => write!(
                out,
                "it cannot set the connection up: {}",
                io::Error::from_raw_os_error(detail as i32)
            ),
            Reason::ClientCapacity => write!(out, "{detail} bytes are left of this client's capacity"),
            Reason::PoolFull => write!(out, "its longest free piece of memory has {detail} bytes"),
            Reason::GrantsMax => write!(out, "a client may have {detail} grants there, and all are in use"),
            Reason::EmptyGrant => write!(out, "a grant must be at least one byte"),
            Reason::NoSuchGrant => write!(out, "it has no such grant of this client"),
            Reason::NotReadOnly => write!(out, "the grant was not asked for as read-only, or it is sealed"),
            Reason::NotSealed => write!(out, "only a read-only grant that was sealed can be shared"),
            Reason::NotShared => write!(
                out,
                "nothing is shared by this key there, or its owner has disconnected: share it again"
            ),
            Reason::MemoryLocked => write!(
                out,
                "it may lock {detail} bytes of memory only; raise its RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=)"
            ),
            Reason::RegisterFailed => write!(
                out,
                "its device did not register the memory: {}",
                io::Error::from_raw_os_error(detail as i32)
            ),
            Reason::Unknown(code) => write!(out, "reason {code}, which this program does not know ({detail})"),
        }
    }
}

fn known_devices(known: &[String], closed: &[String]) -> String {
    match (known, closed) {
        ([], []) => {
            "this machine has none. A software device is made by: modprobe rdma_rxe; rdma link add rxe0 type rxe \
                     netdev NETWORK_INTERFACE"
                .to_owned()
        }
        ([], closed) => format!(
            "the kernel has {}, but this program cannot use it: it must be allowed to read and write /dev/infiniband/* \
             (modules ib_uverbs and rdma_ucm), and the device's provider must be installed (package ibverbs-providers)",
            closed.join(", ")
        ),
        (known, _) => format!("this machine has {}", known.join(", ")),
    }
}

fn listen_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EADDRINUSE) => ": another program listens at that port; choose another or end it",
        Some(libc::EADDRNOTAVAIL | libc::ENODEV) => ": no RDMA device of this machine has that address",
        _ => "",
    }
}

/// What usually makes a call fail in this way; empty if that is not known.
fn call_hint(call: &str, source: &io::Error) -> &'static str {
    let Some(errno) = source.raw_os_error() else { return "" };
    match (call, errno) {
        ("rdma_resolve_addr" | "rdma_resolve_route", libc::ENODEV | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            ": no way leads there from an RDMA device; `ping` it from the device's network interface (`rdma link` names it)"
        }
        ("rdma_connect" | "rdma_accept" | "rdma_establish" | "rdma_init_qp_attr", libc::EINVAL | libc::ENOTCONN) => {
            ": the connection is over or not that far, or its GID or MTU does not fit the port (`ibv_devinfo -v`)"
        }
        ("rdma_set_option", libc::EINVAL | libc::ENOSYS) => ": the kernel does not know this option",
        ("ibv_create_qp" | "ibv_create_cq", libc::EINVAL) => ": the device takes no queue of this length",
        ("ibv_post_send" | "ibv_post_recv", libc::ENOMEM) => ": the queue is full",
        (_, libc::EPERM | libc::EACCES) => {
            ": not permitted; run as root, or give this user rights on /dev/infiniband/* (a container: \
             --device=/dev/infiniband and CAP_IPC_LOCK)"
        }
        (_, libc::ENOMEM) => {
            ": too little memory, or more locked than the limit allows (ulimit -l unlimited, LimitMEMLOCK=infinity)"
        }
        (_, libc::ENODEV | libc::EIO | libc::ENXIO) => ": the device is gone or resets itself; see `dmesg`",
        (_, libc::EMFILE | libc::ENFILE) => ": too many open files; raise `ulimit -n`",
        (_, libc::ENOSPC) => ": the device has no more of these; end other programs that use it",
        (_, libc::EOPNOTSUPP | libc::ENOSYS) => ": the verbs library or the driver is too old for this call",
        (_, libc::EBUSY) => ": something made from it is still in use",
        _ => "",
    }
}

fn register_hint(source: &io::Error, locked_max: Option<u64>) -> String {
    match (source.raw_os_error(), locked_max) {
        (Some(libc::ENOMEM | libc::EAGAIN), Some(max)) => format!(
            ": this process may lock {max} bytes of memory only; raise RLIMIT_MEMLOCK (ulimit -l unlimited, \
             LimitMEMLOCK=infinity in a systemd unit, memlock in /etc/security/limits.conf)"
        ),
        (Some(libc::EOPNOTSUPP | libc::EFAULT | libc::EINVAL), _) => {
            ": the memory cannot be pinned for a device; of files, those on tmpfs, hugetlbfs and device DAX can be"
                .to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_its_object_and_a_cause() {
        let failed = |call, errno| {
            let error = NodeError::Call {
                call,
                what: "asking for the connection",
                object: "10.9.0.1:7471 over mlx5_0".to_owned(),
                source: io::Error::from_raw_os_error(errno),
            };
            error.to_string()
        };
        for (call, errno, words) in [
            ("rdma_connect", libc::EINVAL, "GID or MTU"),
            ("rdma_resolve_route", libc::EHOSTUNREACH, "ping"),
            ("ibv_create_qp", libc::ENOMEM, "ulimit -l"),
            ("ibv_alloc_pd", libc::EACCES, "/dev/infiniband"),
        ] {
            let text = failed(call, errno);
            assert!(
                text.starts_with(&format!("{call} on 10.9.0.1:7471 over mlx5_0 failed")),
                "{text}"
            );
            assert!(text.contains(words), "{text}");
        }
        assert!(failed("rdma_connect", libc::EADDRINUSE).ends_with("connection)"));
    }
}
