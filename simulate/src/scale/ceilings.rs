//! How fast pages come to one GPU over the NICs of its host, and which limit binds first.

use gpuvm_nic::Limit;

use super::*;

/// NICs of a host for which it is said.
pub const NICS: [u64; 4] = [1, 2, 4, 8];
/// Bytes of a page for which it is said.
pub const PAGES: [u64; 3] = [512, 4 << 10, 64 << 10];

/// What the GPU's own link lets through.
const HOST_LINK: &str = "host link";

/// A limit, and what it lets through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// The limit: `link`, `messages`, `reads in flight`, `send queues` or `host link`.
    pub limit: &'static str,
    /// Pages a second that it lets through.
    pub pages_per_second: f64,
}

/// What bounds the pages that come to one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// NICs of its host.
    pub nics: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Queue pairs to the pages' homes, as many as the library makes over NICs of this latency where nobody says.
    pub queue_pairs: u64,
    /// The limits, that which binds first at the front.
    pub limits: Vec<Bound>,
}

/// For each number of [`NICS`] and each size of [`PAGES`] at a site: pages come from its nodes, one NIC leads to each of them, and loaded NICs answer
/// later than idle ones.
pub fn ceilings(site: &Site) -> Vec<Ceiling> {
    let all = NICS.iter().flat_map(|nics| PAGES.iter().map(|page| (*nics, *page)));
    all.map(|(nics, page_bytes)| {
        ceiling(&Site {
            nics,
            page_bytes,
            ..*site
        })
    })
    .collect()
}

fn ceiling(site: &Site) -> Ceiling {
    let nic = site.nic();
    let pairs = Queues::pairs_by_limits(&nic, site.page_bytes, site.homes());
    let queue_pairs = site.nodes.saturating_mul(pairs.into());
    let used = site.nics.min(site.nodes) as f64;
    let loaded = NicLimits {
        latency_ns: (nic.latency_ns as f64 * Queues::LOADED) as u64,
        ..nic
    };
    let of_nics = Limit::ALL.map(|limit| {
        let rate = loaded.reads_per_second(limit, site.page_bytes, queue_pairs, Queues::DEPTH_BY_DEFAULT);
        // Each NIC has the first two for itself. Queue pairs were counted over all.
        let times = match limit {
            Limit::Link | Limit::Messages => used,
            Limit::ReadsInFlight | Limit::SendQueues => 1.0,
        };
        Bound {
            limit: limit.name(),
            pages_per_second: rate * times,
        }
    });
    let host_link = Bound {
        limit: HOST_LINK,
        pages_per_second: HOST_LINK_BYTES_PER_SECOND / site.page_bytes as f64,
    };
    let mut limits: Vec<Bound> = of_nics.into_iter().chain([host_link]).collect();
    limits.sort_by(|a, b| a.pages_per_second.total_cmp(&b.pages_per_second));
    Ceiling {
        nics: site.nics,
        page_bytes: site.page_bytes,
        queue_pairs,
        limits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(site: &Site, nics: u64, page_bytes: u64) -> Ceiling {
        let all = ceilings(site).into_iter();
        let mut of = all.filter(|ceiling| (ceiling.nics, ceiling.page_bytes) == (nics, page_bytes));
        of.next().expect("a row")
    }

    fn rate(ceiling: &Ceiling, limit: &str) -> f64 {
        let found = ceiling.limits.iter().find(|bound| bound.limit == limit);
        found.expect("a limit").pages_per_second
    }

    #[test]
    fn each_limit_is_what_its_numbers_say() {
        let site = Site::default();
        assert_eq!(ceilings(&site).len(), NICS.len() * PAGES.len());
        for (nics, page) in NICS.into_iter().flat_map(|nics| PAGES.map(|page| (nics, page))) {
            let ceiling = found(&site, nics, page);
            assert!(
                ceiling
                    .limits
                    .is_sorted_by(|a, b| a.pages_per_second <= b.pages_per_second)
            );
            let on_link = page + page.div_ceil(4096) * 86;
            let pairs = site.nodes * u64::from(Queues::pairs_by_limits(&NIC, page, site.nodes + nics));
            assert_eq!(ceiling.queue_pairs, pairs);
            for (limit, expected) in [
                ("link", nics as f64 * 50e9 / on_link as f64),
                ("messages", nics as f64 * 215e6),
                ("reads in flight", pairs as f64 * 16.0 / 10e-6),
                ("send queues", pairs as f64 * 256.0 / 10e-6),
                ("host link", 51.4e9 / page as f64),
            ] {
                let found = rate(&ceiling, limit);
                assert!(
                    (found / expected - 1.0).abs() < 1e-9,
                    "{nics} NICs, {page} bytes, {limit}: {found}"
                );
            }
        }
    }

    #[test]
    fn another_limit_binds_at_another_site() {
        let first = |site: &Site, nics, page| found(site, nics, page).limits[0].limit;
        let many = Site::default();
        // The GPU has one link, which is hardly more than that of one NIC.
        for page in PAGES {
            assert_eq!(first(&many, 1, page), "link");
            assert!(NICS[1..].iter().all(|nics| first(&many, *nics, page) == HOST_LINK));
        }
        // One node is behind one NIC, however many there are.
        let one = Site { nodes: 1, ..many };
        assert_eq!(first(&one, 8, 4096), "link");
        // Far away: more would have to be in flight than the most queue pairs that the library makes allow.
        let far = Site {
            latency_us: 200.0,
            ..one
        };
        assert_eq!(first(&far, 1, 512), "reads in flight");
    }
}
