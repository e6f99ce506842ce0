use super::*;

#[test]
fn the_engine_names_the_container_and_nobody_else_does() {
    let id = "a2".repeat(32);
    let upper = id.to_uppercase();
    let cases = [
        (format!("/libpod_parent/libpod-{id}"), true),
        (format!("/mine/libpod-payload-{id}"), true),
        (format!("machine.slice:libpod:{id}"), true),
        (format!("kubepods-pod1.slice:crio:{id}"), true),
        (format!("/libpod-{id}/x"), false),
        (format!("/libpod-{}", &id[1..]), false),
        (format!("/libpod-{upper}"), false),
        (String::new(), false),
    ];
    for (path, named) in cases {
        let text = json!({"linux": {"cgroupsPath": path}}).to_string();
        let spec = json::parse_oci(text.as_bytes()).unwrap();
        assert_eq!(container_id(&spec), named.then_some(id.as_str()), "{path}");
    }
    assert_eq!(container_id(&json::parse_oci(b"{}").unwrap()), None);
}

/// Nothing of the tenant's is left in it, whatever was refused.
#[test]
fn a_refusal_makes_nothing_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, format!("[paths]\nstate_dir = {:?}\nlog_dir = {:?}\n", folder.path(), folder.path()))
        .unwrap();
    let setup = Setup::read(&config);
    std::os::unix::fs::symlink("/bin/true", folder.path().join("low-level-runtime")).unwrap();
    let text = br#"{"root":{"path":"/r"},"process":{"args":["evil"]},"annotations":{"a":"evil"},
        "mounts":[{"source":"/dev/nvidia0","destination":"/evil","options":["bind"]}],"hooks":{"prestart":[{"path":"/evil"}]}}"#;
    let answer = String::from_utf8(answer(&setup, text.to_vec()).unwrap()).unwrap();
    let spec = json::parse_oci(answer.as_bytes()).unwrap();
    let args = spec.path(&["hooks", "createRuntime"]).unwrap().items()[0].get("args").unwrap().items();
    let words: Vec<&str> = args.iter().filter_map(Json::as_str).collect();
    assert!(words[1] == "refused" && words[2..].iter().any(|word| word.starts_with("TENANT_GPU_MOUNT: ")), "{words:?}");
    let made = words[2..].iter().fold(answer.clone(), |answer, word| answer.replace(word, ""));
    assert!(!made.contains("evil") && !made.contains("nvidia0"), "{made}");
    assert!(super::answer(&setup, b"no spec".to_vec()).is_err());
}
