//! Device entries, each row in both columns.

mod common;

use common::{By, Fake, Spec, both, gpu, hardened, judge, judge_text, verdict};
use guard::{Majors, openable};

const GPU: &str = "TENANT_GPU_DEVICE device-gpu";
const RULE: &str = "TENANT_GPU_RULE cgroup-gpu-rule";
const ANY_DRM: &str = r#"{"allow":true,"type":"c","major":226,"access":"rw"}"#;
const PATH: &str = "UNSAFE_SPEC device-path";
const SHAPE: &str = "UNSAFE_SPEC device-shape";

fn entry(path: &str, kind: &str, major: i64, minor: i64) -> String {
    format!(r#"{{"path":"{path}","type":"{kind}","major":{major},"minor":{minor},"fileMode":438,"uid":0,"gid":0}}"#)
}

#[track_caller]
fn check(fragment: &str, expected: &str) {
    assert_eq!(both(&Spec::device(fragment)), (expected.to_owned(), expected.to_owned()), "{fragment}");
}

#[test]
fn by_type_and_number() {
    for (path, kind, major, minor, expected) in [
        ("/dev/nvidia0", "c", 195, 0, GPU),
        ("/dev/nvidia0", "u", 195, 0, GPU),
        ("/dev/tty9", "c", 195, 0, GPU),
        ("/dev/nvidia0", "b", 195, 0, "ok"),
        ("/dev/nvidia0", "p", 195, 0, "ok"),
        ("/dev/x", "c", 195, 255, GPU),
        ("/dev/x", "c", 511, 0, GPU),
        ("/dev/x", "c", 510, 7, GPU),
        ("/dev/x", "c", 505, 0, "ok"),
        ("/dev/x", "c", 10, 196, GPU),
        ("/dev/x", "c", 1, 1, GPU),
        ("/dev/dri/renderD128", "c", 226, 128, GPU),
        ("/dev/dri/renderD129", "c", 226, 129, "ok"),
        ("/dev/dri/card9", "c", 226, 9, GPU),
        ("/dev/fuse", "c", 10, 229, "ok"),
        ("/dev/kvm", "c", 10, 232, "ok"),
        ("/dev/infiniband/uverbs0", "c", 231, 192, "ok"),
        ("/dev/sda", "b", 8, 0, "ok"),
        ("/dev/nvidia0", "c", 1, 5, "ok"),
    ] {
        check(&entry(path, kind, major, minor), expected);
    }
}

#[test]
fn shapes() {
    for (path, expected) in [
        ("/dev/../tmp/x", PATH),
        ("tmp/x", PATH),
        ("/dev/x/..", PATH),
        ("", PATH),
        ("/", PATH),
        ("//./", PATH),
        // Docker writes what `--device /dev/snd:/dev/snd/` says.
        ("/dev/snd//x", "ok"),
        ("/dev/./x", "ok"),
        ("/dev/x/", "ok"),
        ("/dev/net/tun", "ok"),
        ("/tmp/x", "ok"),
    ] {
        check(&entry(path, "c", 10, 200), expected);
    }
    for (fragment, expected) in [
        (r#"{"type":"c","major":1,"minor":3}"#, PATH),
        (r#"{"path":5,"type":"c","major":1,"minor":3}"#, PATH),
        (r#"{"path":"/dev/x","major":1,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"C","major":1,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"cc","major":1,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":1.0,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":"1","minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":-1,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":4096,"minor":3}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"b","major":8,"minor":1048576}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":4294967491,"minor":0}"#, SHAPE),
        (r#"{"path":"/dev/x","type":"c","major":1,"minor":3,"extra":1}"#, "UNSAFE_SPEC json-unknown"),
        (r#"{"path":"/dev/x","type":"c","major":1,"minor":3,"fileMode":null,"uid":null}"#, "ok"),
        (r#"{"path":"/dev/x","type":"p"}"#, "ok"),
        ("5", PATH),
    ] {
        check(fragment, expected);
    }
    let not_a_list = Spec { devices: r#"{"0":1}"#.into(), ..Spec::default() };
    assert_eq!(both(&not_a_list).0, "UNSAFE_SPEC spec-shape");
}

#[test]
fn one_path_for_two_devices() {
    let fuse = entry("/dev/fuse", "c", 10, 229);
    let kvm = entry("/dev/fuse", "c", 10, 232);
    let node = entry("/dev/fuse", "c", 195, 0);
    // `--privileged --device /dev/kvm:/dev/fuse`; `--device X --device X` is written down twice.
    check(&format!("{fuse},{kvm}"), "ok");
    check(&format!("{fuse},{fuse}"), "ok");
    let both = format!("{GPU}, {PATH}");
    check(&format!("{fuse},{node}"), &both);
    check(&format!("{node},{fuse}"), &both);
    check(&format!("{node},{}", entry("/dev/fuse", "p", 0, 0)), &both);
    for spelt in ["/dev//fuse", "/dev/./fuse", "//dev/fuse/"] {
        check(&format!("{node},{}", entry(spelt, "c", 10, 232)), &both);
        check(&format!("{fuse},{}", entry(spelt, "c", 10, 232)), "ok");
    }
    let refusals = judge(&Spec::device(&format!("{fuse},{node}")), &By::default()).refusals;
    assert_eq!(refusals[1].at, "/linux/devices/1/path");
    // One of them is taken out, and which one is there differs all the same.
    let spec = Spec { devices: format!("[{fuse},{node}]"), ..Spec::privileged() };
    assert_eq!(verdict(&judge(&spec, &By::default())), PATH);
}

#[test]
fn who_asks_for_every_device_loses_the_nodes() {
    let list = [
        entry("/dev/fuse", "c", 10, 229),
        entry("/dev/nvidia0", "c", 195, 0),
        entry("/dev/sda", "b", 8, 0),
        entry("/dev/dri/card0", "c", 226, 0),
    ];
    let spec = Spec { devices: format!("[{}]", list.join(",")), ..Spec::privileged() };
    let judgement = judge(&spec, &By::default());
    assert_eq!(verdict(&judgement), "ok");
    assert_eq!(judgement.changes.drop_devices, [1, 3]);
    assert!(judgement.notes.iter().any(|note| note.rule == "device-gpu"));
    // With CAP_SYS_ADMIN alone the nodes are the tenant's words; not beside a list that allows everything.
    let admin = Spec { devices: spec.devices.clone(), ..Spec::admin() };
    assert_eq!(verdict(&judge(&admin, &By::default())), format!("{GPU}, {GPU}"));
    let fewer = Spec { caps: Spec::default().caps, ..spec };
    let judgement = judge(&fewer, &By::default());
    assert_eq!((verdict(&judgement).as_str(), judgement.changes.drop_devices), ("ok", vec![1, 3]));
    let list = judgement.changes.rules.unwrap();
    assert!(!openable(&list, 195, 0) && !openable(&list, 226, 0) && openable(&list, 10, 229));
    for by in [gpu(), hardened()] {
        assert_eq!(verdict(&judge(&fewer, &by)), "TENANT_GPU_RULE cgroup-wildcard");
    }
}

#[test]
fn hardened_keeps_nodes_below_dev() {
    assert_eq!(verdict(&judge(&Spec::device(&entry("/tmp/x", "c", 10, 200)), &hardened())), PATH);
    assert_eq!(verdict(&judge(&Spec::device(&entry("//dev/x", "c", 10, 200)), &hardened())), "ok");
}

#[test]
fn the_drivers_are_asked_for_only_when_they_decide() {
    for (major, minor, times) in [
        (10, 229, 0),
        (10, 128, 0),
        (10, 255, 0),
        (10, 196, 0),
        (10, 127, 1),
        (10, 256, 1),
        (195, 0, 0),
        (1, 0, 0),
        (136, 0, 0),
        (511, 0, 1),
        (505, 0, 1),
    ] {
        let fake = Fake::default();
        judge_text(&Spec::device(&entry("/dev/x", "c", major, minor)).text(), &By::default(), &fake);
        assert_eq!((fake.count("majors"), fake.count("misc")), (times, times), "{major}:{minor}");
    }
}

#[test]
fn without_an_answer_nothing_is_guessed() {
    let fake = Fake { majors: Err("cannot read /proc/devices: no such file".into()), ..Fake::default() };
    for by in [By::default(), gpu()] {
        let two = format!("{},{}", entry("/dev/x", "c", 505, 0), entry("/dev/y", "c", 505, 1));
        let judgement = judge_text(&Spec::device(&two).text(), &by, &fake);
        assert_eq!(verdict(&judgement), "INTERNAL numbers-unreadable");
        assert!(judgement.refusals[0].message.contains("/proc/devices"));
        // What does not need the answer is judged as ever.
        assert_eq!(verdict(&judge_text(&Spec::device(&entry("/dev/x", "c", 10, 229)).text(), &by, &fake)), "ok");
    }
}

#[test]
fn a_dynamic_major_is_what_the_kernel_says_now() {
    let spec = Spec::device(&entry("/dev/x", "c", 511, 0)).text();
    let fake = Fake::default();
    assert_eq!(verdict(&judge_text(&spec, &By::default(), &fake)), GPU);
    let fake = Fake { majors: Ok(common::majors(&[("nvidia-uvm", 235)])), ..Fake::default() };
    assert_eq!(verdict(&judge_text(&spec, &By::default(), &fake)), "ok");
}

/// Entry, exact rule and the list that allows everything have one opinion of each DRM node that is there.
#[test]
fn a_drm_node_is_a_gpu_to_all_or_to_none() {
    let bare = Majors::from([("drm".to_owned(), 226)]);
    for (majors, gpus) in [(Fake::default().majors, &[0, 9, 128][..]), (Ok(bare), &[0, 128])] {
        let fake = Fake { majors, ..Fake::default() };
        let judged = |spec: &Spec| judge_text(&spec.text(), &By::default(), &fake);
        let narrowed = judged(&Spec::privileged()).changes.rules.unwrap();
        for minor in [0, 1, 2, 9, 128, 129] {
            let is = gpus.contains(&minor);
            let numbers = format!(r#""type":"c","major":226,"minor":{minor}"#);
            let entry = judged(&Spec::device(&format!(r#"{{"path":"/dev/x",{numbers}}}"#)));
            let rule = judged(&Spec::rules(&format!(r#"{{"allow":true,{numbers},"access":"rw"}}"#)));
            assert_eq!([&entry, &rule].map(|judgement| verdict(judgement) != "ok"), [is, is], "{minor}");
            assert_eq!(openable(&narrowed, 226, minor), !is, "{minor}");
        }
        assert_eq!(verdict(&judged(&Spec::rules(ANY_DRM))), RULE);
    }
    for (untold, expected) in [(vec![9], RULE), (vec![], "ok")] {
        let fake = Fake { vendors: [(1, 0x1002)].into(), untold, ..Fake::default() };
        let all = Spec::rules(ANY_DRM).text();
        assert_eq!(verdict(&judge_text(&all, &By::default(), &fake)), expected);
    }
}
