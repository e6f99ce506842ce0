//! Who may ask, in which words, and what is told to those who may not.

use super::*;

fn outcome(spec: &str, environment: bool) -> String {
    let request = RequestPolicy { environment, ..RequestPolicy::default() };
    let config = Config { request, ..Config::default() };
    match read(&contract::json::parse_oci(spec.as_bytes()).unwrap(), &config, None, None, &mut Vec::new()) {
        Ok(Asked::Nothing) => "nothing".into(),
        Ok(Asked::Gpus(r)) => format!("{:?} {} [{}]", r.source, r.count, r.ids.join(" ")),
        Ok(Asked::Reserved { request: Some(r), .. }) => format!("reserved for {}", r.count),
        Ok(Asked::Reserved { .. }) => "reserved".into(),
        Err(r) => format!("{} {}", r.code.name(), r.at),
    }
}

fn pod(annotations: &str) -> String {
    format!(
        "{{\"process\":{{\"env\":[\"QUILT_GPU_COUNT=3\"]}},\"annotations\":{{\"io.kubernetes.cri.container-type\":\"container\",\"io.kubernetes.cri.container-name\":\"main\"{annotations}}}}}"
    )
}

#[test]
fn the_way_to_ask_is_one_that_works_there() {
    let told = |spec: &str, environment| {
        let policy = RequestPolicy { environment, ..RequestPolicy::default() };
        way_to_ask(&contract::json::parse_oci(spec.as_bytes()).unwrap(), &policy)
    };
    assert_eq!(told("{}", true), "QUILT_GPU_COUNT=1 or the annotation quilt.gpu/count");
    assert_eq!(told("{}", false), "the annotation quilt.gpu/count");
    assert_eq!(told(&pod(""), true), "the pod annotation quilt.gpu/count.main");
}

#[test]
fn sources() {
    for (spec, environment, expected) in [
        (r#"{}"#.to_owned(), true, "nothing"),
        (r#"{"process":{"env":["QUILT_GPU_COUNT=1"]}}"#.to_owned(), true, "Environment 1 []"),
        (r#"{"process":{"env":["QUILT_GPU_COUNT=1"]}}"#.to_owned(), false, "nothing"),
        (r#"{"process":{"env":["QUILT_GPU_COUNT=1","QUILT_GPU_COUNT=2"]}}"#.to_owned(), true, "Environment 2 []"),
        (
            r#"{"process":{"env":["quilt_gpu_count=1","QUILT_GPU_MODEL=x","NVIDIA_VISIBLE_DEVICES=all"]}}"#.to_owned(),
            true,
            "nothing",
        ),
        (
            r#"{"process":{"env":["QUILT_GPU_COUNT=1","QUILT_STRICT=true"]}}"#.to_owned(),
            true,
            "STRICT_GPU_CONFLICT /process/env/1",
        ),
        (
            r#"{"process":{"env":["QUILT_GPU_COUNT=5"]},"annotations":{"quilt.gpu/ids":"nvidia0"}}"#.to_owned(),
            true,
            "Annotation 1 [nvidia0]",
        ),
        (
            r#"{"annotations":{"quilt.gpu/cuont":"1"}}"#.to_owned(),
            true,
            "INVALID_GPU_REQUEST /annotations/quilt.gpu~1cuont",
        ),
        (
            r#"{"annotations":{"quilt.gpu/count":1}}"#.to_owned(),
            true,
            "INVALID_GPU_REQUEST /annotations/quilt.gpu~1count",
        ),
        (r#"{"annotations":{"quilt.gpu/contract":"0123456789abcdef0123456789abcdef"}}"#.to_owned(), true, "reserved"),
        (
            r#"{"process":{"env":["QUILT_STRICT=true"]},"annotations":{"quilt.gpu/count":"1"}}"#.to_owned(),
            true,
            "STRICT_GPU_CONFLICT /process/env/0",
        ),
        (
            r#"{"process":{"env":["QUILT_GPU_COUNT=1"]},"annotations":{"quilt.gpu/strict":"true"}}"#.to_owned(),
            true,
            "STRICT_GPU_CONFLICT /annotations/quilt.gpu~1strict",
        ),
        (r#"{"annotations":{"quilt.gpu/strict":"true"}}"#.to_owned(), true, "nothing"),
        (
            r#"{"process":{"env":["QUILT_GPU_COUNT=1","QUILT_GPU_STRICT=true"]}}"#.to_owned(),
            true,
            "STRICT_GPU_CONFLICT /process/env/1",
        ),
        (pod(""), true, "nothing"),
        (pod(r#","quilt.gpu/count.main":"2""#), true, "Annotation 2 []"),
        (pod(r#","quilt.gpu/count.other":"2""#), true, "nothing"),
        (pod(r#","quilt.gpu/count":"2""#), true, "INVALID_GPU_REQUEST /annotations/quilt.gpu~1count"),
        (
            pod(r#","quilt.gpu/contract.main":"0123456789abcdef0123456789abcdef""#),
            true,
            "POLICY /annotations/quilt.gpu~1contract.main",
        ),
        (pod(r#","quilt.gpu/contract":"0123""#), true, "INVALID_GPU_REQUEST /annotations/quilt.gpu~1contract"),
        (pod(r#","grant.quilt.gpu/count":"1""#), true, "INVALID_GPU_REQUEST /annotations/grant.quilt.gpu~1count"),
        (pod(r#","grant.quilt.gpu/contract":"0123456789abcdef0123456789abcdef""#), true, "reserved"),
        (
            pod(r#","grant.quilt.gpu/contract":"0123456789abcdef0123456789abcdef","quilt.gpu/count.main":"2""#),
            true,
            "reserved for 2",
        ),
        (
            pod(r#","grant.quilt.gpu/contract":"0123456789abcdef0123456789abcdef","quilt.gpu/strict.main":"true""#),
            true,
            "STRICT_GPU_CONFLICT /annotations/quilt.gpu~1strict.main",
        ),
        (
            r#"{"annotations":{"io.kubernetes.cri.container-type":"sandbox","quilt.gpu/count":"1"}}"#.to_owned(),
            true,
            "nothing",
        ),
    ] {
        assert_eq!(outcome(&spec, environment), expected, "{spec}");
    }
}

const TOKEN_VALUE: &str = "0123456789abcdef0123456789abcdef";

/// A spec of CRI-O's: with the pod's annotations, and those that are kubelet's.
fn crio(kind: &str, pods: &str, kubelets: &str) -> String {
    let list = kubelets.replace('"', "\\\"");
    let comma = |more: &str| if more.is_empty() { String::new() } else { format!(",{more}") };
    format!(
        r#"{{"annotations":{{"io.kubernetes.cri-o.ContainerType":"{kind}","io.kubernetes.container.name":"main","io.kubernetes.pod.uid":"u-1","io.kubernetes.cri-o.Annotations":"{{{list}}}"{}{}}},"linux":{{"cgroupsPath":"kubepods.slice:crio:66e0"}}}}"#,
        comma(pods),
        comma(kubelets)
    )
}

#[test]
fn crio_passes_on_all_that_a_pod_says() {
    let token = format!(r#""grant.quilt.gpu/contract":"{TOKEN_VALUE}""#);
    let another = r#""grant.quilt.gpu/contract":"ffffffffffffffffffffffffffffffff""#;
    // A pod that plays containerd's sandbox, or another container.
    let posing = r#""io.kubernetes.cri.container-type":"sandbox","io.kubernetes.cri.container-name":"other","io.kubernetes.cri.sandbox-uid":"u-2","quilt.gpu/count.main":"1","quilt.gpu/count.other":"8""#;
    for (spec, expected) in [
        (crio("sandbox", r#""quilt.gpu/count.main":"1""#, ""), "nothing"),
        (crio("container", r#""quilt.gpu/count.main":"2","quilt.gpu/count.side":"1""#, ""), "Annotation 2 []"),
        (crio("container", r#""quilt.gpu/count":"2""#, ""), "INVALID_GPU_REQUEST /annotations/quilt.gpu~1count"),
        (crio("container", posing, ""), "Annotation 1 []"),
        (crio("container", "", &token), "reserved"),
        (crio("container", &token, ""), "POLICY /annotations/grant.quilt.gpu~1contract"),
        (
            crio("container", &token, "").replace(r#""{}""#, &format!(r#""{{{}}}""#, another.replace('"', "\\\""))),
            "POLICY /annotations/grant.quilt.gpu~1contract",
        ),
        (crio("container", &token, "").replace(r#""{}""#, r#""[}""#), "POLICY /annotations/grant.quilt.gpu~1contract"),
    ] {
        assert_eq!(outcome(&spec, true), expected, "{spec}");
    }
    let bytes = crio("container", posing, "");
    let place = in_pod(&contract::json::parse_oci(bytes.as_bytes()).unwrap(), Path::new("/run/c/1/userdata"));
    assert_eq!(place, Some(PodContainer::new("u-1", "main")));
}

/// E15: a container's place in a pod is the engine's word, and where the bundle lies says whose word it is.
#[test]
fn e15_a_pod_is_what_its_engine_attests() {
    let cri = |more: &str| pod(&format!(r#","io.kubernetes.cri.sandbox-uid":"u-2"{more}"#));
    let kubelets = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/1";
    for (spec, bundle, expected) in [
        (cri(""), kubelets, Some("u-2")),
        (cri(""), "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/1/.", Some("u-2")),
        (crio("container", "", ""), "/run/containers/storage/overlay-containers/1/userdata", Some("u-1")),
        (
            crio("container", "", "").replace("kubepods.slice:crio:66e0", "/kubepods/pod1/crio-66e0"),
            "/c/userdata",
            Some("u-1"),
        ),
        // Podman's users write any annotation, and name groups, but not the container's own.
        (crio("container", "", "").replace("kubepods.slice:crio:", "machine.slice:libpod:"), "/c/userdata", None),
        (crio("container", "", "").replace("kubepods.slice:crio:66e0", "/crio-66e0/libpod-66e0"), "/c/userdata", None),
        (crio("container", "", "").replace("kubepods.slice:crio:66e0", ""), "/c/userdata", None),
        // Docker's users write any annotation they like, and name the container too.
        (cri(""), "/run/containerd/io.containerd.runtime.v2.task/moby/k8s.io", None),
        (cri(""), "/run/containerd/io.containerd.runtime.v2.task/moby/userdata", None),
        (cri(""), "/", None),
        (crio("container", "", ""), "/run/containerd/io.containerd.runtime.v2.task/moby/1", None),
        // One engine does not attest in the other's words.
        (crio("container", "", ""), kubelets, None),
        (
            cri(r#","io.kubernetes.cri-o.ContainerType":"container","io.kubernetes.pod.uid":"u-1""#),
            kubelets,
            Some("u-2"),
        ),
        ("{}".to_owned(), kubelets, None),
    ] {
        let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
        assert_eq!(in_pod(&spec, Path::new(bundle)).as_ref().map(|pod| &*pod.uid), expected, "{bundle}");
        assert_eq!(pod_of(&spec, Path::new(bundle)), expected, "{bundle}");
    }
}

#[test]
fn a_bare_key_is_answered_with_the_key_to_write() {
    let help = |name: &str| {
        let text = pod(r#","quilt.gpu/ids":"nvidia0""#).replace("\"main\"", &format!("\"{name}\""));
        let spec = contract::json::parse_oci(text.as_bytes()).unwrap();
        read(&spec, &Config::default(), None, None, &mut Vec::new()).unwrap_err().help
    };
    assert!(help("train").ends_with("name one, quilt.gpu/ids.train"), "{}", help("train"));
    assert!(help(&"n".repeat(51)).contains("cannot be addressed"), "{}", help(&"n".repeat(51)));
}

#[test]
fn a_token_is_never_shown() {
    let env = |entries: &str| format!(r#"{{"process":{{"env":[{entries}]}}}}"#);
    let annotated = |key: &str| format!(r#"{{"annotations":{{"{key}":"{TOKEN_VALUE}"}}}}"#);
    for spec in [
        env(&format!(r#""QUILT_GPU_CONTRACT={TOKEN_VALUE}","QUILT_GPU_COUNT=1""#)),
        env(&format!(r#""QUILT_GPU_CONTRACT={TOKEN_VALUE}0""#)),
        env(&format!(r#""QUILT_GPU_COUNT={TOKEN_VALUE}""#)),
        env(&format!(r#""QUILT_GPU_COUNT=1","QUILT_GPU_WAIT={TOKEN_VALUE}""#)),
        annotated("quilt.gpu/contrakt"),
        annotated("quilt.gpu/count"),
        annotated("grant.quilt.gpu/contrakt"),
        pod(&format!(r#","quilt.gpu/contract":"{TOKEN_VALUE}""#)),
        pod(&format!(r#","quilt.gpu/contract.main":"{TOKEN_VALUE}""#)),
        crio("container", &format!(r#""grant.quilt.gpu/contract":"{TOKEN_VALUE}""#), ""),
    ] {
        let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
        let mut refusal = read(&spec, &Config::default(), None, None, &mut Vec::new()).unwrap_err();
        show_entry(&spec, &mut refusal);
        assert!(!format!("{refusal:?}").contains(TOKEN_VALUE), "{refusal:?}");
    }
}

#[test]
fn mistyped_variables_are_noted_and_entries_shown_whole() {
    let text = r#"{"process":{"env":["QUILT_GPU_COUTN=1","QUILT_GPU_COUNT=all","PATH=/"]}}"#;
    let spec = contract::json::parse_oci(text.as_bytes()).unwrap();
    let notes = unknown_variables(&spec, &RequestPolicy::default());
    assert_eq!(notes.iter().map(|note| note.at.as_str()).collect::<Vec<_>>(), ["/process/env/0"]);
    let mut refusal = read(&spec, &Config::default(), None, None, &mut Vec::new()).unwrap_err();
    show_entry(&spec, &mut refusal);
    assert_eq!(refusal.value, "QUILT_GPU_COUNT=all");
}

#[test]
fn only_the_engines_word_names_a_workload() {
    let containerd = r#""io.kubernetes.cri.container-type":"container","io.kubernetes.cri.container-name":"app","io.kubernetes.cri.sandbox-namespace":"shop""#;
    let crio = r#""io.kubernetes.cri-o.ContainerType":"container","io.kubernetes.container.name":"main","io.kubernetes.pod.namespace":"store""#;
    let task = "/run/containerd/io.containerd.runtime.v2.task";
    for (annotations, bundle, expected) in [
        (containerd.to_owned(), format!("{task}/k8s.io/66e0"), Some(("shop", "app"))),
        // Docker's users write annotations, and its containers lie in a namespace that they do not choose.
        (containerd.to_owned(), format!("{task}/moby/66e0"), None),
        (containerd.to_owned(), "/home/user/k8s.io".to_owned(), None),
        (containerd.to_owned(), format!("{task}/not-k8s.io/66e0"), None),
        (containerd.to_owned(), "/var/lib/containers/storage/overlay-containers/66e0/userdata".to_owned(), None),
        (
            crio.to_owned(),
            "/run/containers/storage/overlay-containers/66e0/userdata".to_owned(),
            Some(("store", "main")),
        ),
        (crio.to_owned(), format!("{task}/k8s.io/66e0"), None),
        // CRI-O hands on what a pod says, containerd's keys among it.
        (format!("{containerd},{crio}"), "/x/userdata".to_owned(), Some(("store", "main"))),
        (r#""io.kubernetes.cri.sandbox-namespace":"shop""#.to_owned(), format!("{task}/k8s.io/66e0"), None),
    ] {
        let spec =
            format!(r#"{{"annotations":{{{annotations}}},"linux":{{"cgroupsPath":"/kubepods/pod1/crio-66e0"}}}}"#);
        let spec = contract::json::parse_oci(spec.as_bytes()).unwrap();
        let found = attested(&spec, Path::new(&bundle)).map(|workload| (workload.namespace, workload.container));
        assert_eq!(found, expected, "{annotations} in {bundle}");
    }
}
