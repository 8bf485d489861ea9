//! Metrics tell what `Stats` does, by GPU, in a format that others read.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use crate::common::{BASIC, Bench, PAGE_WORDS, small, words};
use gpuvm::{LaunchConfig, Placement, metrics};

/// The value of each sample, by its name and labels; every line is a sample or says of which type some are.
fn samples(text: &str) -> Vec<(String, f64)> {
    let mut types = Vec::new();
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# TYPE ") {
            let (name, kind) = said.split_once(' ').unwrap();
            assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
            assert!(!types.contains(&name), "{name} comes twice");
            types.push(name);
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = sample.split('{').next().unwrap();
        assert_eq!(types.last(), Some(&name), "{line}");
        samples.push((sample.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}"))));
    }
    samples
}

#[test]
fn metrics_are_the_counts_of_each_gpu_while_it_is_there() {
    // So many that no other test of this process has as many.
    const FRAMES: u64 = 1237;
    let bench = Bench::new(small(FRAMES).placement(Placement::Fetch), BASIC);
    let of_frames = |samples: &[(String, f64)]| {
        let own = samples
            .iter()
            .find(|(name, value)| name.starts_with("gpuvm_frames{") && *value == FRAMES as f64);
        own.map(|(name, _)| name["gpuvm_frames".len()..].to_owned())
    };
    let region = bench.vm.region::<u32>().from_slice(&words(1, 20 * PAGE_WORDS)).unwrap();
    let sum = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&region, &sum));
    let address = metrics::serve("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let read = samples(text);
    let labels = of_frames(&read).unwrap();
    let stats = bench.vm.stats().unwrap();
    assert!(stats.pages_fetched >= 20);
    let told = |name: &str| {
        let sample = read.iter().find(|(sample, _)| *sample == format!("{name}{labels}"));
        sample.unwrap_or_else(|| panic!("{name}{labels} in {text}")).1
    };
    for (name, value) in stats.counts() {
        assert_eq!(told(&format!("gpuvm_{name}_total")), value as f64, "{name}");
    }
    let median = format!("gpuvm_fault_seconds{},quantile=\"0.5\"}}", labels.trim_end_matches('}'));
    let (_, seconds) = read.iter().find(|(sample, _)| *sample == median).unwrap();
    assert_eq!(*seconds, stats.fault_ns(0.5) as f64 / 1e9);
    drop((region, sum, bench));
    assert_eq!(of_frames(&samples(&metrics::text())), None);
}
