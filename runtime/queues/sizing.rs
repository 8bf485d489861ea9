//! How many queue pairs keep a NIC's link busy, by Little's law from its measured latency.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpuvm_nic::{
    Access, Nic, NicError, NicLimits, Pages,
    poster::{Flags, Poster, PosterConfig, PosterError},
    wire::mlx5::{CompletionDetail, Operation, Segment},
};

use crate::error::{Error, Result};

/// READs before those that are timed.
const WARM: usize = 8;
/// READs that are timed, one at a time.
const TIMED: usize = 64;
/// Longest wait for one.
const LIMIT: Duration = Duration::from_secs(5);
/// A loaded NIC answers later than an idle one, and a GPU polls later than this processor.
pub(crate) const LOADED: f64 = 2.0;
/// Bytes a second where the link does not tell: PCIe 4.0 with 16 lanes.
const RATE_UNKNOWN: f64 = 25e9;
/// Most queue pairs that are made without being asked for.
const PAIRS_MAX: u32 = 256;

/// What was measured, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sizing {
    /// Median time of one READ of a page on an idle NIC, as its processor sees it.
    pub latency: Duration,
    pub queue_pairs: u32,
}

/// Measures one loopback READ of a page.
pub(crate) fn measure(nic: &Arc<dyn Nic>, page_bytes: u64) -> Result<Sizing> {
    let able = nic.capabilities();
    let latency = latency(nic, page_bytes as usize).map_err(|error| match error {
        Probe::Nic(source) => Error::Nic {
            doing: "measuring the NIC's latency".into(),
            source,
        },
        Probe::Post(source) => Error::Unavailable {
            what: format!("loopback over {}", able.name),
            reason: format!("a READ of the machine's own memory, by which queue pairs are counted: {source}"),
        },
        Probe::Failed(completion) => Error::Unavailable {
            what: format!("loopback over {}", able.name),
            reason: format!("a READ of the machine's own memory ended with {completion}"),
        },
    })?;
    let rate = able.link_bits_per_second.map_or(RATE_UNKNOWN, |bits| bits as f64 / 8.0);
    let queue_pairs = pairs(rate, latency, page_bytes, able.max_rd_atomic).min(able.queue_pairs_max.max(1));
    tracing::info!(?latency, queue_pairs, "{}: sized", able.name);
    Ok(Sizing { latency, queue_pairs })
}

/// Queue pairs that fill the link of a NIC, were its limits what is measured.
pub(crate) fn pairs_for(nic: &NicLimits, page_bytes: u64) -> u32 {
    let rate = nic.link_bytes_per_second.map_or(RATE_UNKNOWN, |bytes| bytes as f64);
    let latency = Duration::from_nanos(nic.latency_ns);
    pairs(rate, latency, page_bytes, nic.reads_per_queue_pair)
}

/// Little's law: what is in flight is the rate times the latency.
fn pairs(bytes_a_second: f64, latency: Duration, page_bytes: u64, reads_a_pair: u32) -> u32 {
    let in_flight = bytes_a_second * latency.as_secs_f64() * LOADED / page_bytes as f64;
    let pairs = (in_flight / f64::from(reads_a_pair.max(1))).ceil();
    (pairs as u32).clamp(1, PAIRS_MAX)
}

enum Probe {
    Nic(NicError),
    Post(PosterError),
    Failed(String),
}

impl From<NicError> for Probe {
    fn from(error: NicError) -> Self {
        Self::Nic(error)
    }
}

impl From<PosterError> for Probe {
    fn from(error: PosterError) -> Self {
        Self::Post(error)
    }
}

fn latency(nic: &Arc<dyn Nic>, page: usize) -> std::result::Result<Duration, Probe> {
    let memory = Pages::new(2 * page);
    let config = PosterConfig::default();
    // SAFETY: the pages outlive the key: both ways out of here deregister it, or leak them. Nothing else knows them.
    let key = unsafe {
        nic.register(
            memory.address(),
            memory.bytes(),
            Access::LOCAL_WRITE | Access::REMOTE_READ,
        )?
    };
    let timed = (|| {
        let mut poster = Poster::loopback(Arc::clone(nic), config)?;
        let mut times = Vec::with_capacity(TIMED);
        for turn in 0..WARM + TIMED {
            let operation = Operation::Read {
                remote: memory.address(),
                rkey: key.rkey,
            };
            let to = Segment::Data {
                bytes: page as u32,
                lkey: key.lkey,
                address: memory.address() + page as u64,
            };
            let begun = Instant::now();
            poster.submit(operation, &[to], Flags::SIGNALLED)?;
            let completion = poster.wait(LIMIT)?;
            if turn >= WARM {
                times.push(begun.elapsed());
            }
            if let CompletionDetail::Error { syndrome, .. } = completion.detail {
                return Err(Probe::Failed(syndrome.to_string()));
            }
        }
        times.sort();
        Ok(times[TIMED / 2])
    })();
    match nic.deregister(key) {
        Ok(()) => timed,
        Err(error) => {
            std::mem::forget(memory);
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_follow_rate_and_latency() {
        let us = Duration::from_micros;
        // 50 GB/s for 10 us are 500 kB: 122 pages of 4 KiB, and twice that under load; 16 a pair.
        assert_eq!(pairs(50e9, us(10), 4096, 16), 16);
        assert_eq!(pairs(50e9, us(20), 4096, 16), 31);
        assert_eq!(pairs(50e9, us(10), 65536, 16), 1);
        assert_eq!(pairs(12.5e9, us(10), 4096, 16), 4);
        assert_eq!(pairs(50e9, Duration::from_secs(1), 4096, 1), PAIRS_MAX);
        assert_eq!(pairs(50e9, Duration::ZERO, 4096, 0), 1);
    }

    #[test]
    fn the_software_nic_is_measured() {
        let slow = gpuvm_nic::SoftNic::builder().latency_ns(200_000).max_rd_atomic(4);
        let nic: Arc<dyn Nic> = Arc::new(slow.build().expect("a software NIC"));
        let found = measure(&nic, 4096).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.latency >= Duration::from_micros(200), "{found:?}");
        assert!(found.queue_pairs > 1, "{found:?}");
    }
}
