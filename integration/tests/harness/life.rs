//! One life for each engine, release, kind of control groups and low-level runtime that the tables need.

use std::path::PathBuf;

use integration::engine::{Ask, Engine, Through};
use integration::{Groups, Result, Rootfs, say};

use crate::traces::Traces;
use crate::{FAILURE, IMAGE, Place, write};

macro_rules! lives {
    ($($test:ident: $engine:literal, $groups:ident, $low_level:literal;)*) => {
        $(#[test]
        fn $test() -> Result<()> {
            live(stringify!($test), $engine, Groups::$groups, $low_level)
        })*
    };
}

// One of a kind: the matrix leads all of them through more than this.
lives! {
    docker_20_hybrid_runc: "docker-20", Hybrid, "runc-nsr";
    docker_26_v2_runc: "docker-26", V2, "runc-1.1";
    podman_4_3_v1_crun: "podman-4.3", V1, "crun-1.8";
    podman_5_4_v2_crun: "podman-5.4", V2, "crun-1.21";
    ctr_1_7_v2_runc: "ctr-1.7", V2, "runc-nsr";
    cri_1_6_hybrid_runc: "cri-1.6", Hybrid, "runc-1.1";
    cri_2_1_hybrid_runc: "cri-2.1", Hybrid, "runc-1.3";
}

pub(crate) fn plain(name: &str, shell: &str) -> Ask {
    Ask { through: Through::Plain, ..Ask::new(name, IMAGE, ["sh", "-c", shell]) }
}

fn live(test: &str, name: &str, groups: Groups, low_level: &str) -> Result<()> {
    let Some(place) = Place::new(test, low_level, groups)? else { return Ok(()) };
    let Some((mut engine, folder)) = place.engine(test, name)? else { return Ok(()) };
    let versions = engine.versions()?;
    say(format_args!("{test}: {versions}"));
    let (kind, release) = name.split_once('-').unwrap_or((name, ""));
    let program = if ["ctr", "cri"].contains(&kind) { "containerd" } else { kind };
    assert!(versions.starts_with(&format!("{program} {release}")), "{versions}");
    let rootfs = Rootfs::busybox(place.scratch.join("bb"))?;
    engine.import(IMAGE, &rootfs, &[("FROM_IMAGE", "yes")], &[("a.label", "there")])?;

    single_runs(&*engine, &place)?;
    what_not_all_have(&*engine, name, low_level)?;
    a_failing_create_is_shown(&*engine)?;
    // Under CRI a container is not started twice: there is another one in its place.
    let again = |n: u32| format!("{} /tmp/starts\n", if kind == "cri" { 1 } else { n });
    background(&*engine, &place, &again)?;
    crash(&mut *engine, &again)?;

    let left = engine.start(&plain("left", "sleep 600"))?.checked()?;
    // `ctr` makes no ids of its own, and says nothing.
    assert_eq!(left.stdout.trim().len(), if kind == "ctr" { 0 } else { 64 }, "{left:?}");
    let traces = Traces::of(&folder);
    assert!(!traces.found().is_empty(), "an engine that is up must be seen");
    drop(engine);
    assert_eq!(traces.found(), Vec::<String>::new());
    Ok(())
}

fn single_runs(engine: &dyn Engine, place: &Place) -> Result<()> {
    let ran = engine.run(&plain("words", "echo out; echo err >&2; exit 7"))?;
    assert_eq!((ran.status.code(), &*ran.stdout, &*ran.stderr), (Some(7), "out\n", "err\n"), "{ran:?}");

    let mut ask = plain("words", "echo $FROM_IMAGE $MINE");
    ask.env.push(("MINE".into(), "as well".into()));
    assert_eq!(engine.run(&ask)?.checked()?.stdout, "yes as well\n");

    let note = place.scratch.join("note");
    write(&note, "a volume\n")?;
    let mut ask = plain("bind", "cat /note");
    ask.binds.push((note, "/note".into()));
    assert_eq!(engine.run(&ask)?.checked()?.stdout, "a volume\n");

    let mut ask = plain("device", "test -c /dev/fuse && exec 3<>/dev/fuse && echo open");
    assert!(!engine.run(&ask)?.ok());
    ask.devices.push(PathBuf::from("/dev/fuse"));
    assert_eq!(engine.run(&ask)?.checked()?.stdout, "open\n");
    Ok(())
}

fn what_not_all_have(engine: &dyn Engine, name: &str, low_level: &str) -> Result<()> {
    let mut ask = plain("all", "mknod /tmp/f c 10 229 && exec 3<>/tmp/f && echo open");
    assert!(!engine.run(&ask)?.ok());
    ask.privileged = true;
    // It cannot do without a capability that this machine may lack, and there is no runc-nsr for it.
    if low_level != "youki" {
        assert_eq!(engine.run(&ask)?.checked()?.stdout, "open\n");
    }

    let mut ask = plain("mapped", "cat /proc/self/uid_map");
    ask.user_namespace = true;
    match engine.run(&ask) {
        Err(error) => assert!(["docker-", "ctr-", "cri-1.6"].iter().any(|none| name.starts_with(none)), "{error}"),
        Ok(ran) => {
            let map = ran.checked()?.stdout;
            assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
        }
    }
    let mut ask = plain("noted", "true");
    ask.annotations.push(("a.key".into(), "value".into()));
    assert_eq!(engine.run(&ask).is_ok_and(|ran| ran.ok()), name != "docker-20");
    Ok(())
}

fn a_failing_create_is_shown(engine: &dyn Engine) -> Result<()> {
    let failing = Ask { through: Through::Quilt, ..plain("failing", "true") };
    let ran = engine.run(&failing)?;
    assert!(!ran.ok() && ran.stderr.contains(FAILURE), "{ran:?}");
    let ran = engine.start(&failing)?;
    assert!(!ran.ok() && ran.stderr.contains(FAILURE), "{ran:?}");
    engine.remove("failing")?.checked()?;
    Ok(())
}

fn background(engine: &dyn Engine, place: &Place, again: &dyn Fn(u32) -> String) -> Result<()> {
    engine.start(&plain("kept", "echo $$ >>/tmp/starts; sleep 600"))?.checked()?;
    let starts = || engine.exec("kept", &["wc", "-l", "/tmp/starts"]);
    assert_eq!(starts()?.checked()?.stdout, "1 /tmp/starts\n");
    assert_eq!(engine.exec("kept", &["sh", "-c", "exit 3"])?.status.code(), Some(3));
    place.calls("update")?;
    if let Some(updated) = engine.update("kept") {
        updated?.checked()?;
        assert_eq!(place.calls("update")?, 1, "the runtime must hear of it");
    }
    engine.restart("kept")?.checked()?;
    assert_eq!(starts()?.checked()?.stdout, again(2));
    engine.stop("kept")?.checked()?;
    assert!(!starts()?.ok());
    engine.restart("kept")?.checked()?;
    assert_eq!(starts()?.checked()?.stdout, again(3));
    engine.remove("kept")?.checked()?;
    assert!(!starts()?.ok());
    Ok(())
}

fn crash(engine: &mut dyn Engine, again: &dyn Fn(u32) -> String) -> Result<()> {
    engine.start(&plain("alive", "echo $$ >>/tmp/starts; sleep 600"))?.checked()?;
    let Some(crashed) = engine.crash() else {
        return engine.remove("alive")?.checked().map(drop);
    };
    crashed?;
    // The same process, and the engine still rules it.
    assert_eq!(engine.exec("alive", &["wc", "-l", "/tmp/starts"])?.checked()?.stdout, "1 /tmp/starts\n");
    engine.restart("alive")?.checked()?;
    assert_eq!(engine.exec("alive", &["wc", "-l", "/tmp/starts"])?.checked()?.stdout, again(2));
    engine.remove("alive")?.checked()?;
    Ok(())
}
