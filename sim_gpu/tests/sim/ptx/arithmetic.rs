//! Each arithmetic instruction, compared with what Rust makes of the same operands.

use std::fmt::Write;

use super::{bed, builder};
use gpuvm_gpu::{Gpu, LaunchConfig};

/// An instruction, bits of its result and of its operands, and what it does. Predicates have one bit.
struct Case {
    text: &'static str,
    bits: &'static [u32],
    wanted: Box<dyn Fn([u64; 4]) -> u64>,
}

fn case(text: &'static str, bits: &'static [u32], wanted: impl Fn([u64; 4]) -> u64 + 'static) -> Case {
    Case {
        text,
        bits,
        wanted: Box::new(wanted),
    }
}

const U3: &[u32] = &[32, 32, 32];
const U2: &[u32] = &[32, 32];
const U4: &[u32] = &[32, 32, 32, 32];
const D3: &[u32] = &[64, 64, 64];
const D2: &[u32] = &[64, 64];
const D4: &[u32] = &[64, 64, 64, 64];
const H3: &[u32] = &[16, 16, 16];

/// What operands are: numbers of all types by their bits.
const WORDS: [u64; 14] = [
    0,
    1,
    7,
    0x8000_0000_8000_0000,
    0x7fff_ffff_7fff_ffff,
    0xffff_ffff_ffff_ffff,
    0x1234_5678_9abc_def0,
    0x3fe0_0000_3fc0_0000,
    0xc012_3456_c049_0fdb,
    0x7ff0_0000_7f80_0000,
    0x7ff8_0000_7fc0_0000,
    0x0000_0001_0040_0000,
    0x4330_0000_4b80_0001,
    0x41df_ffff_4f00_0000,
];

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}
fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}
/// Bits of a result, of which all NaNs are alike.
fn of_f(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}
fn of_d(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        value.to_bits()
    }
}
/// Towards zero, from what was rounded to the nearest and what is exact: a double and what it lacks.
fn towards_zero(nearest: f32, (exact, rest): (f64, f64)) -> f32 {
    let is_less = rest != 0.0 && (rest < 0.0) == (exact > 0.0);
    let wide = f64::from(nearest);
    match (wide.abs() > exact.abs() || wide == exact && is_less) && exact.is_finite() {
        true if nearest > 0.0 => nearest.next_down(),
        true => nearest.next_up(),
        false => nearest,
    }
}
/// The sum of two numbers, and what it lacks.
fn sum(a: f32, b: f32) -> (f64, f64) {
    let (a, b) = (f64::from(a), f64::from(b));
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}
fn upwards(nearest: f32, exact: f64) -> f32 {
    if f64::from(nearest) < exact {
        nearest.next_up()
    } else {
        nearest
    }
}
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() {
        0f32.copysign(value)
    } else {
        value
    }
}
fn least(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

#[rustfmt::skip]
fn whole_numbers() -> Vec<Case> {
    vec![
        case("add.u32", U3, |[a, b, ..]| u64::from((a as u32).wrapping_add(b as u32))),
        case("add.sat.s32", U3, |[a, b, ..]| u64::from((a as i32).saturating_add(b as i32) as u32)),
        case("sub.sat.s32", U3, |[a, b, ..]| u64::from((a as i32).saturating_sub(b as i32) as u32)),
        case("sub.s64", D3, |[a, b, ..]| a.wrapping_sub(b)),
        case("add.s16", H3, |[a, b, ..]| u64::from((a as u16).wrapping_add(b as u16))),
        case("mul.lo.s32", U3, |[a, b, ..]| u64::from((a as u32).wrapping_mul(b as u32))),
        case("mul.hi.s32", U3, |[a, b, ..]| u64::from(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)),
        case("mul.hi.u64", D3, |[a, b, ..]| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        case("mul.hi.s64", D3, |[a, b, ..]| ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64),
        case("mul.wide.s32", &[64, 32, 32], |[a, b, ..]| (i64::from(a as i32) * i64::from(b as i32)) as u64),
        case("mul.wide.u16", &[32, 16, 16], |[a, b, ..]| u64::from(u32::from(a as u16) * u32::from(b as u16))),
        case("mad.lo.s64", D4, |[a, b, c, _]| a.wrapping_mul(b).wrapping_add(c)),
        case("mad.wide.u32", &[64, 32, 32, 64], |[a, b, c, _]| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)),
        case("mad.hi.u32", U4, |[a, b, c, _]| u64::from((((u64::from(a as u32) * u64::from(b as u32)) >> 32) as u32).wrapping_add(c as u32))),
        case("mul24.lo.u32", U3, |[a, b, ..]| u64::from((a as u32 & 0xff_ffff).wrapping_mul(b as u32 & 0xff_ffff))),
        case("sad.s32", U4, |[a, b, c, _]| u64::from((a as i32).abs_diff(b as i32).wrapping_add(c as u32))),
        case("div.s32", U3, |[a, b, ..]| u64::from((a as i32).checked_div(b as i32).unwrap_or(if b as u32 == 0 { -1 } else { i32::MIN }) as u32)),
        case("div.u64", D3, |[a, b, ..]| a.checked_div(b).unwrap_or(u64::MAX)),
        case("rem.s64", D3, |[a, b, ..]| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }),
        case("abs.s32", U2, |[a, ..]| u64::from((a as i32).wrapping_abs() as u32)),
        case("neg.s64", D2, |[a, ..]| a.wrapping_neg()),
        case("min.s32", U3, |[a, b, ..]| u64::from((a as i32).min(b as i32) as u32)),
        case("max.u64", D3, |[a, b, ..]| a.max(b)),
    ]
}

#[rustfmt::skip]
fn bits() -> Vec<Case> {
    vec![
        case("and.b32", U3, |[a, b, ..]| a & b & 0xffff_ffff),
        case("or.b64", D3, |[a, b, ..]| a | b),
        case("xor.b16", H3, |[a, b, ..]| (a ^ b) & 0xffff),
        case("not.b32", U2, |[a, ..]| !a & 0xffff_ffff),
        case("cnot.b32", U2, |[a, ..]| u64::from(a as u32 == 0)),
        case("shl.b32", U3, |[a, b, ..]| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0))),
        case("shr.u64", &[64, 64, 32], |[a, b, ..]| a.checked_shr(b as u32).unwrap_or(0)),
        case("shr.s32", U3, |[a, b, ..]| u64::from(((a as i32) >> (b as u32).min(31)) as u32)),
        case("shf.l.wrap.b32", U4, |[a, b, c, _]| u64::from(((b << 32 | a & 0xffff_ffff) << (c & 31) >> 32) as u32)),
        case("shf.r.clamp.b32", U4, |[a, b, c, _]| (b << 32 | a & 0xffff_ffff) >> u64::from(c as u32).min(32) & 0xffff_ffff),
        case("popc.b64", &[32, 64], |[a, ..]| u64::from(a.count_ones())),
        case("clz.b32", U2, |[a, ..]| u64::from((a as u32).leading_zeros())),
        case("bfind.s32", U2, |[a, ..]| u64::from(31u32.wrapping_sub(((a as u32) ^ ((a as i32) >> 31) as u32).leading_zeros()))),
        case("bfind.shiftamt.u64", &[32, 64], |[a, ..]| u64::from(if a == 0 { u32::MAX } else { a.leading_zeros() })),
        case("brev.b32", U2, |[a, ..]| u64::from((a as u32).reverse_bits())),
        case("bfe.u32", U4, |[a, b, c, _]| {
            let (from, length) = (b & 0xff, c & 0xff);
            if from > 31 { 0 } else { (a & 0xffff_ffff) >> from & ((1 << length.min(32)) - 1) }
        }),
        case("bfe.s64", &[64, 64, 32, 32], |[a, b, c, _]| {
            let (from, length) = (b & 0xff, c & 0xff);
            let last = (from + length).saturating_sub(1).min(63);
            let sign = if length != 0 && a >> last & 1 == 1 { u64::MAX } else { 0 };
            let in_word = length.min(64u64.saturating_sub(from));
            let mask = if in_word == 64 { u64::MAX } else { (1 << in_word) - 1 };
            (if from > 63 { 0 } else { a >> from & mask }) | sign & !mask
        }),
        case("bfi.b32", &[32, 32, 32, 32, 32], |[a, b, c, e]| {
            let (from, length) = (c & 0xff, e & 0xff);
            let mask = if from > 31 { 0 } else { ((1u64 << length.min(32)) - 1) << from & 0xffff_ffff };
            b & !mask & 0xffff_ffff | (if from > 31 { 0 } else { a << from } & mask)
        }),
        case("prmt.b32", U4, |[a, b, c, _]| {
            let all = (b << 32 | a & 0xffff_ffff).to_le_bytes();
            let byte = |n: u64| {
                let nibble = c >> (4 * n) & 15;
                let byte = all[(nibble & 7) as usize];
                if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
            };
            u64::from(u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]))
        }),
        case("prmt.b32.rc16", U4, |[a, _, c, _]| { let h = a >> (16 * (c & 1)) & 0xffff; h << 16 | h }),
        case("dp4a.s32.u32", U4, |[a, b, c, _]| {
            let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
            let sum: i32 = (0..4).map(|n| i32::from(a[n] as i8) * i32::from(b[n])).sum();
            u64::from((c as u32).wrapping_add(sum as u32))
        }),
        case("dp2a.hi.u32.u32", U4, |[a, b, c, _]| {
            let b = (b as u32).to_le_bytes();
            let sum = (a as u32 & 0xffff) * u32::from(b[2]) + (a as u32 >> 16) * u32::from(b[3]);
            u64::from((c as u32).wrapping_add(sum))
        }),
    ]
}

#[rustfmt::skip]
fn choices() -> Vec<Case> {
    vec![
        case("selp.b32", &[32, 32, 32, 1], |[a, b, c, _]| if c != 0 { a } else { b } & 0xffff_ffff),
        case("slct.u32.s32", U4, |[a, b, c, _]| if c as i32 >= 0 { a } else { b } & 0xffff_ffff),
        case("setp.lt.s32", &[1, 32, 32], |[a, b, ..]| u64::from((a as i32) < b as i32)),
        case("setp.hi.u64", &[1, 64, 64], |[a, b, ..]| u64::from(a > b)),
        case("setp.ne.or.b32", &[1, 32, 32, 1], |[a, b, c, _]| u64::from(a as u32 != b as u32 || c != 0)),
        case("set.ge.u32.s32", U3, |[a, b, ..]| if a as i32 >= b as i32 { 0xffff_ffff } else { 0 }),
        case("cvt.s32.s8", U2, |[a, ..]| u64::from(a as i8 as i32 as u32)),
        case("cvt.u64.u16", &[64, 16], |[a, ..]| a & 0xffff),
        case("cvt.sat.s8.s32", U2, |[a, ..]| u64::from((a as i32).clamp(-128, 127) as u32)),
        case("cvt.sat.u32.s64", &[32, 64], |[a, ..]| (a as i64).clamp(0, 0xffff_ffff) as u64),
    ]
}

#[rustfmt::skip]
fn floats() -> Vec<Case> {
    vec![
        case("add.f32", U3, |[a, b, ..]| of_f(f(a) + f(b))),
        case("add.rz.f32", U3, |[a, b, ..]| of_f(towards_zero(f(a) + f(b), sum(f(a), f(b))))),
        case("mul.rp.f32", U3, |[a, b, ..]| of_f(upwards(f(a) * f(b), f64::from(f(a)) * f64::from(f(b))))),
        case("sub.ftz.f32", U3, |[a, b, ..]| of_f(flushed(flushed(f(a)) - flushed(f(b))))),
        case("add.sat.f32", U3, |[a, b, ..]| { let sum = f(a) + f(b); of_f(if sum > 0.0 { sum.min(1.0) } else { 0.0 }) }),
        case("mul.f64", D3, |[a, b, ..]| of_d(d(a) * d(b))),
        case("fma.rn.f32", U4, |[a, b, c, _]| of_f(f(a).mul_add(f(b), f(c)))),
        case("fma.rn.f64", D4, |[a, b, c, _]| of_d(d(a).mul_add(d(b), d(c)))),
        case("div.rn.f32", U3, |[a, b, ..]| of_f(f(a) / f(b))),
        case("div.full.f32", U3, |[a, b, ..]| of_f(f(a) / f(b))),
        case("div.rn.f64", D3, |[a, b, ..]| of_d(d(a) / d(b))),
        case("rcp.rn.f32", U2, |[a, ..]| of_f(1.0 / f(a))),
        case("sqrt.rn.f32", U2, |[a, ..]| of_f(f(a).sqrt())),
        case("sqrt.rn.f64", D2, |[a, ..]| of_d(d(a).sqrt())),
        case("rsqrt.approx.f32", U2, |[a, ..]| of_f((1.0 / f64::from(f(a)).sqrt()) as f32)),
        case("ex2.approx.ftz.f32", U2, |[a, ..]| of_f(flushed(f64::from(flushed(f(a))).exp2() as f32))),
        case("lg2.approx.f32", U2, |[a, ..]| of_f(f64::from(f(a)).log2() as f32)),
        case("tanh.approx.f32", U2, |[a, ..]| of_f(f64::from(f(a)).tanh() as f32)),
        case("abs.f32", U2, |[a, ..]| a & 0x7fff_ffff),
        case("neg.f64", D2, |[a, ..]| a ^ 1 << 63),
        case("min.f32", U3, |[a, b, ..]| of_f(least(f(a), f(b)))),
        case("max.NaN.f32", U3, |[a, b, ..]| of_f(if f(a).is_nan() || f(b).is_nan() { f32::NAN } else { -least(-f(a), -f(b)) })),
        case("copysign.f32", U3, |[a, b, ..]| (a & 0x8000_0000) | (b & 0x7fff_ffff)),
        case("testp.subnormal.f32", &[1, 32], |[a, ..]| u64::from(f(a).is_subnormal())),
        case("testp.normal.f64", &[1, 64], |[a, ..]| u64::from(d(a).is_normal())),
        case("setp.lt.f32", &[1, 32, 32], |[a, b, ..]| u64::from(f(a) < f(b))),
        case("setp.ltu.f32", &[1, 32, 32], |[a, b, ..]| u64::from(f(a) < f(b) || f(a).is_nan() || f(b).is_nan())),
        case("setp.neu.f64", &[1, 64, 64], |[a, b, ..]| u64::from(d(a) != d(b))),
        case("setp.num.f64", &[1, 64, 64], |[a, b, ..]| u64::from(!d(a).is_nan() && !d(b).is_nan())),
        case("cvt.rzi.s32.f32", U2, |[a, ..]| u64::from(f(a) as i32 as u32)),
        case("cvt.rni.u64.f64", D2, |[a, ..]| d(a).round_ties_even() as u64),
        case("cvt.rmi.s64.f32", &[64, 32], |[a, ..]| f(a).floor() as i64 as u64),
        case("cvt.rpi.s16.f32", &[32, 32], |[a, ..]| u64::from(f(a).ceil() as i16 as i32 as u32)),
        case("cvt.rn.f32.s64", &[32, 64], |[a, ..]| of_f(a as i64 as f32)),
        case("cvt.rn.f32.u64", &[32, 64], |[a, ..]| of_f(a as f32)),
        case("cvt.rn.f64.u64", D2, |[a, ..]| of_d(a as f64)),
        case("cvt.rz.f32.f64", &[32, 64], |[a, ..]| of_f(towards_zero(d(a) as f32, (d(a), 0.0)))),
        case("cvt.rn.f32.f64", &[32, 64], |[a, ..]| of_f(d(a) as f32)),
        case("cvt.f64.f32", &[64, 32], |[a, ..]| of_d(f64::from(f(a)))),
        case("cvt.rni.f32.f32", U2, |[a, ..]| of_f(f(a).round_ties_even())),
        case("cvt.sat.f32.f32", U2, |[a, ..]| of_f(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 })),
        case("cvt.rn.bf16.f32", &[16, 32], |[a, ..]| {
            let a = a as u32;
            if f32::from_bits(a).is_nan() { 0x7fff } else { u64::from((a.wrapping_add(0x7fff + (a >> 16 & 1))) >> 16) }
        }),
    ]
}

/// A kernel that carries a case out for each thread's operands.
fn entry(number: usize, case: &Case) -> String {
    let register = |at: usize| match case.bits[at] {
        1 => format!("%p{at}"),
        16 => format!("%h{at}"),
        32 => format!("%r{at}"),
        _ => format!("%rd{at}"),
    };
    let mut text = format!(
        ".visible .entry case_{number}(.param .u64 in, .param .u64 out)\n{{\n.reg .pred %p<6>;\n.reg .b16 %h<6>;\n.reg .b32 %r<7>;\n\
         .reg .b64 %rd<12>;\nld.param.u64 %rd8, [in];\nld.param.u64 %rd9, [out];\nmov.u32 %r6, %tid.x;\nmul.wide.u32 %rd10, %r6, 32;\n\
         add.s64 %rd8, %rd8, %rd10;\nmul.wide.u32 %rd10, %r6, 8;\nadd.s64 %rd9, %rd9, %rd10;\n"
    );
    for at in 1..case.bits.len() {
        let _ = writeln!(text, "ld.global.u64 %rd{at}, [%rd8+{}];", (at - 1) * 8);
        let _ = match case.bits[at] {
            1 => writeln!(text, "setp.ne.u64 %p{at}, %rd{at}, 0;"),
            64 => Ok(()),
            bits => writeln!(text, "cvt.u{bits}.u64 {}, %rd{at};", register(at)),
        };
    }
    let operands: Vec<String> = (0..case.bits.len()).map(register).collect();
    let _ = writeln!(text, "{} {};", case.text, operands.join(", "));
    let _ = match case.bits[0] {
        1 => writeln!(text, "selp.u64 %rd0, 1, 0, %p0;"),
        64 => Ok(()),
        bits => writeln!(text, "cvt.u64.u{bits} %rd0, {};", register(0)),
    };
    text + "st.global.u64 [%rd9], %rd0;\nret;\n}\n"
}

fn run(cases: &[Case]) {
    let mut text = String::from(".version 8.0\n.target sm_90\n.address_size 64\n");
    for (number, case) in cases.iter().enumerate() {
        text.push_str(&entry(number, case));
    }
    let bed = bed(builder(), &text);
    let count = WORDS.len() * WORDS.len();
    let (input, output) = (bed.words(count * 8), bed.words(count * 2));
    let operands: Vec<[u64; 4]> = (0..count)
        .map(|at| {
            let (a, b) = (at % WORDS.len(), at / WORDS.len());
            // Short ones for what counts bits.
            let c = [3, 8, 0, 31, 40, WORDS[(a + 2 * b) % WORDS.len()]][(a * 5 + b) % 6];
            [WORDS[a], if b == 2 { 5 } else { WORDS[b] }, c, [4, 0, 16, 33][a % 4]]
        })
        .collect();
    let bytes: Vec<u8> = operands
        .as_flattened()
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    bed.gpu.write(input.addr(), &bytes).unwrap();
    let at = [&input, &output].map(|memory| memory.addr().to_ne_bytes());
    for (number, case) in cases.iter().enumerate() {
        let config = LaunchConfig::linear(1, count as u32);
        bed.outcome(&format!("case_{number}"), &config, &[&at[0], &at[1]])
            .unwrap();
        let words = bed.read(&output, count * 2);
        for (thread, operands) in operands.iter().enumerate() {
            let found = u64::from(words[2 * thread + 1]) << 32 | u64::from(words[2 * thread]);
            let found = match case.bits[0] {
                64 if case.text.contains("f64") && d(found).is_nan() && !case.text.contains("neg") => {
                    f64::NAN.to_bits()
                }
                _ => found,
            };
            let wanted = (case.wanted)(*operands);
            assert_eq!(
                found, wanted,
                "{} of {operands:#x?}: {found:#x} and not {wanted:#x}",
                case.text
            );
        }
    }
}

#[test]
fn instructions_of_integers_compute_what_rust_does() {
    run(&whole_numbers());
    run(&bits());
    run(&choices());
}

#[test]
fn instructions_of_floating_point_compute_what_rust_does() {
    run(&floats());
}

/// Half precision by hand: an instruction, its operands and its result.
#[test]
fn half_precision_rounds_once() {
    const CASES: &[(&str, &[u32], [u64; 4], u64)] = &[
        // 1 + 2^-11 is a tie, and a bit more is not.
        ("cvt.rn.f16.f32", &[16, 32], [0x3f80_1000, 0, 0, 0], 0x3c00),
        ("cvt.rn.f16.f32", &[16, 32], [0x3f80_1001, 0, 0, 0], 0x3c01),
        ("cvt.rz.f16.f32", &[16, 32], [0x3f80_1fff, 0, 0, 0], 0x3c00),
        ("cvt.rn.f16.f32", &[16, 32], [0x477f_f000, 0, 0, 0], 0x7c00),
        ("cvt.rz.f16.f32", &[16, 32], [0x477f_f000, 0, 0, 0], 0x7bff),
        // 2^-25 is half of the smallest one.
        ("cvt.rn.f16.f32", &[16, 32], [0x3300_0000, 0, 0, 0], 0),
        ("cvt.rn.f16.f32", &[16, 32], [0x3300_0001, 0, 0, 0], 1),
        ("cvt.rn.f16.f32", &[16, 32], [0xb3c0_0000, 0, 0, 0], 0x8002),
        ("cvt.f32.f16", &[32, 16], [0x0001, 0, 0, 0], 0x3380_0000),
        ("cvt.f32.f16", &[32, 16], [0xfc00, 0, 0, 0], 0xff80_0000),
        ("cvt.f32.bf16", &[32, 16], [0x3fc0, 0, 0, 0], 0x3fc0_0000),
        ("add.f16", &[16, 16, 16], [0x3c00, 0x1400, 0, 0], 0x3c01),
        (
            "mul.f16x2",
            &[32, 32, 32],
            [0x4000_3c00, 0x4200_c000, 0, 0],
            0x4600_c000,
        ),
        // 0x1.004p0 squared less its rounded square: rounding twice would give zero.
        ("fma.rn.f16", &[16, 16, 16, 16], [0x3c01, 0x3c01, 0xbc02, 0], 0x0010),
        ("fma.rn.relu.bf16", &[16, 16, 16, 16], [0x3f80, 0xbf80, 0x3f00, 0], 0),
        (
            "cvt.rn.f16x2.f32",
            &[32, 32, 32],
            [0x3f80_0000, 0xc000_0000, 0, 0],
            0x3c00_c000,
        ),
        (
            "max.bf16x2",
            &[32, 32, 32],
            [0x3f80_bf80, 0x4000_c000, 0, 0],
            0x4000_bf80,
        ),
        ("neg.f16x2", &[32, 32], [0x3c00_8000, 0, 0, 0], 0xbc00_0000),
    ];
    let cases: Vec<Case> = CASES
        .iter()
        .map(|(text, bits, _, wanted)| case(text, bits, |_| *wanted))
        .collect();
    let mut text = String::from(".version 8.0\n.target sm_90\n.address_size 64\n");
    for (number, case) in cases.iter().enumerate() {
        text.push_str(&entry(number, case));
    }
    let bed = bed(builder(), &text);
    let (input, output) = (bed.words(8), bed.words(2));
    let at = [&input, &output].map(|memory| memory.addr().to_ne_bytes());
    for (number, (text, _, operands, wanted)) in CASES.iter().enumerate() {
        let bytes: Vec<u8> = operands.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bed.gpu.write(input.addr(), &bytes).unwrap();
        bed.outcome(
            &format!("case_{number}"),
            &LaunchConfig::linear(1, 1),
            &[&at[0], &at[1]],
        )
        .unwrap();
        let words = bed.read(&output, 2);
        assert_eq!(
            u64::from(words[0]),
            *wanted,
            "{text} of {operands:#x?}: {:#x}",
            words[0]
        );
    }
}
