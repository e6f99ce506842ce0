//! What a cluster is told: every manifest held against Kubernetes's own fields, and the admission policy by evaluating
//! its expressions on pods, as the API server does. What a node does with them is in `pods`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

mod killed;
mod schema;
mod yaml;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cel::{Context, Program, Value as Cel};
use integration::{Binaries, Docker, DockerOptions, Result, Rootfs, Scratch, root_for, run};
use serde_json::{Value, json};

const MANIFESTS: [&str; 5] = ["runtime-class", "installer", "remover", "pods", "admission"];
const CLASS: &str = "quilt-gpu";

fn manifest(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../configs/kubernetes/{name}.yaml"));
    yaml::documents(&fs::read_to_string(path).unwrap())
}

fn checked(document: &Value) -> Vec<String> {
    let [api, kind] = ["apiVersion", "kind"].map(|key| document[key].as_str().unwrap_or_default());
    let schema = schema::of(api, kind).unwrap_or_else(|| panic!("{api} has no {kind} here"));
    schema::faults(&schema, document, kind)
}

#[test]
fn every_manifest_has_kubernetes_fields_and_no_others() {
    for name in MANIFESTS {
        let documents = manifest(name);
        assert!(!documents.is_empty(), "{name}");
        for document in documents {
            assert_eq!(checked(&document), [""; 0], "{name}");
        }
    }
    // The check sees what it is there for.
    let mut pod = manifest("pods")[0].clone();
    pod["metadata"]["annotations"]["quilt.gpu/count.train"] = 1.into();
    pod["spec"]["runtimeClass"] = "x".into();
    pod["spec"]["containers"][0].as_object_mut().unwrap().remove("image");
    pod["spec"]["restartPolicy"] = "Sometimes".into();
    assert_eq!(checked(&pod).len(), 4, "{:?}", checked(&pod));
}

#[test]
fn one_name_leads_from_the_pod_to_the_handler_and_one_label_to_the_node() {
    let class = &manifest("runtime-class")[0];
    assert_eq!((&class["metadata"]["name"], &class["handler"]), (&CLASS.into(), &CLASS.into()));
    for pod in manifest("pods") {
        let spec = &pod["spec"];
        assert_eq!(spec["runtimeClassName"], CLASS);
        let lists = ["initContainers", "containers"].map(|key| spec[key].as_array().cloned().unwrap_or_default());
        let names: Vec<String> = lists.concat().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        for (key, value) in pod["metadata"]["annotations"].as_object().unwrap() {
            let (word, container) = key.strip_prefix("quilt.gpu/").unwrap().split_once('.').unwrap();
            assert!(["count", "profile", "wait"].contains(&word) && value.is_string(), "{key}");
            assert!(names.iter().any(|name| name == container), "{key}");
        }
    }
    let set = |name: &str| manifest(name).into_iter().find(|document| document["kind"] == "DaemonSet").unwrap();
    let selector = |set: &Value| set["spec"]["template"]["spec"]["nodeSelector"].clone();
    assert_eq!(selector(&set("installer")), class["scheduling"]["nodeSelector"]);
    assert_ne!(selector(&set("remover")), selector(&set("installer")), "a node is with one of them");
    for name in ["installer", "remover"] {
        let set = set(name);
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&set["spec"]["selector"]["matchLabels"], labels, "{name}");
    }
}

/// Both may do what they have to, and nothing more; their words are the program's.
#[test]
fn the_installer_has_the_least_rights_and_speaks_the_programs_words() -> Result<()> {
    for name in ["installer", "remover"] {
        let documents = manifest(name);
        let set = documents.iter().find(|document| document["kind"] == "DaemonSet").unwrap();
        let spec = &set["spec"]["template"]["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false, "{name}");
        for key in ["hostPID", "hostNetwork", "hostIPC", "runtimeClassName", "serviceAccountName"] {
            assert!(spec[key].is_null(), "{name}: {key}");
        }
        let [first, last] = ["initContainers", "containers"].map(|key| &spec[key][0]);
        for (container, added) in [(first, json!(["SYS_CHROOT"])), (last, Value::Null)] {
            let rights = &container["securityContext"];
            assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]), "{name}");
            assert_eq!(rights["capabilities"]["add"], added, "{name}");
            assert_eq!(
                (&rights["allowPrivilegeEscalation"], &rights["readOnlyRootFilesystem"]),
                (&false.into(), &true.into())
            );
        }
        assert!(last["volumeMounts"].is_null(), "{name}: what stays sees nothing of the node");
        assert_eq!(first["image"], format!("quilt-gpu-installer:{}", env!("CARGO_PKG_VERSION")), "{name}");
        // Everything is right about them, but for the folder that is not here.
        let args: Vec<&str> = first["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let args = args.iter().map(|word| if *word == "/host" { "/nonexistent" } else { word });
        let ran = run(Command::new(Binaries::locate()?.helper).args(args), None, Duration::from_secs(20))?;
        assert!(ran.stderr.contains("--host-root /nonexistent is no folder"), "{name}: {ran:?}");
    }
    Ok(())
}

/// The installer's image, as `make image` has Docker build it, on a base that is at hand.
#[test]
fn the_image_is_built_and_its_program_starts() -> Result<()> {
    let test = "the_image_is_built_and_its_program_starts";
    if !root_for(test) {
        return Ok(());
    }
    let engine = Docker::up(&DockerOptions::default())?;
    let (scratch, binaries) = (Scratch::new()?, Binaries::locate()?);
    engine.import(&Rootfs::debian_like(scratch.join("base"), &binaries.helper)?, "base:1", &[])?;
    let context = scratch.join("context");
    fs::create_dir_all(context.join("usr/bin")).unwrap();
    for program in [&binaries.helper, &binaries.runtime, &binaries.hook] {
        fs::copy(program, context.join("usr/bin").join(program.file_name().unwrap())).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/kubernetes/Dockerfile");
    let mut build = engine.command();
    build.env("DOCKER_BUILDKIT", "0").args(["build", "--build-arg", "BASE=base:1", "--tag", "installer:1", "--file"]);
    run(build.arg(file).arg(&context), None, Duration::from_secs(120))?.checked()?;
    let ran = engine.run(&["--rm", "--network=none", "installer:1", "install-node", "--host-root", "/tmp"])?;
    assert!(ran.stderr.contains("no containerd, k3s, rke2, microk8s or CRI-O is on this node"), "{ran:?}");
    Ok(())
}

/// The policy as the API server carries it out: variables in order, then every validation.
struct Policy {
    variables: Vec<(String, Program)>,
    validations: Vec<(String, Program)>,
}

impl Policy {
    fn read() -> Self {
        let policy = &manifest("admission")[0]["spec"];
        let all = |list: &str, key: &str| -> Vec<(String, Program)> {
            let each = policy[list].as_array().unwrap().iter();
            let compiled = each.map(|one| {
                let text = one["expression"].as_str().unwrap();
                let program = Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
                (one[key].as_str().unwrap().to_owned(), program)
            });
            compiled.collect()
        };
        Self { variables: all("variables", "name"), validations: all("validations", "message") }
    }

    /// The messages of what does not hold. An error refuses, too: that is what `failurePolicy: Fail` says.
    fn refuses(&self, pod: &Value) -> Vec<String> {
        let mut variables = serde_json::Map::new();
        let with = |variables: &serde_json::Map<String, Value>| {
            let mut context = Context::default();
            context.add_variable("object", pod.clone()).unwrap();
            context.add_variable("variables", Value::from(variables.clone())).unwrap();
            context
        };
        for (name, program) in &self.variables {
            let value = program.execute(&with(&variables)).unwrap_or_else(|error| panic!("{name}: {error}: {pod}"));
            variables.insert(name.clone(), value.json().unwrap());
        }
        let context = with(&variables);
        let holds = |program: &Program| matches!(program.execute(&context), Ok(Cel::Bool(true)));
        self.validations.iter().filter(|(_, program)| !holds(program)).map(|(message, _)| message.clone()).collect()
    }
}

/// A tenant's pod with one change: a place, and what stands there.
fn pod(change: &[(&str, Value)]) -> Value {
    let mut pod = json!({
        "metadata": {"name": "tenant", "annotations": {"quilt.gpu/count.train": "1", "other/key": "x"}},
        "spec": {
            "runtimeClassName": "quilt-gpu",
            "containers": [{"name": "train", "image": "x"}, {"name": "side", "image": "x"}],
        },
    });
    for (place, value) in change {
        let mut at = &mut pod;
        for step in place.split('|') {
            at = match step.parse::<usize>() {
                Ok(number) => &mut at[number],
                Err(_) => &mut at[step],
            };
        }
        *at = value.clone();
    }
    pod
}

fn host_path(path: &str) -> Value {
    json!([{"name": "tmp", "emptyDir": {}}, {"name": "v", "hostPath": {"path": path}}])
}

const FOLDERS_OF_THE_NODE: &[&str] = &[
    "",
    "dev",
    "/",
    "//dev",
    "/.",
    "/./dev",
    "/data/../dev",
    "/data/..",
    "/dev",
    "/dev/nvidia0",
    "/sys/fs/cgroup",
    "/run/quilt-gpu",
    "/var/lib",
    "/var/log/",
    "/opt/",
    "/opt/quilt-gpu/current",
    "/etc/quilt-gpu",
    "/usr/local/bin",
    "/usr/",
    "/bin",
    "/sbin/",
    "/lib/systemd/system",
    "/lib64",
    "/boot",
    "/root/.kube",
    "/snap/microk8s",
    "/var/snap/microk8s/current/args",
    "/var/lib/kubelet/pods",
    "/var/lib/rancher/k3s/agent/etc/containerd",
    "/var/lib/containerd",
    "/var/lib/docker/overlay2",
    "/var/lib/containers/storage",
    "/var/lib/crio",
    "/home/",
    "/var/spool/cron",
];

#[test]
fn tenants_are_bound_to_the_class() {
    let policy = Policy::read();
    let limit = |name: &str| json!({"limits": {"cpu": "1", name: "1"}});
    let plain: &[(&str, Value)] =
        &[("metadata|annotations", json!({"a/b": "c"})), ("spec|runtimeClassName", Value::Null)];
    let without_class = |mut pod: Value| {
        pod["spec"].as_object_mut().unwrap().remove("runtimeClassName");
        pod
    };
    for good in [
        pod(&[]),
        without_class(pod(plain)),
        without_class(json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "image": "b"}]}})),
        pod(&[("spec|volumes", host_path("/data/sets"))]),
        pod(&[("spec|volumes", host_path("/devices"))]),
        pod(&[("spec|volumes", host_path("/var/lib/data/.hidden"))]),
        pod(&[("spec|volumes", host_path("/library/..data"))]),
        pod(&[("spec|containers|0|resources", limit("nvidia.com/gpu"))]),
        pod(&[(
            "spec|containers|0|securityContext",
            json!({"privileged": false, "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
        )]),
        pod(&[("spec|hostPID", false.into())]),
        pod(&[
            ("metadata|annotations|quilt.gpu/count.warm", "1".into()),
            ("spec|initContainers", json!([{"name": "warm", "image": "x"}])),
        ]),
        manifest("pods")[0].clone(),
        manifest("pods")[1].clone(),
        manifest("pods")[2].clone(),
    ] {
        assert_eq!(policy.refuses(&good), [""; 0], "{good}");
    }
    let class = "needs runtimeClassName";
    let add = |name: &str| json!({"capabilities": {"add": [name]}});
    for (part, bad) in [
        (class, without_class(pod(&[]))),
        (class, pod(&[("spec|runtimeClassName", "runc".into())])),
        (class, pod(&[plain[0].clone(), ("spec|runtimeClassName", "nvidia".into())])),
        (
            class,
            without_class(pod(&[plain[0].clone(), ("spec|containers|1|resources", limit("nvidia.com/mig-1g.10gb"))])),
        ),
        ("grant.quilt.gpu/", pod(&[("metadata|annotations|grant.quilt.gpu/contract", "x".into())])),
        ("ends with the name", pod(&[("metadata|annotations|quilt.gpu/count", "1".into())])),
        ("ends with the name", pod(&[("metadata|annotations|quilt.gpu/count.trian", "1".into())])),
        ("privileged", pod(&[("spec|containers|1|securityContext", json!({"privileged": true}))])),
        (
            "privileged",
            pod(&[("spec|initContainers", json!([{"name": "i", "securityContext": {"privileged": true}}]))]),
        ),
        (
            "privileged",
            pod(&[("spec|ephemeralContainers", json!([{"name": "e", "securityContext": {"privileged": true}}]))]),
        ),
        ("capabilities", pod(&[("spec|containers|0|securityContext", add("SYS_ADMIN"))])),
        ("capabilities", pod(&[("spec|containers|0|securityContext", add("CAP_SYS_ADMIN"))])),
        ("capabilities", pod(&[("spec|containers|0|securityContext", add("ALL"))])),
        ("the node's processes", pod(&[("spec|hostPID", true.into())])),
        (
            "devices of the node",
            pod(&[("spec|volumes", json!([{"hostPath": {"path": "/mnt/x", "type": "CharDevice"}}]))]),
        ),
    ] {
        let said = policy.refuses(&bad);
        assert!(said.len() == 1 && said[0].contains(part), "{part}: {said:?}: {bad}");
    }
    // Another class is the operator's word, and for pods that ask for nothing.
    let mut named = Policy::read();
    let others = named.variables.iter_mut().find(|(name, _)| name == "otherClasses").unwrap();
    others.1 = Program::compile("['gvisor', 'kata']").unwrap();
    let kata = ("spec|runtimeClassName", Value::from("kata"));
    assert_eq!(named.refuses(&pod(&[plain[0].clone(), kata.clone()])), [""; 0]);
    assert_eq!(named.refuses(&pod(&[kata])).len(), 1);
    for path in FOLDERS_OF_THE_NODE {
        let said = policy.refuses(&pod(&[("spec|volumes", host_path(path))]));
        assert!(said.len() == 1 && said[0].contains("this folder of the node"), "{path}: {said:?}");
    }
    // It is asked about every pod of a tenant's, whenever its annotations could change.
    let [policy, binding] = &manifest("admission")[..] else { panic!("a policy and its binding") };
    assert_eq!(policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"], json!(["CREATE", "UPDATE"]));
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(
        (&policy["spec"]["failurePolicy"], &binding["spec"]["validationActions"][0]),
        (&"Fail".into(), &"Deny".into())
    );
}
