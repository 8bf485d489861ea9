//! What is used of `mlx5dv`, the direct interface of libmlx5: its structures, and the library, loaded at run time.
//!
//! Source: <infiniband/mlx5dv.h> of rdma-core; a test compares sizes and offsets with that header.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use libloading::Library;
use rdma_mummy_sys as sys;

use crate::NicError;

/// Name of the library.
pub const LIBRARY: &str = "libmlx5.so.1";

/// `MLX5DV_OBJ_QP`: what [`Obj`] holds, as is the next.
pub const OBJ_QP: u64 = 1;
/// `MLX5DV_OBJ_CQ`.
pub const OBJ_CQ: u64 = 1 << 1;

/// `MLX5DV_RES_TYPE_QP`: what an allocator of a parent domain is asked for, as are the next.
pub const RESOURCE_QP: u64 = (DRIVER_MLX5 << 32) | 1;
/// `MLX5DV_RES_TYPE_DBR`: a doorbell record.
pub const RESOURCE_DBR: u64 = (DRIVER_MLX5 << 32) | 3;
/// `MLX5DV_RES_TYPE_CQ`.
pub const RESOURCE_CQ: u64 = (DRIVER_MLX5 << 32) | 5;
/// `RDMA_DRIVER_MLX5`.
const DRIVER_MLX5: u64 = 1;

/// One ring of `struct mlx5dv_qp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    /// Slot 0.
    pub buf: *mut c_void,
    /// Slots.
    pub wqe_cnt: u32,
    /// Bytes of a slot.
    pub stride: u32,
}

/// The doorbell register of `struct mlx5dv_qp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Register {
    /// Its address.
    pub reg: *mut c_void,
    /// Bytes that BlueFlame takes there; 0 without BlueFlame.
    pub size: u32,
}

/// `struct mlx5dv_qp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Qp {
    /// Doorbell records: receive, then send.
    pub dbrec: *mut u32,
    /// Send ring.
    pub sq: Ring,
    /// Receive ring.
    pub rq: Ring,
    /// Doorbell register.
    pub bf: Register,
    /// Which of the next fields to fill.
    pub comp_mask: u64,
    /// Offset of the register's page in the device file.
    pub uar_mmap_offset: i64,
    /// Number of the transport interface receive.
    pub tirn: u32,
    /// Number of the transport interface send.
    pub tisn: u32,
    /// Number of the receive queue.
    pub rqn: u32,
    /// Number of the send queue.
    pub sqn: u32,
    /// Address in the NIC's own memory.
    pub tir_icm_addr: u64,
}

/// `struct mlx5dv_cq`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Cq {
    /// Entry 0.
    pub buf: *mut c_void,
    /// Doorbell records: consumer index, then arming.
    pub dbrec: *mut u32,
    /// Entries.
    pub cqe_cnt: u32,
    /// Bytes of an entry.
    pub cqe_size: u32,
    /// Page of registers.
    pub cq_uar: *mut c_void,
    /// Its number.
    pub cqn: u32,
    /// Which further fields to fill; there are none.
    pub comp_mask: u64,
}

/// One pair of `struct mlx5dv_obj`: the verbs object and what to fill.
#[repr(C)]
pub struct InOut<I, O> {
    /// The verbs object.
    pub input: *mut I,
    /// What is filled.
    pub out: *mut O,
}

/// `struct mlx5dv_obj`, with room for the pairs that later versions add.
#[repr(C)]
pub struct Obj {
    /// A queue pair.
    pub qp: InOut<sys::ibv_qp, Qp>,
    /// A completion queue.
    pub cq: InOut<sys::ibv_cq, Cq>,
    /// What this program does not ask for: null.
    pub others: [InOut<c_void, c_void>; 6],
}

const _: () = {
    assert!(size_of::<Qp>() == 96);
    assert!(offset_of!(Qp, sq) == 8);
    assert!(offset_of!(Qp, rq) == 24);
    assert!(offset_of!(Qp, bf) == 40);
    assert!(offset_of!(Qp, comp_mask) == 56);
    assert!(offset_of!(Qp, uar_mmap_offset) == 64);
    assert!(offset_of!(Qp, tirn) == 72);
    assert!(offset_of!(Qp, tir_icm_addr) == 88);
    assert!(size_of::<Ring>() == 16 && offset_of!(Ring, wqe_cnt) == 8 && offset_of!(Ring, stride) == 12);
    assert!(size_of::<Register>() == 16 && offset_of!(Register, size) == 8);
    assert!(size_of::<Cq>() == 48);
    assert!(offset_of!(Cq, dbrec) == 8);
    assert!(offset_of!(Cq, cqe_cnt) == 16);
    assert!(offset_of!(Cq, cqe_size) == 20);
    assert!(offset_of!(Cq, cq_uar) == 24);
    assert!(offset_of!(Cq, cqn) == 32);
    assert!(offset_of!(Cq, comp_mask) == 40);
    assert!(offset_of!(Obj, cq) == 16);
    assert!(size_of::<Obj>() == 128);
};

impl Qp {
    /// Nothing known, nothing asked for beyond the fixed fields.
    pub const EMPTY: Qp = Qp {
        dbrec: std::ptr::null_mut(),
        sq: Ring::EMPTY,
        rq: Ring::EMPTY,
        bf: Register {
            reg: std::ptr::null_mut(),
            size: 0,
        },
        comp_mask: 0,
        uar_mmap_offset: 0,
        tirn: 0,
        tisn: 0,
        rqn: 0,
        sqn: 0,
        tir_icm_addr: 0,
    };
}

impl Ring {
    const EMPTY: Ring = Ring {
        buf: std::ptr::null_mut(),
        wqe_cnt: 0,
        stride: 0,
    };
}

impl Cq {
    /// Nothing known, nothing asked for beyond the fixed fields.
    pub const EMPTY: Cq = Cq {
        buf: std::ptr::null_mut(),
        dbrec: std::ptr::null_mut(),
        cqe_cnt: 0,
        cqe_size: 0,
        cq_uar: std::ptr::null_mut(),
        cqn: 0,
        comp_mask: 0,
    };
}

impl<I, O> InOut<I, O> {
    const EMPTY: InOut<I, O> = InOut {
        input: std::ptr::null_mut(),
        out: std::ptr::null_mut(),
    };
}

impl Obj {
    /// Asks for nothing.
    pub const EMPTY: Obj = Obj {
        qp: InOut::EMPTY,
        cq: InOut::EMPTY,
        others: [const { InOut::EMPTY }; 6],
    };
}

type IsSupported = unsafe extern "C" fn(device: *mut sys::ibv_device) -> bool;
type InitObj = unsafe extern "C" fn(objects: *mut Obj, which: u64) -> c_int;

/// libmlx5.
pub(super) struct Mlx5Dv {
    is_supported: IsSupported,
    init_obj: InitObj,
    /// Kept: the functions are its.
    _library: Library,
}

impl Mlx5Dv {
    /// Loads the library.
    ///
    /// # Errors
    /// [`NicError::NoDevice`] that names the package, or the function that is missing.
    pub fn load() -> Result<Self, NicError> {
        // SAFETY: libmlx5's constructors only set up its own data.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| NicError::NoDevice {
            reason: format!(
                "no ConnectX can be used: {LIBRARY} cannot be loaded ({error}); install the mlx5 provider of rdma-core (Debian, \
                 Ubuntu: `apt install ibverbs-providers`; Fedora, RHEL: `dnf install libibverbs`)"
            ),
        })?;
        // SAFETY: the type is that of the header.
        let is_supported = unsafe { symbol::<IsSupported>(&library, "mlx5dv_is_supported") }?;
        // SAFETY: the type is that of the header, but for the pairs that `Obj` has at the end.
        let init_obj = unsafe { symbol::<InitObj>(&library, "mlx5dv_init_obj") }?;
        Ok(Self {
            is_supported,
            init_obj,
            _library: library,
        })
    }

    /// Whether a device is one of mlx5.
    ///
    /// # Safety
    /// `device` is of a device list that is not freed.
    pub unsafe fn is_supported(&self, device: *mut sys::ibv_device) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (self.is_supported)(device) }
    }

    /// Where a queue pair and its completion queue lie. The completion queue is this program's to poll afterwards.
    ///
    /// # Safety
    /// Both live and are of mlx5.
    pub unsafe fn layout(&self, qp: *mut sys::ibv_qp, cq: *mut sys::ibv_cq) -> std::io::Result<(Qp, Cq)> {
        let (mut qp_out, mut cq_out) = (Qp::EMPTY, Cq::EMPTY);
        let mut objects = Obj {
            qp: InOut {
                input: qp,
                out: &mut qp_out,
            },
            cq: InOut {
                input: cq,
                out: &mut cq_out,
            },
            ..Obj::EMPTY
        };
        // SAFETY: the objects live by the caller's promise; what is filled are locals of the header's layout.
        match unsafe { (self.init_obj)(&mut objects, OBJ_QP | OBJ_CQ) } {
            0 => Ok((qp_out, cq_out)),
            error => Err(std::io::Error::from_raw_os_error(error.abs())),
        }
    }
}

/// # Safety
/// `F` is the type of the function.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, NicError> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name) };
    found.map(|symbol| *symbol).map_err(|error| NicError::NoDevice {
        reason: format!("no ConnectX can be used: {LIBRARY} has no {name} ({error}); install rdma-core 34 or later"),
    })
}
