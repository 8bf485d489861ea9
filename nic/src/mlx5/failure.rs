//! What a failed call means, and what to do about it.

use std::borrow::Cow;
use std::io;

use crate::NicError;

/// The error of a failed verb: what was being done, by which call, and the causes that its errno usually has.
pub(super) fn failed(device: &str, doing: impl Into<String>, call: &str, source: io::Error) -> NicError {
    let hint = hint(call, &source);
    failed_with(device, doing, call, source, hint)
}

/// The error of a failed verb with the caller's hint.
pub(super) fn failed_with(
    device: &str,
    doing: impl Into<String>,
    call: &str,
    source: io::Error,
    hint: impl Into<Cow<'static, str>>,
) -> NicError {
    NicError::System {
        device: device.to_owned(),
        doing: format!("{}: {call}", doing.into()),
        hint: hint.into(),
        source,
    }
}

/// What usually makes a call fail in this way; empty if that is not known.
fn hint(call: &str, error: &io::Error) -> Cow<'static, str> {
    let Some(errno) = error.raw_os_error() else {
        return Cow::Borrowed("");
    };
    let text = match (call, errno) {
        ("ibv_reg_mr", libc::EFAULT) => {
            "the memory is not mapped in this process; memory of a GPU needs the kernel module nvidia-peermem \
             (`modprobe nvidia-peermem`), or to be registered as a dma-buf"
        }
        ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
            "dma-bufs need Linux 5.12, rdma-core 34 and a NIC driver that supports them; without these, GPU memory needs the kernel module nvidia-peermem (`modprobe nvidia-peermem`)"
        }
        ("ibv_reg_dmabuf_mr", libc::EBADF | libc::EINVAL) => {
            "the file is not a dma-buf, the span is outside it, or the exporter does not let this NIC reach it (IOMMU, ACS)"
        }
        ("ibv_reg_mr", libc::EINVAL) => {
            "the NIC does not take this span or these rights; read-only mappings cannot be registered for writing"
        }
        ("ibv_modify_qp", libc::EINVAL) => {
            "the attributes do not fit the port or the state: GID index, MTU, LID, READs in flight, or a step left out"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH) => {
            "no route to the peer's GID: check that its address answers from this interface (ping), and VLAN and MTU of the path"
        }
        ("ibv_create_qp_ex" | "ibv_create_cq_ex", libc::EINVAL) => {
            "the NIC does not take this depth: ask for less, or the driver is older than rdma-core 34"
        }
        ("ibv_alloc_parent_domain", libc::EINVAL | libc::EOPNOTSUPP) => {
            "the driver does not support parent domains with allocators: install rdma-core 34 or later"
        }
        (_, libc::EPERM | libc::EACCES) => {
            "not permitted: run as root, give this user rights on /dev/infiniband/uverbs*, or give a container that device and \
             CAP_IPC_LOCK"
        }
        (_, libc::ENOMEM) => {
            "too little memory, or more pinned than the limit allows: `ulimit -l unlimited`, LimitMEMLOCK=infinity for a service"
        }
        (_, libc::EOPNOTSUPP | libc::ENOSYS) => {
            "the verbs library or the driver is too old for this call: install rdma-core 34 or later"
        }
        (_, libc::ENODEV | libc::EIO | libc::ENXIO) => "the device is gone or resets itself: see `dmesg | grep mlx5`",
        (_, libc::EBUSY) => "something made from it is still in use",
        (_, libc::EMFILE | libc::ENFILE) => "too many open files: raise `ulimit -n`",
        (_, libc::ENOSPC) => "the device has no more of these; end other programs that use it",
        _ => "",
    };
    Cow::Borrowed(text)
}
