//! The node's own record in a tenant's mount of a tree above it: nobody may read or change who has which GPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use integration::{Binaries, Result, Spec};

use crate::Bench;

#[test]
fn a_container_cannot_read_or_free_leases_through_a_mount() -> Result<()> {
    let Some(bench) = Bench::new("a_container_cannot_read_or_free_leases_through_a_mount", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    bench.sleeper("holder", &asking)?;
    let leases = bench.site.leases_on_disk()?;
    assert_eq!(leases.len(), 1);
    let state = bench.site.quilt.state();
    // The configuration lies between: that folder itself may not be bound.
    let above = state.parent().and_then(|folder| folder.parent()).unwrap();
    let top = above.parent().unwrap();
    // Who may rename a folder in between puts another record in its place.
    let bundle = bench.bundle("higher", &Spec::new().bind(top, "/x", &[]))?;
    bench.refused("higher", &bundle, &["UNSAFE_SPEC", "in its place"])?;
    let bundle = bench.bundle("rw", &Spec::new().bind(above, "/x", &[]))?;
    bench.refused("rw", &bundle, &["UNSAFE_SPEC", "in its place"])?;
    for (id, source) in [("ro", above), ("top", top)] {
        let below = state.strip_prefix(source).unwrap().display().to_string();
        let script = format!("cd /x; find {below} -mindepth 1; rm -rf {below}/leases; mkdir -p {below}/mine");
        let spec = Spec::new().bind(source, "/x", &["ro"]).args(["sh", "-c", &script]);
        let output = bench.runc.whole_life(id, &bench.bundle(id, &spec)?)?;
        assert!(!output.contains("leases"), "{id}: {output}");
        assert!(!state.join("mine").exists(), "{id}");
        assert_eq!(bench.site.leases_on_disk()?, leases, "{id}");
    }
    bench.runc.delete("holder", true)?.checked()?;
    Ok(())
}

/// As `subPath` of a volume, a volume with `o=bind`, and a disk that is mounted twice show them.
#[test]
fn a_second_mount_of_our_folders_shows_them_no_more_than_the_first() -> Result<()> {
    let Some(bench) = Bench::new("a_second_mount_of_our_folders_shows_them_no_more_than_the_first", 2)? else {
        return Ok(());
    };
    bench.sleeper("holder", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let leases = bench.site.leases_on_disk()?;
    let state = bench.site.quilt.state();
    let programs = Binaries::locate()?.runtime.parent().unwrap().to_owned();
    let volume = |name: &str, source: &Path| {
        let point = bench.site.join(name);
        fs::create_dir_all(&point).unwrap();
        assert!(Command::new("mount").arg("--bind").args([source, &point]).status().unwrap().success());
        point
    };
    let inside = volume("state", &state);
    let file = bench.site.join("config");
    fs::write(&file, "").unwrap();
    assert!(Command::new("mount").arg("--bind").args([&bench.site.quilt.config(), &file]).status().unwrap().success());
    for (id, source, why) in [
        ("state", &inside, "the node's own record"),
        ("leases", &inside.join("leases"), "the node's own record"),
        ("config", &file, "the node's own record"),
        ("programs", &volume("programs", &programs), "programs that run as root"),
    ] {
        let bundle = bench.bundle(id, &Spec::new().bind(source, "/x", &[]))?;
        bench.refused(id, &bundle, &["UNSAFE_SPEC", why])?;
    }
    // A tree in which they show once more: they are hidden there, too, and the container runs.
    let folder = state.parent().unwrap();
    let again = volume("again", folder.parent().unwrap());
    let trees = bench.site.join("trees");
    fs::create_dir_all(trees.join("deep")).unwrap();
    assert!(Command::new("mount").arg("--bind").args([&again, &trees.join("deep")]).status().unwrap().success());
    let leaf = folder.file_name().unwrap().to_string_lossy().into_owned();
    for (id, source, place) in [("again", &again, leaf.clone()), ("tree", &trees, format!("deep/{leaf}"))] {
        let bundle = bench.bundle(&format!("{id}-rw"), &Spec::new().bind(source, "/x", &[]))?;
        bench.refused(&format!("{id}-rw"), &bundle, &["UNSAFE_SPEC", "in its place"])?;
        let script = format!("find /x/{place} -mindepth 1; test -d /x/{place} && echo there");
        let spec = Spec::new().bind(source, "/x", &["ro"]).args(["sh", "-c", &script]);
        assert_eq!(bench.runc.whole_life(id, &bench.bundle(id, &spec)?)?.trim(), "there", "{id}");
    }
    assert_eq!(bench.site.leases_on_disk()?, leases);
    bench.runc.delete("holder", true)?.checked()?;
    Ok(())
}
