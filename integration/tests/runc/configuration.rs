//! What the operator's configuration lets containers do. In one in which something is wrong, what can be read still counts,
//! and no GPU is granted.

use std::fs;

use integration::{Error, Result, Spec};
use serde_json::json;

use crate::Bench;

#[test]
fn a_mistake_elsewhere_opens_nothing() -> Result<()> {
    let Some(bench) = Bench::new("a_mistake_elsewhere_opens_nothing", 1)? else { return Ok(()) };
    let file = bench.site.quilt.config();
    let failed = |cause: std::io::Error| Error::new(cause.to_string());
    let good = fs::read_to_string(&file).map_err(failed)?;
    let hardened = good.replace("[policy]\n", "[policy]\nprofile = \"hardened\"\n");
    assert_ne!(hardened, good, "this fixture must be able to fail");
    let admin = Spec::new().capability("CAP_SYS_ADMIN");
    bench.runc.whole_life("admin", &bench.bundle("admin", &admin.clone().args(["true"]))?)?;
    for (id, text) in [
        ("whole", hardened.clone()),
        ("key", format!("{hardened}\n[nonsense]\nkey = 1\n")),
        ("value", format!("{hardened}\n[request]\nenvironment = \"perhaps\"\n")),
        ("syntax", format!("{hardened}\n[request\n")),
    ] {
        fs::write(&file, &text).map_err(failed)?;
        let records = bench.site.quilt.audit().len();
        bench.refused(id, &bench.sharing(id, &admin)?, &["UNSAFE_SPEC", "CAP_SYS_ADMIN"])?;
        assert_eq!(bench.site.quilt.audit().len(), records + 1, "{id}: the record is in another log");
        if id == "whole" {
            continue;
        }
        bench.refused(
            id,
            &bench.sharing(&format!("{id}-gpu"), &Spec::new().env("QUILT_GPU_COUNT", "1"))?,
            &["the configuration does not count"],
        )?;
        bench.runc.whole_life(id, &bench.bundle(&format!("{id}-plain"), &Spec::new().args(["true"]))?)?;
        let answer = bench.site.quilt.cli(&["lease", "list"])?;
        assert_eq!(answer.status.code(), Some(2), "{answer:?}");
        assert!(answer.stderr.starts_with(&format!("quilt-gpu: {}: the configuration", file.display())), "{answer:?}");
    }
    Ok(())
}

/// A privileged container of this name in a pod, as containerd's CRI writes it, that asks for a GPU.
fn privileged(name: &str) -> Spec {
    Spec::new()
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.container-name", name)
        .annotation("io.kubernetes.cri.sandbox-namespace", "gpu-operator")
        .annotation("io.kubernetes.cri.sandbox-uid", "8b5e")
        .annotation(&format!("quilt.gpu/count.{name}"), "1")
        .capability("CAP_SYS_ADMIN")
        .device("/dev/x", 'c', 195, 1)
        .rule(json!({"allow": true, "access": "rwm"}))
}

/// D4, Q42: whom the operator names is privileged and has its own GPU, and no other; nobody else gets by with that name.
#[test]
fn q42_a_privileged_container_that_the_operator_names_opens_its_own_gpu_alone() -> Result<()> {
    let test = "q42_a_privileged_container_that_the_operator_names_opens_its_own_gpu_alone";
    let Some(bench) = Bench::new(test, 2)? else { return Ok(()) };
    let failed = |cause: std::io::Error| Error::new(cause.to_string());
    let file = bench.site.quilt.config();
    let before = fs::read_to_string(&file).map_err(failed)?;
    let refused = &["UNSAFE_SPEC", "a privileged container reaches every GPU"];
    bench.refused("unnamed", &bench.sharing("unnamed", &privileged("dcgm"))?, refused)?;
    let table = "[[allow]]\nrules = [\"privileged\"]\nnamespace = \"gpu-operator\"\ncontainer = \"dcgm\"\n";
    for (profile, id) in [("hardened", "named-hardened"), ("standard", "named")] {
        let text = before.replace("[policy]\n", &format!("[policy]\nprofile = \"{profile}\"\n"));
        assert_ne!(text, before, "this fixture must be able to fail");
        fs::write(&file, format!("{text}\n{table}")).map_err(failed)?;
        // Which also says that no other number opens.
        assert_eq!(bench.see(id, &privileged("dcgm"))?.gpus()?.len(), 1, "{profile}");
        let script = "mknod /tmp/f c 10 229 && exec 3<>/tmp/f";
        let id = format!("{id}-fuse");
        let fuse = privileged("dcgm").args(["sh", "-c", script]);
        bench.runc.whole_life(&id, &bench.bundle(&id, &fuse)?)?;
        bench.refused("other", &bench.sharing(&format!("{id}-other"), &privileged("train"))?, refused)?;
    }
    // Docker's user writes the same annotations, and asks as such a user does.
    let copied = privileged("dcgm").env("QUILT_GPU_COUNT", "1").edit(|spec| {
        spec["annotations"].as_object_mut().map(|all| all.remove("io.kubernetes.cri.container-type"));
    });
    bench.refused("copied", &bench.sharing("copied", &copied)?, refused)?;
    Ok(())
}
