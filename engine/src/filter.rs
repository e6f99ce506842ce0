//! A device list as a program for control groups of version 2, which libcontainer leaves out. Pure: rules in, instructions
//! out.
//!
//! Nothing is open but by a rule; the last rule that names a device decides, a list of version 1 means the same when every
//! deny comes before what it shall not close. Instructions compare and do nothing else, so that whoever verifies the
//! container can follow them.

use serde_json::Value;

/// Of `struct bpf_cgroup_dev_ctx`: the type in the low half of the first word, the letters in its high half.
const BLOCK: i32 = 1;
const CHAR: i32 = 2;
const MAKE: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;
const ALL: i32 = MAKE | READ | WRITE;

/// Registers: the answer, the context and scratch, type, letters, major, minor.
const R0: u64 = 0;
const R1: u64 = 1;
const TYPE: u64 = 2;
const LETTERS: u64 = 3;
const MAJOR: u64 = 4;
const MINOR: u64 = 5;

/// One rule of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    allow: bool,
    /// Both, where there is none.
    kind: Option<i32>,
    major: Option<i32>,
    minor: Option<i32>,
    letters: i32,
}

impl Rule {
    fn about_all(&self) -> bool {
        self.kind.is_none() && self.major.is_none() && self.minor.is_none() && self.letters == ALL
    }
}

/// Devices that every container may use, as libcontainer adds them to lists of version 1.
const ALWAYS: [(i32, Option<i32>, Option<i32>, i32); 12] = [
    (CHAR, Some(1), Some(3), ALL),
    (CHAR, Some(1), Some(5), ALL),
    (CHAR, Some(1), Some(7), ALL),
    (CHAR, Some(1), Some(8), ALL),
    (CHAR, Some(1), Some(9), ALL),
    (CHAR, Some(5), Some(0), ALL),
    (CHAR, Some(5), Some(1), ALL),
    (CHAR, Some(5), Some(2), ALL),
    (CHAR, Some(136), None, ALL),
    (CHAR, Some(10), Some(200), ALL),
    (CHAR, None, None, MAKE),
    (BLOCK, None, None, MAKE),
];

/// The rules of a spec, and those for what every container may use.
///
/// # Errors
/// The JSON pointer of a rule that cannot be read, and why.
pub(crate) fn rules(spec: &Value) -> Result<Vec<Rule>, String> {
    let list = spec.pointer("/linux/resources/devices").and_then(Value::as_array);
    let mut rules = Vec::new();
    for (index, rule) in list.into_iter().flatten().enumerate() {
        rules.push(read(rule).map_err(|why| format!("/linux/resources/devices/{index}: {why}"))?);
    }
    let always =
        ALWAYS.map(|(kind, major, minor, letters)| Rule { allow: true, kind: Some(kind), major, minor, letters });
    rules.extend(always);
    Ok(rules)
}

fn read(rule: &Value) -> Result<Rule, String> {
    let number = |key: &str| match rule.get(key).map(Value::as_i64) {
        // Engines write a wildcard as -1, too.
        None | Some(Some(-1)) => Ok(None),
        Some(Some(number)) if i32::try_from(number).is_ok_and(|n| n >= 0) => Ok(i32::try_from(number).ok()),
        _ if rule.get(key).is_some_and(Value::is_null) => Ok(None),
        _ => Err(format!("{key} is no device number")),
    };
    let allow = rule.get("allow").and_then(Value::as_bool).unwrap_or(false);
    let mut letters = 0;
    for letter in rule.get("access").and_then(Value::as_str).unwrap_or_default().chars() {
        letters |= match letter {
            'r' => READ,
            'w' => WRITE,
            'm' => MAKE,
            _ => return Err(format!("access {letter:?} is none of r, w and m")),
        };
    }
    let (major, minor) = (number("major")?, number("minor")?);
    match rule.get("type").and_then(Value::as_str).unwrap_or("a") {
        // All of it, whatever else stands there: so does version 1 of control groups take it.
        "a" if !allow => Ok(Rule { allow, kind: None, major: None, minor: None, letters: ALL }),
        "a" => Ok(Rule { allow, kind: None, major, minor, letters }),
        "c" | "u" => Ok(Rule { allow, kind: Some(CHAR), major, minor, letters }),
        "b" => Ok(Rule { allow, kind: Some(BLOCK), major, minor, letters }),
        other => Err(format!("type {other:?} is none of a, b and c")),
    }
}

/// The program.
pub(crate) fn program(rules: &[Rule]) -> Vec<u64> {
    let mut code = vec![
        word(0x61, TYPE, R1, 0, 0),
        word(0xbc, LETTERS, TYPE, 0, 0),
        word(0x54, TYPE, 0, 0, 0xffff),
        word(0x74, LETTERS, 0, 0, 16),
        word(0x61, MAJOR, R1, 4, 0),
        word(0x61, MINOR, R1, 8, 0),
    ];
    for rule in rules.iter().rev().filter(|rule| rule.letters != 0) {
        code.extend(block(rule));
        if rule.about_all() {
            // The kernel refuses a program with instructions that nothing comes to.
            return code;
        }
    }
    code.extend([word(0xb7, R0, 0, 0, 0), word(0x95, 0, 0, 0, 0)]);
    code
}

/// Answers where the rule is about the device, and goes on behind itself otherwise.
fn block(rule: &Rule) -> Vec<u64> {
    // What skips the block when it is true: code, register, register or number.
    let mut checks: Vec<(u64, u64, u64, i32)> = Vec::new();
    if let Some(kind) = rule.kind {
        checks.push((0x55, TYPE, 0, kind));
    }
    if let Some(major) = rule.major {
        checks.push((0x55, MAJOR, 0, major));
    }
    if let Some(minor) = rule.minor {
        checks.push((0x55, MINOR, 0, minor));
    }
    let lettered = rule.letters != ALL;
    let length = checks.len() + if lettered { 3 } else { 0 } + 2;
    let mut code = Vec::with_capacity(length);
    let offset = |at: usize| u64::try_from(length - at - 1).unwrap_or(0);
    for (op, register, from, number) in checks {
        code.push(word(op, register, from, offset(code.len()), number));
    }
    if lettered {
        code.push(word(0xbc, R1, LETTERS, 0, 0));
        code.push(word(0x54, R1, 0, 0, rule.letters));
        // Allowed is what asks for nothing else; denied is what asks for any of it.
        let skip = if rule.allow { (0x5d, LETTERS) } else { (0x15, 0) };
        code.push(word(skip.0, R1, skip.1, offset(code.len()), 0));
    }
    code.extend([word(0xb7, R0, 0, 0, i32::from(rule.allow)), word(0x95, 0, 0, 0, 0)]);
    code
}

/// `struct bpf_insn` of `linux/bpf.h`, on the little-endian machines that this is built for.
fn word(code: u64, to: u64, from: u64, offset: u64, number: i32) -> u64 {
    code | (to << 8) | (from << 12) | (offset << 16) | (u64::from(number.cast_unsigned()) << 32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a list means, without a program: the last rule that is about all that is asked decides.
    fn meaning(rules: &[Rule], asked: (i32, i32, i32, i32)) -> bool {
        let (kind, major, minor, letters) = asked;
        let about = |rule: &&Rule| {
            rule.kind.is_none_or(|k| k == kind)
                && rule.major.is_none_or(|m| m == major)
                && rule.minor.is_none_or(|m| m == minor)
                && if rule.allow { rule.letters & letters == letters } else { rule.letters & letters != 0 }
        };
        rules.iter().rev().find(about).is_some_and(|rule| rule.allow)
    }

    /// Follows a program as the kernel does.
    fn run(program: &[u64], (kind, major, minor, letters): (i32, i32, i32, i32)) -> bool {
        let context = [kind | (letters << 16), major, minor];
        let (mut r, mut at) = ([0_i64; 11], 0);
        loop {
            let [code, registers, a, b, n0, n1, n2, n3] = program[at].to_le_bytes();
            let (to, from) = (usize::from(registers & 15), usize::from(registers >> 4));
            let (offset, number) =
                (usize::from(u16::from_le_bytes([a, b])), i64::from(i32::from_le_bytes([n0, n1, n2, n3])));
            at += 1;
            match code {
                0x61 => r[to] = context[offset / 4].into(),
                0xbc => r[to] = r[from],
                0xb7 => r[to] = number,
                0x54 => r[to] &= number,
                0x74 => r[to] >>= number,
                0x55 if r[to] != number => at += offset,
                0x5d if r[to] != r[from] => at += offset,
                0x15 if r[to] == number => at += offset,
                0x55 | 0x5d | 0x15 => {}
                0x95 => return r[0] != 0,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn a_program_means_what_its_list_means() {
        let lists = [
            json!([]),
            json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]),
            json!([{"allow": true, "type": "a", "access": "rwm"}, {"allow": false, "type": "c", "major": 195, "access": "rwm"}]),
            json!([{"allow": false}, {"allow": true, "type": "c", "major": 195, "minor": -1, "access": "r"},
                {"allow": false, "type": "c", "major": 195, "minor": 1, "access": "w"}]),
            json!([{"allow": true, "type": "b", "major": 8, "minor": 0, "access": "rw"}, {"allow": false, "type": "c", "major": 1, "minor": 3, "access": "r"}]),
        ];
        for list in lists {
            let spec = json!({"linux": {"resources": {"devices": list}}});
            let rules = rules(&spec).unwrap();
            let program = program(&rules);
            for kind in [BLOCK, CHAR] {
                for major in [1, 5, 8, 10, 136, 195, 196] {
                    for minor in [0, 1, 2, 3, 200] {
                        for letters in 1..=ALL {
                            let asked = (kind, major, minor, letters);
                            assert_eq!(run(&program, asked), meaning(&rules, asked), "{asked:?} of {spec}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_gpu_is_open_by_its_rule_alone() {
        let granted = json!({"linux": {"resources": {"devices": [{"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}}});
        for (spec, minor, open) in [(&granted, 0, true), (&granted, 1, false), (&json!({}), 0, false)] {
            assert_eq!(run(&program(&rules(spec).unwrap()), (CHAR, 195, minor, READ | WRITE)), open, "{spec} {minor}");
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_named() {
        for rule in
            [json!({"type": "x"}), json!({"major": "1"}), json!({"access": "rx"}), json!({"minor": 5_000_000_000_u64})]
        {
            let spec = json!({"linux": {"resources": {"devices": [{"allow": false}, rule]}}});
            assert!(rules(&spec).unwrap_err().starts_with("/linux/resources/devices/1: "), "{spec}");
        }
    }
}
