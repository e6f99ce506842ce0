use super::*;
use crate::testing::World;

fn lease(holder: HeldBy) -> Lease {
    Lease::new(
        &Granted { pci: "0000:01:00.0".into(), uuid: None, minor: Some(0), partition: None },
        &holder,
        "boot-1",
        1,
    )
}

fn container(cgroup: Option<&str>) -> Lease {
    lease(HeldBy::Container {
        container: "c".into(),
        state_root: "/r".into(),
        low_level: "runc".into(),
        cgroup: cgroup.map(str::to_owned),
        pid: 5,
        start: 6,
        made: None,
        pod: None,
        owner: None,
        sharing: None,
    })
}

#[test]
fn a_container_is_gone_only_when_nothing_is_left() {
    let world = World::new();
    let judge = |lease: &Lease| standing(lease, Token::Void, &world);
    let held = |lease: &Lease, words: &str| match judge(lease) {
        Standing::Held(why) => assert!(why.contains(words), "{why:?} does not say {words:?}"),
        Standing::Gone(why) => panic!("gone: {why}"),
    };
    let with = container(Some("/box/c"));
    assert!(matches!(judge(&with), Standing::Gone(_)));
    held(&container(None), "cgroup is not known");
    let mut unknown = with.clone();
    if let HeldBy::Container { start, .. } = &mut unknown.holder {
        *start = 0;
    }
    held(&unknown, "cannot be told whether its create, process 5");
    world.with(|w| w.alive.insert(5));
    held(&with, "process 5");
    world.with(|w| (w.alive.clear(), w.folders.insert("/r/c".into())));
    held(&with, "state folder /r/c exists");
    world.with(|w| (w.folders.clear(), w.busy_cgroups.insert("/box/c".into())));
    held(&with, "processes are left in its cgroup /box/c");
    world.with(|w| w.blind = true);
    held(&with, "cannot be told");
    world.with(|w| w.boot = Err("no proc".into()));
    held(&with, "no proc");
    world.with(|w| w.boot = Ok("boot-2".into()));
    assert!(matches!(judge(&with), Standing::Gone(_)), "another boot ends it, whatever else is unknown");
}

/// A user's folder is not looked at, and no cgroup is theirs alone: the broker's leases rest on processes.
#[test]
fn a_user_without_root_has_gpus_as_long_as_a_process_lives() {
    let world = World::new();
    let mut lease = container(None);
    let HeldBy::Container { state_root, .. } = &mut lease.holder else { panic!() };
    *state_root = crate::store::users_root(1000, "/r");
    assert!(lease.holder.is_rootless() && !container(None).holder.is_rootless());
    let HeldBy::Container { made, .. } = &mut lease.holder else { panic!() };
    *made = Some(Made { init: Some((8, 9)), ..Made::here(&world) });
    let judge = || match standing(&lease, Token::Void, &world) {
        Standing::Held(why) | Standing::Gone(why) => why,
    };
    world.with(|w| (w.folders.insert("/r/c".into()), w.folders.insert("uid:1000:/r/c".into())));
    assert_eq!(judge(), "its create and its first process ended");
    for (pid, words) in [(5, "its create still runs"), (8, "its first process 8 is there")] {
        world.with(|w| w.alive = [pid].into());
        assert!(judge().contains(words), "{}", judge());
    }
}

#[test]
fn who_sees_another_world_cannot_say_that_a_container_is_gone() {
    let world = World::new();
    let judge = |lease: &Lease| standing(lease, Token::Void, &world);
    let made_here = |draining: bool, init| {
        let made = Some(Made { init, ..Made::here(&world) });
        let mut lease = container(Some("/box/c"));
        match &mut lease.holder {
            HeldBy::Container { made: old, .. } if !draining => *old = made,
            holder => {
                *holder =
                    HeldBy::Draining { container: "c".into(), cgroup: "/box/c".into(), made, pod: None, owner: None }
            }
        }
        Lease::parse(&serde_json::to_vec(&lease).unwrap()).unwrap()
    };
    for draining in [false, true] {
        let (early, begun) = (made_here(draining, None), made_here(draining, Some((9, 7))));
        for (namespaces, held, words) in [
            ((1, 2), false, ""),
            ((3, 2), true, "pid namespace 1"),
            ((1, 3), true, "cgroup namespace 2"),
            ((0, 2), true, "pid namespace 1"),
            ((1, 0), true, "cgroup namespace 2"),
        ] {
            world.with(|w| w.namespaces = namespaces);
            for lease in [&early, &begun] {
                let standing = judge(lease);
                assert_eq!(matches!(standing, Standing::Held(_)), held, "{namespaces:?} {standing:?}");
                assert!(!held || format!("{standing:?}").contains(words), "{standing:?}");
            }
        }
        // Neither its folder nor its cgroup are seen, but it.
        world.with(|w| (w.namespaces = (1, 2), w.alive.insert(9)));
        assert!(format!("{:?}", judge(&begun)).contains("first process 9"));
        assert!(matches!(judge(&early), Standing::Gone(_)));
        world.with(|w| (w.alive.clear(), w.boot = Ok("boot-2".into()), w.namespaces = (3, 3)));
        assert!(matches!(judge(&begun), Standing::Gone(_)), "another boot ends it for everybody");
        world.with(|w| (w.boot = Ok("boot-1".into()), w.namespaces = (1, 2)));
    }
}

#[test]
fn an_engine_that_goes_on_does_not_keep_what_it_never_created() {
    let world = World::new();
    world.with(|w| w.alive.insert(5));
    let of = |until, init| {
        let mut lease = container(Some("/box/c"));
        if let HeldBy::Container { made, .. } = &mut lease.holder {
            *made = Some(Made { until, init, ..Made::here(&world) });
        }
        Lease::parse(&serde_json::to_vec(&lease).unwrap()).unwrap()
    };
    let is_held = |lease: &Lease| matches!(standing(lease, Token::Void, &world), Standing::Held(_));
    let (patient, waited_for, begun) = (of(None, None), of(Some(1060), None), of(Some(1060), Some((9, 7))));
    world.with(|w| (w.seconds = 1059, w.alive.insert(9)));
    assert!(is_held(&patient) && is_held(&waited_for) && is_held(&begun));
    world.with(|w| w.seconds = 1060);
    assert!(is_held(&patient) && !is_held(&waited_for) && is_held(&begun));
    world.with(|w| w.busy_cgroups.insert("/box/c".into()));
    assert!(is_held(&waited_for), "somebody is there");
    world.with(|w| (w.busy_cgroups.clear(), w.alive.remove(&9)));
    assert!(!is_held(&begun));
}

#[test]
fn names_and_reservations_end_their_own_way() {
    let world = World::new();
    let by_name = lease(HeldBy::Name { name: "vm:a".into() });
    assert!(matches!(standing(&by_name, Token::Void, &world), Standing::Held(_)));
    let reserved = lease(HeldBy::Reservation { until: 1030, pod: None, seconds: None, owner: None });
    assert_eq!(standing(&reserved, Token::Open, &world), Standing::Held("reserved for 30 s more".into()));
    assert!(matches!(standing(&reserved, Token::Void, &world), Standing::Gone(_)), "without its promise");
    world.with(|w| w.seconds = 1030);
    assert!(matches!(standing(&reserved, Token::Open, &world), Standing::Gone(_)), "at its end");
    world.with(|w| w.boot = Ok("boot-2".into()));
    assert!(matches!(standing(&by_name, Token::Void, &world), Standing::Gone(_)));
}

#[test]
fn newer_fields_are_ignored_and_other_layouts_are_not_judged() {
    let lease = container(Some("/x"));
    let mut value = serde_json::to_value(&lease).unwrap();
    value["colour"] = "blue".into();
    value["holder"]["container"]["mood"] = 1.into();
    assert_eq!(Lease::parse(value.to_string().as_bytes()).unwrap(), lease);
    value["holder"]["container"].as_object_mut().unwrap().remove("made");
    assert_eq!(Lease::parse(value.to_string().as_bytes()).unwrap(), lease, "of an earlier version");
    value["version"] = 2.into();
    assert!(Lease::parse(value.to_string().as_bytes()).unwrap_err().contains("layout 2"));
    assert!(Lease::parse(b"").unwrap_err().contains("cannot be read"));
}

#[test]
fn file_names() {
    let name = Name::parse("0000:01:00.0@r-00ff").unwrap();
    assert_eq!((name.slot.as_str(), name.token()), ("0000:01:00.0", Some("00ff")));
    assert_eq!(Name::parse("0000:01:00.0@00ff").unwrap().token(), None);
    assert_eq!(Name::parse("stray"), None);
}
