//! Command lines, as tables.

use super::*;

fn read(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').filter(|w| !w.is_empty()).collect();
    match parse(&words) {
        Ok(Parsed::Pass) => "pass".into(),
        Ok(Parsed::Ours(call)) => format!(
            "{} {} bundle={} root={:?} clear={}",
            call.verb.name(),
            call.id,
            call.bundle(),
            call.value("root"),
            call.clear
        ),
        Err(refusal) => format!("refused {} {}", refusal.at, refusal.value),
    }
}

#[test]
fn what_engines_send() {
    for (line, expected) in [
        (
            "--root R --log L --log-format json create --bundle B --pid-file P ID",
            "create ID bundle=B root=Some(\"R\") clear=true",
        ),
        (
            "--root R --log L --log-format json --systemd-cgroup create --bundle B --pid-file P --console-socket S ID",
            "create ID bundle=B root=Some(\"R\") clear=true",
        ),
        ("create --bundle=B --pid-file=P ID", "create ID bundle=B root=None clear=true"),
        ("create -b B create", "create create bundle=B root=None clear=true"),
        ("run -d ID", "run ID bundle=. root=None clear=true"),
        ("--root R start ID", "pass"),
        ("--root R kill ID 9", "pass"),
        ("features", "pass"),
        ("create --help", "create  bundle=. root=None clear=true"),
        ("--version", "pass"),
        ("", "pass"),
        ("--root create state ID", "pass"),
        ("--root R exec --process /tmp/p --detach --pid-file F ID", "exec ID bundle=. root=Some(\"R\") clear=true"),
        ("exec -td -e A=b --env C=d -g 1 -g 2 ID sh", "exec ID bundle=. root=None clear=true"),
        ("exec --cgroup memory:a --cgroup cpu,cpuacct:b ID sh", "exec ID bundle=. root=None clear=true"),
        ("exec -t -d ID sh -pX --cgro x", "exec ID bundle=. root=None clear=true"),
        ("exec ID create", "exec ID bundle=. root=None clear=true"),
        ("exec ID prog --log x", "exec ID bundle=. root=None clear=true"),
        ("--root R delete --force ID", "delete ID bundle=. root=Some(\"R\") clear=true"),
        ("update --resources - ID", "update ID bundle=. root=None clear=true"),
        ("update --resources=- ID", "update ID bundle=. root=None clear=true"),
        ("update ID --cpu-quota -1 --cpu-period 100000", "update ID bundle=. root=None clear=true"),
        ("update --memory 50M ID --resources -", "update ID bundle=. root=None clear=true"),
    ] {
        assert_eq!(read(line), expected, "{line}");
    }
}

#[test]
fn the_log_is_found_before_the_verb_only() {
    for (line, expected) in [
        ("--root R --log L --new-flag value create ID", Some("L")),
        ("--debug --log=L=M create ID", Some("L=M")),
        ("--root --log --log L create ID", Some("L")),
        ("exec ID prog --log L", None),
        ("--log", None),
        ("", None),
    ] {
        let found = global(line.split(' ').map(str::as_bytes), "log");
        assert_eq!(found, expected.map(str::as_bytes), "{line}");
    }
}

#[test]
fn doubt_before_a_making_verb_is_refused_and_elsewhere_passes() {
    for (line, expected) in [
        ("--new-flag create ID", "refused argv/1 --new-flag"),
        ("--new-flag value create ID", "refused argv/1 --new-flag"),
        ("--new-flag=x run ID", "refused argv/1 --new-flag"),
        ("--log-lev debug update -r F ID", "refused argv/1 --log-lev"),
        ("--new-flag state ID", "pass"),
        ("--new-flag value state ID", "pass"),
        ("create --bundle A --bundle B ID", "refused argv/4 --bundle"),
        ("create --bundle A -b B ID", "refused argv/4 -b"),
        ("create -bundle A ID", "refused argv/2 -bundle"),
        // crun reads the value of a letter with its `=`.
        ("create -b=A ID", "refused argv/2 -b"),
        ("update -r=- ID", "refused argv/2 -r"),
        ("create --no-pivot=false ID", "refused argv/2 --no-pivot"),
        ("--systemd-cgroup=false create ID", "refused argv/1 --systemd-cgroup"),
        ("delete --force=false ID", "delete ID bundle=. root=None clear=false"),
        // What crun takes as well.
        ("exec -p/tmp/p.json ID", "refused argv/2 -p/tmp/p.json"),
        ("exec -dp /tmp/p.json ID", "refused argv/2 -dp"),
        ("exec -p=/tmp/p.json ID", "refused argv/2 -p"),
        ("exec --cgro ../.. ID", "refused argv/2 --cgro"),
        ("exec --cw=/proc/self/fd/7 ID", "refused argv/2 --cw"),
        ("exec -cCAP_SYS_ADMIN ID", "refused argv/2 -cCAP_SYS_ADMIN"),
        ("exec -ti ID", "refused argv/2 -ti"),
        ("create --b A ID", "refused argv/2 --b"),
        ("create --config F ID", "refused argv/2 --config"),
        ("create -f F ID", "refused argv/2 -f"),
        ("create ID --bundle B", "refused argv/3 --bundle"),
        ("create ID extra", "refused argv/3 extra"),
        ("run --bundle", "refused argv/2 --bundle"),
        ("create --bundle= ID", "refused argv/2 --bundle"),
        ("create -- ID", "refused argv/2 --"),
        ("-- create ID", "refused argv/1 --"),
        ("--root R -- run ID", "refused argv/3 --"),
        ("-- state ID", "pass"),
        ("update --resources A ID -r B", "refused argv/5 -r"),
        ("update ID --cpu-quota --resources A", "refused argv/4 --resources"),
        ("update ID --memory 1 -- B", "refused argv/5 --"),
        ("update ID --memory 1 extra", "refused argv/5 extra"),
        ("delete --what ID", "delete ID bundle=. root=None clear=false"),
    ] {
        assert_eq!(read(line), expected, "{line}");
    }
}
