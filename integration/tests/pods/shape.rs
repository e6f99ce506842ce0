//! The shape of a pod: its sandbox, several containers, init containers, its network.

use std::collections::BTreeSet;

use integration::engine::{Kit, PodAsk};
use integration::{Error, Groups, Result, say};
use serde_json::Value;

use crate::{Like, device_filter, on_each, on_each_like, sleeper};

#[test]
fn the_sandbox_never_gets_a_gpu() -> Result<()> {
    on_each("the_sandbox_never_gets_a_gpu", 2, |yard| {
        for (name, key, leases) in [("named", "quilt.gpu/count.main", 1), ("bare", "quilt.gpu/count", 0)] {
            let pod = yard.pod(name, &[(key, "1")])?;
            assert_eq!(yard.site.leases()?.len(), 0, "the pod alone holds nothing");
            let main = if leases == 1 { Some(yard.started(&pod, &sleeper("main"))?) } else { None };
            let filter = device_filter(yard.cri.sandbox_pid(&pod)?)?;
            assert!(filter.lines().count() > 1, "{filter}");
            assert!(!filter.lines().any(|line| line.starts_with("c 195:") || line.starts_with("a ")), "{filter}");
            if let Some(main) = &main {
                assert!(device_filter(yard.cri.pid(main)?)?.contains("c 195:"), "the filter of a GPU container");
            }
            let config = std::fs::read_to_string(yard.cri.bundle(&pod.id).join("config.json")).unwrap();
            assert!(config.contains(r#""io.kubernetes.cri.container-type":"sandbox""#), "{config}");
            assert!(config.contains(&format!("\"{key}\":\"1\"")), "the handler passes the pod's annotations");
            assert!(!config.contains("nvidia"), "{config}");
            let held = yard.site.leases()?;
            assert_eq!(held.len(), leases, "{held:?}");
            assert!(!Value::from(held).to_string().contains(&pod.id), "a lease of the sandbox");
            yard.cri.drop_pod(&pod)?;
        }
        yard.site.wait_no_leases()
    })
}

#[test]
fn a_key_reaches_the_container_that_it_names() -> Result<()> {
    named("a_key_reaches_the_container_that_it_names", Groups::Hybrid)
}

#[test]
fn with_version_2_alone_too() -> Result<()> {
    named("with_version_2_alone_too", Groups::V2)
}

#[test]
fn with_version_1_alone_too() -> Result<()> {
    named("with_version_1_alone_too", Groups::V1)
}

fn named(test: &str, groups: Groups) -> Result<()> {
    on_each_like(&Like { groups, ..Like::default() }, test, 3, |yard| {
        let pod = yard.pod("one", &[("quilt.gpu/count.main", "1")])?;
        let (main, side) = (yard.started(&pod, &sleeper("main"))?, yard.started(&pod, &sleeper("side"))?);
        let gpus = yard.look(&main)?.gpus()?;
        assert_eq!(gpus.len(), 1);
        assert_eq!(yard.look(&side)?.gpus()?, BTreeSet::new());
        assert_eq!(yard.site.leases()?.len(), 1);

        let pod = yard.pod("both", &[("quilt.gpu/count.a", "1"), ("quilt.gpu/count.b", "1")])?;
        let (a, b) = (yard.started(&pod, &sleeper("a"))?, yard.started(&pod, &sleeper("b"))?);
        let all: Vec<u64> = [gpus, yard.look(&a)?.gpus()?, yard.look(&b)?.gpus()?].into_iter().flatten().collect();
        assert_eq!(BTreeSet::from_iter(all.clone()), BTreeSet::from([0, 1, 2]), "{all:?}");

        // What the environment says beside it.
        let seen = yard.look(&a)?;
        let gpu = yard.site.host.by_minor(all[1]).ok_or_else(|| Error::new("a GPU that is not there"))?;
        assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some(&*gpu.uuid));
        assert_eq!(seen.env("FROM_IMAGE"), Some("yes"));
        assert!(seen.library("libcuda.so.1").is_ok());
        Ok(())
    })
}

#[test]
fn a_bare_key_is_refused_with_the_key_to_write() -> Result<()> {
    on_each("a_bare_key_is_refused_with_the_key_to_write", 1, |yard| {
        let pod = yard.pod("bare", &[("quilt.gpu/count", "1")])?;
        for name in ["main", "side-car"] {
            let (_, ran) = yard.refused(&pod, &sleeper(name))?;
            for word in ["INVALID_GPU_REQUEST", &format!("quilt.gpu/count.{name}")] {
                assert!(ran.stderr.contains(word), "no {word} in: {}", ran.stderr);
            }
        }
        // A name that fits into no key says so.
        let (_, ran) = yard.refused(&pod, &sleeper(&"n".repeat(51)))?;
        assert!(ran.stderr.contains("shorter name"), "{}", ran.stderr);
        yard.site.wait_no_leases()
    })
}

#[test]
fn an_init_container_hands_its_gpu_on() -> Result<()> {
    on_each("an_init_container_hands_its_gpu_on", 1, |yard| {
        let both = [("quilt.gpu/count.init", "1"), ("quilt.gpu/count.app", "1")];
        let pod = yard.pod("both", &both)?;
        // There is one GPU: the second can have it only when the first has ended.
        let first = yard.see(&pod, &sleeper("init"))?.gpus()?;
        let app = yard.started(&pod, &sleeper("app"))?;
        assert_eq!(yard.look(&app)?.gpus()?, first);
        assert_eq!(first.len(), 1);
        yard.cri.drop_pod(&pod)?;

        let pod = yard.pod("app-only", &both[1..])?;
        assert_eq!(yard.see(&pod, &sleeper("init"))?.gpus()?, BTreeSet::new());
        let app = yard.started(&pod, &sleeper("app"))?;
        assert_eq!(yard.look(&app)?.gpus()?, first);
        Ok(())
    })
}

#[test]
fn pods_with_a_network_of_their_own_are_no_different() -> Result<()> {
    let test = "pods_with_a_network_of_their_own_are_no_different";
    if let Err(why) = Kit::default().cni() {
        say(format_args!("SKIPPED {test}: {why}"));
        return Ok(());
    }
    on_each(test, 1, |yard| {
        let asks = PodAsk { cni: true, ..PodAsk::new("net").annotated("quilt.gpu/count.main", "1") };
        let pod = yard.cri.pod(&asks)?;
        let main = yard.started(&pod, &sleeper("main"))?;
        assert_eq!(yard.look(&main)?.gpus()?.len(), 1);
        let address = yard.cri.exec_in(&main, &["ip", "addr", "show", "eth0"])?.checked()?.stdout;
        assert!(address.contains("inet 10.88.99."), "{address}");
        assert!(!device_filter(yard.cri.sandbox_pid(&pod)?)?.contains("c 195:"));
        yard.cri.drop_pod(&pod)?;
        yard.site.wait_no_leases()
    })
}

#[test]
fn pods_with_other_ids_get_their_gpu_too() -> Result<()> {
    let test = "pods_with_other_ids_get_their_gpu_too";
    // 2.1 takes what earlier releases do by changing owners from the kernel, which needs a newer runc.
    on_each_like(&Like { low_level: Some("runc-1.3"), ..Like::default() }, test, 2, |yard| {
        if yard.release == "1.6" {
            return Ok(());
        }
        let asks = PodAsk { cni: true, user_namespace: true, ..PodAsk::new("mapped") };
        let pod = yard.cri.pod(&asks.annotated("quilt.gpu/count.main", "1"))?;
        let (main, side) = (yard.started(&pod, &sleeper("main"))?, yard.started(&pod, &sleeper("side"))?);
        let map = yard.cri.exec_in(&main, &["cat", "/proc/self/uid_map"])?.checked()?.stdout;
        assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
        assert_eq!(yard.look(&main)?.gpus_by_node()?.len(), 1);
        assert!(yard.look(&main)?.library("libcuda.so.1").is_ok());
        assert_eq!(yard.look(&side)?.gpus_by_node()?, BTreeSet::new());
        yard.cri.drop_pod(&pod)?;
        yard.site.wait_no_leases()
    })
}
