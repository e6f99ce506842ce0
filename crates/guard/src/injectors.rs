//! Hooks: GPU injectors of others, which the contract knows nothing of, and the engines' own, which are noted.

use contract::{Code, Refusal};

use crate::findings::{Findings, MOST_ITEMS};
use crate::paths;
use crate::setting::Setting;

const STAGES: &[&str] = &["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
const INJECTORS: &[&str] = &[
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-cdi-hook",
    "nvidia-ctk",
    "nvidia-container-cli",
];

/// Refuses GPU injectors by name, wherever they stand in a hook's command, and notes every other hook once per stage.
pub(crate) fn judge(setting: &Setting<'_>, out: &mut Findings) {
    for stage in STAGES {
        let at = format!("/hooks/{stage}");
        let mut others = Vec::new();
        for (index, hook) in out.list(setting.case.spec.path(&["hooks", stage]), MOST_ITEMS, &at).iter().enumerate() {
            let at = format!("{at}/{index}");
            if *stage == "prestart" && setting.case.replaced.contains(&index) {
                out.note("hook-replaced", at, "Docker's GPU hook is taken for a request, and goes");
                continue;
            }
            let path = out.text(hook, "path", &at);
            let args = out.strings(hook.get("args"), MOST_ITEMS, &format_args!("{at}/args"));
            let mut words = path.into_iter().chain(args);
            if let Some(injector) = words.find(|word| INJECTORS.contains(&paths::name(word))) {
                let message = "another injector's hook would put GPUs into this container that no contract grants";
                out.refuse(
                    Refusal::new(Code::ForeignGpuInjection, "hook-foreign", message, help(setting)).at(at, injector),
                );
            } else {
                let path = path.unwrap_or_default();
                if setting.hardened() && !is_listed(setting, path) {
                    let message = "a hook runs as root on the host, and the node's policy names no such program";
                    let help = "leave the hook out, or have the operator name the program in allow_hooks";
                    let refusal = Refusal::new(Code::UnsafeSpec, "hook", message, help);
                    out.add(setting.weigh(refusal), &format_args!("{at}/path"), path);
                }
                others.push(path);
            }
        }
        if !others.is_empty() {
            out.note("hook", at, format!("the engine's hooks run on the host: {}", others.join(", ")));
        }
    }
}

/// By what the file is, not by its name: Docker names its own as `/proc/<pid>/exe`.
fn is_listed(setting: &Setting<'_>, path: &str) -> bool {
    path.starts_with('/') && setting.case.hooks.iter().any(|listed| setting.machine.system.same_file(listed, path))
}

/// CDI without hooks: `NVIDIA_VISIBLE_DEVICES=void` and the nodes stand in the spec.
pub(crate) fn without_hooks(setting: &Setting<'_>, void: Option<usize>, nodes: usize) -> Option<Refusal> {
    let index = void.filter(|_| nodes > 0)?;
    let message = format!("{nodes} GPU device entries were put into this container by another injector");
    let refusal = Refusal::new(Code::ForeignGpuInjection, "cdi-foreign", message, help(setting));
    Some(refusal.at(format!("/process/env/{index}"), "NVIDIA_VISIBLE_DEVICES=void"))
}

fn help(setting: &Setting<'_>) -> String {
    let asking = setting.case.asking;
    format!(
        "drop one of the two: the engine's own GPU option (--gpus, a CDI device), and ask with {asking}; or the runtime quilt-gpu"
    )
}
