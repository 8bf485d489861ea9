//! Page table and frame bookkeeping take what is promised, and that is what is really allocated.

use crate::common::{PAGE, with_causes};
use gpuvm::{Error, GpuError, Vm};

/// Bytes of GPU memory in use, as the GPU itself counts them.
fn used(vm: &Vm) -> u64 {
    // Asks for more than there is; the refusal says how much that is.
    match vm.buffer::<u8>(1 << 40) {
        Err(Error::Gpu {
            source: GpuError::OutOfMemory { free, capacity, .. },
            ..
        }) => capacity - free,
        Err(other) => panic!("{}", with_causes(&other)),
        Ok(_) => panic!("1 TiB of GPU memory"),
    }
}

fn vm(frames: u64) -> Vm {
    // Its size is set, and nothing else allocates there.
    Vm::builder()
        .gpu(gpuvm::SimulatedGpu::new().memory(256 << 20))
        .frame_memory(frames * PAGE)
        .build()
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

#[test]
fn a_page_takes_16_bytes_at_most_and_gives_them_back() {
    let vm = vm(64);
    let before = used(&vm);
    let counted = vm.bookkeeping_bytes();
    for pages in [1000u64, 100_000] {
        // Half a page at the end counts as one.
        let region = vm.region::<u8>().zeroed(pages * PAGE - 100).unwrap();
        let took = used(&vm) - before;
        assert!(took <= 16 * pages, "{took} bytes for {pages} pages");
        let told = vm.bookkeeping_bytes() - counted;
        // Allocations come in units of 256 bytes.
        assert!(told <= took && took <= told + 256, "{told} told, {took} taken");
        drop(region);
        assert_eq!(used(&vm), before);
        assert_eq!(vm.bookkeeping_bytes(), counted);
    }
}

#[test]
fn a_frame_takes_16_bytes_at_most_beside_its_page() {
    let (few, many) = (vm(1024), vm(9 * 1024));
    let frames = many.frames() - few.frames();
    assert_eq!(frames, 8 * 1024);
    let took = used(&many) - used(&few) - frames * PAGE;
    assert!(took <= 16 * frames + 512, "{took} bytes for {frames} frames");
    let told = many.bookkeeping_bytes() - few.bookkeeping_bytes();
    assert!(told <= 16 * frames);
    assert!(took.abs_diff(told) <= 512, "{told} told, {took} taken");
}

#[test]
fn memory_that_ran_out_is_an_error_that_takes_nothing() {
    let vm = vm(64);
    let before = used(&vm);
    // 8 TiB in pages of 4 KiB: the page table alone is larger than the GPU.
    let error = vm.region::<u8>().name("endless").zeroed(1 << 43).err();
    let message = with_causes(&error.expect("a page table of 16 GiB"));
    assert!(message.contains("`endless`"), "{message}");
    assert_eq!(used(&vm), before);
}
