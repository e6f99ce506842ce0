//! `process`: capabilities that undo a device filter, the environment that other injectors read, the working folder.

use contract::json::Node;
use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_VARIABLES};
use crate::paths;
use crate::setting::Setting;

/// Capabilities that reach devices, memory or filters past everything that a spec can say. Refused by policy `hardened`.
const PAST_THE_BOUNDARY: &[&str] =
    &["SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "PERFMON", "SYS_BOOT"];
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES=";
const MAGIC: &[&str] = &["fd", "cwd", "root", "exe", "ns", "map_files"];

/// Whether the process may have the capability: what is in the bounding set a program of root's gains by running.
pub(crate) fn has_capability(spec: &Node<'_>, name: &str) -> bool {
    ["bounding", "effective", "permitted"].iter().any(|set| position(spec, set, name).is_some())
}

/// crun takes names in any case, and without the prefix.
fn position(spec: &Node<'_>, set: &str, name: &str) -> Option<usize> {
    let list = spec.path(&["process", "capabilities", set]).map(Node::items).unwrap_or_default();
    let is = |text: &str| {
        let bare = match text.split_at_checked(4) {
            Some((prefix, bare)) if prefix.eq_ignore_ascii_case("CAP_") => bare,
            _ => text,
        };
        bare.eq_ignore_ascii_case(name)
    };
    list.iter().position(|item| item.as_str().is_some_and(is))
}

/// What the environment says about `NVIDIA_VISIBLE_DEVICES`.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// It is there, and some reader of the environment would not see `void`.
    pub(crate) visible: bool,
    /// Its last value is `void`, which CDI writes; where.
    pub(crate) void: Option<usize>,
}

/// Reads the environment.
pub(crate) fn environment(setting: &Setting<'_>, out: &mut Findings) -> Environment {
    let mut found = Environment::default();
    let list = setting.case.spec.path(&["process", "env"]);
    for (index, variable) in out.strings(list, MOST_VARIABLES, &"/process/env").enumerate() {
        if let Some(value) = variable.strip_prefix(VISIBLE) {
            found.visible |= value != "void";
            found.void = (value == "void").then_some(index);
        }
    }
    if let Some(index) = found.void.filter(|_| !setting.case.gpu_asked) {
        // Compose's reservation without a count ends like this, and nobody is told.
        let message =
            "whoever asked through NVIDIA_VISIBLE_DEVICES: the request resolved to 0 GPUs (void), and none is given";
        out.note("visible-void", format!("/process/env/{index}"), message);
    }
    found
}

/// Judges capabilities and the working folder.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) {
    let spec = setting.case.spec;
    if let Some(cwd) = spec.path(&["process", "cwd"]).and_then(Node::as_str)
        && is_magic(cwd)
    {
        // CVE-2024-21626: an open handle of the runtime's leads out of the container.
        let message = "the working folder is behind a magic link of procfs, which can lead out of the container";
        let refusal = Refusal::new(Code::UnsafeSpec, "process-cwd", message, "use a folder of the container");
        out.refuse(refusal.at("/process/cwd", cwd));
    }
    if setting.privileged {
        return;
    }
    if setting.hardened() {
        for name in PAST_THE_BOUNDARY {
            let found =
                ["bounding", "effective", "permitted"].iter().find_map(|set| Some((set, position(spec, set, name)?)));
            if let Some((set, index)) = found {
                let message = format!("CAP_{name} reaches past what keeps a container from GPUs");
                let refusal = Refusal::new(Code::UnsafeSpec, "cap", message, "drop the capability");
                out.refuse(refusal.at(format!("/process/capabilities/{set}/{index}"), format!("CAP_{name}")));
            }
        }
    } else if setting.sys_admin {
        out.note(
            "cap",
            "/process/capabilities",
            "a container with CAP_SYS_ADMIN can undo what keeps it from GPUs: this is not a boundary",
        );
    }
}

fn is_magic(cwd: &str) -> bool {
    let plain = paths::clean(cwd);
    let Some(inside) = paths::below(&plain, "/proc") else {
        return false;
    };
    inside.split('/').skip(1).any(|part| MAGIC.contains(&part))
}
