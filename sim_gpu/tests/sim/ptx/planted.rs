//! Mistakes that a rewriter could make, planted into what it wrote: kernels that run over pages in many places show each of them, by their
//! results, by the marks, or by a fault.

use std::collections::BTreeSet;

use super::{LaunchConfig, load_calling};
use crate::common::{Bed, builder};
use gpuvm_gpu::{DeviceMemory, Gpu, GpuError, Source};
use gpuvm_ptx::{Rewritten, TableLayout, Window, rewrite};
use gpuvm_sim_gpu::Mode;

pub(super) const PAGE: u64 = 4096;
const WORDS: u64 = PAGE / 4;
/// Pages of each array, and its elements.
const PAGES: u64 = 5;
const N: u64 = PAGES * WORDS;
/// Nothing is mapped there.
const BASE: u64 = 1 << 46;
/// The arrays' first pages: of y the bytes before it take more than 32 bits.
const X: u64 = 10;
const Y: u64 = (1 << 20) + 300;

pub(super) const KERNELS: &str = include_str!("planted.ptx");

/// Numbers that repeat with a seed.
pub(super) struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}

/// Two arrays in a window.
pub(super) struct Paged {
    pub(super) bed: Bed,
    entries: DeviceMemory,
    marks: DeviceMemory,
    /// Of kernels that call: pins of the pages, whose number is never changed by others, and their last argument.
    calls: Option<(DeviceMemory, Vec<u8>)>,
    /// Where the pages of x and of y may be: frames, and homes behind them.
    memory: DeviceMemory,
    pages: u64,
    layout: TableLayout,
}

/// What a kernel stores and loads: the elements of y that it leaves behind, and the pages of x and y that it loads from, and stores to.
struct Wanted {
    y: Vec<u32>,
    loaded: BTreeSet<u64>,
    stored: BTreeSet<u64>,
}

impl Paged {
    fn new(rewritten: &Rewritten, layout: TableLayout, mode: Mode) -> Result<Self, GpuError> {
        Self::with(rewritten, layout, mode, None)
    }

    /// Of kernels that call a library, if there is one.
    pub(super) fn with(
        rewritten: &Rewritten,
        layout: TableLayout,
        mode: Mode,
        library: Option<&Source>,
    ) -> Result<Self, GpuError> {
        let gpu = builder().mode(mode).build()?;
        let mut window: Window = layout.window(BASE..BASE + (5 << 30)).unwrap();
        let pages = layout.pages(&window);
        let (entries, marks) = (gpu.allocate(pages * 8, 256)?, gpu.allocate(pages, 256)?);
        (window.entries, window.marks) = (entries.addr(), marks.addr());
        let memory = gpu.allocate(4 * PAGES * PAGE, PAGE)?;
        let calls = match library {
            None => None,
            Some(_) => {
                let pins = gpu.allocate(pages * 4, 256)?;
                gpu.write(pins.addr(), &vec![0; (pages * 4) as usize])?;
                let last = [BASE, window.entries, window.marks, pins.addr()];
                Some((pins, last.into_iter().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>()))
            }
        };
        let module = load_calling(&gpu, rewritten, window, library.map(|source| (source, 32)))?;
        let stream = gpu.stream()?;
        Ok(Self {
            bed: Bed { module, stream, gpu },
            entries,
            marks,
            calls,
            memory,
            pages,
            layout,
        })
    }

    /// Runs a kernel over pages in other places each time. An error says what differs.
    pub(super) fn run(&self, numbers: &mut Numbers, name: &str) -> Result<(), String> {
        let gpu = &self.bed.gpu;
        let mut slots: Vec<u64> = (0..4 * PAGES).collect();
        let numbers_of_pages: Vec<u64> = (X..X + PAGES).chain(Y..Y + PAGES).collect();
        let mut at_home = BTreeSet::new();
        let mut places = Vec::new();
        for page in &numbers_of_pages {
            let slot = slots.swap_remove(numbers.below(slots.len() as u64) as usize);
            let place = self.memory.addr() + slot * PAGE;
            if slot >= 2 * PAGES {
                at_home.insert(*page);
            }
            let entry = self.layout.entry(BASE + page * PAGE, place, slot >= 2 * PAGES);
            gpu.write(self.entries.addr() + page * 8, &entry.to_ne_bytes()).unwrap();
            places.push(place);
        }
        gpu.write(self.memory.addr(), &vec![0xa5; (4 * PAGES * PAGE) as usize])
            .unwrap();
        gpu.write(self.marks.addr(), &vec![0; self.pages as usize]).unwrap();
        let x: Vec<u32> = (0..N).map(|_| numbers.below(1 << 20) as u32).collect();
        for (place, words) in std::iter::zip(&places, x.chunks(WORDS as usize)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            gpu.write(*place, &bytes).unwrap();
        }
        let (n, m) = (numbers.below(N - 8) as u32, numbers.below(N - 8) as u32);
        let wanted = wanted(name, &x, n, m);
        let [x_at, y_at] = [X, Y].map(|page| (BASE + page * PAGE).to_ne_bytes());
        let (n, m) = (n.to_ne_bytes(), m.to_ne_bytes());
        let mut arguments: Vec<&[u8]> = vec![&x_at, &y_at, &n, &m];
        arguments.extend(self.calls.iter().map(|(_, last)| &last[..]));
        let config = LaunchConfig::linear((N / 64) as u32 + 32, 64);
        let outcome = self.bed.outcome(name, &config, &arguments);
        outcome.map_err(|error| format!("{name}: {error}"))?;

        let mut found = Vec::new();
        for place in &places {
            let mut bytes = vec![0; PAGE as usize];
            gpu.read(*place, &mut bytes).unwrap();
            found.extend(bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)));
        }
        let all = [x, wanted.y].concat();
        if let Some(at) = (0..all.len()).find(|at| all[*at] != found[*at]) {
            return Err(format!("{name}: word {at}: {:#x} and not {:#x}", found[at], all[at]));
        }
        if let Some((pins, _)) = &self.calls {
            let mut held = vec![0; (self.pages * 4) as usize];
            gpu.read(pins.addr(), &mut held).unwrap();
            if held.iter().any(|byte| *byte != 0) {
                return Err(format!("{name}: a pin that nobody gave back"));
            }
        }
        let mut marks = vec![0; self.pages as usize];
        gpu.read(self.marks.addr(), &mut marks).unwrap();
        let marked: BTreeSet<u64> = (0..self.pages).filter(|page| marks[*page as usize] != 0).collect();
        let mut to_mark = wanted.stored;
        // With touches: what was loaded at home.
        if self.layout.entry(BASE, BASE, true) == 1 {
            to_mark.extend(wanted.loaded.intersection(&at_home));
        }
        match marked == to_mark {
            true => Ok(()),
            false => Err(format!("{name}: the marks {marked:?} and not {to_mark:?}")),
        }
    }
}

/// What `planted.ptx` does.
fn wanted(name: &str, x: &[u32], n: u32, m: u32) -> Wanted {
    let mut wanted = Wanted {
        y: vec![0xa5a5_a5a5; N as usize],
        loaded: BTreeSet::new(),
        stored: BTreeSet::new(),
    };
    let mut load = |at: usize| {
        wanted.loaded.insert(X + at as u64 / WORDS);
        x[at]
    };
    let mut stores = Vec::new();
    for i in 0..N as usize + 32 * 64 {
        let (is_first, is_second) = ((i as u32) < n, (i as u32) < m);
        match name {
            "guarded" => {
                let first = if is_first { load(i + 2) } else { 0 };
                let second = if is_second { load(i + 3) } else { 0 };
                if is_first {
                    stores.push((i + 2, first.wrapping_add(second)));
                }
            }
            "alone" if is_first => stores.push((i + 4, load(i + 1))),
            "neighbours" if is_first => {
                let sum = load(i).wrapping_add(load(i + 1).wrapping_mul(3));
                stores.push((i, sum.wrapping_add(load(i + 2).wrapping_mul(5))));
            }
            "pairs" if is_first && i % 2 == 0 => {
                let (left, right) = (load(i), load(i + 1));
                stores.extend([(i + 2, right), (i + 3, left)]);
            }
            // Every other element goes through shared memory.
            "generic" if is_first => match i % 2 {
                0 => stores.push((i, i as u32 ^ 77)),
                _ => stores.push((i, load(i))),
            },
            _ => {}
        }
    }
    for (at, value) in stores {
        wanted.y[at] = value;
        wanted.stored.insert(Y + at as u64 / WORDS);
    }
    wanted
}

/// What is wrong with a text, in some runs with several seeds.
fn wrong(rewritten: &Rewritten, layout: TableLayout, kernels: &[&str]) -> Option<String> {
    wrong_by(kernels, |mode| Paged::new(rewritten, layout, mode))
}

/// What is wrong with kernels in some runs of what is made for each mode.
pub(super) fn wrong_by(kernels: &[&str], make: impl Fn(Mode) -> Result<Paged, GpuError>) -> Option<String> {
    for mode in [Mode::Fast, Mode::Seeded(7)] {
        let paged = match make(mode) {
            Ok(paged) => paged,
            Err(error) => panic!("a text that does not compile shows nothing: {error}"),
        };
        let mut numbers = Numbers(3);
        let runs = if mode == Mode::Fast { 6 } else { 1 };
        for _ in 0..runs {
            for name in kernels {
                if let Err(wrong) = paged.run(&mut numbers, name) {
                    return Some(wrong);
                }
            }
        }
    }
    None
}

fn layouts() -> [TableLayout; 2] {
    [false, true].map(|touches| TableLayout::new(PAGE).unwrap().touches(touches))
}

pub(super) const ALL: [&str; 5] = ["guarded", "alone", "neighbours", "pairs", "generic"];

/// Plants a mistake, with touches or without, which some run of these kernels has to show.
fn is_seen(touches: bool, kernels: &[&str], wanted: &str, instead: &str) {
    let layout = layouts()[usize::from(touches)];
    let mut rewritten = rewrite(KERNELS.as_bytes(), &layout).unwrap();
    assert!(rewritten.text.contains(wanted), "{wanted}\n{}", rewritten.text);
    rewritten.text = rewritten.text.replace(wanted, instead);
    let seen = wrong(&rewritten, layout, kernels);
    assert!(seen.is_some(), "`{wanted}` => `{instead}` was not seen");
}

#[test]
fn rewritten_kernels_do_what_they_did_wherever_pages_are() {
    for layout in layouts() {
        let rewritten = rewrite(KERNELS.as_bytes(), &layout).unwrap();
        assert_eq!(wrong(&rewritten, layout, &ALL), None);
    }
}

#[test]
fn a_guard_that_is_dropped_is_seen() {
    is_seen(false, &["guarded"], "@%p1 st.global.u32", "st.global.u32");
    // That of the look-up: what nobody stores to is marked.
    let both = ["%gpuvm_h, %gpuvm_w, %p1;", "%gpuvm_h, %gpuvm_w, %p2;"];
    is_seen(
        false,
        &["guarded"],
        &format!("setp.lt.and.u32 %gpuvm_p, {}", both[0]),
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
    );
}

#[test]
fn an_offset_that_is_added_twice_is_seen() {
    is_seen(
        false,
        &["alone"],
        "st.global.u32 [%gpuvm_a], %r9",
        "st.global.u32 [%gpuvm_a+16], %r9",
    );
    is_seen(false, &["neighbours"], "[%gpuvm_x0+8]", "[%gpuvm_x0+16]");
}

#[test]
fn the_second_half_over_a_page_s_end_is_seen() {
    // All by the page of the last address, and all by that of the first one.
    let choice = "selp.b64 %gpuvm_a, %gpuvm_y0, %gpuvm_x0, %gpuvm_p;";
    is_seen(false, &["neighbours"], choice, "mov.b64 %gpuvm_a, %gpuvm_x0;");
    is_seen(
        false,
        &["neighbours"],
        "%gpuvm_f, [%gpuvm_t+-8];",
        "%gpuvm_f, [%gpuvm_t];",
    );
}

#[test]
fn a_generic_address_of_shared_memory_that_is_looked_up_is_seen() {
    is_seen(
        false,
        &["generic"],
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
        "setp.lt.u32 %gpuvm_p, 0, %gpuvm_w;",
    );
}

#[test]
fn a_store_without_its_mark_is_seen() {
    let mark = "@%gpuvm_p st.global.u8 [%gpuvm_t], %gpuvm_w;";
    is_seen(false, &["alone"], mark, "");
    // One at another page.
    is_seen(
        false,
        &["pairs"],
        "mad.wide.u32 %gpuvm_t, %gpuvm_i, 1, %gpuvm_t;",
        "mad.wide.u32 %gpuvm_t, %gpuvm_i, 1, %gpuvm_t;\nadd.s64 %gpuvm_t, %gpuvm_t, 1;",
    );
}

#[test]
fn an_index_of_32_bits_is_seen() {
    is_seen(
        false,
        &["alone"],
        "shf.r.clamp.b32 %gpuvm_i, %gpuvm_i, %gpuvm_h, 12;",
        "shr.u32 %gpuvm_i, %gpuvm_i, 12;",
    );
}

#[test]
fn marks_of_loads_that_are_missing_or_at_pages_in_frames_are_seen() {
    let at_home = "setp.ne.u32 %gpuvm_p, %gpuvm_h, 0;";
    is_seen(true, &["alone"], at_home, "setp.ne.u32 %gpuvm_p, 0, 0;");
    is_seen(
        true,
        &["alone"],
        "and.b32 %gpuvm_h, %gpuvm_h, 1;",
        "mov.b32 %gpuvm_h, 1;",
    );
    // The flag that stays in the place.
    is_seen(true, &["generic"], "and.b64 %gpuvm_e, %gpuvm_e, -2;", "");
}
