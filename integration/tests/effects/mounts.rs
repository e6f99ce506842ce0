//! Section A: binds and file systems.

use std::path::PathBuf;

use integration::{Error, Result, Spec};
use serde_json::json;

use crate::case::{Bare, Case, Verdict, bind, case, fallible, mount, tree};
use crate::life::{Outcome, Run, not_made};
use crate::world::{Place, node, shown};

const MOUNT: &str = "TENANT_GPU_MOUNT";
const UNSAFE: &str = "UNSAFE_SPEC";
const NODE: &str = "mount-gpu-node";
const DEV: &str = "mount-dev-tree";
const RESERVED: &str = "mount-reserved-source";
const UNRESOLVABLE: &str = "mount-unresolvable";

/// The host's devtmpfs: on a machine with GPUs their nodes would be there.
const DEVTMPFS: &str = "[ -c /t/fuse ] && [ -c /t/tty10 ] && echo LEAK the nodes of the host";
/// Moves itself to the top of every hierarchy that it sees, not to its own group: then the filter is the host's.
pub(crate) const ESCAPE: &str = r#"while read -r id parent device root point rest; do
  case "$root $rest" in "/ "*" - cgroup"* | "/.."*" - cgroup"*) echo 0 >"$point/cgroup.procs" ;; esac
done </proc/self/mountinfo 2>/dev/null"#;

pub(crate) fn cases() -> Vec<Case> {
    [nodes(), spellings(), magic(), trees(), file_systems(), unresolvable(), odd(), ours()]
        .into_iter()
        .flatten()
        .collect()
}

/// A bind of a node, refused by what it is.
pub(crate) fn of_node(ids: &'static str, what: &'static str, source: fn(&Run<'_>) -> PathBuf) -> Case {
    case(ids, what, move |run| bind(source(run))).brings_a_node().refused(MOUNT, NODE)
}

fn nodes() -> Vec<Case> {
    vec![
        of_node("A1 Q01", "a GPU's node under another name", |run| run.node("nvidia0")),
        of_node("A1", "the control node", |run| run.node("nvidiactl")),
        of_node("A1", "the memory node", |run| run.node("nvidia-uvm")),
        case("A1", "a GPU's name where there is no node yet", |_| bind("/dev/nvidia0"))
            .bare(Bare::Fails)
            .refused(MOUNT, NODE),
        of_node("A6 Q06", "a link in the tenant's folder to a node", |run| run.tenant("links/gpu")),
        of_node("A6", "a link to a link to a node", |run| run.tenant("links/second")),
        of_node("A6 Q07", "the node by its number, /dev/char/195:0", |run| run.node("char/195:0")),
        of_node("A6", "udev's alias of a display node", |run| run.node("dri/by-path/pci-0000:01:00.0-render")),
        of_node("A10 Q12", "a node made elsewhere with a GPU's number", |run| run.tenant("innocent")),
        of_node("A11", "a hard link to a node", |run| run.node("innocent")),
        of_node("A32", "a GPU's card", |run| run.node("dri/card1")),
        of_node("A32", "a GPU's render node", |run| run.node("dri/renderD129")),
    ]
}

fn spellings() -> Vec<Case> {
    let lie = |ids, what, kind: Option<&'static str>, option: &'static str| {
        case(ids, what, move |run| {
            let mut entry = json!({"destination": "/x", "source": shown(&run.node("nvidia0")), "options": [option]});
            if let Some(kind) = kind {
                entry["type"] = kind.into();
            }
            Spec::new().mount(entry)
        })
        .brings_a_node()
        .refused(MOUNT, NODE)
    };
    vec![
        of_node("A2 Q02", "dots in the path", |run| format!("/usr/..{}", shown(&run.node("nvidia0"))).into()),
        of_node("A3", "doubled slashes", |run| format!("//{}", shown(&run.node("nvidia0")).replace('/', "//")).into()),
        of_node("A3", "a dot as a folder", |run| shown(&run.node("nvidia0")).replace("/dev/", "/./dev/./").into()),
        of_node("A4 Q03", "relative to the bundle", |_| "../../host/dev/nvidia0".into()),
        lie("A5 Q04", "a bind that calls itself tmpfs", Some("tmpfs"), "bind"),
        lie("A5", "a bind that calls itself none", Some("none"), "rbind"),
        lie("A5", "a bind without a type", None, "bind"),
        case("A5 Q05", "the type bind without the option", |_| {
            Spec::new().mount(json!({"destination": "/x", "type": "bind", "source": "/etc/hosts", "options": []}))
        })
        .bare(Bare::Fails)
        .always(Verdict::Fails),
        case("A24", "names that look like a GPU's", |run| {
            let all = Spec::new().bind(&run.tenant("\u{ff4e}vidia0"), "/x", &[]);
            all.bind(&run.tenant("\u{202e}0aidivn"), "/x", &["ro"])
        }),
        case("A25", "a node at a place that is a link, which is not followed", |run| {
            Spec::new().bind(&run.node("nvidia0"), "/x", &["dest-nofollow"])
        })
        // crun makes no such place itself.
        .image(|_, root| root.write("x", b""))
        .brings_a_node()
        .only_on(&[(Place::Crun128, Bare::Exposes)])
        .refused(MOUNT, NODE),
        case("A25 L", "a folder at a place that is not followed", |run| {
            Spec::new().bind(&run.tenant("plain"), "/tmp", &["dest-nofollow"])
        })
        .script("grep -q plain /tmp/file || exit 1")
        .only_on(&[(Place::Crun128, Bare::Closed)]),
        case("A25", "a link that is copied instead of followed", |run| {
            Spec::new().bind(&run.tenant("links/gpu"), "/x", &["copy-symlink"])
        })
        .only_on(&[(Place::Crun128, Bare::Unasked("it makes a link to a path that is not in the container"))])
        .refused(MOUNT, NODE),
        case("A25", "a link as a source that is not followed", |run| {
            Spec::new().bind(&run.tenant("links/gpu"), "/x", &["src-nofollow"])
        })
        .only_on(&[(Place::Crun128, Bare::Unasked("a kernel may refuse to bind a link"))])
        .refused(MOUNT, NODE),
    ]
}

fn magic() -> Vec<Case> {
    let through = |what, start: &'static str| {
        case("A9", what, move |run| bind(format!("{start}{}", shown(&run.node("nvidia0")))))
            .brings_a_node()
            .refused(MOUNT, NODE)
    };
    let holders = |what, rest: &'static str, code, rule| {
        fallible("A9", what, move |run| Ok(bind(format!("/proc/{}/{rest}", run.world.holder(run.by)?))))
            .bare(Bare::Unasked("runtimes differ in what they may still see of the host's processes"))
            .refused(code, rule)
    };
    vec![
        through("the runtime's own root, by a magic link", "/proc/self/root").on(Place::Crun, Bare::Exposes),
        through("the same of its thread", "/proc/thread-self/root"),
        case("A9", "the runtime's working folder, by a magic link", |_| bind("/proc/self/cwd/../../host/dev/nvidia0"))
            .only_on(&[
                (Place::Crun, Bare::Unasked("it depends on where crun stands")),
                (Place::Runc, Bare::Unasked("runc stands elsewhere")),
            ])
            .refused(MOUNT, UNRESOLVABLE),
        case("A9", "a handle of the runtime's", |_| bind("/proc/self/fd/3"))
            .bare(Bare::Unasked("whatever the handle is"))
            .refused(UNSAFE, UNRESOLVABLE),
        holders("a GPU container's root, through its process", "root/dev/nvidia3", MOUNT, NODE),
        holders("a GPU container's /dev, through its process", "root/dev", UNSAFE, UNRESOLVABLE),
    ]
}

fn trees() -> Vec<Case> {
    let once = |options: &'static [&'static str]| {
        move |_: &Run<'_>| {
            Spec::new().mount(json!({"destination": "/t", "type": "bind", "source": "/", "options": options}))
        }
    };
    vec![
        case("A7 Q08", "the node's /dev", |run| tree(run.node(""), &[])).brings_a_node().refused(MOUNT, DEV),
        case("A7", "the machine's /dev", |_| tree("/dev", &[])).script(DEVTMPFS).exposes().refused(MOUNT, DEV),
        case("A7", "a link to the node's /dev", |run| tree(run.tenant("links/dev"), &[])).brings_a_node().refused(MOUNT, DEV),
        case("A8 Q10", "the whole host with everything below, read-only", |_| tree("/", &["ro"]))
            .brings_a_node()
            .always(Verdict::Noted(DEV))
            .hardened(Verdict::Refused(UNSAFE, "mount-procfs")),
        case("A8 Q09", "the host's root file system alone, read-only", once(&["bind", "ro"])).brings_a_node(),
        case("A12 Q13", "a folder of the tenant's with a node deep inside", |run| tree(run.tenant("deep"), &[]))
            .brings_a_node()
            .hardened(Verdict::Noted("mount-nodev")),
        case("A15 Q20", "the driver's root with its nodes", |run| tree(&run.world.site.host.root, &[]))
            .brings_a_node()
            .refused(UNSAFE, RESERVED),
        case("A20", "an idmapped folder with a node", |run| {
            let ids = json!([{"containerID": 0, "hostID": 0, "size": 1000}]);
            Spec::new().mount(json!({
                "destination": "/t", "type": "bind", "source": shown(&run.tenant("deep")), "options": ["rbind", "idmap"],
                "uidMappings": ids, "gidMappings": ids,
            }))
        })
        .brings_a_node()
        .only_on(&[(Place::Crun128, Bare::Exposes)])
        .hardened(Verdict::Noted("mount-nodev")),
        case("A21", "a node that appears in a mounted folder later", |run| tree(&run.trap, &["rslave"]))
            .script("until [ -e /t/go ]; do sleep 0.01; done")
            .drive(late)
            .brings_a_node()
            .always(Verdict::Passes("")),
        case("A34 L", "InfiniBand", |run| {
            bind(run.tenant("uverbs0")).allow('c', Some(231), Some(192), "rwm")
        })
        .script("[ -c /x ] || exit 1"),
    ]
}

/// Makes the node when the container runs already.
fn late(run: &Run<'_>, bundle: &integration::Bundle) -> Result<Outcome> {
    let created = run.runc().create(&run.id, bundle)?;
    if !created.ok() {
        return Ok(not_made(&created));
    }
    node(&run.trap.join("late"), "c", 195, 1)?;
    std::fs::write(run.trap.join("go"), "").map_err(|e| Error::new(e.to_string()))?;
    run.lives(bundle)
}

fn file_systems() -> Vec<Case> {
    vec![
        case("A16", "an overlay over a folder with nodes", |run| {
            Spec::new().mount(json!({
                "destination": "/t", "type": "overlay", "source": "overlay",
                "options": [format!("lowerdir={}:{}", shown(&run.tenant("nodes")), shown(&run.tenant("plain")))],
            }))
        })
        .brings_a_node(),
        case("A17 Q15", "a devtmpfs of its own, which is the host's", |_| mount("devtmpfs", "devtmpfs", &[]))
            .script(DEVTMPFS)
            .exposes()
            .refused(MOUNT, "mount-fstype"),
        case("A17", "an overlay over the machine's /dev", |_| mount("overlay", "overlay", &["lowerdir=/dev:/etc"]))
            .script(DEVTMPFS)
            .bare(Bare::Unasked("kernels differ in what an overlay takes for a layer"))
            .refused(MOUNT, DEV),
        case("A19", "a tmpfs that takes over the image's nodes", |_| {
            Spec::new().mount(json!({
                "destination": "/opt/nodes", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", "mode=755"],
            }))
        })
        .image(|_, root| {
            std::fs::create_dir_all(root.path.join("opt/nodes")).map_err(|e| Error::new(e.to_string()))?;
            node(&root.path.join("opt/nodes/n"), "c", 195, 2)
        })
        .brings_a_node()
        .only_on(&[(Place::Crun128, Bare::Exposes)])
        .hardened(Verdict::Noted("mount-nodev")),
    ]
}

fn unresolvable() -> Vec<Case> {
    let refused = |what, source: fn(&Run<'_>) -> PathBuf| {
        case("A23 Q18", what, move |run| bind(source(run))).bare(Bare::Fails).refused(UNSAFE, UNRESOLVABLE)
    };
    vec![
        case("A23 Q18", "a source that is not there", |run| bind(run.tenant("nothing")))
            .bare(Bare::Fails)
            .always(Verdict::Fails),
        refused("a source that is a loop", |run| run.tenant("links/loop")),
        refused("a source longer than a path may be", |_| format!("/{}", "a/".repeat(3000)).into()),
    ]
}

/// The same in spellings that no list has: what is added behind a mount must land where the mount does.
fn odd() -> Vec<Case> {
    let groups = |what, destination: &'static str, then: Option<serde_json::Value>| {
        case("A31", what, move |_| {
            let spec = Spec::new().bind(std::path::Path::new("/sys/fs/cgroup"), destination, &[]);
            then.iter().cloned().fold(spec, Spec::mount)
        })
        .script(ESCAPE)
        .exposes()
        .always(Verdict::Either)
    };
    let file = "/sys/fs/cgroup/devices/cgroup.procs";
    vec![
        groups("control groups at a place without a slash", "t", None).on(Place::Crun, Bare::Exposes),
        groups("control groups at a place with dots", "/opt/../t/.", None),
        groups("control groups at a place with two slashes", "//t//g//", None),
        groups("control groups behind the image's own link", "/bin/t", None),
        groups(
            "control groups mounted once more to write",
            "/t",
            Some(json!({"destination": "/t/devices", "type": "none", "source": "none", "options": ["remount", "bind", "rw"]})),
        )
        .bare(Bare::Fails)
        .on(Place::Crun, Bare::Fails)
        .standard(Verdict::Refused(UNSAFE, "mount-remount"))
        .hardened(Verdict::Refused(UNSAFE, "mount-sysfs-rw")),
        groups(
            "control groups moved from where they are covered",
            "/t",
            Some(json!({"destination": "/mnt", "type": "none", "source": "/t", "options": ["move"]})),
        )
        .bare(Bare::Fails)
        .on(Place::Crun, Bare::Fails)
        .standard(Verdict::Fails)
        .hardened(Verdict::Refused(UNSAFE, "mount-sysfs-rw")),
        case("A31", "the one file that takes processes in", move |_| bind(file))
            .script("echo 0 >/x 2>/dev/null")
            .exposes()
            .always(Verdict::Either),
        case("A9", "a handle of the runtime's, by /dev", |_| bind("/dev/fd/3"))
            .bare(Bare::Unasked("whatever the handle is"))
            .refused(UNSAFE, UNRESOLVABLE),
        case("A5", "all options in one word", |run| {
            let source = shown(&run.node("nvidia0"));
            Spec::new().mount(json!({"destination": "/x", "type": "none", "source": source, "options": ["rbind,ro"]}))
        })
        .bare(Bare::Fails)
        .on(Place::Crun, Bare::Fails)
        .always(Verdict::Fails),
        case("A12", "a folder with a node, in a user namespace", |run| {
            tree(run.tenant("deep"), &[]).user_namespace(100_000, 65536)
        })
        .brings_a_node()
        .hardened(Verdict::Noted("mount-nodev")),
        case("A16 A30", "an overlay over folders with our record", |run| {
            let above = run.state().ancestors().nth(2).map(shown).unwrap_or_default();
            let options = [format!("lowerdir={above}:{}", shown(&run.tenant("plain")))];
            Spec::new().mount(json!({"destination": "/t", "type": "overlay", "source": "overlay", "options": options}))
        })
        .script("[ -e /t/quilt/state ] || [ -e /t/quilt/config.toml ] && echo LEAK the record and the configuration")
        .exposes()
        .always(Verdict::Either),
    ]
}

/// What quilt-gpu itself relies on.
fn ours() -> Vec<Case> {
    let record = "[ -e /t/leases ] || [ -e /t/state ] || [ -e /t/inventory.json ] && echo LEAK the record; \
         find /t -name config.toml -o -name audit.jsonl 2>/dev/null | grep -q . && echo LEAK the configuration";
    vec![
        case("A30", "the record of who has which GPU", |run| tree(run.state(), &[]))
            .script("[ -w /t ] && echo LEAK it can be written")
            .exposes()
            .refused(UNSAFE, RESERVED),
        case("A30", "the folder with configuration and record", |run| {
            tree(run.state().parent().unwrap_or(&run.trap), &[])
        })
        .script(record)
        .exposes()
        .refused(UNSAFE, RESERVED),
        case("A30", "a folder above them, read-only", |run| {
            tree(run.state().ancestors().nth(2).unwrap_or(&run.trap), &["ro"])
        })
        .script("[ -e /t/quilt/state ] || [ -e /t/quilt/config.toml ] && echo LEAK the record and the configuration")
        .exposes(),
        case("A30", "a folder above them, writable", |run| {
            tree(run.state().ancestors().nth(2).unwrap_or(&run.trap), &[])
        })
        .script("[ -e /t/quilt/state ] || [ -e /t/quilt/config.toml ] && echo LEAK the record and the configuration")
        .exposes()
        .refused(UNSAFE, RESERVED),
        case("A30", "a folder two levels above them, writable", |run| {
            tree(run.state().ancestors().nth(3).unwrap_or(&run.trap), &[])
        })
        .script("find /t -name state 2>/dev/null | grep -q . && echo LEAK the record")
        .exposes()
        .refused(UNSAFE, RESERVED),
        case("A30 CVE-2019-5736", "the folder with our programs, writable", |run| {
            let programs = run.stand.quilt(run.by).programs();
            tree(programs.first().unwrap_or(&run.trap), &[])
        })
        .script("[ -w /t/quilt-gpu-runtime ] || [ -w /t/quilt-gpu ] && echo LEAK our programs can be written")
        .exposes()
        .refused(UNSAFE, RESERVED),
    ]
}
