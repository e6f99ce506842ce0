//! Sections A and D once more: the host's processes, wherever a container sees them. The kernel lets into the folder of one
//! whoever has its ids and no fewer capabilities, and its `root` is the machine's: no device is needed to be root there.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use integration::{Bundle, Result, Rootfs, Spec};
use serde_json::json;

use crate::case::{Case, Verdict, case, put, tree};
use crate::elsewhere::odd;
use crate::life::{Outcome, Run};
use crate::process::without_own;

/// Who runs daemons without rights.
const NOBODY: u32 = 65534;

pub(crate) fn cases() -> Vec<Case> {
    let bound = |what, writes: fn() -> Spec, script| road("A27", what, writes, script, "mount-procfs");
    vec![
        bound("the host's /proc, read-only", || tree("/proc", &["ro"]), r#"quilt-probe leave /t "$TRAP""#),
        bound(
            "the same without a capability, by a file that is set to another user",
            || put(tree("/proc", &["ro"]), "/process/capabilities", json!({})),
            r#"/nobody leave /t "$TRAP""#,
        )
        .image(|_, root| set_to_nobody(root)),
        bound(
            "the host's processes in its whole tree",
            || tree("/", &["ro", "rslave"]),
            r#"quilt-probe leave /t/proc "$TRAP""#,
        ),
        road(
            "D5 Q43",
            "the host's processes",
            || without_own("pid"),
            r#"quilt-probe leave /proc "$TRAP""#,
            "ns-hostpid",
        ),
    ]
}

fn road(ids: &'static str, what: &'static str, writes: fn() -> Spec, script: &'static str, rule: &'static str) -> Case {
    case(ids, what, move |run| writes().env("TRAP", &run.trap.join("made").display().to_string()))
        .script(script)
        .drive(beside_a_daemon)
        .exposes()
        .always(Verdict::Unbounded(rule))
        .hardened(Verdict::Refused("UNSAFE_SPEC", rule))
}

fn set_to_nobody(root: &Rootfs) -> Result<()> {
    let file = root.path.join("nobody");
    odd(&file, fs::copy(root.path.join("usr/bin/quilt-probe"), &file))?;
    odd(&file, chown(&file, Some(NOBODY), Some(NOBODY)))?;
    odd(&file, fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)))
}

/// One runs on the host while the container lives.
fn beside_a_daemon(run: &Run<'_>, bundle: &Bundle) -> Result<Outcome> {
    let mut daemon = Command::new("/bin/busybox");
    daemon.args(["sleep", "3600"]).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
    let mut daemon = odd(&run.trap, daemon.spawn())?;
    let outcome = run.live(bundle);
    odd(&run.trap, daemon.kill().and_then(|()| daemon.wait()))?;
    outcome
}
