//! Specs as text, each with something that a guard has to see, and rows of bytes, each a made-up spec on a made-up machine.

use crate::Seed;

fn spec(mounts: &str, devices: &str, rules: &str, more: &str) -> String {
    format!(
        r#"{{"ociVersion":"1.0.2","process":{{"cwd":"/","capabilities":{{"bounding":["CAP_CHOWN"]}}}},"root":{{"path":"rootfs"}},"mounts":[{mounts}],"linux":{{"devices":[{devices}],"resources":{{"devices":[{rules}]}},"namespaces":[{{"type":"mount"}},{{"type":"pid"}}]{more}}}}}"#
    )
}

pub(crate) fn guard() -> Vec<Seed> {
    let closed = r#"{"allow":false,"access":"rwm"}"#;
    let bind =
        |source: &str| format!(r#"{{"destination":"/x","type":"bind","source":"{source}","options":["rbind"]}}"#);
    let rule = |rest: &str| format!(r#"{closed},{{"allow":true,{rest}}}"#);
    let texts = [
        spec("", "", closed, ""),
        spec(&bind("/dev/nvidia0"), "", closed, ""),
        spec(&bind("/home/user/link"), "", closed, ""),
        spec(&bind("/"), "", closed, ""),
        spec(&bind("/run"), "", closed, ""),
        spec(&bind("/sys"), "", closed, ""),
        spec(&bind("../../../dev"), "", closed, ""),
        spec("", r#"{"type":"c","path":"/dev/x","major":195,"minor":0}"#, closed, ""),
        spec("", "", &rule(r#""type":"c","major":195,"minor":0,"access":"rw""#), ""),
        spec("", "", &rule(r#""type":"c","major":1,"minor":3,"access":"rwm""#), ""),
        spec("", "", &rule(r#""type":"a""#), ""),
        spec("", "", "", r#","cgroupsPath":"/a/b","rootfsPropagation":"rshared""#),
        spec(r#"{"destination":"/x","type":"devtmpfs"}"#, "", closed, ""),
        spec(r#"{"destination":"/x","type":"overlay","options":["lowerdir=/run:/dev"]}"#, "", closed, ""),
        spec(r#"{"destination":"/sys/fs/cgroup","type":"cgroup2","options":["rw"]}"#, "", closed, ""),
    ];
    let seed = |(n, text): (usize, String)| (format!("{n:02}"), text.into_bytes());
    let mut seeds: Vec<Seed> = texts.into_iter().enumerate().map(seed).collect();
    // Rows without an order, so that every kind of part is there from the beginning.
    let mut state = 1_u32;
    for n in 0..16 {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        let bytes: Vec<u8> = (0..40 + n * 16).map(|_| next()).collect();
        seeds.push((format!("made-{n:02}"), bytes));
    }
    seeds
}
