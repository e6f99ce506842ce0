//! Counts of the calls that engines make, against the file. No times: these are `make bench`'s.

use std::fs;

use bench::count::Counts;
use bench::figures::{self, Figure};
use integration::{Error, Result, root_for, say};

#[test]
fn nothing_costs_more_than_the_file_says() -> Result<()> {
    if !root_for("nothing_costs_more_than_the_file_says") {
        return Ok(());
    }
    if !figures::is_linked_with_musl()? {
        say(format_args!("skipped: the figures are of a program linked with musl, and this one is linked with glibc"));
        return Ok(());
    }
    let now = figures::measured()?;
    if std::env::var("QUILT_FIGURES").is_ok_and(|word| word == "write") {
        return fs::write(figures::file(), figures::text(now.0, &now.1)).map_err(|e| Error::new(e.to_string()));
    }
    let worse = figures::worse(&figures::known()?, &now);
    assert!(worse.is_empty(), "{}\n{}", worse.join("\n"), figures::text(now.0, &now.1));
    say(format_args!("{} scenes counted, no engine", now.1.len()));
    Ok(())
}

#[test]
fn what_is_worse_is_told() {
    let figure = |name: &str, calls, instructions| Figure {
        name: name.to_owned(),
        counts: Counts { calls, failed: 0, instructions },
    };
    let before = (1_000_000, vec![figure("create", 100, 1000), figure("state", 10, 50)]);
    for (now, expected) in [
        (before.clone(), &[][..]),
        ((1_030_000, vec![figure("create", 107, 1030), figure("state", 14, 51)]), &[]),
        ((1_030_001, before.1.clone()), &["the program has 1030001 bytes, had 1000000"]),
        ((1, vec![figure("create", 108, 1), figure("state", 1, 1)]), &["create: 108 system calls, were 100"]),
        ((1, vec![figure("create", 1, 1031), figure("state", 1, 1)]), &["create: 1031 instructions, were 1000"]),
        ((1, vec![figure("create", 1, 1)]), &["state was not counted"]),
        ((1, [&before.1[..], &[figure("x", 1, 1)]].concat()), &["x is not in the file"]),
    ] {
        assert_eq!(figures::worse(&before, &now), expected);
    }
}
