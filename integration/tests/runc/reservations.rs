//! The node agent's way: GPUs are reserved before there is a container, or held by what is no container, and all of it is
//! one ledger.

use std::collections::BTreeSet;
use std::fs;

use integration::{Bundle, Error, Ran, Result, Spec};
use serde_json::{Value, json};

use crate::Bench;

impl Bench {
    /// `quilt-gpu contract prepare` of a control plane's document.
    fn prepare(&self, document: &Value, more: &[&str]) -> Result<Ran> {
        let file = self.site.join("request.json");
        fs::write(&file, document.to_string()).map_err(|e| Error::new(format!("{}: {e}", file.display())))?;
        let named = file.to_string_lossy();
        self.site.quilt.cli(&[&["contract", "prepare", "--request", &named], more].concat())
    }

    /// Its answer, when GPUs are reserved.
    fn prepared(&self, document: &Value, more: &[&str]) -> Result<Value> {
        parsed(&self.prepare(document, more)?.checked()?.stdout)
    }
}

fn parsed(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::new(format!("{e}: {text}")))
}

fn text<'a>(document: &'a Value, key: &str) -> &'a str {
    document[key].as_str().unwrap_or_default()
}

/// A container of a pod as containerd's CRI writes it.
fn cri(uid: &str, name: &str, token: &str) -> Spec {
    Spec::new()
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.container-name", name)
        .annotation("io.kubernetes.cri.sandbox-uid", uid)
        .annotation("io.kubernetes.cri.sandbox-name", "job")
        .annotation("io.kubernetes.cri.sandbox-namespace", "red")
        .annotation("grant.quilt.gpu/contract", token)
}

/// The same as CRI-O writes it.
fn crio(uid: &str, name: &str, token: &str) -> Spec {
    Spec::new()
        .annotation("io.kubernetes.cri-o.ContainerType", "container")
        .annotation("io.kubernetes.container.name", name)
        .annotation("io.kubernetes.pod.uid", uid)
        .annotation("io.kubernetes.pod.name", "job")
        .annotation("io.kubernetes.pod.namespace", "red")
        .annotation("io.kubernetes.cri-o.Annotations", &json!({"grant.quilt.gpu/contract": token}).to_string())
        .annotation("grant.quilt.gpu/contract", token)
}

#[test]
fn a_control_planes_request_becomes_a_token_and_the_token_a_container() -> Result<()> {
    let Some(bench) = Bench::new("a_control_planes_request_becomes_a_token", 2)? else { return Ok(()) };
    let request = json!({
        "name": "gpu-demo", "image": "prod", "gpu_count": 1, "gpu_ids": ["nvidia1"], "command": ["/bin/sh", "-lc", "nvidia-smi"],
    });
    for (id, spec) in [
        ("variable", (|token: &str| Spec::new().env("QUILT_GPU_CONTRACT", token)) as fn(&str) -> Spec),
        ("annotation", |token: &str| Spec::new().annotation("quilt.gpu/contract", token)),
        ("pod", |token: &str| cri("8b5e-1", "main", token)),
    ] {
        let answer = bench.prepared(&request, &[])?;
        let spec = spec(text(&answer, "token"));
        // Reserved is taken.
        let pinned = bench.sharing("pinned", &Spec::new().env("QUILT_GPU_IDS", "nvidia1"))?;
        bench.refused("pinned", &pinned, &["CAPACITY_FULL"])?;
        assert_eq!(bench.see(id, &spec)?.gpus()?, BTreeSet::from([1]), "{id}");
        assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new(), "{id}");
        let again = format!("{id}-again");
        bench.refused(&again, &bench.sharing(&again, &spec)?, &["CONTRACT_UNTRUSTED"])?;
    }
    let id = "0123456789abcdef0123456789abcdef";
    assert_eq!(bench.prepared(&request, &["--id", id])?["contract"]["id"], id);
    // 1: refused; 3: try again.
    for (document, status, code) in [
        (json!({"gpu_ids": ["nvidia0"]}), 1, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 2, "gpu_ids": ["nvidia0"]}), 1, "INVALID_GPU_REQUEST"),
        (json!({"gpu_cuont": 1}), 1, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 1, "strict": true}), 1, "STRICT_GPU_CONFLICT"),
        (json!({"gpu_count": 2}), 3, "CAPACITY_FULL"),
        (json!({"gpu_count": 3}), 1, "UNKNOWN_GPU"),
    ] {
        let answer = bench.prepare(&document, &[])?;
        assert_eq!((answer.status.code(), text(&parsed(&answer.stdout)?, "code")), (Some(status), code), "{document}");
    }
    assert_eq!(bench.prepared(&json!({"gpu_count": 0}), &[])?["token"], Value::Null);
    Ok(())
}

#[test]
fn a_pods_reservation_serves_every_restart_of_its_container() -> Result<()> {
    let Some(bench) = Bench::new("a_pods_reservation_serves_every_restart_of_its_container", 1)? else { return Ok(()) };
    let one = json!({"gpu_count": 1});
    for (engine, spec) in [("cri", cri as fn(&str, &str, &str) -> Spec), ("crio", crio)] {
        let uid = format!("8b5e-{engine}");
        let bound = ["--pod", &uid, "--container", "main"];
        let answer = bench.prepared(&one, &bound)?;
        assert_eq!(answer["pod"], json!({"uid": uid, "container": "main"}));
        let token = text(&answer, "token");
        for (what, foreign) in [
            ("other-name", spec(&uid, "side", token)),
            ("other-pod", spec("another", "main", token)),
            ("no-pod", Spec::new().env("QUILT_GPU_CONTRACT", token)),
        ] {
            let id = format!("{engine}-{what}");
            bench.refused(&id, &bench.sharing(&id, &foreign)?, &["CONTRACT_UNTRUSTED"])?;
        }
        for restart in 0..3 {
            let id = format!("{engine}-{restart}");
            assert_eq!(bench.sleeper(&id, &spec(&uid, "main", token))?.gpus()?, BTreeSet::from([0]), "{id}");
            let early = format!("{id}-early");
            bench.refused(&early, &bench.sharing(&early, &spec(&uid, "main", token))?, &["CAPACITY_FULL"])?;
            bench.runc.delete(&id, true)?.checked()?;
            // Between two of them nobody gets it, and the agent that asks again is given the same.
            let other = format!("{id}-other");
            let asking = bench.sharing(&other, &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
            bench.refused(&other, &asking, &["CAPACITY_FULL"])?;
            assert_eq!(bench.prepared(&one, &bound)?["token"], token);
        }
        let leases = bench.site.leases()?;
        assert_eq!(leases.len(), 1, "{leases:?}");
        assert_eq!((&leases[0]["kind"], &leases[0]["pod"]["uid"]), (&json!("reservation"), &json!(uid)), "{leases:?}");
        let released = bench.site.quilt.cli(&["lease", "release", "--pod", &uid, "--format", "json"])?.checked()?;
        assert_eq!(parsed(&released.stdout)?, json!({"released": [bench.site.host.gpus[0].pci]}));
        let late = format!("{engine}-late");
        bench.refused(&late, &bench.sharing(&late, &spec(&uid, "main", token))?, &["CONTRACT_UNTRUSTED"])?;
    }
    Ok(())
}

/// E15: who starts containers by Docker writes any annotation, and names the pod that he would like to be. His bundle lies
/// where only his engine puts it.
#[test]
fn e15_a_forged_place_in_a_pod_opens_no_pods_reservation() -> Result<()> {
    let Some(bench) = Bench::new("e15_a_forged_place_in_a_pod_opens_no_pods_reservation", 1)? else { return Ok(()) };
    let token = bench.prepared(&json!({"gpu_count": 1}), &["--pod", "8b5e", "--container", "main"])?;
    for (engine, spec) in [("cri", cri as fn(&str, &str, &str) -> Spec), ("crio", crio)] {
        let spec = spec("8b5e", "main", text(&token, "token"));
        let id = format!("forged-{engine}");
        let moby = bench.site.join("moby").join(&id);
        let bundle = Bundle::sharing(moby, &spec.clone().cgroup(&bench.cgroup(&id)), &bench.rootfs)?;
        bench.refused(&id, &bundle, &["CONTRACT_UNTRUSTED"])?;
        // With its engine's word for it the same spec gets the GPU.
        assert_eq!(bench.see(engine, &spec)?.gpus()?, BTreeSet::from([0]), "{engine}");
        let audit = bench.site.quilt.audit();
        let pods: Vec<_> = audit.iter().filter(|entry| entry["container"] == id.as_str()).map(|e| &e["pod"]).collect();
        assert_eq!(pods, [&Value::Null], "{engine}: nor does the log name a pod on the tenant's word");
    }
    Ok(())
}

#[test]
fn what_belongs_to_a_pod_is_found_by_the_pod() -> Result<()> {
    let Some(bench) = Bench::new("what_belongs_to_a_pod_is_found_by_the_pod", 1)? else { return Ok(()) };
    let bound = ["--pod", "8b5e", "--container", "main"];
    let token = bench.prepared(&json!({"gpu_count": 1}), &bound)?;
    for (engine, spec) in [("cri", cri as fn(&str, &str, &str) -> Spec), ("crio", crio)] {
        let spec = spec("8b5e", "main", text(&token, "token"));
        bench.sleeper(engine, &spec)?;
        for words in [["lease", "list"], ["contract", "show"]] {
            let told = bench.site.quilt.cli(&words)?.checked()?.stdout;
            assert!(told.contains(" red/job/main "), "{words:?}: {told}");
            let list = parsed(&bench.site.quilt.cli(&[words[0], words[1], "--format", "json"])?.checked()?.stdout)?;
            let pod = json!({"uid": "8b5e", "container": "main", "name": "job", "namespace": "red"});
            assert!(list.as_array().unwrap().iter().any(|one| one["pod"] == pod), "{list}");
        }
        let second = format!("{engine}-second");
        bench.refused(&second, &bench.sharing(&second, &spec)?, &["CAPACITY_FULL"])?;
        bench.runc.delete(engine, true)?.checked()?;
        for pod in ["8b5e", "job", "red/job"] {
            let told = parsed(&bench.site.quilt.cli(&["audit", pod, "--format", "json"])?.checked()?.stdout)?;
            let of: Vec<&str> = told
                .as_array()
                .unwrap()
                .iter()
                .filter(|entry| entry["container"] == engine || entry["container"] == second.as_str())
                .map(|entry| text(entry, "kind"))
                .collect();
            assert_eq!(of, ["create", "refuse", "release"], "{pod}");
        }
    }
    Ok(())
}

#[test]
fn a_token_answers_what_the_pod_asks_for() -> Result<()> {
    let Some(bench) = Bench::new("a_token_answers_what_the_pod_asks_for", 2)? else { return Ok(()) };
    let one = json!({"gpu_count": 1, "gpu_ids": ["nvidia1"]});
    let answer = bench.prepared(&one, &["--pod", "8b5e", "--container", "main"])?;
    for (engine, spec) in [("cri", cri as fn(&str, &str, &str) -> Spec), ("crio", crio)] {
        let spec = spec("8b5e", "main", text(&answer, "token"));
        for (what, key, value, words) in [
            ("count", "quilt.gpu/count.main", "2", ["asks for 2 GPUs", "is for 1 GPU"]),
            ("ids", "quilt.gpu/ids.main", "nvidia0", ["asks for nvidia0", "is for nvidia1"]),
        ] {
            let id = format!("{engine}-{what}");
            let bundle = bench.sharing(&id, &spec.clone().annotation(key, value))?;
            bench.refused(&id, &bundle, &["POLICY", words[0], words[1], "the agent has to reserve"])?;
        }
        for (what, key, value) in [("one", "quilt.gpu/count.main", "1"), ("named", "quilt.gpu/ids.main", "nvidia1")] {
            let seen = bench.see(&format!("{engine}-{what}"), &spec.clone().annotation(key, value))?;
            assert_eq!(seen.gpus()?, BTreeSet::from([1]), "{engine} {what}");
        }
    }
    Ok(())
}

#[test]
fn an_init_container_hands_its_gpu_on() -> Result<()> {
    let Some(bench) = Bench::new("an_init_container_hands_its_gpu_on", 1)? else { return Ok(()) };
    let named = json!({"gpu_count": 1, "gpu_ids": ["nvidia0"]});
    let init = bench.prepared(&named, &["--pod", "8b5e", "--container", "init"])?;
    let main = bench.prepared(&named, &["--pod", "8b5e", "--container", "main"])?;
    let stranger = bench.prepare(&named, &["--pod", "other", "--container", "main"])?;
    assert!(!stranger.ok() && stranger.stdout.contains("CAPACITY_FULL"), "{stranger:?}");
    let main = cri("8b5e", "main", text(&main, "token"));
    bench.sleeper("init", &cri("8b5e", "init", text(&init, "token")))?;
    bench.refused("main-early", &bench.sharing("main-early", &main)?, &["CAPACITY_FULL"])?;
    bench.runc.delete("init", true)?.checked()?;
    assert_eq!(bench.see("main", &main)?.gpus()?, BTreeSet::from([0]));
    Ok(())
}

#[test]
fn virtual_machines_and_containers_share_one_ledger() -> Result<()> {
    let Some(bench) = Bench::new("virtual_machines_and_containers_share_one_ledger", 2)? else { return Ok(()) };
    let [first, second] = [0, 1].map(|minor| bench.site.host.by_minor(minor).unwrap());
    let lease = |words: &[&str]| bench.site.quilt.cli(&[&["lease"], words, &["--format", "json"]].concat());
    let acquire = ["acquire", "--holder", "vm:build-1", "--ids", "nvidia0"];
    let taken = json!({"holder": "vm:build-1", "gpus": [{"pci": first.pci, "uuid": first.uuid, "minor": 0}]});
    // A manager that was started anew asks again.
    for _ in 0..2 {
        assert_eq!(parsed(&lease(&acquire)?.checked()?.stdout)?, taken);
    }
    let other = lease(&["acquire", "--holder", "vm:build-1", "--ids", "nvidia1"])?;
    assert!(!other.ok() && other.stderr.contains("INVALID_GPU_REQUEST"), "{other:?}");

    // The container sees the virtual machine, and the machine the container.
    let pinned = bench.sharing("pinned", &Spec::new().env("QUILT_GPU_IDS", "nvidia0"))?;
    let said = bench.refused("pinned", &pinned, &["CAPACITY_FULL"])?;
    assert!(!said.stderr.contains("vm:"), "a tenant sees counts only: {said:?}");
    let spec = Spec::new().env("QUILT_GPU_COUNT", "1");
    assert_eq!(bench.sleeper("container", &spec)?.gpus()?, BTreeSet::from([1]));
    let full = lease(&["acquire", "--holder", "vm:build-2", "--count", "1"])?;
    assert_eq!((full.status.code(), full.stderr.contains("CAPACITY_FULL")), (Some(3), true), "{full:?}");
    let kinds: BTreeSet<String> = bench
        .site
        .leases()?
        .iter()
        .map(|lease| format!("{} {} {}", text(lease, "pci"), text(lease, "kind"), text(lease, "holder")))
        .collect();
    let expected = [format!("{} name vm:build-1", first.pci), format!("{} container container", second.pci)];
    assert_eq!(kinds, BTreeSet::from(expected));

    let released = lease(&["release", "--holder", "vm:build-1"])?.checked()?;
    assert_eq!(parsed(&released.stdout)?, json!({"released": [first.pci]}));
    assert!(!lease(&["release", "--holder", "vm:build-1"])?.ok(), "it holds nothing any more");
    bench.runc.delete("container", true)?.checked()?;
    parsed(&lease(&["acquire", "--holder", "vm:build-2", "--count", "2"])?.checked()?.stdout)?;
    bench.refused("none", &bench.sharing("none", &spec)?, &["CAPACITY_FULL"])?;
    lease(&["release", "--holder", "vm:build-2"])?.checked()?;
    assert_eq!(bench.see("after", &spec)?.gpus()?.len(), 1);
    Ok(())
}
