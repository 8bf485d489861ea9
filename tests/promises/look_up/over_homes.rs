//! A window over the homes themselves, as for programs that nobody rebuilt: a rewritten kernel gets the address that the host has.

use bytemuck::bytes_of;
use gpuvm::{Arg, ElementType};

use super::{N, PLAIN_ADD, SOURCE, add, config, direct, values};
use crate::common::{Bench, PAGE_WORDS, compare, with_causes};

const GRANULE: u64 = 4 << 30;
const PAGE_BYTES: u64 = 4 * PAGE_WORDS;

/// Words that begin at a page of the window, with room for all of `N`.
struct Home(Vec<u32>);

impl Home {
    fn new() -> Self {
        Self(vec![0; (N + 2 * PAGE_WORDS) as usize])
    }

    fn words(&mut self) -> &mut [u32] {
        let start = (self.0.as_ptr() as u64).next_multiple_of(PAGE_BYTES);
        let first = (start - self.0.as_ptr() as u64) / 4;
        &mut self.0[first as usize..][..N as usize]
    }
}

#[test]
fn rewritten_kernels_find_regions_at_the_addresses_of_their_homes() {
    for frames in [40, 7] {
        let mut homes = [Home::new(), Home::new()];
        let [mut wanted, b] = [values(1), values(2)];
        for (home, values) in homes.iter_mut().zip([&wanted, &b]) {
            home.words().copy_from_slice(values);
        }
        let bases = homes.each_mut().map(|home| home.words().as_mut_ptr());
        let addresses = bases.map(|base| base as u64);
        let window = addresses.iter().min().unwrap() & !(GRANULE - 1)
            ..(addresses.iter().max().unwrap() + 4 * N).next_multiple_of(GRANULE);
        let bench = Bench::new(direct(frames).window_over(window), SOURCE);
        let region = |base: *mut u32| {
            let builder = bench.vm.raw_region(ElementType::of::<u32>());
            // SAFETY: the homes live until the regions are closed, and are used by these addresses alone until then.
            unsafe { builder.from_owner((), base.cast(), 4 * N) }.unwrap()
        };
        let regions = bases.map(region);
        let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
        let kernel = module.kernel("plain_add").unwrap();
        for factor in 1..=8u32 {
            let [a, b_there] = &regions;
            let numbers = [bytes_of(&factor), bytes_of(&N)];
            let of = [ElementType::of::<u32>(), ElementType::of::<u64>()];
            let [by, count] = std::array::from_fn(|at| Arg::value(of[at].clone(), numbers[at]));
            let launch = kernel.launch_raw(config(), &[Arg::from(a), Arg::from(b_there), by, count]);
            launch.unwrap().sync().unwrap();
            add(&mut wanted, &b, factor);
            if factor % 3 == 0 {
                // The host writes some pages past the library, after what launches wrote is at home.
                a.flush().unwrap();
                // SAFETY: no launch runs, and nothing else has the address.
                let page = unsafe { std::slice::from_raw_parts_mut(bases[0].add(2 * PAGE_WORDS as usize), 5) };
                page.fill(factor);
                wanted[2 * PAGE_WORDS as usize..][..5].fill(factor);
                a.evict_bytes(2 * PAGE_BYTES..2 * PAGE_BYTES + 20).unwrap();
            }
        }
        assert!(bench.vm.stats().unwrap().pages_fetched > 0, "some pages had frames");
        for region in regions {
            region.close().unwrap();
        }
        let [home, _] = &mut homes;
        compare(home.words(), &wanted).unwrap();
    }
}

#[test]
fn a_home_elsewhere_is_refused() {
    let bench = Bench::new(direct(8).window_over(GRANULE..2 * GRANULE), SOURCE);
    let a = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
    let refused = module.kernel("plain_add").unwrap().launch(config(), (&a, &a, 1u32, N));
    let why = with_causes(&refused.err().unwrap());
    assert!(why.contains("the window over homes"), "{why}");
}
