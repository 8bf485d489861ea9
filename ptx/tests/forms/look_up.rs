//! Each form of access: where it goes, with which mark, and in which threads.

use gpuvm_ptx::{AT_HOME, Access, GRANULE_BYTES, TableLayout};

use crate::evaluate::{BASE, Event, PAGES, SHIFT, Thread, place};
use crate::{layout, rewritten};

/// An instruction with `ADDRESS` in it, and what it is.
pub const FORMS: &[(&str, Access)] = &[
    ("ld.global.f32 %f1, ADDRESS;", Access::Load),
    ("ld.u8 %h1, ADDRESS;", Access::Load),
    ("ld.global.v2.f32 {%f1, %f2}, ADDRESS;", Access::Load),
    ("ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, ADDRESS;", Access::Load),
    (
        "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, _, %r8}, ADDRESS;",
        Access::Load,
    ),
    ("ld.global.v4.b64 {%rd11, %rd12, %rd13, %rd14}, ADDRESS;", Access::Load),
    ("ld.global.b128 %q1, ADDRESS;", Access::Load),
    ("ld.global.ca.s8 %r1, ADDRESS;", Access::Load),
    ("ld.global.cg.u64 %rd11, ADDRESS;", Access::Load),
    ("ld.global.cs.b16 %h1, ADDRESS;", Access::Load),
    ("ld.global.lu.u32 %r1, ADDRESS;", Access::Load),
    ("ld.cv.u32 %r1, ADDRESS;", Access::Load),
    ("ld.volatile.global.u32 %r1, ADDRESS;", Access::Load),
    ("ld.weak.global.u32 %r1, ADDRESS;", Access::Load),
    ("ld.relaxed.gpu.global.u32 %r1, ADDRESS;", Access::Load),
    ("ld.acquire.sys.u32 %r1, ADDRESS;", Access::Load),
    ("ld.mmio.relaxed.sys.global.u32 %r1, ADDRESS;", Access::Load),
    ("ld.global.L1::evict_last.L2::128B.u32 %r1, ADDRESS;", Access::Load),
    (
        "ld.global.L2::cache_hint.L2::256B.u32 %r1, ADDRESS, %rd9;",
        Access::Load,
    ),
    (
        "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%f1, %f2, %f3, %f4}, ADDRESS, %rd9;",
        Access::Load,
    ),
    ("ldu.global.u32 %r1, ADDRESS;", Access::Load),
    ("st.global.f32 ADDRESS, %f1;", Access::Store),
    ("st.u16 ADDRESS, %h1;", Access::Store),
    ("st.global.v2.u64 ADDRESS, {%rd11, %rd12};", Access::Store),
    ("st.global.v4.b32 ADDRESS, {%r1, %r2, %r3, 0};", Access::Store),
    (
        "st.global.v8.f32 ADDRESS, {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};",
        Access::Store,
    ),
    ("st.global.b128 ADDRESS, %q1;", Access::Store),
    ("st.global.wb.u32 ADDRESS, 0;", Access::Store),
    ("st.wt.u32 ADDRESS, %r1;", Access::Store),
    ("st.global.cs.u32 ADDRESS, %r1;", Access::Store),
    ("st.volatile.u32 ADDRESS, %r1;", Access::Store),
    ("st.relaxed.cta.global.u32 ADDRESS, %r1;", Access::Store),
    ("st.release.cluster.global.u32 ADDRESS, %r1;", Access::Store),
    (
        "st.global.L1::no_allocate.L2::cache_hint.u32 ADDRESS, %r1, %rd9;",
        Access::Store,
    ),
    ("st.async.mmio.release.sys.global.u32 ADDRESS, %r1;", Access::Store),
    ("atom.global.add.u32 %r1, ADDRESS, %r2;", Access::Atomic),
    ("atom.add.noftz.f16x2 %r1, ADDRESS, %r2;", Access::Atomic),
    (
        "atom.acq_rel.gpu.global.cas.b64 %rd11, ADDRESS, %rd12, %rd13;",
        Access::Atomic,
    ),
    ("atom.global.exch.b128 %q1, ADDRESS, %q2;", Access::Atomic),
    ("atom.relaxed.sys.global.inc.u32 %r1, ADDRESS, 7;", Access::Atomic),
    (
        "atom.global.v2.f32.add {%f1, %f2}, ADDRESS, {%f3, %f4};",
        Access::Atomic,
    ),
    (
        "atom.global.add.L2::cache_hint.f32 %f1, ADDRESS, %f2, %rd9;",
        Access::Atomic,
    ),
    ("red.global.add.f64 ADDRESS, %rd11;", Access::Reduction),
    ("red.relaxed.gpu.max.s32 ADDRESS, %r1;", Access::Reduction),
    (
        "red.global.v4.f32.add ADDRESS, {%f1, %f2, %f3, %f4};",
        Access::Reduction,
    ),
    ("cp.async.ca.shared.global [%r9], ADDRESS, 4;", Access::Copy),
    (
        "cp.async.cg.shared::cta.global.L2::128B [%r9+16], ADDRESS, 16, %r2;",
        Access::Copy,
    ),
    (
        "cp.async.cg.shared.global.L2::cache_hint [%r9], ADDRESS, 16, %rd9;",
        Access::Copy,
    ),
    ("prefetch.global.L1 ADDRESS;", Access::Prefetch),
    ("prefetch.L2 ADDRESS;", Access::Prefetch),
    ("prefetch.global.L2::evict_last ADDRESS;", Access::Prefetch),
    ("prefetchu.L1 ADDRESS;", Access::Prefetch),
    ("applypriority.global.L2::evict_normal ADDRESS, 128;", Access::Prefetch),
    ("discard.global.L2 ADDRESS, 128;", Access::Discard),
];

/// Addresses in all ways to write them, and what they add to the register.
const ADDRESSES: &[(&str, u64)] = &[
    ("[%rd1]", 0),
    ("[%rd1+32]", 32),
    ("[ %rd1 + 0 ]", 0),
    ("[%rd1+-64]", 64_u64.wrapping_neg()),
    ("[%rd1-64]", 64_u64.wrapping_neg()),
    ("[%rd1+0x1000]", 4096),
    ("[%rd1 + 21474836480]", 20 << 30),
];

fn page(address: u64) -> u64 {
    (address - BASE) >> SHIFT
}

/// What a thread does in one instruction.
fn events(instruction: &str, register: u64, layout: &TableLayout) -> Vec<Event> {
    let (text, _) = rewritten(instruction, layout);
    let mut thread = Thread::new(&[("%rd1", register)], &[("%p1", true), ("%p2", false)]);
    thread.flags = *layout == layout.touches(true);
    thread
        .run(&text)
        .unwrap_or_else(|wrong| panic!("{instruction}: {wrong}"));
    thread.events
}

#[test]
fn every_form_goes_where_its_page_is() {
    // Even and odd pages, with numbers of more than 32 bits too, so that offsets lead from one to another.
    let registers = [
        BASE + 4096,
        BASE + (3 << 31) + 128,
        BASE + ((PAGES - (6 << 20)) << SHIFT),
    ];
    for (form, access) in FORMS {
        let (_, report) = rewritten(&form.replace("ADDRESS", "[%rd1]"), &layout());
        assert_eq!(
            (report.changed.len(), report.count(*access), report.left.len()),
            (1, 1, 0),
            "{form}"
        );
        for (text, offset) in ADDRESSES {
            for register in registers {
                let address = register.wrapping_add(*offset);
                if address < BASE {
                    continue;
                }
                let opcode = form.split(' ').next().expect("a word").to_owned();
                let mut wanted = vec![Event::Access(opcode, place(address))];
                if access.writes() {
                    // Before the store.
                    wanted.insert(0, Event::Marked(page(address)));
                }
                let instruction = form.replace("ADDRESS", text);
                assert_eq!(events(&instruction, register, &layout()), wanted, "{instruction}");
            }
        }
    }
}

#[test]
fn other_memory_is_accessed_where_it_is() {
    let end = BASE + (PAGES << SHIFT);
    for address in [0, 0x400, BASE - 32, end, end + 4096, u64::MAX - 31] {
        for (form, _) in FORMS {
            let opcode = form.split(' ').next().expect("a word").to_owned();
            let instruction = form.replace("ADDRESS", "[%rd1]");
            for layout in [layout(), layout().touches(true)] {
                let wanted = [Event::Access(opcode.clone(), address)];
                assert_eq!(events(&instruction, address, &layout), wanted, "{instruction}");
            }
        }
    }
}

#[test]
fn a_guard_holds_for_the_look_up_and_the_access() {
    for (form, access) in FORMS {
        for (guard, runs) in [("@%p1", true), ("@!%p1", false), ("@%p2", false), ("@!%p2", true)] {
            let instruction = format!("{guard} {}", form.replace("ADDRESS", "[%rd1]"));
            let found = events(&instruction, BASE + 64, &layout());
            let wanted = if !runs { 0 } else { 1 + usize::from(access.writes()) };
            assert_eq!(found.len(), wanted, "{instruction}: {found:?}");
        }
    }
    // Threads that do not access may have any address.
    let (text, _) = rewritten("@%p2 ld.global.u32 %r1, [%rd1];", &layout());
    assert!(
        text.contains("setp.lt.and.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w, %p2;"),
        "{text}"
    );
}

#[test]
fn touched_pages_at_home_are_marked_by_loads_too() {
    let layout = layout().touches(true);
    for (form, access) in FORMS {
        for at in [BASE, BASE + 4096 + 32] {
            let instruction = form.replace("ADDRESS", "[%rd1]");
            let found = events(&instruction, at, &layout);
            let is_home = page(at) == 1;
            let marks = access.writes() || access.reads() && is_home;
            let wanted: Vec<_> = marks.then(|| Event::Marked(page(at))).into_iter().collect();
            assert_eq!(found[..found.len() - 1], wanted, "{instruction}");
            let Some(Event::Access(_, to)) = found.last() else {
                panic!("{instruction}: {found:?}")
            };
            assert_eq!(*to, place(at), "{instruction}");
        }
    }
}

#[test]
fn a_register_may_be_both_address_and_result() {
    let (text, _) = rewritten("ld.global.u64 %rd1, [%rd1+8];\nld.global.u64 %rd1, [%rd1];", &layout());
    let mut thread = Thread::new(&[("%rd1", BASE)], &[]);
    thread.run(&text).expect("right");
    assert_eq!(
        thread.events[0],
        Event::Access("ld.global.u64".to_owned(), place(BASE + 8))
    );
    assert_eq!(thread.events.len(), 2);
}

#[test]
fn addresses_that_are_numbers_are_looked_up() {
    let instruction = format!("st.global.u32 [{}], 1;", BASE + 4096);
    let wanted = [
        Event::Marked(1),
        Event::Access("st.global.u32".to_owned(), place(BASE + 4096)),
    ];
    assert_eq!(events(&instruction, 0, &layout()), wanted);
}

#[test]
fn a_pragma_stays_before_its_instruction() {
    for between in ["", ".loc 1 2 3\n"] {
        let access = format!(".pragma \"used_bytes_mask 0xfff\";\n{between}ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [");
        let (text, report) = rewritten(&format!("{access}%rd1];"), &layout());
        assert_eq!(report.changed.len(), 1);
        assert!(text.contains(&format!("{access}%gpuvm_a];")), "{text}");
    }
}

#[test]
fn every_page_size_has_its_shift() {
    for shift in 9..=21 {
        let layout = TableLayout::new(1 << shift).expect("a page size");
        let (text, _) = rewritten("ld.global.u32 %r1, [%rd1];", &layout);
        assert!(
            text.contains(&format!("shf.r.clamp.b32 %gpuvm_i, %gpuvm_i, %gpuvm_h, {shift};")),
            "{text}"
        );
    }
}

#[test]
fn windows_have_round_ends() {
    let layout = layout();
    let window = layout
        .window(0x7f12_3456_7000..0x7f16_0000_0001)
        .expect("it has few pages");
    assert_eq!((window.base, window.bytes), (0x7f12_0000_0000, 5 << 32));
    assert_eq!(layout.pages(&window), 5 << 20);
    assert_eq!(
        layout
            .window(GRANULE_BYTES..2 * GRANULE_BYTES)
            .expect("one granule")
            .bytes,
        GRANULE_BYTES
    );
    let small = TableLayout::new(512).expect("a page size");
    let most = (2 << 40) - GRANULE_BYTES;
    assert!(small.window(0..most).is_ok());
    let error = small.window(0..most + 1).expect_err("too many pages");
    assert!(error.to_string().contains("larger pages"), "{error}");
    assert!(layout.window(0..u64::MAX).is_err() && layout.window(u64::MAX - 5..u64::MAX).is_err());
    assert_eq!(layout.touches(true).entry(4096, 4096, true), AT_HOME);
    assert_eq!(layout.entry(8192, 4096, true), 4096_u64.wrapping_neg());
    assert_eq!(
        &window.to_bytes()[..16],
        [0, 0, 0, 0, 0x12, 0x7f, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]
    );
}
