//! The chain through crashes: a log cut at every byte, and an append killed after every step.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::files::crash;

fn record(kind: Kind, n: u64) -> Record {
    let Value::Object(fields) = json!({"container": format!("c{n}"), "text": "line\nbreak and ünïcode"}) else {
        unreachable!()
    };
    Record { kind, fields }
}

fn log_of(n: u64) -> (TempDir, Audit) {
    let dir = tempfile::tempdir().unwrap();
    let audit = Audit::open(&dir.path().join("log"), &AuditPolicy::default()).unwrap();
    for seq in 1..=n {
        assert_eq!(audit.append(&record(Kind::Create, seq)).unwrap(), seq);
    }
    (dir, audit)
}

fn path(audit: &Audit, name: &str) -> PathBuf {
    audit.folder.join(name)
}

fn text(audit: &Audit) -> String {
    fs::read_to_string(path(audit, LOG)).unwrap()
}

fn good(audit: &Audit) -> Verified {
    let found = verify(&audit.folder).unwrap();
    assert_eq!(found.bad, None, "{}", text(audit));
    found
}

#[test]
fn records_are_chained_and_read_back() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, audit) = log_of(3);
    audit.append(&record(Kind::VerifyFailed, 4)).unwrap();
    let text = text(&audit);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with(&format!("{{\"seq\":1,\"prev\":\"{}\",\"kind\":\"create\",\"time\":\"20", "0".repeat(64))),
        "{}",
        lines[0]
    );
    for pair in lines.windows(2) {
        let next: Value = serde_json::from_str(pair[1]).unwrap();
        assert_eq!(next["prev"], sha256(pair[0].as_bytes()));
    }
    assert_eq!(good(&audit), Verified { records: 4, first: 1, last: 4, ..Verified::default() });
    let found = read(&audit.folder, |r| r["kind"] == "verify-failed").unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0]["container"].as_str(), found[0]["seq"].as_u64()), (Some("c4"), Some(4)));
    assert_eq!(fs::metadata(path(&audit, LOG)).unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn no_log_has_no_records() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("absent");
    assert_eq!(verify(&nowhere).unwrap(), Verified::default());
    assert!(read(&nowhere, |_| true).unwrap().is_empty());
    assert!(!nowhere.exists());
    let (_dir, empty) = log_of(0);
    assert_eq!(good(&empty), Verified::default());
}

#[test]
fn the_logs_own_fields_are_not_the_callers() {
    let (_dir, audit) = log_of(1);
    let mut bad = record(Kind::Create, 2);
    bad.fields.insert("prev".into(), "x".into());
    assert!(audit.append(&bad).unwrap_err().to_string().contains("\"prev\""));
    assert_eq!(good(&audit).records, 1);
}

#[test]
fn whatever_a_field_holds_is_a_record() {
    let (_dir, audit) = log_of(1);
    let mut odd = record(Kind::Create, 2);
    for text in ["\0", "a\u{1b}[31m\u{7f}", "\\u0000", "\"}\n{\"", "\u{2028}"] {
        odd.fields.insert("odd".into(), json!({ text: [text] }));
        audit.append(&odd).unwrap();
        fs::remove_file(path(&audit, "audit.head")).unwrap();
    }
    assert_eq!(good(&audit), Verified { records: 6, first: 1, last: 6, ..Verified::default() });
}

#[test]
fn an_unwritable_log_is_an_error() {
    let (_dir, audit) = log_of(1);
    fs::remove_file(path(&audit, LOG)).unwrap();
    fs::create_dir(path(&audit, LOG)).unwrap();
    let error = audit.append(&record(Kind::Create, 2)).unwrap_err();
    assert!(error.to_string().contains(LOG), "{error}");
}

#[test]
fn edits_stand_in_a_record_as_they_were_given() {
    let (_dir, audit) = log_of(0);
    let mut one = record(Kind::Create, 1);
    audit.append_with(&one, r#"[{"op":"add",  "value":"a\u0000"}]"#).unwrap();
    one.fields.clear();
    audit.append_with(&one, "[]").unwrap();
    audit.append_with(&one, &format!("[\"{}\",7]", "y".repeat(70_000))).unwrap();
    assert_eq!(good(&audit).records, 3);
    let records = read(&audit.folder, |_| true).unwrap();
    assert_eq!(records[0]["edits"], json!([{"op": "add", "value": "a\u{fffd}"}]));
    assert_eq!(records[1]["edits"], json!([]));
    assert_eq!(records[2]["edits"][1], 7);
    assert!(records[2]["edits"][0].as_str().unwrap().ends_with("…[65904 bytes more]"));
}

#[test]
fn long_records_are_shortened_with_a_mark() {
    let (_dir, audit) = log_of(0);
    let fields = |value: Value| {
        let Value::Object(fields) = value else { unreachable!() };
        Record { kind: Kind::Refuse, fields }
    };
    let long = "ü".repeat(60_000);
    let many: Vec<Value> = (0..200).map(|_| json!({ "s": "y".repeat(1000) })).collect();
    let hopeless: Vec<Value> = (0..40_000).map(|n| json!(n)).collect();
    for value in [
        json!({"id": "keep", "a": {"b": [long]}}),
        json!({"id": "keep", "many": many}),
        json!({"id": "keep", "numbers": hopeless}),
    ] {
        audit.append(&fields(value)).unwrap();
    }
    let text = text(&audit);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.iter().all(|line| line.len() <= MAX_LINE));
    assert!(
        lines[0].contains("keep") && lines[0].contains("…[115904 bytes more]"),
        "{}",
        &lines[0][lines[0].len() - 80..]
    );
    assert!(lines[1].contains("keep") && lines[1].contains("…[872 bytes more]"));
    assert!(lines[2].contains("\"dropped\":\""));
    assert_eq!(good(&audit).records, 3);
}

#[test]
fn every_change_is_found() {
    let (_dir, audit) = log_of(6);
    let whole = text(&audit);
    let lines: Vec<&str> = whole.lines().collect();
    let without = |n: usize| {
        lines.iter().enumerate().filter(|(at, _)| *at != n).map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    let forged = format!("{whole}{}\n", lines[5].replace("\"seq\":6", "\"seq\":7"));
    for (text, line, words) in [
        (whole.replace("\"c1\"", "\"cX\""), 1, "record 1 was changed"),
        (whole.replace("\"c3\"", "\"cX\""), 3, "record 3 was changed"),
        (whole.replace("\"c5\"", "\"cX\""), 5, "record 5 was changed"),
        (whole.replace(lines[4], &lines[4].replace("prev\":\"", "prev\":\"0")), 5, "record 5 was changed"),
        (whole.replace("\"c6\"", "\"cX\""), 6, "head file"),
        (without(2), 3, "record 4, expected 3"),
        (without(5), 6, "the head file knows"),
        (forged, 7, "prev"),
        (format!("{whole}garbage\n"), 7, "not a record"),
        (whole.replacen("\"seq\":1,\"prev\":\"0", "\"seq\":1,\"prev\":\"1", 1), 1, "prev"),
    ] {
        fs::write(path(&audit, LOG), &text).unwrap();
        let bad = verify(&audit.folder).unwrap().bad.unwrap();
        assert_eq!(bad.line, line, "{bad:?}");
        assert!(bad.why.contains(words), "{bad:?}");
    }
    fs::write(path(&audit, LOG), &whole).unwrap();
    assert_eq!(good(&audit).records, 6);
}

/// The log cut at every byte of its last two lines, with the head as it was before, between and after them: as a kill
/// between two steps, or a loss of power, leaves them. The next append goes on, and nothing is lost without a word.
#[test]
fn cut_at_every_byte() {
    let (_dir, audit) = log_of(3);
    let head = || fs::read(path(&audit, "audit.head")).unwrap();
    let mut heads = vec![head()];
    for seq in 4..=5 {
        audit.append(&record(Kind::Create, seq)).unwrap();
        heads.push(head());
    }
    let whole = fs::read(path(&audit, LOG)).unwrap();
    let starts: Vec<usize> = std::iter::once(0)
        .chain(whole.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1))
        .collect();
    for (known, head) in (3..=5).zip(&heads).map(|(n, head)| (n, Some(head))).chain([(0, None)]) {
        for end in starts[3]..=whole.len() {
            fs::write(path(&audit, LOG), &whole[..end]).unwrap();
            match head {
                Some(head) => fs::write(path(&audit, "audit.head"), head).unwrap(),
                None => fs::remove_file(path(&audit, "audit.head")).unwrap_or(()),
            }
            audit.append(&record(Kind::Release, 9)).unwrap();
            let found = good(&audit);
            let complete = starts.iter().filter(|start| **start != 0 && **start <= end).count() as u64;
            let rest = &whole[starts[complete as usize]..end];
            let lost = (known as u64).saturating_sub(complete);
            let torn = u64::from(!rest.is_empty() || lost > 0);
            assert_eq!(
                (found.records, found.torn, found.lost),
                (complete + torn + 1, torn, lost),
                "head {known}, cut at {end}"
            );
            let text = fs::read(path(&audit, LOG)).unwrap();
            assert_eq!(text[..end - rest.len()], whole[..end - rest.len()], "head {known}, cut at {end}");
            let kept = read(&audit.folder, |r| r["kind"] == "torn").unwrap();
            assert_eq!(kept.len() as u64, torn);
            if torn == 1 {
                assert_eq!(
                    kept[0]["text"].as_str().unwrap(),
                    String::from_utf8_lossy(rest),
                    "head {known}, cut at {end}"
                );
            }
        }
    }
}

/// An append killed after each of its steps, over a sound log and over a torn one.
#[test]
fn killed_after_every_step() {
    for torn in [&b""[..], b"{\"seq\":3,\"pr", b"\xff\xfe no record\n", b"zeros \0\0"] {
        let mut steps = 0;
        loop {
            let (_dir, audit) = log_of(2);
            let before = fs::read(path(&audit, LOG)).unwrap();
            fs::write(path(&audit, LOG), [&before, torn].concat()).unwrap();
            let (result, killed) = crash::after(steps, || audit.append(&record(Kind::Create, 3)));
            let (result, _) = (result.is_ok(), audit.append(&record(Kind::Create, 4)).unwrap());
            let found = good(&audit);
            let kept = u64::from(!torn.is_empty());
            assert_eq!(
                (found.records, found.torn),
                (3 + kept + u64::from(result), kept),
                "{torn:?} after {steps} steps"
            );
            assert!(text(&audit).starts_with(std::str::from_utf8(&before).unwrap()));
            if !torn.is_empty() {
                let torn_record = read(&audit.folder, |r| r["kind"] == "torn").unwrap().remove(0);
                assert_eq!(
                    torn_record["text"].as_str().unwrap(),
                    String::from_utf8_lossy(torn).replace('\0', "\u{fffd}")
                );
            }
            if !killed {
                break;
            }
            steps += 1;
        }
        assert!(steps > 1, "{steps} steps");
    }
}

#[test]
fn what_is_no_text_or_too_long_is_kept_whole_beside_the_log() {
    for foreign in [vec![0xff; 10], vec![0; 4096], b"{\"seq\":3,\0".to_vec(), vec![b'x'; 3 * MAX_LINE]] {
        let (_dir, audit) = log_of(2);
        let whole = [fs::read(path(&audit, LOG)).unwrap(), foreign.clone()].concat();
        fs::write(path(&audit, LOG), whole).unwrap();
        audit.append(&record(Kind::Create, 3)).unwrap();
        assert_eq!(good(&audit).torn, 1);
        let torn = read(&audit.folder, |r| r["kind"] == "torn").unwrap().remove(0);
        let beside = path(&audit, &format!("audit.torn-{}", torn["sha256"].as_str().unwrap()));
        assert_eq!(fs::read(beside).unwrap(), foreign);
        assert_eq!(torn["bytes"].as_u64(), Some(foreign.len() as u64));
    }
}

#[test]
fn a_log_that_was_moved_away_goes_on() {
    let (dir, audit) = log_of(3);
    fs::rename(path(&audit, LOG), dir.path().join("elsewhere")).unwrap();
    assert_eq!(good(&audit).records, 0);
    assert_eq!(audit.append(&record(Kind::Create, 4)).unwrap(), 4);
    assert_eq!(audit.append(&record(Kind::Create, 5)).unwrap(), 5);
    assert_eq!(good(&audit), Verified { records: 2, first: 4, last: 5, ..Verified::default() });
}

#[test]
fn files_are_one_log_whoever_put_them_aside_and_whatever_they_are_called() {
    let (_dir, audit) = log_of(3);
    // As logrotate names them: counted from the newest, or by date; of what it compresses nothing is read.
    for (seq, name) in [(4, "audit.jsonl.2"), (5, "audit.jsonl-20260101"), (6, "audit.jsonl.1")] {
        fs::rename(path(&audit, LOG), path(&audit, name)).unwrap();
        assert_eq!(good(&audit).last, seq - 1, "before anything is written after it");
        assert_eq!(audit.append(&record(Kind::Create, seq)).unwrap(), seq);
    }
    fs::write(path(&audit, "audit.jsonl.3.gz"), b"\x1f\x8b").unwrap();
    fs::write(path(&audit, "audit.jsonl.4"), b"").unwrap();
    assert_eq!(good(&audit), Verified { records: 6, first: 1, last: 6, ..Verified::default() });
    let seqs: Vec<u64> = read(&audit.folder, |_| true).unwrap().iter().map(|r| r["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);

    let whole = |name: &str| fs::read_to_string(path(&audit, name)).unwrap();
    let files = ["audit.jsonl.2", "audit.jsonl-20260101", "audit.jsonl.1", LOG];
    for (name, from, to, place, words) in [
        (files[0], "\"c2\"", "\"cX\"", (files[0], 2), "record 2 was changed"),
        // The first line of the next file tells.
        (files[0], "\"c3\"", "\"cX\"", (files[0], 3), "record 3 was changed"),
        (files[1], "\"c4\"", "\"cX\"", (files[1], 1), "record 4 was changed"),
        (files[2], "\"c5\"", "\"cX\"", (files[2], 1), "record 5 was changed"),
        (files[3], "\"c6\"", "\"cX\"", (files[3], 1), "the head file knows"),
        (files[1], "{", "(", (files[1], 1), "it is not a record"),
    ] {
        let before = whole(name);
        fs::write(path(&audit, name), before.replacen(from, to, 1)).unwrap();
        let bad = verify(&audit.folder).unwrap().bad.unwrap();
        assert_eq!((bad.file.as_str(), bad.line), place, "{bad:?}");
        assert!(bad.why.contains(words), "{bad:?}");
        fs::write(path(&audit, name), before).unwrap();
    }
    for (gone, place, words) in [
        (files[1], (files[2], 1), "it is record 5, expected 4"),
        (files[3], (files[2], 2), "the log ends with record 5, the head file knows record 6"),
    ] {
        let before = whole(gone);
        fs::remove_file(path(&audit, gone)).unwrap();
        let bad = verify(&audit.folder).unwrap().bad.unwrap();
        assert_eq!((bad.file.as_str(), bad.line), place, "{bad:?}");
        assert!(bad.why.contains(words), "{bad:?}");
        fs::write(path(&audit, gone), before).unwrap();
    }
    assert_eq!(good(&audit).records, 6);
}

/// A log that is put aside whenever it has a record, and keeps two such files.
fn rotating(audit: &Audit) -> Audit {
    let policy =
        AuditPolicy { rotate_mib: 1, keep: 2, mode: contract::config::FileMode(0o640), ..audit.policy.clone() };
    Audit { policy, ..audit.clone() }
}

fn filler(n: u64) -> Record {
    let mut record = record(Kind::Create, n);
    record.fields.insert("filler".into(), "x".repeat(60_000).into());
    record
}

#[test]
fn a_full_file_is_put_aside_and_the_oldest_goes() {
    let (_dir, audit) = log_of(0);
    let audit = rotating(&audit);
    for seq in 1..=80 {
        assert_eq!(audit.append(&filler(seq)).unwrap(), seq);
    }
    let mut names = crate::files::names(&audit.folder).unwrap();
    names.sort();
    let aside: Vec<&String> = names.iter().filter(|name| name.starts_with("audit.jsonl.")).collect();
    assert_eq!(aside, ["audit.jsonl.000000000054", "audit.jsonl.000000000072"]);
    assert_eq!(good(&audit), Verified { records: 44, first: 37, last: 80, ..Verified::default() });
    for name in [LOG, "audit.jsonl.000000000072"] {
        assert_eq!(fs::metadata(path(&audit, name)).unwrap().permissions().mode() & 0o7777, 0o640, "{name}");
    }
    // Whatever cannot be put aside goes on as it is.
    fs::create_dir(path(&audit, "audit.jsonl.000000000090")).unwrap();
    fs::write(path(&audit, "audit.jsonl.000000000090/x"), "").unwrap();
    for seq in 81..=91 {
        assert_eq!(audit.append(&filler(seq)).unwrap(), seq);
    }
    fs::remove_dir_all(path(&audit, "audit.jsonl.000000000090")).unwrap();
    assert_eq!(good(&audit).last, 91);
}

#[test]
fn killed_at_every_step_while_a_file_is_put_aside() {
    let mut steps = 0;
    loop {
        let (_dir, audit) = log_of(0);
        let audit = rotating(&audit);
        (1..=18).for_each(|seq| assert_eq!(audit.append(&filler(seq)).unwrap(), seq));
        let (result, killed) = crash::after(steps, || audit.append(&filler(19)));
        let next = audit.append(&record(Kind::Create, 20)).unwrap();
        assert_eq!(next, if result.is_ok() { 20 } else { 19 }, "after {steps} steps");
        assert_eq!(good(&audit), Verified { records: next, first: 1, last: next, ..Verified::default() });
        if !killed {
            break;
        }
        steps += 1;
    }
    assert!(steps > 2, "{steps} steps");
}

#[test]
fn a_syslog_socket_gets_one_line_a_record_and_keeps_nothing_from_going_on() {
    let (dir, audit) = log_of(0);
    let socket = dir.path().join("log.socket");
    let policy = AuditPolicy { syslog: socket.display().to_string(), ..AuditPolicy::default() };
    let audit = Audit { policy, ..audit };
    assert_eq!(audit.append(&record(Kind::Create, 1)).unwrap(), 1, "nobody listens");
    let daemon = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut long = record(Kind::Refuse, 2);
    long.fields.insert("message".into(), "ü".repeat(4000).into());
    audit.append(&long).unwrap();
    let mut bytes = [0; 16384];
    let length = daemon.recv(&mut bytes).unwrap();
    let (got, log) = (std::str::from_utf8(&bytes[..length]).unwrap(), text(&audit));
    let line = log.lines().last().unwrap();
    let begin = format!("<85>quilt-gpu[{}]: sha256={} ", std::process::id(), sha256(line.as_bytes()));
    let sent = got.strip_prefix(&begin).unwrap();
    assert!(line.starts_with(sent) && line.len() > sent.len() && (7167..8000).contains(&sent.len()), "{got}");
    // Nobody reads any more: the daemon's queue is full, and nothing waits for it.
    (3..400).for_each(|seq| assert_eq!(audit.append(&record(Kind::Exec, seq)).unwrap(), seq));
}

#[test]
fn many_at_once() {
    let (_dir, audit) = log_of(0);
    std::thread::scope(|scope| {
        for n in 0..16 {
            let audit = &audit;
            scope.spawn(move || {
                for m in 0..10 {
                    audit.append(&record(Kind::Exec, n * 100 + m)).unwrap();
                }
            });
        }
    });
    assert_eq!(good(&audit).records, 160);
}
