//! The untyped core: regions, buffers and arguments whose types are known at run time alone do what typed ones do.

use crate::common::{refused, says, simulated, small};
use gpuvm::{Arg, ElementType, LaunchConfig, Vm};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>
__global__ void scale(gpuvm::array<const float> from, gpuvm::array<double> to, unsigned long long by, unsigned* seen) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < from.size() && !from.failed(); i += gridDim.x * blockDim.x) {
        float value = from[i];
        to[i] = value * double(by);
        atomicAdd(&seen[i % 4], 1u);
    }
}";
const N: u64 = 20_000;
const BY: u64 = 3;

fn vm() -> Vm {
    small(4).build().unwrap()
}

fn config() -> LaunchConfig {
    LaunchConfig::new(4, 64)
}

/// Sums and counts by the typed face.
fn typed(vm: &Vm) -> (Vec<f64>, Vec<u32>) {
    let from = vm.region::<f32>().name("from").read_only();
    let from = from.from_iter((0..N).map(|i| i as f32)).unwrap();
    let to = vm.region::<f64>().name("to").zeroed(N).unwrap();
    let seen = vm.buffer::<u32>(4).unwrap();
    let scale = vm.kernel("scale.cu", SOURCE, "scale").unwrap();
    let launch = scale.launch(config(), (&from, &to, BY, &seen)).unwrap();
    launch.sync().unwrap();
    (to.to_vec().unwrap(), seen.to_vec().unwrap())
}

/// Sums and counts as a face that has bytes and names of types would have them.
fn untyped(vm: &Vm) -> (Vec<u8>, Vec<u8>) {
    let values: Vec<u8> = (0..N).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let from = vm.raw_region(ElementType::F32).name("from").read_only();
    let from = from.from_bytes(&values).unwrap();
    let to = vm.raw_region(ElementType::F64).name("to").zeroed(N).unwrap();
    let seen = vm.raw_buffer(ElementType::U32, 4).unwrap();
    let scale = vm.kernel("scale.cu", SOURCE, "scale").unwrap();
    let by = BY.to_ne_bytes();
    let args = [
        Arg::from(&from),
        Arg::from(&to),
        Arg::value(ElementType::U64, &by),
        Arg::from(&seen),
    ];
    scale.launch_raw(config(), &args).unwrap().sync().unwrap();
    let (mut sums, mut counts) = (vec![0; 8 * N as usize], vec![0; 16]);
    to.read_bytes(0, &mut sums).unwrap();
    seen.read_bytes(&mut counts).unwrap();
    // What the host stores is what it reads.
    to.write_bytes(7, &1.5f64.to_ne_bytes()).unwrap();
    let mut stored = [0; 8];
    to.read_bytes(7, &mut stored).unwrap();
    assert_eq!(f64::from_ne_bytes(stored), 1.5);
    to.close().unwrap();
    (sums, counts)
}

#[test]
fn it_does_what_the_typed_face_does() {
    let vm = vm();
    let (sums, counts) = typed(&vm);
    assert_eq!((sums[1], sums[N as usize - 1]), (3.0, (BY * (N - 1)) as f64));
    assert_eq!(counts, [N as u32 / 4; 4]);
    let (raw_sums, raw_counts) = untyped(&vm);
    let sums: Vec<u8> = sums.iter().flat_map(|sum| sum.to_ne_bytes()).collect();
    let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_ne_bytes()).collect();
    assert!(sums == raw_sums && counts == raw_counts);
}

#[test]
fn wrong_sizes_and_types_are_errors_that_name_them() {
    let vm = vm();
    let from = vm.raw_region(ElementType::F32).name("from").zeroed(4).unwrap();
    let to = vm.raw_region(ElementType::F64).name("to").zeroed(4).unwrap();
    let seen = vm.raw_buffer(ElementType::U32, 4).unwrap();
    let scale = vm.kernel("scale.cu", SOURCE, "scale").unwrap();
    let (eight, four) = ([0; 8], [0; 4]);
    let by = || Arg::value(ElementType::U64, &eight);
    for (args, parts) in [
        (vec![Arg::from(&from)], ["1 arguments were given", "4"]),
        (
            vec![Arg::from(&to), Arg::from(&to), by(), Arg::from(&seen)],
            ["argument 1", "region `to` of f64"],
        ),
        (
            vec![Arg::from(&from), Arg::from(&seen), by(), Arg::from(&seen)],
            ["argument 2", "a buffer of u32"],
        ),
        (
            vec![
                Arg::from(&from),
                Arg::from(&to),
                Arg::value(ElementType::U32, &four),
                Arg::from(&seen),
            ],
            ["argument 3", "a value of type u32"],
        ),
        (
            vec![
                Arg::from(&from),
                Arg::from(&to),
                Arg::value(ElementType::U64, &four),
                Arg::from(&seen),
            ],
            ["argument 3", "4 bytes were given for a u64"],
        ),
    ] {
        let message = refused(scale.launch_raw(config(), &args).map(|_| ()));
        assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
    }
    let mut odd = [0; 7];
    for message in [
        refused(from.read_bytes(0, &mut odd)),
        refused(from.write_bytes(0, &odd)),
        refused(seen.read_bytes(&mut odd)),
        refused(seen.write_bytes(&odd)),
    ] {
        assert!(
            message.contains("7 bytes are not a multiple of the element size"),
            "{message}"
        );
    }
    says(
        &refused(from.read_bytes(4, &mut odd[..4])),
        &["elements 4..5 of `from` are out of range"],
    );
    let message = refused(vm.raw_region(ElementType::U16).from_bytes(&odd).map(|_| ()));
    says(
        &message,
        &["has 7 bytes, not a multiple of the element size of 2 bytes"],
    );
    let message = refused(
        vm.raw_region(ElementType::structure("triple", 12, 4))
            .zeroed(3)
            .map(|_| ()),
    );
    says(&message, &["region `triple`", "element size of 12 bytes"]);
}

#[test]
fn a_broadcast_array_of_bytes_is_the_typed_one() {
    let vm = vm();
    let values: Vec<u8> = (0..1000u32).flat_map(u32::to_ne_bytes).collect();
    let array = vm.raw_broadcast(ElementType::U32).name("array").from_bytes(&values);
    let array = array.unwrap();
    assert_eq!((array.len(), array.element()), (1000, &ElementType::U32));
    let source = r"
#include <gpuvm/gpuvm.cuh>
__global__ void add(gpuvm::broadcast<unsigned> a) { for (auto i = threadIdx.x; i < a.size(); i += blockDim.x) a[i] = a[i] + 1; }";
    let add = vm.kernel("add.cu", source, "add").unwrap();
    let launch = add.launch_raw(LaunchConfig::new(1, 32), &[Arg::from(&array)]);
    launch.unwrap().sync().unwrap();
    array.write_bytes(5, &77u32.to_ne_bytes()).unwrap();
    let mut found = vec![0; 4000];
    array.read_bytes(0, &mut found).unwrap();
    let wanted = (1..=1000u32).map(|value| if value == 6 { 77 } else { value });
    assert!(wanted.flat_map(u32::to_ne_bytes).eq(found));
    // The home has what the array was made of, until a flush.
    let mut home = [0; 4];
    array.read_home_bytes(5, &mut home).unwrap();
    assert_eq!(u32::from_ne_bytes(home), 5);
    array.flush().unwrap();
    array.read_home_bytes(5, &mut home).unwrap();
    assert_eq!(u32::from_ne_bytes(home), 77);
    for message in [
        refused(array.read_bytes(999, &mut [0; 8])),
        refused(array.write_bytes(1000, &[0; 4])),
        refused(array.read_home_bytes(u64::MAX, &mut home)),
    ] {
        assert!(message.contains("of `array` are out of range"), "{message}");
    }
    let message = refused(vm.raw_broadcast(ElementType::U32).from_bytes(&[0; 6]).map(|_| ()));
    assert!(
        message.contains("6 bytes are not a multiple of the element size"),
        "{message}"
    );
}

#[test]
fn parts_of_a_buffer_are_read_and_written() {
    let vm = vm();
    let buffer = vm.raw_buffer(ElementType::U16, 5).unwrap();
    buffer.write_bytes_from(3, &[1, 2, 3, 4]).unwrap();
    let mut found = [9; 6];
    buffer.read_bytes_from(2, &mut found).unwrap();
    assert_eq!(found, [0, 0, 1, 2, 3, 4]);
    for message in [
        refused(buffer.write_bytes_from(4, &[0; 4])),
        refused(buffer.read_bytes_from(u64::MAX, &mut found)),
    ] {
        assert!(message.contains("of `buffer` are out of range"), "{message}");
    }
}

#[test]
fn memory_is_lent_without_a_scope_until_the_region_is_closed() {
    let vm = vm();
    let source = r"
#include <gpuvm/gpuvm.cuh>
__global__ void negate(gpuvm::array<int> a) { for (auto i = threadIdx.x; i < a.size(); i += blockDim.x) a[i] = -a[i]; }";
    let negate = vm.kernel("negate.cu", source, "negate").unwrap();
    let mut memory: Vec<i32> = (0..N as i32).collect();
    let base = memory.as_mut_ptr().cast();
    // SAFETY: `memory` is left alone until `close` has returned.
    let lend = |name: &str| unsafe { vm.raw_region(ElementType::I32).name(name).from_owner((), base, 4 * N) };
    let lent = lend("lent").unwrap();
    // Refused before anybody uses it.
    let again = lend("again");
    let message = refused(again.map(|_| ()));
    assert!(message.contains("region `again` overlaps region `lent`"), "{message}");
    let launch = negate.launch_raw(LaunchConfig::new(1, 64), &[Arg::from(&lent)]);
    // Closed while the launch runs, for which it waits.
    lent.close().unwrap();
    launch.unwrap().sync().unwrap();
    assert!(memory.iter().zip(0..).all(|(found, i)| *found == -i));
}

/// Memory that says when it is given back.
struct Owner {
    bytes: Vec<u8>,
    gone: Arc<AtomicBool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
    }
}

#[test]
fn memory_that_an_owner_keeps_is_used_in_place_and_given_back() {
    let vm = vm();
    let gone = Arc::new(AtomicBool::new(false));
    let mut owner = Owner {
        bytes: vec![0; 8 * N as usize],
        gone: Arc::clone(&gone),
    };
    let (base, bytes) = (owner.bytes.as_mut_ptr(), owner.bytes.len() as u64);
    // SAFETY: the owner keeps the bytes, to which nothing else has a reference.
    let to = unsafe {
        vm.raw_region(ElementType::F64)
            .name("to")
            .from_owner(owner, base, bytes)
    }
    .unwrap();
    assert_eq!(to.len(), N);
    let from = vm
        .region::<f32>()
        .read_only()
        .from_iter((0..N).map(|i| i as f32))
        .unwrap();
    let seen = vm.buffer::<u32>(4).unwrap();
    let scale = vm.kernel("scale.cu", SOURCE, "scale").unwrap();
    let by = BY.to_ne_bytes();
    let args = [
        Arg::from(&from),
        Arg::from(&to),
        Arg::value(ElementType::U64, &by),
        Arg::from(&seen),
    ];
    scale.launch_raw(config(), &args).unwrap().sync().unwrap();
    to.flush().unwrap();
    // SAFETY: the region keeps the owner, nothing is dirty and no kernel runs.
    let last = unsafe { base.cast::<f64>().add(N as usize - 1).read_unaligned() };
    assert_eq!(last, (BY * (N - 1)) as f64);
    // SAFETY: never reached, since the memory is another region's.
    let again = unsafe { vm.raw_region(ElementType::F64).from_owner((), base, bytes) };
    assert!(refused(again.map(|_| ())).contains("overlaps region `to`"));
    // SAFETY: never reached, since it is not a multiple of the element size.
    let part = unsafe { vm.raw_region(ElementType::F64).from_owner((), base, 12) };
    assert!(refused(part.map(|_| ())).contains("12 bytes"));
    assert!(!gone.load(Ordering::Acquire));
    to.close().unwrap();
    drop(vm);
    assert!(gone.load(Ordering::Acquire));
}

#[test]
fn addresses_are_those_of_plain_memory() {
    let vm = vm();
    let buffer = vm.raw_buffer(ElementType::U32, 4).unwrap();
    buffer.write_bytes(&7u32.to_ne_bytes().repeat(4)).unwrap();
    let mut word = [0; 4];
    vm.device().read(buffer.addr() + 12, &mut word).unwrap();
    assert_eq!(u32::from_ne_bytes(word), 7);
    let values: Vec<u8> = (0..N).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let make = || vm.raw_region(ElementType::F32).read_only();
    let from = make().never_evicted().from_bytes(&values).unwrap();
    let paged = make().from_bytes(&values).unwrap();
    assert_eq!(from.resident_addr().unwrap(), None, "no kernel has touched it");
    let to = vm.raw_region(ElementType::F64).zeroed(N).unwrap();
    let seen = vm.buffer::<u32>(4).unwrap();
    let scale = vm.kernel("scale.cu", SOURCE, "scale").unwrap();
    let by = BY.to_ne_bytes();
    for from in [&from, &paged] {
        let args = [
            Arg::from(from),
            Arg::from(&to),
            Arg::value(ElementType::U64, &by),
            Arg::from(&seen),
        ];
        scale.launch_raw(config(), &args).unwrap().sync().unwrap();
    }
    assert_eq!(paged.resident_addr().unwrap(), None);
    let addr = from.resident_addr().unwrap().expect("all of it is there");
    vm.device().read(addr + 4 * (N - 1), &mut word).unwrap();
    assert_eq!(f32::from_ne_bytes(word), (N - 1) as f32);
}

#[test]
fn modules_that_were_compiled_before_need_no_compiler() {
    // The child is this test again, with a compiler that is not there.
    const CHILD: &str = "GPUVM_TEST_PRECOMPILED";
    let run = |builder: gpuvm::VmBuilder| -> gpuvm::Result<Vm> {
        let vm = builder.build()?;
        let kernel = vm.kernel("scale.cu", SOURCE, "scale")?;
        let from = vm.region::<f32>().read_only().from_slice(&[1.5; 100])?;
        let (to, seen) = (vm.region::<f64>().zeroed(100)?, vm.buffer::<u32>(4)?);
        kernel.launch(config(), (&from, &to, BY, &seen))?.sync()?;
        assert_eq!(to.to_vec()?, [4.5; 100]);
        Ok(vm)
    };
    if let Some(compiled) = std::env::var_os(CHILD) {
        let vm = run(simulated(4).precompiled(&compiled)).unwrap();
        let another = vm.kernel("scale.cu", &format!("{SOURCE}\n// Changed."), "scale");
        assert!(refused(another.map(|_| ())).contains("no C++ compiler"));
        for entry in std::fs::read_dir(&compiled).unwrap() {
            std::fs::write(entry.unwrap().path(), "damaged").unwrap();
        }
        let damaged = refused(simulated(4).precompiled(&compiled).build().map(|_| ()));
        assert!(damaged.contains("no C++ compiler"), "{damaged}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let compiled = folder.path().join("compiled");
    run(simulated(4).precompile_into(&compiled)).unwrap();
    let entries = std::fs::read_dir(&compiled).unwrap().count();
    assert_eq!(entries, 2, "the runtime's own module, and the other");
    let nowhere = folder.path().join("nowhere");
    let missing = refused(simulated(4).precompiled(&nowhere).build().map(|_| ()));
    assert!(missing.contains("nowhere") && !nowhere.exists(), "{missing}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "untyped::modules_that_were_compiled_before_need_no_compiler"])
        .env("GPUVM_CXX", "/nonexistent/c++")
        .env("GPUVM_CACHE_DIR", folder.path().join("cache"))
        .env(CHILD, &compiled)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
