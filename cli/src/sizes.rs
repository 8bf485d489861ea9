//! Sizes, shares and counts as a command line gives them.

use std::time::Duration;

pub use gpuvm_tenants::{MemorySize, parse_bytes};

/// Memory of a node: at least a page.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes @ 0..4096 => Err(format!("{bytes} bytes; give at least one page of 4096 bytes")),
        bytes => Ok(bytes),
    }
}

/// Memory that a neighbour GPU lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrow {
    /// The neighbour's number.
    pub gpu: u32,
    /// How much.
    pub loan: gpuvm::Loan,
}

impl Borrow {
    /// This many bytes of a GPU.
    pub fn of_bytes(gpu: u32, bytes: u64) -> Self {
        let loan = bytes.into();
        Self { gpu, loan }
    }

    /// Bytes that are asked for; none where the loan follows from what is free.
    pub fn bytes(&self) -> Option<u64> {
        match self.loan {
            gpuvm::Loan::Bytes(bytes) => Some(bytes),
            gpuvm::Loan::Auto => None,
        }
    }
}

/// `GPU:SIZE` or `GPU:auto`.
pub fn parse_loan(text: &str) -> Result<Borrow, String> {
    let parts = text
        .split_once(':')
        .and_then(|(gpu, size)| Some((gpu.parse().ok()?, size)));
    let Some((gpu, size)) = parts else {
        return Err(format!("'{text}' names no GPU and size; write 1:8GiB or 1:auto"));
    };
    let loan = match size {
        "auto" => gpuvm::Loan::Auto,
        size => parse_memory(size)?.into(),
    };
    Ok(Borrow { gpu, loan })
}

/// A page: a power of two from 4 KiB to 2 MiB.
pub fn parse_page_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    match bytes {
        4096..=0x20_0000 if bytes.is_power_of_two() => Ok(bytes),
        _ => Err(format!("{bytes} bytes; a page is a power of two from 4KiB to 2MiB")),
    }
}

/// The rest between two samples: from 100 microseconds, below which the sampler would do nothing else, to a minute.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    const REST_MIN: Duration = Duration::from_micros(100);
    const REST_MAX: Duration = Duration::from_secs(60);
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let micros = match &text[unit..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => 0,
    };
    let count = text[..unit].parse::<u64>().ok();
    let rest = count
        .and_then(|count| count.checked_mul(micros))
        .map(Duration::from_micros);
    let rest = rest.filter(|rest| (REST_MIN..=REST_MAX).contains(rest));
    rest.ok_or_else(|| format!("'{text}' is not a time from 100us to 60s; write 500us, 10ms, 1s"))
}

/// The id of a vertex.
pub fn parse_vertex(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("invalid vertex ID '{text}': expected a non-negative integer; leave it out to start at the lowest vertex with neighbours"))
}

/// The address of a memory node: a host's name or address, and a port. Whether there is such a host is found out later.
pub fn parse_node(text: &str) -> Result<String, String> {
    let named = text.rsplit_once(':').filter(|(host, _)| {
        // The colons of an IPv6 address stand in brackets.
        let plain = !host.is_empty() && !host.contains([':', '[', ']']);
        plain || host.starts_with('[') && host.ends_with(']') && host.len() > 2
    });
    match named.and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(1..) => Ok(text.to_owned()),
        _ => Err(format!(
            "invalid node address '{text}': write HOST:PORT with the port that `gpuvm serve` prints, for example 10.9.0.1:7471"
        )),
    }
}

/// A network's MTU in bytes.
pub fn parse_mtu(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(bytes) if bytes.is_power_of_two() && (256..=4096).contains(&bytes) => Ok(bytes),
        _ => Err("an MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned()),
    }
}

/// Requests that a queue pair holds.
pub fn parse_queue_depth(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(depth) if depth.is_power_of_two() && (2..=32_768).contains(&depth) => Ok(depth),
        _ => Err("a queue's depth is a power of two from 2 to 32768".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loans_name_a_gpu_and_a_size() {
        assert_eq!(parse_loan("1:8GiB"), Ok(Borrow::of_bytes(1, 8 << 30)));
        let loan = gpuvm::Loan::Auto;
        assert_eq!(parse_loan("2:auto"), Ok(Borrow { gpu: 2, loan }));
        for text in ["8GiB", "1", "one:8GiB", "1:", "1:12", "-1:8GiB", ":8GiB"] {
            assert!(parse_loan(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nodes_have_a_host_and_a_port() {
        for text in ["10.9.0.1:7471", "node-3.lan:1", "[fe80::1%rxe0]:65535"] {
            assert_eq!(parse_node(text).as_deref(), Ok(text));
        }
        for text in ["x", "x:", ":7471", "x:0", "x:65536", "x:-1", "fe80::1:7471", "[]:1", ""] {
            assert!(parse_node(text).is_err(), "{text}");
        }
    }

    #[test]
    fn intervals_have_units_and_limits() {
        for (text, micros) in [
            ("500us", 500),
            ("10ms", 10_000),
            ("1s", 1_000_000),
            ("100us", 100),
            ("60s", 60_000_000),
        ] {
            assert_eq!(parse_interval(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in [
            "",
            "10",
            "ms",
            "99us",
            "61s",
            "0ms",
            "-1ms",
            "1.5ms",
            "1h",
            "1ms ",
            "1\u{b5}s",
            "18446744073709551615s",
        ] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pages_and_depths_have_limits() {
        assert_eq!(parse_page_bytes("4KiB"), Ok(4096));
        assert_eq!(parse_page_bytes("2M"), Ok(2 << 20));
        for text in ["2KiB", "4MiB", "12KiB", "4KB", "x", "18446744073709551615"] {
            assert!(parse_page_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_queue_depth("64"), Ok(64));
        for text in ["0", "1", "100", "65536", "-2", ""] {
            assert!(parse_queue_depth(text).is_err(), "{text}");
        }
    }
}
