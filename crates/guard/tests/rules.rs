//! Device rules, each row in both columns, and the lists that are written instead.

mod common;

use common::{By, DENY_ALL, Fake, Spec, both, crun, gpu, hardened, judge, judge_text, verdict};
use contract::rule::{Access, Kind, Rule};
use guard::{LowLevel, Numbers, granted_rules, open_gpus, openable, parse_list_line};

const GPU: &str = "TENANT_GPU_RULE cgroup-gpu-rule";
const WILD: &str = "TENANT_GPU_RULE cgroup-wildcard";
const SHAPE: &str = "UNSAFE_SPEC cgroup-rule-shape";

fn allow(rest: &str) -> String {
    format!(r#"{{"allow":true,{rest}}}"#)
}

fn deny(rest: &str) -> String {
    format!(r#"{{"allow":false,{rest}}}"#)
}

fn texts(rules: &[Rule]) -> Vec<String> {
    let sign = |rule: &Rule| if rule.allow { "allow" } else { "deny" };
    rules.iter().map(|rule| format!("{} {rule}", sign(rule))).collect()
}

const ALL_BUT_GPUS: [&str; 15] = [
    "deny a *:* rwm",
    "allow a *:* rwm",
    "deny c 195:* rwm",
    "deny c 506:* rwm",
    "deny c 507:* rwm",
    "deny c 508:* rwm",
    "deny c 509:* rwm",
    "deny c 510:* rwm",
    "deny c 511:* rwm",
    "deny c 1:1 rwm",
    "deny c 1:2 rwm",
    "deny c 1:4 rwm",
    "deny c 10:196 rwm",
    "deny c 10:259 rwm",
    "deny c 226:0 rwm",
];

#[track_caller]
fn check(spec: &Spec, expected: &str) {
    assert_eq!(both(spec), (expected.to_owned(), expected.to_owned()), "{}", spec.rules);
}

#[test]
fn allows_that_name_a_gpu() {
    for (rule, expected) in [
        (r#""type":"c","major":195,"minor":0,"access":"rwm""#, GPU),
        (r#""type":"c","major":195,"minor":0,"access":"r""#, GPU),
        (r#""type":"c","major":195,"minor":0,"access":"w""#, GPU),
        (r#""type":"c","major":195,"access":"rw""#, GPU),
        (r#""type":"c","major":195,"minor":-1,"access":"rw""#, GPU),
        (r#""type":"c","major":195,"minor":null,"access":"rw""#, GPU),
        (r#""type":"c","major":511,"minor":0,"access":"rw""#, GPU),
        (r#""type":"c","major":226,"minor":0,"access":"rw""#, GPU),
        (r#""type":"c","major":226,"access":"rw""#, GPU),
        (r#""type":"c","major":10,"minor":196,"access":"rw""#, GPU),
        (r#""type":"c","major":10,"access":"rw""#, GPU),
        (r#""type":"c","major":1,"minor":1,"access":"r""#, GPU),
        (r#""type":"c","major":1,"access":"r""#, GPU),
        (r#""type":"c","major":195,"minor":0"#, GPU),
        (r#""type":"c","major":195,"minor":0,"access":null"#, GPU),
        (r#""type":"c","access":"rwm""#, WILD),
        (r#""type":"c","access":"r""#, WILD),
        (r#""type":"c","major":-1,"access":"rw""#, WILD),
        (r#""type":"c","minor":0,"access":"rw""#, WILD),
        (r#""type":"c","major":-7,"minor":300,"access":"w""#, WILD),
        // Look-alikes.
        (r#""type":"c","access":"m""#, "ok"),
        (r#""type":"b","access":"m""#, "ok"),
        (r#""type":"c","major":195,"access":"m""#, "ok"),
        (r#""type":"b","major":195,"access":"rwm""#, "ok"),
        (r#""type":"b","access":"rwm""#, "ok"),
        (r#""type":"c","major":136,"access":"rwm""#, "ok"),
        (r#""type":"c","major":5,"access":"rwm""#, "ok"),
        (r#""type":"c","major":10,"minor":229,"access":"rmw""#, "ok"),
        (r#""type":"c","major":10,"minor":200,"access":"rw""#, "ok"),
        (r#""type":"c","major":226,"minor":1,"access":"rw""#, "ok"),
        (r#""type":"c","major":505,"access":"rw""#, "ok"),
        (r#""type":"c","major":231,"access":"rw""#, "ok"),
        (r#""type":"c","major":1,"minor":5,"access":"rw""#, "ok"),
    ] {
        check(&Spec::rules(&allow(rule)), expected);
    }
    check(&Spec::rules(&deny(r#""type":"c","major":195,"access":"rwm""#)), "ok");
    let split =
        [allow(r#""type":"c","major":195,"access":"r""#), allow(r#""type":"c","major":195,"access":"w""#)].join(",");
    check(&Spec::rules(&split), &format!("{GPU}, {GPU}"));
}

#[test]
fn without_allow_a_rule_denies() {
    let gpu = r#""type":"c","major":195,"minor":0,"access":"rwm""#;
    for rule in [format!("{{{gpu}}}"), format!(r#"{{"allow":null,{gpu}}}"#)] {
        check(&Spec::rules(&rule), "ok");
        assert!(judge(&Spec::rules(&rule), &By::default()).rules.iter().all(|rule| !rule.allow), "{rule}");
    }
    // With letters that are none a runtime may take less away than it says: it counts for nothing.
    let odd = r#"{"allow":false,"type":"c","major":195,"minor":0,"access":"rwa"}"#;
    check(&Spec::rules(odd), "ok");
    check(&Spec::rules(&format!("{},{odd}", allow(gpu))), GPU);
    check(&Spec::rules(&format!(r#"{},{{"allow":false,"access":"rwmx"}}"#, allow(gpu))), GPU);
    // It ends what stands before it, as a deny of everything does.
    check(&Spec::rules(&format!(r#"{},{{"access":"rwm"}}"#, allow(gpu))), "ok");
    check(&Spec::whole_list(r#"[{"access":"rwm"}]"#), "ok");
}

#[test]
fn shapes_that_runtimes_read_differently() {
    for (rule, expected) in [
        (r#"{"allow":"true","type":"c","access":"m"}"#, SHAPE),
        (r#"{"allow":0,"type":"c","access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"d","access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"","access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"cb","access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":1,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","access":"x"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","access":"R"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","access":"mmmr"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","access":5}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":1.0,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":1.95e2,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":"195","access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":4096,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":4294967491,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":18446744073709551811,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","major":1,"minor":1048576,"access":"m"}"#, SHAPE),
        (r#"{"allow":true,"type":"c","access":"m","file":"x"}"#, "UNSAFE_SPEC json-unknown"),
        ("7", SHAPE),
        ("null", SHAPE),
        ("[]", SHAPE),
        (r#"{"allow":true,"type":"c","major":4095,"minor":1048575,"access":"m"}"#, "ok"),
    ] {
        check(&Spec::rules(rule), expected);
    }
    assert_eq!(both(&Spec::whole_list(r#"{"0":{}}"#)).0, "UNSAFE_SPEC spec-shape");
    for (rule, at, value) in [
        (r#"{"allow":true,"type":"c","major":4096,"access":"m"}"#, "/major", "4096"),
        (r#"{"allow":"true","type":"c","access":"m"}"#, "/allow", "true"),
        (r#"{"allow":true,"type":false,"access":"m"}"#, "/type", "false"),
        (r#"{"allow":true,"type":["c"],"access":"m"}"#, "/type", ""),
        (r#"{"allow":true,"type":"d","access":"m"}"#, "/type", "d"),
    ] {
        let refusal = &judge(&Spec::rules(rule), &By::default()).refusals[0];
        let expected = (format!("/linux/resources/devices/1{at}"), value);
        assert_eq!((refusal.at.clone(), refusal.value.as_str()), expected, "{rule}");
    }
    let many = vec![DENY_ALL; 4097].join(",");
    assert_eq!(both(&Spec::rules(&many)).0, "UNSAFE_SPEC spec-size");
}

/// What a deny takes from an allow of the tenant's: its letters, from what it matches of the same kind.
#[test]
fn denies_of_the_tenants_take_letters() {
    let tenant = |denied: &str| {
        let deny = Rule { allow: false, ..parse_list_line(denied).unwrap() };
        let list = [parse_list_line("c 10:229 rwm").unwrap(), deny];
        let written = granted_rules(&list, &[], &Numbers::read(&Fake::default()).unwrap());
        texts(&written).split_off(1)
    };
    for (denied, left) in [
        ("c 10:229 w", &["allow c 10:229 rm"][..]),
        ("c 10:* rw", &["allow c 10:229 m"]),
        ("c *:229 rwm", &[]),
        ("a *:* rwm", &[]),
        ("b 10:229 rwm", &["allow c 10:229 rwm"]),
        ("c 10:230 rwm", &["allow c 10:229 rwm"]),
    ] {
        assert_eq!(tenant(denied), left, "{denied}");
    }
}

/// Lists that one reading alone leaves open, so that no other one makes up for it.
#[test]
fn each_reading_alone_opens() {
    let list = |lines: &[(bool, &str)]| -> Vec<Rule> {
        let one = |(allow, line): &(bool, &str)| Rule { allow: *allow, ..parse_list_line(line).unwrap() };
        lines.iter().map(one).collect()
    };
    let (allow, deny) = (true, false);
    for (lines, expected) in [
        // The first that matches, in a list without a default and behind one.
        (&[(allow, "c 195:0 rw"), (deny, "c 195:0 rwm")][..], true),
        (&[(deny, "a *:* rwm"), (allow, "c 195:0 rw"), (deny, "c 195:0 rwm")], true),
        // The last.
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:0 rw")], true),
        // Exceptions: only the same two numbers take one away, wild ones being numbers too.
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:0 rw"), (deny, "c 195:* rwm")], true),
        (&[(deny, "c 195:* rwm"), (allow, "c 195:0 rw"), (deny, "c *:0 rwm")], true),
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:* rw"), (deny, "c *:* rwm")], true),
        (&[(deny, "c 195:0 rwm"), (allow, "c *:0 rw"), (deny, "c *:* rwm")], true),
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:* rw"), (deny, "c *:0 rwm")], true),
        // None.
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:0 rw"), (deny, "c 195:0 rwm")], false),
        (&[(deny, "c 195:0 rwm"), (allow, "c 195:* rw"), (deny, "c 195:* rwm")], false),
        (&[(deny, "c 195:* rwm"), (allow, "c *:0 rw"), (deny, "c *:0 rwm")], false),
    ] {
        assert_eq!(openable(&list(lines), 195, 0), expected, "{lines:?}");
    }
}

#[test]
fn rules_before_the_last_deny_of_everything_do_not_count() {
    // Engines write lists twice.
    let twice = format!(
        r#"{},{DENY_ALL},{}"#,
        allow(r#""type":"c","major":1,"minor":3,"access":"rwm""#),
        allow(r#""type":"c","major":1,"minor":3,"access":"rwm""#)
    );
    check(&Spec::rules(&twice), "ok");
    assert_eq!(judge(&Spec::rules(&twice), &crun()).changes.rules, None);
    let dead = format!("{},{DENY_ALL}", allow(r#""type":"c","major":195,"access":"rw""#));
    check(&Spec::whole_list(&format!("[{dead}]")), "ok");
    // A deny of everything that some runtime reads as less does not end a list.
    for less in
        [r#""access":"r""#, r#""type":"a","major":1,"access":"rwm""#, r#""type":"c","access":"rwm""#, r#""type":"a""#]
    {
        let list = format!("{},{}", allow(r#""type":"c","major":195,"access":"rw""#), deny(less));
        check(&Spec::rules(&list), GPU);
    }
    // Nor does a deny of the same number: some runtimes look from the top.
    let taken_back = format!(
        "{},{}",
        allow(r#""type":"c","major":195,"minor":0,"access":"rw""#),
        deny(r#""type":"c","major":195,"access":"rwm""#)
    );
    check(&Spec::rules(&taken_back), GPU);
}

#[test]
fn everything_becomes_everything_but_gpus() {
    let expected: Vec<&str> = ALL_BUT_GPUS.iter().copied().chain(["deny c 226:9 rwm", "deny c 226:128 rwm"]).collect();
    for list in [
        r#"[{"allow":true,"access":"rwm"}]"#.to_owned(),
        r#"[{"allow":true,"type":"a","access":"r"}]"#.to_owned(),
        r#"[{"allow":true,"type":"a","major":5,"access":"r"}]"#.to_owned(),
        r#"[{"allow":true}]"#.to_owned(),
        format!(
            r#"[{DENY_ALL},{{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}},{{"allow":true,"access":"rwm"}}]"#
        ),
        format!(r#"[{{"allow":true,"access":"rwm"}},{}]"#, deny(r#""type":"c","major":195,"access":"rwm""#)),
    ] {
        for by in [By::default(), crun()] {
            let judgement = judge(&Spec::whole_list(&list), &by);
            assert_eq!(verdict(&judgement), "ok", "{list}");
            assert_eq!(texts(judgement.changes.rules.as_deref().unwrap_or_default()), expected, "{list}");
            assert_eq!(judgement.notes.iter().filter(|note| note.rule == "cgroup-canon").count(), 1);
            let numbers = judgement.gpus.unwrap();
            assert_eq!(open_gpus(&judgement.changes.rules.unwrap(), &numbers, &[]), None);
        }
        assert_eq!(verdict(&judge(&Spec::whole_list(&list), &gpu())), WILD);
        assert_eq!(verdict(&judge(&Spec::whole_list(&list), &hardened())), WILD);
    }
    let dead = format!(r#"[{{"allow":true,"access":"rwm"}},{DENY_ALL}]"#);
    assert_eq!(judge(&Spec::whole_list(&dead), &crun()).changes.rules, None);
}

#[test]
fn our_own_list_is_left_alone() {
    let rule = |text: &String| {
        let (sign, rest) = text.split_once(' ').unwrap();
        let parsed = parse_list_line(rest).unwrap();
        let number = |n: Option<u32>| n.map_or("-1".to_owned(), |n| n.to_string());
        let kind = if parsed.kind == Kind::All { "a" } else { "c" };
        let (major, minor) = (number(parsed.major), number(parsed.minor));
        format!(r#"{{"allow":{},"type":"{kind}","major":{major},"minor":{minor},"access":"rwm"}}"#, sign == "allow")
    };
    let first = judge(&Spec::privileged(), &By::default()).changes.rules.unwrap();
    let list: Vec<String> = texts(&first).iter().map(rule).collect();
    let again = judge(&Spec { rules: format!("[{}]", list.join(",")), ..Spec::privileged() }, &By::default());
    assert_eq!((verdict(&again).as_str(), &again.changes.rules), ("ok", &None));
}

/// GHSA-g54h-m393-cpwq: a list without a deny of everything was a list of exceptions. runc has started from closed since
/// 1.0.0-rc91; other runtimes still do not.
#[test]
fn a_list_that_does_not_begin_closed() {
    let null = r#"{"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}"#;
    for (list, then) in [
        ("[]".to_owned(), vec![]),
        ("null".to_owned(), vec![]),
        (format!("[{null}]"), vec!["allow c 1:3 rwm"]),
        (r#"[{"allow":false,"type":"c"}]"#.to_owned(), vec![]),
    ] {
        let written: Vec<&str> = ["deny a *:* rwm"].into_iter().chain(then).collect();
        let spec = Spec::whole_list(&list);
        assert_eq!(judge(&spec, &By::default()).changes.rules, None, "runc: {list}");
        for low_level in [LowLevel::Crun, LowLevel::Other] {
            let by = By { low_level, ..By::default() };
            let judgement = judge(&spec, &by);
            assert_eq!(verdict(&judgement), "ok");
            assert_eq!(texts(&judgement.changes.rules.unwrap()), written, "{list}");
            // In a user namespace no filter can be attached: nothing to write, worth a note.
            let fake = Fake { first_namespace: false, ..Fake::default() };
            let judgement = judge_text(&spec.text(), &by, &fake);
            assert_eq!((verdict(&judgement).as_str(), &judgement.changes.rules), ("ok", &None));
            assert!(judgement.notes.iter().any(|note| note.rule == "cgroup-no-filter"));
            // With a contract the whole list is written anyway.
            assert_eq!(judge(&spec, &By { gpu: true, low_level, ..By::default() }).changes.rules, None);
        }
    }
    let nothing = r#"{"linux":{"namespaces":[{"type":"mount"}]}}"#;
    let judgement = judge_text(nothing, &crun(), &Fake::default());
    assert_eq!(judgement.changes.rules, Some(vec![Rule::DENY_ALL]));
    assert_eq!(judge(&Spec::default(), &crun()).changes.rules, None);
}

#[test]
fn a_contracts_list() {
    let numbers = Numbers::read(&Fake::default()).unwrap();
    let c = |major: u32, minor: Option<u32>, access: Access| Rule {
        allow: true,
        kind: Kind::Char,
        major: Some(major),
        minor,
        access,
    };
    let make = Access { make: true, ..Access::default() };
    let any = |kind, access| Rule { allow: true, kind, major: None, minor: None, access };
    let tenant = [
        c(5, None, Access::ALL),
        Rule::DENY_ALL,
        c(1, Some(3), Access::ALL),
        c(1, Some(3), Access::ALL),
        any(Kind::Char, make),
        any(Kind::Block, make),
        any(Kind::Block, Access::ALL),
        any(Kind::Char, Access::OPEN),
        Rule::ALLOW_ALL,
        c(195, None, make),
        c(195, Some(1), Access::ALL),
        c(10, None, Access::ALL),
        c(10, Some(229), Access::ALL),
        c(505, None, Access::ALL),
        Rule::deny_char(505, Some(1)),
        Rule::deny_char(10, Some(231)),
        c(136, None, Access::ALL),
    ];
    let list = granted_rules(&tenant, &[(195, 0), (195, 255), (511, 0), (195, 0)], &numbers);
    assert_eq!(
        texts(&list),
        [
            "deny a *:* rwm",
            "allow c 1:3 rwm",
            "allow b *:* m",
            "allow b *:* rwm",
            "allow c 10:229 rwm",
            "allow c 136:* rwm",
            "allow c 195:0 rw",
            "allow c 195:255 rw",
            "allow c 511:0 rw",
        ]
    );
    assert_eq!(open_gpus(&list, &numbers, &[(195, 0), (195, 255), (511, 0)]), None);
    assert_eq!(open_gpus(&list, &numbers, &[(195, 0), (511, 0)]).as_deref(), Some("character device 195:255"));
    assert_eq!(texts(&granted_rules(&[], &[], &numbers)), ["deny a *:* rwm"]);
    // Engines let every node be made.
    let made = granted_rules(&[any(Kind::Char, make)], &[], &numbers);
    assert_eq!(texts(&made), ["deny a *:* rwm", "allow c *:* m"]);
}

#[test]
fn live_lists() {
    for (line, expected) in [
        ("c 195:0 rw", Some("c 195:0 rw")),
        ("a *:* rwm", Some("a *:* rwm")),
        ("b 8:* r", Some("b 8:* r")),
        ("c *:* m\n", Some("c *:* m")),
        ("c 195 rw", None),
        ("c 195:0", None),
        ("x 195:0 rw", None),
        ("c 195:0 rw more", None),
        ("c a:0 rw", None),
        ("", None),
    ] {
        assert_eq!(parse_list_line(line).map(|rule| rule.to_string()).as_deref(), expected, "{line}");
    }
    let numbers = Numbers::read(&Fake::default()).unwrap();
    let live = |lines: &[&str]| lines.iter().filter_map(|line| parse_list_line(line)).collect::<Vec<_>>();
    let fine = live(&["c 1:3 rwm", "c *:* m", "b *:* m", "c 136:* rwm", "c 195:0 rw", "c 195:255 rw"]);
    assert_eq!(open_gpus(&fine, &numbers, &[(195, 0), (195, 255)]), None);
    assert_eq!(open_gpus(&fine, &numbers, &[(195, 255)]).as_deref(), Some("character device 195:0"));
    assert_eq!(open_gpus(&live(&["a *:* rwm"]), &numbers, &[]).as_deref(), Some("character device 195:0"));
    assert!(open_gpus(&live(&["c 226:* r"]), &numbers, &[]).is_some());
    assert!(open_gpus(&live(&["c 226:1 rw"]), &numbers, &[]).is_none());
}

/// `allow 195:0; deny 195:*` and its like, where readings part.
#[test]
fn readings_part() {
    let open = Rule::open_char(195, 0);
    let same = Rule { allow: false, ..open };
    for (list, expected) in [
        (vec![Rule::DENY_ALL, open], true),
        (vec![Rule::DENY_ALL, open, Rule::deny_char(195, None)], true),
        (vec![Rule::DENY_ALL, open, same], true),
        (vec![Rule::DENY_ALL, same, open], true),
        (vec![Rule::DENY_ALL, open, Rule::DENY_ALL], false),
        (vec![Rule::ALLOW_ALL, Rule::deny_char(195, None)], false),
        (vec![Rule::ALLOW_ALL, Rule::deny_char(195, None), Rule::open_char(195, 1)], false),
        (vec![Rule::ALLOW_ALL, Rule::deny_char(195, None), open], true),
        (
            vec![
                Rule::ALLOW_ALL,
                Rule { access: Access { read: true, ..Access::default() }, ..Rule::deny_char(195, None) },
            ],
            true,
        ),
        (vec![], false),
    ] {
        assert_eq!(openable(&list, 195, 0), expected, "{:?}", texts(&list));
    }
}

#[test]
fn the_drivers_are_asked_for_only_when_they_decide() {
    let asked = |spec: &Spec| {
        let fake = Fake::default();
        judge_text(&spec.text(), &By::default(), &fake);
        (fake.count("majors"), fake.count("vendor") > 0)
    };
    assert_eq!(asked(&Spec::default()), (0, false));
    assert_eq!(asked(&Spec::rules(&allow(r#""type":"c","access":"rw""#))), (0, false));
    assert_eq!(asked(&Spec::rules(&allow(r#""type":"c","major":10,"minor":229,"access":"rw""#))), (0, false));
    assert_eq!(asked(&Spec::rules(&allow(r#""type":"c","major":505,"access":"rw""#))), (1, false));
    assert_eq!(asked(&Spec::rules(&allow(r#""type":"c","major":226,"minor":1,"access":"rw""#))), (0, true));
    assert_eq!(asked(&Spec::privileged()), (1, true));
}

#[test]
fn without_an_answer_everything_cannot_be_narrowed() {
    let fake = Fake { majors: Err("cannot read /proc/devices".into()), ..Fake::default() };
    let judgement = judge_text(&Spec::privileged().text(), &By::default(), &fake);
    assert_eq!(verdict(&judgement), "INTERNAL numbers-unreadable");
    assert_eq!(verdict(&judge_text(&Spec::default().text(), &By::default(), &fake)), "ok");
}
