//! Mistakes that a rewriter could make, planted into its output: the tests of the other files would see each of them.

use crate::evaluate::{BASE, Event, Thread, place};
use crate::{layout, rewritten};

/// A store under a guard to a page with a large number, one under a guard that does not hold, and a generic one to shared memory.
const BODY: &str = "@%p1 st.global.u32 [%rd1+8], %r1;\n@!%p1 st.global.u32 [%rd2], %r1;\nst.u32 [%rd3], %r1;";

/// Whether a text does what [`BODY`] has to do.
fn is_right(text: &str) -> bool {
    let (paged, other, shared) = (BASE + (9 << 40) + 4096, BASE + 64, 0x0100_0400);
    let registers = [("%rd1", paged), ("%rd2", other), ("%rd3", shared)];
    let mut thread = Thread::new(&registers, &[("%p1", true)]);
    let wanted = [
        Event::Marked((paged - BASE) >> 12),
        Event::Access("st.global.u32".to_owned(), place(paged + 8)),
        Event::Access("st.u32".to_owned(), shared),
    ];
    thread.run(text).is_ok() && thread.events == wanted
}

/// The output with every `wanted` changed.
fn with(wanted: &str, instead: &str) -> String {
    let (text, report) = rewritten(BODY, &layout());
    assert!(is_right(&text) && report.changed.len() == 3, "{text}");
    assert!(text.contains(wanted), "{text}");
    text.replace(wanted, instead)
}

#[test]
fn a_guard_that_is_dropped_is_seen() {
    for (wanted, instead) in [
        ("@%p1 st.global.u32", "st.global.u32"),
        ("@!%p1 st.global.u32", "st.global.u32"),
        (
            "setp.lt.and.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w, !%p1;",
            "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
        ),
        ("%gpuvm_w, !%p1;", "%gpuvm_w, %p1;"),
    ] {
        let text = with(wanted, instead);
        // Of the first one the guard holds.
        assert_eq!(is_right(&text), wanted.starts_with("@%p1"), "{wanted}");
    }
    // Where it does not hold, that one is seen too.
    let text = with("@%p1 st.global.u32", "st.global.u32");
    let mut thread = Thread::new(&[("%rd1", BASE), ("%rd2", BASE), ("%rd3", 0)], &[("%p1", false)]);
    thread.run(&text).expect("it runs");
    let stores = |event: &&Event| matches!(event, Event::Access(opcode, _) if opcode == "st.global.u32");
    assert_eq!(thread.events.iter().filter(stores).count(), 2);
}

#[test]
fn an_offset_that_is_added_twice_is_seen() {
    let (_, report) = rewritten(BODY, &layout());
    assert_eq!(report.changed.len(), 3);
    assert!(!is_right(&with(
        "st.global.u32 [%gpuvm_a], %r1",
        "st.global.u32 [%gpuvm_a+8], %r1"
    )));
    assert!(!is_right(&with(
        "add.s64 %gpuvm_a, %rd1, 8;",
        "mov.b64 %gpuvm_a, %rd1;"
    )));
}

#[test]
fn a_shared_address_that_is_looked_up_is_seen() {
    // The compare with the window holds for all addresses.
    assert!(!is_right(&with(
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
        "setp.lt.u32 %gpuvm_p, 0, %gpuvm_w;"
    )));
}

#[test]
fn a_store_without_its_mark_is_seen() {
    assert!(!is_right(&with("@%gpuvm_p st.global.u8 [%gpuvm_t], %gpuvm_w;", "")));
    // A mark behind its store, and one at another page.
    let (mark, store) = (
        "@%gpuvm_p st.global.u8 [%gpuvm_t], %gpuvm_w;\n",
        "@%p1 st.global.u32 [%gpuvm_a], %r1;",
    );
    let (text, _) = rewritten(BODY, &layout());
    let late = text
        .replacen(mark, "", 1)
        .replacen(store, &format!("{store}\n{mark}"), 1);
    assert!(late != text && !is_right(&late));
    assert!(!is_right(&with(
        "mad.wide.u32 %gpuvm_t, %gpuvm_i, 1,",
        "mad.wide.u32 %gpuvm_t, %gpuvm_i, 8,"
    )));
}

#[test]
fn an_index_of_32_bits_is_seen() {
    for (wanted, instead) in [
        // The upper half of the address is left out of the page's number, or of the entry's address.
        (
            "shf.r.clamp.b32 %gpuvm_i, %gpuvm_i, %gpuvm_h, 12;",
            "shr.u32 %gpuvm_i, %gpuvm_i, 12;",
        ),
        (
            "mad.wide.u32 %gpuvm_t, %gpuvm_i, 8,",
            "shl.b32 %gpuvm_h, %gpuvm_i, 3;\nmad.wide.u32 %gpuvm_t, %gpuvm_h, 1,",
        ),
        (
            "mad.wide.u32 %gpuvm_t, %gpuvm_i, 8,",
            "mad.lo.u32 %gpuvm_t, %gpuvm_i, 8,",
        ),
        (
            "add.s64 %gpuvm_a, %gpuvm_a, %gpuvm_e;",
            "add.s32 %gpuvm_a, %gpuvm_a, %gpuvm_e;",
        ),
    ] {
        assert!(!is_right(&with(wanted, instead)), "{wanted}");
    }
}
