//! Plain tables for people: columns padded to their widest cell, one line a row. Machines use `--format json`.

use serde_json::Value;

/// The rows under a heading; nothing but the heading when there are none.
pub(crate) fn render<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let cell = |text: &str| if text.is_empty() { "-".to_owned() } else { one_line(text) };
    let lines: Vec<Vec<String>> = std::iter::once(heading.map(cell).to_vec())
        .chain(rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()))
        .collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect();
        out.push_str(padded.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Names come from tenants too; a terminal must not obey them.
pub(crate) fn one_line(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().to_string() } else { text.to_owned() }
}

/// An id as engines show it: of 64 hexadecimal digits the first twelve. Others, names among them, stay whole.
pub(crate) fn short(id: &str) -> &str {
    let long = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    id.get(..12).filter(|_| long).unwrap_or(id)
}

/// A container's place in a pod as people say it, when the pod's name is known: `NAMESPACE/POD/CONTAINER`.
pub(crate) fn in_pod(pod: Option<&Value>) -> Option<String> {
    let text = |field: &str| pod?.get(field)?.as_str().filter(|text| !text.is_empty());
    let name = text("name")?;
    Some([text("namespace"), Some(name), text("container")].into_iter().flatten().collect::<Vec<_>>().join("/"))
}

/// Whether somebody who gives this means the id: whole, or its beginning, from four characters on.
pub(crate) fn means(given: &str, id: &str) -> bool {
    given == id || given.chars().count() >= 4 && id.starts_with(given)
}

/// A number of things.
pub(crate) fn counted(number: impl Into<u64>, one: &str, many: &str) -> String {
    let number = number.into();
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Lines, each behind the same words.
pub(crate) fn lines(before: &str, list: &[String]) -> String {
    list.iter().map(|line| format!("{before}{}\n", one_line(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::{counted, means, short};

    #[test]
    fn ids_are_cut_as_engines_cut_them_and_understood_when_cut() {
        let id = "33b222e37df0".repeat(6);
        let id = &id[..64];
        for (whole, cut) in
            [(id, "33b222e37df0"), (&id[..63], &id[..63]), ("red", "red"), (&"z".repeat(64), &"z".repeat(64))]
        {
            assert_eq!(short(whole), cut);
            assert!(means(cut, whole));
        }
        for (given, meant) in [("33b2", true), ("33b", false), ("3b22", false), ("", false), (id, true)] {
            assert_eq!(means(given, id), meant, "{given}");
        }
        assert!(means("red", "red") && !means("red", "red2"));
    }

    #[test]
    fn one_of_something_is_singular() {
        assert_eq!(
            [0u64, 1, 2].map(|n| counted(n, "library", "libraries")),
            ["0 libraries", "1 library", "2 libraries"]
        );
    }

    #[test]
    fn columns_line_up_and_controls_are_shown() {
        let rows = [["nvidia0".to_owned(), String::new()], ["é\u{1b}[2J".to_owned(), "x".to_owned()]];
        assert_eq!(super::render(["NAME", "WHY"], &rows), "NAME        WHY\nnvidia0     -\né\\u{1b}[2J  x\n");
        assert_eq!(super::render(["A"], &[]), "A\n");
    }
}
