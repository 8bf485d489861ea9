//! What programs say of themselves while they run, in Prometheus' text format, over HTTP.
//!
//! `GPUVM_METRICS=ADDRESS` has any program serve it at `http://ADDRESS/metrics` from its first [`Vm`](crate::Vm) on: `9464` for a port of
//! 127.0.0.1, `[::1]:9464`, or `0.0.0.0:9464` for all networks of the machine, from which everybody who reaches it reads the counts. A program that
//! cannot listen there, because another one does, runs on and warns. Each answer reads the counters of all GPUs, a copy of some kilobytes each.

mod http;

use std::{
    fmt::Write,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    gpu::PagedGpu,
    stats::Stats,
};

pub use http::serve as serve_text;

/// The environment's variable.
const VARIABLE: &str = "GPUVM_METRICS";
/// Shares of the demand fetches whose longest time is told.
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// A GPU of a virtual memory that is there, or was.
struct Watched {
    vm: u64,
    place: usize,
    gpu: Weak<PagedGpu>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
/// What became of the variable, once it was looked at.
static SERVED: OnceLock<std::result::Result<Option<SocketAddr>, String>> = OnceLock::new();

/// Serves [`text`] at `http://ADDRESS/metrics`, on a thread that ends with the process: the address, with the port that was chosen for port 0.
///
/// # Errors
/// An address that cannot be listened at, or no thread.
pub fn serve(address: SocketAddr) -> io::Result<SocketAddr> {
    serve_text(address, text)
}

/// Counts of all GPUs of all virtual memories of this process, as they are now: `gpuvm_faults_total{vm="0",gpu="0"} 12` and so on, named as
/// the fields of [`Stats`]. A GPU that is lost has none.
pub fn text() -> String {
    let mut read: Vec<(String, Stats, u64)> = Vec::new();
    {
        let mut watched = WATCHED.lock();
        watched.retain(|one| one.gpu.strong_count() > 0);
        let there: Vec<_> = watched
            .iter()
            .map(|one| (one.vm, one.place, one.gpu.upgrade()))
            .collect();
        drop(watched);
        for (vm, place, gpu) in there {
            let Some(gpu) = gpu else { continue };
            if let Ok(stats) = Stats::read(&gpu) {
                read.push((
                    format!("vm=\"{vm}\",gpu=\"{place}\""),
                    stats,
                    u64::from(gpu.frame_count()),
                ));
            }
        }
    }
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, samples: &mut dyn Iterator<Item = (String, String)>| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{{{labels}}} {value}");
        }
    };
    let names = read.first().map(|(_, stats, _)| stats.counts().map(|(name, _)| name));
    for (n, name) in names.into_iter().flatten().enumerate() {
        let mut samples = read.iter().map(|(labels, stats, _)| {
            let value = stats.counts().nth(n).map_or(0, |(_, value)| value);
            (labels.clone(), value.to_string())
        });
        family(&format!("gpuvm_{name}_total"), "counter", &mut samples);
    }
    type Gauge = fn(&Stats, u64) -> u64;
    let gauges: [(&str, Gauge); 3] = [
        ("gpuvm_frames", |_, frames| frames),
        ("gpuvm_page_bytes", |stats, _| stats.page_bytes),
        ("gpuvm_bytes_borrowed", |stats, _| stats.bytes_borrowed),
    ];
    for (name, value) in gauges.into_iter().filter(|_| !read.is_empty()) {
        let mut samples = read
            .iter()
            .map(|(labels, stats, frames)| (labels.clone(), value(stats, *frames).to_string()));
        family(name, "gauge", &mut samples);
    }
    if !read.is_empty() {
        let quantiles = |(labels, stats, _): &(String, Stats, u64)| {
            QUANTILES.map(|share| {
                let seconds = stats.fault_ns(share) as f64 / 1e9;
                (format!("{labels},quantile=\"{share}\""), seconds.to_string())
            })
        };
        family("gpuvm_fault_seconds", "summary", &mut read.iter().flat_map(quantiles));
    }
    text
}

/// Serves metrics of this process where the environment says so. Only the first call looks.
///
/// # Errors
/// [`Error::Setting`] for a variable that is no address.
pub(crate) fn serve_as_asked() -> Result<()> {
    let asked = SERVED.get_or_init(|| match std::env::var(VARIABLE) {
        Err(_) => Ok(None),
        Ok(text) => match address(&text) {
            Some(address) => Ok(listen(address)),
            None => Err(text),
        },
    });
    match asked {
        Ok(_) => Ok(()),
        Err(value) => Err(Error::Setting {
            setting: VARIABLE,
            value: format!("`{value}`"),
            reason: "it must be a port of 127.0.0.1, as 9464, or an address and a port, as 0.0.0.0:9464; or unset it"
                .into(),
        }),
    }
}

fn listen(address: SocketAddr) -> Option<SocketAddr> {
    match serve(address) {
        Ok(address) => {
            tracing::info!("metrics are at http://{address}/metrics");
            Some(address)
        }
        Err(error) => {
            tracing::warn!(%error, "no metrics: nothing can listen at {address}");
            // Who set the variable may have no subscriber that shows it.
            if !tracing::enabled!(tracing::Level::WARN) {
                eprintln!(
                    "warning: no metrics, {VARIABLE} asks for them at {address}, where nothing can listen: {error}"
                );
            }
            None
        }
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let of_port = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    text.parse().ok().or_else(|| text.parse().ok().map(of_port))
}

/// Has metrics tell of these GPUs, until they go.
pub(crate) fn watch<'a>(gpus: impl Iterator<Item = &'a Arc<PagedGpu>>) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Relaxed: numbers that differ are enough.
    let vm = NEXT.fetch_add(1, Ordering::Relaxed);
    let gpus = gpus.enumerate().map(|(place, gpu)| Watched {
        vm,
        place,
        gpu: Arc::downgrade(gpu),
    });
    let mut watched = WATCHED.lock();
    watched.retain(|one| one.gpu.strong_count() > 0);
    watched.extend(gpus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machines_own() {
        assert_eq!(address("9464"), Some("127.0.0.1:9464".parse().unwrap()));
        assert_eq!(address("0.0.0.0:1"), Some("0.0.0.0:1".parse().unwrap()));
        assert_eq!(address("[::1]:0"), Some("[::1]:0".parse().unwrap()));
        for wrong in ["", "yes", "70000", "localhost:9464", "1.2.3.4"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }
}
