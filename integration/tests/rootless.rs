//! Containers of a user without root, with and without the node's broker: what they get, what the node's record says of it, and
//! that it ends with them. No device filter holds such a container, and nothing here says that one does.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use integration::{Bundle, PROBE_ALL, QuiltOptions, Ran, Result, Rootfs, Seen, Site, Spec, root_for, run, say};
use serde_json::{Value, json};

const PROBE: &str = env!("CARGO_BIN_EXE_quilt-probe");
const LIMIT: Duration = Duration::from_secs(60);
/// Users that own nothing on the machine.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;
/// The one who is allowed by number.
const CAROL: u32 = BOB + 1;

/// A node whose broker lets Alice have GPUs, three at most.
struct Bench {
    broker: Option<Child>,
    site: Site,
    rootfs: Rootfs,
    /// The probe, where every user can run it.
    probe: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(broker) = &mut self.broker {
            let _ = broker.kill();
            let _ = broker.wait();
        }
    }
}

impl Bench {
    fn new(test: &str) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let site = Site::with(|host| host.gpus(4), &QuiltOptions::default())?;
        let config = site.quilt.config();
        let text = fs::read_to_string(&config).unwrap();
        let broker = format!(
            "[broker]\nsocket = {:?}\nallow = [\"alice\", \"uid:{}\"]\n[[owners]]\nname = \"alice\"\nuid = {ALICE}\n",
            site.join("broker.sock"),
            CAROL
        );
        fs::write(&config, format!("{text}\n[request]\nmax_per_owner = 3\n\n{broker}")).unwrap();
        site.quilt.cli(&["inventory", "refresh"])?.checked()?;
        // As it is on a node: nobody but root reads what others have.
        for folder in [site.quilt.state(), site.quilt.folder.join("log")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        let rootfs = Rootfs::debian_like(site.join("debian"), Path::new(PROBE))?;
        say(format_args!("{test}: rootless runc, {}", site.files));
        let probe = site.join("probe");
        fs::copy(PROBE, &probe).unwrap();
        let mut bench = Self { broker: None, site, rootfs, probe };
        for uid in [ALICE, BOB, CAROL] {
            bench.own(&bench.home(uid), uid, 0o700);
        }
        bench.begin();
        Ok(Some(bench))
    }

    fn socket(&self) -> PathBuf {
        self.site.join("broker.sock")
    }

    fn begin(&mut self) {
        let log = fs::File::create(self.site.join("broker.log")).unwrap();
        let mut command = self.site.quilt.command();
        command.args(["broker", "--socket"]).arg(self.socket()).stdin(Stdio::null()).stderr(log);
        self.broker = Some(command.spawn().unwrap());
        let deadline = Instant::now() + LIMIT;
        while UnixStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < deadline, "{}", fs::read_to_string(self.site.join("broker.log")).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(&mut self) {
        let mut broker = self.broker.take().unwrap();
        broker.kill().unwrap();
        broker.wait().unwrap();
    }

    fn home(&self, uid: u32) -> PathBuf {
        self.site.join(format!("home-{uid}"))
    }

    fn own(&self, path: &Path, uid: u32, mode: u32) {
        fs::create_dir_all(path).unwrap();
        chown(path, Some(uid), Some(uid)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A program of a user's, as their session has it.
    fn by(&self, uid: u32, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let (key, value) = self.site.quilt.env();
        command
            .env_clear()
            .env(key, value)
            .env("XDG_RUNTIME_DIR", self.home(uid))
            .env("PATH", "/usr/sbin:/usr/bin:/bin");
        command.uid(uid).gid(uid).current_dir("/");
        command
    }

    fn runtime(&self, uid: u32, args: &[&str]) -> Result<Ran> {
        let runtime = self.site.quilt.runtime();
        run(self.by(uid, runtime).args(args), None, LIMIT)
    }

    /// A bundle of a user's, with a user namespace that makes them its root.
    fn bundle(&self, uid: u32, id: &str, spec: &Spec) -> Result<Bundle> {
        let bundle = Bundle::new(self.home(uid).join(id), &rootless(spec, uid), &self.rootfs)?;
        let to = format!("{uid}:{uid}");
        run(Command::new("chown").args(["-R", "-h", &to]).arg(&bundle.path), None, LIMIT)?.checked()?;
        Ok(bundle)
    }

    /// A container that sleeps.
    fn sleeper(&self, uid: u32, id: &str, spec: &Spec) -> Result<Bundle> {
        let bundle = self.bundle(uid, id, &spec.clone().args(["quilt-probe", "sleep"]))?;
        self.create(uid, id, &bundle)?.checked()?;
        self.runtime(uid, &["start", id])?.checked()?;
        Ok(bundle)
    }

    fn create(&self, uid: u32, id: &str, bundle: &Bundle) -> Result<Ran> {
        let path = bundle.path.to_string_lossy();
        self.runtime(uid, &["create", "--bundle", &path, id])
    }

    /// What the kernel and the operator say of who has what: owner, and state root.
    fn held(&self) -> Result<Vec<(String, String)>> {
        let text = |lease: &Value, key: &str| lease[key].as_str().unwrap_or_default().to_owned();
        Ok(self.site.leases()?.iter().map(|lease| (text(lease, "owner"), text(lease, "holder"))).collect())
    }

    /// Says something to the broker as a user, byte for byte; what it answers.
    fn says(&self, uid: u32, question: &str) -> Value {
        let socket = self.socket();
        let mut command = self.by(uid, &self.probe);
        command.arg("say").args([socket.as_os_str(), question.as_ref()]);
        let ran = run(&mut command, None, LIMIT).unwrap().checked().unwrap();
        serde_json::from_str(ran.stdout.trim()).unwrap()
    }
}

/// What a user without root can start: no cgroup, no groups but one, nobody else's ids.
fn rootless(spec: &Spec, uid: u32) -> Spec {
    spec.clone().user_namespace(uid, 1).edit(|spec| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["destination"] != "/sys/fs/cgroup");
        for mount in mounts.iter_mut() {
            if let Some(options) = mount["options"].as_array_mut() {
                options.retain(|option| option != "gid=5");
            }
        }
        spec["linux"].as_object_mut().unwrap().remove("resources");
    })
}

fn one() -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", "1")
}

fn refused(answer: &Value) -> &str {
    answer["refusal"]["rule"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_user_without_root_has_what_the_broker_gave_as_long_as_the_container_lives() -> Result<()> {
    let Some(mut bench) = Bench::new("a_user_without_root")? else { return Ok(()) };
    let sleeping = one().args(["quilt-probe", "sleep"]);
    let bundle = bench.sleeper(ALICE, "first", &one())?;
    assert_eq!(bench.held()?, [("alice".to_owned(), "first".to_owned())]);
    let seen = bench.runtime(ALICE, &[&["exec", "first"][..], &PROBE_ALL].concat())?.checked()?.stdout;
    assert_eq!(Seen::of(&seen)?.gpus_by_node()?.len(), 1, "the granted one opens, and no other is there");
    assert!(Seen::of(&seen)?.library("libcuda.so.1").is_ok());
    // The spec promises no filter that nobody enforces.
    let made = bundle.read()?;
    assert_eq!(made.pointer("/linux/resources"), None, "{made}");
    // What happened stands in the node's log, with the user.
    let audit = bench.site.quilt.audit();
    let grant = audit.iter().find(|entry| entry["kind"] == "create").unwrap();
    let root = format!("uid:{ALICE}:{}", bench.home(ALICE).join("runc").display());
    assert_eq!((&grant["owner"], &grant["state_root"]), (&json!("alice"), &json!(root)), "{grant}");
    assert_eq!(grant["notes"][0]["rule"], "no-device-filter");

    // Who has a GPU already, and who is allowed none.
    for (id, count, code) in [("more", "3", "owner-ceiling"), ("two", "2", "fine")] {
        let bundle = bench.bundle(ALICE, id, &Spec::new().env("QUILT_GPU_COUNT", count))?;
        let ran = bench.create(ALICE, id, &bundle)?;
        assert_eq!(ran.ok(), code == "fine", "{id}: {}", ran.stderr);
    }
    let bobs = bench.bundle(BOB, "first", &one())?;
    let ran = bench.create(BOB, "first", &bobs)?;
    assert!(ran.stderr.contains(&format!("add \"uid:{BOB}\" to [broker] allow")), "{}", ran.stderr);
    assert_eq!(bench.held()?.len(), 3);

    // Everything ends with `delete`, and the spec is the user's again.
    bench.runtime(ALICE, &["delete", "--force", "two"])?.checked()?;
    bench.runtime(ALICE, &["delete", "--force", "first"])?.checked()?;
    assert_eq!(bench.held()?, []);
    assert!(bundle.read()? == *rootless(&sleeping, ALICE).json());
    assert_eq!(bench.site.quilt.audit().iter().filter(|entry| entry["kind"] == "release").count(), 2);

    // A container whose runtime nobody asks any more: its lease goes with its process.
    bench.sleeper(ALICE, "lost", &one())?;
    bench.stop();
    bench.runtime(ALICE, &["delete", "--force", "lost"])?.checked()?;
    assert_eq!(bench.held()?, []);
    assert!(bench.site.quilt.audit().iter().any(|entry| entry["kind"] == "reclaim"));

    // Nobody answers: a GPU is refused with the way out, and who asks for none starts.
    let bundle = bench.bundle(ALICE, "alone", &one())?;
    let ran = bench.create(ALICE, "alone", &bundle)?;
    assert!(ran.stderr.contains("quilt-gpu-broker.socket"), "{}", ran.stderr);
    bench.sleeper(ALICE, "without", &Spec::new())?;
    bench.runtime(ALICE, &["delete", "--force", "without"])?.checked()?;
    Ok(())
}

#[test]
fn a_run_gives_back_by_its_hooks() -> Result<()> {
    let Some(bench) = Bench::new("a_run_gives_back")? else { return Ok(()) };
    let bundle = bench.bundle(ALICE, "ran", &one().args(PROBE_ALL))?;
    let path = bundle.path.to_string_lossy();
    let ran = bench.runtime(ALICE, &["run", "--bundle", &path, "ran"])?.checked()?;
    assert_eq!(Seen::of(&ran.stdout)?.gpus_by_node()?.len(), 1);
    assert_eq!(bench.site.leases_on_disk()?.len(), 0);
    Ok(())
}

/// Whoever connects is what the kernel says, and has what is theirs.
#[test]
fn no_user_speaks_for_another_and_none_keeps_the_others_out() -> Result<()> {
    let Some(bench) = Bench::new("no_user_speaks_for_another")? else { return Ok(()) };
    bench.sleeper(ALICE, "c", &one())?;
    // The very key that Alice's runtime uses.
    let own = fs::read_dir(bench.home(ALICE).join("quilt-gpu/contracts")).unwrap().next().unwrap().unwrap();
    let key = own.file_name().to_string_lossy().trim_end_matches(".json").to_owned();
    let init = fs::read_to_string(bench.home(ALICE).join("runc/c/state.json")).unwrap();
    let init: Value = serde_json::from_str(&init).unwrap();
    let of = |pid: u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse::<u64>().unwrap()
    };
    let started = |pid: u64| json!({"ask": "started", "key": key, "pid": pid, "start": of(pid)}).to_string();
    let release = json!({"ask": "release", "key": key}).to_string();
    let init = init["init_process_pid"].as_u64().unwrap();

    // Somebody else's, by its key: nothing of it is theirs.
    assert_eq!(bench.says(CAROL, &release), json!({"released": true}));
    assert_eq!(refused(&bench.says(CAROL, &started(init))), "broker-process");
    assert_eq!(refused(&bench.says(BOB, &release)), "broker-user", "who may have nothing is not heard");
    // A process that is not the container's user's would make leases live on, and others' containers count as with a GPU.
    assert_eq!(refused(&bench.says(ALICE, &started(1))), "broker-process");
    assert_eq!(bench.says(ALICE, &started(init)), json!({"started": init}));
    assert_eq!(bench.held()?.len(), 1);

    // Who is not who they say: there is no word for it.
    let grant = |extra: Value| {
        let mut question =
            json!({"ask": "grant", "key": "0".repeat(32), "container": "x", "state_root": "/run", "request": {}});
        question.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        question.to_string()
    };
    for odd in [grant(json!({"uid": 0})), grant(json!({"owner": "alice"})), "{".repeat(70_000), String::new()] {
        assert_eq!(bench.says(ALICE, &odd)["refusal"]["code"], "INVALID_GPU_REQUEST");
    }

    // Root in a container with the socket is nobody either.
    let mut stream = UnixStream::connect(bench.socket()).unwrap();
    let request = json!({"source": "annotation", "count": 1, "ids": [], "kind": null, "profile": null, "capabilities": "compute"});
    let request = fs::read_to_string(bench.home(ALICE).join("quilt-gpu/contracts").join(own.file_name()))
        .map(|text| serde_json::from_str::<Value>(&text).unwrap()["request"].clone())
        .unwrap_or(request);
    // It is answered before it is heard.
    let _ = stream.write_all(grant(json!({"request": request})).as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert_eq!(refused(&serde_json::from_str(&answer).unwrap()), "broker-root");

    // Slow ones: Carol holds all that he may, a byte at a time, and Alice is served.
    let mut slow = bench.by(CAROL, &bench.probe);
    let mut slow = slow.arg("crowd").arg(bench.socket()).arg("40").stdout(Stdio::piped()).spawn().unwrap();
    let mut there = [0_u8; 5];
    slow.stdout.as_mut().unwrap().read_exact(&mut there).unwrap();
    let served = bench.sleeper(ALICE, "d", &one());
    let busy = bench.says(CAROL, &release);
    slow.kill().unwrap();
    slow.wait().unwrap();
    served?;
    assert_eq!(refused(&busy), "broker-busy");
    assert_eq!(bench.held()?.len(), 2);
    for id in ["c", "d"] {
        bench.runtime(ALICE, &["delete", "--force", id])?.checked()?;
    }
    assert_eq!(bench.held()?, []);
    Ok(())
}

/// Debian 12's Podman as its users have it. Their subordinate ids are files in a mount namespace of this test's own.
const AS_USER: &str = r#"
set -e
etc=$1 uid=$2; shift 2
cp /etc/passwd /etc/group "$etc"
echo "user$uid:x:$uid:$uid::/:/bin/sh" >>"$etc/passwd"
echo "user$uid:x:$uid:" >>"$etc/group"
echo "user$uid:300000:65536" >"$etc/subuid"
cp "$etc/subuid" "$etc/subgid"
for file in passwd group subuid subgid; do mount --bind "$etc/$file" "/etc/$file"; done
exec setpriv --reuid "$uid" --regid "$uid" --init-groups "$@"
"#;

#[test]
fn rootless_podman_gets_its_gpu_and_gives_it_back() -> Result<()> {
    let Some(bench) = Bench::new("rootless_podman")? else { return Ok(()) };
    if ["podman", "newuidmap", "setpriv"].iter().any(|name| !Path::new("/usr/bin").join(name).exists())
        || !Path::new("/etc/subuid").exists()
    {
        say(format_args!("rootless_podman: skipped: podman or newuidmap or /etc/subuid is not there"));
        return Ok(());
    }
    let etc = bench.site.join("etc");
    fs::create_dir(&etc).unwrap();
    let rootfs = bench.home(ALICE).join("image");
    run(Command::new("cp").arg("-a").arg(&bench.rootfs.path).arg(&rootfs), None, LIMIT)?.checked()?;
    let owner = format!("{ALICE}:{ALICE}");
    run(Command::new("chown").args(["-R", "-h", &owner]).arg(&rootfs), None, LIMIT)?.checked()?;
    let podman = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", AS_USER, "sh"]);
        command.arg(&etc).arg(ALICE.to_string());
        command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.arg(format!("HOME={}", bench.home(ALICE).display()));
        command.arg(format!("XDG_RUNTIME_DIR={}", bench.home(ALICE).display()));
        command.args(["podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
        command.arg("--runtime").arg(bench.site.quilt.runtime()).args(words).current_dir("/");
        run(&mut command, None, LIMIT)
    };
    let image = rootfs.to_string_lossy().into_owned();
    let container = ["--network", "none", "--env", "QUILT_GPU_COUNT=1", "--rootfs", &image];
    let ran = podman(&[&["run", "--rm"][..], &container, &PROBE_ALL].concat())?.checked()?;
    assert_eq!(Seen::of(&ran.stdout)?.gpus_by_node()?.len(), 1);
    assert_eq!(bench.site.leases_on_disk()?.len(), 0);
    // The user that the kernel attests is the one outside the namespace.
    let grant = bench.site.quilt.audit().into_iter().find(|entry| entry["kind"] == "create").unwrap();
    assert_eq!(grant["owner"], "alice", "{grant}");
    let named = [&["run", "--detach", "--name", "sleeper"][..], &container, &["quilt-probe", "sleep"]].concat();
    podman(&named)?.checked()?;
    assert_eq!(bench.held()?.len(), 1);
    podman(&["rm", "--force", "--time", "0", "sleeper"])?.checked()?;
    assert_eq!(bench.held()?, []);
    Ok(())
}
