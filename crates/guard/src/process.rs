//! `process`: capabilities that undo a device filter, the environment that other injectors read, the working folder.

use contract::capability::is_capability;
use contract::exception::GUARDED_CAPABILITIES;
use contract::json::Node;
use contract::{Code, Refusal};

use crate::Case;
use crate::findings::{Findings, MOST_VARIABLES};
use crate::namespaces;
use crate::setting::Setting;

/// Makes device nodes, which nothing opens that the device list closes: but a node in a shared folder may outlast the list.
const MAKES_NODES: &str = "MKNOD";
/// Takes open files out of other processes: no road where only the container's own are seen.
const TAKES_FILES: &str = "SYS_PTRACE";
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES=";
const MAGIC: &[&str] = &["fd", "cwd", "root", "exe", "ns", "map_files"];

/// Whether the process may have the capability: what is in the bounding set a program of root's gains by running.
#[must_use]
pub fn has_capability(spec: &Node<'_>, name: &str) -> bool {
    ["bounding", "effective", "permitted"].iter().any(|set| position(spec, set, name).is_some())
}

/// Whether it has all of them, because nothing is said about any.
pub(crate) fn has_all(case: &Case<'_>) -> bool {
    let said = case.spec.path(&["process", "capabilities"]);
    case.low_level.gives_all() && said.is_none_or(Node::is_null)
}

fn position(spec: &Node<'_>, set: &str, name: &str) -> Option<usize> {
    let list = spec.path(&["process", "capabilities", set]).map(Node::items).unwrap_or_default();
    list.iter().position(|item| item.as_str().is_some_and(|text| is_capability(text, name)))
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

/// Refuses a working folder behind which an open handle of the runtime's leads out of the container (CVE-2024-21626).
#[must_use]
pub fn judge_cwd(cwd: &str, at: &str) -> Option<Refusal> {
    let message = "the working folder is behind a magic link of procfs, which can lead out of the container";
    let refuse = || Refusal::new(Code::UnsafeSpec, "process-cwd", message, "use a folder of the container");
    is_magic(cwd).then(|| refuse().at(at, cwd))
}

/// Judges capabilities and the working folder, and says which capabilities go.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) -> Vec<&'static str> {
    let spec = setting.case.spec;
    let cwd = spec.path(&["process", "cwd"]).and_then(Node::as_str);
    out.refusals.extend(cwd.and_then(|cwd| judge_cwd(cwd, "/process/cwd")));
    if setting.privileged {
        return Vec::new();
    }
    if setting.sys_admin && (!setting.hardened() || setting.allows_capability("SYS_ADMIN")) {
        let message = "a container with CAP_SYS_ADMIN can undo what keeps it from GPUs: this is not a boundary";
        out.note("cap", "/process/capabilities", message);
    }
    if setting.hardened() { past_the_boundary(setting, out) } else { Vec::new() }
}

/// Capabilities that reach devices, memory or filters past everything that a spec can say.
fn past_the_boundary(setting: &Setting<'_>, out: &mut Findings) -> Vec<&'static str> {
    let spec = setting.case.spec;
    let mut gone = Vec::new();
    if has_all(setting.case) {
        let message = "the low-level runtime gives all capabilities where a spec does not speak of any";
        let refusal = Refusal::new(Code::UnsafeSpec, "cap", message, "write \"capabilities\": {} for none");
        out.add(setting.weigh(refusal), &"/process/capabilities", "null");
    }
    for name in GUARDED_CAPABILITIES.iter().copied().filter(|name| !setting.allows_capability(name)) {
        let mut sets = ["bounding", "effective", "permitted", "inheritable", "ambient"].into_iter();
        let Some((set, index)) = sets.find_map(|set| Some((set, position(spec, set, name)?))) else { continue };
        let at = format_args!("/process/capabilities/{set}/{index}");
        if name == MAKES_NODES {
            if !setting.excuses("cap") {
                out.note(
                    "cap-mknod",
                    at.to_string(),
                    "the container does not make device nodes: CAP_MKNOD was dropped",
                );
                gone.push(name);
            }
            continue;
        }
        if name == TAKES_FILES && namespaces::has_own_processes(setting) {
            continue;
        }
        let message = format!("CAP_{name} reaches past what keeps a container from GPUs");
        let help = "drop the capability, or have the operator name it in allow_capabilities";
        let refusal = Refusal::new(Code::UnsafeSpec, "cap", message, help);
        out.add(setting.weigh(refusal), &at, &format!("CAP_{name}"));
    }
    gone
}

/// Step by step, as the kernel goes: what follows a magic link, a `..` too, starts where that leads.
fn is_magic(cwd: &str) -> bool {
    let mut parts: Vec<&str> = Vec::new();
    cwd.split('/').any(|part| match part {
        "" | "." => false,
        ".." => {
            parts.pop();
            false
        }
        part => {
            parts.push(part);
            matches!(parts.as_slice(), ["proc", _, .., last] if MAGIC.contains(last))
        }
    })
}
