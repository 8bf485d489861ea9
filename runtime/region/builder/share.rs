//! Read-only regions at memory nodes that several processes read: one fills them, others attach.

use std::{fmt, sync::Arc};

use gpuvm_memory_node::ShareKey;

use super::{AtNodes, Integrity, NodeMemory, Region, RegionBuilder};
use crate::error::{Doing, Error, Result};

/// Names a region at memory nodes for other processes, which [`attach`](RegionBuilder::attach) to it. As bytes it goes to them by any way that
/// they have; a process that gets it, and may join the nodes, reads the region.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedRegion {
    length: u64,
    element_bytes: u64,
    page_bytes: u64,
    /// The nodes' addresses in the order of their stripes, and the stripes' keys.
    stripes: Vec<(String, ShareKey)>,
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<&str> = self.stripes.iter().map(|(node, _)| node.as_str()).collect();
        out.debug_struct("SharedRegion")
            .field("length", &self.length)
            .field("nodes", &nodes)
            .finish_non_exhaustive()
    }
}

/// The first bytes of a region's name for others.
const MAGIC: [u8; 8] = *b"gpuvmSR1";

impl SharedRegion {
    /// Its elements.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [
            self.length,
            self.element_bytes,
            self.page_bytes,
            self.stripes.len() as u64,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        for (node, key) in &self.stripes {
            bytes.extend((node.len() as u64).to_le_bytes());
            bytes.extend(node.as_bytes());
            bytes.extend(key.0);
        }
        bytes
    }

    /// From those bytes; none where they are none of a shared region.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let number = |rest: &mut &[u8]| {
            let (number, behind) = rest.split_first_chunk()?;
            *rest = behind;
            Some(u64::from_le_bytes(*number))
        };
        let [length, element_bytes, page_bytes, count] = [(); 4].map(|()| number(&mut rest));
        let mut shared = Self {
            length: length?,
            element_bytes: element_bytes?,
            page_bytes: page_bytes?,
            stripes: Vec::new(),
        };
        for _ in 0..count? {
            let length = usize::try_from(number(&mut rest)?).ok()?;
            let (node, behind) = rest.split_at_checked(length)?;
            let (key, behind) = behind.split_first_chunk()?;
            rest = behind;
            let node = std::str::from_utf8(node).ok()?;
            shared.stripes.push((node.to_owned(), ShareKey(*key)));
        }
        rest.is_empty().then_some(shared)
    }
}

impl<E> Region<E> {
    /// Lets other processes read this region: one that is read-only, at memory nodes, without replicas. Its memory stays there until the
    /// last process that has it leaves the nodes.
    ///
    /// # Errors
    /// [`Error::Region`] for another region; [`Error::Node`].
    pub fn share(&self) -> Result<SharedRegion> {
        let inner = &self.inner;
        let refuse = |reason: &str| {
            Err(Error::Region {
                region: inner.name.clone(),
                reason: reason.to_owned(),
            })
        };
        if !inner.kind.read_only || inner.own.is_replicated() {
            return refuse("processes share read-only regions without replicas: say read_only, and not replicas(2)");
        }
        let keys = inner.own.node_memory(|memory| {
            let nodes = memory.grants.iter().map(|grant| grant.client().address().to_owned());
            memory.share().map(|keys| nodes.zip(keys).collect())
        });
        let Some(stripes) = keys else {
            return refuse(
                "it lies on this host: processes of a host share a file by map_file, those of several hosts memory nodes",
            );
        };
        Ok(SharedRegion {
            length: self.len(),
            element_bytes: self.element().bytes() as u64,
            page_bytes: 1 << inner.own.gpu.page_shift(),
            stripes: stripes.doing(|| format!("sharing region `{}`", inner.name))?,
        })
    }
}

impl<E> RegionBuilder<E> {
    /// A read-only region over what another process has filled and [shared](Region::share). This process has joined the same memory nodes,
    /// named alike and in the same order, and has the same page size.
    ///
    /// # Errors
    /// [`Error::Region`] where elements, pages or nodes differ, or with replicas or checksums; [`Error::Node`] where the nodes do not have
    /// it any more.
    pub fn attach(self, shared: &SharedRegion) -> Result<Region<E>> {
        let this = self.of_length(shared.length).read_only();
        this.check()?;
        let nodes = match this.homed_at_nodes() {
            true => this.sessions()?,
            false => Vec::new(),
        };
        if let Some(reason) = this.does_not_fit(shared, &nodes) {
            return Err(this.refused(reason));
        }
        let keys: Vec<ShareKey> = shared.stripes.iter().map(|(_, key)| *key).collect();
        let memory = NodeMemory::attached(&nodes, this.bytes(), this.page_size(), &keys);
        let memory = memory.doing(|| format!("attaching region `{}`", this.label()))?;
        let home = Arc::new(AtNodes::new(this.label(), memory, 0));
        this.create(vec![home], None, false)
    }

    /// Why a shared region cannot be this one.
    fn does_not_fit(&self, shared: &SharedRegion, nodes: &[Arc<gpuvm_memory_node::NodeClient>]) -> Option<String> {
        let (element, page) = (self.element.bytes() as u64, self.page_size());
        let pages = self.bytes().div_ceil(page);
        let stripes = pages.min(nodes.len() as u64);
        let there = nodes.iter().map(|node| node.address());
        let named = shared.stripes.iter().map(|(node, _)| node.as_str());
        if self.replicas != 1 || self.integrity != Integrity::Unchecked {
            return Some("what others have filled is read without replicas and checksums: leave them out".into());
        }
        if shared.element_bytes != element {
            let theirs = shared.element_bytes;
            return Some(format!(
                "it is shared with elements of {theirs} bytes, and these have {element}: take the same type"
            ));
        }
        if shared.page_bytes != page {
            let theirs = shared.page_bytes;
            return Some(format!(
                "it is shared with pages of {theirs} bytes, and these have {page}: say page_size({theirs})"
            ));
        }
        if nodes.is_empty() && pages != 0 {
            return Some("it lies at memory nodes, and this Vm has none: name the same ones".into());
        }
        if stripes != shared.stripes.len() as u64 || !named.eq(there.take(shared.stripes.len())) {
            let theirs: Vec<&str> = shared.stripes.iter().map(|(node, _)| node.as_str()).collect();
            return Some(format!(
                "it lies at the memory nodes {}: name the same ones, in this order",
                theirs.join(", ")
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> SharedRegion {
        SharedRegion {
            length: 12_345,
            element_bytes: 8,
            page_bytes: 4096,
            stripes: vec![
                ("10.9.0.1:7471".into(), ShareKey([1; 16])),
                ("[::1]:7471".into(), ShareKey([2; 16])),
            ],
        }
    }

    #[test]
    fn a_name_survives_its_way_and_nothing_else_does() {
        let bytes = shared().to_bytes();
        assert_eq!(SharedRegion::from_bytes(&bytes), Some(shared()));
        for length in 0..bytes.len() {
            assert_eq!(SharedRegion::from_bytes(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(SharedRegion::from_bytes(&[&bytes[..], &[0]].concat()), None);
        // A count that nothing follows, and one that no memory holds.
        let mut none = bytes.clone();
        none[32..40].fill(0xff);
        assert_eq!(SharedRegion::from_bytes(&none), None);
        assert_eq!(shared().length(), 12_345);
        assert!(!format!("{:?}", shared()).contains("ShareKey"));
    }

    #[test]
    fn regions_of_a_host_are_not_shared_by_nodes() {
        let vm = crate::Vm::builder().frame_memory(1 << 20).build().unwrap();
        let written = vm.region::<u64>().name("written").zeroed(10).unwrap();
        let text = written.share().unwrap_err().to_string();
        assert!(text.contains("`written`") && text.contains("say read_only"), "{text}");
        let read = vm.region::<u64>().read_only().from_slice(&[1, 2]).unwrap();
        assert!(read.share().unwrap_err().to_string().contains("map_file"));
        let refused = |attached: Result<Region<u64>>| attached.err().unwrap().to_string();
        let text = refused(vm.region::<u64>().attach(&shared()));
        assert!(text.contains("this Vm has none"), "{text}");
        let text = vm.region::<u32>().attach(&shared()).err().unwrap().to_string();
        assert!(text.contains("elements of 8 bytes, and these have 4"), "{text}");
        let other = SharedRegion {
            page_bytes: 1 << 20,
            ..shared()
        };
        let text = refused(vm.region::<u64>().attach(&other));
        assert!(text.contains("page_size(1048576)"), "{text}");
    }
}
