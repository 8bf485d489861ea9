//! Neighbouring accesses that share a look-up: each goes where its own page is, and pages are marked as if each had looked up by itself.

use gpuvm_ptx::{QUIET, TableLayout, rewrite};

use crate::evaluate::{BASE, Event, FRAMES, HOMES, PAGES, SHIFT, Thread, place};
use crate::{kernel, layout, rewritten};

const PAGE: u64 = 1 << SHIFT;
const END: u64 = BASE + (PAGES << SHIFT);

/// Where an address is, in the window or not.
fn placed(address: u64) -> u64 {
    match (BASE..END).contains(&address) {
        true => place(address),
        false => address,
    }
}

fn writes(opcode: &str) -> bool {
    opcode.starts_with("st") || opcode.starts_with("atom") || opcode.starts_with("red")
}

/// The pages of the window that accesses of some kind use.
fn pages(plain: &[Event], is_it: impl Fn(&str) -> bool) -> Vec<u64> {
    let page = |event: &Event| match event {
        Event::Access(opcode, at) if (BASE..END).contains(at) && is_it(opcode) => Some((at - BASE) >> SHIFT),
        _ => None,
    };
    plain.iter().filter_map(page).collect()
}

/// What is wrong with what a thread did in a text that does `plain`, by pages that are in other places: accesses that are not the same, a
/// store whose page was not marked before it, a mark of a page that is not stored to and that `also` does not name.
fn wrong(events: &[Event], plain: &[Event], also: impl Fn(u64) -> bool) -> Option<String> {
    let accesses = |events: &[Event]| -> Vec<Event> {
        let is_access = |event: &&Event| matches!(event, Event::Access(..));
        events.iter().filter(is_access).cloned().collect()
    };
    let wanted = accesses(plain).into_iter().map(|event| match event {
        Event::Access(opcode, at) => Event::Access(opcode, placed(at)),
        marked @ Event::Marked(_) => marked,
    });
    let wanted: Vec<Event> = wanted.collect();
    if accesses(events) != wanted {
        return Some(format!("{events:x?} instead of {wanted:x?}"));
    }
    let stored = pages(plain, writes);
    let (mut left, mut marked) = (stored.iter(), Vec::new());
    for event in events {
        match event {
            Event::Marked(page) if stored.contains(page) || also(*page) => marked.push(*page),
            Event::Marked(page) => return Some(format!("page {page:x} is marked: {events:x?} for {plain:x?}")),
            // Those of the window are in other places.
            Event::Access(opcode, at) if writes(opcode) && (FRAMES..HOMES + (PAGES << SHIFT)).contains(at) => {
                if !left.next().is_some_and(|page| marked.contains(page)) {
                    return Some(format!("a store is not marked: {events:x?} for {plain:x?}"));
                }
            }
            Event::Access(..) => {}
        }
    }
    left.next().map(|_| "stores are missing".to_owned())
}

/// What a thread does with some registers. `%p1` holds, `%p2` and `%p3` do not, but for those that are among the registers.
fn run(text: &str, registers: &[(&str, u64)], flags: bool) -> Result<Vec<Event>, String> {
    Ok(thread(text, registers, flags)?.events)
}

fn thread(text: &str, registers: &[(&str, u64)], flags: bool) -> Result<Thread, String> {
    let mut predicates = vec![("%p1", true), ("%p2", false), ("%p3", false)];
    let given = registers.iter().filter(|(name, _)| name.starts_with("%p"));
    predicates.extend(given.map(|(name, value)| (*name, *value != 0)));
    let mut thread = Thread::new(registers, &predicates);
    thread.flags = flags;
    thread.run(text)?;
    Ok(thread)
}

/// Addresses near ends of pages, of 4 GiB and of the window.
fn addresses() -> Vec<u64> {
    let ends = [
        BASE,
        BASE + PAGE,
        BASE + 2 * PAGE,
        BASE + (4 << 30),
        BASE + (5 << 40),
        END,
        END - PAGE,
        PAGE,
    ];
    let around = [-32, -16, -12, -8, -4, 0, 4, 8, 12, 2048];
    ends.iter()
        .flat_map(|end| around.map(|by| end.wrapping_add_signed(by)))
        .collect()
}

/// Whether a rewritten text does what the given one does.
fn is_right(given: &str, text: &str, touching: &str, registers: &[(&str, u64)]) -> Result<(), String> {
    let plain = run(given, registers, false)?;
    let Thread { events, looked_up, .. } = thread(text, registers, false)?;
    let touched = run(touching, registers, true)?;
    let used = pages(&plain, |_| true);
    // Loads mark pages at home, which have odd numbers, and no others.
    let at_home = |page: u64| page % 2 == 1 && used.contains(&page);
    let wrong = wrong(&events, &plain, |_| false).or_else(|| wrong(&touched, &plain, at_home));
    if let Some(wrong) = wrong {
        return Err(format!("{registers:x?}: {wrong}"));
    }
    let loaded = pages(&plain, |opcode| !writes(opcode));
    let all = loaded
        .iter()
        .all(|page| page % 2 == 0 || touched.contains(&Event::Marked(*page)));
    // Entries of other pages may have no memory, but for those next to what is accessed: guards may keep the access that is there.
    let has_guards = given.contains("@%p") || given.contains("@!%p");
    let is_near = |page: &u64| {
        let mut accesses = plain.iter().filter_map(|event| match event {
            Event::Access(_, at) => Some(at >> SHIFT),
            Event::Marked(_) => None,
        });
        has_guards && accesses.any(|near| near.abs_diff((BASE >> SHIFT) + page) == 1)
    };
    let none_else = looked_up.iter().all(|page| used.contains(page) || is_near(page));
    match all && none_else {
        true => Ok(()),
        false => Err(format!(
            "{registers:x?}: {touched:x?}, entries {looked_up:x?} for {plain:x?}"
        )),
    }
}

/// The texts that come of some instructions, with and without touches, and how many look-ups they have.
fn both(body: &str) -> (String, String, usize) {
    let (text, report) = rewritten(body, &layout());
    let (touching, _) = rewritten(body, &layout().touches(true));
    (text, touching, report.look_ups)
}

fn check(body: &str, look_ups: usize) {
    let (text, touching, found) = both(body);
    assert_eq!(found, look_ups, "{body}\n{text}");
    let guards = if body.contains('@') { 8 } else { 1 };
    for (at, guards) in addresses()
        .into_iter()
        .flat_map(|at| (0..guards).map(move |guards| (at, guards)))
    {
        let registers = [
            ("%rd1", at),
            ("%rd2", at.wrapping_add(8 * PAGE + 64)),
            ("%rd8", at),
            ("%p1", guards & 1 ^ 1),
            ("%p2", guards & 2),
            ("%p3", guards & 4),
        ];
        is_right(&kernel(body), &text, &touching, &registers).unwrap_or_else(|wrong| panic!("{body}\n{wrong}\n{text}"));
    }
}

const STENCIL: &str = "ld.global.f32 %f1, [%rd1+-4];\nld.global.f32 %f2, [%rd1];\nld.global.f32 %f3, [%rd1+4];\n";

/// Instructions, of which loads and stores by `%rd1` are written short: `ld +4`, `@%p1 st -8`.
fn written(short: &str) -> String {
    let instruction = |short: &str| {
        let (guard, rest) = match short.split_once(' ') {
            Some((guard, rest)) if guard.starts_with('@') => (guard, rest),
            _ => ("", short),
        };
        match (rest.strip_prefix("ld "), rest.strip_prefix("st ")) {
            (Some(offset), _) => format!("{guard} ld.global.u32 %r1, [%rd1{offset}];\n"),
            (_, Some(offset)) => format!("{guard} st.global.u32 [%rd1{offset}], %r1;\n"),
            _ if rest.ends_with([':', '}']) && !rest.contains(',') => format!("{rest}\n"),
            _ => format!("{short};\n"),
        }
    };
    short.split(';').map(str::trim).map(instruction).collect()
}

/// Instructions in lines, behind the number of look-ups that they have.
fn check_lines(lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (look_ups, short) = line.split_once(": ").expect("a number");
        check(&written(short), look_ups.parse().expect("a number"));
    }
}

#[test]
fn neighbours_look_up_once() {
    check(STENCIL, 1);
    // In any order, with stores and atomics among them; one address; as far apart as a page is long, and further.
    check_lines(
        "1: ld +4; st -8; ld +0
        1: st +0; st +4; st +8
        1: red.global.add.u32 [%rd1+12], %r1; atom.global.add.u32 %r1, [%rd1], 1; prefetch.global.L2 [%rd1+4]
        1: ld +0; st +0
        1: ld +0; st +4092; ld +2000
        2: ld +0; ld +4096
        2: ld +0; ld +4096; ld +4100",
    );
}

#[test]
fn constants_are_followed() {
    // Of the last two what is added is not known, or only some threads add it.
    check_lines(
        "1: add.s64 %rd3, %rd1, 64; ld +0; st.global.u32 [%rd3-32], %r1
        1: ld +0; add.s64 %rd1, %rd1, 4; ld +0; sub.s64 %rd1, %rd1, 8; st +0
        1: mov.u64 %rd3, %rd1; add.s64 %rd4, %rd3, -16; ld.global.u32 %r1, [%rd4]; ld +0x10
        2: ld +0; add.s64 %rd3, %rd1, %rd5; ld.global.u32 %r1, [%rd3]
        2: ld +0; @%p1 add.s64 %rd1, %rd1, 8192; st +4",
    );
}

#[test]
fn what_is_defined_again_is_looked_up_again() {
    check_lines(
        "2: ld.global.u64 %rd1, [%rd1]; ld.global.u64 %rd1, [%rd1]
        2: ld +0; mov.u64 %rd1, %rd2; ld +4; st.global.u32 [%rd2], %r1
        2: ld +0; and.b64 %rd1, %rd1, -4096; st +4",
    );
    // Two halves, and one of two registers with one name.
    assert_eq!(both(&written("ld +0; mov.b64 %rd1, {%r1, %r2}; st +0")).2, 2);
    assert_eq!(both(&written("ld +0; { .reg .b64 %rd1; ld +0; }")).2, 2);
}

#[test]
fn guards_share_whose_predicates_are_there_at_the_first_access() {
    check_lines(
        "1: @%p1 ld +0; @%p1 st +4
        1: @%p2 ld +0; @!%p2 st +4
        1: @%p2 ld +0; st +0
        1: @%p2 ld +0; @%p1 st +0
        1: ld +0; @%p2 st +4
        1: ld +0; ld +8; @%p1 st +4; @%p2 st +0
        1: @%p1 ld +8; @%p2 ld +4; @%p3 ld +0; @!%p3 ld +12; @%p2 ld +16; @%p1 st -4
        1: @%p1 ld +0; @%p2 st +4092
        2: @%p1 ld +0; @%p2 st +4096
        1: setp.ne.u32 %p1, 0, 0; @%p2 ld +0; @%p1 st +4",
    );
    // Predicates that come later, and a name that is another register's at the first access.
    check_lines(
        "2: @%p1 ld +0; setp.ne.u32 %p1, 0, 0; @%p1 st +0
        2: ld +0; setp.ne.u32 %p1, 1, 0; @%p1 st +4
        1: ld +0; ld +8; setp.ne.u32 %p1, 1, 0; @%p1 st +4
        3: @%p2 ld +0; ld.global.u64 %rd9, [%rd2]; setp.ne.u32 %p2, 1, 0; @%p2 ld +4; @%p2 ld +8
        2: { .reg .pred %p1; @%p1 ld +0; }; @%p1 ld +4
        2: @%p1 ld +0; .reg .pred %p10; @%p10 ld +4",
    );
}

#[test]
fn sums_of_registers_are_followed() {
    check_lines(
        "1: add.s64 %rd3, %rd1, %rd5; add.s64 %rd4, %rd1, 64; add.s64 %rd6, %rd5, %rd4; ld.global.u32 %r1, [%rd3]; st.global.u32 [%rd6], %r1
        2: add.s64 %rd3, %rd1, %rd5; add.s64 %rd5, %rd5, %rd7; add.s64 %rd6, %rd5, %rd1; ld.global.u32 %r1, [%rd3]; st.global.u32 [%rd6], %r1
        2: add.s64 %rd3, %rd1, %rd5; ld.global.u32 %r1, [%rd3]; L:; add.s64 %rd6, %rd5, %rd1; st.global.u32 [%rd6], %r1",
    );
}

#[test]
fn nothing_is_looked_up_that_may_not_be_accessed() {
    // Behind a branch or a call accesses may be missing: what was looked up serves them, and no more is looked up for them.
    for leaves in ["@%p2 bra OUT", "@%p2 ret", "@%p2 exit", "call outside, (%rd9)"] {
        check(&written(&format!("ld +0; {leaves}; st +0; OUT:")), 1);
        check(&written(&format!("ld +0; {leaves}; st +4; OUT:")), 2);
    }
    // Others come to a label with other values.
    check(&written("ld +0; L:; st +0; ld +4"), 2);
}

/// Numbers that repeat with a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}

#[test]
fn random_programs_access_what_they_did() {
    let mut shared = 0;
    for seed in 0..1000 {
        let mut numbers = Numbers(seed);
        let mut body = String::new();
        for _ in 0..2 + numbers.below(14) {
            let register = ["%rd1", "%rd2", "%rd3"][numbers.below(3) as usize];
            let guard = ["", "", "", "@%p1 ", "@!%p1 ", "@%p2 ", "@%p3 ", "@!%p3 "][numbers.below(8) as usize];
            let near = [4, 32, 600, 5000][numbers.below(4) as usize];
            let offset = numbers.below(2 * near).cast_signed() - near.cast_signed();
            let offset = offset & !7;
            body += &match numbers.below(13) {
                0..4 => format!("{guard}ld.global.u32 %r1, [{register}+{offset}];\n"),
                4..7 => format!("{guard}st.global.u32 [{register}+{offset}], %r1;\n"),
                7 => format!("{guard}atom.add.u32 %r1, [{register}], 1;\n"),
                8 => format!("{guard}ld.global.u64 {register}, [{register}+{offset}];\n"),
                9 => format!("{guard}add.s64 {register}, {register}, {offset};\n"),
                10 => format!("{guard}mov.u64 {register}, %rd{};\n", 1 + numbers.below(3)),
                11 => format!("add.s64 {register}, %rd{}, %rd9;\n", 1 + numbers.below(3)),
                _ => [
                    "L:\n",
                    "setp.ne.u32 %p1, 0, 0;\n",
                    "setp.ne.u32 %p3, 1, 0;\n",
                    "@%p2 bra OUT;\n",
                ][numbers.below(4) as usize]
                    .replace('L', &format!("L{}", body.len())),
            };
        }
        body += "OUT:\n";
        let (text, touching, look_ups) = both(&body);
        shared += body.matches("global").count().saturating_sub(look_ups);
        for _ in 0..12 {
            let all = addresses();
            let mut address = || all[numbers.below(all.len() as u64) as usize] & !7;
            let registers = [address(), address(), address()];
            let guards = numbers.below(8);
            let registers = [
                ("%rd1", registers[0]),
                ("%rd2", registers[1]),
                ("%rd3", registers[2]),
                ("%rd9", numbers.below(3) * 32),
                ("%p1", guards & 1),
                ("%p2", guards & 2),
                ("%p3", guards & 4),
            ];
            is_right(&kernel(&body), &text, &touching, &registers)
                .unwrap_or_else(|wrong| panic!("seed {seed}\n{body}\n{wrong}\n{text}"));
        }
    }
    assert!(shared > 700, "{shared}");
}

/// Mistakes in the instructions of look-ups that are shared.
#[test]
fn mistakes_of_shared_look_ups_are_seen() {
    let body = format!(
        "{STENCIL}st.global.f32 [%rd1+-8], %f1;\n@%p2 ld.global.u32 %r1, [%rd2];\n@%p2 st.global.u32 [%rd2+8], %r1;\n"
    );
    let (text, touching, look_ups) = both(&body);
    assert_eq!(look_ups, 2);
    let is_seen = |body: &str, text: &str, touching: &str| {
        addresses().into_iter().any(|at| {
            let registers = [("%rd1", at), ("%rd2", BASE + 16 * PAGE)];
            is_right(&kernel(body), text, touching, &registers).is_err()
        })
    };
    assert!(!is_seen(&body, &text, &touching));
    // The page is chosen by another access's place, or the other way round. The page before: its entry, whether it is used, whether it is
    // inside. The last address, and offsets. The store's mark: that of the group's last page, none. Guards, in whose threads the address
    // is any. A base that is defined again, and is overlooked.
    let mistakes = "setp.lt.u32 %gpuvm_p, %gpuvm_r0, 8; => setp.lt.u32 %gpuvm_p, %gpuvm_r0, 4;
        setp.lt.u32 %gpuvm_p, %gpuvm_r0, 4; => setp.lt.u32 %gpuvm_p, %gpuvm_r0, 5;
        %gpuvm_y0, %gpuvm_x0, %gpuvm_p; => %gpuvm_x0, %gpuvm_y0, %gpuvm_p;
        %gpuvm_y0, %gpuvm_x0, %gpuvm_p; => %gpuvm_x0, %gpuvm_x0, %gpuvm_p;
        and.b32 %gpuvm_r0, %gpuvm_i, 4095; => and.b32 %gpuvm_r0, %gpuvm_i, 8191;
        %gpuvm_f, [%gpuvm_t+-8]; => %gpuvm_f, [%gpuvm_t];
        %gpuvm_f, [%gpuvm_t+-8]; => %gpuvm_f, [%gpuvm_t+8];
        %gpuvm_r0, 12, %gpuvm_q; => %gpuvm_r0, 8, %gpuvm_q;
        setp.lt.and.u32 %gpuvm_q, %gpuvm_r0, 12, %gpuvm_q; => setp.lt.u32 %gpuvm_q, %gpuvm_r0, 12;
        setp.lt.and.u32 %gpuvm_q, %gpuvm_r0, 12, %gpuvm_q; =>
        subc.u32 %gpuvm_h, %gpuvm_h, 0; =>
        sub.cc.u32 %gpuvm_l, %gpuvm_l, 12; => sub.cc.u32 %gpuvm_l, %gpuvm_l, 0;
        mov.b64 %gpuvm_f, 0; => mov.b64 %gpuvm_f, %gpuvm_e;
        add.s64 %gpuvm_a, %rd1, 4; => add.s64 %gpuvm_a, %rd1, 0;
        [%gpuvm_x0+4] => [%gpuvm_x0+8]
        [%gpuvm_a+-8] => [%gpuvm_x0+-8]
        setp.ge.u32 %gpuvm_s, %gpuvm_r0, 12; => setp.ge.u32 %gpuvm_s, %gpuvm_r0, 8;
        setp.ge.u32 %gpuvm_s, %gpuvm_r0, 12; => setp.ge.u32 %gpuvm_s, %gpuvm_r0, 16;
        setp.lt.and.u32 %gpuvm_v, %gpuvm_r0, 12, %gpuvm_v; =>
        setp.lt.and.u32 %gpuvm_v, %gpuvm_r0, 12, %gpuvm_v; => setp.lt.and.u32 %gpuvm_v, %gpuvm_r0, 8, %gpuvm_v;
        @%gpuvm_v st.global.u8 [%gpuvm_t+-1], %gpuvm_w; => @%gpuvm_v st.global.u8 [%gpuvm_t], %gpuvm_w;
        @%gpuvm_v st.global.u8 [%gpuvm_t+-1], %gpuvm_w; =>
        @%gpuvm_s st.global.u8 [%gpuvm_t], %gpuvm_w; =>
        %gpuvm_w, %p2; => %gpuvm_w, %p1;
        setp.lt.and.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w, %p2; => setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;
        @%p2 st.global.u32 => st.global.u32
        ld.global.f32 %f3 => add.s64 %gpuvm_x0, %gpuvm_x0, 4096; ld.global.f32 %f3";
    let changed = |text: &str, mistake: &str| {
        let (wanted, instead) = mistake.split_once("=>").expect("an arrow");
        assert!(text.contains(wanted.trim()), "{wanted}\n{text}");
        text.replace(wanted.trim(), instead.trim())
    };
    for mistake in mistakes.lines() {
        assert!(is_seen(&body, &changed(&text, mistake), &touching), "{mistake}");
    }
    // The marks of loads, which no store makes too.
    let (text, touching, _) = both(STENCIL);
    let mistakes = "st.global.u8 [%gpuvm_t+-1], %gpuvm_w; => st.global.u8 [%gpuvm_t], %gpuvm_w;
        @%gpuvm_q st.global.u8 [%gpuvm_t+-1], %gpuvm_w; =>
        and.b64 %gpuvm_f, %gpuvm_f, -2; =>";
    for mistake in mistakes.lines() {
        assert!(is_seen(STENCIL, &text, &changed(&touching, mistake)), "{mistake}");
    }
}

/// Mistakes where accesses have several guards.
#[test]
fn mistakes_of_guards_that_share_are_seen() {
    let body = written("@%p1 ld +0; @!%p2 ld +4; @%p3 ld +8; @%p1 st +4; @%p3 st -8");
    let (text, touching, look_ups) = both(&body);
    assert_eq!(look_ups, 1);
    let is_seen = |text: &str, touching: &str| {
        addresses()
            .into_iter()
            .flat_map(|at| (0..8).map(move |guards| (at, guards)))
            .any(|(at, guards)| {
                let registers = [
                    ("%rd1", at),
                    ("%p1", guards & 1),
                    ("%p2", guards & 2),
                    ("%p3", guards & 4),
                ];
                is_right(&kernel(&body), text, touching, &registers).is_err()
            })
    };
    assert!(!is_seen(&text, &touching));
    // A guard that is not asked, one the wrong way round, no guard at all; of marks also where an access is in its page.
    let mistakes = "or.pred %gpuvm_o, %gpuvm_o, %p3; =>
        not.pred %gpuvm_u, %p2; => mov.pred %gpuvm_u, %p2;
        mov.pred %gpuvm_o, %p1; => not.pred %gpuvm_o, %p1;
        setp.lt.and.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w, %gpuvm_o; => setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;
        setp.lt.and.u32 %gpuvm_q, %gpuvm_h, %gpuvm_w, %gpuvm_o; => setp.lt.u32 %gpuvm_q, %gpuvm_h, %gpuvm_w;
        setp.ge.and.u32 %gpuvm_o, %gpuvm_r0, 4, !%p2; => setp.ge.and.u32 %gpuvm_o, %gpuvm_r0, 0, !%p2;
        setp.ge.and.u32 %gpuvm_p, %gpuvm_r0, 4, %p1; => setp.ge.and.u32 %gpuvm_p, %gpuvm_r0, 5, %p1;
        setp.ge.and.u32 %gpuvm_s, %gpuvm_r0, 4, %p1; => setp.ge.and.u32 %gpuvm_s, %gpuvm_r0, 8, %p1;
        setp.ge.and.u32 %gpuvm_o, %gpuvm_r0, 16, %p3; => setp.ge.and.u32 %gpuvm_o, %gpuvm_r0, 12, %p3;
        or.pred %gpuvm_s, %gpuvm_s, %gpuvm_o; =>
        or.pred %gpuvm_v, %gpuvm_v, %gpuvm_o; =>
        setp.lt.and.u32 %gpuvm_v, %gpuvm_r0, 4, %p1; => setp.lt.u32 %gpuvm_v, %gpuvm_r0, 4;
        setp.lt.and.u32 %gpuvm_o, %gpuvm_r0, 4, !%p2; => setp.lt.and.u32 %gpuvm_o, %gpuvm_r0, 4, %p2;
        setp.lt.and.u32 %gpuvm_q, %gpuvm_r0, 8, %p1; => setp.lt.u32 %gpuvm_q, %gpuvm_r0, 8;";
    for mistake in mistakes.lines() {
        let (wanted, instead) = mistake.split_once("=>").expect("an arrow");
        let (wanted, instead) = (wanted.trim(), instead.trim());
        assert!(
            text.contains(wanted) || touching.contains(wanted),
            "{wanted}\n{text}\n{touching}"
        );
        assert!(
            is_seen(&text.replace(wanted, instead), &touching.replace(wanted, instead)),
            "{mistake}"
        );
    }
}

#[test]
fn a_second_form_marks_nothing_by_its_loads() {
    let given = kernel(&format!(
        "{STENCIL}st.global.f32 [%rd1+4], %f1;\nld.global.u32 %r1, [%rd2];"
    ));
    let layout = TableLayout::new(PAGE)
        .expect("a page size")
        .touches(true)
        .both_forms(true);
    let rewritten = rewrite(given.as_bytes(), &layout).expect("it is right");
    let quiet = format!("{QUIET}kernel");
    assert_eq!(rewritten.report.functions[0].quiet.as_deref(), Some(&*quiet));
    // Both are there; the first one is as without a second one.
    let begin = rewritten.text.rfind(".visible .entry").expect("an entry");
    let (first, second) = rewritten.text.split_at(begin);
    assert!(
        second.starts_with(&format!(".visible .entry {quiet}(.param .u64 given)")),
        "{second}"
    );
    let alone = rewrite(given.as_bytes(), &layout.both_forms(false)).expect("it is right");
    assert_eq!(first.trim_end(), alone.text.trim_end());
    let header = &given[..given.find(".visible .entry").expect("an entry")];
    let header = format!("{header}\n.visible .const .align 8 .b8 gpuvm_window[32];\n");
    for at in addresses() {
        let registers = [("%rd1", at), ("%rd2", BASE + PAGE)];
        let plain = run(&given, &registers, false).expect("it runs");
        let found = run(&format!("{header}{second}"), &registers, true).expect("it runs");
        assert_eq!(wrong(&found, &plain, |_| false), None);
    }
    // What has no loads needs none.
    let stores = kernel("st.global.u32 [%rd1], 1;");
    let report = rewrite(stores.as_bytes(), &layout).expect("it is right").report;
    assert_eq!(report.functions[0].quiet, None);
}
