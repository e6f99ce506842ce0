//! A node's whole life with an installer, on a disk. Needs root: what is installed is believed where only root writes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use super::versions::PROGRAMS;
use crate::cli;
use crate::configure::while_it_waits;
use crate::demo::Folder;

const ENGINE: &str = "etc/containerd/config.toml";
const TEXT: &str = r#"version = 2
# ours
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true"#;
const TASKS: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// A node with a containerd, and programs to be installed beside it.
struct Place(Folder);

impl Place {
    fn make() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: an installation is root's");
            return None;
        }
        let place = Self(Folder::make().unwrap());
        place.put(&format!("node/{ENGINE}"), TEXT);
        place.put("node/usr/sbin/runc", "runc");
        fs::create_dir_all(place.path("node/var/lib")).unwrap();
        place.build("one");
        Some(place)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.0.join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    /// Other programs to install.
    fn build(&self, word: &str) {
        PROGRAMS.iter().for_each(|name| self.put(&format!("from/{name}"), &format!("{word} {name}")));
    }

    fn call(&self, words: &[&str]) -> (u8, Value, String) {
        let (root, from) = (self.path("node").display().to_string(), self.path("from").display().to_string());
        let first = ["install-node", "--host-root", &root, "--from", &from, "--format", "json"];
        let args: Vec<OsString> = first.iter().chain(words).map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = cli::run(&args, &mut out, &mut err);
        (exit.code(), serde_json::from_slice(&out).unwrap_or_default(), String::from_utf8(err).unwrap())
    }

    fn fine(&self, words: &[&str]) -> Value {
        let (code, document, err) = self.call(words);
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
        document
    }

    /// Everything on the node: what is a file, a link, or an empty folder.
    fn tree(&self) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        listed(&self.path("node"), &mut tree);
        tree
    }

    /// The version that the link leads to.
    fn current(&self) -> String {
        let link = fs::read_link(self.path("node/opt/quilt-gpu/current")).unwrap();
        link.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn versions(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("node/opt/quilt-gpu/versions")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn listed(path: &Path, tree: &mut BTreeMap<String, String>) {
    let about = fs::symlink_metadata(path).unwrap();
    let what = if about.is_symlink() {
        fs::read_link(path).unwrap().display().to_string()
    } else if about.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| listed(&entry.unwrap().path(), tree));
        String::new()
    } else {
        fs::read_to_string(path).unwrap()
    };
    tree.insert(path.display().to_string(), format!("{:o} {what}", about.permissions().mode()));
}

#[test]
fn a_node_is_told_upgraded_and_as_it_was() {
    let Some(place) = Place::make() else { return };
    let before = place.tree();
    let dry = place.fine(&["--dry-run"]);
    assert_eq!((place.tree() == before, &dry["engine"]), (true, &"containerd".into()));

    let done = place.fine(&[]);
    assert_eq!(done["diffs"], dry["diffs"], "a dry run says what happens");
    assert_eq!(done["restart"], serde_json::json!(["systemctl", "restart", "containerd"]));
    let told = fs::read_to_string(place.path(&format!("node/{ENGINE}"))).unwrap();
    for part in ["\"/opt/quilt-gpu/current/quilt-gpu-runtime\"", "# ours\n", "SystemdCgroup = true"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    for name in PROGRAMS {
        let path = place.path(&format!("node/opt/quilt-gpu/current/{name}"));
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("one {name}"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
    }
    let link = fs::read_link(place.path("node/etc/quilt-gpu/low-level-runtime")).unwrap();
    assert_eq!(link.to_str(), Some("/usr/sbin/runc"));
    let (first, whole) = (place.current(), place.tree());
    assert_eq!(place.fine(&[])["changed"], false, "a second time there is nothing to do");
    assert_eq!(place.tree(), whole);

    // A running spec names the first version's hook: it outlives two upgrades. What nobody names does not.
    place.put(
        &format!("node/{TASKS}/a/config.json"),
        &format!(r#"{{"hooks":{{"path":"/opt/quilt-gpu/versions/{first}/quilt-gpu-hook"}}}}"#),
    );
    place.put(&format!("node/{TASKS}/a/options.json"), r#"{"BinaryName":"/opt/quilt-gpu/current/quilt-gpu-runtime"}"#);
    let mut past = vec![first.clone()];
    for word in ["two", "three", "four"] {
        place.build(word);
        assert_eq!(place.fine(&[])["diffs"], serde_json::json!([]), "{word}: the engine's file stays");
        past.push(place.current());
    }
    let mut left = place.versions();
    left.sort_unstable();
    let mut wanted = vec![past[0].clone(), past[2].clone(), past[3].clone()];
    wanted.sort_unstable();
    assert_eq!(left, wanted, "named, the one before, and the one that counts");

    // Nothing goes while somebody needs it.
    let whole = place.tree();
    let (code, kept, _) = place.call(&["--remove"]);
    assert_eq!((code, kept["used_by"][0].as_str()), (3, Some(format!("/{TASKS}/a/config.json").as_str())));
    assert_eq!(place.tree(), whole);
    fs::remove_dir_all(place.path("node/run")).unwrap();
    place.put("node/run/quilt-gpu/leases/0000:01:00.0@k", "{}");
    assert_eq!(place.call(&["--remove"]).0, 3, "whoever has a GPU needs them");
    fs::remove_dir_all(place.path("node/run")).unwrap();
    assert_eq!(place.fine(&["--remove"])["changed"], true);
    assert_eq!(place.tree(), before);
    assert_eq!(place.fine(&["--remove"])["changed"], false, "a second time there is nothing to remove");
}

#[test]
fn what_does_not_work_leaves_the_node_alone() {
    type Change = fn(&Place);
    let cases: [(Change, &[&str], u8, &str); 12] = [
        (|place| place.put(&format!("node/{ENGINE}"), "version = [\n"), &[], 2, "config.toml:1:12: unclosed array"),
        (
            |place| place.put(&format!("node/{ENGINE}"), "disabled_plugins = [\"cri\"]\n"),
            &[],
            1,
            "the CRI plugin is off",
        ),
        (
            |place| place.put("node/etc/crio/crio.conf", ""),
            &[],
            1,
            "this node has containerd and crio; say with --engine",
        ),
        (
            |place| fs::remove_dir_all(place.path("node/etc")).unwrap(),
            &[],
            1,
            "no containerd, k3s, rke2, microk8s or CRI-O",
        ),
        (|place| fs::remove_file(place.path("from/quilt-gpu-hook")).unwrap(), &[], 2, "from/quilt-gpu-hook"),
        (|_| (), &["--prefix", "opt"], 2, "--prefix takes an absolute path"),
        (|_| (), &["--prefix", "/opt/../etc"], 2, "--prefix takes an absolute path"),
        (|place| place.put("node/opt/quilt-gpu/current", ""), &[], 1, "is not a link to a version of ours"),
        (|_| (), &["--engine", "k3s"], 1, "k3s has not written it yet"),
        (|_| (), &["--restart"], 1, "no systemctl on this node to run `systemctl restart containerd` with; leave out"),
        (|_| (), &["--prefix", "/usr/sbin/runc"], 1, "/usr/sbin/runc is no folder; use another --prefix"),
        (|place| open_to_all(&place.path("node/srv")), &["--prefix", "/srv/quilt"], 1, "use another --prefix"),
    ];
    for (change, words, code, part) in cases {
        let Some(place) = Place::make() else { return };
        change(&place);
        let before = place.tree();
        let (ended, _, err) = place.call(words);
        assert!(ended == code && err.contains(part), "{words:?}: {ended}, {err}");
        assert_eq!(place.tree(), before, "{part}");
    }
}

fn open_to_all(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
}

/// File systems that do not take what is to lie on them, in mounts of this thread's own.
#[test]
fn what_a_file_system_does_not_take_is_told_before() {
    let Some(place) = Place::make() else { return };
    place.put("from/quilt-gpu-runtime", &"x".repeat(1 << 20));
    let cases = [
        ("opt", "noexec", "is mounted noexec"),
        (
            "opt",
            "mode=755,size=64k",
            "/opt/quilt-gpu has room for 64 KiB, and the programs have 1024 KiB; use another --prefix",
        ),
        ("opt", "ro", "/opt/quilt-gpu cannot be written"),
        ("etc/quilt-gpu", "ro", "/etc/quilt-gpu cannot be written"),
        ("etc/containerd/conf.d", "ro", "/etc/containerd/conf.d/quilt-gpu.toml cannot be written"),
        ("var/lib", "ro", "/var/lib/quilt-gpu cannot be written"),
    ];
    place.put(&format!("node/{ENGINE}"), "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n");
    cases.iter().for_each(|(at, ..)| fs::create_dir_all(place.path(&format!("node/{at}"))).unwrap());
    let before = place.tree();
    let judged = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        for (at, option, part) in cases {
            let at = place.path(&format!("node/{at}"));
            let (flags, data) = match option {
                "noexec" => (MsFlags::MS_NOEXEC, "mode=755"),
                "ro" => (MsFlags::MS_RDONLY, "mode=755"),
                size => (MsFlags::empty(), size),
            };
            mount(Some("x"), &at, Some("tmpfs"), flags, Some(data)).unwrap();
            let (code, _, err) = place.call(&[]);
            umount(&at).unwrap();
            assert!(code == 1 && err.contains(part), "{option}: {code}, {err}");
            assert_eq!(place.tree(), before, "{part}");
        }
    };
    std::thread::scope(|scope| scope.spawn(judged).join()).unwrap();
    place.fine(&[]);
}

#[test]
fn a_prefix_leads_below_the_node_and_stays() {
    // A prefix that is a link leads below the node, wherever that lies.
    let Some(place) = Place::make() else { return };
    fs::create_dir_all(place.path("node/srv/real")).unwrap();
    symlink("/srv/real", place.path("node/opt")).unwrap();
    place.fine(&[]);
    assert!(place.path("node/srv/real/quilt-gpu/current/quilt-gpu").exists());
    let (code, _, err) = place.call(&["--prefix", "/usr/quilt"]);
    assert!(code == 1 && err.contains("take that back first"), "{err}");
}

/// Links of a node's folders are the node's: nothing is written outside, and everything is found again.
#[test]
fn folders_that_are_links_lead_below_the_node() {
    let Some(place) = Place::make() else { return };
    for (name, leads) in [("etc/quilt-gpu", "/srv/quilt"), ("var/lib", "/srv/lib")] {
        fs::create_dir_all(place.path(&format!("node{leads}"))).unwrap();
        let _ = fs::remove_dir(place.path(&format!("node/{name}")));
        symlink(leads, place.path(&format!("node/{name}"))).unwrap();
    }
    let before = place.tree();
    place.fine(&[]);
    let link = fs::read_link(place.path("node/srv/quilt/low-level-runtime")).unwrap();
    assert_eq!(link.to_str(), Some("/usr/sbin/runc"));
    assert_eq!(place.fine(&[])["changed"], false);
    place.fine(&["--remove"]);
    assert_eq!(place.tree(), before);
}

#[test]
fn what_others_changed_stays() {
    let Some(place) = Place::make() else { return };
    place.fine(&[]);
    let path = place.path("node/etc/quilt-gpu/config.toml");
    fs::write(&path, fs::read_to_string(&path).unwrap() + "# the operator's\n").unwrap();
    // A program that somebody exchanged is mended by the next call.
    fs::write(place.path("node/opt/quilt-gpu/current/quilt-gpu"), "evil").unwrap();
    assert_eq!(place.fine(&[])["changed"], true);
    assert_eq!(fs::read_to_string(place.path("node/opt/quilt-gpu/current/quilt-gpu")).unwrap(), "one quilt-gpu");
    let removed = place.fine(&["--remove"]);
    assert!(removed["notes"][0].as_str().unwrap().contains("others have changed it"), "{removed}");
    assert!(path.exists() && !place.path("node/opt").exists());
}

/// Two at once: the second one goes on from what the first one left.
#[test]
fn what_counts_is_what_is_there_when_the_turn_comes() {
    let Some(place) = Place::make() else { return };
    place.fine(&[]);
    let (node, first) = (place.path("node"), place.current());
    place.build("two");
    let upgraded = || {
        fs::rename(node.join(format!("opt/quilt-gpu/versions/{first}")), node.join("opt/quilt-gpu/versions/x"))
            .unwrap();
        fs::remove_file(node.join("opt/quilt-gpu/current")).unwrap();
        symlink("versions/x", node.join("opt/quilt-gpu/current")).unwrap();
    };
    while_it_waits(&node, || place.fine(&[]), upgraded);
    let record = node.join("var/lib/quilt-gpu/installed.json");
    let kept: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(kept["previous"], "x", "a start may be on its way by it");
    assert!(place.versions().contains(&"x".to_owned()));

    let told = || fs::read_to_string(node.join(ENGINE)).unwrap();
    let before = told();
    let removed = while_it_waits(&node, || place.fine(&["--remove"]), || fs::remove_file(&record).unwrap());
    assert_eq!((&removed["changed"], told()), (&false.into(), before), "another one's removal was first");
}

/// A stand-in for the node's own command, started in the node's root: it says what it was called with.
#[test]
fn the_engine_is_restarted_by_the_nodes_own_command_and_only_when_due() {
    let Some(place) = Place::make() else { return };
    if !Path::new("/bin/busybox").exists() {
        println!("skipped: no static busybox for a root of its own");
        return;
    }
    fs::create_dir_all(place.path("node/bin")).unwrap();
    for name in ["sh", "systemctl"] {
        fs::copy("/bin/busybox", place.path(&format!("node/bin/{name}"))).unwrap();
    }
    let calls = || fs::read_to_string(place.path("node/calls")).unwrap_or_default();
    let command = |text: &str| {
        fs::remove_file(place.path("node/bin/systemctl")).unwrap();
        place.put("node/bin/systemctl", &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(place.path("node/bin/systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    };
    command("exit 7");
    let (code, _, err) = place.call(&["--restart"]);
    assert!(code == 4 && err.contains("everything is installed, and `systemctl restart containerd` failed"), "{err}");
    command("echo \"$* $SYSTEMD_IGNORE_CHROOT\" >>/calls");
    let again = place.fine(&["--restart"]);
    assert_eq!((&again["restarted"], calls().as_str()), (&true.into(), "restart containerd 1\n"), "it was due");
    assert_eq!(place.fine(&["--restart"])["restarted"], false);
    place.build("two");
    assert_eq!(place.fine(&["--restart"])["restarted"], false, "the link is what the engine was told");
    command("exit 7");
    let (code, _, err) = place.call(&["--remove", "--restart"]);
    let why = "the engine's files are without quilt-gpu, its programs are still there, and `systemctl restart containerd` failed";
    assert!(code == 4 && err.contains(why), "{err}");
    let told = fs::read_to_string(place.path(&format!("node/{ENGINE}"))).unwrap();
    assert!(told == TEXT && place.versions().len() == 2);
    command("echo \"$*\" >>/calls");
    assert_eq!(place.fine(&["--remove", "--restart"])["restarted"], true);
    assert_eq!(calls().lines().count(), 2);
}
