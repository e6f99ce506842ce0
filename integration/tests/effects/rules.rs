//! Section C: device rules and the place in the control groups. On both versions, as each reads lists in its own way.

use integration::Spec;
use serde_json::{Value, json};

use crate::case::{Bare, Case, Verdict, at, case, fallible, put, without};
use crate::mounts::ESCAPE;
use crate::world::{Place, World};

const RULE: &str = "TENANT_GPU_RULE";
const UNSAFE: &str = "UNSAFE_SPEC";
const WILDCARD: &str = "cgroup-wildcard";
const GPU: &str = "cgroup-gpu-rule";

pub(crate) fn cases() -> Vec<Case> {
    [open(), orders(), lists(), groups(), places()].into_iter().flatten().collect()
}

/// A rule that opens GPUs under runc, whatever the version.
fn opens(ids: &'static str, what: &'static str, rule: fn() -> Value) -> Case {
    case(ids, what, move |_| Spec::new().rule(rule())).exposes().on(Place::Runc2, Bare::Exposes)
}

fn open() -> Vec<Case> {
    let c = |ids, what, rule: fn() -> Value, name| opens(ids, what, rule).refused(RULE, name);
    let all = |ids, what, rule: fn() -> Value| {
        opens(ids, what, rule)
            .standard(Verdict::Noted("cgroup-canon"))
            .asking(Verdict::Refused(RULE, WILDCARD))
            .hardened(Verdict::Refused(RULE, WILDCARD))
    };
    vec![
        all("C1 Q34", "a rule without type or number", || json!({"allow": true, "access": "rwm"})),
        all("C1", "a rule for all types to read", || json!({"allow": true, "type": "a", "access": "r"})),
        c("C2", "all character devices", || json!({"allow": true, "type": "c", "access": "rwm"}), WILDCARD),
        c(
            "C2 Q35",
            "a major of -1",
            || json!({"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw"}),
            WILDCARD,
        ),
        c("C2", "a major alone", || json!({"allow": true, "type": "c", "major": 195, "access": "rw"}), GPU),
        c(
            "C3 Q35",
            "all of a GPU's major",
            || json!({"allow": true, "type": "c", "major": 195, "minor": -1, "access": "rwm"}),
            GPU,
        ),
        c(
            "C3",
            "one GPU, to read",
            || json!({"allow": true, "type": "c", "major": 195, "minor": 0, "access": "r"}),
            GPU,
        ),
        c("C3", "the memory node's major", || json!({"allow": true, "type": "c", "major": 511, "access": "rw"}), GPU),
        c(
            "C4 Q35",
            "all majors with one minor",
            || json!({"allow": true, "type": "c", "minor": 0, "access": "rw"}),
            WILDCARD,
        ),
    ]
}

/// A rule for a GPU's major, or one GPU.
fn rule(allow: bool, minor: Option<u64>, access: &str) -> Value {
    let mut rule = json!({"allow": allow, "type": "c", "major": 195, "access": access});
    if let Some(minor) = minor {
        rule["minor"] = minor.into();
    }
    rule
}

/// On every low-level runtime, as each reads lists in its own way.
fn on_all(ids: &'static str, what: &'static str, rules: fn() -> Vec<Value>) -> Case {
    let either = Bare::Unasked("runtimes read lists in different ways");
    let places = [Place::Runc, Place::Runc2, Place::Crun, Place::Crun2, Place::Youki].map(|place| (place, either));
    case(ids, what, move |_| rules().into_iter().fold(Spec::new(), Spec::rule)).only_on(&places)
}

/// More than one rule for one number.
fn orders() -> Vec<Case> {
    vec![
        on_all("C5", "reading and writing in two rules", || vec![rule(true, Some(0), "r"), rule(true, Some(0), "w")])
            .on(Place::Runc, Bare::Exposes)
            .on(Place::Runc2, Bare::Exposes)
            .refused(RULE, GPU),
        on_all("C6", "one GPU allowed, then its major denied", || {
            vec![rule(true, Some(0), "rw"), rule(false, None, "rwm")]
        })
        .on(Place::Runc, Bare::Exposes)
        .refused(RULE, GPU),
        on_all("C6", "everything allowed, then one GPU denied", || {
            vec![json!({"allow": true, "access": "rwm"}), rule(false, Some(0), "rwm")]
        })
        .standard(Verdict::Noted("cgroup-canon"))
        .asking(Verdict::Refused(RULE, WILDCARD))
        .hardened(Verdict::Refused(RULE, WILDCARD)),
        on_all("C6", "one GPU denied, then allowed", || vec![rule(false, Some(0), "rwm"), rule(true, Some(0), "rwm")])
            .on(Place::Runc, Bare::Exposes)
            .refused(RULE, GPU),
        case("C16", "a rule that denies what is granted", |_| Spec::new().rule(rule(false, None, "rwm")))
            .on(Place::Runc2, Bare::Closed),
    ]
}

fn lists() -> Vec<Case> {
    let odd = |what, rule: fn() -> Vec<Value>| on_all("C9", what, rule).refused(RULE, GPU);
    let unread = |what, rule: fn() -> Vec<Value>| on_all("C9", what, rule).refused(UNSAFE, "cgroup-rule-shape");
    let empty = |what, list: Option<Value>| {
        case("C7 Q36 GHSA-g54h-m393-cpwq", what, move |_| match &list {
            Some(list) => at("/linux/resources/devices", list.clone()),
            None => at("/linux/resources", json!({})),
        })
        .only_on(&[
            (Place::Runc, Bare::Closed),
            (Place::Runc2, Bare::Closed),
            (Place::Crun, Bare::Unasked("it depends on the release")),
            (Place::Crun2, Bare::Exposes),
            (Place::Youki, Bare::Unasked("it depends on how it was built")),
        ])
    };
    vec![
        empty("an empty list", Some(json!([]))),
        empty("no resources at all", None),
        case("C8 CVE-2020-2023", "nodes may be made, not opened", |_| Spec::new().allow('c', None, None, "m"))
            .script("mknod /tmp/c8-$$ c 195 0 && rm /tmp/c8-$$ || true")
            .on(Place::Runc2, Bare::Closed)
            .hardened(Verdict::Noted("cap-mknod")),
        case("C9", "a number that is none", |_| {
            Spec::new()
                .rule(json!({"allow": true, "type": "c", "major": 4_294_967_491_u64, "minor": 0, "access": "rw"}))
        })
        .bare(Bare::Unasked("it may wrap round to a GPU's"))
        .on(Place::Runc2, Bare::Unasked("the same"))
        .on(Place::Crun, Bare::Unasked("the same"))
        .refused(UNSAFE, "cgroup-rule-shape"),
        odd("a rule for a GPU without letters", || vec![json!({"allow": true, "type": "c", "major": 195, "minor": 0})]),
        odd("a rule for a GPU with no letter", || vec![rule(true, Some(0), "")]),
        unread("a rule for a GPU in large letters", || {
            vec![json!({"allow": true, "type": "C", "major": 195, "minor": 0, "access": "RW"})]
        }),
        unread("a rule for an unbuffered device", || {
            vec![json!({"allow": true, "type": "u", "major": 195, "minor": 0, "access": "rw"})]
        })
        .on(Place::Crun2, Bare::Exposes),
        without("C13", "a low-level runtime that attaches no filter, and says nothing", "youki_without_programs"),
        without("C13 Q38", "one that cannot attach any, and fails only then", "lists_of_youki"),
        without(
            "C14",
            "systemd applies a unit's devices again: it needs systemd as the first process, which no test machine has",
            None,
        ),
    ]
}

/// Where in the control groups a container is.
fn places() -> Vec<Case> {
    let machine = Bare::Unasked("it would change a group that is not the test's");
    vec![
        case("C10 Q39", "the top of the control groups", |_| at("/linux/cgroupsPath", "/".into()))
            .bare(machine)
            .on(Place::Runc2, machine)
            .refused(UNSAFE, "cgroup-path"),
        case("C10 Q39", "a group with dots in its path", |_| at("/linux/cgroupsPath", "/a/../b".into()))
            .bare(machine)
            .on(Place::Runc2, machine)
            .refused(UNSAFE, "cgroup-path"),
        fallible("C10 Q39", "the group of a container with a GPU", |run| {
            run.world.holder(run.by)?;
            Ok(Spec::new().cgroup(&run.world.cgroup(World::holder_of(run.by))))
        })
        .bare(machine)
        .refused(UNSAFE, "cgroup-path"),
        fallible("C10", "a group below that of a container with a GPU", |run| {
            run.world.holder(run.by)?;
            let above = run.world.cgroup(World::holder_of(run.by));
            Ok(Spec::new().cgroup(&format!("{above}/{}", run.id)))
        })
        .bare(machine)
        .refused(UNSAFE, "cgroup-path"),
        case("C10", "a group by another name than the container's", |run| {
            let name = run.world.cgroup(&format!("other-{}", run.world.next()));
            Spec::new().cgroup(&name)
        })
        .hardened(Verdict::Refused(UNSAFE, "cgroup-path")),
    ]
}

/// What it can do with those that it sees.
fn groups() -> Vec<Case> {
    let unified = |what, key: &'static str| {
        case("C15", what, move |_| at("/linux/resources/unified", json!({key: "1"})))
            .only_on(&[(Place::Runc2, Bare::Unasked("it moves processes of the machine"))])
            .refused(UNSAFE, "cgroup-unified")
    };
    vec![
        case("C11", "control groups that it may write, in the host's namespace", |_| {
            Spec::new().mount(json!({
                "destination": "/t", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "nodev"],
            }))
        })
        .script(ESCAPE)
        .bare(Bare::Closed)
        .on(Place::Runc2, Bare::Exposes)
        .always(Verdict::Either),
        case("C11", "the same with the right to change filters", |_| {
            let entry = json!({"destination": "/t", "type": "cgroup", "source": "cgroup", "options": ["nosuid"]});
            Spec::new().mount(entry).capability("CAP_SYS_ADMIN")
        })
        .script("echo a >/t/devices/devices.allow 2>/dev/null")
        .exposes()
        .always(Verdict::Unbounded("cap"))
        .hardened(Verdict::Refused(UNSAFE, "cap")),
        case("C12 CVE-2024-3154", "devices of the systemd unit", |_| {
            let spec = Spec::new().annotation("org.systemd.property.DeviceAllow", "[('char-nvidia', 'rwm')]");
            spec.annotation("org.systemd.property.DevicePolicy", "'auto'")
        })
        .refused(UNSAFE, "annotation-low-level"),
        unified("processes as a limit", "cgroup.procs"),
        unified("a file of another group as a limit", "../x/memory.max"),
        case("C15 L", "limits that version 2 knows", |_| {
            put(Spec::new(), "/linux/resources/unified", json!({"hugetlb.2MB.max": "2097152"}))
        })
        .only_on(&[(Place::Runc2, Bare::Closed)]),
    ]
}
