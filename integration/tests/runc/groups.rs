//! The host's control groups in a container: who can write in those that hold device filters moves itself out of its own.
//! Each container is made by the bare runtime as well, where it must get out: else the test would prove nothing.

use std::path::Path;

use integration::{Error, PROBE_ALL, Result, Runc, Seen, Spec, say};
use serde_json::json;

use crate::verify::{FORGETFUL, site_over};
use crate::{Bench, CRUN, RUNC, VERSION_1, VERSION_2, bytes, inside};

/// Moves itself to the top of every hierarchy that it sees, not to its own group, and then looks what opens.
const ESCAPE: &str = r#"while read -r id parent device root point rest; do
  case "$root $rest" in "/ "*" - cgroup"* | "/.."*" - cgroup"*) echo 0 >"$point/cgroup.procs" ;; esac
done </proc/self/mountinfo 2>/dev/null
exec"#;

/// Binds as users write them.
fn roads() -> Vec<(&'static str, Spec)> {
    let bind = |source: &str, at: &str, options: &[&str]| Spec::new().bind(Path::new(source), at, options);
    let own_namespace = |spec: &mut serde_json::Value| {
        if let Some(namespaces) = spec["linux"]["namespaces"].as_array_mut() {
            namespaces.push(json!({"type": "cgroup"}));
        }
    };
    let both = bind("/sys", "/x", &["ro"]).bind(Path::new("/"), "/host", &["ro"]);
    vec![
        ("sys", bind("/sys", "/x", &["ro"])),
        ("sys-namespace", bind("/sys", "/x", &["ro"]).edit(own_namespace)),
        ("groups", bind("/sys/fs/cgroup", "/x", &[])),
        ("host", bind("/", "/host", &["ro"])),
        // The second shows the first once more, below the bundle.
        ("both", both),
    ]
}

/// One machine, seen by one runtime: the product over it, and it alone.
struct Two {
    bench: Bench,
    bare: Runc,
}

impl Two {
    fn open(&self, runtime: &Runc, id: &str, spec: &Spec) -> Result<Seen> {
        let script = format!("{ESCAPE} {}", PROBE_ALL.join(" "));
        let bundle = self.bench.bundle(id, &spec.clone().args(["sh", "-c", &script]))?;
        let seen = Seen::of(&runtime.whole_life(id, &bundle)?);
        crate::remove(&bundle.path)?;
        seen
    }

    fn nobody_gets_out(&self, roads: Vec<(&str, Spec)>) -> Result<()> {
        for (name, spec) in roads {
            assert!(self.open(&self.bare, &format!("{name}-bare"), &spec)?.open_numbers().len() > 200, "{name}");
            let seen = self.open(&self.bench.runc, name, &spec)?;
            assert_eq!(seen.gpus()?.len(), 0, "{name}");
            let asking = spec.env("QUILT_GPU_COUNT", "1");
            let seen = self.open(&self.bench.runc, &format!("{name}-asking"), &asking)?;
            assert_eq!(seen.gpus()?.len(), 1, "{name}");
        }
        Ok(())
    }

    /// Both in a mount namespace of their own, which `prepare` makes ready; both over `low_level`.
    fn prepared(test: &str, low_level: &str, prepare: &str) -> Result<Option<Self>> {
        let Some(bench) = Bench::within(test, low_level, prepare)? else { return Ok(None) };
        let program = inside(bench.site.join("bare"), Path::new(low_level), prepare)?;
        let bare = Runc::new(program, bench.site.join("bare-runc"))?;
        Ok(Some(Self { bench, bare }))
    }
}

#[test]
fn no_bind_of_the_hosts_trees_is_a_way_out() -> Result<()> {
    let Some(bench) = Bench::new("no_bind_of_the_hosts_trees_is_a_way_out", 2)? else { return Ok(()) };
    let bare = Runc::new(RUNC, bench.site.join("bare"))?;
    Two { bench, bare }.nobody_gets_out(roads())
}

#[test]
fn nor_in_version_2() -> Result<()> {
    let Some(two) = Two::prepared("nor_in_version_2", RUNC, VERSION_2)? else { return Ok(()) };
    let mut roads = roads();
    // Without a cgroup namespace a mount of this type is the whole of it.
    let whole = json!({"type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup", "options": ["nosuid"]});
    roads.push(("type", Spec::new().mount(whole)));
    two.nobody_gets_out(roads)
}

#[test]
fn nor_under_crun() -> Result<()> {
    if !Path::new(CRUN).exists() {
        say(format_args!("nor_under_crun: skipped, {CRUN} is not installed"));
        return Ok(());
    }
    let Some(two) = Two::prepared("nor_under_crun", CRUN, VERSION_1)? else { return Ok(()) };
    two.nobody_gets_out(roads())
}

#[test]
fn what_is_there_to_be_read_is_read() -> Result<()> {
    let Some(bench) = Bench::new("what_is_there_to_be_read_is_read", 1)? else { return Ok(()) };
    // As monitoring agents bind the host.
    let agent = Spec::new().bind(Path::new("/"), "/rootfs", &["ro"]).bind(Path::new("/sys"), "/sys", &["ro"]).bind(
        Path::new("/var/run"),
        "/var/run",
        &["ro"],
    );
    let script = "for top in /sys /rootfs/sys; do \
        ls $top/fs/cgroup >/dev/null && test -d $top/class/net && \
        for file in $(ls -d $top/fs/cgroup/*/cgroup.procs $top/fs/cgroup/cgroup.procs 2>/dev/null); do cat $file >/dev/null || exit 1; done; \
        done && echo read";
    let bundle = bench.bundle("agent", &agent.args(["sh", "-c", script]))?;
    bench.runc.create("agent", &bundle)?.checked()?;
    // Everything that was added stands in the bundle, right behind what it belongs to.
    let spec = bundle.read()?;
    let mounts: Vec<_> =
        spec["mounts"].as_array().unwrap().iter().map(|m| m["destination"].as_str().unwrap()).collect();
    let at = mounts.iter().position(|at| *at == "/rootfs").unwrap();
    let added = &mounts[at + 1..at + 4];
    assert!(added.iter().all(|place| place.starts_with("/rootfs/")), "{mounts:?}");
    for place in ["/rootfs/proc", "/rootfs/sys", "/rootfs/sys/fs/cgroup"] {
        assert!(mounts.iter().any(|mount| mount.starts_with(place)), "{place}: {mounts:?}");
    }
    bench.runc.start("agent")?.checked()?;
    bench.runc.wait_stopped("agent")?;
    assert_eq!(bytes(&bundle.path.join("stdout"))?, b"read\n");
    Ok(())
}

#[test]
fn a_runtime_that_leaves_it_out_is_found_out() -> Result<()> {
    let forgets = FORGETFUL.replace(
        r#".linux.resources.devices = [{"allow": true, "access": "rwm"}]"#,
        r#".mounts |= map(select(.destination | test("^/x/fs") | not))"#,
    );
    assert_ne!(forgets, FORGETFUL);
    let test = "a_runtime_that_leaves_it_out_is_found_out";
    let Some(bench) = Bench::on(test, || site_over(&forgets, true))? else { return Ok(()) };
    let spec = Spec::new().bind(Path::new("/sys"), "/x", &["ro"]).env("QUILT_GPU_COUNT", "1");
    let bundle = bench.bundle("forgotten", &spec.args(["quilt-probe", "sleep"]))?;
    let answer = bench.runc.create("forgotten", &bundle)?;
    assert_eq!(answer.status.code(), Some(1), "{answer:?}");
    assert!(answer.stderr.contains("VERIFY_FAILED") && answer.stderr.contains("/x/fs/cgroup"), "{answer:?}");
    assert_eq!(bench.runc.state("forgotten")?, None);
    bench.site.wait_no_leases()
}

#[test]
fn a_mount_that_the_host_shares_is_left_as_it_is() -> Result<()> {
    let Some(bench) = Bench::new("a_mount_that_the_host_shares_is_left_as_it_is", 1)? else { return Ok(()) };
    let shared = |spec: &mut serde_json::Value| spec["linux"]["rootfsPropagation"] = "rshared".into();
    let spec = Spec::new().bind(Path::new("/sys"), "/x", &["rshared", "ro"]).edit(shared);
    let bundle = bench.sharing("shared", &spec)?;
    bench.refused("shared", &bundle, &["UNSAFE_SPEC", "rslave"])?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| Error::new(e.to_string()))?;
    assert!(!table.contains(" ro,nosuid,nodev,noexec,relatime shared:"), "the host's own are untouched");
    Ok(())
}
