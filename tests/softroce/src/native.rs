//! An RDMA device of this machine itself.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::Error;

const DEVICES: &str = "/sys/class/infiniband";

/// A device that tests may use without a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, such as "rxe0".
    pub name: String,
    /// The IPv4 address of its first port.
    pub address: Ipv4Addr,
}

/// The device that `GPUVM_TEST_RDMA` names, or the first rxe device of this machine; `None` where there is neither.
///
/// # Errors
/// [`Error::Device`] where the named device is not there, or is not active with an IPv4 address.
pub fn device() -> Result<Option<Device>, Error> {
    let named = std::env::var("GPUVM_TEST_RDMA").ok().filter(|name| !name.is_empty());
    match named {
        Some(name) => examine(&name).map(Some),
        None => find_rxe().map(|name| examine(&name)).transpose(),
    }
}

fn find_rxe() -> Option<String> {
    let mut names: Vec<_> = fs::read_dir(DEVICES)
        .ok()?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    let names = names.into_iter().map(|name| name.to_string_lossy().into_owned());
    // The driver has one parent attribute, the network device; hardware has none.
    names
        .into_iter()
        .find(|name| Path::new(DEVICES).join(name).join("parent").is_file())
}

fn examine(name: &str) -> Result<Device, Error> {
    let bad = |why: &str| Error::Device {
        device: name.to_owned(),
        why: why.to_owned(),
    };
    let port = Path::new(DEVICES).join(name).join("ports/1");
    let state = fs::read_to_string(port.join("state"))
        .map_err(|_| bad("there is none of that name; `rdma link add rxe0 type rxe netdev eth0` makes one"))?;
    if !state.contains("ACTIVE") {
        return Err(bad(&format!("its port is {}; is its network device up?", state.trim())));
    }
    let address = address_of(&port).ok_or_else(|| bad("its network device has no IPv4 address"))?;
    Ok(Device {
        name: name.to_owned(),
        address,
    })
}

/// The first IPv4 address among a port's GIDs.
pub(crate) fn address_of(port: &Path) -> Option<Ipv4Addr> {
    (0..16).find_map(|index| parse_gid(&fs::read_to_string(port.join(format!("gids/{index}"))).ok()?))
}

/// RoCE writes an IPv4 address as the IPv6 address that stands for it.
fn parse_gid(text: &str) -> Option<Ipv4Addr> {
    let address: std::net::Ipv6Addr = text.trim().parse().ok()?;
    address.to_ipv4_mapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_from_a_gid() {
        assert_eq!(
            parse_gid("0000:0000:0000:0000:0000:ffff:0a09:0001\n"),
            Some(Ipv4Addr::new(10, 9, 0, 1))
        );
        assert_eq!(parse_gid("fe80:0000:0000:0000:5054:00ff:fe12:3456\n"), None);
        assert_eq!(parse_gid("0000:0000:0000:0000:0000:0000:0000:0000\n"), None);
        assert_eq!(parse_gid("nothing"), None);
    }
}
