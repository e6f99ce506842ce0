//! What must keep working without a GPU, and beside one: the list of what a guard must not stop, as containers in `standard`.
//! The script of each fails where the thing does not work.

use std::path::Path;

use integration::Spec;
use serde_json::json;

use crate::case::{Bare, Case, Verdict, bind, case, mount, tree};
use crate::world::{Place, shown};

fn works(
    what: &'static str,
    writes: impl Fn(&crate::life::Run<'_>) -> Spec + Send + Sync + 'static,
    script: &'static str,
) -> Case {
    case("L", what, writes).script(script)
}

pub(crate) fn cases() -> Vec<Case> {
    [volumes(), nodes(), others()].into_iter().flatten().collect()
}

fn volumes() -> Vec<Case> {
    vec![
        case("Q23 L", "an image whose /lib is a link", |_| Spec::new()).script("[ -L /lib ] || exit 1"),
        case("Q23 L", "a config map, as kubelet lays it out", |run| tree(run.tenant("volume"), &["ro"]))
            .script("grep -q value /t/key || exit 1"),
        works("its linked folder", |run| tree(run.tenant("volume/..data"), &["ro"]), "grep -q value /t/key || exit 1"),
        works("its linked file", |run| bind(run.tenant("volume/key")), "grep -q value /x || exit 1"),
        works("a file by a GPU's name", |run| bind(run.tenant("nvidia0")), "grep -q name /x || exit 1"),
        works("the host's root as node-exporter has it", |_| tree("/", &["ro", "rslave"]), "[ -d /t/proc ] || exit 1")
            .always(Verdict::Noted("mount-dev-tree"))
            .hardened(Verdict::Refused("UNSAFE_SPEC", "mount-procfs")),
        works("a tmpfs", |_| mount("tmpfs", "tmpfs", &["size=1m"]), "touch /t/x || exit 1"),
        works("memory to share, terminals and queues", |_| Spec::new(), "touch /dev/shm/x && [ -e /dev/pts/ptmx ] && [ -d /dev/mqueue ] || exit 1"),
        works("a termination log", |run| Spec::new().bind(&run.tenant("plain/file"), "/dev/termination-log", &[]), "grep -q plain /dev/termination-log || exit 1"),
        works("a volume shared with the host, one way", |run| tree(run.tenant("plain"), &["rslave"]), "grep -q plain /t/file || exit 1"),
        works("an idmapped volume", |run| {
            let ids = json!([{"containerID": 0, "hostID": 0, "size": 65536}]);
            Spec::new().mount(json!({
                "destination": "/t", "type": "bind", "source": shown(&run.tenant("plain")), "options": ["rbind", "idmap"],
                "uidMappings": ids, "gidMappings": ids,
            }))
        }, "grep -q plain /t/file || exit 1")
        .only_on(&[(Place::Crun128, Bare::Closed)]),
        works("a raw block device", |run| {
            Spec::new().bind(&run.tenant("disk"), "/dev/xvda", &[]).allow('b', Some(7), Some(0), "rwm")
        }, "[ -b /dev/xvda ] || exit 1"),
    ]
}

fn nodes() -> Vec<Case> {
    let device = |what, path: &'static str, major, minor, script: &'static str| {
        works(
            what,
            move |_| Spec::new().device(path, 'c', major, minor).allow('c', Some(major), Some(minor), "rwm"),
            script,
        )
    };
    vec![
        works(
            "/dev/fuse, bound",
            |_| Spec::new().bind(Path::new("/dev/fuse"), "/dev/fuse", &[]).allow('c', Some(10), Some(229), "rwm"),
            "exec 3<>/dev/fuse || exit 1",
        ),
        device("/dev/net/tun", "/dev/net/tun", 10, 200, "exec 3<>/dev/net/tun || exit 1"),
        device("/dev/snd", "/dev/snd/controlC0", 116, 0, "[ -c /dev/snd/controlC0 ] || exit 1"),
        device("a USB device", "/dev/bus/usb/001/001", 189, 0, "[ -c /dev/bus/usb/001/001 ] || exit 1"),
        device("a board's own display", "/dev/dri/card0", 226, 0, "[ -c /dev/dri/card0 ] || exit 1"),
        works("all terminals", |_| Spec::new().allow('c', Some(136), None, "rwm"), "true"),
    ]
}

fn others() -> Vec<Case> {
    vec![
        works(
            "a stock CUDA image",
            |_| {
                let spec = Spec::new()
                    .env("NVIDIA_VISIBLE_DEVICES", "all")
                    .env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility");
                spec.env("CUDA_VERSION", "12.4.0").env("NVIDIA_REQUIRE_CUDA", "cuda>=12.4")
            },
            "true",
        ),
        works(
            "annotations of Podman's and of anybody's",
            |_| {
                let spec = Spec::new().annotation("io.podman.annotations.autoremove", "FALSE");
                spec.annotation("org.systemd.property.KillSignal", "15").annotation("com.example/x", "y")
            },
            "true",
        ),
        works(
            "a user of its own",
            |_| {
                Spec::new().edit(|document| {
                    document["process"]["user"] = json!({"uid": 1000, "gid": 1000});
                })
            },
            "true",
        ),
        works(
            "the names of its own",
            |_| Spec::new().edit(|document| document["domainname"] = "example".into()),
            "true",
        ),
    ]
}
