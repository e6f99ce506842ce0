//! Beyond first fit: containers that wait for a GPU, start without one, share one, or are kept from it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use integration::{Error, PROBE_ALL, QuiltOptions, Result, Seen, Site, Spec};

use crate::Bench;

const WAITS: &str = "[request]\nmax_wait_seconds = 60\n";

fn bench(test: &str, gpus: u64, more: &str) -> Result<Option<Bench>> {
    let options = QuiltOptions { more: more.into(), ..QuiltOptions::default() };
    Bench::on(test, || Site::with(|host| host.gpus(gpus), &options))
}

fn one() -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", "1")
}

impl Bench {
    /// Who stands in the queue, by their numbers.
    fn queue(&self) -> Vec<String> {
        let names = fs::read_dir(self.site.quilt.state().join("leases")).into_iter().flatten().flatten();
        let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| name.starts_with("wait-"));
        names.sort();
        names
    }

    /// Waits until so many stand in the queue.
    fn until_queued(&self, many: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.queue().len() != many {
            if Instant::now() > deadline {
                return Err(Error::new(format!("not {many} in the queue: {:?}", self.queue())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// A create that waits, as a process of its own.
    fn waiting(&self, id: &str, spec: &Spec) -> Result<Child> {
        let bundle = self.sharing(id, spec)?;
        let mut command = self.runc.command(id);
        command.arg("create").arg("--bundle").arg(&bundle.path).arg(id).stdin(Stdio::null()).stderr(Stdio::null());
        command.spawn().map_err(|e| Error::new(format!("{id}: {e}")))
    }
}

#[test]
fn a_container_that_waits_gets_the_gpu_of_one_that_ends_and_the_first_first() -> Result<()> {
    let Some(bench) = bench("a_container_that_waits_gets_the_gpu_of_one_that_ends", 1, WAITS)? else { return Ok(()) };
    bench.sleeper("holder", &one())?;
    let spec = one().env("QUILT_GPU_WAIT", "50s").args(["quilt-probe", "sleep"]);
    let bundles = [bench.bundle("first", &spec)?, bench.bundle("second", &spec)?];
    std::thread::scope(|scope| -> Result<()> {
        let first = scope.spawn(|| bench.runc.create("first", &bundles[0]));
        bench.until_queued(1)?;
        let second = scope.spawn(|| bench.runc.create("second", &bundles[1]));
        bench.until_queued(2)?;
        // Nobody who came later is served before them, and nothing is held by whoever waits.
        assert_eq!(bench.site.leases_on_disk()?.len(), 1);
        bench.runc.delete("holder", true)?.checked()?;
        first.join().expect("first")?.checked()?;
        assert!(!second.is_finished(), "{:?}", bench.queue());
        bench.refused("late", &bench.sharing("late", &one())?, &["CAPACITY_FULL"])?;
        bench.runc.delete("first", true)?.checked()?;
        second.join().expect("second")?.checked()?;
        Ok(())
    })?;
    assert_eq!(bench.queue(), Vec::<String>::new());
    bench.runc.start("second")?.checked()?;
    assert_eq!(bench.look("second")?.gpus()?, BTreeSet::from([0]));
    Ok(())
}

#[test]
fn waiting_ends_and_leaves_nothing() -> Result<()> {
    let Some(bench) = bench("waiting_ends_and_leaves_nothing", 1, WAITS)? else { return Ok(()) };
    bench.sleeper("holder", &one())?;
    let begin = Instant::now();
    let patient = one().env("QUILT_GPU_WAIT", "1s");
    bench.refused("patient", &bench.sharing("patient", &patient)?, &["CAPACITY_FULL", "1 present, 0 free"])?;
    assert!(begin.elapsed() >= Duration::from_secs(1), "it did not wait");
    assert_eq!(bench.queue(), Vec::<String>::new());
    let greedy = one().env("QUILT_GPU_WAIT", "61s");
    bench.refused("greedy", &bench.sharing("greedy", &greedy)?, &["POLICY", "may wait 60 s", "wait 60s or less"])?;
    // Its engine gave up and killed it: who comes next does not stand behind it.
    let mut killed = bench.waiting("killed", &one().env("QUILT_GPU_WAIT", "50s"))?;
    let queued = bench.until_queued(1);
    killed.kill().and_then(|()| killed.wait()).map_err(|e| Error::new(e.to_string()))?;
    queued?;
    assert_eq!(bench.queue().len(), 1, "a killed process takes nothing back");
    bench.runc.delete("holder", true)?.checked()?;
    assert_eq!(bench.see("next", &one())?.gpus()?, BTreeSet::from([0]));
    assert_eq!(bench.queue(), Vec::<String>::new());
    // Not to be waited for by default.
    let Some(default) = Bench::new("nobody_waits_by_default", 1)? else { return Ok(()) };
    default.refused(
        "waits",
        &default.sharing("waits", &patient)?,
        &["POLICY", "nobody waits for GPUs on this node"],
    )?;
    Ok(())
}

#[test]
fn without_a_gpu_the_container_starts_all_the_same_when_it_says_so() -> Result<()> {
    let Some(bench) = bench("without_a_gpu_the_container_starts_all_the_same", 1, WAITS)? else { return Ok(()) };
    let cpu = one().env("QUILT_GPU_FALLBACK", "cpu").env("NVIDIA_VISIBLE_DEVICES", "all");
    assert_eq!(bench.see("free", &cpu)?.gpus()?, BTreeSet::from([0]));
    bench.sleeper("holder", &one())?;
    for (id, spec) in [("full", &cpu), ("waited", &cpu.clone().env("QUILT_GPU_WAIT", "1s"))] {
        let seen = bench.see(id, spec)?;
        assert_eq!(seen.gpus()?, BTreeSet::new(), "{id}");
        assert_eq!(seen.env("NVIDIA_VISIBLE_DEVICES"), Some("void"), "{id}");
        let audit = bench.site.quilt.audit();
        let created = audit.iter().find(|entry| entry["container"] == id && entry["kind"] == "create");
        let notes = created.map(|entry| entry["notes"].to_string()).unwrap_or_default();
        assert!(notes.contains("1 present, 0 free") && notes.contains("; it falls back to no GPU"), "{id}: {notes}");
    }
    // `run` has nobody who watches but the hook, which judges the spec once more.
    let bundle = bench.bundle("run", &cpu.clone().args(PROBE_ALL))?;
    assert_eq!(Seen::of(&bench.runc.run("run", &bundle)?.checked()?.stdout)?.gpus()?, BTreeSet::new());
    // More than the node has is no reason either; a name that nobody has is a mistake.
    assert_eq!(bench.see("many", &cpu.clone().env("QUILT_GPU_COUNT", "9"))?.gpus()?, BTreeSet::new());
    let named = Spec::new().env("QUILT_GPU_IDS", "nvidia7").env("QUILT_GPU_FALLBACK", "cpu");
    bench.refused("named", &bench.sharing("named", &named)?, &["UNKNOWN_GPU"])?;
    let other = one().env("QUILT_GPU_FALLBACK", "h100");
    bench.refused("other", &bench.sharing("other", &other)?, &["UNKNOWN_GPU", "of kind \"h100\""])?;
    let check = bench.site.quilt.cli(&["check", &bench.sharing("dry", &cpu)?.path.to_string_lossy()])?.checked()?;
    assert!(check.stdout.contains("accepted, without GPUs") && check.stdout.contains("note fallback"), "{check:?}");
    Ok(())
}

/// A container of a pod in this namespace, as containerd's CRI writes it, that shares.
fn member(namespace: &str) -> Spec {
    Spec::new()
        .annotation("io.kubernetes.cri.container-type", "container")
        .annotation("io.kubernetes.cri.container-name", "main")
        .annotation("io.kubernetes.cri.sandbox-uid", namespace)
        .annotation("io.kubernetes.cri.sandbox-namespace", namespace)
        .annotation("quilt.gpu/count.main", "1")
        .annotation("quilt.gpu/sharing.main", "owner")
}

#[test]
fn containers_of_one_attested_owner_share_and_no_stranger_joins() -> Result<()> {
    let test = "containers_of_one_attested_owner_share_and_no_stranger_joins";
    let Some(bench) = bench(test, 2, "[request]\nmax_per_owner = 1\n")? else { return Ok(()) };
    // The fixture's first GPU is nvidia1.
    for (id, namespace, gpu) in [("red-1", "red", 1), ("red-2", "red", 1), ("blue-1", "blue", 0), ("red-3", "red", 1)] {
        assert_eq!(bench.sleeper(id, &member(namespace))?.gpus()?, BTreeSet::from([gpu]), "{id}");
    }
    assert_eq!(bench.site.leases_on_disk()?.len(), 4);
    // Everybody else finds the node full, and so does whoever wants one of them alone.
    bench.refused("alone", &bench.sharing("alone", &one())?, &["CAPACITY_FULL"])?;
    bench.refused("green", &bench.sharing("green", &member("green"))?, &["CAPACITY_FULL"])?;
    // Nobody attests these: no pod, and a pod's words from an engine that is not Kubernetes'.
    let words = one().env("QUILT_GPU_SHARING", "owner");
    bench.refused("words", &bench.sharing("words", &words)?, &["POLICY", "nobody says whose this one is"])?;
    let forged = member("red").cgroup(&bench.cgroup("forged"));
    let moby = integration::Bundle::sharing(bench.site.join("moby/forged"), &forged, &bench.rootfs)?;
    bench.refused("forged", &moby, &["POLICY", "nobody says whose this one is"])?;
    // It is theirs until the last of them is gone.
    for id in ["red-1", "red-2"] {
        bench.runc.delete(id, true)?.checked()?;
        bench.refused("early", &bench.sharing("early", &one())?, &["CAPACITY_FULL"])?;
    }
    assert_eq!(bench.look("red-3")?.gpus()?, BTreeSet::from([1]));
    bench.runc.delete("red-3", true)?.checked()?;
    assert_eq!(bench.see("late", &one())?.gpus()?, BTreeSet::from([1]));
    let more = member("blue").annotation("quilt.gpu/sharing.main", "exclusive");
    bench.refused("more", &bench.sharing("more", &more)?, &["POLICY", "may have 1 together"])?;
    Ok(())
}

/// With the node's pids nothing ends a container's processes but its cgroup, and who is root on the node moves one out.
#[test]
fn a_gpu_drains_while_a_process_outside_the_cgroup_has_it_open() -> Result<()> {
    let test = "a_gpu_drains_while_a_process_outside_the_cgroup_has_it_open";
    let Some(bench) = bench(test, 1, "")? else { return Ok(()) };
    let spec = one().edit(|spec| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut();
        namespaces.into_iter().for_each(|list| list.retain(|namespace| namespace["type"] != "pid"));
    });
    bench.sleeper("left", &spec)?;
    let pid = bench.runc.state("left")?.map(|state| state["pid"].to_string()).unwrap_or_default();
    let mut outside = Command::new("nsenter");
    outside.arg(format!("--mount=/proc/{pid}/ns/mnt")).args(["/usr/bin/quilt-probe", "hold", "/dev/nvidia0"]);
    let mut outside = outside.stdin(Stdio::null()).spawn().map_err(|e| Error::new(e.to_string()))?;
    let judged = drains(&bench, outside.id());
    outside.kill().and_then(|()| outside.wait()).map_err(|e| Error::new(e.to_string()))?;
    judged?;
    assert_eq!(bench.see("next", &one())?.gpus()?, BTreeSet::from([0]));
    assert_eq!(bench.site.leases()?.len(), 0);
    Ok(())
}

fn drains(bench: &Bench, pid: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let files = format!("/proc/{pid}/fd");
    let holds = || {
        fs::read_dir(&files)
            .into_iter()
            .flatten()
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == Path::new("/dev/nvidia0")))
    };
    while !holds() {
        if Instant::now() > deadline {
            return Err(Error::new(format!("process {pid} does not have the node open")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.runc.delete("left", true)?.checked()?;
    let leases = bench.site.leases()?;
    assert_eq!(leases.len(), 1, "{leases:?}");
    let because = leases[0]["because"].as_str().unwrap_or_default();
    assert_eq!(leases[0]["kind"], "draining", "{leases:?}");
    assert!(because.contains(&format!("its process {pid}, which left its cgroup, has the GPU open")), "{because}");
    bench.refused("early", &bench.sharing("early", &one())?, &["CAPACITY_FULL"])?;
    Ok(())
}

#[test]
fn the_operator_names_owners_and_keeps_gpus_back() -> Result<()> {
    let Some(mut bench) = bench("the_operator_names_owners_and_keeps_gpus_back", 3, "")? else { return Ok(()) };
    let config = bench.site.quilt.config();
    let text = fs::read_to_string(&config).map_err(|e| Error::new(e.to_string()))?;
    let root = bench.runc.root();
    let more = format!(
        "\n[capacity]\ngpus = 2\n[[owners]]\nname = \"team\"\nstate_root = {root:?}\n\
         [[internal]]\ngpus = [\"nvidia1\"]\nonly = [\"team\"]\n"
    );
    fs::write(&config, text + &more).map_err(|e| Error::new(e.to_string()))?;
    let shares = one().env("QUILT_GPU_SHARING", "owner");
    for id in ["one", "two"] {
        assert_eq!(bench.sleeper(id, &shares)?.gpus()?, BTreeSet::from([1]), "{id}");
    }
    // In order of the bus: nvidia1, nvidia2, nvidia0.
    let beyond = Spec::new().env("QUILT_GPU_IDS", "nvidia0");
    bench.refused("beyond", &bench.sharing("beyond", &beyond)?, &["POLICY", "beyond the number of GPUs"])?;
    // Under another folder of states nobody is the team.
    let stranger = bench.site.quilt.runc(bench.site.join("stranger"))?;
    let team = std::mem::replace(&mut bench.runc, stranger);
    let internal = Spec::new().env("QUILT_GPU_IDS", "nvidia1");
    bench.refused("internal", &bench.sharing("internal", &internal)?, &["POLICY", "kept for workloads"])?;
    bench.refused("sharer", &bench.sharing("sharer", &shares)?, &["POLICY", "nobody says whose"])?;
    assert_eq!(bench.see("other", &one())?.gpus()?, BTreeSet::from([2]));
    drop(team);
    Ok(())
}
