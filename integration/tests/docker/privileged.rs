//! Privileged containers: they run as under plain runc, with everything but GPUs. quilt-gpu is no boundary for them.

use std::collections::BTreeSet;

use integration::{PROBE_ALL, Result, Scratch, Seen, root_for, runc_without_sys_resource};

use crate::{IMAGE, Yard};

#[test]
fn privileged_containers_run_and_have_no_gpu() -> Result<()> {
    let test = "privileged_containers_run_and_have_no_gpu";
    if !root_for(test) {
        return Ok(());
    }
    // Where the machine lacks CAP_SYS_RESOURCE runc alone cannot start them; see runc-nsr.
    let tools = Scratch::new()?;
    let Some(yard) = Yard::over(test, 2, runc_without_sys_resource(tools.path())?)? else { return Ok(()) };
    let privileged = |runtime| {
        let call = ["--rm", "--privileged", "--runtime", runtime, IMAGE];
        Seen::of(&yard.docker.run(&[&call[..], &PROBE_ALL].concat())?.checked()?.stdout)
    };
    let plain = privileged("plain")?;
    assert!(plain.numbers().values().all(|(made, open)| made == "ok" && open != "EPERM"), "the control must see GPUs");
    let ours = privileged("quilt-gpu")?;
    assert_eq!(ours.open_numbers(), BTreeSet::new());
    assert_eq!(ours.gpus_by_node()?, BTreeSet::new());

    // Everything else of a privileged container is there.
    for script in [
        "exec 3<>/dev/fuse",
        "mknod /tmp/f c 10 229 && exec 3<>/tmp/f",
        "mknod /tmp/m c 1 3 && exec 3<>/tmp/m",
        "mkdir -p /tmp/t && mount -t tmpfs none /tmp/t && umount /tmp/t",
        "ip link set lo mtu 1400 && ip link show lo | grep 1400",
    ] {
        for runtime in ["plain", "quilt-gpu"] {
            let call = ["--rm", "--privileged", "--runtime", runtime, IMAGE, "sh", "-c", script];
            yard.docker.run(&call)?.checked()?;
        }
    }
    let devices = |runtime| {
        let call = ["--rm", "--privileged", "--runtime", runtime, IMAGE, "sh", "-c", "cd /dev && find . | sort"];
        Ok(yard.docker.run(&call)?.checked()?.stdout)
    };
    let plain: Result<String> = devices("plain");
    assert_eq!(devices("quilt-gpu")?, plain?);

    let asking = yard.run(&["--rm", "--privileged", "-e", "QUILT_GPU_COUNT=1", IMAGE, "true"])?;
    assert_eq!(asking.status.code(), Some(125), "{asking:?}");
    assert!(asking.stderr.contains("(at /"), "{asking:?}");
    yard.site.wait_no_leases()
}
