//! Device programs against plain models: those that runtimes write, hidden ones, and heaps of instructions.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::models::{MINORS, bits, list, program};
use contract::rule::{Kind, Rule};
use guard::{Numbers, open_to_programs, shut_by_programs};
use proptest::prelude::*;

/// One instruction of `linux/bpf.h`.
fn word(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    let [a, b] = offset.to_le_bytes();
    let [c, d, e, f] = number.to_le_bytes();
    u64::from_le_bytes([code, to | (from << 4), a, b, c, d, e, f])
}

const MOV: u8 = 0xb7;
const EXIT: u8 = 0x95;
const JNE: u8 = 0x55;

/// `struct bpf_cgroup_dev_ctx` in registers: type 2, letters 3, major 4, minor 5.
fn loaded() -> Vec<u64> {
    let load = |to, offset| word(0x61, to, 1, offset, 0);
    vec![load(2, 0), word(0x54, 2, 0, 0, 0xffff), load(3, 0), word(0x74, 3, 0, 0, 16), load(4, 4), load(5, 8)]
}

/// A rule as runc, crun and youki write it: compares that lead behind the answer, and the answer.
fn block(rule: &Rule) -> Vec<u64> {
    let letters = bits(rule.access);
    let letters = i32::from((letters & 1) << 1 | (letters & 2) << 1 | letters >> 2);
    let mut compares = Vec::new();
    if rule.kind != Kind::All {
        compares.push(vec![(JNE, 2, if rule.kind == Kind::Char { 2 } else { 1 })]);
    }
    compares.push(vec![(0xbc, 1, 3), (0x54, 1, letters), (0x5d, 1, 3)]);
    compares.extend(rule.major.map(|major| vec![(JNE, 4, i32::try_from(major).unwrap())]));
    compares.extend(rule.minor.map(|minor| vec![(JNE, 5, i32::try_from(minor).unwrap())]));
    let length: usize = compares.iter().map(Vec::len).sum();
    let mut code = Vec::new();
    for (code_byte, to, number) in compares.into_iter().flatten() {
        let left = i16::try_from(length - code.len() - 1).unwrap() + 2;
        code.push(match code_byte {
            0xbc => word(0xbc, to, 3, 0, 0),
            0x5d => word(0x5d, to, 3, left, 0),
            JNE => word(JNE, to, 0, left, number),
            other => word(other, to, 0, 0, number),
        });
    }
    code.extend([word(MOV, 0, 0, 0, rule.allow.into()), word(EXIT, 0, 0, 0, 0)]);
    code
}

/// The first rule that matches decides, and nothing is open by itself.
fn compiled(rules: &[Rule]) -> Vec<u64> {
    let blocks = rules.iter().flat_map(block);
    loaded().into_iter().chain(blocks).chain([word(MOV, 0, 0, 0, 0), word(EXIT, 0, 0, 0, 0)]).collect()
}

/// Every number behind two, in the compiler's own register, as `net.core.bpf_jit_harden` has it.
fn hidden(program: &[u64]) -> Vec<u64> {
    let secret = 0x5a5a_1234;
    let is_plain =
        |word: u64| word & 8 == 0 && matches!(word & 7, 4..=7) && word & 0xff != u64::from(EXIT) && word & 0xff != 5;
    let length = |words: &[u64]| words.iter().map(|word| if is_plain(*word) { 3 } else { 1 }).sum::<i16>();
    let mut out = Vec::new();
    for (at, &one) in program.iter().enumerate() {
        let [code, registers, a, b, number @ ..] = one.to_le_bytes();
        let (offset, number) = (i16::from_le_bytes([a, b]), i32::from_le_bytes(number));
        let offset = if matches!(code & 7, 5 | 6) && offset > 0 {
            length(&program[at + 1..at + 1 + usize::try_from(offset).unwrap()])
        } else {
            offset
        };
        let (to, from) = (registers & 15, registers >> 4);
        if is_plain(one) {
            out.extend([
                word(MOV, 11, 0, 0, number ^ secret),
                word(0xa7, 11, 0, 0, secret),
                word(code | 8, to, 11, offset, 0),
            ]);
        } else {
            out.push(word(code, to, from, offset, number));
        }
    }
    out
}

fn numbers() -> Numbers {
    Numbers::of(&vec![("nvidia".into(), 195), ("nvidia-uvm".into(), 511)], |_| Some(0x8086))
}

fn gpus() -> impl Iterator<Item = (u32, u32)> {
    let whole = [195, 511].into_iter().flat_map(|major| (0..400).chain([0xf_ffff]).map(move |minor| (major, minor)));
    whole.chain([(1, 1), (1, 2), (1, 4), (10, 196)])
}

fn granted() -> impl Strategy<Value = Vec<(u32, u32)>> {
    proptest::collection::vec((proptest::sample::select(&[195, 511][..]), proptest::sample::select(&MINORS[..])), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_compiled_lists_open_is_found_and_nothing_else(lists in proptest::collection::vec(list(), 1..3), granted in granted()) {
        let opens = |device| [1, 2, 3].into_iter().any(|letters| {
            lists.iter().all(|rules| program(rules.iter(), device, letters, false))
        });
        let expected = gpus().any(|device| !granted.contains(&device) && opens(device));
        let programs: Vec<_> = lists.iter().map(|rules| compiled(rules)).collect();
        let found = open_to_programs(&programs, &numbers(), &granted);
        prop_assert_eq!(found.is_some(), expected, "{:?}", found);
        let blind: Vec<_> = programs.iter().map(|program| hidden(program)).collect();
        prop_assert_eq!(open_to_programs(&blind, &numbers(), &granted), found);
        let shut = granted.iter().copied().find(|device| !lists.iter().all(|rules| program(rules.iter(), *device, 3, false)));
        prop_assert_eq!(shut_by_programs(&programs, &granted), shut);
    }

    /// What is called closed is closed, whatever the instructions do; and none makes us stumble.
    #[test]
    fn heaps_of_instructions_are_never_called_closed_when_they_are_not(heap in proptest::collection::vec(instruction(), 0..24)) {
        let code: Vec<u64> = loaded().into_iter().chain(heap).collect();
        if open_to_programs(std::slice::from_ref(&code), &numbers(), &[]).is_none() {
            for (major, minor) in gpus() {
                for letters in [2, 4, 6] {
                    prop_assert_ne!(plainly(&code, [letters << 16 | 2, major, minor]), Some(true), "{}:{}", major, minor);
                }
            }
        }
    }
}

fn instruction() -> impl Strategy<Value = u64> {
    let codes: Vec<u8> = vec![
        0x05, 0x15, 0x1d, 0x25, 0x35, 0x45, 0x55, 0x5d, 0x65, 0x75, 0xa5, 0xb5, 0xc5, 0xd5, 0x16, 0x1e, 0x56, 0xae,
        0xc6, 0x04, 0x07, 0x0f, 0x17, 0x44, 0x47, 0x54, 0x57, 0x5f, 0x64, 0x67, 0x74, 0x77, 0xa7, 0xaf, 0xb4, 0xb7,
        0xbc, 0xbf, 0x61, 0x63, 0x7b, 0x18, 0x85, EXIT, EXIT, EXIT, MOV, MOV, JNE, JNE,
    ];
    let number = prop_oneof![Just(0), Just(1), Just(195), Just(5), Just(255), Just(-1), any::<i32>()];
    (proptest::sample::select(codes), prop_oneof![2 => Just(0_u8), 3 => 0_u8..7], 0_u8..7, 0_i16..6, number).prop_map(
        |(code, to, from, offset, number)| {
            word(code, to, from, if matches!(code & 7, 5 | 6 | 1) { offset } else { 0 }, number)
        },
    )
}

/// The instructions done one by one with real numbers, forward only. Nothing: no kernel would take them.
fn plainly(program: &[u64], context: [u32; 3]) -> Option<bool> {
    let (mut registers, mut at) = ([0_u64; 12], 0_usize);
    loop {
        let [code, pair, a, b, number @ ..] = program.get(at)?.to_le_bytes();
        at += 1;
        let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
        let offset = i16::from_le_bytes([a, b]);
        let other = if code & 8 != 0 { registers[from] } else { i64::from(i32::from_le_bytes(number)) as u64 };
        let half = matches!(code & 7, 4 | 6);
        let cut = |x: u64| if half { x & 0xffff_ffff } else { x };
        let (x, y) = (cut(registers[to]), cut(other));
        let sign = |x: u64| if half { i64::from(x as i32) } else { x as i64 };
        let shift = y & if half { 31 } else { 63 };
        match (code & 7, code >> 4) {
            (1, 6) if from == 1 => registers[to] = context.get(usize::try_from(offset).ok()? / 4).copied()?.into(),
            (4 | 7, operation) => {
                registers[to] = cut(match operation {
                    0 => x.wrapping_add(y),
                    1 => x.wrapping_sub(y),
                    4 => x | y,
                    5 => x & y,
                    6 => x << shift,
                    7 => x >> shift,
                    10 => x ^ y,
                    11 => y,
                    _ => return None,
                });
            }
            (5, 9) => return Some(registers[0] & 0xffff_ffff != 0),
            (5 | 6, operation) => {
                let taken = match operation {
                    0 => true,
                    1 => x == y,
                    2 => x > y,
                    3 => x >= y,
                    4 => x & y != 0,
                    5 => x != y,
                    6 => sign(x) > sign(y),
                    7 => sign(x) >= sign(y),
                    10 => x < y,
                    11 => x <= y,
                    12 => sign(x) < sign(y),
                    13 => sign(x) <= sign(y),
                    _ => return None,
                };
                at += if taken { usize::try_from(offset).ok()? } else { 0 };
            }
            _ => return None,
        }
    }
}

#[test]
fn programs_as_systemd_writes_them() {
    // Each rule jumps to the one place that allows.
    let mut code = loaded();
    code.extend([
        word(JNE, 2, 0, 3, 2),
        word(JNE, 4, 0, 2, 195),
        word(JNE, 5, 0, 1, 7),
        word(0x05, 0, 0, 2, 0),
        word(MOV, 0, 0, 0, 0),
        word(0x05, 0, 0, 1, 0),
        word(MOV, 0, 0, 0, 1),
        word(EXIT, 0, 0, 0, 0),
    ]);
    let programs = [code];
    assert_eq!(open_to_programs(&programs, &numbers(), &[]).unwrap(), "character device 195:7");
    assert_eq!(open_to_programs(&programs, &numbers(), &[(195, 7)]), None);
    assert_eq!(shut_by_programs(&programs, &[(195, 7), (195, 8)]), Some((195, 8)));
}

#[test]
fn what_is_not_judged_may_allow_and_closes_nothing() {
    let allow = [word(MOV, 0, 0, 0, 1), word(EXIT, 0, 0, 0, 0)];
    let deny = [word(MOV, 0, 0, 0, 0), word(EXIT, 0, 0, 0, 0)];
    let table: [(&str, Vec<u64>); 7] = [
        ("a copy of the lowest byte", [vec![word(0x61, 5, 1, 8, 0), word(0xbf, 6, 5, 8, 0)], deny.to_vec()].concat()),
        ("a helper", vec![word(0x85, 0, 0, 0, 1), word(EXIT, 0, 0, 0, 0)]),
        ("a map", [vec![word(0x18, 1, 1, 0, 3), 0], deny.to_vec()].concat()),
        ("memory", [vec![word(0x63, 10, 1, -4, 0)], deny.to_vec()].concat()),
        (
            "a bit of the minor",
            [vec![word(0x61, 5, 1, 8, 0), word(0x45, 5, 0, 2, 1)], deny.to_vec(), allow.to_vec()].concat(),
        ),
        ("the minor as answer", vec![word(0x61, 0, 1, 8, 0), word(EXIT, 0, 0, 0, 0)]),
        ("no end", vec![word(0x05, 0, 0, -1, 0)]),
    ];
    for (name, code) in table {
        let found = open_to_programs(std::slice::from_ref(&code), &numbers(), &[]).unwrap();
        assert!(found.contains("more than compare"), "{name}: {found}");
        assert_eq!(open_to_programs(&[code.clone(), deny.to_vec()], &numbers(), &[]), None, "{name}: another closes");
        assert_eq!(shut_by_programs(&[code], &[(195, 0)]), None, "{name}");
    }
    assert_eq!(open_to_programs(&[allow.to_vec()], &numbers(), &[]).unwrap(), "character device 195:0");
    assert!(open_to_programs(&[], &numbers(), &[]).is_some(), "nothing closes nothing");
}

#[test]
fn letters_of_several_programs_count_together() {
    let rule = |access: &str| guard::parse_list_line(&format!("c 195:0 {access}")).unwrap();
    let [read, write] = ["r", "w"].map(|access| compiled(&[rule(access)]));
    assert!(open_to_programs(std::slice::from_ref(&read), &numbers(), &[]).is_some());
    assert_eq!(open_to_programs(&[read, write], &numbers(), &[]), None, "one lets read only, the other write only");
}

/// A compiler may compare a copy, or by equality, or 32 bits only, or keep the context in another register: a whole one, half of it is none.
#[test]
fn copies_are_followed() {
    const JNE32: u8 = 0x56;
    let rest = |code: u8| {
        let (differs, is) = if matches!(code, JNE | JNE32) { (3, 0) } else { (1, 2) };
        vec![
            word(0xbf, 6, 5, 0, 0),
            word(code, 6, 0, differs, 7),
            word(0x05, 0, 0, is, 0),
            word(MOV, 0, 0, 0, 1),
            word(EXIT, 0, 0, 0, 0),
            word(MOV, 0, 0, 0, 0),
            word(EXIT, 0, 0, 0, 0),
        ]
    };
    let moved = |code: u8| vec![word(code, 7, 1, 0, 0), word(0x61, 4, 7, 4, 0), word(0x61, 5, 7, 8, 0)];
    let not_nvidia = [word(0x15, 4, 0, 2, 195), word(MOV, 0, 0, 0, 0), word(EXIT, 0, 0, 0, 0)];
    for code in [JNE, 0x15, JNE32, 0x16] {
        let program = [moved(0xbf), not_nvidia.to_vec(), rest(code)].concat();
        assert_eq!(
            open_to_programs(std::slice::from_ref(&program), &numbers(), &[]).unwrap(),
            "character device 195:7"
        );
        assert_eq!(open_to_programs(&[program], &numbers(), &[(195, 7)]), None, "{code:#x}");
        let half = [moved(0xbc), not_nvidia.to_vec(), rest(code)].concat();
        assert!(open_to_programs(&[half], &numbers(), &[(195, 7)]).unwrap().contains("more than compare"), "{code:#x}");
    }
}
