//! Section B: entries of `linux.devices`.

use integration::Spec;
use serde_json::json;

use crate::case::{Bare, Case, Verdict, case};
use crate::world::Place;

const DEVICE: &str = "TENANT_GPU_DEVICE";
const UNSAFE: &str = "UNSAFE_SPEC";

fn gpu(ids: &'static str, what: &'static str, path: &'static str, major: u64, minor: u64) -> Case {
    case(ids, what, move |_| Spec::new().device(path, 'c', major, minor)).brings_a_node().refused(DEVICE, "device-gpu")
}

fn elsewhere(ids: &'static str, what: &'static str, path: &'static str) -> Case {
    case(ids, what, move |_| Spec::new().device(path, 'c', 1, 3)).image(|_, _| Ok(()))
}

pub(crate) fn cases() -> Vec<Case> {
    let ordinary = |what, path: &'static str, major, minor| {
        case("Q31 L", what, move |_| {
            Spec::new().device(path, 'c', major, minor).allow('c', Some(major), Some(minor), "rwm")
        })
    };
    vec![
        gpu("B1 Q24", "a GPU as a device", "/dev/nvidia0", 195, 0),
        gpu("B2 Q25", "a GPU as a device of another name", "/dev/tty9", 195, 1),
        gpu("B2", "the control node as a device", "/dev/x", 195, 255),
        gpu("B2 Q33", "a device of a major that the kernel gave out", "/dev/x", 511, 0),
        gpu("B2", "a MIG capability as a device", "/dev/x", 236, 1),
        gpu("Q32", "a render node as a device", "/dev/x", 226, 128),
        case("B1", "a GPU as an unbuffered device", |_| Spec::new().device("/dev/x", 'u', 195, 0))
            .brings_a_node()
            .refused(DEVICE, "device-gpu"),
        case("B2", "a number that wraps round to a GPU's", |_| Spec::new().device("/dev/x", 'c', (1 << 32) + 195, 0))
            .bare(Bare::Unasked("runtimes differ in how wide a number is"))
            .on(Place::Crun, Bare::Unasked("the same"))
            .refused(UNSAFE, "device-shape"),
        elsewhere("B6 Q30", "a device whose path climbs", "/dev/../tmp/q30")
            .bare(Bare::Unasked("it stays in the image"))
            .refused(UNSAFE, "device-path"),
        elsewhere("B6 Q30", "a device whose path is relative", "tmp/q30")
            .bare(Bare::Unasked("it stays in the image"))
            .refused(UNSAFE, "device-path"),
        elsewhere("B6 Q30", "a device outside /dev", "/tmp/q30").hardened(Verdict::Refused(UNSAFE, "device-path")),
        case("B9", "one path twice, the second a GPU", |_| {
            Spec::new().device("/dev/x", 'c', 1, 3).device("/dev/x", 'c', 195, 0)
        })
        .bare(Bare::Unasked("the second is left out, or both fail"))
        .on(Place::Crun, Bare::Unasked("the same"))
        .on(Place::Youki, Bare::Unasked("the same"))
        .refused(DEVICE, "device-gpu"),
        case("B9 L", "one path twice, neither a GPU", |_| {
            Spec::new().device("/dev/x", 'c', 1, 3).device("/dev/x", 'c', 1, 5)
        })
        .script("[ -c /dev/x ] || exit 1"),
        case("B10", "a pipe where a GPU's node would come", |_| {
            Spec::new().edit(|document| {
                document["linux"]["devices"] = json!([{"path": "/dev/nvidiactl", "type": "p", "fileMode": 438}]);
            })
        })
        .asking(Verdict::Refused(UNSAFE, "")),
        case("B11 L", "a block device of the same number", |_| {
            Spec::new().device("/dev/b", 'b', 195, 0).allow('b', Some(195), None, "rwm")
        })
        .script("[ -b /dev/b ] || exit 1"),
        case("B13", "a network device of the host's", |_| {
            Spec::new().edit(|document| document["linux"]["netDevices"] = json!({"nonesuch0": {"name": "eth7"}}))
        })
        .hardened(Verdict::Refused(UNSAFE, "net-devices")),
        ordinary("/dev/fuse as a device", "/dev/fuse", 10, 229).script("exec 3<>/dev/fuse || exit 1"),
        ordinary("/dev/kvm as a device", "/dev/kvm", 10, 232),
        ordinary("InfiniBand as a device", "/dev/infiniband/uverbs0", 231, 192),
    ]
}
