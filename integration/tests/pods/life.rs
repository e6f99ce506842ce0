//! A pod's GPU over the life of its containers.

use std::collections::BTreeSet;
use std::thread;

use integration::engine::{Ask, Engine, Source};
use integration::{PROBE_ALL, Result, Seen};

use crate::{IMAGE, Yard, device_filter, on_each, sleeper};

/// A pod of one container that asks for a GPU.
fn asking(name: &str) -> Ask {
    sleeper(name).asking(Source::PodAnnotation, "count", "1")
}

fn gpus(yard: &Yard, name: &str) -> Result<BTreeSet<u64>> {
    Seen::of(&yard.cri.exec(name, &PROBE_ALL)?.checked()?.stdout)?.gpus()
}

#[test]
fn a_restarted_container_keeps_its_gpu() -> Result<()> {
    on_each("a_restarted_container_keeps_its_gpu", 3, |yard| {
        for name in ["first", "second"] {
            yard.cri.start(&asking(name))?.checked()?;
        }
        let (first, second) = (gpus(yard, "first")?, gpus(yard, "second")?);
        assert_ne!(first, second);
        // There is a third, which nobody has.
        for (name, had) in [("first", &first), ("second", &second), ("first", &first)] {
            yard.cri.restart(name)?.checked()?;
            assert_eq!(gpus(yard, name)?, *had, "{name}");
        }
        yard.site.wait_leases(2)
    })
}

#[test]
fn new_limits_leave_the_devices() -> Result<()> {
    on_each("new_limits_leave_the_devices", 2, |yard| {
        let pod = yard.pod("pod", &[("quilt.gpu/count.main", "1")])?;
        for name in ["main", "side"] {
            let container = yard.started(&pod, &sleeper(name))?;
            let before = (yard.look(&container)?.gpus()?, device_filter(yard.cri.pid(&container)?)?);
            assert_eq!(before.0.len(), usize::from(name == "main"));
            yard.cri.resize(&container)?.checked()?;
            let after = (yard.look(&container)?.gpus()?, device_filter(yard.cri.pid(&container)?)?);
            assert_eq!(after, before);
        }
        Ok(())
    })
}

#[test]
fn a_killed_daemon_changes_nothing() -> Result<()> {
    on_each("a_killed_daemon_changes_nothing", 1, |yard| {
        yard.cri.start(&asking("kept"))?.checked()?;
        let (before, leases) = (gpus(yard, "kept")?, yard.site.leases_on_disk()?);
        assert_eq!((before.len(), leases.len()), (1, 1));
        yard.cri.crash().unwrap()?;
        assert_eq!(yard.site.leases()?.len(), 1);
        assert_eq!(gpus(yard, "kept")?, before);
        assert_eq!(yard.site.leases_on_disk()?, leases);
        let other = yard.cri.run(&Ask { args: vec!["true".into()], ..asking("other") })?;
        assert!(!other.ok() && other.stderr.contains("CAPACITY_FULL"), "{other:?}");
        yard.cri.remove("kept")?.checked()?;
        yard.site.wait_no_leases()
    })
}

#[test]
fn every_end_of_a_container_frees_its_gpu() -> Result<()> {
    on_each("every_end_of_a_container_frees_its_gpu", 1, |yard| {
        let probe = Ask::new("again", IMAGE, PROBE_ALL).asking(Source::PodAnnotation, "count", "1");
        let free = |after: &str| {
            yard.site.wait_no_leases()?;
            let ran = yard.cri.run(&probe)?.checked()?;
            assert_eq!(Seen::of(&ran.stdout)?.gpus()?.len(), 1, "after {after}");
            yard.site.wait_no_leases()
        };
        yard.cri.start(&asking("removed"))?.checked()?;
        assert_eq!(yard.site.leases()?.len(), 1);
        yard.cri.remove("removed")?.checked()?;
        free("removal of the pod")?;

        yard.cri.start(&asking("stopped"))?.checked()?;
        yard.cri.stop("stopped")?.checked()?;
        free("a stop, with the container's record and its pod still there")?;

        let missing = yard.cri.run(&Ask { args: vec!["no-such-program".into()], ..asking("missing") })?;
        assert!(!missing.ok() && missing.stderr.contains("no-such-program"), "{missing:?}");
        free("a program that does not exist")?;

        let code = yard.cri.run(&Ask { args: ["sh", "-c", "exit 7"].map(str::to_owned).into(), ..asking("code") })?;
        assert_eq!(code.status.code(), Some(7), "{code:?}");
        free("a failing command")
    })
}

#[test]
fn of_eight_pods_at_once_four_get_a_gpu() -> Result<()> {
    on_each("of_eight_pods_at_once_four_get_a_gpu", 4, |yard| {
        let names: Vec<String> = (0..8).map(|n| format!("pod-{n}")).collect();
        let cri = &yard.cri;
        let started: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = names.iter().map(|name| scope.spawn(move || cri.start(&asking(name)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<_>>()
        })?;
        let (lucky, others): (Vec<_>, Vec<_>) = names.iter().zip(&started).partition(|(_, ran)| ran.ok());
        assert_eq!(lucky.len(), 4, "{started:?}");
        assert!(others.iter().all(|(_, ran)| ran.stderr.contains("CAPACITY_FULL")), "{others:?}");
        let mut all = BTreeSet::new();
        for (name, _) in lucky {
            all.extend(gpus(yard, name)?);
        }
        assert_eq!(all, BTreeSet::from([0, 1, 2, 3]));
        Ok(())
    })
}
