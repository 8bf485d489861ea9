//! Memory: of the GPU, of the host, of this process, of a neighbour.

use super::*;

#[test]
fn memory_is_zeroed_written_and_read() {
    let Some(gpu) = gpu() else { return };
    for bytes in [1u64, 255, 4096, (2 << 20) - 1, 2 << 20, 100 << 20] {
        let memory = gpu.allocate(bytes, 256).unwrap_or_else(|e| panic!("{bytes}: {e}"));
        let mut out = vec![1u8; bytes as usize];
        gpu.read(memory.addr(), &mut out).expect("live memory");
        assert!(out.iter().all(|&byte| byte == 0), "{bytes} bytes are zeroed");
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        gpu.write(memory.addr(), &data).expect("live memory");
        gpu.read(memory.addr(), &mut out).expect("live memory");
        assert!(out == data, "{bytes} bytes come back");
        let beyond = gpu.read(memory.addr() + bytes - 1, &mut [0; 2]);
        assert!(matches!(beyond, Err(GpuError::BadAddress { .. })), "{beyond:?}");
    }
    // What was used before is zeroed again.
    let again = gpu.allocate(4096, 256).expect("memory");
    assert!(words(&gpu, &again, 1024).iter().all(|&word| word == 0));
    for align in [256u64, 4096, 64 << 10, 2 << 20, 16 << 20] {
        let memory = gpu.allocate(100, align).expect("memory");
        assert_eq!(memory.addr() % align, 0);
    }
    assert!(matches!(gpu.allocate(0, 256), Err(GpuError::BadAllocation { .. })));
    assert!(matches!(gpu.allocate(1, 3), Err(GpuError::BadAllocation { .. })));
    assert!(matches!(gpu.allocate(1 << 46, 256), Err(GpuError::OutOfMemory { .. })));
    let addr = { gpu.allocate(4096, 256).expect("memory").addr() };
    assert!(
        matches!(gpu.read(addr, &mut [0]), Err(GpuError::BadAddress { .. })),
        "freed memory"
    );
}

#[test]
fn host_memory_is_reached_by_kernels() {
    let Some(gpu) = gpu() else { return };
    let add = kernel(
        &gpu,
        "__global__ void add(unsigned* p, unsigned n) { unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] += i; }",
        "add",
    );
    let stream = gpu.stream().expect("a stream");
    for bytes in [4096u64, 64 << 10, 80 << 20] {
        let memory = gpu.allocate_host(bytes).expect("host memory");
        assert_eq!(memory.host_ptr() as u64 % 4096, 0);
        let n = (bytes / 4) as u32;
        let config = LaunchConfig::linear(n.div_ceil(256), 256);
        let report = run(
            &stream,
            &add,
            &config,
            &[&memory.device_addr().to_ne_bytes(), &n.to_ne_bytes()],
            0,
        );
        let report = report.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(report.blocks, u64::from(n.div_ceil(256)));
        assert!(report.elapsed() > Duration::ZERO);
        // SAFETY: the launch has ended, and the memory is live.
        let words = unsafe { std::slice::from_raw_parts(memory.host_ptr().cast::<u32>(), n as usize) };
        assert!(words.iter().enumerate().all(|(i, &word)| word == i as u32));
    }
}

#[test]
fn memory_of_the_process_is_registered_twice() {
    let Some(gpu) = gpu() else { return };
    let sum = kernel(
        &gpu,
        "__global__ void sum(const unsigned char* p, unsigned n, unsigned* out) { unsigned s = 0; for (unsigned i = threadIdx.x; i < n; i += 32) s += p[i]; atomicAdd(out, s); }",
        "sum",
    );
    let stream = gpu.stream().expect("a stream");
    let mut data: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
    let base = data.as_mut_ptr();
    // SAFETY: the vector outlives the registrations, and nothing writes it.
    let register = |from: usize, bytes: usize| unsafe {
        gpu.register_host(base.add(from), bytes as u64, false)
            .unwrap_or_else(|e| panic!("{e}"))
    };
    let ranges = [(3, 100), (50, 9000), (0, 20_000), (3, 100)];
    let mut all: Vec<_> = ranges
        .iter()
        .map(|&(from, bytes)| Some(register(from, bytes)))
        .collect();
    let check = |registration: &gpuvm_gpu::HostRegistration, from: usize, bytes: usize| {
        let out = gpu.allocate(4, 256).expect("memory");
        let (addr, n) = (registration.device_addr().to_ne_bytes(), (bytes as u32).to_ne_bytes());
        run(
            &stream,
            &sum,
            &LaunchConfig::linear(1, 32),
            &[&addr, &n, &out.addr().to_ne_bytes()],
            0,
        )
        .expect("it runs");
        let wanted: u32 = (from..from + bytes).map(|i| u32::from(i as u8)).sum();
        assert_eq!(words(&gpu, &out, 1), [wanted]);
        let mut byte = [0];
        gpu.read(registration.device_addr() + 1, &mut byte)
            .expect("registered memory");
        assert_eq!(byte[0], (from + 1) as u8);
    };
    // In an order that leaves shared pages to others.
    for gone in [2, 0, 1, 3] {
        for (registration, (from, bytes)) in all.iter().zip(ranges) {
            if let Some(registration) = registration {
                check(registration, from, bytes);
            }
        }
        all[gone] = None;
    }
    let again = register(0, 20_000);
    check(&again, 0, 20_000);
    drop(again);
    // SAFETY: nothing lies there, and the driver says so.
    let error = unsafe { gpu.register_host(4096 as *mut u8, 4096, false) }.expect_err("nothing lies there");
    assert!(error.to_string().contains("pin 4096 bytes"), "{error}");
}

#[test]
fn memory_of_a_neighbour() {
    let Some(gpu) = gpu() else { return };
    let (own, all) = (gpu.device_info().ordinal, devices().expect("there is a GPU"));
    assert!(matches!(gpu.allocate_on(own, 4096), Err(GpuError::NoPeer { .. })));
    assert!(matches!(
        gpu.allocate_on(all.len() as u32, 4096),
        Err(GpuError::NoPeer { .. })
    ));
    let Some(other) = all.iter().map(|device| device.ordinal).find(|ordinal| *ordinal != own) else {
        eprintln!("SKIPPED: there is one GPU");
        return;
    };
    let memory = match gpu.allocate_on(other, 64 << 20) {
        Ok(memory) => memory,
        Err(error @ GpuError::NoPeer { .. }) => return eprintln!("SKIPPED: {error}"),
        Err(error) => panic!("{error}"),
    };
    let fill = kernel(
        &gpu,
        "__global__ void fill(unsigned* p) { unsigned i = blockIdx.x * 256 + threadIdx.x; p[i] += i; }",
        "fill",
    );
    let stream = gpu.stream().expect("a stream");
    run(
        &stream,
        &fill,
        &LaunchConfig::linear(1 << 16, 256),
        &[&memory.addr().to_ne_bytes()],
        0,
    )
    .expect("it runs");
    assert!(
        words(&gpu, &memory, 1 << 24)
            .iter()
            .zip(0..)
            .all(|(&word, i)| word == i)
    );
}
