//! Start states from a seed: whatever of a process the kernel hands on through `execve`, each part of it other than
//! usual in some states. The same seed is the same state.

use serde_json::{Value, json};

/// The splitmix64 sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `many`.
    pub(crate) fn below(&mut self, many: u64) -> u64 {
        self.next() % many
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    /// Any bytes that a string of C can have.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let many = self.below(20);
        (0..many).map(|_| self.below(255) as u8 + 1).collect()
    }
}

/// Signals that a program can ignore and block; 32 and 33 are the C library's own.
fn signals() -> impl Iterator<Item = u64> {
    (1..=64).filter(|signal| ![9, 19, 32, 33].contains(signal))
}

/// CAP_MAC_ADMIN, CAP_SYSLOG, CAP_WAKE_ALARM: nobody here needs them.
const CAPABILITIES: [u64; 3] = [33, 34, 35];
const KINDS: [&str; 8] = ["file", "append", "folder", "path", "null", "event", "pipe", "sockets"];
/// RLIMIT_FSIZE, RLIMIT_STACK, RLIMIT_NOFILE, RLIMIT_MSGQUEUE, and soft limits that everybody here can live with.
const LIMITS: [(u64, u64); 4] = [(1, 1 << 30), (3, 4 << 20), (7, 300), (12, 4096)];

/// A state in which some parts are as usual, and some are not.
pub(crate) fn state(random: &mut Random) -> Value {
    let mut ignored: Vec<u64> = Vec::new();
    let mut blocked: Vec<u64> = Vec::new();
    if random.one_in(2) {
        let share = 1 + random.below(8);
        ignored = signals().filter(|_| random.one_in(share)).collect();
    }
    if random.one_in(2) {
        let share = 1 + random.below(8);
        blocked = signals().filter(|_| random.one_in(share)).collect();
    }
    // One that is ignored is thrown away, and of stopping signals and SIGCONT each takes the other out.
    let stays = |signal: &u64| !ignored.contains(signal) && !(17..=22).contains(signal);
    let pending: Vec<u64> = blocked.iter().copied().filter(stays).filter(|_| random.one_in(6)).collect();
    let share = random.below(4) + 1;
    let open: Vec<Value> = (0..12)
        .filter_map(|place| {
            let item = json!([3 + 2 * place, random.of(&KINDS), u64::from(random.one_in(3))]);
            random.one_in(share).then_some(item)
        })
        .collect();
    let closed: Vec<u64> = (0..3).filter(|_| random.one_in(4)).collect();
    let limits: Vec<(u64, u64)> = LIMITS.into_iter().filter(|_| random.one_in(3)).chain([(4, 0)]).collect();
    let dropped: Vec<u64> = CAPABILITIES.into_iter().filter(|_| random.one_in(4)).collect();
    json!({
        "ignored": ignored,
        "blocked": blocked,
        "pending": pending,
        "open": open,
        "closed": closed,
        "limits": limits,
        "dropped": dropped,
        "cwd": random.of(&["", "/", "/usr/bin"]),
        "umask": random.of(&[0, 0o22, 0o27, 0o77, 0o157]),
        "nice": random.of(&[0, 0, 1, 5]),
        "oom": random.of(&[0, 0, 100, 1000]),
        "batch": random.below(2),
        "processor": random.of(&[-1, -1, 0]),
        // ADDR_NO_RANDOMIZE
        "personality": random.of(&[0, 0, 0x0004_0000]),
        "no_new_privs": random.below(2),
        "slack": random.of(&[50_000, 50_000, 1, 777_777]),
        "death_signal": random.of(&[0, 0, 9, 15, 37]),
        "group": random.below(3),
    })
}

/// The same state but for one part: whoever compares must see each.
pub(crate) fn others(state: &Value) -> Vec<(&'static str, Value)> {
    let toggled = |list: &Value, number: u64| {
        let mut list: Vec<Value> = list.as_array().cloned().unwrap_or_default();
        let before = list.len();
        list.retain(|item| item != number);
        if list.len() == before {
            list.push(number.into());
        }
        Value::from(list)
    };
    let other = |key: &str, one: Value, two: Value| if state[key] == one { two } else { one };
    let mut changes: Vec<(&'static str, Value)> = vec![
        ("cwd", other("cwd", "/".into(), "/usr".into())),
        ("umask", other("umask", 2.into(), 3.into())),
        ("nice", other("nice", 2.into(), 3.into())),
        ("oom", other("oom", 7.into(), 8.into())),
        ("batch", other("batch", 1.into(), 0.into())),
        ("processor", other("processor", 0.into(), json!(-1))),
        ("personality", other("personality", 0.into(), 0x0004_0000.into())),
        ("no_new_privs", other("no_new_privs", 1.into(), 0.into())),
        ("slack", other("slack", 2.into(), 3.into())),
        ("death_signal", other("death_signal", 1.into(), 2.into())),
        ("group", other("group", 0.into(), 2.into())),
        ("open", json!([[60, "file", 0]])),
        ("limits", json!([[7, 256], [4, 0]])),
    ];
    // SIGPIPE and SIGXFSZ, which runtimes of languages like to change; SIGCHLD, which whoever waits does.
    for (key, number) in [("ignored", 13), ("ignored", 25), ("ignored", 17), ("blocked", 17), ("blocked", 64)] {
        changes.push((key, toggled(&state[key], number)));
    }
    changes.extend((0..3).map(|number| ("closed", toggled(&state["closed"], number))));
    changes.extend(CAPABILITIES.map(|number| ("dropped", toggled(&state["dropped"], number))));
    let with = |(key, value): (&'static str, Value)| {
        let mut changed = state.clone();
        changed[key] = value;
        (key, changed)
    };
    changes.into_iter().map(with).collect()
}
