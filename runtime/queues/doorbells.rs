//! Doorbells within lanes' reach.

use gpuvm_gpu::{Gpu, GpuError, HostRegistration};
use gpuvm_nic::{Nic, host_page_bytes};

use super::rings::translate;
use crate::error::{Doing, Result};

/// A NIC's doorbell pages, within lanes' reach.
struct Pages {
    host: u64,
    registration: HostRegistration,
}

/// The doorbells of all queue pairs.
#[derive(Default)]
pub(super) struct Doorbells {
    pages: Vec<Pages>,
    /// Queue pairs that a doorbell proxy rings for.
    pub proxied: u32,
}

impl Doorbells {
    /// Registers the NIC's doorbell pages with the GPU.
    pub fn reach_all(&mut self, gpu: &dyn Gpu, nic: &dyn Nic) -> Result<(), GpuError> {
        for (host, bytes) in nic.doorbell_pages() {
            self.pages.push(reach_pages(gpu, host, bytes)?);
        }
        Ok(())
    }

    /// Lets a real GPU's lanes reach the doorbell of a queue pair, or a doorbell proxy's word where the GPU's driver refuses.
    pub fn reach(&mut self, gpu: &dyn Gpu, nic: &dyn Nic, number: u32) -> Result<()> {
        // A driver maps whole pages of the host.
        let page = host_page_bytes();
        let doing = || format!("letting kernels reach the doorbell of queue pair {number:#x}");
        let known = |reached: &[Pages], doorbell: u64| {
            let mut spans = reached.iter().map(|pages| (pages.host, pages.registration.bytes()));
            spans.any(|(first, bytes)| doorbell.wrapping_sub(first) < bytes)
        };
        let doorbell = nic.queue_pair(number).doing(doing)?.doorbell;
        if known(&self.pages, doorbell) {
            return Ok(());
        }
        let host = doorbell / page * page;
        let first = std::ptr::with_exposed_provenance_mut(host as usize);
        // SAFETY: the register's page stays mapped as long as the queue pair, which `Queues` destroys after the registration; all
        // access to it is by single stores.
        match unsafe { gpu.map_registers(first, page) } {
            Ok(registration) => {
                self.pages.push(Pages { host, registration });
                return Ok(());
            }
            Err(error) if self.proxied == 0 => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the GPU cannot ring the NIC's doorbells: a CPU thread rings them, which adds latency to each request"
            ),
            Err(_) => {}
        }
        self.proxied += 1;
        let doorbell = nic.use_doorbell_proxy(number).doing(doing)?.doorbell;
        if known(&self.pages, doorbell) {
            return Ok(());
        }
        let words = nic.doorbell_pages().into_iter();
        let mut words = words.filter(|(first, bytes)| doorbell.wrapping_sub(*first) < *bytes);
        let (host, bytes) = words.next().unwrap_or((doorbell / page * page, page));
        self.pages.push(reach_pages(gpu, host, bytes).doing(doing)?);
        Ok(())
    }

    /// The address by which lanes know a doorbell; none where it is no other.
    pub fn for_lanes(&self, doorbell: u64) -> Option<u64> {
        self.pages.iter().find_map(|pages| {
            let registered = &pages.registration;
            translate((pages.host, registered.bytes(), registered.device_addr()), doorbell)
        })
    }

    /// No lane rings any more.
    pub fn clear(&mut self) {
        self.pages.clear();
    }
}

/// Registers pages of doorbells that are memory of this process with the GPU.
fn reach_pages(gpu: &dyn Gpu, host: u64, bytes: u64) -> Result<Pages, GpuError> {
    let first = std::ptr::with_exposed_provenance_mut(host as usize);
    // SAFETY: the pages live as long as the NIC, which outlives the registration; all access to them is atomic.
    let registration = unsafe { gpu.register_host(first, bytes, false)? };
    Ok(Pages { host, registration })
}
