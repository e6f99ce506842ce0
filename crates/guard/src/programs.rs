//! What device programs of control groups of version 2 let be opened. Pure: instructions in, an answer out.
//!
//! The programs of low-level runtimes compare and do nothing else: runc, crun and youki load the three words of
//! `struct bpf_cgroup_dev_ctx` (LDX), split the first (AND, RSH), and for each rule compare type, letters (MOV, AND),
//! major and minor (JNE with a number or a register) before MOV and EXIT; systemd has JA too. A kernel that hardens its
//! compiler hides each number behind two (MOV, XOR) in a register of its own. Programs that do anything else are not
//! judged: they may allow.
//!
//! An open asks with read, write or both, and every program in force must allow it.

use crate::minors::{self, Minors};
use crate::numbers::Numbers;

/// Character device, in the low half of the first word; the letters are in the high half.
const CHAR: u32 = 2;
const READ: u32 = 2;
const WRITE: u32 = 4;
/// Most instructions that are followed before a program may allow.
const MOST: usize = 1 << 14;

/// What is known of a register. Only what follows from the context's other words is known as a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Context,
    Minor,
    Number(u64),
    Unknown,
}

/// A GPU number outside `granted` that the programs leave open, in words. Each program is a list of instructions as
/// `bpf(2)` tells them.
#[must_use]
pub fn open_to_programs(programs: &[Vec<u64>], numbers: &Numbers, granted: &[(u32, u32)]) -> Option<String> {
    // What is granted is asked too: it may be what leads to the next number.
    let open = |device, minors: &mut Minors| openable(programs, device, minors);
    let (major, minor) = minors::find(numbers, granted, &|_, _| {}, &open)?;
    let mut minors = Minors::new(&[]);
    let judged = programs.iter().all(|program| answer(program, WRITE, (major, minor), &mut minors).is_some());
    let why = if judged { "" } else { ", as far as can be told: a device program does more than compare" };
    Some(format!("character device {major}:{minor}{why}"))
}

/// A granted number that a program denies.
#[must_use]
pub fn shut_by_programs(programs: &[Vec<u64>], granted: &[(u32, u32)]) -> Option<(u32, u32)> {
    let minors = &mut Minors::new(&[]);
    let mut denied = |device| programs.iter().any(|p| answer(p, READ | WRITE, device, minors) == Some(false));
    granted.iter().copied().find(|device| denied(*device))
}

fn openable(programs: &[Vec<u64>], device: (u32, u32), minors: &mut Minors) -> bool {
    [READ | WRITE, READ, WRITE]
        .into_iter()
        .any(|letters| programs.iter().all(|program| answer(program, letters, device, minors) != Some(false)))
}

/// One instruction: `struct bpf_insn` of `linux/bpf.h`, on the little-endian machines that this is built for.
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    to: usize,
    from: usize,
    offset: i16,
    number: i32,
}

impl Instruction {
    fn of(word: u64) -> Self {
        let [code, registers, a, b, number @ ..] = word.to_le_bytes();
        Self {
            code,
            to: usize::from(registers & 15),
            from: usize::from(registers >> 4),
            offset: i16::from_le_bytes([a, b]),
            number: i32::from_le_bytes(number),
        }
    }
}

/// What a program says; nothing when that cannot be told.
fn answer(program: &[u64], letters: u32, device: (u32, u32), minors: &mut Minors) -> Option<bool> {
    // Ten of a program's own, the frame pointer, and the compiler's.
    let mut registers = [Value::Unknown; 12];
    registers[1] = Value::Context;
    let mut at: usize = 0;
    for _ in 0..MOST {
        let it = Instruction::of(*program.get(at)?);
        at += 1;
        let old = *registers.get(it.to)?;
        let other = if it.code & 8 == 0 { Value::Number(it.number as i64 as u64) } else { *registers.get(it.from)? };
        match it.code & 7 {
            // LDX, a whole word.
            1 if it.code == 0x61 && registers.get(it.from) == Some(&Value::Context) => {
                *registers.get_mut(it.to)? = match it.offset {
                    0 => Value::Number(((letters << 16) | CHAR).into()),
                    4 => Value::Number(device.0.into()),
                    8 => Value::Minor,
                    _ => return None,
                };
            }
            class @ (4 | 7) if it.offset == 0 => *registers.get_mut(it.to)? = computed(it.code, old, other, class == 4),
            // EXIT: the kernel looks at the lower half.
            5 if it.code == 0x95 => match registers[0] {
                Value::Number(number) => return Some(number & 0xffff_ffff != 0),
                _ => return None,
            },
            class @ (5 | 6) => {
                if jumps(it.code, old, other, class == 6, device.1, minors)? {
                    at = at.checked_add_signed(it.offset.into())?;
                }
            }
            _ => return None,
        }
    }
    None
}

/// ALU and ALU64.
fn computed(code: u8, old: Value, other: Value, half: bool) -> Value {
    let cut = |number: u64| if half { number & 0xffff_ffff } else { number };
    let bits = if half { 31 } else { 63 };
    match (code >> 4, old, other) {
        (11, _, Value::Number(new)) => Value::Number(cut(new)),
        (11, _, Value::Minor) => Value::Minor,
        (11, _, Value::Context) if !half => Value::Context,
        (operation, Value::Number(a), Value::Number(b)) => {
            let (a, b) = (cut(a), cut(b));
            Value::Number(cut(match operation {
                5 => a & b,
                7 => a >> (b & bits),
                10 => a ^ b,
                _ => return Value::Unknown,
            }))
        }
        _ => Value::Unknown,
    }
}

/// JMP and JMP32: whether the jump is taken. Only those of equality are known here.
fn jumps(code: u8, old: Value, other: Value, half: bool, minor: u32, minors: &mut Minors) -> Option<bool> {
    let unequal = match code >> 4 {
        // JA; the one of JMP32 has its distance elsewhere.
        0 => return (!half).then_some(true),
        1 => false,
        5 => true,
        _ => return None,
    };
    let (a, b) = match (old, other) {
        (Value::Number(a), Value::Number(b)) => (a, b),
        (Value::Minor, Value::Number(b)) | (Value::Number(b), Value::Minor) => {
            minors.compared(b as u32);
            (minor.into(), b)
        }
        _ => return None,
    };
    let differ = if half { a as u32 != b as u32 } else { a != b };
    Some(differ == unequal)
}
