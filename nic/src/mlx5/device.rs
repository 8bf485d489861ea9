//! Finding a device, opening it, and what its port can do.

use std::fmt::Write as _;
use std::io;
use std::net::Ipv6Addr;
use std::ptr::NonNull;

use crate::rdma_sys as sys;

use super::Mlx5Options;
use super::dv::{CONTEXT_DEVX, ContextAttr, Mlx5Dv};
use super::failure::{failed, failed_with};
use crate::NicError;
use crate::devices::Machine;

/// Most entries of a GID table that are looked at.
const GIDS_MAX: usize = 4096;

/// An open device.
pub(super) struct Device {
    pub context: NonNull<sys::ibv_context>,
    pub name: String,
}

/// What the device can do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// READs and atomics in flight of a queue pair: as requester, as responder.
    pub reads_out: u8,
    pub reads_in: u8,
    pub queue_depth: u32,
    pub completions: u32,
    pub queue_pairs: u32,
    pub memory_regions: u32,
    ports: u8,
}

/// A port as it is when the device is opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub number: u8,
    pub ethernet: bool,
    /// Whether packets need a global header.
    pub global: bool,
    pub lid: u16,
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// `enum ibv_mtu` of paths that begin here.
    pub mtu: u32,
    pub message_bytes_max: u64,
    pub bits_per_second: Option<u64>,
}

/// Loads the verbs library.
///
/// # Errors
/// [`NicError::NoDevice`] with the loader's reason.
fn need_verbs() -> Result<(), NicError> {
    sys::load_verbs().map_err(|missing| NicError::NoDevice {
        reason: format!(
            "no ConnectX can be used: {} cannot be loaded ({}); install rdma-core (Debian, Ubuntu: `apt install \
             libibverbs1 ibverbs-providers`; Fedora, RHEL: `dnf install libibverbs`)",
            missing.name, missing.why
        ),
    })
}

fn device_list() -> Result<sys::DeviceList, NicError> {
    need_verbs()?;
    let list = sys::DeviceList::get();
    let failed = |source| {
        failed(
            "this machine",
            "listing its RDMA devices",
            "ibv_get_device_list",
            source,
        )
    };
    list.map_err(failed)?.ok_or_else(|| no_devices(&[], None))
}

/// Names of the RDMA devices of this machine that mlx5 drives.
///
/// # Errors
/// A library that is missing, or what it says.
pub(super) fn names(dv: &Mlx5Dv) -> Result<Vec<String>, NicError> {
    let list = device_list()?;
    let found = list.devices().filter_map(|(device, name)| {
        // SAFETY: the list is not freed yet.
        unsafe { dv.is_supported(device) }.then_some(name)
    });
    Ok(found.collect())
}

/// The error where a device, or any, is missing.
fn no_devices(known: &[String], wanted: Option<&str>) -> NicError {
    let mut closed = Machine::default().rdma_names();
    closed.retain(|name| !known.contains(name));
    let mut reason = match wanted {
        Some(name) => format!("there is no RDMA device {name}"),
        None => "this machine has no RDMA device that mlx5 drives (ConnectX, BlueField)".to_owned(),
    };
    if !known.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(reason, "; there is {}", known.join(", "));
    }
    if closed.is_empty() {
        reason.push_str(
            "; `ibv_devices` and `lspci -d 15b3:` show what is there, `modprobe mlx5_ib ib_uverbs` loads the driver",
        );
    } else {
        let _ = write!(
            reason,
            "; the kernel has {}, which libibverbs does not see: give this process rights on /dev/infiniband (in a container: \
             --device=/dev/infiniband), and install its provider (Debian, Ubuntu: ibverbs-providers)",
            closed.join(", ")
        );
    }
    NicError::NoDevice { reason }
}

impl Device {
    /// Opens the device of this name; without a name the first that mlx5 drives and whose `port` is active, else the first.
    ///
    /// # Errors
    /// A library that is missing, no such device, one of another driver, or what the library says.
    pub fn open(wanted: Option<&str>, port: u8, dv: &Mlx5Dv) -> Result<Self, NicError> {
        let list = device_list()?;
        let (mut known, mut candidates) = (Vec::new(), Vec::new());
        for (device, name) in list.devices() {
            // SAFETY: the list is not freed yet.
            let supported = unsafe { dv.is_supported(device) };
            if wanted.is_some_and(|wanted| wanted != name) || wanted.is_none() && !supported {
                known.push(name);
                continue;
            }
            if !supported {
                return Err(NicError::NoDevice {
                    reason: format!(
                        "{name} is not an mlx5 device: choose a ConnectX or BlueField, or SoftRoCE's own back end"
                    ),
                });
            }
            candidates.push((device, name));
        }
        let choice = candidates.len() > 1;
        let mut passed = None;
        for (device, name) in candidates {
            // SAFETY: the list is not freed yet.
            let opened = unsafe { Self::open_listed(device, name, dv) };
            let taken = !choice || opened.as_ref().is_ok_and(|opened| opened.is_active(port));
            let other = match taken {
                true => passed.replace(opened),
                false if passed.is_none() => passed.replace(opened),
                false => Some(opened),
            };
            match other {
                Some(Ok(other)) => other.give_up(),
                Some(Err(error)) => tracing::debug!(error = &error as &dyn std::error::Error, "passed over"),
                None => {}
            }
            if taken {
                break;
            }
        }
        // Without an active one the first: its error says what its port lacks.
        passed.unwrap_or_else(|| Err(no_devices(&known, wanted)))
    }

    /// # Safety
    /// `device` is of a device list that is not freed.
    unsafe fn open_listed(device: *mut sys::ibv_device, name: String, dv: &Mlx5Dv) -> Result<Self, NicError> {
        let (context, call) = match dv.devx() {
            // SAFETY: the caller's promise.
            None => (unsafe { sys::ibv_open_device(device) }, "ibv_open_device"),
            Some(devx) => {
                let mut wanted = ContextAttr {
                    flags: CONTEXT_DEVX,
                    comp_mask: 0,
                };
                // SAFETY: the caller's promise; the attributes are a local.
                (unsafe { (devx.open_device)(device, &mut wanted) }, "mlx5dv_open_device")
            }
        };
        let context = NonNull::new(context)
            .ok_or_else(|| failed(&name, "opening the device", call, io::Error::last_os_error()))?;
        Ok(Self { context, name })
    }

    /// Whether it has that port, and the port carries data.
    fn is_active(&self, port: u8) -> bool {
        let found = self.query_port(port);
        found.is_ok_and(|found| found.state == sys::IBV_PORT_ACTIVE)
    }

    fn query_port(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        // SAFETY: all zero bytes are a valid ibv_port_attr, which holds integers only.
        let mut found: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the attributes are a local.
        match unsafe { sys::ibv_query_port(self.context.as_ptr(), number, &mut found) } {
            0 => Ok(found),
            error => Err(io::Error::from_raw_os_error(error.abs())),
        }
    }

    /// Closes a device that is not taken.
    fn give_up(self) {
        // SAFETY: nothing was made from it, and it ends here.
        if let Err(error) = unsafe { self.close() } {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                device = self.name,
                "ibv_close_device"
            );
        }
    }

    /// Closes it.
    ///
    /// # Safety
    /// Nothing that was made from it is used afterwards, and this is called once.
    pub unsafe fn close(&self) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { sys::ibv_close_device(self.context.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What it can do.
    ///
    /// # Errors
    /// What the library says.
    pub fn limits(&self) -> Result<Limits, NicError> {
        // SAFETY: all zero bytes are a valid ibv_device_attr, which holds integers only.
        let mut found: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and the attributes are a local.
        let result = unsafe { sys::ibv_query_device(self.context.as_ptr(), &mut found) };
        if result != 0 {
            let source = io::Error::from_raw_os_error(result.abs());
            return Err(failed(&self.name, "asking for its limits", "ibv_query_device", source));
        }
        let count = |found: libc::c_int| u32::try_from(found).unwrap_or(0);
        // 255 is what a connection manager takes for "as many as possible".
        let reads = |found: libc::c_int| u8::try_from(found.clamp(1, 254)).unwrap_or(1);
        Ok(Limits {
            reads_out: reads(found.max_qp_init_rd_atom),
            reads_in: reads(found.max_qp_rd_atom),
            queue_depth: count(found.max_qp_wr),
            completions: count(found.max_cqe),
            queue_pairs: count(found.max_qp),
            memory_regions: count(found.max_mr),
            ports: found.phys_port_cnt,
        })
    }

    /// The port, and how it is addressed.
    ///
    /// # Errors
    /// No such port, one that is down, no usable GID, or what the library says.
    pub fn port(&self, options: &Mlx5Options, limits: &Limits) -> Result<Port, NicError> {
        let number = options.port;
        if number == 0 || number > limits.ports {
            return Err(NicError::BadArgument {
                what: "port",
                value: number.into(),
                expected: "a port of the device: from 1 on, as `ibv_devinfo` shows them",
            });
        }
        let doing = format!("asking for the state of port {number}");
        let found = self.query_port(number);
        let found = found.map_err(|source| failed(&self.name, doing, "ibv_query_port", source))?;
        let ethernet = found.link_layer == sys::IBV_LINK_LAYER_ETHERNET;
        if found.state != sys::IBV_PORT_ACTIVE {
            let source = io::Error::from_raw_os_error(libc::ENETDOWN);
            let why = match (found.state, ethernet) {
                (sys::IBV_PORT_INIT | sys::IBV_PORT_ARMED, false) => {
                    "the link is up, but no subnet manager has configured it: start opensm"
                }
                (_, true) => {
                    "connect it and bring its network interface up: `rdma link` names it, `ip link set NAME up`"
                }
                _ => "connect it, and see that a subnet manager runs: `ibstat` shows its state",
            };
            let doing = format!("using port {number}, which is {}", state_name(found.state));
            return Err(failed_with(&self.name, doing, "ibv_query_port", source, why));
        }
        let gids = self.gids(number, found.gid_tbl_len, limits.ports)?;
        let chosen = self.choose_gid(options.gid_index, &gids, number, ethernet)?;
        let (gid_index, gid) = chosen.map_or((0, [0; 16]), |gid| (gid.gid_index as u8, gid.gid.raw));
        Ok(Port {
            number,
            ethernet,
            global: ethernet || found.flags & sys::IBV_QPF_GRH_REQUIRED != 0 || found.lid == 0,
            lid: found.lid,
            gid_index,
            gid,
            mtu: options
                .mtu_code()
                .map_or(found.active_mtu, |mtu| mtu.min(found.active_mtu)),
            message_bytes_max: u64::from(found.max_msg_sz),
            bits_per_second: bits_per_second(found.active_width, found.active_speed.into(), found.active_speed_ex),
        })
    }

    /// The GIDs of a port.
    fn gids(&self, port: u8, length: libc::c_int, ports: u8) -> Result<Vec<sys::ibv_gid_entry>, NicError> {
        let room = usize::try_from(length).unwrap_or(0).max(1) * usize::from(ports);
        let room = room.min(GIDS_MAX);
        let none = sys::ibv_gid_entry {
            gid: sys::ibv_gid { raw: [0; 16] },
            gid_index: 0,
            port_num: 0,
            gid_type: 0,
            ndev_ifindex: 0,
        };
        let mut entries = vec![none; room];
        // SAFETY: the context is open, and the vector has as many entries as are said.
        let found = unsafe { sys::ibv_query_gid_table(self.context.as_ptr(), entries.as_mut_ptr(), room, 0) };
        let Ok(count) = usize::try_from(found) else {
            let source = io::Error::from_raw_os_error(i32::try_from(found.unsigned_abs()).unwrap_or(libc::EIO));
            let doing = format!("asking for the GIDs of port {port}");
            return Err(failed(&self.name, doing, "ibv_query_gid_table", source));
        };
        entries.truncate(count);
        entries.retain(|entry| entry.port_num == u32::from(port) && entry.gid_index <= u32::from(u8::MAX));
        Ok(entries)
    }

    fn choose_gid(
        &self,
        wanted: Option<u8>,
        gids: &[sys::ibv_gid_entry],
        port: u8,
        ethernet: bool,
    ) -> Result<Option<sys::ibv_gid_entry>, NicError> {
        let refused = |doing: String, hint: String| {
            let source = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
            failed_with(&self.name, doing, "ibv_query_gid_table", source, hint)
        };
        if let Some(index) = wanted {
            let found = gids.iter().find(|entry| entry.gid_index == u32::from(index));
            return match found {
                Some(entry) => Ok(Some(*entry)),
                None => Err(refused(
                    format!("using GID index {index} of port {port}, which is empty"),
                    format!("the port has {}", describe_gids(gids)),
                )),
            };
        }
        let best = gids
            .iter()
            .filter(|entry| !ethernet || entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2);
        let best = best.min_by_key(|entry| (rank(entry, ethernet), entry.gid_index));
        match best {
            Some(entry) => Ok(Some(*entry)),
            // InfiniBand goes by LID.
            None if !ethernet => Ok(None),
            None => Err(refused(
                format!("choosing a RoCE v2 GID of port {port}"),
                format!(
                    "give its network interface an IP address (`rdma link` names it); the port has {}",
                    describe_gids(gids)
                ),
            )),
        }
    }
}

/// The smaller the better: an IPv4 address, another one that is routed, a link-local one.
fn rank(entry: &sys::ibv_gid_entry, ethernet: bool) -> u8 {
    let address = Ipv6Addr::from(entry.gid.raw);
    match address.to_ipv4_mapped() {
        // InfiniBand's own GIDs are all link-local by default: the first one is the port's.
        _ if !ethernet => 0,
        Some(_) => 0,
        None if !address.is_unicast_link_local() => 1,
        None => 2,
    }
}

fn describe_gids(gids: &[sys::ibv_gid_entry]) -> String {
    if gids.is_empty() {
        return "no GID".to_owned();
    }
    let one = |entry: &sys::ibv_gid_entry| {
        let kind = match entry.gid_type {
            sys::IBV_GID_TYPE_ROCE_V2 => "RoCE v2",
            sys::IBV_GID_TYPE_ROCE_V1 => "RoCE v1",
            _ => "InfiniBand",
        };
        let address = Ipv6Addr::from(entry.gid.raw);
        format!("{} ({kind}, {address})", entry.gid_index)
    };
    gids.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn state_name(state: u32) -> &'static str {
    match state {
        sys::IBV_PORT_DOWN => "down",
        sys::IBV_PORT_INIT => "initialising",
        sys::IBV_PORT_ARMED => "armed",
        sys::IBV_PORT_ACTIVE_DEFER => "deferred",
        _ => "in no usable state",
    }
}

/// What a link of `width` and `speed` carries, by the codes of the InfiniBand specification (PortInfo).
fn bits_per_second(width: u8, speed: u32, speed_extended: u32) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    // Newer libraries tell speeds that a byte does not hold in a field of their own.
    let megabits = match if speed_extended != 0 { speed_extended } else { speed } {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => return None,
    };
    Some(lanes * megabits * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_carry_width_times_speed() {
        assert_eq!(bits_per_second(2, 32, 0), Some(100_000_000_000));
        assert_eq!(bits_per_second(2, 64, 0), Some(200_000_000_000));
        assert_eq!(bits_per_second(2, 128, 0), Some(400_000_000_000));
        assert_eq!(bits_per_second(2, 0, 256), Some(800_000_000_000));
        assert_eq!(bits_per_second(1, 1, 0), Some(2_500_000_000));
        assert_eq!(bits_per_second(3, 32, 0), None);
        assert_eq!(bits_per_second(2, 3, 0), None);
    }

    fn entry(gid_index: u32, gid_type: u32, address: &str) -> sys::ibv_gid_entry {
        let address: Ipv6Addr = address.parse().expect("an address");
        sys::ibv_gid_entry {
            gid: sys::ibv_gid { raw: address.octets() },
            gid_index,
            port_num: 1,
            gid_type,
            ndev_ifindex: 0,
        }
    }

    #[test]
    fn an_ipv4_address_is_preferred_and_version_1_is_not_chosen() {
        let device = Device {
            context: NonNull::dangling(),
            name: "mlx5_9".into(),
        };
        let gids = [
            entry(0, 1, "fe80::1"),
            entry(1, 2, "fe80::1"),
            entry(2, 1, "::ffff:192.0.2.7"),
            entry(4, 2, "2001:db8::7"),
            entry(5, 2, "::ffff:192.0.2.7"),
        ];
        let choose = |wanted, gids: &[sys::ibv_gid_entry]| {
            let chosen = device.choose_gid(wanted, gids, 1, true)?;
            Ok::<_, NicError>(chosen.map(|entry| entry.gid_index))
        };
        assert_eq!(choose(None, &gids).expect("one"), Some(5));
        assert_eq!(choose(None, &gids[..4]).expect("one"), Some(4));
        assert_eq!(choose(None, &gids[..3]).expect("one"), Some(1));
        assert_eq!(choose(Some(2), &gids).expect("one"), Some(2));
        let error = choose(None, &gids[..1]).expect_err("version 1 only").to_string();
        assert!(error.contains("RoCE v1, fe80::1"), "{error}");
        let error = choose(Some(3), &gids).expect_err("empty").to_string();
        assert!(error.contains("5 (RoCE v2, ::ffff:192.0.2.7)"), "{error}");
        assert!(error.contains("mlx5_9"), "{error}");
    }
}
