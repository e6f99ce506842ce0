//! CDI files in JSON and YAML, right and wrong, and rows of choices that make a file and a container.

use crate::Seed;

const GPUS: &str = r#"---
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      fileMode: 438
- name: b # two
  containerEdits: &e {env: [A=b, 'C=d']}
- name: c
  containerEdits: *e
containerEdits:
  mounts:
  - {hostPath: /a, containerPath: "/b\u0041", options: [ro, rbind]}
  hooks:
  - hookName: poststop
    path: /bin/true
    args: [true-name, "yes"]
    timeout: 5
"#;

const NODES: &str = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu",
 "devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0","hostPath":"/d/dev/nvidia0","type":"c",
   "major":195,"minor":0,"fileMode":438,"permissions":"rw","uid":0,"gid":44}]}},{"name":"all","containerEdits":{"env":["A=b"]}}],
 "containerEdits":{"env":["NVIDIA_VISIBLE_DEVICES=void"],
  "mounts":[{"hostPath":"/l/libcuda.so.1","containerPath":"/l/libcuda.so.1","options":["ro","nosuid","nodev","bind"]}],
  "hooks":[{"hookName":"createContainer","path":"/usr/bin/nvidia-cdi-hook","args":["nvidia-cdi-hook","update-ldcache"]}]}}"#;

const NEWEST: &str = r#"{"cdiVersion":"1.1.0","kind":"v.org/c.d","annotations":{"a.b/c":"d"},"devices":[{"name":"x",
 "annotations":{"n":"0"},"containerEdits":{"netDevices":[{"hostInterfaceName":"ib0","name":"eth1"}],"additionalGids":[0,5],
 "intelRdt":{"closID":"x","l3CacheSchema":"L3:0=f","memBwSchema":"MB:0=9","schemata":["L3:0=f"],"enableMonitoring":true}}}]}"#;

pub(crate) fn cdi() -> Vec<Seed> {
    let texts = [
        ("gpus.yaml", GPUS.to_owned()),
        ("nodes.json", NODES.to_owned()),
        ("newest.json", NEWEST.to_owned()),
        ("octal.yaml", GPUS.replace("438", "0666")),
        ("older.yaml", GPUS.replace("0.5.0", "0.4.0")),
        ("two.yaml", GPUS.repeat(2)),
        ("block.yaml", GPUS.replace("/dev/nvidia0", ">-\n        /dev/nvidia0").replace("A=b", "\"A=b\\n\"")),
        ("merge.yaml", "a: &a {b: c}\nd:\n  <<: *a\n".to_owned()),
        ("bomb.yaml", "a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\n".to_owned()),
        ("inside.yaml", "a: &a [*a]\n".to_owned()),
        ("tag.yaml", "cdiVersion: !!str 1.1.0\n".to_owned()),
        ("directive.yaml", "%YAML 1.1\n---\nkind: v.org/c\n? [a]\n: b\n".to_owned()),
        ("words.yaml", "kind: [yes, ~, .5, 0x1, -, 1_0, \"y\", 'n', |-\n  a]\n".to_owned()),
        ("twice.json", r#"{"kind":"a","kind":"b"}"#.to_owned()),
        ("escapes.json", r#"{"kind":"\u00e9\ud83d\ude00\/\b"}"#.to_owned()),
    ];
    let texts = texts.into_iter().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    // Each step leads through other choices.
    let row = |step: u8| (0..=u8::MAX).map(|at| at.wrapping_mul(step) >> 3).collect();
    texts.chain([1, 7, 37, 91, 143, 201].map(|step| (format!("choices-{step}"), row(step)))).collect()
}
