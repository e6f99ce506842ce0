//! What a folder shows, by whatever names: nodes of GPUs, what is ours, control groups, and files of the kernel's.

use serde_json::Value;

use super::super::world::{CDI, Entry, Kind, LOG, OWN, PROGRAMS, Shown, below, joined};
use super::{Outcome, strings, text};

/// Where in the container something is shown, and how.
pub(super) struct Place<'a> {
    pub(super) destination: &'a str,
    /// The mounts that follow.
    pub(super) behind: &'a [Value],
    pub(super) recursive: bool,
    pub(super) writable: bool,
    pub(super) is_root: bool,
    /// Of an overlay, which shows parts of it at any place.
    pub(super) is_layer: bool,
    /// By its last `ro` or `rw`.
    pub(super) itself_read_only: bool,
}

impl Place<'_> {
    /// Whether a mount that closes stands there, before anything of the tenant's.
    fn is_closed(&self, rest: &str, by: impl Fn(&Value) -> bool) -> bool {
        let is_read_only = |mount: &Value| strings(mount, "options").contains(&"rro".to_owned());
        let added = self.behind.iter().take_while(|mount| text(mount, "type") == "tmpfs" || is_read_only(mount));
        let at = joined(self.destination, rest);
        let mut there = added.filter(|mount| text(mount, "destination") == at);
        there.any(by)
    }
}

impl Outcome<'_> {
    pub(super) fn folder(&self, real: &str, place: &Place<'_>) {
        let shown = self.world.shown(real, place.recursive);
        self.nodes(real, &shown, place);
        self.parts(real, &shown, place);
        self.hidden(real, &shown, place);
        self.groups(&shown, place);
        self.kernels(&shown, place);
    }

    fn nodes(&self, real: &str, shown: &[Shown<'_>], place: &Place<'_>) {
        let gpus = |folder: &str| self.world.nodes_in(folder).iter().any(|node| self.world.is_gpu(node.0, node.1));
        let (mount, part) = self.world.lies(real);
        let on_dev = mount.kind == Kind::Dev || below(&part, self.world.dev_root).is_some();
        assert!(!on_dev || !gpus(real), "{real} holds a GPU's node");
        let closed = self.privileged() || (self.world.filters && !self.sys_admin());
        if closed || !place.recursive {
            return;
        }
        let mut inside = shown.iter().skip(1).filter(|(_, mount, _)| mount.kind == Kind::Dev);
        assert!(!inside.any(|(rest, ..)| gpus(&joined(real, rest))), "{real} shows /dev, and nothing closes it");
    }

    /// No file of ours, by any name; and nothing that root runs or believes can be written.
    pub(super) fn parts(&self, real: &str, shown: &[Shown<'_>], place: &Place<'_>) {
        let (_, part) = self.world.lies(real);
        assert!(OWN.iter().all(|own| below(&part, own).is_none()), "{real} is ours");
        if self.ways.hardened && place.writable {
            let inside = |own: &&str| !self.world.places(real, place.recursive, shown, own).is_empty();
            assert!(!OWN.iter().any(inside), "{real} holds ours, to be written");
        }
        self.files_of_the_kernel(real, shown, place);
        // The whole machine is no boundary, and the operator is told so.
        if !place.writable || !self.world.filters || self.privileged() || part == "/" {
            return;
        }
        let shown: Vec<Shown<'_>> = shown.iter().filter(|(_, _, part)| part != "/").cloned().collect();
        for program in PROGRAMS {
            let at = self.world.places(real, place.recursive, &shown, program);
            assert!(at.is_empty(), "{program} can be written at {at:?} of {real}");
        }
        for (rest, mount, part) in &shown {
            assert!(
                CDI.iter().all(|folder| below(part, folder).is_none()),
                "{part} makes engines inject, at {rest} of {real}"
            );
            for own in OWN.iter().filter(|own| self.world.lies(own).0.home == mount.home) {
                let inside = below(own, part).unwrap_or_default();
                let exchanged = inside.contains('/') || (!inside.is_empty() && *own != LOG);
                assert!(!exchanged, "{own} can be exchanged at {rest} of {real}");
            }
        }
    }

    /// The files of PCI devices and the kernel's settings, as far as what is bound is one of them itself.
    fn files_of_the_kernel(&self, real: &str, shown: &[Shown<'_>], place: &Place<'_>) {
        let Some((_, mount, part)) = shown.first().filter(|_| !self.privileged()) else { return };
        let (root, hardened) = (self.is_machines_root(), self.ways.hardened);
        if mount.kind == Kind::Devices {
            let inside = below(part, "/sys").unwrap_or_default();
            let below = inside.starts_with("bus/pci") || (inside.starts_with("devices/") && inside.contains("pci"));
            let above = matches!(inside, "" | "bus" | "devices");
            let open = if hardened {
                place.writable || (below && !place.is_root)
            } else {
                place.writable && root && (below || above)
            };
            assert!(!open, "devices past every list at {real}");
        }
        if mount.kind == Kind::Processes && root {
            let inside = below(part, "/proc").unwrap_or_default();
            let of_network = below(inside, "sys/net").is_some();
            assert!(!place.writable || (of_network && !hardened), "the kernel's settings can be written at {real}");
        }
        let mut lead_out = shown.iter().filter(|(_, mount, part)| {
            let inside = below(part, "/proc").unwrap_or_default();
            let of_a_process = inside.is_empty() || inside.starts_with(|first: char| first.is_ascii_digit());
            mount.kind == Kind::Processes && of_a_process
        });
        let is_folder = matches!(self.world.walk(real), Ok((_, Entry::Dir)));
        assert!(
            !(hardened && root && is_folder && !place.is_root) || lead_out.next().is_none(),
            "the machine's processes in {real}"
        );
    }

    /// What of ours is inside is hidden.
    fn hidden(&self, real: &str, shown: &[Shown<'_>], place: &Place<'_>) {
        if place.is_layer && !self.sys_admin() {
            let inside = |own: &&str| !self.world.places(real, false, shown, own).is_empty();
            assert!(!OWN.iter().any(inside), "{real} holds ours, as a layer");
        }
        if self.sys_admin() || !self.world.filters {
            return;
        }
        let hidden = |rest: &str| {
            let above = rest.match_indices('/').map(|(end, _)| rest.get(..end).unwrap_or_default());
            above.chain([rest]).any(|rest| place.is_closed(rest, |mount| text(mount, "type") == "tmpfs"))
        };
        for own in OWN {
            for at in self.world.places(real, place.recursive, shown, own) {
                assert!(hidden(&at), "{own} shows at {at} of {real}");
            }
            for (rest, ..) in shown.iter().skip(1).filter(|(_, _, part)| below(part, own).is_some()) {
                assert!(hidden(rest), "a part of {own} shows at {rest} of {real}");
            }
        }
    }

    /// Nobody writes in the hierarchy that holds device filters.
    fn groups(&self, shown: &[Shown<'_>], place: &Place<'_>) {
        if self.sys_admin() || !self.is_machines_root() {
            return;
        }
        for (rest, ..) in shown.iter().filter(|(_, mount, _)| mount.kind == Kind::Groups) {
            let closed = rest.is_empty() && place.itself_read_only;
            let again = |mount: &Value| text(mount, "type") != "tmpfs";
            assert!(
                closed || place.is_closed(rest, again),
                "the machine's control groups at {rest} of {}",
                place.destination
            );
        }
    }

    /// What is bound read-only is so with what the kernel has inside.
    fn kernels(&self, shown: &[Shown<'_>], place: &Place<'_>) {
        if self.sys_admin() || !self.is_machines_root() || place.writable || place.is_root {
            return;
        }
        let kernels = |mount: &super::super::world::Mount| matches!(mount.kind, Kind::Devices | Kind::Processes);
        for (rest, ..) in shown.iter().skip(1).filter(|(_, mount, _)| kernels(mount)) {
            let again = |mount: &Value| text(mount, "type") != "tmpfs";
            assert!(place.is_closed(rest, again), "the kernel's files at {rest} of {}", place.destination);
        }
    }
}
