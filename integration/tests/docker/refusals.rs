//! Roads to a GPU that `docker run` offers, and what looks like them and must work.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use integration::{PROBE_ALL, Result, Seen};

use crate::{IMAGE, Yard};

#[test]
fn roads_to_a_gpu_are_refused_by_docker_run_itself() -> Result<()> {
    let Some(yard) = Yard::new("roads_to_a_gpu_are_refused_by_docker_run_itself", 2)? else { return Ok(()) };
    let site = &yard.site;
    let node = site.host.node("nvidia0").display().to_string();
    let link = site.join("link");
    symlink(&node, &link).unwrap();
    let link = link.display().to_string();
    let (bind, linked) = (format!("{node}:/x"), format!("{link}:/x"));
    let mount = format!("type=bind,source={node},target=/x");
    let device = format!("{node}:/dev/nvidia0:rw");
    let folder = format!("{}:/x", site.host.root.join("dev").display());
    let (dev_root, dev) = (site.host.root.join("dev").display().to_string(), String::from("/dev"));
    for (args, code, at, value) in [
        (["-v", &bind], "TENANT_GPU_MOUNT", "/mounts/", &node),
        (["--mount", &mount], "TENANT_GPU_MOUNT", "/mounts/", &node),
        (["-v", &linked], "TENANT_GPU_MOUNT", "/mounts/", &link),
        (["-v", "/dev:/x"], "TENANT_GPU_MOUNT", "/mounts/", &dev),
        (["--device", &device], "TENANT_GPU_DEVICE", "/linux/devices/", &String::from("195:0")),
        (["--device-cgroup-rule", "c 195:* rwm"], "TENANT_GPU_RULE", "/linux/resources/devices/", &String::from("195")),
        (["--device-cgroup-rule", "c *:* rwm"], "TENANT_GPU_RULE", "/linux/resources/devices/", &String::from("*")),
        (["-e", "QUILT_GPU_COUNT=0"], "INVALID_GPU_REQUEST", "/process/env/", &String::from("0")),
        (["-e", "QUILT_GPU_COUNT=3"], "UNKNOWN_GPU", "", &String::from("3")),
        (["-v", &folder], "TENANT_GPU_MOUNT", "/mounts/", &dev_root),
    ] {
        for asking in [&[][..], &["-e", "QUILT_GPU_IDS=nvidia0,nvidia1"]] {
            let request = args[0] == "-e";
            if request && !asking.is_empty() {
                continue;
            }
            let ran = yard.run(&[&["--rm", "--name", "refused"], asking, &args, &[IMAGE, "echo", "ran"]].concat())?;
            assert_eq!(ran.status.code(), Some(125), "{args:?}: {ran:?}");
            assert_eq!(ran.stdout, "", "{args:?}");
            for word in [code, at, value.as_str()] {
                assert!(ran.stderr.contains(word), "{args:?}: no {word} in: {}", ran.stderr);
            }
            assert_eq!(site.leases_on_disk()?, BTreeSet::new(), "{args:?}");
        }
    }
    let strict = ["--rm", "-e", "QUILT_STRICT=true", "-e", "QUILT_GPU_COUNT=1", IMAGE, "echo", "ran"];
    let ran = yard.run(&strict)?;
    assert!(ran.status.code() == Some(125) && ran.stderr.contains("STRICT_GPU_CONFLICT"), "{ran:?}");
    // Strict alone is no request and no crime.
    yard.run(&["--rm", "-e", "QUILT_STRICT=true", IMAGE, "true"])?.checked()?;
    assert_eq!(yard.docker.client(&["ps", "-aq"])?.checked()?.stdout, "", "a refused container was left");
    assert!(!Path::new("/dev/nvidia0").exists());
    Ok(())
}

#[test]
fn what_only_looks_like_a_gpu_works() -> Result<()> {
    let Some(yard) = Yard::new("what_only_looks_like_a_gpu_works", 1)? else { return Ok(()) };
    let site = &yard.site;
    let volume = site.join("volume");
    fs::create_dir_all(volume.join("..2026")).unwrap();
    fs::write(volume.join("..2026/key"), "value\n").unwrap();
    symlink("..2026", volume.join("..data")).unwrap();
    let linked = format!("{}:/v:ro", volume.join("..data").display());
    let dev = site.host.root.join("dev").display().to_string();
    let mut cases = vec![
        (vec!["--device", "/dev/fuse"], "exec 3<>/dev/fuse".to_owned()),
        (vec!["-v", "/dev/fuse:/dev/fuse", "--device-cgroup-rule", "c 10:229 rwm"], "exec 3<>/dev/fuse".into()),
        (vec!["--device-cgroup-rule", "c 10:229 rwm"], "mknod /tmp/f c 10 229; exec 3<>/tmp/f".into()),
        (vec!["--device-cgroup-rule", "c *:* m"], "mknod /tmp/f c 195 0".into()),
        (vec!["-v", &linked], "grep value /v/key".into()),
        (vec!["-v", "/:/host:ro"], format!("test -c /host{dev}/nvidia0")),
        (vec!["-v", "/:/host"], format!("test -c /host{dev}/nvidia0")),
        (vec!["-v", "/proc:/host/proc:ro", "-v", "/sys:/host/sys:ro"], "test -d /host/sys/class".into()),
        (vec![], "ip addr show eth0".into()),
    ];
    if Path::new("/dev/net/tun").exists() {
        cases.push((vec!["--device", "/dev/net/tun", "--cap-add", "NET_ADMIN"], "exec 3<>/dev/net/tun".into()));
    }
    for (args, script) in &cases {
        for (asking, gpus) in [(&[][..], 0), (&["-e", "QUILT_GPU_COUNT=1"], 1)] {
            let command = format!("({script}) >&2 && exec {}", PROBE_ALL.join(" "));
            let ran = yard.run(&[&["--rm"], asking, args, &[IMAGE, "sh", "-c", &command]].concat())?.checked()?;
            assert_eq!(Seen::of(&ran.stdout)?.gpus()?.len(), gpus, "{args:?}");
        }
    }
    // The whole host is visible, and its GPUs' nodes stay shut.
    let listed = format!("/host{dev}");
    let ran = yard.run(&["--rm", "-v", "/:/host:ro", IMAGE, "quilt-probe", "devices", &listed])?.checked()?;
    assert!(ran.stdout.lines().count() > 4, "{ran:?}");
    assert!(ran.stdout.lines().all(|line| line.contains(r#""open":"EPERM""#)), "{ran:?}");
    Ok(())
}
