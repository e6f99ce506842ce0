//! The host's trees in a container of Docker's: read as before, and no way out of its device filter.

use integration::{PROBE_ALL, Result, Seen};

use crate::{IMAGE, Yard};

/// Moves itself to the top of every hierarchy that it sees, not to its own group, and then looks what opens.
const ESCAPE: &str = r#"while read -r id parent device root point rest; do
  case "$root $rest" in "/ "*" - cgroup"* | "/.."*" - cgroup"*) echo 0 >"$point/cgroup.procs" ;; esac
done </proc/self/mountinfo 2>/dev/null
exec"#;

#[test]
fn the_hosts_trees_are_no_way_out() -> Result<()> {
    let Some(yard) = Yard::new("the_hosts_trees_are_no_way_out", 2)? else { return Ok(()) };
    let script = format!("{ESCAPE} {}", PROBE_ALL.join(" "));
    for binds in [
        &["-v", "/sys:/x:ro"][..],
        &["-v", "/sys/fs/cgroup:/x:ro"],
        &["-v", "/:/host:ro"],
        &["-v", "/:/host:ro", "-v", "/sys:/x:ro"],
        // As monitoring agents have it.
        &["-v", "/:/rootfs:ro", "-v", "/var/run:/var/run:ro", "-v", "/sys:/sys:ro"],
    ] {
        let seen = |more: &[&str]| -> Result<Seen> {
            let call = [&["--rm"], more, binds, &[IMAGE, "sh", "-c", &script]].concat();
            Seen::of(&yard.docker.run(&call)?.checked()?.stdout)
        };
        assert!(seen(&["--runtime=plain"])?.open_numbers().len() > 200, "{binds:?}: nothing to be kept from");
        assert!(seen(&["--runtime=quilt-gpu"])?.open_numbers().is_empty(), "{binds:?}");
        assert_eq!(seen(&["--runtime=quilt-gpu", "-e", "QUILT_GPU_COUNT=1"])?.gpus()?.len(), 1, "{binds:?}");
    }
    // The daemon writes another bundle when it starts it again.
    let script = format!("{ESCAPE} quilt-probe numbers 195 0 3");
    yard.run(&["-d", "--name", "again", "-v", "/sys:/x:ro", IMAGE, "sh", "-c", &script])?.checked()?;
    yard.wait_for("again", ".State.Status", "exited")?;
    yard.docker.client(&["start", "-a", "again"])?.checked()?;
    let logs = yard.docker.client(&["logs", "again"])?.checked()?.stdout;
    assert_eq!(logs.matches(r#""open":"EPERM""#).count(), 8, "{logs}");
    Ok(())
}
