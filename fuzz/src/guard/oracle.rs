//! What must be true of a document that is handed over, found out from the document and the machine alone.

use guard::LowLevel;
use serde_json::Value;

use super::Ways;
use super::rules::{self, Raw, Readings};
use super::world::{BUNDLE, Entry, Mounted, OWN, Why, World, below};

const INJECTORS: [&str; 5] = [
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-cli",
];

pub(super) struct Outcome<'a> {
    pub(super) world: &'a World,
    pub(super) ways: &'a Ways,
    pub(super) before: &'a Value,
    pub(super) after: &'a Value,
    /// Destinations of the contract's mounts.
    pub(super) ours: &'a [String],
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
        self.rules();
        self.devices();
        self.mounts();
        self.hooks();
        self.place();
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
    fn rules(&self) {
        let rules = rules::read(self.after);
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
        let readings = Readings::of(rules, open);
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

    fn devices(&self) {
        for device in items(self.after, "/linux/devices") {
            let number = |key| device.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            let is_char = matches!(text(device, "type"), "c" | "u");
            let numbers = (number("major"), number("minor"));
            let granted = self.ways.granted.contains(&numbers) && text(device, "path").starts_with("/dev/granted-");
            assert!(!is_char || granted || !self.world.is_gpu(numbers.0, numbers.1), "a GPU's node: {device}");
        }
    }

    /// Tenant's mounts in their order, what closes right behind each, the contract's at the end.
    fn mounts(&self) {
        let (before, after) = (items(self.before, "/mounts"), items(self.after, "/mounts"));
        let tail = after.get(after.len().saturating_sub(self.ours.len())..).unwrap_or_default();
        let ends: Vec<&str> = tail.iter().map(|mount| text(mount, "destination")).collect();
        assert_eq!(ends, self.ours, "the contract's mounts are not last");
        let mut place = 0;
        for mount in before {
            let Some(found) = after.iter().skip(place).position(|other| other == mount) else {
                panic!("a mount is gone: {mount}")
            };
            place += found + 1;
            let behind = after.get(place..).unwrap_or_default();
            self.mount(mount, behind);
        }
        let root = self.after.pointer("/root/path").and_then(Value::as_str).unwrap_or_default();
        // runc takes the root by its text and refuses links.
        let root = self.absolute(root);
        let seen = if self.ways.low_level == LowLevel::Runc {
            Ok(cleaned(&root))
        } else {
            self.world.walk(&root).map(|seen| seen.0)
        };
        if let Ok(real) = seen {
            self.folder(&real, true, "/", after);
        }
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{BUNDLE}/{path}") }
    }

    fn mount(&self, mount: &Value, behind: &[Value]) {
        let (kind, options) = (text(mount, "type"), strings(mount, "options"));
        let has = |wanted: &str| options.iter().any(|option| option == wanted);
        let place = text(mount, "destination");
        if kind == "bind" || has("bind") || has("rbind") {
            let recursive = has("rbind") || !has("bind");
            self.source(text(mount, "source"), recursive, place, behind);
        } else if kind == "overlay" {
            // As the kernel has it: a `\` keeps a comma or colon, and goes, but in the keys for one layer some keep it.
            for part in cut(&options.join(","), ',') {
                let (key, value) = part.split_once('=').unwrap_or_default();
                let layers = match key {
                    "lowerdir" => cut(value, ':'),
                    "upperdir" | "workdir" | "lowerdir+" | "datadir+" => vec![value.to_owned()],
                    _ => continue,
                };
                for layer in layers.iter().filter(|layer| !layer.is_empty()) {
                    self.source(&plain(layer), false, place, behind);
                    if key.ends_with('+') {
                        self.source(layer, false, place, behind);
                    }
                }
            }
        } else {
            assert_ne!(kind, "devtmpfs", "the host's /dev: {mount}");
        }
    }

    fn source(&self, source: &str, recursive: bool, place: &str, behind: &[Value]) {
        let path = self.absolute(source);
        for path in [cleaned(&path), path] {
            match self.world.walk(&path) {
                Err(Why::Untold) => panic!("accepted, and nobody says what is at {path}"),
                Err(Why::Missing) => {
                    let name = cleaned(&path);
                    assert!(!name.starts_with("/dev/nvidia"), "accepted, and may be a GPU's node: {path}");
                }
                Ok((_, Entry::Char(major, minor))) => {
                    assert!(!self.world.is_gpu(*major, *minor), "a GPU's node: {path}");
                }
                Ok((real, Entry::Dir)) => self.folder(&real, recursive, place, behind),
                Ok((real, _)) => self.not_ours(&real),
            }
        }
    }

    fn not_ours(&self, real: &str) {
        let own = OWN.iter().find(|folder| below(real, folder).is_some());
        assert!(own.is_none(), "{real} is ours");
    }

    fn folder(&self, real: &str, recursive: bool, place: &str, behind: &[Value]) {
        self.not_ours(real);
        let gpus = |folder: &str| self.world.nodes_in(folder).iter().any(|node| self.world.is_gpu(node.0, node.1));
        let on_dev = self.world.mount_of(real).1 == Mounted::Dev || below(real, self.world.dev_root).is_some();
        assert!(!on_dev || !gpus(real), "{real} holds a GPU's node");
        let mut shown = self.world.mounts_in(real).filter(|(point, kind)| *kind == Mounted::Dev && gpus(point));
        let closed = self.privileged() || (self.world.filters && !self.sys_admin());
        assert!(closed || !recursive || shown.next().is_none(), "{real} shows /dev, and nothing closes it");
        if self.sys_admin() || !self.world.filters {
            return;
        }
        let path_of = |rest: &str| format!("{}/{rest}", place.trim_end_matches('/'));
        let here = |mount: &&Value, at: &str| text(mount, "destination") == at;
        // What closes stands before anything of the tenant's.
        let added = behind.iter().take_while(|mount| {
            text(mount, "type") == "tmpfs" || strings(mount, "options").contains(&"rro".to_owned())
        });
        for own in OWN {
            let Some(rest) = below(own, real) else { continue };
            let covered = self.world.mounts_in(real).any(|(point, _)| below(own, point).is_some());
            if recursive || !covered {
                let at = path_of(rest);
                let hidden = added.clone().find(|mount| here(mount, &at) && text(mount, "type") == "tmpfs");
                assert!(hidden.is_some(), "{own} shows at {at}");
            }
        }
    }

    fn hooks(&self) {
        let stages = self.after.get("hooks").and_then(Value::as_object);
        for hook in stages.into_iter().flat_map(|stages| stages.values()).filter_map(Value::as_array).flatten() {
            let words = strings(hook, "args");
            let path = text(hook, "path");
            let mut words = words.iter().map(String::as_str).chain([path]);
            let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
            assert!(!words.any(|word| INJECTORS.contains(&name(word).as_str())), "an injector's hook: {hook}");
        }
    }

    /// A mount namespace and a control group of its own.
    fn place(&self) {
        let namespaces = items(self.after, "/linux/namespaces");
        let mut mounts = namespaces.iter().filter(|one| text(one, "type") == "mount");
        assert!(mounts.clone().next().is_some(), "it is in the host's mount namespace");
        assert!(mounts.all(|one| text(one, "path").is_empty()), "it joins another's mount namespace");
        let group = self.after.pointer("/linux/cgroupsPath").and_then(Value::as_str).unwrap_or_default();
        assert!(!group.split(['/', ':']).any(|part| part == ".."), "{group} is another's");
        let unified = self.after.pointer("/linux/resources/unified").and_then(Value::as_object);
        assert!(!unified.is_some_and(|files| files.keys().any(|key| key.starts_with("cgroup."))), "who is in it");
    }
}
