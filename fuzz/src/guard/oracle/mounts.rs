//! Which folders and files of the machine a container's mounts show, and how.

use guard::LowLevel;
use serde_json::Value;

use super::super::world::{Entry, OWN, Why, below};
use super::folders::Place;
use super::{Outcome, cleaned, cut, items, plain, strings, text};

/// Types of file systems that hold no device nodes of the machine's.
const PLAIN: [&str; 11] =
    ["cgroup", "cgroup2", "devpts", "mqueue", "none", "overlay", "proc", "ramfs", "sysfs", "tmpfs", ""];

/// Whether the mount itself can be written, and whether all that is mounted in it is told to be read-only.
fn is_writable(options: &[String]) -> bool {
    let last = options.iter().rfind(|option| matches!(option.as_str(), "ro" | "rw" | "rro"));
    last.is_none_or(|option| option == "rw") || options.iter().any(|option| option == "rrw")
}

impl Outcome<'_> {
    /// Tenant's mounts in their order, what closes right behind each, the contract's at the end.
    pub(super) fn mounts(&self) {
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
            self.mount(mount, after.get(place..).unwrap_or_default());
        }
        self.root(after);
    }

    fn root(&self, behind: &[Value]) {
        let Some(written) = self.after.pointer("/root/path").and_then(Value::as_str) else { return };
        let path = self.absolute(written);
        for place in ["dev", "proc", "sys"] {
            let at = format!("{}/{place}", path.trim_end_matches('/'));
            assert!(!self.world.ends_in_no_folder(&at), "{at} of the image is no folder");
        }
        // runc takes the root by its text and refuses links.
        let path = if self.ways.low_level == LowLevel::Runc { cleaned(&path) } else { path };
        let Ok((real, Entry::Dir)) = self.world.walk(&path) else { return };
        if self.ways.low_level == LowLevel::Runc && real != path {
            return;
        }
        let writable = self.after.pointer("/root/readonly").and_then(Value::as_bool) != Some(true);
        let place = Place {
            destination: "/",
            behind,
            recursive: true,
            writable,
            is_root: true,
            is_layer: false,
            itself_read_only: false,
        };
        self.folder(&real, &place);
    }

    fn mount(&self, mount: &Value, behind: &[Value]) {
        let (kind, options) = (text(mount, "type"), strings(mount, "options"));
        let has = |wanted: &str| options.iter().any(|option| option == wanted);
        let read_only =
            options.iter().rfind(|option| matches!(option.as_str(), "ro" | "rw")).is_some_and(|it| it == "ro");
        // What youki mounts there can be written, whatever is said.
        let is_dev = mount.get("destination").and_then(Value::as_str).is_some_and(|place| cleaned(place) == "/dev");
        let mut place = Place {
            // Without one runc mounts over the root.
            destination: mount.get("destination").and_then(Value::as_str).unwrap_or("/"),
            behind,
            recursive: false,
            writable: is_writable(&options) || is_dev,
            is_root: false,
            is_layer: false,
            itself_read_only: read_only && !has("rrw") && !is_dev,
        };
        if kind == "bind" || has("bind") || has("rbind") {
            place.recursive = has("rbind") || !has("bind");
            self.source(text(mount, "source"), &place);
        } else if kind == "overlay" {
            place.is_layer = true;
            // As the kernel has it: a `\` keeps a comma or colon, and goes, but in the keys for one layer some keep it.
            for part in cut(&options.join(","), ',') {
                let (key, value) = part.split_once('=').unwrap_or_default();
                let layers = match key {
                    "lowerdir" => cut(value, ':'),
                    "upperdir" | "workdir" | "lowerdir+" | "datadir+" => vec![value.to_owned()],
                    _ => continue,
                };
                place.writable = matches!(key, "upperdir" | "workdir");
                for layer in layers.iter().filter(|layer| !layer.is_empty()) {
                    self.source(&plain(layer), &place);
                    if key.ends_with('+') {
                        self.source(layer, &place);
                    }
                }
            }
        } else {
            self.file_system(mount, kind, &place);
        }
    }

    /// What is no bind.
    fn file_system(&self, mount: &Value, kind: &str, place: &Place<'_>) {
        assert_ne!(kind, "devtmpfs", "the host's /dev: {mount}");
        assert!(!self.ways.hardened || PLAIN.contains(&kind), "nodes may be in it: {mount}");
        let open = place.writable && !self.privileged() && self.is_machines_root();
        assert!(!open || kind != "sysfs", "the machine's devices, to be written: {mount}");
        if open && kind == "proc" && self.ways.hardened {
            let settings = format!("{}/sys", cleaned(place.destination).trim_end_matches('/'));
            let lists = ["readonlyPaths", "maskedPaths"].map(|list| items(self.after, &format!("/linux/{list}")));
            let mut closed = lists.into_iter().flatten().filter_map(Value::as_str);
            assert!(closed.any(|path| below(&settings, path).is_some()), "the kernel's settings: {mount}");
        }
        let source = text(mount, "source");
        if kind == "ext4"
            && source.contains('/')
            && !self.sys_admin()
            && let Ok((_, Entry::Block(major, minor))) = self.world.walk(&self.absolute(source))
        {
            let is_disk = self.world.disks.contains(&(*major, *minor));
            assert!(!is_disk || self.told.contains(&"device-disk"), "a disk of the machine's: {mount}");
        }
    }

    fn source(&self, source: &str, place: &Place<'_>) {
        let path = self.absolute(source);
        // Runtimes may clean a source; the kernel reads a layer as it stands.
        let cleaned_too = (!place.is_layer).then(|| cleaned(&path));
        for path in cleaned_too.into_iter().chain([path]) {
            match self.world.walk(&path) {
                Err(Why::Untold) => panic!("accepted, and nobody says what is at {path}"),
                Err(Why::Missing) => {
                    let name = cleaned(&path);
                    assert!(!name.starts_with("/dev/nvidia"), "accepted, and may be a GPU's node: {path}");
                }
                Ok((_, Entry::Char(major, minor))) => {
                    assert!(!self.world.is_gpu(*major, *minor), "a GPU's node: {path}");
                }
                Ok((_, Entry::Block(..))) => {}
                Ok((real, Entry::Dir)) => self.folder(&real, place),
                Ok((real, _)) => self.file(&real, place),
            }
        }
    }

    fn file(&self, real: &str, place: &Place<'_>) {
        let shown = self.world.shown(real, false);
        self.parts(real, &shown, place);
        let (_, name) = self.world.lies(real);
        assert!(OWN.iter().all(|own| below(&name, own).is_none()), "{real} is ours");
    }
}
