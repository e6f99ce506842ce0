//! Words of a spec that a low-level runtime takes otherwise than they read: each is made by the bare runtime as well, where it must
//! do what it is about, or the test would prove nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::{PROBE_ALL, Result, Runc, Scratch, Seen, Spec, apart, run};
use serde_json::json;

use crate::{Bench, CRUN, RUNC, VERSION_1, VERSION_2};

const YOUKI: &str = "../.cache/engines/low-level/youki";

/// What these words make of a folder with a program that root runs, the low-level runtime: bare, the container writes in such a
/// folder; here it is refused with this word.
fn not_written(test: &str, program: &Path, spec: impl Fn(&Path) -> Spec, refused: &str) -> Result<()> {
    let folder = Scratch::new()?;
    let low_level = &folder.path().join(program.file_name().unwrap_or_default());
    // By a process of its own: what a child of another thread's has open for writing cannot be run.
    run(Command::new("cp").args([program, low_level]), None, Duration::from_secs(60))?.checked()?;
    let Some(bench) = Bench::within(test, &low_level.to_string_lossy(), VERSION_1)? else { return Ok(()) };
    let programs = low_level.parent().unwrap();
    let stand_in = bench.site.join("stand-in");
    fs::create_dir(&stand_in).unwrap();
    let bare = Runc::new(apart(bench.site.join("bare"), low_level, VERSION_1)?, bench.site.join("bare-runc"))?;
    let bundle = bench.bundle("bare", &spec(&stand_in))?;
    bare.whole_life("bare", &bundle)?;
    assert!(stand_in.join("written").exists(), "{test}: the bare runtime keeps it read-only, so nothing is shown");
    for (id, spec) in [("plain", spec(programs)), ("asking", spec(programs).env("QUILT_GPU_COUNT", "1"))] {
        let bundle = bench.bundle(id, &spec)?;
        bench.refused(id, &bundle, &[refused])?;
    }
    assert!(!programs.join("written").exists());
    Ok(())
}

#[test]
fn a_remount_does_not_make_an_earlier_mount_writable() -> Result<()> {
    let spec = |folder: &Path| {
        let first = Spec::new().bind(folder, "/t", &["ro"]).args(["sh", "-c", "echo x >/t/written; true"]);
        first.mount(
            json!({"destination": "/t", "type": "bind", "source": "/dev/pts", "options": ["bind", "remount", "rw"]}),
        )
    };
    not_written("a_remount_does_not_make_an_earlier_mount_writable", Path::new(RUNC), spec, "remount")
}

#[test]
fn what_youki_mounts_at_dev_counts_as_writable() -> Result<()> {
    let youki = Path::new(env!("CARGO_MANIFEST_DIR")).join(YOUKI);
    let spec =
        |folder: &Path| Spec::new().bind(folder, "/dev", &["ro"]).args(["sh", "-c", "echo x >/dev/written; true"]);
    not_written(
        "what_youki_mounts_at_dev_counts_as_writable",
        &youki.canonicalize().unwrap(),
        spec,
        "programs that run as root",
    )
}

/// youki's library asks for the type first, all others for the option.
#[test]
fn a_bind_that_calls_itself_cgroup_is_no_way_out() -> Result<()> {
    let engine = integration::Binaries::locate()?.engine;
    let test = "a_bind_that_calls_itself_cgroup_is_no_way_out";
    let Some(bench) = Bench::within(test, &engine.to_string_lossy(), VERSION_2)? else { return Ok(()) };
    let bare = Runc::new(apart(bench.site.join("bare"), &engine, VERSION_2)?, bench.site.join("bare-runc"))?;
    let script = format!("echo 0 >/t/cgroup.procs; exec {}", PROBE_ALL.join(" "));
    let mount = json!({"destination": "/t", "type": "cgroup", "source": "/etc/hostname", "options": ["bind"]});
    let spec = Spec::new().mount(mount).args(["sh", "-c", &script]);
    let seen = |runtime: &Runc, id: &str, spec: &Spec| {
        let bundle = bench.bundle(id, spec)?;
        Seen::of(&runtime.whole_life(id, &bundle)?)
    };
    assert!(seen(&bare, "bare", &spec)?.open_numbers().len() > 200);
    assert_eq!(seen(&bench.runc, "plain", &spec)?.gpus()?.len(), 0);
    assert_eq!(seen(&bench.runc, "asking", &spec.clone().env("QUILT_GPU_COUNT", "1"))?.gpus()?.len(), 1);
    Ok(())
}

/// CVE-2024-21626, by what the engine has open: a link of the image's leads there, which no path of the spec tells. crun
/// 1.8 and runc before 1.1.12 do not look where they got to.
#[test]
fn a_working_folder_outside_is_found_out() -> Result<()> {
    let prepare = format!("{VERSION_1} && exec 7</");
    let Some(bench) = Bench::within("a_working_folder_outside_is_found_out", CRUN, &prepare)? else { return Ok(()) };
    let bare = Runc::new(apart(bench.site.join("bare"), Path::new(CRUN), &prepare)?, bench.site.join("bare-runc"))?;
    let spec = |cwd: &str| {
        let there = format!("test -e .{} && echo outside; true", bench.site.quilt.state().display());
        Spec::new().args(["sh", "-c", &there]).edit(|spec| spec["process"]["cwd"] = cwd.into())
    };
    let bundle = |id: &str, spec: &Spec| {
        let bundle = bench.bundle(id, spec)?;
        symlink("/proc/self/fd/7", bundle.path.join("rootfs/esc")).unwrap();
        Ok(bundle)
    };
    assert_eq!(bare.whole_life("bare", &bundle("bare", &spec("/esc"))?)?.trim(), "outside");
    let asking = |cwd| spec(cwd).env("QUILT_GPU_COUNT", "1");
    bench.refused("asking", &bundle("asking", &asking("/esc"))?, &["VERIFY_FAILED", "working folder"])?;
    for (id, cwd) in [("own", "/tmp"), ("volume", "/v"), ("procs", "/proc/self"), ("top", "/.")] {
        let spec = asking(cwd).bind(&bench.rootfs.path, "/v", &["ro"]);
        assert_eq!(bench.runc.whole_life(id, &bundle(id, &spec)?)?.trim(), "", "{id}");
    }
    bench.site.wait_no_leases()
}

/// youki's library looks for a relative source where its caller is, all others in the bundle.
#[test]
fn a_relative_source_is_not_looked_for_elsewhere() -> Result<()> {
    let engine = integration::Binaries::locate()?.engine;
    let caller = Scratch::new()?;
    fs::create_dir(caller.join("data")).unwrap();
    fs::write(caller.join("data/leak"), "").unwrap();
    let prepare = format!("{VERSION_1} && cd {}", caller.path().display());
    let test = "a_relative_source_is_not_looked_for_elsewhere";
    let Some(bench) = Bench::within(test, &engine.to_string_lossy(), &prepare)? else { return Ok(()) };
    let bare = Runc::new(apart(bench.site.join("bare"), &engine, &prepare)?, bench.site.join("bare-runc"))?;
    let spec = Spec::new().bind(Path::new("data"), "/v", &[]).args(["ls", "/v"]);
    let bundle = |id: &str, spec: &Spec| {
        let bundle = bench.bundle(id, spec)?;
        fs::create_dir(bundle.path.join("data")).unwrap();
        Ok(bundle)
    };
    assert_eq!(bare.whole_life("bare", &bundle("bare", &spec)?)?.trim(), "leak");
    for (id, spec) in [("plain", spec.clone()), ("asking", spec.env("QUILT_GPU_COUNT", "1"))] {
        bench.refused(id, &bundle(id, &spec)?, &["UNSAFE_SPEC", "whatever folder it was called in"])?;
    }
    Ok(())
}
