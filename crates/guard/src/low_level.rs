//! What differs between low-level runtimes, in one place. Everything else treats them alike.
//!
//! Our embedded engine is youki's library with its own state root and, on v2, its own filter: it goes the ways of youki.
//!
//! | | runc | crun | youki |
//! | --- | --- | --- | --- |
//! | state root without `--root` | `/run/runc` | `/run/crun` | `/run/youki` |
//! | a list that denies nothing first | closed, since 1.0.0-rc91 (GHSA-g54h-m393-cpwq) | what the parent has; with an empty list no filter at all | v1: what the parent has, under our engine closed; v2: closed |
//! | order of a list (`readings`) | exceptions | v1: exceptions; v2: last match | v1: exceptions; v2: last match |
//! | the kernel refuses the program (v2) | an error, but in user namespaces | an error; goes on without where the list denies nothing | without the feature `cgroupsv2_devices` there is none to refuse |
//! | a link as root file system | an error | followed | followed |
//! | a relative source of a mount | from the bundle | from the bundle | from the folder that it was called in |
//! | a mount with the option `bind` and the type `cgroup` | a bind | a bind | a mount of control groups |
//! | `ro` of a mount at `/dev` | made true at the end | made true | forgotten; our engine makes it true |
//! | the option `remount` of a bind | changes what is mounted there | does nothing | binds anew |
//! | a working directory that leads out | 1.1.12 looks (CVE-2024-21626) | 1.8 does not look | fails |
//! | flags of the program (v2) | `BPF_F_ALLOW_MULTI` | the same | none; our engine the same |
//! | hooks without `env` | 1.1: get the container's environment, so ours have one | not looked at | not looked at |
//! | working directory of `createRuntime` and `prestart` hooks | the bundle, and we rely on none | not looked at | not looked at |
//! | a hook that does not read its state | goes on | dies of SIGPIPE, so ours read it | not looked at |
//! | `cgroupsPath` that is empty | named after the id | named after the id | v1: the caller's own group; v2: the top; our engine refuses it |
//! | no `cgroupsPath` | named after the id | named after the id | `:youki:` and the id |
//! | a process without `capabilities` | has none | has none | has all; our engine refuses it, and gives what `exec` starts the container's |
//! | `ociVersion` | 1.2.1 seen | 1.8 refuses 1.2.0 in its own words, `unknown version specified` | 1.2.1 seen |

use std::borrow::Cow;

use crate::paths;

/// A low-level runtime by its ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LowLevel {
    /// runc.
    Runc,
    /// crun.
    Crun,
    /// youki.
    Youki,
    /// quilt-gpu-engine.
    Engine,
    /// Unknown: taken for the more open one everywhere.
    Other,
}

impl LowLevel {
    /// By the program's path or name.
    #[must_use]
    pub fn of(path: &str) -> Self {
        let name = paths::name(path);
        let known =
            [("runc", Self::Runc), ("crun", Self::Crun), ("youki", Self::Youki), ("quilt-gpu-engine", Self::Engine)];
        known.into_iter().find(|(start, _)| name.starts_with(start)).map_or(Self::Other, |(_, known)| known)
    }

    /// The folder below `/run` where containers' states are, unless the engine says otherwise.
    #[must_use]
    pub fn state_folder(self) -> &'static str {
        match self {
            Self::Runc | Self::Other => "runc",
            Self::Crun => "crun",
            Self::Youki => "youki",
            Self::Engine => "quilt-gpu-engine",
        }
    }

    /// Whether a device list is closed before its first rule.
    pub(crate) fn starts_closed(self) -> bool {
        self == Self::Runc
    }

    /// Whether it is youki's library that makes containers.
    fn is_youkis(self) -> bool {
        matches!(self, Self::Youki | Self::Engine)
    }

    /// What it calls a container's control group that the spec does not name, unless systemd makes it.
    #[must_use]
    pub fn default_group(self, id: &str) -> Cow<'_, str> {
        if self.is_youkis() { format!(":youki:{id}").into() } else { id.into() }
    }

    /// Whether an empty name of a control group is that of a group which is not the container's.
    pub(crate) fn takes_an_empty_path(self) -> bool {
        self.is_youkis()
    }

    /// Whether a process has all capabilities where its spec does not speak of them.
    #[must_use]
    pub fn gives_all(self) -> bool {
        self == Self::Youki
    }

    /// Whether a relative source of a mount is looked for in the caller's working directory.
    pub(crate) fn goes_by_caller(self) -> bool {
        self.is_youkis() || self == Self::Other
    }

    /// Whether a root file system that is a link is followed.
    pub(crate) fn follows_root(self) -> bool {
        self != Self::Runc
    }

    /// Why a container that it made has no device filter, as far as that is known.
    #[must_use]
    pub fn lacks_filter(self, programs: bool) -> &'static str {
        match (self, programs) {
            (Self::Youki, true) => {
                "youki was built without a device filter for cgroup v2, its feature cgroupsv2_devices"
            }
            _ => "no device filter is attached to what it makes",
        }
    }
}
