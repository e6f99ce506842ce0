//! The page of keys against the keys themselves, and both against the file that is installed.

use std::collections::BTreeMap;
use std::fs;

use contract::config::Config;

use crate::{blocks, project};

/// The words behind "known are" when a key is none.
fn known(text: &str) -> Vec<String> {
    let (_, problem) = Config::read(text.as_bytes());
    let problem = problem.unwrap_or_default();
    let (_, list) = problem.split_once("known are ").unwrap_or_else(|| panic!("{text}: {problem}"));
    list.split(", ").map(|word| word.trim().to_owned()).collect()
}

/// Every key of every table, as `table.key`.
fn keys() -> (Vec<String>, Vec<String>) {
    let (lists, tables): (Vec<_>, Vec<_>) = known("nonsense = 1").into_iter().partition(|table| {
        Config::read(format!("[[{table}]]\n").as_bytes()).1.is_some_and(|why| !why.contains("table of fields"))
    });
    let of = |table: &String| {
        known(&format!("[{table}]\nnonsense = 1")).into_iter().map(|key| format!("{table}.{key}")).collect::<Vec<_>>()
    };
    (tables.iter().flat_map(of).collect(), lists)
}

/// Keys and defaults by lines of a text: `section` says which table begins, `row` what a line says of a key.
fn table<'t>(
    text: &'t str,
    section: impl Fn(&'t str) -> Option<&'t str>,
    row: impl Fn(&'t str) -> Option<(&'t str, &'t str)>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(next) = section(line) {
            table = next;
        } else if let Some((key, value)) = row(line).filter(|_| !table.is_empty()) {
            found.insert(format!("{table}.{key}"), value.to_owned());
        }
    }
    found
}

#[test]
fn every_key_has_its_row_with_its_default() {
    let file = fs::read_to_string(project().join("configs/config.toml")).unwrap();
    let page = fs::read_to_string(project().join("docs/policy.md")).unwrap();
    let installed = table(
        &file,
        |line| if line.starts_with("#[[") { Some("") } else { line.strip_prefix('[')?.strip_suffix(']') },
        |line| line.strip_prefix('#')?.split_once(" = ").filter(|(key, _)| !key.contains(' ')),
    );
    let told = table(
        &page,
        |line| if line == "## Tables" { Some("") } else { line.strip_prefix("## `[")?.strip_suffix("]`") },
        |line| {
            let (key, rest) = line.strip_prefix("| `")?.split_once("` | `")?;
            Some((key, rest.split_once("` |")?.0))
        },
    );
    let (keys, lists) = keys();
    assert!(keys.len() > 40 && lists.len() == 3, "{keys:?} {lists:?}");
    assert_eq!(
        installed.keys().cloned().collect::<Vec<_>>(),
        {
            let mut keys = keys;
            keys.sort();
            keys
        },
        "configs/config.toml"
    );
    assert_eq!(told, installed, "docs/policy.md");
    for list in lists {
        for key in known(&format!("[[{list}]]\nnonsense = 1")) {
            let row = page.lines().find(|line| line.starts_with(&format!("| `[[{list}]]` |")));
            assert!(row.is_some_and(|row| row.contains(&format!("`{key}`"))), "docs/policy.md: {list}.{key}");
        }
    }
    // What the file says of each is the default, then.
    let active: String = file
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .take_while(|line| !line.contains("Whose workloads are"))
        .collect();
    assert_eq!(Config::read(active.as_bytes()), (Config::default(), None));
}

/// Configurations that pages show can be read.
#[test]
fn configurations_on_pages_can_be_read() {
    let mut read = 0;
    for page in crate::pages() {
        for block in blocks::of(&fs::read_to_string(&page).unwrap()).into_iter().filter(|b| b.info == "toml config") {
            assert_eq!(Config::read(block.text.as_bytes()).1, None, "{}:{}", page.display(), block.line);
            read += 1;
        }
    }
    assert!(read > 0);
}
