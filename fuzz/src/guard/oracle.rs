//! What must be true of a document that is handed over, found out from the document and the machine alone.

mod folders;
mod mounts;
mod place;

use guard::LowLevel;
use serde_json::Value;

use super::Ways;
use super::rules::{self, Raw, Readings};
use super::world::{BUNDLE, World};

pub(super) struct Outcome<'a> {
    pub(super) world: &'a World,
    pub(super) ways: &'a Ways,
    pub(super) before: &'a Value,
    pub(super) after: &'a Value,
    /// Destinations of the contract's mounts.
    pub(super) ours: &'a [String],
    /// Rules of which the operator was told something.
    pub(super) told: &'a [&'static str],
}

fn items<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A path as its text has it, `..` taken off what stands before it.
fn cleaned(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    format!("/{}", parts.join("/"))
}

/// Cut where the letter stands without a `\` before it.
fn cut(text: &str, at: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for letter in text.chars() {
        if letter == at && !escaped {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(letter);
        }
        escaped = letter == '\\' && !escaped;
    }
    parts
}

/// Without the `\` that keep letters.
fn plain(text: &str) -> String {
    let mut escaped = false;
    let keep = |letter: &char| {
        escaped = *letter == '\\' && !escaped;
        !escaped
    };
    text.chars().filter(keep).collect()
}

impl Outcome<'_> {
    pub(super) fn holds(&self) {
        let rules = rules::read(self.after);
        self.rules(&rules);
        self.disks(&rules);
        self.devices();
        self.mounts();
        self.hooks();
        self.place();
        self.annotations();
    }

    fn sys_admin(&self) -> bool {
        let said = self.before.pointer("/process/capabilities").is_some_and(|sets| !sets.is_null());
        if !said && self.ways.low_level == LowLevel::Youki {
            return true;
        }
        let is = |name: &str| name.to_ascii_uppercase().trim_start_matches("CAP_") == "SYS_ADMIN";
        let sets = ["bounding", "effective", "permitted"].map(|set| format!("/process/capabilities/{set}"));
        sets.iter().any(|set| items(self.before, set).iter().filter_map(Value::as_str).any(is))
    }

    fn privileged(&self) -> bool {
        let rules = rules::read(self.before);
        let live = rules.iter().rposition(Raw::closes_all).unwrap_or(0);
        self.sys_admin() && rules.iter().skip(live).any(Raw::opens_all)
    }

    /// No number of a GPU's is open outside the contract, however the list is read.
    fn rules(&self, rules: &[Raw]) {
        let runc = self.ways.low_level == LowLevel::Runc;
        let open = self.world.filters && !runc;
        if open {
            assert!(rules.iter().any(Raw::closes_all), "nothing closes the list: {rules:?}");
        }
        let mut minors: Vec<i64> = vec![0, 1, 2, 4, 9, 77, 128, 196, 255, 1_048_575];
        for (_, minor) in rules.iter().filter_map(Raw::numbers) {
            minors.extend([minor - 1, minor, minor + 1]);
        }
        minors.retain(|minor| (0..=0xf_ffff).contains(minor));
        minors.sort_unstable();
        minors.dedup();
        let readings = Readings::of(rules, b'c', open);
        for major in self.world.gpu_majors() {
            for minor in &minors {
                let device = (major, u32::try_from(*minor).unwrap_or_default());
                if self.world.is_gpu(device.0, device.1) && !self.ways.granted.contains(&device) {
                    let found = readings.open((major.into(), *minor));
                    assert!(found.is_none(), "{device:?} is open to {found:?} in {}", self.after);
                }
            }
        }
        for device in &self.ways.granted {
            let found = readings.open((device.0.into(), device.1.into()));
            assert!(found.is_some(), "{device:?} is granted, and closed in {}", self.after);
        }
    }

    /// No disk with the machine's own files is open where nobody is told of it, and none at all in `hardened`.
    fn disks(&self, rules: &[Raw]) {
        if !self.world.filters || self.privileged() {
            return;
        }
        let readings = Readings::of(rules, b'b', self.ways.low_level != LowLevel::Runc);
        let is_open = |(major, minor): &(u32, u32)| readings.open(((*major).into(), (*minor).into())).is_some();
        let open = self.world.disks.iter().find(|disk| is_open(disk));
        let told = !self.ways.hardened && self.told.contains(&"device-disk");
        assert!(open.is_none() || told, "{open:?} is open, on which the machine's files are, in {}", self.after);
    }

    fn devices(&self) {
        for device in items(self.after, "/linux/devices") {
            let number = |key| device.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            let is_char = matches!(text(device, "type"), "c" | "u");
            let numbers = (number("major"), number("minor"));
            let granted = self.ways.granted.contains(&numbers) && text(device, "path").starts_with("/dev/granted-");
            assert!(!is_char || granted || !self.world.is_gpu(numbers.0, numbers.1), "a GPU's node: {device}");
        }
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{BUNDLE}/{path}") }
    }

    /// Whether root of the container may be the machine's.
    fn is_machines_root(&self) -> bool {
        let spaces = items(self.before, "/linux/namespaces").iter().filter(|one| text(one, "type") == "user");
        let own = |space: &Value| text(space, "path").is_empty();
        let maps = items(self.before, "/linux/uidMappings");
        let root = |map: &Value| map.get("hostID").and_then(Value::as_i64).is_none_or(|id| id <= 0);
        let mut spaces = spaces.peekable();
        let apart = spaces.peek().is_some() && spaces.all(own) && !maps.is_empty() && !maps.iter().any(root);
        self.world.filters && !apart
    }
}
