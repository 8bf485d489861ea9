//! One function for each target. It takes any bytes, and panics when their reader panics or breaks a promise. The fuzzers run
//! these functions, and so does the test `tests/promises/fuzz_targets.rs`, which includes this file.

use std::io::Write;
use std::path::PathBuf;

use gpuvm_memory_node::protocol::{Accept, ConnectRequest, Message, Reject};
use gpuvm_nic::soft::{FaultKind, FaultMix};
use gpuvm_nic::wire::{mlx5, rxe};
use gpuvm_workloads::graph::{GraphSpec, LoadOptions, Weights, reference};

#[path = "../../cli/src/sizes.rs"]
#[allow(dead_code, missing_docs, reason = "the command uses all of it")]
mod sizes;

/// Work requests in mlx5's format: a request that was read reads the same after it was written.
pub fn mlx5_requests(data: &[u8]) {
    let Ok(first) = mlx5::WorkRequest::parse(data) else {
        return;
    };
    // The software NIC asks every request for these.
    let bytes: u64 = first
        .segments
        .iter()
        .map(|segment| segment.len_bytes())
        .fold(0, u64::saturating_add);
    assert!(first.segments.len_bytes() == bytes && first.blocks() >= 1);
    let mut buffer = [0; mlx5::BLOCKS_MAX * mlx5::BLOCK_BYTES];
    // Operations that this library does not know have no written form.
    let Ok(length) = first.emit(&mut buffer) else { return };
    let second = mlx5::WorkRequest::parse(&buffer[..length]).expect("what was written can be read");
    let head = |request: &mlx5::WorkRequest<'_>| {
        let mlx5::WorkRequest {
            index,
            queue_pair,
            fence,
            signalled,
            solicited,
            operation,
            ..
        } = *request;
        (index, queue_pair, fence, signalled, solicited, operation)
    };
    assert_eq!(head(&first), head(&second));
    assert!(first.segments.iter().eq(second.segments.iter()));
}

/// Completions and doorbells in mlx5's format.
pub fn mlx5_completions(data: &[u8]) {
    if let Some(register) = data.first_chunk() {
        let doorbell = mlx5::Doorbell::parse(*register);
        assert_eq!(mlx5::Doorbell::parse(doorbell.emit()), doorbell);
    }
    let Ok(first) = mlx5::Completion::parse(data) else {
        return;
    };
    let mut buffer = [0; mlx5::CQE_BYTES];
    if first.emit(&mut buffer).is_ok() {
        assert_eq!(mlx5::Completion::parse(&buffer), Ok(first));
    }
    assert!(!first.to_string().is_empty());
}

/// Entries and ring headers of SoftRoCE.
pub fn rxe_entries(data: &[u8]) {
    if let Ok(completion) = rxe::Completion::parse(data) {
        let _ = completion.status.syndrome();
    }
    if let Ok(header) = rxe::RingHeader::new_checked(data) {
        for (bytes, slot) in [(0, 0), (data.len() as u64, 48), (1 << 20, 224), (u64::MAX, u32::MAX)] {
            if let Ok((slots, shift)) = header.shape(bytes, slot) {
                // Every slot lies in the ring.
                let end = rxe::RING_HEADER_BYTES as u64 + (u64::from(slots) << shift);
                assert!(end <= bytes, "{slots} slots of 2^{shift} in {bytes} bytes");
            }
        }
    }
    let Ok(first) = rxe::WorkRequest::parse(data) else {
        return;
    };
    let mut buffer = [0; 1024];
    first.emit(&mut buffer).expect("the buffer is long enough");
    assert_eq!(rxe::WorkRequest::parse(&buffer), Ok(first));
}

/// Graph files: edge lists and Matrix Market, plain or gzip, and `.gcsr`, told apart by their first bytes; and GAP's, behind an `s` for
/// `.sg` or a `w` for `.wsg`, which have nothing in their bytes to be known by.
pub fn graph_files(data: &[u8]) {
    let (name, data) = match data {
        [b's', rest @ ..] => (".sg", rest),
        [b'w', rest @ ..] => (".wsg", rest),
        _ => ("", data),
    };
    let data = &with_checksum(data);
    // A file's vertices are allocated even when they have no edge, so large numbers of them would only take memory. Numbers that
    // are refused are tried.
    if data.first() == Some(&b'%')
        && promised(data).is_some_and(|vertices| (1 << 20..=u64::from(u32::MAX)).contains(&vertices))
    {
        return;
    }
    let mut file = tempfile::Builder::new()
        .suffix(name)
        .tempfile()
        .expect("a temporary file");
    file.write_all(data).expect("the file takes it");
    let spec = GraphSpec::File(PathBuf::from(file.path()));
    let graph = match spec.load(&LoadOptions::default(), &mut |_| {}) {
        Ok(graph) => graph,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let weighted = LoadOptions {
        weights: Weights::FromFileOrDrawn,
        verify: true,
        ..LoadOptions::default()
    };
    match spec.load(&weighted, &mut |_| {}) {
        Ok(weighted) => {
            let weights = weighted.weights().expect("they were asked for");
            assert_eq!(weights.len() as u64, graph.csr().edges());
            assert!(weights.iter().all(|weight| *weight > 0) && weighted.csr() == graph.csr());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let csr = graph.csr();
    let (vertices, offsets) = (csr.vertices(), csr.offsets());
    assert_eq!(offsets.len() as u64, u64::from(vertices) + 1);
    assert!(offsets.is_sorted() && offsets.last() == Some(&csr.edges()));
    assert_eq!(csr.neighbours().len() as u64, csr.edges());
    assert!(csr.neighbours().iter().all(|vertex| *vertex < vertices));
    assert!((0..vertices).all(|row| csr.row(row).is_sorted_by(|a, b| a < b) && !csr.row(row).contains(&row)));
    if let Some(source) = csr.first_connected() {
        let levels = reference::bfs(csr, source).expect("the source is a vertex");
        assert_eq!((levels.len(), levels[source as usize]), (vertices as usize, 0));
    }
}

/// A `.gcsr` file whose header has the checksum that fits: without it nothing behind the checksum would be tried.
fn with_checksum(data: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = 112;
    let mut data = data.to_vec();
    if data.starts_with(b"\x89gcsr") && data.len() >= HEADER_BYTES {
        let checksum = crc32c::crc32c(&data[..HEADER_BYTES - 4]);
        data[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
    data
}

/// The first number of a Matrix Market file's line of sizes.
fn promised(data: &[u8]) -> Option<u64> {
    let mut lines = data.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let sizes = lines.find(|line| !line.is_empty() && line[0] != b'%')?;
    let first = sizes.split(u8::is_ascii_whitespace).next()?;
    str::from_utf8(first).ok()?.parse().ok()
}

/// Sizes, shares, counts and graphs as a command line gives them.
pub fn command_line(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(size) = text.parse::<sizes::MemorySize>() {
        for data_bytes in [0, 1, 4096, u64::MAX] {
            size.bytes_of(data_bytes);
        }
    }
    if let Ok(bytes) = sizes::parse_page_bytes(text) {
        assert!(bytes.is_power_of_two() && (4096..=2 << 20).contains(&bytes));
    }
    if let Ok(bytes) = sizes::parse_memory(text) {
        assert!(bytes >= 4096 && sizes::parse_bytes(text) == Ok(bytes));
    }
    if let Ok(bytes) = sizes::parse_mtu(text) {
        assert!((256..=4096).contains(&bytes));
    }
    if let Ok(depth) = sizes::parse_queue_depth(text) {
        assert!(depth.is_power_of_two());
    }
    match text.parse::<GraphSpec>() {
        Ok(GraphSpec::File(path)) => assert_eq!(path, PathBuf::from(text)),
        Ok(_) => assert!(text.contains(':')),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Mixes of faults as a command line gives them.
pub fn fault_mixes(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<FaultMix>() {
        Ok(mix) => {
            let again = mix.to_string().parse();
            assert_eq!(again.as_ref(), Ok(&mix));
            for rate in mix.rates() {
                assert!(rate.odds >= 1 && rate.times != Some(0));
                assert!(FaultKind::all().any(|kind| kind == rate.kind));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What a memory node and its clients send each other.
pub fn node_messages(data: &[u8]) {
    if let Ok(request) = ConnectRequest::parse(data) {
        assert_eq!(ConnectRequest::parse(&request.emit()), Ok(request));
    }
    if let Ok(accept) = Accept::parse(data) {
        assert_eq!(Accept::parse(&accept.emit()), Ok(accept));
    }
    if let Ok(reject) = Reject::parse(data) {
        assert_eq!(Reject::parse(&reject.emit()), Ok(reject));
    }
    if let Ok(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.emit()), Ok(message));
    }
}

/// PTX: what was read is written as it was, and what was rewritten can be read. Of a program its texts are found.
pub fn ptx_modules(data: &[u8]) {
    let _ = gpuvm_ptx::embedded(data);
    for touches in [false, true] {
        let layout = gpuvm_ptx::TableLayout::new(4096).expect("a page size").touches(touches);
        let rewritten = match gpuvm_ptx::rewrite(data, &layout) {
            Ok(rewritten) => rewritten,
            Err(error) => return assert!(error.position().is_some() && !error.to_string().is_empty()),
        };
        let text = str::from_utf8(data).expect("it was text");
        assert_eq!(gpuvm_ptx::Module::parse(text).expect("it was read").write(), text);
        let module = gpuvm_ptx::Module::parse(&rewritten.text).expect("what was rewritten is PTX");
        assert_eq!(module.write(), rewritten.text);
        // By a look-up of their own, or by one that neighbours share.
        let addresses = ["[%gpuvm_a]", "[%gpuvm_a+", "[%gpuvm_x"].map(|at| rewritten.text.matches(at).count());
        assert!(addresses.iter().sum::<usize>() == rewritten.report.changed());
        let called = gpuvm_ptx::rewrite_to_calls(data, &layout, 96).expect("it was rewritten");
        let module = gpuvm_ptx::Module::parse(&called.text).expect("what was rewritten is PTX");
        assert_eq!(module.write(), called.text);
    }
}
