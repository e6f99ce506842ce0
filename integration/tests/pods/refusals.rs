//! Roads to a GPU that a pod's description offers, and how its owner is told.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use integration::engine::{Ask, PodAsk, Through};
use integration::{Error, PROBE_ALL, Result, Seen, Site};
use k8s_cri::v1::CdiDevice;
use serde_json::{Value, json};

use crate::{Like, Yard, on_each, on_each_like, sleeper};

#[test]
fn a_node_of_the_host_is_refused() -> Result<()> {
    on_each("a_node_of_the_host_is_refused", 2, |yard| {
        let node = yard.site.host.node("nvidia0");
        let folder = yard.site.host.root.join("dev");
        let bind = |path: &PathBuf, at: &str| Ask { binds: vec![(path.clone(), at.into())], ..Ask::default() };
        let device = Ask { devices: vec![node.clone()], ..Ask::default() };
        for (pod, annotations) in [("quiet", &[][..]), ("asking", &[("quilt.gpu/ids.main", "nvidia1")])] {
            let pod = yard.pod(pod, annotations)?;
            for (attempt, (road, code, at, value)) in [
                (bind(&node, "/x"), "TENANT_GPU_MOUNT", "/mounts/", node.display().to_string()),
                (bind(&folder, "/host-dev"), "TENANT_GPU_MOUNT", "/mounts/", folder.display().to_string()),
                (bind(&"/dev".into(), "/host-dev"), "TENANT_GPU_MOUNT", "/mounts/", "/dev".into()),
                (device.clone(), "TENANT_GPU_DEVICE", "/linux/devices/", "195:0".into()),
            ]
            .into_iter()
            .enumerate()
            {
                let ask = Ask { binds: road.binds, devices: road.devices, ..sleeper("main") };
                let container = yard.cri.create_again(&pod, &ask, u32::try_from(attempt).unwrap())?;
                let ran = yard.cri.launch(&container)?;
                for word in [code, at, &value] {
                    assert!(!ran.ok() && ran.stderr.contains(word), "{ask:?}: no {word} in: {}", ran.stderr);
                }
                // What `kubectl describe` shows.
                let status = yard.cri.look(&container)?;
                assert_eq!((&*status.reason, status.exit_code), ("StartError", 128), "{status:?}");
                assert!(status.message.contains(code), "{status:?}");
                assert_eq!(yard.site.leases_on_disk()?, BTreeSet::new(), "{ask:?}");
            }
        }
        Ok(())
    })
}

/// A runtime that keeps its log when it fails: containerd removes it together with the bundle.
fn keeping_logs(site: &Site) -> Result<PathBuf> {
    let path = site.join("keeping-logs");
    let text = format!(
        "#!/bin/sh\nlog= last=\nfor word; do [ \"$last\" != --log ] || log=$word; last=$word; done\n\
         '{}' \"$@\" && exit\ncode=$?\ncp \"$log\" '{}'\nexit $code\n",
        site.quilt.runtime().display(),
        site.join("log.json").display()
    );
    let written = fs::write(&path, text).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
    written.map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    Ok(path)
}

#[test]
fn code_and_way_out_reach_the_status_and_the_log() -> Result<()> {
    let like = Like { wrap: keeping_logs, ..Like::default() };
    on_each_like(&like, "code_and_way_out_reach_the_status_and_the_log", 1, |yard| {
        for (key, value, code, way) in [
            ("quilt.gpu/count", "1", "INVALID_GPU_REQUEST", "quilt.gpu/count.main"),
            ("quilt.gpu/count.main", "0", "INVALID_GPU_REQUEST", "give 1 or more"),
            ("quilt.gpu/count.main", "2", "UNKNOWN_GPU", "1"),
            ("quilt.gpu/cuont.main", "1", "INVALID_GPU_REQUEST", "known keys are count"),
        ] {
            let pod = yard.pod("wrong", &[(key, value)])?;
            let (container, ran) = yard.refused(&pod, &sleeper("main"))?;
            let log = fs::read_to_string(yard.site.join("log.json")).unwrap();
            let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
            assert_eq!(last["level"], "error");
            let message = yard.cri.look(&container)?.message;
            for words in [&ran.stderr, &message, last["msg"].as_str().unwrap()] {
                assert!(words.contains(code) && words.contains(way), "{key}={value}: no {code}, {way} in: {words}");
            }
            fs::remove_file(yard.site.join("log.json")).unwrap();
            yard.cri.drop_pod(&pod)?;
        }
        Ok(())
    })
}

/// Puts a CDI file there, in a version that every engine reads.
fn describe(yard: &Yard, device: &str, edits: Value) -> Result<()> {
    let spec = json!({
        "cdiVersion": "0.5.0",
        "kind": format!("vendor.example/{device}"),
        "devices": [{"name": "one", "containerEdits": edits}],
    });
    let path = yard.cri.cdi_folder().join(format!("{device}.json"));
    fs::write(&path, spec.to_string()).map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

#[test]
fn foreign_device_descriptions_bring_no_gpu() -> Result<()> {
    on_each("foreign_device_descriptions_bring_no_gpu", 2, |yard| {
        let node = yard.site.host.node("nvidia0");
        describe(yard, "gpu", json!({"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": node}]}))?;
        describe(yard, "word", json!({"env": ["FROM_CDI=yes"]}))?;
        let pod = yard.pod("cdi", &[("quilt.gpu/ids.asking", "nvidia1")])?;
        let with = |name: &str, device: &str| {
            let args = PROBE_ALL.map(str::to_owned).into();
            let device = CdiDevice { name: format!("vendor.example/{device}=one") };
            yard.cri.create(&pod, &Ask { args, ..sleeper(name) }, |config| config.cdi_devices.push(device))
        };
        for (name, gpus) in [("quiet", BTreeSet::new()), ("asking", BTreeSet::from([1]))] {
            let container = with(name, "gpu")?;
            let ran = yard.cri.launch(&container)?;
            if yard.release == "1.6" {
                // Has no such field.
                assert_eq!(Seen::of(&yard.cri.finish(&ran.checked().map(|_| container)?)?.stdout)?.gpus()?, gpus);
                continue;
            }
            assert!(!ran.ok() && ran.stderr.contains("TENANT_GPU_DEVICE"), "{ran:?}");

            let harmless = with(&format!("{name}-2"), "word")?;
            yard.cri.launch(&harmless)?.checked()?;
            let seen = Seen::of(&yard.cri.finish(&harmless)?.checked()?.stdout)?;
            assert_eq!((seen.env("FROM_CDI"), seen.gpus()?), (Some("yes"), BTreeSet::new()));
        }
        Ok(())
    })
}

#[test]
fn privileged_pods_run_and_have_no_gpu() -> Result<()> {
    on_each("privileged_pods_run_and_have_no_gpu", 2, |yard| {
        let control = PodAsk { privileged: true, through: Through::Plain, ..PodAsk::new("control") };
        let control = yard.started(&yard.cri.pod(&control)?, &Ask { privileged: true, ..sleeper("main") })?;
        assert!(yard.look(&control)?.open_numbers().len() > 200, "nothing to be kept from");

        let asking = PodAsk { privileged: true, ..PodAsk::new("privileged") }.annotated("quilt.gpu/count.asking", "1");
        let pod = yard.cri.pod(&asking)?;
        let main = yard.started(&pod, &Ask { privileged: true, ..sleeper("main") })?;
        let seen = yard.look(&main)?;
        assert_eq!(seen.open_numbers(), BTreeSet::new());
        assert_eq!(seen.gpus_by_node()?, BTreeSet::new());
        let mount = ["sh", "-c", "mkdir /tmp/t && mount -t tmpfs none /tmp/t && exec 3<>/dev/fuse"];
        yard.cri.exec_in(&main, &mount)?.checked()?;

        let (_, ran) = yard.refused(&pod, &Ask { privileged: true, ..sleeper("asking") })?;
        assert!(ran.stderr.contains("(at /"), "{ran:?}");
        // A container of that pod without the privilege is an ordinary one.
        let pod = yard.cri.pod(&PodAsk { name: "mixed".into(), ..asking })?;
        let ordinary = yard.started(&pod, &sleeper("asking"))?;
        assert_eq!(yard.look(&ordinary)?.gpus()?.len(), 1);
        Ok(())
    })
}

#[test]
fn the_handlers_features_are_those_of_the_runtime_below() -> Result<()> {
    on_each("the_handlers_features_are_those_of_the_runtime_below", 1, |yard| {
        let status = yard.cri.status()?;
        let of = |name: &str| status.runtime_handlers.iter().find(|handler| handler.name == name);
        assert_eq!(of("quilt-gpu").map(|handler| handler.features), of("plain").map(|handler| handler.features));
        assert_eq!(of("quilt-gpu").is_some(), yard.release == "2.1", "{status:?}");
        let log = yard.cri.log();
        let complaint = log.lines().find(|line| line.contains("introspect") || line.contains("features"));
        assert!(complaint.is_none_or(|line| !line.contains("level=error") && !line.contains("level=warning")), "{log}");
        Ok(())
    })
}
