//! What of a document is acted on outside of the container: hooks, annotations, groups, classes and namespaces.

use serde_json::Value;

use super::super::HOOKS;
use super::super::spec::{ANNOTATIONS, Acts, STAGES};
use super::{Outcome, items, strings, text};

const INJECTORS: [&str; 5] = [
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-cli",
];

impl Outcome<'_> {
    pub(super) fn hooks(&self) {
        let stages = self.after.get("hooks").and_then(Value::as_object);
        // Names that no runtime knows it leaves, but in what case a name is written some do not care.
        let is_known = |name: &str| STAGES.iter().any(|stage| stage.eq_ignore_ascii_case(name));
        let known = stages.into_iter().flatten().filter(|(name, _)| is_known(name));
        for hook in known.filter_map(|(_, hooks)| hooks.as_array()).flatten() {
            let words = strings(hook, "args");
            let path = text(hook, "path");
            let mut words = words.iter().map(String::as_str).chain([path]);
            let name = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
            assert!(!words.any(|word| INJECTORS.contains(&name(word).as_str())), "an injector's hook: {hook}");
            assert!(!self.ways.hardened || HOOKS.contains(&path), "nobody lets it run: {hook}");
        }
    }

    /// A mount namespace, a control group and a class of its own.
    pub(super) fn place(&self) {
        let namespaces = items(self.after, "/linux/namespaces");
        let mut mounts = namespaces.iter().filter(|one| text(one, "type") == "mount");
        assert!(mounts.clone().next().is_some(), "it is in the host's mount namespace");
        assert!(mounts.all(|one| text(one, "path").is_empty()), "it joins another's mount namespace");
        let group = self.after.pointer("/linux/cgroupsPath").and_then(Value::as_str).unwrap_or_default();
        assert!(!group.split(['/', ':']).any(|part| part == ".."), "{group} is another's");
        let unified = self.after.pointer("/linux/resources/unified").and_then(Value::as_object);
        let mut files = unified.into_iter().flat_map(|files| files.keys());
        assert!(!files.any(|key| key.starts_with("cgroup.") || key.contains('/')), "who is in it");
        let class = self.after.pointer("/linux/intelRdt/closID").and_then(Value::as_str).unwrap_or_default();
        let leads = class != "/" && class.split('/').count() > 1;
        assert!(!leads && class != ".." && class != ".", "the class {class} is a way");
        if self.ways.hardened {
            let has = |at: &str| self.after.pointer(at).is_some_and(|value| !value.is_null());
            assert!(!has("/linux/seccomp/listenerPath"), "an agent has open files");
            assert!(!has("/linux/netDevices"), "a network device of the machine's");
            let shared = self.after.pointer("/linux/rootfsPropagation").and_then(Value::as_str).unwrap_or_default();
            assert!(!matches!(shared, "shared" | "rshared"), "its mounts show on the machine");
        }
    }

    /// Nothing that the low-level runtime does more than limit.
    pub(super) fn annotations(&self) {
        let annotations = self.after.get("annotations").and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            let climbs = value.as_str().is_some_and(|value| value.split('/').any(|part| part == ".."));
            let acted_on = match ANNOTATIONS.iter().find(|(known, _)| known == key) {
                Some((_, Acts::Never)) | None => false,
                Some((_, Acts::Always)) => true,
                Some((_, Acts::OnUnit)) => self.ways.hardened,
                Some((_, Acts::WhereItClimbs)) => climbs,
            };
            assert!(!acted_on, "{key} is acted on");
        }
    }
}
