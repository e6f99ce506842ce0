//! Random specs, their random spelling as text, and random edits that meet them.

use std::num::NonZeroU32;

use cdi::{Edits, Hook, Mount, Stage};
use contract::inventory::{DeviceNode, Role};
use contract::rule::{Access, Kind, Rule};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

const NAMES: [&str; 5] = ["PATH", "A", "A_B", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
const PATHS: [&str; 5] =
    ["/dev/nvidia0", "/dev/nvidiactl", "/dev/zero", "/usr/lib/libcuda.so.1", "/etc/a \"b\" \\c\u{e9}\n"];
const STAGES: [Stage; 6] = [
    Stage::Prestart,
    Stage::CreateRuntime,
    Stage::CreateContainer,
    Stage::StartContainer,
    Stage::Poststart,
    Stage::Poststop,
];

/// A member that is absent, `null`, or what the strategy gives, beside members nobody knows.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(key, value)| prop_oneof![1 => Just(None), 1 => Just(Some((key, Value::Null))), 6 => value.prop_map(move |v| Some((key, v)))])
        .collect();
    let unknown =
        option::of(select(vec![json!("\u{1f600}\t"), json!([[], {}, 1.5e3]), json!({"x": null, "env": ["A=1"]})]));
    (fields, unknown)
        .prop_map(|(fields, unknown)| {
            let known = fields.into_iter().flatten().map(|(key, value)| (key.to_owned(), value));
            Value::Object(known.chain(unknown.map(|value| ("unknownField".to_owned(), value))).collect::<Map<_, _>>())
        })
        .boxed()
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    vec(item, 0..6).prop_map(Value::Array).boxed()
}

/// A spec; what the edits add may already stand in it.
pub(crate) fn spec() -> BoxedStrategy<Value> {
    let variable = prop_oneof![
        (select(&NAMES[..]), "[a=b]{0,3}").prop_map(|(name, value)| json!(format!("{name}={value}"))),
        select(&NAMES[..]).prop_map(|name| json!(name)),
    ];
    let gid = (0..4u32).prop_map(|gid| json!(gid));
    let user = object(vec![("uid", Just(json!(0)).boxed()), ("additionalGids", list(gid.boxed()))]);
    let process = object(vec![("env", list(variable.boxed())), ("user", user), ("args", Just(json!(["sh"])).boxed())]);
    let device = object(vec![
        ("path", select(&PATHS[..]).prop_map(|path| json!(path)).boxed()),
        ("type", Just(json!("c")).boxed()),
    ]);
    let device = prop_oneof![device, node().prop_map(|n| json!({"path": n.path, "type": "c", "major": n.major, "minor": n.minor, "fileMode": n.mode, "uid": n.uid, "gid": n.gid}))];
    let rule = prop_oneof![
        Just(json!({"allow": false, "access": "rwm"})),
        Just(json!({"access": "rw", "major": 195, "minor": 0, "type": "c", "allow": true}))
    ];
    let resources = object(vec![("devices", list(rule.boxed())), ("pids", Just(json!({"limit": 10})).boxed())]);
    let linux = object(vec![("devices", list(device.boxed())), ("resources", resources)]);
    let bind = mount()
        .prop_map(|m| json!({"options": m.options, "destination": m.destination, "type": m.kind, "source": m.source}));
    let mounts =
        list(prop_oneof![bind, Just(json!({"destination": "/proc", "type": "proc", "source": "proc"}))].boxed());
    let hook = prop_oneof![
        Just(json!({"path": "/bin/true"})),
        Just(json!({"path": "/bin/quilt", "args": ["quilt", "verify"]}))
    ];
    let hooks = object(STAGES.iter().map(|stage| (stage.key(), list(hook.clone().boxed()))).collect());
    object(vec![
        ("ociVersion", Just(json!("1.2.0")).boxed()),
        ("process", process),
        ("mounts", mounts),
        ("linux", linux),
        ("hooks", hooks),
    ])
}

/// The spec as text: members in any order, white space anywhere, letters escaped or not. `choices` decides, over and over.
pub(crate) fn spelled(value: &Value, choices: &[u8]) -> String {
    let mut choices = choices.iter().copied().cycle();
    let mut out = String::new();
    spell(value, &mut || choices.next().unwrap(), &mut out);
    out
}

fn spell(value: &Value, next: &mut impl FnMut() -> u8, out: &mut String) {
    let space = |choice: u8| ["", "", "", " ", "\n\t", "  \r\n"][usize::from(choice) % 6];
    match value {
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(space(next()));
                spell(item, next, out);
                out.push_str(space(next()));
            }
            out.push_str(if items.is_empty() { space(next()) } else { "" });
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|_| next());
            out.push('{');
            for (index, (key, value)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(space(next()));
                out.push_str(&format!("{}{}:{}", json!(key), space(next()), space(next())));
                spell(value, next, out);
                out.push_str(space(next()));
            }
            out.push_str(if members.is_empty() { space(next()) } else { "" });
            out.push('}');
        }
        Value::String(text) if next().is_multiple_of(4) => {
            let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            out.push_str(&format!("\"{units}\""));
        }
        other => out.push_str(&other.to_string()),
    }
}

fn node() -> impl Strategy<Value = DeviceNode> {
    (select(&PATHS[..]), 195..197u32, 0..2u32).prop_map(|(path, major, minor)| DeviceNode {
        path: path.to_owned(),
        host_path: format!("/driver{path}"),
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 27,
        role: Role::Compute,
    })
}

fn mount() -> impl Strategy<Value = Mount> {
    (select(&PATHS[..]), select(&PATHS[..]), 0..4u8).prop_map(|(host, destination, kind)| match kind {
        0 => Mount::library(host, destination),
        1 => Mount::node(host, destination),
        2 => Mount::read_only(host, destination, true),
        _ => Mount::library(host, destination),
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let number = || option::of(select(vec![0u32, 195, 4_294_967_295]));
    let access = any::<(bool, bool, bool)>().prop_map(|(read, write, make)| Access { read, write, make });
    let free = (any::<bool>(), select(vec![Kind::Char, Kind::Block]), number(), number(), access);
    prop_oneof![
        Just(Rule::DENY_ALL),
        Just(Rule::open_char(195, 0)),
        free.prop_map(|(allow, kind, major, minor, access)| Rule { allow, kind, major, minor, access }),
        Just(Rule { major: Some(1), minor: Some(1), ..Rule::ALLOW_ALL }),
    ]
}

fn hook() -> impl Strategy<Value = Hook> {
    (select(&STAGES[..]), vec("[a-z\"\\\\\u{7f}]{0,3}", 0..3), vec(Just("A=1".to_owned()), 0..2), option::of(1..9u32))
        .prop_map(|(stage, args, env, timeout)| Hook {
            stage,
            path: "/bin/quilt".to_owned(),
            args,
            env,
            timeout: timeout.and_then(NonZeroU32::new),
        })
}

/// Edits that fit any spec with so many devices.
pub(crate) fn edits(devices: usize) -> impl Strategy<Value = Edits> {
    let env = vec((select(&NAMES[..]).prop_map(str::to_owned), "[a\u{e9}\"\\\\\n=]{0,4}"), 0..4);
    let drop_devices = if devices == 0 { Just(Vec::new()).boxed() } else { vec(0..devices, 0..devices * 2).boxed() };
    let parts = (
        env,
        vec(node(), 0..4),
        vec(mount(), 0..4),
        option::of(vec(rule(), 0..4)),
        drop_devices,
        vec(hook(), 0..4),
        vec(0..6u32, 0..4),
        vec((0..8usize, mount()), 0..4),
    );
    parts.prop_map(|(env, nodes, mounts, rules, drop_devices, hooks, gids, mut inserted)| Edits {
        env,
        nodes,
        mounts,
        inserted: {
            inserted.sort_by_key(|(at, _)| *at);
            inserted
        },
        rules,
        drop_devices,
        hooks,
        gids,
        ..Edits::default()
    })
}

/// How many devices a spec lists.
pub(crate) fn devices(spec: &Value) -> usize {
    spec.pointer("/linux/devices").and_then(Value::as_array).map_or(0, Vec::len)
}
