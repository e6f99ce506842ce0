//! Whose words count where, as one table: the rows are how NVIDIA's device plugin hands on, and what others write.

use super::*;

/// What is asked for, by a container with these variables, annotations and mounts: ids, source, and how many notes.
fn asked(whose: Whose, spec: &str, config: &Config) -> String {
    let text = spec.replace('\'', "\"");
    let spec = contract::json::parse_oci(text.as_bytes()).unwrap();
    let mut notes = Vec::new();
    let kubelets = |key: &str, _: &str| key != "cdi.k8s.io/tenants";
    match read(&spec, whose, &kubelets, config, None, &mut notes) {
        Err(refusal) => format!("{} {}", refusal.code.name(), refusal.at),
        Ok(None) => format!("- {}", notes.len()),
        Ok(Some((words, source))) => format!("{} {source:?} {}", words.value("ids").unwrap(), notes.len()),
    }
}

fn env(variables: &str) -> String {
    format!("{{'process':{{'env':[{variables}]}}}}")
}

#[test]
fn who_may_ask_how() {
    let default = Config::default();
    let mut honour = Config::default();
    honour.request.nvidia_visible_devices = NvidiaVisibleDevices::Honour;
    let mut trusted = Config::default();
    trusted.request.device_plugin = DevicePlugin::Trusted;
    let one = env("'NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2'");
    let all = env("'NVIDIA_VISIBLE_DEVICES=all'");
    let mount = |name: &str, source: &str| {
        format!(
            "{{'process':{{'env':['NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices']}},'mounts':[\
             {{'source':'{source}','destination':'/var/run/nvidia-container-devices/{name}'}}]}}"
        )
    };
    let note = |key: &str, value: &str| format!("{{'annotations':{{'{key}':'{value}'}}}}");
    let plugins = note("cdi.k8s.io/nvidia-device-plugin_7", "nvidia.com/gpu=GPU-1,nvidia.com/gpu=GPU-2");
    for (what, whose, spec, config, expected) in [
        ("the variable", Whose::Alone, &one, &default, "- 0"),
        ("the variable", Whose::Alone, &one, &honour, "GPU-1,GPU-2 VisibleDevices 0"),
        ("all", Whose::Alone, &all, &honour, "all VisibleDevices 0"),
        ("the variable in a pod", Whose::Pods, &one, &honour, "- 0"),
        ("strategy envvar", Whose::Pods, &one, &trusted, "GPU-1,GPU-2 VisibleDevices 0"),
        ("an image's own word in a pod", Whose::Pods, &all, &trusted, "- 0"),
        ("the variable, pods only", Whose::Alone, &one, &trusted, "- 0"),
        ("strategy volume-mounts", Whose::Pods, &mount("GPU-1", "/dev/null"), &trusted, "GPU-1 VisibleDevices 0"),
        (
            "volume-mounts by CDI",
            Whose::Pods,
            &mount("cdi/nvidia.com/gpu/0", "/dev/null"),
            &trusted,
            "0 VisibleDevices 0",
        ),
        ("a mount of something", Whose::Pods, &mount("GPU-1", "/tmp"), &trusted, "- 0"),
        ("mounts nobody trusts", Whose::Pods, &mount("GPU-1", "/dev/null"), &default, "- 0"),
        (
            "mounts without a pod",
            Whose::Alone,
            &mount("GPU-1", "/dev/null"),
            &honour,
            "/var/run/nvidia-container-devices VisibleDevices 0",
        ),
        ("strategy cdi-annotations", Whose::Pods, &plugins, &trusted, "GPU-1,GPU-2 Cdi 0"),
        (
            "the same, not trusted",
            Whose::Pods,
            &plugins,
            &default,
            "FOREIGN_GPU_INJECTION /annotations/cdi.k8s.io~1nvidia-device-plugin_7",
        ),
        (
            "our kind",
            Whose::Pods,
            &note("cdi.k8s.io/a", "quilt.gpu/device=nvidia0, quilt.gpu/device=nvidia0"),
            &default,
            "nvidia0 Cdi 0",
        ),
        ("our kind", Whose::Alone, &note("cdi.k8s.io/a", "quilt.gpu/device=all"), &default, "all Cdi 0"),
        ("a pod's own word", Whose::Pods, &note("cdi.k8s.io/tenants", "quilt.gpu/device=all"), &default, "- 0"),
        ("another key", Whose::Alone, &note("example.com/a", "quilt.gpu/device=all"), &default, "- 0"),
        ("no names", Whose::Alone, &note("cdi.k8s.io/a", "all"), &default, "- 0"),
    ] {
        assert_eq!(asked(whose, spec, config), expected, "{what}");
    }
}

#[test]
fn kinds_of_others() {
    let note = |kind: &str| format!("{{'annotations':{{'cdi.k8s.io/a':'{kind}=0'}}}}");
    let foreign = "FOREIGN_GPU_INJECTION /annotations/cdi.k8s.io~1a";
    for (kind, standard, hardened) in [
        ("nvidia.com/gpu", foreign, foreign),
        ("management.nvidia.com/gpu", foreign, foreign),
        ("runtime.nvidia.com/gpu", foreign, foreign),
        ("notnvidia.com/gpu", "- 1", "UNSAFE_SPEC /annotations/cdi.k8s.io~1a"),
        ("vendor.com/nic", "- 1", "UNSAFE_SPEC /annotations/cdi.k8s.io~1a"),
        ("vendor.com/fpga", "- 0", "- 0"),
        ("corp.example/gpu", "0 Cdi 0", "0 Cdi 0"),
    ] {
        let mut config = Config::default();
        config.policy.allow_cdi = vec!["vendor.com/fpga".into()];
        config.request.cdi_kinds = vec!["corp.example/gpu".into()];
        assert_eq!(asked(Whose::Alone, &note(kind), &config), standard, "{kind}");
        config.policy.profile = Profile::Hardened;
        assert_eq!(asked(Whose::Alone, &note(kind), &config), hardened, "{kind}");
    }
}

#[test]
fn all_is_bounded() {
    let mut words = Words::default();
    words.set("ids", "/a".into(), "all".into());
    let count = |source, config: &Config| match bounded(words.ask(source).unwrap(), config) {
        Ok(Asked::Gpus(request)) => request.count.to_string(),
        Ok(other) => panic!("{other:?}"),
        Err(refusal) => format!("{} {}", refusal.code.name(), refusal.at),
    };
    let mut config = Config::default();
    assert_eq!(count(Source::Cdi, &config), "256");
    config.request.max_per_container = 2;
    assert_eq!((count(Source::Cdi, &config), count(Source::Environment, &config)), ("2".into(), "1".into()));
    config.request.all = All::Refuse;
    assert_eq!(count(Source::VisibleDevices, &config), "POLICY /a");
}
