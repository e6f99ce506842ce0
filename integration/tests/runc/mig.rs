//! MIG instances in real containers: each has its GPU's node and its own two capability nodes, and no other's.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::fs;

use integration::{FakeHost, Result, Seen, Spec, VERSION_2};
use serde_json::{Value, json};

use crate::updates::newer;
use crate::{Bench, RUNC, bytes};

/// The GPU that is cut, by its device minor, and its GPU instances.
const GPU: u64 = 0;
const INSTANCES: [u64; 2] = [1, 2];
const PROFILE: &str = "1g.10gb";

/// Two GPUs, the one with device minor 0 cut in two.
fn cut(test: &str, low_level: &str) -> Result<Option<Bench>> {
    // crun takes no hybrid of both versions of control groups.
    let prepare = if low_level == RUNC { "true" } else { VERSION_2 };
    let bench = Bench::within(test, low_level, prepare)?;
    if let Some(Bench { site, .. }) = &bench {
        INSTANCES.iter().try_for_each(|gi| site.host.make_instance(GPU, *gi))?;
        site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    }
    Ok(bench)
}

/// The stored inventory with something in it changed.
fn inventory(bench: &Bench, change: impl FnOnce(&mut Value)) -> Result<Value> {
    let path = bench.site.quilt.state().join("inventory.json");
    let mut inventory: Value = serde_json::from_slice(&bytes(&path)?).unwrap();
    change(&mut inventory);
    fs::write(&path, inventory.to_string()).unwrap();
    Ok(inventory)
}

/// What NVML would tell of the instances of the cut GPU: procfs tells no profile.
fn told(inventory: &mut Value) {
    for gpu in inventory["gpus"].as_array_mut().unwrap() {
        for part in gpu["partitions"].as_array_mut().unwrap() {
            // A list of what a part has: kind, index, GPU instance, compute instance, profile, UUID, and more.
            part[4] = PROFILE.into();
            part[5] = format!("MIG-0a1b2c3d-2be6-5dec-bf34-{:012x}", part[2].as_u64().unwrap()).into();
        }
    }
}

/// A probe of the cut GPU, the control nodes, and every number near the instances' capabilities.
fn probe() -> [String; 5] {
    let last = INSTANCES.iter().flat_map(|gi| FakeHost::capabilities(GPU, *gi)).max().unwrap() + 40;
    ["quilt-probe", "all", "195:0-255", "511:0-3", &format!("236:0-{last}")].map(str::to_owned)
}

/// What must be open for who has these GPU instances of the cut GPU.
fn expected(instances: &[u64]) -> BTreeSet<String> {
    let caps = instances.iter().flat_map(|gi| FakeHost::capabilities(GPU, *gi));
    let others = ["195:0", "195:255", "511:0", "511:1"].map(str::to_owned);
    caps.map(|cap| format!("236:{cap}")).chain(others).collect()
}

/// The token of a reservation.
fn prepared(bench: &Bench, request: &Value, more: &[&str]) -> Result<String> {
    let file = bench.site.join("request.json");
    fs::write(&file, request.to_string()).unwrap();
    let file = file.to_string_lossy();
    let words = [&["contract", "prepare", "--request", &file], more].concat();
    let answer: Value = serde_json::from_str(&bench.site.quilt.cli(&words)?.checked()?.stdout).unwrap();
    Ok(answer["token"].as_str().unwrap_or_default().to_owned())
}

fn look(bench: &Bench, id: &str) -> Result<Seen> {
    let probe = probe();
    let words: Vec<&str> = probe.iter().map(String::as_str).collect();
    Seen::of(&bench.runc.exec(id, &words)?.checked()?.stdout)
}

fn starts(bench: &Bench, id: &str, spec: &Spec) -> Result<Seen> {
    let bundle = bench.bundle(id, &spec.clone().args(["quilt-probe", "sleep"]))?;
    bench.runc.create(id, &bundle)?.checked()?;
    bench.runc.start(id)?.checked()?;
    look(bench, id)
}

fn two_instances_side_by_side(bench: &Bench) -> Result<()> {
    // Where it runs, the low-level runtime is looked at anew first.
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    inventory(bench, told)?;
    let uuid = |gi: u64| format!("MIG-0a1b2c3d-2be6-5dec-bf34-{gi:012x}");
    let by_profile = Spec::new().annotation("quilt.gpu/count", "1").annotation("quilt.gpu/profile", PROFILE);
    let one = starts(bench, "one", &by_profile)?;
    let two = starts(bench, "two", &by_profile)?;
    for (id, seen, gi) in [("one", one, 1), ("two", two, 2), ("one", look(bench, "one")?, 1)] {
        assert_eq!(seen.open_numbers(), expected(&[gi]), "{id}");
        assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some(&*uuid(gi)), "{id}");
        assert_eq!(seen.env("CUDA_VISIBLE_DEVICES"), Some(&*uuid(gi)), "{id}");
        let caps = FakeHost::capabilities(GPU, gi).map(|cap| format!("/dev/nvidia-caps/nvidia-cap{cap}"));
        let nodes = seen.nodes();
        let there: Vec<&String> = nodes.keys().filter(|path| path.contains("caps")).collect();
        assert_eq!(there, caps.iter().collect::<Vec<_>>(), "{id}");
        assert!(nodes.contains_key("/dev/nvidia0") && !nodes.contains_key("/dev/nvidia1"), "{id}: {nodes:?}");
    }
    let leases = bench.site.leases_on_disk()?;
    let pci = &bench.site.host.by_minor(GPU).unwrap().pci;
    for gi in INSTANCES {
        assert!(leases.iter().any(|name| name.starts_with(&format!("{pci}:{gi}.0@"))), "{leases:?}");
    }
    let list = bench.site.leases()?;
    assert_eq!(list.iter().map(|lease| &lease["gpu"]).collect::<Vec<_>>(), ["nvidia0:0", "nvidia0:1"]);

    let third = bench.sharing("third", &by_profile)?;
    let said = bench.refused("third", &third, &["CAPACITY_FULL", "2 present, 0 free"])?.stderr;
    assert!(!said.contains("MIG-0a1b") && !said.contains(pci.as_str()), "a tenant sees counts only: {said}");
    for (id, key, value, words) in [
        ("whole", "quilt.gpu/ids", "nvidia0", ["GPU_UNAVAILABLE", "is in MIG mode"]),
        ("counted", "quilt.gpu/count", "2", ["GPU_UNAVAILABLE", "1 in MIG mode"]),
        ("named", "quilt.gpu/ids", "0:0", ["UNKNOWN_GPU", "none of that name"]),
        ("mine", "quilt.gpu/ids", "nvidia0:1", ["CAPACITY_FULL", "1 of them taken"]),
    ] {
        bench.refused(id, &bench.sharing(id, &Spec::new().annotation(key, value))?, &words)?;
    }
    // A refusal that may be over has the node looked at anew, and procfs tells no profile.
    inventory(bench, told)?;
    let many = Spec::new().annotation("quilt.gpu/count", "3").annotation("quilt.gpu/profile", PROFILE);
    bench.refused("many", &bench.sharing("many", &many)?, &["UNKNOWN_GPU", "this node has 2"])?;
    // The other GPU is whole.
    assert_eq!(bench.see("other", &Spec::new().env("QUILT_GPU_COUNT", "1"))?.gpus()?, BTreeSet::from([1]));
    bench.runc.delete("one", true)?.checked()?;
    let uuid = uuid(1);
    // A user that is not root may only read the node of a capability, and that is enough. (The probe wants to write.)
    let user = |spec: &mut Value| spec["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    inventory(bench, told)?;
    let again = Spec::new().annotation("quilt.gpu/ids", &uuid).edit(user);
    let again = starts(bench, "again", &again)?;
    assert_eq!(again.env("NVIDIA_VISIBLE_DEVICES"), Some(&*uuid));
    let shut: Vec<String> =
        again.nodes().into_iter().filter(|(_, open)| open == "EACCES").map(|(path, _)| path).collect();
    assert_eq!(shut, FakeHost::capabilities(GPU, 1).map(|cap| format!("/dev/nvidia-caps/nvidia-cap{cap}")));
    for id in ["two", "again"] {
        bench.runc.delete(id, true)?.checked()?;
    }
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}

#[test]
fn two_instances_of_one_gpu_under_runc() -> Result<()> {
    let Some(bench) = cut("two_instances_of_one_gpu_under_runc", RUNC)? else { return Ok(()) };
    two_instances_side_by_side(&bench)
}

#[test]
fn two_instances_of_one_gpu_under_crun() -> Result<()> {
    let test = "two_instances_of_one_gpu_under_crun";
    let Some(crun) = newer(test, "crun-1.21") else { return Ok(()) };
    let Some(bench) = cut(test, &crun.to_string_lossy())? else { return Ok(()) };
    two_instances_side_by_side(&bench)
}

/// Nobody told the profiles: by name alone, and never the GPU instead.
#[test]
fn without_a_profile_by_name_and_without_its_node_not_at_all() -> Result<()> {
    let Some(bench) = cut("without_a_profile_by_name_and_without_its_node_not_at_all", RUNC)? else { return Ok(()) };
    let by_profile = Spec::new().annotation("quilt.gpu/count", "1").annotation("quilt.gpu/profile", PROFILE);
    bench.refused(
        "profile",
        &bench.sharing("profile", &by_profile)?,
        &["UNKNOWN_GPU", "no MIG instances of profile"],
    )?;
    let name = format!("MIG-{}/2/0", bench.site.host.by_minor(GPU).unwrap().uuid);
    let seen = starts(&bench, "named", &Spec::new().annotation("quilt.gpu/ids", &name))?;
    assert_eq!(seen.open_numbers(), expected(&[2]));
    assert_eq!(seen.env("CUDA_VISIBLE_DEVICES"), Some(&*name));
    bench.runc.delete("named", true)?.checked()?;

    let [_, cap] = FakeHost::capabilities(GPU, 2);
    let node = bench.site.host.node(&format!("nvidia-caps/nvidia-cap{cap}"));
    fs::remove_file(&node).unwrap();
    let asking = bench.sharing("missing", &Spec::new().annotation("quilt.gpu/ids", &name))?;
    let mend = format!("nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu{GPU}/mig/gi2/ci0/access");
    bench.refused("missing", &asking, &["DRIVER_NOT_READY", &mend])?;
    let shown = bench.site.quilt.cli(&["inventory"])?.checked()?.stdout;
    assert!(shown.contains("1 of 2 MIG instances") && shown.contains("mknod -m 444"), "{shown}");
    Ok(())
}

/// D21, D23: what the layout is now decides.
#[test]
fn an_instance_that_is_gone_is_not_granted_and_a_new_one_is() -> Result<()> {
    let Some(bench) = cut("an_instance_that_is_gone_is_not_granted_and_a_new_one_is", RUNC)? else { return Ok(()) };
    let name = |gi: u64| format!("MIG-{}/{gi}/0", bench.site.host.by_minor(GPU).unwrap().uuid);
    let asking = |gi: u64| Spec::new().annotation("quilt.gpu/ids", &name(gi));
    let promised =
        |gi: u64| -> Result<String> { prepared(&bench, &json!({"gpu_ids": [name(gi)], "gpu_count": 1}), &[]) };
    let (first, second) = (promised(1)?, promised(2)?);
    bench.site.host.remove_instance(GPU, 2)?;
    bench.site.host.make_instance(GPU, 5)?;
    // Never another instance in its stead.
    let redeeming = bench.sharing("redeeming", &Spec::new().env("QUILT_GPU_CONTRACT", &second))?;
    let answer = bench.runc.create("redeeming", &redeeming)?;
    assert!(!answer.ok() && answer.stderr.contains("CONTRACT_STALE"), "{answer:?}");
    assert!(answer.stderr.contains("MIG instance 2/0 of nvidia0 is gone"), "{answer:?}");
    // Its neighbour's change does not touch the other.
    let seen = starts(&bench, "kept", &Spec::new().env("QUILT_GPU_CONTRACT", &first))?;
    assert_eq!(seen.open_numbers(), expected(&[1]));
    let gone = bench.sharing("gone", &asking(2))?;
    bench.refused("gone", &gone, &["UNKNOWN_GPU"])?;
    let seen = starts(&bench, "new", &asking(5))?;
    assert_eq!(seen.open_numbers(), expected(&[5]));
    bench.runc.delete("new", true)?.checked()?;
    bench.runc.delete("kept", true)?.checked()?;

    // Without the helper nothing is looked at anew: then the refusal says what changed.
    bench.site.host.remove_instance(GPU, 5)?;
    let config = bench.site.quilt.config();
    let text = String::from_utf8(bytes(&config)?).unwrap();
    let helper = text.lines().find(|line| line.starts_with("helper")).unwrap_or_default();
    fs::write(&config, text.replace(helper, "helper = \"/bin/true\"")).unwrap();
    let stale = bench.sharing("stale", &asking(5))?;
    bench.refused("stale", &stale, &["CONTRACT_STALE", "MIG instance gpu0/gi5/ci0 is gone"])?;
    Ok(())
}

/// The nodes that configure and monitor instances are nobody's, whatever the environment says.
#[test]
fn d22_nobody_configures_or_monitors() -> Result<()> {
    let Some(bench) = cut("d22_nobody_configures_or_monitors", RUNC)? else { return Ok(()) };
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    inventory(&bench, told)?;
    let asking = Spec::new().annotation("quilt.gpu/count", "1").annotation("quilt.gpu/profile", PROFILE);
    let monitor = asking.env("NVIDIA_MIG_MONITOR_DEVICES", "all").env("NVIDIA_MIG_CONFIG_DEVICES", "all");
    assert_eq!(starts(&bench, "monitor", &monitor)?.open_numbers(), expected(&[1]));
    let plain = Spec::new().env("NVIDIA_MIG_MONITOR_DEVICES", "all").env("NVIDIA_VISIBLE_DEVICES", "all");
    assert_eq!(starts(&bench, "plain", &plain)?.open_numbers(), BTreeSet::new());
    ["monitor", "plain"].iter().try_for_each(|id| bench.runc.delete(id, true)?.checked().map(drop))
}

/// D22: but for the owners that policy names, in containers with CAP_SYS_ADMIN, whom alone the driver serves through them; to
/// anybody else they stay closed, also by a name of the tenant's own, and by a reservation.
#[test]
fn d22_owners_that_policy_names_configure_and_monitor() -> Result<()> {
    let Some(bench) = cut("d22_owners_that_policy_names_configure_and_monitor", RUNC)? else { return Ok(()) };
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    let config = bench.site.quilt.config();
    let plain = String::from_utf8(bytes(&config)?).unwrap();
    let asking = Spec::new().annotation("quilt.gpu/count", "1").annotation("quilt.gpu/profile", PROFILE);
    let [nobody, monitor, both] = [&[][..], &["236:2"], &["236:1", "236:2"]].map(|list| list.iter());
    let all = "mig_config = [\"red\"]\nmig_monitor = [\"blue\", \"red\"]";
    for (id, keys, capability, more) in [
        ("nobody", "", "CAP_SYS_ADMIN", nobody.clone()),
        ("other", "mig_config = [\"blue\"]\nmig_monitor = [\"blue\"]", "CAP_SYS_ADMIN", nobody.clone()),
        ("monitor", "mig_monitor = [\"red\"]", "CAP_SYS_ADMIN", monitor),
        ("both", all, "CAP_SYS_ADMIN", both.clone()),
        ("reserved", all, "CAP_SYS_ADMIN", both),
        ("without", all, "CAP_NET_RAW", nobody.clone()),
        ("reserved-without", all, "CAP_NET_RAW", nobody),
    ] {
        let root = bench.runc.root();
        let owners = format!("\n[[owners]]\nname = \"red\"\nstate_root = {root:?}\n");
        let policy = plain.replacen("[policy]\n", &format!("[policy]\n{keys}\n"), 1);
        assert!(policy != plain || keys.is_empty(), "{plain}");
        fs::write(&config, policy + &owners).unwrap();
        inventory(&bench, told)?;
        let reserved = || -> Result<Spec> {
            let owned = json!({"gpu_count": 1, "gpu_profile": PROFILE});
            Ok(Spec::new().env("QUILT_GPU_CONTRACT", &prepared(&bench, &owned, &["--owner", "red"])?))
        };
        let spec = if id.starts_with("reserved") { reserved()? } else { asking.clone() };
        let open = starts(&bench, id, &spec.capability(capability))?.open_numbers();
        let given: BTreeSet<String> = more.map(|number| (*number).to_owned()).collect();
        assert_eq!(open, expected(&[1]).union(&given).cloned().collect(), "{id}");
        bench.runc.delete(id, true)?.checked()?;
        let own = bench.sharing(&format!("{id}-own"), &asking.clone().device("/dev/mine", 'c', 236, 1))?;
        bench.refused(&format!("{id}-own"), &own, &["TENANT_GPU_DEVICE", "236:1"])?;
    }
    Ok(())
}

/// NVIDIA's own names of an instance, where the operator honours its variable: that instance, and nothing else of the GPU.
#[test]
fn nvidias_names_of_an_instance() -> Result<()> {
    let Some(bench) = cut("nvidias_names_of_an_instance", RUNC)? else { return Ok(()) };
    let config = bench.site.quilt.config();
    let text = String::from_utf8(bytes(&config)?).unwrap();
    fs::write(&config, text + "\n[request]\nnvidia_visible_devices = \"honour\"\n").unwrap();
    bench.see("first", &Spec::new().env("QUILT_GPU_COUNT", "1"))?;
    inventory(&bench, told)?;
    let index = bench.site.host.gpus.iter().position(|gpu| gpu.minor == GPU).unwrap();
    let old = format!("MIG-{}/2/0", bench.site.host.by_minor(GPU).unwrap().uuid);
    let uuid = "MIG-0a1b2c3d-2be6-5dec-bf34-000000000001";
    let visible = |value: &str| Spec::new().env("NVIDIA_VISIBLE_DEVICES", value);
    for (id, value, instances) in [
        ("position", format!("{index}:1"), &[2][..]),
        ("uuid", uuid.to_owned(), &[1]),
        ("old-uuid", old, &[2]),
        ("two", format!("{index}:0,{index}:1"), &[1, 2]),
        ("two-names-of-one", format!("{index}:0,{uuid}"), &[1]),
    ] {
        assert_eq!(starts(&bench, id, &visible(&value))?.open_numbers(), expected(instances), "{id}");
        bench.runc.delete(id, true)?.checked()?;
    }
    // `all` is every instance, and every GPU that is not cut.
    let all = starts(&bench, "all", &visible("all"))?.open_numbers();
    assert_eq!(all, expected(&INSTANCES).into_iter().chain(["195:1".to_owned()]).collect());
    bench.refused("taken", &bench.sharing("taken", &visible(uuid))?, &["CAPACITY_FULL"])?;
    bench.runc.delete("all", true)?.checked()?;
    for (id, value, words) in [
        ("whole", index.to_string(), ["GPU_UNAVAILABLE", "is in MIG mode"]),
        ("absent", format!("{index}:7"), ["UNKNOWN_GPU", "NVIDIA_VISIBLE_DEVICES"]),
    ] {
        bench.refused(id, &bench.sharing(id, &visible(&value))?, &words)?;
    }
    assert_eq!(bench.site.leases_on_disk()?, BTreeSet::new());
    Ok(())
}
