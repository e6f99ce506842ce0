//! One state folder, seen from several worlds: who does not see a container may not take its GPU for free.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{Ran, Result, Runc, Spec, run};
use serde_json::Value;

use crate::{Bench, RUNC, VERSION_1, VERSION_2, bytes, inside};

const LIMIT: Duration = Duration::from_secs(60);

/// What is run in namespaces of its own, where neither state folder nor control groups of version 1 are seen.
fn elsewhere(bench: &Bench, flags: &[&str], program: &Path, words: &[&str]) -> Result<Ran> {
    let prepare = format!("{VERSION_2} && mount -t tmpfs none {} && exec \"$@\"", bench.runc.root().display());
    let helper = bench.site.quilt.command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).args(flags).args(["sh", "-c", &prepare, "sh"]);
    command.arg(program).args(words).envs(helper.get_envs().filter_map(|(key, value)| Some((key, value?))));
    run(&mut command, None, LIMIT)
}

#[test]
fn a_living_container_keeps_its_gpu() -> Result<()> {
    let test = "a_living_container_keeps_its_gpu";
    let Some(mut bench) = Bench::new(test, 1)? else { return Ok(()) };
    // An engine with mounts of its own, and an operator without.
    let program = inside(bench.site.join("ours"), &bench.site.quilt.runtime(), VERSION_1)?;
    bench.runc = Runc::new(program, bench.site.join("runc"))?;
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1").args(["quilt-probe", "sleep"]);
    let helper = bench.site.quilt.command().get_program().to_owned();
    let (helper, runtime) = (Path::new(&helper), bench.site.quilt.runtime());
    let root = bench.runc.root();
    for (id, flags) in [
        ("mounts", &[][..]),
        ("groups", &["--cgroup"][..]),
        ("processes", &["--pid", "--fork", "--mount-proc"][..]),
        ("all", &["--cgroup", "--pid", "--fork", "--mount-proc"][..]),
    ] {
        let bundle = bench.bundle(id, &asking)?;
        bench.runc.create(id, &bundle)?.checked()?;
        let leases = bench.site.leases_on_disk()?;
        assert_eq!(leases.len(), 1, "{id}");
        let listed = elsewhere(&bench, flags, helper, &["lease", "list"])?.checked()?;
        assert_eq!(bench.site.leases_on_disk()?, leases, "{id}: {listed:?}");
        let words = ["lease", "acquire", "--holder", "vm:other", "--count", "1"];
        let taken = elsewhere(&bench, flags, helper, &words)?;
        assert!(!taken.ok() && taken.stderr.contains("CAPACITY_FULL"), "{id}: {taken:?}");
        // Another container of the same words is another container.
        let (root, path) = (root.to_string_lossy(), bundle.path.to_string_lossy());
        let again = elsewhere(&bench, flags, &runtime, &["--root", &root, "create", "--bundle", &path, id])?;
        assert!(!again.ok() && again.stderr.contains("a container of this id"), "{id}: {again:?}");
        assert_eq!(bench.site.leases_on_disk()?, leases, "{id}: {again:?}");
        // So is one that is deleted.
        elsewhere(&bench, flags, &runtime, &["--root", &root, "delete", "--force", id])?.checked()?;
        let taken = elsewhere(&bench, flags, helper, &words)?;
        assert!(!taken.ok() && taken.stderr.contains("CAPACITY_FULL"), "{id}, deleted elsewhere: {taken:?}");
        assert_eq!(bench.runc.state(id)?.map(|state| state["status"].clone()), Some("created".into()), "{id}");
        // Gone is gone, to whoever is where it was made.
        Runc::new(RUNC, bench.site.join("runc"))?.delete(id, true)?.checked()?;
        bench.site.quilt.cli(&["lease", "list"])?.checked()?;
        assert_eq!(bench.site.leases_on_disk()?.len(), 0, "{id}");
        crate::remove(&bundle.path)?;
    }
    Ok(())
}

#[test]
fn a_lease_names_the_containers_first_process() -> Result<()> {
    let Some(bench) = Bench::new("a_lease_names_the_containers_first_process", 1)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1").args(["quilt-probe", "sleep"]);
    let bundle = bench.bundle("first", &asking)?;
    let pid = |id: &str| Ok::<_, integration::Error>(bench.runc.state(id)?.map(|state| state["pid"].clone()));
    let kept = || -> Result<Value> {
        let name = bench.site.leases_on_disk()?.into_iter().next().unwrap_or_default();
        let lease = bytes(&bench.site.quilt.state().join("leases").join(name))?;
        let lease: Value = serde_json::from_slice(&lease).unwrap_or_default();
        Ok(lease["holder"]["container"]["made"]["init"][0].clone())
    };
    bench.runc.create("first", &bundle)?.checked()?;
    assert_eq!(Some(kept()?), pid("first")?);
    bench.runc.delete("first", true)?.checked()?;
    // Nobody of ours is there to watch `run`, but its hook.
    let path = bundle.path.to_string_lossy();
    bench.runc.call("first", &["run", "--detach", "--bundle", &path, "first"])?.checked()?;
    let (kept, pid) = (kept()?, pid("first")?);
    bench.runc.delete("first", true)?.checked()?;
    assert_eq!(Some(kept), pid);
    Ok(())
}
