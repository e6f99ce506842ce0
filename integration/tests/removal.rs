//! What keeps packages from being removed: the containers that need them, and nobody who only mentions them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{Ran, Result, Scratch, run};

/// The script that packages run before their files go, on a node below this folder. Undoing what engines were told is left out.
fn before_removal(root: &Path) -> Result<Ran> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/scripts/before-removal.sh");
    let programs = root.join("programs");
    fs::create_dir_all(&programs).unwrap();
    let helper = programs.join("quilt-gpu");
    if !helper.exists() {
        std::os::unix::fs::symlink("/bin/true", &helper).unwrap();
    }
    let mut command = Command::new("/bin/sh");
    command.arg("-e").arg(script).env("ROOT", root).env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    run(&mut command, None, Duration::from_secs(20))
}

#[test]
fn packages_stay_while_containers_need_them_and_for_nobody_else() -> Result<()> {
    let scratch = Scratch::new()?;
    let none = ("etc/quilt-gpu/config.toml", "");
    let state = (none.0, "[paths]\n#state_dir = \"/run/other\"\nstate_dir = \"/srv/state\"  # here\n");
    let (runtime, lease) = ("/usr/bin/quilt-gpu-runtime", "leases/0000:01:00.0@0123456789abcdef0123456789abcdef");
    let microk8s = "var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/a/options.json";
    let monitor = |words: &[&str]| words.join("\0") + "\0";
    for (case, (path, text, more, kept)) in [
        ("proc/7/cmdline", monitor(&["/usr/bin/conmon", "--api-version", "1", "-r", runtime, "-b", "/x"]), none, true),
        ("proc/7/cmdline", monitor(&["conmon", "--runtime", "/usr/bin/quilt-gpu", "-b", "/x"]), none, true),
        ("proc/7/cmdline", monitor(&["conmonrs", "--runtime=/opt/quilt-gpu-runtime"]), none, true),
        ("proc/7/cmdline", monitor(&["conmon", "-r", "/usr/bin/runc", "--exit-command-arg", runtime]), none, false),
        ("proc/7/cmdline", monitor(&["vim", "-r", runtime]), none, false),
        ("proc/7/cmdline", monitor(&["sha256sum", runtime]), none, false),
        ("proc/7/cmdline", monitor(&["conmon", "-r", runtime]), ("proc/7/status", "NSpid:\t70\n"), true),
        // A container's process may call itself as it likes.
        ("proc/7/cmdline", monitor(&["conmon", "-r", runtime]), ("proc/7/status", "NSpid:\t70\t1\n"), false),
        (microk8s, format!(r#"{{"binary_name":"{runtime}"}}"#), none, true),
        (&format!("run/quilt-gpu/{lease}"), "{}".to_owned(), none, true),
        (&format!("srv/state/{lease}"), "{}".to_owned(), state, true),
        (&format!("run/other/{lease}"), "{}".to_owned(), state, false),
        ("srv/state/leases/wait-0000000001", "{}".to_owned(), state, false),
    ]
    .into_iter()
    .enumerate()
    {
        let root = scratch.join(case.to_string());
        for (path, text) in [(path, text.as_str()), more] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        let ran = before_removal(&root)?;
        assert_eq!(ran.ok(), !kept, "{path} {text:?}: {}", ran.stderr);
        assert_eq!(ran.stderr.contains(path.trim_end_matches("/cmdline")), kept, "{path}: {}", ran.stderr);
    }
    Ok(())
}
