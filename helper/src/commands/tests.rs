//! The command line on a made-up node with four GPUs. Needs root: device nodes, and folders that the runtime trusts.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use contract::key::Key;
use contract::request::{Asked, from_json};
use ledger::audit::Kind;
use ledger::{Holder, Ledger};
use serde_json::{Value, json};
use shim::Setup;

use crate::demo::{Folder, prepare};
use crate::{cli, inventory, record};

mod agent;

/// A node of its own for one test.
struct Node(Folder);

/// What one call gave: exit status, stdout, stderr.
type Answer = (u8, String, String);

impl Node {
    /// None, with the reason on stdout, when this is not root.
    fn make() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: a made-up node needs root");
            return None;
        }
        let folder = Folder::make().unwrap();
        prepare(&folder.0).unwrap();
        Some(Self(folder))
    }

    fn path(&self, name: &str) -> String {
        self.0.0.join(name).to_str().unwrap().to_owned()
    }

    fn call(&self, words: &[&str]) -> Answer {
        let args: Vec<OsString> =
            words.iter().copied().chain(["--config", &self.path("etc/config.toml")]).map(Into::into).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = cli::run(&args, &mut out, &mut err);
        (exit.code(), String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    /// A call that succeeds and answers in JSON.
    fn json(&self, words: &[&str]) -> Value {
        let (code, out, err) = self.call(&[words, &["--format", "json"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{words:?}: {out}");
        serde_json::from_str(&out).unwrap()
    }

    fn prepare(&self, request: &Value) -> (u8, Value) {
        let file = self.path("request.json");
        fs::write(&file, request.to_string()).unwrap();
        let (code, out, _) = self.call(&["contract", "prepare", "--request", &file]);
        (code, serde_json::from_str(&out).unwrap())
    }

    /// The holders of the leases in force, in PCI order.
    fn holders(&self) -> Vec<String> {
        let text = |lease: &Value| lease["holder"].as_str().unwrap().to_owned();
        self.json(&["lease", "list"]).as_array().unwrap().iter().map(text).collect()
    }
}

#[test]
fn a_refresh_stores_what_is_there_and_names_what_changed() {
    let Some(node) = Node::make() else { return };
    let first = node.json(&["inventory", "refresh"]);
    assert_eq!(first["inventory"]["findings"], json!([]));
    assert_eq!(first["inventory"]["gpus"].as_array().unwrap().len(), 4);
    let stored: Value = serde_json::from_slice(&fs::read(node.path("state/inventory.json")).unwrap()).unwrap();
    assert_eq!(stored, first["inventory"]);
    assert_eq!(node.call(&["inventory", "refresh"]).1, "nothing changed: 4 GPUs\n");

    // A file that others could have written counts for nothing, even with the same bytes.
    let stored = node.path("state/inventory.json");
    fs::set_permissions(&stored, fs::Permissions::from_mode(0o666)).unwrap();
    let (code, out, _) = node.call(&["inventory", "refresh"]);
    assert!(code == 0 && out.starts_with("~ stored inventory: not used"), "{out}");
    assert_eq!(fs::metadata(&stored).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(node.call(&["inventory", "refresh"]).1, "nothing changed: 4 GPUs\n");
    fs::set_permissions(node.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::remove_file(&stored).unwrap();
    let (code, _, err) = node.call(&["inventory", "refresh"]);
    assert!(code == 4 && err.contains("will not use"), "{err}");
    fs::set_permissions(node.path("state"), fs::Permissions::from_mode(0o700)).unwrap();

    fs::remove_file(node.path("node/dev/nvidia-uvm")).unwrap();
    let (code, out, _) = node.call(&["inventory", "refresh"]);
    assert!(code == 0 && out.contains("- node /dev/nvidia-uvm") && out.contains("+ finding uvm-missing"), "{out}");
    let (_, out, _) = node.call(&["inventory"]);
    assert!(out.contains("nvidia-modprobe -u"), "{out}");
    let (_, out, _) = node.call(&["inventory", "refresh"]);
    assert!(out.starts_with("nothing changed: 4 GPUs\n") && out.contains("uvm-missing"), "what stands is told: {out}");
}

#[test]
fn a_node_without_gpus_says_so_at_the_first_refresh() {
    let Some(node) = Node::make() else { return };
    fs::remove_dir_all(node.path("node")).unwrap();
    fs::create_dir(node.path("node")).unwrap();
    let (code, out, _) = node.call(&["inventory", "refresh"]);
    assert!(code == 0 && out.starts_with("+ finding no-gpu: no NVIDIA GPU was found"), "{out}");
    let (code, out, _) = node.call(&["inventory", "refresh"]);
    let told = "nothing changed: this node has no NVIDIA GPU\n\nno-gpu (note): ";
    assert!(code == 0 && out.starts_with(told), "zero GPUs are no failure: {out}");
}

/// At boot: whoever waits goes on when the driver is ready, at once when there is no GPU, and with 3 when it does not come.
#[test]
fn a_refresh_waits_for_the_driver_and_makes_nodes_where_it_is_told_to() {
    let Some(node) = Node::make() else { return };
    assert_eq!(node.call(&["inventory", "refresh", "--wait", "600s"]).0, 0, "there is nothing to wait for");
    for wrong in ["30", "s", "-1s", "11m", "1h"] {
        assert_eq!(node.call(&["inventory", "refresh", &format!("--wait={wrong}")]).0, 2, "{wrong}");
    }
    for name in ["nvidia0", "nvidiactl"] {
        fs::remove_file(node.path(&format!("node/dev/{name}"))).unwrap();
    }
    let (code, out, _) = node.call(&["inventory", "refresh", "--wait", "0s"]);
    assert!(code == 3 && out.contains("ctl-missing"), "{code} {out}");
    assert_eq!(node.call(&["inventory", "refresh"]).0, 0, "nobody waited");
    let (_, out, _) = node.call(&["inventory"]);
    assert!(out.contains("not granted: ctl-missing") && !out.contains("usable"), "{out}");

    let (code, out, _) = node.call(&["inventory", "refresh", "--make-nodes", "--wait", "0s"]);
    assert!(code == 0 && out.contains("/dev/nvidia0\n") && out.contains("/dev/char/195:255\n"), "{code} {out}");
    let (_, out, _) = node.call(&["lease", "acquire", "--holder", "vm:a", "--ids", "nvidia0"]);
    assert!(!out.is_empty());
    let (_, out, _) = node.call(&["inventory"]);
    let states: Vec<_> =
        out.lines().filter(|line| line.contains("usable")).map(|line| line.contains("leased")).collect();
    assert_eq!((states.len(), states.iter().filter(|leased| **leased).count()), (4, 1), "{out}");

    let functions = node.path("node/sys/bus/pci/devices");
    fs::remove_dir_all(&functions).unwrap();
    fs::create_dir(&functions).unwrap();
    assert_eq!(node.call(&["inventory", "refresh", "--wait", "600s"]).0, 0, "without a GPU nobody waits");
}

/// A `/dev` that cannot be changed, now or ever, keeps nobody from waiting or from looking at what is there.
#[test]
fn nodes_that_cannot_be_made_are_a_finding_and_waited_for() {
    let Some(node) = Node::make() else { return };
    let (dev, away) = (node.path("node/dev"), node.path("node/away"));
    fs::rename(&dev, &away).unwrap();
    let config = fs::read_to_string(node.path("etc/config.toml")).unwrap();
    fs::write(node.path("etc/config.toml"), format!("{config}\n[policy]\nmake_nodes = true\n")).unwrap();
    let (code, out, _) = node.call(&["inventory", "refresh"]);
    assert!(code == 0 && out.contains("+ finding nodes-not-made: cannot make the device node "), "{code} {out}");
    let (code, _, err) = node.call(&["inventory", "refresh", "--make-nodes"]);
    assert!(code == 4 && err.contains("cannot make the device node "), "who asks is told: {code} {err}");
    assert_eq!(node.call(&["inventory", "refresh", "--wait", "0s"]).0, 3);

    let later = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::rename(away, dev).unwrap();
    });
    let (code, out, _) = node.call(&["inventory", "refresh", "--wait", "60s"]);
    later.join().unwrap();
    assert!(code == 0 && out.contains("- finding nodes-not-made"), "{code} {out}");
}

/// Somebody's program that has a GPU open keeps it from being leased, and no longer than it runs.
#[test]
fn a_gpu_in_use_can_be_leased_when_that_is_over() {
    let Some(node) = Node::make() else { return };
    let process = node.path("node/proc/4711");
    fs::create_dir_all(format!("{process}/fd")).unwrap();
    fs::write(format!("{process}/comm"), "python3\n").unwrap();
    std::os::unix::fs::symlink(node.path("node/dev/nvidia0"), format!("{process}/fd/3")).unwrap();
    assert_eq!(node.call(&["inventory", "refresh"]).0, 0);
    let acquire = |holder: &str| node.call(&["lease", "acquire", "--holder", holder, "--ids", "nvidia0"]);
    let (code, _, err) = acquire("vm:a");
    assert!(code == 3 && err.contains("in use outside any lease") && !err.contains("4711"), "{code} {err}");
    fs::remove_dir_all(&process).unwrap();
    assert_eq!(acquire("vm:a").0, 0);
}

#[test]
fn a_control_plane_reserves_by_its_own_json() {
    let Some(node) = Node::make() else { return };
    let asked = json!({"name": "gpu-demo", "image": "prod", "gpu_count": 1, "gpu_ids": ["nvidia0"], "command": ["/bin/sh", "-lc", "nvidia-smi"]});
    let (code, answer) = node.prepare(&asked);
    assert_eq!((code, answer["token"].as_str().unwrap().len()), (0, 32));
    assert_eq!(answer["contract"]["gpus"][0]["minor"], 0);
    assert_eq!(node.holders(), ["(reserved)"]);

    let (code, answer) = node.prepare(&json!({"gpu_count": 0}));
    assert_eq!((code, &answer["contract"]), (0, &Value::Null));

    let table = [
        (json!({"gpu_count": 2, "gpu_ids": ["nvidia1"]}), 1, 400, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 1, "gpu_ids": []}), 1, 400, "INVALID_GPU_REQUEST"),
        (json!({"gpu_ids": ["nvidia1"]}), 1, 400, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 1, "gpu_ids": [""]}), 1, 400, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 1, "gpu_kinds": "a100"}), 1, 400, "INVALID_GPU_REQUEST"),
        (json!({"gpu_count": 1, "gpu_ids": ["nvidia7"]}), 1, 400, "UNKNOWN_GPU"),
        (json!({"gpu_count": 5}), 1, 400, "UNKNOWN_GPU"),
        (json!({"gpu_count": 1, "strict": true}), 1, 400, "STRICT_GPU_CONFLICT"),
        (json!({"gpu_count": 1, "gpu_capabilities": "video"}), 1, 400, "POLICY"),
        (json!({"gpu_count": 1, "gpu_ids": ["nvidia0"]}), 3, 503, "CAPACITY_FULL"),
        (json!({"gpu_count": 4}), 3, 503, "CAPACITY_FULL"),
    ];
    for (asked, code, status, name) in table {
        let (exit, answer) = node.prepare(&asked);
        assert_eq!(
            (exit, answer["status"].as_i64(), answer["code"].as_str()),
            (code, Some(status), Some(name)),
            "{asked}"
        );
    }
    assert_eq!(node.holders(), ["(reserved)"], "what is refused leaves nothing reserved");
}

#[test]
fn a_reservation_is_given_up_by_its_token() {
    let Some(node) = Node::make() else { return };
    let (_, answer) = node.prepare(&json!({"gpu_count": 2}));
    let token = answer["token"].as_str().unwrap();
    let leases = node.call(&["lease", "list", "--format", "json"]).1;
    assert!(!leases.contains(token), "a token is a secret: {leases}");
    assert_eq!(node.json(&["lease", "release", "--token", token])["released"].as_array().unwrap().len(), 2);
    assert_eq!(node.holders(), [""; 0]);
}

#[test]
fn a_reservation_is_listed_under_its_contract_and_once() {
    let Some(node) = Node::make() else { return };
    let (id, file) = ("0123456789abcdef0123456789abcdef", node.path("request.json"));
    fs::write(&file, r#"{"gpu_count":1}"#).unwrap();
    let words = ["contract", "prepare", "--request", &file, "--id", id];
    let (code, out, _) = node.call(&words);
    assert_eq!(code, 0, "{out}");
    let prepared: Value = serde_json::from_str(&out).unwrap();
    let token = prepared["token"].as_str().unwrap();

    assert_eq!(node.json(&["contract", "show", id]), prepared["contract"]);
    assert_eq!(
        node.json(&["contract", "show"]),
        json!([{ "key": null, "holder": null, "pod": null, "contract": prepared["contract"], "refusal": null }])
    );
    assert_eq!(node.json(&["lease", "list"])[0]["contract"], id);
    for words in [["contract", "show"], ["lease", "list"]] {
        let (_, out, _) = node.call(&words);
        assert!(out.contains("(reserved)") && out.contains(id) && !out.contains(token), "{out}");
    }

    let (code, out, _) = node.call(&words);
    assert_eq!((code, serde_json::from_str::<Value>(&out).unwrap()), (0, prepared), "who asks again gets the same");
    fs::write(&file, r#"{"gpu_count":2}"#).unwrap();
    let (code, out, _) = node.call(&words);
    assert!(code == 1 && out.contains("contract-id") && out.contains("for another request"), "{out}");
    assert_eq!(node.holders(), ["(reserved)"]);
    assert_eq!(node.call(&["lease", "release", "--contract", id]).0, 0);
    assert_eq!(node.holders(), [""; 0]);
    let (code, _, err) = node.call(&["lease", "release", "--token", "zz"]);
    assert!(code == 2 && err.contains("--token \"zz\""), "{err}");
}

#[test]
fn without_unified_memory_there_is_everything_but_compute() {
    let Some(node) = Node::make() else { return };
    fs::remove_file(node.path("node/dev/nvidia-uvm")).unwrap();
    let (code, answer) = node.prepare(&json!({"gpu_count": 1}));
    assert_eq!((code, &answer["code"]), (3, &json!("DRIVER_NOT_READY")), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("nvidia-modprobe -u"), "{answer}");
    assert!(answer["help"].as_str().unwrap().contains("without the capability compute"), "{answer}");
    let (code, answer) = node.prepare(&json!({"gpu_count": 1, "gpu_capabilities": "utility"}));
    assert_eq!(code, 0, "{answer}");
}

#[test]
fn a_gpu_that_changed_its_name_or_number_is_another_gpu() {
    let Some(node) = Node::make() else { return };
    let information = |slot: &str| node.path(&format!("node/proc/driver/nvidia/gpus/{slot}/information"));
    let (_, answer) = node.prepare(&json!({"gpu_count": 1, "gpu_ids": ["nvidia0"]}));
    let gpu = &answer["contract"]["gpus"][0];
    let (slot, uuid) = (gpu["pci"].as_str().unwrap().to_owned(), gpu["uuid"].as_str().unwrap().to_owned());
    let other = node.json(&["inventory"])["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .find(|gpu| gpu["minor"] == 1)
        .map(|gpu| gpu["pci"].as_str().unwrap().to_owned())
        .unwrap();

    // The driver numbers two GPUs the other way round: the number that was leased stays taken.
    let [a, b] = [&slot, &other].map(|slot| fs::read_to_string(information(slot)).unwrap());
    let renumbered = |text: &str, from: u32, to: u32| {
        let changed = text.replace(&format!("Device Minor: \t {from}"), &format!("Device Minor: \t {to}"));
        assert_ne!(changed, text);
        changed
    };
    fs::write(information(&slot), renumbered(&a, 0, 1)).unwrap();
    fs::write(information(&other), renumbered(&b, 1, 0)).unwrap();
    for id in ["nvidia0", "nvidia1"] {
        let (code, answer) = node.prepare(&json!({"gpu_count": 1, "gpu_ids": [id]}));
        assert_eq!((code, &answer["code"]), (3, &json!("CAPACITY_FULL")), "{id}: {answer}");
    }
    let (code, answer) = node.prepare(&json!({"gpu_count": 2}));
    assert_eq!(code, 0, "{answer}");
    let minors: Vec<_> =
        answer["contract"]["gpus"].as_array().unwrap().iter().map(|gpu| gpu["minor"].clone()).collect();
    assert_eq!(minors, [2, 3].map(Value::from).to_vec());

    // Another card in the slot: the old name is nobody's.
    fs::write(information(&slot), a.replace(&uuid, "GPU-00000000-1111-2222-3333-444444444444")).unwrap();
    fs::write(information(&other), b).unwrap();
    let (code, answer) = node.prepare(&json!({"gpu_count": 1, "gpu_ids": [uuid]}));
    assert_eq!((code, &answer["code"], &answer["at"]), (1, &json!("UNKNOWN_GPU"), &json!("/gpu_ids")), "{answer}");
}

#[test]
fn a_name_holds_gpus_until_it_is_released() {
    let Some(node) = Node::make() else { return };
    let taken = node.json(&["lease", "acquire", "--holder", "vm:a", "--ids", "nvidia0,nvidia3"]);
    assert_eq!(taken["gpus"].as_array().unwrap().len(), 2);
    assert_eq!(node.holders(), ["vm:a", "vm:a"]);
    let (code, _, err) = node.call(&["lease", "acquire", "--holder", "vm:b", "--count", "3"]);
    assert!(code == 3 && err.contains("CAPACITY_FULL"), "{err}");
    let (code, _, err) = node.call(&["lease", "acquire", "--holder", "nobody", "--count", "1"]);
    assert!(code == 1 && err.contains("vm:"), "{err}");
    assert_eq!(
        node.json(&["lease", "release", "--holder", "vm:a"])["released"],
        json!(["0000:21:00.0", "0000:31:00.0"])
    );
    let (code, out, err) = node.call(&["lease", "release", "--holder", "vm:a"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("nothing is held under the name vm:a"), "{err}");
    assert_eq!(node.holders(), [""; 0]);
    let about: Vec<Value> =
        node.json(&["audit", "vm:a"]).as_array().unwrap().iter().map(|entry| entry["kind"].clone()).collect();
    assert_eq!(about, ["reserve", "release"]);
}

#[test]
fn a_node_that_lacks_a_part_of_the_driver_grants_nothing_until_it_is_mended() {
    let Some(node) = Node::make() else { return };
    let (library, away) = (node.path("node/usr/lib64/libcuda.so.550.54.15"), node.path("away"));
    fs::rename(&library, &away).unwrap();
    let (code, answer) = node.prepare(&json!({"gpu_count": 1}));
    assert_eq!((code, answer["code"].as_str()), (3, Some("DRIVER_NOT_READY")));
    assert!(answer["message"].as_str().unwrap().contains("libcuda.so.1"), "{answer}");
    fs::rename(&away, &library).unwrap();
    assert_eq!(node.prepare(&json!({"gpu_count": 1})).0, 0);
}

#[test]
fn what_is_reserved_lists_the_driver_files_of_now() {
    let Some(node) = Node::make() else { return };
    assert_eq!(node.call(&["inventory", "refresh"]).0, 0);
    let (library, other) = (node.path("node/usr/lib64/libcuda.so.550.54.15"), node.path("other"));
    fs::copy(&library, &other).unwrap();
    fs::rename(&other, &library).unwrap();
    let (code, answer) = node.prepare(&json!({"gpu_count": 1}));
    assert_eq!(code, 0, "{answer}");
    let libraries = answer["contract"]["libraries"].as_array().unwrap();
    let listed = libraries.iter().find(|listed| listed["host_path"] == *library).unwrap();
    assert_eq!(listed["id"], json!(node::file_id(Path::new(&library)).unwrap()));
    assert_eq!(node.holders().len(), 1, "what was drafted first is given back");

    // What no look mends is refused, and nothing stays reserved.
    fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).unwrap();
    let (code, answer) = node.prepare(&json!({"gpu_count": 1}));
    assert_eq!((code, &answer["code"]), (3, &json!("DRIVER_NOT_READY")), "{answer}");
    assert_eq!(node.holders().len(), 1);
}

/// A container's lease, held by its create: this process.
fn container(node: &Node, id: &str) -> Key {
    let setup = Setup::read(Path::new(&node.path("etc/config.toml")));
    let inventory = inventory::current(&setup).unwrap();
    let Ok(Asked::Gpus(request)) = from_json(br#"{"gpu_count":1}"#) else { panic!("a request") };
    let holder = Holder {
        key: Key::of("/run/x", id),
        container: id.into(),
        state_root: "/run/x".into(),
        low_level: "/usr/bin/runc".into(),
        cgroup: None,
        pod: None,
        owner: None,
        creator: node::process::me(),
    };
    Ledger::open(setup.state_dir()).unwrap().grant(&inventory, &request, &holder).unwrap();
    record::append(&setup, Kind::Create, [("container", id.into()), ("key", holder.key.as_str().into())]).unwrap();
    holder.key
}

#[test]
fn a_container_is_released_by_its_key_and_whoever_names_it_is_told_the_key() {
    let Some(node) = Node::make() else { return };
    let ids = ["aaaa1", "aaaa2"].map(|begin| begin.to_owned() + &"0".repeat(59));
    let keys = ids.each_ref().map(|id| container(&node, id));
    for (name, told) in [
        (&ids[0][..], format!("is a container, which is released by its key: --key {}\n", keys[0])),
        (&ids[1][..12], format!("--key {}\n", keys[1])),
        ("aaa", "nothing is held under the name aaa".to_owned()),
    ] {
        let (code, _, err) = node.call(&["lease", "release", "--holder", name]);
        assert!(code == 1 && err.contains(&told), "{name}: {err}");
    }
    let (_, _, both) = node.call(&["lease", "release", "--holder", "aaaa"]);
    assert!(keys.iter().all(|key| both.contains(key.as_str())) && both.contains(" or "), "{both}");
    assert_eq!(node.holders(), ids);

    let (_, out, _) = node.call(&["lease", "list"]);
    assert!(out.contains("aaaa10000000 ") && out.contains(keys[0].as_str()) && !out.contains(&ids[0]), "{out}");
    let (_, out, _) = node.call(&["audit", "aaaa1"]);
    assert!(out.contains("aaaa10000000") && !out.contains("aaaa2"), "{out}");
    assert_eq!(node.json(&["audit", &ids[1][..12]])[0]["container"], *ids[1]);
    let (code, _, err) = node.call(&["audit", "aaaa"]);
    assert!(code == 1 && ids.iter().all(|id| err.contains(id)), "{err}");
    let (code, out, _) = node.call(&["audit", "aaa"]);
    assert!(code == 0 && out.contains("no record is about \"aaa\""), "{out}");
}

#[test]
fn a_container_that_is_there_is_released_by_force_alone() {
    let Some(node) = Node::make() else { return };
    let key = container(&node, "red");
    let release = |more: &[&str]| node.call(&[&["lease", "release", "--key", key.as_str()], more].concat());
    let (code, _, err) = release(&[]);
    assert!(code == 1 && err.contains("its create still runs") && err.contains("--force"), "{err}");
    assert_eq!(node.holders(), ["red"]);
    let (code, out, _) = release(&["--force"]);
    assert!(code == 0 && out.starts_with("released 0000:"), "{out}");
    assert_eq!(node.holders(), [""; 0]);
    let records = node.json(&["audit", "red"]);
    let end = &records.as_array().unwrap()[1];
    assert_eq!((&end["kind"], &end["message"]), (&json!("release"), &json!("forced by the operator")), "{records}");
    let nobody = "0".repeat(32);
    for words in
        [["--key", key.as_str()], ["--key", &nobody], ["--token", &nobody], ["--contract", "x"], ["--pod", "u"]]
    {
        let (code, out, err) = node.call(&["lease", "release", words[0], words[1], "--format", "table"]);
        assert!((code, out.as_str()) == (1, "") && err.contains("holds nothing"), "{words:?}: {err}");
        assert!(words[0] != "--token" || !err.contains(words[1]), "a token is a secret: {err}");
    }
    assert_eq!(release(&["--force"]).0, 1);
}

#[test]
fn records_cut_off_the_end_are_missed_even_when_the_log_went_on() {
    let Some(node) = Node::make() else { return };
    let hold = |name: &str| node.call(&["lease", "acquire", "--holder", name, "--count", "1"]).0;
    assert_eq!(node.call(&["audit", "--verify-log"]).0, 0);
    assert_eq!(["vm:a", "vm:b", "vm:c"].map(hold), [0; 3]);
    let log = node.path("log/audit.jsonl");
    let first = fs::read_to_string(&log).unwrap().lines().next().unwrap().to_owned() + "\n";
    fs::write(&log, first).unwrap();
    assert_eq!(hold("vm:d"), 0);
    let (code, out, _) = node.call(&["audit", "--verify-log"]);
    assert!(code == 1 && out.contains("2 records that had been written are lost"), "{out}");
    let (code, out, _) = node.call(&["audit", "--verify-log", "--format", "json"]);
    assert!(code == 1 && out.contains("\"lost\": 2"), "{out}");
    // Once it was looked into and moved away, the chain goes on, whole.
    fs::rename(&log, node.path("elsewhere")).unwrap();
    node.call(&["lease", "release", "--holder", "vm:d"]);
    assert_eq!(node.call(&["audit", "--verify-log"]).0, 0);
}

#[test]
fn a_log_that_somebody_changed_is_noticed() {
    let Some(node) = Node::make() else { return };
    node.call(&["lease", "acquire", "--holder", "vm:a", "--count", "1"]);
    node.call(&["lease", "release", "--holder", "vm:a"]);
    assert_eq!(node.call(&["audit", "--verify-log"]).0, 0);
    let log = node.path("log/audit.jsonl");
    let changed = fs::read_to_string(&log).unwrap().replacen("vm:a", "vm:b", 1);
    fs::write(&log, changed).unwrap();
    let (code, out, _) = node.call(&["audit", "--verify-log"]);
    assert!(code == 1 && out.contains("wrong"), "{out}");
}

#[test]
fn contracts_that_are_not_there() {
    let Some(node) = Node::make() else { return };
    assert_eq!(node.call(&["contract", "show"]), (0, "no contract is in force or reserved\n".into(), String::new()));
    assert_eq!(node.call(&["contract", "verify"]).0, 0);
    let (code, _, err) = node.call(&["contract", "show", "0123"]);
    assert!(code == 1 && err.contains("0123"), "{err}");
    let (code, _, err) = node.call(&["contract", "prepare", "--request", "/does/not/exist"]);
    assert!(code == 2 && err.contains("/does/not/exist"), "{err}");
}

#[test]
fn a_check_tells_the_verdict_and_takes_nothing() {
    let Some(node) = Node::make() else { return };
    let spec = |env: &[&str]| json!({"ociVersion": "1.0.2", "process": {"args": ["true"], "cwd": "/", "env": env}, "root": {"path": "rootfs"}, "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}}});
    fs::create_dir_all(node.path("bundle/rootfs")).unwrap();
    node.json(&["inventory", "refresh"]);
    let check = |document: Value, format: &str| {
        fs::write(node.path("bundle/config.json"), document.to_string()).unwrap();
        let (code, out, err) = node.call(&["check", &node.path("bundle"), "--format", format]);
        (code, serde_json::from_str::<Value>(&out).unwrap_or(Value::Null), err)
    };
    let (code, verdict, _) = check(spec(&[]), "json");
    assert_eq!(
        (code, verdict),
        (0, json!({"verdict": "accept", "refusals": [], "notes": [], "grant": null, "patch": []}))
    );

    let (code, verdict, _) = check(spec(&["QUILT_GPU_IDS=nvidia1"]), "json");
    assert_eq!(
        (code, &verdict["verdict"], &verdict["grant"]["gpus"][0]["minor"]),
        (0, &json!("accept"), &json!(1)),
        "{verdict}"
    );
    let (_, patch, _) = check(spec(&["QUILT_GPU_IDS=nvidia1"]), "patch");
    assert_eq!(patch, verdict["patch"]);
    assert_eq!(node.holders(), [""; 0]);

    let (code, verdict, _) = check(spec(&["QUILT_GPU_COUNT=1", "QUILT_STRICT=true"]), "json");
    assert_eq!(
        (code, &verdict["verdict"], &verdict["refusals"][0]["code"]),
        (1, &json!("refuse"), &json!("STRICT_GPU_CONFLICT"))
    );
    fs::remove_file(node.path("bundle/config.json")).unwrap();
    let (code, _, err) = node.call(&["check", &node.path("bundle")]);
    assert!(code == 2 && err.contains("bundle/config.json"), "{err}");
    let (code, _, err) = node.call(&["check", "/does/not/exist"]);
    assert!(code == 2 && err.contains("/does/not/exist"), "{err}");
}
