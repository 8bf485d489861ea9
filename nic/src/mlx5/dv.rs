//! What is used of `mlx5dv`, the direct interface of libmlx5: its structures, and the library, loaded at run time.
//!
//! Source: <infiniband/mlx5dv.h> of rdma-core; a test compares sizes and offsets with that header.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::rdma_sys as sys;
use libloading::Library;

use crate::NicError;

/// Name of the library.
pub const LIBRARY: &str = "libmlx5.so.1";

/// `MLX5DV_OBJ_QP`: what [`Obj`] holds, as is the next.
pub const OBJ_QP: u64 = 1;
/// `MLX5DV_OBJ_CQ`.
pub const OBJ_CQ: u64 = 1 << 1;

/// `MLX5DV_OBJ_AH`.
pub const OBJ_AH: u64 = 1 << 5;
/// `MLX5DV_OBJ_PD`.
pub const OBJ_PD: u64 = 1 << 6;

/// `MLX5DV_CONTEXT_FLAGS_DEVX`.
pub const CONTEXT_DEVX: u32 = 1;
/// `MLX5DV_UMEM_MASK_DMABUF`.
pub const UMEM_DMA_BUF: u64 = 1;
/// `MLX5DV_UAR_ALLOC_TYPE_BF`: a page of registers that is mapped write-combining.
pub const UAR_BLUE_FLAME: u32 = 0;
/// `MLX5DV_UAR_ALLOC_TYPE_NC`: one that is not cached.
pub const UAR_NOT_CACHED: u32 = 1;
/// `MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED`: and that nothing else is given.
pub const UAR_DEDICATED: u32 = 1 << 31;

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

/// `struct mlx5dv_pd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Pd {
    /// Its number.
    pub pdn: u32,
    /// Which further fields to fill; there are none.
    pub comp_mask: u64,
}

/// `struct mlx5_wqe_av`: how an address is reached. Big-endian.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct AddressVector {
    /// Q_Key, of datagrams.
    pub key: [u8; 8],
    /// The peer's queue pair, of datagrams.
    pub dqp_dct: [u8; 4],
    /// Rate and service level.
    pub stat_rate_sl: u8,
    /// Path bits.
    pub fl_mlid: u8,
    /// LID; over RoCE v2 the UDP source port.
    pub rlid: [u8; 2],
    /// Reserved.
    pub reserved: [u8; 4],
    /// MAC of the next hop.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Own GID's index and flow label.
    pub grh_gid_fl: [u8; 4],
    /// The peer's GID.
    pub rgid: [u8; 16],
}

/// `struct mlx5dv_ah`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Ah {
    /// What requests would carry.
    pub av: *mut AddressVector,
    /// Which further fields to fill; there are none.
    pub comp_mask: u64,
}

/// `struct mlx5dv_context_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ContextAttr {
    /// `CONTEXT_*`.
    pub flags: u32,
    /// Which further fields are filled; there are none.
    pub comp_mask: u64,
}

/// `struct mlx5dv_devx_umem`: registered memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Umem {
    /// Its number in commands.
    pub umem_id: u32,
}

/// `struct mlx5dv_devx_umem_in`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UmemIn {
    /// Address; of a dma-buf the offset.
    pub addr: *mut c_void,
    /// Bytes.
    pub size: usize,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Page sizes that may be used, a bit each.
    pub pgsz_bitmap: u64,
    /// `UMEM_*`.
    pub comp_mask: u64,
    /// The dma-buf.
    pub dmabuf_fd: c_int,
}

/// `struct mlx5dv_devx_uar`: a page of registers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Uar {
    /// The doorbell register.
    pub reg_addr: *mut c_void,
    /// The page.
    pub base_addr: *mut c_void,
    /// Its number in commands.
    pub page_id: u32,
    /// Offset in the device file.
    pub mmap_off: i64,
    /// Which further fields are filled; there are none.
    pub comp_mask: u64,
}

/// `struct mlx5dv_devx_obj`: what a command made.
#[repr(C)]
#[derive(Debug)]
pub struct DevxObj {
    opaque: [u8; 0],
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
    /// A shared receive queue, a receive queue, device memory: not asked for.
    pub others: [InOut<c_void, c_void>; 3],
    /// An address.
    pub ah: InOut<sys::ibv_ah, Ah>,
    /// A protection domain.
    pub pd: InOut<sys::ibv_pd, Pd>,
    /// Room for what later versions add.
    pub later: [InOut<c_void, c_void>; 1],
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
    assert!(offset_of!(Obj, ah) == 80 && offset_of!(Obj, pd) == 96);
    assert!(size_of::<Obj>() == 128);
    assert!(size_of::<Pd>() == 16 && offset_of!(Pd, comp_mask) == 8);
    assert!(size_of::<Ah>() == 16 && offset_of!(Ah, comp_mask) == 8);
    assert!(size_of::<AddressVector>() == 48 && offset_of!(AddressVector, rlid) == 14);
    assert!(offset_of!(AddressVector, rmac) == 20 && offset_of!(AddressVector, rgid) == 32);
    assert!(size_of::<ContextAttr>() == 16 && offset_of!(ContextAttr, comp_mask) == 8);
    assert!(size_of::<Umem>() == 4);
    assert!(size_of::<UmemIn>() == 48 && offset_of!(UmemIn, access) == 16 && offset_of!(UmemIn, pgsz_bitmap) == 24);
    assert!(offset_of!(UmemIn, comp_mask) == 32 && offset_of!(UmemIn, dmabuf_fd) == 40);
    assert!(size_of::<Uar>() == 40 && offset_of!(Uar, page_id) == 16 && offset_of!(Uar, mmap_off) == 24);
    assert!(offset_of!(Uar, comp_mask) == 32);
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
        others: [const { InOut::EMPTY }; 3],
        ah: InOut::EMPTY,
        pd: InOut::EMPTY,
        later: [const { InOut::EMPTY }; 1],
    };
}

type IsSupported = unsafe extern "C" fn(device: *mut sys::ibv_device) -> bool;
type InitObj = unsafe extern "C" fn(objects: *mut Obj, which: u64) -> c_int;

/// libmlx5.
pub(super) struct Mlx5Dv {
    is_supported: IsSupported,
    init_obj: InitObj,
    devx: Option<DevxLibrary>,
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
                "no ConnectX can be used: {LIBRARY} cannot be loaded ({}); install the mlx5 provider of rdma-core (Debian, \
                 Ubuntu: `apt install ibverbs-providers`; Fedora, RHEL: `dnf install libibverbs`)",
                crate::with_causes(&error)
            ),
        })?;
        // SAFETY: the type is that of the header.
        let is_supported = unsafe { symbol::<IsSupported>(&library, "mlx5dv_is_supported") }?;
        // SAFETY: the type is that of the header, but for the pairs that `Obj` has at the end.
        let init_obj = unsafe { symbol::<InitObj>(&library, "mlx5dv_init_obj") }?;
        Ok(Self {
            is_supported,
            init_obj,
            devx: None,
            _library: library,
        })
    }

    /// Loads the library with the functions of DEVX.
    ///
    /// # Errors
    /// As [`load`](Self::load); all functions that are missing are named.
    pub fn load_with_devx() -> Result<Self, NicError> {
        let mut loaded = Self::load()?;
        loaded.devx = Some(DevxLibrary::find(&loaded._library)?);
        Ok(loaded)
    }

    /// The functions of DEVX, if they were loaded.
    pub fn devx(&self) -> Option<&DevxLibrary> {
        self.devx.as_ref()
    }

    /// The number of a protection domain.
    ///
    /// # Safety
    /// It lives and is of mlx5.
    pub unsafe fn domain_number(&self, domain: *mut sys::ibv_pd) -> std::io::Result<u32> {
        let mut out = Pd::default();
        let mut objects = Obj {
            pd: InOut {
                input: domain,
                out: &mut out,
            },
            ..Obj::EMPTY
        };
        // SAFETY: the domain lives by the caller's promise; what is filled is a local of the header's layout.
        match unsafe { (self.init_obj)(&mut objects, OBJ_PD) } {
            0 => Ok(out.pdn),
            error => Err(std::io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// How an address is reached.
    ///
    /// # Safety
    /// It lives and is of mlx5.
    pub unsafe fn address_vector(&self, address: *mut sys::ibv_ah) -> std::io::Result<AddressVector> {
        let mut out = Ah {
            av: std::ptr::null_mut(),
            comp_mask: 0,
        };
        let mut objects = Obj {
            ah: InOut {
                input: address,
                out: &mut out,
            },
            ..Obj::EMPTY
        };
        // SAFETY: the address lives by the caller's promise; what is filled is a local of the header's layout.
        match unsafe { (self.init_obj)(&mut objects, OBJ_AH) } {
            // SAFETY: the library points into the address, which lives.
            0 if !out.av.is_null() => Ok(unsafe { *out.av }),
            0 => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            error => Err(std::io::Error::from_raw_os_error(error.abs())),
        }
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

macro_rules! devx_library {
    ($($field:ident: $name:literal, fn($($arg:ty),*) $(-> $out:ty)?;)*) => {
        /// The functions of DEVX, of the types that the header gives them.
        pub(super) struct DevxLibrary {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
        }

        impl DevxLibrary {
            fn find(library: &Library) -> Result<Self, NicError> {
                // SAFETY: no type is assumed: the addresses are not used.
                let missing = |name: &&str| unsafe { library.get::<*const c_void>(*name) }.is_err();
                let missing: Vec<&str> = [$($name),*].into_iter().filter(missing).collect();
                if !missing.is_empty() {
                    return Err(NicError::NoDevice {
                        reason: format!(
                            "queues cannot be made by DEVX: {LIBRARY} has no {}; install rdma-core 44 or later, or have them made \
                             by plain verbs",
                            missing.join(", ")
                        ),
                    });
                }
                Ok(Self {
                    // SAFETY: the types are those of the header.
                    $($field: unsafe { symbol(library, $name) }?,)*
                })
            }
        }
    };
}

devx_library! {
    open_device: "mlx5dv_open_device", fn(*mut sys::ibv_device, *mut ContextAttr) -> *mut sys::ibv_context;
    alloc_uar: "mlx5dv_devx_alloc_uar", fn(*mut sys::ibv_context, u32) -> *mut Uar;
    free_uar: "mlx5dv_devx_free_uar", fn(*mut Uar);
    umem_reg: "mlx5dv_devx_umem_reg", fn(*mut sys::ibv_context, *mut c_void, usize, u32) -> *mut Umem;
    umem_reg_ex: "mlx5dv_devx_umem_reg_ex", fn(*mut sys::ibv_context, *mut UmemIn) -> *mut Umem;
    umem_dereg: "mlx5dv_devx_umem_dereg", fn(*mut Umem) -> c_int;
    obj_create: "mlx5dv_devx_obj_create",
        fn(*mut sys::ibv_context, *const c_void, usize, *mut c_void, usize) -> *mut DevxObj;
    obj_modify: "mlx5dv_devx_obj_modify", fn(*mut DevxObj, *const c_void, usize, *mut c_void, usize) -> c_int;
    obj_query: "mlx5dv_devx_obj_query", fn(*mut DevxObj, *const c_void, usize, *mut c_void, usize) -> c_int;
    obj_destroy: "mlx5dv_devx_obj_destroy", fn(*mut DevxObj) -> c_int;
    query_eqn: "mlx5dv_devx_query_eqn", fn(*mut sys::ibv_context, u32, *mut u32) -> c_int;
}

/// # Safety
/// `F` is the type of the function.
unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F, NicError> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name) };
    found.map(|symbol| *symbol).map_err(|error| NicError::NoDevice {
        reason: format!(
            "no ConnectX can be used: {LIBRARY} has no {name} ({}); install rdma-core 34 or later",
            crate::with_causes(&error)
        ),
    })
}
